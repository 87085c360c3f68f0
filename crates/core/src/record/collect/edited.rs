//! Rows of a collected table that somebody has changed. The table is made again from those of the
//! launches, so the change is lost, and a notice says so.

use std::{
    collections::HashSet,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::rows::{CollectedRows, LaunchRows, OWN};
use crate::{
    record::{RunFolder, TableError, trial_row::TRIALS},
    units::counted,
};

/// Rows of a run's table that are not as any launch wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedRows {
    pub rows: usize,
    /// The trial of the first one, and its attempt.
    pub trial: String,
    pub attempt: u64,
}

impl fmt::Display for EditedRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            trial,
            attempt,
        } = self;
        write!(
            formatter,
            "{}: {} differed from the tables in `launches/` (the first: trial {trial} attempt \
             {attempt}); it was made again from these",
            TRIALS.file,
            counted(*rows, "row")
        )
    }
}

/// A run's own table before it is made again.
pub(super) struct OwnTable {
    columns: Vec<String>,
    rows: Vec<OwnRow>,
}

struct OwnRow {
    trial: String,
    attempt: u64,
    hash: u64,
}

impl OwnTable {
    /// `None` if there is none, or it is damaged. It must be read before the tables of the
    /// launches: what another process collects meanwhile is not in these yet.
    ///
    /// # Errors
    /// The system cannot read it now.
    pub(super) fn read(run: &RunFolder) -> Result<Option<Self>, TableError> {
        let own = LaunchRows::read(run, &run.trials_table(), OWN, &|_, _| true);
        Self::of(own)
    }

    pub(super) fn of(
        read: Result<Option<LaunchRows>, TableError>,
    ) -> Result<Option<Self>, TableError> {
        let own = match read {
            Ok(Some(own)) => own,
            Err(error) if error.is_unread() => return Err(error),
            Ok(None) | Err(_) => return Ok(None),
        };
        let Ok(rows) = own.rows else {
            return Ok(None);
        };
        let rows = rows.into_iter().map(|row| OwnRow {
            hash: hash(&row.line),
            trial: row.trial,
            attempt: row.attempt,
        });
        Ok(Some(Self {
            columns: own.head.columns,
            rows: rows.collect(),
        }))
    }

    /// The attempts whose row differs from each row of the launches' tables. An attempt without a row
    /// there does not count: a file server may show the table of its launch late.
    pub(super) fn edited(&self, collected: &CollectedRows) -> Option<EditedRows> {
        let head = collected.head.as_ref()?;
        if head.columns != self.columns {
            return None;
        }
        let of_launches = || collected.rows.iter().chain(&collected.superseded);
        let known: HashSet<u64> = of_launches().map(|row| hash(&row.line)).collect();
        let attempts: HashSet<(&str, u64)> = of_launches()
            .map(|row| (row.trial.as_str(), row.attempt))
            .collect();
        let is_edited = |row: &&OwnRow| {
            attempts.contains(&(row.trial.as_str(), row.attempt)) && !known.contains(&row.hash)
        };
        let mut edited = self.rows.iter().filter(is_edited);
        let first = edited.next()?;
        Some(EditedRows {
            rows: 1 + edited.count(),
            trial: first.trial.clone(),
            attempt: first.attempt,
        })
    }
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}
