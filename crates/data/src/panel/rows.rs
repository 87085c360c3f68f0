//! Reads the rows of one symbol: a CSV file in, dates and numbers out. `returns` converts them to
//! returns.

mod chained;
mod fault;
mod kinds;
mod order;
mod skipped;
mod zones;

use std::{collections::BTreeMap, path::Path};

use csv::{ByteRecord, ReaderBuilder};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use kiln_core::units::counted;

pub use self::fault::SkipReason;
use self::{chained::Stretches, fault::RowFault};
pub(super) use self::{
    fault::Remedies,
    kinds::{ColumnKind, column_kinds},
    skipped::refuse_selection,
    zones::{ZonePlaces, Zones},
};
use crate::error::PanelError;

/// The cell value of a row to skip.
const NULL: &[u8] = b"null";

/// The first bytes of a text in UTF-16.
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// The columns to read from each file, and how.
#[derive(Clone, Debug)]
pub(super) struct WantedColumns {
    /// Name of the date column.
    pub(super) date: String,
    /// Names of the columns that the model reads, then the price's unless it is one of them.
    pub(super) columns: Vec<String>,
    /// Index of the price among the columns.
    pub(super) price: usize,
    /// The key or the file that names the columns other than the price, for an error message.
    pub(super) source: &'static str,
    /// Whether bad rows are skipped; otherwise the first one is an error.
    pub(super) skip_bad: bool,
    /// The remedies for a bad row in an error message.
    pub(super) remedies: Remedies,
}

/// The valid rows of a symbol, in time order.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Dates, ascending without repeats.
    pub(super) dates: Vec<DateTime>,
    /// [rows, columns], finite and at least 0; the price is above 0.
    pub(super) values: Vec<f64>,
    /// Rows of `null`.
    pub(super) null: u64,
    /// Skipped bad rows.
    pub(super) skipped: u64,
    /// Skipped bad rows by reason.
    pub(super) reasons: BTreeMap<SkipReason, u64>,
    /// Whether dates have a time zone.
    pub(super) zones: Zones,
    /// A sentence on a file that seems to have the series of several symbols.
    pub(super) chained: Option<String>,
}

impl Rows {
    fn skip(&mut self, reason: SkipReason, count: u64) {
        self.skipped += count;
        *self.reasons.entry(reason).or_default() += count;
    }
}

/// Positions of the wanted cells in a file.
struct Cells<'a> {
    names: &'a ByteRecord,
    date: usize,
    /// In the order of [`WantedColumns::columns`].
    columns: Vec<usize>,
    price: usize,
    /// Whether a date may be before that of the row before.
    may_go_back: bool,
}

/// Reads the rows of one file; `file` is for messages.
///
/// # Errors
/// The header or a wanted column is missing; a row is bad, unless bad rows are skipped.
pub(super) fn read(file: &Path, bytes: &[u8], wanted: &WantedColumns) -> Result<Rows, PanelError> {
    let (names, mut reader) = open(file, bytes)?;
    let cells = Cells::find(file, &names, wanted)?;
    let mut rows = Rows::default();
    let mut stretches = Stretches::new(&cells);
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        let added = cells.read(&record, &mut rows);
        if rows.zones.are_mixed() {
            ZonePlaces::default().add(file, bytes, rows.zones)?;
        }
        match added {
            Ok(()) => stretches.add(&record, rows.dates.len()),
            Err(fault) if wanted.skip_bad => rows.skip(fault.reason, 1),
            Err(fault) => return Err(cells.error(file, bytes, &record, fault, wanted)),
        }
    }
    rows.chained = stretches.describe(&names, bytes, &rows.values, wanted);
    if wanted.skip_bad {
        skipped::keep_ascending(&mut rows, wanted.columns.len());
    }
    // The rows of thousands of symbols are in memory at the same time.
    rows.dates.shrink_to_fit();
    rows.values.shrink_to_fit();
    Ok(rows)
}

pub(super) type Reader<'a> = csv::Reader<&'a [u8]>;

/// Returns the names of the columns, and a reader of the rows below them.
pub(super) fn open<'a>(
    file: &Path,
    bytes: &'a [u8],
) -> Result<(ByteRecord, Reader<'a>), PanelError> {
    if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        return Err(PanelError::Utf16 {
            file: file.to_owned(),
        });
    }
    if let Some(line) = stray_quote(bytes) {
        return Err(PanelError::StrayQuote {
            file: file.to_owned(),
            line,
        });
    }
    // Reading from memory cannot fail, and the caller checks the length of rows.
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(bytes);
    let mut names = ByteRecord::new();
    match reader.read_byte_record(&mut names) {
        Ok(true) => {
            names.trim();
            Ok((names, reader))
        }
        _ => Err(PanelError::NoHeader {
            file: file.to_owned(),
        }),
    }
}

