//! `kiln report --fail-on`: the exit status of bounds on the numbers of a run.

use serde_json::Value;

use crate::scripted_child::{Ended, Place};

fn report(place: &Place, arguments: &[&str]) -> Ended {
    let arguments = [&["report", "x"], arguments].concat();
    Ended::of(place.kiln(&arguments).output().unwrap())
}

/// A run of two points, each with a training loss of 2.25 and 64 samples per second.
fn completed() -> Place {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    place
}

#[test]
fn a_number_beyond_its_bound_fails_the_command() {
    let place = completed();
    let gate = |condition: &str, more: &[&str], status: i32, told: &str| {
        let ended = report(&place, &[&["--fail-on", condition], more].concat());
        assert_eq!(
            ended.status,
            Some(status),
            "{condition} {more:?}: {ended:?}"
        );
        assert!(ended.stderr.contains(told), "{condition}: {ended:?}");
        assert!(!ended.stdout.is_empty(), "{condition}: {ended:?}");
    };
    gate("train_loss>2.6", &[], 0, "gate train_loss>2.6: pass");
    gate(
        "samples_per_second<1e3",
        &[],
        1,
        "gate samples_per_second<1e3: fail at 2 points: size 8 (64, one run: no interval); size 16",
    );
    // Both points have one loss, by which they are ranked.
    gate(
        "samples_per_second<1e3",
        &["--best"],
        4,
        "cannot tell: no point is marked as the best: cannot tell which point has",
    );
    gate(
        "valid_loss>2.6",
        &[],
        4,
        "gate valid_loss>2.6: cannot tell at 2 points: size 8 (1 of 1 completed trial has no",
    );
    gate(
        "valid_loss>2.6",
        &["--cannot-tell", "pass"],
        0,
        "cannot tell",
    );
    gate(
        "valid_loss>2.6",
        &["--cannot-tell", "fail"],
        1,
        "cannot tell",
    );
    // A failure takes precedence over a doubt.
    gate(
        "valid_loss>2.6,train_loss>2",
        &[],
        1,
        "gate train_loss>2: fail",
    );
    gate(
        "not-completed",
        &["--format", "markdown"],
        0,
        "gate not-completed: pass",
    );
    gate(
        "train_loss>2",
        &["--html", "x.html"],
        1,
        "gate train_loss>2: fail",
    );
    assert!(place.path("x.html").is_file());
    assert_eq!(report(&place, &[]).status, Some(0));
}

#[test]
fn programs_read_the_answers_of_the_gates() {
    let place = completed();
    let told = |arguments: &[&str]| -> Value {
        let ended = report(&place, &[arguments, &["--format", "json"]].concat());
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let gates = told(&["--fail-on", "train_loss>2,valid_loss>2"])["gates"].clone();
    let answers: Vec<&str> = gates
        .as_array()
        .unwrap()
        .iter()
        .map(|gate| gate["answer"].as_str().unwrap())
        .collect();
    assert_eq!(answers, ["fail", "fail", "cannot-tell", "cannot-tell"]);
    assert_eq!(gates[0]["condition"], "train_loss>2");
    assert_eq!(gates[0]["value"], 2.25);
    assert_eq!(gates[0]["axes"]["model.size"], "8");
    assert!(told(&[]).get("gates").is_none());
}

#[test]
fn a_trial_that_failed_fails_the_gate_about_it() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("fails", &[]).status, Some(1));
    let ended = report(&place, &["--fail-on", "not-completed,train_loss>2.6"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let open = report(&place, &["--fail-on", "train_loss>2.6"]);
    assert_eq!(open.status, Some(4), "{open:?}");
    let why = "1 of 1 trial did not complete: 1 failed";
    assert!(
        ended.stderr.contains(why) && open.stderr.contains(why),
        "{ended:?} {open:?}"
    );
}

#[test]
fn a_condition_that_cannot_be_judged_is_refused() {
    let place = completed();
    for (arguments, told) in [
        (
            &["--fail-on", "train_los>2"][..],
            "did you mean `train_loss`?",
        ),
        (&["--fail-on", "slower"], "is not a condition"),
        (&["--fail-on", "train_loss>high"], "`high` is not a number"),
        (&["--best"], "--fail-on"),
    ] {
        let ended = report(&place, arguments);
        assert!(
            ended.status == Some(2) && ended.stdout.is_empty() && ended.stderr.contains(told),
            "{arguments:?}: {ended:?}"
        );
    }
}
