//! `sweep.search`: the goal and the range of `kiln tune`. [`plan::search`](crate::plan::search)
//! documents the strategies.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::objective::Metric;
use crate::kinds::{Model, data::Auto};

/// The goal of a search, which replaces a grid of all values. For `kiln tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Search {
    /// The largest `train.batch_size` that runs; of a command, the value in `model.grows`.
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
    /// The `train.batch_size` with the most tokens (for images: samples) per second; of a command,
    /// the value in `model.grows`.
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
    /// The smallest `data.num_workers` at which the loader no longer slows training; of a command,
    /// the value `num_workers`.
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
    pub fn keys<'a>(&'a self, keys: &'a SearchedKeys) -> Vec<&'a str> {
        match self {
            Self::BestThroughputBatch {
                keep_effective: true,
                ..
            } => vec![&keys.batch_size, &keys.grad_accumulation],
            Self::LargestBatch { .. } | Self::BestThroughputBatch { .. } => {
                vec![&keys.batch_size]
            }
            Self::Workers { .. } => vec![&keys.num_workers],
            Self::SuccessiveHalving { axes, .. } => axes
                .keys()
                .map(String::as_str)
                .chain(["train.steps"])
                .collect(),
        }
    }
}

/// The dotted keys that searches of batches and workers vary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedKeys {
    pub batch_size: String,
    pub grad_accumulation: String,
    pub num_workers: String,
}

impl SearchedKeys {
    /// The values of a command, the first of `grows` as its batch size; the keys of `train` and
    /// `data` of any other model.
    pub fn of(model: &Model) -> Self {
        let Some(command) = model.command() else {
            return Self::default();
        };
        Self::of_command(command.grows.first().map(String::as_str))
    }

    /// The values of a command that grows this one.
    pub(crate) fn of_command(grows: Option<&str>) -> Self {
        let value = |name: &str| format!("model.values.{name}");
        Self {
            batch_size: value(grows.unwrap_or("batch_size")),
            grad_accumulation: value("grad_accumulation"),
            num_workers: value("num_workers"),
        }
    }
}

impl Default for SearchedKeys {
    fn default() -> Self {
        Self {
            batch_size: "train.batch_size".to_owned(),
            grad_accumulation: "train.grad_accumulation".to_owned(),
            num_workers: "data.num_workers".to_owned(),
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
        json_schema!({"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 1024},
            {"const": "auto"},
        ]})
    }
}
