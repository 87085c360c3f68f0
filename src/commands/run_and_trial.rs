//! `RUN[:TRIAL]` on the command line: the folder of the run, and the id of a trial of it.

use std::path::Path;

use kiln_core::{
    plan::TrialId,
    record::{RunFolder, run_folder::LATEST},
    units::few,
};

use super::{
    Status, Stop,
    run_name::{Taken, is_of_revision},
    runs,
    sources::table_of,
};
use crate::git::is_revision;

/// Most ids that a message lists.
const MOST_LISTED: usize = 10;

/// Splits RUN:TRIAL; a run whose name has a colon, and `REVISION:PATH`, are found too.
pub(super) fn split_trial<'a>(named: &'a str, results: &Path) -> (&'a str, Option<&'a str>) {
    // A short name such as `x~1` is looked up last, because this reads the runs.
    let may_be_run =
        |run: &str| is_there(run, results) || !matches!(runs::find_if_any(run, results), Ok(None));
    match named.rsplit_once(':') {
        Some((run, trial))
            if !is_there(named, results) && (may_be_id(trial) || may_be_run(run)) =>
        {
            (run, Some(trial))
        }
        _ => (named, None),
    }
}

/// Whether a name is found without reading the runs.
fn is_there(run: &str, results: &Path) -> bool {
    run == LATEST || Path::new(run).exists() || results.join(run).is_dir()
}

/// The run and the trial that a name means, where whole runs and `REVISION:PATH` are named too: only
/// what may be an id, behind the name of a run.
pub(super) fn trial_of_run<'a>(named: &'a str, results: &Path) -> Option<(&'a str, &'a str)> {
    let (run, trial) = split_trial(named, results);
    let trial = trial.filter(|trial| !trial.is_empty() && may_be_id(trial))?;
    let is_known = is_run(run, results) || is_of_revision(run);
    is_known.then_some((run, trial))
}

/// Whether a name is that of a run here.
fn is_run(run: &str, results: &Path) -> bool {
    is_there(run, results) || matches!(runs::find_if_any(run, results), Ok(Some(_)))
}

/// Refuses a word behind the name of a run that looks like a trial and is the id of none. A git
/// revision may have the name of a run, and a file that of the word.
///
/// # Errors
/// The name has such a word.
pub(super) fn refuse_no_id(named: &str, results: &Path) -> Result<(), Stop> {
    let (run, Some(word)) = split_trial(named, results) else {
        return Ok(());
    };
    let is_word = word.starts_with(TrialId::LETTER) && word.chars().all(char::is_alphanumeric);
    let is_no_id = is_word && !may_be_id(word) && is_run(run, results);
    if !is_no_id || is_revision(run) {
        return Ok(());
    }
    Err(Stop::bad_input(format!(
        "{named}: run {run} has no trial `{word}`: an id is `{}` and hexadecimal digits; the column \
         `trial` of its `trials.csv` has them",
        TrialId::LETTER
    )))
}

/// Refuses a trial where `command` takes whole runs. `instead` says what to do.
///
/// # Errors
/// The name is that of a trial.
pub(super) fn refuse_trial(
    command: &str,
    named: &str,
    results: &Path,
    instead: &str,
) -> Result<(), Stop> {
    match trial_of_run(named, results) {
        None => refuse_no_id(named, results),
        Some((run, _)) => Err(Stop::bad_input(format!(
            "{named}: `kiln {command}` takes whole runs, such as `{run}`; {instead}"
        ))),
    }
}

/// Whether a text may be the beginning of a trial's id.
fn may_be_id(text: &str) -> bool {
    let digits = text.strip_prefix(TrialId::LETTER).unwrap_or(text);
    digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The folder of a run that has a table, without links; its weights are wanted. A short name does not
/// count the run `besides`, also without links, if another one has the name.
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
        Some(Err(_)) | None => table_of(named, results, Taken::Weights)?,
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_may_be_an_id_is_split_off_a_name_that_is_no_run() {
        let results = tempfile::tempdir().unwrap();
        for name in ["x", "a:b"] {
            fs::create_dir(results.path().join(name)).unwrap();
        }
        for (named, expected) in [
            ("x", ("x", None)),
            ("x:t31a", ("x", Some("t31a"))),
            ("x:31a", ("x", Some("31a"))),
            ("x:typo", ("x", Some("typo"))),
            ("latest:best", ("latest", Some("best"))),
            ("a:b", ("a:b", None)),
            ("a:b:31a", ("a:b", Some("31a"))),
            ("HEAD:results/x/latest", ("HEAD:results/x/latest", None)),
            (
                "HEAD:results/x/latest:t31a",
                ("HEAD:results/x/latest", Some("t31a")),
            ),
            ("HEAD:results", ("HEAD:results", None)),
        ] {
            assert_eq!(split_trial(named, results.path()), expected, "{named}");
        }
    }

    #[test]
    fn a_trial_is_told_from_a_path_of_a_revision() {
        let results = tempfile::tempdir().unwrap();
        fs::create_dir(results.path().join("x")).unwrap();
        for (named, expected) in [
            ("x:t31a", Some(("x", "t31a"))),
            ("x:31a", Some(("x", "31a"))),
            ("x", None),
            ("x:typo", None),
            ("x:", None),
            ("x:results/x/latest", None),
            ("HEAD:results/x/latest", None),
            ("HEAD:feed", None),
            (
                "HEAD:results/x/latest:t31a",
                Some(("HEAD:results/x/latest", "t31a")),
            ),
        ] {
            assert_eq!(trial_of_run(named, results.path()), expected, "{named}");
        }
        let refused = refuse_trial("watch", "x:t31a", results.path(), "do that").unwrap_err();
        assert!(
            refused
                .message
                .ends_with("whole runs, such as `x`; do that")
        );
        assert!(refuse_trial("watch", "x", results.path(), "").is_ok());
        let unknown = refuse_no_id("x:txxxx", results.path()).unwrap_err();
        let told = "x:txxxx: run x has no trial `txxxx`: ";
        assert!(unknown.message.starts_with(told), "{}", unknown.message);
        for other in ["x:t31a", "x:results", "x:t/latest", "HEAD:tests", "y:txxxx"] {
            assert!(refuse_no_id(other, results.path()).is_ok(), "{other}");
        }
    }
}
