//! `kiln plan`: prints the trials that would run, as a table or as JSON. Runs nothing and writes
//! only the cache of counted data facts.

mod before;
mod columns;
mod expectation;
mod known_rows;
mod table;
mod time_left;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{Outcome, Plan, Trial, TrialId, tickets},
    spec::{Order, RunPlace},
    units::{TimeSpan, counted, without_controls},
};
use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeSeq},
};
use serde_json::{Map, Value, json};

pub(super) use self::known_rows::known_times;
use self::{
    before::TrialsBefore, columns::PlanRows, expectation::Expectations, time_left::BudgetLeft,
};
use super::{
    RESULTS, Status, Stop,
    continuation::{self, NewestRun},
    copied_run::{CONTINUED_IS_NOT_KEPT, KeepArgs, refused_beside, refused_elsewhere, run_to_copy},
    experiment_plan::{Planned, plan_request, request},
    initial_weights,
    json_option::JsonFormat,
    launch::slurm_in_words,
    launch_options::FOR_IS_HERE,
    machine::{open_instruments, visible_here},
    note, page_style, print, print_json, recorded_trial, same_name, warning,
};
use crate::schedule::{self, FittingTrials, Foretold, IdleForecast, WantedTrials};

/// Version of the format of `--json`.
const PLAN_JSON: u32 = 1;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Set a key of the experiment: `train.batch_size=8`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// As in `kiln run`: the trials go on from checkpoints of this run.
    #[arg(long = "continue", value_name = "RUN[:TRIAL]")]
    continued: Option<String>,
    /// As in `kiln run`: one point of this run in place of the file's sweep.
    #[arg(long, value_name = "RUN[:TRIAL]")]
    at: Option<String>,
    #[command(flatten)]
    keeping: KeepArgs,
    /// As in `kiln run`: say how many trials fit into this time, one after the other. Several files
    /// share it.
    #[arg(long = "for", value_name = "TIME", value_parser = TimeSpan::parse)]
    for_time: Option<TimeSpan>,
    /// Print JSON, one object per file and line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: JsonFormat,
    /// Folder of the runs, to find the trials that a resume would skip.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let mut status = Status::Success;
    let mut time_left = args.for_time.map(BudgetLeft::new);
    for file in &args.files {
        let mut planned = planned_file(file, &args);
        if let Ok(planned) = &mut planned {
            planned.warn();
            show(planned, &args, time_left.as_mut())?;
        }
        match planned.and_then(|planned| planned.has_usable_data()) {
            Ok(()) => {}
            Err(stop) if args.files.len() == 1 => return Err(stop),
            Err(stop) => {
                stop.print();
                status = stop.status;
            }
        }
    }
    Ok(status)
}

fn planned_file(file: &Path, args: &Args) -> Result<Planned, Stop> {
    let mut request = request(file.to_owned(), &args.set);
    if let Some(named) = &args.at {
        (request, _) = recorded_trial::fixed(request, named, &args.results, true)?;
    }
    let mut planned = plan_request(&request)?;
    if args.for_time.is_some() && planned.loaded.experiment.run.on != RunPlace::Here {
        return Err(Stop::bad_input(FOR_IS_HERE.to_owned()));
    }
    if let Some(line) = same_name::notice(file, &planned.loaded.experiment.name) {
        note(&line);
    }
    if let Some(named) = &args.continued {
        if args.keeping.keep.is_some() {
            return Err(refused_beside("--continue", CONTINUED_IS_NOT_KEPT));
        }
        let notes =
            continuation::continue_run(&mut planned, named, &args.results, NewestRun::Resumed)?;
        notes.iter().for_each(|line| note(line));
    }
    Ok(planned)
}

/// The earlier outcomes of the trials if `kiln run` would resume a run or keep its trials, and the
/// reason if it would refuse to.
///
/// # Errors
/// `--keep` names no run, or one that is running or is of a commit.
fn foretold(planned: &Planned, args: &Args) -> Result<Foretold, Stop> {
    let wanted = WantedTrials {
        experiment: &planned.loaded.experiment,
        trials: &planned.plan.trials,
        search: None,
        data: &planned.data,
        results: &args.results,
        fresh: false,
        reruns: false,
        command_line: &[],
    };
    let Some(named) = &args.keeping.keep else {
        return Ok(schedule::foretell(&wanted, &open_instruments));
    };
    let purpose = args.keeping.purpose();
    let run = run_to_copy(named, purpose, &args.results)?;
    if let Some(why) = refused_elsewhere(wanted.experiment.run.on, purpose) {
        return Ok(Foretold {
            refusal: Some(why),
            ..Foretold::default()
        });
    }
    let source = (&run, args.keeping.is_across_programs());
    Ok(schedule::foretell_kept(&wanted, source, &open_instruments))
}

