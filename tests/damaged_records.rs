//! The record beside a table that is missing, damaged or changed: every reader says so.

use std::{fs, path::PathBuf, process::Command};

use crate::scripted_child::{Ended, Place};

fn kiln(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(place.kiln(arguments).output().unwrap())
}

/// Two runs of `x`, and a file of the newest.
fn two_runs(file: &str) -> (Place, PathBuf) {
    let place = Place::with("train: {steps: 10}");
    for _ in 0..2 {
        assert_eq!(place.run("completes", &["--fresh"]).status, Some(0));
    }
    let newest = fs::canonicalize(place.latest()).unwrap();
    (place, newest.join(file))
}

#[test]
fn a_run_without_its_record_is_told() {
    let (place, file) = two_runs("run.json");
    let told = |why: &str| {
        let ended = kiln(&place, &["report", "x"]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(
            ended.stderr.contains(why) && ended.stderr.contains("record of this run is not used"),
            "{ended:?}"
        );
    };
    let is_told = |named: &str| kiln(&place, &["report", named]).stderr.contains("not used");
    assert!(!is_told("x"));
    fs::remove_file(&file).unwrap();
    told("run.json: No such file");
    fs::create_dir(&file).unwrap();
    told("it is a folder, not a file");
    fs::remove_dir(&file).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    told("it is a FIFO, not a file");
    // A table alone is no run.
    let table = place.path("copy/trials.csv");
    fs::create_dir(place.path("copy")).unwrap();
    fs::copy(file.with_file_name("trials.csv"), &table).unwrap();
    assert!(!is_told("copy"));
}

#[test]
fn an_experiment_that_is_missing_or_damaged_is_not_called_the_same() {
    let (place, file) = two_runs("experiment.yaml");
    let same = kiln(&place, &["compare", "x~1", "x"]);
    assert!(!same.stdout.contains("experiment of new"), "{same:?}");
    for text in [None, Some("["), Some("a: {"), Some("")] {
        match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let reported = kiln(&place, &["report", "x"]);
        assert!(
            reported.stderr.contains("experiment.yaml: ")
                && reported
                    .stderr
                    .contains("experiment of this run is not used"),
            "{text:?}: {reported:?}"
        );
        let compared = kiln(&place, &["compare", "x~1", "x"]);
        assert!(
            compared
                .stdout
                .contains("\nthe experiment of new is not known: ")
                && !compared.stdout.contains("agree: experiment"),
            "{text:?}: {compared:?}"
        );
    }
}

#[test]
fn a_changed_experiment_is_told_and_not_reproduced() {
    let (place, file) = two_runs("experiment.yaml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("size: 8"), "{text}");
    fs::write(&file, text.replace("size: 8", "size: 9")).unwrap();
    for arguments in [&["report", "x"][..], &["compare", "x~1", "x"]] {
        let told = kiln(&place, arguments);
        assert!(
            told.stderr
                .contains("changed after the run was recorded (SHA-256 "),
            "{told:?}"
        );
    }
    let refused = kiln(&place, &["reproduce", "x"]);
    assert_eq!((refused.status, place.runs()), (Some(2), 2), "{refused:?}");
    assert!(
        refused.stderr.contains("restore the file") && refused.stderr.contains("--fresh"),
        "{refused:?}"
    );
    // A run that is older than the sum has nothing to compare with.
    let record = file.with_file_name("run.json");
    let mut run: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    run.as_object_mut().unwrap().remove("experiment_sha256");
    fs::write(&record, run.to_string()).unwrap();
    let old = kiln(&place, &["report", "x"]);
    assert!(!old.stderr.contains("changed after"), "{old:?}");
}

#[test]
fn a_row_of_another_machine_than_its_launch_is_told() {
    let (place, record) = two_runs("run.json");
    let told = |arguments: &[&str]| {
        let ended = kiln(&place, arguments);
        format!("{}{}", ended.stdout, ended.stderr).contains("is not that of the launch")
    };
    let readers = [
        &["report", "x"][..],
        &["compare", "x~1", "x"],
        &["ls", "--json"],
    ];
    assert!(!readers.iter().any(|arguments| told(arguments)));
    let mut run: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    run["launches"][0]["machine"]["cpu"]["processor"] = "Abacus 9000".into();
    fs::write(&record, run.to_string()).unwrap();
    for arguments in readers {
        assert!(told(arguments), "{arguments:?}");
    }
}

#[test]
fn the_line_ends_that_git_writes_are_no_change_of_an_experiment() {
    let (place, file) = two_runs("experiment.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace('\n', "\r\n")).unwrap();
    for arguments in [&["report", "x"][..], &["reproduce", "x", "--dry-run"]] {
        let told = kiln(&place, arguments);
        assert!(!told.stderr.contains("changed after"), "{told:?}");
    }
    let mixed = text.replace('\n', "\r\n").replace("size: 8", "size: 9");
    fs::write(&file, mixed).unwrap();
    let told = kiln(&place, &["report", "x"]);
    assert!(told.stderr.contains("changed after"), "{told:?}");
}

#[test]
fn a_byte_order_mark_is_no_change_of_a_run() {
    let (place, _) = two_runs("run.json");
    let before = kiln(&place, &["report", "x", "--json"]);
    for file in ["run.json", "experiment.yaml", "trials.csv"] {
        let file = place.latest().join(file);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("\u{feff}{text}")).unwrap();
    }
    let marked = kiln(&place, &["report", "x", "--json"]);
    assert_eq!(marked.stdout, before.stdout);
    assert_eq!(marked.stderr, before.stderr);
    let listed = kiln(&place, &["ls"]);
    assert!(!listed.stdout.contains("unreadable"), "{listed:?}");
    let resumed = place.run("completes", &[]);
    assert!(
        resumed.status == Some(0) && !resumed.stderr.contains("changed"),
        "{resumed:?}"
    );
    assert_eq!(place.runs(), 2);
}

#[test]
fn what_git_left_in_place_of_a_file_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    for name in ["run.json", "experiment.yaml", "trials.csv"] {
        let (place, file) = two_runs(name);
        let text = fs::read_to_string(&file).unwrap();
        let conflict = format!("<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> other\n");
        for (left, said) in [
            (pointer, "git lfs pull"),
            (conflict.as_str(), "merge conflict"),
        ] {
            fs::write(&file, left).unwrap();
            let told = kiln(&place, &["report", "results/x/latest"]);
            assert!(
                told.stderr.contains(said) && told.stderr.contains(name),
                "{name}: {told:?}"
            );
        }
    }
}

#[test]
fn a_file_that_is_needed_and_cannot_be_used_is_not_taken_for_missing() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    let (place, record) = two_runs("run.json");
    fs::write(&record, pointer).unwrap();
    let told = kiln(&place, &["reproduce", "x", "--dry-run"]).stderr;
    assert!(
        told.contains("data are unknown") && !told.contains("there is no"),
        "{told}"
    );
    fs::write(record.with_file_name("experiment.yaml"), pointer).unwrap();
    for arguments in [
        &["reproduce", "x", "--dry-run"][..],
        &["init", "new.yaml", "--from", "x"],
        &["compare", "--rerun", "x", "x"],
    ] {
        let refused = kiln(&place, arguments);
        let last = refused.stderr.trim_end().lines().last().unwrap();
        assert!(
            refused.status == Some(2)
                && last.contains("experiment.yaml: it is a pointer of Git LFS")
                && last.ends_with("this file has the settings of the run's trials"),
            "{arguments:?}: {refused:?}"
        );
    }
}

