//! The optimizer on libtorch: one fused kernel per group of parameters, in place. burn's handles of
//! the parameters see the new values, since they share the memory.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

mod layer_groups;

use std::sync::Arc;

use burn::{
    backend::LibTorch,
    tensor::{Gradients, Tensor},
};
use burn_tch::TchTensor;
use kiln_core::spec::{GradientNoise, Optimizer, Precision, Train};

use self::layer_groups::LayerGroups;
use super::{
    Counters, FIRST, NamedValues, ReadNorms, SECOND,
    collected::{Collected, FromTensor},
    scaler::Scaler,
    without_backward,
};
use crate::{
    engine::{
        replicas::sum_over_replicas,
        updates::{
            LearningRate, OnDevice, ParameterGroup, UpdateContext, accumulate, clip_divisor,
            squared_norms, step,
        },
    },
    error::TrialError,
    model::Network,
    train::tensor_file::{NamedTensors, OutgoingTensor, TensorFile},
};

/// The squared norms of one step's gradients, on the device: each [1], of all parameters together, or
/// [1 + parameters], followed by that of each one; f64.
#[derive(Debug, Default)]
pub(in crate::train) struct FusedNorms {
    /// Sum over the backward passes so far.
    pub(in crate::train) micro: Option<tch::Tensor>,
    /// Of the whole gradient, before clipping.
    pub(in crate::train) whole: Option<tch::Tensor>,
    /// `None` if nothing is asked of layer groups.
    layer_groups: Option<Arc<LayerGroups>>,
}

impl FusedNorms {
    fn of(&self, gradients: &[tch::Tensor]) -> Result<tch::Tensor, TrialError> {
        let of_each = squared_norms(gradients)?;
        let of_all = of_each.sum(None).reshape([1]);
        Ok(match self.layer_groups {
            Some(_) => tch::Tensor::cat(&[of_all, of_each], 0),
            None => of_all,
        })
    }
}

/// Reads the norms of ended steps of one training at once. Waits for the device.
pub(super) fn read_norms(
    steps: impl Iterator<Item = FusedNorms>,
) -> Result<Vec<ReadNorms>, TrialError> {
    let (mut all, mut layer_groups) = (Vec::new(), Vec::new());
    for step in steps {
        let (micro, whole) = step.micro.zip(step.whole).ok_or_else(without_backward)?;
        all.extend([micro, whole]);
        layer_groups.push(step.layer_groups);
    }
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let values = tch::Tensor::stack(&all, 0).reshape([-1]);
    let values = Vec::<f64>::try_from(values).map_err(unreadable)?;
    let width = values.len() / all.len();
    let steps = values.chunks_exact(2 * width).zip(layer_groups);
    Ok(steps
        .map(|(values, layer_groups)| {
            let (micro, whole) = values.split_at(width);
            let sums = |values: &[f64]| match &layer_groups {
                Some(layer_groups) => layer_groups.sums(&values[1..]),
                None => Vec::new(),
            };
            let of_groups = sums(micro).into_iter().zip(sums(whole));
            ReadNorms {
                of_all: [micro[0], whole[0]],
                of_groups: of_groups.map(|(micro, whole)| [micro, whole]).collect(),
                layer_groups: layer_groups
                    .map(|layer_groups| Arc::clone(&layer_groups.groups))
                    .unwrap_or_default(),
            }
        })
        .collect())
}

#[derive(Debug)]
pub(crate) struct Fused {
    paths: Vec<String>,
    /// Group of each parameter, in the order of `paths`.
    group_of: Vec<usize>,
    /// Parameters with weight decay, and without.
    groups: [ParameterGroup; 2],
    optimizer: Optimizer,
    clip_norm: Option<f64>,
    /// Number format of the parameters, their gradients and moments: bf16 under `bf16`, else f32.
    kind: tch::Kind,
    /// For products in f16.
    scaler: Option<Scaler>,
    /// Accumulated gradients in the order of `paths`; empty before the first backward pass of a
    /// step.
    gradients: Vec<tch::Tensor>,
    updates: u64,
    /// Of the current step, if it is measured, and of the last one until it is taken.
    watch: Option<FusedNorms>,
    layer_groups: Arc<LayerGroups>,
}

