//! The line of each run: its state, its trials and its best value.

use std::{collections::HashMap, path::Path};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        RunFile, RunFolder, TableRow, TicketQueue, TrialTable,
        attempt::later_than,
        lock::{Holder, launch_at_work},
        other_machine::rows_of_other_machine,
        run_file::Launch,
        tables::TRIALS,
        unplanned::unplanned_rows,
    },
    units::clock,
};
use serde::Serialize;

use super::work::{Work, joined};
use crate::{
    commands::{
        folder_size::size,
        runs::NamedRun,
        sources::{objective_of, table_of_run},
    },
    report,
};

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ListedState {
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

impl ListedState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Resumable => "resumable",
            Self::Abandoned => "abandoned",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One run of the list.
#[derive(Debug, Serialize)]
pub(super) struct RunLine {
    pub(super) experiment: String,
    pub(super) run: String,
    /// The path of its folder.
    pub(super) folder: String,
    pub(super) state: ListedState,
    /// Numbers of planned trials, of trials with a final row, and of those without a result; `None` if the
    /// run cannot be read.
    pub(super) trials: Option<usize>,
    /// Whether a search may plan more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_searching: bool,
    pub(super) done: Option<usize>,
    pub(super) failed: Option<usize>,
    /// The best value of the run's objective, in words.
    pub(super) best: Option<String>,
    /// The column of the objective, and that value.
    pub(super) objective: Option<&'static str>,
    pub(super) value: Option<f64>,
    pub(super) age_seconds: Option<f64>,
    /// `None` until it is measured, which takes a look at each file of the run.
    pub(super) size_bytes: Option<u64>,
    /// Whether the size could not be measured.
    #[serde(skip)]
    pub(super) is_size_unknown: bool,
    /// The launch or the workers that run it, or the reason why it cannot be read.
    pub(super) note: Option<String>,
}

/// The lines of runs, which are newest first.
pub(super) fn lines(results: &Path, runs: &[NamedRun]) -> Vec<RunLine> {
    let mut holders: HashMap<&str, Option<Holder>> = HashMap::new();
    let mut lines = Vec::new();
    for NamedRun { experiment, run } in runs {
        // The first run of an experiment is its newest.
        let is_newest = !holders.contains_key(experiment.as_str());
        let holder = holders
            .entry(experiment)
            .or_insert_with(|| launch_at_work(results, experiment));
        lines.push(line(experiment, run, is_newest, holder.as_ref()));
    }
    lines
}

/// The line of a run of which only the folder is known.
fn unread_line(experiment: &str, run: &RunFolder) -> RunLine {
    RunLine {
        experiment: experiment.to_owned(),
        run: run.name(),
        folder: run.path().to_string_lossy().into_owned(),
        state: ListedState::Unreadable,
        trials: None,
        is_searching: false,
        done: None,
        failed: None,
        best: None,
        objective: None,
        value: None,
        age_seconds: None,
        size_bytes: None,
        is_size_unknown: false,
        note: None,
    }
}

fn line(experiment: &str, run: &RunFolder, is_newest: bool, holder: Option<&Holder>) -> RunLine {
    let line = unread_line(experiment, run);
    let read = RunFile::read(&run.run_file()).and_then(|file| {
        let table = table_of_run(run).map_err(|error| error.to_string())?;
        Ok((file, table))
    });
    let (file, table) = match read {
        Ok(read) => read,
        Err(why) => {
            return RunLine {
                note: Some(why),
                ..line
            };
        }
    };
    let ends = outcomes(&file, &table);
    let (trials, done) = (file.plan.len(), ends.len());
    let started = file.launches.last().map(|last| &last.anchor.started_utc);
    let work = Work::of(run, holder.filter(|_| is_newest), done == trials);
    let is_at_work = file.is_searching || work.is_running || work.is_open;
    // Lists the folder of each trial, so it is the last to be asked.
    let was_killed = || is_newest && was_killed_in_a_rerun(run, &file, &table);
    let is_complete = done == trials && !is_at_work && !was_killed();
    let state = match (is_newest, work.is_running, is_complete) {
        (_, true, _) => ListedState::Running,
        (_, _, true) => ListedState::Finished,
        (true, ..) => ListedState::Resumable,
        (false, ..) => ListedState::Abandoned,
    };
    let of_version = other_version(&table).filter(|_| state == ListedState::Resumable);
    let of_other_machine = rows_of_other_machine(&table, &file).map(|found| found.to_string());
    let unplanned = unplanned_rows(&table, &file).map(|found| found.to_string());
    let best = report::best_value(&table, objective_of(run));
    RunLine {
        state,
        trials: Some(trials),
        is_searching: file.is_searching,
        done: Some(done),
        failed: Some(ends.iter().filter(|outcome| !outcome.is_result()).count()),
        objective: best.as_ref().map(|best| best.objective),
        value: best.as_ref().map(|best| best.value),
        best: best.map(|best| best.words),
        age_seconds: started.and_then(|started| age_seconds(started)),
        note: joined(
            work.note
                .into_iter()
                .chain(of_version)
                .chain(of_other_machine)
                .chain(unplanned),
        ),
        ..line
    }
}

/// Says that this kiln cannot resume the run of a table, because another version began it.
fn other_version(table: &TrialTable) -> Option<String> {
    let mut versions = table.rows.iter().map(|row| &row.fixed.kiln_table);
    let version = versions.find(|version| *version != TRIALS.version)?;
    Some(format!(
        "its table is `{version}`, which only the kiln that began it resumes; `--fresh` starts a \
         new run"
    ))
}

/// Whether the last launch was killed while it ran a trial with a result again, which `kiln run` resumes.
fn was_killed_in_a_rerun(run: &RunFolder, file: &RunFile, table: &TrialTable) -> bool {
    let is_killed = |launch: &Launch| launch.ended.is_none();
    let is_lost = |row: &TableRow| {
        let later = later_than(run, &row.fixed.trial, row.fixed.attempt);
        later.is_ok_and(|later| !later.is_empty())
    };
    file.launches.last().is_some_and(is_killed)
        && matches!(TicketQueue::of(run), Ok(None))
        && table.last_attempts().into_iter().any(is_lost)
}

/// The final outcomes of the planned trials.
fn outcomes(file: &RunFile, table: &TrialTable) -> Vec<Outcome> {
    let last: HashMap<&TrialId, Outcome> = table
        .last_attempts()
        .into_iter()
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

/// Measures the runs of the lines.
pub(super) fn measure_sizes(lines: &mut [RunLine], runs: &[NamedRun]) {
    for (line, run) in lines.iter_mut().zip(runs) {
        line.size_bytes = size(run.run.path()).ok().map(|size| size.all);
        line.is_size_unknown = line.size_bytes.is_none();
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::TrialRow;
    use serde_json::json;

    use super::*;

    /// The record of a run with the plan `t1`, `t2`.
    fn run_file() -> RunFile {
        let file = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": ["t1", "t2"], "launches": [],
        });
        serde_json::from_value(file).unwrap()
    }

    fn row(trial: &str, attempt: u64, outcome: Outcome) -> TableRow {
        let fixed = TrialRow {
            trial: TrialId(trial.to_owned()),
            attempt,
            outcome,
            ..TrialRow::default()
        };
        TableRow::new(fixed, &[])
    }

    #[test]
    fn the_last_attempt_of_a_trial_counts_wherever_its_row_stands() {
        let table = TrialTable {
            rows: vec![
                row("t1", 2, Outcome::Completed),
                row("t1", 1, Outcome::Failed),
                row("t2", 2, Outcome::Killed),
                row("t2", 1, Outcome::Completed),
                row("t3", 1, Outcome::Completed),
            ],
            ..TrialTable::default()
        };
        assert_eq!(outcomes(&run_file(), &table), [Outcome::Completed]);
    }
}
