//! The columns of a panel that nobody has described yet: which hold dates, and which hold numbers of
//! which log returns can be taken.

use std::path::Path;

use csv::ByteRecord;

use super::{files, rows};
use crate::error::DataError;

/// The columns that every file of a panel has, in the order of the first file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PanelColumns {
    /// Columns with a date in each row.
    pub dates: Vec<String>,
    /// Columns with a number in each row.
    pub numbers: Vec<NumberColumn>,
    /// Columns that are neither: a cell is no number, or a file lacks them.
    pub left_out: Vec<LeftOutColumn>,
    /// The names of the files, and their rows.
    pub files: Vec<(String, u64)>,
    /// The first row that was looked at, for a message: names and cells.
    pub first_row: Vec<(String, String)>,
}

/// A column of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberColumn {
    pub name: String,
    pub smallest: f64,
    /// Whether a file has two different numbers.
    pub varies: bool,
    /// Whether each number is that of the row before plus 1, as in an index.
    pub counts_up: bool,
}

/// A column that is not one of numbers in each row of each file.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOutColumn {
    pub name: String,
    /// Whether a cell is a number.
    pub has_numbers: bool,
    /// Whether the first cell that is no number has a digit, such as `1,234.5`.
    pub has_digits: bool,
    /// Whether the fault is a file without the column.
    pub is_missing: bool,
    /// The first cell that is no number, with its file and line; or the file without the column.
    pub why: String,
}

/// Reads all rows of all files of the panel at `path`, a folder or an archive.
///
/// # Errors
/// There is no CSV file, or one cannot be read or has no header.
pub fn columns(path: &Path) -> Result<PanelColumns, DataError> {
    let mut all: Option<PanelColumns> = None;
    let (files, _) = files::find(path, None, None)?;
    for file in files {
        let found = of_file(&file.path, &file.bytes()?)?;
        all = Some(match all {
            None => found,
            Some(before) => before.in_both(found),
        });
    }
    Ok(all.unwrap_or_default())
}

/// The content of a column so far.
struct Seen {
    column: NumberColumn,
    is_date: bool,
    last: Option<f64>,
    /// The first cell that is no number, and its place.
    fault: Option<String>,
    /// Whether that cell has a digit.
    has_digits: bool,
}

impl Seen {
    fn new(name: &[u8]) -> Self {
        Self {
            column: NumberColumn {
                name: rows::text(name),
                smallest: f64::INFINITY,
                varies: false,
                counts_up: true,
            },
            is_date: true,
            last: None,
            fault: None,
            has_digits: false,
        }
    }

    fn add(&mut self, cell: &[u8], place: impl FnOnce() -> String) {
        self.is_date &= rows::date(cell).is_some();
        let Some(number) = rows::number(cell) else {
            if self.fault.is_none() {
                let cell = cell.trim_ascii();
                self.has_digits = cell.iter().any(u8::is_ascii_digit);
                self.fault = Some(match cell.is_empty() {
                    true => format!("{} is empty", place()),
                    false => format!("{} has `{}`", place(), rows::text(cell)),
                });
            }
            return;
        };
        self.column.smallest = self.column.smallest.min(number);
        if let Some(last) = self.last.replace(number) {
            self.column.varies |= number != last;
            self.column.counts_up &= number == last + 1.0;
        }
    }
}

fn of_file(path: &Path, bytes: &[u8]) -> Result<PanelColumns, DataError> {
    let (names, mut reader) = rows::open(path, bytes)?;
    let mut seen: Vec<Seen> = names.iter().map(Seen::new).collect();
    let mut found = PanelColumns::default();
    let mut rows = 0;
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        if record.iter().any(rows::is_null) || record.len() != seen.len() {
            continue;
        }
        if rows == 0 {
            let names = seen.iter().map(|seen| seen.column.name.clone());
            found.first_row = names.zip(record.iter().map(rows::text)).collect();
        }
        rows += 1;
        for (column, cell) in seen.iter_mut().zip(&record) {
            column.add(cell, || {
                format!("{}:{}", path.display(), rows::line(bytes, &record))
            });
        }
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    found.files.push((name.into_owned(), rows));
    if rows == 0 {
        return Ok(found);
    }
    for seen in seen {
        match seen.fault {
            _ if seen.is_date => found.dates.push(seen.column.name),
            None => found.numbers.push(seen.column),
            Some(why) => found.left_out.push(LeftOutColumn {
                name: seen.column.name,
                has_numbers: seen.last.is_some(),
                has_digits: seen.has_digits,
                is_missing: false,
                why,
            }),
        }
    }
    Ok(found)
}

