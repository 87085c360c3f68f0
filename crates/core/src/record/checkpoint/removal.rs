//! Removes the checkpoints of a trial for good, with those set aside: `kiln rm --weights`.
//!
//! The file that says so comes first, then each folder of checkpoints goes by one rename. A kill
//! leaves whole checkpoints, or none and the file.

use std::{
    ffi::{OsStr, OsString},
    io,
};

use super::{aside, mark};
use crate::{
    folder::Folder,
    plan::TrialId,
    record::{RunFolder, run_folder::CHECKPOINTS},
};

/// The name of a folder of checkpoints that is being removed.
pub const REMOVED: &str = "checkpoint.removed";

/// The names of the folders of a trial that hold checkpoints; also of one whose removal was killed.
///
/// # Errors
/// The folder of the trial cannot be listed.
pub fn folders(run: &RunFolder, trial: &TrialId) -> io::Result<Vec<OsString>> {
    match run.open_trial(trial)? {
        Some(place) => folders_in(&place),
        None => Ok(Vec::new()),
    }
}

fn folders_in(trial: &Folder) -> io::Result<Vec<OsString>> {
    let mut names = trial.names()?;
    names
        .retain(|name| name == CHECKPOINTS || name == REMOVED || aside::attempt_of(name).is_some());
    Ok(names)
}

/// Removes all checkpoints of a trial. `completed` is the attempt of its last row if that completed,
/// `removed_utc` the time now. No attempt of the trial may be at work.
///
/// # Errors
/// A file cannot be written or a folder not removed, or the trial's folder is a link.
pub fn remove(
    run: &RunFolder,
    trial: &TrialId,
    completed: Option<u64>,
    removed_utc: &str,
) -> io::Result<()> {
    let Some(place) = run.open_trial(trial)? else {
        return Ok(());
    };
    // The one that is used goes last, so that after a kill no other takes its place.
    let used = aside::weights(run, trial, completed)?;
    let mut folders = folders_in(&place)?;
    folders.sort_by_key(|name| Some(name.as_os_str()) == used.folder().file_name());
    mark::write(&place, removed_utc)?;
    let removed = OsStr::new(REMOVED);
    for name in folders {
        if name != removed {
            place.remove(removed)?;
            place.rename(&name, removed)?;
            place.sync()?;
        }
        place.remove(removed)?;
    }
    Ok(())
}
