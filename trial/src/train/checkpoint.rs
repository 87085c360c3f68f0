//! Checkpoints of a training: when one is due, what the loop itself must remember, and where a new attempt goes on. The files are
//! `kiln::record::checkpoint`'s matter, the tensors the learner's.

use std::path::{Path, PathBuf};

use kiln::{
    plan::TrialFile,
    record::{Checkpoints, checkpoint::Found},
    spec::{AfterTraining, Checkpoint},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ledger::LedgerState, schedule::PlateauState, training::EarlyStopState};
use crate::TrialError;

/// What a training loop knows at the end of a step, besides its tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoopState {
    /// Since the first attempt's first step, pauses between attempts left out.
    pub(crate) seconds: f64,
    pub(crate) seconds_to_target: Option<f64>,
    pub(crate) plateau: PlateauState,
    pub(crate) early_stop: EarlyStopState,
    pub(crate) ledger: LedgerState,
    /// Whether the evaluation after the step was due and is still to be made.
    pub(crate) owes_evaluation: bool,
}

/// The part of a checkpoint's header that is the child's.
#[derive(Debug, Serialize, Deserialize)]
struct TrainingState {
    #[serde(rename = "loop")]
    of_loop: LoopState,
    optimizer: Value,
}

/// Where an attempt goes on.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) step: u64,
    pub(crate) state: LoopState,
    pub(crate) optimizer: Value,
    pub(crate) folder: PathBuf,
}

/// Keeps a trial's checkpoints.
#[derive(Debug)]
pub(crate) struct Keeper {
    checkpoints: Checkpoints,
    policy: Checkpoint,
    /// The lowest validation loss of which there is a checkpoint.
    lowest: f64,
    /// Bytes of the newest one.
    pub(crate) bytes: Option<u64>,
    /// Why one could not be written.
    pub(crate) failure: Option<String>,
}

impl Keeper {
    /// `None` where the trial keeps no checkpoints.
    pub(crate) fn new(file: &TrialFile) -> Option<Self> {
        let checkpoints = Checkpoints::new(file.checkpoint_folder.clone()?, file.trial.clone());
        let policy = file.train.checkpoint.clone()?;
        Some(Self { checkpoints, policy, lowest: f64::INFINITY, bytes: None, failure: None })
    }

    /// Where to go on, and why not from a newer checkpoint.
    ///
    /// Errors: the folder cannot be read; a checkpoint of this trial cannot be understood.
    pub(crate) fn start(&mut self) -> Result<(Option<Start>, Vec<String>), TrialError> {
        let unreadable = |error: &dyn std::fmt::Display| TrialError::Failed(format!("the trial's checkpoints cannot be read: {error}"));
        let (found, refused) = self.checkpoints.newest().map_err(|error| unreadable(&error))?;
        self.lowest = self.checkpoints.lowest_loss().unwrap_or(f64::INFINITY);
        let Some(Found { header, folder }) = found else { return Ok((None, refused)) };
        let state: TrainingState = serde_json::from_value(header.training).map_err(|error| unreadable(&error))?;
        Ok((Some(Start { step: header.step, state: state.of_loop, optimizer: state.optimizer, folder }), refused))
    }

    /// Whether a checkpoint is due after a step that training goes on from; `valid_loss` is of the evaluation after it.
    pub(crate) fn is_due(&self, step: u64, valid_loss: Option<f64>) -> bool {
        step.is_multiple_of(self.policy.every_steps.max(1)) || self.is_best(valid_loss)
    }

    /// Whether one is to stay of the training's end.
    pub(crate) fn is_due_at_end(&self, valid_loss: Option<f64>) -> bool {
        self.policy.after == AfterTraining::Last || self.is_best(valid_loss)
    }

    fn is_best(&self, valid_loss: Option<f64>) -> bool {
        self.policy.after == AfterTraining::Best && valid_loss.is_some_and(|loss| loss < self.lowest)
    }

    /// Writes the checkpoint after a step, whose tensors `save` writes, and deletes those that it replaces; its bytes, `None` if it is
    /// there already.
    ///
    /// Errors: those of `save`; a file cannot be written.
    pub(crate) fn write(
        &mut self,
        step: u64,
        valid_loss: Option<f64>,
        state: LoopState,
        save: impl FnOnce(&Path) -> Result<Value, TrialError>,
    ) -> Result<Option<u64>, TrialError> {
        let Some(draft) = self.checkpoints.begin(step).map_err(TrialError::NotSaved)? else { return Ok(None) };
        let optimizer = save(draft.folder())?;
        let training = serde_json::to_value(TrainingState { of_loop: state, optimizer }).map_err(|error| TrialError::NotSaved(error.into()))?;
        let bytes = draft.finish(valid_loss, training).map_err(TrialError::NotSaved)?;
        self.bytes = Some(bytes);
        self.lowest = valid_loss.map_or(self.lowest, |loss| self.lowest.min(loss));
        self.checkpoints.keep(self.policy.keep, self.policy.after == AfterTraining::Best).map_err(TrialError::NotSaved)?;
        Ok(Some(bytes))
    }
}
