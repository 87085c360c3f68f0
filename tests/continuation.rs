//! `kiln run --continue`: a training goes on from the checkpoint of another run.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_core::record::{Checkpoints, RunFile, TrialTable, note::ContinuedFrom};

use crate::scripted_child::{Ended, real_trial};

const EXPERIMENT: &str = "kiln: 1\nname: x\n\
    model: {kind: mlp, seq_len: 8}\n\
    data: {kind: generated, characters: 4000}\n\
    train: {steps: 20, batch_size: 2, cpu_threads: 1, optimizer: {kind: adamw}, evaluate: {every: 10}, \
    checkpoint: {every_steps: 10, after: last}}\n\
    measure: {warmup_steps: 0, warmup_seconds: 0.0}\n\
    sweep: {grid: {train.optimizer.learning_rate: [1.0e-3, 1.0e-2]}}\nrun: {engine: flex}\n";
/// Options of a longer training.
pub(crate) const LONGER: [&str; 2] = ["--set", "train.steps=40"];

/// A folder with one run of the experiment.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn with_a_run() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("x.yaml", EXPERIMENT);
        place.succeeds(&["run", "x.yaml"]);
        place
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    pub(crate) fn kiln(&self, arguments: &[&str]) -> Ended {
        Ended::of(
            Command::new(env!("CARGO_BIN_EXE_kiln"))
                .args(arguments)
                .current_dir(&self.0)
                .env("KILN_TRIAL", real_trial())
                .env("KILN_LOCKS", self.0.path().join("locks"))
                .env("XDG_CACHE_HOME", self.0.path().join("cache"))
                .env("CUDA_VISIBLE_DEVICES", "")
                .output()
                .unwrap(),
        )
    }

    pub(crate) fn succeeds(&self, arguments: &[&str]) -> Ended {
        let ended = self.kiln(arguments);
        assert_eq!(ended.status, Some(0), "{arguments:?}: {}", ended.stderr);
        ended
    }

    /// Runs the experiment again, with `--continue` and other options.
    fn continues(&self, named: &str, more: &[&str]) -> Ended {
        self.kiln(&[&["run", "x.yaml", "--continue", named], more].concat())
    }

    /// Continues the first trial of the run alone, which leaves the continuation unfinished.
    fn continues_the_first_trial(&self) {
        let trials = self.succeeds(&[
            "plan",
            "x.yaml",
            "--continue",
            "x",
            "--set",
            "train.steps=40",
            "--json",
        ]);
        let plan: serde_json::Value = serde_json::from_str(&trials.stdout).unwrap();
        assert_eq!(plan["trials"][0]["origin"]["step"], 20);
        let first = plan["trials"][0]["id"].as_str().unwrap();
        let ended = self.continues("x", &[&LONGER[..], &["--only", first]].concat());
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }

    fn refused(&self, named: &str, more: &[&str]) -> String {
        let ended = self.continues(named, more);
        assert_eq!(ended.status, Some(2), "{named} {more:?}: {}", ended.stderr);
        ended.stderr
    }

    /// The runs, oldest first.
    pub(crate) fn runs(&self) -> Vec<PathBuf> {
        let folder = self.0.path().join("results/x");
        let mut runs: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.join("run.json").is_file() && !path.ends_with("latest"))
            .collect();
        runs.sort_by_key(|run| record(run).number);
        runs
    }

    pub(crate) fn newest(&self) -> PathBuf {
        self.runs().pop().unwrap()
    }
}

pub(crate) fn record(run: &Path) -> RunFile {
    RunFile::read(&run.join("run.json")).unwrap()
}

/// The loss of each step of the attempts of each trial, by the value of the axis.
fn losses(run: &Path) -> BTreeMap<String, BTreeMap<u64, String>> {
    let table = TrialTable::read(&run.join("trials.csv")).unwrap();
    let mut all: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for row in &table.rows {
        let (trial, attempt) = (&row.fixed.trial, row.fixed.attempt);
        let path = run.join(format!("trials/{trial}/{attempt}/steps.csv"));
        let mut steps = csv::Reader::from_path(path).unwrap();
        let of_trial = all.entry(row.axes[0].clone()).or_default();
        for step in steps.records() {
            let step = step.unwrap();
            of_trial.insert(step[3].parse().unwrap(), step[4].to_owned());
        }
    }
    all
}

