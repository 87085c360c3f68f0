//! One trial: a point of the sweep with one seed, everything about it resolved.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    catalog::{Data, Model},
    spec::{Devices, Engine, Train},
};

/// First 10 hex digits of SHA-256 over the canonical JSON of what decides a trial's result (`docs/design.md`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrialId(pub String);

impl fmt::Display for TrialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One point of the sweep with one seed: everything that decides what is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub id: TrialId,
    /// Place in the plan, from 1.
    pub number: u64,
    /// Index of the point it belongs to, from 0, in listed order.
    pub point: u64,
    /// Which seed of the point, from 0.
    pub repeat: u64,
    /// The value of each axis, in file order.
    pub axes: Vec<(String, Value)>,
    pub model: Model,
    pub data: Data,
    /// With this trial's own seed.
    pub train: Train,
    pub engine: Engine,
    pub devices: Devices,
    /// That share each step's batch.
    pub devices_per_trial: u64,
    /// `None` while the data's vocabulary is unknown.
    pub parameters: Option<u64>,
    /// `None` while the data's vocabulary is unknown.
    pub flops_per_sample: Option<u64>,
    /// batch × accumulation × devices.
    pub effective_batch_size: u64,
    /// The planned trial that it stands in for, with a smaller batch, because that one ran out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_of: Option<TrialId>,
    /// Optimizer steps it will make; `None` while the data's size is unknown.
    pub steps: Option<u64>,
}
