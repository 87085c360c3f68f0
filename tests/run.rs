//! `kiln run` with scripted children: every end of a trial has its outcome, its row and its exit
//! status.

use std::{collections::HashMap, fs, io::Read, process::Command};

use kiln_core::record::tables::TRIALS;

use crate::scripted_child::{Ended, Place, program::write_program, read_until, wait_until};

const FOUR: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 3, 4]}}";

#[test]
fn a_sweep_completes_and_leaves_its_tables() {
    let place = Place::with(FOUR);
    let ended = place.run("completes", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("trials run on the CPU"), "{ended:?}");
    assert!(
        ended.stdout.contains("4 trials: 4 completed") && ended.stdout.contains("summary.csv"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["completed"; 4]);
    assert_eq!(place.column("number"), ["1", "2", "3", "4"]);
    assert_eq!(place.column("train.batch_size"), ["1", "2", "3", "4"]);
    let row = &place.rows()[0];
    for (column, cell) in [
        ("kiln_table", TRIALS.version),
        ("attempt", "1"),
        ("launch", "1"),
        ("samples_per_second", "64.0"),
        ("train_loss", "2.25"),
    ] {
        assert_eq!(row[column], cell, "{column}");
    }
    assert!(
        row["peak_resident_bytes"].is_empty()
            || row["peak_resident_bytes"].parse::<u64>().unwrap() > 0
    );
    assert_eq!(row["concurrent_trials"], "1");
    assert!(row["notes"].contains("mfu: no peak is known"));
    let latest = fs::read_link(place.latest()).unwrap();
    assert!(latest.is_relative() && latest.components().count() == 1);
    let run = place.run_file();
    assert_eq!(run["plan"].as_array().unwrap().len(), 4);
    let launch = &run["launches"][0];
    assert_eq!(launch["ended"]["how"], "finished");
    assert_eq!(launch["command_line"][0], "kiln");
    assert_eq!(
        launch["versions"]["kiln_sha256"].as_str().unwrap().len(),
        64
    );
    assert!(!place.latest().join(".reserve").exists());
    let ignored = fs::read_to_string(place.path("results/.gitignore")).unwrap();
    assert!(
        ignored.contains("*/*/trials/") && ignored.contains("*/latest\n"),
        "{ignored}"
    );
}

#[test]
fn tables_are_committed_where_the_project_ignores_csv_and_a_rule_that_wins_is_named() {
    let place = Place::with("train: {steps: 10}");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git.current_dir(place.path("")).args(arguments).output();
        let ended = Ended::of(output.unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        ended.stdout
    };
    git(&["init", "-q"]);
    fs::write(place.path(".gitignore"), "*.csv\n*.json\n").unwrap();
    let ended = place.run("completes", &[]);
    assert!(ended.stdout.contains("Worth committing"), "{ended:?}");
    fs::write(place.latest().join(".run.json.new"), "half").unwrap();
    git(&["add", "-A"]);
    let added = git(&["ls-files", "results"]);
    for name in ["run.json", "trials.csv", "summary.csv", "snapshots.csv"] {
        assert!(added.contains(&format!("/{name}\n")), "{name}: {added}");
    }
    assert!(
        ["/trials/", "samples.csv", ".new"]
            .iter()
            .all(|name| !added.contains(name)),
        "{added}"
    );
    fs::write(place.path(".gitignore"), "# large\nresults/\n").unwrap();
    let ended = place.run("completes", &["--fresh"]);
    assert!(
        ended
            .stdout
            .contains("git ignores the tables of this run (rule .gitignore:2 `results/`)"),
        "{ended:?}"
    );
    assert!(!ended.stdout.contains("Worth committing"), "{ended:?}");
}

#[test]
fn every_bad_end_is_a_row_with_its_reason_and_the_next_trial_starts() {
    type Case = (&'static str, &'static str, &'static str, &'static str);
    let failed: [Case; 8] = [
        (
            "fails",
            "failed",
            "failed after",
            "something went wrong here",
        ),
        ("says_failed", "failed", "the data is of no use", ""),
        (
            "aborts",
            "failed",
            "crashed by signal 6 (SIGABRT)",
            "at step 3",
        ),
        (
            "segfaults",
            "failed",
            "crashed by signal 11 (SIGSEGV)",
            "stderr.txt",
        ),
        ("no_finished", "failed", "without a `finished` message", ""),
        (
            "no_result_file",
            "failed",
            "its result cannot be read",
            "trial.json",
        ),
        ("huge_stderr", "failed", "failed", "the end of it"),
        ("bad_file", "failed", "same version", "unknown key"),
    ];
    let killed: [Case; 1] = [(
        "is_killed",
        "killed",
        "was killed from outside by signal 9 (SIGKILL)",
        "at step 3",
    )];
    let results: [Case; 5] = [
        ("diverges", "diverged", "loss is NaN at step 4", ""),
        ("runs_out", "oom", "device memory ran out", ""),
        ("cuda_oom", "oom", "ran out of memory", "CUDA out of memory"),
        ("crashes_after", "completed", "", ""),
        ("garbage", "completed", "", ""),
    ];
    // One run for all ends that give the same exit status; its last trial completes.
    for (cases, status) in [(&failed[..], 1), (&killed[..], 1), (&results[..], 0)] {
        let batches: Vec<String> = (1..=cases.len() + 1)
            .map(|batch| batch.to_string())
            .collect();
        let place = Place::with(&format!(
            "train: {{steps: 10}}\nsweep: {{grid: {{train.batch_size: [{}]}}}}",
            batches.join(", ")
        ));
        let mut kiln = place.kiln(&["run", "x.yaml"]);
        for (batch, (scenario, ..)) in batches.iter().zip(cases) {
            kiln.env(format!("SCRIPTED_CHILD_{batch}"), scenario);
        }
        let ended = Ended::of(kiln.output().unwrap());
        assert_eq!(ended.status, Some(status), "{ended:?}");
        let rows = place.rows();
        for ((scenario, outcome, reason, more), row) in cases.iter().zip(&rows) {
            assert_eq!(row["outcome"], *outcome, "{scenario}: {}", row["reason"]);
            assert!(
                row["reason"].contains(reason) && row["reason"].contains(more),
                "{scenario}: {}",
                row["reason"]
            );
        }
        assert_eq!(
            (rows.len(), &*rows[cases.len()]["outcome"]),
            (cases.len() + 1, "completed")
        );
        assert_eq!(place.processes(), [0_u32; 0]);
    }
}

#[test]
fn a_machine_that_cannot_run_it_stops_the_run_and_a_better_one_goes_on() {
    let place = Place::with(FOUR);
    let ended = place.run("no_device", &[]);
    assert_eq!(
        (ended.status, place.column("outcome")),
        (Some(3), vec!["interrupted".to_owned()]),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .contains("found no engine or device on this machine")
            && ended.stderr.contains("libtorch is not there"),
        "{ended:?}"
    );
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(
        place.column("outcome"),
        [
            "interrupted",
            "completed",
            "completed",
            "completed",
            "completed"
        ]
    );
}

#[test]
fn garbage_on_standard_output_is_counted_and_huge_standard_error_is_bounded() {
    let place = Place::with("train: {steps: 10}");
    place.run("garbage", &[]);
    assert!(
        place.column("notes")[0].contains("stdout: 3 lines are not messages"),
        "{:?}",
        place.column("notes")
    );
    place.run("huge_stderr", &["--fresh"]);
    let kept = fs::metadata(place.attempts()[0].join("stderr.txt"))
        .unwrap()
        .len();
    assert!((1_000_000..1_200_000).contains(&kept), "{kept}");
}

/// The limits by themselves are tested where they are kept, without waiting
/// (`src/schedule/attempt/tests.rs`).
#[test]
fn a_trial_over_its_time_and_a_silent_one_are_stopped() {
    for (key, scenario, words) in [
        ("timeout", "hangs", "its time limit (`run.timeout` 1s)"),
        ("stall", "silent", "sent no message for 1s (`run.stall`)"),
    ] {
        let place = Place::with(&format!("train: {{steps: 10}}\nrun: {{{key}: 1s}}"));
        let ended = place.run(scenario, &[]);
        assert_eq!(
            (ended.status, place.column("outcome")),
            (Some(1), vec!["timed-out".to_owned()]),
            "{ended:?}"
        );
        assert!(
            place.column("reason")[0].contains(words),
            "{:?}",
            place.column("reason")
        );
        assert_eq!(place.processes(), [0_u32; 0]);
    }
}

#[test]
fn a_grandchild_does_not_outlive_its_trial() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("grandchild", &[]).status, Some(0));
    assert!(place.attempts()[0].join("grandchild").exists());
    assert_eq!(place.processes(), [0_u32; 0]);
}

