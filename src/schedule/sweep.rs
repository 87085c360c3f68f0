//! One launch: the loop that starts trials on free devices, watches them, stops them at their
//! limits, and writes their rows.
//!
//! All of it runs in the calling thread, which also starts the children; other threads only send
//! events to it.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, RunFolder, StoreError, TableChange, TableRow, TicketQueue, run_file::EndCause,
    },
};

use super::{
    Event, Instruments, LaunchCounts, LaunchEvent, LaunchReport, RunRequest, RunStop, attempt,
    attempt::{Attempt, Hindrance, Lost},
    clock::WatchClock,
    devices::{DeviceRequest, cpu_instead},
    disk,
    instruments::LeasedGpu,
    open::OpenRun,
    pools::Pools,
    programs,
    queue::Queue,
    remaining::{History, PlanCount, fallback, remaining},
    signals::StopRequest,
    supervisor::Supervisor,
    tickets::Tickets,
    tuning::Tuning,
};
use crate::readings::{Paths, Privacy};
pub(super) use closing::report;
use kiln_hardware::host::usable_cores;
use oom_trials::OomTrials;
use opening::run_on;
pub(super) use opening::{PreparedLaunch, collect_newest, collect_of};
pub(super) use refusals::{take_lock_if_any, without_program};
use slots::Slots;

/// Time between two checks of the children.
const TICK: Duration = Duration::from_millis(200);

/// Whether there is room for one more trial at a path.
type HasRoom = fn(&Path) -> bool;

/// Works on a run that has a queue, beside its workers.
pub(super) type Join =
    fn(&RunRequest, &RunFolder, TicketQueue, Instruments) -> Result<LaunchReport, RunStop>;

/// Runs the trials of a request; where its run has a queue, by `join`.
pub(super) fn run(
    request: &RunRequest,
    instruments: Instruments,
    join: Join,
) -> Result<LaunchReport, RunStop> {
    run_on(request, instruments, disk::has_room, join)
}

/// The state of one launch.
struct LaunchState<'a> {
    request: &'a RunRequest<'a>,
    /// The trials of the request, followed by replacements of trials that ran out of memory.
    trials: Cow<'a, [Trial]>,
    instruments: Instruments,
    open: OpenRun,
    history: History,
    /// Counts what `history` says of `trials`.
    progress: PlanCount,
    oom_trials: OomTrials,
    slots: Slots,
    queue: Queue,
    running: Vec<Attempt>,
    supervisor: Supervisor,
    clock: WatchClock,
    sender: Sender<Event>,
    next_token: u64,
    asked: Option<StopRequest>,
    /// When the running trials were told to stop.
    told_at: Option<Instant>,
    /// Reason why no more trials are started.
    failure: Option<RunStop>,
    counts: LaunchCounts,
    has_room: HasRoom,
    paths: Paths,
    /// Where the trials come from, if other launches work on the run too.
    tickets: Option<Tickets>,
    /// Why a worker ends although there is more to do.
    cause: Option<EndCause>,
}

