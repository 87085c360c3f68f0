//! `sweep.search`: the goal and the range of `kiln tune`. [`plan::search`](crate::plan::search)
//! documents the strategies.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{contradictions::KeyFault, experiment::Experiment, node::Node, run_options::OnOom};
use crate::kinds::{Content, Model, data::Auto};

/// The goal of a search, which replaces a grid of all values. For `kiln tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Search {
    /// The largest `train.batch_size` that runs.
    LargestBatch {
        /// The smallest batch size to try.
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 1_048_576))]
        from: u64,
        /// The largest batch size to try.
        #[serde(default = "most_batch")]
        #[schemars(range(min = 1, max = 1_048_576))]
        to: u64,
        /// Only multiples of this are tried.
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 1_048_576))]
        multiple_of: u64,
        /// Maximum fraction of the available memory; a trial that uses more counts as too large.
        /// 1.0 accepts every size that completes.
        #[serde(default = "memory_share")]
        #[schemars(range(min = 0.01, max = 1.0))]
        at_most: f64,
    },
    /// The `train.batch_size` with the most tokens (for images: samples) per second.
    BestThroughputBatch {
        /// The smallest batch size to try.
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 1_048_576))]
        from: u64,
        /// The largest batch size to try.
        #[serde(default = "most_batch")]
        #[schemars(range(min = 1, max = 1_048_576))]
        to: u64,
        /// Only multiples of this are tried.
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 1_048_576))]
        multiple_of: u64,
        /// Maximum fraction of the available memory; a trial that uses more counts as too large.
        /// 1.0 accepts every size that completes.
        #[serde(default = "memory_share")]
        #[schemars(range(min = 0.01, max = 1.0))]
        at_most: f64,
        /// Whether the file's `batch_size` × `grad_accumulation` is kept: the search then tries
        /// only its divisors, each with the matching accumulation.
        #[serde(default)]
        keep_effective: bool,
        /// Runs of each value in the grid that the search replaces: the search uses a quarter of
        /// these trials, most of them for the best candidates, with the seeds seed, seed + 1, …;
        /// with 1 nothing is repeated.
        #[serde(default = "three")]
        #[schemars(range(min = 1, max = 100))]
        repeats: u64,
    },
    /// The smallest `data.num_workers` at which the loader no longer slows training.
    Workers {
        /// Maximum number of workers to try; `auto` is the number of cores.
        #[serde(default)]
        to: MostWorkers,
        /// Fraction of the window that training may wait for data: once it is reached, no more
        /// workers are tried.
        #[serde(default = "data_wait")]
        #[schemars(range(min = 0.0, max = 1.0))]
        wait: f64,
        /// Runs of each value in the grid that the search replaces: the search uses a quarter of
        /// these trials, most of them for the best candidates, with the seeds seed, seed + 1, …;
        /// with 1 nothing is repeated.
        #[serde(default = "three")]
        #[schemars(range(min = 1, max = 100))]
        repeats: u64,
    },
    /// The best of many settings by short trials: all train for a short time, the best continue
    /// with longer trials (Jamieson & Talwalkar 2016).
    SuccessiveHalving {
        /// Every combination of these values is a setting; the last key varies fastest.
        axes: Map<String, Value>,
        /// The metric that ranks settings.
        metric: Metric,
        /// Optimizer updates of the first, shortest trials; no trial is longer than the file's
        /// `train.steps` or `train.epochs`.
        #[schemars(range(min = 1, max = 1_000_000_000))]
        steps: u64,
        /// Factor by which the trials of each round are longer; one in this many settings, rounded
        /// up, continues to the next round.
        #[serde(default = "three")]
        #[schemars(range(min = 2, max = 100))]
        factor: u64,
        /// Runs of each setting in each round, with the seeds seed, seed + 1, ….
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 100))]
        repeats: u64,
    },
}

fn one() -> u64 {
    1
}
fn three() -> u64 {
    3
}
fn most_batch() -> u64 {
    65_536
}
/// Leaves some room for additional memory of a longer run: fragmentation, evaluation, other
/// processes.
fn memory_share() -> f64 {
    0.85
}
fn data_wait() -> f64 {
    0.02
}

impl Search {
    /// The name in the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::LargestBatch { .. } => "largest-batch",
            Self::BestThroughputBatch { .. } => "best-throughput-batch",
            Self::Workers { .. } => "workers",
            Self::SuccessiveHalving { .. } => "successive-halving",
        }
    }

    /// The dotted keys whose values the search chooses; for `successive-halving` its axes, in file
    /// order, and the length of the trials.
    pub fn keys(&self) -> Vec<&str> {
        match self {
            Self::BestThroughputBatch {
                keep_effective: true,
                ..
            } => vec!["train.batch_size", "train.grad_accumulation"],
            Self::LargestBatch { .. } | Self::BestThroughputBatch { .. } => {
                vec!["train.batch_size"]
            }
            Self::Workers { .. } => vec!["data.num_workers"],
            Self::SuccessiveHalving { axes, .. } => axes
                .keys()
                .map(String::as_str)
                .chain(["train.steps"])
                .collect(),
        }
    }
}

