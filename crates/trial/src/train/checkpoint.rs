//! Checkpoints of a training: when one is due, the state of the loop itself, and the point where a
//! new attempt resumes. The files belong to `kiln_core::record::checkpoint`, the tensors to the
//! learner.

use std::path::{Path, PathBuf};

use kiln_core::{
    folder::is_full,
    plan::{Origin, TrialFile},
    record::{
        Checkpoints, RunFolder,
        checkpoint::{HEADER, MODEL_FILE, UsableCheckpoint, aside},
    },
    spec::{AfterTraining, Checkpoint},
};
use serde::{Deserialize, Serialize};

use super::{
    early_stop::EarlyStopState, learner::TRAINING_FILE, ledger::LedgerState,
    measurement::LowestLoss, optimizer::Counters, schedule::PlateauState,
};
use crate::TrialError;

/// State of the training loop at the end of a step, without its tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoopState {
    /// Since the first attempt's first step, without pauses between attempts.
    pub(crate) seconds: f64,
    pub(crate) seconds_to_target: Option<f64>,
    #[serde(default)]
    pub(crate) steps_to_target: Option<u64>,
    #[serde(default)]
    pub(crate) lowest: Option<LowestLoss>,
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
    optimizer: Counters,
}

/// Key of the loop's state in a checkpoint.
const LOOP: &str = "loop";

/// The point from which an attempt resumes.
#[derive(Clone, Debug)]
pub(crate) struct ResumePoint {
    pub(crate) step: u64,
    pub(crate) state: LoopState,
    pub(crate) optimizer: Counters,
    pub(crate) folder: PathBuf,
}

/// The point to resume from, and its tensors.
type FoundCheckpoint<T> = (ResumePoint, T);

/// Keeps a trial's checkpoints.
#[derive(Debug)]
pub(crate) struct Keeper {
    checkpoints: Checkpoints,
    policy: Checkpoint,
    /// The lowest validation loss of which there is a checkpoint.
    lowest: f64,
    /// Bytes of the newest one.
    pub(crate) bytes: Option<u64>,
    /// The reason why a checkpoint could not be written.
    pub(crate) failure: Option<String>,
}

impl Keeper {
    /// `None` where the trial keeps no checkpoints.
    pub(crate) fn new(file: &TrialFile) -> Option<Self> {
        let checkpoints = Checkpoints::new(file.checkpoint_folder.clone()?, file.trial.clone());
        let checkpoints = checkpoints.by(file.attempt);
        let policy = file.train.checkpoint.clone()?;
        Some(Self {
            checkpoints,
            policy,
            lowest: f64::INFINITY,
            bytes: None,
            failure: None,
        })
    }

    /// The checkpoint to resume from with what `read` makes of its tensors, and the reasons why
    /// newer ones were refused: also those that `read` gives. `total_steps` is the trial's.
    ///
    /// Errors: the folder cannot be read, or its content cannot be removed.
    pub(crate) fn start<T>(
        &mut self,
        total_steps: u64,
        read: impl Fn(&ResumePoint) -> Result<T, TrialError>,
    ) -> Result<(Option<FoundCheckpoint<T>>, Vec<String>), TrialError> {
        let unreadable = |error| {
            TrialError::Failed(format!(
                "the trial's checkpoints cannot be read: {error}; an older one is not used; \
                     `kiln run` with `--rerun failed` tries again"
            ))
        };
        let found = self
            .checkpoints
            .newest(|usable| {
                let start = understood(usable, total_steps)?;
                let saved = read(&start).map_err(|error| error.to_string())?;
                Ok((start, saved))
            })
            .map_err(unreadable)?;
        self.lowest = self.checkpoints.lowest_loss().unwrap_or(f64::INFINITY);
        Ok(found)
    }

    /// Whether a checkpoint is due after a step from which training continues; `valid_loss` is of
    /// the evaluation after it.
    pub(crate) fn is_due(&self, step: u64, valid_loss: Option<f64>) -> bool {
        step.is_multiple_of(self.policy.every_steps.max(1)) || self.is_best(valid_loss)
    }

    /// Whether one is to stay of the training's end. Without any validation loss the last is the
    /// best.
    pub(crate) fn is_due_at_end(&self, valid_loss: Option<f64>) -> bool {
        let is_unrated = valid_loss.is_none() && self.lowest == f64::INFINITY;
        self.policy.after == AfterTraining::Last
            || self.is_best(valid_loss)
            || (self.policy.after.keeps_best() && is_unrated)
    }

    fn is_best(&self, valid_loss: Option<f64>) -> bool {
        self.policy.after.keeps_best() && valid_loss.is_some_and(|loss| loss < self.lowest)
    }

