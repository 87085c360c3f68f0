//! `kiln ls`: every run with its state.

use std::{fs, process::Command};

use kiln_core::record::lock::lock_to_remove;
use serde_json::Value;

use crate::scripted_child::{Ended, Place, wait_until};

fn list(place: &Place) -> Vec<Value> {
    let ended = Ended::of(place.kiln(&["ls", "--json"]).output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn an_experiment_kept_on_another_disk_behind_a_link_is_listed() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let elsewhere = place.path("elsewhere");
    fs::rename(place.path("results/x"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, place.path("results/x")).unwrap();
    assert_eq!(list(&place).len(), 1);
    std::os::unix::fs::symlink("x", place.path("results/alias")).unwrap();
    assert_eq!(list(&place).len(), 1, "a second name of one that is here");
    let mistyped = Ended::of(
        place
            .kiln(&["ls"])
            .env("KILN_BEAT_SECONDS", "abc")
            .output()
            .unwrap(),
    );
    assert!(
        mistyped.status == Some(2) && mistyped.stderr.contains("KILN_BEAT_SECONDS=abc"),
        "{mistyped:?}"
    );
}

#[test]
fn what_a_switch_of_branches_leaves_of_a_run_is_no_run_and_is_not_added_to_git() {
    let place = Place::with("train: {steps: 10}");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let who = ["-c", "user.name=x", "-c", "user.email=x@example.com"];
        let output = git
            .current_dir(place.path(""))
            .args(who)
            .args(arguments)
            .output();
        let ended = Ended::of(output.unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        ended.stdout
    };
    let kiln = |words: &[&str]| Ended::of(place.kiln(words).output().unwrap());
    git(&["init", "-q"]);
    git(&["add", "x.yaml"]);
    git(&["commit", "-q", "-m", "first"]);
    git(&["checkout", "-q", "-b", "other"]);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let name = fs::read_link(place.latest()).unwrap();
    let run = format!("results/x/{}", name.display());
    git(&["add", "results"]);
    git(&["commit", "-q", "-m", "results"]);
    for local in ["samples.csv", ".reserve"] {
        fs::write(place.path(&format!("{run}/{local}")), "local").unwrap();
    }
    git(&["checkout", "-q", "-"]);
    assert!(place.path(&run).join("trials").is_dir());
    let added = git(&["add", "-A", "--dry-run"]);
    assert!(!added.contains("results/"), "{added}");

    assert_eq!(list(&place).len(), 0);
    let said = kiln(&["ls"]).stderr;
    assert!(
        said.contains(&format!("{run}: no record of a run is here")),
        "{said}"
    );
    for named in [run.as_str(), "results/x/latest"] {
        let refused = kiln(&["rm", named, "--yes"]);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("another branch"), "{refused:?}");
    }
    let name = name.display().to_string();
    for named in [run.as_str(), "results/x/latest", "latest", "x", &name] {
        let refused = kiln(&["report", named]);
        assert!(
            refused.status == Some(2)
                && refused
                    .stderr
                    .contains(&format!("{run}: no record of a run is here")),
            "{named}: {refused:?}"
        );
    }
    let refused = kiln(&["report"]);
    assert!(refused.stderr.contains("another branch"), "{refused:?}");
    assert!(place.path(&run).join("trials").is_dir());
    let ended = place.run("completes", &[]);
    assert_eq!(
        (ended.status, list(&place).len()),
        (Some(0), 1),
        "{ended:?}"
    );
}

#[test]
fn an_empty_place_has_no_runs() {
    let place = Place::with("");
    let ended = Ended::of(place.kiln(&["ls"]).output().unwrap());
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (
            Some(0),
            "no runs under results; `kiln run FILE` creates one\n"
        )
    );
}

