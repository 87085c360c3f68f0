//! The quantities drawn against an axis: a number of a row, its unit, and the interval around the
//! mean of repeats.

use kiln_core::{
    kinds::command::{Better, Command, METRIC_PREFIX},
    record::TrialRow,
    spec::Metric,
    statistics::{self, ALPHA},
};

use crate::report::{
    chart::Quantity,
    energy::energy_of,
    points::{Point, lengths_differ},
};

/// A number that each point has.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct PointMeasure {
    /// In file names.
    pub(in crate::report) key: &'static str,
    pub(in crate::report) what: &'static str,
    pub(in crate::report) quantity: Quantity,
    source: Source,
    /// Whether the axis includes 0, so that a bar twice as long means twice as much.
    pub(in crate::report) is_from_zero: bool,
    /// Which direction is better; `None` if the experiment does not say it of a command's metric.
    pub(in crate::report) better: Option<Better>,
    /// A reason for which its points may not be comparable.
    pub(super) doubt: Option<PointDoubt>,
}

/// A reason for which points may not be comparable; the caption names it where it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointDoubt {
    /// Trials whose two energies contradict each other are left out, and points of mixed sources.
    EnergiesApart,
    /// The points have seen different numbers of samples.
    UnequalSamples,
}

/// How the number is read from a row of `trials.csv`.
#[derive(Clone, Copy, Debug)]
enum Source {
    Metric(Metric),
    Row(fn(&TrialRow) -> Option<f64>),
    Energy,
}

const SAMPLES: PointMeasure = PointMeasure {
    key: "throughput",
    what: "Throughput",
    quantity: Quantity::Of("samples/s"),
    source: Source::Metric(Metric::SamplesPerSecond),
    is_from_zero: true,
    better: Some(Better::High),
    doubt: None,
};
const TOKENS: PointMeasure = PointMeasure {
    quantity: Quantity::Of("tokens/s"),
    source: Source::Metric(Metric::TokensPerSecond),
    ..SAMPLES
};
const MEMORY: PointMeasure = PointMeasure {
    key: "memory",
    what: "Peak memory",
    quantity: Quantity::Bytes,
    source: Source::Row(|row| row.memory_held_bytes().map(|bytes| bytes as f64)),
    is_from_zero: true,
    better: Some(Better::Low),
    doubt: None,
};
const TENSORS: PointMeasure = PointMeasure {
    what: "Peak memory of tensors",
    ..MEMORY
};
const ENERGY: PointMeasure = PointMeasure {
    key: "energy",
    what: "Energy per sample",
    quantity: Quantity::Of("J"),
    source: Source::Energy,
    is_from_zero: true,
    better: Some(Better::Low),
    doubt: Some(PointDoubt::EnergiesApart),
};
/// The time until `train.target` was reached.
pub(super) const TARGET: PointMeasure = PointMeasure {
    key: "time-to-target",
    what: "Time to the target",
    quantity: Quantity::Seconds,
    source: Source::Metric(Metric::SecondsToTarget),
    is_from_zero: true,
    better: Some(Better::Low),
    doubt: None,
};
const VALID_LOSS: PointMeasure = PointMeasure {
    key: "valid-loss",
    what: "Validation loss",
    quantity: Quantity::Number,
    source: Source::Metric(Metric::ValidLoss),
    is_from_zero: false,
    better: Some(Better::Low),
    doubt: Some(PointDoubt::UnequalSamples),
};
const TRAIN_LOSS: PointMeasure = PointMeasure {
    key: "train-loss",
    what: "Training loss",
    source: Source::Metric(Metric::TrainLoss),
    ..VALID_LOSS
};

impl PointMeasure {
    /// Everything that is drawn over an axis.
    pub(in crate::report) fn all<'a>(
        axes: &[String],
        rows: impl IntoIterator<Item = &'a TrialRow>,
    ) -> [Self; 4] {
        let rows: Vec<&TrialRow> = rows.into_iter().collect();
        let memory = match rows.iter().any(|row| row.peak_allocated_bytes.is_some()) {
            true => TENSORS,
            false => MEMORY,
        };
        [Self::throughput(axes), memory, ENERGY, Self::loss(rows)]
    }

    /// A command's own metric, by the name of its column.
    pub(super) fn own(column: &str, command: Option<&Command>) -> Self {
        let name = column.strip_prefix(METRIC_PREFIX).unwrap_or(column);
        let metric = Metric::named(name);
        Self {
            key: metric.name(),
            what: metric.key(),
            quantity: Quantity::Number,
            source: Source::Metric(metric),
            is_from_zero: false,
            better: command.and_then(|command| command.better(name)),
            doubt: None,
        }
    }

    /// The numbers of a point's completed runs.
    pub(in crate::report) fn of(&self, point: &Point<'_>) -> Vec<f64> {
        let rows = point.completed();
        match self.source {
            Source::Metric(metric) => rows
                .filter_map(|row| row.metric_of_whole_work(metric))
                .collect(),
            Source::Row(of) => rows.filter_map(of).collect(),
            Source::Energy => rows.filter_map(energy_of(point)).collect(),
        }
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
                // A quantity that is never negative is not drawn below 0.
                let least = if runs.iter().all(|run| *run >= 0.0) {
                    0.0
                } else {
                    f64::NEG_INFINITY
                };
                let interval = statistics::mean_interval(runs, 1.0 - ALPHA);
                interval.map(|(low, high)| (low.max(least), high))
            }
        };
        Some(Self { mean, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_says_what_may_keep_its_points_from_being_compared() {
        let energy = Some(PointDoubt::EnergiesApart);
        let loss = Some(PointDoubt::UnequalSamples);
        let evaluated = TrialRow {
            valid_loss: Some(1.0),
            ..TrialRow::default()
        };
        for (row, key) in [
            (evaluated, "valid-loss"),
            (TrialRow::default(), "train-loss"),
        ] {
            let all = PointMeasure::all(&[], [&row]);
            assert_eq!(all.map(|one| one.doubt), [None, None, energy, loss]);
            assert_eq!(all[3].key, key);
        }
        // A command's own number of such a name is another one.
        let own = |name: &str| PointMeasure::own(name, None).doubt;
        assert_eq!(["metric.energy", "metric.loss"].map(own), [None, None]);
    }

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
