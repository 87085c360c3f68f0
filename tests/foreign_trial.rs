//! A trial in Python that knows nothing but `docs/child-protocol.md`: its model is swept, resumed
//! and tabled as kiln's own are. Needs `python3`, as the setup does.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::scripted_child::{Row, table};

const LINE: &str = "kiln: 1\nname: line\nmodel: {kind: custom, name: line, reads: text, seq_len: \
                    8, rate: 0.1}\n\
                    data: {kind: generated, characters: 3000}\ntrain: {steps: 40, batch_size: 4, \
                    cpu_threads: 1}\n\
                    measure: {warmup_steps: 4, warmup_seconds: 0.0, log_every: 5}\n";

fn run(folder: &Path, more: &[&str]) -> (Output, Vec<Row>) {
    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign_trial/line.py");
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.args(["run", "line.yaml"])
        .args(more)
        .current_dir(folder)
        .env("KILN_TRIAL", child)
        .env("CUDA_VISIBLE_DEVICES", "");
    kiln.env("KILN_LOCKS", folder.join("locks"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    let output = kiln.output().unwrap();
    (
        output,
        table(&folder.join("results/line/latest/trials.csv")),
    )
}

#[test]
fn a_sweep_over_the_keys_of_a_model_in_python_is_run_and_tabled() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("line.yaml"),
        format!("{LINE}sweep: {{grid: {{model.rate: [0.05, 0.3]}}, repeats: 1}}\n"),
    )
    .unwrap();
    let (output, rows) = run(folder.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        rows.iter()
            .map(|row| (&*row["outcome"], &*row["model.rate"]))
            .collect::<Vec<_>>(),
        [("completed", "0.05"), ("completed", "0.3")]
    );
    let loss = |row: &Row| row["train_loss"].parse::<f64>().unwrap();
    assert!(
        loss(&rows[1]) < loss(&rows[0]),
        "the larger rate is nearer to the line: {rows:?}"
    );
    assert_ne!(
        rows[0]["trial"], rows[1]["trial"],
        "each rate is a trial of its own"
    );
    for row in &rows {
        assert_eq!(
            (
                &*row["model_kind"],
                &*row["parameters"],
                &*row["flops_per_sample"],
                &*row["flops_formula"]
            ),
            ("custom", "2", "12", "own")
        );
        assert!(row["samples_per_second"].parse::<f64>().unwrap() > 0.0);
        let attempt = folder
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
    }
    let (again, rows) = run(folder.path(), &[]);
    assert!(
        again.status.success() && rows.len() == 2,
        "nothing is left to do: {again:?}"
    );
    let mut sample = Command::new(env!("CARGO_BIN_EXE_kiln"));
    sample.args(["sample", "line"]).current_dir(folder.path());
    let refused = sample.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(2) && said.contains("wrote no checkpoint that kiln reads"),
        "{said}"
    );
}

#[test]
fn a_name_that_it_does_not_have_fails_with_its_words() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("line.yaml"), LINE).unwrap();
    let (output, rows) = run(folder.path(), &["--set", "model.name=curve"]);
    assert_eq!(
        (output.status.code(), &*rows[0]["outcome"]),
        (Some(1), "failed"),
        "{output:?}"
    );
    assert!(
        rows[0]["reason"].contains("`model.name` is `curve`; this program has `line`"),
        "{}",
        rows[0]["reason"]
    );
}

#[test]
fn keys_that_it_does_not_know_fail_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("line.yaml"), LINE).unwrap();
    let more = ["train.clip_norm=0.1", "train.precision=bf16", "model.rat=1"];
    let (output, rows) = run(folder.path(), &more.map(|set| ["--set", set]).concat());
    assert_eq!(
        (output.status.code(), &*rows[0]["outcome"]),
        (Some(1), "failed"),
        "{output:?}"
    );
    let reason = &rows[0]["reason"];
    let names = ["`train.clip_norm`", "`train.precision`", "`model.rat`"];
    assert!(names.iter().all(|name| reason.contains(name)), "{reason}");
    assert!(!reason.contains("`train.steps`"), "{reason}");
}

#[test]
fn a_sweep_over_engines_says_once_why_it_runs_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign_trial/line.py");
    let engine = format!("{{argv: [python3, {}]}}", script.display());
    let yaml = format!(
        "{LINE}run: {{engines: {{a: {engine}, b: {engine}}}}}\n\
         sweep: {{grid: {{run.engine: [a, b]}}}}\n"
    );
    fs::write(folder.path().join("line.yaml"), yaml).unwrap();
    let (output, rows) = run(folder.path(), &[]);
    assert_eq!(rows.len(), 2, "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("trials run on the CPU").count(), 1, "{said}");
}