impl Fused {
    pub(super) fn new(network: &Network, train: &Train) -> Self {
        let optimizer = &train.optimizer;
        let found = Collected::<tch::Tensor>::parameters(network);
        let first = found.tensors.first();
        let kind = first.map_or(tch::Kind::Float, tch::Tensor::kind);
        let device = first.map_or(tch::Device::Cpu, tch::Tensor::device);
        let group_of: Vec<usize> = found
            .tensors
            .iter()
            .map(|tensor| usize::from(optimizer.weight_decay_of(tensor.dim()) == 0.0))
            .collect();
        let sizes = found.tensors.iter().map(|tensor| tensor.numel() as u64);
        let layer_groups =
            LayerGroups::of(network, found.paths.iter().map(String::as_str).zip(sizes));
        let mut groups = [ParameterGroup::default(), ParameterGroup::default()];
        for (tensor, group) in found.tensors.into_iter().zip(&group_of) {
            groups[*group].begin(optimizer, &tensor);
            groups[*group].parameters.push(tensor);
        }
        Self {
            paths: found.paths,
            group_of,
            groups,
            optimizer: optimizer.clone(),
            clip_norm: train.clip_norm,
            kind,
            scaler: (train.precision == Precision::AmpF16).then(|| Scaler::new(device)),
            gradients: Vec::new(),
            updates: 0,
            watch: None,
            layer_groups: Arc::new(layer_groups),
        }
    }

    /// From now to the next update the norms of gradients are kept.
    pub(super) fn watch_norms(&mut self, wanted: GradientNoise) {
        self.watch = Some(FusedNorms {
            layer_groups: wanted.layer_groups.then(|| Arc::clone(&self.layer_groups)),
            ..FusedNorms::default()
        });
    }

    pub(super) fn watches_norms(&self) -> bool {
        self.watch.is_some()
    }

    /// The norms kept since [`Fused::watch_norms`], if an update has ended that step.
    pub(super) fn take_norms(&mut self) -> Option<FusedNorms> {
        self.watch.take_if(|norms| norms.whole.is_some())
    }

    /// Adds the norms of one backward pass's gradients, without the scale of the loss.
    fn watch_terms(&mut self, terms: &[tch::Tensor]) -> Result<(), TrialError> {
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let mut own = watch.of(terms)?;
        if let Some(scaler) = &self.scaler {
            own /= scaler.squared_factor();
        }
        watch.micro = Some(match watch.micro.take() {
            Some(so_far) => so_far + own,
            None => own,
        });
        Ok(())
    }

