//! Reasons why a launch starts no more trials: signals, a full disk, other failures.

use kiln_core::units::counted;

use super::{Attempt, LaunchState};
use crate::schedule::{
    RunStop, disk,
    judge::StopCause,
    signals::{StopRequest, ask},
};

impl LaunchState<'_> {
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.is_some() || self.failure.is_some()
    }

    pub(super) fn signal(&mut self, signal: i32) {
        let asked = ask(self.asked, signal);
        self.asked = Some(asked);
        self.counts.is_over = true;
        match asked {
            StopRequest::Drain if self.running.is_empty() => self.notice("stopping"),
            StopRequest::Drain => {
                let running = counted(self.running.len(), "running trial");
                self.notice(&format!(
                    "finishing {running} and starting no more; press Ctrl-C again to stop now"
                ));
            }
            StopRequest::Stop => {
                self.notice("stopping the running trials");
                self.running
                    .iter_mut()
                    .for_each(|attempt| attempt.stop(StopCause::Told));
            }
            StopRequest::Kill => self.running.iter_mut().for_each(Attempt::kill),
        }
    }

    /// Starts no more trials and stops those that run.
    pub(super) fn fail(&mut self, stop: RunStop) {
        self.running
            .iter_mut()
            .for_each(|attempt| attempt.stop(StopCause::RunFailed));
        self.start_no_more(stop);
    }

    /// Starts no more trials; the running ones finish.
    pub(super) fn start_no_more(&mut self, stop: RunStop) {
        self.counts.is_over = true;
        self.failure.get_or_insert(stop);
    }

    pub(super) fn disk_full(&self) -> RunStop {
        RunStop::CannotRun(disk::full_message(
            &self.request.results.join(&self.request.experiment.name),
        ))
    }
}
