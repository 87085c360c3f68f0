//! A planned file, and the launch of its trials: for `kiln run` and the other commands that run
//! trials.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use kiln_core::{
    input,
    plan::{Outcome, Trial, TrialId},
    record::{AttemptEnd, RunFolder, TrialTable},
    spec::{self, Experiment, RunPlace},
    units::{counted, without_controls},
};
use serde_json::{Value, json};

use super::{
    Status, Stop, continuation,
    experiment_plan::{Planned, all_here},
    initial_weights,
    launch_options::{LaunchOptions, WantedLaunch, instruments, place, stopped},
    note, print, print_json,
    sources::table_of_run,
    summary_table::write_point_table,
};
use crate::{
    progress::{ProgressMode, names::name},
    report,
    schedule::{
        self, Budget, CopyPurpose, CopySource, Instruments, LaunchEnd, LaunchReport, Preview,
        RunRequest, Selection, needs_gpu,
    },
};

/// One file, read and planned.
pub(super) struct PlannedFile {
    planned: Planned,
    resolved: String,
    selection: Selection,
    /// The run of which the new run begins as a copy.
    copied: Option<(RunFolder, CopyPurpose)>,
    budget: Option<Budget>,
}

impl PlannedFile {
    /// # Errors
    /// If its data is missing, unless nothing is to be run.
    pub(super) fn new(planned: Planned, launch: &LaunchOptions) -> Result<Self, Stop> {
        let trials = &planned.plan.trials;
        let experiment = &planned.loaded.experiment.name;
        let faults = [
            &planned.notes[..],
            &initial_weights::faults(&planned.loaded, trials),
            &planned.unfit_weights,
            &continuation::faults(trials, experiment, launch),
        ]
        .concat();
        match launch.dry_run {
            true => faults
                .iter()
                .for_each(|fault| note(&format!("no trial could start here: {fault}"))),
            false => all_here(&faults)?,
        }
        Ok(Self {
            resolved: spec::write_resolved(&planned.loaded),
            planned,
            selection: Selection::default(),
            copied: None,
            budget: None,
        })
    }

    /// Drops the planned trials, which take as much memory as the table, and returns the experiment for
    /// the report.
    pub(super) fn into_experiment(self) -> Experiment {
        self.planned.loaded.experiment
    }

    /// Where the trials run.
    pub(super) fn place(&self) -> RunPlace {
        self.planned.loaded.experiment.run.on
    }

    /// The resources that each worker requests from Slurm: `, partition gpu, gpu:h200:1, 4h`.
    pub(super) fn slurm_in_words(&self) -> String {
        slurm_in_words(&self.planned.loaded.experiment)
    }

    /// Whether all trials are requested: `--only` is absent.
    pub(super) fn asks_for_all(&self) -> bool {
        self.selection.only.is_empty()
    }

    /// The trials of the next request.
    pub(super) fn select(&mut self, selection: Selection) {
        self.selection = selection;
    }

    /// Lets the launch make a new run as a copy of this one.
    pub(super) fn copy_of(&mut self, run: RunFolder, purpose: CopyPurpose) {
        self.copied = Some((run, purpose));
    }

    /// The time in which trials may begin (`--for`).
    pub(super) fn limit(&mut self, budget: Option<Budget>) {
        self.budget = budget;
    }

    /// Builds the scheduler's request and passes it to `with`.
    pub(super) fn request<T>(
        &self,
        launch: &LaunchOptions,
        program: &Path,
        with: impl FnOnce(&RunRequest) -> T,
    ) -> T {
        let wanted = WantedLaunch {
            experiment: &self.planned.loaded.experiment,
            resolved: &self.resolved,
            trials: &self.planned.plan.trials,
            search: None,
            selection: self.selection.clone(),
            copied: self.copied.as_ref().map(|(run, purpose)| CopySource {
                run,
                purpose: *purpose,
            }),
            budget: self.budget.as_ref(),
            data: &self.planned.data,
        };
        launch.request(&wanted, program, with)
    }
}

/// The resources that each worker requests from Slurm: `, partition gpu, gpu:h200:1, 4h`.
pub(super) fn slurm_in_words(experiment: &Experiment) -> String {
    let Some(slurm) = &experiment.run.slurm else {
        return String::new();
    };
    let parts = [
        slurm
            .partition
            .as_ref()
            .map(|partition| format!("partition {partition}")),
        slurm.gres.clone(),
        slurm.cpus.map(|cpus| counted(cpus as usize, "CPU")),
        slurm.memory.map(|memory| memory.to_string()),
        slurm.time.map(|time| time.to_string()),
    ];
    let parts = parts.into_iter().flatten();
    parts.map(|part| format!(", {part}")).collect()
}

/// A launch that has ended, and the run's table, read once for everything that needs it.
pub(super) struct Launched {
    pub(super) report: LaunchReport,
    pub(super) table: Result<TrialTable, Stop>,
}

/// Runs the requested trials.
pub(super) fn start(request: &RunRequest) -> Result<Launched, Stop> {
    start_with(request, instruments_for(request.trials))
}

/// Runs the requested trials with these instruments, and writes the run's `summary.csv`.
pub(super) fn start_with(request: &RunRequest, instruments: Instruments) -> Result<Launched, Stop> {
    let report = schedule::run(request, instruments).map_err(stopped)?;
    let table = table_of_run(&report.folder);
    if let Ok(table) = &table {
        write_summary(&report, table, request.experiment.ranking_objective());
    }
    Ok(Launched {
        report,
        table: table.map_err(|error| Stop::new(Status::Failed, error)),
    })
}

