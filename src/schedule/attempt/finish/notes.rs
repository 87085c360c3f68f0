//! The notes of an ended attempt: why its numbers are in doubt, by column.

use std::collections::BTreeMap;

use kiln_core::{
    plan::{Outcome, Trial},
    record::{
        attempt::STDERR,
        note::{LossRose, OutOfJobTime},
    },
    spec::Precision,
};
use kiln_hardware::processor::has_bf16;

use super::{Reaped, Surroundings};
use crate::schedule::{judge::StopCause, listen::ChildState};

impl Reaped {
    /// All notes, where the attempt ended with this outcome.
    pub(super) fn notes(
        &self,
        trial: &Trial,
        around: &Surroundings,
        outcome: Outcome,
    ) -> BTreeMap<String, String> {
        let rose = |rose: LossRose| (LossRose::COLUMN.to_owned(), rose.to_string());
        garbage(&self.heard)
            .into_iter()
            .chain(without_stderr(&self.heard))
            .chain(self.out_of_job_time(trial, outcome))
            .chain(emulated(trial, around))
            .chain(self.late.clone())
            .chain(self.loss_rose.map(rose))
            .collect()
    }

    /// Returns a note if the time of the worker's job ended the attempt.
    fn out_of_job_time(&self, trial: &Trial, outcome: Outcome) -> Option<(String, String)> {
        let Some(StopCause::ToldAtTheEnd(time)) = self.stopped else {
            return None;
        };
        // Files that a command keeps in its own way are not seen here.
        if outcome != Outcome::Interrupted || trial.saves_by_itself() {
            return None;
        }
        let note = OutOfJobTime {
            had_most: OutOfJobTime::is_most(
                self.seconds + time.left.0.as_secs_f64(),
                time.whole.0.as_secs_f64(),
            ),
            has_checkpoint: self.checkpoint > self.heard.resumed_at_step,
        };
        Some((OutOfJobTime::COLUMN.to_owned(), note.to_string()))
    }
}

/// Returns a note if the child wrote lines that are not messages.
fn garbage(heard: &ChildState) -> Option<(String, String)> {
    (heard.garbage_lines > 0).then(|| {
        (
            "stdout".to_owned(),
            format!("{} lines are not messages", heard.garbage_lines),
        )
    })
}

/// Returns a note if `stderr.txt` lacks what the child wrote.
fn without_stderr(heard: &ChildState) -> Option<(String, String)> {
    let fault = heard.stderr_fault.as_ref()?;
    let note = format!("{STDERR} could not be written: {fault}");
    Some(("stderr".to_owned(), note))
}

/// Returns a note if the processor emulates the precision.
fn emulated(trial: &Trial, around: &Surroundings<'_>) -> Option<(String, String)> {
    let processor = around.processor.as_deref().filter(|_| {
        around.devices.is_empty()
            && matches!(trial.train.precision, Precision::AmpBf16 | Precision::Bf16)
    })?;
    let note = || {
        (
            "precision".to_owned(),
            "bf16 is emulated: this processor has no instructions for it (avx512_bf16, amx_bf16, \
             bf16)"
                .to_owned(),
        )
    };
    (!has_bf16(processor)).then(note)
}
