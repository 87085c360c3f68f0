//! The example through `kiln run`, end to end: it learns, its keys are axes, and what it does not take fails with words.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Command, Output},
};

type Row = HashMap<String, String>;

/// `kiln` built beside the example; `cargo test --workspace --release` builds it.
fn kiln(folder: &Path, arguments: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_own-model")).with_file_name("kiln");
    assert!(program.exists(), "{} is not built; `cargo test --workspace --release` builds it", program.display());
    let mut kiln = Command::new(program);
    kiln.args(arguments).current_dir(folder).env("KILN_TRIAL", env!("CARGO_BIN_EXE_own-model"));
    kiln.env("KILN_LOCKS", folder.join("locks")).env("XDG_CACHE_HOME", folder.join("cache")).env("CUDA_VISIBLE_DEVICES", "");
    kiln.output().unwrap()
}

fn run(folder: &Path, more: &[&str]) -> (Output, Vec<Row>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("patches.yaml");
    let output = kiln(folder, &[&["run", file.to_str().unwrap(), "--results", "results"], more].concat());
    let table = folder.join("results/patches/latest/trials.csv");
    let rows = csv::Reader::from_path(&table).map(|mut table| table.deserialize().map(Result::unwrap).collect());
    (output, rows.unwrap_or_default())
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap()
}

#[test]
fn the_example_learns_on_both_engines_and_its_keys_are_axes() {
    for engine in ["libtorch", "flex"] {
        let folder = tempfile::tempdir().unwrap();
        let (output, rows) = run(folder.path(), &["--set", &format!("run.engine={engine}")]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(rows.iter().map(|row| &*row["outcome"]).collect::<Vec<_>>(), ["completed"; 4]);
        let points: Vec<_> = rows.iter().map(|row| (&*row["model.patch"], &*row["model.width"])).collect();
        assert_eq!(points, [("4", "16"), ("4", "32"), ("8", "16"), ("8", "32")]);
        for row in &rows {
            let (patch, width) = (number(row, "model.patch"), number(row, "model.width"));
            let (channels, classes) = (3.0, 10.0);
            let parameters = (channels * patch * patch + 1.0) * width + (width + 1.0) * width + (width + 1.0) * classes;
            assert_eq!(number(row, "parameters"), parameters, "counted by hand");
            assert_eq!((&*row["model_kind"], &*row["flops_per_sample"], &*row["mfu"]), ("custom", "", ""));
            assert!(row["notes"].contains("flops_per_sample: the model does not tell them"), "{}", row["notes"]);
            assert!(number(row, "train_loss") < 10.0_f64.ln() * 0.9, "well below guessing: {}", row["train_loss"]);
        }
    }
}

#[test]
fn keys_that_the_model_does_not_take_fail_the_trial_with_its_words() {
    let cases = [
        ("model.patch=5", "`model.patch` 5 does not divide images of 16 × 16"),
        ("model.widht=3", "unknown key `model.widht`; the model takes `patch` or `width`"),
        ("model.width=wide", "`model.width` is `\"wide\"`: invalid type"),
        ("model.name=other", "`model.name` is `other`; this program has `patches`"),
    ];
    for (set, reason) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (output, rows) = run(folder.path(), &["--set", "sweep=null", "--set", set]);
        assert_eq!((output.status.code(), rows.len()), (Some(1), 1), "{set}: {output:?}");
        assert!(rows[0]["outcome"] == "failed" && rows[0]["reason"].contains(reason), "{set}: {}", rows[0]["reason"]);
    }
}

#[test]
fn the_stock_program_says_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    let stock = Path::new(env!("CARGO_BIN_EXE_own-model")).with_file_name("kiln-trial");
    assert!(stock.exists(), "{} is not built; `cargo test --workspace --release` builds it", stock.display());
    let trial = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("patches.yaml")).unwrap();
    fs::write(folder.path().join("x.yaml"), trial.split("sweep:").next().unwrap()).unwrap();
    let mut kiln = Command::new(stock.with_file_name("kiln"));
    kiln.args(["run", "x.yaml"]).current_dir(folder.path()).env("KILN_TRIAL", stock);
    let output = kiln.env("KILN_LOCKS", folder.path().join("locks")).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = fs::read_to_string(folder.path().join("results/patches/latest/trials.csv")).unwrap();
    assert!(table.contains("this program has no model of its own; set KILN_TRIAL to a program that has it"), "{table}");
}