pub(super) fn instruments_for(trials: &[Trial]) -> Instruments {
    instruments(
        trials
            .iter()
            .any(|trial| needs_gpu(trial.engine, &trial.devices)),
    )
}

/// The exit status depends on the outcome of every requested trial; see `docs/design.md`.
pub(super) fn status(report: &LaunchReport) -> Status {
    match report.end {
        LaunchEnd::Interrupted => Status::Interrupted,
        _ if report
            .last_attempts
            .iter()
            .any(|end| !end.outcome.is_result()) =>
        {
            Status::Failed
        }
        _ => Status::Success,
    }
}

pub(super) fn dry_run(request: &RunRequest, style: ProgressMode) -> Result<Status, Stop> {
    let preview =
        schedule::preview(request, &|| instruments_for(request.trials)).map_err(stopped)?;
    if style == ProgressMode::Json {
        return tell_preview(request, &preview);
    }
    preview.remarks.iter().for_each(|line| note(line));
    let mut text = format!(
        "{}: {} of {} trials would run\n",
        place(request, &preview),
        preview.to_run.len(),
        request.trials.len()
    );
    let is_repeated = request.trials.iter().any(|trial| trial.repeat > 0);
    let trials = request.trials.iter().map(|trial| (&trial.id, trial));
    let trials: HashMap<&TrialId, &Trial> = trials.collect();
    for (id, before) in &preview.to_run {
        let name = trials.get(id).map(|trial| name(trial, is_repeated));
        let name = name.map_or_else(String::new, |name| format!("  {name}"));
        let before = before.map_or_else(String::new, |outcome| format!("  {outcome} before"));
        text.push_str(&without_controls(&format!("{id}{name}{before}")));
        text.push('\n');
    }
    print(&text)?;
    Ok(Status::Success)
}

/// Prints the trials that would run as one JSON event, `dry_run`.
pub(super) fn tell_preview(request: &RunRequest, preview: &Preview) -> Result<Status, Stop> {
    let to_run: Vec<Value> = preview
        .to_run
        .iter()
        .map(|(trial, before)| json!({"trial": trial, "before": before.map(Outcome::name)}))
        .collect();
    let event = json!({
        "event": "dry_run",
        "resumes": preview.resumes.as_ref().map(RunFolder::path),
        "notice": preview.notice,
        "remarks": preview.remarks,
        "trials": request.trials.len(),
        "to_run": to_run,
    });
    print_json(&format!("{event}\n"))?;
    Ok(Status::Success)
}

/// How to make another run where all trials have ended.
pub(super) const FRESH_RUN: &str = "`--fresh` starts a new run";

/// Why no trial is begun, and what to do; `is_everything` if no trial of the plan is left. `ends` are
/// the last attempts, as far as they are known; a retry does not mend those of the `lacking` trials.
/// `new_run` says how to make another run.
pub(super) fn nothing_to_do(
    is_everything: bool,
    ends: &[AttemptEnd],
    lacking: &HashSet<TrialId>,
    new_run: &str,
) -> String {
    let has = |outcome: &Outcome| {
        let mut ends = ends.iter();
        ends.any(|end| end.outcome == *outcome && !lacking.contains(&end.trial))
    };
    let without_result = Outcome::ALL
        .iter()
        .filter(|outcome| **outcome != Outcome::Completed && has(outcome));
    let names: Vec<&str> = without_result.map(|outcome| outcome.name()).collect();
    let again = match names.as_slice() {
        [] if ends.is_empty() => {
            Some("`--rerun OUTCOME,…` runs those of an outcome again".to_owned())
        }
        [] if !lacking.is_empty() => None,
        [] => Some("`--rerun completed` runs them again".to_owned()),
        names if lacking.is_empty() => Some(format!(
            "`--rerun {}` retries those that did not complete",
            names.join(",")
        )),
        names => Some(format!(
            "`--rerun {}` retries those that ended so",
            names.join(",")
        )),
    };
    match (is_everything, again) {
        (true, Some(again)) => {
            format!("every trial already has its result; {new_run}, {again}")
        }
        (true, None) => format!("every trial already has its result; {new_run}"),
        (false, Some(again)) => format!(
            "the requested trials have already ended; {again}, and without `--only` the others run"
        ),
        (false, None) => {
            "the requested trials have already ended; without `--only` the others run".to_owned()
        }
    }
}

/// Writes `summary.csv`. A run is complete without it, so an error is only a note.
fn write_summary(report: &LaunchReport, table: &TrialTable, objective: Option<spec::Objective>) {
    let folder = &report.folder;
    let path = folder.summary_table();
    let was_ended = report.end == LaunchEnd::NothingToDo;
    let is_written = was_ended && !is_behind(&path, &folder.trials_table());
    if table.rows.is_empty() || is_written {
        return;
    }
    let read_again = || table_of_run(folder).ok();
    let text = report::point_table(table, objective);
    if let Err(error) = write_point_table(folder, text, objective, &read_again) {
        note(&format!(
            "{}: {error}; `kiln report --write {}` writes it",
            path.display(),
            folder.path().display()
        ));
    }
}

/// Whether a summary is not of all rows of a table: kiln was killed before it wrote the summary.
fn is_behind(summary: &Path, table: &Path) -> bool {
    let written = |path: &Path| input::find(path).ok()??.modified().ok();
    match (written(summary), written(table)) {
        (Some(summary), Some(table)) => summary < table,
        _ => true,
    }
}