#[test]
fn only_failed_trials_are_tried_again() {
    let place = Place::with("train: {steps: 10}\nrun: {retries: 1}");
    assert_eq!(place.run("fails_first", &[]).status, Some(0));
    assert_eq!(place.column("outcome"), ["failed", "completed"]);
    assert_eq!(place.column("attempt"), ["1", "2"]);
    place.run("fails", &["--fresh"]);
    assert_eq!(place.column("outcome"), ["failed", "failed"]);
    place.run("diverges", &["--fresh"]);
    assert_eq!(place.column("outcome"), ["diverged"]);
}

#[test]
fn repeats_are_interleaved() {
    let place =
        Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}, repeats: 2}");
    place.run("completes", &["--quiet"]);
    assert_eq!(place.column("train.batch_size"), ["1", "2", "2", "1"]);
    assert_eq!(place.column("seed"), ["1", "1", "2", "2"]);
}

#[test]
fn a_dry_run_says_what_is_missing_here() {
    let place = Place::with(FOUR);
    let data = "data={kind: text, path: nowhere.txt}";
    let missing = ["--dry-run", "--set", "model={kind: mlp}", "--set", data];
    let listed = place.run("completes", &missing);
    assert!(
        listed.status == Some(0)
            && listed.stdout.contains("4 of 4 trials would run")
            && listed.stdout.contains("  batch_size=1\n")
            && listed.stderr.contains("no trial could start here: ")
            && listed.stderr.contains("nowhere.txt"),
        "{listed:?}"
    );
}

