//! `train.checkpoint`: when a training's state is kept, and what stays of it. How is told by `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When checkpoints are written, and what becomes of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Optimizer updates between checkpoints.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: u64,
    /// The newest ones that are kept while the trial runs.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep: u64,
    /// What stays of them once the trial has completed.
    #[serde(default)]
    pub after: AfterTraining,
}

fn two() -> u64 {
    2
}

/// What stays of a completed trial's checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AfterTraining {
    /// None.
    #[default]
    Delete,
    /// The one of the lowest validation loss.
    Best,
    /// The one of the last step.
    Last,
}
