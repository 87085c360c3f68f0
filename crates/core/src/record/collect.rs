//! Makes the tables of a run that several launches work on from those of the launches.
//!
//! In: `launches/*/`. Out: `trials.csv`, `snapshots.csv` and `run.json` of the run, whole, each
//! written under a name of its own and renamed: two that collect at once cannot tear a table, and
//! the result does not depend on which launch was faster. Rows of trials keep their bytes.

mod edited;
mod launches;
mod rows;
mod snapshots;

use std::{fs::File, io, path::Path};

pub use self::{edited::EditedRows, rows::CollectedRows};
use self::{
    edited::OwnTable,
    launches::{launch_files, merged},
    rows::{LaunchRows, OWN},
};
use super::{
    RunFile, RunFolder, TableError, launch_folder, run_file::json, table::is_begun,
    trial_row::TRIALS,
};
use crate::input;

/// Most times that tables are made again because of new rows.
const MOST_COLLECTED: usize = 4;

/// Whether several launches work, or worked, on a run, so that its tables are collected.
pub fn is_collected(run: &RunFolder) -> bool {
    let launches = run.path().join(launch_folder::LAUNCHES);
    match launches.symlink_metadata() {
        Ok(found) => found.is_dir(),
        // The collection reads the folder, and fails with the error.
        Err(error) => !input::is_absent(&error),
    }
}

/// The result of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Number of rows in `trials.csv`.
    pub rows: usize,
    /// Rows of the `trials.csv` before it that somebody had changed, if any.
    pub edited: Option<EditedRows>,
}

/// Writes the tables of a run from those of its launches.
///
/// Several processes may collect at once, and the last one to write may have read before another wrote.
/// So each looks, after it has written, whether a table of a launch has grown, and then collects again.
///
/// # Errors
/// A table or `run.json` cannot be read or written.
pub fn collect(run: &RunFolder) -> io::Result<Collected> {
    let (mut before, mut edited) = (lengths(run), None);
    for _ in 0..MOST_COLLECTED {
        let collected = collect_once(run)?;
        edited = edited.or(collected.edited);
        let (rows, now) = (collected.rows, lengths(run));
        if now == before {
            return Ok(Collected { rows, edited });
        }
        before = now;
    }
    // Somebody adds rows all the time, and collects them too.
    let last = collect_once(run)?;
    Ok(Collected {
        rows: last.rows,
        edited: edited.or(last.edited),
    })
}

/// The launches with a `trials.csv`, and its bytes.
fn lengths(run: &RunFolder) -> Vec<(u64, u64)> {
    let length = |launch| {
        let table = launch_folder::folder(run, launch).trials_table();
        Some((launch, table.metadata().ok()?.len()))
    };
    let launches = launch_folder::launches(run).into_iter();
    launches.filter_map(length).collect()
}

fn collect_once(run: &RunFolder) -> io::Result<Collected> {
    let own = OwnTable::read(run)?;
    let rows = CollectedRows::read(run)?;
    let edited = own.and_then(|own| own.edited(&rows));
    let folder = run.open()?;
    if let Some(text) = rows.text() {
        folder.write_among_others(TRIALS.file.as_ref(), &text)?;
    }
    let launches = launch_files(run)?;
    snapshots::collect(run, &folder, &launches)?;
    let mut file = RunFile::read(&run.run_file()).map_err(io::Error::other)?;
    file.launches = merged(&file, &launches);
    run.write_among_others(&run.run_file(), &json(&file)?)?;
    Ok(Collected {
        rows: rows.len(),
        edited,
    })
}

/// Returns how many rows of the launches are not in the run's `trials.csv`.
///
/// # Errors
/// A table cannot be read.
pub fn uncollected(run: &RunFolder) -> Result<usize, TableError> {
    if !is_collected(run) {
        return Ok(0);
    }
    let there = LaunchRows::read(run, &run.trials_table(), OWN, &|_, _| true)?;
    let there = there.map_or(Ok(0), |own| own.rows.map(|rows| rows.len()))?;
    Ok(CollectedRows::read(run)?.len().saturating_sub(there))
}

/// Opens a table below a run; `None` if there is none, or none whose header is whole. The folder of
/// the run may be a link to where it was moved; no link below it is followed.
fn open_begun(run: &RunFolder, path: &Path, version: &str) -> Result<Option<File>, TableError> {
    match run.read_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(TableError::Io {
            path: path.to_owned(),
            doing: "opening",
            cause,
        }),
        Ok(mut file) => Ok(is_begun(&mut file, path, version)?.then_some(file)),
    }
}

#[cfg(test)]
mod tests;
