//! Reads the rows of one symbol: a CSV file in, dates and numbers out. `returns` converts them to
//! returns.

use std::path::Path;

use csv::{ByteRecord, ReaderBuilder};
use jiff::civil::DateTime;

use crate::error::PanelError;

/// The cell value of a row to skip.
const NULL: &[u8] = b"null";

/// The columns to read from each file, and how.
#[derive(Clone, Debug)]
pub(super) struct WantedColumns {
    /// Name of the date column.
    pub(super) date: String,
    /// Names of the columns that the model reads, then the price's unless it is one of them.
    pub(super) columns: Vec<String>,
    /// Index of the price among the columns.
    pub(super) price: usize,
    /// Whether bad rows are skipped; otherwise the first one is an error.
    pub(super) skip_bad: bool,
    /// The remedy for a bad row in an error message.
    pub(super) remedy: &'static str,
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
}

/// Why a row cannot be read: the cell and its fault.
struct RowFault {
    cell: usize,
    what: What,
}

enum What {
    CellCount,
    NoDate,
    NotAfter(DateTime),
    NoNumber,
    BelowZero,
    NoPrice,
}

/// Positions of the wanted cells in a file.
struct Cells<'a> {
    names: &'a ByteRecord,
    date: usize,
    /// In the order of [`WantedColumns::columns`].
    columns: Vec<usize>,
    price: usize,
}

/// Reads the rows of one file; `file` is for messages.
///
/// # Errors
/// The header or a wanted column is missing; a row is bad, unless bad rows are skipped.
pub(super) fn read(file: &Path, bytes: &[u8], wanted: &WantedColumns) -> Result<Rows, PanelError> {
    let (names, mut reader) = open(file, bytes)?;
    let cells = Cells::find(file, &names, wanted)?;
    let mut rows = Rows::default();
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        match cells.read(&record, &mut rows) {
            Ok(()) => {}
            Err(_) if wanted.skip_bad => rows.skipped += 1,
            Err(fault) => return Err(cells.error(file, bytes, &record, fault, wanted)),
        }
    }
    // The rows of thousands of symbols are in memory at the same time.
    rows.dates.shrink_to_fit();
    rows.values.shrink_to_fit();
    Ok(rows)
}

/// The columns of numbers in a file: those whose cell in the first row without a `null` is a
/// number. `None` if there is no such row.
pub(super) fn number_columns(
    file: &Path,
    bytes: &[u8],
    date: &str,
) -> Result<Option<Vec<String>>, PanelError> {
    let (names, mut reader) = open(file, bytes)?;
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        if record.iter().any(is_null) {
            continue;
        }
        let numbers = names
            .iter()
            .zip(&record)
            .filter(|(name, cell)| *name != date.as_bytes() && number(cell).is_some());
        return Ok(Some(numbers.map(|(name, _)| text(name)).collect()));
    }
    Ok(None)
}

type Reader<'a> = csv::Reader<&'a [u8]>;

