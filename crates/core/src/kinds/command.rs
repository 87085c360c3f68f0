//! `command`: any program as a trial (`docs/command.md`). Its values are swept, and its metrics are
//! read from what it prints and writes.
//!
//! Here: the keys, and the pure functions that the runner and the relay share: the expansion of
//! placeholders, and which column a metric fills. Contradictions are left to `spec`; starting the
//! program and reading its output are left to the relay.

mod argument;
mod expand;
mod metric;
mod template;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Content, InputShape, Named, model::ModelKind};

pub use argument::{Argument, Arguments};
pub use expand::{Expanded, PLACEHOLDERS, Placeholders, value_variable};
#[cfg(test)]
pub(crate) use metric::compiled_patterns;
pub use metric::{
    Better, CommandMetric, FILLED_COLUMNS, METRIC_PREFIX, Measured, MetricSource, MetricTarget,
    Stream, Take, line_pattern, metric_target, regular_expression,
};
pub(crate) use template::{Part, is_name, parse as parse_template};

/// The name in `model.kind`.
pub const COMMAND: &str = "command";

/// Any program, started once per attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments: texts with `{placeholders}`, and `{when: NAME, then: […]}`,
    /// which is left out while the value is `false` or `null`. No shell.
    pub argv: Arguments,
    /// The parameters of the program: numbers, texts, `true`, `false` or `null`. Axes are
    /// `model.values.NAME`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "values_schema")]
    pub values: Map<String, Value>,
    /// Further environment variables, with placeholders.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "environment_schema")]
    pub environment: Map<String, Value>,
    /// Folder in which the program runs; by default that in which kiln was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// A program with arguments that is run before each attempt and not measured.
    #[serde(default, skip_serializing_if = "Arguments::is_empty")]
    pub prepare: Arguments,
    /// Paths and globs of the files that, beside the program, make it what it is; their hashes are
    /// kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Where each number comes from. Without metrics, kiln measures `wall_seconds`, `cpu_seconds`
    /// and `peak_memory_bytes`.
    #[serde(default, skip_serializing_if = "Named::is_empty")]
    pub metrics: Named<CommandMetric>,
    /// Lines of standard output at which the measured window begins and ends; by default it is the
    /// whole attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Values with which memory grows, for `run.on_oom: skip-larger`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grows: Vec<String>,
    /// Meaning of exit statuses of this program.
    #[serde(default, skip_serializing_if = "Exits::is_empty")]
    pub exits: Exits,
    /// Whether the program resumes by itself from `{checkpoint_folder}`, which is kept across
    /// attempts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checkpoints: bool,
}

/// Patterns of the lines between which is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Pattern of the line at which the window begins; by default the start of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Pattern of the line at which the window ends; by default the end of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Exit statuses with a meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Exits {
    /// Exit statuses that mean that memory ran out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 255)))]
    pub oom: Vec<i32>,
    /// Exit statuses that mean that the training diverged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 255)))]
    pub diverged: Vec<i32>,
}

impl Exits {
    pub fn is_empty(&self) -> bool {
        self.oom.is_empty() && self.diverged.is_empty()
    }
}

fn values_schema(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    })
}

/// Why no program may be given this environment variable: a sentence about it.
pub(crate) fn reserved_variable(name: &str) -> Option<String> {
    if name == "CUDA_VISIBLE_DEVICES" {
        return Some(format!(
            "`{name}` is set by kiln to the devices of the trial; choose them by `run.devices` or \
             `--device`"
        ));
    }
    name.starts_with("KILN_").then(|| {
        format!("`{name}`: variables that begin with `KILN_` are kiln's own; choose another name")
    })
}

pub(crate) fn environment_schema(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    })
}

impl Command {
    /// The metrics of a trial, in the order of the file: those of `metrics`, else those that kiln
    /// measures itself.
    pub fn every_metric(&self) -> Named<CommandMetric> {
        if !self.metrics.is_empty() {
            return self.metrics.clone();
        }
        let metric = |measured: Measured| {
            let metric = CommandMetric {
                measured: Some(measured),
                ..CommandMetric::default()
            };
            (measured.name().to_owned(), metric)
        };
        Named(Measured::ALL.map(metric).into())
    }

