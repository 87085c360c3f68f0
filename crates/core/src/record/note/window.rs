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
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let (others, rest) = rest.split_once(" of ")?;
        Some(Self {
            other_cores: others.parse().ok()?,
            cores: rest.split(' ').next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for BusyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { other_cores, cores } = self;
        let beginning = Self::BEGINNING;
        write!(
            f,
            "{beginning}{other_cores:.1} of {cores} cores busy in the window"
        )
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
