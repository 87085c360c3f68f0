//! The folder of one attempt, `trials/<id>/<n>/`: the files that the parent writes at its start,
//! and the list of attempts.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{RunFolder, TrialResult, run_file::json, trial_result::TRIAL_RESULT};
use crate::{
    folder::{may_be_read_later, named, names_in},
    input,
    limits::{RESULT_BYTES, STATE_BYTES},
    patience::again_after,
    plan::TrialId,
};

/// The file of an attempt's start.
pub const ATTEMPT: &str = "attempt.json";
/// The file with the standard error of an attempt's child.
pub const STDERR: &str = "stderr.txt";

/// `attempt.json`: written before the child starts, so that the attempt of a killed parent is still
/// known, and again once the child has resumed from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptFile {
    pub trial: TrialId,
    pub attempt: u64,
    pub launch: u64,
    pub started_utc: String,
    /// `cpu`, or the GPU's UUID.
    pub device: String,
    /// Planned optimizer steps; absent if they are unknown, and in runs older than this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The command line of a program that is not kiln's own, with its values; absent in runs older
    /// than this key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// The step after which its program said that it resumed; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_at_step: Option<u64>,
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
    ///
    /// # Errors
    /// The system cannot read it now; the text names it.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        let path = folder.join(ATTEMPT);
        match input::read(&path, &STATE_BYTES) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if may_be_read_later(&error) => Err(named(&path, error)),
            Err(_) => Ok(None),
        }
    }
}

/// The attempts of a trial that have a folder, in order; none if they cannot be listed.
pub fn attempts(run: &RunFolder, trial: &TrialId) -> Vec<u64> {
    listed_attempts(run, trial).unwrap_or_default()
}

/// As [`attempts`], but a folder that the system cannot list now is an error. A link in its place is
/// not followed, and has none.
///
/// # Errors
/// The folder of the trial cannot be listed.
pub fn listed_attempts(run: &RunFolder, trial: &TrialId) -> io::Result<Vec<u64>> {
    match names_in(&run.trial(trial)) {
        Err(error) if !may_be_read_later(&error) => Ok(Vec::new()),
        names => names.map(numbers),
    }
}

/// The attempts of a trial that have a folder and came after one, such as that of its last row, in order:
/// their launch was killed before it wrote a row of them.
///
/// # Errors
/// As [`listed_attempts`].
pub fn later_than(run: &RunFolder, trial: &TrialId, attempt: u64) -> io::Result<Vec<u64>> {
    let mut later = listed_attempts(run, trial)?;
    later.retain(|other| *other > attempt);
    Ok(later)
}

/// Removes the drafts that a killed launch left in the folders of a trial and of its attempts, and
/// returns the attempts, in order. A draft that cannot be removed stays.
///
/// # Errors
/// As [`listed_attempts`].
pub fn sweep_attempts(run: &RunFolder, trial: &TrialId) -> io::Result<Vec<u64>> {
    let attempts = match run.remove_drafts(&run.trial(trial)) {
        Ok(names) => numbers(names),
        Err(_) => listed_attempts(run, trial)?,
    };
    for attempt in &attempts {
        let _ = run.remove_drafts(&run.attempt(trial, *attempt));
    }
    Ok(attempts)
}

/// The attempts among the names of the entries of a trial's folder, in order.
fn numbers(names: impl IntoIterator<Item = OsString>) -> Vec<u64> {
    let mut numbers: Vec<u64> = names
        .into_iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The result of an attempt cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// `trial.json` is missing, torn or not a result; the text says which.
    #[error("{0}")]
    Unreadable(String),
    /// The system cannot read it now, which says nothing about its content.
    #[error("{0}")]
    Unread(String),
    #[error(
        "{}: `kiln_trial_result` is {found}; this kiln reads format {TRIAL_RESULT}",
        path.display()
    )]
    Version { path: PathBuf, found: u64 },
}

/// Waits between tries to read a result that the system could not read.
const UNREAD_AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// The file of an attempt's result.
pub const RESULT_FILE: &str = "trial.json";

/// As [`result`], but reads it again where the system could not read it.
///
/// # Errors
/// See [`ResultError`].
pub fn result_patiently(folder: &Path) -> Result<TrialResult, ResultError> {
    let is_unread = |error: &ResultError| matches!(error, ResultError::Unread(_));
    again_after(&UNREAD_AGAIN, is_unread, || result(folder))
}

