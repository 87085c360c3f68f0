//! `kiln run --read-again`: a corrected pattern is read from the output that a run kept, and the
//! programs are not started.

use std::{fs, process::Command};

use serde_json::Value;

use crate::{
    provenance::git_in,
    scripted_child::{Ended, Place, variables},
};

const SWEEP: &str = "sweep: {grid: {model.values.n: [1, 2]}}";

/// A command that writes a line to `started` at its start, whose metric has this word before it.
fn model(word: &str) -> String {
    format!(
        "  argv: [sh, -c, 'echo \"$KILN_VALUE_N\" >>started; echo \"speed $KILN_VALUE_N.5\"']\n  \
         values: {{n: 1}}\n  metrics: {{speed: {{line: '{word} (\\S+)', better: high}}, seconds: \
         {{measured: wall_seconds}}}}"
    )
}

fn read_again(place: &Place, more: &[&str]) -> Ended {
    place.run("", &[&["--read-again", "latest"], more].concat())
}

#[test]
fn a_corrected_pattern_completes_the_trials_without_their_programs() {
    let place = Place::of_command(&model("sped"), SWEEP);
    let failed = place.run("", &[]);
    assert_eq!(failed.status, Some(1), "{failed:?}");
    let advice = "correct `model.metrics`, then `kiln run x.yaml --read-again results/x/";
    assert!(failed.stderr.contains(advice), "{failed:?}");
    assert!(!failed.stderr.contains("--rerun"), "{failed:?}");
    let repeated = place.run("", &[]);
    let told = "every trial already has its result; `--fresh` starts a new run";
    assert!(
        repeated.stderr.contains(told) && repeated.stderr.contains(advice),
        "{repeated:?}"
    );
    assert!(!repeated.stderr.contains("--rerun"), "{repeated:?}");
    assert_eq!(place.column("outcome"), ["failed", "failed"]);
    let (before, launches) = (place.rows(), place.run_file()["launches"].clone());
    let snapshots = fs::read(place.latest().join("snapshots.csv")).unwrap();
    place.write_command(&model("speed"), SWEEP);
    let plan = Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap());
    let told = "; `--read-again results/x/";
    assert!(plan.stderr.contains(told), "{plan:?}");
    let planned = read_again(&place, &["--dry-run"]);
    assert!(
        planned.stdout.contains("0 of 2 trials would run"),
        "{planned:?}"
    );
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let told =
        "2 of 2 trials are not started: their metrics are read again from the output that x/";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(place.runs(), 2);
    assert_eq!(place.column("outcome"), ["completed", "completed"]);
    assert_eq!(place.column("metric.speed"), ["1.5", "2.5"]);
    assert_eq!(place.column("reason"), ["", ""]);
    for (old, new) in before.iter().zip(place.rows()) {
        for column in [
            "trial",
            "attempt",
            "launch",
            "run_seconds",
            "started_utc",
            "trial_seconds",
            "window_seconds",
            "metric.seconds",
            "device_name",
            "peak_resident_bytes",
            "mean_cpu_cores",
        ] {
            assert_eq!(old[column], new[column], "{column}");
        }
        let from = "read_again: metrics read again from the output of attempt 1 in x/";
        assert!(new["notes"].contains(from), "{}", new["notes"]);
    }
    // Nothing was measured, so no launch was added to those that measured.
    assert_eq!(place.run_file()["launches"], launches);
    let taken = fs::read(place.latest().join("snapshots.csv")).unwrap();
    assert!(taken == snapshots);
    assert_eq!(place.attempts_with("stdout.txt"), 2);
    let resumed = place.run("", &[]);
    assert!(
        resumed.status == Some(0)
            && resumed
                .stderr
                .contains("every trial already has its result"),
        "{resumed:?}"
    );
    assert_eq!(place.runs(), 2);
    // The new run stands alone: its output can be read again too.
    place.write_command(&model("d"), SWEEP);
    let once_more = read_again(&place, &[]);
    assert_eq!(once_more.status, Some(0), "{once_more:?}");
    assert_eq!((place.runs(), place.rows().len()), (3, 2));
    for (first, last) in before.iter().zip(place.rows()) {
        assert_eq!(first["trial"], last["trial"]);
        let last = &last["notes"];
        assert!(last.contains(&oldest(&place)), "{last}");
    }
    assert_eq!(place.started(), ["1", "2"]);
}

