//! The clocks of a run: UTC for people, CLOCK_MONOTONIC for every number, and for the limits of a
//! trial the part of it in which kiln was there to watch.

use std::{
    ffi::OsStr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kiln_core::{
    record::{RunFolder, run_file::Anchor},
    units::clock,
};
use kiln_hardware::host;

/// A file that takes longer to make says nothing of the server's clock.
const LONGEST_CREATION: Duration = Duration::from_secs(1);

/// Seconds between two heartbeats; tests set it, to see within seconds what takes minutes.
const BEAT: &str = "KILN_BEAT_SECONDS";
/// Unless it is set.
const EVERY: Duration = Duration::from_secs(30);

/// Time between two heartbeats of a worker, and between two looks at its tickets.
pub(super) fn beat() -> Duration {
    let named = std::env::var(BEAT).ok();
    named.and_then(|text| beat_of(&text)).unwrap_or(EVERY)
}

fn beat_of(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok();
    let fits = seconds.filter(|seconds| (0.01..=3600.0).contains(seconds));
    fits.map(Duration::from_secs_f64)
}

/// Refuses a `KILN_BEAT_SECONDS` that would be passed over.
///
/// # Errors
/// The value is not a number from 0.01 to 3600 (seconds).
pub fn check_setting() -> Result<(), String> {
    let Some(text) = std::env::var_os(BEAT) else {
        return Ok(());
    };
    let text = text.to_string_lossy();
    match beat_of(&text) {
        Some(_) => Ok(()),
        None => Err(format!(
            "{BEAT}={text}: it must be a number of seconds from 0.01 to 3600, such as 30"
        )),
    }
}

/// CLOCK_MONOTONIC in nanoseconds, shared by parent and child.
pub(super) fn monotonic_nanoseconds() -> i64 {
    clock::monotonic_nanoseconds() as i64
}

/// Seconds since the run's start mark.
pub(super) fn run_seconds(run_anchor_nanoseconds: i64) -> f64 {
    monotonic_nanoseconds().saturating_sub(run_anchor_nanoseconds) as f64 / 1e9
}

/// Now, RFC 3339, to the millisecond.
pub(super) fn utc_now() -> String {
    clock::utc_now()
        .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        .to_string()
}

/// Now on every clock.
pub(super) fn anchor() -> Anchor {
    let boot_id = host::boot_id().into_value().unwrap_or_default();
    Anchor {
        started_utc: clock::utc_now().to_string(),
        boot_id,
        monotonic_nanoseconds: monotonic_nanoseconds(),
    }
}

/// Seconds by which this machine's clock is ahead of that of the file server on which a folder lies, to
/// the millisecond: by the time that the server gives a new file. `None` if no file can be made, or
/// that takes too long to say.
pub(super) fn ahead_of_files(folder: &RunFolder) -> Option<f64> {
    let place = folder.open().ok()?;
    let name = OsStr::new(".clock.new");
    let begun = Instant::now();
    let file = place.create(name);
    let (now, took) = (SystemTime::now(), begun.elapsed());
    let modified = file.and_then(|file| file.metadata()?.modified());
    let _ = place.remove(name);
    let seconds = |time: SystemTime| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64());
    let ahead = seconds(now)? - took.as_secs_f64() / 2.0 - seconds(modified.ok()?)?;
    (took <= LONGEST_CREATION).then_some((ahead * 1e3).round() / 1e3)
}

