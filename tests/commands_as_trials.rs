//! Commands as trials: the program of `model.kind: command` runs through the relay, its numbers come
//! into the table, and its end becomes an outcome.

use std::fs;

use crate::scripted_child::{Ended, Place, send, wait_until};

const ENDS: &str = r#"  argv: [sh, -c, 'echo "speed 10"; echo "speed 12.5"; eval "$KILN_VALUE_END"']
  values: {end: ""}
  exits: {oom: [3]}
  metrics: {speed: {line: 'speed ([0-9.]+)', better: high}, train_loss: {key: loss, optional: true}}"#;

#[test]
fn a_variable_that_looks_like_a_secret_is_warned_of_and_one_of_kilns_reaches_the_program() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'test \"$HF_TOKEN\" = own']\n  environment: {API_TOKEN: abcdefgh, \
         TOKENIZERS_PARALLELISM: 'false'}",
        "",
    );
    let kiln = |arguments: &[&str]| {
        let mut kiln = place.kiln(arguments);
        Ended::of(kiln.env("HF_TOKEN", "own").output().unwrap())
    };
    let warned = "warning: `model.environment.API_TOKEN` looks like a secret";
    for verb in ["check", "run"] {
        let ended = kiln(&[verb, "x.yaml"]);
        assert_eq!(ended.status, Some(0), "{verb}: {ended:?}");
        assert!(ended.stderr.contains(warned), "{verb}: {ended:?}");
        // Neither of another variable, nor with its value.
        assert!(!ended.stderr.contains("TOKENIZERS"), "{verb}: {ended:?}");
        assert!(!ended.stderr.contains("abcdefgh"), "{verb}: {ended:?}");
    }
    assert_eq!(place.column("outcome"), ["completed"]);
    let set = "model.environment.DB_PASSWORD=hunter2hunter2";
    let ended = kiln(&["check", "x.yaml", "--set", set]);
    assert!(
        ended.stderr.contains("`model.environment.DB_PASSWORD`")
            && !ended.stderr.contains("hunter2"),
        "{ended:?}"
    );
}

#[test]
fn each_end_of_a_program_has_its_outcome_and_its_reason() {
    let ends = [
        ("exit 0", "completed", ""),
        ("exit 2", "failed", "sh ended with status 2: speed 12.5"),
        (
            "echo boom >&2; exit 130",
            "failed",
            "sh ended with status 130: boom",
        ),
        ("exit 3", "oom", "status 3, which means that memory ran out"),
        ("echo MemoryError >&2; exit 1", "oom", "ran out of memory"),
        ("kill -SEGV $$", "failed", "crashed by signal 11"),
        ("kill -KILL $$", "killed", "killed from outside by signal 9"),
        (
            "echo '{{\"loss\": NaN}}'",
            "diverged",
            "`train_loss` is NaN",
        ),
    ];
    let quoted = ends.map(|(end, _, _)| {
        serde_json::to_string(&end.replace("{{", "{").replace("}}", "}")).unwrap()
    });
    let sweep = format!(
        "sweep: {{grid: {{model.values.end: [{}]}}}}",
        quoted.join(", ")
    );
    let place = Place::of_command(ENDS, &sweep);
    place.run("", &[]);
    let rows = place.rows();
    assert_eq!(rows.len(), ends.len());
    for (row, (end, outcome, reason)) in rows.iter().zip(ends) {
        assert_eq!(row["outcome"], outcome, "{end}: {row:?}");
        assert!(row["reason"].contains(reason), "{end}: {}", row["reason"]);
    }
    // Also of a program that a signal ended.
    for row in &rows {
        assert_eq!(row["metric.speed"], "12.5", "{row:?}");
    }
    for row in &rows {
        assert!(!row["notes"].contains("mfu"), "{}", row["notes"]);
    }
    assert_eq!(place.attempts_with("stdout.txt"), ends.len());
}

