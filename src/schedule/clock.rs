//! The two clocks of a run: UTC for people, CLOCK_MONOTONIC for every number.

use kiln_core::record::run_file::Anchor;
use kiln_hardware::host;

/// CLOCK_MONOTONIC in nanoseconds, shared by parent and child.
pub(super) fn monotonic_nanoseconds() -> i64 {
    host::monotonic_nanoseconds() as i64
}

/// Seconds since the run's start mark.
pub(super) fn run_seconds(run_anchor_nanoseconds: i64) -> f64 {
    monotonic_nanoseconds().saturating_sub(run_anchor_nanoseconds) as f64 / 1e9
}

/// Now, RFC 3339, to the millisecond.
pub(super) fn utc_now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        .to_string()
}

/// Now on every clock.
pub(super) fn anchor() -> Anchor {
    let boot_id = host::boot_id().into_value().unwrap_or_default();
    Anchor {
        started_utc: jiff::Timestamp::now().to_string(),
        boot_id,
        monotonic_nanoseconds: monotonic_nanoseconds(),
    }
}

/// Start of the run on the monotonic clock of `launch`'s boot, in nanoseconds; negative if the run
/// began before the boot.
///
/// In the boot of the run's first launch it is that launch's own mark; after a reboot the distance
/// is taken from UTC.
pub(super) fn run_anchor(run: &Anchor, launch: &Anchor) -> i64 {
    if run.boot_id == launch.boot_id {
        return run.monotonic_nanoseconds;
    }
    let since = match (
        launch.started_utc.parse::<jiff::Timestamp>(),
        run.started_utc.parse::<jiff::Timestamp>(),
    ) {
        (Ok(launch), Ok(run)) => launch.as_nanosecond() - run.as_nanosecond(),
        _ => 0,
    };
    launch
        .monotonic_nanoseconds
        .saturating_sub(i64::try_from(since.max(0)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(utc: &str, boot: &str, monotonic_nanoseconds: i64) -> Anchor {
        Anchor {
            started_utc: utc.to_owned(),
            boot_id: boot.to_owned(),
            monotonic_nanoseconds,
        }
    }

    #[test]
    fn run_seconds_go_on_across_launches_and_reboots() {
        let run = at("2026-01-01T00:00:00Z", "a", 500);
        assert_eq!(run_anchor(&run, &at("2026-01-01T01:00:00Z", "a", 900)), 500);
        assert_eq!(
            run_anchor(&run, &at("2026-01-01T00:00:10Z", "b", 1_000_000_000)),
            -9_000_000_000
        );
    }
}
