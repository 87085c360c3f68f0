//! The metrics of a command: where each number comes from, and which column it fills.

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where one number comes from: one of `key`, `line`, `csv`, `json` and `measured`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommandMetric {
    /// A key of the JSON objects among the lines of standard output; dots enter maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// A regular expression with one group, which holds the number, for lines of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The output that `line` and `key` read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<Stream>,
    /// Path of a CSV file, with placeholders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csv: Option<String>,
    /// Column of the CSV file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Path of a JSON file, with placeholders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// Place in the JSON file: keys and indices, separated by dots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// A number that kiln measures itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Which of several numbers, or what of all of them, is kept; by default the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<Take>,
    /// Numbers left out at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub skip: Option<u64>,
    /// Factor that converts the number into the unit of its column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<f64>,
    /// Whether a higher or a lower number is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub better: Option<Better>,
    /// Whether a completed trial may lack it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

impl CommandMetric {
    /// The keys by which two metrics are different numbers, or have different units. A default counts
    /// the same whether it is written or not.
    pub fn keys_of_another_number(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("key", self.key != other.key),
            ("line", self.line != other.line),
            (
                "on",
                self.on.unwrap_or_default() != other.on.unwrap_or_default(),
            ),
            ("csv", self.csv != other.csv),
            ("column", self.column != other.column),
            ("json", self.json != other.json),
            ("at", self.at != other.at),
            ("measured", self.measured != other.measured),
            ("take", self.take() != other.take()),
            ("skip", self.skip() != other.skip()),
            ("times", self.times() != other.times()),
        ];
        let differing = differs.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(key, _)| key).collect()
    }
}

/// An output of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    #[default]
    Stdout,
    Stderr,
}

/// A number that kiln measures of any program, without its help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// From the start of the program to its end, in seconds, or over the window.
    WallSeconds,
    /// CPU time of the program and all that it started and waited for, in seconds.
    CpuSeconds,
    /// Maximum resident memory of its largest process.
    PeakMemoryBytes,
}

impl Measured {
    pub const ALL: [Self; 3] = [Self::WallSeconds, Self::CpuSeconds, Self::PeakMemoryBytes];

    pub fn name(self) -> &'static str {
        match self {
            Self::WallSeconds => "wall_seconds",
            Self::CpuSeconds => "cpu_seconds",
            Self::PeakMemoryBytes => "peak_memory_bytes",
        }
    }
}

/// How one number is taken from several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    #[default]
    Last,
    First,
    Mean,
    Median,
    Min,
    Max,
}

/// The direction of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    High,
    Low,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSource<'a> {
    Key {
        key: &'a str,
        on: Stream,
    },
    Line {
        pattern: &'a str,
        on: Stream,
    },
    /// `file` has placeholders.
    Csv {
        file: &'a str,
        column: &'a str,
    },
    /// `file` has placeholders.
    Json {
        file: &'a str,
        at: &'a str,
    },
    Measured(Measured),
}

