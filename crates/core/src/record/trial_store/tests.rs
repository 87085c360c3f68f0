use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::*;
use crate::{plan::Outcome, record::TrialRow};

const AXIS: &str = "train.batch_size";

struct Place {
    _results: tempfile::TempDir,
    run: RunFolder,
    store: TrialStore,
}

fn place(rows: u64) -> Place {
    let results = tempfile::tempdir().unwrap();
    let run = RunFolder::at(results.path().join("run"));
    fs::create_dir(run.path()).unwrap();
    let (mut store, _) = TrialStore::open(&run, &[AXIS.to_owned()]).unwrap();
    (0..rows).for_each(|number| {
        assert_eq!(store.keep(&row(number)).unwrap(), []);
    });
    Place {
        _results: results,
        run,
        store,
    }
}

fn row(number: u64) -> TableRow {
    let fixed = TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        trial: TrialId(format!("t{number:010}")),
        attempt: 1,
        outcome: Outcome::Completed,
        samples_per_second: Some(number as f64 / 3.0),
        ..TrialRow::default()
    };
    TableRow {
        fixed: Box::new(fixed),
        axes: vec![number.to_string()],
    }
}

impl Place {
    fn table(&self) -> PathBuf {
        self.run.trials_table()
    }

    fn text(&self) -> String {
        fs::read_to_string(self.table()).unwrap()
    }

    /// Each of so many rows stands once in the table, as kiln wrote it.
    fn assert_has(&self, rows: u64) {
        let mut found = TrialTable::read(&self.table()).unwrap().rows;
        found.sort_by_key(|row| (row.fixed.trial.clone(), row.fixed.attempt));
        assert_eq!(found, (0..rows).map(row).collect::<Vec<_>>());
        assert_eq!(self.store.ends().len() as u64, rows);
    }
}

#[test]
fn rows_that_are_added_stand_in_the_table_as_rows_that_are_kept() {
    let (mut added, kept) = (place(0), place(3));
    (0..3).for_each(|number| added.store.add(&row(number)).unwrap());
    added.store.sync().unwrap();
    assert_eq!(added.text(), kept.text());
    added.store.keep(&row(3)).unwrap();
    added.assert_has(4);
}

#[test]
fn the_last_attempt_is_the_one_with_the_highest_number_and_the_outcome_that_counts() {
    let mut place = place(2);
    let (id, other) = (row(1).fixed.trial.clone(), row(7).fixed.trial.clone());
    for (attempt, outcome) in [
        (3, Outcome::Failed),
        (2, Outcome::Completed),
        (3, Outcome::Killed),
    ] {
        let mut row = row(1);
        row.fixed.attempt = attempt;
        row.fixed.outcome = outcome;
        place.store.keep(&row).unwrap();
    }
    let last = place.store.last_end(&id).unwrap();
    assert_eq!((last.attempt, last.outcome), (3, Outcome::Failed));
    assert_eq!(place.store.last_attempt(&id), 3);
    assert_eq!(place.store.last_end(&other), None);
    assert_eq!(place.store.last_attempt(&other), 0);
}

#[test]
fn rows_of_a_replaced_table_go_to_the_file_that_has_its_name() {
    let mut place = place(2);
    let copy = place.run.path().join("copy");
    fs::copy(place.table(), &copy).unwrap();
    fs::rename(&copy, place.table()).unwrap();
    assert_eq!(place.store.keep(&row(2)).unwrap(), []);
    place.assert_has(3);
}

#[test]
fn rows_that_an_older_copy_lacks_are_written_again() {
    let mut place = place(1);
    let older = place.text();
    place.store.keep(&row(1)).unwrap();
    place.store.keep(&row(2)).unwrap();
    fs::write(place.table(), older).unwrap();
    assert_eq!(
        place.store.keep(&row(3)).unwrap(),
        [TableChange::Restored { rows: 2 }]
    );
    place.assert_has(4);
}

