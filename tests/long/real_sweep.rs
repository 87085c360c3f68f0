//! A short sweep on WikiText-2 through `kiln run` and `kiln-trial`, and what its tables must say.
//! Needs the text: `KILN_DATA`.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::scripted_child::real_trial;
use kiln_core::kinds::{Data, data::Counts};
use kiln_data::dataset;
use serde_json::Value;

/// As in tests/experiments/wikitext2-short.yaml.
const STEPS: u64 = 40;
const WARMUP_STEPS: u64 = 5;
const SEQ_LEN: f64 = 24.0;
const VOCABULARY: f64 = 33_278.0;

type Row = HashMap<String, String>;

/// Runs are kept in `folder`/results, and nothing of the machine but the text is used.
fn kiln(folder: &Path, data: &Path, more: &[&str]) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/experiments/wikitext2-short.yaml");
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.arg("run")
        .arg(file)
        .args(more)
        .args(["--results", "results"])
        .current_dir(folder);
    kiln.env("KILN_DATA", data)
        .env("KILN_LOCKS", folder.join("locks"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    let output = kiln
        .env("CUDA_VISIBLE_DEVICES", "")
        .env_remove("KILN_TRIAL")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn table(path: &Path) -> Vec<Row> {
    csv::Reader::from_path(path)
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn number(row: &Row, column: &str) -> f64 {
    row[column]
        .parse()
        .unwrap_or_else(|_| panic!("`{column}` is `{}`, no number", row[column]))
}

fn is_close(left: f64, right: f64, tolerance: f64) -> bool {
    (left / right - 1.0).abs() <= tolerance
}

#[test]
fn real_data_a_short_sweep_on_wikitext2_leaves_whole_and_consistent_tables() {
    let data = env::var_os("KILN_DATA").filter(|folder| !folder.is_empty());
    let data = std::path::absolute(data.expect(
        "KILN_DATA names no folder with WikiText-2: `kiln data fetch wikitext2 --to DIR` makes one",
    ))
    .unwrap();
    // The child that `kiln run` finds beside itself must be built.
    real_trial();
    let place = tempfile::tempdir().unwrap();
    kiln(place.path(), &data, &["--fresh"]);
    let run = place.path().join("results/wikitext2-short/latest");
    let rows = table(&run.join("trials.csv"));
    assert_eq!(rows.len(), 4);
    let batches_and_workers: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (&*row["train.batch_size"], &*row["data.num_workers"]))
        .collect();
    assert_eq!(
        batches_and_workers,
        [("4", "0"), ("4", "2"), ("8", "0"), ("8", "2")]
    );
    for row in &rows {
        the_row_is_whole(row);
        let attempt = run.join("trials").join(&row["trial"]).join("1");
        the_attempts_tables_agree_with_the_row(&attempt, row);
        let result = json(&attempt.join("trial.json"));
        the_text_was_the_published_one(&result);
        let bound = (2 * row["num_workers"].parse::<u64>().unwrap()).max(1);
        assert!(
            result["peak_batches_in_memory"]
                .as_u64()
                .is_some_and(|held| (1..=bound).contains(&held)),
            "workers × `prefetch` 2: {result}"
        );
        the_samples_are_of_this_trial(&run, row);
    }
    for pair in rows.chunks(2) {
        workers_changed_no_loss(&run, &pair[0], &pair[1]);
    }
    the_run_is_recorded(&run, &rows[0]);
    a_second_run_has_nothing_to_do(place.path(), &data, &run);
}

fn the_row_is_whole(row: &Row) {
    assert_eq!(
        (&*row["outcome"], &*row["reason"], &*row["device_uuid"]),
        ("completed", "", "")
    );
    assert_eq!(
        (number(row, "steps"), number(row, "left_out_steps")),
        (STEPS as f64, WARMUP_STEPS as f64)
    );
    let window = number(row, "window_seconds");
    let samples = (STEPS - WARMUP_STEPS) as f64 * number(row, "batch_size");
    assert!(is_close(
        number(row, "samples_per_second") * window,
        samples,
        1e-9
    ));
    assert!(is_close(
        number(row, "tokens_per_second"),
        number(row, "samples_per_second") * SEQ_LEN,
        1e-9
    ));
    assert!(
        window > 0.0 && window + number(row, "evaluation_seconds") < number(row, "trial_seconds")
    );
    assert!(
        (0.0..1.0).contains(&number(row, "data_wait_fraction"))
            && number(row, "load_seconds") > 0.0
    );
    assert!((0.0..1.0).contains(&number(row, "transfer_fraction")));
    // 33,278 × 16 words, 24 × 16 positions, one block of 12 d² + 13 d, the last norm.
    assert_eq!(
        number(row, "parameters"),
        f64::from(33_278 * 16 + 24 * 16 + (12 * 16 * 16 + 13 * 16) + 2 * 16)
    );
    let (train, valid) = (number(row, "train_loss"), number(row, "valid_loss"));
    // Guessing blindly is ln of the vocabulary, 10.41; knowing how frequent words are is about 6.6.
    assert!(
        valid < VOCABULARY.ln() - 1.5 && train < VOCABULARY.ln() - 1.5 && valid > 5.0,
        "{train} {valid}"
    );
    assert!(number(row, "peak_resident_bytes") < number(row, "memory_limit_bytes"));
}

fn the_attempts_tables_agree_with_the_row(attempt: &Path, row: &Row) {
    let steps = table(&attempt.join("steps.csv"));
    assert_eq!(
        steps
            .iter()
            .map(|step| number(step, "step"))
            .collect::<Vec<_>>(),
        (1..=STEPS).map(|step| step as f64).collect::<Vec<_>>()
    );
    assert_eq!(
        steps
            .iter()
            .filter(|step| step["is_warmup"] == "true")
            .count() as u64,
        WARMUP_STEPS
    );
    let losses: Vec<f64> = steps.iter().map(|step| number(step, "loss")).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let parts: Vec<f64> = losses.chunks(10).map(mean).collect();
    assert!(
        parts.is_sorted_by(|before, after| after < before),
        "the losses fall: {parts:?}"
    );
    assert!(
        (losses[0] - VOCABULARY.ln()).abs() < 0.1,
        "an untrained model guesses blindly: {}",
        losses[0]
    );
    assert!(
        is_close(parts[3], number(row, "train_loss"), 1e-12),
        "`train_loss` is the mean of the last 10 steps"
    );
    let mut seconds: Vec<f64> = steps
        .iter()
        .filter(|step| step["is_warmup"] == "false")
        .map(|step| number(step, "step_seconds"))
        .collect();
    assert!(
        is_close(seconds.iter().sum(), number(row, "window_seconds"), 0.025),
        "the steps make up the window"
    );
    seconds.sort_by(f64::total_cmp);
    assert_eq!(
        seconds[seconds.len() / 2],
        number(row, "median_step_seconds")
    );
    let epochs = table(&attempt.join("epochs.csv"));
    assert_eq!(epochs.len(), 1);
    assert_eq!(
        (&epochs[0]["valid_loss"], number(&epochs[0], "step")),
        (&row["valid_loss"], STEPS as f64)
    );
    assert!(is_close(
        number(&epochs[0], "valid_perplexity").ln(),
        number(row, "valid_loss"),
        1e-9
    ));
    assert_eq!(
        number(&epochs[0], "samples"),
        STEPS as f64 * number(row, "batch_size")
    );
}

fn the_text_was_the_published_one(result: &Value) {
    let data: Data = serde_yaml::from_str("{kind: wikitext2}").unwrap();
    let facts = dataset::known_facts(&data, result["data_sha256"].as_str().unwrap());
    let facts =
        facts.unwrap_or_else(|| panic!("the catalog does not know {}", result["data_sha256"]));
    assert_eq!(
        facts.counts,
        Counts::Text {
            train_tokens: 2_088_628,
            valid_tokens: 217_646,
            vocabulary: VOCABULARY as u64
        }
    );
    assert_eq!(result["train_samples"], (2_088_628 - 25) / 24 + 1);
    assert_eq!(
        result["libraries"]["libtorch"], "2.11.0",
        "as loaded: {}",
        result["libraries"]
    );
}

fn the_samples_are_of_this_trial(run: &Path, row: &Row) {
    let mut samples = table(&run.join("samples.csv"));
    samples.retain(|sample| sample["trial"] == row["trial"]);
    assert!(samples.len() >= 2, "one at each end of the window at least");
    assert!(
        samples
            .iter()
            .all(|sample| sample["device"] == "cpu" && sample["gpu_utilization"].is_empty())
    );
    let most = samples
        .iter()
        .filter(|sample| !sample["resident_bytes"].is_empty())
        .map(|sample| number(sample, "resident_bytes"))
        .fold(0.0, f64::max);
    assert!(
        most > 1e7 && most <= number(row, "peak_resident_bytes"),
        "{most} B seen, {} B the peak",
        row["peak_resident_bytes"]
    );
    assert!(
        samples
            .iter()
            .all(|sample| number(sample, "host_memory_available_bytes") > 0.0)
    );
}

fn workers_changed_no_loss(run: &Path, without: &Row, with: &Row) {
    assert_ne!(without["trial"], with["trial"]);
    for column in ["valid_loss", "train_loss"] {
        assert_eq!(
            without[column], with[column],
            "{column} with 0 and 2 workers"
        );
    }
    let [losses, others] = [without, with].map(|row| {
        table(&run.join("trials").join(&row["trial"]).join("1/steps.csv"))
            .into_iter()
            .map(|step| step["loss"].clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(losses, others);
}

fn the_run_is_recorded(run: &Path, row: &Row) {
    let file = json(&run.join("run.json"));
    assert_eq!(file["plan"].as_array().unwrap().len(), 4);
    assert_eq!(
        (
            file["launches"].as_array().unwrap().len(),
            &file["launches"][0]["ended"]["how"]
        ),
        (1, &Value::from("finished"))
    );
    let libraries = &file["launches"][0]["libraries"];
    assert!(
        !row["libtorch"].is_empty() && libraries["libtorch"] == row["libtorch"].as_str(),
        "as the trials loaded it: {libraries}"
    );
    assert!(
        !libraries.to_string().contains('/'),
        "no path of the machine: {libraries}"
    );
    assert!(
        fs::read_to_string(run.join("experiment.yaml"))
            .unwrap()
            .contains("wikitext2")
    );
    let snapshots = table(&run.join("snapshots.csv"));
    let at_launch: Vec<&Row> = snapshots
        .iter()
        .filter(|row| row["moment"] == "launch" && row["device"] == "host")
        .collect();
    assert!(
        at_launch.len() > 5
            && at_launch
                .iter()
                .any(|row| row["unit"] == "B" && !row["value"].is_empty()),
        "{at_launch:?}"
    );
}

/// Says so, and leaves every byte as it was.
fn a_second_run_has_nothing_to_do(place: &Path, data: &Path, run: &Path) {
    let kept = |name: &str| -> (PathBuf, Vec<u8>) {
        (
            fs::canonicalize(run).unwrap(),
            fs::read(run.join(name)).unwrap(),
        )
    };
    let before = kept("trials.csv");
    let again = kiln(place, data, &[]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.contains("every trial already has its result"),
        "{said}"
    );
    assert!(kept("trials.csv") == before, "the same run, the same rows");
}