#[test]
fn a_trial_whose_window_never_ended_completes_without_the_columns_of_the_window() {
    let model = |word: &str| {
        format!(
            "  argv: [sh, -c, 'echo go; echo speed 12.5']\n  metrics: {{speed: {{line: '{word} \
             (\\S+)'}}}}\n  window: {{from: '^go', to: '^stop'}}"
        )
    };
    let place = Place::of_command(&model("sped"), "");
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["failed"]);
    // The pattern of the window is as it was, so the output can be read again.
    place.write_command(&model("speed"), "");
    let again = place.run("", &["--read-again", "latest"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    let fresh = place.run("", &["--fresh"]);
    for ended in [again, fresh] {
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let told = "1 of 1 trial had no measured window";
        assert!(ended.stdout.contains(told), "{ended:?}");
    }
    let row = &place.rows()[0];
    assert_eq!(
        (&*row["outcome"], &*row["metric.speed"]),
        ("completed", "12.5")
    );
    assert_eq!((&*row["window_seconds"], &*row["mean_cpu_cores"]), ("", ""));
    let note = "window: `window.to` never came: '^stop' matched none of 2 lines";
    assert!(row["notes"].contains(note), "{}", row["notes"]);
}

#[test]
fn the_metrics_of_the_page_read_what_frameworks_write() {
    let page = include_str!("../docs/command.md");
    let trainer = "{'loss': 9.5, 'epoch': 0.1}\n{'eval_loss': 2.5, 'epoch': 0.8}\n{'train_runtime': \
                   0.6, 'train_samples_per_second': 946.9, 'train_loss': 3.5, 'epoch': 0.8}\n";
    // Newer versions print the numbers as texts.
    let texts = "{'loss': '9.5', 'epoch': '0.1'}\n{'eval_loss': '2.5', 'epoch': '0.8'}\n\
                 {'train_samples_per_second': '946.9', 'train_loss': '3.5', 'epoch': '0.8'}\n";
    let logger = "epoch,step,train_loss,val_loss\n0,4,5.5,\n0,9,,2.5\n1,14,4.5,\n";
    // Beginning of a row of the page; what such a script writes to both outputs and to a file.
    let scripts = [
        ("PyTorch", "step 10 loss 3.5\nvalid loss 2.5\n", "", ""),
        ("the same through", "", "INFO:root:valid loss 2.5\n", ""),
        ("`transformers.Trainer`", trainer, "", ""),
        ("`transformers.Trainer`", texts, "", ""),
        ("Lightning", "", "", logger),
    ];
    for (script, out, err, csv) in scripts {
        let beginning = format!("| {script}");
        let row = page.lines().find(|line| line.starts_with(&beginning));
        let cell = row.unwrap().trim_end_matches(" |").rsplit(" | ").next();
        let metrics = cell.unwrap().replace('`', "");
        let place = Place::of_command(
            &format!(
                "  argv: [sh, -c, 'cat out; cat err >&2; cp csv \"$1/metrics.csv\"', sh, \
                 \"{{folder}}\"]\n  metrics: {{{metrics}}}"
            ),
            "",
        );
        for (name, text) in [("out", out), ("err", err), ("csv", csv)] {
            fs::write(place.path(name), text).unwrap();
        }
        let ended = place.run("", &[]);
        assert_eq!(place.column("valid_loss"), ["2.5"], "{script}: {ended:?}");
        if metrics.contains("train_loss:") {
            assert_eq!(place.column("train_loss"), ["3.5"], "{script}: {ended:?}");
        }
    }
}

#[test]
fn a_missing_metric_fails_the_trial_and_says_what_was_looked_for() {
    let place = Place::of_command(
        "  argv: [echo, hello]\n  metrics: {gflops: {line: 'GFLOP/s: ([0-9.]+)'}}",
        "",
    );
    place.run("", &[]);
    assert_eq!(
        place.column("reason"),
        [
            "echo ended with status 0, and `gflops` never came: 'GFLOP/s: ([0-9.]+)' matched none of \
          1 lines"
        ]
    );
}

#[test]
fn a_pattern_with_a_typo_is_shown_beside_the_line_that_it_was_meant_for() {
    let place = Place::of_command(
        "  argv: [echo, 'speed: 12.5']\n  metrics: {speed: {line: 'sped: ([0-9.]+)'}}",
        "",
    );
    place.run("", &[]);
    let (trial, reason) = (&place.column("trial")[0], &place.column("reason")[0]);
    let nearest = format!("; the nearest in trials/{trial}/1/stdout.txt: 'speed: 12.5'");
    assert!(reason.ends_with(&nearest), "{reason}");
}

#[test]
fn the_step_of_a_command_that_reports_none_is_null_in_events() {
    let place = Place::of_command("  argv: [sleep, '1.5']", "");
    let ended = place.run("", &["--progress", "json"]);
    let events = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps: Vec<serde_json::Value> = events
        .filter(|event| event["event"] == "trial_progress")
        .map(|event| event["step"].clone())
        .collect();
    assert!(steps.len() > 1, "{ended:?}");
    assert!(steps.iter().all(serde_json::Value::is_null), "{steps:?}");
}

#[test]
fn a_file_of_the_trial_before_is_no_number_of_this_one() {
    let place = Place::of_command(
        r#"  argv: [sh, -c, 'test "$KILN_VALUE_A" = 2 || echo "{{\"score\": $KILN_VALUE_A}}" > out.json']
  values: {a: 1}
  metrics: {score: {json: out.json, at: score}}"#,
        "sweep: {grid: {model.values.a: [1, 2, 3]}}",
    );
    place.run("", &[]);
    assert_eq!(
        place.column("outcome"),
        ["completed", "failed", "completed"]
    );
    assert_eq!(place.column("metric.score"), ["1.0", "", "3.0"]);
    assert!(place.column("reason")[1].contains("out.json is older than this attempt"));
}

#[test]
fn what_a_program_says_last_decides_between_memory_a_loss_and_another_error() {
    let cases = [
        (
            "echo probing: out of memory; seq 500; echo bad label; exit 1",
            "failed",
            "bad label",
        ),
        (
            "seq 10; echo CUDA out of memory; seq 30; exit 1",
            "oom",
            "ran out of memory",
        ),
        (
            "echo loss inf; echo CUDA out of memory; exit 1",
            "oom",
            "ran out of memory",
        ),
        (
            "echo loss nan; echo FileNotFoundError: data.bin; exit 2",
            "diverged",
            "`train_loss` is NaN, and sh ended with status 2: FileNotFoundError: data.bin",
        ),
    ];
    let quoted = cases.map(|(says, ..)| serde_json::to_string(says).unwrap());
    let place = Place::of_command(
        r#"  argv: [sh, -c, 'eval "$KILN_VALUE_SAYS" >&2']
  values: {says: ""}
  metrics: {train_loss: {line: 'loss (\S+)', on: stderr, optional: true}}"#,
        &format!(
            "sweep: {{grid: {{model.values.says: [{}]}}}}",
            quoted.join(", ")
        ),
    );
    place.run("", &[]);
    for (row, (says, outcome, reason)) in place.rows().iter().zip(cases) {
        assert_eq!(row["outcome"], outcome, "{says}: {}", row["reason"]);
        assert!(row["reason"].contains(reason), "{says}: {}", row["reason"]);
    }
}

#[test]
fn a_program_that_hangs_after_a_loss_that_is_not_a_number_stalls() {
    let place = Place::of_command(
        r#"  argv: [sh, -c, 'echo step 5 loss nan; exec sleep 60']
  metrics: {step: {line: 'step (\d+)'}, train_loss: {line: 'loss (\S+)'}}"#,
        "run: {stall: 3s, timeout: 30s}",
    );
    place.run("", &[]);
    let row = &place.rows()[0];
    assert!(row["reason"].contains("stall"), "{row:?}");
}

#[test]
fn the_step_of_a_progress_bar_is_shown_and_only_steps_fills_the_column() {
    let of = |more: &str| {
        let place = Place::of_command(
            &format!(
                "  argv: [sh, -c, 'echo step 400; sleep 1; echo step 13; echo trained 400']\n  \
                 metrics: {{step: {{line: 'step (\\S+)'}}{more}}}"
            ),
            "",
        );
        let ended = place.run("", &[]);
        assert_eq!(place.column("outcome"), ["completed"], "{ended:?}");
        place.column("steps").remove(0)
    };
    assert_eq!(of(""), "");
    assert_eq!(of(", steps: {line: 'trained (\\S+)'}"), "400");
}

#[test]
fn a_variable_of_null_is_not_that_of_kilns_own_environment() {
    let place = Place::of_command(
        r#"  argv: [sh, -c, 'echo "has ${{OUTER-3}}"']
  values: {outer: null}
  environment: {OUTER: "{outer}"}
  metrics: {has: {line: 'has (\d+)'}}"#,
        "",
    );
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    let ended = Ended::of(kiln.env("OUTER", "7").output().unwrap());
    assert_eq!(place.column("metric.has"), ["3.0"], "{ended:?}");
}

#[test]
fn a_program_runs_in_the_folder_of_its_attempt() {
    let place = Place::of_command(
        r#"  argv: [sh, -c, 'echo "n $(ls | grep -c attempt.json)" > own; cat own']
  folder: "{folder}"
  metrics: {n: {line: 'n ([0-9]+)'}}"#,
        "",
    );
    let ended = place.run("", &[]);
    assert_eq!(place.column("metric.n"), ["1.0"], "{ended:?}");
    assert_eq!(place.attempts_with("own"), 1);
}

#[test]
fn cpu_time_of_processes_that_the_program_does_not_wait_for_is_its_own() {
    // The shell in brackets ends at once, and leaves the loop to the relay.
    let place = Place::of_command(
        r#"  argv: [sh, -c, '(sh -c "i=0; while [ \$i -lt 300000 ]; do i=\$((i+1)); done; touch done" & ); until [ -e done ]; do sleep 0.05; done; sleep 0.2']
  metrics: {cpu: {measured: cpu_seconds}}"#,
        "",
    );
    let ended = place.run("", &[]);
    let seconds: f64 = place.column("metric.cpu")[0].parse().unwrap();
    assert!(seconds > 0.1, "{seconds}: {ended:?}");
}

#[test]
fn prepare_runs_first_and_its_failure_is_the_trials() {
    let place = Place::of_command(
        "  argv: [cat, made]\n  values: {n: 7}\n  prepare: [sh, -c, 'echo \"n $KILN_VALUE_N\" > made']\n  \
         metrics: {n: {line: 'n ([0-9]+)'}}",
        "",
    );
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.n"), ["7.0"]);
}

#[test]
fn memory_of_prepare_is_not_the_programs() {
    // It copies through a buffer of so many bytes, for longer than several samples take.
    let place = Place::of_command(
        "  argv: [sleep, '1']\n  prepare: [sh, -c, 'timeout 2 dd if=/dev/zero of=/dev/null \
         bs=90000000; true']",
        "",
    );
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["completed"], "{ended:?}");
    let held = &place.column("peak_resident_bytes")[0];
    assert!(
        held.is_empty() || held.parse::<u64>().unwrap() < 60_000_000,
        "{held}"
    );
}

