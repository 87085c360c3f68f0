//! The quantities drawn against an axis: a number of a row, its unit, and the interval around the
//! mean of repeats.

use kiln_core::{record::TrialRow, statistics};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::report::{chart::Quantity, points::lengths_differ};

/// A number that each point has.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct PointMeasure {
    /// In file names.
    pub(in crate::report) key: &'static str,
    pub(in crate::report) what: &'static str,
    pub(in crate::report) quantity: Quantity,
    pub(in crate::report) of: fn(&TrialRow) -> Option<f64>,
    /// Whether the axis includes 0, so that a bar twice as long means twice as much.
    pub(in crate::report) is_from_zero: bool,
    pub(in crate::report) is_better_high: bool,
}

const SAMPLES: PointMeasure = PointMeasure {
    key: "throughput",
    what: "Throughput",
    quantity: Quantity::Of("samples/s"),
    of: |row| row.samples_per_second,
    is_from_zero: true,
    is_better_high: true,
};
const TOKENS: PointMeasure = PointMeasure {
    quantity: Quantity::Of("tokens/s"),
    of: |row| row.tokens_per_second,
    ..SAMPLES
};
const MEMORY: PointMeasure = PointMeasure {
    key: "memory",
    what: "Peak memory",
    quantity: Quantity::Bytes,
    of: |row| row.memory_held_bytes().map(|bytes| bytes as f64),
    is_from_zero: true,
    is_better_high: false,
};
const ENERGY: PointMeasure = PointMeasure {
    key: "energy",
    what: "Energy per sample",
    quantity: Quantity::Of("J"),
    of: TrialRow::joules_per_sample,
    is_from_zero: true,
    is_better_high: false,
};
const VALID_LOSS: PointMeasure = PointMeasure {
    key: "valid-loss",
    what: "Validation loss",
    quantity: Quantity::Number,
    of: |row| row.valid_loss,
    is_from_zero: false,
    is_better_high: false,
};
const TRAIN_LOSS: PointMeasure = PointMeasure {
    key: "train-loss",
    what: "Training loss",
    of: |row| row.train_loss,
    ..VALID_LOSS
};

impl PointMeasure {
    /// Everything that is drawn over an axis.
    pub(in crate::report) fn all<'a>(
        axes: &[String],
        rows: impl IntoIterator<Item = &'a TrialRow>,
    ) -> [Self; 4] {
        [Self::throughput(axes), MEMORY, ENERGY, Self::loss(rows)]
    }

    /// Validation where any of the rows has it, else training; never both beside each other.
    pub(in crate::report) fn loss<'a>(rows: impl IntoIterator<Item = &'a TrialRow>) -> Self {
        if rows.into_iter().any(|row| row.valid_loss.is_some()) {
            VALID_LOSS
        } else {
            TRAIN_LOSS
        }
    }

    /// Which throughput compares.
    pub(in crate::report) fn throughput(axes: &[String]) -> Self {
        if lengths_differ(axes) {
            TOKENS
        } else {
            SAMPLES
        }
    }
}

/// The mean of runs and what is known of its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct PlacedMean {
    pub(in crate::report) mean: f64,
    /// 95 % by Student's t from three runs on, cut at 0 where no run is below; of two their range;
    /// a single run has none.
    pub(in crate::report) interval: Option<(f64, f64)>,
}

impl PlacedMean {
    pub(in crate::report) fn of(runs: &[f64]) -> Option<Self> {
        let mean = statistics::mean(runs)?;
        let interval = match runs {
            [_] | [] => None,
            [one, other] => Some((one.min(*other), one.max(*other))),
            _ => {
                let count = runs.len() as f64;
                let half = StudentsT::new(0.0, 1.0, count - 1.0)
                    .ok()?
                    .inverse_cdf(0.975)
                    * statistics::deviation(runs)?
                    / count.sqrt();
                // A quantity that is never negative is not drawn below 0.
                let least = if runs.iter().all(|run| *run >= 0.0) {
                    0.0
                } else {
                    f64::NEG_INFINITY
                };
                Some(((mean - half).max(least), mean + half))
            }
        };
        Some(Self { mean, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students_from_three_runs_on() {
        // By SciPy 1.17: stats.t.interval(0.95, 4, mean, stats.sem(runs)).
        let found = PlacedMean::of(&[100.0, 102.0, 98.0, 101.0, 99.0]).unwrap();
        let (low, high) = found.interval.unwrap();
        assert!(
            (low - 98.03675683852244).abs() < 1e-9 && (high - 101.96324316147756).abs() < 1e-9,
            "{low} {high}"
        );
        assert_eq!(
            PlacedMean::of(&[0.01, 0.3, 0.02])
                .unwrap()
                .interval
                .unwrap()
                .0,
            0.0
        );
        assert_eq!(
            PlacedMean::of(&[3.0, 1.0]),
            Some(PlacedMean {
                mean: 2.0,
                interval: Some((1.0, 3.0))
            })
        );
        assert_eq!(
            PlacedMean::of(&[3.0]),
            Some(PlacedMean {
                mean: 3.0,
                interval: None
            })
        );
        assert_eq!(PlacedMean::of(&[]), None);
    }
}
