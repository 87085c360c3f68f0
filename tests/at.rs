//! `kiln run --at` and `kiln init --from`: the values of one trial of a run in place of a sweep.

use std::{fs, path::Path, process::Command};

use kiln_core::record::{TableRow, TrialTable};
use serde_json::Value;

use crate::continuation::{LONGER, Place, record};

const RATE: &str = "train.optimizer.learning_rate";

/// The last row of each trial of a run.
fn rows(run: &Path) -> Vec<TableRow> {
    let table = TrialTable::read(&run.join("trials.csv")).unwrap();
    table.last_attempts().into_iter().cloned().collect()
}

/// The trial of the newest run with the lowest validation loss.
fn best(place: &Place) -> String {
    let rows = rows(&place.newest());
    let loss = |row: &&TableRow| row.fixed.valid_loss.unwrap();
    let best = rows.iter().min_by(|a, b| loss(a).total_cmp(&loss(b)));
    best.unwrap().fixed.trial.to_string()
}

/// The trial of the newest run with this learning rate.
fn with_rate(place: &Place, rate: f64) -> String {
    let rows = rows(&place.newest());
    let found = rows
        .iter()
        .find(|row| row.axes[0].parse::<f64>() == Ok(rate));
    found.unwrap().fixed.trial.to_string()
}

/// The ids that `kiln plan` says.
fn planned(place: &Place, arguments: &[&str]) -> Vec<String> {
    let ended = place.succeeds(&[&["plan", "--json"][..], arguments].concat());
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    let trials = plan["trials"].as_array().unwrap().iter();
    trials
        .map(|trial| trial["id"].as_str().unwrap().to_owned())
        .collect()
}

fn refused(place: &Place, arguments: &[&str]) -> String {
    let ended = place.kiln(arguments);
    assert_eq!(ended.status, Some(2), "{arguments:?}: {}", ended.stderr);
    ended.stderr
}

#[test]
fn the_best_point_goes_on_for_more_steps() {
    let place = Place::with_a_run();
    let best = best(&place);
    let command = ["run", "x.yaml", "--at", "x", "--continue", "x"];
    let ended = place.succeeds(&[&command[..], &LONGER].concat());
    let chosen = format!("`--at x`: using trial {best} (");
    assert!(
        ended.stderr.contains(&chosen)
            && ended
                .stderr
                .contains("), the point of the lowest validation loss"),
        "{}",
        ended.stderr
    );
    let newest = place.newest();
    let continues = record(&newest).continues;
    let origins: Vec<String> = continues
        .values()
        .map(|origin| format!("{} at step {}", origin.trial, origin.step))
        .collect();
    assert_eq!(origins, [format!("{best} at step 20")]);
    let rows = rows(&newest);
    assert_eq!((rows.len(), rows[0].fixed.steps), (1, Some(40)));
    let resolved = fs::read_to_string(newest.join("experiment.yaml")).unwrap();
    assert!(resolved.contains(&format!("# --at x:{best}")), "{resolved}");
    // The newest run has one point now, which the same name means.
    let again = planned(&place, &["x.yaml", "--at", "x"]);
    assert_eq!(again, [best]);
}

#[test]
fn the_best_point_of_a_committed_run_needs_no_trial() {
    let place = Place::with_a_run();
    let root = place.newest().join("../../..");
    for arguments in [
        &["init", "-q"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "one"],
    ] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=k", "-c", "user.email=k@example.org"])
            .args(["-c", "commit.gpgsign=false"])
            .args(arguments)
            .current_dir(&root);
        assert!(git.status().unwrap().success(), "git {arguments:?}");
    }
    let named = "HEAD:results/x/latest";
    let ended = place.succeeds(&["run", "x.yaml", "--dry-run", "--at", named]);
    let chosen = format!("`--at {named}`: using trial {} (", best(&place));
    assert!(ended.stderr.contains(&chosen), "{}", ended.stderr);
    for command in [
        &["evaluate", named][..],
        &["run", "x.yaml", "--continue", named],
    ] {
        let why = refused(&place, command);
        assert!(why.contains("weights of a run are not in git"), "{why}");
    }
}

