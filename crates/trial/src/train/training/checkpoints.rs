//! Checkpoints: what is saved of the loop, when, and how a new attempt takes it over.

use std::io::Write;

use kiln_core::record::{Message, note::UnwrittenCheckpoint};

use super::{Ending, Training, diverged};
use crate::{
    TrialError,
    train::{checkpoint::LoopState, trainable::Trainable},
};

impl<T: Trainable, W: Write> Training<'_, '_, T, W> {
    /// Takes over what an attempt before knew after `step`.
    pub(crate) fn resume(&mut self, step: u64, state: &LoopState) {
        self.measurement.figures.steps = step;
        self.measurement.figures.resumed_at = Some(step);
        self.measurement.figures.seconds_before = state.seconds;
        self.measurement.figures.seconds_to_target = state.seconds_to_target;
        self.measurement.figures.steps_to_target = state.steps_to_target;
        self.measurement.figures.lowest = state.lowest;
        self.measurement.figures.evaluated_at = (!state.owes_evaluation).then_some(step);
        self.plateau.restore(&state.plateau);
        self.early_stop.restore(&state.early_stop);
        self.measurement.ledger.restore(&state.ledger);
    }

    /// Why the attempt before had ended the training early at the step of its checkpoint, if it had. The
    /// evaluations of a training that this one continues end nothing: it is continued to go on.
    pub(super) fn had_stopped_early(&self) -> Option<String> {
        let step = self.measurement.figures.resumed_at?;
        let origin = self.measurement.file.origin.as_ref();
        let is_own = origin.is_none_or(|origin| origin.step < step);
        let is_before_the_end = step < self.measurement.plan.total_steps;
        (is_own && is_before_the_end && self.evaluation_is_due(step))
            .then(|| self.early_stop.reason())
            .flatten()
    }

    /// Whether the state at the end of the training is kept: a finished one if requested, an
    /// interrupted one so that it can be resumed.
    pub(super) fn keeps_the_end(&self, ending: &Ending) -> bool {
        let Some(keeper) = &self.keeper else {
            return false;
        };
        match ending {
            Ending::Completed | Ending::StoppedEarly(_) => {
                keeper.is_due_at_end(self.loss_at(self.measurement.figures.steps))
            }
            Ending::Interrupted => {
                self.measurement.figures.steps > self.measurement.figures.resumed_at.unwrap_or(0)
            }
            Ending::Diverged(_) => false,
        }
    }

    /// Writes a checkpoint after `step`; an ending, if the losses read for it bring one. Its time
    /// is cut out of the window. One that cannot be written is told of and ends nothing.
    pub(super) fn checkpoint(&mut self, step: u64) -> Result<Option<Ending>, TrialError> {
        if let Some(divergence) = self.settle()? {
            return Ok(Some(diverged(divergence)));
        }
        let (written, _, seconds) =
            self.aside(|training| match training.write_checkpoint(step) {
                Err(TrialError::NotSaved(error)) => Ok(Err(error)),
                other => other.map(Ok),
            })?;
        *self
            .measurement
            .figures
            .checkpoint_seconds
            .get_or_insert(0.0) += seconds;
        match written {
            Ok(Some(bytes)) => self.measurement.messages.send(&Message::Checkpointed {
                step,
                bytes,
                seconds,
            })?,
            Ok(None) => {}
            Err(error) => {
                let error = error.to_string();
                let text = UnwrittenCheckpoint { step, error }.to_string();
                self.measurement
                    .messages
                    .send(&Message::Notice { text: text.clone() })?;
                self.keeper
                    .iter_mut()
                    .for_each(|keeper| keeper.failure = Some(text.clone()));
            }
        }
        Ok(None)
    }

    /// Its bytes; `None` if it is there already.
    fn write_checkpoint(&mut self, step: u64) -> Result<Option<u64>, TrialError> {
        let (state, valid_loss) = (self.loop_state(step), self.loss_at(step));
        let Self {
            keeper: Some(keeper),
            trainee,
            measurement,
            ..
        } = self
        else {
            return Ok(None);
        };
        keeper.write(step, valid_loss, &state, |folder| {
            // After a power failure the steps before the checkpoint are there too.
            measurement.tables.sync()?;
            trainee.save(folder)
        })
    }

    fn loop_state(&self, step: u64) -> LoopState {
        LoopState {
            seconds: self
                .measurement
                .seconds_trained(self.measurement.clock.now()),
            seconds_to_target: self.measurement.figures.seconds_to_target,
            steps_to_target: self.measurement.figures.steps_to_target,
            lowest: self.measurement.figures.lowest,
            plateau: self.plateau.state(),
            early_stop: self.early_stop.state(),
            ledger: self.measurement.ledger.state(),
            owes_evaluation: self.owes_evaluation(step),
        }
    }
}