impl<'a> LaunchState<'a> {
    fn new(
        request: &'a RunRequest,
        instruments: Instruments,
        open: OpenRun,
        pools: Pools,
        sender: Sender<Event>,
        has_room: HasRoom,
        tickets: Option<Tickets>,
    ) -> Self {
        let history = History::of(open.ends());
        let retries = request.experiment.run.retries;
        let left = remaining(request.trials, &history, &request.selection, retries);
        let counts = LaunchCounts {
            total: request.trials.len(),
            to_run: left.len(),
            plan: history.standing(request.trials, retries),
            is_open: request.search.is_some(),
            is_over: false,
        };
        for notice in open.notices.iter().chain(&pools.notices) {
            request.listener.hear(LaunchEvent::Notice(notice));
        }
        request.listener.hear(LaunchEvent::RunStarted {
            folder: &shown(request, &open),
            launch: Some(open.launch),
            trials: request.trials,
            to_run: &left,
            counts,
        });
        let has_blocks = request.trials.iter().any(|trial| trial.block > 1)
            || request.search.is_some_and(Tuning::keeps_rounds);
        let waiting = if tickets.is_some() { Vec::new() } else { left };
        let mut queue = Queue::new(waiting, pools.requests, has_blocks);
        let slots = Slots::new(pools.devices, pools.slots);
        let supervisor = Supervisor::new(request.locks, open.folder.path());
        bind_blocks(&mut queue, request, open.ends(), &slots.names());
        let mut launch = Self {
            request,
            trials: request.trials.into(),
            instruments,
            open,
            history,
            progress: PlanCount::default(),
            oom_trials: OomTrials::default(),
            slots,
            queue,
            running: Vec::new(),
            supervisor,
            clock: WatchClock::start(Instant::now()),
            sender,
            next_token: 0,
            asked: None,
            told_at: None,
            failure: None,
            counts,
            has_room,
            paths: Paths::here(Privacy::of(request.experiment)),
            tickets,
            cause: None,
        };
        launch.note_oom_trials();
        launch
    }

