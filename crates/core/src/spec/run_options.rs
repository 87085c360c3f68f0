//! The types of the `run` section: engine, devices, limits, waits. Only `devices_per_trial` affects
//! a loss.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    engine::{Engine, EngineProgram},
    run_slurm::Slurm,
};
use crate::{
    kinds::Named,
    units::{ByteSize, TimeSpan},
};

/// How trials are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Where the trials run: `here`, on `workers`, which take them from the run's queue (`kiln
    /// worker`), or in workers that `slurm` starts.
    pub on: RunPlace,
    /// The resources that each worker gets from Slurm; used with `run.on: slurm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Slurm>,
    /// The compute engine: `libtorch`, `flex`, or a name of `engines`.
    pub engine: Engine,
    /// Engines of one's own: programs that run the same trial as kiln does. `run.engine` names one.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub engines: Named<EngineProgram>,
    /// `auto`, `cpu`, `all`, or a list of GPU indices (as in nvidia-smi) or UUIDs.
    pub devices: Devices,
    /// Devices that share each step's batch: each processes `batch_size` examples at a time, and
    /// their gradients are summed.
    #[schemars(range(min = 1, max = 64))]
    pub devices_per_trial: u64,
    /// Time limit of one attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeSpan>,
    /// Time without a message after which a trial counts as stalled.
    pub stall: TimeSpan,
    /// Memory limit of a trial: on the CPU for the allocations of its process, on a GPU for its
    /// tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<ByteSize>,
    pub on_oom: OnOom,
    /// Number of retries of a failed trial.
    #[schemars(range(min = 0, max = 100))]
    pub retries: u64,
    /// Whether kiln waits for a GPU that other processes use (up to `wait`) and then refuses it.
    pub require_idle_device: bool,
    /// Maximum time to wait for an idle device.
    pub wait: TimeSpan,
    /// Waits between trials until the device has cooled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cool_down: Option<CoolDown>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            on: RunPlace::Here,
            slurm: None,
            engine: Engine::Libtorch,
            engines: Named::default(),
            devices: Devices::Named(DeviceName::Auto),
            devices_per_trial: 1,
            timeout: None,
            stall: TimeSpan::from_secs(600),
            memory_limit: None,
            on_oom: OnOom::Record,
            retries: 0,
            require_idle_device: true,
            wait: TimeSpan::from_secs(0),
            cool_down: None,
        }
    }
}

/// Where the trials of an experiment run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunPlace {
    /// In the process that reads the file.
    #[default]
    Here,
    /// In workers, which are started on whatever node sees the run's folder.
    Workers,
    /// In workers that Slurm starts.
    Slurm,
}

impl RunPlace {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Workers => "workers",
            Self::Slurm => "slurm",
        }
    }
}

/// Which devices trials may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Devices {
    Named(DeviceName),
    List(Vec<DeviceId>),
}

/// Devices given by a word: an idle one, the CPU, every GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceName {
    Auto,
    Cpu,
    All,
}

/// Index of the GPU in nvidia-smi, or its UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceId {
    Index(u32),
    Uuid(String),
}

impl JsonSchema for Devices {
    fn schema_name() -> Cow<'static, str> {
        "Devices".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"enum": ["auto", "cpu", "all"]},
            {"type": "array", "minItems": 1, "items": {"anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 1023},
                {"type": "string", "pattern": "^(GPU|MIG)-.+$"},
            ]}},
        ]})
    }
}

/// Effect of an out-of-memory failure on later points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnOom {
    /// A row with outcome `oom`; the next trial starts.
    Record,
    /// Later trials that differ from it only by an equal or larger batch, sequence or width do not
    /// run: outcome `skipped`.
    SkipLarger,
    /// The same effective batch is retried with smaller batches: the next smaller batch that
    /// divides it, with more accumulation, down to 1.
    Shrink,
}

/// Waits between trials until the device is cool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoolDown {
    /// The device's temperature, in degrees Celsius, below which the next trial starts.
    #[schemars(range(min = 20, max = 110))]
    pub below_celsius: u32,
    /// Maximum time to wait.
    #[serde(default = "two_minutes")]
    pub at_most: TimeSpan,
}

fn two_minutes() -> TimeSpan {
    TimeSpan::from_secs(120)
}