/// Gives the only checkpoint of a trial another step, as `after: best` leaves it where the last
/// evaluation was not the best.
fn make_earlier(kept: &Path, last: u64, step: u64) {
    let folder = kept.join(last.to_string());
    let header = fs::read_to_string(folder.join("checkpoint.json")).unwrap();
    let earlier = header.replace(&format!("\"step\": {last},"), &format!("\"step\": {step},"));
    assert_ne!(header, earlier);
    let earlier = earlier.replace(
        &format!("\"updates\": {last}"),
        &format!("\"updates\": {step}"),
    );
    // As one without a sum of its own.
    let earlier = earlier.replace("header_sha256", "other");
    fs::write(folder.join("checkpoint.json"), earlier).unwrap();
    fs::rename(&folder, kept.join(step.to_string())).unwrap();
}

#[test]
fn a_finished_continuation_is_not_gone_on_with_from_an_earlier_step_and_may_be_rerun() {
    let place = Place::with_a_run();
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let continued = place.newest();
    for trial in record(&continued).plan {
        let kept = continued.join(format!("trials/{trial}/checkpoint"));
        make_earlier(&kept, 40, 30);
    }
    let repeated = place.continues("x", &LONGER);
    let told = "every trial already has its result; more steps (`--set train.steps=…`) start a new \
                run, `--rerun completed` runs them again";
    assert!(
        repeated.status == Some(0) && repeated.stderr.contains(told),
        "{repeated:?}"
    );
    assert_eq!(place.runs().len(), 2);

    let ended = place.continues("x", &[&LONGER[..], &["--rerun", "completed"]].concat());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert_eq!(place.newest(), continued);
    let table = TrialTable::read(&continued.join("trials.csv")).unwrap();
    let begun = table.rows.iter().map(|row| row.fixed.resumed_at_step);
    assert_eq!(begun.collect::<Vec<_>>(), [Some(20); 4]);
}

#[test]
fn another_continuation_is_not_told_to_keep_trials_of_one() {
    let place = Place::with_a_run();
    let source = place.newest();
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let one = "sweep.grid={train.optimizer.learning_rate: [1.0e-3]}";
    let fewer = [&LONGER[..], &["--set", one, "--dry-run"]].concat();
    let said = place.continues(source.to_str().unwrap(), &fewer);
    let said = format!("{}{}", said.stdout, said.stderr);
    assert!(
        said.contains("starting a new run") && !said.contains("--keep"),
        "{said}"
    );
}

#[test]
fn the_command_that_retries_trials_of_a_continuation_is_told_and_does() {
    let place = Place::with_a_run();
    let endless = [
        "--set",
        "train.steps=100000000",
        "--set",
        "train.checkpoint.every_steps=100000000",
        "--set",
        "train.evaluate.every=100000000",
        "--set",
        "run.timeout=1s",
    ];
    let ended = place.continues("x", &endless);
    let command = format!(
        "`kiln run x.yaml --continue x {} --rerun timed-out` retries 2 trials",
        endless.join(" ")
    );
    assert!(
        ended.status == Some(1) && ended.stderr.contains(&command),
        "{}",
        ended.stderr
    );
    let retry = ["--rerun", "timed-out", "--dry-run"];
    let retried = place.continues("x", &[&endless[..], &retry].concat());
    assert!(
        retried.stdout.contains("would resume") && retried.stdout.contains("2 of 2 trials"),
        "{}{}",
        retried.stdout,
        retried.stderr
    );

    // `after` does not choose the checkpoint of a trial that was stopped.
    let stopped = place.newest();
    for trial in record(&stopped).plan {
        let kept = stopped.join(format!("trials/{trial}/checkpoint"));
        let steps = Checkpoints::new(kept.clone(), trial).steps();
        let last = steps.into_iter().max().unwrap();
        make_earlier(&kept, last, last - 1);
    }
    let again = [&endless[..], &["--fresh", "--dry-run"]].concat();
    let again = place.continues("x", &again).stderr;
    assert!(
        again.contains("so training goes on from there") && !again.contains("checkpoint.after"),
        "{again}"
    );
}

