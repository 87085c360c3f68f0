//! Searches: select the few trials that answer `sweep.search`. No clock, no disk, no device, no
//! random draw.
//!
//! In: the settings of the file and the probes so far. Out: the next trials, or a
//! [`Recommendation`] with its evidence. A [`Strategy`] keeps no state between two calls: it
//! repeats its steps from the first one each time and stops at the first missing probe. So a killed
//! search resumes from the existing rows, and the same rows always give the same answer. Other
//! modules run the trials, and identify them on disk by the ids that [`Prober`](super::Prober)
//! assigns.

mod best_throughput_batch;
mod largest_batch;
mod noise;
#[cfg(test)]
mod oracle;
mod own_value;
mod race;
mod seen;
mod sizes;
mod successive_halving;
mod warning;
mod workers;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Outcome, show};
use crate::{
    spec::{Search, SearchedKeys},
    statistics::MeasuredNoise,
};
use best_throughput_batch::BestThroughputBatch;
use largest_batch::LargestBatch;
use own_value::WithOwnValue;
use seen::Probes;
use sizes::BatchSizes;
use successive_halving::SuccessiveHalving;
use workers::Workers;

pub use warning::{RangeEnd, Warning};

/// One trial that a search requests: a value for each searched key, and the repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchTrial {
    /// Dotted keys and their values, in the order of [`Strategy::keys`].
    pub values: Vec<(String, Value)>,
    /// From 0: the trial's seed is `train.seed` plus this.
    pub repeat: u64,
}

impl SearchTrial {
    fn new<'k, V: Into<Value>>(
        values: impl IntoIterator<Item = (&'k str, V)>,
        repeat: u64,
    ) -> Self {
        Self {
            values: values
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect(),
            repeat,
        }
    }
}

/// The result of a choice's trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub choice: SearchTrial,
    /// A choice that the plan refuses (such as a batch larger than the data) is `skipped`: it
    /// counts as too large.
    pub outcome: Outcome,
    /// Why it ended so, if that was recorded.
    pub reason: Option<String>,
    pub samples_per_second: Option<f64>,
    /// `None` for models that read no tokens, and commands that report none.
    pub tokens_per_second: Option<f64>,
    /// Maximum memory that the trial used, of the kind that `memory_limit_bytes` limits.
    pub memory_held_bytes: Option<u64>,
    /// Memory that was available to it.
    pub memory_limit_bytes: Option<u64>,
    /// Fraction of the measured window in which training waited for data.
    pub data_wait_fraction: Option<f64>,
    /// Value of the column that `sweep.search.metric` names.
    pub metric: Option<f64>,
    /// If both ends of its interval are known.
    pub noise: Option<MeasuredNoise>,
    /// Duration of its attempt.
    pub seconds: Option<f64>,
    /// Whether the row reports another process on the device, or throttling.
    pub is_disturbed: bool,
}

impl Probe {
    /// A probe without any measured number.
    pub fn that_showed_nothing(choice: SearchTrial, outcome: Outcome) -> Self {
        Self {
            choice,
            outcome,
            reason: None,
            samples_per_second: None,
            tokens_per_second: None,
            memory_held_bytes: None,
            memory_limit_bytes: None,
            data_wait_fraction: None,
            metric: None,
            noise: None,
            seconds: None,
            is_disturbed: false,
        }
    }

    /// Tokens per second, or samples per second for a model without tokens; `None` if it is not a
    /// positive number.
    fn speed(&self) -> Option<f64> {
        self.tokens_per_second
            .or(self.samples_per_second)
            .filter(|speed| speed.is_finite() && *speed > 0.0)
    }

    /// The unit of its speed.
    fn unit(&self) -> &'static str {
        match self.tokens_per_second {
            Some(_) => "tokens/s",
            None => "samples/s",
        }
    }

    /// Fraction of the available memory that it used.
    pub fn memory_share(&self) -> Option<f64> {
        let (held, limit) = (
            self.memory_held_bytes?,
            self.memory_limit_bytes.filter(|limit| *limit > 0)?,
        );
        Some(held as f64 / limit as f64)
    }

    fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }
}

