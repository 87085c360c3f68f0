//! Finds the layout of a file whose dates are out of order: newest first, or a long table.

use std::{collections::HashSet, path::Path};

use csv::ByteRecord;
use jiff::civil::DateTime;

use super::{date, number, open, text};

/// The remedy for dates of a file that do not ascend, where the whole file shows it; `date_cell` is
/// the position of the date.
pub(super) fn remedy(file: &Path, bytes: &[u8], date_cell: usize) -> Option<String> {
    let (names, mut reader) = open(file, bytes).ok()?;
    let mut dates: Vec<DateTime> = Vec::new();
    let mut columns: Vec<Vec<String>> = vec![Vec::new(); names.len()];
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        let moment = record.get(date_cell).and_then(date);
        let Some(moment) = moment.filter(|_| record.len() == names.len()) else {
            continue;
        };
        dates.push(moment);
        for (column, cell) in columns.iter_mut().zip(&record) {
            column.push(text(cell));
        }
    }
    if dates.len() > 2 && dates.windows(2).all(|pair| pair[1] < pair[0]) {
        return Some("it is newest first; sort it by date, oldest first".to_owned());
    }
    let symbol = columns
        .iter()
        .position(|column| is_symbol(&dates, column))?;
    let symbol = text(&names[symbol]);
    Some(format!(
        "this looks like a long table; write one file per `{symbol}`"
    ))
}

/// Whether a column names the series of a long table: texts that repeat, but none of them twice on one
/// date.
fn is_symbol(dates: &[DateTime], cells: &[String]) -> bool {
    let values: HashSet<&String> = cells.iter().collect();
    let distinct: HashSet<&DateTime> = dates.iter().collect();
    let pairs: HashSet<(&DateTime, &String)> = dates.iter().zip(cells).collect();
    values.len() >= 2
        && values.len() * 2 <= cells.len()
        && distinct.len() < dates.len()
        && pairs.len() == dates.len()
        && cells.iter().all(|cell| number(cell.as_bytes()).is_none())
}
