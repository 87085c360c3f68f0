//! Sentences about the tickets of a run with workers, for several commands.

use kiln_core::record::TicketCounts;

use crate::schedule;

/// That tickets are held, and what opens them; `None` if none is.
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

/// That workers have written rows that are not in the run's table; `None` if there are none.
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