/// The next action of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Run these trials, in this order; none of them has a final outcome yet.
    Run(Vec<SearchTrial>),
    Done(Box<Recommendation>),
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The value of each searched key. At least one trial with exactly these values completed;
    /// `None` if no usable trial completed.
    pub chosen: Option<Vec<(String, Value)>>,
    /// The tested values that cannot be told apart from the fastest, including the chosen one.
    /// Empty if the choice is as fast as every tested value.
    pub alike: Vec<Vec<(String, Value)>>,
    /// The reason, in one sentence.
    pub why: String,
    /// All probes, in the order in which they were given.
    pub evidence: Vec<Probe>,
    pub cost: Cost,
    pub warnings: Vec<Warning>,
    /// Notes beside the answer, such as rules of thumb. They never decide the answer.
    pub notes: Vec<String>,
}

/// Cost of a search, and cost of the grid that it replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Number of attempts, including killed ones.
    pub trials: u64,
    /// Total time of those whose time is known.
    pub seconds: f64,
    /// Trials of the grid: every value in the range (up to the first that was too large), every
    /// repeat.
    pub grid_trials: u64,
    /// Estimated from the mean time of the trials; for `successive-halving` from those of its last
    /// round. `None` if no time is known.
    pub grid_seconds: Option<f64>,
}

/// Selects the next trial.
pub trait Strategy {
    /// The dotted keys of its choices, in their order.
    fn keys(&self) -> Vec<String>;

    /// Returns the next trials, given the probes so far, in any order. Of several probes of one
    /// choice the last one with a final outcome counts.
    fn ask(&self, probes: &[Probe]) -> Ask;

    /// The number by which values are ranked, of a trial whose value may be chosen; `None` for a search
    /// that ranks by no speed.
    fn ranked_speed(&self, _: &Probe) -> Option<f64> {
        None
    }

    /// Where the file's own value lies.
    fn place_of_own(&self) -> OwnPlace {
        OwnPlace::Outside
    }
}

/// Where the file's own value of the searched keys lies, to a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPlace {
    /// The search runs and compares it as one of its values.
    Raced,
    /// It may be chosen if it was run.
    Within,
    /// The search may not choose it.
    Outside,
}

/// Facts of the file and the machine that a search uses.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchContext {
    pub keys: SearchedKeys,
    /// From the file.
    pub batch_size: u64,
    /// From the file.
    pub grad_accumulation: u64,
    /// From the file, `auto` resolved.
    pub num_workers: u64,
    /// From the file.
    pub devices_per_trial: u64,
    /// From the file; `None` for a model that trains nothing.
    pub learning_rate: Option<f64>,
    /// Number of optimizer updates of the file's own length; `None` if it gives none, or the size
    /// of its data is unknown.
    pub steps: Option<u64>,
    /// Usable cores: the cgroup's quota, else all.
    pub cores: u64,
    /// GPUs of a trial; 0 on the CPU.
    pub gpus: u64,
    /// Whether sizes of a batch are ranked by the time until a loss, with the gradient noise scale
    /// that the trials measure, in place of their speed.
    pub is_until_target: bool,
}

/// Returns the strategy of a checked `sweep.search`. A search of one setting also runs the file's own
/// value of it: a race as one of its values, and else at the end.
pub fn strategy(search: &Search, given: &SearchContext) -> Box<dyn Strategy> {
    let of_kind = of_kind(search, given);
    match own_value(search, given) {
        Some(own) if of_kind.place_of_own() != OwnPlace::Raced => Box::new(WithOwnValue {
            search: of_kind,
            own,
        }),
        _ => of_kind,
    }
}

/// The file's own value; `None` for a search whose axes list all values.
fn own_value(search: &Search, given: &SearchContext) -> Option<SearchTrial> {
    let keys = &given.keys;
    let batch = (keys.batch_size.as_str(), given.batch_size);
    match search {
        Search::BestThroughputBatch {
            keep_effective: true,
            ..
        } => Some(SearchTrial::new(
            [batch, (&keys.grad_accumulation, given.grad_accumulation)],
            0,
        )),
        Search::LargestBatch { .. } | Search::BestThroughputBatch { .. } => {
            Some(SearchTrial::new([batch], 0))
        }
        Search::Workers { .. } => Some(SearchTrial::new(
            [(keys.num_workers.as_str(), given.num_workers)],
            0,
        )),
        Search::SuccessiveHalving { .. } => None,
    }
}

