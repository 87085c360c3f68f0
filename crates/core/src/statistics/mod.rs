//! Decides whether two groups of runs differ: one engine for comparison, report, diagnosis and
//! search. Numbers in, numbers out.
//!
//! The unit of replication is the run. Runs of one machine are not independent: it drifts within an
//! hour and jumps between sessions, so the analysis follows the order in which the runs were made
//! ([`Design`]). All of it works on logarithms: a ratio is a difference there. `docs/comparing.md`
//! has the rules and how often they are wrong; `benches/verdicts.rs` measures that.

mod analysis;
mod contrast;
mod design;
mod drift;
mod family;
mod field;
mod limits;
mod matrix;
mod mean_interval;
mod noise_scale;
mod prediction;
mod student;
mod tradeoff;

pub use contrast::Estimate;
pub use design::Design;
pub use drift::Drift;
pub use family::{ExactTest, Question, estimates, estimates_beside};
pub use field::Field;
pub use limits::{
    ALPHA, CORRELATION, FEWEST_RUNS, MUCH_DISTURBED, OUTLIER_FEWEST_RUNS, POWER, SESSION_JUMP,
    WORTH, WORTH_OF_LOSS, outlier_deviations,
};
pub(crate) use limits::{ROUNDING, SEARCH_EQUAL};
pub use mean_interval::mean_interval;
pub use noise_scale::{
    FEWEST_MEASURED, GradientNorms, MOST_MEASURED, MeasuredNoise, NoiseScale, NoiseSums,
};
pub(crate) use prediction::prediction_interval;
pub(crate) use student::quantile;
pub use tradeoff::Tradeoff;

/// One run: a positive number with its place in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedRun {
    pub value: f64,
    /// Start time, in s on a clock that both sides share; `None` if unknown.
    pub seconds: Option<f64>,
    /// Block of repeats, or seed: runs of both sides with one key are a pair. `None` if only the
    /// order decides.
    pub block: Option<u64>,
    /// The launch of its side in which it ran; `None` if unknown.
    pub launch: Option<u64>,
    /// Whether a known disturbance affected it.
    pub is_disturbed: bool,
    /// True if a run of the other side was running on the same machine at the same time.
    pub is_at_once: bool,
}

impl TimedRun {
    /// A run with only a number.
    pub fn of(value: f64) -> Self {
        Self {
            value,
            seconds: None,
            block: None,
            launch: None,
            is_disturbed: false,
            is_at_once: false,
        }
    }
}

/// Whether a number depends on when it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Times, rates, energy: they depend on the machine's clocks, heat and neighbors.
    Drifting,
    /// Losses and memory: the machine's state does not affect them.
    Settled,
}

/// The runs of one trial under two conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Sides {
    pub base: Vec<TimedRun>,
    pub new: Vec<TimedRun>,
    pub nature: Nature,
}

impl Sides {
    /// Whether each side has enough runs for an estimate.
    pub fn has_enough(&self) -> bool {
        self.base.len() >= FEWEST_RUNS && self.new.len() >= FEWEST_RUNS
    }

    /// Whether all runs of both sides have the same number: there is no noise.
    pub fn is_constant(&self) -> bool {
        let mut logs = self.base.iter().chain(&self.new).map(|run| run.value.ln());
        let first = logs.next();
        logs.all(|log| first.is_some_and(|first| (log - first).abs() < ROUNDING))
    }
}

/// The arithmetic mean, without overflow for very large numbers; `None` for no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let sum: f64 = values.iter().sum();
    let is_too_large = !sum.is_finite() && values.iter().all(|value| value.is_finite());
    (!values.is_empty()).then(|| {
        if is_too_large {
            values.iter().map(|value| value / count).sum()
        } else {
            sum / count
        }
    })
}

/// The sample standard deviation of at least two values, without overflow.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    if values.iter().all(|value| *value == values[0]) {
        return Some(0.0); // Their mean may be rounded.
    }
    let largest = values
        .iter()
        .map(|value| (value - mean).abs())
        .fold(0.0, f64::max);
    // Squares of very large and of very small numbers overflow or vanish.
    let scale =
        if largest > SQUARES && largest.is_finite() || largest < 1.0 / SQUARES && largest > 0.0 {
            largest
        } else {
            1.0
        };
    let squares: f64 = values
        .iter()
        .map(|value| ((value - mean) / scale).powi(2))
        .sum();
    Some((squares / (values.len() as f64 - 1.0)).sqrt() * scale)
}

/// Above this, and below its inverse, numbers are scaled before they are squared.
const SQUARES: f64 = 1e100;

/// The center of a side: the measured value of one run, else the geometric mean; `None` for no
/// runs.
pub fn middle(values: &[f64]) -> Option<f64> {
    match values {
        [] => None,
        [value] => Some(*value),
        _ => Some((values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()),
    }
}

/// The median of at least one value.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

#[cfg(test)]
mod tests;
