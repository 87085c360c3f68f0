//! Commands as trials: the program of `model.kind: command` runs through the relay, its numbers come
//! into the table, and its end becomes an outcome.

use std::fs;

use crate::scripted_child::{Place, send, wait_until};

/// A place whose `x.yaml` is a command with these keys of `model`.
fn place(model: &str, more: &str) -> Place {
    let place = Place::with("");
    let text = format!(
        "kiln: 1\nname: x\nmodel:\n  kind: command\n{model}\nrun: {{devices: cpu}}\n{more}\n"
    );
    fs::write(place.path("x.yaml"), text).unwrap();
    place
}

const ENDS: &str = r#"  argv: [sh, -c, 'echo "speed 10"; echo "speed 12.5"; eval "$KILN_VALUE_END"']
  values: {end: ""}
  exits: {oom: [3]}
  metrics: {speed: {line: 'speed ([0-9.]+)', better: high}, train_loss: {key: loss, optional: true}}"#;

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
    let place = place(ENDS, &sweep);
    place.run("", &[]);
    let rows = place.rows();
    assert_eq!(rows.len(), ends.len());
    for (row, (end, outcome, reason)) in rows.iter().zip(ends) {
        assert_eq!(row["outcome"], outcome, "{end}: {row:?}");
        assert!(row["reason"].contains(reason), "{end}: {}", row["reason"]);
    }
    assert_eq!(rows[0]["metric.speed"], "12.5");
    assert_eq!(place.attempts_with("stdout.txt"), ends.len());
}

#[test]
fn a_missing_metric_fails_the_trial_and_says_what_was_looked_for() {
    let place = place(
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
fn prepare_runs_first_and_its_failure_is_the_trials() {
    let place = place(
        "  argv: [cat, made]\n  values: {n: 7}\n  prepare: [sh, -c, 'echo \"n $KILN_VALUE_N\" > made']\n  \
         metrics: {n: {line: 'n ([0-9]+)'}}",
        "",
    );
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.n"), ["7.0"]);
}

#[test]
fn a_program_that_is_not_there_is_told_before_the_first_trial() {
    let place = place("  argv: [./nothing]", "");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("`model.argv`") && ended.stderr.contains("does not exist"),
        "{ended:?}"
    );
    assert!(!place.path("results/x/latest").exists());
}

#[test]
fn a_silent_program_that_computes_lives_and_one_that_does_nothing_stalls() {
    let busy = "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do :; done";
    let place = place(
        &format!("  argv: [sh, -c, 'eval \"$KILN_VALUE_DO\"']\n  values: {{do: '{busy}'}}"),
        "sweep: {grid: {model.values.do: ['sleep 60']}}",
    );
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text
        .replace("{devices: cpu}", "{devices: cpu, stall: 2s}")
        .replace("['sleep 60']", &format!("['sleep 60', '{busy}']"));
    fs::write(place.path("x.yaml"), text).unwrap();
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["timed-out", "completed"]);
}

#[test]
fn a_launch_that_is_told_to_stop_interrupts_the_program_and_leaves_nothing() {
    let place = place("  argv: [sh, -c, 'sleep 500 & sleep 501']", "");
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
    let place = place(
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
