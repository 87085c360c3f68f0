//! Takes back the tickets of launches that are gone, gives their lost attempts a row, and judges held
//! tickets again.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    io,
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, Checkpoints, CollectedRows, DEVICE_SEPARATOR, LaunchFile,
        NewTicket, RunFolder, TableRow, Ticket, TicketEntry, TicketQueue, TicketState,
        launch_folder::{self, BEFORE},
        note::OutOfJobTime,
    },
    units::{counted, without_controls},
};

use super::gone::LaunchObserver;
use crate::schedule::{
    RunRequest,
    attempt::saves_by_itself,
    instruments::{AttemptReadings, LeasedGpu},
    machine,
    open::cores,
    remaining::{History, with_fallbacks},
    row::{AttemptFacts, row},
    slurm::Fate,
    stray::end_strays,
};

/// A trial that was killed so many times in a row, with its worker or from outside, is not given to
/// another one.
const MOST_KILLED: usize = 3;

/// A trial is not given to another worker if so many attempts at it were ended by their job's time in
/// a row, and left no new checkpoint; or at trials of its point, none of which has a result.
const MOST_CUT_OFF: usize = 2;

/// Why a ticket is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::schedule) enum HeldCause {
    /// A trial of it was killed again and again.
    Killed,
    /// A trial of it, or others of its point, take longer than their jobs.
    OutOfTime,
}

impl HeldCause {
    /// `because …; … opens`
    fn in_words(self) -> String {
        match self {
            Self::Killed => format!(
                "because a trial was killed {MOST_KILLED} times in a row, with its worker or from \
                 outside; `kiln run FILE --on workers --rerun killed` opens"
            ),
            Self::OutOfTime => format!(
                "because the time of {MOST_CUT_OFF} jobs ended before a trial, or others of its point, \
                 and left no new checkpoint (`train.checkpoint` in a new run writes them); `kiln run \
                 FILE --on slurm --rerun interrupted --set run.slurm.time=…`, with more time, opens"
            ),
        }
    }
}

/// Why a ticket is held, and what opens it.
pub(in crate::schedule) fn why_held(ticket: u64, cause: HeldCause) -> String {
    format!("ticket {ticket} is held, {} it", cause.in_words())
}

/// Why a ticket is held that names a trial which the plan does not have.
pub(in crate::schedule) fn why_damaged(ticket: u64, trial: &TrialId) -> String {
    format!(
        "ticket {ticket} of the run's queue is damaged: it names trial `{}`, which the experiment does \
         not have; it is held, and its trials get another one",
        without_controls(&trial.0)
    )
}

/// What is needed to take tickets back.
pub(super) struct TakingBack<'a> {
    pub(super) run: &'a RunFolder,
    pub(super) queue: &'a TicketQueue,
    /// All trials of the plan.
    pub(super) request: &'a RunRequest<'a>,
    /// GPUs of this host, to name those that the lost attempts used.
    pub(super) devices: &'a [LeasedGpu],
}

/// What a look at the other launches came to.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// What was done, in sentences.
    pub(super) told: Vec<String>,
    /// Whether a ticket was opened again.
    pub(super) has_opened: bool,
    /// Whether a launch that may live has begun an attempt that has no row; only told once no ticket
    /// is open or taken.
    pub(super) is_open: bool,
}