impl PanelColumns {
    fn in_both(mut self, mut other: Self) -> Self {
        self.dates.retain(|name| other.dates.contains(name));
        for column in std::mem::take(&mut self.numbers) {
            let of_other = other.numbers.iter().find(|also| also.name == column.name);
            match of_other {
                Some(also) => self.numbers.push(NumberColumn {
                    smallest: column.smallest.min(also.smallest),
                    varies: column.varies || also.varies,
                    counts_up: column.counts_up && also.counts_up,
                    ..column
                }),
                None => self.left_out.push(other.without(column.name)),
            }
        }
        for column in std::mem::take(&mut other.numbers) {
            let at = self.left_out_at(&column.name);
            if let Some(at) = at {
                self.left_out[at].has_numbers = true;
            } else if !self.has_number(&column.name) {
                let left_out = self.without(column.name);
                self.left_out.push(left_out);
            }
        }
        for column in other.left_out {
            match self.left_out_at(&column.name) {
                Some(at) => self.left_out[at].has_numbers |= column.has_numbers,
                None => self.left_out.push(column),
            }
        }
        self.files.append(&mut other.files);
        self
    }

    fn has_number(&self, name: &str) -> bool {
        self.numbers.iter().any(|column| column.name == name)
    }

    fn left_out_at(&self, name: &str) -> Option<usize> {
        let mut left_out = self.left_out.iter();
        left_out.position(|column| column.name == name)
    }

    /// A column that another file has as numbers and that is not among the numbers here.
    fn without(&self, name: String) -> LeftOutColumn {
        let left_out = self.left_out.iter().find(|column| column.name == name);
        let file = self.files.first().map_or("", |(file, _)| file);
        LeftOutColumn {
            name,
            has_numbers: true,
            has_digits: left_out.is_some_and(|column| column.has_digits),
            is_missing: left_out.is_none(),
            why: left_out.map_or_else(
                || format!("{file} has no such column of numbers"),
                |column| column.why.clone(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn dates_and_numbers_are_those_of_every_row_of_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "a.csv",
            "time,place,temp,rain\n2024-01-01 00:00,x,3.5,0\n2024-01-01 01:00,x,-1.12,2\n\
             2024-01-01 02:00,x,null,null\n",
        );
        write("b.csv", "rain,time,temp,more\n0.5,2024-01-01,4,1\n");
        let found = columns(folder.path()).unwrap();
        assert_eq!(found.dates, ["time"]);
        let numbers = found.numbers.iter();
        let numbers: Vec<(&str, f64)> = numbers
            .map(|column| (column.name.as_str(), column.smallest))
            .collect();
        assert_eq!(numbers, [("temp", -1.12), ("rain", 0.0)]);
        let rows = [("a.csv".to_owned(), 2), ("b.csv".to_owned(), 1)];
        assert_eq!((&found.files[..], found.first_row.len()), (&rows[..], 4));
        write("c.csv", "time,temp\n");
        assert_eq!(columns(folder.path()).unwrap().numbers, []);
    }

    #[test]
    fn a_column_with_a_bad_cell_is_told_with_the_place_of_the_cell() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "a.csv",
            "date,close,id,group,place\r\n2024-01-01,1.5,7,1,x\r\n2024-01-02,inf,8,1,y\r\n",
        );
        write("b.csv", "date,close,id,group,size\n2024-01-01,2,1,2,3\n");
        let found = columns(folder.path()).unwrap();
        let kinds = found.numbers.iter();
        let kinds: Vec<(&str, bool, bool)> = kinds
            .map(|column| (column.name.as_str(), column.varies, column.counts_up))
            .collect();
        assert_eq!(kinds, [("id", true, true), ("group", false, false)]);
        let left_out = found.left_out.iter();
        let left_out: Vec<(&str, bool)> = left_out
            .map(|column| (column.name.as_str(), column.has_numbers))
            .collect();
        assert_eq!(
            left_out,
            [("close", true), ("place", false), ("size", true)]
        );
        let bad = folder.path().join("a.csv").display().to_string();
        assert_eq!(found.left_out[0].why, format!("{bad}:3 has `inf`"));
        assert_eq!(found.left_out[2].why, "a.csv has no such column of numbers");
    }

    #[test]
    fn a_fault_says_whether_the_column_is_missing_empty_or_text() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "a.csv",
            "date,gap,level,more,sum\n2024-01-01,,high,1,\"1,5\"\n2024-01-02,2,low,2,\"2,5\"\n",
        );
        write("b.csv", "date,gap,level,sum\n2024-01-01,2,3,\"3,5\"\n");
        let found = columns(folder.path()).unwrap().left_out;
        let flags = |name: &str| {
            let column = found.iter().find(|column| column.name == name).unwrap();
            (column.has_numbers, column.has_digits, column.is_missing)
        };
        assert_eq!(flags("gap"), (true, false, false));
        assert_eq!(flags("level"), (true, false, false));
        assert_eq!(flags("more"), (true, false, true));
        assert_eq!(flags("sum"), (false, true, false));
        let gap = found.iter().find(|column| column.name == "gap").unwrap();
        assert!(gap.why.ends_with("a.csv:2 is empty"), "{}", gap.why);
    }
}
