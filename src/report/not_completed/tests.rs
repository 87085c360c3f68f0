use kiln_core::plan::TrialId;

use serde_json::{Value, json};

use super::{
    super::points::tests::{row, table},
    *,
};
use crate::report::{self, Subject};

/// A trial that ended so, with this seed.
fn ended(id: u64, seed: u64, outcome: Outcome, reason: &str) -> TrialRow {
    TrialRow {
        outcome,
        seed,
        reason: Some(reason.to_owned()),
        samples_per_second: None,
        ..row(id, 0.0)
    }
}

fn completed(id: u64, seed: u64) -> TrialRow {
    TrialRow {
        seed,
        ..row(id, 10.0)
    }
}

fn text(table: &TrialTable, planned: usize) -> String {
    NotCompleted::of(table, None, planned).text()
}

/// Points 1 to 4 with seeds 1 and 2; seed 2 failed at points 2 to 4.
fn bad_seed() -> TrialTable {
    let failed = |id| ended(id, 2, Outcome::Failed, "sh ended with status 1: assert");
    table(
        &["model.values.i"],
        vec![
            (completed(1, 1), &["1"]),
            (completed(2, 2), &["1"]),
            (completed(3, 1), &["2"]),
            (failed(4), &["2"]),
            (completed(5, 1), &["3"]),
            (failed(6), &["3"]),
            (completed(7, 1), &["4"]),
            (failed(8), &["4"]),
        ],
    )
}

#[test]
fn trials_of_one_reason_are_one_entry_with_what_they_have_in_common() {
    assert_eq!(
        text(&bad_seed(), 8),
        "  3 failed: sh ended with status 1: assert\n     seed 2 in all 3 (of 4 trials with it); \
         model.values.i 2, 3, 4; 0000000004 and 2 more\n"
    );
}

#[test]
fn only_what_the_table_shows_is_claimed_of_a_common_value() {
    let mut table = bad_seed();
    table.rows.remove(1);
    assert!(
        text(&table, 7).contains("     seed 2 in all 3, and every trial with it failed; "),
        "{}",
        text(&table, 7)
    );
    assert!(text(&table, 8).contains("every trial with it failed so far; "));
    table.rows.push(TableRow {
        fixed: Box::new(ended(9, 2, Outcome::Oom, "no memory")),
        axes: vec!["1".to_owned()],
    });
    assert!(
        text(&table, 8)
            .contains("     seed 2 in all 3 (of 4 trials with it, none of which completed); "),
        "{}",
        text(&table, 8)
    );
}

#[test]
fn a_value_that_every_trial_of_the_table_has_is_not_named() {
    let failed = |id| ended(id, 1, Outcome::Failed, "sh ended with status 1");
    let rows = (1..=5).map(|id| (failed(id), &["x", "y"][..]));
    let table = table(&["a", "b"], rows.collect());
    assert_eq!(
        text(&table, 5),
        "  5 failed: sh ended with status 1\n     0000000001 and 4 more\n"
    );
}

#[test]
fn trials_that_lack_one_metric_are_one_entry_with_the_lines_of_the_first() {
    let rows = (1..=3).map(|id| {
        let nearest = metric_reason::nearest_lines(
            &format!("trials/t{id}/1/stdout.txt"),
            &format!("'loss: 0.{id}'"),
        );
        let fault = format!("`loss` never came: 'los (.*)' matched none of {id} lines{nearest}");
        let reason = metric_reason::of_program("sh", &fault);
        (ended(id, 1, Outcome::Failed, &reason), &["x"][..])
    });
    assert_eq!(
        text(&table(&["a"], rows.collect()), 3),
        "  3 failed: sh ended with status 0, and `loss` never came: 'los (.*)' matched none of its \
         lines; the nearest in trials/t1/1/stdout.txt: 'loss: 0.1'\n     0000000001 and 2 more\n"
    );
}

#[test]
fn trials_with_one_fault_in_their_values_are_one_entry() {
    let rows = (1..=3).map(|id| {
        let value = format!("5{id}.5; it is a share, from 0 to 1");
        let fault = metric_reason::of_impossible("valid_top1", &value);
        let reason = metric_reason::of_program("sh", &fault);
        (ended(id, 1, Outcome::Failed, &reason), &["x"][..])
    });
    assert_eq!(
        text(&table(&["a"], rows.collect()), 3),
        "  3 failed: sh ended with status 0, and `valid_top1` is …; it is a share, from 0 to 1\n     \
         0000000001 and 2 more\n"
    );
}

#[test]
fn a_long_list_of_values_is_cut() {
    let values: Vec<[String; 1]> = (1..=6).map(|value| [value.to_string()]).collect();
    let rows = values.iter().zip(1_u64..).map(|(value, id)| TableRow {
        fixed: Box::new(match id {
            6 => completed(6, 1),
            id => ended(id, 1, Outcome::Diverged, "`train_loss` is NaN"),
        }),
        axes: value.to_vec(),
    });
    let table = TrialTable {
        axes: vec!["x".to_owned()],
        rows: rows.collect(),
        ..TrialTable::default()
    };
    assert!(
        text(&table, 6).contains("     x 1, 2, 3, …; 0000000001 and 4 more\n"),
        "{}",
        text(&table, 6)
    );
}