impl<'a> TakingBack<'a> {
    /// Looks after every launch but `own` that is gone: each attempt that it has begun and left
    /// without a row gets one, by `keep`, whether or not a ticket leads to it; then its tickets are
    /// taken back. Held tickets are judged again.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(super) fn take_back(
        &self,
        observer: &mut LaunchObserver,
        own: Option<u64>,
        keep: &mut dyn FnMut(&TableRow) -> io::Result<()>,
    ) -> io::Result<Outlook> {
        let listed = self.queue.list()?;
        let mut outlook = Outlook::default();
        let is_at_work = listed
            .iter()
            .any(|ticket| matches!(ticket.state, TicketState::Open | TicketState::Taken(_)));
        let mut table: Option<Table> = None;
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
        // Before the rows are read, so that those of a launch that ends meanwhile are not missed.
        let launches: Vec<(u64, Option<Fate>)> = launches
            .into_iter()
            .map(|launch| (launch, observer.gone(self.run, launch)))
            .collect();
        for (launch, gone) in launches {
            // What a living launch owes matters once no ticket is left.
            if gone.is_none() && is_at_work {
                continue;
            }
            // What cannot be read now is looked at again: without it an attempt would have no row.
            let Ok(begun) = launch_folder::noted_attempts(self.run, launch) else {
                outlook.is_open = true;
                continue;
            };
            let is_its = |ticket: &&Ticket| ticket.state == TicketState::Taken(launch);
            let tickets: Vec<Ticket> = listed.iter().filter(is_its).copied().collect();
            if gone.is_none() && begun.is_empty() {
                continue;
            }
            let table = self.read_once(&mut table)?;
            let lost = begun
                .iter()
                .filter(|attempt| !table.known.contains(attempt));
            let lost: Vec<(TrialId, u64)> = lost.cloned().collect();
            let Some(fate) = gone else {
                outlook.is_open |= !lost.is_empty();
                continue;
            };
            let mut done = Vec::new();
            for (id, attempt) in lost {
                done.extend(self.settle(table, (&id, attempt), (launch, &fate), keep)?);
            }
            for ticket in &tickets {
                done.extend(self.reopen(table, *ticket, &mut outlook)?);
            }
            observer.settle(self.run, launch);
            if !done.is_empty() {
                outlook.told.push(format!(
                    "launch {launch} is gone: {}; {}",
                    fate.why,
                    done.join(", ")
                ));
            }
        }
        let mut kept = self.judge_held(&listed, &mut table, &mut outlook)?;
        if !is_at_work && !outlook.has_opened {
            kept.extend(self.queue.trials_for_later(&listed)?);
            let table = self.read_once(&mut table)?;
            self.ask_for_the_rest(table, &kept, &mut outlook)?;
        }
        Ok(outlook)
    }

    /// Judges the held tickets again, by the rows that there are now; returns what was done, in
    /// sentences.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(super) fn judge_again(&self) -> io::Result<Vec<String>> {
        let mut outlook = Outlook::default();
        self.judge_held(&self.queue.list()?, &mut None, &mut outlook)?;
        Ok(outlook.told)
    }

    /// Why tickets are held and what opens them, in sentences.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn tell_held(&self) -> io::Result<Vec<String>> {
        let mut table = None;
        let mut causes: BTreeMap<Option<HeldCause>, usize> = BTreeMap::new();
        for ticket in self.queue.list()? {
            if ticket.state != TicketState::Held {
                continue;
            }
            let cause = match self.queue.entries(ticket) {
                Ok(entries) => self.next(self.read_once(&mut table)?, &entries).1,
                Err(error) if TicketQueue::is_no_ticket(&error) => None,
                Err(error) => return Err(error),
            };
            *causes.entry(cause).or_default() += 1;
        }
        let told = |(cause, count): (Option<HeldCause>, usize)| {
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
        Ok(causes.into_iter().map(told).collect())
    }

    /// Returns the trials of the held tickets.
    fn judge_held(
        &self,
        listed: &[Ticket],
        table: &mut Option<Table<'a>>,
        outlook: &mut Outlook,
    ) -> io::Result<HashSet<TrialId>> {
        let mut trials = HashSet::new();
        for ticket in listed {
            if ticket.state == TicketState::Held {
                let told = self.reopen(self.read_once(table)?, *ticket, outlook)?;
                outlook.told.extend(told);
                let entries = self.queue.entries(*ticket).unwrap_or_default();
                // The trials of a damaged one get another ticket.
                if self.unknown(&entries).is_none() {
                    trials.extend(entries.into_iter().map(|entry| entry.trial));
                }
            }
        }
        Ok(trials)
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
        kept: &HashSet<TrialId>,
        outlook: &mut Outlook,
    ) -> io::Result<()> {
        let history = History::of(&table.ends);
        let retries = self.request.experiment.run.retries;
        let is_left =
            |trial: &&Trial| !history.is_settled(&trial.id, retries) && !kept.contains(&trial.id);
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
            outlook.has_opened = true;
            outlook.told.push(format!(
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
            AttemptFile::read(&folder),
        ) else {
            return Ok(None);
        };
        if started.launch != launch {
            return Ok(None);
        }
        end_strays(&folder);
        let row = self.lost(trial, &started, fate);
        keep(&row)?;
        table.ends.push(AttemptEnd::of(&row));
        table.known.insert((id.clone(), attempt));
        Ok(Some(format!("trial {id} counts as {}", fate.outcome)))
    }

    /// A trial that a ticket names and the plan does not have.
    fn unknown<'e>(&self, entries: &'e [TicketEntry]) -> Option<&'e TrialId> {
        let mut named = entries.iter().map(|entry| &entry.trial);
        named.find(|id| self.request.trials.iter().all(|trial| trial.id != **id))
    }

    /// Puts a ticket that nobody works on where it belongs; `None` if it is there, or somebody else
    /// was faster.
    fn reopen(
        &self,
        table: &Table<'_>,
        ticket: Ticket,
        outlook: &mut Outlook,
    ) -> io::Result<Option<String>> {
        let entries = match self.queue.entries(ticket) {
            // An old listing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // A damaged ticket is nobody's; its trials get another one at the end.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let is_news = ticket.state != TicketState::Held;
                self.queue.put(ticket, TicketState::Held)?;
                return Ok(is_news.then(|| error.to_string()));
            }
            entries => entries?,
        };
        let unknown = self.unknown(&entries);
        let (state, cause) = match self.next(table, &entries) {
            // A worker could not run it.
            (TicketState::Open, _) if unknown.is_some() => (TicketState::Held, None),
            next => next,
        };
        if state == ticket.state || self.queue.put(ticket, state)?.is_none() {
            return Ok(None);
        }
        outlook.has_opened |= state == TicketState::Open;
        if cause == Some(HeldCause::OutOfTime) {
            let ids: Vec<&TrialId> = entries.iter().map(|entry| &entry.trial).collect();
            let retries = self.request.experiment.run.retries;
            let history = History::of(&table.ends);
            hold_points(self.queue, &ids, &table.trials, &history, retries)?;
        }
        let number = ticket.number;
        Ok(Some(match state {
            TicketState::Done => format!("nothing is left of ticket {number}"),
            _ => match (cause, unknown) {
                (Some(cause), _) => why_held(number, cause),
                (_, Some(trial)) => why_damaged(number, trial),
                _ => format!("ticket {number} waits again"),
            },
        }))
    }

    /// Where a ticket with these trials goes that nobody works on; with the cause if it is held.
    fn next(&self, table: &Table<'_>, entries: &[TicketEntry]) -> (TicketState, Option<HeldCause>) {
        let run = &self.request.experiment.run;
        let counts = |end: &&AttemptEnd| {
            let entry = entries.iter().find(|entry| entry.trial == end.trial);
            entry.is_none_or(|entry| end.attempt > entry.after)
        };
        let history = History::of(table.ends.iter().filter(counts));
        let is_asked = |trial: &&Trial| entries.iter().any(|entry| entry.trial == trial.id);
        let planned = self.request.trials.iter().filter(is_asked).cloned();
        let planned: Vec<Trial> = planned.collect();
        let trials = with_fallbacks(&planned, &history, run.on_oom);
        let ids: Vec<&TrialId> = trials.iter().map(|trial| &trial.id).collect();
        next_state(&ids, &table.trials, &history, run.retries)
    }

    /// A note on an attempt that the time of its job ended; `None` if it is not known how much of that
    /// time it had, or what it left.
    fn out_of_job_time(
        &self,
        trial: &Trial,
        started: &AttemptFile,
        worker: &LaunchFile,
    ) -> Option<(String, String)> {
        let time = self.request.experiment.run.slurm.as_ref()?.time?;
        let whole = time.0.as_secs_f64();
        let at = |utc: &str| utc.parse::<jiff::Timestamp>().ok();
        // Both by the clock of the worker's node.
        let began = at(&worker.launch.anchor.started_utc)?;
        let after = at(&started.started_utc)?.duration_since(began);
        if saves_by_itself(trial) {
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
        let named = started.device.split(DEVICE_SEPARATOR);
        let used: Vec<LeasedGpu> = named
            .filter_map(|uuid| self.devices.iter().find(|device| device.uuid == uuid))
            .cloned()
            .collect();
        let file = LaunchFile::read(self.run, started.launch);
        let cpu_name = file
            .as_ref()
            .filter(|_| started.device == "cpu")
            .and_then(|file| machine::cpu_model(&file.launch));
        let reason = format!(
            "trial {} was running when its worker (launch {}) was lost: {}",
            trial.id, started.launch, fate.why
        );
        row(&AttemptFacts {
            attempt: started.attempt,
            started_utc: Some(started.started_utc.clone()),
            devices: &used,
            cpu_name,
            concurrent_trials: 1,
            notes: file
                .as_ref()
                .filter(|_| fate.is_out_of_time)
                .and_then(|file| self.out_of_job_time(trial, started, file))
                .into_iter()
                .collect(),
            ..AttemptFacts::of_end(
                trial,
                started.launch,
                (fate.outcome, reason),
                &AttemptReadings::default(),
                cores(),
            )
        })
    }
}

