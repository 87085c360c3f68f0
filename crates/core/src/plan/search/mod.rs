//! Searches: which trials show what `sweep.search` asks for, with few of them. No clock, no disk, no device, no draw.
//!
//! In: what the file asks for and the probes so far. Out: the next trials, or a [`Recommendation`] that says what it rests on. A [`Strategy`]
//! keeps nothing between two questions: it goes through its steps from the first one each time and stops where a probe is missing.
//! So a search that was killed goes on from the rows that are there, and the same rows always give the same answer. Running the trials, and
//! telling them apart on disk by the ids that [`Prober`](super::Prober) gives them, is left to others.

mod best_throughput_batch;
mod largest_batch;
#[cfg(test)]
mod oracle;
mod race;
mod seen;
mod sizes;
mod successive_halving;
mod warning;
mod workers;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Outcome, show};
use crate::spec::Search;
use best_throughput_batch::BestThroughputBatch;
use largest_batch::LargestBatch;
use seen::Seen;
use sizes::Sizes;
use successive_halving::SuccessiveHalving;
use workers::Workers;

pub use warning::{End, Warning};

/// One trial that a search asks for: a value for each searched key, and which seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Dotted keys and their values, in the order of [`Strategy::keys`].
    pub values: Vec<(String, Value)>,
    /// From 0: the trial's seed is `train.seed` plus this.
    pub repeat: u64,
}

impl Choice {
    fn new<V: Into<Value>>(values: impl IntoIterator<Item = (&'static str, V)>, repeat: u64) -> Self {
        Self { values: values.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect(), repeat }
    }
}

/// What the trial of a choice showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub choice: Choice,
    /// A choice that the plan refuses (a batch larger than the data, say) is `skipped`: it counts as too large.
    pub outcome: Outcome,
    pub samples_per_second: Option<f64>,
    /// `None` for models that read no tokens.
    pub tokens_per_second: Option<f64>,
    /// The most memory the trial held, of the kind that `memory_limit_bytes` limits.
    pub memory_held_bytes: Option<u64>,
    /// The memory it could have had.
    pub memory_limit_bytes: Option<u64>,
    /// Share of the measured window that training waited for data.
    pub data_wait_fraction: Option<f64>,
    /// The column that `sweep.search.metric` names.
    pub metric: Option<f64>,
    /// From the start to the end of its attempt.
    pub seconds: Option<f64>,
    /// Whether the row says that something else used the device, or that it was throttled.
    pub is_disturbed: bool,
}

impl Probe {
    /// Of a trial of which no number is known.
    pub fn that_showed_nothing(choice: Choice, outcome: Outcome) -> Self {
        Self {
            choice,
            outcome,
            samples_per_second: None,
            tokens_per_second: None,
            memory_held_bytes: None,
            memory_limit_bytes: None,
            data_wait_fraction: None,
            metric: None,
            seconds: None,
            is_disturbed: false,
        }
    }

    /// Tokens per second, of a model without tokens samples per second; `None` if that is no positive number.
    fn speed(&self) -> Option<f64> {
        self.tokens_per_second.or(self.samples_per_second).filter(|speed| speed.is_finite() && *speed > 0.0)
    }

    /// Share of the memory that it held, as a fraction of 1.
    pub fn memory_share(&self) -> Option<f64> {
        let (held, limit) = (self.memory_held_bytes?, self.memory_limit_bytes.filter(|limit| *limit > 0)?);
        Some(held as f64 / limit as f64)
    }

    fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }
}

/// What a search wants next.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// These trials, in this order; none of them has ended with a final outcome yet.
    Run(Vec<Choice>),
    Done(Box<Recommendation>),
}

/// The end of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The value of each searched key. Some trial with exactly these completed; `None` if none that could be chosen did.
    pub chosen: Option<Vec<(String, Value)>>,
    /// Those that were run and cannot be told apart from the fastest, the chosen one among them. Empty where the choice is as fast as any that was run.
    pub alike: Vec<Vec<(String, Value)>>,
    /// In one sentence.
    pub why: String,
    /// All probes, in the order in which they were given.
    pub evidence: Vec<Probe>,
    pub cost: Cost,
    pub warnings: Vec<Warning>,
    /// What else a reader may want beside the answer: rules of thumb. Never an answer.
    pub notes: Vec<String>,
}

/// What a search took, and what the grid would have taken that it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Attempts, also those that were killed.
    pub trials: u64,
    /// Of those whose time is known.
    pub seconds: f64,
    /// Every value in the range (up to the first that was too large), every repeat.
    pub grid_trials: u64,
    /// Estimated from the mean time of the trials; of `successive-halving` from those of its last round. `None` while no time is known.
    pub grid_seconds: Option<f64>,
}

