//! `kiln run` and trials that keep checkpoints: what is killed or stopped goes on in the next
//! launch.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use kiln_data::files::sha256_of;
use rustix::process::{Pid, Signal, kill_process};

type Row = HashMap<String, String>;

/// So many that a launch is far from its end when it is killed or stopped, after its first twenty
/// or so.
const STEPS: u64 = 240;

/// Of one trial.
fn experiment(after: &str) -> String {
    format!(
        "kiln: 1\nname: long\nmodel: {{kind: mlp, seq_len: 16, d_model: 64, hidden: 512}}\n\
         data: {{kind: generated, characters: 60000, num_workers: 1}}\n\
         train: {{steps: {STEPS}, batch_size: 16, cpu_threads: 1, checkpoint: {{every_steps: 20, \
         after: {after}}}}}\n\
         measure: {{warmup_steps: 2, warmup_seconds: 0.0, log_every: 5}}\n"
    )
}

struct Place(tempfile::TempDir);

impl Place {
    fn new(after: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("long.yaml"), experiment(after)).unwrap();
        Self(folder)
    }

    fn kiln(&self, more: &[&str]) -> Command {
        self.command(&[&["run", "long.yaml"], more].concat())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let folder = self.0.path();
        let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
        kiln.args(arguments)
            .current_dir(folder)
            .env_remove("KILN_TRIAL")
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("KILN_BEAT_SECONDS", "0.2");
        kiln.env("KILN_LOCKS", folder.join("locks"))
            .env("XDG_CACHE_HOME", folder.join("cache"));
        kiln
    }

    fn complete(&self, more: &[&str]) -> Output {
        let output = self.kiln(more).output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    fn run_folder(&self) -> PathBuf {
        self.0.path().join("results/long/latest")
    }

    fn rows(&self) -> Vec<Row> {
        table(&self.run_folder().join("trials.csv"))
    }

    /// The one trial's folder.
    fn trial(&self) -> PathBuf {
        fs::read_dir(self.run_folder().join("trials"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path()
    }

    fn checkpoints(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.trial().join("checkpoint")) else {
            return Vec::new();
        };
        let mut steps: Vec<u64> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        steps.sort_unstable();
        steps
    }

    /// Loss by step.
    fn losses(&self, attempt: u64) -> BTreeMap<u64, String> {
        let rows = table(&self.trial().join(attempt.to_string()).join("steps.csv"));
        rows.into_iter()
            .map(|row| (row["step"].parse().unwrap(), row["loss"].clone()))
            .collect()
    }

    /// A launch that has written its first checkpoints.
    fn launch(&self) -> Child {
        let child = self
            .kiln(&[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while !self.run_folder().join("trials").is_dir()
            || fs::read_dir(self.run_folder().join("trials"))
                .unwrap()
                .count()
                == 0
            || self.checkpoints().is_empty()
        {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "no checkpoint came"
            );
            thread::sleep(Duration::from_millis(2));
        }
        child
    }
}

fn table(path: &Path) -> Vec<Row> {
    csv::ReaderBuilder::new()
        .flexible(true)
        .from_path(path)
        .unwrap()
        .deserialize()
        .filter_map(Result::ok)
        .collect()
}

/// What a trial that nothing disturbed had for losses.
fn undisturbed() -> BTreeMap<u64, String> {
    let place = Place::new("delete");
    place.complete(&[]);
    let row = &place.rows()[0];
    assert!(
        row["resumed_at_step"].is_empty()
            && row["checkpoint_bytes"].parse::<u64>().unwrap() > 500_000
    );
    let (checkpoints, trial) = (
        row["checkpoint_seconds"].parse::<f64>().unwrap(),
        row["trial_seconds"].parse::<f64>().unwrap(),
    );
    assert!(
        checkpoints > 0.0 && checkpoints < trial,
        "{checkpoints} of {trial} s"
    );
    assert!(
        !place.trial().join("checkpoint").exists(),
        "the trial has completed"
    );
    place.losses(1)
}

#[test]
fn a_killed_run_goes_on_from_its_last_checkpoint_and_a_stopped_one_from_where_it_stopped() {
    let expected = undisturbed();
    assert_eq!(expected.len() as u64, STEPS);
    let place = Place::new("delete");
    let mut kiln = place.launch();
    kiln.kill().unwrap();
    kiln.wait().unwrap();

    let mut kiln = place.launch_to(2, &[]);
    let status = Command::new("kill")
        .args(["-TERM", &kiln.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    kiln.wait().unwrap();

    place.complete(&[]);
    let rows = place.rows();
    assert_eq!(
        rows.iter()
            .map(|row| row["outcome"].as_str())
            .collect::<Vec<_>>(),
        ["killed", "interrupted", "completed"],
        "{rows:?}"
    );
    let from = |row: &Row| row["resumed_at_step"].parse::<u64>().unwrap();
    assert_eq!(
        from(&rows[2]).to_string(),
        rows[1]["steps"],
        "a stopped trial writes a checkpoint of its last step"
    );
    for (attempt, row) in [(2, &rows[1]), (3, &rows[2])] {
        let losses = place.losses(attempt);
        assert_eq!(losses.keys().next(), Some(&(from(row) + 1)));
        for (step, loss) in &losses {
            assert_eq!(loss, &expected[step], "step {step} of attempt {attempt}");
        }
    }
    let own_steps = STEPS - from(&rows[2]);
    assert_eq!(
        (place.losses(3).len() as u64, rows[2]["steps"].clone()),
        (own_steps, STEPS.to_string())
    );
    let samples = rows[2]["samples_per_second"].parse::<f64>().unwrap()
        * rows[2]["window_seconds"].parse::<f64>().unwrap();
    let left_out: u64 = rows[2]["left_out_steps"].parse().unwrap();
    assert!(
        (samples - ((own_steps - left_out) * 16) as f64).abs() < 1e-6,
        "{samples} samples in a window of its own {own_steps} steps"
    );
    assert!(!place.trial().join("checkpoint").exists());
}

impl Place {
    /// A launch whose attempt of this number is under way.
    fn launch_to(&self, attempt: u64, more: &[&str]) -> Child {
        let child = self
            .kiln(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let steps = self.trial().join(format!("{attempt}/steps.csv"));
        while !fs::read_to_string(&steps).is_ok_and(|text| text.lines().count() > 8) {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "the attempt makes no steps"
            );
            thread::sleep(Duration::from_millis(2));
        }
        child
    }
}

#[test]
fn what_was_trained_stays_until_a_rerun_has_completed() {
    let place = Place::new("last");
    place.complete(&[]);
    let export = |to: &str| {
        let mut kiln = place.command(&["export", "results/long/latest", "--to", to]);
        let output = kiln.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        fs::read(place.0.path().join(to).join("model.safetensors")).unwrap()
    };
    let trained = export("before");

    let mut failing = place.kiln(&["--rerun", "completed"]);
    let broken = place.0.path().join("broken");
    fs::write(&broken, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let failed = failing.env("KILN_TRIAL", &broken).output().unwrap();
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        told.contains("the trial program `broken` has sha256") && told.contains("in launch 1"),
        "{told}"
    );
    let aside = place.trial().join("checkpoint.1");
    assert!(aside.is_dir() && export("failed") == trained);
    let text = experiment("last").replace("name: long", "name: longer");
    let text = text.replace(&format!("steps: {STEPS}"), "steps: 260");
    fs::write(place.0.path().join("longer.yaml"), text).unwrap();
    let continued = place
        .command(&["run", "longer.yaml", "--continue", "long"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&continued.stderr);
    assert!(
        continued.status.success() && told.contains("at step 240"),
        "{told}"
    );

    let mut killed = place.launch_to(3, &["--rerun", "failed"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(aside.is_dir() && export("stopped") == trained);
    // Interrupted, with checkpoints of its own.
    let mut interrupted = place.launch_to(4, &["--rerun", "failed"]);
    kill_process(Pid::from_child(&interrupted), Signal::TERM).unwrap();
    interrupted.wait().unwrap();
    assert!(!place.checkpoints().is_empty());
    assert!(aside.is_dir() && export("interrupted") == trained);

    place.complete(&[]);
    let rows = place.rows();
    let outcomes: Vec<&str> = rows.iter().map(|row| row["outcome"].as_str()).collect();
    let expected = ["completed", "failed", "killed", "interrupted", "completed"];
    assert_eq!(outcomes, expected);
    assert!(!aside.exists() && place.checkpoints() == [STEPS]);
    assert!(export("again") == trained, "the same run twice");
    // As a launch leaves it that is killed after the row of the rerun: the next one deletes it.
    fs::create_dir(&aside).unwrap();
    place.complete(&[]);
    assert!(!aside.exists() && place.checkpoints() == [STEPS]);

    // One that is killed while the rows say that all is done: the weights are those of the row, and the
    // next launch goes on with the attempt.
    let mut killed = place.launch_to(6, &["--rerun", "completed"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(place.trial().join("checkpoint.5").is_dir() && export("killed") == trained);
    let planned = place.kiln(&["--dry-run"]).output().unwrap();
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.contains("killed before"), "{planned}");
    let listed = place.command(&["ls"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("resumable"), "{listed}");
    place.complete(&[]);
    let outcomes: Vec<String> = place
        .rows()
        .iter()
        .map(|row| row["outcome"].clone())
        .collect();
    assert_eq!(outcomes[5..], ["killed", "completed"]);
    assert_eq!(place.checkpoints(), [STEPS]);
}

#[test]
fn a_rerun_on_workers_begins_anew_too() {
    let place = Place::new("last");
    let queue_and_work = |more: &[&str]| {
        place.complete(&[&["--on", "workers", "--detach"], more].concat());
        let output = place.command(&["worker", "long"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
    };
    queue_and_work(&[]);
    queue_and_work(&["--rerun", "completed"]);
    let rows = place.rows();
    assert_eq!((rows.len(), rows[1]["resumed_at_step"].as_str()), (2, ""));
    assert_eq!(place.losses(2), place.losses(1));
    assert!(!place.trial().join("checkpoint.1").exists());
}

#[test]
fn what_is_to_stay_stays_and_a_rerun_of_a_completed_trial_begins_anew() {
    let place = Place::new("last");
    place.complete(&["--set", "train.steps=40"]);
    assert_eq!(place.checkpoints(), [40]);
    let first = place.losses(1);
    place.complete(&["--set", "train.steps=40", "--rerun", "completed"]);
    let rows = place.rows();
    assert_eq!(
        (
            rows.len(),
            rows[1]["resumed_at_step"].as_str(),
            place.losses(2)
        ),
        (2, "", first)
    );
    assert_eq!(place.checkpoints(), [40]);
}

#[test]
fn another_run_begins_with_the_weights_of_a_checkpoint_wherever_they_lie() {
    let place = Place::new("last");
    place.complete(&["--set", "train.steps=300"]);
    let row = place.rows().remove(0);
    let drawn_at = place.losses(1)[&1].parse::<f64>().unwrap();
    let weights = place.trial().join("checkpoint/300/model.safetensors");
    let moved = place.0.path().join("moved.safetensors");
    fs::copy(weights, &moved).unwrap();
    let (sum, _) = sha256_of(&moved, &moved).unwrap();
    let going_on = |path: &str, sum: &str| {
        let key = format!("train.initial_weights={{path: {path}, sha256: \"{sum}\"}}");
        place
            .kiln(&["--fresh", "--set", "train.steps=20", "--set", &key])
            .output()
            .unwrap()
    };
    let runs = || {
        fs::read_dir(place.0.path().join("results/long"))
            .unwrap()
            .count()
    };
    let before = runs();
    // Nothing is begun with what is not there, or is not what was meant.
    let other = format!(
        "{}{}",
        if sum.starts_with('0') { '1' } else { '0' },
        &sum[1..]
    );
    for (path, sum, what) in [
        (
            "nowhere.safetensors",
            &sum,
            "`train.initial_weights.path` names nowhere.safetensors, which cannot be read: No such \
             file",
        ),
        (
            "moved.safetensors",
            &other,
            "`train.initial_weights.path` names moved.safetensors, whose SHA-256 is ",
        ),
    ] {
        let output = going_on(path, sum);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(3) && said.contains(what),
            "{said}"
        );
    }
    assert_eq!(runs(), before);
    let through_latest = place.trial().join("checkpoint/300/model.safetensors");
    let output = going_on(&through_latest.display().to_string(), &sum);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let what = "/results/long/latest, which will be the folder of this run; name ";
    assert!(
        output.status.code() == Some(3) && said.contains(what),
        "{said}"
    );
    let key = format!("train.initial_weights={{path: moved.safetensors, sha256: \"{sum}\"}}");
    let narrower = ["long.yaml", "--set", "model.hidden=256", "--set", &key];
    for (command, status) in [("run", 3), ("plan", 0), ("check", 2)] {
        let arguments = [&[command], &narrower[..]].concat();
        let output = place.command(&arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let what = "`Mlp.hidden.weight` has shape [512, 512], and the model's parameter [256, 512]";
        assert!(
            output.status.code() == Some(status) && said.contains(what),
            "{command}: {said}"
        );
    }
    assert_eq!(runs(), before);

    assert!(going_on("moved.safetensors", &sum).status.success());
    let begun = place.rows().remove(0);
    let begins_at = place.losses(1)[&1].parse::<f64>().unwrap();
    assert!(begins_at < drawn_at / 4.0, "{begins_at} and {drawn_at}");
    fs::rename(&moved, place.0.path().join("elsewhere.safetensors")).unwrap();
    assert!(going_on("elsewhere.safetensors", &sum).status.success());
    let again = place.rows().remove(0);
    assert_eq!(
        (&again["trial"], &again["valid_loss"]),
        (&begun["trial"], &begun["valid_loss"])
    );
    assert_ne!(again["trial"], row["trial"]);
}
