//! Who works on a run: the launch that holds it, or the workers that have its tickets.

use std::{collections::BTreeSet, io};

use kiln_core::{
    record::{LaunchFile, RunFolder, Ticket, TicketQueue, TicketState, collect, lock::Holder},
    units::{counted, listed, without_controls},
};

use crate::commands::tickets;

/// Who works on a run.
pub(super) struct Work {
    pub(super) is_running: bool,
    /// Whether tickets wait for a worker.
    pub(super) is_open: bool,
    pub(super) note: Option<String>,
}

impl Work {
    /// `holder` holds the run; `is_done` if each planned trial has its final row.
    pub(super) fn of(run: &RunFolder, holder: Option<&Holder>, is_done: bool) -> Self {
        let unread = |error: io::Error| Self {
            is_running: holder.is_some(),
            is_open: false,
            note: Some(format!("its tickets cannot be read: {error}")),
        };
        let queue = match TicketQueue::of(run) {
            Ok(Some(queue)) => queue,
            Ok(None) => {
                return Self {
                    is_running: holder.is_some(),
                    is_open: false,
                    note: holder.map(|holder| holder.0.clone()),
                };
            }
            Err(error) => return unread(error),
        };
        let counts = match queue.counts() {
            Ok(counts) => counts,
            Err(error) => return unread(error),
        };
        let uncollected = || collect::uncollected(run).unwrap_or_default();
        let notes = [
            (counts.taken > 0).then(|| {
                let tickets = counted(counts.taken, "ticket");
                format!("workers have {tickets}{}", nodes(run, &queue))
            }),
            tickets::uncollected(if is_done { 0 } else { uncollected() }),
            tickets::held(counts),
            tickets::later(counts),
        ];
        Self {
            is_running: counts.taken > 0,
            is_open: counts.open > 0,
            note: joined(notes.into_iter().flatten()),
        }
    }
}

/// Several notes as one; `None` for none.
pub(super) fn joined(notes: impl Iterator<Item = String>) -> Option<String> {
    let notes: Vec<String> = notes.collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// ` on gpu017, gpu018`: the nodes of the launches that have tickets.
fn nodes(run: &RunFolder, queue: &TicketQueue) -> String {
    let node = |ticket: Ticket| match ticket.state {
        TicketState::Taken(launch) => LaunchFile::read(run, launch)?.process.node,
        _ => None,
    };
    let tickets = queue.list().unwrap_or_default().into_iter();
    let nodes: BTreeSet<String> = tickets.filter_map(node).collect();
    let nodes: Vec<String> = nodes.into_iter().collect();
    match nodes.is_empty() {
        true => String::new(),
        false => format!(" on {}", without_controls(&listed(&nodes, ", "))),
    }
}
