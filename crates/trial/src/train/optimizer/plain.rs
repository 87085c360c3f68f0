//! The optimizer in burn's own tensors, for flex. Parameters, gradients and moments are used as
//! flat lists of numbers.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Gradients, Tensor},
};
use kiln_core::spec::Optimizer;

use super::{Counters, FIRST, NamedValues, SECOND, collected::Collected, without_backward};
use crate::{
    error::TrialError,
    model::Network,
    train::tensor_file::{NamedTensors, OutgoingTensor, TensorFile},
};

#[derive(Debug)]
pub(crate) struct Plain {
    paths: Vec<String>,
    /// First and second moments of AdamW, SGD's momentum in the first, or Adafactor's means along
    /// the last axis and the one before it, in the order of `paths`.
    moments: Vec<[Tensor<1>; 2]>,
    optimizer: Optimizer,
    clip_norm: Option<f64>,
    /// Accumulated gradients in the order of `paths`; empty before the first backward pass of a
    /// step.
    gradients: Vec<Tensor<1>>,
    updates: i32,
}

impl Plain {
    pub(super) fn new(network: &Network, optimizer: &Optimizer, clip_norm: Option<f64>) -> Self {
        let found = Collected::<Tensor<1>>::parameters(network);
        let shapes = Collected::<Vec<usize>>::parameters(network).tensors;
        let zeros = |tensor: &Tensor<1>, count: usize| Tensor::zeros([count], &tensor.device());
        let moments = found.tensors.iter().zip(&shapes).map(|(tensor, shape)| {
            match (optimizer, folded(shape)) {
                (Optimizer::Adafactor { .. }, Some([leading, rows, columns])) => [
                    zeros(tensor, leading * rows),
                    zeros(tensor, leading * columns),
                ],
                _ => [tensor.zeros_like(), tensor.zeros_like()],
            }
        });
        let moments = moments.collect();
        Self {
            paths: found.paths,
            moments,
            optimizer: optimizer.clone(),
            clip_norm,
            gradients: Vec::new(),
            updates: 0,
        }
    }

    pub(super) fn accumulate(
        &mut self,
        network: &Network,
        gradients: Gradients,
    ) -> Result<(), TrialError> {
        let found = Collected::<Tensor<1>>::gradients(network, gradients)?;
        let so_far = std::mem::take(&mut self.gradients);
        self.gradients = if so_far.is_empty() {
            found.tensors
        } else {
            added(so_far, found.tensors)
        };
        Ok(())
    }

    pub(super) fn update(
        &mut self,
        network: Network,
        learning_rate: f64,
    ) -> Result<Network, TrialError> {
        if self.gradients.is_empty() {
            return Err(without_backward());
        }
        let gradients = clipped(std::mem::take(&mut self.gradients), self.clip_norm);
        self.updates += 1;
        let mut update = Update {
            optimizer: &self.optimizer,
            learning_rate,
            number: self.updates,
            gradients: gradients.into_iter(),
            moments: self.moments.iter_mut(),
        };
        Ok(network.map(&mut update))
    }

    pub(super) fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        named_values(&self.paths, &self.gradients)
    }

    pub(super) fn state(&self) -> (Counters, NamedTensors) {
        let counters = Counters {
            updates: self.updates as u64,
            ..Counters::default()
        };
        let of = |path: &str, moments: &[Tensor<1>; 2]| {
            [FIRST, SECOND]
                .into_iter()
                .zip(moments.clone())
                .map(|(which, moment)| (format!("{which}{path}"), OutgoingTensor::new(moment)))
                .collect::<NamedTensors>()
        };
        (
            counters,
            self.paths
                .iter()
                .zip(&self.moments)
                .flat_map(|(path, moments)| of(path, moments))
                .collect(),
        )
    }

    pub(super) fn restore(
        &mut self,
        counters: &Counters,
        moments: &TensorFile,
    ) -> Result<(), TrialError> {
        self.updates = i32::try_from(counters.updates).unwrap_or(i32::MAX);
        for (path, kept) in self.paths.iter().zip(&mut self.moments) {
            for (which, moment) in [FIRST, SECOND].into_iter().zip(kept) {
                let values = moments.values(&format!("{which}{path}"), moment.dims()[0])?;
                *moment = Tensor::from_data(values.as_slice(), &moment.device());
            }
        }
        Ok(())
    }
}

/// Makes the replicas' gradients their sum.
pub(super) fn sum(replicas: Vec<&mut Plain>) {
    let total = replicas
        .iter()
        .map(|replica| replica.gradients.clone())
        .reduce(added);
    for (replica, total) in replicas
        .into_iter()
        .zip(std::iter::repeat(total.unwrap_or_default()))
    {
        replica.gradients = total;
    }
}

fn added(sums: Vec<Tensor<1>>, terms: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
    sums.into_iter()
        .zip(terms)
        .map(|(sum, term)| sum + term)
        .collect()
}

/// The parameters of a network on either engine. Waits for the device.
pub(in crate::train) fn parameters(network: &Network) -> Result<Vec<NamedValues>, TrialError> {
    let found = Collected::<Tensor<1>>::parameters(network);
    named_values(&found.paths, &found.tensors)
}

fn named_values(paths: &[String], tensors: &[Tensor<1>]) -> Result<Vec<NamedValues>, TrialError> {
    let named = paths
        .iter()
        .zip(tensors.iter().cloned())
        .map(|(path, tensor)| {
            let data = tensor.try_into_data().map_err(|error| {
                TrialError::Failed(format!("`{path}` could not be read: {error:?}"))
            })?;
            Ok((path.clone(), data.iter::<f32>().collect()))
        });
    named.collect()
}

