//! Notices about the workers in Slurm. Each is printed once, until the situation changes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use kiln_core::units::{counted, without_controls};

use crate::schedule::{
    RunStop,
    slurm::states::{TaskId, TaskReport},
};

/// Beats between two words about Slurm's silence.
const SILENCE: u32 = 20;

/// The notices that were already printed.
#[derive(Debug, Default)]
pub(super) struct PrintedNotices {
    /// The number of waiting workers in the last notice.
    waiting: Option<usize>,
    /// Tasks of which a notice said that Slurm holds them.
    held: BTreeSet<TaskId>,
    /// When the last notice said that Slurm does not answer.
    silence: Option<Instant>,
    /// Whether a notice said that lost workers are no longer replaced.
    is_no_more: bool,
}

impl PrintedNotices {
    /// Slurm holds a task that a node could not start, and never starts it by itself.
    pub(super) fn tell_held(
        &mut self,
        id: TaskId,
        report: &TaskReport,
        tell: &mut dyn FnMut(&str),
    ) {
        if report.is_worn_out() && self.held.insert(id) {
            tell(&format!(
                "Slurm starts job {id} no more, because it was started again so often \
                 (JobHoldMaxRequeue); another one takes its place"
            ));
        }
        if report.is_held() && self.held.insert(id) {
            tell(&format!(
                "Slurm holds job {id} and does not start it by itself ({}); find the cause (login \
                 files that fail or hang, a full disk of the node), then `scontrol release {id}`, or \
                 `scancel {id}`",
                without_controls(&report.reason)
            ));
        }
    }

    pub(super) fn tell_waiting(
        &mut self,
        waiting: usize,
        alive: usize,
        reason: &str,
        tell: &mut dyn FnMut(&str),
    ) {
        if self.waiting == Some(waiting) {
            return;
        }
        if waiting > 0 {
            let reason = match reason {
                "" | "None" => String::new(),
                reason => format!(" ({})", without_controls(reason)),
            };
            tell(&format!(
                "{waiting} of {} {} in Slurm's queue{reason}",
                counted(alive, "worker"),
                if waiting == 1 { "waits" } else { "wait" }
            ));
        }
        self.waiting = Some(waiting);
    }

    /// Slurm does not answer; that is told again after some beats.
    pub(super) fn tell_silence(
        &mut self,
        silence: Option<String>,
        beat: Duration,
        tell: &mut dyn FnMut(&str),
    ) {
        let Some(why) = silence else {
            self.silence = None;
            return;
        };
        let is_due = self
            .silence
            .is_none_or(|told| told.elapsed() >= beat * SILENCE);
        if is_due {
            tell(&format!("{why}; trials go on"));
            self.silence = Some(Instant::now());
        }
    }

    /// No worker is replaced any more.
    ///
    /// # Errors
    /// None is left.
    pub(super) fn tell_no_more(
        &mut self,
        alive: usize,
        allowed: usize,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), RunStop> {
        let what = format!(
            "no more workers are asked for: `run.slurm.resubmissions` ({allowed}) are used up"
        );
        if alive == 0 {
            return Err(RunStop::CannotRun(format!(
                "{what}; `kiln run FILE --on slurm` begins to count anew"
            )));
        }
        if !self.is_no_more {
            self.is_no_more = true;
            tell(&what);
        }
        Ok(())
    }

    /// Somebody asked for workers again.
    pub(super) fn ask_again(&mut self) {
        self.is_no_more = false;
    }
}