#[test]
fn a_kept_output_that_cannot_be_read_refuses_the_whole_reading() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    let trial = place.rows()[1]["trial"].clone();
    let output = place
        .latest()
        .join("trials")
        .join(trial)
        .join("1/stdout.txt");
    fs::remove_file(&output).unwrap();
    std::os::unix::fs::symlink("stdout.txt", &output).unwrap();
    place.write_command(&model("speed"), SWEEP);
    let refused = read_again(&place, &[]);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("nothing is read again") && refused.stderr.contains("stdout.txt"),
        "{refused:?}"
    );
    assert_eq!((place.runs(), place.started().len()), (1, 2));
}

/// The name of the first run.
fn oldest(place: &Place) -> String {
    let entries = fs::read_dir(place.path("results/x")).unwrap().flatten();
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().unwrap());
    names
        .min_by_key(|name| {
            let run = place.path("results/x").join(name).join("run.json");
            let run: Value = serde_json::from_slice(&fs::read(run).unwrap()).unwrap();
            run["number"].as_u64()
        })
        .unwrap()
}

#[test]
fn rows_of_two_launches_stay_rows_of_two_launches() {
    let sweep = "sweep: {grid: {model.values.n: [1, 2]}, repeats: 4, together: [model.values.n]}";
    let place = Place::of_command(&model("sped"), sweep);
    place.run("", &["--only", &place.first_id()]);
    place.run("", &[]);
    let (before, launches) = (place.rows(), place.run_file()["launches"].clone());
    place.write_command(&model("speed"), sweep);
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let mut of_launches = place.column("launch");
    of_launches.sort();
    assert_eq!(of_launches, ["1", "2", "2", "2", "2", "2", "2", "2"]);
    for new in place.rows() {
        let mut rows = before.iter();
        let old = rows.find(|old| old["trial"] == new["trial"]).unwrap();
        for column in ["launch", "block", "round", "run_seconds", "started_utc"] {
            assert_eq!(old[column], new[column], "{column}");
        }
    }
    assert_eq!(place.run_file()["launches"], launches);
    let run = place.latest().display().to_string();
    let between = ["--between", "model.values.n", "--format", "json"];
    let compare = [&["compare", &run], &between[..]].concat();
    let compared = Ended::of(place.kiln(&compare).output().unwrap());
    let told = "begun in launch 1, ended in launch 2";
    assert!(compared.stdout.contains(told), "{compared:?}");
}

#[test]
fn added_blocks_run_the_old_and_the_added_values_in_one_launch() {
    let sweep = |values: &str, repeats: u64| {
        format!(
            "sweep: {{grid: {{model.values.n: [{values}]}}, repeats: {repeats}, together: \
             [model.values.n]}}"
        )
    };
    let place = Place::of_command(&model("sped"), &sweep("1, 2", 2));
    place.run("", &[]);
    place.write_command(&model("speed"), &sweep("1, 2, 3", 3));
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!((place.rows().len(), place.started().len()), (9, 4 + 5));
    for row in place.rows() {
        let is_old = row["block"] != "3" && row["metric.speed"] != "3.5";
        let launch = if is_old { "1" } else { "2" };
        assert_eq!(row["launch"], launch, "{row:?}");
    }
}

#[test]
fn a_run_that_goes_on_after_the_reading_keeps_what_made_the_rows() {
    let model = |word: &str| {
        format!(
            "  argv: [sh, train.sh, '{{n}}']\n  values: {{n: 1}}\n  metrics: {{speed: {{line: '{word} \
             (\\S+)'}}}}"
        )
    };
    let place = Place::of_command(&model("sped"), "sweep: {grid: {model.values.n: [1]}}");
    fs::write(place.path("train.sh"), ". ./model.sh; echo speed $1").unwrap();
    fs::write(place.path("model.sh"), "true").unwrap();
    let git = |arguments: &[&str]| git_in(&place.path(""), arguments);
    git(&["init", "-q"]);
    git(&["add", "train.sh", "model.sh", "x.yaml"]);
    git(&["commit", "-q", "-m", "first"]);
    let first = git(&["rev-parse", "HEAD"]);
    place.run("", &[]);
    fs::write(place.path("model.sh"), "true;").unwrap();
    place.write_command(&model("speed"), "sweep: {grid: {model.values.n: [1, 2]}}");
    git(&["commit", "-q", "-a", "-m", "another model"]);
    let second = git(&["rev-parse", "HEAD"]);
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.speed"), ["1.0", "2.0"]);
    assert_eq!(place.column("launch"), ["1", "2"]);
    let launches = place.run_file()["launches"].clone();
    let commits = [0_usize, 1].map(|launch| launches[launch]["git"]["commit"].clone());
    assert_eq!(commits, [first, second]);
    assert!(
        ended.stderr.contains("has changed since launch 1") && ended.stderr.contains("model.sh"),
        "{ended:?}"
    );
}

