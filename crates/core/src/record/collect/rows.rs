//! The rows of trials in the tables of all launches: read, ordered, and one for each attempt.

use std::{cmp::Reverse, collections::HashSet, io::Cursor, path::Path};

use super::open_begun;
use crate::{
    plan::{Outcome, TrialId},
    record::{
        AttemptEnd, RunFolder, TableError, TableRow, launch_folder,
        table::{Record, TableHead, line_of, scan},
        trial_row::TRIALS,
        trials::each_row,
    },
};

/// Rows that are read from their lines at once: all together would be the table a second time.
const MOST_AT_ONCE: usize = 500;

/// In place of a launch: the run's own table.
pub(super) const OWN: u64 = u64::MAX;

/// The rows of all launches.
#[derive(Clone, Debug, Default)]
pub struct CollectedRows {
    /// The columns; `None` if no launch has a table yet.
    pub(super) head: Option<TableHead>,
    pub(super) rows: Vec<CollectedRow>,
    /// Rows of the launches in whose place another one of the same attempt counts.
    pub(super) superseded: Vec<CollectedRow>,
}

/// One row, as the launch wrote it.
#[derive(Clone, Debug)]
pub(super) struct CollectedRow {
    /// Place in the plan, from 1.
    number: u64,
    pub(super) trial: String,
    pub(super) attempt: u64,
    /// The launch that ran the attempt.
    launch: u64,
    /// The launch in whose table it stands.
    table: u64,
    /// [`Outcome::weight`]; 0 if the cell names no outcome.
    weight: u8,
    pub(super) line: Vec<u8>,
}

impl CollectedRow {
    fn key(&self) -> (&str, u64) {
        (&self.trial, self.attempt)
    }
}

impl CollectedRows {
    /// Reads the tables of all launches of a run, and of its own `trials.csv` the rows that none of
    /// them has: a launch on the run alone may have written them, or somebody removed the folder of
    /// a launch. A torn last line, which a launch is writing or died over, does not count.
    ///
    /// # Errors
    /// A table cannot be read, or has other columns than another one.
    pub fn read(run: &RunFolder) -> Result<Self, TableError> {
        let mut collected = Self::default();
        let launches = launch_folder::listed(run).map_err(|cause| TableError::Io {
            path: run.path().to_owned(),
            doing: "listing the launches",
            cause,
        })?;
        for launch in launches {
            let path = launch_folder::folder(run, launch).trials_table();
            if let Some(rows) = LaunchRows::read(run, &path, launch, &|_, _| true)? {
                collected.add(rows)?;
            }
        }
        // One that is damaged is made again; so is one of another version, if it has nothing that the
        // launches lack.
        let known: HashSet<(&str, u64)> = collected.rows.iter().map(CollectedRow::key).collect();
        let is_new = |trial: &str, attempt: u64| !known.contains(&(trial, attempt));
        let own = LaunchRows::read(run, &run.trials_table(), OWN, &is_new);
        collected.add_own(own)?;
        collected.order();
        Ok(collected)
    }

