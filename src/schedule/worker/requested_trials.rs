//! The trials that a command requests of a run with a queue. Tickets with these are open; the others
//! wait for later.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fs, io,
    path::Path,
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId, tickets},
    record::{
        AttemptEnd, NewTicket, RunFolder, TicketContent, TicketEntry, TicketQueue, TicketState,
        launch_folder::{self, BEFORE},
    },
};

use super::{attend::for_later, ends};
use crate::schedule::{
    RunRequest, RunStop, disk,
    remaining::{History, unsettled, with_fallbacks},
    tickets::{HeldCause, Standing},
};

/// The trials that a command requests of a run, with the rows that the run has.
pub(super) struct RequestedTrials<'a> {
    request: &'a RunRequest<'a>,
    folder: &'a RunFolder,
    ends: Vec<AttemptEnd>,
    history: History,
    /// The plan, and the trials that stand in for some of it.
    trials: Cow<'a, [Trial]>,
}

impl<'a> RequestedTrials<'a> {
    /// # Errors
    /// The rows of the run cannot be read.
    pub(super) fn of(request: &'a RunRequest<'a>, folder: &'a RunFolder) -> Result<Self, RunStop> {
        let ends = ends(request, folder)?;
        let history = History::of(&ends);
        Ok(Self {
            trials: with_fallbacks(request.trials, &history, request.experiment.run.on_oom),
            request,
            folder,
            ends,
            history,
        })
    }

    fn standing(&self) -> Standing<'_> {
        let retries = self.request.experiment.run.retries;
        Standing::new(&self.trials, &self.history, retries)
    }

    /// Whether one of the trials that the command asks for has no final result.
    pub(super) fn is_left(&self) -> bool {
        let RunRequest {
            selection,
            experiment,
            ..
        } = self.request;
        unsettled(
            &self.trials,
            &self.history,
            selection,
            experiment.run.retries,
        )
        .next()
        .is_some()
    }

    /// Makes the queue of a run: a ticket for each part of the plan that has something left. Rows that
    /// exist become those of a launch before all others.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin_queue(&self) -> Result<TicketQueue, RunStop> {
        let failed = disk::cannot_write(self.request);
        keep_rows(self.folder).map_err(&failed)?;
        let standing = self.standing();
        let entry = |trial: &TrialId| TicketEntry {
            trial: trial.clone(),
            after: 0,
        };
        let blocks = tickets(self.request.trials).into_iter();
        let blocks = blocks.map(|trials| trials.iter().map(entry).collect::<Vec<_>>());
        let left: Vec<NewTicket> = blocks
            .flat_map(|entries| match self.wanted(&standing, &entries) {
                Wanted::Whole(TicketState::Done) => Vec::new(),
                Wanted::Whole(state) => vec![NewTicket { entries, state }],
                Wanted::Parts(parts) => parts.to_vec(),
            })
            .collect();
        TicketQueue::create(self.folder, &left).map_err(failed)
    }

    /// Adds tickets for the trials that `--rerun` names, and opens those that were held for them.
    ///
    /// # Errors
    /// The queue cannot be read or written.
    pub(super) fn ask_again(&self, queue: &TicketQueue) -> io::Result<()> {
        if self.request.selection.rerun.is_empty() {
            return Ok(());
        }
        let again = self.again();
        let waiting = self.open_held(queue, &again)?;
        queue.add(&self.tickets_again(&again, &waiting)).map(drop)
    }

    /// The trials whose last row has an outcome that `--rerun` names.
    fn again(&self) -> TrialsAgain<'_> {
        let selection = &self.request.selection;
        let last: HashMap<&TrialId, &AttemptEnd> =
            self.ends.iter().map(|end| (&end.trial, end)).collect();
        let is_again = |trial: &&Trial| {
            let last = last.get(&trial.id);
            last.is_some_and(|end| selection.rerun.contains(&end.outcome))
        };
        let again: Vec<&Trial> = self.trials.iter().filter(is_again).collect();
        let selected = again.iter().filter(|trial| selection.wants(trial));
        let points: HashSet<u64> = again.iter().map(|trial| trial.point).collect();
        let of_points = self.request.trials.iter();
        let of_points =
            of_points.filter(|trial| points.contains(&trial.point) && selection.wants(trial));
        TrialsAgain {
            planned: selected.map(|trial| trial.planned()).collect(),
            ended_so: again.iter().map(|trial| &trial.id).collect(),
            of_points: of_points.map(|trial| &trial.id).collect(),
        }
    }

    /// Opens the held tickets of trials that run again; returns the trials that other tickets lead to.
    fn open_held(
        &self,
        queue: &TicketQueue,
        again: &TrialsAgain<'_>,
    ) -> io::Result<HashSet<TrialId>> {
        let rerun = &self.request.selection.rerun;
        let is_of_interrupted = rerun.contains(&Outcome::Interrupted);
        let standing = self.standing();
        let mut waiting = HashSet::new();
        for ticket in queue.list()? {
            if ticket.state == TicketState::Done {
                continue;
            }
            let TicketContent::Whole(entries) = queue.content(ticket)? else {
                continue;
            };
            if ticket.state != TicketState::Held {
                let left = entries.into_iter().filter(|entry| standing.is_left(entry));
                waiting.extend(left.map(|entry| entry.trial));
                continue;
            }
            // Trials of one point are longer than their jobs, and all of it is held.
            let is_with_them = is_of_interrupted
                && names_any(&entries, &again.of_points)
                && standing.next(&entries).cause() == Some(HeldCause::TooLong);
            if is_with_them || names_any(&entries, &again.planned) {
                queue.put(ticket, TicketState::Open)?;
            }
        }
        Ok(waiting)
    }

    /// New tickets for the trials that run again and that no ticket leads to.
    fn tickets_again(&self, again: &TrialsAgain<'_>, waiting: &HashSet<TrialId>) -> Vec<NewTicket> {
        // Trials that are not settled wait in their tickets anyway.
        let retries = self.request.experiment.run.retries;
        let is_new = |trial: &TrialId| {
            again.planned.contains(trial)
                && again.ended_so.contains(trial)
                && self.history.is_settled(trial, retries)
                && !waiting.contains(trial)
        };
        let entry = |trial: TrialId| TicketEntry {
            after: self.history.last_attempt(&trial),
            trial,
        };
        // The trials of a block get one ticket, so that they stay on one device.
        let blocks = tickets(self.request.trials).into_iter().map(|block| {
            let new = block.into_iter().filter(is_new);
            new.map(entry).collect::<Vec<_>>()
        });
        let blocks = blocks.filter(|block| !block.is_empty());
        blocks.map(NewTicket::open).collect()
    }

    /// Opens the tickets with the trials that `--only` names, or all that were left for later; those
    /// that are open and have no such trial are for later. What a worker has stays with it. Returns
    /// what the user should know.
    ///
    /// # Errors
    /// The queue cannot be read or written.
    pub(super) fn open_tickets(&self, queue: &TicketQueue) -> io::Result<Option<String>> {
        let selection = &self.request.selection;
        let asks_for_all = selection.only.is_empty();
        // Nothing would run, and what others asked for would not either.
        if !asks_for_all && selection.rerun.is_empty() && !self.is_left() {
            return Ok(None);
        }
        let standing = self.standing();
        for ticket in queue.list()? {
            match ticket.state {
                TicketState::Later => {}
                TicketState::Open if !asks_for_all => {}
                _ => continue,
            }
            let entries = match queue.content(ticket)? {
                TicketContent::Whole(entries) => entries,
                TicketContent::Damaged(_) => {
                    queue.put(ticket, TicketState::Held)?;
                    continue;
                }
                TicketContent::Moved => continue,
            };
            match self.wanted(&standing, &entries) {
                Wanted::Whole(state) if state == ticket.state => {}
                Wanted::Whole(state) => {
                    queue.put(ticket, state)?;
                }
                Wanted::Parts(parts) => {
                    queue.divide(ticket, TicketState::Later, &parts)?;
                }
            }
        }
        let counts = queue.counts()?;
        let goes_on = match counts.taken {
            0 => "",
            _ => "; what workers have goes on",
        };
        Ok((counts.later > 0).then(|| for_later(counts.later) + goes_on))
    }

    /// Returns the state that a ticket with these trials gets by the command's selection.
    fn wanted(&self, standing: &Standing<'_>, entries: &[TicketEntry]) -> Wanted {
        let selection = &self.request.selection;
        let is_asked = |entry: &TicketEntry| {
            selection.only.is_empty() || selection.only.contains(&entry.trial)
        };
        let left = entries.iter().filter(|entry| standing.is_left(entry));
        let (asked, later): (Vec<_>, Vec<_>) = left.cloned().partition(is_asked);
        match (asked.is_empty(), later.is_empty()) {
            (true, true) => Wanted::Whole(TicketState::Done),
            (false, true) => Wanted::Whole(TicketState::Open),
            (true, false) => Wanted::Whole(TicketState::Later),
            (false, false) => {
                let later = NewTicket {
                    entries: later,
                    state: TicketState::Later,
                };
                Wanted::Parts([NewTicket::open(asked), later])
            }
        }
    }
}

