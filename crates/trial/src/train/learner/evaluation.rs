//! An evaluation in progress: sums over the validation targets, on the device until it ends.

use burn::{module::Module, tensor::Tensor};

use super::read;
use crate::{
    engine::guard_result,
    error::TrialError,
    model::{RecurrentMemory, check_outputs},
    train::{
        DeviceBatch,
        objective::{BatchTarget, Scores},
        step::StepState,
    },
};

/// Sums over the batches of the current evaluation.
#[derive(Debug, Default)]
pub(super) struct Evaluator {
    sums: Option<Sums>,
    /// State of a recurrent network.
    memory: RecurrentMemory,
}

#[derive(Debug)]
struct Sums {
    /// On the device; see [`BatchTarget::sums`].
    sums: Tensor<1>,
    targets: u64,
    /// Target of the first batch: it defines the meaning of the sums.
    target: BatchTarget,
    outputs: usize,
}

impl Evaluator {
    /// Adds a batch: no gradient, no dropout, no wait.
    pub(super) fn add(&mut self, state: &StepState, batch: DeviceBatch) -> Result<(), TrialError> {
        let arithmetic = state.arithmetic.evaluating();
        let targets = batch.counted_targets;
        let mut memory = self.memory.take();
        let DeviceBatch { input, target, .. } = batch;
        let (sums, outputs) = guard_result(|| {
            let outputs = state
                .network()
                .valid()
                .forward(input, &mut memory, arithmetic);
            state.own_input.map_or(Ok(()), |input| {
                check_outputs(&outputs, target.count(), input)
            })?;
            let [_, width] = outputs.dims();
            Ok((target.sums(outputs, arithmetic), width))
        })?;
        self.memory = memory.filter(|_| state.carries_memory);
        self.sums = Some(match self.sums.take() {
            Some(so_far) => Sums {
                sums: so_far.sums + sums,
                targets: so_far.targets + targets,
                ..so_far
            },
            None => Sums {
                sums,
                targets,
                target,
                outputs,
            },
        });
        Ok(())
    }

    /// Mean loss, in nats per target, and the scores. Waits for the device.
    ///
    /// Errors: no target was evaluated.
    pub(super) fn finish(&mut self) -> Result<Scores, TrialError> {
        self.memory = None;
        match self.sums.take() {
            Some(Sums {
                sums,
                targets,
                target,
                outputs,
            }) if targets > 0 => {
                let sums = guard_result(|| read(sums))?;
                Ok(target.scores(&sums, targets, outputs))
            }
            _ => Err(TrialError::Failed(
                "the validation data has no target to predict".to_owned(),
            )),
        }
    }
}
