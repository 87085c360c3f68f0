//! The optimizer on libtorch: one fused kernel per group of parameters, in place. burn's handles of the parameters see the new
//! values, since they share the memory.

#![allow(deprecated, reason = "burn-tch ends with burn 0.22, which this package pins")]

use burn::{
    backend::LibTorch,
    tensor::{Gradients, Tensor},
};
use kiln::spec::Optimizer;

use super::{
    NamedValues,
    collected::{Collected, Taken},
    decay, without_backward,
};
use crate::{
    engine::libtorch::{AdamW, Group, Sgd, accumulate, adamw, clip, sgd},
    error::TrialError,
    model::Network,
};

#[derive(Debug)]
pub(crate) struct Fused {
    paths: Vec<String>,
    /// Where each parameter stands: group, in the order of `paths`.
    group_of: Vec<usize>,
    /// Parameters with weight decay, and without.
    groups: [Group; 2],
    optimizer: Optimizer,
    clip_norm: Option<f64>,
    /// Accumulated gradients, f32, in the order of `paths`; empty before the first backward pass of a step.
    gradients: Vec<tch::Tensor>,
    updates: u64,
}

impl Fused {
    pub(super) fn new(network: &Network, optimizer: &Optimizer, clip_norm: Option<f64>) -> Self {
        let found = Collected::<tch::Tensor>::parameters(network);
        let group_of: Vec<usize> = found.tensors.iter().map(|tensor| usize::from(decay(optimizer, tensor.dim()) == 0.0)).collect();
        let mut groups = [Group::default(), Group::default()];
        for (tensor, group) in found.tensors.into_iter().zip(&group_of) {
            // SGD without momentum keeps nothing: a buffer that nobody reads would count in the memory columns.
            if !matches!(optimizer, Optimizer::Sgd { momentum: 0.0, .. }) {
                groups[*group].first.push(tensor.zeros_like());
            }
            if matches!(optimizer, Optimizer::Adamw { .. }) {
                groups[*group].second.push(tensor.zeros_like());
                groups[*group].steps.push(tch::Tensor::zeros([], (tch::Kind::Float, tensor.device())));
            }
            groups[*group].parameters.push(tensor);
        }
        Self { paths: found.paths, group_of, groups, optimizer: optimizer.clone(), clip_norm, gradients: Vec::new(), updates: 0 }
    }

    pub(super) fn accumulate(&mut self, network: &Network, gradients: Gradients) -> Result<(), TrialError> {
        let found = Collected::gradients(network, gradients)?;
        if self.gradients.is_empty() {
            self.gradients = found.tensors;
            return Ok(());
        }
        accumulate(&self.gradients, &found.tensors)
    }

    pub(super) fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        if self.gradients.is_empty() {
            return Err(without_backward());
        }
        if let Some(largest) = self.clip_norm {
            drop(clip(&self.gradients, largest)?);
        }
        for (gradient, group) in self.gradients.drain(..).zip(&self.group_of) {
            self.groups[*group].gradients.push(gradient);
        }
        for (at, group) in self.groups.iter_mut().enumerate() {
            step(&self.optimizer, group, learning_rate, at == 0, self.updates == 0)?;
            group.gradients.clear();
        }
        self.updates += 1;
        Ok(())
    }

    pub(super) fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        let values = self.gradients.iter().map(|gradient| {
            let flat = gradient.to_device(tch::Device::Cpu).reshape([-1]);
            Vec::<f32>::try_from(flat).map_err(|error| TrialError::Failed(error.to_string()))
        });
        self.paths.iter().zip(values).map(|(path, values)| Ok((path.clone(), values?))).collect()
    }
}

fn step(optimizer: &Optimizer, group: &Group, learning_rate: f64, decays: bool, first_step: bool) -> Result<(), TrialError> {
    match *optimizer {
        Optimizer::Adamw { beta1, beta2, epsilon, weight_decay, .. } => {
            let weight_decay = if decays { weight_decay } else { 0.0 };
            adamw(group, AdamW { learning_rate, beta1, beta2, weight_decay, epsilon })
        }
        Optimizer::Sgd { momentum, nesterov, weight_decay, .. } => {
            let weight_decay = if decays { weight_decay } else { 0.0 };
            sgd(group, Sgd { learning_rate, momentum, nesterov, weight_decay, first_step })
        }
    }
}

