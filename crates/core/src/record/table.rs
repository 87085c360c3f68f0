//! The one way tables are written and read: CSV with one header, whole rows only, empty cells for
//! what is missing.
//!
//! In: rows (any struct whose fields are columns) and a [`TableSpec`]. Out: a file that stays
//! readable after a kill or a full disk. A row is written in one write, a failed write is reverted,
//! and a torn last line is detected and cut when the file is opened again. `columns` defines the
//! columns of each table.

mod error;
mod extent;
mod head;
mod integer;
mod writer;

use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    num::IntErrorKind,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

pub use self::{error::TableError, writer::TableWriter};
use self::{
    extent::{check_rest, whole_extent},
    head::check_version,
};
use crate::{
    input,
    kinds::text_of,
    limits::{Limit, SAMPLES_BYTES, TABLE_BYTES},
    units::shorten,
};

/// The column every table starts with; its cells name the table and its version, such as
/// `trials/1`.
pub const VERSION_COLUMN: &str = "kiln_table";

/// The torn last line of a table: the part of a row that a killed writer left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornLine {
    /// Line number from 1.
    pub line: u64,
    /// Its text, shortened to 200 characters.
    pub text: String,
}

/// The expected header of a table file: its name with version, and all its columns in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Such as `trials/1`.
    pub version: &'static str,
    pub columns: Vec<String>,
}

/// The header of a table file, and facts about the file for messages.
#[derive(Clone, Debug)]
pub struct TableHead {
    /// Its source, for messages.
    pub path: PathBuf,
    pub columns: Vec<String>,
    /// The columns as a record, for the fields of structs.
    header: csv::StringRecord,
    /// Correction of the reader's line numbers: it counts the line feed of a Windows line end with
    /// the next line.
    late_lines: u64,
    /// A torn last line, which is not among the rows.
    pub torn: Option<TornLine>,
}

/// A row of a table, and its place.
pub(super) struct Record<'a> {
    head: &'a TableHead,
    /// In the file, from 1.
    number: u64,
    cells: &'a csv::StringRecord,
}

/// A table in memory: all columns, and every complete row with its place.
#[derive(Clone, Debug)]
pub struct Table {
    pub head: TableHead,
    /// The rows, each with its number in the file, from 1.
    records: Vec<(u64, csv::StringRecord)>,
}

impl TableHead {
    /// The place of a column.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn place(&self, name: &str) -> Result<usize, TableError> {
        let found = self.columns.iter().position(|column| column == name);
        found.ok_or_else(|| TableError::Head {
            path: self.path.clone(),
            problem: format!("there is no column `{name}`"),
        })
    }
}

impl<'a> Record<'a> {
    pub(super) fn head(&self) -> &'a TableHead {
        self.head
    }

    /// Its cells in the order of the columns.
    pub(super) fn cells(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.cells.iter()
    }

    /// A fault of the row, with its place.
    pub(super) fn problem(&self, problem: String) -> TableError {
        TableError::Record {
            path: self.head.path.clone(),
            line: self.cells.position().map_or(0, csv::Position::line) + self.head.late_lines,
            record: self.number,
            problem,
        }
    }

    /// The row as a struct whose fields are matched by column name; further columns are ignored. An
    /// integer may stand as a decimal number, such as `8.0`.
    ///
    /// # Errors
    /// A cell that is not a valid value of its column, with record, line and column.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, TableError> {
        let mut cells = Cow::Borrowed(self.cells);
        loop {
            let error = match cells.deserialize(Some(&self.head.header)) {
                Ok(row) => return Ok(row),
                Err(error) => error,
            };
            match integer::in_digits(&cells, &error) {
                Some(changed) => cells = Cow::Owned(changed),
                None => return Err(self.problem(self.cell_problem(&error))),
            }
        }
    }

    fn cell_problem(&self, error: &csv::Error) -> String {
        let csv::ErrorKind::Deserialize { err, .. } = error.kind() else {
            return plain(error);
        };
        match err.field().and_then(|index| {
            Some((
                self.head.columns.get(index as usize)?,
                self.cells.get(index as usize)?,
            ))
        }) {
            Some((column, cell)) => {
                let cell = shorten(cell, 60);
                match err.kind() {
                    csv::DeserializeErrorKind::ParseInt(fault)
                        if *fault.kind() == IntErrorKind::InvalidDigit =>
                    {
                        format!("`{column}` is `{cell}`: expected a non-negative integer")
                    }
                    kind => format!("`{column}` is `{cell}`: {kind}"),
                }
            }
            None => self.problem_without_place(&err.kind().to_string()),
        }
    }

    /// An error message without a position, completed: by the missing column, or by the column whose
    /// cell holds the unknown variant.
    fn problem_without_place(&self, words: &str) -> String {
        if let Some(column) = words.strip_prefix("missing field ") {
            return format!(
                "there is no column {column}; every column of its version must be present"
            );
        }
        let variant = words.strip_prefix("unknown variant `");
        let found = variant.and_then(|rest| rest.split('`').next());
        let place = self.cells.iter().position(|cell| Some(cell) == found);
        match place.and_then(|place| self.head.columns.get(place)) {
            Some(column) => format!("`{column}`: {words}"),
            None => words.to_owned(),
        }
    }
}