#[test]
fn a_row_with_a_value_that_the_sweep_does_not_have_is_refused() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}}");
    for _ in 0..2 {
        assert_eq!(place.run("completes", &["--fresh"]).status, Some(0));
    }
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    assert_eq!(text.matches(",completed,16,").count(), 1, "{text}");
    fs::write(&table, text.replace(",completed,16,", ",completed,99,")).unwrap();
    for arguments in [&["report", "x"][..], &["compare", "x~1", "x"]] {
        let refused = kiln(&place, arguments);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        let words =
            "`model.size` is `99`, and the sweep of the run's `experiment.yaml` has `8`, `16`";
        assert!(
            refused.stderr.contains("trials.csv:3: record 2: ") && refused.stderr.contains(words),
            "{refused:?}"
        );
    }
    // A table alone has no plan.
    let alone = place.path("copy/trials.csv");
    fs::create_dir(place.path("copy")).unwrap();
    fs::copy(&table, &alone).unwrap();
    assert_eq!(kiln(&place, &["report", "copy"]).status, Some(0));
}

#[test]
fn an_equal_number_in_another_form_is_the_same_point() {
    let swept = "train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}, repeats: 2}";
    let place = Place::with(swept);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    fs::write(
        &table,
        text.replacen(",completed,16,", ",completed,16.0,", 1),
    )
    .unwrap();
    let report = kiln(&place, &["report", "x", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let points = report["points"].as_array().unwrap().iter();
    let sizes: Vec<&str> = points
        .map(|point| point["axes"]["model.size"].as_str().unwrap())
        .collect();
    assert_eq!(sizes, ["8", "16"]);
    assert_eq!(kiln(&place, &["report", "x", "--write"]).status, Some(0));
    let summary = fs::read_to_string(place.latest().join("summary.csv")).unwrap();
    assert_eq!(summary.lines().count(), 3, "{summary}");
}

#[test]
fn a_column_that_somebody_added_is_told_and_makes_no_points() {
    let swept = "train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}, repeats: 2}";
    let place = Place::with(swept);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    let added = text.lines().enumerate().map(|(number, line)| match number {
        0 => format!("{line},train.note,vs. base\n"),
        number => format!("{line},{number},{number} %\n"),
    });
    fs::write(&table, added.collect::<String>()).unwrap();
    let ended = kiln(&place, &["report", "x", "--format", "json"]);
    let words = "not axes of the sweep, so these columns are not read: `vs. base`, `train.note`";
    assert!(ended.stderr.contains(words), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["points"].as_array().unwrap().len(), 2, "{ended:?}");
}

#[test]
fn a_table_that_lacks_an_axis_of_its_sweep_is_refused() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}}");
    for _ in 0..2 {
        assert_eq!(place.run("completes", &["--fresh"]).status, Some(0));
    }
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    fs::write(&table, text.replacen(",model.size,", ",size,", 1)).unwrap();
    for arguments in [&["report", "x"][..], &["compare", "x~1", "x"]] {
        let refused = kiln(&place, arguments);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        let words = "trials.csv:1:1: there is no column `model.size`, which is an axis";
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    // The run is finished, and its summary stays.
    let summary = || fs::read_to_string(place.latest().join("summary.csv")).unwrap();
    let before = summary();
    let ended = place.run("completes", &[]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("no column `model.size`"), "{ended:?}");
    assert_eq!(summary(), before);
    let listed = kiln(&place, &["ls"]);
    assert!(
        listed.stdout.contains("no column `model.size`"),
        "{listed:?}"
    );
}
