//! Series of several symbols, one after the other in one file.

use csv::ByteRecord;

use super::{Cells, WantedColumns, date, number, place, start_of, text};

/// Rows of the shortest series.
const LEAST_ROWS: usize = 30;

/// The columns that are not read and could name the series.
pub(super) struct Stretches {
    columns: Vec<Stretch>,
    /// Kept rows so far.
    rows: usize,
}

/// A column so far: each value in rows that follow each other.
struct Stretch {
    cell: usize,
    values: Vec<Vec<u8>>,
    /// Where the last value begins.
    start: usize,
    changes: Vec<Change>,
}

struct Change {
    row: usize,
    byte: usize,
}

impl Stretches {
    pub(super) fn new(cells: &Cells<'_>) -> Self {
        let is_read = |cell: &usize| *cell == cells.date || cells.columns.contains(cell);
        let others = (0..cells.names.len()).filter(|cell| !is_read(cell));
        Self {
            columns: others
                .map(|cell| Stretch {
                    cell,
                    values: Vec::new(),
                    start: 0,
                    changes: Vec::new(),
                })
                .collect(),
            rows: 0,
        }
    }

    /// Adds a row; `rows` are the kept rows with it. A row that was not kept does not count.
    pub(super) fn add(&mut self, record: &ByteRecord, rows: usize) {
        if rows == self.rows {
            return;
        }
        self.rows = rows;
        self.columns
            .retain_mut(|column| column.add(record, rows - 1));
    }

    /// The change of a column where the price changes most, in words; `values` are those of the
    /// kept rows.
    pub(super) fn describe(
        &self,
        names: &ByteRecord,
        bytes: &[u8],
        values: &[f64],
        wanted: &WantedColumns,
    ) -> Option<String> {
        let long = self
            .columns
            .iter()
            .filter(|column| !column.changes.is_empty() && self.rows - column.start >= LEAST_ROWS);
        let mut long = long.peekable();
        long.peek()?;
        let prices = values.iter().skip(wanted.price);
        let prices: Vec<f64> = prices.step_by(wanted.columns.len()).copied().collect();
        let step = |row: &usize| (prices[*row].ln() - prices[*row - 1].ln()).abs();
        let largest = (1..prices.len()).max_by(|one, other| step(one).total_cmp(&step(other)))?;
        long.find_map(|column| {
            let mut changes = column.changes.iter();
            let at = changes.position(|change| change.row == largest)?;
            let line = place(bytes, column.changes[at].byte, 0).0;
            let name = text(&names[column.cell]);
            let [before, after] = [at, at + 1].map(|value| text(&column.values[value]));
            Some(format!(
                "column `{name}` changes from `{before}` to `{after}` in line {line}, where the \
                 price has its largest step; if these are series of their own, write one file per \
                 `{name}`"
            ))
        })
    }
}

impl Stretch {
    /// Whether the column still looks like the name of a series after kept row `row`.
    fn add(&mut self, record: &ByteRecord, row: usize) -> bool {
        let cell = record[self.cell].trim_ascii();
        if self.values.last().is_some_and(|last| last == cell) {
            return true;
        }
        let is_text = !cell.is_empty() && number(cell).is_none() && date(cell).is_none();
        if !is_text || self.values.iter().any(|value| value == cell) {
            return false;
        }
        if !self.values.is_empty() {
            if row - self.start < LEAST_ROWS {
                return false;
            }
            let byte = start_of(record);
            self.changes.push(Change { row, byte });
        }
        self.values.push(cell.to_vec());
        self.start = row;
        true
    }
}