#[test]
fn a_continuation_says_where_in_its_schedule_it_begins() {
    let place = Place::with_a_run();
    let set = "train.learning_rate_schedule={kind: cosine, warmup_steps: 5}";
    let ended = place.continues("x", &[&LONGER[..], &["--set", set]].concat());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("goes on at step 21 of 40, after its warm-up of 5 steps"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_continued_run_has_the_losses_of_a_longer_one_and_records_what_it_came_from() {
    let place = Place::with_a_run();
    let source = place.newest();
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("continuing results/x/20"),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("goes on at step"), "a constant rate");
    let continued = place.newest();
    place.succeeds(&["run", "x.yaml", "--set", "train.steps=40"]);
    let undisturbed = place.newest();
    assert_eq!(place.runs().len(), 3);

    let (of_all, later) = (losses(&undisturbed), losses(&continued));
    assert_eq!(of_all.len(), 2);
    for (rate, steps) in &of_all {
        let expected: BTreeMap<_, _> = steps.clone().into_iter().filter(|it| it.0 > 20).collect();
        assert_eq!((expected.len(), &expected), (20, &later[rate]));
    }

    // It is not taken for an undisturbed training, and says where it began.
    let (before, now, alone) = (record(&source), record(&continued), record(&undisturbed));
    assert!(now.plan.iter().all(|id| !alone.plan.contains(id)));
    assert!(alone.continues.is_empty());
    let table = TrialTable::read(&continued.join("trials.csv")).unwrap();
    for row in &table.rows {
        let origin = &now.continues[&row.fixed.trial];
        assert_eq!(
            (row.fixed.steps, row.fixed.resumed_at_step),
            (Some(40), Some(20))
        );
        assert!(before.plan.contains(&origin.trial));
        let kept = continued
            .join("../..")
            .join(origin.run.strip_prefix("results").unwrap())
            .join(format!("trials/{}/checkpoint", origin.trial));
        let (_, sum) = Checkpoints::new(kept, origin.trial.clone())
            .newest_whole()
            .unwrap();
        assert_eq!(sum, origin.sha256);
        assert_eq!(
            ContinuedFrom::of(&row.fixed),
            Some(ContinuedFrom::new(origin))
        );
    }
    let said = place
        .succeeds(&["report", continued.to_str().unwrap()])
        .stdout;
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("2 of 2 trials went on from checkpoints of x/20")
            && words.contains("(step 20): steps, samples and losses count from the beginning"),
        "{said}"
    );
    // A file of one of its trials is that trial with the same checkpoint alone.
    let (id, origin) = now.continues.first_key_value().unwrap();
    let named = format!("{}:{id}", continued.display());
    let written = place
        .succeeds(&["init", "one.yaml", "--from", &named])
        .stderr;
    let of_origin = format!("{}:{}", origin.run.display(), origin.trial);
    let command = format!("`kiln run one.yaml --continue {of_origin}` goes on from there");
    assert!(written.contains(&command), "{written}");
    let plan = place.succeeds(&["plan", "one.yaml", "--continue", &of_origin]);
    assert!(plan.stdout.contains(&id.to_string()), "{}", plan.stdout);
    let again = place.succeeds(&["reproduce", continued.to_str().unwrap()]);
    assert!(
        again.stdout.contains("losses equal to the bit: 2 of 2"),
        "{}",
        again.stdout
    );
}

#[test]
fn an_unfinished_continuation_is_resumed_by_the_same_command() {
    let place = Place::with_a_run();
    let source = place.newest();
    place.continues_the_first_trial();
    let begun = place.newest();

    // Neither without `--continue` nor with another run.
    let without = place.kiln(&["run", "x.yaml", "--set", "train.steps=40"]);
    assert_eq!(without.status, Some(2));
    assert!(
        without
            .stderr
            .contains("is unfinished and the experiment has changed since")
            && without
                .stderr
                .contains("`--continue`: it continued results/x/20")
            && without.stderr.contains("now no trial of another run"),
        "{}",
        without.stderr
    );
    // Every name that meant the source, and the run itself, resumes it.
    for named in ["x", "latest", "results/x/latest"] {
        let ended = place.continues(named, &[&LONGER[..], &["--dry-run"]].concat());
        assert!(
            ended.stdout.contains("would resume") && ended.stdout.contains("1 of 2 trials"),
            "{named}: {}{}",
            ended.stdout,
            ended.stderr
        );
    }
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert_eq!(place.newest(), begun);
    assert_eq!(record(&begun).launches.len(), 2);
    assert!(losses(&begun).values().all(|steps| steps.len() == 20));

    // Finished, it is the newest run, and the path of its source finds nothing left to do.
    let source = source.to_str().unwrap();
    let ended = place.continues(source, &LONGER);
    assert!(
        ended.status == Some(0) && ended.stderr.contains("every trial already has its result"),
        "{}",
        ended.stderr
    );
    // So does the name, which means the continuation now; not with one trial of its source alone.
    let repeated = place.continues("x", &LONGER);
    let told = "every trial already has its result";
    assert!(
        repeated.status == Some(0) && repeated.stderr.contains(told),
        "{repeated:?}"
    );
    let first = record(&begun).continues.into_values().next().unwrap().trial;
    place.refused(&format!("x:{first}"), &LONGER);
    assert_eq!(record(&begun).launches.len(), 2);
    assert_eq!(place.newest(), begun);
    let why = place.refused("x", &[&LONGER[..], &["--fresh"]].concat());
    assert!(
        why.contains("goes on after step 40, and `train.steps` is 40"),
        "{why}"
    );
    let ended = place.continues("x", &["--set", "train.steps=60"]);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        record(&place.newest())
            .continues
            .values()
            .all(|it| it.step == 40)
    );
}