    /// The loss to go backward from.
    pub(super) fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        match &self.scaler {
            Some(scaler) => scaler.scaled(loss),
            None => loss,
        }
    }

    /// Steps skipped because a gradient overflowed; `None` where that is not possible. Waits for
    /// the device.
    pub(super) fn skipped_steps(&self) -> Result<Option<u64>, TrialError> {
        self.scaler.as_ref().map(Scaler::skipped).transpose()
    }

    /// The gradients of one backward pass as an update takes them: in the order of `paths`, of the
    /// parameters' kind and layout.
    ///
    /// Errors: a parameter got none.
    pub(in crate::train) fn terms(
        &self,
        network: &Network,
        gradients: Gradients,
    ) -> Result<Vec<tch::Tensor>, TrialError> {
        let found = Collected::<tch::Tensor>::gradients(network, gradients)?;
        // Operations that hold a parameter give its gradient in its own format, those between them
        // may not.
        let terms = found.tensors.into_iter().zip(self.parameters());
        let of_kind = |gradient: tch::Tensor| {
            if gradient.kind() == self.kind {
                gradient
            } else {
                gradient.to_kind(self.kind)
            }
        };
        Ok(terms
            .map(|(gradient, parameter)| laid_out_as(parameter, of_kind(gradient)))
            .collect())
    }

    pub(super) fn accumulate(
        &mut self,
        network: &Network,
        gradients: Gradients,
    ) -> Result<(), TrialError> {
        let terms = self.terms(network, gradients)?;
        self.watch_terms(&terms)?;
        if self.gradients.is_empty() {
            self.gradients = terms;
            return Ok(());
        }
        accumulate(&self.gradients, &terms)
    }

    /// The step's gradients so far, as [`Fused::terms`] has them.
    pub(in crate::train) fn set_gradients(&mut self, gradients: Vec<tch::Tensor>) {
        self.gradients = gradients;
    }

    pub(super) fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        if self.gradients.is_empty() {
            return Err(without_backward());
        }
        let gradients = std::mem::take(&mut self.gradients);
        self.apply(&gradients, LearningRate::Number(learning_rate))?;
        self.count_update();
        Ok(())
    }

    /// The device part of an update; overwrites these gradients.
    pub(in crate::train) fn apply(
        &mut self,
        gradients: &[tch::Tensor],
        learning_rate: LearningRate<'_>,
    ) -> Result<(), TrialError> {
        if let Some(scaler) = &mut self.scaler {
            scaler.unscale(gradients)?;
        }
        if let Some(watch) = &mut self.watch {
            watch.whole = Some(watch.of(gradients)?);
        }
        let clipping = self.clip_norm;
        let divisor = clipping.map(|largest| clip_divisor(gradients, largest));
        let divisor = divisor.transpose()?;
        for (gradient, group) in gradients.iter().zip(&self.group_of) {
            self.groups[*group].gradients.push(gradient.shallow_clone());
        }
        let update = UpdateContext {
            learning_rate,
            is_first: self.updates == 0,
            known: OnDevice {
                divisor: divisor.as_ref(),
                found: self.scaler.as_ref().map(Scaler::found),
            },
        };
        let stepped = self
            .groups
            .iter()
            .enumerate()
            .try_for_each(|(at, group)| step(&self.optimizer, group, at == 0, update));
        self.groups
            .iter_mut()
            .for_each(|group| group.gradients.clear());
        stepped?;
        self.scaler.as_mut().map_or(Ok(()), Scaler::end_step)
    }

    /// The host part of an update.
    pub(in crate::train) fn count_update(&mut self) {
        self.updates += 1;
    }

    pub(super) fn state(&self) -> Result<(Counters, NamedTensors), TrialError> {
        let counted = self.groups.iter().find_map(|group| group.steps.first());
        let counters = Counters {
            updates: self.updates,
            adamw_steps: counted
                .map(|steps| steps.f_double_value(&[]))
                .transpose()
                .map_err(unreadable)?,
            scaler: self.scaler.as_ref().map(Scaler::state).transpose()?,
        };
        let named = |which: &str, path: &str, moment: &tch::Tensor| {
            (format!("{which}{path}"), OutgoingTensor::new(flat(moment)))
        };
        let moments = self.moments().flat_map(|(path, [first, second])| {
            let first = first.map(|moment| named(FIRST, path, moment));
            first
                .into_iter()
                .chain(second.map(|moment| named(SECOND, path, moment)))
        });
        Ok((counters, moments.collect()))
    }

    pub(super) fn restore(
        &mut self,
        counters: &Counters,
        moments: &TensorFile,
    ) -> Result<(), TrialError> {
        self.updates = counters.updates;
        for steps in self.groups.iter_mut().flat_map(|group| &mut group.steps) {
            let _ = steps.fill_(counters.adamw_steps.unwrap_or_default());
        }
        if let (Some(scaler), Some(state)) = (&mut self.scaler, counters.scaler) {
            scaler.restore(state);
        }
        for (path, [first, second]) in self.moments() {
            for (which, moment) in [FIRST, SECOND].into_iter().zip([first, second]) {
                let Some(moment) = moment else { continue };
                let values = moments.values(&format!("{which}{path}"), moment.numel())?;
                // The same memory: its layout decides which kernels read it.
                moment
                    .shallow_clone()
                    .copy_(&tch::Tensor::from_slice(&values).reshape(moment.size()));
            }
        }
        Ok(())
    }

    pub(super) fn parameter_addresses(&self) -> Vec<usize> {
        self.parameters()
            .map(|parameter| parameter.data_ptr() as usize)
            .collect()
    }

    /// Copies of the parameters, in the order of their paths.
    #[cfg(test)]
    pub(in crate::train) fn values(&self) -> Vec<tch::Tensor> {
        self.parameters().map(tch::Tensor::copy).collect()
    }

    /// The parameters in the order of `paths`.
    fn parameters(&self) -> impl Iterator<Item = &tch::Tensor> {
        self.places()
            .map(|(group, place)| &self.groups[group].parameters[place])
    }

    /// Position of each parameter: its group and its place there.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut places = [0, 0];
        self.group_of.iter().map(move |group| {
            let place = places[*group];
            places[*group] += 1;
            (*group, place)
        })
    }

    /// Each parameter's path with its moments, where it has them.
    fn moments(&self) -> impl Iterator<Item = (&str, [Option<&tch::Tensor>; 2])> {
        self.paths
            .iter()
            .zip(self.places())
            .map(|(path, (group, place))| {
                let ParameterGroup { first, second, .. } = &self.groups[group];
                (path.as_str(), [first.get(place), second.get(place)])
            })
    }

    pub(super) fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        let scale = self.scaler.as_ref().map_or(Ok(1.0), Scaler::scale)?;
        let values = self.gradients.iter().map(|gradient| {
            let flat = (gradient.to_kind(tch::Kind::Float) / scale)
                .to_device(tch::Device::Cpu)
                .reshape([-1]);
            Vec::<f32>::try_from(flat).map_err(|error| TrialError::Failed(error.to_string()))
        });
        self.paths
            .iter()
            .zip(values)
            .map(|(path, values)| Ok((path.clone(), values?)))
            .collect()
    }
}

