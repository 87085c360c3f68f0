//! Which columns of a file hold numbers.

use std::path::Path;

use csv::ByteRecord;

use super::{is_null, number, open, text};
use crate::error::PanelError;

/// Words of other programs for a missing value, besides an empty cell and `NaN`.
const MISSING: [&str; 4] = ["NA", "N/A", "#N/A", "None"];

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::panel) enum ColumnKind {
    /// At least half of the values are numbers.
    Numbers,
    Other,
    /// No row has a value.
    Gaps,
}

/// How many cells of a column have a value.
#[derive(Clone, Copy, Debug, Default)]
struct CellCounts {
    numbers: u64,
    others: u64,
}

impl CellCounts {
    fn add(&mut self, cell: &[u8]) {
        if number(cell).is_some() {
            self.numbers += 1;
        } else if !is_gap(cell) {
            self.others += 1;
        }
    }

    fn kind(self) -> ColumnKind {
        match (self.numbers, self.others) {
            (0, 0) => ColumnKind::Gaps,
            (0, _) => ColumnKind::Other,
            (numbers, others) if numbers >= others => ColumnKind::Numbers,
            _ => ColumnKind::Other,
        }
    }
}

/// The columns of a file except that of the dates, by the rows without a `null`. `None` if there
/// is no such row.
pub(in crate::panel) fn column_kinds(
    file: &Path,
    bytes: &[u8],
    date: &str,
) -> Result<Option<Vec<(String, ColumnKind)>>, PanelError> {
    let (names, mut reader) = open(file, bytes)?;
    let mut counts = vec![CellCounts::default(); names.len()];
    let mut has_rows = false;
    let mut record = ByteRecord::new();
    while let Ok(true) = reader.read_byte_record(&mut record) {
        if record.iter().any(is_null) {
            continue;
        }
        has_rows = true;
        for (counts, cell) in counts.iter_mut().zip(&record) {
            counts.add(cell);
        }
    }
    let columns = names
        .iter()
        .zip(counts)
        .filter(|(name, _)| *name != date.as_bytes())
        .map(|(name, counts)| (text(name), counts.kind()));
    Ok(has_rows.then(|| columns.collect()))
}

/// Whether a cell stands for a value that is missing.
fn is_gap(cell: &[u8]) -> bool {
    let Ok(cell) = std::str::from_utf8(cell.trim_ascii()) else {
        return false;
    };
    let is_word = || MISSING.iter().any(|word| cell.eq_ignore_ascii_case(word));
    cell.is_empty() || cell.parse::<f64>().is_ok_and(|number| !number.is_finite()) || is_word()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Option<Vec<(String, ColumnKind)>> {
        column_kinds(Path::new("A.csv"), text.as_bytes(), "Date").unwrap()
    }

    #[test]
    fn a_column_of_numbers_may_begin_with_gaps() {
        let text = "Date,Name,Mean,Lag,Empty\n2020-01-01,3,,NaN,\n2020-01-02,a,,NA,\n\
                    2020-01-03,b,,inf,\n2020-01-04,c,7,1,\n";
        let kind = |name: &str, kind| (name.to_owned(), kind);
        assert_eq!(
            kinds(text),
            Some(vec![
                kind("Name", ColumnKind::Other),
                kind("Mean", ColumnKind::Numbers),
                kind("Lag", ColumnKind::Numbers),
                kind("Empty", ColumnKind::Gaps),
            ])
        );
    }
}