/// The trials that `--rerun` runs again.
struct TrialsAgain<'t> {
    /// The selected trials. Tickets name planned trials alone: for a trial that stands in for a planned
    /// one, this is the planned one.
    planned: HashSet<&'t TrialId>,
    /// The trials whose own last row has an outcome of `--rerun`.
    ended_so: HashSet<&'t TrialId>,
    /// The selected trials at a point of any of these trials.
    of_points: HashSet<&'t TrialId>,
}

/// Whether a ticket with these entries leads to one of the trials.
fn names_any(entries: &[TicketEntry], trials: &HashSet<&TrialId>) -> bool {
    entries.iter().any(|entry| trials.contains(&entry.trial))
}

/// The result of a command's selection for one ticket.
enum Wanted {
    Whole(TicketState),
    /// An open one, and one for later.
    Parts([NewTicket; 2]),
}

/// Rows that exist become those of a launch before all others.
fn keep_rows(folder: &RunFolder) -> io::Result<()> {
    let before = launch_folder::folder(folder, BEFORE);
    folder
        .open()?
        .make_folder(Path::new(launch_folder::LAUNCHES))?
        .make_folder(Path::new(&BEFORE.to_string()))?;
    for (from, to) in [
        (folder.trials_table(), before.trials_table()),
        (folder.snapshots_table(), before.snapshots_table()),
    ] {
        match fs::read(&from) {
            Ok(bytes) => before.write(&to, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // The run's folder has the rows and snapshots of all launches, and no samples.
    match fs::rename(folder.samples_table(), before.samples_table()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