    /// The names of the metrics with columns of their own (`metric.NAME`), in the order of the
    /// file.
    pub fn own_metrics(&self) -> Vec<String> {
        let metrics = self.every_metric();
        let own = |name: &&str| metric_target(name) == MetricTarget::Own;
        metrics.names().filter(own).map(str::to_owned).collect()
    }

    /// The metric that ranks points unless `objective` names one: the first that says which
    /// direction is better.
    pub fn ranking_metric(&self) -> Option<(String, Better)> {
        let metrics = self.every_metric();
        let named = metrics.iter();
        named
            .filter_map(|(name, metric)| Some((name.to_owned(), metric.better()?)))
            .next()
    }

    /// Which direction of a metric is better, if the file says so.
    pub fn better(&self, metric: &str) -> Option<Better> {
        self.every_metric().get(metric)?.better()
    }

    /// Whether the program gets this placeholder; with `{trial_file}` it gets every one.
    pub fn has_placeholder(&self, name: &str) -> bool {
        let environment = self.environment.values().filter_map(Value::as_str);
        let texts = self.argv.texts().map(|(_, text, _)| text);
        texts.chain(environment).any(|text| {
            let parts = parse_template(text).unwrap_or_default();
            let is_named = |part: &Part| {
                matches!(part, Part::Placeholder(found) if found == name || found == "trial_file")
            };
            parts.iter().any(is_named)
        })
    }

    /// Whether a text of the command has the placeholder of the folder of data.
    pub fn names_data_folder(&self) -> bool {
        let arguments = self.argv.texts().chain(self.prepare.texts());
        let arguments = arguments.map(|(_, text, _)| text);
        let environment = self.environment.values().filter_map(Value::as_str);
        let paths = self.folder.iter().chain(&self.files).map(String::as_str);
        let metrics = self.metrics.iter();
        let read =
            metrics.filter_map(|(_, metric)| metric.csv.as_deref().or(metric.json.as_deref()));
        let texts = arguments.chain(environment).chain(paths).chain(read);
        let is_folder =
            |part: &Part| matches!(part, Part::Placeholder(name) if name == "data_folder");
        texts
            .flat_map(|text| parse_template(text).unwrap_or_default())
            .any(|part| is_folder(&part))
    }

    /// An integer among the values that fills a column of `trials.csv` with its name, such as
    /// `batch_size`.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.values.get(name)?.as_u64()
    }

    /// The value `precision` if it is a text.
    pub fn precision(&self) -> Option<&str> {
        self.values.get("precision")?.as_str()
    }

    /// `batch_size` × `grad_accumulation`; `None` without a batch size.
    pub fn effective_batch_size(&self) -> Option<u64> {
        let accumulation = self.count("grad_accumulation").unwrap_or(1);
        self.count("batch_size")?.checked_mul(accumulation)
    }

    /// The part of the settings that decides a trial's result, for its id: without what is only
    /// read, and with the program by its file name alone.
    pub(crate) fn identity(&self) -> Self {
        Self {
            argv: self.argv.with_program_name(),
            values: self.values.clone(),
            environment: self.environment.clone(),
            prepare: self.prepare.clone(),
            folder: None,
            files: Vec::new(),
            metrics: Named::default(),
            window: None,
            grows: Vec::new(),
            exits: Exits::default(),
            checkpoints: false,
        }
    }
}

impl ModelKind for Command {
    fn kind(&self) -> &'static str {
        COMMAND
    }

    fn trains(&self) -> bool {
        false
    }

    fn reads(&self) -> Content {
        Content::Nothing
    }

    fn parameters(&self, _input: Option<InputShape>) -> Option<u64> {
        None
    }

    fn flops_per_sample(&self, _input: Option<InputShape>) -> Option<u64> {
        None
    }

    fn flops_formula(&self) -> &'static str {
        ""
    }
}