#[test]
fn values_that_differ_at_their_end_or_in_blanks_are_told_apart() {
    let long = |end: &str| format!("{}{end}", "x".repeat(50));
    let values = [long("a"), long("b"), " ".to_owned(), "q ".to_owned()];
    let rows = values.iter().zip(1_u64..).map(|(value, id)| TableRow {
        fixed: Box::new(match id {
            1 => completed(1, 1),
            id => ended(id, 1, Outcome::Diverged, "`train_loss` is NaN"),
        }),
        axes: vec![value.clone()],
    });
    let table = TrialTable {
        axes: vec!["x".to_owned()],
        rows: rows.collect(),
        ..TrialTable::default()
    };
    let (first, last) = ("x".repeat(20), "x".repeat(19));
    let told = format!("     x {first}…{last}b, \" \", \"q \"; 0000000002 and 2 more\n");
    assert!(text(&table, 4).contains(&told), "{}", text(&table, 4));
}

#[test]
fn a_single_trial_is_one_line_with_its_seed_if_there_are_repeats() {
    let failed = |seed| ended(2, seed, Outcome::Failed, "bad shape 7");
    let repeats = table(&["x"], vec![(completed(1, 1), &["7"]), (failed(2), &["7"])]);
    assert_eq!(
        text(&repeats, 2),
        "  0000000002  failed      x 7, seed 2: bad shape 7\n"
    );
    let unswept = table(&[], vec![(completed(1, 1), &[]), (failed(2), &[])]);
    assert_eq!(
        text(&unswept, 2),
        "  0000000002  failed      seed 2: bad shape 7\n"
    );
    let once = table(&["x"], vec![(completed(1, 1), &["1"]), (failed(1), &["7"])]);
    assert_eq!(
        text(&once, 2),
        "  0000000002  failed      x 7: bad shape 7\n"
    );
}

#[test]
fn another_outcome_or_reason_is_another_entry_and_the_largest_is_first() {
    let table = table(
        &[],
        vec![
            (ended(1, 1, Outcome::Failed, "bad shape 7"), &[]),
            (ended(2, 1, Outcome::Failed, "bad shape 8"), &[]),
            (ended(3, 1, Outcome::Oom, "bad shape 8"), &[]),
            (ended(4, 1, Outcome::Failed, "bad shape 8"), &[]),
        ],
    );
    let heads = NotCompleted::of(&table, None, 4).entries();
    let heads: Vec<&str> = heads.iter().map(|entry| entry.head.as_str()).collect();
    assert_eq!(
        heads,
        [
            "2 failed: bad shape 8",
            "0000000001  failed      all trials: bad shape 7",
            "0000000003  oom         all trials: bad shape 8",
        ]
    );
}

#[test]
fn logs_are_named_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let folder = RunFolder::at(place.path());
    let id = |number: u64| TrialId(format!("t{number:010x}"));
    let failed = |number, reason: &str| TrialRow {
        trial: id(number),
        ..ended(number, 1, Outcome::Failed, reason)
    };
    let logged = |number| {
        let attempt = folder.attempt(&id(number), 1);
        std::fs::create_dir_all(&attempt).unwrap();
        std::fs::write(attempt.join(STDERR), "").unwrap();
    };
    [1, 3, 4].into_iter().for_each(logged);
    let see = "trial t0000000004 failed after 1.00 s; see trials/t0000000004/1/stderr.txt";
    let table = table(
        &[],
        vec![
            (failed(1, "one"), &[]),
            (failed(2, "one"), &[]),
            (failed(3, "two"), &[]),
            (failed(4, see), &[]),
            (failed(5, "five"), &[]),
        ],
    );
    let subject = Subject {
        folder: Some(&folder),
        ..Subject::new(&table, "trials.csv")
    };
    let told: Value = serde_json::from_str(&report::json(subject)).unwrap();
    assert_eq!(
        told["not_completed"][0],
        json!({
            "trial": "t0000000001",
            "seed": 1,
            "axes": {},
            "values": {},
            "outcome": "failed",
            "reason": "one",
            "attempt": 1,
            "stderr": "trials/t0000000001/1/stderr.txt",
        })
    );
    assert_eq!(told["not_completed"][1]["stderr"], Value::Null);
    let text = NotCompleted::of(&table, Some(&folder), 5).text();
    assert_eq!(
        text,
        format!(
            "  2 failed: one\n     trials/t0000000001/1/stderr.txt and 1 more\n  t0000000003  failed      \
             all trials: two; trials/t0000000003/1/stderr.txt\n  t0000000004  failed      all trials: \
             {see}\n  t0000000005  failed      all trials: five\n"
        )
    );
}
