//! `engines/gpt_pytorch.py` beside kiln: the same trial has the same parameters and the same losses.
//! The tests need a Python with PyTorch (`make pytorch`, or `$KILN_PYTORCH`).

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::form;

type Row = HashMap<String, String>;

/// Relative. Both sides sum in f32, in orders of their own, over twelve steps.
const TOLERANCE: f64 = 1e-5;
/// The same where products are in bf16.
const TOLERANCE_OF_BF16: f64 = 2e-2;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The Python that has PyTorch; `scripts/test.sh` looks for it in the same places.
fn python() -> PathBuf {
    std::env::var_os("KILN_PYTORCH")
        .map(PathBuf::from)
        .unwrap_or_else(|| in_repository(".venv/bin/python"))
}

/// A trial as its file: JSON is YAML. `train` and `data` have what the cases differ in.
fn experiment(model: Value, data: Value, train: Value) -> Value {
    let mut whole = json!({
        "kiln": 1, "name": "gpt",
        "model": {
            "kind": "gpt", "d_model": 32, "num_layers": 2, "num_heads": 4, "seq_len": 16, "dropout": 0.0,
            "tie_head": true, "bias": true,
        },
        "data": {
            "kind": "text", "path": in_repository("LICENSE-APACHE"), "tokenizer": "character",
            "valid_fraction": 0.1, "sampling": "random",
        },
        "train": {
            "batch_size": 4, "grad_accumulation": 1, "precision": "f32", "steps": 12, "seed": 3, "clip_norm": 1.0,
            "label_smoothing": 0.0, "cpu_threads": 1, "evaluate": {"every": 5, "batch_multiple": 3},
            "optimizer": {
                "kind": "adamw", "learning_rate": 0.002, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8,
                "weight_decay": 0.1, "weight_decay_on": "all",
            },
            "learning_rate_schedule": {"kind": "constant", "warmup_steps": 0},
        },
        "measure": {"warmup_steps": 3, "warmup_seconds": 0.0, "log_every": 4},
        "run": {"devices": "cpu"},
    });
    for (section, changes) in [("model", model), ("data", data), ("train", train)] {
        for (key, value) in changes.as_object().unwrap() {
            whole[section][key] = value.clone();
        }
    }
    whole
}

fn table(path: &Path) -> Vec<Row> {
    csv::Reader::from_path(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .deserialize()
        .map(Result::unwrap)
        .collect()
}

/// The attempt's folder of the trial in kiln.
fn in_kiln(experiment: &Value, place: &Path) -> PathBuf {
    fs::write(place.join("gpt.yaml"), experiment.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["run", "gpt.yaml"])
        .current_dir(place)
        .env("KILN_LOCKS", place.join("locks"))
        .env("XDG_CACHE_HOME", place.join("cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let run = place.join("results/gpt/latest");
    let row = table(&run.join("trials.csv")).remove(0);
    run.join("trials").join(&row["trial"]).join("1")
}

/// The same of the trial in PyTorch.
fn in_pytorch(experiment: &Value, place: &Path, more: &[&str]) -> PathBuf {
    let folder = place.join("pytorch");
    fs::create_dir(&folder).unwrap();
    let mut asked = experiment.clone();
    for (key, value) in [
        ("kiln_trial", json!(1)),
        ("trial", json!("t0000000001")),
        ("attempt", json!(1)),
        ("folder", json!(folder)),
        ("device", json!("cpu")),
        ("run_anchor_nanoseconds", json!(0)),
        ("differs_from_defaults", json!([])),
    ] {
        asked[key] = value;
    }
    fs::write(folder.join("trial.asked.json"), asked.to_string()).unwrap();
    let output = Command::new(python())
        .arg(in_repository("engines/gpt_pytorch.py"))
        .args(more)
        .arg(folder.join("trial.yaml"))
        .env_remove("KILN_TRIAL_JSON")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("`make pytorch` prepares the Python of this test");
    assert!(output.status.success(), "{output:?}");
    folder
}

fn losses(folder: &Path, name: &str, column: &str) -> Vec<(String, f64)> {
    table(&folder.join(name))
        .iter()
        .map(|row| (row["step"].clone(), row[column].parse().unwrap()))
        .collect()
}

fn both_sides_agree(experiment: &Value, more: &[&str], tolerance: f64) {
    let place = tempfile::tempdir().unwrap();
    let kiln = in_kiln(experiment, place.path());
    let pytorch = in_pytorch(experiment, place.path(), more);
    let result = |folder: &Path| -> Value {
        serde_json::from_slice(&fs::read(folder.join("trial.json")).unwrap()).unwrap()
    };
    let (ours, theirs) = (result(&kiln), result(&pytorch));
    for figure in ["outcome", "parameters", "steps"] {
        assert_eq!(ours[figure], theirs[figure], "{figure}");
    }
    for (name, column) in [
        ("steps.csv", "loss"),
        ("steps.csv", "learning_rate"),
        ("epochs.csv", "valid_loss"),
    ] {
        let (ours, theirs) = (losses(&kiln, name, column), losses(&pytorch, name, column));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        assert!(ours.len() >= 3, "{name}");
        for ((step, ours), (other, theirs)) in ours.iter().zip(&theirs) {
            assert_eq!(step, other, "{name}");
            let difference = (ours - theirs).abs() / ours.abs();
            assert!(
                difference < tolerance,
                "{name}: {column} of step {step}: {ours} {theirs}"
            );
        }
    }
}

#[test]
fn real_pytorch_has_the_losses_of_kiln() {
    let plain = experiment(json!({}), json!({}), json!({}));
    // To compile takes half a minute.
    let forms: &[&[&str]] = form::by_form(&[&[]], &[&[], &["--compile"]]);
    for form in forms {
        both_sides_agree(&plain, form, TOLERANCE);
    }
}

#[test]
fn real_pytorch_has_them_for_every_key_that_it_supports() {
    let optimizer = json!({
        "kind": "adamw", "learning_rate": 0.003, "beta1": 0.8, "beta2": 0.999, "epsilon": 1e-6,
        "weight_decay": 0.2, "weight_decay_on": "matrices",
    });
    let several = json!({
        "batch_size": 3, "grad_accumulation": 2, "label_smoothing": 0.1, "optimizer": optimizer,
        "learning_rate_schedule": {"kind": "cosine", "warmup_steps": 4, "final_fraction": 0.1},
    });
    let untied = json!({"tie_head": false, "bias": false, "vocabulary": 300});
    let bytes = json!({"tokenizer": "byte", "sampling": "shuffled", "stride": 5});
    both_sides_agree(&experiment(untied, bytes, several), &[], TOLERANCE);
    let linear = json!({
        "learning_rate_schedule": {"kind": "linear", "warmup_steps": 2, "final_fraction": 0.5},
        "clip_norm": 0.1, "evaluate": {"every": 4, "batch_multiple": 1},
    });
    let words = json!({"tokenizer": "word", "sampling": "contiguous", "valid_fraction": 0.2});
    both_sides_agree(&experiment(json!({}), words, linear), &[], TOLERANCE);
}

#[test]
fn real_pytorch_has_them_in_bf16_but_for_rounding() {
    for precision in ["amp-bf16", "bf16"] {
        let train = json!({"precision": precision});
        both_sides_agree(
            &experiment(json!({}), json!({}), train),
            &[],
            TOLERANCE_OF_BF16,
        );
    }
}
