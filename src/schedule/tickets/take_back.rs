//! Takes back the tickets of launches that are gone, gives their lost attempts a row, and judges held
//! tickets again.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, Checkpoints, CollectedRows, LaunchFile, NewTicket, RunFolder,
        Submission, TableRow, Ticket, TicketContent, TicketEntry, TicketQueue, TicketState,
        launch_folder::{self, BEFORE},
        note::OutOfJobTime,
        trial_reason,
    },
    units::counted,
};

use super::{
    launch_observer::LaunchObserver,
    next_state::{HeldCause, NextState, Standing, held_in_words, why_damaged},
};
use crate::schedule::{
    RunRequest,
    instruments::LeasedGpu,
    machine,
    remaining::{History, with_fallbacks},
    row::{self, LostAttempt},
    slurm::Fate,
    stray::end_strays,
};
use kiln_hardware::host::usable_cores;

/// The run whose tickets are taken back, and what that needs.
pub(in crate::schedule) struct TakingBack<'a> {
    pub(in crate::schedule) run: &'a RunFolder,
    pub(in crate::schedule) queue: &'a TicketQueue,
    /// All trials of the plan.
    pub(in crate::schedule) request: &'a RunRequest<'a>,
    /// GPUs of this host, to name those that the lost attempts used.
    pub(in crate::schedule) devices: &'a [LeasedGpu],
}

/// The result of a look at the other launches.
#[derive(Debug, Default)]
pub(in crate::schedule) struct TicketChanges {
    /// A sentence for each thing that was done.
    pub(in crate::schedule) told: Vec<String>,
    /// Whether a ticket was opened again.
    pub(in crate::schedule) has_opened: bool,
    /// Whether a launch that may live has begun an attempt that has no row; only told once no ticket
    /// is open or taken.
    pub(in crate::schedule) is_open: bool,
}