    /// Writes the checkpoint after a step, whose tensors `save` writes, and deletes those that it
    /// replaces; its bytes, `None` if it is there already.
    ///
    /// Where the disk is full, those that it would replace go first, but for one, and it is written once
    /// more: of the best and a newer one the best stays.
    ///
    /// Errors: those of `save`; a file cannot be written.
    pub(crate) fn write(
        &mut self,
        step: u64,
        valid_loss: Option<f64>,
        state: &LoopState,
        mut save: impl FnMut(&Path) -> Result<Counters, TrialError>,
    ) -> Result<Option<u64>, TrialError> {
        match self.write_once(step, valid_loss, state, &mut save) {
            Err(TrialError::NotSaved(error)) if is_full(&error) => {
                let keeps_best = self.policy.after.keeps_best();
                let least = u64::from(!keeps_best || self.lowest == f64::INFINITY);
                let others = self.policy.keep.saturating_sub(1).max(least);
                self.checkpoints
                    .keep(others, keeps_best)
                    .map_err(TrialError::NotSaved)?;
                self.write_once(step, valid_loss, state, &mut save)
            }
            written => written,
        }
    }

    fn write_once(
        &mut self,
        step: u64,
        valid_loss: Option<f64>,
        state: &LoopState,
        save: impl FnOnce(&Path) -> Result<Counters, TrialError>,
    ) -> Result<Option<u64>, TrialError> {
        let Some(draft) = self.checkpoints.begin(step).map_err(TrialError::NotSaved)? else {
            return self.amend(step, valid_loss, state).map(|()| None);
        };
        let optimizer = save(draft.folder())?;
        let training = serde_json::to_value(TrainingState {
            of_loop: state.clone(),
            optimizer,
        })
        .map_err(|error| TrialError::NotSaved(error.into()))?;
        let bytes = draft
            .finish(valid_loss, training)
            .map_err(TrialError::NotSaved)?;
        self.bytes = Some(bytes);
        self.tidy_up(valid_loss)?;
        Ok(Some(bytes))
    }

    /// The evaluation after a step may come only in the attempt that resumes from its checkpoint.
    fn amend(
        &mut self,
        step: u64,
        valid_loss: Option<f64>,
        state: &LoopState,
    ) -> Result<(), TrialError> {
        let Some(loss) = valid_loss else {
            return Ok(());
        };
        let of_loop =
            serde_json::to_value(state).map_err(|error| TrialError::NotSaved(error.into()))?;
        self.checkpoints
            .amend(step, loss, |training| training[LOOP] = of_loop)
            .map_err(TrialError::NotSaved)?;
        self.tidy_up(valid_loss)
    }

    /// Deletes what one with this loss replaces.
    fn tidy_up(&mut self, valid_loss: Option<f64>) -> Result<(), TrialError> {
        self.lowest = valid_loss.map_or(self.lowest, |loss| self.lowest.min(loss));
        self.checkpoints
            .keep(self.policy.keep, self.policy.after.keeps_best())
            .map_err(TrialError::NotSaved)
    }
}

/// The checkpoint of another trial, with which the training begins, and what `read` makes of its
/// tensors.
///
/// Errors: it is missing or changed, or of another model.
pub(crate) fn continued<T>(
    origin: &Origin,
    total_steps: u64,
    read: impl Fn(&ResumePoint) -> Result<T, TrialError>,
) -> Result<FoundCheckpoint<T>, TrialError> {
    let Origin {
        run,
        trial,
        step,
        sha256,
    } = origin;
    let refuse = |why: String| {
        TrialError::Failed(format!(
            "the checkpoint of step {step} of trial {trial} in {} cannot be continued: {why}",
            run.display()
        ))
    };
    let start = aside::with_sum(&RunFolder::at(run), trial, *step, sha256)
        .and_then(|usable| understood(usable, total_steps))
        .map_err(refuse)?;
    let saved = read(&start)?;
    Ok((start, saved))
}

