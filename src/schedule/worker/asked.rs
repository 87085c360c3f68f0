//! Which tickets of a run are open: those with the trials that the command asks for. The others wait
//! for later.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::Path,
};

use kiln_core::{
    plan::{Trial, TrialId, tickets},
    record::{
        AttemptEnd, NewTicket, RunFolder, TicketEntry, TicketQueue, TicketState,
        launch_folder::{self, BEFORE},
    },
    units::counted,
};

use super::ends;
use crate::schedule::{
    RunRequest, RunStop, open,
    remaining::{History, Selection},
};

/// Makes the queue of a run: a ticket for each part of the plan that has something left. Rows that
/// exist become those of a launch before all others.
pub(super) fn begin_queue(
    request: &RunRequest,
    folder: &RunFolder,
) -> Result<TicketQueue, RunStop> {
    let failed = open::cannot_write(request);
    let before = launch_folder::folder(folder, BEFORE);
    let keep = || -> io::Result<()> {
        folder
            .open()?
            .make_folder(Path::new(launch_folder::LAUNCHES))?
            .make_folder(Path::new(&BEFORE.to_string()))?;
        for (from, to) in [
            (folder.trials_table(), before.trials_table()),
            (folder.snapshots_table(), before.snapshots_table()),
            (folder.samples_table(), before.samples_table()),
        ] {
            match fs::read(&from) {
                Ok(bytes) => before.write(&to, &bytes)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    keep().map_err(&failed)?;
    let history = History::of(&ends(request, folder)?);
    let retries = request.experiment.run.retries;
    let entry = |trial: &TrialId| TicketEntry {
        trial: trial.clone(),
        after: 0,
    };
    let left: Vec<NewTicket> = tickets(request.trials)
        .iter()
        .filter(|trials| {
            trials
                .iter()
                .any(|trial| !history.is_settled(trial, retries))
        })
        .flat_map(|trials| {
            let entries = trials.iter().map(entry).collect();
            divided(entries, &request.selection)
        })
        .collect();
    TicketQueue::create(folder, &left).map_err(failed)
}

/// Adds tickets for the trials that `--rerun` names, and opens those that were held for them.
pub(super) fn ask_again(
    request: &RunRequest,
    folder: &RunFolder,
    queue: &TicketQueue,
) -> Result<(), RunStop> {
    let rerun = &request.selection.rerun;
    if rerun.is_empty() {
        return Ok(());
    }
    let failed = open::cannot_write(request);
    let ends = ends(request, folder)?;
    let last: HashMap<&TrialId, &AttemptEnd> = ends.iter().map(|end| (&end.trial, end)).collect();
    let retries = request.experiment.run.retries;
    let history = History::of(&ends);
    let mut again: Vec<&Trial> = request.trials.iter().collect();
    again.retain(|trial| {
        let last = last.get(&trial.id);
        request.selection.wants(trial) && last.is_some_and(|end| rerun.contains(&end.outcome))
    });
    // A trial that was never begun may be held because others of its point are too long.
    let points: HashSet<u64> = again.iter().map(|trial| trial.point).collect();
    let is_unbegun =
        |trial: &&Trial| !last.contains_key(&trial.id) && points.contains(&trial.point);
    let with_them: HashSet<&TrialId> = request
        .trials
        .iter()
        .filter(is_unbegun)
        .map(|trial| &trial.id)
        .chain(again.iter().map(|trial| &trial.id))
        .collect();
    let mut asked = HashSet::new();
    for ticket in queue.list().map_err(&failed)? {
        if matches!(ticket.state, TicketState::Open | TicketState::Taken(_)) {
            let entries = queue.entries(ticket).unwrap_or_default();
            asked.extend(entries.into_iter().map(|entry| entry.trial));
        }
        if ticket.state == TicketState::Held {
            let entries = queue.entries(ticket).map_err(&failed)?;
            let is_asked = entries.iter().any(|entry| with_them.contains(&entry.trial));
            if is_asked {
                queue.put(ticket, TicketState::Open).map_err(&failed)?;
            }
        }
    }
    // Those that are not settled wait in their tickets anyway.
    again.retain(|trial| history.is_settled(&trial.id, retries) && !asked.contains(&trial.id));
    let again: HashSet<&TrialId> = again.into_iter().map(|trial| &trial.id).collect();
    let entry = |trial: TrialId| TicketEntry {
        after: last.get(&trial).map_or(0, |end| end.attempt),
        trial,
    };
    // The trials of a block get one ticket, so that they stay on one device.
    let blocks = tickets(request.trials).into_iter().map(|block| {
        let left = block.into_iter().filter(|trial| again.contains(trial));
        left.map(entry).collect::<Vec<_>>()
    });
    let blocks = blocks.filter(|block| !block.is_empty());
    let blocks: Vec<NewTicket> = blocks.map(NewTicket::open).collect();
    queue.add(&blocks).map(drop).map_err(&failed)
}

/// Opens the tickets with the trials that `--only` names, or all that were left for later; those that
/// are open and have no such trial are for later. What a worker has stays with it. Returns what the
/// user should know.
///
/// # Errors
/// The queue cannot be read or written.
pub(super) fn open_asked(selection: &Selection, queue: &TicketQueue) -> io::Result<Option<String>> {
    for ticket in queue.list()? {
        match ticket.state {
            TicketState::Later => {}
            TicketState::Open if !selection.only.is_empty() => {}
            _ => continue,
        }
        let entries = match queue.entries(ticket) {
            Err(error) if TicketQueue::is_no_ticket(&error) => continue,
            entries => entries?,
        };
        match divided(entries, selection).as_slice() {
            [whole] if whole.state == ticket.state => {}
            [whole] => {
                queue.put(ticket, whole.state)?;
            }
            // Closed first, so that no worker takes it meanwhile. Whoever is interrupted here leaves a
            // trial in two tickets; the second one to be taken finds its row.
            parts => {
                if let Some(closed) = queue.put(ticket, TicketState::Later)? {
                    queue.add(parts)?;
                    queue.put(closed, TicketState::Done)?;
                }
            }
        }
    }
    let counts = queue.counts()?;
    Ok((counts.later > 0).then(|| {
        format!(
            "{} of trials that `--only` does not name {} for later, and the same command without \
             `--only` opens {}{}",
            counted(counts.later, "ticket"),
            if counts.later == 1 { "is" } else { "are" },
            if counts.later == 1 { "it" } else { "them" },
            match counts.taken {
                0 => "",
                _ => "; what workers have goes on",
            }
        )
    }))
}

/// A ticket as the selection wants it: open, for later, or one of each kind.
fn divided(entries: Vec<TicketEntry>, selection: &Selection) -> Vec<NewTicket> {
    let is_asked =
        |entry: &TicketEntry| selection.only.is_empty() || selection.only.contains(&entry.trial);
    let (asked, later): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_asked);
    let parts = [(asked, TicketState::Open), (later, TicketState::Later)];
    parts
        .into_iter()
        .filter(|(entries, _)| !entries.is_empty())
        .map(|(entries, state)| NewTicket { entries, state })
        .collect()
}
