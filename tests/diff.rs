//! `kiln diff` as a user sees it: on runs, committed runs, tables alone and runs that go on.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::scripted_child::{Ended, Place};

fn diff(place: &Place, arguments: &[&str]) -> Ended {
    let words = [&["diff"], arguments].concat();
    Ended::of(place.kiln(&words).output().unwrap())
}

fn git(place: &Place, arguments: &[&str]) {
    let who = [
        "-c",
        "user.name=k",
        "-c",
        "user.email=k@example.org",
        "-c",
        "commit.gpgsign=false",
    ];
    let mut git = Command::new("git");
    git.args(who).args(arguments).current_dir(place.path("."));
    assert!(git.output().unwrap().status.success(), "git {arguments:?}");
}

#[test]
fn two_runs_are_named_in_every_way_and_what_was_changed_is_told_first() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    place.run("completes", &["--fresh", "--set", "train.steps=20"]);
    git(&place, &["init", "-q"]);
    git(&place, &["add", "-f", "results"]);
    git(&place, &["commit", "-qm", "one"]);
    let older = place.path("results/x").read_dir().unwrap();
    let mut runs: Vec<String> = older
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    runs.sort();
    let folder = format!("results/x/{}", runs[0]);
    let table = format!("{folder}/trials.csv");
    let revision = format!("HEAD:{folder}");
    for base in ["x~1", "latest~1", &runs[0], &folder, &table, &revision] {
        for new in ["x", "results/x/latest"] {
            let ended = diff(&place, &[base, new]);
            assert_eq!(ended.status, Some(0), "{base} {new}: {ended:?}");
            assert!(
                ended
                    .stdout
                    .contains("settings (A → B)\n  train.steps  10 → 20\n"),
                "{base} {new}: {ended:?}"
            );
        }
    }
    let json: Value =
        serde_json::from_str(&diff(&place, &["x~1", "x", "--format", "json"]).stdout).unwrap();
    assert_eq!(
        json["differences"][0],
        serde_json::json!({"section": "settings", "key": "train.steps", "a": "10", "b": "20"})
    );
    let csv = diff(&place, &["x~1", "x", "--format", "csv"]).stdout;
    assert!(
        csv.starts_with("section,key,state,a,b\nsettings,train.steps,different,10,20\n"),
        "{csv}"
    );
    let markdown = diff(&place, &["x~1", "x", "--format", "markdown"]).stdout;
    assert!(markdown.contains("| train.steps | 10 | 20 |"), "{markdown}");
    let unknown = diff(&place, &["x~2", "x"]);
    assert!(
        unknown.status == Some(2) && unknown.stderr.contains("there are only 2 runs of `x`"),
        "{unknown:?}"
    );
}

#[test]
fn the_status_tells_equal_different_and_unknown_apart_only_on_request() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    place.run("completes", &["--fresh", "--set", "train.batch_size=4"]);
    assert_eq!(diff(&place, &["x~1", "x"]).status, Some(0));
    assert_eq!(diff(&place, &["x~1", "x", "--exit-code"]).status, Some(1));
    // Where libtorch and the sums of data are not recorded, a run is not known to equal itself.
    let same = diff(&place, &["x", "x", "--exit-code"]);
    assert_eq!(same.status, Some(4), "{same:?}");
    assert!(
        same.stdout
            .contains("nothing that both runs recorded differs; ")
            && same.stdout.contains("  libraries.libtorch"),
        "{same:?}"
    );
}

#[test]
fn a_record_that_is_absent_or_broken_is_unknown_and_never_a_panic() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let run = place.latest();
    let copy = |name: &str, files: &[(&str, Option<&str>)]| {
        let folder = place.path(name);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in files {
            match text {
                Some(text) => fs::write(folder.join(file), text).unwrap(),
                None => {
                    fs::copy(run.join(file), folder.join(file)).unwrap();
                }
            }
        }
    };
    let trials = ("trials.csv", None);
    copy("alone", &[trials]);
    copy(
        "broken",
        &[
            trials,
            ("run.json", Some("{")),
            ("experiment.yaml", Some("[")),
        ],
    );
    copy(
        "foreign",
        &[
            trials,
            ("experiment.yaml", Some("extends: /etc/passwd\nname: [1]\n")),
        ],
    );
    copy("begun", &[("run.json", None), ("experiment.yaml", None)]);
    for name in ["alone", "broken", "foreign"] {
        let ended = diff(&place, &["x", name]);
        assert_eq!(ended.status, Some(0), "{name}: {ended:?}");
        assert!(
            ended.stdout.contains("  run.json ") && !ended.stdout.contains("passwd\n  root"),
            "{name}: {ended:?}"
        );
    }
    // A run that has no row yet.
    let begun = diff(&place, &["x", "begun"]);
    assert_eq!(begun.status, Some(0), "{begun:?}");
    assert!(
        begun.stdout.contains("equal: ") && !begun.stdout.contains("settings (A → B)"),
        "{begun:?}"
    );
    // The same by the folder of its experiment.
    copy(
        "results/y/20990101T000000Z-begun",
        &[("run.json", None), ("experiment.yaml", None)],
    );
    for name in ["y", "results/y"] {
        let begun = diff(&place, &["x", name]);
        assert!(
            begun.status == Some(0) && begun.stdout.contains("Z-begun\n"),
            "{name}: {begun:?}"
        );
    }
    copy("newer", &[trials, ("run.json", Some("{\"kiln_run\": 99}"))]);
    let newer = diff(&place, &["x", "newer"]);
    assert!(
        newer.status == Some(0) && newer.stderr.contains("newer"),
        "{newer:?}"
    );
    let nothing = diff(&place, &["x", "nowhere"]);
    assert!(
        nothing.status == Some(2) && nothing.stderr.contains("there is no such file or folder"),
        "{nothing:?}"
    );
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let empty = diff(&place, &["x", "empty"]);
    assert!(
        empty.status == Some(2) && empty.stderr.contains("holds no `trials.csv`"),
        "{empty:?}"
    );
}

#[test]
fn committed_runs_of_two_machines_differ_in_their_processors() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let run = |name: &str| results.join(name).join("latest").display().to_string();
    let ended = Ended::of(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args([
                "diff",
                &run("quickstart-2core-xeon"),
                &run("quickstart-2core-epyc"),
            ])
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for line in [
        "settings (A → B)\n  sweep.repeats  2 → 3\n",
        "  machine.cpu.model     Intel(R) Xeon(R) Processor → AMD EPYC\n",
        "  flags.tf32_matmul               by A (B: false)\n",
    ] {
        assert!(ended.stdout.contains(line), "{line}: {ended:?}");
    }
    assert!(!ended.stdout.contains("machine.memory.total"), "{ended:?}");
}