#[test]
fn a_dry_run_for_programs_is_one_event() {
    let place = Place::with(FOUR);
    let events = |more: &[&str]| -> Vec<serde_json::Value> {
        let json = [&["--dry-run", "--progress", "json"], more].concat();
        let listed = place.run("completes", &json);
        let lines = listed.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let [event] = &events(&[])[..] else {
        panic!("one event")
    };
    assert_eq!(
        (&event["event"], &event["resumes"], &event["trials"]),
        (&"dry_run".into(), &serde_json::Value::Null, &4.into())
    );
    let to_run = event["to_run"].as_array().unwrap();
    assert_eq!(to_run.len(), 4);
    assert!(to_run.iter().all(|one| one["before"].is_null()));
    let first = to_run[0]["trial"].as_str().unwrap();
    place.run("is_killed", &["--only", first]);
    let again = &events(&[])[0];
    assert!(
        again["resumes"].as_str().unwrap().contains("results/x/"),
        "{again}"
    );
    assert_eq!(again["to_run"][0]["before"], "killed");
}

#[test]
fn a_dry_run_says_that_listed_devices_would_have_no_work() {
    let lines = FOUR.replace("]}}", "]}, repeats: 2}\nrun: {devices: [0, 1, 2, 3]}");
    let place = Place::with(&lines);
    let said = "2 rounds of repeats on 4 devices: 2 have no work";
    let listed = place.run("completes", &["--dry-run"]);
    assert!(listed.stderr.contains(said), "{listed:?}");
    let told = place.run("completes", &["--dry-run", "--progress", "json"]);
    assert!(told.stdout.contains(said), "{told:?}");
    let planned = place.kiln(&["plan", "x.yaml"]).output().unwrap();
    let planned = String::from_utf8(planned.stdout).unwrap();
    assert!(planned.contains(said), "{planned}");
}

/// The ids of the trials that `--dry-run` lists.
fn ids_of(listed: &str) -> Vec<&str> {
    let trials = listed.lines().skip(1);
    trials
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[test]
fn only_runs_the_trials_named_and_a_later_run_the_others() {
    let place = Place::with(FOUR);
    let listed = place.run("completes", &["--dry-run"]);
    let ids = ids_of(&listed.stdout);
    assert!(
        listed.stdout.contains("would start a new run") && ids.len() == 4,
        "{listed:?}"
    );
    assert!(!place.path("results").exists());
    let ended = place.run(
        "completes",
        &["--only", &format!("{},{}", ids[2], &ids[1][..6])],
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("without `--only`"), "{ended:?}");
    assert_eq!(place.column("train.batch_size"), ["2", "3"]);
    let unknown = place.run("completes", &["--only", "zzzz"]);
    assert_eq!(unknown.status, Some(2));
    assert!(
        unknown
            .stderr
            .contains("x.yaml: `--only zzzz`: the plan has no such trial"),
        "{unknown:?}"
    );
    place.run("completes", &[]);
    assert_eq!(place.column("train.batch_size"), ["2", "3", "1", "4"]);
    assert_eq!(place.runs(), 1);
}

#[test]
fn only_takes_no_file_for_an_id_and_its_trials_alone_decide_the_exit_status() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 3]}}");
    let run = |scenario: &str, arguments: &[&str]| {
        let arguments = [&["run"], arguments].concat();
        Ended::of(
            place
                .kiln(&arguments)
                .env("SCRIPTED_CHILD", scenario)
                .output()
                .unwrap(),
        )
    };
    let listed = place.run("completes", &["--dry-run"]);
    let ids = ids_of(&listed.stdout);
    assert_eq!(run("fails", &["--only", ids[0], "x.yaml"]).status, Some(1));
    let others = run("completes", &["--only", ids[1], "--only", ids[2], "x.yaml"]);
    assert_eq!(
        (others.status, place.column("outcome")),
        (
            Some(0),
            vec!["failed".to_owned(), "completed".into(), "completed".into()]
        ),
        "{others:?}"
    );
    let again = run("completes", &["--only", ids[1], "x.yaml"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert_eq!(
        run("completes", &["--only", ids[0], "x.yaml"]).status,
        Some(1),
        "it has failed and is not tried again"
    );
    assert_eq!(
        run("completes", &["x.yaml"]).status,
        Some(1),
        "without `--only` every trial counts"
    );
    assert_eq!(run("completes", &["--only", "", "x.yaml"]).status, Some(2));
    assert_eq!(
        run("completes", &["--rerun", "timed-out,failed", "x.yaml"]).status,
        Some(0)
    );
    assert_eq!(place.column("attempt"), ["1", "1", "1", "2"]);
}

#[test]
fn a_child_of_another_protocol_is_refused_by_its_version() {
    for scenario in ["speaks_2", "speaks_2_on_and_on"] {
        let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
        let ended = place.run(scenario, &[]);
        let rows = place.rows();
        let row = &rows[0];
        // The next trial would end in the same way: the launch ends, and a matching program goes on.
        assert_eq!(
            (ended.status, rows.len(), row["outcome"].as_str()),
            (Some(3), 1, "interrupted"),
            "{ended:?}"
        );
        for words in [
            "speaks version 2",
            "supports only version 1",
            "`kiln-trial` from the same version",
        ] {
            assert!(
                row["reason"].contains(words),
                "{scenario}: {}",
                row["reason"]
            );
        }
        assert_eq!(
            (row["train_loss"].as_str(), place.processes()),
            ("", Vec::new()),
            "{scenario}"
        );
        assert!(
            ended
                .stderr
                .contains("is of another version, so no more are started"),
            "{ended:?}"
        );
        // Nothing was measured by it, so a matching program has the run for itself.
        let goes_on = place.run("completes", &[]);
        assert_eq!(goes_on.status, Some(0), "{goes_on:?}");
        assert!(!goes_on.stderr.contains("trials of both"), "{goes_on:?}");
        let ended: Vec<String> = place.column("outcome");
        assert_eq!(ended, ["interrupted", "completed", "completed"]);
    }
}

#[test]
fn a_child_that_dies_before_it_speaks_leaves_a_named_device() {
    let place = Place::with("train: {steps: 10}");
    place.run("bad_file", &[]);
    let model = place.run_file()["launches"][0]["machine"]["cpu"]["model"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(place.column("device_name"), [model]);
}

#[test]
fn a_child_gets_no_experiment_keys_and_no_gpu() {
    let place = Place::with("train: {steps: 10}");
    fs::create_dir(place.path("data")).unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    kiln.env("SCRIPTED_CHILD", "environment")
        .env("KILN_DATA", "data")
        .env("KILN_LIBTORCH", "cpu")
        .env("KILN_NVML_LIB", "/nowhere");
    assert!(
        kiln.env("KILN_TRAIN__SEED", "3")
            .status()
            .unwrap()
            .success()
    );
    let environment = fs::read_to_string(place.attempts()[0].join("environment")).unwrap();
    assert!(
        !environment.contains("KILN_TRAIN__") && environment.contains("CUDA_VISIBLE_DEVICES=\n"),
        "{environment}"
    );
    let data = environment
        .lines()
        .find_map(|line| line.strip_prefix("KILN_DATA="))
        .unwrap();
    assert!(std::path::Path::new(data).is_absolute());
    let trial_file =
        fs::read_to_string(place.attempts()[0].parent().unwrap().join("trial.yaml")).unwrap();
    assert!(
        trial_file.contains("device: cpu") && trial_file.contains(&format!("data_folder: {data}")),
        "{trial_file}"
    );
    assert!(!trial_file.contains("auto"), "{trial_file}");
}

#[test]
fn a_missing_trial_program_is_said_before_anything_is_made() {
    let place = Place::with("train: {steps: 10}");
    for (program, words) in [
        ("no/such/program", "the trial program does not exist"),
        ("x.yaml", "is not executable"),
        (".", "this is not a program"),
    ] {
        let mut kiln = place.kiln(&["run", "x.yaml"]);
        let ended = Ended::of(kiln.env("KILN_TRIAL", program).output().unwrap());
        assert_eq!(ended.status, Some(3));
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
    assert!(!place.path("results").exists());
}

#[test]
fn gpus_that_are_not_there_cannot_be_asked_for() {
    let place = Place::with("train: {steps: 10}");
    for device in ["all", "0", "GPU-12345678"] {
        let ended = place.run("completes", &["--device", device]);
        assert_eq!(ended.status, Some(3), "{device}: {ended:?}");
        assert!(ended.stderr.contains("`run.devices"), "{device}: {ended:?}");
    }
    let flex = place.run("completes", &["--engine", "flex", "--device", "cpu"]);
    assert_eq!(
        (flex.status, place.column("engine")[0].as_str()),
        (Some(0), "flex")
    );
}

#[test]
fn a_second_run_of_the_same_experiment_says_who_holds_it() {
    let place = Place::with("train: {steps: 10}");
    let mut first = place.start("waits");
    wait_until("the first trial runs", || !place.attempts().is_empty());
    let second = place.run("completes", &[]);
    assert_eq!(second.status, Some(3));
    assert!(
        second
            .stderr
            .contains(&format!("being run by process {} since 2", first.id()))
            && second.stderr.contains(" ago (folder ")
            && second.stderr.contains("`kiln watch x` shows it"),
        "{second:?}"
    );
    place.release();
    assert!(first.wait().unwrap().success());
    assert_eq!(place.column("outcome"), ["completed"]);
}

#[test]
fn progress_as_json_is_one_event_per_line() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let ended = place.run("completes", &["--progress", "json"]);
    let events: Vec<serde_json::Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // Each warning on the machine is a notice; how many there are is the machine's own affair.
    let is_ours = |name: &&str| !["trial_progress", "notice"].contains(name);
    let names: Vec<&str> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .filter(is_ours)
        .collect();
    assert_eq!(events[0]["event"], "notice");
    assert_eq!(
        names,
        [
            "run_started",
            "trial_started",
            "trial_ended",
            "trial_started",
            "trial_ended",
            "run_ended"
        ]
    );
    assert_eq!(
        (
            &events[events.len() - 1]["done"],
            &events[events.len() - 1]["total"]
        ),
        (&2.into(), &2.into())
    );
    let quiet = place.run("completes", &["--fresh", "--quiet"]);
    assert_eq!(quiet.stderr, "");
    assert!(
        quiet.stdout.contains("2 completed"),
        "the result is no progress: {quiet:?}"
    );
    for more in [&["--fresh"][..], &[]] {
        let both = place.run(
            "completes",
            &[&["--progress", "json", "--quiet"], more].concat(),
        );
        assert!(
            both.stdout
                .lines()
                .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
            "{both:?}"
        );
        assert!(
            both.stdout
                .lines()
                .last()
                .is_some_and(|line| line.contains("run_ended"))
                && both.stderr.is_empty(),
            "{both:?}"
        );
    }
}

#[test]
fn a_terminal_gets_bars_and_a_bold_best_row_and_a_pipe_gets_plain_text() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let mut terminal = place
        .in_a_terminal(&["run", "x.yaml"])
        .env("SCRIPTED_CHILD", "waits")
        .spawn()
        .unwrap();
    let stdout = terminal.stdout.as_mut().unwrap();
    let mut shown = read_until(stdout, "5/10 steps");
    place.release();
    stdout.read_to_string(&mut shown).unwrap();
    assert!(terminal.wait().unwrap().success(), "{shown}");
    assert!(
        shown.contains("█████░") && shown.contains("/2 trials"),
        "{shown}"
    );
    assert!(
        shown.contains("2 trials: 2 completed") && shown.contains("\u{1b}[1m"),
        "{shown}"
    );

    let ended = place.run("completes", &["--fresh"]);
    assert!(
        ended.stdout.contains("2 trials: 2 completed")
            && !(ended.stdout + &ended.stderr).contains('\u{1b}')
    );
    let plain = place
        .in_a_terminal(&["report", "results/x"])
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(
        plain.contains("2 trials: 2 completed") && !plain.contains('\u{1b}'),
        "{plain}"
    );
}

#[test]
fn progress_counts_the_whole_plan_whatever_a_launch_selects() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 3]}}");
    let mut first = place.kiln(&["run", "x.yaml"]);
    first
        .env("SCRIPTED_CHILD_1", "fails")
        .env("SCRIPTED_CHILD_2", "is_killed")
        .env("SCRIPTED_CHILD_3", "is_killed")
        .output()
        .unwrap();
    let ids = place.column("trial");
    let last = |scenario: &str, more: &[&str]| {
        let ended = place.run(scenario, &[&["--progress", "json"], more].concat());
        let event: serde_json::Value =
            serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        (
            event["how"].as_str().unwrap().to_owned(),
            event["done"].clone(),
            event["failed"].clone(),
            event["total"].clone(),
        )
    };
    let wanted =
        |how: &str, done: u64, failed: u64| (how.to_owned(), done.into(), failed.into(), 3.into());
    assert_eq!(
        last("completes", &["--only", &ids[1]]),
        wanted("1 trial left", 2, 1)
    );
    assert_eq!(
        last("completes", &["--only", &ids[1]]),
        wanted("nothing to do", 2, 1)
    );
    assert_eq!(
        last("completes", &["--rerun", "failed", "--only", &ids[0]]),
        wanted("1 trial left", 2, 0)
    );
    assert_eq!(last("completes", &[]), wanted("finished", 3, 0));
}