#[test]
fn a_point_with_more_seeds_begins_with_the_trial_of_the_run() {
    let place = Place::with_a_run();
    let trial = with_rate(&place, 1.0e-2);
    let named = format!("x:{}", &trial[..6]);
    let at = ["x.yaml", "--at", &named];
    let ids = planned(&place, &[&at[..], &["--set", "sweep.repeats=4"]].concat());
    assert_eq!((ids.len(), &ids[0]), (4, &trial));
    assert_eq!(planned(&place, &at), [trial]);
    // The same command resumes its own run, in which the trial has another id.
    let longer = [&["run"][..], &at, &["--set", "train.steps=21"]].concat();
    place.succeeds(&longer);
    let again = place.succeeds(&longer);
    assert!(
        again.stderr.contains("already has its result"),
        "{}",
        again.stderr
    );
    assert_eq!(place.runs().len(), 2);
}

#[test]
fn the_hint_to_run_the_rest_names_the_trial_by_its_folder() {
    let place = Place::with_a_run();
    let best = best(&place);
    let folder = place.newest().file_name().unwrap().to_owned();
    let at = format!("results/x/{}:{best}", folder.to_string_lossy());
    let seeds = ["--set", "sweep.repeats=2"];
    let ids = planned(&place, &[&["x.yaml", "--at", "x"], &seeds[..]].concat());
    let first = ["run", "x.yaml", "--at", "x", "--only", &ids[1]];
    let ended = place.kiln(&[&first[..], &seeds].concat());
    let hint = format!("without `--only` to run them, with `--at {at}`");
    assert!(ended.stderr.contains(&hint), "{}", ended.stderr);
    place.succeeds(&[&["run", "x.yaml", "--at", &at], &seeds[..]].concat());
    assert_eq!(place.runs().len(), 2);
    assert_eq!(rows(&place.newest()).len(), 2);
}

#[test]
fn the_file_of_another_experiment_is_refused_with_the_key() {
    let place = Place::with_a_run();
    let trial = with_rate(&place, 1.0e-2);
    let named = format!("x:{trial}");
    let text = fs::read_to_string(place.newest().join("experiment.yaml")).unwrap();
    let file = |rate: &str| {
        let mut unswept = String::new();
        for line in text.lines().filter(|line| !line.contains("sweep:")) {
            let is_sweep = ["grid:", RATE, "repeats:", "order:"];
            let is_base = line.trim_start().starts_with("learning_rate:");
            match () {
                () if is_sweep.iter().any(|key| line.contains(key)) => {}
                () if is_base => unswept += &format!("    learning_rate: {rate}\n"),
                () => unswept += &format!("{line}\n"),
            }
        }
        place.write("other.yaml", &unswept);
    };
    let command = ["plan", "other.yaml", "--at", &named];
    file("0.5");
    let why = refused(&place, &command);
    for part in [
        format!("`{RATE}` is 0.5 and is not swept here"),
        format!("`--set {RATE}=0.01`"),
    ] {
        assert!(why.contains(&part), "{why}");
    }
    let set = format!("{RATE}=0.01");
    let arguments = [&command[1..], &["--set", &set]].concat();
    assert_eq!(planned(&place, &arguments), std::slice::from_ref(&trial));
    file("1.0e-2");
    assert_eq!(planned(&place, &command[1..]), [trial]);
}

#[test]
fn points_are_listed_with_their_values_where_none_is_the_best() {
    let place = Place::with_a_run();
    // No gradient is as long as either limit, so both train alike.
    let grid = "sweep.grid={train.optimizer.learning_rate: null, train.clip_norm: [1.0e3, 2.0e3]}";
    place.succeeds(&["run", "x.yaml", "--set", grid]);
    let why = refused(&place, &["plan", "x.yaml", "--at", "x"]);
    for row in rows(&place.newest()) {
        let line = format!("--at x:{}", row.fixed.trial);
        let value = format!("clip_norm {}", row.axes[0]);
        assert!(why.contains(&line) && why.contains(&value), "{why}");
    }
}

#[test]
fn a_written_file_of_a_trial_plans_that_trial_alone() {
    let place = Place::with_a_run();
    let trial = with_rate(&place, 1.0e-2);
    let ended = place.succeeds(&["init", "one.yaml", "--from", &format!("x:{trial}")]);
    assert!(ended.stdout.contains("wrote one.yaml"), "{}", ended.stdout);
    assert_eq!(planned(&place, &["one.yaml"]), std::slice::from_ref(&trial));
    let best = best(&place);
    place.succeeds(&["init", "best.yaml", "--from", "x"]);
    assert_eq!(planned(&place, &["best.yaml"]), [best]);
    // The record of the trial leads to both.
    let record = format!("results/x/latest/trials/{trial}/trial.yaml");
    let why = refused(&place, &["run", &record]);
    assert!(
        why.contains(&format!("--at results/x/latest:{trial}")) && !why.contains("unknown key"),
        "{why}"
    );
}
