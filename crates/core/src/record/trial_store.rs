//! The rows of a run in memory and in `trials.csv`: the one place that compares the two.
//!
//! In: rows, one by one. Out: a table on the disk that has every row once. A table may be replaced
//! while a run goes on, by an editor, by `git stash`, by a copy; its rows are then written again from
//! memory. What somebody else put in its place is kept: a table of this run keeps its rows, anything
//! else is moved aside.

mod kept;

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    io::Cursor,
};

use rustix::fs::FileType;

pub use self::kept::{AttemptEnd, CutOff};
use self::kept::{KeptRows, Line};
use super::{
    RunFolder,
    table::{Table, TableError, TornLine, line_of},
    trial_row::TRIALS,
    trials::{TableRow, TrialTable, TrialWriter},
};
use crate::{folder::Folder, plan::TrialId, units::counted};

/// A change of the table that kiln did not make, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// This many rows were missing from the table and were written again.
    Restored { rows: usize },
    /// This many rows have other cells than kiln wrote; they stay as they are.
    Edited { rows: usize },
    /// The table was replaced by what cannot be read as one; that was moved to this name, and the
    /// table was written anew.
    PutAside { name: String },
}

impl fmt::Display for TableChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = TRIALS.file;
        match self {
            Self::Restored { rows } => write!(
                formatter,
                "{table} was replaced during the run; {} missing from it, written again",
                counted(*rows, "row")
            ),
            Self::Edited { rows } => write!(
                formatter,
                "{table} was replaced during the run; {} changed by somebody else, kept as changed",
                counted(*rows, "row")
            ),
            Self::PutAside { name } => write!(
                formatter,
                "{table} was replaced by something that is not a table of this run; that was moved \
                 to {name}, and the table was written anew"
            ),
        }
    }
}

/// Why a row is not in the table of its run.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Table(#[from] TableError),
    /// The rows are in the folder, but its path leads elsewhere.
    #[error("{path}: the folder of the run was moved or replaced while the run went on; {rows} \
             are in the folder that was moved: move it back and run the same command again", rows = counted(*.rows, "row"))]
    Moved { path: String, rows: usize },
    #[error("{path}: the folder of the run was removed while the run went on, with {rows}; run \
             the same command again", rows = counted(*.rows, "row"))]
    Removed { path: String, rows: usize },
}

impl StoreError {
    /// [`TableError::is_disk_full`].
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Table(error) if error.is_disk_full())
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Table(error) => error.into(),
            gone => Self::other(gone),
        }
    }
}

/// The rows of one run.
#[derive(Debug)]
pub struct TrialStore {
    folder: Folder,
    axes: Vec<String>,
    writer: TrialWriter,
    /// Rows that are on the disk, in their order there.
    rows: KeptRows,
    /// Rows that are not yet known to be on the disk.
    pending: Vec<Line>,
}

impl TrialStore {
    /// Opens the table of a run, or begins it; `axes` are dotted keys in file order. A torn last
    /// line is cut and returned.
    ///
    /// # Errors
    /// The file cannot be read or written, has other columns (from another sweep), or is a link.
    pub fn open(run: &RunFolder, axes: &[String]) -> Result<(Self, Option<TornLine>), TableError> {
        let folder = run.open().map_err(|cause| TableError::Io {
            path: run.path().to_owned(),
            doing: "opening",
            cause,
        })?;
        let (writer, torn) = open_writer(&folder, axes)?;
        let rows = kept(&writer, run)?;
        let store = Self {
            folder,
            axes: axes.to_vec(),
            writer,
            rows,
            pending: Vec::new(),
        };
        Ok((store, torn))
    }

    /// How the attempts of the rows that are on the disk ended, in the order of the rows.
    pub fn ends(&self) -> &[AttemptEnd] {
        self.rows.ends()
    }

    /// The rows that are on the disk, as kiln wrote them. They take much more memory than
    /// [`TrialStore::ends`].
    ///
    /// # Errors
    /// The rows in memory are damaged.
    pub fn rows(&self) -> Result<Vec<TableRow>, TableError> {
        let columns = TRIALS.spec(&self.axes).columns;
        let mut table = line_of(columns.iter().map(String::as_str));
        table.extend(self.kept_bytes()?);
        Ok(TrialTable::read_from(&mut Cursor::new(table), self.writer.path())?.rows)
    }