/// The rows of all launches, and the trials that they speak of.
struct Table<'a> {
    known: HashSet<(TrialId, u64)>,
    ends: Vec<AttemptEnd>,
    trials: Cow<'a, [Trial]>,
}

impl<'a> Table<'a> {
    fn read(of: &TakingBack<'a>) -> io::Result<Self> {
        let rows = CollectedRows::read(of.run)?;
        let (known, ends) = (rows.attempts(), rows.ends()?);
        let on_oom = of.request.experiment.run.on_oom;
        let trials = with_fallbacks(of.request.trials, &History::of(&ends), on_oom);
        Ok(Self {
            known,
            ends,
            trials,
        })
    }
}

/// Where a ticket with these trials of the `plan` goes that nobody works on; with the cause if it is
/// held.
pub(in crate::schedule) fn next_state(
    trials: &[&TrialId],
    plan: &[Trial],
    history: &History,
    retries: u64,
) -> (TicketState, Option<HeldCause>) {
    let mut left = trials
        .iter()
        .filter(|trial| !history.is_settled(trial, retries))
        .peekable();
    if left.peek().is_none() {
        return (TicketState::Done, None);
    }
    match left.find_map(|trial| held_cause(trial, plan, history)) {
        Some(cause) => (TicketState::Held, Some(cause)),
        None => (TicketState::Open, None),
    }
}