#[test]
fn a_program_that_is_not_there_is_told_before_the_first_trial() {
    let place = Place::of_command("  argv: [./nothing]", "");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("`model.argv`") && ended.stderr.contains("does not exist"),
        "{ended:?}"
    );
    assert!(!place.path("results/x/latest").exists());
}

#[test]
fn the_folder_of_data_must_be_set_where_a_command_names_it() {
    for model in [
        "  argv: [ls, '{data_folder}']",
        "  argv: [ls]\n  environment: {ROOT: '{data_folder}/x'}",
        "  argv: [ls]\n  metrics: {a: {csv: '{data_folder}/a.csv', column: a, optional: true}}",
    ] {
        let place = Place::of_command(model, "");
        let kiln = |data: &str| {
            let mut kiln = place.kiln(&["run", "x.yaml"]);
            Ended::of(kiln.env("KILN_DATA", data).output().unwrap())
        };
        let mut plan = place.kiln(&["plan", "x.yaml"]);
        let planned = Ended::of(plan.env("KILN_DATA", "").output().unwrap());
        assert!(planned.stdout.contains("`$KILN_DATA`"), "{planned:?}");
        let ended = kiln("");
        let says = "`model` has `{data_folder}`, which is `$KILN_DATA`, and that is not set; set it to \
                    the folder of the data, or write the path itself";
        assert!(ended.stderr.contains(says), "{model}: {ended:?}");
        assert_eq!(ended.status, Some(3), "{model}: {ended:?}");
        assert!(!place.path("results/x/latest").exists());
        let set = kiln("/");
        assert_eq!(set.status, Some(0), "{model}: {set:?}");
    }
}