#[test]
fn weights_that_an_unfinished_continuation_needs_stay_and_removed_ones_are_told() {
    let place = Place::with_a_run();
    let source = place.newest();
    let source = source.to_str().unwrap();
    place.continues_the_first_trial();
    let refused = place.kiln(&["rm", source, "--weights", "--yes"]);
    assert!(
        refused.status == Some(2)
            && refused
                .stderr
                .contains("which is unfinished, begins with the checkpoint of trial t"),
        "{}",
        refused.stderr
    );
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);

    let removed = place.succeeds(&["rm", source, "--weights", "--yes"]);
    assert!(
        removed
            .stdout
            .starts_with("removed the checkpoints of 2 trials of results/x/20"),
        "{}",
        removed.stdout
    );
    let why = place.refused(source, &[&LONGER[..], &["--fresh"]].concat());
    // `--rerun` retries trials of the newest run alone.
    assert!(
        why.contains("were removed by `kiln rm --weights` (20")
            && why.contains("`kiln reproduce results/x/20")
            && !why.contains("--rerun"),
        "{why}"
    );
    let newest = place.newest();
    let again = place.kiln(&["reproduce", newest.to_str().unwrap()]);
    assert!(
        again.status != Some(0)
            && again
                .stderr
                .contains("the checkpoints of the trial were removed by `kiln rm --weights` (20"),
        "{}",
        again.stderr
    );
}

#[test]
fn weights_stay_where_the_table_of_their_continuation_was_changed() {
    let place = Place::with_a_run();
    let source = place.newest();
    let source = source.to_str().unwrap();
    let ended = place.continues("x", &LONGER);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let newest = place.newest();
    for trial in record(&newest).continues.keys() {
        let own = newest.join("trials").join(trial.to_string());
        fs::remove_dir_all(own.join("checkpoint")).unwrap();
    }
    let table = newest.join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    let changed = text.replacen(",0.001,", ",0.5,", 1);
    assert_ne!(changed, text);
    fs::write(&table, changed).unwrap();
    let refused = place.kiln(&["rm", source, "--weights", "--yes"]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("which is unfinished"),
        "{}",
        refused.stderr
    );
    fs::write(&table, text).unwrap();
    place.succeeds(&["rm", source, "--weights", "--yes"]);
}

