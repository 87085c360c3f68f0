//! `steps.csv`, `epochs.csv` and `layers.csv` of one attempt: rows are buffered, flushed where the loop
//! reads losses, synced before each checkpoint and at the end.

use std::{
    error::Error,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use kiln_core::record::{
    EpochRow, LayerRow, StepRow,
    tables::{EPOCHS, LAYERS, STEPS},
};
use serde::Serialize;

use crate::TrialError;

/// The tables, open for writing.
pub(crate) struct Tables {
    folder: PathBuf,
    steps: SeriesTable,
    epochs: SeriesTable,
    /// Made with its first row, because few trials have any.
    layers: Option<SeriesTable>,
}

struct SeriesTable {
    path: PathBuf,
    writer: csv::Writer<WholeWrites<File>>,
}

/// A file in which a write that failed leaves nothing: the writer of rows keeps its buffer after an
/// error, and would write the rows that are partly there once more.
struct WholeWrites<F> {
    file: F,
    /// Bytes of writes that succeeded.
    length: u64,
    failed: Option<io::ErrorKind>,
}

/// A file that can be cut.
trait Cut: Write {
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Cut for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

impl<F: Cut> WholeWrites<F> {
    fn new(file: F) -> Self {
        Self {
            file,
            length: 0,
            failed: None,
        }
    }
}

impl<F: Cut> Write for WholeWrites<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(kind) = self.failed {
            return Err(kind.into());
        }
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(bytes.len())
            }
            Err(error) => {
                self.failed = Some(error.kind());
                // A part of the bytes may remain if this fails too; readers cut a torn last line.
                let _ = self.file.cut(self.length);
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Tables {
    /// Creates those of every trial in the attempt's folder, with their headers.
    pub(crate) fn create(folder: &Path) -> Result<Self, TrialError> {
        Ok(Self {
            steps: SeriesTable::create(folder.join("steps.csv"), &STEPS.names())?,
            epochs: SeriesTable::create(folder.join("epochs.csv"), &EPOCHS.names())?,
            folder: folder.to_owned(),
            layers: None,
        })
    }

    pub(crate) fn add_step(&mut self, row: &StepRow) -> Result<(), TrialError> {
        self.steps.add(row)
    }

    pub(crate) fn add_epoch(&mut self, row: &EpochRow) -> Result<(), TrialError> {
        self.epochs.add(row)
    }

    pub(crate) fn add_layer(&mut self, row: &LayerRow) -> Result<(), TrialError> {
        let table = match &mut self.layers {
            Some(table) => table,
            none => none.insert(SeriesTable::create(
                self.folder.join("layers.csv"),
                &LAYERS.names(),
            )?),
        };
        table.add(row)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut SeriesTable> {
        [&mut self.steps, &mut self.epochs]
            .into_iter()
            .chain(&mut self.layers)
    }

    pub(crate) fn flush(&mut self) -> Result<(), TrialError> {
        self.all().try_for_each(SeriesTable::flush)
    }

    /// Everything written is on the disk afterwards.
    pub(crate) fn sync(&mut self) -> Result<(), TrialError> {
        self.flush()?;
        self.all().try_for_each(|table| table.sync())
    }
}

impl SeriesTable {
    fn create(path: PathBuf, columns: &[&str]) -> Result<Self, TrialError> {
        let file = File::create(&path).map_err(|error| cannot_write(&path, error))?;
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(WholeWrites::new(file));
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
            .file
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

    /// Takes so many bytes, in pieces of four, and then no more.
    struct SmallDisk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(4).min(self.room - self.bytes.len());
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Cut for SmallDisk {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.bytes.truncate(length as usize);
            Ok(())
        }
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_and_none_follows_it() {
        let disk = SmallDisk {
            bytes: Vec::new(),
            room: 15,
        };
        let mut whole = WholeWrites::new(disk);
        whole.write_all(b"1,3.25\n").unwrap();
        for _ in 0..2 {
            let refused = whole.write_all(b"2,3.53864574432\n").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        }
        assert_eq!(whole.file.bytes, b"1,3.25\n");
    }

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
                .from_writer(WholeWrites::new(file)),
        };
        let refused = table.add(&"a row").unwrap_err();
        assert!(matches!(refused, TrialError::DiskFull(_)), "{refused:?}");
        let refused = SeriesTable::create(PathBuf::from("/nowhere/x"), &["a"])
            .err()
            .unwrap();
        assert!(matches!(refused, TrialError::Failed(_)), "{refused:?}");
    }
}