#[test]
fn a_named_folder_that_is_none_is_refused_and_an_empty_one_is_not() {
    let place = Place::with("");
    let ls = |words: &[&str]| {
        let words = [&["ls"], words].concat();
        Ended::of(place.kiln(&words).output().unwrap())
    };
    for (folder, words) in [
        (&["nodir"][..], "nodir: there is no such folder"),
        (&["--results", "nodir"], "nodir: there is no such folder"),
        (&["x.yaml"], "x.yaml: this is not a folder"),
    ] {
        let refused = ls(folder);
        assert_eq!(
            (refused.status, refused.stdout.as_str()),
            (Some(2), ""),
            "{refused:?}"
        );
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    fs::create_dir(place.path("empty")).unwrap();
    assert_eq!(ls(&["empty"]).status, Some(0));
}

#[test]
fn runs_are_finished_resumable_abandoned_or_running() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    kiln.env("SCRIPTED_CHILD_1", "fails")
        .env("SCRIPTED_CHILD_2", "is_killed")
        .output()
        .unwrap();
    let runs = list(&place);
    let facts = |run: &Value| {
        (
            run["state"].as_str().unwrap().to_owned(),
            run["trials"].clone(),
            run["done"].clone(),
            run["failed"].clone(),
        )
    };
    assert_eq!(
        facts(&runs[0]),
        ("resumable".into(), 2.into(), 1.into(), 1.into())
    );
    assert!(
        runs[0]["size_bytes"].as_u64().unwrap() > 1000
            && runs[0]["age_seconds"].as_f64().unwrap() < 600.0
    );
    place.run("completes", &["--fresh"]);
    let states: Vec<String> = list(&place).iter().map(|run| facts(run).0).collect();
    assert_eq!(states, ["finished", "abandoned"]);
    let mut running = place
        .kiln(&["run", "x.yaml", "--fresh"])
        .env("SCRIPTED_CHILD", "waits")
        .spawn()
        .unwrap();
    wait_until("the third run has a trial", || {
        place.runs() == 3 && !place.attempts().is_empty()
    });
    let runs = list(&place);
    assert_eq!(runs[0]["state"], "running");
    assert!(
        runs[0]["note"]
            .as_str()
            .unwrap()
            .contains(&format!("process {}", running.id()))
    );
    place.release();
    assert!(running.wait().unwrap().success());
    let table = Ended::of(place.kiln(&["ls"]).output().unwrap()).stdout;
    assert!(
        table.lines().next().unwrap().starts_with(" experiment") && table.contains("2/2"),
        "{table}"
    );
}

#[test]
fn runs_of_all_experiments_are_listed_newest_first_and_a_pipe_gets_all_columns() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let short = Ended::of(place.kiln(&["ls"]).output().unwrap()).stdout;
    let best = short.lines().next().unwrap();
    assert!(
        best.contains("best") && !best.contains("failed") && short.contains(" samples/s"),
        "{short}"
    );
    let name = "a-name-of-28-letters-in-all-";
    let file = fs::read_to_string(place.path("x.yaml")).unwrap();
    fs::write(
        place.path("y.yaml"),
        file.replace("name: x", &format!("name: {name}")),
    )
    .unwrap();
    place
        .kiln(&["run", "y.yaml"])
        .env("SCRIPTED_CHILD", "completes")
        .output()
        .unwrap();
    place.run("completes", &["--fresh"]);
    let text = |arguments: &[&str]| {
        let arguments = [&["ls"], arguments].concat();
        Ended::of(place.kiln(&arguments).output().unwrap()).stdout
    };
    let all = text(&[]);
    assert!(all.lines().any(|line| line.chars().count() > 80), "{all}");
    let head: Vec<&str> = all.lines().next().unwrap().split_whitespace().collect();
    let whole = ["experiment", "run", "state", "done", "age", "best", "size"];
    assert_eq!(head, whole, "{all}");
    let names: Vec<&str> = all
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    // The clock of a run's name has seconds.
    assert_eq!(names.len(), 3, "{all}");
    assert_eq!(names.iter().filter(|found| **found == "x").count(), 2);
    assert!(names.contains(&name), "{all}");
    let none = Ended::of(place.kiln(&["ls", "--limit", "0"]).output().unwrap());
    assert_eq!(none.status, Some(2), "{none:?}");
    let one = text(&["--limit", "1"]);
    assert!(one.contains("and 2 older runs"), "{one}");
    let json: Vec<Value> = serde_json::from_str(&text(&["--json", "--limit", "2"])).unwrap();
    assert_eq!(json.len(), 2);
    for run in &json {
        let folder = place.path(run["folder"].as_str().unwrap());
        assert!(folder.join("run.json").is_file(), "{run}");
        assert_eq!(run["objective"], "samples_per_second", "{run}");
        let value = run["value"].as_f64().unwrap();
        assert!(
            value > 0.0 && run["best"].as_str().unwrap().ends_with(" samples/s"),
            "{run}"
        );
    }
}

