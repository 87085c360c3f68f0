//! The programs of a run that are not kiln's own: what they consist of, and whether they are still
//! those of the launches before.
//!
//! An experiment and its trials come in; the `programs` of a launch in `run.json`, the list of
//! packages beside it, and the reason for a refusal come out.

mod changes;
mod collect;
mod elsewhere;
mod glob;
mod interpreter;
mod invocation;
mod loaded;
mod names;
mod python;
mod record;
mod repositories;
mod stamp;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kiln_core::{input, limits::PROGRAM_FILE_BYTES, plan::Trial, spec::Experiment};

use collect::Sources;
use stamp::Stamp;

pub(super) use changes::{Changed, advice, interpreters};
pub(super) use loaded::LoadedLibraries;
pub(super) use record::Described;
pub(super) use repositories::repositories;

/// The programs of an experiment as they lie on the disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    sources: Sources,
    /// The files of each program by the path as the experiment writes it.
    files: BTreeMap<String, BTreeMap<String, FileNow>>,
}

/// A file as it was read.
#[derive(Clone, Debug)]
struct FileNow {
    path: PathBuf,
    is_held: bool,
    may_be_output: bool,
    /// From before it was read; `None` if it was not there.
    stamp: Option<Stamp>,
    /// The earlier launch that recorded the same content.
    since: Option<u64>,
    /// SHA-256, or the reason why it was not read.
    sha256: Result<String, String>,
}

/// Checks that every entry of `files` stands for a file.
///
/// # Errors
/// A message with the key.
pub(super) fn check<'a>(
    experiment: &Experiment,
    trials: impl Iterator<Item = &'a Trial>,
    results: &Path,
) -> Result<(), String> {
    collect::collect(experiment, trials, results).map(drop)
}

impl Programs {
    /// Reads the files of the programs of these trials.
    ///
    /// # Errors
    /// As [`check`].
    pub(super) fn read<'a>(
        experiment: &Experiment,
        trials: impl Iterator<Item = &'a Trial>,
        results: &Path,
    ) -> Result<Self, String> {
        let sources = collect::collect(experiment, trials, results)?;
        // Programs share files, such as an interpreter.
        let mut known: BTreeMap<PathBuf, FileNow> = BTreeMap::new();
        let mut files = BTreeMap::new();
        for (key, source) in &sources {
            let of_source = source.files.iter().map(|(name, file)| {
                let now = known.entry(file.path.clone()).or_insert_with(|| FileNow {
                    path: file.path.clone(),
                    is_held: file.is_held,
                    may_be_output: file.may_be_output,
                    stamp: Stamp::of(&file.path).ok(),
                    since: None,
                    sha256: input::sha256(&file.path, &PROGRAM_FILE_BYTES)
                        .map_err(|error| error.to_string()),
                });
                let now = FileNow {
                    is_held: file.is_held,
                    may_be_output: file.may_be_output,
                    ..now.clone()
                };
                (name.clone(), now)
            });
            files.insert(key.clone(), of_source.collect());
        }
        Ok(Self { sources, files })
    }
}
