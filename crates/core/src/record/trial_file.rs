//! `trial.yaml`, the request that a trial's child gets: read with the checks that every reader makes.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    input,
    limits::STATE_BYTES,
    plan::{TRIAL_FILE, TrialFile},
    spec::read_yaml,
};

/// A trial file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrialFileError {
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is not a trial file: {problem}", path.display())]
    Other { path: PathBuf, problem: String },
    #[error(
        "{}: `kiln_trial` is {found}; this program reads format {TRIAL_FILE}",
        path.display()
    )]
    Version { path: PathBuf, found: u32 },
}

/// Reads a trial file of the format that this version knows.
///
/// # Errors
/// See [`TrialFileError`].
pub fn read(path: &Path) -> Result<TrialFile, TrialFileError> {
    let path = path.to_owned();
    let text = match input::read_text(&path, &STATE_BYTES) {
        Ok(text) => text,
        Err(error) => return Err(TrialFileError::Unreadable { path, error }),
    };
    match read_yaml::<TrialFile>(&text) {
        Ok(file) if file.kiln_trial == TRIAL_FILE => Ok(file),
        Ok(TrialFile { kiln_trial, .. }) => Err(TrialFileError::Version {
            path,
            found: kiln_trial,
        }),
        Err(problem) => Err(TrialFileError::Other { path, problem }),
    }
}
