//! `kiln tune`: searches for a batch size, a number of workers or a setting with few trials,
//! instead of running a full grid.

use std::path::{Path, PathBuf};

use kiln_core::{
    folder::write_whole,
    kinds::Data,
    plan::search::Recommendation,
    record::RunFolder,
    spec::{self, Loaded, RunPlace, Search},
    units::{counted, shell_word, without_controls},
};
use kiln_hardware::host::usable_cores;
use serde_json::{Map, Value, json};

use super::{
    Status, Stop,
    experiment_plan::{FactFinder, all_here, load_file, prober},
    initial_weights,
    launch::{Launched, start_with, tell_preview},
    launch_options::{LaunchOptions, WantedLaunch, instruments, place, stopped},
    launch_page::worth_committing,
    machine::{trial_program, warn_of_busy_host},
    mistake::warn_of,
    note,
    own_file::{OwnMark, refuse_foreign},
    print, print_json, secrets,
};
use crate::{
    progress::ProgressMode,
    report,
    schedule::{
        self, Instruments, LaunchEnd, LaunchReport, Progressed, RunRequest, Selection, Tuning,
        needs_gpu,
    },
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment file with `sweep.search`, or any with `--search`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Search for this with default settings, instead of the file's `sweep`.
    #[arg(long, value_name = "KIND", value_enum)]
    search: Option<SearchKind>,
    /// Write the chosen experiment to this file instead of `chosen.yaml` beside the tables.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    launch: LaunchOptions,
}

/// Searches that need no settings.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SearchKind {
    /// The largest batch size that fits into memory.
    LargestBatch,
    /// The batch size with the most samples per second.
    BestThroughputBatch,
    /// The fewest loader workers that do not slow down training.
    Workers,
}

impl SearchKind {
    fn name(self) -> &'static str {
        match self {
            Self::LargestBatch => "largest-batch",
            Self::BestThroughputBatch => "best-throughput-batch",
            Self::Workers => "workers",
        }
    }

    /// The keys of such a search beside its kind, which all have a default.
    fn keys(self) -> Vec<String> {
        let default: Option<Search> = serde_json::from_value(json!({"kind": self.name()})).ok();
        let default = serde_json::to_value(default).unwrap_or_default();
        let keys = default.as_object().into_iter().flat_map(Map::keys);
        keys.filter(|key| *key != "kind").cloned().collect()
    }
}

/// Keys of a sweep that `--search` replaces.
const LISTED: [&str; 9] = [
    "grid", "zip", "sample", "derive", "include", "exclude", "repeats", "together", "order",
];

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let loaded = load(&args)?;
    check_output(&args)?;
    if !args.launch.quiet {
        warn_of(secrets::mistakes(&loaded));
    }
    let experiment = &loaded.experiment;
    refuse_elsewhere(&args.file, experiment.run.on)?;
    let needs_gpu = needs_gpu(experiment.run.engine, &experiment.run.devices);
    let opened = instruments(needs_gpu);
    let finder = FactFinder::from_environment();
    let find = |data: &Data| finder.find(data);
    let gpus = if needs_gpu && !opened.devices().is_empty() {
        experiment.run.devices_per_trial
    } else {
        0
    };
    let prober = prober(&loaded, &finder, &find, usable_cores(), gpus)?;
    let tuning = Tuning::new(experiment, &prober);
    let first = tuning.progress(&[]).trials;
    if !args.launch.dry_run {
        let input = |data: &Data| finder.find(data).map(|facts| facts.input_shape());
        let faults = [
            initial_weights::faults(&loaded, &first),
            initial_weights::unfit(&loaded, &first, &input),
        ];
        all_here(&[finder.notes(), faults.concat()].concat())?;
    }
    let wanted = WantedLaunch {
        experiment,
        resolved: &spec::write_resolved(&loaded),
        trials: &first,
        search: Some(&tuning),
        selection: Selection::default(),
        copied: None,
        budget: None,
        data: &finder.hashes(),
    };
    let program = trial_program()?;
    if args.launch.dry_run {
        return args.launch.request(&wanted, &program, |request| {
            dry_run(request, &|| instruments(needs_gpu), args.launch.style())
        });
    }
    if !args.launch.quiet {
        warn_of_busy_host(
            "speeds come out lower and vary more, so that close values cannot be told apart; end \
             those processes, or search again with `--fresh` when the machine is idle",
        );
    }
    let Launched { report, table } = args
        .launch
        .request(&wanted, &program, |request| start_with(request, opened))?;
    let progressed = tuning.progress(&table?.rows);
    match &progressed.recommendation {
        Some(found) => conclude(found, &progressed, &report, &loaded, &args),
        None => Err(unfinished(&report)),
    }
}

