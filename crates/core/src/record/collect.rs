//! Makes the tables of a run that several launches work on from those of the launches.
//!
//! In: `launches/*/`. Out: `trials.csv`, `snapshots.csv` and `run.json` of the run, whole, each
//! written under a name of its own and renamed: two that collect at once cannot tear a table, and
//! the result does not depend on which launch was faster. Rows of trials keep their bytes.

mod edited;
mod snapshots;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Cursor},
    path::Path,
};

pub use self::edited::EditedRows;
use self::edited::OwnTable;
use super::{
    AttemptEnd, RunFile, RunFolder, TableError, TableRow,
    launch_folder::{self, LaunchFile},
    run_file::json,
    table::{Record, TableHead, is_begun, line_of, scan},
    trial_row::TRIALS,
    trials::each_row,
};
use crate::{
    folder::{self, Folder},
    input,
    plan::{Outcome, TrialId},
};

/// Rows that are read from their lines at once: all together would be the table a second time.
const MOST_AT_ONCE: usize = 500;

/// In place of a launch: the run's own table.
const OWN: u64 = u64::MAX;

/// The rows of all launches.
#[derive(Clone, Debug, Default)]
pub struct CollectedRows {
    /// The columns; `None` if no launch has a table yet.
    head: Option<TableHead>,
    rows: Vec<CollectedRow>,
    /// Rows of the launches in whose place another one of the same attempt counts.
    superseded: Vec<CollectedRow>,
}

#[derive(Clone, Debug)]
struct CollectedRow {
    /// Place in the plan, from 1.
    number: u64,
    trial: String,
    attempt: u64,
    /// The launch that ran the attempt.
    launch: u64,
    /// The launch in whose table it stands.
    table: u64,
    /// [`Outcome::weight`]; 0 if the cell names no outcome.
    weight: u8,
    line: Vec<u8>,
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
            if let Some(rows) = LaunchRows::read(&path, launch, &|_, _| true)? {
                collected.add(rows)?;
            }
        }
        // One that is damaged is made again; so is one of another version, if it has nothing that the
        // launches lack.
        let known: HashSet<(&str, u64)> = collected.rows.iter().map(CollectedRow::key).collect();
        let is_new = |trial: &str, attempt: u64| !known.contains(&(trial, attempt));
        let own = LaunchRows::read(&run.trials_table(), OWN, &is_new);
        collected.add_own(own)?;
        collected.order();
        Ok(collected)
    }

    /// Adds the rows of the run's own table that no launch has, unless it is missing or damaged.
    fn add_own(&mut self, own: Result<Option<LaunchRows>, TableError>) -> Result<(), TableError> {
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
    fn text(&self) -> Option<Vec<u8>> {
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
    let named = Outcome::ALL.iter().find(|outcome| outcome.name() == cell);
    named.map_or(0, |outcome| outcome.weight())
}

/// Most times that tables are made again because of new rows.
const MOST_COLLECTED: usize = 4;

/// Whether several launches work, or worked, on a run, so that its tables are collected.
pub fn is_collected(run: &RunFolder) -> bool {
    let launches = run.path().join(launch_folder::LAUNCHES);
    match launches.symlink_metadata() {
        Ok(found) => found.is_dir(),
        // The collection reads the folder, and fails with the error.
        Err(error) => !input::is_absent(&error),
    }
}

/// The result of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Number of rows in `trials.csv`.
    pub rows: usize,
    /// Rows of the `trials.csv` before it that somebody had changed, if any.
    pub edited: Option<EditedRows>,
}

/// Writes the tables of a run from those of its launches.
///
/// Several processes may collect at once, and the last one to write may have read before another wrote.
/// So each looks, after it has written, whether a table of a launch has grown, and then collects again.
///
/// # Errors
/// A table or `run.json` cannot be read or written.
pub fn collect(run: &RunFolder) -> io::Result<Collected> {
    let (mut before, mut edited) = (lengths(run), None);
    for _ in 0..MOST_COLLECTED {
        let collected = collect_once(run)?;
        edited = edited.or(collected.edited);
        let (rows, now) = (collected.rows, lengths(run));
        if now == before {
            return Ok(Collected { rows, edited });
        }
        before = now;
    }
    // Somebody adds rows all the time, and collects them too.
    let last = collect_once(run)?;
    Ok(Collected {
        rows: last.rows,
        edited: edited.or(last.edited),
    })
}

/// The launches with a `trials.csv`, and its bytes.
fn lengths(run: &RunFolder) -> Vec<(u64, u64)> {
    let length = |launch| {
        let table = launch_folder::folder(run, launch).trials_table();
        Some((launch, table.metadata().ok()?.len()))
    };
    let launches = launch_folder::launches(run).into_iter();
    launches.filter_map(length).collect()
}

