//! `kiln data show`: what kiln reads of an experiment's data, before a training.

mod page;

use std::{collections::HashMap, path::PathBuf};

use kiln_core::{
    kinds::{Content, Data, data::Loader},
    plan::{Plan, Trial},
};
use kiln_data::{
    error::DataError,
    overview::{DataOverview, overview},
    source::data_folder,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::commands::{
    Status, Stop,
    experiment_plan::{at_home, load_file, plan_without_data},
    json_option::JsonFlag,
    print, print_json,
};

/// Version of the format of `--format json`.
const DATA_SHOW_JSON: u32 = 1;

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// Experiment file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Set a key of the experiment: `data.valid_fraction=0.2`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ShowFormat::Text)]
    format: ShowFormat,
    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ShowFormat {
    /// For a terminal.
    Text,
    /// For programs: one object.
    Json,
}

/// The data of the first point of an experiment.
#[derive(Serialize)]
struct ShownData<'a> {
    kiln_data_show: u32,
    name: &'a str,
    /// The keys that decide the data and differ between points, with their values here.
    axes: Map<String, Value>,
    #[serde(flatten)]
    data: DataOverview,
}

pub(super) fn show(args: &ShowArgs) -> Result<Status, Stop> {
    let loaded = load_file(args.file.clone(), &args.set)?;
    let plan = plan_without_data(&loaded)?;
    let file = args.file.display();
    let first = plan.trials.iter().min_by_key(|trial| trial.point);
    let first = first.ok_or_else(|| Stop::bad_input(format!("{file} has no trial")))?;
    let data = at_home(&first.data);
    if data.content() == Content::Nothing {
        return Err(Stop::bad_input(format!(
            "{file} has no data to show: `data.kind` is none"
        )));
    }
    let found = overview(&data, first.model.seq_len(), data_folder().as_deref());
    let shown = ShownData {
        kiln_data_show: DATA_SHOW_JSON,
        name: &loaded.experiment.name,
        axes: data_axes(&plan, first),
        data: found.map_err(refused)?,
    };
    match args.json.or(args.format, ShowFormat::Json) {
        ShowFormat::Text => print(&page::page(&shown)),
        ShowFormat::Json => {
            let text = serde_json::to_string_pretty(&shown)
                .map_err(|error| Stop::new(Status::Failed, error))?;
            print_json(&format!("{text}\n"))
        }
    }?;
    Ok(Status::Success)
}

/// The same status as of `kiln plan`, and of `kiln run` where data are missing.
fn refused(error: DataError) -> Stop {
    let status = if error.is_malformed() {
        Status::BadInput
    } else {
        Status::CannotRun
    };
    Stop::new(status, error)
}

/// The axes that decide the data or their samples, with their values at the first point.
fn data_axes(plan: &Plan, first: &Trial) -> Map<String, Value> {
    let samples: Vec<String> = plan.trials.iter().map(samples_key).collect();
    let candidates: Vec<usize> = (0..first.axes.len())
        .filter(|axis| can_decide_data(&first.axes[*axis].0))
        .collect();
    let mut named: Vec<usize> = candidates
        .iter()
        .copied()
        .filter(|axis| decides_alone(&plan.trials, &samples, *axis))
        .collect();
    // Axes that vary only together, as in `sweep.zip`.
    let of_first = samples_key(first);
    let others = plan.trials.iter().zip(&samples);
    let mut together: Vec<Vec<usize>> = others
        .filter(|(_, samples)| **samples != of_first)
        .map(|(trial, _)| {
            let differs = |axis: &usize| trial.axes.get(*axis) != first.axes.get(*axis);
            candidates.iter().copied().filter(differs).collect()
        })
        .collect();
    together.sort_by_key(Vec::len);
    for axes in together {
        if !axes.iter().any(|axis| named.contains(axis)) {
            named.extend(axes);
        }
    }
    named.sort_unstable();
    let values = named.iter().map(|axis| first.axes[*axis].clone());
    values.collect()
}

/// Everything that decides which samples a trial has.
fn samples_key(trial: &Trial) -> String {
    let mut data = Data::clone(&trial.data);
    if let Some(loader) = data.loader_mut() {
        *loader = Loader::default();
    }
    format!("{data:?} {:?}", trial.model.seq_len())
}

/// Whether trials that differ only in this axis have other samples.
fn decides_alone(trials: &[Trial], samples: &[String], axis: usize) -> bool {
    let mut seen: HashMap<String, &String> = HashMap::new();
    trials.iter().zip(samples).any(|(trial, samples)| {
        let mut others = trial.axes.clone();
        if axis < others.len() {
            others.remove(axis);
        }
        *seen.entry(format!("{others:?}")).or_insert(samples) != samples
    })
}

/// Whether a key may decide which samples there are; those of the loader do not.
fn can_decide_data(key: &str) -> bool {
    match key.split_once('.') {
        Some(("data", name)) => {
            !serde_json::to_value(Loader::default()).is_ok_and(|loader| loader.get(name).is_some())
        }
        Some((section, _)) => section == "model",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_loader_do_not_decide_the_data() {
        for key in ["data.path", "data.tokenizer", "model.seq_len"] {
            assert!(can_decide_data(key), "{key}");
        }
        for key in ["data.num_workers", "data.pin_memory", "train.batch_size"] {
            assert!(!can_decide_data(key), "{key}");
        }
    }
}