#[test]
fn a_committed_file_names_no_folder_of_the_user() {
    let place = Place::with("train: {steps: 10}");
    let (home, named) = (
        place.path("").canonicalize().unwrap(),
        place.path("x.yaml").canonicalize().unwrap(),
    );
    let run = |more: &[&str]| {
        let results = home.join("work/results").display().to_string();
        let arguments = [
            &[
                "run",
                named.to_str().unwrap(),
                "--results",
                results.as_str(),
            ][..],
            more,
        ]
        .concat();
        fs::create_dir_all(home.join("work")).unwrap();
        let mut kiln = place.kiln(&arguments);
        kiln.current_dir(home.join("work"))
            .env("HOME", &home)
            .env("SCRIPTED_CHILD", "names_a_path")
            .output()
            .unwrap();
        let latest = home.join("work/results/x/latest");
        ["trials.csv", "run.json", "experiment.yaml"]
            .map(|name| fs::read_to_string(latest.join(name)).unwrap())
    };
    let [trials, run_file, experiment] = run(&[]);
    for text in [&trials, &run_file, &experiment] {
        assert!(!text.contains(home.to_str().unwrap()), "{text}");
    }
    assert!(
        trials.contains("cannot read data/x.txt of ~/x.yaml") && experiment.contains("# ~/x.yaml:"),
        "{trials}{experiment}"
    );
    let sha256 =
        serde_json::from_str::<serde_json::Value>(&run_file).unwrap()["experiment_sha256"].clone();
    let ended = Command::new("sha256sum")
        .arg(home.join("work/results/x/latest/experiment.yaml"))
        .output()
        .unwrap();
    assert_eq!(
        Some(sha256.as_str().unwrap()),
        String::from_utf8(ended.stdout).unwrap().split(' ').next()
    );
    let full = run(&["--fresh", "--set", "record.identity=full"]);
    assert!(
        full.iter()
            .all(|text| text.contains(home.to_str().unwrap())),
        "{full:?}"
    );
}

