//! Faults of tables.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::folder;

/// A fault of a table, and its place.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{path}: {doing} failed: {cause}", path = path.display(), cause = without_path(path, cause))]
    Io {
        path: PathBuf,
        doing: &'static str,
        cause: io::Error,
    },
    #[error("{path}: the columns are not those of this table: {difference}; restore the file as \
             kiln wrote it, use the version that wrote it, or name another file", path = path.display())]
    Columns { path: PathBuf, difference: String },
    #[error("{path}:1:1: {problem}", path = path.display())]
    Head { path: PathBuf, problem: String },
    #[error("{path}: this is not a `{known}` table: its first line is `{found}` instead of kiln's \
             header; nothing was changed; name another file, or, if a program has saved this one with a \
             byte order mark or quotes, restore it as kiln wrote it", path = path.display())]
    NoTable {
        path: PathBuf,
        found: String,
        known: String,
    },
    #[error("{path}:{line}: record {record} is of table `{found}`, newer than this kiln reads \
             (`{known}`); update kiln", path = path.display())]
    Newer {
        path: PathBuf,
        line: u64,
        record: u64,
        found: String,
        known: String,
    },
    #[error("{path}: it is a `{found}` table, and this kiln writes `{known}`, with other columns or meanings: \
             finish the run with the kiln that began it, or start a new one with `--fresh`; reports and \
             comparisons read both", path = path.display())]
    Older {
        path: PathBuf,
        found: String,
        known: String,
    },
    #[error("{path}:{line}: record {record} is of table `{found}`, expected `{known}`", path = path.display())]
    OtherTable {
        path: PathBuf,
        line: u64,
        record: u64,
        found: String,
        known: String,
    },
    #[error("{path}:{line}: record {record}: {problem}", path = path.display())]
    Record {
        path: PathBuf,
        line: u64,
        record: u64,
        problem: String,
    },
    #[error("{path}:{line}: a quote opens here or later and never closes, and {rows} rows follow \
             it; correct that line", path = path.display())]
    OpenQuote { path: PathBuf, line: u64, rows: u64 },
    #[error("{path}: a row does not fit the table: {problem}", path = path.display())]
    Row { path: PathBuf, problem: String },
}

/// The text of an error that may name the file already.
fn without_path(path: &Path, cause: &io::Error) -> String {
    let text = cause.to_string();
    let named = format!("{}: ", path.display());
    text.strip_prefix(&named).map(str::to_owned).unwrap_or(text)
}

impl TableError {
    /// Whether the disk (or a quota) is full: the run should then stop and report the space it
    /// needs.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if folder::is_full(cause))
    }

    /// Whether the system could not read the table, which says nothing about its content.
    pub fn is_unread(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if folder::may_be_read_later(cause))
    }
}

impl From<TableError> for io::Error {
    fn from(error: TableError) -> Self {
        let kind = if error.is_disk_full() {
            io::ErrorKind::StorageFull
        } else {
            io::ErrorKind::Other
        };
        Self::new(kind, error)
    }
}
