use kiln_core::{
    plan::Outcome,
    record::{RunFile, TrialTable},
};

use super::*;
use crate::report::points::tests::{row, table};

fn conditions(texts: &[&str]) -> Vec<GateCondition> {
    let read = |text: &&str| GateCondition::read(text).unwrap();
    texts.iter().map(read).collect()
}

/// The sentence of the only condition's gate.
fn sentence_of(subjects: &[Subject<'_>], condition: &str, is_best: bool) -> String {
    let conditions = conditions(&[condition]);
    let bounds = Bounds::of(subjects, &conditions, is_best).unwrap();
    let mut gates = bounds.gates();
    let gate = gates.remove(0);
    assert_eq!((gate.condition.as_str(), gates.len()), (condition, 0));
    gate.sentence()
}

fn sentence(table: &TrialTable, condition: &str) -> String {
    sentence_of(&[Subject::new(table, "x/trials.csv")], condition, false)
}

fn with_loss(id: u64, valid_loss: Option<f64>) -> TrialRow {
    TrialRow {
        valid_loss,
        ..row(id, 100.0 * id as f64)
    }
}

/// A point of one axis with these losses of its trials.
fn losses(losses: &[f64]) -> TrialTable {
    let rows = (1..).zip(losses);
    let rows = rows.map(|(id, loss)| (with_loss(id, Some(*loss)), &["8"][..]));
    table(&["train.batch_size"], rows.collect())
}

/// The run of a plan with these trials.
fn run_of(ids: &[u64]) -> RunFile {
    let plan: Vec<String> = ids.iter().map(|id| format!("{id:010x}")).collect();
    let file = json!({
        "kiln_run": 1, "experiment": "x", "tables": {}, "plan": plan, "launches": [],
    });
    serde_json::from_value(file).unwrap()
}

#[test]
fn one_run_is_judged_by_its_value() {
    let once = losses(&[2.5]);
    assert_eq!(
        sentence(&once, "valid_loss>2.4"),
        "fail at 1 point: batch_size 8 (2.5, one run: no interval)"
    );
    assert_eq!(sentence(&once, "valid_loss>2.5"), "pass");
    assert_eq!(
        sentence(&once, "valid_loss>=2.5"),
        "fail at 1 point: batch_size 8 (2.5, one run: no interval)"
    );
    assert_eq!(sentence(&once, "valid_loss<2.4"), "pass");
}

#[test]
fn the_interval_of_the_mean_decides_over_repeats() {
    // 2.5 ± 4.302653 * 0.1 / sqrt(3)
    let three = losses(&[2.4, 2.5, 2.6]);
    let measured = "batch_size 8 (2.5, 95 % interval 2.2516 to 2.7484, n 3";
    for beyond in ["valid_loss>2.25", "valid_loss<2.75"] {
        assert_eq!(
            sentence(&three, beyond),
            format!("fail at 1 point: {measured})")
        );
    }
    for within in ["valid_loss>2.75", "valid_loss<2.25"] {
        assert_eq!(sentence(&three, within), "pass");
    }
    // The mean alone would decide these.
    for straddling in ["valid_loss>2.4", "valid_loss>2.6", "valid_loss<2.6"] {
        assert_eq!(
            sentence(&three, straddling),
            format!("cannot tell at 1 point: {measured}; the interval contains the bound)")
        );
    }
    // 0.1 + 0.1 + 0.1 is above 0.3; a mean of equal values is not beyond them.
    assert_eq!(sentence(&losses(&[0.1; 3]), "valid_loss>0.1"), "pass");
}

#[test]
fn a_run_without_the_number_leaves_the_gate_open_unless_the_others_fail_it() {
    let mut empty = with_loss(2, None);
    empty.notes = Some("valid_loss: no evaluation, as `measure` says".to_owned());
    let found = table(&[], vec![(with_loss(1, Some(2.5)), &[]), (empty, &[])]);
    assert_eq!(
        sentence(&found, "valid_loss>2.6"),
        "cannot tell at 1 point: all trials (2.5, one run: no interval; 1 of 2 completed trials has \
         no `valid_loss`: no evaluation, as `measure` says)"
    );
    assert!(sentence(&found, "valid_loss>2.4").starts_with("fail at 1 point: all trials (2.5"));
    assert_eq!(
        sentence(&found, "mfu<0.4"),
        "cannot tell at 1 point: all trials (2 of 2 completed trials have no `mfu`)"
    );
}

#[test]
fn the_note_of_a_measure_may_stand_under_the_column_that_it_is_made_of() {
    let noted = |notes: &str| TrialRow {
        notes: Some(notes.to_owned()),
        samples_per_second: None,
        ..row(1, 1.0)
    };
    let told =
        |notes: &str, condition: &str| sentence(&table(&[], vec![(noted(notes), &[])]), condition);
    let short = told("window_seconds: only 2 steps", "samples_per_second<1000");
    assert!(
        short.ends_with("has no `samples_per_second`: only 2 steps)"),
        "{short}"
    );
    let memory = told("peak_nvml_used_bytes: not read", "peak_memory_bytes>1GiB");
    assert!(
        memory.ends_with("has no `peak_memory_bytes`: not read)"),
        "{memory}"
    );
}

#[test]
fn a_point_with_failed_trials_passes_no_gate() {
    let failed = TrialRow {
        outcome: Outcome::Failed,
        ..with_loss(3, None)
    };
    let rows = vec![
        (with_loss(1, Some(2.0)), &["8"][..]),
        (with_loss(2, Some(2.0)), &["16"]),
        (failed, &["16"]),
    ];
    let found = table(&["train.batch_size"], rows);
    let why = "1 of 2 trials did not complete: 1 failed";
    assert_eq!(
        sentence(&found, "valid_loss>2.6"),
        format!("cannot tell at 1 point: batch_size 16 (2, one run: no interval; {why})")
    );
    assert_eq!(
        sentence(&found, "not-completed"),
        format!("fail at 1 point: batch_size 16 ({why})")
    );
    let sound = TrialTable {
        rows: found.rows[..2].to_vec(),
        ..table(&["train.batch_size"], Vec::new())
    };
    assert_eq!(sentence(&sound, "not-completed"), "pass");
}

#[test]
fn planned_trials_that_have_not_ended_pass_no_gate() {
    let (once, planned) = (losses(&[2.0]), run_of(&[1, 2, 3]));
    let told = |table: &TrialTable, run: &RunFile, condition: &str, is_best: bool| {
        let subject = Subject {
            run: Some(run),
            ..Subject::new(table, "x/trials.csv")
        };
        sentence_of(&[subject], condition, is_best)
    };
    let why = "2 of 3 planned trials have not ended";
    assert_eq!(
        told(&once, &planned, "valid_loss>2.6", false),
        format!("cannot tell: {why}")
    );
    assert_eq!(
        told(&once, &planned, "not-completed", false),
        format!("fail: {why}")
    );
    // Another point may still become the best.
    assert_eq!(
        told(&once, &planned, "valid_loss>2.6", true),
        format!("cannot tell: {why}")
    );
    // A point and the run.
    assert_eq!(
        told(&once, &planned, "valid_loss>1.5", false),
        "fail at 1 point: batch_size 8 (2, one run: no interval)"
    );
    let failed = TrialRow {
        outcome: Outcome::Failed,
        ..with_loss(1, None)
    };
    let failed = table(&["train.batch_size"], vec![(failed, &["8"][..])]);
    assert_eq!(
        told(&failed, &planned, "not-completed", false),
        format!(
            "fail at 1 point: batch_size 8 (1 of 1 trial did not complete: 1 failed); and {why}"
        )
    );
    let whole = run_of(&[1]);
    assert_eq!(told(&once, &whole, "valid_loss>2.6", false), "pass");
    assert_eq!(told(&once, &whole, "not-completed", false), "pass");
    // A table alone, without rows.
    let none = table(&[], Vec::new());
    for condition in ["valid_loss>2.6", "not-completed"] {
        assert_eq!(
            sentence(&none, condition),
            "cannot tell: no trial has ended"
        );
    }
}

#[test]
fn the_best_point_alone_can_be_judged() {
    let rows = vec![
        (with_loss(1, Some(3.0)), &["1"][..]),
        (with_loss(2, Some(2.0)), &["4"]),
    ];
    let found = table(&["data.num_workers"], rows);
    let told = |table: &TrialTable, condition: &str| {
        sentence_of(&[Subject::new(table, "x/trials.csv")], condition, true)
    };
    // The fastest point is that with four workers.
    assert_eq!(told(&found, "valid_loss>2.6"), "pass");
    assert!(sentence(&found, "valid_loss>2.6").starts_with("fail at 1 point: num_workers 1"));
    assert!(told(&found, "valid_loss<2.6").starts_with("fail at 1 point: num_workers 4"));
    let mut slow = found;
    for row in &mut slow.rows {
        row.fixed.samples_per_second = None;
    }
    let told = told(&slow, "valid_loss>2.6");
    assert!(
        told.starts_with("cannot tell: no point is marked as the best"),
        "{told}"
    );
}

#[test]
fn of_several_runs_each_point_has_the_name_of_its_run() {
    let (good, bad) = (losses(&[2.0]), losses(&[3.0]));
    let subjects = [
        Subject::new(&good, "results/a/trials.csv"),
        Subject::new(&bad, "results/b/trials.csv"),
    ];
    assert_eq!(
        sentence_of(&subjects, "valid_loss>2.6", false),
        "fail at 1 point: results/b: batch_size 8 (3, one run: no interval)"
    );
    let conditions = conditions(&["valid_loss>2.6", "samples_per_second<1"]);
    let bounds = Bounds::of(&subjects, &conditions, false).unwrap();
    let answers = |run: usize| -> Vec<Value> {
        let entries = bounds.json(run).into_iter();
        entries.map(|entry| entry["answer"].clone()).collect()
    };
    assert_eq!(answers(0), ["pass", "pass"]);
    assert_eq!(answers(1), ["fail", "pass"]);
}

#[test]
fn programs_get_the_numbers_of_each_point() {
    let three = losses(&[2.4, 2.5, 2.6]);
    let conditions = conditions(&["valid_loss>2.4"]);
    let bounds = Bounds::of(&[Subject::new(&three, "x")], &conditions, false).unwrap();
    let entries = bounds.json(0);
    let [entry] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert_eq!(entry["condition"], "valid_loss>2.4");
    assert_eq!(entry["axes"], json!({"train.batch_size": "8"}));
    assert_eq!(entry["answer"], "cannot-tell");
    assert_eq!(entry["n"], 3);
    assert_eq!(entry["reason"], "the interval contains the bound");
    let number = |key: &str| entry[key].as_f64().unwrap();
    assert!((number("value") - 2.5).abs() < 1e-9);
    assert!((number("low") - 2.251_586).abs() < 1e-4, "{entry}");
    assert!((number("high") - 2.748_414).abs() < 1e-4, "{entry}");
}

#[test]
fn an_unknown_column_is_refused_with_the_nearest_one() {
    let mut found = losses(&[2.0]);
    found.metrics = vec!["metric.score".to_owned()];
    let refused = |condition: &str| {
        let conditions = conditions(&[condition]);
        let bounds = Bounds::of(&[Subject::new(&found, "x")], &conditions, false);
        bounds.err().unwrap_or_default()
    };
    for (condition, near) in [
        (
            "valid_los>2",
            "`valid_los` is not a number of a point; did you mean `valid_loss`?",
        ),
        (
            "loss>2",
            "`loss` is not a number of a point; did you mean `train_loss`?",
        ),
        (
            "score>2",
            "`score` is not a number of a point; did you mean `metric.score`?",
        ),
    ] {
        let told = refused(condition);
        assert!(
            told.contains(near) && told.ends_with("`metric.score`"),
            "{told}"
        );
    }
    assert_eq!(refused("metric.score>2"), "");
}

#[test]
fn a_command_that_resumed_has_no_rate_to_judge_and_a_training_that_resumed_has() {
    let of = |notes: Option<String>, resumed_at_step| {
        let row = TrialRow {
            notes,
            resumed_at_step,
            seconds_to_target: Some(9.0),
            ..row(1, 100.0)
        };
        table(&["a.b"], vec![(row, &["8"][..])])
    };
    let note = format!("{}: {}", ResumedCommand::COLUMN, ResumedCommand::TEXT);
    let (command, training) = (of(Some(note), None), of(None, Some(5)));
    for condition in ["samples_per_second>50", "seconds_to_target>5"] {
        let told = sentence(&command, condition);
        assert!(told.contains(": the trial was resumed"), "{told}");
        let told = sentence(&training, condition);
        assert!(told.starts_with("fail at 1 point"), "{told}");
    }
}