/// Start of the run on the monotonic clock of `launch`'s boot, in nanoseconds; negative if the run
/// began before the boot.
///
/// In the boot of the run's first launch it is that launch's own mark; after a reboot, and where the
/// clock is behind that mark, the distance is taken from UTC.
pub(super) fn run_anchor(run: &Anchor, launch: &Anchor) -> i64 {
    if run.boot_id == launch.boot_id && !is_behind(run, launch) {
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

/// Whether the clock of `launch` is behind the start of its run in the same boot: it is that of another
/// time namespace.
pub(super) fn is_behind(run: &Anchor, launch: &Anchor) -> bool {
    run.boot_id == launch.boot_id && launch.monotonic_nanoseconds < run.monotonic_nanoseconds
}

/// Longest time between two ticks that counts as watched, five times the scheduler's tick. A longer
/// one means that kiln was stopped (Ctrl-Z, `docker pause`) or waited for a disk.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// Threads of a process that continues after a stop see that within this time.
const TOGETHER: Duration = Duration::from_millis(500);

/// The time for which a launch has watched its trials. The rest of a long gap between two ticks is
/// left out: nothing was read meanwhile, and the children may have been stopped too. A wait for a driver
/// that hangs is not a stop: the children go on.
#[derive(Clone, Debug)]
pub(super) struct WatchClock {
    ticked: Instant,
    watched: Duration,
    /// Time waited for the driver since the last tick.
    waited: Duration,
    /// From when to when the last long gap was.
    gap: Option<(Instant, Instant)>,
}

impl WatchClock {
    pub(super) fn start(now: Instant) -> Self {
        Self {
            ticked: now,
            watched: Duration::ZERO,
            waited: Duration::ZERO,
            gap: None,
        }
    }

    /// Since the last tick this thread has waited so long for the driver.
    pub(super) fn note_waited(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// Returns the time watched until now; `now` is never before the last tick.
    pub(super) fn tick(&mut self, now: Instant) -> Duration {
        self.gap = self.gap_until(now).or(self.gap);
        let most = LONGEST_GAP + std::mem::take(&mut self.waited);
        self.watched += now.saturating_duration_since(self.ticked).min(most);
        self.ticked = now;
        self.watched
    }

    /// The beginning of the gap at whose end `seen` was, something that another thread saw: kiln was
    /// stopped then, and it may have happened at any time of the gap. `None` if it was seen in time.
    pub(super) fn unwatched_since(&self, seen: Instant, now: Instant) -> Option<Instant> {
        let (from, to) = self.gap_until(now).or(self.gap)?;
        let is_late = seen.saturating_duration_since(from) > LONGEST_GAP;
        let is_at_its_end = to.saturating_duration_since(seen) <= TOGETHER
            && seen.saturating_duration_since(to) <= TOGETHER;
        (is_late && is_at_its_end).then_some(from)
    }

    fn gap_until(&self, now: Instant) -> Option<(Instant, Instant)> {
        let is_long = now.saturating_duration_since(self.ticked) > LONGEST_GAP;
        is_long.then_some((self.ticked, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_watch_counts_as_a_second() {
        let start = Instant::now();
        let mut clock = WatchClock::start(start);
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert_eq!(clock.tick(at(0.25)), Duration::from_millis(250));
        assert_eq!(clock.tick(at(1.0)), Duration::from_secs(1));
        assert_eq!(clock.tick(at(3601.0)), Duration::from_secs(2));
        assert_eq!(clock.tick(at(3601.5)), Duration::from_millis(2500));
    }

    #[test]
    fn a_wait_for_the_driver_counts_in_full_and_once() {
        let start = Instant::now();
        let mut clock = WatchClock::start(start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        clock.note_waited(Duration::from_secs(5));
        clock.note_waited(Duration::from_secs(5));
        assert_eq!(clock.tick(at(10)), Duration::from_secs(10));
        assert_eq!(clock.tick(at(20)), Duration::from_secs(11));
        // Stopped meanwhile.
        clock.note_waited(Duration::from_secs(5));
        assert_eq!(clock.tick(at(3620)), Duration::from_secs(17));
        // Time is not made.
        clock.note_waited(Duration::from_secs(5));
        assert_eq!(clock.tick(at(3621)), Duration::from_secs(18));
    }

    #[test]
    fn what_is_seen_as_kiln_continues_may_have_happened_since_it_was_stopped() {
        let start = Instant::now();
        let mut clock = WatchClock::start(start);
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        clock.tick(at(1.0));
        assert_eq!(clock.unwatched_since(at(1.1), at(1.2)), None);
        // Stopped until 9 s: before and after the tick that follows.
        assert_eq!(clock.unwatched_since(at(9.0), at(9.1)), Some(at(1.0)));
        clock.tick(at(9.1));
        clock.tick(at(9.3));
        assert_eq!(clock.unwatched_since(at(9.0), at(9.4)), Some(at(1.0)));
        // Later, and in the midst of a gap in which only the scheduler waited.
        assert_eq!(clock.unwatched_since(at(9.7), at(9.8)), None);
        clock.tick(at(20.0));
        assert_eq!(clock.unwatched_since(at(15.0), at(20.1)), None);
    }

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
        // Another time namespace of the same boot.
        let behind = at("2026-01-01T00:00:10Z", "a", 400);
        assert!(is_behind(&run, &behind));
        assert_eq!(run_anchor(&run, &behind), 400 - 10_000_000_000);
    }
}
