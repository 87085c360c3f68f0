//! The tickets of a run with workers, and sentences about them, for several commands.

use std::io;

use kiln_core::record::{RunFolder, TicketCounts, TicketQueue};

use super::{Status, Stop};
use crate::schedule;

/// The queue of a run; `None` if it has none.
///
/// # Errors
/// It cannot be told whether it has one.
pub(super) fn queue_in(run: &RunFolder) -> Result<Option<TicketQueue>, Stop> {
    TicketQueue::of(run).map_err(unread)
}

/// The number of tickets of a run that workers have.
///
/// # Errors
/// The tickets cannot be read.
pub(super) fn taken(run: &RunFolder) -> Result<usize, Stop> {
    match queue_in(run)? {
        Some(queue) => queue.counts().map(|counts| counts.taken).map_err(unread),
        None => Ok(0),
    }
}

fn unread(error: io::Error) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!("{error}; whether workers have tickets of this run cannot be told now; try again"),
    )
}

/// Says that tickets are held, and what opens them; `None` if none is.
pub(super) fn held(counts: TicketCounts) -> Option<String> {
    (counts.held > 0).then(|| {
        format!(
            "{} held; `kiln wait` says why, and what opens {}",
            are(counts.held),
            if counts.held == 1 { "it" } else { "them" }
        )
    })
}

/// The notice about tickets for later; `None` if there are none.
pub(super) fn later(counts: TicketCounts) -> Option<String> {
    (counts.later > 0).then(|| schedule::for_later(counts.later))
}

/// Says that workers have written rows that are not in the run's table; `None` if there are none.
pub(super) fn uncollected(rows: usize) -> Option<String> {
    match rows {
        0 => None,
        1 => Some("1 row of a worker is not collected yet".to_owned()),
        more => Some(format!("{more} rows of workers are not collected yet")),
    }
}

/// `1 ticket is`, `2 tickets are`.
pub(super) fn are(taken: usize) -> String {
    match taken {
        1 => "1 ticket is".to_owned(),
        more => format!("{more} tickets are"),
    }
}
