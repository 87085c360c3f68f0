//! `submit/<n>/`: the job arrays that a run gave to Slurm. `submission.json` is written before the
//! job is submitted and completed after it; the script of the job and the output of its tasks lie
//! beside it.

use std::{collections::BTreeMap, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    RunFolder,
    launch_folder::{make_numbered, numbered},
    run_file::json,
};
use crate::{
    folder::{may_be_read_later, named},
    input,
    limits::RUN_FILE_BYTES,
    spec::Slurm,
};

/// Folder of the submissions in a run.
const SUBMIT: &str = "submit";
const SUBMISSION: &str = "submission.json";
const SCRIPT: &str = "job.sh";
/// Version of the file.
const SUBMISSION_FILE: u32 = 1;

/// One job array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Format version, [`SUBMISSION_FILE`].
    kiln_submission: u32,
    /// From 1.
    pub submission: u64,
    /// The job's name, which no other submission has: a job whose number never came is found by it.
    pub name: String,
    pub command: Vec<String>,
    /// The program that its workers run.
    pub program: PathBuf,
    /// Variables that its workers get.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    pub submitted_utc: String,
    /// Its tasks are numbered from 0.
    pub tasks: u32,
    /// How many workers shall work at once, with those of earlier submissions; absent in those that
    /// replace others, and of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<u32>,
    /// Job and number of the tasks of earlier submissions that waited or ran when it was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alive_before: Vec<(u64, u32)>,
    /// Whether these workers replace ones that were lost.
    pub is_replacement: bool,
    /// The resources of each worker.
    pub slurm: Slurm,
    /// Slurm's `KillWait`, the seconds between SIGTERM and SIGKILL of a job that it ends; absent where
    /// it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_wait_seconds: Option<u64>,
    /// Nodes that get none of its workers, beside those of `slurm.exclude`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_nodes: Vec<String>,
    /// Slurm's number; absent until the reply has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Why there is no job: what `sbatch` said, or that no job of this name was found later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Whether who submitted it gave up without an answer; it is looked up by its name once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
    /// Cancels that kiln asked for, before it asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancels: Vec<Cancel>,
}

/// A cancel of a job's tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    pub utc: String,
    pub of: Cancelled,
}

/// The tasks that a cancel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cancelled {
    Waiting,
    All,
}

impl Submission {
    pub fn new(submission: u64, name: String, tasks: u32, slurm: Slurm) -> Self {
        Self {
            kiln_submission: SUBMISSION_FILE,
            submission,
            name,
            command: Vec::new(),
            program: PathBuf::new(),
            variables: BTreeMap::new(),
            submitted_utc: String::new(),
            tasks,
            asked: None,
            alive_before: Vec::new(),
            is_replacement: false,
            slurm,
            kill_wait_seconds: None,
            lost_nodes: Vec::new(),
            job: None,
            refused: None,
            given_up: false,
            cancels: Vec::new(),
        }
    }

    /// Writes it into its folder.
    ///
    /// # Errors
    /// It cannot be written; the old one then stays.
    pub fn write(&self, run: &RunFolder) -> io::Result<()> {
        let path = folder(run, self.submission).join(SUBMISSION);
        run.write(&path, &json(self)?)
    }

    /// `None` if it cannot be read, or a newer kiln wrote it.
    pub fn read(run: &RunFolder, submission: u64) -> Option<Self> {
        Self::find(run, submission).ok().flatten()
    }

    /// `None` if it is missing or damaged, or a newer kiln wrote it.
    fn find(run: &RunFolder, submission: u64) -> io::Result<Option<Self>> {
        let path = folder(run, submission).join(SUBMISSION);
        let bytes = match input::read(&path, &RUN_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if may_be_read_later(&error) => return Err(named(&path, error)),
            Err(_) => return Ok(None),
        };
        let file: Option<Self> = serde_json::from_slice(&bytes).ok();
        Ok(file.filter(|file| file.kiln_submission <= SUBMISSION_FILE))
    }

    /// Whether neither a job is known nor that there is none.
    pub fn is_unanswered(&self) -> bool {
        self.job.is_none() && self.refused.is_none()
    }

    /// All submissions of a run, in order.
    ///
    /// # Errors
    /// They cannot be listed, or the system cannot read one now: it may have a job.
    pub fn all(run: &RunFolder) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for number in numbers(run)? {
            all.extend(Self::find(run, number)?);
        }
        Ok(all)
    }

    /// The script of its job.
    pub fn script(&self, run: &RunFolder) -> PathBuf {
        folder(run, self.submission).join(SCRIPT)
    }

    /// The output of one of its tasks.
    pub fn log(&self, run: &RunFolder, task: u32) -> PathBuf {
        folder(run, self.submission).join(format!("{task}.log"))
    }
}

/// The numbers of all submissions of a run, in order.
///
/// # Errors
/// They cannot be listed.
pub fn numbers(run: &RunFolder) -> io::Result<Vec<u64>> {
    numbered(run, SUBMIT)
}

/// The folder of a submission.
pub fn folder(run: &RunFolder, submission: u64) -> PathBuf {
    run.path().join(SUBMIT).join(submission.to_string())
}

/// Creates the folder of one more submission; returns its number, which no other has.
///
/// # Errors
/// It cannot be created.
pub fn make(run: &RunFolder) -> io::Result<u64> {
    make_numbered(run, SUBMIT, 0)
}

/// Creates the folder of this submission; returns whether it did. Of two that want the same number
/// one gets it.
///
/// # Errors
/// It cannot be created.
pub fn make_exactly(run: &RunFolder, submission: u64) -> io::Result<bool> {
    let all = run.open()?.make_folder(SUBMIT.as_ref())?;
    match all.make_new_folder(submission.to_string().as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submissions_are_read_in_order_as_they_were_written() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        assert_eq!(Submission::all(&run).unwrap(), []);
        let written: Vec<Submission> = (0..11)
            .map(|_| {
                let number = make(&run).unwrap();
                let mut one =
                    Submission::new(number, format!("kiln-{number}"), 8, Slurm::default());
                one.write(&run).unwrap();
                one.job = Some(81_234 + number);
                one.cancels.push(Cancel {
                    utc: "2026-11-25T20:00:00Z".to_owned(),
                    of: Cancelled::Waiting,
                });
                one.write(&run).unwrap();
                one
            })
            .collect();
        assert_eq!(Submission::all(&run).unwrap(), written);
        assert_eq!(written[10].submission, 11);
    }

    #[test]
    fn a_submission_that_cannot_be_read_now_is_not_left_out() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        let path = folder(&run, make(&run).unwrap()).join(SUBMISSION);
        assert_eq!(Submission::all(&run).unwrap(), [], "it is not written yet");
        // Reading fails with EIO: nothing is at the address 0 of a process.
        std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
        let error = Submission::all(&run).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
    }
}
