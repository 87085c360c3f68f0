//! The trials of a plan that would not run: those that have ended in the run that would be resumed,
//! or that would be kept of another run.

use std::collections::HashMap;

use kiln_core::plan::{Outcome, Trial, TrialId};

use super::expectation::has_ended;

/// The trials that would not run.
#[derive(Clone, Copy)]
pub(super) struct TrialsBefore<'a> {
    /// The outcomes in the run that would be resumed, or whose trials would be kept.
    pub(super) ended: &'a HashMap<TrialId, Outcome>,
    /// Sentence on the number of trials that would be kept; `None` without `--keep`.
    pub(super) kept: Option<&'a str>,
}

impl TrialsBefore<'_> {
    /// `kept`, `done`, or the outcome of a trial that ended without completing; `None` if it would
    /// run.
    pub(super) fn state(&self, trial: &Trial) -> Option<&'static str> {
        let outcome = self.ended.get(&trial.id)?;
        match outcome {
            _ if !has_ended(trial, self.ended) => None,
            _ if self.kept.is_some() => Some("kept"),
            Outcome::Completed => Some("done"),
            other => Some(other.name()),
        }
    }
}