/// Reads the result that the child of an attempt wrote at its end.
///
/// # Errors
/// See [`ResultError`].
pub fn result(folder: &Path) -> Result<TrialResult, ResultError> {
    /// The field that every version has.
    #[derive(Deserialize)]
    struct Version {
        kiln_trial_result: u64,
    }
    let path = folder.join(RESULT_FILE);
    let unreadable =
        |error: &dyn fmt::Display| ResultError::Unreadable(format!("{}: {error}", path.display()));
    let bytes =
        input::read(&path, &RESULT_BYTES).map_err(|error| match may_be_read_later(&error) {
            true => ResultError::Unread(format!("{}: {error}", path.display())),
            false => unreadable(&error),
        })?;
    // A result of another version may lack fields of this version.
    if let Ok(Version { kiln_trial_result }) = serde_json::from_slice(&bytes)
        && kiln_trial_result != u64::from(TRIAL_RESULT)
    {
        return Err(ResultError::Version {
            path,
            found: kiln_trial_result,
        });
    }
    let result: TrialResult = serde_json::from_slice(&bytes)
        .or_else(|error| TrialResult::without_unreadable(&bytes).ok_or(error))
        .map_err(|error| unreadable(&error))?;
    result
        .without_impossible()
        .map_err(|error| unreadable(&error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::run_file::write_json;

    #[test]
    fn what_the_system_cannot_read_now_is_neither_missing_nor_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let read = || (AttemptFile::read(folder.path()), result(folder.path()));
        let (started, ended) = read();
        assert!(started.unwrap().is_none());
        assert!(matches!(ended, Err(ResultError::Unreadable(_))));
        // Reading fails with EIO: nothing is at the address 0 of a process.
        for name in [ATTEMPT, RESULT_FILE] {
            std::os::unix::fs::symlink("/proc/self/mem", folder.path().join(name)).unwrap();
        }
        let (started, ended) = read();
        let error = started.unwrap_err().to_string();
        assert!(error.contains("attempt.json: "), "{error}");
        assert!(matches!(ended, Err(ResultError::Unread(why)) if why.contains("trial.json: ")));
        let run = RunFolder::at(folder.path());
        let attempts = sweep_attempts(&run, &TrialId("t4f0c1a2b3d".to_owned()));
        assert!(attempts.unwrap().is_empty());
        // No system has a folder of this name.
        fs::create_dir(run.trials()).unwrap();
        let too_long = TrialId("t".repeat(300));
        assert!(sweep_attempts(&run, &too_long).is_err());
    }

    #[test]
    fn the_attempts_after_the_last_row_are_listed_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let trial = TrialId("t4f0c1a2b3d".to_owned());
        let later = |attempt: u64| later_than(&run, &trial, attempt).unwrap();
        assert!(later(0).is_empty(), "it has no folder");
        for attempt in [10, 2, 1, 9] {
            fs::create_dir_all(run.attempt(&trial, attempt)).unwrap();
        }
        fs::create_dir(run.checkpoints(&trial)).unwrap();
        assert_eq!(later(0), [1, 2, 9, 10]);
        assert_eq!(later(2), [9, 10]);
        assert!(later(10).is_empty());
        let too_long = TrialId("t".repeat(300));
        assert!(later_than(&run, &too_long, 0).is_err());
    }

    #[test]
    fn figures_that_cannot_be_and_misspelled_ones_are_notes() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"kiln_trial_result": 1, "trial": "4f0c1a2b3d", "attempt": 1,
            "outcome": "completed", "valid_top1": 37.5, "valid_top5": 1.0, "steps": 3,
            "data_wait_fraction": 1.0000000001, "samples_per_second": -2.0, "valid_loss": -0.5,
            "notes": {"mfu": "no peak"}, "valid_topl": 0.5, "parameters": 7, "metrics": {"x": -1}}"#;
        fs::write(folder.path().join("trial.json"), text).unwrap();
        let read = result(folder.path()).unwrap();
        let figures = &read.figures;
        assert_eq!((figures.steps, figures.parameters), (Some(3), Some(7)));
        assert_eq!(
            (figures.valid_top1, figures.samples_per_second),
            (None, None)
        );
        let kept = [figures.valid_top5, figures.valid_loss];
        assert_eq!(kept, [Some(1.0), Some(-0.5)]);
        assert_eq!(figures.data_wait_fraction, Some(1.0000000001));
        let notes: Vec<String> = read
            .notes
            .iter()
            .map(|(column, why)| format!("{column}: {why}"))
            .collect();
        assert_eq!(
            notes,
            [
                "mfu: no peak",
                "samples_per_second: the program reported -2: it cannot be negative",
                "valid_top1: the program reported 37.5: it is a share, from 0 to 1",
                "valid_topl: the program reported it, and no column has this name"
            ]
        );
    }

    #[test]
    fn figures_of_another_type_are_notes_and_cost_no_training() {
        let folder = tempfile::tempdir().unwrap();
        let read = |more: &str| {
            let text = format!(
                r#"{{"kiln_trial_result": 1, "trial": "4f0c1a2b3d", "attempt": 1, "outcome": "completed",
                "steps": 3, {more}}}"#
            );
            fs::write(folder.path().join("trial.json"), text).unwrap();
            result(folder.path())
        };
        let found = read(
            r#""peak_allocated_bytes": 5.5, "parameters": -1, "valid_loss": true, "train_loss": 0.25,
            "valid_top1": "0.5", "notes": {"steps": null, "energy_counter_joules": "no counter"}"#,
        )
        .unwrap();
        let figures = &found.figures;
        assert_eq!((figures.steps, figures.train_loss), (Some(3), Some(0.25)));
        assert_eq!(
            (figures.valid_loss, figures.parameters, figures.valid_top1),
            (None, None, None)
        );
        assert!(
            found.notes["valid_loss"].starts_with("the program reported true: invalid type")
                && found.notes["peak_allocated_bytes"].starts_with("the program reported 5.5: ")
                && found.notes["parameters"].starts_with("the program reported -1: ")
                && found.notes["energy_counter_joules"] == "no counter",
            "{:?}",
            found.notes
        );
        assert!(!found.notes.contains_key("steps"));
        let found = read(
            r#""window_started_nanoseconds": "noon", "peak_resident_bytes": 5.5, "train_loss": 0.5,
            "metrics": {"x": null, "y": 2}, "libraries": {"torch": 2.4, "numpy": "1.26"}"#,
        )
        .unwrap();
        assert_eq!(
            (found.window_started_nanoseconds, found.peak_resident_bytes),
            (None, None)
        );
        assert_eq!(found.figures.train_loss, Some(0.5));
        assert_eq!(
            found.metrics.into_iter().collect::<Vec<_>>(),
            [("y".to_owned(), 2.0)]
        );
        assert_eq!(found.libraries.into_keys().collect::<Vec<_>>(), ["numpy"]);
        let noted: Vec<String> = found.notes.into_keys().collect();
        assert_eq!(
            noted,
            [
                "libraries.torch",
                "metrics.x",
                "peak_resident_bytes",
                "window_started_nanoseconds"
            ]
        );
        // Maps in the place of numbers and lists; a window whose cuts are unknown is none.
        let found = read(
            r#""valid_loss": {"mean": 0.5}, "class_names": {"0": "cat"}, "train_loss": 0.5,
            "window_started_nanoseconds": 1, "window_ended_nanoseconds": 9,
            "window_cuts_nanoseconds": [[2.5, 3.5]]"#,
        )
        .unwrap();
        assert_eq!(
            (found.figures.valid_loss, found.figures.train_loss),
            (None, Some(0.5))
        );
        assert_eq!(
            (
                found.window_started_nanoseconds,
                found.window_ended_nanoseconds
            ),
            (None, None)
        );
        assert!(found.outputs.class_names.is_empty());
        assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
        // Without these it is no result.
        fs::write(
            folder.path().join("trial.json"),
            r#"{"kiln_trial_result": 1, "trial": 5}"#,
        )
        .unwrap();
        assert!(result(folder.path()).is_err());
        let many: Vec<String> = (0..2000).map(|name| format!("\"name{name}\": 1")).collect();
        let found = read(&many.join(", ")).unwrap();
        assert_eq!(found.notes.len(), 21);
        assert_eq!(
            found.notes["unknown"],
            "the program reported 1980 more, and no column has their names"
        );
    }

    #[test]
    fn a_result_of_another_version_is_refused_by_its_number_whatever_else_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trial.json");
        let trial = TrialId("4f0c1a2b3d".to_owned());
        let mut written = TrialResult::empty(trial, 1);
        write_json(&path, &written).unwrap();
        assert_eq!(result(folder.path()), Ok(written.clone()));
        written.kiln_trial_result = 2;
        write_json(&path, &written).unwrap();
        for text in [
            fs::read_to_string(&path).unwrap(),
            r#"{"kiln_trial_result": 0, "of": "the past"}"#.to_owned(),
        ] {
            fs::write(&path, text).unwrap();
            let refused = result(folder.path()).unwrap_err();
            assert!(
                matches!(&refused, ResultError::Version { found: 0 | 2, .. })
                    && refused.to_string().contains("this kiln reads format 1"),
                "{refused}"
            );
        }
        fs::write(&path, "{").unwrap();
        assert!(matches!(
            result(folder.path()),
            Err(ResultError::Unreadable(_))
        ));
    }
}
