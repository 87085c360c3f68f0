//! Detects whether the machine changed during the runs.

use serde::Serialize;

use super::{
    ALPHA, Sides, TimedRun,
    contrast::{TrendLine, p_of_slope},
    design::lay,
    limits::{DRIFT_FEWEST_RUNS, DRIFT_WORTH},
};

/// A significant change of the machine from the first run to the last, as a ratio: 1.04 is 4 % more
/// at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Drift {
    /// Over all runs, with the difference of the sides removed.
    pub over_all: Option<f64>,
    /// Over the runs of one side.
    pub of_base: Option<f64>,
    pub of_new: Option<f64>,
}

impl Drift {
    /// The significant trends of the runs, as one of `looks` tests: the probability of a false
    /// report among all of them is [`ALPHA`].
    pub fn of(sides: &Sides, looks: usize) -> Self {
        let sure = ALPHA / looks.max(1) as f64;
        let laid = lay(sides);
        if laid.design.is_apart() {
            return Self {
                over_all: None,
                of_base: of_one(&sides.base, sure / 2.0),
                of_new: of_one(&sides.new, sure / 2.0),
            };
        }
        let over_all = TrendLine::through(&laid.runs)
            .map(|line| line.drift(&laid.runs))
            .and_then(|found| significant(found, sure));
        Self {
            over_all,
            of_base: None,
            of_new: None,
        }
    }

    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

fn significant((change, p): (f64, f64), sure: f64) -> Option<f64> {
    (p < sure && change.abs() >= DRIFT_WORTH).then(|| change.exp())
}

fn of_one(runs: &[TimedRun], sure: f64) -> Option<f64> {
    if runs.len() < DRIFT_FEWEST_RUNS || runs.iter().any(|run| run.seconds.is_none()) {
        return None;
    }
    let mut sorted: Vec<&TimedRun> = runs.iter().collect();
    sorted.sort_by(|one, other| {
        one.seconds
            .unwrap_or_default()
            .total_cmp(&other.seconds.unwrap_or_default())
    });
    let count = sorted.len() as f64;
    let places = || (0..sorted.len()).map(|place| place as f64 - (count - 1.0) / 2.0);
    let logs: Vec<f64> = sorted.iter().map(|run| run.value.ln()).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let squares: f64 = places().map(|place| place * place).sum();
    let slope = places()
        .zip(&logs)
        .map(|(place, log)| place * (log - mean))
        .sum::<f64>()
        / squares;
    let rest: f64 = places()
        .zip(&logs)
        .map(|(place, log)| (log - mean - slope * place).powi(2))
        .sum();
    let p = p_of_slope(slope, rest / squares, count - 2.0);
    significant((slope * (count - 1.0), p), sure)
}
