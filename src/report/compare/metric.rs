//! The compared metrics: the number of a row, which direction is better, and the smallest change
//! that counts.

use kiln_core::{
    record::TrialRow,
    statistics::{Nature, TimedRun, WORTH, WORTH_OF_LOSS},
};
use serde::Serialize;

use super::at_once::AtOnce;

/// A number that a verdict is given on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparedMetric {
    /// Tokens per second, of a model without tokens samples per second.
    Throughput,
    StepTime,
    Memory,
    Energy,
    Loss,
}

impl ComparedMetric {
    pub const ALL: [Self; 5] = [
        Self::Throughput,
        Self::StepTime,
        Self::Memory,
        Self::Energy,
        Self::Loss,
    ];

    /// As a page and a table spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::StepTime => "step-time",
            Self::Memory => "memory",
            Self::Energy => "energy",
            Self::Loss => "loss",
        }
    }

    /// The columns that have it, the one that is taken first.
    fn columns(self) -> &'static [MetricColumn] {
        match self {
            Self::Throughput => &[
                ("tokens_per_second", |row| row.tokens_per_second),
                ("samples_per_second", |row| row.samples_per_second),
            ],
            Self::StepTime => &[("median_step_seconds", |row| row.median_step_seconds)],
            // Both sides use one kind of memory: the memory of a process is not that of a device.
            Self::Memory => &[
                ("peak_allocated_bytes", |row| {
                    on_gpu(row, row.peak_allocated_bytes)
                }),
                ("peak_nvml_used_bytes", |row| {
                    on_gpu(row, row.peak_nvml_used_bytes)
                }),
                ("peak_resident_bytes", |row| {
                    row.peak_resident_bytes
                        .filter(|_| row.device_uuid.is_none())
                        .map(|bytes| bytes as f64)
                }),
            ],
            Self::Energy => &[
                ("energy_counter_joules per sample", |row| {
                    row.per_sample(row.energy_counter_joules)
                }),
                ("energy_integral_joules per sample", |row| {
                    row.per_sample(row.energy_integral_joules)
                }),
            ],
            Self::Loss => &[
                ("valid_loss", |row| row.valid_loss),
                ("train_loss", |row| row.train_loss),
            ],
        }
    }

    /// The numbers of the rows of both sides from one column, with its name: the first column in
    /// which both sides have a number. A row without a usable number there is excluded; another
    /// column would compare something else.
    pub(super) fn of_both(
        self,
        base: &[&TrialRow],
        new: &[&TrialRow],
        at_once: &AtOnce<'_>,
    ) -> Option<(&'static str, [Vec<TimedRun>; 2])> {
        let of = |(name, column): &MetricColumn| {
            let run = |row: &&TrialRow| {
                Some(self.run(
                    row,
                    column(row).filter(|value| can_be_ratio(*value))?,
                    at_once,
                ))
            };
            (
                *name,
                [base, new].map(|rows| rows.iter().filter_map(run).collect::<Vec<TimedRun>>()),
            )
        };
        let is_told = |(_, column): &&MetricColumn| {
            [base, new]
                .iter()
                .all(|rows| rows.iter().any(|row| column(row).is_some()))
        };
        self.columns().iter().find(is_told).map(of)
    }

    /// The column that both sides have while one of them has no number in it that can be in a
    /// ratio.
    pub(super) fn unusable(self, base: &[&TrialRow], new: &[&TrialRow]) -> Option<&'static str> {
        let (name, sides) = self.of_both(base, new, &AtOnce::default())?;
        sides.iter().any(Vec::is_empty).then_some(name)
    }

    /// A column that comes before the one that is compared and that the runs of one side alone
    /// have: another thing may be compared than was asked for. Energy is the same by its counter
    /// and by its integral.
    pub(super) fn passed_over(self, base: &[&TrialRow], new: &[&TrialRow]) -> Option<&'static str> {
        let has = |column: fn(&TrialRow) -> Option<f64>| {
            [base, new].map(|rows| rows.iter().any(|row| column(row).is_some()))
        };
        let before = self
            .columns()
            .iter()
            .take_while(|(_, column)| has(*column) != [true, true]);
        before
            .filter(|(_, column)| self != Self::Energy && has(*column) != [false, false])
            .map(|(name, _)| *name)
            .next()
    }

    /// A number of a row with its place in time.
    fn run(self, row: &TrialRow, value: f64, at_once: &AtOnce<'_>) -> TimedRun {
        // The same seed gives the same weights and batches on both sides.
        let block = (self.nature() == Nature::Settled).then_some(row.seed);
        let is_at_once = at_once.beside(row).is_some();
        TimedRun {
            value,
            seconds: row.started_seconds(),
            block,
            is_disturbed: is_at_once || !row.disturbances().is_empty(),
            is_at_once,
        }
    }

    /// Whether the state of the machine affects it.
    pub(super) fn nature(self) -> Nature {
        match self {
            Self::Throughput | Self::StepTime | Self::Energy => Nature::Drifting,
            Self::Memory | Self::Loss => Nature::Settled,
        }
    }

    /// True for throughput and step time.
    pub(super) fn is_speed(self) -> bool {
        matches!(self, Self::Throughput | Self::StepTime)
    }

    /// The number of a row by itself.
    pub(super) fn of(self, row: &TrialRow) -> Option<f64> {
        self.columns()
            .iter()
            .find_map(|(_, column)| column(row))
            .filter(|value| can_be_ratio(*value))
    }

    /// A smaller change does not count: `docs/comparing.md`.
    pub(super) fn worth(self) -> f64 {
        if self == Self::Loss {
            WORTH_OF_LOSS
        } else {
            WORTH
        }
    }

    pub(super) fn is_better_high(self) -> bool {
        self == Self::Throughput
    }

    /// Returns the metric whose change for the worse has this word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|metric| metric.word(false) == word)
    }

    /// The word for a change for the better or for the worse.
    pub fn word(self, is_better: bool) -> &'static str {
        match (self, is_better) {
            (Self::Throughput, true) => "faster",
            (Self::Throughput, false) => "slower",
            (Self::StepTime, true) => "shorter-step",
            (Self::StepTime, false) => "longer-step",
            (Self::Memory, true) => "less-memory",
            (Self::Memory, false) => "more-memory",
            (Self::Energy, true) => "less-energy",
            (Self::Energy, false) => "more-energy",
            (Self::Loss, true) => "better-loss",
            (Self::Loss, false) => "worse-loss",
        }
    }
}

/// Name of a column, and the function that reads it.
type MetricColumn = (&'static str, fn(&TrialRow) -> Option<f64>);

fn on_gpu(row: &TrialRow, bytes: Option<u64>) -> Option<f64> {
    bytes
        .filter(|_| row.device_uuid.is_some())
        .map(|bytes| bytes as f64)
}

/// Above 0, and neither so large nor so small that a ratio of two of them would be infinite or 0:
/// nothing that was measured is.
fn can_be_ratio(value: f64) -> bool {
    (1.0 / LARGEST..=LARGEST).contains(&value)
}

/// The largest number that a comparison takes; its inverse is the least.
const LARGEST: f64 = 1e150;