#[test]
fn a_removed_or_emptied_table_is_written_again_also_without_a_new_row() {
    let mut place = place(2);
    let whole = place.text();
    fs::remove_file(place.table()).unwrap();
    assert_eq!(
        place.store.settle().unwrap(),
        [TableChange::Restored { rows: 2 }]
    );
    assert_eq!(place.text(), whole);
    fs::write(place.table(), "").unwrap();
    assert_eq!(
        place.store.settle().unwrap(),
        [TableChange::Restored { rows: 2 }]
    );
    assert_eq!(place.text(), whole);
    assert_eq!(place.store.settle().unwrap(), []);
}

#[test]
fn a_row_that_somebody_changed_stays_changed_and_is_told() {
    let mut place = place(2);
    let edited = place.text().replace("completed", "failed");
    fs::write(place.table(), &edited).unwrap();
    assert_eq!(
        place.store.keep(&row(2)).unwrap(),
        [TableChange::Edited { rows: 2 }]
    );
    assert!(place.text().starts_with(&edited));
}

#[test]
fn what_is_no_table_of_the_run_is_moved_aside_and_kept() {
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    fs::write(elsewhere.path(), "mine").unwrap();
    type Replace = fn(&Path, &Path);
    let cases: [Replace; 4] = [
        |table, _| fs::write(table, "a,b\n1,2\n").unwrap(),
        |table, _| {
            fs::remove_file(table).unwrap();
            fs::create_dir(table).unwrap();
        },
        |table, elsewhere| {
            fs::remove_file(table).unwrap();
            symlink(elsewhere, table).unwrap();
        },
        |table, _| {
            // A table with other columns.
            let text = fs::read_to_string(table).unwrap();
            fs::write(table, text.replacen(AXIS, "train.seed", 1)).unwrap();
        },
    ];
    for replace in cases {
        let mut place = place(2);
        replace(&place.table(), elsewhere.path());
        let name = "trials.csv.aside-1";
        assert_eq!(
            place.store.keep(&row(2)).unwrap(),
            [TableChange::PutAside { name: name.into() }]
        );
        place.assert_has(3);
        assert!(place.run.path().join(name).symlink_metadata().is_ok());
        assert_eq!(fs::read(elsewhere.path()).unwrap(), b"mine");
    }
}

#[test]
fn rows_go_to_the_folder_that_was_moved_and_the_run_is_told() {
    let mut place = place(2);
    let moved = RunFolder::at(place.run.path().with_file_name("moved"));
    fs::rename(place.run.path(), moved.path()).unwrap();
    let error = place.store.keep(&row(2)).unwrap_err();
    assert!(
        matches!(error, StoreError::Moved { rows: 3, .. }),
        "{error}"
    );
    assert_eq!(place.store.unwritten(), 0);
    place.run = moved;
    place.assert_has(3);
}

#[test]
fn the_rows_of_a_removed_folder_are_counted() {
    let mut place = place(2);
    fs::remove_dir_all(place.run.path()).unwrap();
    let error = place.store.keep(&row(2)).unwrap_err();
    assert!(
        matches!(error, StoreError::Removed { rows: 3, .. }),
        "{error}"
    );
}

#[test]
fn what_somebody_appends_is_kept_and_a_torn_line_of_it_is_cut() {
    let mut place = place(2);
    let mut file = OpenOptions::new().append(true).open(place.table()).unwrap();
    file.write_all(b"trials/6,half a ro").unwrap();
    assert_eq!(place.store.keep(&row(2)).unwrap(), []);
    place.assert_has(3);
}

