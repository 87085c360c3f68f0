//! Checks whether a file is the expected table: its first line, and the version in each row.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use super::{TableError, TableSpec, VERSION_COLUMN, csv_reader, line_of, plain};
use crate::{limits::ROW_BYTES, units::shorten};

/// Maximum length of the first line; kiln's own headers have a few kilobytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// Checks that the file is empty or begins with this table's header, complete or torn, and that its
/// first row is of the header's version. Changes nothing.
pub(super) fn check_head(file: &mut File, path: &Path, spec: &TableSpec) -> Result<(), TableError> {
    let failed = |cause| TableError::Io {
        path: path.to_owned(),
        doing: "reading",
        cause,
    };
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut line = Vec::new();
    io::BufRead::read_until(
        &mut io::BufReader::new(&mut *file).take(LONGEST_HEADER),
        b'\n',
        &mut line,
    )
    .map_err(failed)?;
    let header = line_of(spec.columns.iter().map(String::as_str));
    // A file system may leave zero bytes after a power failure.
    let is_torn = line.len() as u64 == length
        && (line.starts_with(VERSION_COLUMN.as_bytes()) && header.starts_with(&line));
    if line == header {
        return check_first_row(file, path, spec);
    }
    if is_torn || (line.len() as u64 == length && line.iter().all(|byte| *byte == 0)) {
        return Ok(());
    }
    // Zero bytes in a line are a damage, not another version.
    let is_kilns = line.ends_with(b"\n")
        && !line.contains(&0)
        && (line.starts_with(b"kiln_table,") || line.trim_ascii_end() == VERSION_COLUMN.as_bytes());
    if !is_kilns {
        let found = shorten(String::from_utf8_lossy(&line).trim_end(), 60);
        return Err(TableError::NoTable {
            path: path.to_owned(),
            found,
            known: spec.version.to_owned(),
        });
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut reader = csv_reader((&mut *file).take(ROW_BYTES.value()));
    let bad = |error: csv::Error| TableError::Record {
        path: path.to_owned(),
        line: 1,
        record: 0,
        problem: plain(&error),
    };
    let found = reader.headers().map_err(bad)?.clone();
    // A row that names another table is more informative than a list of columns.
    if let Some(Ok(first)) = reader.records().next() {
        check_version(path, &first, 1, spec.version, 0)?;
        check_age(path, &first, spec)?;
    }
    check_header(path, &found, spec)
}

/// Versions may have the same columns and other meanings. A first row that is torn says nothing.
fn check_first_row(file: &mut File, path: &Path, spec: &TableSpec) -> Result<(), TableError> {
    file.seek(SeekFrom::Start(0))
        .map_err(|cause| TableError::Io {
            path: path.to_owned(),
            doing: "reading",
            cause,
        })?;
    let mut reader = csv_reader((&mut *file).take(LONGEST_HEADER + ROW_BYTES.value()));
    match reader.records().next() {
        Some(Ok(first)) if first.len() == spec.columns.len() => {
            match check_version(path, &first, 1, spec.version, 0) {
                Err(newer @ TableError::Newer { .. }) => Err(newer),
                _ => check_age(path, &first, spec),
            }
        }
        _ => Ok(()),
    }
}

/// Refuses a row of an earlier version of the table.
fn check_age(path: &Path, row: &csv::StringRecord, spec: &TableSpec) -> Result<(), TableError> {
    let found = row.get(0).unwrap_or_default();
    match (name_and_version(found), name_and_version(spec.version)) {
        (Some((name, version)), Some((known_name, known)))
            if name == known_name && version < known =>
        {
            Err(TableError::Older {
                path: path.to_owned(),
                found: found.to_owned(),
                known: spec.version.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// `trials/1` as its parts.
fn name_and_version(text: &str) -> Option<(&str, u32)> {
    let (name, version) = text.split_once('/')?;
    Some((name, version.parse().ok()?))
}

/// Maximum number of column names in a message.
const MOST_NAMES: usize = 6;

/// `` `a`, `b` and 3 more ``.
fn quoted(names: &[&str]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(MOST_NAMES)
        .map(|name| format!("`{name}`"))
        .collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn check_header(
    path: &Path,
    found: &csv::StringRecord,
    spec: &TableSpec,
) -> Result<(), TableError> {
    let found: Vec<&str> = found.iter().collect();
    if found == spec.columns {
        return Ok(());
    }
    let missing: Vec<&str> = spec
        .columns
        .iter()
        .map(String::as_str)
        .filter(|name| !found.contains(name))
        .collect();
    let unknown: Vec<&str> = found
        .iter()
        .copied()
        .filter(|name| !spec.columns.iter().any(|column| column == name))
        .collect();
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} missing", quoted(&missing)));
    }
    if !unknown.is_empty() {
        parts.push(format!("{} unknown", quoted(&unknown)));
    }
    if parts.is_empty() {
        let place = found
            .iter()
            .zip(&spec.columns)
            .position(|(found, wanted)| found != wanted);
        parts.push(match place {
            Some(place) => format!(
                "column {} is `{}`, expected `{}`",
                place + 1,
                found[place],
                spec.columns[place]
            ),
            None => format!("{} columns, expected {}", found.len(), spec.columns.len()),
        });
    }
    Err(TableError::Columns {
        path: path.to_owned(),
        difference: parts.join("; "),
    })
}

/// Each row names its table, so joined tables are checked row by row.
pub(super) fn check_version(
    path: &Path,
    record: &csv::StringRecord,
    number: u64,
    known: &str,
    late_lines: u64,
) -> Result<(), TableError> {
    let found = record.get(0).unwrap_or_default();
    if found == known {
        return Ok(());
    }
    let line = record.position().map_or(0, csv::Position::line) + late_lines;
    let (path, record, known_text) = (path.to_owned(), number, known.to_owned());
    let found_text = shorten(found, 60);
    match (name_and_version(found), name_and_version(known)) {
        (Some((name, version)), Some((known_name, known_version))) if name == known_name => {
            if version > known_version {
                return Err(TableError::Newer {
                    path,
                    line,
                    record,
                    found: found_text,
                    known: known_text,
                });
            }
            Ok(())
        }
        _ if found == VERSION_COLUMN => Err(TableError::Record {
            path,
            line,
            record,
            problem:
                "it is a second line of columns: two tables were joined; keep the rows of each \
                      run in a separate table"
                    .to_owned(),
        }),
        _ if found.trim().is_empty() => Err(TableError::Record {
            path,
            line,
            record,
            problem: "its first cell is empty, where the name of the table stands in every row: remove an \
                      empty row, or restore the cell"
                .to_owned(),
        }),
        _ => Err(TableError::OtherTable {
            path,
            line,
            record,
            found: found_text,
            known: known_text,
        }),
    }
}