impl Table {
    /// Reads a table file of the kind `version` names (`trials/1`), of this version or an older
    /// one.
    ///
    /// # Errors
    /// The file cannot be read, a line is not a valid record, or it is another table or a newer
    /// version.
    pub fn read(path: &Path, version: &str) -> Result<Self, TableError> {
        let mut file = open_plain(path, OpenOptions::new().read(true), &TABLE_BYTES)?;
        Self::read_from(&mut file, path, version)
    }

    /// Gives the rows of a long table whose cell in `column` is wanted one after another, so that
    /// nobody needs to hold them all.
    ///
    /// # Errors
    /// As [`Table::read`] and [`Table::rows`]; some rows may have been given before.
    pub fn each_of<T: DeserializeOwned>(
        path: &Path,
        version: &str,
        column: &str,
        is_wanted: &dyn Fn(&str) -> bool,
        each: &mut dyn FnMut(T),
    ) -> Result<(), TableError> {
        let mut file = open_plain(path, OpenOptions::new().read(true), &SAMPLES_BYTES)?;
        scan(&mut file, path, version, &mut |record| {
            let columns = &record.head.columns;
            let is_kept = columns
                .iter()
                .position(|name| name == column)
                .and_then(|place| record.cells.get(place))
                .is_some_and(is_wanted);
            if is_kept {
                each(record.parse()?);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Reads a table that kiln began to write, perhaps only its name: `None` if a power failure left
    /// no complete header, and so no row.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn read_begun(
        file: &mut File,
        path: &Path,
        version: &str,
    ) -> Result<Option<Self>, TableError> {
        match is_begun(file, path, version)? {
            true => Self::read_from(file, path, version).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a table from anything that can seek; `path` names it in messages.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn read_from<R: Read + Seek>(
        source: &mut R,
        path: &Path,
        version: &str,
    ) -> Result<Self, TableError> {
        let mut records = Vec::new();
        let head = scan(source, path, version, &mut |record| {
            records.push((record.number, record.cells.clone()));
            Ok(())
        })?;
        Ok(Self { head, records })
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The cells of row `index`, in the order of the columns.
    pub fn cells(&self, index: usize) -> Option<impl Iterator<Item = &str>> {
        self.records.get(index).map(|(_, record)| record.iter())
    }

    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|(number, cells)| Record {
            head: &self.head,
            number: *number,
            cells,
        })
    }

    /// Every row as a struct whose fields are matched by column name; further columns are ignored.
    ///
    /// # Errors
    /// A cell that is not a valid value of its column, with record, line and column.
    pub fn rows<T: DeserializeOwned>(&self) -> Result<Vec<T>, TableError> {
        self.records().map(|record| record.parse()).collect()
    }
}

/// Whether a table that kiln began to write has its whole header; a power failure may have left a
/// part of it, and then there is no row.
///
/// # Errors
/// As [`Table::read`].
pub(super) fn is_begun(file: &mut File, path: &Path, version: &str) -> Result<bool, TableError> {
    let extent = check_size(file, &TABLE_BYTES)
        .and_then(|()| whole_extent(file))
        .map_err(|cause| TableError::Io {
            path: path.to_owned(),
            doing: "reading",
            cause,
        })?;
    check_rest(file, path, &extent, version)?;
    Ok(!extent.has_no_header())
}

/// Reads a table row by row.
///
/// # Errors
/// As [`Table::read`]; what `each` returns.
pub(super) fn scan<R: Read + Seek>(
    source: &mut R,
    path: &Path,
    version: &str,
    each: &mut dyn FnMut(&Record<'_>) -> Result<(), TableError>,
) -> Result<TableHead, TableError> {
    let at = |cause| TableError::Io {
        path: path.to_owned(),
        doing: "reading",
        cause,
    };
    let extent = whole_extent(source).map_err(at)?;
    check_rest(source, path, &extent, version)?;
    source.seek(SeekFrom::Start(0)).map_err(at)?;
    let mut reader = csv_reader(source.take(extent.bytes));
    let bad = |error: csv::Error, record, late_lines| {
        let line = error.position().map_or(1, csv::Position::line) + late_lines;
        TableError::Record {
            path: path.to_owned(),
            line,
            record,
            problem: plain(&error),
        }
    };
    let header = reader.headers().map_err(|error| bad(error, 0, 0))?.clone();
    let columns: Vec<String> = header.iter().map(str::to_owned).collect();
    let late_lines = u64::from(reader.position().line() == 1);
    check_first_column(columns.first()).map_err(|problem| TableError::Head {
        path: path.to_owned(),
        problem,
    })?;
    let head = TableHead {
        path: path.to_owned(),
        columns,
        header,
        late_lines,
        torn: extent.torn,
    };
    let mut cells = csv::StringRecord::new();
    for number in 1.. {
        match reader.read_record(&mut cells) {
            Ok(true) => {}
            Ok(false) => break,
            // A marker has one cell.
            Err(_) if cells.get(0).is_some_and(is_conflict_marker) => {
                return Err(TableError::Head {
                    path: path.to_owned(),
                    problem: CONFLICT.to_owned(),
                });
            }
            Err(error) => return Err(bad(error, number, late_lines)),
        }
        check_version(path, &cells, number, version, late_lines)?;
        each(&Record {
            head: &head,
            number,
            cells: &cells,
        })?;
    }
    Ok(head)
}

/// The cells of a struct, in field order. `None`, NaN and infinity, which JSON lacks, are empty
/// cells; floats have the shortest form that reads back to the same number; lists and maps are JSON.
///
/// # Errors
/// `row` is not a struct or map.
pub fn cells_of<T: Serialize>(row: &T) -> Result<Vec<String>, String> {
    match serde_json::to_value(row) {
        Ok(Value::Object(fields)) => Ok(fields.values().map(text_of).collect()),
        Ok(_) => Err("it is not a struct with named fields".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Opens a regular file that is within the limit: reading a device or a pipe might never end.
pub(super) fn open_plain(
    path: &Path,
    options: &OpenOptions,
    limit: &'static Limit,
) -> Result<File, TableError> {
    let opened = input::open_with(path, options).and_then(|file| {
        check_size(&file, limit)?;
        Ok(file)
    });
    opened.map_err(|cause| TableError::Io {
        path: path.to_owned(),
        doing: "opening",
        cause,
    })
}

/// Checks that the first column is the one that names the table and its version.
fn check_first_column(first: Option<&String>) -> Result<(), String> {
    let Some(name) = first else {
        return Err(format!(
            "it has no line of columns that ends with a line feed (an empty file, a table in UTF-16, or line \
             ends of old Macs), expected `{VERSION_COLUMN},…`; name a table that kiln wrote, saved as UTF-8 text"
        ));
    };
    if is_conflict_marker(name) {
        return Err(CONFLICT.to_owned());
    }
    if let Some(why) = input::left_by_git(name) {
        return Err(why.to_owned());
    }
    if name == VERSION_COLUMN {
        return Ok(());
    }
    let separator = name
        .strip_prefix(VERSION_COLUMN)
        .and_then(|rest| rest.chars().next());
    Err(match separator {
        Some(separator) => format!(
            "its columns are separated by `{}`; save the table with commas",
            separator.escape_default()
        ),
        None => format!(
            "its first column is `{name}`, expected `{VERSION_COLUMN}`; name a `trials.csv` that kiln \
             wrote (a `summary.csv` is only read by people)"
        ),
    })
}

/// Whether a cell is a marker of a merge conflict of git.
fn is_conflict_marker(cell: &str) -> bool {
    ["<<<<<<<", "=======", ">>>>>>>", "|||||||"]
        .iter()
        .any(|marker| cell.starts_with(marker))
}

/// The problem of a table with such a marker, and its remedy.
const CONFLICT: &str = "it has the marks of a merge conflict; keep the rows of one side (`git checkout --ours` or \
                        `--theirs`): the rows of two runs belong into two tables";

fn check_size(file: &File, limit: &'static Limit) -> io::Result<()> {
    limit.check(file.metadata()?.len()).map_err(input::refused)
}

fn csv_reader<R: Read>(source: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .flexible(false)
        .from_reader(source)
}

/// One line of a table. A zero byte would be taken for the trace of a power failure when the table
/// is read; the replacement character stands in its place.
pub(super) fn line_of<'a>(cells: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for cell in cells {
        let plain = match cell.contains('\0') {
            true => Cow::Owned(cell.replace('\0', "\u{fffd}")),
            false => Cow::Borrowed(cell),
        };
        // Writing to memory cannot fail.
        let _ = writer.write_field(plain.as_bytes());
    }
    // The end of a record; a single one cannot have unequal lengths.
    let _ = writer.write_record(None::<&[u8]>);
    writer.into_inner().unwrap_or_default()
}

fn plain(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("it has {len} cells, the header has {expected_len}"),
        csv::ErrorKind::Utf8 { .. } => "it is not UTF-8 text".to_owned(),
        csv::ErrorKind::Io(cause) => cause.to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