/// The line of a quote that begins a cell and does not end it: the reader would take all up to the
/// next quote, or the end of the file, for one cell.
fn stray_quote(bytes: &[u8]) -> Option<usize> {
    let mut line = 1;
    let mut is_start = true;
    let mark = "\u{feff}".as_bytes();
    let mut rest = bytes.strip_prefix(mark).unwrap_or(bytes).iter().peekable();
    while let Some(byte) = rest.next() {
        let begins = is_start && *byte == b'"';
        is_start = matches!(byte, b',' | b'\n' | b'\r');
        line += usize::from(*byte == b'\n');
        if !begins {
            continue;
        }
        let begun = line;
        loop {
            match rest.next() {
                None => return Some(begun),
                Some(b'\n') => line += 1,
                // Two quotes are one within a cell.
                Some(b'"') if rest.peek() == Some(&&b'"') => drop(rest.next()),
                Some(b'"') => {
                    while rest.next_if(|byte| matches!(byte, b' ' | b'\t')).is_some() {}
                    match rest.peek() {
                        None | Some(b',' | b'\n' | b'\r') => break,
                        Some(_) => return Some(begun),
                    }
                }
                Some(_) => {}
            }
        }
    }
    None
}

pub(super) fn text(cell: &[u8]) -> String {
    String::from_utf8_lossy(cell).into_owned()
}

pub(super) fn is_null(cell: &[u8]) -> bool {
    cell.trim_ascii() == NULL
}

pub(super) fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell.trim_ascii())
        .ok()?
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

/// A date with an offset from UTC is the date in UTC; one without is as written.
pub(super) fn date(cell: &[u8]) -> Option<DateTime> {
    Some(date_and_zone(cell)?.0)
}

/// A date as [`date`], and whether it has an offset.
fn date_and_zone(cell: &[u8]) -> Option<(DateTime, bool)> {
    let text = std::str::from_utf8(cell.trim_ascii()).ok()?;
    match text.parse::<Timestamp>() {
        Ok(moment) => Some((TimeZone::UTC.to_datetime(moment), true)),
        Err(_) => Some((text.parse().ok()?, false)),
    }
}

impl<'a> Cells<'a> {
    fn find(
        file: &Path,
        names: &'a ByteRecord,
        wanted: &WantedColumns,
    ) -> Result<Self, PanelError> {
        let find = |key, name: &str| find(file, names, key, name);
        let key = |at: usize| {
            if at == wanted.price {
                "`data.price` names"
            } else {
                wanted.source
            }
        };
        let columns = wanted
            .columns
            .iter()
            .enumerate()
            .map(|(at, name)| find(key(at), name))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            names,
            date: find("`data.date` names", &wanted.date)?,
            columns,
            price: wanted.price,
            may_go_back: wanted.skip_bad,
        })
    }

    /// Adds one row, or counts it as one of `null`. A bad row adds at most its time zone.
    fn read(&self, record: &ByteRecord, rows: &mut Rows) -> Result<(), RowFault> {
        if record.len() != self.names.len() {
            return Err(RowFault::new(0, SkipReason::CellCount));
        }
        if self
            .columns
            .iter()
            .chain([&self.date])
            .any(|cell| is_null(&record[*cell]))
        {
            rows.null += 1;
            return Ok(());
        }
        let (date, is_zoned) = date_and_zone(&record[self.date])
            .ok_or_else(|| RowFault::new(self.date, SkipReason::NoDate))?;
        rows.zones.add(is_zoned, record);
        let last = rows.dates.last().filter(|last| date <= **last);
        if let Some(last) = last.filter(|_| !self.may_go_back) {
            return Err(RowFault {
                date_before: Some(*last),
                ..RowFault::new(self.date, SkipReason::NotAfter)
            });
        }
        let kept = rows.values.len();
        self.read_numbers(record, &mut rows.values)
            .inspect_err(|_| rows.values.truncate(kept))?;
        rows.dates.push(date);
        Ok(())
    }

    fn read_numbers(&self, record: &ByteRecord, values: &mut Vec<f64>) -> Result<(), RowFault> {
        for (at, cell) in self.columns.iter().enumerate() {
            let fault = |reason| RowFault::new(*cell, reason);
            let value = number(&record[*cell]).ok_or_else(|| fault(SkipReason::NoNumber))?;
            if at == self.price && value <= 0.0 {
                return Err(fault(SkipReason::NoPrice));
            }
            if value < 0.0 {
                return Err(fault(SkipReason::BelowZero));
            }
            values.push(value);
        }
        Ok(())
    }

    fn error(
        &self,
        file: &Path,
        bytes: &[u8],
        record: &ByteRecord,
        fault: RowFault,
        wanted: &WantedColumns,
    ) -> PanelError {
        let (line, column) = place(bytes, start_of(record), fault.cell);
        let remedy = match fault.reason {
            SkipReason::NoNumber if fault.cell != self.columns[self.price] => {
                wanted.remedies.number
            }
            reason if reason.is_selection() => wanted.remedies.value,
            _ => wanted.remedies.row,
        };
        let of_file = match fault.reason {
            SkipReason::NotAfter => order::remedy(file, bytes, self.date),
            _ => None,
        };
        let fault = self.describe(record, &fault);
        PanelError::Row {
            file: file.to_owned(),
            line,
            column,
            fault,
            remedy: of_file.unwrap_or_else(|| remedy.to_owned()),
        }
    }

    fn describe(&self, record: &ByteRecord, fault: &RowFault) -> String {
        let found = match (
            text(&self.names[fault.cell]),
            record.get(fault.cell).unwrap_or_default().trim_ascii(),
        ) {
            (name, b"") => format!("`{name}` is empty"),
            (name, cell) => format!("`{name}` is `{}`", text(cell)),
        };
        match fault.reason {
            SkipReason::CellCount => format!(
                "the row has {}, and the header names {}",
                counted(record.len(), "cell"),
                counted(self.names.len(), "column")
            ),
            SkipReason::NoDate => format!("{found}; it must be a date such as 2012-09-04"),
            SkipReason::NotAfter => format!(
                "{found}, and the row before has `{}`; dates must ascend without repeats",
                fault.date_before.map(day).unwrap_or_default()
            ),
            SkipReason::NoNumber => {
                format!("{found}; it must be a number, or `null` to skip the row")
            }
            SkipReason::BelowZero => {
                format!(
                    "{found}; it must be at least 0, because kiln takes its log return; if such \
                     values are right, leave the column out of `data.columns`"
                )
            }
            SkipReason::NoPrice => format!(
                "{found}; it must be above 0, because the log return of `data.price` is what the \
                 model predicts; if such values are right, name a column that is positive throughout"
            ),
        }
    }
}