    /// Adds the rows of the run's own table that no launch has, unless it is missing or damaged.
    pub(super) fn add_own(
        &mut self,
        own: Result<Option<LaunchRows>, TableError>,
    ) -> Result<(), TableError> {
        match own {
            Ok(Some(own)) if self.head.is_none() || own.has_any() => self.add(own),
            // Its rows may be nowhere else.
            Err(error) if error.is_unread() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn add(&mut self, new: LaunchRows) -> Result<(), TableError> {
        if let Some(head) = &self.head
            && head.columns != new.head.columns
        {
            return Err(TableError::Columns {
                path: new.head.path,
                difference: format!("they differ from those of {}", head.path.display()),
            });
        }
        self.head.get_or_insert(new.head);
        self.rows.extend(new.rows?);
        Ok(())
    }

    /// By number, attempt and trial, whatever the order of the launches: stand-ins of two workers may
    /// share a number, and one may have two. Of two rows of one attempt the one with the higher
    /// [`Outcome::weight`] counts, then that of the launch that ran it.
    fn order(&mut self) {
        self.rows.sort_by(|a, b| {
            let key = |row: &CollectedRow| {
                let (is_own, is_of_another) = (row.table == OWN, row.launch != row.table);
                (is_own, Reverse(row.weight), is_of_another, row.table)
            };
            a.key().cmp(&b.key()).then_with(|| key(a).cmp(&key(b)))
        });
        let superseded = &mut self.superseded;
        self.rows.dedup_by(|later, kept| {
            let is_same = later.key() == kept.key();
            if is_same {
                superseded.push(later.clone());
            }
            is_same
        });
        // Trials of one number and attempt keep their order, which is by trial.
        self.rows.sort_by_key(|row| (row.number, row.attempt));
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text; `None` if no launch has one yet.
    pub(super) fn text(&self) -> Option<Vec<u8>> {
        Some(text_of(self.head.as_ref()?, &self.rows))
    }

    /// Gives the rows as records, one after another.
    ///
    /// # Errors
    /// A cell is not a value of its column; some rows may have been given before.
    pub fn each(&self, keep: &mut dyn FnMut(TableRow)) -> Result<(), TableError> {
        let Some(head) = &self.head else {
            return Ok(());
        };
        for rows in self.rows.chunks(MOST_AT_ONCE) {
            let text = text_of(head, rows);
            each_row(&mut Cursor::new(text), &head.path, keep)?;
        }
        Ok(())
    }

    /// How the attempts ended, in the order of the rows.
    ///
    /// # Errors
    /// As [`CollectedRows::each`].
    pub fn ends(&self) -> Result<Vec<AttemptEnd>, TableError> {
        let mut ends = Vec::with_capacity(self.len());
        self.each(&mut |row| ends.push(AttemptEnd::of(&row)))?;
        Ok(ends)
    }

    /// The same without the rows in the table of one launch.
    ///
    /// # Errors
    /// As [`CollectedRows::each`].
    pub fn ends_but_of(mut self, launch: u64) -> Result<Vec<AttemptEnd>, TableError> {
        self.rows.retain(|row| row.table != launch);
        self.ends()
    }

    /// The attempts that have a row.
    pub fn attempts(&self) -> HashSet<(TrialId, u64)> {
        let key = |row: &CollectedRow| (TrialId(row.trial.clone()), row.attempt);
        self.rows.iter().map(key).collect()
    }
}

fn text_of(head: &TableHead, rows: &[CollectedRow]) -> Vec<u8> {
    let mut text = line_of(head.columns.iter().map(String::as_str));
    rows.iter()
        .for_each(|row| text.extend_from_slice(&row.line));
    text
}

/// The weight of the outcome that a cell names.
fn weight(cell: &str) -> u8 {
    Outcome::named(cell).map_or(0, Outcome::weight)
}

/// The rows of one table.
pub(super) struct LaunchRows {
    pub(super) head: TableHead,
    /// Or the first that is damaged.
    pub(super) rows: Result<Vec<CollectedRow>, TableError>,
}

impl LaunchRows {
    /// Reads those that are wanted, by trial and attempt; `None` if there is no table, or none whose
    /// header is whole.
    ///
    /// # Errors
    /// The file cannot be read, or is no such table.
    pub(super) fn read(
        run: &RunFolder,
        path: &Path,
        table: u64,
        is_wanted: &dyn Fn(&str, u64) -> bool,
    ) -> Result<Option<Self>, TableError> {
        let Some(mut file) = open_begun(run, path, TRIALS.version)? else {
            return Ok(None);
        };
        let mut rows = Ok(Vec::new());
        let mut places = None;
        let head = scan(&mut file, path, TRIALS.version, &mut |record| {
            let places = match places {
                Some(places) => places,
                None => *places.insert(Places::of(record.head())?),
            };
            if let Ok(read) = &mut rows {
                match places.row(record, table, is_wanted) {
                    Ok(row) => read.extend(row),
                    Err(error) => rows = Err(error),
                }
            }
            Ok(())
        })?;
        // A table without rows is looked at, too.
        Places::of(&head)?;
        Ok(Some(Self { head, rows }))
    }

    fn has_any(&self) -> bool {
        !matches!(&self.rows, Ok(rows) if rows.is_empty())
    }
}

/// Where the columns stand by which rows are ordered.
#[derive(Clone, Copy)]
struct Places {
    number: usize,
    trial: usize,
    attempt: usize,
    launch: usize,
    outcome: usize,
}

impl Places {
    fn of(head: &TableHead) -> Result<Self, TableError> {
        Ok(Self {
            number: head.place("number")?,
            trial: head.place("trial")?,
            attempt: head.place("attempt")?,
            launch: head.place("launch")?,
            outcome: head.place("outcome")?,
        })
    }

    /// `None` if it is not wanted.
    fn row(
        self,
        record: &Record<'_>,
        table: u64,
        is_wanted: &dyn Fn(&str, u64) -> bool,
    ) -> Result<Option<CollectedRow>, TableError> {
        let cell = |at: usize| record.cells().nth(at).unwrap_or_default();
        let count = |at: usize| {
            cell(at).parse().map_err(|_| {
                let column = &record.head().columns[at];
                record.problem(format!("`{column}` is not a number"))
            })
        };
        let (number, attempt, launch) = (
            count(self.number)?,
            count(self.attempt)?,
            count(self.launch)?,
        );
        Ok(is_wanted(cell(self.trial), attempt).then(|| CollectedRow {
            number,
            trial: cell(self.trial).to_owned(),
            attempt,
            launch,
            table,
            weight: weight(cell(self.outcome)),
            line: line_of(record.cells()),
        }))
    }
}
