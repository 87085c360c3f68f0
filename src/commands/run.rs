//! `kiln run`: runs an experiment, or resumes its newest unfinished run.

use std::path::{Path, PathBuf};

use kiln_core::{
    plan::{Outcome, Trial},
    record::{AttemptEnd, Checkpoints, RunFolder, TrialTable},
    spec::{self, Experiment, RunPlace},
    units::{counted, significant, without_controls},
};

use super::{
    Status, Stop, continuation, initial_weights,
    launching::{Launching, WantedLaunch, instruments, place, stopped},
    machine::trial_program,
    note,
    planned::{Planned, all_here, plan_file},
    print, same_name, workers,
};
use crate::{
    progress::ProgressMode,
    report::{self, compare::how_to_compare},
    schedule::{self, Instruments, LaunchEnd, LaunchReport, RunRequest, Selection, needs_gpu},
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files, run one after the other.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Run only these trials: `--only ID,ID`, or repeat the option. The beginning of an id is
    /// enough.
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Retry trials with these outcomes: `--rerun failed,timed-out`, or repeat the option.
    #[arg(long, value_name = "OUTCOME,…", value_delimiter = ',', value_parser = outcome)]
    rerun: Vec<Outcome>,
    /// Go on from a checkpoint of this run, or of one trial of it: weights, optimizer and place in
    /// the data. Steps count from the beginning of that training, so ask for more of them. A run is
    /// named as in `kiln report`.
    #[arg(
        long = "continue",
        value_name = "RUN[:TRIAL]",
        conflicts_with = "rerun"
    )]
    continued: Option<String>,
    /// With `--on workers` or `--on slurm`: return once the queue is made, without attending.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    launch: Launching,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    let names: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    Outcome::ALL
        .into_iter()
        .find(|outcome| outcome.name() == text)
        .ok_or_else(|| {
            format!(
                "`{text}` is not an outcome; use one of {}",
                names.join(", ")
            )
        })
}

/// One file, read and planned.
pub(super) struct PlannedFile {
    planned: Planned,
    resolved: String,
    selection: Selection,
}