#[test]
fn a_file_that_cannot_be_copied_leaves_no_run() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.write_command(&model("speed"), SWEEP);
    let table = place.latest().join("snapshots.csv");
    fs::remove_file(&table).unwrap();
    fs::create_dir(&table).unwrap();
    let failed = read_again(&place, &[]);
    assert_eq!(failed.status, Some(3), "{failed:?}");
    let told = "it cannot be copied into the new run, which was therefore not made";
    assert!(failed.stderr.contains(told), "{failed:?}");
    assert_eq!((place.runs(), place.started().len()), (1, 2));
    fs::remove_dir(&table).unwrap();
    let ended = read_again(&place, &[]);
    assert_eq!((ended.status, place.runs()), (Some(0), 2), "{ended:?}");
}

/// A limit on the size of a file stands for a full disk.
#[test]
fn a_full_disk_is_told_with_the_file_and_the_room_that_the_attempts_need() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.write_command(&model("speed"), SWEEP);
    fs::write(place.latest().join("snapshots.csv"), vec![b'.'; 1 << 20]).unwrap();
    let kiln = place.kiln(&["run", "x.yaml"]);
    let mut limited = Command::new("bash");
    limited
        // In blocks of 1024 bytes.
        .args([
            "-c",
            "ulimit -f 512; exec \"$0\" run x.yaml --read-again latest",
        ])
        .arg(kiln.get_program())
        .envs(variables(&kiln))
        .current_dir(place.path(""));
    let failed = Ended::of(limited.output().unwrap());
    assert_eq!(failed.status, Some(3), "{failed:?}");
    let told = "so no run was made: their files are ";
    assert!(
        failed.stderr.contains("snapshots.csv: File too large") && failed.stderr.contains(told),
        "{failed:?}"
    );
    assert!(!failed.stderr.contains("a trial needs"), "{failed:?}");
    assert_eq!((place.runs(), place.started().len()), (1, 2));
}

#[test]
fn a_trial_that_failed_again_is_told_and_runs_only_when_it_is_asked_for() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    let retries = format!("{SWEEP}\nrun: {{devices: cpu, retries: 1}}");
    place.write_command(&model("spread"), &retries);
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let told = "2 of them failed again (`--rerun failed`";
    assert!(
        ended.stderr.contains("2 of 2 trials are not started") && ended.stderr.contains(told),
        "{ended:?}"
    );
    assert_eq!(place.column("attempt"), ["1", "1"]);
    let resumed = place.run("", &[]);
    let told = "every trial already has its result";
    assert!(resumed.stderr.contains(told), "{resumed:?}");
    assert_eq!(place.started(), ["1", "2"]);
    let asked_for = place.run("", &["--rerun", "failed"]);
    assert_eq!(asked_for.status, Some(1), "{asked_for:?}");
    assert_eq!(place.column("attempt"), ["1", "1", "2", "2"]);
    assert_eq!(place.column("launch"), ["1", "1", "2", "2"]);
    assert_eq!(place.started(), ["1", "2", "1", "2"]);
}

#[test]
fn only_the_selected_trials_are_read_again() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.write_command(&model("speed"), SWEEP);
    let ended = read_again(&place, &["--only", &place.first_id()]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let told = "1 of the 1 trials of `--only` are not started";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(place.column("trial"), [place.first_id()]);
    assert_eq!(place.started().len(), 2);
}

#[test]
fn a_run_without_its_output_is_refused_with_the_reason() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.write_command(&model("speed"), SWEEP);
    let of_commit = place.run("", &["--read-again", "HEAD:results/x/latest"]);
    let told = "a commit has the tables of a run and not the output of its trials";
    assert!(
        of_commit.status == Some(2) && of_commit.stderr.contains(told),
        "{of_commit:?}"
    );
    fs::remove_dir_all(place.latest().join("trials")).unwrap();
    let of_clone = read_again(&place, &[]);
    let told = "`trials/` is missing: git ignores it, so a clone has no output";
    assert!(
        of_clone.status == Some(2) && of_clone.stderr.contains(told),
        "{of_clone:?}"
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_run_of_another_machine_is_told_and_stays_one() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.move_elsewhere();
    place.write_command(&model("speed"), SWEEP);
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let told = "2 of 2 trials that are read again ran on another machine";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(
        place.run_file()["launches"][0]["machine_id"],
        "0123456789ab"
    );
}

