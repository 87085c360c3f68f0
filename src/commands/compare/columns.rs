//! The columns of `trials.csv` that a comparison asks for: `--metric`, or the metrics of a command.

use std::collections::BTreeSet;

use kiln_core::{
    kinds::command::{Better, Command, METRIC_PREFIX, MetricTarget, metric_target},
    spec::command_of,
    units::listed,
};

use super::{CompareOptions, Reason};
use crate::{
    commands::{Stop, note, sources::TableSource},
    report::compare::{ColumnMetric, ComparedMetric},
};

fn commands_of(runs: &[&TableSource]) -> Vec<Command> {
    let of_run = |run: &&TableSource| command_of(&run.experiment_value()?["model"]);
    runs.iter().filter_map(of_run).collect()
}

/// The columns that rank runs of commands: their metrics that say `better`.
pub(super) fn columns_of_commands(runs: &[&TableSource]) -> Vec<ColumnMetric> {
    let mut columns: Vec<ColumnMetric> = Vec::new();
    for column in commands_of(runs).iter().flat_map(ColumnMetric::of_command) {
        let is_new = columns.iter().all(|known| known.name != column.name);
        if is_new && runs.iter().any(|run| column.is_in(&run.table)) {
            columns.push(column);
        }
    }
    columns
}

/// The columns of those metrics whose source or unit differs between the runs. Keys in `across` may
/// differ.
pub(super) fn other_sources(runs: [&TableSource; 2], across: &[String]) -> Vec<String> {
    let commands = commands_of(&runs);
    let [base, new] = commands.as_slice() else {
        return Vec::new();
    };
    let (base, new) = (base.every_metric(), new.every_metric());
    let is_named = |key: &str| across.iter().any(|named| named == key);
    let is_other = |name: &str| {
        let (Some(base), Some(new)) = (base.get(name), new.get(name)) else {
            return false;
        };
        let map = format!("model.metrics.{name}");
        let is_meant = is_named("model.metrics") || is_named(&map);
        let differing = base.keys_of_another_number(new);
        !is_meant
            && differing
                .iter()
                .any(|key| !is_named(&format!("{map}.{key}")))
    };
    let names = base.iter().map(|(name, _)| name);
    names
        .filter(|name| is_other(name))
        .map(|name| match metric_target(name) {
            MetricTarget::Own => format!("{METRIC_PREFIX}{name}"),
            MetricTarget::Column(_) | MetricTarget::Progress => name.to_owned(),
        })
        .collect()
}

/// The columns of `--metric`, which has these texts, else those that rank runs of commands.
pub(super) fn columns(
    texts: &[String],
    asked: &CompareOptions,
    runs: &[&TableSource],
) -> Result<Vec<ColumnMetric>, Stop> {
    if texts.is_empty() {
        let columns = columns_of_commands(runs);
        let commands = commands_of(runs);
        for column in &columns {
            refuse_two_directions(column.name, &commands)?;
        }
        let has_accuracy = || {
            let mut runs = runs.iter();
            runs.any(|run| ComparedMetric::has_accuracy(&run.table))
        };
        let is_asked = asked.fail_on.contains(&Reason::of_columns());
        if columns.is_empty() && is_asked && !has_accuracy() {
            return Err(Stop::bad_input(
                "`--fail-on worse` needs a column of `--metric` or an accuracy, and the runs have none; name a \
                 column with `--metric`",
            ));
        }
        if columns.is_empty() && !commands.is_empty() {
            tell_of_directions(runs);
        }
        return Ok(columns);
    }
    let commands = commands_of(runs);
    let mut columns: Vec<ColumnMetric> = Vec::new();
    for text in texts {
        let (name, told) = told_direction(text, &commands)?;
        let is_better_high = told.or_else(|| direction(name, &commands));
        let Some(column) = column(name, is_better_high.unwrap_or_default(), runs) else {
            return Err(Stop::bad_input(not_a_column(name, runs)));
        };
        if is_better_high.is_none() {
            return Err(Stop::bad_input(format!(
                "`--metric {name}` does not say which direction is better; write `{name}:high` or \
                 `{name}:low`"
            )));
        }
        if columns.iter().all(|known| known.name != column.name) {
            columns.push(column);
        }
    }
    Ok(columns)
}