/// As it is, in f32: the moments of the rules are.
impl Taken for tch::Tensor {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let tensor = tensor.try_into_primitive::<LibTorch>().expect("a network on libtorch has its tensors there").tensor;
        tensor.to_kind(tch::Kind::Float)
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::{Module, ModuleVisitor, Param},
        tensor::{DType, Device},
    };
    use kiln::{
        catalog::InputShape,
        spec::{Engine, Precision},
    };

    use super::*;
    use crate::{
        engine::Arithmetic,
        model::{Init, Input},
    };

    fn group(parameter: &[f32], gradient: &[f32]) -> Group {
        let parameters = vec![tch::Tensor::from_slice(parameter)];
        Group {
            gradients: vec![tch::Tensor::from_slice(gradient)],
            first: vec![parameters[0].zeros_like()],
            second: vec![parameters[0].zeros_like()],
            steps: vec![tch::Tensor::zeros([], (tch::Kind::Float, tch::Device::Cpu))],
            parameters,
        }
    }

    fn values(tensor: &tch::Tensor) -> Vec<f32> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn fused_adamw_equals_adamw_written_out_for_20_steps() {
        let with = AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, epsilon: 1e-8 };
        let mut fused = group(&[1.0, -2.0, 0.5], &[0.0; 3]);
        let (mut parameter, mut first, mut second) = ([1.0_f64, -2.0, 0.5], [0.0_f64; 3], [0.0_f64; 3]);
        for step in 1..=20 {
            let gradient: Vec<f32> = (0..3).map(|at| ((step * 7 + at * 3) % 11) as f32 / 5.0 - 1.0).collect();
            fused.gradients = vec![tch::Tensor::from_slice(&gradient)];
            adamw(&fused, with).unwrap();
            for at in 0..3 {
                let gradient = f64::from(gradient[at]);
                first[at] = with.beta1 * first[at] + (1.0 - with.beta1) * gradient;
                second[at] = with.beta2 * second[at] + (1.0 - with.beta2) * gradient * gradient;
                let (mean, square) = (first[at] / (1.0 - with.beta1.powi(step)), second[at] / (1.0 - with.beta2.powi(step)));
                parameter[at] *= 1.0 - with.learning_rate * with.weight_decay;
                parameter[at] -= with.learning_rate * mean / (square.sqrt() + with.epsilon);
            }
        }
        for (fused, written) in values(&fused.parameters[0]).into_iter().zip(parameter) {
            // f32 against f64 over 20 steps.
            assert!((f64::from(fused) - written).abs() < 2e-6, "{fused} {written}");
        }
    }

    /// Checks the dtype of each parameter's gradient as burn's autodiff made it.
    struct Dtypes(Gradients, usize);

    impl ModuleVisitor for Dtypes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(&self.0).expect("each parameter has a gradient");
            assert_eq!(gradient.dtype(), DType::F32);
            self.1 += 1;
        }
    }

    #[test]
    fn under_amp_bf16_every_gradient_moment_and_parameter_is_f32() {
        for tied in [true, false] {
            let shape = format!("{{kind: gpt, d_model: 16, num_layers: 2, num_heads: 2, seq_len: 4, tie_head: {tied}}}");
            let device = Device::libtorch();
            let init = Init { seed: 1, device: device.clone().autodiff() };
            let network = Network::new(&serde_yaml::from_str(&shape).unwrap(), Some(InputShape::Text { vocabulary: 20 }), &init).unwrap();
            let with = Arithmetic::new(Engine::Libtorch, Precision::AmpBf16).unwrap();
            let backward = || {
                let tokens = Tensor::from_data([[1, 2, 3, 4]], &device);
                with.cross_entropy(network.forward(Input::Text(tokens), &mut None, with), Tensor::from_data([2, 3, 4, 5], &device), 0.0).backward()
            };
            let mut dtypes = Dtypes(backward(), 0);
            network.visit(&mut dtypes);
            let mut fused = Fused::new(&network, &Optimizer::default(), Some(1.0));
            assert_eq!(dtypes.1, fused.paths.len());
            fused.accumulate(&network, backward()).unwrap();
            fused.accumulate(&network, backward()).unwrap();
            assert!(fused.gradients.iter().all(|gradient| gradient.kind() == tch::Kind::Float));
            fused.update(1e-3).unwrap();
            for group in &fused.groups {
                let all = [&group.parameters, &group.first, &group.second, &group.steps];
                assert!(all.into_iter().flatten().all(|tensor| tensor.kind() == tch::Kind::Float));
            }
        }
    }

    #[test]
    fn fused_sgd_equals_sgd_with_momentum_written_out() {
        let mut fused = group(&[1.0, -2.0], &[0.0; 2]);
        let (mut parameter, mut moving) = ([1.0_f32, -2.0], [0.0_f32; 2]);
        for step in 0..5 {
            let gradient = [0.5 - step as f32 * 0.1, 0.2];
            fused.gradients = vec![tch::Tensor::from_slice(&gradient)];
            let with = Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.01, first_step: step == 0 };
            sgd(&fused, with).unwrap();
            for at in 0..2 {
                moving[at] = 0.9 * moving[at] + gradient[at] + 0.01 * parameter[at];
                parameter[at] -= 0.1 * moving[at];
            }
        }
        for (fused, written) in values(&fused.parameters[0]).into_iter().zip(parameter) {
            assert!((fused - written).abs() < 1e-6, "{fused} {written}");
        }
    }

    #[test]
    fn the_clip_norm_is_the_global_norm() {
        let gradients = [tch::Tensor::from_slice(&[3.0_f32, 0.0]), tch::Tensor::from_slice(&[4.0_f32])];
        let norm = clip(&gradients, 1.0).unwrap();
        assert!((norm.double_value(&[]) - 5.0).abs() < 1e-6);
        assert!((values(&gradients[0])[0] - 0.6).abs() < 1e-6 && (values(&gradients[1])[0] - 0.8).abs() < 1e-6);
        drop(clip(&gradients, 2.0).unwrap());
        assert!((values(&gradients[1])[0] - 0.8).abs() < 1e-6, "a norm below the limit is left as it is");
    }
}