#[test]
fn a_run_and_its_reading_are_not_two_samples() {
    let place = Place::of_command(&model("speed"), SWEEP);
    place.run("", &[]);
    let old = fs::canonicalize(place.latest()).unwrap();
    let ended = read_again(&place, &[]);
    assert_eq!((ended.status, place.runs()), (Some(0), 2), "{ended:?}");
    let sides = [old, place.latest()].map(|run| run.display().to_string());
    let compare = ["compare", &sides[0], &sides[1]];
    let compared = Ended::of(place.kiln(&compare).output().unwrap());
    let told = "both sides have the same attempts (1 row), whose output was read twice";
    assert!(compared.stdout.contains(told), "{compared:?}");
    assert!(!compared.stdout.contains("in turns"), "{compared:?}");
}

#[test]
fn trials_that_the_run_does_not_have_or_that_ended_otherwise_run() {
    let model = |word: &str| {
        format!(
            "  argv: [sh, -c, 'echo \"$KILN_VALUE_N\" >>started; echo \"speed 1$KILN_VALUE_N\"; exit \
             \"$KILN_VALUE_N\"']\n  values: {{n: 0}}\n  metrics: {{speed: {{line: '{word} (\\S+)'}}}}"
        )
    };
    let sweep = |values: &str| format!("sweep: {{grid: {{model.values.n: [{values}]}}}}");
    let place = Place::of_command(&model("sped"), &sweep("0, 2"));
    place.run("", &[]);
    place.write_command(&model("speed"), &sweep("0, 2, 3"));
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let told = "the others run (not ended by itself with status 0: 1; not in that run: 1)";
    assert!(
        ended.stderr.contains("1 of 3 trials are not started") && ended.stderr.contains(told),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["completed", "failed", "failed"]);
    assert_eq!(place.column("metric.speed"), ["10.0", "12.0", "13.0"]);
    assert_eq!(place.started(), ["0", "2", "2", "3"]);
    place.write_command(&model("speed"), &sweep("7"));
    let refused = read_again(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let told = "no trial of this experiment can be read again (not in that run: 1)";
    assert!(refused.stderr.contains(told), "{refused:?}");
    assert_eq!((place.runs(), place.started().len()), (2, 4));
}

#[test]
fn an_experiment_that_measures_something_else_is_refused() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    let with_window = format!("{}\n  window: {{from: '^speed'}}", model("speed"));
    place.write_command(&with_window, SWEEP);
    let refused = read_again(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("`model.window.from`: was (not set), is now \"^speed\""),
        "{refused:?}"
    );
    place.write("train: {steps: 10}");
    let refused = read_again(&place, &[]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("and `model.kind` is `matmul`"),
        "{refused:?}"
    );
    assert_eq!((place.runs(), place.started().len()), (1, 2));
}

#[test]
fn a_run_of_trainings_and_one_that_is_being_run_are_refused() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    place.write_command(&model("speed"), SWEEP);
    let refused = read_again(&place, &[]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("its `model.kind` is `matmul`"),
        "{refused:?}"
    );
    let mut running = place.start_waiting_command();
    let refused = read_again(&place, &[]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("this run is being run (process "),
        "{refused:?}"
    );
    place.release();
    assert!(running.wait().unwrap().success());
}

