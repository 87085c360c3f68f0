//! The clock that parent and child share: CLOCK_MONOTONIC.

pub(crate) use kiln_core::units::clock::monotonic_nanoseconds;

/// Seconds from one reading to a later one.
pub(crate) fn seconds_between(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}
