//! `kiln report --csv`: one table of several runs on standard output, for other programs.

use std::fs;

use crate::scripted_child::{Ended, Place};

fn report(place: &Place, arguments: &[&str]) -> Ended {
    let arguments = [&["report"], arguments].concat();
    Ended::of(place.kiln(&arguments).output().unwrap())
}

/// The lines of the table, each in its cells.
fn cells(ended: &Ended) -> Vec<Vec<&str>> {
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let lines = ended.stdout.lines();
    lines.map(|line| line.split(',').collect()).collect()
}

#[test]
fn two_runs_stand_in_one_table_with_the_names_of_their_folders() {
    let sweep = "train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}, repeats: 2}";
    let place = Place::with(sweep);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let fresh = place.run("completes", &["--fresh"]);
    assert_eq!(fresh.status, Some(0), "{}", fresh.stderr);
    let arguments = ["x", "x~1", "--csv", "trials", "--columns", "outcome"];
    let ended = report(&place, &arguments);
    let lines = cells(&ended);
    let head = [
        "experiment",
        "run",
        "trial",
        "attempt",
        "seed",
        "model.size",
        "outcome",
    ];
    assert_eq!((&lines[0][..], lines.len()), (&head[..], 9), "{lines:?}");
    let newest = fs::canonicalize(place.latest()).unwrap();
    let newest = newest.file_name().unwrap().to_str().unwrap();
    assert!(lines[1..5].iter().all(|line| line[..2] == ["x", newest]));
    assert!(lines[5..].iter().all(|line| line[1] != newest));
    let mut of_seed = lines[1..5].iter().map(|line| line[4]);
    assert_eq!(of_seed.clone().filter(|seed| *seed == "1").count(), 2);
    assert!(of_seed.any(|seed| seed == "2"));
    let points = report(&place, &["x", "--csv", "points", "--columns", "others"]);
    let lines = cells(&points);
    assert_eq!(lines[0], ["experiment", "run", "n", "model.size", "others"]);
    assert_eq!(lines[1], ["x", newest, "2", "8", ""]);
    assert_eq!(lines.len(), 3);
    // The scripted child writes no steps: the table has its head, and it is said.
    let steps = report(&place, &["x", "--csv", "steps"]);
    assert_eq!(cells(&steps).len(), 1);
    assert!(
        steps
            .stderr
            .contains("`steps.csv` of 4 of 4 trials is not here"),
        "{}",
        steps.stderr
    );
}

#[test]
fn the_table_is_refused_beside_other_forms_of_the_report() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let refused = |arguments: &[&str], told: &str| {
        let ended = report(&place, arguments);
        assert!(
            ended.status == Some(2) && ended.stdout.is_empty() && ended.stderr.contains(told),
            "{arguments:?}: {ended:?}"
        );
    };
    let others: [&[&str]; 6] = [
        &["--html", "x.html"],
        &["--svg", "pictures"],
        &["--format", "json"],
        &["--json"],
        &["--write"],
        &["--fail-on", "valid_loss>2.6"],
    ];
    for other in others {
        let both = [&["--csv", "trials"], other].concat();
        refused(&both, "cannot be used with");
        // Clap does not ask for `--csv` beside an option that excludes it.
        let columns = [&["--columns", "trial"], other].concat();
        refused(&columns, "cannot be used with");
    }
    refused(&["--columns", "trial"], "--csv <ROWS>");
    refused(
        &["--csv", "trials", "--columns", "valid_los"],
        "`valid_los` is not a column of `--csv trials`; did you mean `valid_loss`?",
    );
    refused(&["x", "x", "--csv", "trials"], "is named twice");
}