/// Maximum number of workers to try, or `auto`: the number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MostWorkers {
    Count(u64),
    Auto(Auto),
}

impl MostWorkers {
    /// Returns the number on a machine (or in a container) with this many cores.
    pub fn resolve(self, cores: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Auto(_) => cores.max(1),
        }
    }
}

impl Default for MostWorkers {
    fn default() -> Self {
        Self::Auto(Auto::Auto)
    }
}

impl JsonSchema for MostWorkers {
    fn schema_name() -> Cow<'static, str> {
        "MostWorkers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1024}, {"const": "auto"}]})
    }
}

/// A column of `trials.csv` that ranks settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    ValidLoss,
    TrainLoss,
    SamplesPerSecond,
    TokensPerSecond,
    ValidTop1,
    ValidMeanAbsoluteError,
    ValidHitRate,
    ValidBleu4,
    ValidChrf,
}

impl Metric {
    /// Name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::ValidLoss => "valid_loss",
            Self::TrainLoss => "train_loss",
            Self::SamplesPerSecond => "samples_per_second",
            Self::TokensPerSecond => "tokens_per_second",
            Self::ValidTop1 => "valid_top1",
            Self::ValidMeanAbsoluteError => "valid_mean_absolute_error",
            Self::ValidHitRate => "valid_hit_rate",
            Self::ValidBleu4 => "valid_bleu4",
            Self::ValidChrf => "valid_chrf",
        }
    }

    /// Whether a higher value is better.
    pub fn is_better_high(self) -> bool {
        !matches!(
            self,
            Self::ValidLoss | Self::TrainLoss | Self::ValidMeanAbsoluteError
        )
    }

    /// Returns why trials of this experiment lack this number; `None` if they have it.
    fn absence(self, experiment: &Experiment) -> Option<String> {
        let (model, data, train) = (&*experiment.model, &experiment.data, &experiment.train);
        let kind = model.kind();
        let is_validation = !matches!(
            self,
            Self::TrainLoss | Self::SamplesPerSecond | Self::TokensPerSecond
        );
        let trains = !matches!(model, Model::Matmul(_));
        let read = model.reads();
        let has = match self {
            Self::SamplesPerSecond => true,
            Self::TokensPerSecond => matches!(read, Content::Text | Content::Pairs),
            Self::TrainLoss | Self::ValidLoss => trains,
            Self::ValidTop1 => read == Content::Images,
            Self::ValidMeanAbsoluteError | Self::ValidHitRate => read == Content::Panel,
            Self::ValidBleu4 | Self::ValidChrf => read == Content::Pairs,
        };
        if !has {
            return Some(format!(
                "trials of model kind `{kind}` have no `{}`",
                self.name()
            ));
        }
        if is_validation && data.valid_fraction() == Some(0.0) {
            return Some(format!(
                "`{}` needs validation data, but `data.valid_fraction` is 0",
                self.name()
            ));
        }
        let answers = matches!(self, Self::ValidBleu4 | Self::ValidChrf);
        (answers && train.evaluate.generate.is_none()).then(|| {
            format!(
                "`{}` is measured on answers; set `train.evaluate.generate`",
                self.name()
            )
        })
    }
}

/// Whether the range contains a batch size.
fn has_batch(from: u64, to: u64, multiple_of: u64) -> bool {
    from.div_ceil(multiple_of.max(1))
        .saturating_mul(multiple_of)
        <= to
}

/// Returns the contradictions among the keys of a search, and with the rest of the file.
pub(super) fn faults(experiment: &Experiment) -> Vec<KeyFault> {
    let Some(search) = &experiment.sweep.search else {
        return Vec::new();
    };
    let mut faults = match search {
        Search::LargestBatch {
            from,
            to,
            multiple_of,
            ..
        } => of_range(*from, *to, *multiple_of),
        Search::BestThroughputBatch {
            from,
            to,
            multiple_of,
            keep_effective,
            ..
        } => {
            let faults = of_range(*from, *to, *multiple_of);
            if faults.is_empty() && *keep_effective {
                of_effective(experiment, *from, *to, *multiple_of)
            } else {
                faults
            }
        }
        Search::Workers { .. } => of_workers(experiment),
        Search::SuccessiveHalving {
            axes,
            metric,
            steps,
            ..
        } => of_halving(experiment, axes, *metric, *steps),
    };
    let trains = !matches!(*experiment.model, Model::Matmul(_));
    if matches!(search, Search::LargestBatch { .. }) && trains && experiment.train.steps == Some(1)
    {
        let message = "the optimizer's moments exist only from the second step on, so a trial of \
                       one step uses too little memory; set `train.steps` to 2 or more";
        faults.extend(fault(
            "kind",
            &["train.steps", "model.kind"],
            message.to_owned(),
        ));
    }
    let is_of_batch = matches!(
        search,
        Search::LargestBatch { .. } | Search::BestThroughputBatch { .. }
    );
    if is_of_batch
        && experiment
            .data
            .pairs()
            .is_some_and(|pairs| !pairs.longest_first)
    {
        let message = "rows differ in length, and a short trial may miss the longest ones; set \
                       `data.longest_first: true`, so that every trial includes them";
        faults.extend(fault(
            "kind",
            &["data.longest_first", "data.kind"],
            message.to_owned(),
        ));
    }
    for fault in &mut faults {
        fault.key.insert_str(0, "sweep.search.");
    }
    if experiment.run.on_oom == OnOom::Shrink {
        let message = "a search must see which trials run out of memory, so no smaller trial may \
                       replace them; remove `run.on_oom: shrink`";
        faults.extend(fault("run.on_oom", &["run.on_oom"], message.to_owned()));
    }
    faults
}

