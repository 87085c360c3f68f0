//! Estimates the disk space of a plan under `results/` from the rows it will write, without
//! hardware samples (their number depends on time).

use super::Trial;
use crate::spec::{AfterTraining, Checkpoint, EvaluateEvery, EvaluateMoment};

/// One row of steps.csv: table, times, epoch, step, loss, learning rate, warm-up.
const STEP_ROW_BYTES: u64 = 120;
/// One row of epochs.csv.
const EPOCH_ROW_BYTES: u64 = 160;
/// trial.yaml, trial.json, stderr.txt and the trial's rows in trials.csv and snapshots.csv, in
/// whole file blocks.
const TRIAL_BYTES: u64 = 24 * 1024;
/// A token of sample.txt: a word, if tokens are words.
const TOKEN_BYTES: u64 = 8;

/// Bytes that trials need together, of which one runs at a time: what each leaves, and the most that one
/// needs beside that. With several trials at a time it is too little. `None` if that of a trial is unknown.
pub fn expected_disk_bytes<'t>(trials: impl Iterator<Item = &'t Trial>) -> Option<u64> {
    let (mut left, mut most_beside) = (0_u64, 0);
    for trial in trials {
        let own = trial.left_disk_bytes()?;
        left = left.saturating_add(own);
        most_beside = most_beside.max(trial.expected_disk_bytes()?.saturating_sub(own));
    }
    Some(left.saturating_add(most_beside))
}

impl Trial {
    /// Bytes that the trial needs under `results/` while it runs, without hardware samples; `None` if its
    /// number of steps is unknown, or that of the parameters that its checkpoints hold.
    pub fn expected_disk_bytes(&self) -> Option<u64> {
        Some(self.table_bytes()?.saturating_add(self.checkpoint_bytes()?))
    }

    /// Bytes that are left after it has ended.
    fn left_disk_bytes(&self) -> Option<u64> {
        let is_left = |policy: &Checkpoint| policy.after != AfterTraining::Delete;
        let checkpoints = u64::from(self.train.checkpoint.as_ref().is_some_and(is_left));
        let left = self.bytes_of_each()?.saturating_mul(checkpoints);
        Some(self.table_bytes()?.saturating_add(left))
    }

    fn table_bytes(&self) -> Option<u64> {
        let steps = self.steps?;
        let evaluations = match self.train.evaluate.every {
            EvaluateEvery::Steps(every) => steps / every.max(1) + 1,
            EvaluateEvery::Moment(EvaluateMoment::Epoch) => self.train.epochs.unwrap_or(1) + 1,
            EvaluateEvery::Moment(EvaluateMoment::End) => 1,
        };
        let rows = steps
            .saturating_mul(STEP_ROW_BYTES)
            .saturating_add(evaluations.saturating_mul(EPOCH_ROW_BYTES));
        Some(
            TRIAL_BYTES
                .saturating_add(rows)
                .saturating_add(self.text_bytes()),
        )
    }

    fn text_bytes(&self) -> u64 {
        self.train.sample.as_ref().map_or(0, |sample| {
            sample
                .samples
                .saturating_mul(sample.tokens)
                .saturating_mul(TOKEN_BYTES)
        })
    }

    /// Size of the checkpoints that exist at the same time while the trial runs, including the one
    /// being written: f32 weights and moments.
    fn checkpoint_bytes(&self) -> Option<u64> {
        let Some(policy) = &self.train.checkpoint else {
            return Some(0);
        };
        let at_once = policy
            .keep
            .saturating_add(1 + u64::from(policy.after.keeps_best()));
        Some(self.bytes_of_each()?.saturating_mul(at_once))
    }

    /// Size of a checkpoint; 0 for a trial without any.
    fn bytes_of_each(&self) -> Option<u64> {
        if self.train.checkpoint.is_none() {
            return Some(0);
        }
        let moments = self.train.optimizer.moments();
        Some(self.parameters?.saturating_mul(4 * (1 + moments)))
    }
}
