//! A column of `trials.csv` as a metric, asked for by its name.

use kiln_core::{
    kinds::command::{Better, Command, CommandMetric, METRIC_PREFIX, MetricTarget, metric_target},
    record::{TrialRow, TrialTable, tables::TRIALS},
    spec::{Metric, learned},
    statistics::Nature,
};
use serde_json::Value;

use super::ComparedMetric;

/// A column of numbers, and which direction of it is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnMetric {
    pub name: &'static str,
    pub is_better_high: bool,
}

/// Ends of the names of a command's own metrics that measure the machine, not what the program
/// learned.
const OF_MACHINE: [&str; 14] = [
    "_seconds",
    "_ms",
    "_us",
    "_ns",
    "_per_second",
    "_bytes",
    "_mb",
    "_mib",
    "_gb",
    "_gib",
    "_joules",
    "_watts",
    "_flops",
    "_mhz",
];

/// The steps until the target follow the seed, and not the machine as the time until it does.
const STEPS_TO_TARGET: &str = "steps_to_target";

/// Columns of the runner that the state of the machine does not affect, besides those of learning
/// and of memory.
const SETTLED: [&str; 6] = [
    STEPS_TO_TARGET,
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

    /// The metrics of a command that say which direction is better, without those that every
    /// comparison has.
    pub fn of_command(command: &Command) -> Vec<Self> {
        let metrics = command.every_metric();
        let column = |(name, metric): (&str, &CommandMetric)| {
            let is_better_high = metric.better()? == Better::High;
            let own = format!("{METRIC_PREFIX}{name}");
            let name = match metric_target(name) {
                MetricTarget::Own => &own,
                MetricTarget::Column(column) if !ComparedMetric::has_column(column) => column,
                MetricTarget::Column(_) | MetricTarget::Progress => return None,
            };
            Self::named(name, is_better_high)
        };
        metrics.iter().filter_map(column).collect()
    }

    /// Whether a row has a number in it.
    pub fn is_in(self, table: &TrialTable) -> bool {
        let mut rows = table.rows.iter();
        rows.any(|row| self.read(&row.fixed).is_some())
    }

    /// Which direction of a column is better, where that needs no telling.
    pub fn known_direction(name: &str) -> Option<bool> {
        let metric = Metric::named(name);
        (!matches!(metric, Metric::Own(_))).then(|| metric.is_better_high())
    }

    /// The number of a row.
    pub(super) fn read(self, row: &TrialRow) -> Option<f64> {
        if self.is_own() {
            return row.metric_of_column(self.name);
        }
        serde_json::to_value(row)
            .ok()?
            .get(self.name)
            .and_then(Value::as_f64)
    }

    /// Whether it is a command's own metric.
    pub(super) fn is_own(self) -> bool {
        self.name.starts_with(METRIC_PREFIX)
    }

    /// Whether it measures what was learned: a loss, or a metric of the validation data.
    pub(super) fn is_learned(self) -> bool {
        learned::is_learned(self.name)
    }

    /// Whether the column holds a loss: one of kiln's, or a metric of a command with the name of a loss.
    pub(in crate::report) fn is_loss(self) -> bool {
        let name = self.name.strip_prefix(METRIC_PREFIX).unwrap_or(self.name);
        name == "loss" || name.ends_with("_loss")
    }

    /// Whether runs of other seeds should have another number: it was learned, are the steps until the
    /// target, or is a command's own and not a time, a rate, memory or energy.
    pub(in crate::report) fn follows_seed(self) -> bool {
        let is_of_machine = OF_MACHINE.iter().any(|end| self.name.ends_with(end));
        self.is_learned() || self.name == STEPS_TO_TARGET || (self.is_own() && !is_of_machine)
    }

    /// Whether the column has the time or the steps until the target loss; a training that fails
    /// never reaches it.
    pub(super) fn is_until_target(self) -> bool {
        learned::UNTIL_TARGET.contains(&self.name)
    }

    /// Whether the state of the machine affects it; an unknown number may be affected.
    pub(in crate::report) fn nature(self) -> Nature {
        let is_of_memory = self.name.starts_with("peak_") && self.name.ends_with("_bytes");
        match self.is_learned() || is_of_memory || SETTLED.contains(&self.name) {
            true => Nature::Settled,
            false => Nature::Drifting,
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::Outcome;

    use super::*;

    #[test]
    fn an_own_metric_with_a_unit_of_the_machine_does_not_follow_the_seed() {
        let follows = |name: &str| {
            let column = ColumnMetric::named(name, false).unwrap();
            column.follows_seed()
        };
        assert!(follows("metric.cost") && follows("metric.items") && follows("valid_loss"));
        for name in ["latency_ms", "hop_ns", "heap_gib", "core_mhz"] {
            assert!(!follows(&format!("{METRIC_PREFIX}{name}")), "{name}");
        }
    }

    #[test]
    fn the_steps_until_the_target_follow_the_seed_and_the_time_until_it_the_machine() {
        let of = |name: &str| {
            let column = ColumnMetric::named(name, false).unwrap();
            // A training that is cut off is one that takes many steps, or long.
            assert!(ComparedMetric::Column(column).decides(Outcome::TimedOut));
            (column.follows_seed(), column.nature())
        };
        assert_eq!(of("steps_to_target"), (true, Nature::Settled));
        assert_eq!(of("seconds_to_target"), (false, Nature::Drifting));
    }

    fn columns(text: &str) -> Vec<(&'static str, bool)> {
        let command: Command = serde_yaml::from_str(text).unwrap();
        let columns = ColumnMetric::of_command(&command);
        columns
            .into_iter()
            .map(|one| (one.name, one.is_better_high))
            .collect()
    }

    #[test]
    fn a_command_is_compared_by_its_metrics_with_a_direction() {
        let told = "argv: [x]\nmetrics:\n  gflops: {key: g, better: high}\n  error: {key: e}\n  \
                    valid_top1: {key: t, better: high}\n  samples_per_second: {key: s, better: \
                    high}\n  valid_loss: {key: l, better: low}";
        assert_eq!(
            columns(told),
            [("metric.gflops", true), ("valid_top1", true)]
        );
        let measured = [
            ("metric.wall_seconds", false),
            ("metric.cpu_seconds", false),
            ("metric.peak_memory_bytes", false),
        ];
        assert_eq!(columns("argv: [x]"), measured);
    }
}
