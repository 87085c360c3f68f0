//! The end of a child that kiln saw late, because kiln itself was stopped (Ctrl-Z, `docker pause`).

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kiln_core::{record::attempt::RESULT_FILE, units::Seconds};

/// A result that was written at most so long before the end of its child was seen came with the end.
const WITH_THE_END: Duration = Duration::from_secs(1);

/// When the result of an attempt in `folder` was written, if it was.
pub(super) fn result_written(folder: &Path) -> Option<Instant> {
    let written = folder.join(RESULT_FILE).metadata().ok()?.modified().ok()?;
    Instant::now().checked_sub(written.elapsed().ok()?)
}

/// The end of a child that kiln saw after it had been stopped `since` then, and a note on it.
pub(super) fn end_in_gap(
    since: Instant,
    seen: Instant,
    written: Option<Instant>,
) -> (Instant, Option<String>) {
    let stopped = Seconds(seen.saturating_duration_since(since).as_secs_f64());
    match written {
        Some(written) if seen.saturating_duration_since(written) <= WITH_THE_END => (seen, None),
        Some(written) => (
            written.max(since),
            Some(format!(
                "kiln did not run for {stopped} as the trial ended, so the end is the time of its \
                 trial.json"
            )),
        ),
        None => (
            seen,
            Some(format!(
                "kiln did not run for {stopped} as the trial ended, so this may be too long by that"
            )),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_while_kiln_was_stopped_is_that_of_the_result_or_uncertain() {
        let since = Instant::now();
        let at = |seconds: u64| since + Duration::from_secs(seconds);
        let (ended, note) = end_in_gap(since, at(60), Some(at(20)));
        assert_eq!(ended, at(20));
        assert!(note.unwrap().contains("the time of its trial.json"));
        let (ended, note) = end_in_gap(at(30), at(60), Some(at(20)));
        assert_eq!((ended, note.is_some()), (at(30), true));
        let (ended, note) = end_in_gap(since, at(60), None);
        assert_eq!(ended, at(60));
        assert!(note.unwrap().contains("may be too long"));
        let seen = end_in_gap(since, at(60), Some(at(60)));
        assert_eq!(seen, (at(60), None));
    }
}