#[test]
fn one_file_that_cannot_run_does_not_keep_the_others_from_it() {
    let place = Place::with("train: {steps: 10}\nrun: {devices: all}");
    fs::write(
        place.path("y.yaml"),
        "kiln: 1\nname: y\nmodel: {kind: matmul, size: 8}\ntrain: {steps: 10}\n",
    )
    .unwrap();
    let ended = Ended::of(
        place
            .kiln(&["run", "x.yaml", "y.yaml"])
            .env("SCRIPTED_CHILD", "completes")
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("`run.devices: all` needs a GPU")
            && ended.stdout.contains("1 trial: 1 completed"),
        "{ended:?}"
    );
    assert!(
        ended.stdout.contains("\n  results/y/2") && ended.stdout.contains("(summary.csv is"),
        "{ended:?}"
    );
}

#[test]
fn the_row_says_when_the_attempt_began_and_by_which_formula_it_counts() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let row = &place.rows()[0];
    assert!(
        row["run_seconds"]
            .parse::<f64>()
            .is_ok_and(|seconds| (0.0..60.0).contains(&seconds)),
        "{}",
        row["run_seconds"]
    );
    assert_eq!(
        (row["flops_formula"].as_str(), row["peak_dtype"].as_str()),
        ("2N^3", "")
    );
    let snapshots: Vec<HashMap<String, String>> =
        csv::Reader::from_path(place.latest().join("snapshots.csv"))
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
    assert!(snapshots.iter().all(|row| {
        row["run_seconds"]
            .parse::<f64>()
            .is_ok_and(|seconds| seconds >= 0.0)
    }));
    assert_eq!(place.run_file()["launches"][0]["flags"]["tf32"], "false");
    let memory = place.run_file()["launches"][0]["machine"]["memory"]["total"].clone();
    assert!(
        memory["value"].is_u64() && memory["unit"] == "B",
        "{memory}"
    );
}

