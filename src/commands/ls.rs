//! `kiln ls`: lists the runs under `results/`, newest first within each experiment.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        RunFile, RunFolder, TableRow, TrialTable,
        lock::{Holder, holder},
        run_folder::{experiments, runs},
    },
    units::{Bytes, Seconds, clock},
};
use serde::Serialize;

use super::{Status, Stop, print, print_json, print_line};
use crate::output::table::TextTable;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the runs; `results` by default.
    #[arg(value_name = "DIR")]
    results: Option<PathBuf>,
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RunState {
    Running,
    Finished,
    /// Unfinished and the newest of its experiment: `kiln run` (for a search, `kiln tune`) resumes
    /// it.
    Resumable,
    /// Unfinished, and a newer run has replaced it.
    Abandoned,
    /// Its files cannot be read.
    Unreadable,
}

/// One run of the list.
#[derive(Debug, Serialize)]
struct RunLine {
    experiment: String,
    run: String,
    state: RunState,
    /// Numbers of planned trials, of trials with a final row, and of those without a result.
    trials: usize,
    /// Whether a search may plan more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_searching: bool,
    done: usize,
    failed: usize,
    age_seconds: Option<f64>,
    size_bytes: u64,
    /// The process that runs it, or why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let results = args.results.as_deref().unwrap_or(Path::new("results"));
    let lines: Vec<RunLine> = names(results, args.results.is_some())?
        .iter()
        .flat_map(|name| list(results, name))
        .collect();
    if args.json {
        let text = serde_json::to_string_pretty(&lines)
            .map_err(|error| Stop::new(Status::Failed, error))?;
        print_json(&format!("{text}\n"))?;
    } else if lines.is_empty() {
        print_line(&format!(
            "no runs under {}; `kiln run FILE` creates one",
            results.display()
        ))?;
    } else {
        print(&table(&lines))?;
    }
    Ok(Status::Success)
}

/// Returns the experiments under a folder; the default folder may be absent.
fn names(results: &Path, is_named: bool) -> Result<Vec<String>, Stop> {
    match experiments(results) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_named => Ok(Vec::new()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Stop::bad_input(format!(
                "{}: there is no such folder; name the folder of the runs, such as `results`",
                results.display()
            )))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(Stop::bad_input(format!(
                "{}: this is not a folder; name the folder of the runs, such as `results`",
                results.display()
            )))
        }
        listed => {
            listed.map_err(|error| Stop::bad_input(format!("{}: {error}", results.display())))
        }
    }
}

/// The runs of one experiment, newest first.
fn list(results: &Path, experiment: &str) -> Vec<RunLine> {
    let holder = holder(results, experiment);
    let runs = runs(results, experiment);
    let newest = runs.last().cloned();
    runs.iter()
        .rev()
        .map(|run| {
            line(
                experiment,
                run,
                Some(run) == newest.as_ref(),
                holder.as_ref(),
            )
        })
        .collect()
}

fn line(experiment: &str, run: &RunFolder, is_newest: bool, holder: Option<&Holder>) -> RunLine {
    let size_bytes = size(run.path());
    let mut line = RunLine {
        experiment: experiment.to_owned(),
        run: run.name(),
        state: RunState::Unreadable,
        trials: 0,
        is_searching: false,
        done: 0,
        failed: 0,
        age_seconds: None,
        size_bytes,
        note: None,
    };
    let read = RunFile::read(&run.run_file()).and_then(|file| {
        Ok((
            file,
            TrialTable::read_of(run)
                .map_err(|error| error.to_string())?
                .rows,
        ))
    });
    let (file, rows) = match read {
        Ok(read) => read,
        Err(why) => {
            return RunLine {
                note: Some(why),
                ..line
            };
        }
    };
    let ends = outcomes(&file, &rows);
    line.trials = file.plan.len();
    line.is_searching = file.is_searching;
    line.done = ends.len();
    line.failed = ends.iter().filter(|outcome| !outcome.is_result()).count();
    line.age_seconds = file
        .launches
        .last()
        .and_then(|launch| age_seconds(&launch.anchor.started_utc));
    line.note = holder.filter(|_| is_newest).map(|holder| holder.0.clone());
    let is_complete = line.done == line.trials && !line.is_searching;
    line.state = match (is_newest, line.note.is_some(), is_complete) {
        (_, true, _) => RunState::Running,
        (_, _, true) => RunState::Finished,
        (true, ..) => RunState::Resumable,
        (false, ..) => RunState::Abandoned,
    };
    line
}

/// The final outcomes of the planned trials.
fn outcomes(file: &RunFile, rows: &[TableRow]) -> Vec<Outcome> {
    let last: HashMap<&TrialId, Outcome> = rows
        .iter()
        .map(|row| (&row.fixed.trial, row.fixed.outcome))
        .collect();
    let planned = file.plan.iter();
    planned
        .filter_map(|trial| last.get(trial).copied())
        .filter(|outcome| outcome.is_final())
        .collect()
}

/// Time since the start of the last launch; `None` if it lies in the future, because a clock was
/// wrong then or is wrong now.
fn age_seconds(started_utc: &str) -> Option<f64> {
    let started: jiff::Timestamp = started_utc.parse().ok()?;
    let seconds = clock::utc_now().duration_since(started).as_secs_f64();
    (seconds >= 0.0).then_some(seconds)
}

/// Bytes of all files below a folder; symbolic links are not followed.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn table(lines: &[RunLine]) -> String {
    let mut table = TextTable::plain([
        "experiment",
        "run",
        "state",
        "done",
        "failed",
        "age",
        "size",
        "",
    ]);
    for line in lines {
        let state = serde_json::to_value(line.state)
            .ok()
            .and_then(|state| state.as_str().map(str::to_owned))
            .unwrap_or_default();
        table.add_row([
            line.experiment.clone(),
            line.run.clone(),
            state,
            format!(
                "{}/{}{}",
                line.done,
                line.trials,
                if line.is_searching { "+" } else { "" }
            ),
            line.failed.to_string(),
            line.age_seconds
                .map(|seconds| Seconds(seconds).to_string())
                .unwrap_or_default(),
            Bytes(line.size_bytes).to_string(),
            line.note.clone().unwrap_or_default(),
        ]);
    }
    format!("{}\n", table.text())
}
