//! `objective`: the metric by which reports rank the points of a run. It changes no trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The metric that ranks the points of the experiment in every report. Without it the
/// metric follows from the axes: throughput if they change only how fast the training runs, else
/// the validation loss, or for images the accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Column of `trials.csv`.
    pub metric: Metric,
    /// Whether a lower or a higher value is better; by default what the metric means: losses,
    /// errors and times are minimized, all others maximized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

/// Direction of an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Lower is better.
    Min,
    /// Higher is better.
    Max,
}

impl Objective {
    /// The direction, which is the metric's own unless the file names one.
    pub fn goal(self) -> Goal {
        self.goal.unwrap_or(match self.metric.is_better_high() {
            true => Goal::Max,
            false => Goal::Min,
        })
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
    /// Time until `train.target` was reached.
    SecondsToTarget,
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
            Self::SecondsToTarget => "seconds_to_target",
        }
    }

    /// Whether a higher value is better.
    pub fn is_better_high(self) -> bool {
        !matches!(
            self,
            Self::ValidLoss
                | Self::TrainLoss
                | Self::ValidMeanAbsoluteError
                | Self::SecondsToTarget
        )
    }
}