#[test]
fn a_child_that_contradicts_itself_has_failed_and_nothing_of_its_result_is_kept() {
    for (scenario, words) in [
        (
            "says_version_2",
            vec!["`kiln_trial_result` is 2", "reads format 1"],
        ),
        (
            "says_another_trial",
            vec!["is of trial deadbeef00 attempt 1"],
        ),
        (
            "says_two_outcomes",
            vec!["message says `completed`", "`trial.json` says `diverged`"],
        ),
        (
            "says_skipped",
            vec!["`skipped`, which is not one of `completed`"],
        ),
        (
            "completes_and_fails",
            vec!["message says `completed`", "exit status says 1 (it failed)"],
        ),
    ] {
        let place = Place::with("train: {steps: 10}");
        let ended = place.run(scenario, &[]);
        assert_eq!(ended.status, Some(1), "{scenario}: {ended:?}");
        let row = place.rows().remove(0);
        assert_eq!(row["outcome"], "failed", "{scenario}");
        assert!(
            words.iter().all(|words| row["reason"].contains(words)),
            "{scenario}: {}",
            row["reason"]
        );
        assert_eq!(row["train_loss"], "", "{scenario}");
    }
}

#[test]
fn events_that_nobody_can_get_are_a_failure_of_the_command() {
    let place = Place::with("train: {steps: 10}");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "json"]);
    let ended = Ended::of(
        kiln.env("SCRIPTED_CHILD", "completes")
            .stdout(full)
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("standard output could not be written"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["completed"]);
}

#[test]
fn a_git_that_hangs_is_given_up() {
    let place = Place::with("train: {steps: 10}");
    let programs = place.path("programs");
    fs::create_dir(&programs).unwrap();
    write_program(&programs.join("git"), "#!/bin/sh\nexec sleep 300\n");
    let path = std::env::var("PATH").unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    let ended = Ended::of(
        kiln.env("SCRIPTED_CHILD", "completes")
            .env("PATH", format!("{}:{path}", programs.display()))
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let folder = fs::read_link(place.latest()).unwrap();
    assert!(folder.to_string_lossy().ends_with("-nogit"), "{folder:?}");
}
