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
    /// Columns with a number in each row, and their smallest.
    pub numbers: Vec<NumberColumn>,
    /// Rows of the shortest file.
    pub rows: u64,
    /// The first row that was looked at, for a message: names and cells.
    pub first_row: Vec<(String, String)>,
}

/// A column of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberColumn {
    pub name: String,
    pub smallest: f64,
}

/// Reads all rows of all files of the panel at `path`, a folder or an archive.
///
/// # Errors
/// There is no CSV file, or one cannot be read or has no header.
pub fn columns(path: &Path) -> Result<PanelColumns, DataError> {
    let mut all: Option<PanelColumns> = None;
    for file in files::find(path, None, None)? {
        let found = of_file(&file.path, &file.bytes()?)?;
        all = Some(match all {
            None => found,
            Some(before) => before.in_both(&found),
        });
    }
    Ok(all.unwrap_or_default())
}

/// The content of a column so far.
struct Seen {
    name: String,
    is_date: bool,
    smallest: Option<f64>,
}

fn of_file(path: &Path, bytes: &[u8]) -> Result<PanelColumns, DataError> {
    let (names, mut reader) = rows::open(path, bytes)?;
    let mut seen: Vec<Seen> = names
        .iter()
        .map(|name| Seen {
            name: rows::text(name),
            is_date: true,
            smallest: Some(f64::INFINITY),
        })
        .collect();
    let mut found = PanelColumns::default();
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        if record.iter().any(rows::is_null) || record.len() != seen.len() {
            continue;
        }
        if found.rows == 0 {
            let names = seen.iter().map(|column| column.name.clone());
            found.first_row = names.zip(record.iter().map(rows::text)).collect();
        }
        found.rows += 1;
        for (column, cell) in seen.iter_mut().zip(&record) {
            column.is_date &= rows::date(cell).is_some();
            let number = rows::number(cell);
            column.smallest = column
                .smallest
                .zip(number)
                .map(|(one, other)| one.min(other));
        }
    }
    if found.rows == 0 {
        return Ok(found);
    }
    for column in seen {
        if column.is_date {
            found.dates.push(column.name);
        } else if let Some(smallest) = column.smallest {
            found.numbers.push(NumberColumn {
                name: column.name,
                smallest,
            });
        }
    }
    Ok(found)
}

impl PanelColumns {
    fn in_both(mut self, other: &Self) -> Self {
        self.dates.retain(|name| other.dates.contains(name));
        let of_other = |name: &str| other.numbers.iter().find(|column| column.name == name);
        self.numbers = self
            .numbers
            .into_iter()
            .filter_map(|column| {
                let smallest = column.smallest.min(of_other(&column.name)?.smallest);
                Some(NumberColumn { smallest, ..column })
            })
            .collect();
        self.rows = self.rows.min(other.rows);
        self
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
        let number = |name: &str, smallest| NumberColumn {
            name: name.to_owned(),
            smallest,
        };
        assert_eq!(found.numbers, [number("temp", -1.12), number("rain", 0.0)]);
        assert_eq!((found.rows, found.first_row.len()), (1, 4));
        write("c.csv", "time,temp\n");
        assert_eq!(columns(folder.path()).unwrap().numbers, []);
    }
}
