//! A column of `trials.csv` as a metric, asked for by its name.

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    record::{TrialRow, tables::TRIALS},
    spec::Metric,
    statistics::Nature,
};
use serde_json::Value;

/// A column of numbers, and which direction of it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnMetric {
    pub name: &'static str,
    pub is_better_high: bool,
}

/// Columns of the runner that the state of the machine does not affect, besides those of learning
/// and of memory.
const SETTLED: [&str; 5] = [
    "parameters",
    "flops_per_sample",
    "steps",
    "skipped_steps",
    "allocator_retries",
];

impl ColumnMetric {
    /// The column of a table, by its name. `None`: the table does not have it.
    pub fn named(name: &str, is_better_high: bool) -> Option<Self> {
        let mut columns = TRIALS.columns.iter();
        let name = match name.strip_prefix(METRIC_PREFIX) {
            Some(own) => Metric::named(own).name(),
            None => columns.find(|column| column.name == name)?.name,
        };
        Some(Self {
            name,
            is_better_high,
        })
    }

    /// Which direction of a column is better, where that needs no telling.
    pub fn known_direction(name: &str) -> Option<bool> {
        let metric = Metric::named(name);
        (!matches!(metric, Metric::Own(_))).then(|| metric.is_better_high())
    }

    /// The number of a row.
    pub(super) fn read(self, row: &TrialRow) -> Option<f64> {
        if self.name.starts_with(METRIC_PREFIX) {
            return row.metric_of_column(self.name);
        }
        serde_json::to_value(row)
            .ok()?
            .get(self.name)
            .and_then(Value::as_f64)
    }

    /// Whether the state of the machine affects it; an unknown number may be affected.
    pub(super) fn nature(self) -> Nature {
        let is_learned = self.name.starts_with("valid_") || self.name == "train_loss";
        let is_of_memory = self.name.starts_with("peak_") && self.name.ends_with("_bytes");
        match is_learned || is_of_memory || SETTLED.contains(&self.name) {
            true => Nature::Settled,
            false => Nature::Drifting,
        }
    }
}
