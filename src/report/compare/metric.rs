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

    /// The number of a row; `None` where it is not known, or cannot be a ratio.
    pub(super) fn of(self, row: &TrialRow) -> Option<f64> {
        let value = match self {
            Self::Throughput => row.tokens_per_second.or(row.samples_per_second),
            Self::StepTime => row.median_step_seconds,
            Self::Memory => row.memory_held_bytes().map(|bytes| bytes as f64),
            Self::Energy => joules_per_sample(row),
            Self::Loss => row.valid_loss.or(row.train_loss),
        };
        value.filter(|value| value.is_finite() && *value > 0.0)
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

/// Over the measured window; the counter's where there is one.
fn joules_per_sample(row: &TrialRow) -> Option<f64> {
    let joules = row.energy_counter_joules.or(row.energy_integral_joules)?;
    Some(joules / (row.samples_per_second? * row.window_seconds?))
}