impl PlannedFile {
    /// # Errors
    /// If its data is missing, unless nothing is to be run.
    pub(super) fn new(planned: Planned, launch: &Launching) -> Result<Self, Stop> {
        if !launch.dry_run {
            let trials = &planned.plan.trials;
            let experiment = &planned.loaded.experiment.name;
            all_here(
                &[
                    &planned.notes[..],
                    &initial_weights::faults(&planned.loaded, trials),
                    &continuation::faults(trials, experiment, &launch.results),
                ]
                .concat(),
            )?;
        }
        Ok(Self {
            resolved: spec::write_resolved(&planned.loaded),
            planned,
            selection: Selection::default(),
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

    /// What the workers ask of Slurm: `, partition gpu, gpu:h200:1, 4h`.
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

    /// Builds the scheduler's request and passes it to `with`.
    pub(super) fn request<T>(
        &self,
        launch: &Launching,
        program: &Path,
        with: impl FnOnce(&RunRequest) -> T,
    ) -> T {
        let wanted = WantedLaunch {
            experiment: &self.planned.loaded.experiment,
            resolved: &self.resolved,
            trials: &self.planned.plan.trials,
            search: None,
            selection: self.selection.clone(),
            data: &self.planned.data,
        };
        launch.request(&wanted, program, with)
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    // Every file is read before the first trial of the first one starts.
    let asked = args
        .files
        .iter()
        .map(|file| plan(file, &args))
        .collect::<Result<Vec<_>, _>>()?;
    let program = trial_program()?;
    let mut worst = Status::Success;
    for asked in asked {
        // A file that cannot run does not stop the others.
        let status = run_one(asked, &args, &program).unwrap_or_else(|stop| {
            stop.print();
            stop.status
        });
        worst = worst.max(status);
        if status == Status::Interrupted {
            break;
        }
    }
    Ok(worst)
}

fn plan(file: &Path, args: &Args) -> Result<PlannedFile, Stop> {
    let mut planned = plan_file(file.to_owned(), &args.launch.settings())?;
    if let Some(named) = &args.continued {
        let Launching { results, fresh, .. } = &args.launch;
        let notes = continuation::continue_run(&mut planned, named, results, *fresh)?;
        if !args.launch.quiet {
            notes.iter().for_each(|line| note(line));
        }
    }
    if !args.launch.quiet {
        planned.warn();
        let name = &planned.loaded.experiment.name;
        if let Some(line) = same_name::notice(file, name) {
            note(&line);
        }
    }
    let only = schedule::find_ids(&planned.plan.trials, &args.only)
        .map_err(|what| Stop::bad_input(format!("{}: {what}", file.display())))?;
    Ok(PlannedFile {
        selection: Selection {
            only,
            rerun: args.rerun.clone(),
        },
        ..PlannedFile::new(planned, &args.launch)?
    })
}

/// What each worker asks of Slurm: `, partition gpu, gpu:h200:1, 4h`.
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

fn run_one(asked: PlannedFile, args: &Args, program: &Path) -> Result<Status, Stop> {
    if args.launch.dry_run {
        return asked.request(&args.launch, program, dry_run);
    }
    let on = asked.planned.loaded.experiment.run.on;
    if on != RunPlace::Here {
        return workers::run_on_workers(asked, &args.launch, program, args.detach);
    }
    let launched = asked.request(&args.launch, program, start)?;
    let (status, report) = (status(&launched.report), launched.report.clone());
    let shown = show(launched, &args.launch, &asked.into_experiment());
    if let Some(failure) = &report.failure {
        return Err(stopped(failure.clone()));
    }
    if !args.launch.quiet {
        say_how_to_go_on(&report, args);
    }
    // A terminal that was closed can show nothing, but the interruption is what counts.
    match shown {
        Err(stop) if status < stop.status => Err(stop),
        _ => Ok(status),
    }
}

/// Prints the result of a launch.
pub(super) fn show(
    launched: Launched,
    launch: &Launching,
    experiment: &Experiment,
) -> Result<(), Stop> {
    let Launched { report, table } = launched;
    match &report.lost_events {
        Some(why) => Err(Stop::new(Status::Failed, why)),
        None if launch.style() == ProgressMode::Json => Ok(()),
        None => table.and_then(|table| print(&summary(&report, &table, experiment))),
    }
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
    let table = TrialTable::read_of(&report.folder);
    if let Ok(table) = &table {
        write_point_table(&report, table, request.experiment.ranking_objective());
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

pub(super) fn dry_run(request: &RunRequest) -> Result<Status, Stop> {
    let preview =
        schedule::preview(request, &|| instruments_for(request.trials)).map_err(stopped)?;
    let mut text = format!(
        "{}: {} of {} trials would run\n",
        place(request, &preview),
        preview.to_run.len(),
        request.trials.len()
    );
    for (id, before) in &preview.to_run {
        text.push_str(&match before {
            Some(outcome) => format!("{id}  {outcome} before\n"),
            None => format!("{id}\n"),
        });
    }
    print(&text)?;
    Ok(Status::Success)
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

fn say_how_to_go_on(report: &LaunchReport, args: &Args) {
    let text = match report.end {
        LaunchEnd::NothingToDo => nothing_to_do(report.left == 0),
        LaunchEnd::Interrupted if args.launch.fresh => {
            "interrupted; run the same command without `--fresh` to resume"
        }
        LaunchEnd::Interrupted => "interrupted; run the same command to resume",
        LaunchEnd::Finished if report.left > 0 && args.only.is_empty() => {
            "some trials have no final result yet; run the same command again to run them"
        }
        LaunchEnd::Finished if report.left > 0 => {
            "some trials have no final result yet; run the same command without `--only` to run \
             them"
        }
        LaunchEnd::Finished => return,
    };
    note(text);
}

/// Why no trial is begun, and what to do; `is_everything` if no trial of the plan is left.
pub(super) fn nothing_to_do(is_everything: bool) -> &'static str {
    match is_everything {
        true => {
            "every trial already has its result; `--fresh` starts a new run, `--rerun failed` \
             retries failed trials"
        }
        false => {
            "the requested trials have already ended; `--rerun failed` retries failed trials, and \
             without `--only` the others run"
        }
    }
}

/// Returns the experiment's description, the report of the run's table, and the paths of the files.
fn summary(report: &LaunchReport, table: &TrialTable, experiment: &Experiment) -> String {
    let page = report::summary(
        table,
        report.trials,
        experiment.ranking_objective(),
        super::page_style(),
    );
    let folder = &report.folder;
    let together = experiment.sweep.together.first();
    let between = together
        .and_then(|axis| how_to_compare(table, axis, &folder.path().display().to_string()))
        .unwrap_or_default();
    let purpose = experiment
        .description
        .as_deref()
        .map(|text| indented(text) + "\n")
        .unwrap_or_default();
    format!(
        "\n{purpose}{page}{between}\n{}{}{}",
        texts(report),
        weights(report),
        worth_committing(folder)
    )
}

/// Names what to commit: the whole folder, of which git takes only what is small.
pub(super) fn worth_committing(folder: &RunFolder) -> String {
    let path = without_controls(&folder.path().display().to_string());
    let summary = match folder.summary_table().is_file() {
        true => "  (summary.csv is the short table)",
        false => "",
    };
    format!("Worth committing (weights and readings stay out of git):\n  {path}{summary}\n")
}

/// Writes `summary.csv`. A run is complete without it, so an error is only a note.
fn write_point_table(
    report: &LaunchReport,
    table: &TrialTable,
    objective: Option<spec::Objective>,
) {
    if report.end == LaunchEnd::NothingToDo || table.rows.is_empty() {
        return;
    }
    let folder = &report.folder;
    let path = folder.summary_table();
    let text = report::point_table(table, objective);
    if let Err(error) = folder.write(&path, text.as_bytes()) {
        note(&format!(
            "{}: {error}; `kiln report --write {}` writes it",
            path.display(),
            folder.path().display()
        ));
    }
}

/// The lines of a description; those after the first are indented, so that none of them can pass
/// for a line of the page.
fn indented(description: &str) -> String {
    let lines = description.trim_end().lines().map(without_controls);
    lines.collect::<Vec<_>>().join("\n  ") + "\n"
}

/// A line of a list of files.
pub(super) fn path_line(path: &Path) -> String {
    format!("  {}\n", without_controls(&path.display().to_string()))
}

/// Most paths of texts or weights that are listed.
const MOST_LISTED: usize = 4;

/// Returns the paths of the texts of `train.sample`; empty if there are none.
fn texts(report: &LaunchReport) -> String {
    let paths = report
        .last_attempts
        .iter()
        .map(|end| report.folder.sample_texts(&end.trial, end.attempt));
    let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    listed(
        "Written by the models",
        paths.iter().map(|path| path_line(path)).collect(),
    )
}

/// Returns the checkpoints whose weights the trials leave; empty if there are none.
fn weights(report: &LaunchReport) -> String {
    let line = |end: &AttemptEnd| {
        let trial = &end.trial;
        let kept = Checkpoints::new(report.folder.checkpoints(trial), trial.clone()).result()?;
        let which = match kept.valid_loss {
            Some(loss) => format!("step {}, valid loss {}", kept.step, significant(loss)),
            None => format!("step {}", kept.step),
        };
        let path = without_controls(&kept.folder.display().to_string());
        Some(format!("  {path}\n    {which}\n"))
    };
    listed(
        "Weights, for `kiln sample`, `kiln predict` and `kiln export`",
        report.last_attempts.iter().filter_map(line).collect(),
    )
}

/// The first of these lines below a title; empty if there are none.
fn listed(title: &str, lines: Vec<String>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let more = match lines.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        more => format!("  … and {more} more\n"),
    };
    let shown = lines[..lines.len().min(MOST_LISTED)].concat();
    format!("{title}:\n{shown}{more}\n")
}
