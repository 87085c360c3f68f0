//! The record of a run beside its table: `run.json`, the experiment and the list of packages. A part
//! that cannot be used is left out, with a note.

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    limits::{RESOLVED_BYTES, STATE_BYTES},
    record::{RunFile, RunFolder, TrialTable},
    spec,
    units::short_hash,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::TableSource;
use crate::{commands::note, report::packages_file};

/// A table with the record that lies in this folder.
pub(super) fn beside(folder: RunFolder, table: TrialTable) -> TableSource {
    let file = Some(folder.run_file()).filter(|_| is_of_run(&folder));
    let run = file.map(|file| readable_run(RunFile::read(&file)));
    let (run, run_fault) = or_fault(run.transpose());
    let path = folder.experiment();
    let experiment = match input::read_text(&path, &RESOLVED_BYTES) {
        // The record told already what is missing, or it is a table alone.
        Err(error) if error.kind() == io::ErrorKind::NotFound && run.is_none() => Ok(None),
        read => {
            let read = read.map_err(|error| error.to_string());
            readable_experiment(read, &path, run.as_ref()).map(Some)
        }
    };
    let (experiment, experiment_fault) = or_fault(experiment);
    let packages = packages_path(&folder, run.as_ref()).and_then(|path| readable_packages(&path));
    TableSource {
        name: folder.path().display().to_string(),
        table,
        run,
        run_fault,
        experiment,
        experiment_fault,
        packages,
        folder: Some(folder),
    }
}

/// Whether a folder is that of a run, and not only a place for a table.
fn is_of_run(folder: &RunFolder) -> bool {
    folder.run_file().symlink_metadata().is_ok()
        || folder.experiment().is_file()
        || folder.trials().is_dir()
}

/// The objective of a run's experiment; `None` if it has none or cannot be read.
pub(in crate::commands) fn objective_of(run: &RunFolder) -> Option<spec::Objective> {
    spec::objective_of(&experiment_text(run)?)
}

/// The text of a run's resolved experiment; `None` if it cannot be read.
pub(in crate::commands) fn experiment_text(run: &RunFolder) -> Option<String> {
    input::read_text(&run.experiment(), &RESOLVED_BYTES).ok()
}

/// Parts a result into the file's content and the reason why it cannot be used; both are `None` if
/// there is no file.
pub(super) fn or_fault<T>(read: Result<Option<T>, String>) -> (Option<T>, Option<String>) {
    match read {
        Ok(found) => (found, None),
        Err(why) => (None, Some(why)),
    }
}

/// The text of an experiment that was recorded, with a note if it cannot be read or is another than
/// was recorded.
///
/// Errors: it cannot be used; the text names the file.
pub(super) fn readable_experiment(
    read: Result<String, String>,
    path: &Path,
    run: Option<&RunFile>,
) -> Result<String, String> {
    let tell = |why: String| {
        let fault = format!("{}: {why}", path.display());
        note(&format!(
            "note: {fault}; the experiment of this run is not used"
        ));
        fault
    };
    let text = read.and_then(|text| match input::left_by_git(&text) {
        Some(why) => Err(why.to_owned()),
        None => spec::check_growth(&text).map(|()| text),
    });
    let text = text.map_err(tell)?;
    match spec::read_yaml::<Value>(&text) {
        Err(why) => drop(tell(why)),
        Ok(found) if !found.is_object() => drop(tell("it holds no experiment".to_owned())),
        Ok(_) => {
            if let Some(why) = changed_since(&text, run) {
                note(&format!(
                    "note: {}: {why}; what is said of the experiment may not be what ran; restore \
                     the file",
                    path.display()
                ));
            }
        }
    }
    Ok(text)
}

/// Says that an experiment is not the one whose SHA-256 the run recorded; `None` if it is.
pub(super) fn changed_since(experiment: &str, run: Option<&RunFile>) -> Option<String> {
    let recorded = run?.experiment_sha256.as_deref()?;
    let hash = |text: &str| hex::encode(Sha256::digest(text));
    let now = hash(experiment);
    // git may have given the lines the ends of Windows (`core.autocrlf`).
    let is_same = now == recorded || hash(&experiment.replace("\r\n", "\n")) == recorded;
    (!is_same).then(|| {
        format!(
            "it was changed after the run was recorded (SHA-256 {}, recorded {})",
            short_hash(&now),
            short_hash(recorded)
        )
    })
}

/// The list of packages of the newest launch of a run.
pub(super) fn packages_path(folder: &RunFolder, run: Option<&RunFile>) -> Option<PathBuf> {
    let name = packages_file(run?.newest_at_work()?)?;
    Some(folder.path().join(name))
}

/// The list of packages that a run's record names, with a note if it cannot be read: `git stash -u`
/// takes it away with all files that are not committed.
fn readable_packages(path: &Path) -> Option<String> {
    let read = input::read_text(path, &STATE_BYTES);
    read.map_err(|error| {
        note(&format!(
            "note: {}: {error}; `run.json` names this list, without which the packages of this run \
             are not compared; restore the file",
            path.display()
        ));
    })
    .ok()
}

/// Prints a note if the run record exists and cannot be read.
pub(super) fn readable_run(run: Result<RunFile, String>) -> Result<RunFile, String> {
    run.inspect_err(|error| {
        note(&format!(
            "note: {error}; the record of this run is not used"
        ));
    })
}
