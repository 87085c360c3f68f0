//! Makes the tables of a run that several launches work on from those of the launches.
//!
//! In: `launches/*/`. Out: `trials.csv`, `snapshots.csv` and `run.json` of the run, whole, each
//! written under a name of its own and renamed: two that collect at once cannot tear a table, and
//! the result does not depend on which launch was faster. Rows keep their bytes.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, Cursor},
    path::Path,
};

use super::{
    AttemptEnd, RunFile, RunFolder, TableError, TableRow,
    launch_folder::{self, BEFORE, LaunchFile},
    run_file::json,
    snapshots::SNAPSHOTS,
    table::{Table, TableHead, line_of},
    trial_row::TRIALS,
    trials::each_row,
};
use crate::{
    folder::{self, Folder},
    input,
    limits::TABLE_BYTES,
    plan::{Outcome, TrialId},
};

/// In place of a launch: the run's own table.
const OWN: u64 = u64::MAX;

/// The rows of all launches.
#[derive(Clone, Debug, Default)]
pub struct CollectedRows {
    /// The columns; `None` if no launch has a table yet.
    head: Option<TableHead>,
    rows: Vec<CollectedRow>,
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
    is_final: bool,
    line: Vec<u8>,
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
        for launch in launch_folder::launches(run) {
            let path = launch_folder::folder(run, launch).trials_table();
            if let Some(table) = read_table(&path, TRIALS.version)? {
                collected.add(launch, &table)?;
            }
        }
        // One that is damaged is made again; so is one of another version, if it has nothing that the
        // launches lack.
        if let Ok(Some(own)) = read_table(&run.trials_table(), TRIALS.version) {
            let is_same = |head: &TableHead| head.columns == own.head.columns;
            if collected.head.as_ref().is_none_or(is_same) || collected.lacks(&own) {
                collected.add(OWN, &own)?;
            }
        }
        collected.order();
        Ok(collected)
    }

    /// Whether the table has an attempt that is not among these rows.
    fn lacks(&self, table: &Table) -> bool {
        let place = |name: &str| table.head.columns.iter().position(|column| column == name);
        let (Some(trial), Some(attempt)) = (place("trial"), place("attempt")) else {
            return false;
        };
        let known: HashSet<(&str, u64)> = self
            .rows
            .iter()
            .map(|row| (row.trial.as_str(), row.attempt))
            .collect();
        table.records().any(|record| {
            let cells: Vec<&str> = record.cells().collect();
            let number = cells.get(attempt).and_then(|cell| cell.parse().ok());
            let key = cells.get(trial).copied().zip(number);
            key.is_some_and(|key| !known.contains(&key))
        })
    }

    fn add(&mut self, launch: u64, table: &Table) -> Result<(), TableError> {
        if let Some(head) = &self.head
            && head.columns != table.head.columns
        {
            return Err(TableError::Columns {
                path: table.head.path.clone(),
                difference: format!("they differ from those of {}", head.path.display()),
            });
        }
        self.head.get_or_insert_with(|| table.head.clone());
        let place = |name: &str| {
            let mut columns = table.head.columns.iter();
            columns
                .position(|column| column == name)
                .ok_or_else(|| TableError::Head {
                    path: table.head.path.clone(),
                    problem: format!("there is no column `{name}`"),
                })
        };
        let [number, trial, attempt, of, outcome] = [
            place("number")?,
            place("trial")?,
            place("attempt")?,
            place("launch")?,
            place("outcome")?,
        ];
        for record in table.records() {
            let cells: Vec<&str> = record.cells().collect();
            let count = |at: usize| {
                let parsed = cells.get(at).and_then(|cell| cell.parse().ok());
                parsed.ok_or_else(|| {
                    record.problem(format!("`{}` is not a number", table.head.columns[at]))
                })
            };
            self.rows.push(CollectedRow {
                number: count(number)?,
                trial: cells.get(trial).copied().unwrap_or_default().to_owned(),
                attempt: count(attempt)?,
                launch: count(of)?,
                table: launch,
                is_final: cells.get(outcome).is_some_and(|cell| is_final(cell)),
                line: line_of(cells.iter().copied()),
            });
        }
        Ok(())
    }

    /// By number, attempt and trial, whatever the order of the launches: stand-ins of two workers may
    /// share a number. Of two rows of one attempt a final one counts, then that of the launch that ran
    /// it: who took its ticket back only saw that it was gone.
    fn order(&mut self) {
        self.rows.sort_by(|a, b| {
            let key = |row: &CollectedRow| {
                let (is_own, is_of_another) = (row.table == OWN, row.launch != row.table);
                (is_own, !row.is_final, is_of_another, row.table)
            };
            let attempt = |row: &CollectedRow| (row.number, row.attempt);
            attempt(a)
                .cmp(&attempt(b))
                .then_with(|| a.trial.cmp(&b.trial))
                .then_with(|| key(a).cmp(&key(b)))
        });
        self.rows
            .dedup_by(|later, kept| (&later.trial, later.attempt) == (&kept.trial, kept.attempt));
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text; `None` if no launch has one yet.
    fn text(&self) -> Option<Vec<u8>> {
        let head = self.head.as_ref()?;
        let mut text = line_of(head.columns.iter().map(String::as_str));
        self.rows
            .iter()
            .for_each(|row| text.extend_from_slice(&row.line));
        Some(text)
    }

    /// Gives the rows as records, one after another.
    ///
    /// # Errors
    /// A cell is not a value of its column; some rows may have been given before.
    pub fn each(&self, keep: &mut dyn FnMut(TableRow)) -> Result<(), TableError> {
        let (Some(text), Some(head)) = (self.text(), &self.head) else {
            return Ok(());
        };
        each_row(&mut Cursor::new(text), &head.path, keep).map(drop)
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

/// Whether the cell of an outcome names a final one.
fn is_final(cell: &str) -> bool {
    Outcome::ALL
        .iter()
        .any(|outcome| outcome.name() == cell && outcome.is_final())
}

/// Whether several launches work, or worked, on a run, so that its tables are collected.
pub fn is_collected(run: &RunFolder) -> bool {
    run.path()
        .join(launch_folder::LAUNCHES)
        .symlink_metadata()
        .is_ok_and(|found| found.is_dir())
}

/// Writes the tables of a run from those of its launches; returns the number of rows.
///
/// # Errors
/// A table or `run.json` cannot be read or written.
pub fn collect(run: &RunFolder) -> io::Result<usize> {
    let rows = CollectedRows::read(run)?;
    let folder = run.open()?;
    if let Some(text) = rows.text() {
        write_changed(&folder, &run.trials_table(), &text)?;
    }
    let launches = launch_files(run);
    collect_snapshots(run, &folder, &launches)?;
    let mut file = RunFile::read(&run.run_file()).map_err(io::Error::other)?;
    file.launches = merged(&file, &launches);
    write_changed(&folder, &run.run_file(), &json(&file)?)?;
    Ok(rows.len())
}

/// Returns how many rows of the launches are not in the run's `trials.csv`.
///
/// # Errors
/// A table cannot be read.
pub fn uncollected(run: &RunFolder) -> Result<usize, TableError> {
    if !is_collected(run) {
        return Ok(0);
    }
    let there = read_table(&run.trials_table(), TRIALS.version)?.map_or(0, |table| table.len());
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

fn launch_files(run: &RunFolder) -> Vec<LaunchFile> {
    launch_folder::launches(run)
        .into_iter()
        .filter_map(|launch| LaunchFile::read(run, launch))
        .collect()
}

/// The name of each launch's node: as the launch gives it, else `node-1`, `node-2`, … in the order
/// of the launches.
fn node_names(launches: &[LaunchFile]) -> Vec<String> {
    let mut known: Vec<Option<&str>> = Vec::new();
    launches
        .iter()
        .map(|file| {
            if let Some(name) = &file.launch.node {
                return name.clone();
            }
            let id = node_id(file);
            let place = known.iter().position(|other| *other == id);
            let place = place.unwrap_or_else(|| {
                known.push(id);
                known.len() - 1
            });
            format!("node-{}", place + 1)
        })
        .collect()
}

/// An id of the node: of its host, else of its installation, else of its boot. Launches with the same
/// id ran on the same node.
fn node_id(file: &LaunchFile) -> Option<&str> {
    let launch = &file.launch;
    let id = launch.host_id.as_ref().or(launch.machine_id.as_ref());
    Some(id.unwrap_or(&launch.anchor.boot_id))
}

/// Snapshots of the first launch on each node, table and pages.
fn collect_snapshots(run: &RunFolder, folder: &Folder, launches: &[LaunchFile]) -> io::Result<()> {
    let before = launch_folder::folder(run, BEFORE);
    let mut seen = HashSet::new();
    let mut text: Option<Vec<u8>> = None;
    let first = launches.iter().filter(|file| seen.insert(node_id(file)));
    let first: Vec<u64> = first.map(|file| file.launch.launch).collect();
    let folders = first
        .iter()
        .map(|launch| launch_folder::folder(run, *launch));
    for of_launch in std::iter::once(before).chain(folders) {
        let Some(table) = read_table(&of_launch.snapshots_table(), SNAPSHOTS.version)? else {
            continue;
        };
        let text =
            text.get_or_insert_with(|| line_of(table.head.columns.iter().map(String::as_str)));
        for record in table.records() {
            text.extend(line_of(record.cells()));
        }
    }
    if let Some(text) = text {
        write_changed(folder, &run.snapshots_table(), &text)?;
    }
    for launch in first {
        let own = launch_folder::folder(run, launch);
        for (from, to) in [
            (own.snapshot_page(launch), run.snapshot_page(launch)),
            (own.packages_list(launch), run.packages_list(launch)),
        ] {
            if let Ok(page) = input::read(&from, &TABLE_BYTES) {
                write_changed(folder, &to, &page)?;
            }
        }
    }
    Ok(())
}

/// `None` if there is no table, or none whose header is whole.
fn read_table(path: &Path, version: &str) -> Result<Option<Table>, TableError> {
    let failed = |cause| TableError::Io {
        path: path.to_owned(),
        doing: "opening",
        cause,
    };
    let opened = folder::split(path).and_then(|(above, name)| Folder::open(above)?.read(name));
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
        Ok(mut file) => Table::read_begun(&mut file, path, version),
    }
}

/// Writes a file unless it has this content.
fn write_changed(folder: &Folder, path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let (_, name) = folder::split(path)?;
    folder.write_among_others(name, content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{TrialStore, trial_row::TrialRow};

    fn row(number: u64, attempt: u64, launch: u64, outcome: Outcome) -> TableRow {
        TableRow {
            fixed: TrialRow {
                kiln_table: TRIALS.version.to_owned(),
                trial: TrialId(format!("t{number:010}")),
                number,
                attempt,
                launch,
                outcome,
                reason: Some("a \"quoted\", long\nreason".to_owned()),
                ..TrialRow::default()
            },
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
            fixed: TrialRow {
                reason: Some("told by another".to_owned()),
                ..rows[0].fixed.clone()
            },
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
        // A damaged one is none.
        fs::remove_dir_all(run.path().join("launches")).unwrap();
        fs::write(run.trials_table(), "x,y\n1,2\n").unwrap();
        assert!(CollectedRows::read(&run).unwrap().is_empty());
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
