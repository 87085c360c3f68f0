//! `train.checkpoint`: when the training state is saved, and which checkpoints are kept.
//! `kiln-trial` documents how.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When checkpoints are written, and which are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Optimizer updates between checkpoints.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: u64,
    /// Number of newest checkpoints kept while the trial runs.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub keep: u64,
    /// Which checkpoint is kept once the trial has completed.
    #[serde(default)]
    pub after: AfterTraining,
}

fn two() -> u64 {
    2
}

/// Which checkpoint of a completed trial is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AfterTraining {
    /// The best, or the last if there is no validation loss.
    #[default]
    Auto,
    /// None.
    Delete,
    /// The one with the lowest validation loss.
    Best,
    /// The one after the last step.
    Last,
}

impl AfterTraining {
    /// Whether a checkpoint is written at each evaluation that is better than those before, and the
    /// best one is kept.
    pub fn keeps_best(self) -> bool {
        matches!(self, Self::Auto | Self::Best)
    }

    /// Without `auto`, for data with or without a validation loss.
    #[must_use]
    pub fn resolved(self, has_validation: bool) -> Self {
        match self {
            Self::Auto if has_validation => Self::Best,
            Self::Auto => Self::Last,
            given => given,
        }
    }
}