#[test]
fn what_may_not_be_continued_is_refused_before_the_first_trial() {
    let place = Place::with_a_run();
    let longer = |more: &[&'static str]| [&LONGER[..], more].concat();
    let swept = "train.optimizer.learning_rate=0.5";
    let cases: [(&str, Vec<&str>, &[&str]); 9] = [
        ("nowhere", longer(&[]), &["there is no such file or folder"]),
        ("x:tzz", longer(&[]), &["no trial `tzz`; the trials are t"]),
        (
            "x",
            vec![],
            &[
                "goes on after step 20, and `train.steps` is 20",
                "`--set train.steps=40`",
            ],
        ),
        (
            "x",
            longer(&["--set", "train.seed=5"]),
            &[
                "`train.seed` was 1, is now 5",
                "a continuation may change the number of steps",
            ],
        ),
        (
            "x",
            longer(&["--set", "train.batch_size=4"]),
            &["`effective batch size` was 2, is now 4"],
        ),
        (
            "x",
            longer(&["--set", "model.seq_len=9", "--set", "data.characters=5000"]),
            &["`data.characters` was 4000, is now 5000, `model.seq_len` was 8, is now 9"],
        ),
        (
            "x",
            longer(&["--set", "train.optimizer.kind=sgd"]),
            &["`train.optimizer.kind` was \"adamw\", is now \"sgd\""],
        ),
        (
            "x",
            longer(&["--set", swept]),
            &["could continue 2 trials", "name one: `--continue RUN:t"],
        ),
        (
            "x",
            longer(&["--rerun", "failed"]),
            &[
                "`--rerun` retries trials of a run, but the experiment has changed",
                "`train.steps`",
            ],
        ),
    ];
    for (named, more, wanted) in cases {
        let why = place.refused(named, &more);
        for part in wanted {
            assert!(why.contains(part), "{more:?}: {why}");
        }
    }
    assert_eq!(place.runs().len(), 1, "nothing was started");

    // A changed file of the checkpoint, then none, and a run that keeps none.
    let trials = place.newest().join("trials");
    let mut folders = fs::read_dir(&trials).unwrap().map(|it| it.unwrap().path());
    let trial = folders.next().unwrap();
    let id = trial.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(trial.join("checkpoint/20/model.safetensors"), "").unwrap();
    let named = format!("x:{id}");
    let one = [&LONGER[..], &["--set", swept]].concat();
    let why = place.refused(&named, &one);
    assert!(
        why.contains(
            "no checkpoint can be continued: the checkpoint of step 20: model.safetensors"
        ),
        "{why}"
    );
    fs::remove_dir_all(trial.join("checkpoint")).unwrap();
    let why = place.refused(&named, &one);
    assert!(why.contains("kept no weights"), "{why}");
    let without = EXPERIMENT
        .replace(
            "checkpoint: {every_steps: 10, after: last}",
            "clip_norm: 1.0",
        )
        .replace("name: x", "name: y");
    place.write("y.yaml", &without);
    place.succeeds(&["run", "y.yaml"]);
    let why = place.kiln(&[
        "run",
        "y.yaml",
        "--continue",
        "y",
        "--set",
        "train.steps=40",
    ]);
    assert!(
        why.status == Some(2)
            && why
                .stderr
                .contains("add `checkpoint: {every_steps: 500}` to `train`"),
        "{}",
        why.stderr
    );
}

#[test]
fn one_trial_may_be_continued_in_several_ways_from_the_checkpoint_that_was_kept() {
    let place = Place::with_a_run();
    let trial = record(&place.newest()).plan[0].clone();
    let kept = place.newest().join(format!("trials/{trial}/checkpoint"));
    make_earlier(&kept, 20, 10);
    let ways = [
        "--set",
        "train.steps=30",
        "--set",
        "sweep.grid={train.optimizer.learning_rate: [1.0e-3, 5.0e-4], train.clip_norm: [0.5, 1.0]}",
    ];
    let ended = place.continues(&format!("latest:{trial}"), &ways);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("made 20 steps, and its newest checkpoint is of step 10"),
        "{}",
        ended.stderr
    );
    let record = record(&place.newest());
    let origins = record.continues.values();
    assert!(
        record.plan.len() == 4
            && record.continues.len() == 4
            && origins
                .clone()
                .all(|origin| origin.trial == trial && origin.step == 10)
    );
}

#[test]
fn weights_of_an_earlier_step_than_the_tables_loss_are_told_as_that() {
    let place = Place::with_a_run();
    let of_earlier = "of each trial's step with the lowest validation loss";
    for (after, is_told) in [("last", false), ("best", true)] {
        // With some of these rates the loss rises again.
        let ended = place.succeeds(&[
            "run",
            "x.yaml",
            "--fresh",
            "--set",
            &format!("train.checkpoint.after={after}"),
            "--set",
            "train.evaluate.every=1",
            "--set",
            "train.checkpoint.every_steps=1",
            "--set",
            "sweep.grid={train.optimizer.learning_rate: [0.03, 0.1, 0.3, 1.0]}",
        ]);
        let run = place.newest();
        let table = TrialTable::read(&run.join("trials.csv")).unwrap();
        let mut rows = table.rows.iter().map(|row| &row.fixed);
        let is_lower = rows.any(|row| {
            let kept = run.join(format!("trials/{}/checkpoint", row.trial));
            let kept = Checkpoints::new(kept, row.trial.clone());
            kept.lowest_loss().unwrap() < row.valid_loss.unwrap()
        });
        assert_eq!(is_lower, is_told, "{after}");
        assert_eq!(
            ended.stdout.contains(of_earlier),
            is_told,
            "{}",
            ended.stdout
        );
    }
}
