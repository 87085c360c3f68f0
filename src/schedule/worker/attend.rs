//! Attends a run on which workers work: tells what they do, collects their tables, and takes back
//! the tickets of those that are gone. Nothing depends on it: it may end at any time, and anybody
//! may attend again.

mod launches;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{
        AttemptEnd, CollectedRows, RunFile, RunFolder, TableRow, TicketCounts, TicketQueue,
        TicketState, TrialStore, launch_folder, nodes::unlike_nodes, run_file::LaunchEnded,
    },
    spec::RunPlace,
    units::counted,
};

use self::launches::LaunchSeen;
use crate::schedule::{
    Event, Instruments, LaunchCounts, LaunchEnd, LaunchEvent, LaunchReport, RunRequest, RunStop,
    clock::beat,
    disk,
    open::{self, OpenRun, WorkerPlace},
    remaining::{History, Selection, unsettled, with_fallbacks},
    signals::Listener,
    slurm::{Fleet, RowsSeen, WorkerSeen},
    sweep,
    tickets::{LOOKS, LaunchObserver, TakingBack, own_process},
};

/// Time between two looks, at least; a look at a large run takes longer, and then the next is later.
const LOOK: Duration = Duration::from_millis(500);
/// And at most, where nothing has moved for some looks: the folder is on a server that many use.
const LONGEST_LOOK: Duration = Duration::from_secs(15);
/// A look may take this share of the time.
const SHARE: u32 = 10;
/// Time between two collections, at least.
const COLLECT: Duration = Duration::from_secs(30);

/// How long to attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attendance {
    /// Until the trials that the request asks for have ended, or no ticket is open or taken.
    AsAsked,
    /// Until no ticket is open or taken; trials that are for later are not asked for.
    UntilDone,
    /// Collect once and return.
    Once,
}