#[test]
fn a_silent_program_that_computes_lives_and_one_that_does_nothing_stalls() {
    let busy = "end=$(($(date +%s) + 8)); while [ $(date +%s) -lt $end ]; do :; done";
    let place = Place::of_command(
        &format!("  argv: [sh, -c, 'eval \"$KILN_VALUE_DO\"']\n  values: {{do: '{busy}'}}"),
        "sweep: {grid: {model.values.do: ['sleep 60']}}",
    );
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text
        .replace("{devices: cpu}", "{devices: cpu, stall: 5s}")
        .replace("['sleep 60']", &format!("['sleep 60', '{busy}']"));
    fs::write(place.path("x.yaml"), text).unwrap();
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["timed-out", "completed"]);
    let reason = place.column("reason").remove(0);
    assert!(
        reason.contains("its program wrote nothing and used less than 1 % of a core for 5s")
            && !reason.contains("step"),
        "{reason}"
    );
}

#[test]
fn a_launch_that_is_told_to_stop_interrupts_the_program_and_leaves_nothing() {
    let place = Place::of_command("  argv: [sh, -c, 'sleep 500 & sleep 501']", "");
    let kiln = place.start("");
    wait_until("the program runs", || place.processes().len() >= 3);
    send(&kiln.id().to_string(), "TERM");
    let ended = kiln.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert!(place.processes().is_empty());
}

