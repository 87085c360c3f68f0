//! The helper for Python: its own tests, and `kiln helper python`. Needs `python3`, as the setup
//! does.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::scripted_child::{Row, program::write_program, table};

fn in_repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
fn it_keeps_the_childs_protocol() {
    output(
        Command::new("python3")
            .arg("-I")
            .arg(in_repository("tests/helper/test_kiln_child.py"))
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

#[test]
fn the_verb_prints_the_file() {
    let printed = output(Command::new(env!("CARGO_BIN_EXE_kiln")).args(["helper", "python"]));
    let file = fs::read(in_repository("python/kiln_child.py")).unwrap();
    assert_eq!(printed.stdout, file);
}

/// It reads its input as JSON, which an engine of the experiment gets as well.
#[test]
fn a_program_in_the_place_of_kiln_trial_may_use_it() {
    let place = tempfile::tempdir().unwrap();
    let script = in_repository("tests/helper/line.py");
    write_program(
        &place.path().join("trial"),
        &format!("#!/bin/sh\nexec python3 {} \"$@\"\n", script.display()),
    );
    let line = "kiln: 1\nname: line\nmodel: {kind: custom, name: line, reads: text, seq_len: 8, \
                rate: 0.05}\ndata: {kind: generated, characters: 3000}\ntrain: {steps: 40, \
                batch_size: 4}\nmeasure: {warmup_steps: 4, warmup_seconds: 0.0}\n";
    fs::write(place.path().join("line.yaml"), line).unwrap();
    output(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["run", "line.yaml", "--device", "cpu"])
            .current_dir(place.path())
            .env("KILN_TRIAL", place.path().join("trial"))
            .env("KILN_LOCKS", place.path().join("locks"))
            .env("PYTHONPATH", in_repository("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
    let rows = table(&place.path().join("results/line/latest/trials.csv"));
    assert_eq!(rows[0]["outcome"], "completed");
}

/// A sweep over the rate of `tests/helper/line.py`, an engine of its own, with more of `train`; its
/// rows.
fn sweep(place: &Path, train: &str) -> (Output, Vec<Row>) {
    let script = in_repository("tests/helper/line.py");
    let line = format!(
        "kiln: 1\nname: line\nmodel: {{kind: custom, name: line, reads: text, seq_len: 8}}\ndata: \
         {{kind: generated, characters: 3000}}\ntrain: {{steps: 40, batch_size: 4, evaluate: \
         {{every: 15}}{train}}}\nmeasure: {{warmup_steps: 4, warmup_seconds: 0.0, log_every: \
         5}}\nrun: {{engine: line, engines: {{line: {{argv: [python3, {script}], environment: \
         {{PYTHONPATH: {helper}, PYTHONDONTWRITEBYTECODE: \"1\"}}}}}}}}\nsweep: {{grid: {{model.rate: \
         [0.05, 0.3, 1.0e12]}}}}\n",
        script = script.display(),
        helper = in_repository("python").display(),
    );
    fs::write(place.join("line.yaml"), line).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["run", "line.yaml", "--device", "cpu"])
        .current_dir(place)
        .env("KILN_LOCKS", place.join("locks"))
        .env("XDG_CACHE_HOME", place.join("cache"))
        .output()
        .unwrap();
    (output, table(&place.join("results/line/latest/trials.csv")))
}

#[test]
fn a_script_of_thirty_lines_is_swept_tabled_and_reported() {
    let place = tempfile::tempdir().unwrap();
    let (output, rows) = sweep(place.path(), "");
    let outcomes: Vec<&str> = rows.iter().map(|row| &*row["outcome"]).collect();
    assert_eq!(
        outcomes,
        ["completed", "completed", "diverged"],
        "{output:?}"
    );
    assert!(
        rows[2]["reason"].contains("the training loss of step"),
        "{:?}",
        rows[2]
    );
    for row in &rows[..2] {
        let attempt = place
            .path()
            .join("results/line/latest/trials")
            .join(&row["trial"])
            .join("1");
        let steps = table(&attempt.join("steps.csv"));
        assert_eq!(
            (
                steps.len(),
                &*steps[3]["is_warmup"],
                &*steps[4]["is_warmup"]
            ),
            (40, "true", "false")
        );
        let evaluations: Vec<String> = table(&attempt.join("epochs.csv"))
            .into_iter()
            .map(|row| row["step"].clone())
            .collect();
        assert_eq!(evaluations, ["15", "30", "40"]);
        assert_eq!(
            (
                &*row["left_out_steps"],
                &*row["window_samples"],
                &*row["parameters"]
            ),
            ("4", "144", "2")
        );
        for column in [
            "samples_per_second",
            "median_step_seconds",
            "data_wait_fraction",
            "evaluation_seconds",
        ] {
            assert!(
                row[column].parse::<f64>().unwrap() > 0.0,
                "{column}: {row:?}"
            );
        }
        let loss = |column: &str| row[column].parse::<f64>().unwrap();
        assert!(
            loss("valid_loss") < 0.1 && loss("train_loss") < 0.5,
            "{row:?}"
        );
    }
    let report = self::output(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["report", "line"])
            .current_dir(place.path()),
    );
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(
        report.contains("rate 0.3 has the lowest validation loss"),
        "{report}"
    );
}

#[test]
fn a_key_that_the_script_does_not_read_fails_each_trial_by_its_name() {
    let place = tempfile::tempdir().unwrap();
    let (output, rows) = sweep(place.path(), ", clip_norm: 1.0");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        rows.iter().all(|row| row["outcome"] == "failed"
            && row["reason"].starts_with("line.py does not support `train.clip_norm`")),
        "{rows:?}"
    );
}