/// Attends a run until its tickets are done.
///
/// # Errors
/// The folder cannot be read or written. A signal is no error: it ends the attendance alone.
pub fn attend(
    request: &RunRequest,
    run: &RunFolder,
    queue: TicketQueue,
    instruments: &Instruments,
    attendance: Attendance,
) -> Result<LaunchReport, RunStop> {
    let (sender, events) = channel();
    let _listener = Listener::start(sender).map_err(|error| {
        RunStop::CannotRun(format!(
            "the signal handlers could not be installed: {error}"
        ))
    })?;
    let failed = disk::cannot_write(request);
    let fleet = Fleet::of(run, &queue, beat(), attendance == Attendance::Once)?;
    let mut attendant = Attendant::new(request, run, queue, instruments);
    attendant.fleet = fleet;
    let mut end = LaunchEnd::Finished;
    attendant.begin()?;
    let (mut rest, mut seen) = (LOOK, None);
    loop {
        let began = Instant::now();
        let looked = attendant.look(attendance);
        let is_over = attendant.judge_look(looked, attendance)? || attendant.has_stopped();
        if is_over || attendant.failure.is_some() || attendance == Attendance::Once {
            attendant.dismiss(is_over);
            break;
        }
        let now = Some(attendant.seen());
        rest = match now == seen {
            true => (rest * 5 / 4).min(LONGEST_LOOK),
            false => LOOK,
        };
        seen = now;
        let rest = rest.min(beat()).max(began.elapsed() * SHARE);
        match events.recv_timeout(rest) {
            Ok(Event::Signal(_)) => {
                end = LaunchEnd::Interrupted;
                break;
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    sweep::collect_of(request, run).map_err(&failed)?;
    attendant.close(end, attendance)
}

struct Attendant<'a> {
    request: &'a RunRequest<'a>,
    run: &'a RunFolder,
    queue: TicketQueue,
    instruments: &'a Instruments,
    observer: LaunchObserver,
    /// This launch's own table, once a lost attempt needs a row.
    own: Option<OpenRun>,
    /// The newest attempt of each trial whose end was told.
    told: HashMap<TrialId, u64>,
    /// Whether some trial has a result.
    has_result: bool,
    launches: BTreeMap<u64, LaunchSeen>,
    collected: Option<Instant>,
    has_said_idle: bool,
    counts: LaunchCounts,
    /// The workers that Slurm has, if the run gave it some.
    fleet: Option<Fleet>,
    /// The workers in tasks of Slurm, by launch.
    workers: BTreeMap<u64, WorkerSeen>,
    /// The tickets as counted last.
    counted: TicketCounts,
    /// Number of trials that the request asks for and that have no final row.
    asked_left: usize,
    /// Since when the looks fail.
    failing: Option<Instant>,
    /// Workers of Slurm that give no sign of life, and of which that was told.
    silent: BTreeSet<u64>,
    /// Why it makes no sense to go on.
    failure: Option<RunStop>,
}

impl<'a> Attendant<'a> {
    fn new(
        request: &'a RunRequest<'a>,
        run: &'a RunFolder,
        queue: TicketQueue,
        instruments: &'a Instruments,
    ) -> Self {
        Self {
            request,
            run,
            queue,
            instruments,
            observer: LaunchObserver::new(),
            own: None,
            told: HashMap::new(),
            has_result: false,
            launches: BTreeMap::new(),
            collected: None,
            has_said_idle: false,
            counts: LaunchCounts::default(),
            fleet: None,
            workers: BTreeMap::new(),
            counted: TicketCounts::default(),
            asked_left: usize::MAX,
            failing: None,
            silent: BTreeSet::new(),
            failure: None,
        }
    }

    fn notice(&self, text: &str) {
        self.request.listener.hear(LaunchEvent::Notice(text));
    }

    /// Rows that exist are not told one by one.
    fn begin(&mut self) -> Result<(), RunStop> {
        let ends = super::ends(self.request, self.run)?;
        let history = History::of(&ends);
        for end in &ends {
            self.told.insert(end.trial.clone(), end.attempt);
            self.has_result |= end.outcome.is_result();
        }
        let trials = self.trials(&history);
        let retries = self.request.experiment.run.retries;
        let failed = disk::cannot_write(self.request);
        let later = self.for_later().map_err(&failed)?;
        let left: Vec<usize> = (0..trials.len())
            .filter(|index| is_left(&trials[*index], &history, retries, &later))
            .collect();
        self.counts = LaunchCounts {
            total: trials.len(),
            to_run: left.len(),
            plan: history.standing(&trials, retries),
            ..LaunchCounts::default()
        };
        self.request.listener.hear(LaunchEvent::RunStarted {
            folder: &self.run.path().display().to_string(),
            launch: None,
            trials: &trials,
            to_run: &left,
            counts: self.counts,
        });
        Ok(())
    }

    /// The trials that nobody asked for yet, as far as their tickets can be read now.
    fn for_later(&self) -> io::Result<BTreeSet<TrialId>> {
        let listed = self.queue.list()?;
        let later = self.queue.trials_of(&listed, TicketState::Later)?;
        Ok(later.unwrap_or_default())
    }

    fn trials(&self, history: &History) -> Cow<'a, [Trial]> {
        with_fallbacks(
            self.request.trials,
            history,
            self.request.experiment.run.on_oom,
        )
    }

    /// Looks once; returns whether there is nothing left to attend.
    fn look(&mut self, attendance: Attendance) -> Result<bool, RunStop> {
        let failed = disk::cannot_write(self.request);
        if let Some(fleet) = &self.fleet {
            self.observer.hear(fleet.says(), fleet.slurm());
        }
        self.tell_launches();
        let is_open = self.take_back().map_err(&failed)?;
        self.tell_rows()?;
        let counts = self.queue.counts().map_err(&failed)?;
        self.counted = counts;
        if self
            .collected
            .is_none_or(|collected| collected.elapsed() >= COLLECT)
        {
            sweep::collect_of(self.request, self.run).map_err(&failed)?;
            self.collected = Some(Instant::now());
        }
        let is_over = counts.left() == 0 && !is_open || self.has_what_it_asks_for(attendance);
        match &mut self.fleet {
            None => self.say_idle(counts),
            // One look is for the tables alone.
            Some(_) if is_over || attendance == Attendance::Once => {}
            Some(fleet) => {
                let workers: Vec<WorkerSeen> = self.workers.values().cloned().collect();
                let listener = self.request.listener;
                let mut tell = |text: &str| listener.hear(LaunchEvent::Notice(text));
                let rows = RowsSeen {
                    trials: self.told.len(),
                    has_result: self.has_result,
                };
                self.failure = fleet.look(&workers, counts, rows, &mut tell).err();
            }
        }
        Ok(is_over)
    }

    /// Whether `--only` named trials, and all of them have ended. What `--rerun` asks for has an end
    /// from before.
    fn has_what_it_asks_for(&self, attendance: Attendance) -> bool {
        let Selection { only, rerun } = &self.request.selection;
        let names_some = !only.is_empty() && rerun.is_empty();
        attendance == Attendance::AsAsked && names_some && self.asked_left == 0
    }

    /// The parts of a run that change: rows, tickets and launches.
    fn seen(&self) -> (usize, TicketCounts, BTreeMap<u64, LaunchSeen>) {
        (self.told.len(), self.counted, self.launches.clone())
    }

    /// A look that failed is repeated for a while: a file server answers an error now and then, and
    /// files that others replace may be gone for a moment.
    fn judge_look(
        &mut self,
        looked: Result<bool, RunStop>,
        attendance: Attendance,
    ) -> Result<bool, RunStop> {
        let stop = match looked {
            Ok(is_over) => {
                self.failing = None;
                return Ok(is_over);
            }
            Err(RunStop::CannotRun(why)) => why,
            Err(stop) => return Err(stop),
        };
        let is_first = self.failing.is_none();
        let since = *self.failing.get_or_insert_with(Instant::now);
        let is_long = since.elapsed() >= beat() * LOOKS;
        if is_long || attendance == Attendance::Once || !disk::has_room(self.run.path()) {
            return Err(RunStop::CannotRun(stop));
        }
        if is_first {
            self.notice(&format!("{stop}; looking again"));
        }
        Ok(false)
    }

    /// The attendance ends: with all the work done, what waits in Slurm's queue is of no use.
    fn dismiss(&mut self, is_over: bool) {
        let undone = match &mut self.fleet {
            // Others may have asked for more than this one.
            Some(fleet) if is_over && self.counted.left() == 0 => fleet.cancel_waiting(),
            _ => None,
        };
        if let Some(why) = undone {
            self.notice(&format!(
                "workers that still wait in Slurm's queue could not be cancelled: {why}; they will \
                 find nothing to do"
            ));
        }
    }

    /// Whether the workers were asked to stop, and none has a ticket any more.
    fn has_stopped(&self) -> bool {
        let taken = self.queue.counts().map_or(1, |counts| counts.taken);
        let has_stopped = taken == 0 && self.queue.stop_asked().is_some();
        if has_stopped {
            self.notice(&format!(
                "the workers were asked to stop (`kiln stop`); `kiln run FILE --on {}` goes on",
                match self.fleet {
                    Some(_) => RunPlace::Slurm.name(),
                    None => RunPlace::Workers.name(),
                }
            ));
        }
        has_stopped
    }

    /// Says once that tickets wait and nobody works.
    fn say_idle(&mut self, TicketCounts { open, taken, .. }: TicketCounts) {
        let works = |seen: &LaunchSeen| *seen == LaunchSeen::Running;
        let is_idle = open > 0 && taken == 0 && !self.launches.values().any(works);
        if is_idle && !self.has_said_idle {
            self.notice(&format!(
                "{} for a worker, and none is at work",
                match open {
                    1 => "1 ticket waits".to_owned(),
                    more => format!("{more} tickets wait"),
                }
            ));
        }
        self.has_said_idle = is_idle;
    }

    /// Returns whether a launch that may live still owes a row.
    fn take_back(&mut self) -> io::Result<bool> {
        let devices = self.instruments.devices();
        let taking = TakingBack {
            run: self.run,
            queue: &self.queue,
            request: self.request,
            devices: &devices,
        };
        let (own, request, run, instruments) =
            (&mut self.own, self.request, self.run, self.instruments);
        let number = own.as_ref().map(|own| own.launch);
        let outlook = taking.take_back(&mut self.observer, number, &mut |row| {
            let store = own_store(own, request, run, instruments)?;
            store.keep(row).map(drop).map_err(io::Error::from)
        })?;
        outlook.told.iter().for_each(|text| self.notice(text));
        Ok(outlook.is_open)
    }

    /// Tells the rows that are new.
    fn tell_rows(&mut self) -> Result<(), RunStop> {
        let (mut ends, mut new): (Vec<AttemptEnd>, Vec<TableRow>) = (Vec::new(), Vec::new());
        CollectedRows::read(self.run)
            .and_then(|rows| {
                rows.each(&mut |row| {
                    ends.push(AttemptEnd::of(&row));
                    self.has_result |= row.fixed.outcome.is_result();
                    let known = self.told.get(&row.fixed.trial);
                    if known.is_none_or(|known| row.fixed.attempt > *known) {
                        new.push(row);
                    }
                })
            })
            .map_err(super::unreadable(self.request))?;
        let history = History::of(&ends);
        let trials = self.trials(&history);
        let retries = self.request.experiment.run.retries;
        self.counts.total = trials.len();
        self.counts.plan = history.standing(&trials, retries);
        self.asked_left = unsettled(&trials, &history, &self.request.selection, retries).count();
        for row in &new {
            self.told.insert(row.fixed.trial.clone(), row.fixed.attempt);
            if let Some(trial) = trials.iter().find(|trial| trial.id == row.fixed.trial) {
                self.request.listener.hear(LaunchEvent::TrialEnded {
                    trial,
                    row: &row.fixed,
                    counts: self.counts,
                });
            }
        }
        Ok(())
    }

    fn close(mut self, end: LaunchEnd, attendance: Attendance) -> Result<LaunchReport, RunStop> {
        let failed = disk::cannot_write(self.request);
        self.end_own().map_err(&failed)?;
        let file = RunFile::read(&self.run.run_file()).map_err(RunStop::Refused)?;
        for difference in unlike_nodes(&file.launches) {
            self.notice(&difference);
        }
        let ends = super::ends(self.request, self.run)?;
        let history = History::of(&ends);
        let trials = self.trials(&history);
        let how = match end {
            _ if self.failure.is_some() => "given up; tickets are left".to_owned(),
            LaunchEnd::Interrupted => "left; the workers go on".to_owned(),
            _ if self.counted.left() > 0 => "the trials that were asked for have ended".to_owned(),
            _ => "no ticket is left".to_owned(),
        };
        self.tell_tickets_left(end).map_err(&failed)?;
        self.request.listener.hear(LaunchEvent::RunEnded {
            how: &how,
            counts: self.counts,
        });
        let report = sweep::report(self.request, &trials, self.run.clone(), end, ends.iter());
        let retries = self.request.experiment.run.retries;
        let asked_left = match attendance {
            Attendance::AsAsked => report.asked_left,
            Attendance::UntilDone | Attendance::Once => {
                let later = self.for_later().map_err(&failed)?;
                let left = trials.iter();
                left.filter(|trial| is_left(trial, &history, retries, &later))
                    .count()
            }
        };
        Ok(LaunchReport {
            asked_left,
            failure: self.failure,
            ..report
        })
    }

    /// Ends the launch with this attendance's own rows, and collects them.
    fn end_own(&mut self) -> io::Result<()> {
        let Some(own) = &mut self.own else {
            return Ok(());
        };
        if let Some(launch) = own.file.launches.last_mut() {
            launch.ended = Some(LaunchEnded {
                utc: crate::schedule::clock::utc_now(),
                how: "attended".to_owned(),
                cause: None,
            });
        }
        own.write_record()?;
        sweep::collect_of(self.request, self.run)
    }

    /// Says why tickets are held, and that some are for later.
    fn tell_tickets_left(&self, end: LaunchEnd) -> io::Result<()> {
        let TicketCounts { held, later, .. } = self.queue.counts()?;
        if held > 0 {
            let taking = TakingBack {
                run: self.run,
                queue: &self.queue,
                request: self.request,
                devices: &[],
            };
            let sentences = taking.tell_held()?;
            sentences.iter().for_each(|text| self.notice(text));
        }
        if later > 0 && end == LaunchEnd::Finished {
            self.notice(&for_later(later));
        }
        Ok(())
    }
}

/// Whether a trial needs another attempt, and its ticket is not for later.
fn is_left(trial: &Trial, history: &History, retries: u64, later: &BTreeSet<TrialId>) -> bool {
    !history.is_settled(&trial.id, retries) && !later.contains(trial.planned())
}

/// The notice that so many tickets are for later, with the command that opens them.
pub fn for_later(tickets: usize) -> String {
    let (are, them) = match tickets {
        1 => ("is", "it"),
        _ => ("are", "them"),
    };
    format!(
        "{} {are} for later: the command that made the run opens {them}, without `--only`",
        counted(tickets, "ticket")
    )
}

/// The table for rows that this attendance writes: a launch of its own, made when it is needed.
fn own_store<'s>(
    own: &'s mut Option<OpenRun>,
    request: &RunRequest,
    run: &RunFolder,
    instruments: &Instruments,
) -> io::Result<&'s mut TrialStore> {
    if own.is_none() {
        let run = run.in_experiment()?;
        let file = RunFile::read(&run.run_file()).map_err(io::Error::other)?;
        let launch = launch_folder::make(&run, file.last_launch())?;
        let place = WorkerPlace {
            run: &run,
            launch,
            process: own_process(),
            file: &file,
            others: &[],
            slurm: None,
            runs_trials: false,
        };
        let open =
            open::open_among_others(request, &place, instruments, &[]).map_err(io::Error::other)?;
        *own = Some(open);
    }
    match own {
        Some(open) => Ok(&mut open.store),
        None => Err(io::Error::other("no table")),
    }
}
