//! `RUN[:TRIAL]` on the command line: the folder of the run, and the id of a trial of it.

use std::path::Path;

use kiln_core::{
    plan::TrialId,
    record::{RunFolder, run_folder::LATEST},
    units::few,
};

use super::{Status, Stop, runs, sources::table_of};

/// Most ids that a message lists.
const MOST_LISTED: usize = 10;

/// Splits RUN:TRIAL; a run whose name has a colon is found too.
pub(super) fn split_trial<'a>(named: &'a str, results: &Path) -> (&'a str, Option<&'a str>) {
    let is_there =
        |run: &str| run == LATEST || Path::new(run).exists() || results.join(run).is_dir();
    match named.rsplit_once(':') {
        Some((run, trial)) if !is_there(named) => (run, Some(trial)),
        _ => (named, None),
    }
}

/// The folder of a run that has a table, without links. A short name does not count the run
/// `besides`, also without links, if another one has the name.
///
/// # Errors
/// There is no such run, or it has no table.
pub(super) fn run_of(
    named: &str,
    results: &Path,
    besides: Option<&Path>,
) -> Result<RunFolder, Stop> {
    let earlier = besides
        .filter(|_| !Path::new(named).exists())
        .map(|besides| runs::find_without(named, results, besides));
    let table = match earlier {
        Some(Ok(earlier)) => earlier.run.trials_table(),
        Some(Err(stop)) if stop.status == Status::CannotRun => return Err(stop),
        Some(Err(_)) | None => table_of(named, results)?,
    };
    let folder = table.parent().unwrap_or(Path::new(""));
    // The child gets absolute paths, and a checkpoint's folder is opened without following links.
    folder
        .canonicalize()
        .map(RunFolder::at)
        .map_err(|error| Stop::bad_input(format!("{}: {error}", folder.display())))
}

/// The trial of a run whose id begins with the text.
///
/// # Errors
/// There is none, or several.
pub(super) fn named_trial(run: &RunFolder, all: &[&TrialId], named: &str) -> Result<TrialId, Stop> {
    // The letter alone begins every id.
    let letter = TrialId::LETTER.to_string();
    let fits = |trial: &&&TrialId| named != letter && trial.begins_with(named);
    let found: Vec<&&TrialId> = all.iter().filter(fits).collect();
    let ids = |trials: &[&TrialId]| {
        let all: Vec<String> = trials.iter().map(ToString::to_string).collect();
        few(&all, MOST_LISTED)
    };
    match found[..] {
        [one] => Ok((*one).clone()),
        [] if all.is_empty() => Err(Stop::bad_input(format!(
            "{}: no trial has ended yet, so `{named}` cannot be used; wait for it if it is running, \
             else resume the run with `kiln run`",
            run.path().display()
        ))),
        [] => Err(Stop::bad_input(format!(
            "{}: no trial `{named}`; the trials are {}",
            run.path().display(),
            ids(all)
        ))),
        ref several => Err(Stop::bad_input(format!(
            "{}: `{named}` begins the ids of {} trials: {}; give more of it",
            run.path().display(),
            several.len(),
            ids(&several.iter().map(|trial| **trial).collect::<Vec<_>>())
        ))),
    }
}
