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
    plan::{Trial, TrialId},
    record::{AttemptEnd, RunFolder, TicketQueue, run_file::EndCause},
};

use super::{
    Event, Instruments, LaunchCounts, LaunchEvent, LaunchReport, RunRequest, RunStop,
    attempt::{self, Attempt},
    budget::BudgetWatch,
    clock::WatchClock,
    devices::DeviceRequest,
    disk,
    idle::keeps_blocks,
    open::OpenRun,
    pools::Pools,
    queue::Queue,
    remaining::{History, PlanCount, fallback, remaining},
    signals::StopRequest,
    supervisor::Supervisor,
    tickets::Tickets,
    tuning::Tuning,
};
use crate::readings::{Paths, Privacy};
pub(super) use closing::report;
use lost_devices::LostDevice;
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
    budget: Option<BudgetWatch<'a>>,
    /// The device that was lost last.
    lost_device: Option<LostDevice>,
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
        let has_blocks =
            keeps_blocks(request.trials) || request.search.is_some_and(Tuning::keeps_rounds);
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
            budget: request.budget.map(BudgetWatch::new),
            lost_device: None,
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
            let is_idle = self.running.is_empty() && !has_skipped;
            if is_idle && (self.is_stopping() || self.queue.is_empty()) {
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
            self.look_for_devices();
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
        self.leave_all_if_used_up();
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
            if self.leaves(index) {
                continue;
            }
            if let Some(stop) = self.changed_programs() {
                self.queue.again(index);
                self.start_no_more(stop);
                break;
            }
            if let Some(lost) = self.read_gpus(slot) {
                self.queue.again(index);
                self.lose(&lost);
                continue;
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

    /// Reads the GPUs on which a trial is about to start; returns the first that is lost.
    fn read_gpus(&mut self, slot: usize) -> Option<attempt::Lost> {
        if self.request.experiment.run.cool_down.is_some() {
            let notices = self.slots.unknown_temperatures(slot, &self.instruments);
            notices.iter().for_each(|text| self.notice(text));
        }
        let mut lost = None;
        for gpu in self.slots.gpus(slot) {
            let limit = self.instruments.read_power(&gpu);
            self.slots.set_power_limit(&gpu.uuid, limit);
            let message = self.instruments.lost_before(&gpu.uuid);
            lost = lost.or_else(|| Some(attempt::Lost::of(&gpu, &message?)));
        }
        lost
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

    fn write_record(&mut self) {
        if let Err(error) = self.open.write_record() {
            self.fail(disk::cannot_write(self.request)(error));
        }
    }
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
mod ended;
mod lost_devices;
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
