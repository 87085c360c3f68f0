//! `objective`: the metric by which reports rank the points of a run. It changes no trial.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::kinds::command::{Better, METRIC_PREFIX};

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
    /// Where it comes from.
    #[serde(skip)]
    #[schemars(skip)]
    pub source: ObjectiveSource,
    /// Whether trials train for the length of their round, so that those of different lengths do not
    /// compare.
    #[serde(skip)]
    #[schemars(skip)]
    pub is_in_rounds: bool,
}

/// Where the metric that ranks points comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectiveSource {
    /// `objective` of the experiment.
    #[default]
    Objective,
    /// The first metric of a command with `better`.
    Better,
    /// A command that does not say what is better: the first metric that kiln measures itself.
    Measured,
    /// `metric` of the search.
    Search,
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

impl From<Better> for Goal {
    fn from(better: Better) -> Self {
        match better {
            Better::High => Self::Max,
            Better::Low => Self::Min,
        }
    }
}

impl Objective {
    /// An objective that the experiment names.
    pub fn of(metric: Metric, goal: Option<Goal>) -> Self {
        Self {
            metric,
            goal,
            source: ObjectiveSource::Objective,
            is_in_rounds: false,
        }
    }

    /// The direction, which is the metric's own unless the file names one.
    pub fn goal(self) -> Goal {
        self.goal.unwrap_or(match self.metric.is_better_high() {
            true => Goal::Max,
            false => Goal::Min,
        })
    }
}

/// A column of `trials.csv` that ranks settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    ValidLoss,
    /// The validation loss of the best evaluation; `ValidLoss` is that of the last.
    LowestValidLoss,
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
    /// The column `metric.NAME` of a command.
    Own(&'static str),
}

/// Returns the same text for the rest of the program: a metric is copied as freely as its name.
fn interned(text: String) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_with(HashSet::new);
    if let Some(known) = names.get(text.as_str()) {
        return known;
    }
    let name: &'static str = text.leak();
    names.insert(name);
    name
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::named(&Cow::<str>::deserialize(deserializer)?))
    }
}

impl JsonSchema for Metric {
    fn schema_name() -> Cow<'static, str> {
        "Metric".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let columns = Self::COLUMNS.map(Self::name);
        json_schema!({"anyOf": [
            {"enum": columns},
            {
                "type": "string",
                "pattern": "^[A-Za-z][A-Za-z0-9_-]*$",
                "description": "A metric of a command.",
            },
        ]})
    }
}

impl Metric {
    /// Those with a column in every table.
    pub const COLUMNS: [Self; 11] = [
        Self::ValidLoss,
        Self::LowestValidLoss,
        Self::TrainLoss,
        Self::SamplesPerSecond,
        Self::TokensPerSecond,
        Self::ValidTop1,
        Self::ValidMeanAbsoluteError,
        Self::ValidHitRate,
        Self::ValidBleu4,
        Self::ValidChrf,
        Self::SecondsToTarget,
    ];

    /// The metric of a name in `objective` or in `metrics` of a command.
    pub fn named(name: &str) -> Self {
        let column = Self::COLUMNS
            .into_iter()
            .find(|metric| metric.name() == name);
        column.unwrap_or_else(|| Self::Own(interned(format!("{METRIC_PREFIX}{name}"))))
    }

    /// The name in `objective`.
    pub fn key(self) -> &'static str {
        let name = self.name();
        name.strip_prefix(METRIC_PREFIX).unwrap_or(name)
    }

    /// Name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::ValidLoss => "valid_loss",
            Self::LowestValidLoss => "lowest_valid_loss",
            Self::TrainLoss => "train_loss",
            Self::SamplesPerSecond => "samples_per_second",
            Self::TokensPerSecond => "tokens_per_second",
            Self::ValidTop1 => "valid_top1",
            Self::ValidMeanAbsoluteError => "valid_mean_absolute_error",
            Self::ValidHitRate => "valid_hit_rate",
            Self::ValidBleu4 => "valid_bleu4",
            Self::ValidChrf => "valid_chrf",
            Self::SecondsToTarget => "seconds_to_target",
            Self::Own(column) => column,
        }
    }

    /// Whether a higher value is better; of a command's own metric the experiment says it.
    pub fn is_better_high(self) -> bool {
        !matches!(
            self,
            Self::ValidLoss
                | Self::LowestValidLoss
                | Self::TrainLoss
                | Self::ValidMeanAbsoluteError
                | Self::SecondsToTarget
        )
    }
}