#[test]
fn an_endless_output_is_read_in_bounded_memory_and_kept_at_both_ends() {
    let script = "import sys\nfor i in range(300000): sys.stdout.write(\"x\" * 99 + \"\\n\")\nprint(\"v 5\")";
    let place = Place::of_command(
        "  argv: [python3, big.py]\n  metrics: {v: {line: 'v ([0-9]+)'}}",
        "",
    );
    fs::write(place.path("big.py"), script).unwrap();
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.v"), ["5.0"]);
    let kept = fs::read_to_string(place.attempts()[0].join("stdout.txt")).unwrap();
    assert!(kept.len() < 2 << 20 && kept.contains("bytes omitted") && kept.ends_with("v 5\n"));
}

#[test]
fn values_in_blocks_are_compared_by_what_ranks_the_run() {
    let place = Place::of_command(
        "  argv: [sleep, '0.{batch_size}']\n  values: {batch_size: 1}",
        "sweep: {grid: {model.values.batch_size: [1, 9]}, repeats: 4, together: [model.values.batch_size]}",
    );
    let ran = place.run("", &[]);
    let hint = format!(
        "block by block: `kiln compare {} --between model.values.batch_size`",
        place.latest().display()
    );
    let compare = |more: &[&str]| {
        let run = place.latest().display().to_string();
        let arguments = [&["compare", &run], more].concat();
        Ended::of(place.kiln(&arguments).output().unwrap())
    };
    let between = ["--between", "model.values.batch_size"];
    // A busy machine may disturb a side; the gate then tells nothing.
    let gate = ["--fail-on", "worse", "--cannot-tell", "fail"];
    let found = compare(&[&between[..], &gate].concat());
    assert_eq!(found.status, Some(1), "{found:?}");
    assert!(found.stdout.contains("wall_seconds: 1 worse"), "{found:?}");
    assert!(
        found.stdout.contains("4 pairs of runs on 1 device"),
        "{found:?}"
    );
    assert!(found.stdout.contains("\nwall_seconds\n"), "{found:?}");
    let found = compare(&[&between[..], &["--base", "9"]].concat());
    assert!(found.stdout.contains("wall_seconds: 1 better"), "{found:?}");
    let by_name = |metric: &str| compare(&[&between[..], &["--metric", metric]].concat());
    let found = by_name("wall_seconds:high");
    assert!(found.stdout.contains("wall_seconds: 1 better"), "{found:?}");
    let unknown = by_name("wall_second");
    assert!(
        unknown.stderr.contains(
            "metrics of the command are `cpu_seconds`, `peak_memory_bytes`, `wall_seconds`"
        ),
        "{unknown:?}"
    );
    let alone = compare(&[]);
    assert_eq!(alone.status, Some(2), "{alone:?}");
    assert!(
        alone.stderr.contains("`--between model.values.batch_size`"),
        "{alone:?}"
    );
    let named = hint.rsplit('/').next().unwrap();
    assert!(
        ran.stdout.contains("block by block: `kiln compare "),
        "{ran:?}"
    );
    assert!(
        ran.stdout.contains(&named[named.find(' ').unwrap()..]),
        "{ran:?}"
    );
}