impl CommandMetric {
    /// Where it comes from.
    ///
    /// # Errors
    /// No source, several, or half of one: a sentence that follows the metric's key.
    pub fn source(&self) -> Result<MetricSource<'_>, String> {
        let on = self.on.unwrap_or_default();
        let sources = [
            ("key", self.key.is_some()),
            ("line", self.line.is_some()),
            ("csv", self.csv.is_some()),
            ("json", self.json.is_some()),
            ("measured", self.measured.is_some()),
        ];
        let given: Vec<&str> = sources
            .iter()
            .filter_map(|(name, is_given)| is_given.then_some(*name))
            .collect();
        match given[..] {
            [] => {
                return Err(
                    "does not say where the number comes from; give `key`, `line`, `csv` \
                            with `column`, `json` with `at`, or `measured`"
                        .to_owned(),
                );
            }
            [_] => {}
            [first, second, ..] => {
                return Err(format!(
                    "has both `{first}` and `{second}`; a number comes from one place, keep one \
                     of them"
                ));
            }
        }
        self.check_partners(given[0])?;
        Ok(match self {
            Self { key: Some(key), .. } => MetricSource::Key { key, on },
            Self {
                line: Some(pattern),
                ..
            } => MetricSource::Line { pattern, on },
            Self {
                csv: Some(file),
                column: Some(column),
                ..
            } => MetricSource::Csv { file, column },
            Self {
                json: Some(file),
                at: Some(at),
                ..
            } => MetricSource::Json { file, at },
            Self {
                measured: Some(measured),
                ..
            } => MetricSource::Measured(*measured),
            _ => return Err("lacks a part of its source".to_owned()),
        })
    }

    /// Checks that keys that belong to a source are there with it, and only with it.
    fn check_partners(&self, source: &str) -> Result<(), String> {
        let needed = match source {
            "csv" if self.column.is_none() => Some("column"),
            "json" if self.at.is_none() => Some("at"),
            _ => None,
        };
        if let Some(needed) = needed {
            return Err(format!("has `{source}` without `{needed}`; give both"));
        }
        let partners: [(&str, bool, &[&str]); 5] = [
            ("on", self.on.is_some(), &["line", "key"]),
            ("column", self.column.is_some(), &["csv"]),
            ("at", self.at.is_some(), &["json"]),
            ("take", self.take.is_some(), &["key", "line", "csv"]),
            ("skip", self.skip.is_some(), &["key", "line", "csv"]),
        ];
        for (name, is_given, sources) in partners {
            if is_given && !sources.contains(&source) {
                return Err(format!(
                    "has `{name}`, which has no effect with `{source}`; it belongs to `{}`; \
                     remove it",
                    sources.join("`, `")
                ));
            }
        }
        Ok(())
    }

    pub fn take(&self) -> Take {
        self.take.unwrap_or_default()
    }

    pub fn skip(&self) -> u64 {
        self.skip.unwrap_or(0)
    }

    pub fn times(&self) -> f64 {
        self.times.unwrap_or(1.0)
    }

    /// Which direction is better; of what kiln measures itself, low.
    pub fn better(&self) -> Option<Better> {
        self.better
            .or(self.measured.is_some().then_some(Better::Low))
    }

    /// Whether the metric, of this name, is a loss; one that is NaN or infinite means that the
    /// training diverged.
    pub fn is_loss(&self, name: &str) -> bool {
        (name == "loss" || name.ends_with("_loss")) && self.better() != Some(Better::High)
    }
}

/// The pattern of a metric's line: a regular expression with one group.
///
/// # Errors
/// It is not a regular expression, or has not exactly one group: a sentence that follows the key.
pub fn line_pattern(pattern: &str) -> Result<Regex, String> {
    let regex = regular_expression(pattern)?;
    match regex.captures_len() - 1 {
        1 => Ok(regex),
        0 => Err(format!(
            "is `{pattern}`, which has no group; put the number in parentheses, such as \
             `speed: (\\S+)`"
        )),
        groups => Err(format!(
            "is `{pattern}`, which has {groups} groups; keep one around the number, and begin the \
             others with `(?:`"
        )),
    }
}

/// A regular expression for lines.
///
/// # Errors
/// It is not one: a sentence that follows the key.
pub fn regular_expression(pattern: &str) -> Result<Regex, String> {
    #[cfg(test)]
    COMPILED.set(COMPILED.get() + 1);
    Regex::new(pattern).map_err(|error| {
        let why = match &error {
            // The text draws the pattern over several lines; its last line says what is wrong.
            regex::Error::Syntax(text) => text
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned(),
            other => other.to_string(),
        };
        format!("is `{pattern}`, which is not a regular expression: {why}")
    })
}