/// Refuses an experiment whose trials run on workers.
fn refuse_elsewhere(file: &Path, place: RunPlace) -> Result<(), Stop> {
    match place {
        RunPlace::Here => Ok(()),
        place => Err(Stop::bad_input(format!(
            "{}: `kiln tune` runs on one machine, because its next trials depend on the results of \
             the ones before, and `run.on` is `{}`; give `--on here`, also in a job of Slurm",
            file.display(),
            place.name()
        ))),
    }
}

const OWN_EXPERIMENT: OwnMark = OwnMark {
    text: spec::CHOSEN_BY_TUNE,
    maker: "kiln tune",
    example: "chosen.yaml",
};

/// Checks the output path before the search, not after hours of trials.
fn check_output(args: &Args) -> Result<(), Stop> {
    let Some(output) = &args.output else {
        return Ok(());
    };
    let refuse = |what: &str| {
        Err(Stop::bad_input(format!(
            "`--output {}`: {what}",
            output.display()
        )))
    };
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let is_same = |one: &Path| {
        one.canonicalize()
            .ok()
            .is_some_and(|one| output.canonicalize().ok() == Some(one))
    };
    match () {
        () if !folder.is_dir() => refuse("its folder does not exist; create it first"),
        () if is_same(&args.file) => refuse("that is the input experiment; name another file"),
        () => refuse_foreign(output, OWN_EXPERIMENT),
    }
}

/// The experiment; with `--search` it has a different name, so that its runs are not mixed with
/// those of the file's sweep.
fn load(args: &Args) -> Result<Loaded, Stop> {
    let mut set = args.launch.settings();
    let Some(kind) = args.search else {
        return load_file(args.file.clone(), &set);
    };
    let unset = LISTED.iter().map(|key| format!("sweep.{key}=null"));
    // A search of this kind in the file has keys of its own.
    let own = kind.keys();
    let mut searched: Vec<String> = unset
        .chain(own.iter().map(|key| format!("sweep.search.{key}=null")))
        .chain([format!("sweep.search.kind={}", kind.name())])
        .collect();
    searched.append(&mut set);
    let name = load_file(args.file.clone(), &searched)?.experiment.name;
    searched.push(format!("name={}", json!(format!("{name}-{}", kind.name()))));
    load_file(args.file.clone(), &searched)
}

fn dry_run(
    request: &RunRequest,
    instruments: &dyn Fn() -> Instruments,
    style: ProgressMode,
) -> Result<Status, Stop> {
    let preview = schedule::preview(request, instruments).map_err(stopped)?;
    if style == ProgressMode::Json {
        return tell_preview(request, &preview);
    }
    let next = match preview.to_run.len() {
        0 => "no more trials to run".to_owned(),
        count => format!(
            "{} next, then further trials that depend on their results",
            counted(count, "trial")
        ),
    };
    let ids: String = preview
        .to_run
        .iter()
        .map(|(id, _)| format!("{id}\n"))
        .collect();
    print(&format!("{}: {next}\n{ids}", place(request, &preview)))?;
    Ok(Status::Success)
}

/// Returns the reason why there is no recommendation yet.
fn unfinished(report: &LaunchReport) -> Stop {
    match &report.failure {
        Some(failure) => stopped(failure.clone()),
        None if report.end != LaunchEnd::Interrupted => {
            let missing = report
                .last_attempts
                .iter()
                .filter(|end| !end.outcome.is_final());
            let missing: Vec<String> = missing
                .map(|end| format!("trial {} ({})", end.trial, end.outcome))
                .collect();
            Stop::new(
                Status::Failed,
                format!(
                    "no final result yet for {}; run the same command to retry",
                    missing.join(", ")
                ),
            )
        }
        None => Stop::new(
            Status::Interrupted,
            "interrupted; run the same command (without `--fresh`) to resume",
        ),
    }
}