fn fault(key: &str, involved: &[&'static str], message: String) -> Vec<KeyFault> {
    vec![KeyFault {
        key: key.to_owned(),
        involved: involved.to_vec(),
        message,
    }]
}

fn of_range(from: u64, to: u64, multiple_of: u64) -> Vec<KeyFault> {
    if from > to {
        return fault(
            "to",
            &[],
            format!("`from` {from} is more than `to` {to}, so no batch size could be tried"),
        );
    }
    if !has_batch(from, to, multiple_of) {
        return fault(
            "multiple_of",
            &[],
            format!(
                "no batch size from {from} to {to} is a multiple of {multiple_of}; widen the range \
                 or lower `multiple_of`"
            ),
        );
    }
    Vec::new()
}

fn of_effective(experiment: &Experiment, from: u64, to: u64, multiple_of: u64) -> Vec<KeyFault> {
    if matches!(*experiment.model, Model::Matmul(_)) {
        let message = "model kind `matmul` accumulates no gradients, so its effective batch is its \
                       batch size; remove `keep_effective`";
        return fault("keep_effective", &["model.kind"], message.to_owned());
    }
    let effective = experiment
        .train
        .batch_size
        .saturating_mul(experiment.train.grad_accumulation);
    let is_allowed = |batch: u64| {
        effective.is_multiple_of(batch)
            && batch.is_multiple_of(multiple_of)
            && (from..=to).contains(&batch)
    };
    // The largest divisor below the number itself is at most half of it.
    let some = (1..=(effective / 2).min(to))
        .chain([effective])
        .any(is_allowed);
    let message = format!(
        "no divisor of the effective batch size {effective} (`train.batch_size` × \
         `train.grad_accumulation`) is a multiple of {multiple_of} from {from} to {to}"
    );
    if some {
        Vec::new()
    } else {
        fault("keep_effective", &[], message)
    }
}

fn of_workers(experiment: &Experiment) -> Vec<KeyFault> {
    if experiment.data.loader().is_none() {
        let message = format!(
            "model kind `{}` reads no data, so it needs no workers",
            experiment.model.kind()
        );
        return fault("kind", &["model.kind", "data.kind"], message);
    }
    Vec::new()
}

/// Checks that trials have the metric.
const DECIDE_METRICS: [&str; 5] = [
    "model.kind",
    "model.reads",
    "data.kind",
    "data.valid_fraction",
    "train.evaluate.generate",
];

fn of_halving(
    experiment: &Experiment,
    axes: &Map<String, Value>,
    metric: Metric,
    steps: u64,
) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    if axes.is_empty() {
        faults.extend(fault(
            "axes",
            &[],
            "`axes` names no key, so there is nothing to choose from; give one, such as \
             `train.batch_size: [4, 8]`"
                .into(),
        ));
    }
    if let Some(why) = metric.absence(experiment) {
        faults.extend(fault(
            "metric",
            &DECIDE_METRICS,
            format!("{why}; choose another metric"),
        ));
    }
    if let Some(most) = experiment.train.steps.filter(|most| steps > *most) {
        let message = format!(
            "the first trials have {steps} steps, more than the limit `train.steps` {most}; lower \
             `steps`"
        );
        faults.extend(fault("steps", &[], message));
    }
    faults
}

/// Returns the dotted keys that the search of a merged tree varies.
pub(super) fn searched_keys(tree: &Node) -> Vec<&str> {
    let Some(search) = tree.get_path(&["sweep", "search"]) else {
        return Vec::new();
    };
    match search.get("kind").and_then(Node::text) {
        Some("largest-batch") => vec!["train.batch_size"],
        Some("best-throughput-batch") => vec!["train.batch_size", "train.grad_accumulation"],
        Some("workers") => vec!["data.num_workers"],
        _ => {
            let axes = search.get("axes").map(Node::entries).unwrap_or_default();
            axes.iter()
                .map(|entry| entry.key.as_str())
                .chain(["train.steps", "train.epochs"])
                .collect()
        }
    }
}
