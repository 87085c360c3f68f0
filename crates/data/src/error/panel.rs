//! Errors while loading a panel.

use std::path::PathBuf;

use super::{FROM_UTF16, places_and_remedy};
use crate::suffix::ARCHIVES;

/// A fault of the files of a panel, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum PanelError {
    #[error("{}", describe_absence(.kind, .looked, *.fetch))]
    NotFound {
        kind: &'static str,
        looked: Vec<PathBuf>,
        fetch: Option<&'static str>,
    },
    #[error("{} holds no CSV file; a panel has one per symbol, whose name ends in .csv", .path.display())]
    NoFiles { path: PathBuf },
    #[error("{} holds no CSV file and several archives: {}; name one of them as `data.path`", .path.display(), .archives.join(", "))]
    SeveralArchives {
        path: PathBuf,
        archives: Vec<String>,
    },
    #[error("{} is not an archive that kiln reads: its name must end in {}", .path.display(), ARCHIVES.join(", "))]
    NoArchive { path: PathBuf },
    #[error("{} is a CSV file, and a panel is a folder of CSV files, one per symbol; name the \
             folder", .path.display())]
    OneFile { path: PathBuf },
    #[error("{} holds CSV files in several folders, such as {one} and {other}; all files of a \
             panel must be in one folder", .path.display())]
    SeveralFolders {
        path: PathBuf,
        one: String,
        other: String,
    },
    #[error("{} holds {file} twice", .path.display())]
    Twice { path: PathBuf, file: String },
    #[error("{} holds CSV files, and {name} {fault}; no symbol may be left out: {remedy}", .path.display())]
    Unread {
        path: PathBuf,
        name: String,
        fault: &'static str,
        remedy: &'static str,
    },
    #[error("{} has a name that is not UTF-8 text; rename it, because the file name is the \
             symbol's name", .path.display())]
    NameNotText { path: PathBuf },
    #[error("{} is not UTF-8 text; {}", .file.display(), FROM_UTF16)]
    Utf16 { file: PathBuf },
    #[error("{} is empty; its first line must name the columns", .file.display())]
    NoHeader { file: PathBuf },
    #[error("{}:1: no column `{column}`, which {key}; there are {}{hint}", .file.display(), .there.join(", "))]
    NoColumn {
        file: PathBuf,
        key: &'static str,
        column: String,
        there: Vec<String>,
        hint: String,
    },
    #[error("{}:{line}: a quote that begins a cell does not end it; write `\"\"` for a quote within \
             a quoted cell, or leave quotes out", .file.display())]
    StrayQuote { file: PathBuf, line: usize },
    #[error("{}:1: two columns are named `{column}`", .file.display())]
    ColumnTwice { file: PathBuf, column: String },
    #[error("{} has no row with a number, where cells are separated by commas; {}",
            .path.display(), describe_no_numbers(.other.as_ref()))]
    NoNumbers {
        path: PathBuf,
        /// A file whose header has no comma, and the sign that it has instead.
        other: Option<(PathBuf, char)>,
    },
    #[error(
        "some dates have a time zone ({zoned}), and others have none ({local}); write all of \
             them alike"
    )]
    MixedZones {
        /// File and line.
        zoned: String,
        local: String,
    },
    #[error("{}:{line}:{column}: {fault}; {remedy}", .file.display())]
    Row {
        file: PathBuf,
        line: usize,
        column: usize,
        fault: String,
        remedy: String,
    },
    #[error("{}: `data.skip_bad` would skip {counts}, of {rows} rows; at most 5 %, or one row, \
             may be skipped for such values; {remedy}", .file.display())]
    Selection {
        file: PathBuf,
        /// By reason, in words.
        counts: String,
        rows: u64,
        remedy: String,
    },
}

fn describe_no_numbers(other: Option<&(PathBuf, char)>) -> String {
    match other {
        Some((file, sign)) => format!(
            "in {} they are separated by `{sign}`, not by `,`; write commas, and a point in \
             numbers",
            file.display()
        ),
        None => {
            "kiln cannot tell which columns hold numbers; name them in `data.columns`".to_owned()
        }
    }
}

fn describe_absence(kind: &str, looked: &[PathBuf], fetch: Option<&str>) -> String {
    let (places, remedy) = places_and_remedy(looked, fetch);
    let endings = ARCHIVES.join(", ");
    format!(
        "the panel of `data.kind` {kind} was not found; looked for CSV files, or an archive of \
         them ({endings}), in {places}; {remedy}"
    )
}
