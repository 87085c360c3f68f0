//! `kiln plan`: the trials that would run, as a table or as JSON. Runs nothing and writes nothing but counted data facts.

mod table;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    Status, Stop,
    planned::{Planned, plan_file},
    print,
};
use crate::{
    plan::{Outcome, TrialId},
    record::{RunFile, TrialTable, run_folder::runs},
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
    /// Where runs are kept: what a resume would skip is looked up there.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut status = Status::Success;
    for file in &args.files {
        match plan_file(file.clone(), &args.set) {
            Ok(planned) => print(&show(&planned, &ended(&planned, &args.results), args.json)?)?,
            Err(stop) if args.files.len() == 1 => return Err(stop),
            Err(stop) => {
                print(&format!("{}\n", stop.message))?;
                status = stop.status;
            }
        }
    }
    Ok(status)
}

/// How each trial ended last in the newest run, if that run has this very plan; a run that cannot be read tells nothing here.
fn ended(planned: &Planned, results: &Path) -> HashMap<TrialId, Outcome> {
    let Some(newest) = runs(results, &planned.loaded.experiment.name).pop() else { return HashMap::new() };
    let (Ok(file), Ok(table)) = (RunFile::read(&newest.run_file()), TrialTable::read(&newest.trials_table())) else { return HashMap::new() };
    if !file.plan.iter().eq(planned.plan.trials.iter().map(|trial| &trial.id)) {
        return HashMap::new();
    }
    table.last_attempts().into_iter().map(|row| (row.fixed.trial.clone(), row.fixed.outcome)).collect()
}

/// `ended` holds the outcomes that an unfinished run of this experiment already has.
fn show(planned: &Planned, ended: &HashMap<TrialId, Outcome>, as_json: bool) -> Result<String, Stop> {
    if as_json {
        return to_json(planned, ended).map_err(|error| Stop::new(Status::Failed, error));
    }
    let footer = table::footer(&planned.loaded.experiment.name, &planned.plan, &planned.notes, ended);
    Ok(format!("{}\n\n{footer}", table::table(&planned.plan)))
}

fn to_json(planned: &Planned, ended: &HashMap<TrialId, Outcome>) -> serde_json::Result<String> {
    let plan = &planned.plan;
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
        "name": planned.loaded.experiment.name,
        "points": plan.points,
        "repeats": plan.repeats,
        "order": plan.order,
        "axes": plan.axes,
        "expected_disk_bytes": plan.expected_disk_bytes(),
        "notes": planned.notes,
        "trials": trials,
    });
    Ok(format!("{whole}\n"))
}
