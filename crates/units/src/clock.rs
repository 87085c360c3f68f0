//! The clocks: the wall clock, whatever it is set to, and the one that times are measured by.

use std::time::SystemTime;

use jiff::{Timestamp, Zoned, tz::TimeZone};

/// Now, in UTC. A clock outside the years that have a form (-9999 to 9999) counts as the nearest of
/// them.
pub fn utc_now() -> Timestamp {
    utc_of(SystemTime::now())
}

/// The same in the time zone of this machine.
pub fn local_now() -> Zoned {
    utc_now().to_zoned(TimeZone::system())
}

/// CLOCK_MONOTONIC in nanoseconds: shared by all processes of this boot.
pub fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Both parts are never negative on this clock.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn utc_of(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(if time < SystemTime::UNIX_EPOCH {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_in_any_year_is_a_time() {
        const YEAR: u64 = 31_556_952;
        let around = |years: u64| {
            let distance = Duration::from_secs(years * YEAR);
            [
                SystemTime::UNIX_EPOCH + distance,
                SystemTime::UNIX_EPOCH - distance,
            ]
            .map(|time| utc_of(time).to_string())
        };
        assert_eq!(around(0), ["1970-01-01T00:00:00Z"; 2]);
        assert!(around(8000)[0].starts_with("99"));
        let [late, early] = around(100_000);
        assert_eq!(late, Timestamp::MAX.to_string());
        assert_eq!(early, Timestamp::MIN.to_string());
        for ended in [Timestamp::MIN, Timestamp::MAX] {
            assert!(!ended.to_zoned(TimeZone::system()).to_string().is_empty());
            assert!(!ended.strftime("%Y%m%dT%H%M%SZ").to_string().is_empty());
        }
    }
}