/// Returns the names of the columns, and a reader of the rows below them.
fn open<'a>(file: &Path, bytes: &'a [u8]) -> Result<(ByteRecord, Reader<'a>), PanelError> {
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

fn text(cell: &[u8]) -> String {
    String::from_utf8_lossy(cell).into_owned()
}

fn is_null(cell: &[u8]) -> bool {
    cell.trim_ascii() == NULL
}

fn number(cell: &[u8]) -> Option<f64> {
    std::str::from_utf8(cell.trim_ascii())
        .ok()?
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

fn date(cell: &[u8]) -> Option<DateTime> {
    std::str::from_utf8(cell.trim_ascii()).ok()?.parse().ok()
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
                "data.price"
            } else {
                "data.columns"
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
            date: find("data.date", &wanted.date)?,
            columns,
            price: wanted.price,
        })
    }

    /// Adds one row, or counts it as one of `null`. A bad row leaves `rows` unchanged.
    fn read(&self, record: &ByteRecord, rows: &mut Rows) -> Result<(), RowFault> {
        if record.len() != self.names.len() {
            return Err(RowFault {
                cell: 0,
                what: What::CellCount,
            });
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
        let date = date(&record[self.date]).ok_or(RowFault {
            cell: self.date,
            what: What::NoDate,
        })?;
        if let Some(last) = rows.dates.last().filter(|last| date <= **last) {
            return Err(RowFault {
                cell: self.date,
                what: What::NotAfter(*last),
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
            let fault = |what| RowFault { cell: *cell, what };
            let value = number(&record[*cell]).ok_or_else(|| fault(What::NoNumber))?;
            if at == self.price && value <= 0.0 {
                return Err(fault(What::NoPrice));
            }
            if value < 0.0 {
                return Err(fault(What::BelowZero));
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
        let start = record
            .position()
            .map_or(0, |position| position.byte() as usize);
        let (line, column) = place(bytes, start, fault.cell);
        let fault = self.describe(record, &fault);
        PanelError::Row {
            file: file.to_owned(),
            line,
            column,
            fault,
            remedy: wanted.remedy,
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
        match fault.what {
            What::CellCount => format!(
                "the row has {}, and the header names {}",
                counted(record.len(), "cell"),
                counted(self.names.len(), "column")
            ),
            What::NoDate => format!("{found}; it must be a date such as 2012-09-04"),
            What::NotAfter(last) => format!(
                "{found}, and the row before has `{}`; dates must ascend without repeats",
                day(last)
            ),
            What::NoNumber => format!("{found}; it must be a number, or `null` to skip the row"),
            What::BelowZero => {
                format!("{found}; it must be at least 0, because kiln takes its log return")
            }
            What::NoPrice => format!("{found}; it must be above 0, because it is the price"),
        }
    }
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
            let hint = near
                .map(|(_, name)| format!("; did you mean `{name}`?"))
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

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a date without its time if that is midnight.
fn day(date: DateTime) -> String {
    if date == date.date().to_datetime(jiff::civil::Time::midnight()) {
        date.date().to_string()
    } else {
        date.to_string()
    }
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
mod tests {
    use super::*;

    fn wanted(skip_bad: bool) -> WantedColumns {
        let columns = ["Open", "Close"].map(str::to_owned).to_vec();
        WantedColumns {
            date: "Date".to_owned(),
            columns,
            price: 1,
            skip_bad,
            remedy: "mend it",
        }
    }

    fn kept(text: &str) -> Rows {
        read(Path::new("A.csv"), text.as_bytes(), &wanted(false)).unwrap()
    }

    fn fault(text: &str) -> String {
        read(Path::new("A.csv"), text.as_bytes(), &wanted(false))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn rows_of_null_are_counted_and_other_columns_may_hold_anything() {
        let rows = kept(
            "Date,Open,Note,Close\n2020-01-01,0,null,1.5\n2020-01-02,null,x,null\n\
             2020-01-03, 2e3 ,,+7\nnull,null,,null\n",
        );
        assert_eq!(rows.values, [0.0, 1.5, 2000.0, 7.0]);
        assert_eq!(
            rows.dates.iter().map(|date| day(*date)).collect::<Vec<_>>(),
            ["2020-01-01", "2020-01-03"]
        );
        assert_eq!((rows.null, rows.skipped), (2, 0));
    }

    #[test]
    fn dates_may_have_a_time() {
        let rows = kept(
            "Date,Open,Close\n2020-01-01,1,1\n2020-01-01 10:30,1,1\n\
             2020-01-01T10:31:00,1,1\n",
        );
        assert_eq!(rows.dates.len(), 3);
        assert!(
            fault("Date,Open,Close\n2020-01-01 10:30,1,1\n2020-01-01,1,1\n")
                .contains("`2020-01-01`, and the row before has `2020-01-01T10:30:00`")
        );
    }

    /// Each bad row follows a valid one of 2020-01-02.
    const BAD: [(&str, &str); 13] = [
        (
            "2020-01-03,1.0,x",
            "A.csv:3:16: `Close` is `x`; it must be a number, or `null` to skip the row; mend it",
        ),
        (
            "2020-01-03,1.0,NaN",
            "A.csv:3:16: `Close` is `NaN`; it must be a number, or `null` to skip the row; mend it",
        ),
        (
            "2020-01-03,inf,1",
            "A.csv:3:12: `Open` is `inf`; it must be a number, or `null` to skip the row; mend it",
        ),
        (
            "2020-01-03,1e999,1",
            "A.csv:3:12: `Open` is `1e999`; it must be a number, or `null` to skip the row; mend \
             it",
        ),
        (
            "2020-01-03,,1",
            "A.csv:3:12: `Open` is empty; it must be a number, or `null` to skip the row; mend it",
        ),
        (
            "2020-01-03,-0.5,1",
            "A.csv:3:12: `Open` is `-0.5`; it must be at least 0, because kiln takes its log \
             return; mend it",
        ),
        (
            "2020-01-03,1,0.0",
            "A.csv:3:14: `Close` is `0.0`; it must be above 0, because it is the price; mend it",
        ),
        (
            "2020-01-03,1",
            "A.csv:3:1: the row has 2 cells, and the header names 3 columns; mend it",
        ),
        (
            "2020-01-03,1,1,1",
            "A.csv:3:1: the row has 4 cells, and the header names 3 columns; mend it",
        ),
        (
            "2020-02-30,1,1",
            "A.csv:3:1: `Date` is `2020-02-30`; it must be a date such as 2012-09-04; mend it",
        ),
        (
            "3/1/2020,1,1",
            "A.csv:3:1: `Date` is `3/1/2020`; it must be a date such as 2012-09-04; mend it",
        ),
        (
            "2020-01-02,1,1",
            "A.csv:3:1: `Date` is `2020-01-02`, and the row before has `2020-01-02`; dates must \
             ascend without repeats; mend it",
        ),
        (
            "2020-01-01,1,1",
            "A.csv:3:1: `Date` is `2020-01-01`, and the row before has `2020-01-02`; dates must \
             ascend without repeats; mend it",
        ),
    ];

    #[test]
    fn each_bad_row_has_its_place_and_what_is_wrong() {
        for (row, message) in BAD {
            assert_eq!(
                fault(&format!(
                    "Date,Open,Close\n2020-01-02,1,1\n{row}\n2020-01-04,1,1\n"
                )),
                message
            );
        }
    }

    #[test]
    fn bad_rows_are_left_out_where_that_is_asked_for() {
        for (row, _) in BAD {
            let text = format!("Date,Open,Close\n2020-01-02,1,1\n{row}\n2020-01-04,2,2\n");
            let rows = read(Path::new("A.csv"), text.as_bytes(), &wanted(true)).unwrap();
            assert_eq!(
                (rows.values.as_slice(), rows.dates.len(), rows.skipped),
                ([1.0, 1.0, 2.0, 2.0].as_slice(), 2, 1),
                "{row}"
            );
        }
    }

    #[test]
    fn places_are_right_whatever_the_line_ends_and_quotes() {
        assert!(
            fault("Date,Open,Close\r\n2020-01-01,1,1\r\n\r\n2020-01-02,1,x\r\n")
                .starts_with("A.csv:4:14: ")
        );
        assert!(
            fault(
                "\u{feff}Date,Note,Open,Close\n2020-01-01,\"a,\nb\",1,1\n\
                 2020-01-02,\"é,\",1,x\n"
            )
            .starts_with("A.csv:4:19: ")
        );
        assert_eq!(
            kept("Date,Open,Close\r\n2020-01-01,1,1\r\n").values,
            [1.0, 1.0]
        );
        assert_eq!(kept("Date,Open,Close").values.len(), 0);
    }

    #[test]
    fn bytes_that_are_no_text_are_no_numbers() {
        let error = read(
            Path::new("A.csv"),
            b"Date,Open,Close\n2020-01-01,\xff\xfe,1\n",
            &wanted(false),
        )
        .unwrap_err()
        .to_string();
        assert!(error.starts_with("A.csv:2:12: `Open` is "), "{error}");
    }

    #[test]
    fn a_missing_column_is_named_with_those_there_are() {
        assert_eq!(
            fault("Date,Opn,Close\n"),
            "A.csv:1: no column `Open`, which `data.columns` names; there are `Date`, `Opn`, \
             `Close`; did you mean `Opn`?"
        );
        assert_eq!(
            fault("Date,Open,Adj\n"),
            "A.csv:1: no column `Close`, which `data.price` names; there are `Date`, `Open`, `Adj`"
        );
        assert_eq!(
            fault("date,Open,Close\n"),
            "A.csv:1: no column `Date`, which `data.date` names; there are `date`, `Open`, \
             `Close`; did you mean `date`?"
        );
        assert_eq!(
            fault("Date,Open,Close,Open\n"),
            "A.csv:1: two columns are named `Open`"
        );
        assert_eq!(
            fault("\n\n"),
            "A.csv is empty; its first line must name the columns"
        );
    }

    #[test]
    fn columns_of_numbers_are_told_by_the_first_whole_row() {
        let columns =
            |text: &str| number_columns(Path::new("A.csv"), text.as_bytes(), "Date").unwrap();
        let expected = ["Close", "Volume"].map(str::to_owned).to_vec();
        assert_eq!(
            columns(
                "Date,Name,Close,Volume\n2020-01-01,null,null,null\n\
                 2020-01-02,a,1.5,10\n"
            ),
            Some(expected)
        );
        assert_eq!(columns("Date,Close\n"), None);
        assert_eq!(
            columns("2020,Date\n5,20200101\n"),
            Some(vec!["2020".to_owned()])
        );
    }
}
