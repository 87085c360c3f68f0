//! The example through `kiln run`, end to end: it learns, its keys are axes, and wrong settings
//! fail with a message.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::form::{by_form, is_long};

type Row = HashMap<String, String>;

/// `kiln` built beside the example; `cargo test --workspace --release` builds it.
fn kiln(folder: &Path, arguments: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_own-model")).with_file_name("kiln");
    assert!(
        program.exists(),
        "{} is not built; `cargo test --workspace --release` builds it",
        program.display()
    );
    let mut kiln = Command::new(program);
    kiln.args(arguments)
        .current_dir(folder)
        .env("KILN_TRIAL", env!("CARGO_BIN_EXE_own-model"));
    kiln.env("KILN_LOCKS", folder.join("locks"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("CUDA_VISIBLE_DEVICES", "");
    kiln
}

/// With one thread: threads of several trainings at once wait for each other.
const RUN: [&str; 6] = [
    "run",
    concat!(env!("CARGO_MANIFEST_DIR"), "/patches.yaml"),
    "--results",
    "results",
    "--set",
    "train.cpu_threads=1",
];

/// Flex is tried in the long form alone: a user's own model uses it only through burn, as kiln's
/// models do.
fn engines() -> &'static [&'static str] {
    if is_long() {
        &["libtorch", "flex"]
    } else {
        &["libtorch"]
    }
}

fn run(folder: &Path, more: &[&str]) -> (Output, Vec<Row>) {
    let output = kiln(folder, &[&RUN, more].concat()).output().unwrap();
    let table = folder.join("results/patches/latest/trials.csv");
    let rows = csv::Reader::from_path(&table)
        .map(|mut table| table.deserialize().map(Result::unwrap).collect());
    (output, rows.unwrap_or_default())
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap()
}

#[test]
fn the_example_learns_and_its_keys_are_axes() {
    for engine in engines() {
        let folder = tempfile::tempdir().unwrap();
        let (output, rows) = run(folder.path(), &["--set", &format!("run.engine={engine}")]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            rows.iter().map(|row| &*row["outcome"]).collect::<Vec<_>>(),
            ["completed"; 4]
        );
        let points: Vec<_> = rows
            .iter()
            .map(|row| (&*row["model.patch"], &*row["model.width"]))
            .collect();
        assert_eq!(points, [("4", "16"), ("4", "32"), ("8", "16"), ("8", "32")]);
        for row in &rows {
            let (patch, width) = (number(row, "model.patch"), number(row, "model.width"));
            let (channels, classes) = (3.0, 10.0);
            let parameters = (channels * patch * patch + 1.0) * width
                + (width + 1.0) * width
                + (width + 1.0) * classes;
            assert_eq!(number(row, "parameters"), parameters, "counted by hand");
            assert_eq!(
                (&*row["model_kind"], &*row["flops_per_sample"], &*row["mfu"]),
                ("custom", "", "")
            );
            assert!(
                row["notes"].contains("flops_per_sample: the model does not report them"),
                "{}",
                row["notes"]
            );
            assert!(
                number(row, "train_loss") < 10.0_f64.ln() * 0.9,
                "well below guessing: {}",
                row["train_loss"]
            );
        }
    }
}

#[test]
fn keys_that_the_model_does_not_take_fail_the_trial_with_its_words() {
    let cases = [
        (
            "model.patch=5",
            "`model.patch` 5 does not divide images of 16 × 16",
        ),
        (
            "model.widht=3",
            "unknown key `model.widht`; the model takes `patch` or `width`",
        ),
        (
            "model.width=wide",
            "`model.width` is `\"wide\"`: invalid type",
        ),
        (
            "model.name=other",
            "`model.name` is `other`; this program has `patches`",
        ),
    ];
    for (set, reason) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (output, rows) = run(folder.path(), &["--set", "sweep=null", "--set", set]);
        assert_eq!(
            (output.status.code(), rows.len()),
            (Some(1), 1),
            "{set}: {output:?}"
        );
        assert!(
            rows[0]["outcome"] == "failed" && rows[0]["reason"].contains(reason),
            "{set}: {}",
            rows[0]["reason"]
        );
    }
}

#[test]
fn the_stock_program_says_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    let stock = Path::new(env!("CARGO_BIN_EXE_own-model")).with_file_name("kiln-trial");
    assert!(
        stock.exists(),
        "{} is not built; `cargo test --workspace --release` builds it",
        stock.display()
    );
    let trial =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("patches.yaml")).unwrap();
    fs::write(
        folder.path().join("x.yaml"),
        trial.split("sweep:").next().unwrap(),
    )
    .unwrap();
    let mut kiln = Command::new(stock.with_file_name("kiln"));
    kiln.args(["run", "x.yaml"])
        .current_dir(folder.path())
        .env("KILN_TRIAL", stock);
    let output = kiln
        .env("KILN_LOCKS", folder.path().join("locks"))
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table =
        fs::read_to_string(folder.path().join("results/patches/latest/trials.csv")).unwrap();
    assert!(
        table.contains(
            "this program has only kiln's own models; set KILN_TRIAL to a program that has it"
        ),
        "{table}"
    );
}