#[test]
fn output_of_which_the_middle_is_omitted_is_not_read_again() {
    let model = |word: &str| {
        format!(
            "  argv: [sh, -c, 'echo >>started; yes speed 1 | head -c 2000000; echo; echo speed 3']\n  \
             metrics: {{speed: {{line: '^{word} (\\S+)', take: mean}}}}"
        )
    };
    let place = Place::of_command(&model("sped"), "");
    place.run("", &[]);
    place.write_command(&model("speed"), "");
    let refused = read_again(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let told = "(output not whole, of which the first MiB and the last 64 KiB are kept: 1)";
    assert!(refused.stderr.contains(told), "{refused:?}");
    assert_eq!((place.runs(), place.started().len()), (1, 1));
}

#[test]
fn the_last_number_of_output_of_which_the_middle_is_omitted_is_read_again() {
    let model = |word: &str| {
        format!(
            "  argv: [sh, -c, 'echo >>started; yes speed 1 | head -c 2000000; echo; echo speed 3']\n  \
             metrics: {{speed: {{line: '^{word} (\\S+)'}}}}"
        )
    };
    let place = Place::of_command(&model("sped"), "");
    place.run("", &[]);
    place.write_command(&model("speed"), "");
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.speed"), ["3.0"]);
    let notes = place.column("notes");
    assert!(
        notes[0].contains("read_again: metrics read again from the output of attempt 1")
            && notes[0].contains("the middle of an output is not kept"),
        "{notes:?}"
    );
    assert_eq!((place.runs(), place.started().len()), (2, 1));
}

#[test]
fn a_new_run_for_other_metrics_alone_names_the_option() {
    let place = Place::of_command(&model("sped"), SWEEP);
    place.run("", &[]);
    place.write_command(&model("speed"), SWEEP);
    let ended = place.run("", &[]);
    let told = "starting a new run; `--read-again results/x/";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(place.started().len(), 4);
    place.write_command(&model("speed"), "sweep: {grid: {model.values.n: [1, 3]}}");
    let other = place.run("", &[]);
    assert!(
        other.stderr.contains("starting a new run") && !other.stderr.contains("--read-again"),
        "{other:?}"
    );
}

#[test]
fn a_plan_names_the_option_only_if_a_trial_can_be_read_again() {
    let names_it = |script: &str, more: &str, meddle: &dyn Fn(&Place)| {
        let model = |word: &str| {
            format!("  argv: [sh, train.sh]\n  metrics: {{speed: {{line: '{word} (\\S+)'{more}}}}}")
        };
        let place = Place::of_command(&model("sped"), "");
        fs::write(place.path("train.sh"), script).unwrap();
        place.run("", &[]);
        place.write_command(&model("speed"), "");
        meddle(&place);
        let plan = Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap());
        assert!(plan.stderr.contains("starting a new run"), "{plan:?}");
        plan.stderr.contains("--read-again")
    };
    let nothing = |_: &Place| ();
    let elsewhere = "}, acc: {json: '/nowhere/acc.json', at: x, optional: true";
    let long = "yes speed 1 | head -c 2000000; echo; echo speed 3";
    assert!(names_it("echo speed 1", "", &nothing));
    assert!(names_it(long, "", &nothing));
    assert!(!names_it(long, ", take: mean", &nothing));
    assert!(!names_it("echo speed 1", elsewhere, &nothing));
    assert!(!names_it("echo speed 1; exit 2", "", &nothing));
    assert!(!names_it("echo speed 1", "", &|place| {
        fs::remove_dir_all(place.latest().join("trials")).unwrap();
    }));
    assert!(!names_it("echo speed 1", "", &|place| {
        fs::write(place.path("train.sh"), "echo speed 2").unwrap();
    }));
}

#[test]
fn a_window_that_never_came_is_advised_by_what_mends_it() {
    let model = |more: &str| {
        format!(
            "  argv: [sh, -c, 'echo >>started; echo go']\n  metrics: {{wall: {{measured: \
             wall_seconds{more}}}}}\n  window: {{from: '^begin'}}"
        )
    };
    let place = Place::of_command(&model(""), "");
    let failed = place.run("", &[]);
    assert_eq!(failed.status, Some(1), "{failed:?}");
    let told = "correct `model.window`, then `kiln run x.yaml` starts a new run";
    assert!(
        failed.stderr.contains(told) && !failed.stderr.contains("`model.metrics`"),
        "{failed:?}"
    );
    place.write_command(&model(", optional: true"), "");
    let ended = read_again(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["completed"]);
    assert_eq!(place.started().len(), 1);
}

#[test]
fn output_outside_of_the_attempt_is_told_where_the_run_ends() {
    let model = "  argv: [sh, -c, 'echo speed 1']\n  metrics: {speed: {json: speed.json, at: x}}";
    let place = Place::of_command(model, "");
    let failed = place.run("", &[]);
    assert_eq!(failed.status, Some(1), "{failed:?}");
    let told = "cannot be read again (a metric in a file outside of the attempt's folder)";
    assert!(
        failed.stderr.contains(told) && !failed.stderr.contains("--read-again"),
        "{failed:?}"
    );
}
