//! What is compared: a number of a row, which way is better, and from what change on it matters.

use serde::Serialize;

use crate::record::TrialRow;

/// A number that a verdict is given on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Tokens per second, of a model without tokens samples per second.
    Throughput,
    StepTime,
    Memory,
    Energy,
    Loss,
}

impl Metric {
    pub const ALL: [Self; 5] = [Self::Throughput, Self::StepTime, Self::Memory, Self::Energy, Self::Loss];

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
    fn columns(self) -> &'static [Column] {
        match self {
            Self::Throughput => &[|row| row.tokens_per_second, |row| row.samples_per_second],
            Self::StepTime => &[|row| row.median_step_seconds],
            // Of one kind of device: what a process holds is no device's memory.
            Self::Memory => &[
                |row| on_gpu(row, row.peak_allocated_bytes),
                |row| on_gpu(row, row.peak_nvml_used_bytes),
                |row| row.peak_resident_bytes.filter(|_| row.device_uuid.is_none()).map(|bytes| bytes as f64),
            ],
            Self::Energy => &[TrialRow::joules_per_sample],
            Self::Loss => &[|row| row.valid_loss, |row| row.train_loss],
        }
    }

    /// The numbers of the rows of both sides, from one and the same column: the first that all of them have, else the first that both
    /// sides have. Nothing where there is none; a number that cannot be in a ratio is left out.
    pub(super) fn of_both(self, base: &[&TrialRow], new: &[&TrialRow]) -> [Vec<f64>; 2] {
        let of = |column: &Column| {
            [base, new].map(|rows| rows.iter().filter_map(|row| column(row).filter(|value| can_be_ratio(*value))).collect::<Vec<f64>>())
        };
        let all: Vec<[Vec<f64>; 2]> = self.columns().iter().map(of).collect();
        let is_whole = |numbers: &&[Vec<f64>; 2]| numbers[0].len() == base.len() && numbers[1].len() == new.len();
        let is_some = |numbers: &&[Vec<f64>; 2]| !numbers[0].is_empty() && !numbers[1].is_empty();
        all.iter().find(is_whole).or_else(|| all.iter().find(is_some)).cloned().unwrap_or_default()
    }

    /// The number of a row by itself.
    pub(super) fn of(self, row: &TrialRow) -> Option<f64> {
        self.columns().iter().find_map(|column| column(row)).filter(|value| can_be_ratio(*value))
    }

    /// Changes by less are none. 3 %: `docs/comparing.md`. Of a loss 1 %: a cross-entropy of 3 that is 3 % lower is another model.
    pub(super) fn worth(self) -> f64 {
        if self == Self::Loss { 0.01 } else { 0.03 }
    }

    pub(super) fn is_better_high(self) -> bool {
        self == Self::Throughput
    }

    /// What a change for the better, or for the worse, is called.
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

type Column = fn(&TrialRow) -> Option<f64>;

fn on_gpu(row: &TrialRow, bytes: Option<u64>) -> Option<f64> {
    bytes.filter(|_| row.device_uuid.is_some()).map(|bytes| bytes as f64)
}

fn can_be_ratio(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