/// The loss of each step of the one trial's attempt.
fn losses(folder: &Path, attempt: u64) -> BTreeMap<u64, String> {
    let table = trial(folder).join(format!("{attempt}/steps.csv"));
    let rows: Vec<Row> = csv::Reader::from_path(table)
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect();
    rows.into_iter()
        .map(|row| (row["step"].parse().unwrap(), row["loss"].clone()))
        .collect()
}

fn trial(folder: &Path) -> PathBuf {
    let trials = fs::read_dir(folder.join("results/patches/latest/trials"));
    trials
        .ok()
        .and_then(|mut trials| Some(trials.next()?.unwrap().path()))
        .unwrap_or_default()
}

/// A complete checkpoint: unfinished ones have other names.
fn has_checkpoint(trial: &Path) -> bool {
    let is_whole = |entry: fs::DirEntry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u64>().is_ok())
    };
    fs::read_dir(trial.join("checkpoint")).is_ok_and(|entries| entries.flatten().any(is_whole))
}

/// A folder in which a run was killed after the trial's first checkpoint and before its end.
fn killed(more: &[&str]) -> tempfile::TempDir {
    let attempt = |_| {
        let folder = tempfile::tempdir().unwrap();
        let mut kiln = kiln(folder.path(), &[&RUN[..], more].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while !has_checkpoint(&trial(folder.path())) {
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "no checkpoint came"
            );
            thread::sleep(Duration::from_millis(1));
        }
        kiln.kill().unwrap();
        kiln.wait().unwrap();
        let is_finished = trial(folder.path()).join("1/trial.json").exists();
        (!is_finished).then_some(folder)
    };
    (0..20)
        .find_map(attempt)
        .expect("a trial that is slower than its killer")
}

#[test]
fn a_killed_trial_of_it_goes_on_to_the_bit_and_another_begins_with_its_weights() {
    let steps: usize = by_form(120, 300);
    let set_steps = format!("train.steps={steps}");
    for engine in engines() {
        let engine = format!("run.engine={engine}");
        let more = [
            "--set",
            "sweep=null",
            "--set",
            &set_steps,
            "--set",
            "train.checkpoint={every_steps: 10, after: last}",
            "--set",
            &engine,
        ];
        let undisturbed = tempfile::tempdir().unwrap();
        let (output, _) = run(undisturbed.path(), &more);
        assert!(output.status.success(), "{output:?}");
        let expected = losses(undisturbed.path(), 1);
        assert_eq!(expected.len(), steps);

        let folder = killed(&more);
        let (output, rows) = run(folder.path(), &more);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            rows.iter().map(|row| &*row["outcome"]).collect::<Vec<_>>(),
            ["killed", "completed"]
        );
        let from: u64 = rows[1]["resumed_at_step"].parse().unwrap();
        let found = losses(folder.path(), 2);
        assert_eq!(found.keys().next(), Some(&(from + 1)));
        assert!(
            found.iter().all(|(step, loss)| *loss == expected[step]),
            "{engine}: from {from}: {found:?} {expected:?}"
        );

        let weights = fs::canonicalize(
            trial(folder.path()).join(format!("checkpoint/{steps}/model.safetensors")),
        )
        .unwrap();
        let sum = Command::new("sha256sum")
            .arg(&weights)
            .output()
            .unwrap()
            .stdout;
        let sum = String::from_utf8(sum).unwrap()[..64].to_owned();
        let weights = format!(
            "train.initial_weights={{path: {}, sha256: \"{sum}\"}}",
            weights.display()
        );
        let (output, _) = run(
            folder.path(),
            &[
                "--fresh",
                "--set",
                "sweep=null",
                "--set",
                "train.steps=12",
                "--set",
                &weights,
                "--set",
                &engine,
            ],
        );
        assert!(output.status.success(), "{output:?}");
        let [drawn_at, begins_at] =
            [&expected[&1], &losses(folder.path(), 1)[&1]].map(|loss| loss.parse::<f64>().unwrap());
        // On the same first batch; without the weights both are the same number.
        assert!(
            begins_at < drawn_at * 0.9,
            "{engine}: {begins_at}, and {drawn_at} with drawn ones"
        );
    }
}
