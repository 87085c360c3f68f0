//! Checks that a command has what a search needs: a value to vary, and a metric to compare.

use serde_json::Value;

use crate::{
    kinds::{
        KeyFault,
        command::{Better, Command},
    },
    spec::Search,
};

/// Names of metrics that a search by speed compares.
const SPEEDS: [&str; 2] = ["samples_per_second", "tokens_per_second"];

/// Faults that no value of the command decides, only its names.
const BY_NAMES: [&str; 1] = ["model.kind"];

/// Returns why a search cannot vary or compare this command.
pub(super) fn faults(command: &Command, search: &Search) -> Vec<KeyFault> {
    let searched = match search {
        Search::SuccessiveHalving { .. } => vec![
            "`successive-halving` lengthens its trials by `train.steps`, which a command does not \
             have; list the values in `sweep.grid`, such as `model.values.NAME: [1, 2, 4]`"
                .to_owned(),
        ],
        Search::LargestBatch { .. } => of_batch(command).into_iter().collect(),
        Search::BestThroughputBatch { keep_effective, .. } => of_batch(command)
            .into_iter()
            .chain(keep_effective.then(|| of_accumulation(command)).flatten())
            .chain(of_speed(command, search.kind()))
            .collect(),
        Search::Workers { .. } => of_workers(command)
            .into_iter()
            .chain(of_speed(command, search.kind()))
            .collect(),
    };
    let fault = |message| KeyFault::between("kind", &BY_NAMES, message);
    searched.into_iter().map(fault).collect()
}

/// The value that is the batch: the one with which memory grows.
fn of_batch(command: &Command) -> Option<String> {
    match command.grows.as_slice() {
        [] => Some(format!(
            "a search for a batch size needs to know which value of the command is the batch; \
             name it in `model.grows`, such as `grows: [{}]`",
            likely_batch(command)
        )),
        // A name that is not a value is refused as such.
        [name] => command
            .values
            .get(name)
            .and_then(|value| not_a_count(name, value, 1)),
        [first, second, ..] => Some(format!(
            "a search varies one value, but `model.grows` names `{first}` and `{second}`; keep \
             the one that is the batch"
        )),
    }
}

/// The name of a value that may be the batch.
fn likely_batch(command: &Command) -> &str {
    let counts = || {
        let named = command.values.iter();
        named.filter(|(_, value)| value.as_u64().is_some_and(|count| count > 0))
    };
    let is_batch = |(name, _): &(&String, &Value)| {
        let name = name.to_lowercase();
        name.contains("batch") || name == "bs"
    };
    counts()
        .find(is_batch)
        .or_else(|| counts().next())
        .map_or("batch_size", |(name, _)| name)
}

fn not_a_count(name: &str, value: &Value, least: u64) -> Option<String> {
    let is_count = value.as_u64().is_some_and(|count| count >= least);
    (!is_count).then(|| {
        format!(
            "`model.values.{name}` is {value}, and this search varies it over integers; set it to \
             an integer of {least} or more"
        )
    })
}

fn of_accumulation(command: &Command) -> Option<String> {
    match command.values.get("grad_accumulation") {
        Some(value) => not_a_count("grad_accumulation", value, 1),
        None => Some(
            "`keep_effective` trades the batch for accumulation, but the command has no value \
             `grad_accumulation`; give the value for it this name, or remove `keep_effective`"
                .to_owned(),
        ),
    }
}

fn of_workers(command: &Command) -> Option<String> {
    match command.values.get("num_workers") {
        Some(value) => not_a_count("num_workers", value, 0),
        None => Some(
            "`workers` varies the number of loader workers, but the command has no value \
             `num_workers`; give the value for it this name"
                .to_owned(),
        ),
    }
}

/// The number that a search by speed compares.
fn of_speed(command: &Command, search: &str) -> Option<String> {
    let has_speed = SPEEDS
        .iter()
        .any(|name| command.metrics.get(name).is_some());
    if has_speed {
        return None;
    }
    let own = command.metrics.iter();
    let likely = own.filter(|(_, metric)| metric.better() == Some(Better::High));
    let hint = match likely.map(|(name, _)| name).next() {
        Some(name) => format!("if `{name}` counts them, call it so"),
        None => "read it from the output, such as `samples_per_second: {line: '(\\S+) \
                 samples/s'}`"
            .to_owned(),
    };
    Some(format!(
        "`{search}` compares speeds, but the command gives no `samples_per_second` or \
         `tokens_per_second` among `model.metrics`; {hint}"
    ))
}
