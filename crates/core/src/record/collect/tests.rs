use std::fs;

use super::*;
use crate::{
    plan::{Outcome, TrialId},
    record::{TableRow, TrialStore, trial_row::TrialRow},
};

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
    let (_more, later) = self::run(&[(3, vec![row(2, 1, 3, Completed), row(3, 1, 3, Completed)])]);
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
    assert!(
        found.to_string().contains(
            "2 rows differed from the tables in `launches/` (the first: trial t0000000001"
        )
    );
}

#[test]
fn a_run_of_one_launch_has_nothing_to_collect() {
    let place = tempfile::tempdir().unwrap();
    let run = RunFolder::at(place.path());
    assert!(!is_collected(&run));
    assert_eq!(uncollected(&run).unwrap(), 0);
    assert!(CollectedRows::read(&run).unwrap().is_empty());
}