/// The number of GPUs that a run here may use.
fn gpus_here() -> usize {
    visible_here(&open_instruments()).len()
}

/// Takes the time of its trials from `time_left`, if they could run here.
fn show(
    planned: &mut Planned,
    args: &Args,
    time_left: Option<&mut BudgetLeft>,
) -> Result<(), Stop> {
    let Foretold {
        ended,
        refusal,
        kept,
        notice,
    } = foretold(planned, args)?;
    notice.iter().flat_map(|text| text.lines()).for_each(note);
    let has_final = ended.values().any(|outcome| outcome.is_final());
    let forecast = IdleForecast {
        experiment: &planned.loaded.experiment,
        trials: &planned.plan.trials,
        has_final,
        gpus: &gpus_here,
    };
    let idle = forecast.lines(&planned.plan.trials);
    planned.remarks.extend(idle);
    let mut faults = initial_weights::faults(&planned.loaded, &planned.plan.trials);
    faults.extend(planned.unfit_weights.iter().cloned());
    faults.extend(refusal);
    let name = &planned.loaded.experiment.name;
    let expected = Expectations::of(&planned.plan, name, &args.results);
    expected.warnings.iter().for_each(|line| warning(line));
    let fitting = time_left.map(|time| {
        let fitting = expected.fitting(&planned.plan, &ended, time.left);
        let (json, words) = (
            FittingJson::of(time, fitting),
            time.in_words(&fitting, &planned.plan),
        );
        if faults.is_empty() {
            time.pass(&fitting);
        }
        (json, words)
    });
    let (fitting, fits) = fitting.unzip();
    if args.json || args.format.is_json() {
        let text = to_json(planned, &faults, &ended, &expected, fitting);
        return print_json(&text.map_err(|error| Stop::new(Status::Failed, error))?);
    }
    let folder = args.results.join(&planned.loaded.experiment.name);
    let rows = PlanRows {
        plan: &planned.plan,
        expected: &expected,
        before: TrialsBefore {
            ended: &ended,
            kept: kept.as_deref(),
        },
        has_ranges: true,
    };
    let footer = table::footer(&folder, rows, &planned.notes);
    let lines = |fault: &String| -> Vec<String> {
        let whole = format!("cannot run here: {fault}");
        whole.lines().map(str::to_owned).collect()
    };
    let faults = faults.iter().flat_map(lines);
    let remarks: String = faults
        .chain(planned.remarks.iter().cloned())
        .map(|line| without_controls(&line) + "\n")
        .collect();
    let fits = fits.map(|line| line + "\n").unwrap_or_default();
    let place = place(planned).map(|line| line + "\n").unwrap_or_default();
    print(&format!(
        "{}\n\n{footer}{fits}{place}{remarks}",
        table::table(rows, page_style().width)
    ))
}

/// Where the trials run, if not here: `on slurm: 8 workers for 15 tickets, partition gpu, 4h`.
fn place(planned: &Planned) -> Option<String> {
    let experiment = &planned.loaded.experiment;
    let tickets = tickets(&planned.plan.trials).len();
    let counted_tickets = counted(tickets, "ticket");
    match experiment.run.on {
        RunPlace::Here => None,
        RunPlace::Workers => Some(format!(
            "on workers: {counted_tickets}, one at a time for each"
        )),
        RunPlace::Slurm => {
            let asked = experiment
                .run
                .slurm
                .as_ref()
                .map_or(1, |slurm| slurm.workers);
            let workers = usize::try_from(asked).unwrap_or(usize::MAX).min(tickets);
            let fewer = match workers as u64 == asked {
                true => String::new(),
                false => format!(" (of {asked} asked for)"),
            };
            Some(format!(
                "on slurm: {}{fewer} for {counted_tickets}{}",
                counted(workers, "worker"),
                slurm_in_words(experiment)
            ))
        }
    }
}

