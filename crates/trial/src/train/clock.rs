//! The clock that parent and child share: CLOCK_MONOTONIC.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The kernel never gives a negative time here.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Seconds from one reading to a later one.
pub(crate) fn seconds_between(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}
