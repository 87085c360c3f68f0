//! The newest run of an experiment, if it continues another one: the same command resumes it, and finds
//! it finished.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{Origin, TrialId},
    record::{RunFile, RunFolder, TrialTable, run_folder},
    spec::expand_home,
};

use crate::{
    commands::{experiment_plan::Planned, launch_options::instruments, run_and_trial::run_of},
    schedule::{self, WantedTrials, needs_gpu},
};

/// The newest run of an experiment, if it continues another one and is unfinished, or, to be retried,
/// also if it is finished.
pub(super) fn begun(
    results: &Path,
    experiment: &str,
    is_retried: bool,
) -> io::Result<Option<(PathBuf, RunFile)>> {
    let newest = run_folder::newest(results, experiment)?;
    Ok(newest.and_then(|run| continuing(&run, is_retried)))
}

/// The path without links and the record of a run, if it continues another one and is unfinished, or may
/// be finished.
fn continuing(run: &RunFolder, may_be_finished: bool) -> Option<(PathBuf, RunFile)> {
    let record = RunFile::read(&run.run_file()).ok()?;
    if record.continues.is_empty() {
        return None;
    }
    let table = TrialTable::read_of(run).ok()?;
    let last = table.last_attempts().into_iter();
    let ended: HashSet<&TrialId> = last
        .filter(|row| row.fixed.outcome.is_final())
        .map(|row| &row.fixed.trial)
        .collect();
    let is_open = || !record.plan.iter().all(|trial| ended.contains(trial));
    let goes_on = may_be_finished || is_open();
    goes_on.then(|| Some((run.path().canonicalize().ok()?, record)))?
}

/// The record of `run` if it is the newest one of the experiment, and continued what `named` (a run, and
/// a trial of it) meant before it was made.
pub(super) fn made_of(
    (named, trial): (&str, Option<&str>),
    run: &RunFolder,
    experiment: &str,
    results: &Path,
) -> Option<RunFile> {
    let newest = run_folder::newest(results, experiment).ok()??;
    let path = newest.path().canonicalize().ok()?;
    let source = run_of(named, results, Some(&path)).ok()?;
    if path != run.path() || path == source.path() {
        return None;
    }
    let record = RunFile::read(&newest.run_file()).ok()?;
    let is_source = |origin: &Origin| {
        let of = expand_home(&origin.run.to_string_lossy()).canonicalize();
        let is_named = trial.is_none_or(|trial| origin.trial.begins_with(trial));
        is_named && of.is_ok_and(|of| of == source.path())
    };
    let is_made = !record.continues.is_empty() && record.continues.values().all(is_source);
    is_made.then_some(record)
}

/// Whether `kiln run` would resume the newest run, and each trial of the plan has its result there.
pub(super) fn has_all(planned: &Planned, results: &Path) -> bool {
    let trials = &planned.plan.trials;
    let wanted = WantedTrials {
        experiment: &planned.loaded.experiment,
        trials,
        search: None,
        data: &planned.data,
        results,
        fresh: false,
        reruns: false,
        command_line: &[],
    };
    let on_gpu = trials
        .iter()
        .any(|trial| needs_gpu(trial.engine, &trial.devices));
    let ended = schedule::foretell(&wanted, &|| instruments(on_gpu)).ended;
    trials.iter().all(|trial| {
        let outcome = ended.get(&trial.id);
        outcome.is_some_and(|outcome| outcome.is_final())
    })
}