/// `ended` holds the outcomes in an unfinished run of this experiment.
fn to_json(
    planned: &Planned,
    faults: &[String],
    ended: &HashMap<TrialId, Outcome>,
    expected: &Expectations,
    fitting: Option<FittingJson>,
) -> serde_json::Result<String> {
    let plan = &planned.plan;
    let whole = PlanJson {
        kiln_plan: PLAN_JSON,
        name: &planned.loaded.experiment.name,
        points: plan.points,
        repeats: plan.repeats,
        order: plan.order,
        together: &plan.together,
        blocks: plan.blocks(),
        axes: &plan.axes,
        expected_disk_bytes: plan.expected_disk_bytes(),
        notes: [&planned.notes[..], faults].concat(),
        remarks: &planned.remarks,
        fitting,
        trials: TrialsJson {
            plan,
            ended,
            expected,
        },
    };
    Ok(serde_json::to_string(&whole)? + "\n")
}

#[derive(Serialize)]
struct PlanJson<'a> {
    kiln_plan: u32,
    name: &'a str,
    points: u64,
    repeats: u64,
    order: Order,
    together: &'a [String],
    blocks: u64,
    axes: &'a [String],
    expected_disk_bytes: Option<u64>,
    notes: Vec<String>,
    remarks: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    fitting: Option<FittingJson>,
    trials: TrialsJson<'a>,
}

/// The trials and rounds that fit into the time of `--for`.
#[derive(Serialize)]
struct FittingJson {
    for_seconds: f64,
    /// Time in seconds that the files before this one leave of `--for`.
    left_seconds: f64,
    /// Number of trials with an estimate that fit.
    trials: usize,
    seconds: f64,
    /// Trials without an estimate.
    unknown: usize,
    /// Number of whole rounds or blocks that fit; `null` if the plan has only one.
    blocks: Option<usize>,
}

impl FittingJson {
    fn of(time: &BudgetLeft, fitting: FittingTrials) -> Self {
        Self {
            for_seconds: time.span.0.as_secs_f64(),
            left_seconds: time.left.as_secs_f64(),
            trials: fitting.trials,
            seconds: fitting.seconds,
            unknown: fitting.unknown,
            blocks: fitting.blocks,
        }
    }
}

/// The trials, of which one at a time is a value in memory.
struct TrialsJson<'a> {
    plan: &'a Plan,
    ended: &'a HashMap<TrialId, Outcome>,
    expected: &'a Expectations,
}

impl Serialize for TrialsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let trials = &self.plan.trials;
        let mut list = serializer.serialize_seq(Some(trials.len()))?;
        for trial in trials {
            list.serialize_element(&self.trial(trial).map_err(S::Error::custom)?)?;
        }
        list.end()
    }
}

impl TrialsJson<'_> {
    fn trial(&self, trial: &Trial) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(trial)?;
        value["axes"] = trial
            .axes
            .iter()
            .cloned()
            .collect::<Map<String, Value>>()
            .into();
        if trial.model.command().is_some() {
            // A command gets only the seed of the settings of a training.
            value["train"] = json!({"seed": trial.train.seed});
            value["effective_batch_size"] = Value::Null;
            value["engine"] = Value::Null;
        }
        let epoch = self.plan.epoch_of(trial);
        value["expected_disk_bytes"] = trial.expected_disk_bytes().into();
        value["samples_per_epoch"] = epoch.map(|epoch| epoch.samples).into();
        value["dropped_samples_per_epoch"] = epoch.map(|epoch| epoch.dropped_samples()).into();
        let of_trial = self.expected.of_trial(&trial.id);
        let time = of_trial.time;
        value["expected_seconds"] = time.map(|time| time.median).into();
        value["expected_seconds_lowest"] = time.map(|time| time.lowest).into();
        value["expected_seconds_highest"] = time.map(|time| time.highest).into();
        value["expected_time_is"] = time.map(|time| time.grade.name()).into();
        value["expected_memory_bytes"] = of_trial.memory_bytes.into();
        value["least_memory_bytes"] = of_trial.least_memory_bytes.into();
        if let Some(outcome) = self.ended.get(&trial.id) {
            value["outcome"] = outcome.name().into();
        }
        Ok(value)
    }
}