fn of_kind(search: &Search, given: &SearchContext) -> Box<dyn Strategy> {
    match search {
        Search::LargestBatch {
            from,
            to,
            multiple_of,
            at_most,
        } => Box::new(LargestBatch {
            sizes: BatchSizes::multiples(*from, *to, *multiple_of),
            at_most: *at_most,
            given: given.clone(),
        }),
        Search::BestThroughputBatch {
            from,
            to,
            multiple_of,
            at_most,
            keep_effective,
            repeats,
        } => {
            let effective = given.batch_size.saturating_mul(given.grad_accumulation);
            let kept = keep_effective.then_some(effective);
            let sizes = match kept {
                Some(effective) => BatchSizes::divisors(effective, *from, *to, *multiple_of),
                None => BatchSizes::multiples(*from, *to, *multiple_of),
            };
            Box::new(BestThroughputBatch {
                sizes,
                at_most: *at_most,
                kept,
                repeats: (*repeats).max(1),
                noise: None,
                given: given.clone(),
            })
        }
        Search::Workers { to, wait, repeats } => Box::new(Workers {
            key: given.keys.num_workers.clone(),
            most: to.resolve(given.cores),
            own: given.num_workers,
            wait: *wait,
            repeats: (*repeats).max(1),
            cores: given.cores,
            gpus: given.gpus,
        }),
        Search::SuccessiveHalving {
            axes,
            metric,
            steps,
            factor,
            repeats,
        } => Box::new(SuccessiveHalving::new(
            axes,
            *metric,
            *steps,
            *factor,
            *repeats,
            given.steps,
        )),
    }
}

/// The result of a strategy, before its cost is added up.
#[derive(Default)]
struct StrategyOutcome {
    chosen: Option<Vec<(String, Value)>>,
    alike: Vec<Vec<(String, Value)>>,
    why: String,
    warnings: Vec<Warning>,
    notes: Vec<String>,
    grid_trials: u64,
    /// Time of one trial of the grid, if it is not the mean of all.
    grid_trial_seconds: Option<f64>,
}

/// Runs a strategy's steps: they end with a result, or with the choices whose probes are missing.
fn answer(
    probes: &[Probe],
    steps: impl Fn(&Probes<'_>) -> Result<StrategyOutcome, Vec<SearchTrial>>,
) -> Ask {
    let seen = Probes::new(probes);
    let mut found = match steps(&seen) {
        Ok(found) => found,
        Err(missing) => return Ask::Run(missing),
    };
    if seen.none_showed_memory() {
        found.why = "no trial completed, for a reason other than memory".to_owned();
        let is_of_memory = |warning: &Warning| matches!(warning, Warning::NothingFitted { .. });
        found.warnings.retain(|warning| !is_of_memory(warning));
    }
    found.warnings.extend(seen.not_completed());
    found.warnings.extend(seen.disturbed());
    let seconds: Vec<f64> = probes
        .iter()
        .filter_map(|probe| probe.seconds.filter(|seconds| seconds.is_finite()))
        .collect();
    let total: f64 = seconds.iter().sum();
    let mean = (!seconds.is_empty()).then(|| total / seconds.len() as f64);
    let cost = Cost {
        trials: probes
            .iter()
            .filter(|probe| probe.outcome != Outcome::Skipped)
            .count() as u64,
        seconds: total,
        grid_trials: found.grid_trials,
        grid_seconds: found
            .grid_trial_seconds
            .or(mean)
            .map(|mean| mean * found.grid_trials as f64),
    };
    let StrategyOutcome {
        chosen,
        alike,
        why,
        warnings,
        notes,
        ..
    } = found;
    Ask::Done(Box::new(Recommendation {
        chosen,
        alike,
        why,
        evidence: probes.to_vec(),
        cost,
        warnings,
        notes,
    }))
}

/// Formats the values of a choice for a table: `train.batch_size 8, data.num_workers 2`.
pub fn describe_values(values: &[(String, Value)]) -> String {
    values
        .iter()
        .map(|(key, value)| format!("{key} {}", show(value)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats the values of a choice for a sentence: `train.batch_size = 8, data.num_workers = 2`.
fn spelled(values: &[(String, Value)]) -> String {
    values
        .iter()
        .map(|(key, value)| format!("{key} = {}", show(value)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats numbers for a sentence: `64, 96 and 128`.
fn listed(numbers: impl Iterator<Item = u64>) -> String {
    let all: Vec<String> = numbers.map(|number| number.to_string()).collect();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}