#[test]
fn a_row_with_a_zero_byte_is_read_back() {
    let mut place = place(1);
    let mut odd = row(1);
    odd.fixed.device_name = Some("padded\0\0".to_owned());
    odd.axes = vec!["a\0b".to_owned()];
    place.store.keep(&odd).unwrap();
    place.store.keep(&row(2)).unwrap();
    let found = TrialTable::read(&place.table()).unwrap();
    assert!(found.torn.is_none());
    assert_eq!(found.rows.len(), 3);
    assert_eq!(
        found.rows[1].fixed.device_name.as_deref(),
        Some("padded\u{fffd}\u{fffd}")
    );
    assert_eq!(found.rows[1].axes, ["a\u{fffd}b"]);
}

#[test]
fn a_table_of_a_run_is_read_up_to_its_limit() {
    let place = place(1);
    let file = OpenOptions::new().write(true).open(place.table()).unwrap();
    file.set_len(1 << 40).unwrap();
    let refused = TrialTable::read_of(&place.run).unwrap_err().to_string();
    assert!(refused.contains("KILN_LIMIT_TABLE_BYTES"), "{refused}");
}

#[test]
fn rows_are_written_where_the_folder_of_the_run_is_a_link() {
    let mut place = place(1);
    let link = place.run.path().with_file_name("link");
    symlink(place.run.path(), &link).unwrap();
    let (mut store, _) = TrialStore::open(&RunFolder::at(&link), &[AXIS.to_owned()]).unwrap();
    assert!(store.is_in_place());
    store.keep(&row(1)).unwrap();
    // Another folder behind the same link is not that of the run.
    fs::remove_file(&link).unwrap();
    symlink(place.run.path().parent().unwrap(), &link).unwrap();
    assert!(!store.is_in_place());
    (place.store, _) = TrialStore::open(&place.run, &[AXIS.to_owned()]).unwrap();
    place.assert_has(2);
}

#[test]
fn a_table_behind_a_link_is_read_where_nothing_is_appended_to_it() {
    let place = place(1);
    let elsewhere = place.run.path().join("elsewhere.csv");
    fs::rename(place.table(), &elsewhere).unwrap();
    symlink(&elsewhere, place.table()).unwrap();
    assert_eq!(TrialTable::read_of(&place.run).unwrap().rows.len(), 1);
    let refused = TrialTable::each_of(&place.run, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("it is a link"), "{refused}");
}

#[test]
fn a_table_that_a_power_failure_left_without_its_header_is_a_new_one() {
    let header = place(0).text();
    let whole = header.len();
    let torn = |length: usize| header.as_bytes()[..length].to_vec();
    let zeroed = |length: usize| {
        let mut bytes = torn(length);
        bytes.resize(whole, 0);
        bytes
    };
    for bytes in [
        vec![],
        torn(3),
        torn(40),
        torn(whole - 1),
        zeroed(0),
        zeroed(5),
        zeroed(512),
    ] {
        let mut place = place(0);
        fs::write(place.table(), &bytes).unwrap();
        assert_eq!(TrialTable::read_of(&place.run).unwrap().rows, []);
        (place.store, _) = TrialStore::open(&place.run, &[AXIS.to_owned()]).unwrap();
        place.store.keep(&row(0)).unwrap();
        place.assert_has(1);
    }
}

/// So many that several blocks are full.
#[test]
fn rows_that_are_kept_compressed_are_read_and_written_again_unchanged() {
    const ROWS: u64 = 3000;
    let mut place = place(ROWS);
    let whole = place.text();
    assert_eq!(
        place.store.rows().unwrap(),
        (0..ROWS).map(row).collect::<Vec<_>>()
    );
    fs::remove_file(place.table()).unwrap();
    assert_eq!(
        place.store.settle().unwrap(),
        [TableChange::Restored {
            rows: ROWS as usize
        }]
    );
    assert_eq!(place.text(), whole);
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    fs::write(
        place.table(),
        [&lines[..1], &lines[2000..]].concat().concat(),
    )
    .unwrap();
    assert_eq!(
        place.store.keep(&row(ROWS)).unwrap(),
        [TableChange::Restored { rows: 1999 }]
    );
    place.assert_has(ROWS + 1);
}