/// Holds the open tickets with trials of the points of `cut_off` that are as long; returns how many.
///
/// # Errors
/// The queue cannot be read or written.
pub(in crate::schedule) fn hold_points(
    queue: &TicketQueue,
    cut_off: &[&TrialId],
    plan: &[Trial],
    history: &History,
    retries: u64,
) -> io::Result<usize> {
    let planned = plan.iter();
    let of_them = planned.filter(|trial| cut_off.contains(&&trial.id));
    let points: HashSet<u64> = of_them.map(|trial| trial.point).collect();
    let of_points = plan.iter().filter(|trial| points.contains(&trial.point));
    let of_points: HashSet<&TrialId> = of_points.map(|trial| &trial.id).collect();
    let mut held = 0;
    for ticket in queue.list()? {
        if ticket.state != TicketState::Open {
            continue;
        }
        let entries = match queue.entries(ticket) {
            Err(error) if TicketQueue::is_no_ticket(&error) => continue,
            entries => entries?,
        };
        let trials: Vec<&TrialId> = entries.iter().map(|entry| &entry.trial).collect();
        let is_of_them = trials.iter().any(|trial| of_points.contains(trial));
        if is_of_them
            && next_state(&trials, plan, history, retries).1 == Some(HeldCause::OutOfTime)
            && queue.put(ticket, TicketState::Held)?.is_some()
        {
            held += 1;
        }
    }
    Ok(held)
}