fn collect_once(run: &RunFolder) -> io::Result<Collected> {
    let own = OwnTable::read(run)?;
    let rows = CollectedRows::read(run)?;
    let edited = own.and_then(|own| own.edited(&rows));
    let folder = run.open()?;
    if let Some(text) = rows.text() {
        folder.write_among_others(TRIALS.file.as_ref(), &text)?;
    }
    let launches = launch_files(run)?;
    snapshots::collect(run, &folder, &launches)?;
    let mut file = RunFile::read(&run.run_file()).map_err(io::Error::other)?;
    file.launches = merged(&file, &launches);
    run.write_among_others(&run.run_file(), &json(&file)?)?;
    Ok(Collected {
        rows: rows.len(),
        edited,
    })
}

/// Returns how many rows of the launches are not in the run's `trials.csv`.
///
/// # Errors
/// A table cannot be read.
pub fn uncollected(run: &RunFolder) -> Result<usize, TableError> {
    if !is_collected(run) {
        return Ok(0);
    }
    let there = LaunchRows::read(&run.trials_table(), OWN, &|_, _| true)?;
    let there = there.map_or(Ok(0), |own| own.rows.map(|rows| rows.len()))?;
    Ok(CollectedRows::read(run)?.len().saturating_sub(there))
}

/// The launches of `run.json` that have no folder, and those that have one, by number.
fn merged(file: &RunFile, launches: &[LaunchFile]) -> Vec<super::run_file::Launch> {
    let mut all: BTreeMap<u64, _> = file
        .launches
        .iter()
        .map(|launch| (launch.launch, launch.clone()))
        .collect();
    let nodes = node_names(launches);
    for (file, node) in launches.iter().zip(nodes) {
        let mut launch = file.launch.clone();
        launch.node = Some(node);
        all.insert(launch.launch, launch);
    }
    all.into_values().collect()
}

fn launch_files(run: &RunFolder) -> io::Result<Vec<LaunchFile>> {
    let launches = launch_folder::listed(run)?.into_iter();
    Ok(launches
        .filter_map(|launch| LaunchFile::read(run, launch))
        .collect())
}

/// The name of each launch's node: as the launch gives it, else `node-1`, `node-2`, … in the order
/// of the launches.
fn node_names(launches: &[LaunchFile]) -> Vec<String> {
    let mut known: Vec<&str> = Vec::new();
    launches
        .iter()
        .map(|file| {
            if let Some(name) = &file.launch.node {
                return name.clone();
            }
            let id = file.launch.host();
            let place = known.iter().position(|other| *other == id);
            let place = place.unwrap_or_else(|| {
                known.push(id);
                known.len() - 1
            });
            format!("node-{}", place + 1)
        })
        .collect()
}

/// The rows of one table.
struct LaunchRows {
    head: TableHead,
    /// Or the first that is damaged.
    rows: Result<Vec<CollectedRow>, TableError>,
}