impl<'a> TakingBack<'a> {
    /// Looks after every launch but `own` that is gone: each attempt that it has begun and left
    /// without a row gets one, by `keep`, whether or not a ticket leads to it; then its tickets are
    /// taken back. Held tickets are judged again.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(in crate::schedule) fn take_back(
        &self,
        observer: &mut LaunchObserver,
        own: Option<u64>,
        keep: &mut dyn FnMut(&TableRow) -> io::Result<()>,
    ) -> io::Result<TicketChanges> {
        let listed = self.queue.list()?;
        let mut changes = TicketChanges::default();
        let is_at_work = listed
            .iter()
            .any(|ticket| matches!(ticket.state, TicketState::Open | TicketState::Taken(_)));
        let mut table: Option<Table> = None;
        // Before the rows are read, so that those of a launch that ends meanwhile are not missed.
        for (launch, gone) in self.unsettled(observer, own, &listed)? {
            // The open attempts of a living launch matter once no ticket is left.
            if gone.is_none() && is_at_work {
                continue;
            }
            // A list that cannot be read now is read later: else an attempt would have no row.
            let Ok(begun) = launch_folder::noted_attempts(self.run, launch) else {
                changes.is_open = true;
                continue;
            };
            if gone.is_none() && begun.is_empty() {
                continue;
            }
            let table = self.read_once(&mut table)?;
            let lost = begun
                .iter()
                .filter(|attempt| !table.known.contains(attempt));
            let lost: Vec<(TrialId, u64)> = lost.cloned().collect();
            let Some(fate) = gone else {
                changes.is_open |= !lost.is_empty();
                continue;
            };
            let mut done = Vec::new();
            for (id, attempt) in lost {
                done.extend(self.settle(table, (&id, attempt), (launch, &fate), keep)?);
            }
            done.extend(self.reopen_all(launch, &listed, table, &mut changes)?);
            observer.settle(self.run, launch);
            if !done.is_empty() {
                changes.told.push(format!(
                    "launch {launch} is gone: {}; {}",
                    fate.why,
                    done.join(", ")
                ));
            }
        }
        let held = self.judge_held(&listed, &mut table, &mut changes)?;
        if !is_at_work && !changes.has_opened {
            let later = self.queue.trials_of(&listed, TicketState::Later)?;
            match (held, later) {
                (Some(held), Some(later)) => {
                    let table = self.read_once(&mut table)?;
                    self.ask_for_the_rest(table, &[held, later], &mut changes)?;
                }
                // Somebody opens them just now, or the list is old: the next look tells.
                _ => changes.is_open = true,
            }
        }
        Ok(changes)
    }

    /// The launches but `own` that may have left attempts or tickets; with the fate of one that is
    /// gone.
    fn unsettled(
        &self,
        observer: &mut LaunchObserver,
        own: Option<u64>,
        listed: &[Ticket],
    ) -> io::Result<Vec<(u64, Option<Fate>)>> {
        let mut launches = launch_folder::listed(self.run)?;
        // An old list may have lacked a ticket of one that was settled.
        let has_ticket = |launch: u64| {
            let mut tickets = listed.iter();
            tickets.any(|ticket| ticket.state == TicketState::Taken(launch))
        };
        launches.retain(|launch| {
            let is_settled = observer.is_settled(*launch) && !has_ticket(*launch);
            Some(*launch) != own && *launch != BEFORE && !is_settled
        });
        let fate = |launch| (launch, observer.gone(self.run, launch));
        Ok(launches.into_iter().map(fate).collect())
    }

    /// Puts the tickets of a launch that is gone where they belong.
    fn reopen_all(
        &self,
        launch: u64,
        listed: &[Ticket],
        table: &Table<'_>,
        changes: &mut TicketChanges,
    ) -> io::Result<Vec<String>> {
        let is_its = |ticket: &&Ticket| ticket.state == TicketState::Taken(launch);
        let mut tickets = listed.iter().filter(is_its).peekable();
        let mut done = Vec::new();
        if tickets.peek().is_none() {
            return Ok(done);
        }
        let standing = self.standing(table);
        for ticket in tickets {
            let content = self.queue.content(*ticket)?;
            done.extend(self.reopen(&standing, (*ticket, content), changes)?);
        }
        Ok(done)
    }

    /// Judges the held tickets again, by the rows that there are now; returns what was done, in
    /// sentences.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(in crate::schedule) fn judge_again(&self) -> io::Result<Vec<String>> {
        let mut changes = TicketChanges::default();
        self.judge_held(&self.queue.list()?, &mut None, &mut changes)?;
        Ok(changes.told)
    }

    /// Why tickets are held and what opens them, in sentences.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(in crate::schedule) fn tell_held(&self) -> io::Result<Vec<String>> {
        let table = Table::read(self)?;
        let standing = self.standing(&table);
        let mut causes: BTreeMap<Option<HeldCause>, usize> = BTreeMap::new();
        for ticket in self.queue.list()? {
            if ticket.state != TicketState::Held {
                continue;
            }
            let cause = match self.queue.content(ticket)? {
                TicketContent::Whole(entries) if standing.unknown(&entries).is_none() => {
                    match standing.next(&entries).cause() {
                        // It is opened again just now.
                        None => continue,
                        cause => cause,
                    }
                }
                TicketContent::Whole(_) | TicketContent::Damaged(_) => None,
                TicketContent::Moved => continue,
            };
            *causes.entry(cause).or_default() += 1;
        }
        let sentence = |(cause, count): (Option<HeldCause>, usize)| {
            let (are, them) = if count == 1 {
                ("is", "it")
            } else {
                ("are", "them")
            };
            let tickets = counted(count, "ticket");
            match cause {
                Some(cause) => format!("{tickets} {are} held, {} {them}", cause.in_words()),
                None => format!("{tickets} {are} damaged; the trials have others"),
            }
        };
        Ok(causes.into_iter().map(sentence).collect())
    }

    /// Returns the trials of the held tickets; `None` if somebody else has moved one.
    fn judge_held(
        &self,
        listed: &[Ticket],
        table: &mut Option<Table<'a>>,
        changes: &mut TicketChanges,
    ) -> io::Result<Option<BTreeSet<TrialId>>> {
        let mut trials = BTreeSet::new();
        let mut held = listed
            .iter()
            .filter(|ticket| ticket.state == TicketState::Held)
            .peekable();
        if held.peek().is_none() {
            return Ok(Some(trials));
        }
        let standing = self.standing(self.read_once(table)?);
        let mut has_moved = false;
        for ticket in held {
            let content = self.queue.content(*ticket)?;
            match &content {
                TicketContent::Whole(entries) if standing.unknown(entries).is_none() => {
                    trials.extend(entries.iter().map(|entry| entry.trial.clone()));
                }
                TicketContent::Whole(_) | TicketContent::Damaged(_) => {}
                TicketContent::Moved => has_moved = true,
            }
            let done = self.reopen(&standing, (*ticket, content), changes)?;
            changes.told.extend(done);
        }
        Ok((!has_moved).then_some(trials))
    }

    fn standing<'t>(&self, table: &'t Table<'_>) -> Standing<'t> {
        let retries = self.request.experiment.run.retries;
        Standing::new(&table.trials, &table.history, retries)
    }

    /// The rows of all launches, read when they are first needed.
    fn read_once<'t>(&self, table: &'t mut Option<Table<'a>>) -> io::Result<&'t mut Table<'a>> {
        match table {
            Some(table) => Ok(table),
            none => Ok(none.insert(Table::read(self)?)),
        }
    }

    /// Adds a ticket for each trial whose last attempt says nothing and that no ticket leads to: a
    /// launch that was out of reach began it once more, beside the one that had its ticket. To those
    /// in `kept` a held ticket leads, or one for later.
    fn ask_for_the_rest(
        &self,
        table: &Table<'_>,
        kept: &[BTreeSet<TrialId>],
        changes: &mut TicketChanges,
    ) -> io::Result<()> {
        let retries = self.request.experiment.run.retries;
        let is_left = |trial: &&Trial| {
            let is_kept = kept.iter().any(|trials| trials.contains(&trial.id));
            !table.history.is_settled(&trial.id, retries) && !is_kept
        };
        let left: Vec<&Trial> = self.request.trials.iter().filter(is_left).collect();
        let entry = |trial: &&Trial| TicketEntry {
            trial: trial.id.clone(),
            after: 0,
        };
        let tickets: Vec<_> = left
            .iter()
            .map(|trial| NewTicket::open(vec![entry(trial)]))
            .collect();
        for (trial, number) in left.iter().zip(self.queue.add(&tickets)?) {
            changes.has_opened = true;
            changes.told.push(format!(
                "trial {} has no result, though no ticket is left: ticket {number} asks for it again",
                trial.id
            ));
        }
        Ok(())
    }

    /// Gives a lost attempt its row.
    fn settle(
        &self,
        table: &mut Table<'_>,
        (id, attempt): (&TrialId, u64),
        (launch, fate): (u64, &Fate),
        keep: &mut dyn FnMut(&TableRow) -> io::Result<()>,
    ) -> io::Result<Option<String>> {
        let folder = self.run.attempt(id, attempt);
        // Somebody removed it, or the trial is not of this plan.
        let (Some(trial), Some(started)) = (
            table.trials.iter().find(|trial| trial.id == *id),
            AttemptFile::read(&folder)?,
        ) else {
            return Ok(None);
        };
        if started.launch != launch {
            return Ok(None);
        }
        end_strays(&folder);
        let row = self.lost(trial, &started, fate);
        keep(&row)?;
        table.history.add(&AttemptEnd::of(&row));
        table.known.insert((id.clone(), attempt));
        Ok(Some(format!("trial {id} counts as {}", fate.outcome)))
    }

    /// Puts a ticket that nobody works on where it belongs; `None` if it is there, or somebody else
    /// was faster.
    fn reopen(
        &self,
        standing: &Standing<'_>,
        (ticket, content): (Ticket, TicketContent),
        changes: &mut TicketChanges,
    ) -> io::Result<Option<String>> {
        let entries = match content {
            TicketContent::Whole(entries) => entries,
            TicketContent::Damaged(why) => {
                let is_news = ticket.state != TicketState::Held;
                self.queue.put(ticket, TicketState::Held)?;
                return Ok(is_news.then_some(why));
            }
            TicketContent::Moved => return Ok(None),
        };
        let number = ticket.number;
        let put = |state: TicketState, told: String| {
            let is_put = state != ticket.state && self.queue.put(ticket, state)?.is_some();
            Ok(is_put.then_some(told))
        };
        // Somebody may have asked for the trials with more time, and a worker was lost that had not
        // used it.
        let may_hold = match ticket.state {
            TicketState::Taken(launch) => standing.is_cut_off_by(&entries, launch),
            _ => true,
        };
        match standing.next(&entries) {
            NextState::Done => put(
                TicketState::Done,
                format!("nothing is left of ticket {number}"),
            ),
            NextState::Held(HeldCause::Killed) => {
                let held = held_in_words(number, HeldCause::Killed, 0, 0);
                put(TicketState::Held, held)
            }
            NextState::Held(HeldCause::TooLong) if ticket.state == TicketState::Held => Ok(None),
            NextState::Held(HeldCause::TooLong) | NextState::Divided if may_hold => {
                let Some(left) = standing.hold(self.queue, ticket, entries.clone())? else {
                    return Ok(None);
                };
                changes.has_opened |= left > 0;
                let others = standing.hold_others(self.queue, &entries)?;
                Ok(Some(held_in_words(
                    number,
                    HeldCause::TooLong,
                    left,
                    others,
                )))
            }
            // A worker could not run it.
            _ if let Some(trial) = standing.unknown(&entries) => {
                put(TicketState::Held, why_damaged(number, trial))
            }
            _ => {
                let opened = put(TicketState::Open, format!("ticket {number} waits again"))?;
                changes.has_opened |= opened.is_some();
                Ok(opened)
            }
        }
    }

    /// A note on an attempt that the time of its job ended; `None` if it is not known how much of that
    /// time it had, or what it left.
    fn out_of_job_time(
        &self,
        trial: &Trial,
        started: &AttemptFile,
        worker: &LaunchFile,
    ) -> Option<(String, String)> {
        let job = worker.launch.slurm.map(|task| task.job);
        let mut submissions = Submission::all(self.run).ok()?.into_iter();
        let submitted =
            submissions.find(|submission| submission.job.is_some() && submission.job == job);
        let time = submitted?.slurm.time?;
        let whole = time.0.as_secs_f64();
        let at = |utc: &str| utc.parse::<jiff::Timestamp>().ok();
        // Both by the clock of the worker's node.
        let began = at(&worker.launch.anchor.started_utc)?;
        let after = at(&started.started_utc)?.duration_since(began);
        if trial.saves_by_itself() {
            return None;
        }
        let checkpoints = Checkpoints::new(self.run.checkpoints(&trial.id), trial.id.clone());
        let note = OutOfJobTime {
            had_most: OutOfJobTime::is_most(whole - after.as_secs_f64(), whole),
            // It may be an older one: without the worker's word that is not known.
            has_checkpoint: checkpoints.newest_step().is_some(),
        };
        Some((OutOfJobTime::COLUMN.to_owned(), note.to_string()))
    }

    /// The row of an attempt whose launch is gone.
    fn lost(&self, trial: &Trial, started: &AttemptFile, fate: &Fate) -> TableRow {
        let file = LaunchFile::read(self.run, started.launch);
        let what = format!(
            "was running when its worker (launch {}) was lost: {}",
            started.launch, fate.why
        );
        let reason = trial_reason::of_trial(&trial.id, &what);
        let lost = LostAttempt {
            attempt: started.attempt,
            started: Some(started),
            devices: self.devices,
            cpu_name: file
                .as_ref()
                .and_then(|file| machine::cpu_model(&file.launch)),
            note: file
                .as_ref()
                .filter(|_| fate.is_out_of_time)
                .and_then(|file| self.out_of_job_time(trial, started, file)),
            cores: usable_cores(),
        };
        row::of_lost(trial, started.launch, (fate.outcome, reason), &lost)
    }
}

/// The ended attempts of all launches, and the trials of the plan with their stand-ins.
struct Table<'a> {
    known: HashSet<(TrialId, u64)>,
    history: History,
    trials: Cow<'a, [Trial]>,
}

impl<'a> Table<'a> {
    fn read(of: &TakingBack<'a>) -> io::Result<Self> {
        let rows = CollectedRows::read(of.run)?;
        let history = History::of(&rows.ends()?);
        let on_oom = of.request.experiment.run.on_oom;
        Ok(Self {
            known: rows.attempts(),
            trials: with_fallbacks(of.request.trials, &history, on_oom),
            history,
        })
    }
}