/// Scaled so that their common norm is at most `largest`.
fn clipped(gradients: Vec<Tensor<1>>, largest: Option<f64>) -> Vec<Tensor<1>> {
    let Some(largest) = largest else {
        return gradients;
    };
    let squares = gradients
        .iter()
        .map(|gradient| gradient.clone().powi_scalar(2).sum())
        .collect();
    let norm = Tensor::cat(squares, 0).sum().sqrt();
    let factor = (norm + 1e-6).recip().mul_scalar(largest).clamp_max(1.0);
    gradients
        .into_iter()
        .map(|gradient| gradient * factor.clone())
        .collect()
}

/// The two last axes, and before them all others as one; `None` for a parameter of one axis.
fn folded(shape: &[usize]) -> Option<[usize; 3]> {
    let [leading @ .., rows, columns] = shape else {
        return None;
    };
    Some([leading.iter().product(), *rows, *columns])
}

/// Adafactor's direction, before its length is bounded.
fn factored(
    gradient: Tensor<1>,
    shape: Option<[usize; 3]>,
    moments: &mut [Tensor<1>; 2],
    kept: f64,
    epsilon: f64,
) -> Tensor<1> {
    let moved = |old: Tensor<1>, new: Tensor<1>| old * kept + new * (1.0 - kept);
    let squares = gradient.clone().square();
    let Some(shape @ [leading, rows, columns]) = shape else {
        moments[0] = moved(moments[0].clone(), squares + epsilon);
        return gradient / moments[0].clone().sqrt();
    };
    let squares = squares.reshape(shape);
    moments[0] = moved(
        moments[0].clone(),
        squares.clone().mean_dim(2).reshape([leading * rows]) + epsilon,
    );
    moments[1] = moved(
        moments[1].clone(),
        squares.mean_dim(1).reshape([leading * columns]) + epsilon,
    );
    let of_rows = moments[0].clone().reshape([leading, rows, 1]);
    let of_rows = of_rows.clone() / of_rows.mean_dim(1); // [leading, rows, 1]
    let of_columns = moments[1].clone().reshape([leading, 1, columns]);
    (gradient.reshape(shape) / of_rows.sqrt() / of_columns.sqrt())
        .reshape([leading * rows * columns])
}

/// One step of the rule on one parameter; the new values.
fn stepped(
    optimizer: &Optimizer,
    at: &UpdateAt,
    parameter: Tensor<1>,
    gradient: Tensor<1>,
    moments: &mut [Tensor<1>; 2],
) -> Tensor<1> {
    match *optimizer {
        Optimizer::Adamw {
            beta1,
            beta2,
            epsilon,
            ..
        } => {
            let first = moments[0].clone() * beta1 + gradient.clone() * (1.0 - beta1);
            let second = moments[1].clone() * beta2 + gradient.clone() * gradient * (1.0 - beta2);
            *moments = [first.clone(), second.clone()];
            let (mean_bias, square_bias) =
                (1.0 - beta1.powi(at.number), 1.0 - beta2.powi(at.number));
            let size = second.sqrt() / square_bias.sqrt() + epsilon;
            parameter * (1.0 - at.learning_rate * at.decay)
                - first / size * (at.learning_rate / mean_bias)
        }
        Optimizer::Sgd {
            momentum, nesterov, ..
        } => {
            let gradient = gradient + parameter.clone() * at.decay;
            let moving = moments[0].clone() * momentum + gradient.clone();
            moments[0] = moving.clone();
            let direction = if nesterov {
                gradient + moving * momentum
            } else {
                moving
            };
            parameter - direction * at.learning_rate
        }
        Optimizer::Adafactor {
            decay_rate,
            epsilon,
            clip_threshold,
            ..
        } => {
            let kept = 1.0 - f64::from(at.number).powf(-decay_rate);
            let update = factored(gradient, at.shape, moments, kept, epsilon);
            let size = update.clone().square().mean().sqrt();
            let update = update / size.div_scalar(clip_threshold).clamp_min(1.0);
            parameter * (1.0 - at.learning_rate * at.decay) - update * at.learning_rate
        }
    }
}

struct UpdateAt {
    learning_rate: f64,
    decay: f64,
    number: i32,
    shape: Option<[usize; 3]>,
}

struct Update<'a, G, M> {
    optimizer: &'a Optimizer,
    learning_rate: f64,
    number: i32,
    gradients: G,
    moments: M,
}

impl<'a, G: Iterator<Item = Tensor<1>>, M: Iterator<Item = &'a mut [Tensor<1>; 2]>> ModuleMapper
    for Update<'_, G, M>
{
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (Some(gradient), Some(moments)) = (self.gradients.next(), self.moments.next()) else {
            return param;
        };
        let (learning_rate, number) = (self.learning_rate, self.number);
        param.map(|tensor| {
            let shape = tensor.dims();
            let at = UpdateAt {
                learning_rate,
                decay: self.optimizer.weight_decay_of(D),
                number,
                shape: folded(&shape),
            };
            let flat = tensor.detach().inner().flatten(0, D - 1);
            let updated = stepped(self.optimizer, &at, flat, gradient, moments);
            updated.reshape(shape).autodiff().require_grad()
        })
    }
}
