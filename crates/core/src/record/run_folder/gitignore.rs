//! The files that tell git which parts of runs to commit.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

use crate::{folder, input, limits::RUN_FILE_BYTES};

pub(super) const GITIGNORE: &str = ".gitignore";
/// The first line of `results/.gitignore`, with which those of older versions begin too.
const IGNORED_HEAD: &str = "# kiln commits ";
/// The rest of that line, and the patterns: everything except the small tables, the experiment and
/// `run.json` is ignored, and those also where the project ignores files like them. `latest` would
/// change with every run.
const IGNORED: [&str; 20] = [
    "summary.csv, experiment.yaml, run.json, trials.csv, snapshots.csv, snapshot-*.txt and \
     packages-*.txt; the rest is large or local",
    "*/*/trials/",
    "*/*/samples.csv",
    "*/*/.reserve",
    "*/.new-*",
    ".kiln-lock",
    "*/latest",
    "*/*/queue/",
    "*/*/launches/",
    ".programs/",
    "!*/*/experiment.yaml",
    "!*/*/run.json",
    "!*/*/trials.csv",
    "!*/*/summary.csv",
    "!*/*/snapshots.csv",
    "!*/*/snapshot-*.txt",
    "!*/*/packages-*.txt",
    "!*/*/recommendation.md",
    "!*/*/chosen.yaml",
    // Files while they are written. Each version ends with what the one before lacks.
    ".*.new",
];
/// Patterns of the first version.
const FIRST_IGNORED: usize = 5;
/// The `.gitignore` of a run: the one of all results is gone on a branch that has none.
pub(super) const OF_RUN_IGNORED: &[u8] =
    b"/trials/\n/samples.csv\n/.reserve\n/queue/\n/launches/\n/.gitignore\n.*.new\n";
/// The `.gitignore` of an experiment's folder, for the same reason.
const OF_EXPERIMENT_IGNORED: &[u8] = b"/latest\n/.kiln-lock\n/.new-*\n/.gitignore\n";

/// Writes `results/.gitignore` where there is none. That of an older version is replaced, one that
/// somebody has changed is not.
pub(super) fn write_gitignore(results: &Path) -> io::Result<()> {
    let path = results.join(GITIGNORE);
    match OpenOptions::new().create_new(true).write(true).open(path) {
        Ok(mut file) => file.write_all(whole().as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            update_gitignore(results);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Replaces the `results/.gitignore` of an older version, which serves as well if it cannot be
/// replaced.
pub(super) fn update_gitignore(results: &Path) {
    let path = results.join(GITIGNORE);
    if is_of_older_version(&path) {
        let _ = folder::write_whole(&path, whole().as_bytes());
    }
}

fn whole() -> String {
    format!("{IGNORED_HEAD}{}\n", IGNORED.join("\n"))
}

/// Writes the `.gitignore` of an experiment's folder where there is none.
pub(super) fn write_gitignore_of_experiment(folder: &Path) -> io::Result<()> {
    let path = folder.join(GITIGNORE);
    match OpenOptions::new().create_new(true).write(true).open(path) {
        Ok(mut file) => file.write_all(OF_EXPERIMENT_IGNORED),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a file is a `.gitignore` as an older version wrote it.
fn is_of_older_version(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let Some(text) = input::read_text(path, &RUN_FILE_BYTES)
        .ok()
        .filter(|_| is_file)
    else {
        return false;
    };
    let mut lines = text.lines();
    let begins = lines
        .next()
        .is_some_and(|first| first.starts_with(IGNORED_HEAD));
    let patterns: Vec<&str> = lines.collect();
    let known = &IGNORED[1..];
    begins && (FIRST_IGNORED..known.len()).contains(&patterns.len()) && known.starts_with(&patterns)
}
