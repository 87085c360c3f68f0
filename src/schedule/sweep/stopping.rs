//! Reasons why a launch starts no more trials: signals, a full disk, other failures.

use std::time::{Duration, Instant};

use kiln_core::{
    plan::Trial,
    record::{StopAsked, TableRow, message::SAME_STOP, run_file::EndCause},
    units::counted,
};

use signal_hook::consts::SIGINT;

use super::{Attempt, LaunchState};
use crate::schedule::{
    RunStop,
    budget::BudgetVerdict,
    disk,
    judge::StopCause,
    signals::{StopRequest, ask},
    tickets::Tickets,
};

impl LaunchState<'_> {
    pub(super) fn is_stopping(&self) -> bool {
        self.asked.is_some() || self.failure.is_some() || self.cause.is_some()
    }

    /// Whether the time that this worker has left is too short for a trial, and why.
    pub(super) fn too_long(&mut self, index: usize) -> Option<String> {
        let tickets = self.tickets.as_mut()?;
        let run = tickets.run().clone();
        let (trial, trials) = (&self.trials[index], &self.trials);
        tickets.limits.too_short(&run, trial, trials)
    }

    /// Leaves all that wait if the time of the launch is used up.
    pub(super) fn leave_all_if_used_up(&mut self) {
        let now = Instant::now();
        if let Some(watch) = self.budget.as_mut().filter(|watch| watch.is_used_up(now)) {
            let waiting = self.queue.take_all();
            watch.leave(waiting.iter().map(|index| &self.trials[*index]));
            self.counts.is_over = true;
        }
    }

    /// Whether what is left of the launch's time is too short for this trial, which no longer waits.
    /// With it the rest of its block is left if that does not fit.
    pub(super) fn leaves(&mut self, index: usize) -> bool {
        let Some(watch) = &mut self.budget else {
            return false;
        };
        let trial = &self.trials[index];
        let mut block: Vec<&Trial> = Vec::new();
        if let Some(others) = self.queue.of_block(&self.trials, trial.block) {
            block.push(trial);
            block.extend(others.iter().map(|other| &self.trials[*other]));
        }
        match watch.judge(trial, &block, Instant::now()) {
            BudgetVerdict::Begin => return false,
            BudgetVerdict::LeaveTrial => watch.leave([trial]),
            BudgetVerdict::LeaveBlock => {
                watch.leave(block);
                let trials = &self.trials;
                self.queue
                    .forget(|other| trials[other].block == trial.block);
            }
        }
        self.counts.is_over |= self.queue.is_empty();
        true
    }

    /// Ends a worker that runs nothing and has too little time for the tickets that are open.
    pub(super) fn end_if_out_of_time(&mut self) {
        let tickets = self.tickets.as_ref();
        let unasked = tickets.filter(|tickets| tickets.stop_asked().is_none());
        let Some(why) = unasked.and_then(Tickets::why_left) else {
            return;
        };
        // Trials that wait for a device to cool down belong to a ticket of this worker.
        if !self.running.is_empty() || !self.queue.is_empty() {
            return;
        }
        let why = why.to_owned();
        self.cause = Some(EndCause::OutOfTime);
        if self.next_token > 0 {
            self.counts.is_over = true;
            self.notice(&format!("{why}; this worker begins no more"));
        } else {
            // The next worker would have no more time.
            let remedy = "give workers more time (`run.slurm.time`), or set `train.checkpoint`";
            self.start_no_more(RunStop::CannotRun(format!(
                "{why}, and it ran none; {remedy}"
            )));
        }
    }

    /// Ends a worker whose tickets are taken back one after the other.
    pub(super) fn end_if_believed_gone(&mut self) {
        let mut tickets = self.tickets.iter();
        if !self.is_stopping() && tickets.any(Tickets::is_believed_gone) {
            self.cause = Some(EndCause::BelievedGone);
            self.start_no_more(RunStop::CannotRun(
                "tickets were taken back from this worker twice in a row although it was there: \
                 whoever attends believes it gone, because Slurm says so of its job, or because its \
                 heartbeats do not get to the shared folder; it takes no more"
                    .to_owned(),
            ));
        }
    }

    /// Ends a worker on whose node trials fail before they begin.
    pub(super) fn judge_node(&mut self, row: &TableRow, was_ready: bool, is_command: bool) {
        let Some(tickets) = &mut self.tickets else {
            return;
        };
        tickets.limits.note(row);
        let limits = &mut tickets.limits;
        if limits.has_bad_node(row.fixed.outcome, was_ready, is_command) {
            self.cause = Some(EndCause::BadNode);
            self.start_no_more(RunStop::CannotRun(
                "trial after trial failed here before it began; this worker begins no more, and no other \
                 is asked for on its node"
                    .to_owned(),
            ));
        }
    }

    pub(super) fn signal(&mut self, signal: i32) {
        let mut tickets = self.tickets.iter();
        let is_in_slurm = tickets.any(|tickets| tickets.limits.is_in_slurm());
        // Who ends all processes of a job may signal this one twice at once. A person's Ctrl-C counts.
        let is_same = |at: Instant| signal != SIGINT && at.elapsed() < SAME_STOP;
        if self.told_at.is_some_and(is_same) {
            return;
        }
        let Some(asked) = ask(self.asked, signal, is_in_slurm) else {
            return;
        };
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
                self.told_at = Some(Instant::now());
                self.notice("stopping the running trials");
                let (cause, most) = self.stop_cause();
                for attempt in &mut self.running {
                    most.into_iter()
                        .for_each(|most| attempt.shorten_grace(most));
                    attempt.stop(cause);
                }
            }
            StopRequest::Kill => self.running.iter_mut().for_each(Attempt::kill),
        }
    }

    /// Who told the trials to stop: the end of a job's time, unless somebody asked; and the time that
    /// they may take, where Slurm limits it.
    fn stop_cause(&self) -> (StopCause, Option<Duration>) {
        let tickets = self.tickets.as_ref();
        // After `kiln stop --now` nothing ends the worker before its trials have ended.
        let is_unasked = |tickets: &&Tickets| tickets.stop_asked() != Some(StopAsked::Now);
        let Some(unasked) = tickets.filter(is_unasked) else {
            return (StopCause::Told, None);
        };
        let left = unasked.limits.last_seconds();
        let cause = left.map_or(StopCause::Told, StopCause::ToldAtTheEnd);
        (cause, unasked.limits.grace())
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
            &self.request.same_command(),
        ))
    }
}