/// `kiln` on a machine that has neither `kiln-trial` nor libtorch.
fn without_libtorch(place: &Place, arguments: &[&str]) -> Ended {
    let mut kiln = place.kiln(arguments);
    kiln.env("KILN_TRIAL", "/nowhere/kiln-trial")
        .env("LIBTORCH", "/nowhere")
        .env_remove("LD_LIBRARY_PATH");
    Ended::of(kiln.output().unwrap())
}

#[test]
fn a_machine_without_libtorch_runs_commands_and_its_doctor_says_so() {
    let place = Place::of_command("  argv: ['true']", "");
    let run = without_libtorch(&place, &["run", "x.yaml"]);
    assert_eq!(run.status, Some(0), "{run:?}");
    assert!(
        run.stdout.contains(
            "lowest wall_seconds first, because the experiment does not say what is better"
        ) && !run.stderr.contains("libtorch"),
        "{run:?}"
    );
    let doctor = without_libtorch(&place, &["doctor", "x.yaml"]);
    assert_eq!(doctor.status, Some(0), "{doctor:?}");
    let of_libtorch = "skipped libtorch no trial of this experiment is computed by `kiln-trial`";
    let said = doctor
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        said.contains(of_libtorch) && !doctor.stdout.contains("trial-program"),
        "{doctor:?}"
    );
    let doctor = without_libtorch(&place, &["doctor", "--quick"]);
    assert_eq!(doctor.status, Some(3), "{doctor:?}");
}

#[test]
fn the_plan_of_a_command_has_nothing_of_a_training_but_the_seed() {
    let place = Place::of_command("  argv: ['true']", "sweep: {repeats: 2}");
    let plan = Ended::of(place.kiln(&["plan", "x.yaml", "--json"]).output().unwrap());
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    let trial = &plan["trials"][1];
    assert_eq!(trial["train"], serde_json::json!({"seed": 2}));
    for unknown in ["effective_batch_size", "engine", "steps", "parameters"] {
        assert!(trial[unknown].is_null(), "{unknown}: {trial}");
    }
}

#[test]
fn what_ranks_the_points_is_said_as_it_is() {
    let ranked = |metrics: &str, more: &str| {
        let place = Place::of_command(
            &format!("  argv: [sh, -c, 'echo \"v $KILN_VALUE_N\"']\n  values: {{n: 1}}\n{metrics}"),
            &format!("sweep: {{grid: {{model.values.n: [1, 2]}}}}\n{more}"),
        );
        let ended = place.run("", &[]);
        let line = ended.stdout.lines().find(|line| line.contains(" first, "));
        line.unwrap_or_else(|| panic!("{ended:?}")).to_owned()
    };
    let speed = "  metrics: {samples_per_second: {line: 'v (.)', better: high}}";
    assert_eq!(
        ranked(speed, ""),
        "fastest first, as `better` of this metric says"
    );
    let both = "  metrics: {v: {line: 'v (.)', better: high}, w: {line: 'v (.)'}}";
    assert_eq!(
        ranked(both, ""),
        "highest v first, as `better` of this metric says"
    );
    assert_eq!(
        ranked(both, "objective: {metric: w, goal: min}"),
        "lowest w first, as `objective` of the experiment says"
    );
}

#[test]
fn metrics_without_a_direction_order_nothing_and_it_is_said_how_they_are_compared() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'echo \"v $KILN_VALUE_N\"']\n  values: {n: 1}\n  metrics: {v: {line: 'v (.)'}}",
        "sweep: {grid: {model.values.n: [1, 2]}, repeats: 3}",
    );
    let ended = place.run("", &[]);
    let says = "in the plan's order: no metric says which value is `better`, and the experiment has no \
                `objective`";
    assert!(ended.stdout.contains(says), "{ended:?}");
    let compare = |more: &[&str]| {
        let between = ["compare", "x", "--between", "model.values.n"];
        Ended::of(place.kiln(&[&between[..], more].concat()).output().unwrap())
    };
    let told = "note: no metric of the command says which value is `better`; `--metric v:low` or \
                `v:high` compares one";
    let plain = compare(&[]);
    assert!(plain.stderr.contains(told), "{plain:?}");
    let asked = compare(&["--metric", "v:low"]);
    assert!(!asked.stderr.contains(told), "{asked:?}");
    assert!(asked.stdout.contains("v: "), "{asked:?}");
}