/// Says how metrics are compared that do not say which direction is better.
fn tell_of_directions(runs: &[&TableSource]) {
    let metrics = runs.iter().flat_map(|run| &run.table.metrics);
    let mut own = metrics.filter_map(|metric| metric.strip_prefix(METRIC_PREFIX));
    if let Some(name) = own.next() {
        note(&format!(
            "note: no metric of the command says which value is `better`; `--metric {name}:low` or \
             `{name}:high` compares one"
        ));
    }
}

/// The column of a name: of `trials.csv`, or of a metric of a command as the experiment spells it.
fn column(name: &str, is_better_high: bool, runs: &[&TableSource]) -> Option<ColumnMetric> {
    let own = name.strip_prefix(METRIC_PREFIX).unwrap_or(name);
    let of_command = format!("{METRIC_PREFIX}{own}");
    let mut metrics = runs.iter().flat_map(|run| &run.table.metrics);
    let name = match metrics.any(|metric| *metric == of_command) {
        true => &of_command,
        false if own != name => return None,
        false => name,
    };
    ColumnMetric::named(name, is_better_high)
}

fn not_a_column(name: &str, runs: &[&TableSource]) -> String {
    let metrics = runs.iter().flat_map(|run| &run.table.metrics);
    let own = metrics.filter_map(|metric| metric.strip_prefix(METRIC_PREFIX));
    let own: BTreeSet<String> = own.map(|metric| format!("`{metric}`")).collect();
    let own: Vec<String> = own.into_iter().collect();
    let own = match own.is_empty() {
        true => String::new(),
        false => format!("metrics of the command are {}; ", listed(&own, ", ")),
    };
    format!(
        "`--metric {name}` is not a column of numbers of `trials.csv`; {own}docs/tables.md lists \
         the others"
    )
}

/// Checks the texts of `--metric`, or without any the metrics that rank commands, before runs that take
/// hours.
///
/// Errors: a word is not a direction; those of [`refuse_two_directions`].
pub(super) fn check_directions(texts: &[String], runs: &[&TableSource]) -> Result<(), Stop> {
    let commands = commands_of(runs);
    if texts.is_empty() {
        let columns = commands.iter().flat_map(ColumnMetric::of_command);
        return columns
            .into_iter()
            .try_for_each(|column| refuse_two_directions(column.name, &commands));
    }
    texts
        .iter()
        .try_for_each(|text| told_direction(text, &commands).map(|_| ()))
}

/// The column of a text of `--metric`, and the direction that it names.
///
/// Errors: as for [`check_directions`].
fn told_direction<'a>(
    text: &'a str,
    commands: &[Command],
) -> Result<(&'a str, Option<bool>), Stop> {
    match text.split_once(':') {
        Some((name, "high")) => Ok((name, Some(true))),
        Some((name, "low")) => Ok((name, Some(false))),
        Some((_, other)) => Err(Stop::bad_input(format!(
            "`--metric {text}`: `{other}` is not a direction; write `high` or `low`"
        ))),
        None => refuse_two_directions(text, commands).map(|()| (text, None)),
    }
}

/// Errors: the experiments of the runs name different directions of a metric as the better one.
fn refuse_two_directions(name: &str, commands: &[Command]) -> Result<(), Stop> {
    let own = name.strip_prefix(METRIC_PREFIX).unwrap_or(name);
    let directions: Vec<Better> = commands
        .iter()
        .filter_map(|command| command.better(own))
        .collect();
    match directions.iter().any(|better| *better != directions[0]) {
        true => Err(Stop::bad_input(format!(
            "`model.metrics.{own}.better` is `high` in one run and `low` in the other; say which one \
             counts, with `--metric {own}:high` or `--metric {own}:low`"
        ))),
        false => Ok(()),
    }
}

/// Which direction of a metric is better: `better` of the experiment, else what is known of the
/// column.
fn direction(name: &str, commands: &[Command]) -> Option<bool> {
    let own = name.strip_prefix(METRIC_PREFIX).unwrap_or(name);
    let of_command = commands
        .iter()
        .find_map(|command| Some(command.better(own)? == Better::High));
    of_command.or_else(|| ColumnMetric::known_direction(name))
}