/// Says which trial comes next.
pub trait Strategy {
    /// The dotted keys of its choices, in their order.
    fn keys(&self) -> Vec<String>;

    /// What is to be run, given what has been seen so far, in whatever order. Of several probes of one choice the last one with a
    /// final outcome counts.
    fn ask(&self, probes: &[Probe]) -> Ask;
}

/// What a search knows of the file and of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// The file's.
    pub batch_size: u64,
    /// The file's.
    pub grad_accumulation: u64,
    /// The file's.
    pub devices_per_trial: u64,
    /// The file's; `None` for a model that trains nothing.
    pub learning_rate: Option<f64>,
    /// How many optimizer updates the file's own length comes to; `None` if it gives none, or its data is unknown.
    pub steps: Option<u64>,
    /// That may be used: the cgroup's quota, else all.
    pub cores: u64,
    /// That a trial uses; none on the CPU.
    pub gpus: u64,
}

/// The strategy of a checked `sweep.search`.
pub fn strategy(search: &Search, given: &Given) -> Box<dyn Strategy> {
    match search {
        Search::LargestBatch { from, to, multiple_of, at_most } => {
            Box::new(LargestBatch { sizes: Sizes::multiples(*from, *to, *multiple_of), at_most: *at_most, given: given.clone() })
        }
        Search::BestThroughputBatch { from, to, multiple_of, at_most, keep_effective, repeats } => {
            let effective = given.batch_size.saturating_mul(given.grad_accumulation);
            let kept = keep_effective.then_some(effective);
            let sizes = match kept {
                Some(effective) => Sizes::divisors(effective, *from, *to, *multiple_of),
                None => Sizes::multiples(*from, *to, *multiple_of),
            };
            Box::new(BestThroughputBatch { sizes, at_most: *at_most, kept, repeats: (*repeats).max(1), given: given.clone() })
        }
        Search::Workers { to, wait, repeats } => {
            Box::new(Workers { most: to.resolve(given.cores), wait: *wait, repeats: (*repeats).max(1), cores: given.cores, gpus: given.gpus })
        }
        Search::SuccessiveHalving { axes, metric, steps, factor, repeats } => {
            Box::new(SuccessiveHalving::new(axes, *metric, *steps, *factor, *repeats, given.steps))
        }
    }
}

/// What a strategy found, before its cost is added up.
#[derive(Default)]
struct Found {
    chosen: Option<Vec<(String, Value)>>,
    alike: Vec<Vec<(String, Value)>>,
    why: String,
    warnings: Vec<Warning>,
    notes: Vec<String>,
    grid_trials: u64,
    /// Of one trial of the grid, if it is not the mean of all.
    grid_trial_seconds: Option<f64>,
}

/// Goes through a strategy's steps: they end with what it found, or at the choices whose probes are missing.
fn answer(probes: &[Probe], steps: impl Fn(&Seen<'_>) -> Result<Found, Vec<Choice>>) -> Ask {
    let seen = Seen::new(probes);
    let mut found = match steps(&seen) {
        Ok(found) => found,
        Err(missing) => return Ask::Run(missing),
    };
    found.warnings.extend(seen.not_completed());
    found.warnings.extend(seen.disturbed());
    let seconds: Vec<f64> = probes.iter().filter_map(|probe| probe.seconds.filter(|seconds| seconds.is_finite())).collect();
    let total: f64 = seconds.iter().sum();
    let mean = (!seconds.is_empty()).then(|| total / seconds.len() as f64);
    let cost = Cost {
        trials: probes.iter().filter(|probe| probe.outcome != Outcome::Skipped).count() as u64,
        seconds: total,
        grid_trials: found.grid_trials,
        grid_seconds: found.grid_trial_seconds.or(mean).map(|mean| mean * found.grid_trials as f64),
    };
    let Found { chosen, alike, why, warnings, notes, .. } = found;
    Ask::Done(Box::new(Recommendation { chosen, alike, why, evidence: probes.to_vec(), cost, warnings, notes }))
}

/// The values of a choice on a page: `train.batch_size 8, data.num_workers 2`.
pub fn told(values: &[(String, Value)]) -> String {
    values.iter().map(|(key, value)| format!("{key} {}", show(value))).collect::<Vec<_>>().join(", ")
}

/// The same in a sentence: `train.batch_size = 8, data.num_workers = 2`.
fn spelled(values: &[(String, Value)]) -> String {
    values.iter().map(|(key, value)| format!("{key} = {}", show(value))).collect::<Vec<_>>().join(", ")
}

/// Numbers in a sentence: `64, 96 and 128`.
fn listed(numbers: impl Iterator<Item = u64>) -> String {
    let all: Vec<String> = numbers.map(|number| number.to_string()).collect();
    match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}