#[test]
fn a_loss_that_ended_above_its_beginning_is_a_finding() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'echo loss 4; for step in 1 2 3 4 5 6; do echo loss $KILN_VALUE_LAST; \
         done']\n  values: {last: 3}\n  metrics: {train_loss: {line: 'loss ([0-9]+)'}}",
        "sweep: {grid: {model.values.last: [3, 2366]}}",
    );
    let ended = place.run("", &[]);
    let finding = "finding: loss-rose (trial ";
    let says = "the training ended with a higher loss than it began with: 2366.0000 after 4.0000";
    let said = ended
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert_eq!(said.matches(finding).count(), 1, "{said}");
    assert!(said.contains(says), "{said}");
    let notes = place.column("notes");
    assert!(
        notes[0].is_empty() && notes[1].starts_with("train_loss: ended above"),
        "{notes:?}"
    );
}

#[test]
fn a_value_that_is_too_long_for_the_system_fails_its_trial_alone() {
    let long = "x".repeat(200_000);
    let place = Place::of_command(
        "  argv: [printf, '%.1s', '{text}']\n  values: {text: y}",
        &format!("sweep: {{grid: {{model.values.text: [{long}, y]}}}}"),
    );
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["failed", "completed"]);
    let reason = place.column("reason").remove(0);
    assert!(
        reason.contains("printf: its arguments and environment are longer than the system allows"),
        "{reason}"
    );
}