/// A gradient whose elements lie in memory as those of its parameter: itself, or a copy.
///
/// libtorch's fused updates on the CPU walk through the memory of both side by side and do not look
/// at strides, so the gradient that `x.matmul(w.transpose())` gives `w`, a transposed view, would
/// update the wrong elements. Source: `FusedAdamKernel.cpp`, `FusedSGDKernel.cpp` of PyTorch 2.11.
fn laid_out_as(parameter: &tch::Tensor, gradient: tch::Tensor) -> tch::Tensor {
    // The stride of an axis of one element is never used, and differs freely.
    let steps = |tensor: &tch::Tensor| -> Vec<i64> {
        let used = tensor
            .size()
            .into_iter()
            .zip(tensor.stride())
            .filter(|(size, _)| *size > 1);
        used.map(|(_, stride)| stride).collect()
    };
    if steps(&gradient) == steps(parameter) {
        return gradient;
    }
    let mut copy = parameter.empty_like();
    copy.copy_(&gradient);
    copy
}

/// Makes the replicas' gradients their sum.
pub(super) fn sum(replicas: &[&Fused]) -> Result<(), TrialError> {
    let lists: Vec<&[tch::Tensor]> = replicas
        .iter()
        .map(|replica| replica.gradients.as_slice())
        .collect();
    sum_over_replicas(&lists)
}

/// Row after row, whatever its layout.
fn flat(tensor: &tch::Tensor) -> Tensor<1> {
    Tensor::from_primitive::<LibTorch>(TchTensor::new(tensor.reshape([-1])))
}

fn unreadable(error: tch::TchError) -> TrialError {
    TrialError::Failed(format!("the optimizer's state could not be read: {error}"))
}

/// As it is, in the memory that burn's handle has.
impl FromTensor for tch::Tensor {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        tensor
            .try_into_primitive::<LibTorch>()
            .expect("a network on libtorch has its tensors there")
            .tensor
    }
}

#[cfg(test)]
mod tests;
