//! Takes back the tickets of launches that are gone, gives their lost attempts a row, and judges held
//! tickets again.

use std::{borrow::Cow, collections::HashSet, io};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, CollectedRows, DEVICE_SEPARATOR, LaunchFile, RunFolder, TableRow,
        Ticket, TicketEntry, TicketQueue, TicketState,
        launch_folder::{self, BEFORE},
    },
    units::without_controls,
};

use super::gone::LaunchObserver;
use crate::schedule::{
    RunRequest,
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

/// Why a ticket is held, and what opens it.
pub(in crate::schedule) fn why_held(ticket: u64) -> String {
    format!(
        "ticket {ticket} is held, because a trial of it was killed {MOST_KILLED} times in a row, with \
         its worker or from outside; `kiln run FILE --on workers --rerun killed` opens it again"
    )
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
        let held = self.judge_held(&listed, &mut table, &mut outlook)?;
        if !is_at_work && !outlook.has_opened {
            let table = self.read_once(&mut table)?;
            self.ask_for_the_rest(table, &held, &mut outlook)?;
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
    /// launch that was out of reach began it once more, beside the one that had its ticket.
    fn ask_for_the_rest(
        &self,
        table: &Table<'_>,
        held: &HashSet<TrialId>,
        outlook: &mut Outlook,
    ) -> io::Result<()> {
        let history = History::of(&table.ends);
        let retries = self.request.experiment.run.retries;
        let is_left =
            |trial: &&Trial| !history.is_settled(&trial.id, retries) && !held.contains(&trial.id);
        let left: Vec<&Trial> = self.request.trials.iter().filter(is_left).collect();
        let entry = |trial: &&Trial| TicketEntry {
            trial: trial.id.clone(),
            after: 0,
        };
        let tickets: Vec<_> = left.iter().map(|trial| vec![entry(trial)]).collect();
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
        let unknown = self.unknown(&entries);
        let state = match next_state(&ids, &history, run.retries) {
            // A worker could not run it.
            TicketState::Open if unknown.is_some() => TicketState::Held,
            state => state,
        };
        if state == ticket.state || self.queue.put(ticket, state)?.is_none() {
            return Ok(None);
        }
        outlook.has_opened |= state == TicketState::Open;
        let number = ticket.number;
        Ok(Some(match state {
            TicketState::Done => format!("nothing is left of ticket {number}"),
            TicketState::Held => {
                unknown.map_or_else(|| why_held(number), |trial| why_damaged(number, trial))
            }
            _ => format!("ticket {number} waits again"),
        }))
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

/// Where a ticket goes that nobody works on.
pub(in crate::schedule) fn next_state(
    trials: &[&TrialId],
    history: &History,
    retries: u64,
) -> TicketState {
    let mut left = trials
        .iter()
        .filter(|trial| !history.is_settled(trial, retries))
        .peekable();
    if left.peek().is_none() {
        return TicketState::Done;
    }
    match left.any(|trial| history.killed_in_a_row(trial) >= MOST_KILLED) {
        true => TicketState::Held,
        false => TicketState::Open,
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::Outcome;

    use super::*;

    #[test]
    fn a_ticket_nobody_works_on_is_done_open_or_held() {
        use Outcome::{Completed, Interrupted, Killed};
        let (a, b) = (TrialId("a".to_owned()), TrialId("b".to_owned()));
        let state = |of_a: &[Outcome], of_b: &[Outcome]| {
            let mut history = History::default();
            for (id, outcomes) in [(&a, of_a), (&b, of_b)] {
                (1..)
                    .zip(outcomes)
                    .for_each(|(attempt, outcome)| history.add(id, attempt, *outcome));
            }
            next_state(&[&a, &b], &history, 0)
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