    fn run(mut self, events: &Receiver<Event>) -> Result<LaunchReport, RunStop> {
        disk::keep_reserve(&self.open.tables);
        // Signals that arrived while the machine was read count before the first trial.
        while let Ok(Event::Signal(signal)) = events.try_recv() {
            self.signal(signal);
        }
        loop {
            let has_skipped = self.start_what_may();
            if self.running.is_empty() && (self.is_stopping() || self.queue.is_empty()) {
                if !self.is_stopping() && self.ask_for_more() {
                    continue;
                }
                break;
            }
            let wait = if has_skipped { Duration::ZERO } else { TICK };
            match events.recv_timeout(wait) {
                Ok(Event::Signal(signal)) => self.signal(signal),
                Ok(Event::Window(token)) => self.mark(token),
                Ok(Event::Cut(token)) => self.look(token),
                Ok(Event::Ended(token)) => self.ended(token),
                Ok(Event::TakenBack(lost)) => self.tickets_taken_back(&lost),
                Ok(Event::StopAsked) => self.stop_as_asked(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.tick();
        }
        disk::release_reserve(&self.open.tables);
        self.close()
    }

    fn tell(&self, event: LaunchEvent<'_>) {
        self.request.listener.hear(event);
    }

    fn notice(&self, text: &str) {
        self.tell(LaunchEvent::Notice(text));
    }

    /// Counts one more trial to run.
    fn add_one(&mut self, trial: &Trial) {
        self.counts.total += 1;
        self.counts.to_run += 1;
        self.tell(LaunchEvent::TrialAdded {
            trial,
            counts: self.counts,
        });
    }

    /// Starts trials until none may start now, or one is skipped; returns whether one was. Thousands
    /// may be, and signals and ticks do not wait for all of their rows.
    fn start_what_may(&mut self) -> bool {
        while !self.is_stopping() {
            let used: Vec<usize> = self.running.iter().map(|attempt| attempt.slot).collect();
            let cool_down = self.request.experiment.run.cool_down.as_ref();
            let free = self.slots.free(&used, cool_down, &self.instruments);
            let running = self
                .running
                .first()
                .map(|attempt| DeviceRequest::of(&self.trials[attempt.index]));
            let Some((index, slot)) = self.queue.next(&self.trials, &free, running.as_ref()) else {
                // A block stays on its slot; another ticket is for the slots that are free.
                let held = self.tickets.as_ref().map_or(0, |tickets| tickets.own.len());
                if free.contains(&true)
                    && (self.queue.is_empty() || held < free.len())
                    && self.queue.waits_for_others(&self.trials, &free)
                    && self.take_ticket()
                {
                    continue;
                }
                break;
            };
            if let Some(reason) = self.too_large(index, slot) {
                self.skip(index, slot, reason);
                return true;
            }
            if !(self.has_room)(self.open.folder.path()) {
                self.queue.again(index);
                self.start_no_more(self.disk_full());
                break;
            }
            if let Some(why) = self.too_long(index) {
                self.leave_ticket(index, &why);
                continue;
            }
            if let Some(stop) = self.changed_programs() {
                self.queue.again(index);
                self.start_no_more(stop);
                break;
            }
            if let Err(stop) = self.start(index, slot) {
                self.queue.again(index);
                self.fail(stop);
            }
        }
        false
    }

    fn start(&mut self, index: usize, slot: usize) -> Result<(), RunStop> {
        let trial = &self.trials[index];
        let gpus = self.slots.gpus(slot);
        let setting = attempt::AttemptSetting {
            request: self.request,
            trial,
            folder: &self.open.folder,
            launch: self.open.launch,
            run_anchor_nanoseconds: self.open.run_anchor_nanoseconds,
            devices: &gpus,
            token: self.next_token,
            last_row: self.open.last_attempt(&trial.id),
            is_among_others: self.open.process.is_some(),
            // The history of a worker has only what counts for its tickets.
            last_outcome: self.open.last_outcome(&trial.id),
        };
        gpus.iter()
            .for_each(|gpu| self.instruments.note_idle_power(gpu));
        let started = attempt::start(&setting, index, slot, self.sender.clone())
            .map_err(disk::cannot_write(self.request))?;
        self.next_token += 1;
        let recorded = self.supervisor.add(started.pid(), started.folder());
        let watched = self.instruments.watch(started.watch(trial, &gpus));
        self.tell(LaunchEvent::TrialStarted {
            trial,
            attempt: started.attempt,
            device: &self.slots.name(slot),
        });
        self.running.push(started);
        self.count_concurrent();
        if let Err(error) = watched {
            let stop = disk::cannot_write(self.request)(error);
            self.fail(stop);
        }
        self.note_unrecorded(recorded);
        Ok(())
    }

    fn look(&self, token: u64) {
        let mut running = self.running.iter();
        if let Some(attempt) = running.find(|attempt| attempt.token == token) {
            self.instruments.look(&self.trials[attempt.index].id);
        }
    }

    fn mark(&mut self, token: u64) {
        let mut running = self.running.iter_mut();
        if let Some(attempt) = running.find(|attempt| attempt.token == token) {
            self.instruments.mark(&self.trials[attempt.index].id);
            attempt.mark_window();
        }
    }

    fn ended(&mut self, token: u64) {
        let Some(at) = self
            .running
            .iter()
            .position(|attempt| attempt.token == token)
        else {
            return;
        };
        let _ = self.instruments.tick();
        self.look_whose_it_is(at);
        let attempt = self.running.remove(at);
        let (index, slot) = (attempt.index, attempt.slot);
        self.slots.rest(slot);
        let gpus = self.slots.gpus(slot);
        let trial = &self.trials[index].clone();
        let full = !(self.has_room)(self.open.folder.path());
        let facts = self.surroundings(&gpus, full);
        let finished = attempt.finish(trial, &facts, &mut self.instruments, &mut self.supervisor);
        if let Some(text) = &finished.other_model {
            self.tell(LaunchEvent::TrialNotice { trial, text });
        }
        if let Some(hindrance) = finished.hindrance {
            self.hinder(hindrance, &trial.id, !gpus.is_empty());
        }
        self.record(finished, index, full);
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
            lost,
            libraries,
            flags,
            ..
        } = finished;
        let trial = &self.trials[index].clone();
        for cell in [&mut row.fixed.reason, &mut row.fixed.notes]
            .into_iter()
            .flatten()
        {
            *cell = self.paths.hide(cell);
        }
        // Its process has ended, so nobody writes them.
        let _ = attempt::sweep_drafts(&self.open.folder, trial, row.fixed.attempt);
        if let Some(reason) = disk_full.filter(|_| !is_full) {
            let stop = disk::full_in_the_child(&reason, self.open.folder.path());
            self.start_no_more(RunStop::CannotRun(stop));
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
    fn hinder(&mut self, hindrance: Hindrance, trial: &TrialId, is_on_gpu: bool) {
        self.fail(RunStop::CannotRun(match hindrance {
            Hindrance::Absent => cannot_run_here(
                trial,
                match is_on_gpu {
                    true => cpu_instead(self.tickets.is_some(), self.history.has_final()),
                    false => "",
                },
            ),
            Hindrance::OtherVersion => format!(
                "the program of trial {trial} is of another version, so no more are started"
            ),
        }));
    }

    fn write_record(&mut self) {
        if let Err(error) = self.open.write_record() {
            self.fail(disk::cannot_write(self.request)(error));
        }
    }

    /// The facts for the row of an attempt on these devices that has ended.
    fn surroundings<'g>(&self, gpus: &'g [LeasedGpu], is_full: bool) -> attempt::Surroundings<'g> {
        let fault_of_the_disk = match (is_full, self.open.store.is_in_place()) {
            (true, _) => Some("the disk is full"),
            (false, false) => Some("the folder of the run was moved or removed"),
            (false, true) => None,
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
        }
    }

    /// Handles a lost device: the waiting trials use other devices, or no more are started.
    fn lose(&mut self, Lost { uuid, words: lost }: &Lost) {
        self.notice(&format!("{lost}; no more trials are scheduled on it"));
        for slot in self.slots.lose(uuid) {
            self.queue.lose(slot);
        }
        while let Some(wanted) = self.queue.stranded(&self.trials) {
            let Some(slot) = self.slots.add(&wanted, self.request, &self.instruments) else {
                let left = "no other device is left for the waiting trials; reset the device or \
                            reboot, then run the same command to resume";
                return self.start_no_more(RunStop::CannotRun(format!("{lost}, and {left}")));
            };
            self.queue.add_slot(&wanted, slot);
            let names: Vec<String> = self
                .slots
                .gpus(slot)
                .iter()
                .map(|gpu| format!("GPU {} ({})", gpu.index, gpu.name))
                .collect();
            self.notice(&format!("continuing on {}", names.join(" and ")));
        }
    }

    /// Writes a row; on a full disk it uses the reserved space.
    fn keep(&mut self, row: TableRow, index: usize) {
        let mut kept = self.open.store.keep(&row);
        if kept.as_ref().is_err_and(StoreError::is_disk_full) {
            disk::release_reserve(&self.open.tables);
            kept = self.open.store.settle();
            let stop = self.disk_full();
            self.fail(stop);
        }
        self.tell_changes(kept);
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
fn cannot_run_here(trial: &TrialId, instead: &str) -> String {
    format!(
        "this machine cannot run trial {trial}, so no more are started; `kiln doctor` says what is \
         missing{instead}"
    )
}

/// Assigns blocks to the devices where they ran in earlier launches.
fn bind_blocks<'e>(
    queue: &mut Queue,
    request: &RunRequest,
    ends: impl Iterator<Item = &'e AttemptEnd>,
    slots: &[String],
) {
    let blocks: HashMap<&TrialId, u64> = request
        .trials
        .iter()
        .map(|trial| (&trial.id, trial.block))
        .collect();
    for end in ends {
        let name = end.device_uuid.as_deref().unwrap_or("cpu");
        let slot = slots.iter().position(|slot| slot == name);
        if let (Some(block), Some(slot)) = (blocks.get(&end.trial), slot) {
            queue.bind_block(*block, slot);
        }
    }
}

/// The run's folder as the user would write it.
fn shown(request: &RunRequest, open: &OpenRun) -> String {
    request
        .results
        .join(&request.experiment.name)
        .join(open.folder.name())
        .display()
        .to_string()
}

mod closing;
mod memory;
mod oom_trials;
mod opening;
mod refusals;
mod search;
mod slots;
mod stopping;
#[cfg(test)]
pub(super) mod tests;
mod tickets;
mod watching;
