//! The interface between the training loop and a model on its device. The learner is the real one;
//! tests have one of known cost.

use std::path::Path;

use super::{DeviceBatch, Learner, generation::Writing, objective::Scores, optimizer::Counters};
use crate::{TrialError, data::HostBatch, model::RecurrentMemory};

/// Memory figures of the device's allocator since they were last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocatorPeaks {
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) retries: u64,
}

impl AllocatorPeaks {
    /// The higher of each.
    pub(crate) fn highest(self, other: Self) -> Self {
        Self {
            allocated_bytes: self.allocated_bytes.max(other.allocated_bytes),
            reserved_bytes: self.reserved_bytes.max(other.reserved_bytes),
            retries: self.retries.max(other.retries),
        }
    }
}

/// A model that can be trained. Work may be queued on the device; only methods that say so wait for
/// it.
pub(crate) trait Trainable {
    /// A batch on the device.
    type Batch;

    /// The next micro-batch is the first of an epoch: nothing is remembered of the batches before.
    fn begin_epoch(&mut self) {}

    fn to_device(&mut self, batch: &HostBatch) -> Result<Self::Batch, TrialError>;

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

    /// One step of a model that only makes matrix products.
    fn product(&mut self) -> Result<(), TrialError>;

    /// Waits. The loss of each step since the last call, in order.
    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError>;

    /// Seconds in which the devices exchanged gradients, of each step since the last call, in
    /// order; `None` for a step that could not be timed. To be called after a wait; nothing for one
    /// device.
    fn take_exchanges(&mut self) -> Vec<Option<f64>> {
        Vec::new()
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
    /// knows; they come after those that `memory` holds, which then holds these too if the model is
    /// recurrent.
    fn predict(
        &mut self,
        tokens: &[u32],
        memory: &mut RecurrentMemory,
    ) -> Result<Vec<f64>, TrialError>;

    /// Waits. A response to each prompt, by a model that reads them. `on_progress` hears how many
    /// tokens are written, and may stop it.
    fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError>;

    /// Waits until the device has done all it was given.
    fn wait(&mut self) -> Result<(), TrialError>;

    /// `None` where the allocator keeps no figures.
    fn allocator_peaks(&self) -> Option<AllocatorPeaks>;

    /// Bytes of the device that tensors hold now; `None` if the allocator keeps no figures.
    fn allocated_bytes(&self) -> Option<u64>;

    fn reset_allocator_peaks(&mut self);

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

impl Trainable for Learner {
    type Batch = DeviceBatch;

    fn begin_epoch(&mut self) {
        Self::begin_epoch(self);
    }

    fn to_device(&mut self, batch: &HostBatch) -> Result<DeviceBatch, TrialError> {
        Self::to_device(self, batch)
    }

    fn micro_step(
        &mut self,
        batch: DeviceBatch,
        step: u64,
        micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        Self::micro_step(self, batch, step, micro, total_targets)
    }

    fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        Self::update(self, learning_rate)
    }

    fn product(&mut self) -> Result<(), TrialError> {
        Self::product(self)
    }

    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        Self::take_losses(self)
    }

    fn skipped_steps(&self) -> Option<u64> {
        Self::skipped_steps(self)
    }

    fn evaluate(&mut self, batch: DeviceBatch) -> Result<(), TrialError> {
        Self::evaluate(self, batch)
    }

    fn finish_evaluation(&mut self) -> Result<Scores, TrialError> {
        Self::finish_evaluation(self)
    }

    fn predict(
        &mut self,
        tokens: &[u32],
        memory: &mut RecurrentMemory,
    ) -> Result<Vec<f64>, TrialError> {
        Self::predict(self, tokens, memory)
    }

    fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        Self::respond(self, writing, prompts, on_progress)
    }

    fn wait(&mut self) -> Result<(), TrialError> {
        Self::wait(self)
    }

    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        let stats = self.allocator()?;
        let allocated = stats
            .peak_allocated_bytes
            .max(self.recorded_peak_bytes().unwrap_or(0));
        Some(AllocatorPeaks {
            allocated_bytes: allocated,
            reserved_bytes: stats.peak_reserved_bytes,
            retries: stats.retries,
        })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.allocator()?.allocated_bytes)
    }

    fn reset_allocator_peaks(&mut self) {
        Self::reset_allocator_peaks(self);
    }

    fn copying(&self) -> Copying {
        Self::copying(self)
    }

    fn step_note(&self) -> Option<String> {
        Self::step_note(self)
    }

    fn save(&self, folder: &Path) -> Result<Counters, TrialError> {
        Self::save(self, folder)
    }
}