impl LaunchRows {
    /// Reads those that are wanted, by trial and attempt; `None` if there is no table, or none whose
    /// header is whole.
    ///
    /// # Errors
    /// The file cannot be read, or is no such table.
    fn read(
        path: &Path,
        table: u64,
        is_wanted: &dyn Fn(&str, u64) -> bool,
    ) -> Result<Option<Self>, TableError> {
        let Some(mut file) = open_begun(path, TRIALS.version)? else {
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

/// Opens a table; `None` if there is none, or none whose header is whole.
fn open_begun(path: &Path, version: &str) -> Result<Option<File>, TableError> {
    let opened = folder::split(path).and_then(|(above, name)| Folder::open(above)?.read(name));
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(TableError::Io {
            path: path.to_owned(),
            doing: "opening",
            cause,
        }),
        Ok(mut file) => Ok(is_begun(&mut file, path, version)?.then_some(file)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::{TrialStore, trial_row::TrialRow};

    fn row(number: u64, attempt: u64, launch: u64, outcome: Outcome) -> TableRow {
        TableRow {
            fixed: Box::new(TrialRow {
                kiln_table: TRIALS.version.to_owned(),
                trial: TrialId(format!("t{number:010}")),
                number,
                attempt,
                launch,
                outcome,
                reason: Some("a \"quoted\", long\nreason".to_owned()),
                ..TrialRow::default()
            }),
            axes: vec!["8".to_owned()],
        }
    }

    fn run(tables: &[(u64, Vec<TableRow>)]) -> (tempfile::TempDir, RunFolder) {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        for (launch, rows) in tables {
            let own = launch_folder::folder(&run, *launch);
            fs::create_dir_all(own.path()).unwrap();
            let (mut store, _) = TrialStore::open(&own, &["model.size".to_owned()]).unwrap();
            for row in rows {
                store.keep(row).unwrap();
            }
        }
        (place, run)
    }

    /// Two workers give a stand-in the next number that each knows.
    #[test]
    fn a_stand_in_with_two_numbers_has_one_row() {
        use Outcome::{Completed, Killed};
        let numbered = |row: TableRow, number: u64| TableRow {
            fixed: Box::new(TrialRow {
                number,
                ..(*row.fixed).clone()
            }),
            ..row
        };
        let (theirs, others) = (row(5, 1, 3, Completed), row(4, 1, 5, Completed));
        let told = numbered(row(5, 1, 3, Killed), 6);
        let others = numbered(others, 5);
        let (_place, run) = run(&[(3, vec![theirs.clone()]), (5, vec![told, others.clone()])]);
        let collected = CollectedRows::read(&run).unwrap();
        let mut given = Vec::new();
        collected.each(&mut |row| given.push(row)).unwrap();
        given.sort_by_key(|row| row.fixed.trial.clone());
        assert_eq!(given, [others, theirs]);
    }

    #[test]
    fn rows_are_collected_in_plan_order_whichever_launch_was_faster() {
        use Outcome::{Completed, Killed};
        let rows = [
            row(1, 1, 3, Killed),
            row(1, 2, 5, Completed),
            row(2, 1, 5, Completed),
            row(3, 1, 3, Completed),
        ];
        // Launch 5 took back what 3 had, and 3, which was only out of reach, told the same itself.
        let told = TableRow {
            fixed: Box::new(TrialRow {
                reason: Some("told by another".to_owned()),
                ..(*rows[0].fixed).clone()
            }),
            ..rows[0].clone()
        };
        let of_three = vec![rows[3].clone(), rows[0].clone()];
        let of_five = vec![rows[2].clone(), told, rows[1].clone()];
        let (_place, run) = run(&[(3, of_three.clone()), (5, of_five.clone())]);
        let collected = CollectedRows::read(&run).unwrap();
        let mut given = Vec::new();
        collected.each(&mut |row| given.push(row)).unwrap();
        assert_eq!(given, rows);
        assert_eq!(collected.attempts().len(), 4);
        let (_other, again) = self::run(&[
            (3, of_three.into_iter().rev().collect()),
            (5, of_five.into_iter().rev().collect()),
        ]);
        assert_eq!(
            CollectedRows::read(&again).unwrap().text(),
            collected.text()
        );
        // The rows are those that a launch writes, to the byte.
        let (whole, _) = self::run(&[(1, rows.to_vec())]);
        let written = fs::read(whole.path().join("launches/1/trials.csv")).unwrap();
        assert_eq!(collected.text(), Some(written));
    }

    #[test]
    fn stand_ins_that_share_a_number_stand_once_however_often_they_are_collected() {
        let of = |trial: &str, launch: u64| {
            let mut made = row(4, 1, launch, Outcome::Failed);
            made.fixed.trial = TrialId(trial.to_owned());
            made
        };
        let tables = [
            (1, vec![of("t0000000001", 1)]),
            (2, vec![of("t0000000002", 2)]),
        ];
        let (_place, run) = run(&tables);
        let first = CollectedRows::read(&run).unwrap();
        fs::write(run.trials_table(), first.text().unwrap()).unwrap();
        let again = CollectedRows::read(&run).unwrap();
        assert_eq!(again.len(), 2);
        assert_eq!(again.text(), first.text());
    }

    #[test]
    fn a_table_in_the_making_counts_as_far_as_it_is_whole() {
        use Outcome::Completed;
        let (_place, run) = run(&[
            (1, vec![row(1, 1, 1, Completed)]),
            (2, vec![row(2, 1, 2, Completed)]),
        ]);
        let torn = launch_folder::folder(&run, 2).trials_table();
        let text = fs::read(&torn).unwrap();
        for (length, rows) in [(text.len() - 3, 1), (20, 1), (0, 1), (text.len(), 2)] {
            fs::write(&torn, &text[..length]).unwrap();
            assert_eq!(CollectedRows::read(&run).unwrap().len(), rows, "{length}");
        }
        fs::create_dir(run.path().join("launches/9")).unwrap();
        assert_eq!(uncollected(&run).unwrap(), 2);
        fs::write(run.trials_table(), &text).unwrap();
        assert_eq!(uncollected(&run).unwrap(), 1);
    }

    #[test]
    fn no_row_of_the_run_is_dropped_whatever_became_of_the_launches() {
        use Outcome::Completed;
        let (_place, run) = run(&[
            (1, vec![row(1, 1, 1, Completed)]),
            (2, vec![row(2, 1, 2, Completed)]),
        ]);
        let whole = CollectedRows::read(&run).unwrap().text();
        fs::write(run.trials_table(), whole.clone().unwrap()).unwrap();
        fs::remove_dir_all(run.path().join("launches/2")).unwrap();
        assert_eq!(CollectedRows::read(&run).unwrap().text(), whole);
        fs::remove_dir_all(run.path().join("launches")).unwrap();
        assert_eq!(CollectedRows::read(&run).unwrap().text(), whole);
        // One of another version is refused while it alone has rows, and made again once it has not.
        let (_place, run) = self::run(&[(1, vec![row(1, 1, 1, Completed)])]);
        let text = String::from_utf8(whole.unwrap()).unwrap();
        let other = text.replacen(",model.size,", ",model.other,", 1);
        fs::write(run.trials_table(), &other).unwrap();
        let refused = CollectedRows::read(&run).unwrap_err();
        assert!(matches!(refused, TableError::Columns { .. }), "{refused}");
        let shorter = &other[..other.trim_end().rfind('\n').unwrap() + 1];
        fs::write(run.trials_table(), shorter).unwrap();
        assert_eq!(CollectedRows::read(&run).unwrap().len(), 1);
        // A row that cannot be placed is told, and not taken for none.
        let edited = text.replacen("t0000000002,1,2,2,", "t0000000002,1,2,two,", 1);
        assert_ne!(edited, text);
        fs::write(run.trials_table(), &edited).unwrap();
        let refused = CollectedRows::read(&run).unwrap_err().to_string();
        assert!(refused.contains("`number` is not a number"), "{refused}");
        // One that the system cannot read now may have rows that no launch has.
        let unread = || TableError::Io {
            path: run.trials_table(),
            doing: "opening",
            cause: rustix::io::Errno::MFILE.into(),
        };
        assert!(CollectedRows::default().add_own(Err(unread())).is_err());
        assert!(OwnTable::of(Err(unread())).is_err());
        // A damaged one is none.
        fs::remove_dir_all(run.path().join("launches")).unwrap();
        fs::write(run.trials_table(), "x,y\n1,2\n").unwrap();
        assert!(CollectedRows::read(&run).unwrap().is_empty());
    }

    #[test]
    fn a_row_that_somebody_changed_is_told_and_one_that_another_launch_wrote_is_not() {
        use Outcome::{Completed, Killed};
        let told = row(1, 1, 3, Killed);
        let (_place, run) = run(&[
            (3, vec![row(1, 1, 3, Completed), row(2, 1, 3, Completed)]),
            (5, vec![told.clone()]),
        ]);
        let edited = || {
            let own = OwnTable::read(&run).unwrap()?;
            own.edited(&CollectedRows::read(&run).unwrap())
        };
        assert_eq!(edited(), None, "no table yet");
        let whole = CollectedRows::read(&run).unwrap().text().unwrap();
        fs::write(run.trials_table(), &whole).unwrap();
        assert_eq!(edited(), None);
        // It was collected before launch 3 had its own row.
        let (_other, earlier) = self::run(&[(5, vec![told]), (3, vec![row(2, 1, 3, Completed)])]);
        let earlier = CollectedRows::read(&earlier).unwrap().text().unwrap();
        assert_ne!(earlier, whole);
        fs::write(run.trials_table(), earlier).unwrap();
        assert_eq!(edited(), None);
        // A file server showed a launch to another collector before it shows it here.
        let (_more, later) =
            self::run(&[(3, vec![row(2, 1, 3, Completed), row(3, 1, 3, Completed)])]);
        let later = CollectedRows::read(&later).unwrap().text().unwrap();
        fs::write(run.trials_table(), later).unwrap();
        assert_eq!(edited(), None);
        let changed = String::from_utf8(whole).unwrap();
        let changed = changed.replace(",completed,", ",failed,");
        fs::write(run.trials_table(), changed).unwrap();
        let found = edited().unwrap();
        let expected = EditedRows {
            rows: 2,
            trial: "t0000000001".to_owned(),
            attempt: 1,
        };
        assert_eq!(found, expected);
        assert!(found.to_string().contains(
            "2 rows differed from the tables in `launches/` (the first: trial t0000000001"
        ));
    }

    #[test]
    fn a_run_of_one_launch_has_nothing_to_collect() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        assert!(!is_collected(&run));
        assert_eq!(uncollected(&run).unwrap(), 0);
        assert!(CollectedRows::read(&run).unwrap().is_empty());
    }
}
