//! The folder of one attempt, `trials/<id>/<n>/`: the files that the parent writes at its start,
//! and the list of attempts.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{RunFolder, TrialResult, run_file::json};
use crate::plan::TrialId;

/// Name of the file.
const ATTEMPT: &str = "attempt.json";

/// `attempt.json`: written before the child starts, so that the attempt of a killed parent is still
/// known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFile {
    pub trial: TrialId,
    pub attempt: u64,
    pub launch: u64,
    pub started_utc: String,
    /// `cpu`, or the GPU's UUID.
    pub device: String,
}

impl AttemptFile {
    /// Writes it into the folder of its attempt.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, run: &RunFolder) -> io::Result<()> {
        let folder = run.attempt(&self.trial, self.attempt);
        run.write(&folder.join(ATTEMPT), &json(self)?)
    }

    /// `None` if the file is missing or torn.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(ATTEMPT)).ok()?).ok()
    }
}

/// The attempts of a trial that have a folder, in order.
pub fn attempts(run: &RunFolder, trial: &TrialId) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(run.trial(trial)) else {
        return Vec::new();
    };
    let mut numbers: Vec<u64> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Reads the result that the child of an attempt wrote at its end.
///
/// # Errors
/// `trial.json` is missing, torn or not a result; the text says which.
pub fn result(folder: &Path) -> Result<TrialResult, String> {
    let path = folder.join("trial.json");
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}