#[test]
fn two_programs_are_matched_by_a_key_of_both_or_it_is_said_that_there_is_none() {
    let folder = Place::with("");
    let run = |name: &str, values: [&str; 6]| {
        let given = values.map(|value| format!("'{{{value}}}'")).join(", ");
        let first = values[0];
        let values = values.map(|value| format!("{value}: 1")).join(", ");
        let text = format!(
            "kiln: 1\nname: {name}\nmodel: {{kind: command, argv: [{name}, {given}], values: \
             {{{values}}}}}\nsweep: {{grid: {{model.values.{first}: [1, 2]}}}}\nrun: {{devices: \
             cpu}}\n"
        );
        fs::write(folder.path("x.yaml"), text).unwrap();
        let ended = folder.run("", &[]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
    };
    run("echo", ["a", "b", "c", "d", "e", "f"]);
    run("printf", ["a", "g", "h", "i", "j", "k"]);
    run("dirname", ["l", "m", "o", "p", "q", "r"]);
    let compare = |other: &str| {
        let compared = folder.kiln(&["compare", "echo", other]).output();
        Ended::of(compared.unwrap()).stderr
    };
    let said = compare("printf");
    assert!(
        said.contains("match rows by values with `--by model.values.a`"),
        "{said}"
    );
    let said = compare("dirname");
    assert!(
        said.contains("no single axis or column of settings matches their rows with `--by`"),
        "{said}"
    );
}

/// A command's own metric is on the page of a reproduction, whose sentence is about losses.
#[test]
fn a_reproduction_shows_the_metrics_of_a_command() {
    let place = Place::of_command(
        "  argv: [cat, det.txt]\n  metrics: {score: {line: 'score (.+)', better: high}, \
         valid_loss: {line: 'loss (.+)'}}",
        "sweep: {repeats: 3}",
    );
    let said = |text: &str| fs::write(place.path("det.txt"), text).unwrap();
    said("score 10\nloss 1.5\n");
    assert_eq!(place.run("", &[]).status, Some(0));
    said("score 5\nloss 1.5\n");
    let again = Ended::of(place.kiln(&["reproduce", "x"]).output().unwrap());
    assert!(
        again.stdout.contains("score")
            && again.stdout.contains("-50.0 %")
            && again
                .stdout
                .contains("metrics of the command are compared above and decide nothing here"),
        "{again:?}"
    );
}

/// Without a loss, and without any number to compare.
#[test]
fn whether_a_run_without_a_loss_is_reproduced_cannot_be_told() {
    let place = Place::of_command(
        "  argv: [echo, score 1]\n  metrics: {score: {line: 'score (.+)'}}",
        "",
    );
    assert_eq!(place.run("", &[]).status, Some(0));
    let default: &[&str] = &["reproduce", "x"];
    let pass: &[&str] = &["reproduce", "x", "--cannot-tell", "pass"];
    for (arguments, status) in [(default, 4), (pass, 0)] {
        let again = Ended::of(place.kiln(arguments).output().unwrap());
        assert!(
            again.status == Some(status)
                && again
                    .stdout
                    .contains("cannot tell whether it is reproduced"),
            "{again:?}"
        );
    }
}

/// A changed unit, source or direction is no improvement, and no gate passes for it.
#[test]
fn a_metric_that_the_runs_take_otherwise_is_not_compared() {
    let place = Place::of_command(
        "  argv: [sed, 's/score.*/&.000{seed}/', det.txt]\n  metrics: {score: {line: 'score (.+)', \
         better: high}}",
        "sweep: {repeats: 3}",
    );
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let run = |score: &str, line: &str| {
        fs::write(place.path("det.txt"), format!("score {score}\n")).unwrap();
        let changed = text.replace("line: 'score (.+)', better: high", line);
        fs::write(place.path("x.yaml"), changed).unwrap();
        let ended = place.run("", &["--fresh"]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
    };
    let compare = |more: &[&str]| {
        let arguments = ["compare", "x~1", "x", "--fail-on", "worse"];
        let mut kiln = place.kiln(&[&arguments[..], more].concat());
        Ended::of(kiln.output().unwrap())
    };
    run("10", "line: 'score (.+)', better: high");
    run("5", "line: 'score (.+)', better: high, times: 1000");
    let other_unit = compare(&[]);
    assert!(
        other_unit.status == Some(4)
            && other_unit
                .stdout
                .contains("`model.metrics.score` takes it from another place or in another unit")
            && !other_unit.stderr.contains("gate worse: pass"),
        "{other_unit:?}"
    );
    let json = compare(&["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["gates"][0]["gate"], "worse", "{json}");
    assert_eq!(json["gates"][0]["answer"], "cannot-tell", "{json}");
    assert_eq!(
        json["pairs"][0]["comparisons"][0]["word"], "not-comparable",
        "{json}"
    );
    let meant = compare(&["--across", "model.metrics.score.times"]);
    assert!(
        meant.stdout.contains("score: 1 better"),
        "it may be meant: {meant:?}"
    );
    // Defaults that are written out change nothing.
    run("10", "line: 'score (.+)', better: high");
    run(
        "5",
        "line: 'score (.+)', better: high, times: 1, take: last",
    );
    let same = compare(&[]);
    assert!(
        !same.stdout.contains("takes it from another place")
            && same.stdout.contains("score: 1 worse"),
        "{same:?}"
    );
    // One of the runs would decide.
    run("10", "line: 'score (.+)', better: low");
    let two = compare(&[]);
    assert!(
        two.status == Some(2)
            && two.stderr.contains(
                "say which one counts, with `--metric score:high` or `--metric score:low`"
            ),
        "{two:?}"
    );
    let told = compare(&["--metric", "score:low"]);
    assert!(told.stdout.contains("score: 1 worse"), "{told:?}");
}

#[test]
fn a_trial_with_a_value_that_only_an_expression_uses_is_planned_again_and_written() {
    let place = Place::of_command(
        "  argv: [echo, '{rate}']\n  values: {scale: 1, rate: 1}",
        "sweep: {grid: {model.values.scale: [2, 3]}, derive: {model.values.rate: 10 * \
         model.values.scale}}",
    );
    place.run("", &[]);
    let trials = place.column("trial");
    assert_eq!(trials.len(), 2);
    let kiln = |arguments: &[&str]| {
        let ended = Ended::of(place.kiln(arguments).output().unwrap());
        assert_eq!(ended.status, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    };
    let planned = |arguments: &[&str]| -> Vec<String> {
        let plan = kiln(&[&["plan", "--json"][..], arguments].concat());
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let trials = plan["trials"].as_array().unwrap().iter();
        trials
            .map(|trial| trial["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for trial in &trials {
        let named = format!("x:{trial}");
        assert_eq!(planned(&["x.yaml", "--at", &named]), [trial.as_str()]);
        let file = format!("{trial}.yaml");
        kiln(&["init", &file, "--from", &named]);
        assert_eq!(planned(&[file.as_str()]), [trial.as_str()]);
    }
}