/// Reads the training state of a checkpoint.
fn understood(
    UsableCheckpoint { header, folder }: UsableCheckpoint,
    total_steps: u64,
) -> Result<ResumePoint, String> {
    if header.step > total_steps {
        return Err(format!(
            "{HEADER} is of step {}, and the trial has {total_steps} steps",
            header.step
        ));
    }
    let missing = [MODEL_FILE, TRAINING_FILE]
        .into_iter()
        .find(|name| !header.files.contains_key(*name));
    if let Some(name) = missing {
        return Err(format!("{HEADER} does not list {name}"));
    }
    let state: TrainingState = serde_json::from_value(header.training).map_err(|error| {
        format!("{HEADER}: {error}; was it written by another version of kiln?")
    })?;
    state
        .optimizer
        .check(header.step)
        .map_err(|why| format!("{HEADER} was changed after it was written: {why}"))?;
    Ok(ResumePoint {
        step: header.step,
        state: state.of_loop,
        optimizer: state.optimizer,
        folder,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use kiln_core::plan::TrialId;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn loop_state() -> Value {
        json!({
            "seconds": 1.0, "seconds_to_target": null, "owes_evaluation": false,
            "plateau": {"lowest": null, "stalled": 0, "left": 1.0},
            "early_stop": {"lowest": null, "stalled": 0},
            "ledger": {"recent": [], "row_sum": 0.0, "row_steps": 0},
        })
    }

    /// A keeper of a disk with room for so many checkpoints.
    struct Small {
        keeper: Keeper,
        room: usize,
    }

    impl Small {
        fn new(folder: &Path, keep: u64, room: usize) -> Self {
            let policy = json!({"every_steps": 10, "keep": keep, "after": "best"});
            let checkpoints = folder.join("checkpoint");
            let keeper = Keeper {
                checkpoints: Checkpoints::new(checkpoints, TrialId("abcdef0123".to_owned())),
                policy: from_value(policy).unwrap(),
                lowest: f64::INFINITY,
                bytes: None,
                failure: None,
            };
            Self { keeper, room }
        }

        /// The steps that there are after this one.
        fn write(&mut self, step: u64, valid_loss: Option<f64>) -> Result<Vec<u64>, TrialError> {
            let state: LoopState = from_value(loop_state()).unwrap();
            let (room, kept) = (self.room, self.keeper.checkpoints.clone());
            self.keeper.write(step, valid_loss, &state, |folder| {
                if kept.steps().len() >= room {
                    return Err(TrialError::NotSaved(io::ErrorKind::StorageFull.into()));
                }
                fs::write(folder.join(MODEL_FILE), [1; 10]).map_err(TrialError::NotSaved)?;
                let counters = json!({"updates": step, "adamw_steps": null, "scaler": null});
                Ok(from_value(counters).unwrap())
            })?;
            Ok(self.keeper.checkpoints.steps())
        }
    }

    #[test]
    fn counters_that_are_not_of_the_step_are_refused() {
        let read = |optimizer: Value| {
            let file = json!({"bytes": 1, "sha256": ""});
            let header = json!({
                "kiln_checkpoint": 1, "trial": "abcdef0123", "step": 200,
                "files": {(MODEL_FILE): file, (TRAINING_FILE): file},
                "training": {"loop": loop_state(), "optimizer": optimizer},
            });
            let header = from_value(header).unwrap();
            let folder = PathBuf::new();
            understood(UsableCheckpoint { header, folder }, 300)
        };
        let scaler = json!({"scale": 1.0, "good_steps": 5, "skipped": 3});
        for counters in [
            json!({"updates": 200, "adamw_steps": null, "scaler": null}),
            json!({"updates": 200, "adamw_steps": 200.0, "scaler": null}),
            json!({"updates": 200, "adamw_steps": 197.0, "scaler": scaler}),
        ] {
            assert_eq!(read(counters).unwrap().step, 200);
        }
        for (counters, why) in [
            (
                json!({"updates": 2, "adamw_steps": null, "scaler": null}),
                "`updates` is 2 after 200 steps",
            ),
            (
                json!({"updates": 200, "adamw_steps": 20.0, "scaler": null}),
                "`adamw_steps` is 20 after 200 steps",
            ),
            (
                json!({"updates": 200, "adamw_steps": 200.0, "scaler": scaler}),
                "3 of them skipped",
            ),
        ] {
            let refused = read(counters).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn on_a_full_disk_what_the_new_one_replaces_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut two = Small::new(&folder.path().join("two"), 2, 2);
        fs::create_dir(folder.path().join("two")).unwrap();
        for (step, loss) in [(10, 3.0), (20, 2.0)] {
            two.write(step, Some(loss)).unwrap();
        }
        assert_eq!(two.write(30, Some(1.0)).unwrap(), [20, 30]);
        // Of the best and a newer one the best stays, until a better one is there.
        let mut one = Small::new(&folder.path().join("one"), 1, 2);
        fs::create_dir(folder.path().join("one")).unwrap();
        one.write(10, Some(1.0)).unwrap();
        assert_eq!(one.write(20, Some(2.0)).unwrap(), [10, 20]);
        assert_eq!(one.write(30, Some(3.0)).unwrap(), [10, 30]);
        assert_eq!(one.write(40, Some(0.5)).unwrap(), [40]);
        // The only one is never given up.
        let mut only = Small::new(&folder.path().join("only"), 1, 1);
        fs::create_dir(folder.path().join("only")).unwrap();
        only.write(10, None).unwrap();
        assert!(matches!(only.write(20, None), Err(TrialError::NotSaved(_))));
        assert_eq!(only.keeper.checkpoints.steps(), [10]);
    }
}
