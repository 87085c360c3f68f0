//! Reads and checks the rows of `trials.csv`: a record comes in, a row goes out.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::Value;

use super::{TableRow, is_axis, version_number};
use crate::{
    kinds::command::METRIC_PREFIX,
    plan::TrialId,
    record::{
        table::{Record, TableError, TableHead},
        trial_result::is_amount,
        trial_row::{TRIALS, TrialRow},
    },
    units::{listed, shorten},
};

/// Reads the rows of a table one after another, and knows those so far.
#[derive(Default)]
pub(super) struct RowReader {
    /// Number of rows so far.
    rows: usize,
    /// First row of each trial, by the id as it stands there.
    forms: HashMap<TrialId, usize>,
    /// Row and hash of each attempt.
    attempts: HashMap<(TrialId, u64), (usize, u64)>,
    /// The oldest version among the rows so far.
    oldest: Option<u32>,
}

/// No measurement is infinite or NaN, and kiln writes none; a number too large for an `f64` reads as infinite.
fn check_finite(record: &Record<'_>, row: &TrialRow) -> Result<(), TableError> {
    let columns = record.head().columns.iter().zip(record.cells());
    let mut not_finite = columns
        .filter(|(column, cell)| {
            !is_axis(column) && cell.parse::<f64>().is_ok_and(|number| !number.is_finite())
        })
        .peekable();
    if not_finite.peek().is_none() {
        return Ok(());
    }
    // Texts may be `inf` or `nan`; JSON has nothing for such numbers.
    let values = serde_json::to_value(row).unwrap_or_default();
    match not_finite.find(|(column, _)| values.get(column.as_str()).is_some_and(Value::is_null)) {
        Some((column, cell)) => Err(record.problem(format!(
            "`{column}` is `{}`; it must be a finite number, or empty where it is unknown",
            shorten(cell, 60)
        ))),
        None => Ok(()),
    }
}

/// No amount is negative, and kiln writes none: the table was changed.
fn check_amounts(record: &Record<'_>) -> Result<(), TableError> {
    let mut columns = record.head().columns.iter().zip(record.cells());
    let negative = columns.find(|(column, cell)| {
        let is_negative = cell.starts_with('-') && cell.parse::<f64>().is_ok_and(|it| it < 0.0);
        is_negative && !is_axis(column) && is_amount(column)
    });
    match negative {
        Some((column, cell)) => Err(record.problem(format!(
            "`{column}` is `{}`, and it cannot be negative; kiln writes no such number, so the table \
             was changed",
            shorten(cell, 60)
        ))),
        None => Ok(()),
    }
}

impl RowReader {
    /// The next row.
    ///
    /// # Errors
    /// A cell is invalid, or the row contradicts one before it.
    pub(super) fn take(&mut self, record: &Record<'_>) -> Result<TableRow, TableError> {
        let version = record.cells().next().and_then(version_number);
        self.oldest = self.oldest.into_iter().chain(version).min();
        let parsed = record.parse();
        let mut fixed: TrialRow = match parsed {
            Ok(fixed) => fixed,
            // A missing column is told as one.
            Err(error) => return self.check_columns(record.head()).and(Err(error)),
        };
        self.check_id(record, &fixed.trial)?;
        check_finite(record, &fixed)?;
        check_amounts(record)?;
        self.check_attempt(record, &fixed)?;
        self.rows += 1;
        let columns = || record.head().columns.iter().zip(record.cells());
        for (column, cell) in columns() {
            let Some(name) = column.strip_prefix(METRIC_PREFIX) else {
                continue;
            };
            match cell.parse() {
                _ if cell.is_empty() => {}
                Ok(value) if f64::is_finite(value) => {
                    fixed.metrics.insert(name.to_owned(), value);
                }
                _ => {
                    return Err(record.problem(format!(
                        "`{column}` is `{}`; it must be a number",
                        shorten(cell, 60)
                    )));
                }
            }
        }
        let axes = columns().filter(|(column, _)| is_axis(column));
        Ok(TableRow {
            fixed: Box::new(fixed),
            axes: axes.map(|(_, cell)| cell.to_owned()).collect(),
        })
    }

    /// An id with and without its letter is the same trial, and kiln writes one form into a table.
    /// If a table has both, two runs were joined, and of two attempts with the same number one would
    /// hide the other.
    fn check_id(&mut self, record: &Record<'_>, id: &TrialId) -> Result<(), TableError> {
        match self.forms.get_key_value(id) {
            Some((known, first)) if known.0 != id.0 => Err(record.problem(format!(
                "`trial` is `{id}`, and record {} has `{}`: an id with and without the letter `{}` \
                 is the same trial, and a table uses only one form; keep the rows of each run in a \
                 separate table, and compare the two tables",
                first + 1,
                known,
                TrialId::LETTER
            ))),
            Some(_) => Ok(()),
            None => {
                self.forms.insert(id.clone(), self.rows);
                Ok(())
            }
        }
    }

    /// Rows never change, so that two of one attempt are of two runs; one would hide the other. The same
    /// row twice says nothing else.
    fn check_attempt(&mut self, record: &Record<'_>, row: &TrialRow) -> Result<(), TableError> {
        let mut hasher = DefaultHasher::new();
        record.cells().for_each(|cell| cell.hash(&mut hasher));
        let hash = hasher.finish();
        match self.attempts.entry((row.trial.clone(), row.attempt)) {
            Entry::Occupied(known) if known.get().1 != hash => Err(record.problem(format!(
                "trial {} attempt {} has other values in record {}: two runs were joined; keep the rows \
                 of each run in a separate table, and compare the two tables",
                row.trial,
                row.attempt,
                known.get().0 + 1
            ))),
            Entry::Occupied(_) => Ok(()),
            Entry::Vacant(place) => {
                place.insert((self.rows, hash));
                Ok(())
            }
        }
    }

    /// A missing column would look like one without values: every column of the oldest version among
    /// the rows must be present.
    ///
    /// # Errors
    /// One is missing.
    pub(super) fn check_columns(&self, head: &TableHead) -> Result<(), TableError> {
        let Some(oldest) = self.oldest else {
            return Ok(());
        };
        let is_there = |name: &str| head.columns.iter().any(|found| found == name);
        let missing: Vec<String> = TRIALS
            .columns
            .iter()
            .filter(|column| column.since <= oldest && !is_there(column.name))
            .map(|column| format!("`{}`", column.name))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let problem = format!(
            "there is no column {}; every column of a row's version (trials/{oldest}) must be \
             present",
            listed(&missing, ", ")
        );
        Err(TableError::Head {
            path: head.path.clone(),
            problem,
        })
    }
}