/// Why a trial is not given to another worker; `None` if it is.
fn held_cause(trial: &TrialId, plan: &[Trial], history: &History) -> Option<HeldCause> {
    if history.killed_in_a_row(trial) >= MOST_KILLED {
        return Some(HeldCause::Killed);
    }
    let of_point = || {
        let point = plan.iter().find(|planned| planned.id == *trial)?.point;
        let point = plan.iter().filter(move |planned| planned.point == point);
        let cut_off = point.map(|planned| {
            let has_result = history.last(&planned.id).is_some_and(Outcome::is_result);
            (!has_result).then(|| history.cut_off_in_a_row(&planned.id))
        });
        cut_off.sum::<Option<usize>>()
    };
    let cut_off = history.cut_off_in_a_row(trial).max(of_point().unwrap_or(0));
    (cut_off >= MOST_CUT_OFF).then_some(HeldCause::OutOfTime)
}

#[cfg(test)]
mod tests {
    use kiln_core::spec::Experiment;

    use super::*;

    #[test]
    fn a_point_that_is_longer_than_its_jobs_is_held() {
        let yaml = "{kiln: 1, name: x, model: {kind: mlp}, data: {kind: generated}, train: {steps: \
                    10}, sweep: {grid: {train.batch_size: [1, 2]}, repeats: 2}}";
        let value: serde_json::Value = serde_yaml::from_str(yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        let plan = kiln_core::plan::expand(&experiment, &|_| None).unwrap();
        let of_point = |point: u64| {
            let trials = plan.trials.iter();
            let ids = trials.filter(move |trial| trial.point == point);
            ids.map(|trial| trial.id.clone()).collect::<Vec<_>>()
        };
        let (first, other) = (of_point(0), of_point(1));
        // Of each attempt the trial, how it ended, and whether its job's time cut it off.
        let cause = |ends: &[(&TrialId, Outcome, bool)], of: &TrialId| {
            let mut history = History::default();
            for (attempt, (trial, outcome, is_cut_off)) in (1..).zip(ends) {
                history.add_cut_off(trial, attempt, *outcome, *is_cut_off);
            }
            next_state(&[of], &plan.trials, &history, 0).1
        };
        let (a, b) = (&first[0], &first[1]);
        let cut = |trial| (trial, Outcome::Interrupted, true);
        let too_long = Some(HeldCause::OutOfTime);
        assert_eq!(cause(&[cut(a)], a), None);
        assert_eq!(cause(&[cut(a), cut(a)], a), too_long);
        // What its point shows is true of a trial that was never begun.
        assert_eq!(cause(&[cut(a), cut(a)], b), too_long);
        assert_eq!(cause(&[cut(a), cut(b)], a), too_long);
        assert_eq!(cause(&[cut(a), cut(a)], &other[0]), None);
        // One that has a result speaks for the others.
        let done = (b, Outcome::Completed, false);
        assert_eq!(cause(&[cut(a), done], a), None);
        assert_eq!(cause(&[cut(a), done, cut(a)], a), too_long);
        // Stopped by a person, or with a new checkpoint.
        let other_end = (a, Outcome::Interrupted, false);
        assert_eq!(cause(&[cut(a), other_end, cut(a)], a), None);
    }

    #[test]
    fn a_ticket_nobody_works_on_is_done_open_or_held() {
        use Outcome::{Completed, Interrupted, Killed};
        let (a, b) = (TrialId("a".to_owned()), TrialId("b".to_owned()));
        let state = |of_a: &[Outcome], of_b: &[Outcome]| {
            let mut history = History::default();
            for (id, outcomes) in [(&a, of_a), (&b, of_b)] {
                (1..)
                    .zip(outcomes)
                    .for_each(|(attempt, outcome)| history.add_outcome(id, attempt, *outcome));
            }
            next_state(&[&a, &b], &[], &history, 0).0
        };
        assert_eq!(state(&[Completed], &[Killed, Completed]), TicketState::Done);
        assert_eq!(state(&[Completed], &[Killed, Killed]), TicketState::Open);
        assert_eq!(state(&[Completed], &[Killed; 3]), TicketState::Held);
        assert_eq!(
            state(&[], &[Killed, Killed, Interrupted, Killed]),
            TicketState::Open
        );
        assert_eq!(state(&[Killed; 3], &[]), TicketState::Held);
        assert_eq!(state(&[], &[]), TicketState::Open);
    }
}