    /// The highest attempt of a trial that has a row; 0 if none has.
    pub fn last_attempt(&self, trial: &TrialId) -> u64 {
        let pending = self.pending.iter().map(|line| &line.end);
        let pending = pending.filter(|end| end.trial == *trial);
        let ends = pending.chain(self.last_end(trial));
        ends.map(|end| end.attempt).max().unwrap_or(0)
    }

    /// How the trial's last attempt with a row on the disk ended.
    pub fn last_end(&self, trial: &TrialId) -> Option<&AttemptEnd> {
        self.rows.last(trial)
    }

    /// Whether the path of the run's folder leads to it: it was not moved, replaced or removed.
    pub fn is_in_place(&self) -> bool {
        self.folder.is_in_place()
    }

    /// Number of rows that could not be written.
    pub fn unwritten(&self) -> usize {
        self.pending.len()
    }

    /// Adds a row, and waits until it is on the disk.
    ///
    /// # Errors
    /// It is not on the disk; it stays in memory, and [`TrialStore::settle`] tries again.
    pub fn keep(&mut self, row: &TableRow) -> Result<Vec<TableChange>, StoreError> {
        self.pending.push(line_with_end(&self.writer, row)?);
        self.settle()
    }

    /// Adds a row to a table that no other process knows yet. It is on the disk after the next
    /// [`TrialStore::sync`].
    ///
    /// # Errors
    /// It fits no table, or cannot be written.
    pub fn add(&mut self, row: &TableRow) -> Result<(), TableError> {
        let line = line_with_end(&self.writer, row)?;
        self.writer.append(row)?;
        self.rows.push(line);
        Ok(())
    }

