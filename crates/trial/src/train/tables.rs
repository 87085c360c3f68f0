//! `steps.csv` and `epochs.csv` of one attempt: rows are buffered, flushed where the loop reads
//! losses, synced at the end.

use std::{
    error::Error,
    fs::File,
    path::{Path, PathBuf},
};

use kiln_core::record::{
    EpochRow, StepRow,
    tables::{EPOCHS, STEPS},
};
use serde::Serialize;

use crate::TrialError;

/// The two tables, open for writing.
pub(crate) struct Tables {
    steps: SeriesTable,
    epochs: SeriesTable,
}

struct SeriesTable {
    path: PathBuf,
    writer: csv::Writer<File>,
}

impl Tables {
    /// Creates both in the attempt's folder, with their headers.
    pub(crate) fn create(folder: &Path) -> Result<Self, TrialError> {
        Ok(Self {
            steps: SeriesTable::create(folder.join("steps.csv"), &STEPS.names())?,
            epochs: SeriesTable::create(folder.join("epochs.csv"), &EPOCHS.names())?,
        })
    }

    pub(crate) fn add_step(&mut self, row: &StepRow) -> Result<(), TrialError> {
        self.steps.add(row)
    }

    pub(crate) fn add_epoch(&mut self, row: &EpochRow) -> Result<(), TrialError> {
        self.epochs.add(row)
    }

    pub(crate) fn flush(&mut self) -> Result<(), TrialError> {
        self.steps.flush()?;
        self.epochs.flush()
    }

    /// Everything written is on the disk afterwards.
    pub(crate) fn sync(&mut self) -> Result<(), TrialError> {
        self.flush()?;
        self.steps.sync()?;
        self.epochs.sync()
    }
}

impl SeriesTable {
    fn create(path: PathBuf, columns: &[&str]) -> Result<Self, TrialError> {
        let file = File::create(&path).map_err(|error| cannot_write(&path, error))?;
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(file);
        writer
            .write_record(columns)
            .map_err(|error| cannot_write(&path, error))?;
        writer.flush().map_err(|error| cannot_write(&path, error))?;
        Ok(Self { path, writer })
    }

    fn add(&mut self, row: &impl Serialize) -> Result<(), TrialError> {
        self.writer
            .serialize(row)
            .map_err(|error| cannot_write(&self.path, error))
    }

    fn flush(&mut self) -> Result<(), TrialError> {
        self.writer
            .flush()
            .map_err(|error| cannot_write(&self.path, error))
    }

    fn sync(&mut self) -> Result<(), TrialError> {
        self.writer
            .get_ref()
            .sync_all()
            .map_err(|error| cannot_write(&self.path, error))
    }
}

/// The error of a file that cannot be written, with its place.
pub(crate) fn cannot_write(path: &Path, error: impl Error + 'static) -> TrialError {
    let text = format!("{} cannot be written: {error}", path.display());
    TrialError::of_writing(text, &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every write to it fails as on a full disk.
    const FULL: &str = "/dev/full";

    #[test]
    fn a_full_disk_is_told_from_other_failures_of_a_table() {
        let refused = SeriesTable::create(PathBuf::from(FULL), &["a"])
            .err()
            .unwrap();
        assert!(matches!(refused, TrialError::DiskFull(_)), "{refused:?}");
        let file = File::options().write(true).open(FULL).unwrap();
        let mut table = SeriesTable {
            path: PathBuf::from(FULL),
            writer: csv::WriterBuilder::new()
                .buffer_capacity(1)
                .from_writer(file),
        };
        let refused = table.add(&"a row").unwrap_err();
        assert!(matches!(refused, TrialError::DiskFull(_)), "{refused:?}");
        let refused = SeriesTable::create(PathBuf::from("/nowhere/x"), &["a"])
            .err()
            .unwrap();
        assert!(matches!(refused, TrialError::Failed(_)), "{refused:?}");
    }
}