#[test]
fn an_experiment_is_listed_alone_by_its_name_or_its_folder() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    place.run("completes", &["--fresh"]);
    fs::create_dir_all(place.path("results/y/20260101T000000Z-a")).unwrap();
    let ls = |words: &[&str]| {
        let words = [&["ls", "--json"], words].concat();
        let ended = Ended::of(place.kiln(&words).output().unwrap());
        let runs: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let of = |run: &Value| run["experiment"].as_str().unwrap_or_default().to_owned();
        runs.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(ls(&[]).len(), 3);
    for named in ["x", "results/x", "results/x/"] {
        assert_eq!(ls(&[named]), ["x", "x"], "{named}");
    }
    assert_eq!(ls(&["y"]), ["y"]);
    // A folder without runs does not hide the experiment that reads it.
    fs::create_dir(place.path("x")).unwrap();
    assert_eq!(ls(&["x"]), ["x", "x"]);
}

#[test]
fn the_names_for_a_shell_are_plain_and_bash_completes_them() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    fs::create_dir_all(place.path("results/$(touch gone)/20260101T000000Z-a;b")).unwrap();
    let names = Ended::of(place.kiln(&["ls", "--names"]).output().unwrap()).stdout;
    let run = fs::read_link(place.latest()).unwrap();
    assert_eq!(names, format!("latest\nx\n{}\n", run.display()));
    let script = "eval \"$(kiln completions bash)\"; COMP_WORDS=(kiln rm la); COMP_CWORD=2; \
                  COMP_LINE='kiln rm la'; COMP_POINT=10; _kiln_with_runs kiln la rm; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_kiln"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("bash")
        .args(["-c", script])
        .current_dir(place.path("."))
        .env("PATH", path)
        .output()
        .unwrap();
    let completed = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(completed.lines().any(|line| line == "latest"), "{output:?}");
    assert!(!place.path("gone").exists());
}

#[test]
fn a_run_that_cannot_be_read_is_listed_with_its_reason() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    fs::write(place.latest().join("run.json"), "{").unwrap();
    let runs = list(&place);
    assert_eq!(runs[0]["state"], "unreadable");
    assert!(runs[0]["note"].as_str().unwrap().contains("run.json"));
}

#[test]
fn a_run_that_lost_its_run_file_is_listed_and_is_not_passed_over_by_the_next() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    fs::remove_file(place.latest().join("run.json")).unwrap();
    let runs = list(&place);
    assert_eq!((runs.len(), &runs[0]["state"]), (1, &"unreadable".into()));
    assert!(
        runs[0]["note"].as_str().unwrap().contains("run.json"),
        "{runs:?}"
    );
    let refused = place.run("completes", &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("run.json") && refused.stderr.contains("--fresh"),
        "{refused:?}"
    );
    assert_eq!(place.run("completes", &["--fresh"]).status, Some(0));
    assert_eq!(list(&place).len(), 2);
}

#[test]
fn a_folder_of_data_does_not_hide_the_run_of_its_name() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    fs::create_dir(place.path("x")).unwrap();
    let kiln = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap());
    let run = fs::read_link(place.latest()).unwrap();
    let shown = format!("results/x/{}", run.display());
    for arguments in [&["report", "x"][..], &["watch", "x", "--once"]] {
        let found = kiln(arguments);
        assert_eq!(found.status, Some(0), "{found:?}");
        assert!(found.stdout.contains(&shown), "{found:?}");
    }
    fs::create_dir(place.path("y")).unwrap();
    for arguments in [&["report", "y"][..], &["watch", "y", "--once"]] {
        let refused = kiln(arguments);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        assert!(refused.stderr.starts_with("y: "), "{refused:?}");
    }
}

#[test]
fn a_finished_run_is_finished_while_a_command_removes_runs_of_its_experiment() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let removes = lock_to_remove(&place.path("results"), "x", std::process::id(), "today")
        .unwrap()
        .unwrap();
    assert_eq!(list(&place)[0]["state"], "finished");
    let watched = place.kiln(&["watch", "x", "--once"]).output().unwrap();
    let watched = Ended::of(watched).stdout;
    assert!(watched.contains("launch 1, finished"), "{watched}");
    let refused = place.run("completes", &["--fresh"]);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("runs of experiment `x` are being removed by process"),
        "{refused:?}"
    );
    drop(removes);
}