    /// Waits until the table and its name are on the disk.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn sync(&mut self) -> Result<(), TableError> {
        self.writer.sync()
    }

    /// Makes the table on the disk have every row in memory. Does nothing if it has.
    ///
    /// # Errors
    /// A row is not on the disk, or the folder has been moved or removed.
    pub fn settle(&mut self) -> Result<Vec<TableChange>, StoreError> {
        if self.folder.is_removed() {
            return Err(StoreError::Removed {
                path: self.shown(),
                rows: self.rows.len() + self.pending.len(),
            });
        }
        let changes = match self.writer.is_as_left() {
            true => self.append_pending().map(|()| Vec::new()),
            false => self.reconcile(),
        }?;
        if !self.folder.is_in_place() {
            return Err(StoreError::Moved {
                path: self.shown(),
                rows: self.rows.len(),
            });
        }
        Ok(changes)
    }

    fn shown(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn append_pending(&mut self) -> Result<(), TableError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.writer.append_lines(&self.pending_bytes()).is_err() {
            // After a failed sync the kernel may have dropped the rows, and would report no error
            // again: only a new file is certain to have them.
            return self.rewrite();
        }
        self.pending.drain(..).for_each(|line| self.rows.push(line));
        Ok(())
    }

    /// Writes all rows into a new file.
    fn rewrite(&mut self) -> Result<(), TableError> {
        let mut all = self.kept_bytes()?;
        all.extend(self.pending_bytes());
        self.writer.rewrite(&all)?;
        self.pending.drain(..).for_each(|line| self.rows.push(line));
        Ok(())
    }

    fn pending_bytes(&self) -> Vec<u8> {
        let lines = self.pending.iter().map(|line| line.bytes.as_slice());
        lines.collect::<Vec<_>>().concat()
    }

    fn kept_bytes(&self) -> Result<Vec<u8>, TableError> {
        self.rows.bytes().map_err(|cause| TableError::Io {
            path: self.writer.path().to_owned(),
            doing: "reading its rows in memory",
            cause,
        })
    }

    /// The table is another file than the one that was written, or has other content.
    fn reconcile(&mut self) -> Result<Vec<TableChange>, TableError> {
        let name = TRIALS.file.as_ref();
        let failed = |cause| TableError::Io {
            path: self.folder.path().join(TRIALS.file),
            doing: "opening",
            cause,
        };
        match self.folder.kind(name).map_err(failed)? {
            None => {
                let rows = self.rows.len();
                self.rewrite()?;
                Ok(vec![TableChange::Restored { rows }])
            }
            Some(FileType::RegularFile) => match self.read_replacement() {
                Some(found) => self.complete(found),
                None => self.put_aside(),
            },
            Some(_) => self.put_aside(),
        }
    }

    /// The rows of the file that now has the table's name; `None` if it is not a table of this
    /// run.
    fn read_replacement(&self) -> Option<Vec<TableRow>> {
        let path = self.folder.path().join(TRIALS.file);
        let mut file = self.folder.read(TRIALS.file.as_ref()).ok()?;
        let table = match Table::read_begun(&mut file, &path, TRIALS.version).ok()? {
            Some(table) => table,
            None => return Some(Vec::new()),
        };
        (table.head.columns == TRIALS.spec(&self.axes).columns)
            .then(|| TrialTable::of(&table).ok())
            .flatten()
            .map(|table| table.rows)
    }

    /// Appends to a table the rows that it lacks.
    fn complete(&mut self, found: Vec<TableRow>) -> Result<Vec<TableChange>, TableError> {
        let (writer, _) = open_writer(&self.folder, &self.axes)?;
        self.writer = writer;
        let found = found
            .iter()
            .map(|row| line_with_end(&self.writer, row))
            .collect::<Result<Vec<Line>, _>>()?;
        let there: HashMap<_, &[u8]> = found
            .iter()
            .map(|line| (line.end.key(), line.bytes.as_slice()))
            .collect();
        let kept = self.kept_bytes()?;
        let mut seen: HashSet<_> = there.keys().copied().collect();
        let mut missing = Vec::new();
        let (mut edited, mut restored) = (0, 0);
        for (end, line) in self.rows.lines(&kept) {
            edited += usize::from(there.get(&end.key()).is_some_and(|found| *found != line));
            if seen.insert(end.key()) {
                restored += 1;
                missing.push(Line {
                    end: end.clone(),
                    bytes: line.to_vec(),
                });
            }
        }
        let unwritten = self.pending.iter();
        missing.extend(
            unwritten
                .filter(|line| seen.insert(line.end.key()))
                .cloned(),
        );
        self.pending = missing;
        self.rows = KeptRows::default();
        found.into_iter().for_each(|line| self.rows.push(line));
        self.append_pending()?;
        let changes = [
            (restored > 0).then_some(TableChange::Restored { rows: restored }),
            (edited > 0).then_some(TableChange::Edited { rows: edited }),
        ];
        Ok(changes.into_iter().flatten().collect())
    }

    /// Moves away what stands in the table's place, and writes the table anew.
    fn put_aside(&mut self) -> Result<Vec<TableChange>, TableError> {
        let failed = |cause| TableError::Io {
            path: self.folder.path().join(TRIALS.file),
            doing: "moving away",
            cause,
        };
        let name = self
            .folder
            .put_aside(TRIALS.file.as_ref())
            .map_err(failed)?;
        self.rewrite()?;
        Ok(vec![TableChange::PutAside {
            name: name.to_string_lossy().into_owned(),
        }])
    }
}

/// # Errors
/// The row fits no table.
fn line_with_end(writer: &TrialWriter, row: &TableRow) -> Result<Line, TableError> {
    Ok(Line {
        end: AttemptEnd::of(row),
        bytes: writer.line(row)?,
    })
}

/// The rows that a run has already.
fn kept(writer: &TrialWriter, run: &RunFolder) -> Result<KeptRows, TableError> {
    let mut rows = Ok(KeptRows::default());
    TrialTable::each_of(run, &mut |row| {
        if let Ok(kept) = &mut rows
            && let Err(error) = line_with_end(writer, &row).map(|line| kept.push(line))
        {
            rows = Err(error);
        }
    })?;
    rows
}

fn open_writer(
    folder: &Folder,
    axes: &[String],
) -> Result<(TrialWriter, Option<TornLine>), TableError> {
    let again = folder.try_clone().map_err(|cause| TableError::Io {
        path: folder.path().to_owned(),
        doing: "opening",
        cause,
    })?;
    TrialWriter::open_in(again, axes)
}

#[cfg(test)]
mod tests;
