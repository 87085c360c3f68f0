//! The end of an attempt: its row, and what follows from it for devices, tickets and other trials.

use std::time::Instant;

use kiln_core::{
    plan::{Outcome, Trial},
    record::{AttemptEnd, StoreError, TableChange, TableRow},
};
use kiln_hardware::host::usable_cores;

use super::LaunchState;
use crate::schedule::{
    LaunchEvent, RunStop,
    attempt::{self, Hindrance},
    devices::cpu_instead,
    disk,
    instruments::LeasedGpu,
    programs, row,
};

impl LaunchState<'_> {
    /// Handles the end of an attempt.
    pub(super) fn ended(&mut self, token: u64) {
        let Some(at) = self
            .running
            .iter()
            .position(|attempt| attempt.token == token)
        else {
            return;
        };
        let seen = self.running[at].ended();
        let unwatched_since =
            seen.and_then(|seen| self.clock.unwatched_since(seen, Instant::now()));
        let _ = self.instruments.tick();
        self.look_whose_it_is(at);
        let attempt = self.running.remove(at);
        let (index, slot) = (attempt.index, attempt.slot);
        self.slots.rest(slot);
        let gpus = self.slots.gpus(slot);
        let trial = &self.trials[index].clone();
        let full = !(self.has_room)(self.open.folder.path());
        let trial_folder = self.open.folder.trial(&trial.id);
        let folder_fault = disk::folder_fault(&trial_folder);
        let facts = attempt::Surroundings {
            unwatched_since,
            ..self.surroundings(&gpus, full, folder_fault)
        };
        let finished = attempt.finish(trial, &facts, &mut self.instruments, &mut self.supervisor);
        if let Some(text) = &finished.other_model {
            self.tell(LaunchEvent::TrialNotice { trial, text });
        }
        if let Some(hindrance) = finished.hindrance {
            self.hinder(hindrance, trial, !gpus.is_empty());
        }
        let is_interrupted = finished.row.fixed.outcome == Outcome::Interrupted;
        self.record(finished, index, full);
        if let Some(fault) = folder_fault.filter(|_| is_interrupted) {
            let stop =
                disk::nothing_can_be_kept(fault, &trial_folder, &self.request.same_command());
            self.start_no_more(RunStop::CannotRun(stop));
        }
        let is_settled = self
            .history
            .is_settled(&trial.id, self.request.experiment.run.retries);
        if full && !(is_settled && self.queue.is_empty()) {
            self.start_no_more(self.disk_full());
        }
    }

    /// Keeps the row of an ended attempt, and what it says of its device, of this node and of its
    /// program. `is_full` if the disk was full at its end.
    fn record(&mut self, finished: attempt::Finished, index: usize, is_full: bool) {
        let attempt::Finished {
            mut row,
            was_ready,
            disk_full,
            unread,
            lost,
            libraries,
            flags,
            ..
        } = finished;
        let trial = &self.trials[index].clone();
        row::hide_paths(&mut row.fixed, &self.paths);
        // Its process has ended, so nobody writes them.
        let _ = attempt::sweep_drafts(&self.open.folder, trial, row.fixed.attempt);
        if let Some(reason) = disk_full.filter(|_| !is_full) {
            let stop = disk::full_in_the_child(
                &reason,
                self.open.folder.path(),
                &self.request.same_command(),
            );
            self.start_no_more(RunStop::CannotRun(stop));
        }
        if let Some(reason) = unread {
            self.start_no_more(RunStop::CannotRun(format!(
                "{reason}; run {}, which runs this trial again",
                self.request.same_command()
            )));
        }
        let is_command = trial.model.command().is_some();
        self.judge_node(&row, was_ready, is_command);
        self.keep(row, index);
        if let Some(lost) = lost {
            self.lose(&lost);
        }
        let program = programs::key(trial);
        let file = &mut self.open.file;
        if file.add_libraries(program.as_deref(), &libraries, &flags) {
            self.write_record();
        }
    }

    /// Fails the run, of which no trial can run here.
    fn hinder(&mut self, hindrance: Hindrance, trial: &Trial, is_on_gpu: bool) {
        self.fail(RunStop::CannotRun(match hindrance {
            Hindrance::Absent => cannot_run_here(
                trial,
                match is_on_gpu {
                    true => cpu_instead(self.tickets.is_some(), self.history.has_final()),
                    false => "",
                },
            ),
            Hindrance::OtherVersion => format!(
                "the program of trial {} is of another version, so no more are started",
                trial.id
            ),
        }));
    }

    /// The facts for the row of an attempt on these devices that has ended.
    fn surroundings<'g>(
        &self,
        gpus: &'g [LeasedGpu],
        is_full: bool,
        folder_fault: Option<&'static str>,
    ) -> attempt::Surroundings<'g> {
        let fault_of_the_disk = match (is_full, self.open.store.is_in_place()) {
            (true, _) => Some("the disk is full"),
            (false, false) => Some("the folder of the run was moved or removed"),
            (false, true) => folder_fault,
        };
        attempt::Surroundings {
            launch: self.open.launch,
            memory_limit: self.request.experiment.run.memory_limit,
            devices: gpus,
            driver: self.instruments.driver(),
            cpu_name: self.instruments.cpu_name(),
            processor: self.instruments.processor(),
            host_id: self.instruments.host_id(),
            has_blocks: self.request.has_blocks(),
            has_rounds: self.request.has_rounds(),
            cores: usable_cores(),
            fault_of_the_disk,
            unwatched_since: None,
        }
    }

    /// Writes a row; on a full disk it uses the reserved space.
    pub(super) fn keep(&mut self, row: TableRow, index: usize) {
        let mut kept = self.open.store.keep(&row);
        if kept.as_ref().is_err_and(StoreError::is_disk_full) {
            disk::release_reserve(&self.open.tables);
            kept = self.open.store.settle();
            let stop = self.disk_full();
            self.fail(stop);
        }
        self.tell_changes(kept);
        self.restore_snapshot();
        if self.open.store.unwritten() > 0 {
            return;
        }
        let retries = self.request.experiment.run.retries;
        let end = AttemptEnd::of(&row);
        let (history, trials) = (&mut self.history, &self.trials);
        self.counts.plan = self.progress.add(history, &end, trials, retries);
        if let Some(tickets) = &mut self.tickets {
            tickets.note_end(end);
        }
        if let Some(watch) = &mut self.budget {
            watch.learn(&self.trials[index], &row.fixed);
        }
        let settled = self.history.is_settled(&row.fixed.trial, retries);
        let is_retried = row.fixed.outcome == Outcome::Failed && !settled && self.is_its(index);
        if is_retried && !self.pass_on(index) {
            self.queue.again(index);
        }
        self.tell(LaunchEvent::TrialEnded {
            trial: &self.trials[index],
            row: &row.fixed,
            counts: self.counts,
        });
        if row.fixed.outcome.is_final() {
            self.settle_checkpoints(&self.trials[index], row.fixed.outcome);
        }
        let is_out_of_memory = row.fixed.outcome == Outcome::Oom;
        if is_out_of_memory {
            self.note_oom_trial(index);
            self.let_a_smaller_one_stand_in(index);
        }
        self.settle_tickets();
    }

    /// Tells what became of a table that somebody else changed; an error ends the launch.
    pub(super) fn tell_changes(&mut self, settled: Result<Vec<TableChange>, StoreError>) {
        match settled {
            Ok(changes) => changes
                .iter()
                .for_each(|change| self.notice(&change.to_string())),
            Err(error) => {
                let stop = disk::cannot_write(self.request)(error.into());
                self.fail(stop);
            }
        }
    }

    /// Restores a snapshot that somebody removed. A run is complete without it.
    pub(super) fn restore_snapshot(&mut self) {
        if let Ok(Some(text)) = self.instruments.settle() {
            self.notice(text);
        }
    }

    /// Deletes unneeded checkpoints once the final row of a trial is on the disk.
    fn settle_checkpoints(&self, trial: &Trial, outcome: Outcome) {
        if let Err(error) = attempt::settle_checkpoints(&self.open.folder, trial, outcome) {
            self.notice(&format!(
                "trial {}: its checkpoints could not be deleted: {error}",
                trial.id
            ));
        }
    }
}

/// The line of the trial has already given the reason.
fn cannot_run_here(trial: &Trial, instead: &str) -> String {
    let what = match trial.engine.own_name() {
        // `kiln doctor` does not know what the user's program needs.
        Some(engine) => format!("`stderr.txt` has what engine `{engine}` said"),
        None => "`kiln doctor` says what is missing".to_owned(),
    };
    format!(
        "this machine cannot run trial {}, so no more are started; {what}{instead}",
        trial.id
    )
}
