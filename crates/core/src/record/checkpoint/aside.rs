//! The checkpoints of a completed attempt while its trial is run again: `trials/<id>/checkpoint.<N>/`
//! of attempt N. They go once another attempt has completed; one that fails or is killed costs nothing
//! that was trained before.

use std::{
    ffi::{OsStr, OsString},
    io,
};

use rustix::fs::FileType;

use super::{Checkpoints, UsableCheckpoint, removal_in};
use crate::{
    folder::{Folder, may_be_read_later},
    plan::TrialId,
    record::{RunFolder, run_folder::CHECKPOINTS},
};

/// Before the number of the attempt.
const PREFIX: &str = "checkpoint.";

/// Sets the checkpoints of a completed attempt aside, so that the next attempt begins anew. If they are
/// already, what attempts since then left is deleted.
///
/// # Errors
/// A folder cannot be renamed or deleted, or a link stands in place of one.
pub fn set_aside(run: &RunFolder, trial: &TrialId, attempt: u64) -> io::Result<()> {
    let Some(place) = run.open_trial(trial)? else {
        return Ok(());
    };
    let (own, aside) = (OsStr::new(CHECKPOINTS), name(attempt));
    if place.kind(&aside)?.is_some() {
        place.remove(own)?;
    } else if place.kind(own)? == Some(FileType::Directory) {
        place.rename(own, &aside)?;
        place.sync()?;
    }
    // Those of an attempt before it, whose launch was killed before it deleted them.
    let others = asides(&place)?
        .into_iter()
        .filter(|other| *other != attempt);
    others
        .into_iter()
        .try_for_each(|other| place.remove(&name(other)))
}

/// Deletes what was set aside: another attempt has completed.
///
/// # Errors
/// A folder cannot be deleted.
pub fn delete_aside(run: &RunFolder, trial: &TrialId) -> io::Result<()> {
    delete(run, trial, &|_| true)
}

/// Deletes what attempts before a completed one left aside: its launch was killed before it did.
///
/// # Errors
/// A folder cannot be deleted.
pub fn delete_before(run: &RunFolder, trial: &TrialId, completed: u64) -> io::Result<()> {
    delete(run, trial, &|attempt| attempt < completed)
}

fn delete(run: &RunFolder, trial: &TrialId, is_meant: &dyn Fn(u64) -> bool) -> io::Result<()> {
    let Some(place) = run.open_trial(trial)? else {
        return Ok(());
    };
    asides(&place)?
        .into_iter()
        .filter(|attempt| is_meant(*attempt))
        .try_for_each(|attempt| place.remove(&name(attempt)))
}

/// The checkpoints with the weights of a trial: those set aside until a later attempt has completed, or
/// where it left none of its own. `completed` is the attempt of its last row if that completed.
///
/// # Errors
/// The folder of the trial, or that of its own checkpoints, cannot be listed now.
pub fn weights(
    run: &RunFolder,
    trial: &TrialId,
    completed: Option<u64>,
) -> io::Result<Checkpoints> {
    let own = Checkpoints::new(run.checkpoints(trial), trial.clone());
    let attempts = match run.open_trial(trial) {
        Ok(Some(place)) => asides(&place)?,
        Err(error) if may_be_read_later(&error) => return Err(error),
        // There is none, or it is behind a link, where nothing is set aside.
        Ok(None) | Err(_) => Vec::new(),
    };
    let Some(attempt) = attempts.into_iter().max() else {
        return Ok(own);
    };
    let is_newer = completed.is_none_or(|last| attempt >= last);
    if is_newer || own.listed()?.is_empty() {
        let folder = run.trial(trial).join(name(attempt));
        return Ok(Checkpoints::new(folder, trial.clone()));
    }
    Ok(own)
}

/// The checkpoint of a step whose header has this SHA-256, and whose files are unchanged: also one that
/// was set aside since.
///
/// # Errors
/// The reason why the one that is not set aside cannot be used, also that it was removed.
pub fn with_sum(
    run: &RunFolder,
    trial: &TrialId,
    step: u64,
    sha256: &str,
) -> Result<UsableCheckpoint, String> {
    let own = Checkpoints::new(run.checkpoints(trial), trial.clone());
    own.with_sum(step, sha256).or_else(|why| {
        let place = run.open_trial(trial).ok().flatten();
        let attempts = place
            .and_then(|place| asides(&place).ok())
            .unwrap_or_default();
        let mut found = attempts.into_iter().filter_map(|attempt| {
            let aside = Checkpoints::new(run.trial(trial).join(name(attempt)), trial.clone());
            aside.with_sum(step, sha256).ok()
        });
        found.next().ok_or_else(|| {
            let is_empty = own.listed().is_ok_and(|steps| steps.is_empty());
            let removal = removal_in(&run.trial(trial)).filter(|_| is_empty);
            removal.map_or(why, |removal| {
                format!("the checkpoints of the trial {removal}")
            })
        })
    })
}

fn name(attempt: u64) -> OsString {
    OsString::from(format!("{PREFIX}{attempt}"))
}

/// The attempts whose checkpoints are set aside.
fn asides(trial: &Folder) -> io::Result<Vec<u64>> {
    let names = trial.names()?.into_iter();
    Ok(names.filter_map(|name| attempt_of(&name)).collect())
}

/// The attempt whose checkpoints are set aside under this name; `None` for another name.
pub(super) fn attempt_of(name: &OsStr) -> Option<u64> {
    name.to_str()?.strip_prefix(PREFIX)?.parse().ok()
}
