//! `kiln plan`: the trials that would run, as a table or as JSON. Runs nothing and writes nothing but counted data facts.

mod load;
mod table;

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    path::PathBuf,
};

use serde_json::{Map, Value, json};

use super::{Status, Stop, print};
use crate::{
    catalog::{
        Data,
        data::DataFacts,
        facts::{cache_folder, facts},
    },
    plan::{self, Outcome, Plan, TrialId},
    spec::Experiment,
};

/// Version of what `--json` prints.
const PLAN_JSON: u32 = 1;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Put another value at a key, as in `--set train.batch_size=8`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print JSON, one object per file and line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut status = Status::Success;
    for file in &args.files {
        let planned = load::load(file, &args.set).and_then(|experiment| {
            let finder = FactFinder::from_environment();
            let plan = plan::expand(&experiment, &|data| finder.find(data), 1).map_err(|problems| refuse(file, &problems))?;
            Ok((experiment, plan, finder))
        });
        match planned {
            Ok((experiment, plan, finder)) => print(&show(&experiment, &plan, &finder, &HashMap::new(), args.json)?)?,
            Err(stop) if args.files.len() == 1 => return Err(stop),
            Err(stop) => {
                print(&format!("{}\n", stop.message))?;
                status = stop.status;
            }
        }
    }
    Ok(status)
}

fn refuse(file: &std::path::Path, problems: &[plan::PlanProblem]) -> Stop {
    let lines: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
    Stop::bad_input(lines.join("\n"))
}

/// `ended` holds the outcomes that an unfinished run of this experiment already has.
fn show(experiment: &Experiment, plan: &Plan, finder: &FactFinder, ended: &HashMap<TrialId, Outcome>, as_json: bool) -> Result<String, Stop> {
    if as_json {
        return to_json(experiment, plan, finder, ended).map_err(|error| Stop::new(Status::Failed, error));
    }
    let footer = table::footer(&experiment.name, plan, &finder.notes(), ended);
    Ok(format!("{}\n\n{footer}", table::table(plan)))
}

fn to_json(experiment: &Experiment, plan: &Plan, finder: &FactFinder, ended: &HashMap<TrialId, Outcome>) -> serde_json::Result<String> {
    let mut trials = Vec::new();
    for trial in &plan.trials {
        let mut value = serde_json::to_value(trial)?;
        value["axes"] = trial.axes.iter().cloned().collect::<Map<String, Value>>().into();
        let epoch = plan.epoch_of(trial);
        value["samples_per_epoch"] = epoch.map(|epoch| epoch.samples).into();
        value["dropped_samples_per_epoch"] = epoch.map(|epoch| epoch.dropped_samples()).into();
        if let Some(outcome) = ended.get(&trial.id) {
            value["outcome"] = outcome.name().into();
        }
        trials.push(value);
    }
    let whole = json!({
        "kiln_plan": PLAN_JSON,
        "name": experiment.name,
        "points": plan.points,
        "repeats": plan.repeats,
        "order": plan.order,
        "axes": plan.axes,
        "expected_disk_bytes": plan.expected_disk_bytes(),
        "notes": finder.notes(),
        "trials": trials,
    });
    Ok(format!("{whole}\n"))
}

/// Finds what is known of a text, and keeps the reasons why some is not.
pub(super) struct FactFinder {
    data_folder: Option<PathBuf>,
    cache: Option<PathBuf>,
    notes: RefCell<BTreeSet<String>>,
}

impl FactFinder {
    /// With `$KILN_DATA` and the user's cache folder.
    pub(super) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { data_folder: variable("KILN_DATA"), cache: cache_folder(variable("XDG_CACHE_HOME"), variable("HOME")), notes: RefCell::default() }
    }

    pub(super) fn find(&self, data: &Data) -> Option<DataFacts> {
        facts(data, self.data_folder.as_deref(), self.cache.as_deref()).unwrap_or_else(|error| {
            self.notes.borrow_mut().insert(error.to_string());
            None
        })
    }

    /// Why some facts are unknown.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().cloned().collect()
    }
}
