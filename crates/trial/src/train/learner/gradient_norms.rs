//! The norms of measured steps' gradients, which stay on the device until they are read together.

use kiln_core::statistics::GradientNorms;

use crate::{
    error::TrialError,
    train::{
        gradient::MeasuredGradient,
        optimizer::{ReadNorms, StepNorms, Updater},
    },
};

/// The measured steps of one network since the last read.
#[derive(Debug, Default)]
pub(super) struct GradientWatch {
    current: Option<Step>,
    ended: Vec<(Step, StepNorms)>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    step: u64,
    /// Samples of one micro-batch.
    samples: f64,
    /// Sum of the squared weights of the network's own micro-batches.
    weights: f64,
}

impl GradientWatch {
    pub(super) fn begin(&mut self, step: u64, samples: f64) {
        self.current = Some(Step {
            step,
            samples,
            weights: 0.0,
        });
    }

    /// Counts a micro-batch of this weight, which is its share of the step's targets.
    pub(super) fn add(&mut self, weight: f64) {
        if let Some(step) = &mut self.current {
            step.weights += weight * weight;
        }
    }

    /// Does not wait for the device.
    pub(super) fn end_step(&mut self, updater: &mut Updater) {
        if let Some(step) = self.current.take()
            && let Some(norms) = updater.take_norms()
        {
            self.ended.push((step, norms));
        }
    }

    /// In order. Waits for the device.
    pub(super) fn take(&mut self) -> Result<Vec<MeasuredGradient>, TrialError> {
        let (steps, norms): (Vec<Step>, Vec<StepNorms>) = self.ended.drain(..).unzip();
        let measured = |(step, read): (Step, ReadNorms)| {
            let norms = |[micro, whole]: [f64; 2]| GradientNorms {
                micro,
                whole,
                weights: step.weights,
                samples: step.samples,
            };
            MeasuredGradient {
                step: step.step,
                norms: norms(read.of_all),
                of_groups: read.of_groups.into_iter().map(norms).collect(),
                layer_groups: read.layer_groups,
            }
        };
        let norms = StepNorms::read(norms)?;
        Ok(steps.into_iter().zip(norms).map(measured).collect())
    }
}
