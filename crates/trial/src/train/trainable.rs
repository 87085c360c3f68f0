//! The interface between the training loop and a model on its device. The learner is the real one;
//! tests have one of known cost.

use std::path::Path;

use kiln_core::spec::GradientNoise;

use super::{
    generation::Writing, gradient::MeasuredGradient, measurement::DeviceWork, objective::Scores,
    optimizer::Counters,
};
use crate::{TrialError, data::HostBatch, engine::CopyMarks, model::TextMemory};

/// A model that can be trained. Work may be queued on the device; only methods that say so wait for
/// it.
pub(crate) trait Trainable: DeviceWork {
    /// A batch on the device.
    type Batch;

    /// The next micro-batch is the first of an epoch: nothing is remembered of the batches before.
    fn begin_epoch(&mut self) {}

    /// Copies a batch; `marks` hears of the copies, for which nothing waits.
    fn to_device(
        &mut self,
        batch: &HostBatch,
        marks: &mut dyn CopyMarks,
    ) -> Result<Self::Batch, TrialError>;

    /// Forward and backward of micro-batch `micro` (from 0) of step `step` (from 1); gradients add
    /// up. `total_targets` counts the targets of the whole step, which its loss and gradient are
    /// divided by.
    fn micro_step(
        &mut self,
        batch: Self::Batch,
        step: u64,
        micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError>;

    /// One optimizer update from the gradients added up, which it clears.
    fn update(&mut self, learning_rate: f64) -> Result<(), TrialError>;

    /// Waits. The loss of each step since the last call, in order.
    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError>;

    /// Seconds in which the devices exchanged gradients, of each step since the last call, in
    /// order; `None` for a step that could not be timed. To be called after a wait; nothing for one
    /// device.
    fn take_exchanges(&mut self) -> Vec<Option<f64>> {
        Vec::new()
    }

    /// The gradient of the coming step is measured, whose micro-batches have so many samples.
    fn watch_gradient(&mut self, _step: u64, _samples: u64, _wanted: GradientNoise) {}

    /// Waits. The norms of the steps measured since the last call, in order.
    fn take_gradient_norms(&mut self) -> Result<Vec<MeasuredGradient>, TrialError> {
        Ok(Vec::new())
    }

    /// Steps skipped because a gradient overflowed, as of the last losses read; `None` where that
    /// is not possible.
    fn skipped_steps(&self) -> Option<u64> {
        None
    }

    fn evaluate(&mut self, batch: Self::Batch) -> Result<(), TrialError>;

    /// Waits. Mean loss and scores over every target evaluated since the last call.
    fn finish_evaluation(&mut self) -> Result<Scores, TrialError>;

    /// Waits. A language model's outputs for what follows these tokens, one per token that it
    /// knows; they come after those that `memory` holds, which then holds these too if the model
    /// keeps something of them.
    fn predict(&mut self, tokens: &[u32], memory: &mut TextMemory) -> Result<Vec<f64>, TrialError>;

    /// Waits. A response to each prompt, by a model that reads them. `on_progress` hears how many
    /// tokens are written, and may stop it.
    fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError>;

    /// The way in which batches were copied to the device.
    fn copying(&self) -> Copying;

    /// Note for the trial's row about the way its steps were run (`train.cuda_graph`).
    fn step_note(&self) -> Option<String> {
        None
    }

    /// Waits. Writes its tensors into a folder, between two steps; what else it must remember is
    /// returned.
    fn save(&self, folder: &Path) -> Result<Counters, TrialError>;

    /// Waits. What must hold at the end of any training.
    ///
    /// Errors: it does not.
    fn check(&self) -> Result<(), TrialError> {
        Ok(())
    }
}

/// The way in which batches were copied to the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copying {
    /// The kind of host memory they were copied from; `None` where none is copied to a device.
    pub(crate) from: Option<&'static str>,
    /// The reason why `data.pin_memory` had no effect.
    pub(crate) note: Option<String>,
}