#[cfg(test)]
thread_local! {
    static COMPILED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The number of regular expressions that this thread has compiled.
#[cfg(test)]
pub(crate) fn compiled_patterns() -> usize {
    COMPILED.get()
}

/// Prefix of a metric's own column in `trials.csv`.
pub const METRIC_PREFIX: &str = "metric.";

/// The column that a metric fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricTarget {
    /// A column that every trial's process may fill, in its unit.
    Column(&'static str),
    /// No column: it is shown while the trial runs.
    Progress,
    /// `metric.NAME`.
    Own,
}

/// Columns of `trials.csv` that a metric of their name fills.
pub const FILLED_COLUMNS: [&str; 23] = [
    "samples_per_second",
    "tokens_per_second",
    "train_loss",
    "valid_loss",
    "lowest_valid_loss",
    "valid_top1",
    "valid_top5",
    "valid_bleu4",
    "valid_chrf",
    "valid_mean_absolute_error",
    "valid_hit_rate",
    "steps",
    "parameters",
    "median_step_seconds",
    "epoch_seconds",
    "data_wait_fraction",
    "transfer_fraction",
    "evaluation_seconds",
    "checkpoint_seconds",
    "seconds_to_target",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "resumed_at_step",
];

/// Names of metrics that are shown while a trial runs.
const PROGRESS: [&str; 2] = ["step", "total_steps"];

/// The column that a metric of this name fills.
pub fn metric_target(name: &str) -> MetricTarget {
    if PROGRESS.contains(&name) {
        return MetricTarget::Progress;
    }
    match FILLED_COLUMNS.iter().find(|column| **column == name) {
        Some(column) => MetricTarget::Column(column),
        None => MetricTarget::Own,
    }
}

impl MetricTarget {
    /// Whether the number must be an integer of 0 or more.
    pub fn is_count(self) -> bool {
        match self {
            Self::Column(name) => {
                let counts = ["steps", "parameters", "resumed_at_step"];
                name.ends_with("_bytes") || counts.contains(&name)
            }
            Self::Progress => true,
            Self::Own => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<String, String> {
        let metric: CommandMetric = serde_yaml::from_str(text).unwrap();
        metric.source().map(|source| format!("{source:?}"))
    }

    #[test]
    fn a_number_comes_from_one_whole_source() {
        for sound in [
            "{key: a.b}",
            "{line: '(a)', on: stderr, take: median, skip: 3}",
            "{csv: f, column: c, take: max}",
            "{json: f, at: a.0, times: 2.0}",
            "{measured: cpu_seconds, better: low}",
        ] {
            assert!(source(sound).is_ok(), "{sound}");
        }
        for (bad, part) in [
            ("{}", "does not say where"),
            ("{take: last}", "does not say where"),
            ("{key: a, line: '(a)'}", "both `key` and `line`"),
            ("{csv: f}", "`csv` without `column`"),
            ("{json: f}", "`json` without `at`"),
            (
                "{key: a, column: b}",
                "`column`, which has no effect with `key`",
            ),
            ("{json: f, at: a, take: max}", "`take`, which has no effect"),
            (
                "{measured: wall_seconds, skip: 1}",
                "`skip`, which has no effect",
            ),
        ] {
            let found = source(bad).unwrap_err();
            assert!(found.contains(part), "{bad}: {found}");
        }
    }

    #[test]
    fn a_loss_is_told_by_its_name_unless_a_higher_one_is_better() {
        let is_loss = |name: &str, better| {
            let metric = CommandMetric {
                better,
                ..CommandMetric::default()
            };
            metric.is_loss(name)
        };
        for name in ["loss", "train_loss", "valid_loss", "eval_loss", "val_loss"] {
            assert!(
                is_loss(name, None) && is_loss(name, Some(Better::Low)),
                "{name}"
            );
            assert!(!is_loss(name, Some(Better::High)), "{name}");
        }
        assert!(!is_loss("gloss", None) && !is_loss("loss_scale", None));
    }

    #[test]
    fn a_metric_fills_the_column_of_its_name_or_its_own() {
        assert_eq!(
            metric_target("train_loss"),
            MetricTarget::Column("train_loss")
        );
        assert_eq!(metric_target("gflops"), MetricTarget::Own);
        assert_eq!(metric_target("step"), MetricTarget::Progress);
        let counts = FILLED_COLUMNS.map(metric_target);
        let counts = counts.iter().filter(|target| target.is_count());
        assert_eq!(counts.count(), 5);
    }
}
