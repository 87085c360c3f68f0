//! Notes on the measured window: a busy host, memory that grew.

use std::fmt;

use crate::{record::TrialRow, units::Bytes};

/// Other processes kept the host busy during the measured window; a note on the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyHost {
    /// Cores that they used, on average.
    pub other_cores: f64,
    /// Cores of the host.
    pub cores: u64,
}

impl BusyHost {
    /// The column that it is about.
    pub const COLUMN: &str = "samples_per_second";
    /// Share of the cores that other processes may use before a trial counts as disturbed.
    pub const LEAST_SHARE: f64 = 0.15;
    const BEGINNING: &str = "other processes kept ";

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        Self::parse(row.note(Self::COLUMN)?)
    }

    /// Reads such a note, or a sentence that begins with one.
    fn parse(note: &str) -> Option<Self> {
        let rest = note.strip_prefix(Self::BEGINNING)?;
        let (others, rest) = rest.split_once(" of ")?;
        Some(Self {
            other_cores: others.parse().ok()?,
            cores: rest.split(' ').next()?.parse().ok()?,
        })
    }

    /// Several in words: `other processes kept 1.0 to 1.1 of 2 cores busy in the window`; `None` if
    /// the hosts have different numbers of cores, or if there are none.
    pub fn range(all: &[Self]) -> Option<String> {
        let cores = all.first()?.cores;
        if all.iter().any(|busy| busy.cores != cores) {
            return None;
        }
        let others = || all.iter().map(|busy| busy.other_cores);
        let least = format!("{:.1}", others().fold(f64::INFINITY, f64::min));
        let most = format!("{:.1}", others().fold(f64::NEG_INFINITY, f64::max));
        Some(match least == most {
            true => Self::sentence(&least, cores),
            false => Self::sentence(&format!("{least} to {most}"), cores),
        })
    }

    fn sentence(others: &str, cores: u64) -> String {
        let beginning = Self::BEGINNING;
        format!("{beginning}{others} of {cores} cores busy in the window")
    }
}

impl fmt::Display for BusyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::sentence(
            &format!("{:.1}", self.other_cores),
            self.cores,
        ))
    }
}

/// Memory grew steadily over the measured window; a note on the slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGrowth {
    pub bytes: Bytes,
    pub last: Bytes,
    pub steps: u64,
}

impl MemoryGrowth {
    /// Less growth than this, or than [`MemoryGrowth::LEAST_SHARE`] of what was held at first, is not
    /// reported.
    pub const LEAST_BYTES: Bytes = Bytes(8 << 20);
    pub const LEAST_SHARE: f64 = 0.01;
    /// With fewer readings, growth is not reported: batches of many lengths need time to reach the
    /// longest.
    pub const FEWEST_READINGS: usize = 12;
    const BEGINNING: &str = "grew by ";

    /// The note of a row on a column of slopes, if it tells of growth.
    pub fn told<'a>(row: &'a TrialRow, column: &str) -> Option<&'a str> {
        row.note(column)
            .filter(|note| note.starts_with(Self::BEGINNING))
    }
}

impl fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, last, steps } = self;
        write!(f, "{}{bytes} to {last} over {steps} steps", Self::BEGINNING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::note::noted;

    #[test]
    fn the_notes_are_read_again() {
        let busy = BusyHost {
            other_cores: 0.9,
            cores: 2,
        };
        let row = noted(&[(BusyHost::COLUMN, &busy.to_string())]);
        assert_eq!(BusyHost::of(&row), Some(busy));
        assert_eq!(BusyHost::parse(&format!("{busy}; a sentence")), Some(busy));
        let grew = MemoryGrowth {
            bytes: Bytes(1 << 30),
            last: Bytes(2 << 30),
            steps: 100,
        };
        let column = "resident_slope_bytes_per_step";
        let row = noted(&[(column, &grew.to_string())]);
        assert_eq!(
            MemoryGrowth::told(&row, column),
            Some("grew by 1.0 GiB to 2.0 GiB over 100 steps")
        );
        assert_eq!(BusyHost::of(&row), None);
        let other = noted(&[(BusyHost::COLUMN, "other words"), (column, "shrank")]);
        assert_eq!(
            (BusyHost::of(&other), MemoryGrowth::told(&other, column)),
            (None, None)
        );
    }

    #[test]
    fn several_busy_hosts_are_told_by_their_range() {
        let busy = |other_cores, cores| BusyHost { other_cores, cores };
        let words = "other processes kept 0.9 to 1.1 of 2 cores busy in the window";
        let all = [busy(1.0, 2), busy(0.9, 2), busy(1.1, 2)];
        assert_eq!(BusyHost::range(&all).as_deref(), Some(words));
        assert_eq!(BusyHost::range(&all[..1]), Some(all[0].to_string()));
        assert_eq!(BusyHost::range(&[busy(1.0, 2), busy(1.0, 4)]), None);
        assert_eq!(BusyHost::range(&[]), None);
    }

    #[test]
    fn the_documentation_names_the_limits_of_the_notes() {
        use crate::record::disturbance::LEAST_THROTTLED_FRACTION;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mebibytes = MemoryGrowth::LEAST_BYTES.0 >> 20;
        for (name, sentence) in [
            (
                "measurement.md",
                format!(
                    "kept more than {} of the cores busy",
                    percent(BusyHost::LEAST_SHARE)
                ),
            ),
            (
                "measurement.md",
                format!(
                    "at least {mebibytes} MiB and {}",
                    percent(MemoryGrowth::LEAST_SHARE)
                ),
            ),
            (
                "measurement.md",
                format!("{} readings or more", MemoryGrowth::FEWEST_READINGS),
            ),
            (
                "comparing.md",
                format!(
                    "throttled for {} of the window or more",
                    percent(LEAST_THROTTLED_FRACTION)
                ),
            ),
        ] {
            let page = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(page).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&sentence), "docs/{name} lacks: {sentence}");
        }
    }
}
