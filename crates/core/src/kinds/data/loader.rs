//! Keys of the loader, which makes batches in advance.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How batches are prepared in advance. No key here changes a sample, the order or a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loader {
    /// Threads that make batches; 0 makes them in the training thread; `auto` takes half the cores,
    /// at most 8.
    #[serde(default)]
    pub num_workers: NumWorkers,
    /// Batches that each worker may prepare in advance.
    #[serde(default = "prefetch")]
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: u64,
    /// Whether workers live across epochs; otherwise each epoch starts new workers.
    #[serde(default = "yes")]
    pub persistent_workers: bool,
    /// Whether batches are copied to a GPU from page-locked host memory, so that the host does not
    /// wait for the copy; `auto` enables it on a GPU. No effect on the CPU.
    #[serde(default)]
    pub pin_memory: PinMemory,
    /// Whether training repeats a single batch: this measures the speed without the loader. The
    /// losses say nothing about the data.
    #[serde(default)]
    pub synthetic: bool,
}

impl Loader {
    /// The dotted key of `synthetic`: trials that differ in it are twins.
    pub const SYNTHETIC: &str = "data.synthetic";
    /// The dotted key of `pin_memory`. Its default was `false` and is `auto`, which ids of trials do not
    /// tell apart.
    pub const PIN_MEMORY: &str = "data.pin_memory";
}

/// A number of workers, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NumWorkers {
    Count(u64),
    Auto(Auto),
}

/// The word `auto`: resolved on the machine that runs the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl NumWorkers {
    /// Returns the number of workers on a machine (or in a container) with this many cores.
    pub fn resolve(self, cores: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Auto(_) => (cores / 2).clamp(1, 8),
        }
    }
}

/// Whether host memory of batches is page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PinMemory {
    Asked(bool),
    Auto(Auto),
}

impl PinMemory {
    /// Whether memory is page-locked on a GPU.
    pub fn is_wanted(self) -> bool {
        self != Self::Asked(false)
    }
}

impl Default for PinMemory {
    fn default() -> Self {
        Self::Auto(Auto::Auto)
    }
}

impl JsonSchema for PinMemory {
    fn schema_name() -> Cow<'static, str> {
        "PinMemory".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"const": "auto"}]})
    }
}

impl Default for NumWorkers {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl fmt::Display for NumWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Auto(_) => write!(f, "auto"),
        }
    }
}

impl JsonSchema for NumWorkers {
    fn schema_name() -> Cow<'static, str> {
        "NumWorkers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 1024},
            {"const": "auto"},
        ]})
    }
}

fn prefetch() -> u64 {
    2
}
fn yes() -> bool {
    true
}

impl Default for Loader {
    fn default() -> Self {
        Self {
            num_workers: NumWorkers::default(),
            prefetch: prefetch(),
            persistent_workers: yes(),
            pin_memory: PinMemory::default(),
            synthetic: false,
        }
    }
}