/// The sign that separates the names of columns, if it is not a comma.
pub(super) fn other_separator(names: &ByteRecord) -> Option<char> {
    let only = names.get(0).filter(|_| names.len() == 1)?;
    [';', '\t', '|']
        .into_iter()
        .find(|sign| text(only).contains(*sign))
}

fn find(
    file: &Path,
    names: &ByteRecord,
    key: &'static str,
    column: &str,
) -> Result<usize, PanelError> {
    let mut found = names
        .iter()
        .enumerate()
        .filter(|(_, name)| *name == column.as_bytes())
        .map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => Err(PanelError::ColumnTwice {
            file: file.to_owned(),
            column: column.to_owned(),
        }),
        (None, _) => {
            let there: Vec<String> = names.iter().map(text).collect();
            let near = there
                .iter()
                .map(|name| {
                    (
                        strsim::osa_distance(&name.to_lowercase(), &column.to_lowercase()),
                        name,
                    )
                })
                .min();
            let near =
                near.filter(|(distance, _)| *distance <= (column.chars().count() / 3).max(1));
            let separator = other_separator(names)
                .map(|sign| format!("; cells are separated by `{sign}`, not by `,`"));
            let hint = near
                .map(|(_, name)| format!("; did you mean `{name}`?"))
                .or(separator)
                .unwrap_or_default();
            let there = there.iter().map(|name| format!("`{name}`")).collect();
            Err(PanelError::NoColumn {
                file: file.to_owned(),
                key,
                column: column.to_owned(),
                there,
                hint,
            })
        }
    }
}

/// Formats a date without its time if that is midnight.
pub(super) fn day(date: DateTime) -> String {
    if date == date.date().to_datetime(jiff::civil::Time::midnight()) {
        date.date().to_string()
    } else {
        date.to_string()
    }
}

/// The line of a row, from 1.
pub(super) fn line(bytes: &[u8], record: &ByteRecord) -> usize {
    place(bytes, start_of(record), 0).0
}

/// The byte at which a row begins, or that of the newline before it.
fn start_of(record: &ByteRecord) -> usize {
    record
        .position()
        .map_or(0, |position| position.byte() as usize)
}

/// Line and column, from 1, of a cell of the row that begins at byte `start`, or at the newline
/// before it.
fn place(bytes: &[u8], start: usize, cell: usize) -> (usize, usize) {
    let ends = bytes[start..]
        .iter()
        .take_while(|byte| b"\r\n".contains(byte))
        .count();
    let start = start + ends;
    let line = 1 + bytes[..start].iter().filter(|byte| **byte == b'\n').count();
    let (mut at, mut column, mut quoted) = (0, 1, false);
    for byte in &bytes[start..] {
        if at == cell {
            break;
        }
        quoted ^= *byte == b'"';
        at += usize::from(*byte == b',' && !quoted);
        // Continuation bytes of a character start with the bits 10.
        column += usize::from(byte & 0xC0 != 0x80);
    }
    (line, column)
}

#[cfg(test)]
mod tests;