/// Writes and prints what the search found, and the chosen experiment.
fn conclude(
    found: &Recommendation,
    progressed: &Progressed,
    report: &LaunchReport,
    loaded: &Loaded,
    args: &Args,
) -> Result<Status, Stop> {
    let experiment = &loaded.experiment;
    let search = experiment.sweep.search.as_ref();
    let metric = match search {
        Some(Search::SuccessiveHalving { metric, .. }) => Some(metric.name()),
        _ => None,
    };
    let until = until_target(found, loaded);
    let unsearched = search
        .and_then(|search| report::objective_not_searched(search, experiment.objective, until));
    let refused: Vec<(String, String)> = progressed
        .refused
        .iter()
        .map(schedule::Refused::spelled)
        .collect();
    let page = report::SearchScope {
        found,
        goal: &search
            .map(|search| report::goal_of_search(search, until))
            .unwrap_or_default(),
        metric,
        unsearched: unsearched.as_deref(),
        refused: &refused,
    };
    let kind = search.map_or("", Search::kind);
    let head = format!("{}: {kind}", experiment.name);
    let kept = report.folder.path().join("recommendation.md");
    write(&kept, &page.markdown(&head))?;
    let chosen = found
        .chosen
        .as_ref()
        .map(|values| write_chosen(&report.folder, values, loaded, args))
        .transpose()?;
    let style = args.launch.style();
    if style == ProgressMode::Json {
        print_json(&event(&page, chosen.as_deref()))?;
    } else {
        print(&format!(
            "\n{}\n{}",
            page.text(super::page_style()),
            places(report, chosen.as_deref(), trains_longer(loaded))
        ))?;
    }
    if report.end == LaunchEnd::NothingToDo && style != ProgressMode::Json && !args.launch.quiet {
        note("the search is already complete; `--fresh` starts a new one");
    }
    Ok(if found.chosen.is_some() {
        Status::Success
    } else {
        Status::Failed
    })
}

/// The line for programs.
fn event(page: &report::SearchScope<'_>, chosen: Option<&Path>) -> String {
    let mut event = page.json();
    event["event"] = "recommendation".into();
    event["experiment"] = json!(chosen);
    format!("{event}\n")
}

/// How the search ranked batches, where the objective is the time until a target.
fn until_target(found: &Recommendation, loaded: &Loaded) -> report::UntilTarget {
    let is_measured = found.evidence.iter().any(|probe| probe.noise.is_some());
    match (loaded.experiment.searches_until_target(), is_measured) {
        (false, _) => report::UntilTarget::NotAsked,
        (true, false) => report::UntilTarget::Unmeasured,
        (true, true) => report::UntilTarget::Ranked,
    }
}

fn places(report: &LaunchReport, chosen: Option<&Path>, trains_longer: bool) -> String {
    let length = match trains_longer {
        true => ", which trains as long as the file says",
        false => "",
    };
    let chosen = chosen
        .map(|path| {
            let path = shell_word(&without_controls(&path.display().to_string()));
            format!("The chosen experiment{length}:\n  kiln run {path}\n")
        })
        .unwrap_or_default();
    chosen + &worth_committing(&report.folder)
}

/// Whether its trials are as short as their round.
fn is_of_rounds(loaded: &Loaded) -> bool {
    matches!(
        loaded.experiment.sweep.search,
        Some(Search::SuccessiveHalving { .. })
    )
}

/// Whether the chosen setting trains as long as the file says: the rounds of a search by halving are
/// short, and the file may give no other length.
fn trains_longer(loaded: &Loaded) -> bool {
    let train = &loaded.experiment.train;
    is_of_rounds(loaded) && (train.steps.is_some() || train.epochs.is_some())
}

/// Writes the experiment with the chosen values and without the search; returns the path.
fn write_chosen(
    folder: &RunFolder,
    values: &[(String, Value)],
    loaded: &Loaded,
    args: &Args,
) -> Result<PathBuf, Stop> {
    let trains_longer = trains_longer(loaded);
    let values = values
        .iter()
        .filter(|(key, _)| !(trains_longer && key == "train.steps"));
    let text = spec::write_chosen(&folder.experiment(), &loaded.experiment.name, values)
        .map_err(|problems| Stop::of_lines(Status::Failed, problems.as_slice()))?;
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| folder.path().join("chosen.yaml"));
    write(&path, &text)?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    write_whole(path, text.as_bytes())
        .map_err(|error| Stop::new(Status::Failed, format!("{}: {error}", path.display())))
}
