//! Differences between made records.

use kiln_core::{
    plan::TrialId,
    record::{RunFile, TrialRow, TrialTable},
};
use serde_json::{Value, json};

use super::*;
use crate::report::points::tests::{BEGINNING, continued, row, table};

const SMALL: &str = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n";

/// A run with launches; each is merged into a whole one.
fn run(launches: &[Value]) -> RunFile {
    let whole = |(place, more): (usize, &Value)| {
        let mut whole = json!({
            "launch": place + 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "host_id": "net-1",
            "machine": {
                "cpu": {"model": "A", "usable_cores": 2, "load_1_minute": place},
                "memory": {"total": {"value": 2_u64 << 30, "unit": "B"}},
            },
            "devices": {"none": "x"},
            "versions": {
                "kiln": "0.1.0", "kiln_sha256": "k", "trial_program": "kiln-trial",
                "trial_program_sha256": "t",
            },
            "git": {"commit": "c", "dirty": false},
            "libraries": {"libtorch": "2.11.0"}, "flags": {"tf32_matmul": "false"},
            "environment": {}, "data_sha256": {"generated": "d"},
        });
        let more = more.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(more);
        whole
    };
    let launches: Vec<Value> = launches.iter().enumerate().map(whole).collect();
    let file = json!({
        "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": launches,
    });
    serde_json::from_value(file).unwrap()
}

/// A trial on the CPU, of a launch.
fn on_cpu(id: u64, launch: u64) -> TrialRow {
    TrialRow {
        launch,
        device_uuid: None,
        device_name: Some("A".to_owned()),
        cpu_threads: Some(2),
        ..row(id, 10.0)
    }
}

fn of_cpu() -> TrialTable {
    table(&[], vec![(on_cpu(1, 1), &[])])
}

fn diff(
    a: (&TrialTable, Option<&RunFile>, &str),
    b: (&TrialTable, Option<&RunFile>, &str),
) -> RunDiff {
    fn subject<'a>(
        (table, run, more): (&'a TrialTable, Option<&'a RunFile>, &'a str),
    ) -> Subject<'a> {
        Subject {
            run,
            experiment: (!more.is_empty()).then_some(more),
            ..Subject::new(table, "x")
        }
    }
    RunDiff::of(subject(a), subject(b))
}

fn keys(pairs: &[FactPair]) -> Vec<&str> {
    pairs.iter().map(|pair| pair.key.as_str()).collect()
}

fn experiment(more: &str) -> String {
    format!("{SMALL}{more}\n")
}

#[test]
fn each_kind_of_fact_is_told_and_the_settings_come_first() {
    let plain = run(&[json!({})]);
    let other = run(&[json!({
        "machine": {
            "cpu": {"model": "B", "usable_cores": 4, "load_1_minute": 9.0},
            "memory": {"total": {"value": 4_u64 << 30, "unit": "B"}},
        },
        "host_id": "net-2", "driver": "580.1",
        "devices": [{"name": "NVIDIA H200", "uuid": "GPU-1"}],
        "libraries": {"libtorch": "2.12.0"}, "git": {"commit": "e", "dirty": true},
        "flags": {"tf32_matmul": "true"}, "environment": {"OMP_PROC_BIND": "true"},
        "data_sha256": {"generated": "e"},
    })]);
    let (on_one, on_gpu) = (of_cpu(), table(&[], vec![(row(1, 20.0), &[])]));
    let found = diff(
        (
            &on_one,
            Some(&plain),
            &experiment("train: {steps: 5, batch_size: 8}"),
        ),
        (
            &on_gpu,
            Some(&other),
            &experiment("train: {epochs: 2}\nsweep: {grid: {train.batch_size: [8, 16]}}"),
        ),
    );
    assert_eq!(
        keys(&found.differences),
        [
            "train.batch_size",
            "train.epochs",
            "train.steps",
            "data_sha256.generated",
            "device_name",
            "devices.0.name",
            "devices.0.uuid",
            "devices.none",
            "driver",
            "machine.cpu.model",
            "machine.cpu.usable_cores",
            "machine.memory.total",
            "host_id",
            "device_uuid",
            "git.commit",
            "git.dirty",
            "libraries.libtorch",
            "flags.tf32_matmul",
            "environment.OMP_PROC_BIND",
        ]
    );
    let text = found.text("one", "two\u{1b}[2J");
    for line in [
        "  train.batch_size  8 → swept: 8, 16\n",
        "  train.epochs      (not set) → 2\n",
        "  driver                    (none) → 580.1\n",
        "  machine.memory.total      2.0 GiB → 4.0 GiB\n",
        "  environment.OMP_PROC_BIND  (not set) → true\n",
        "different: 3 settings, 1 of data, 10 of machine, 3 versions, 2 flags; ",
        "B: two [2J\n",
    ] {
        assert!(text.contains(line), "{line:?}\n{text}");
    }
    let markdown = found.markdown("one", "two");
    assert!(
        markdown.contains("| train.batch_size | 8 | swept: 8, 16 |"),
        "{markdown}"
    );
}

#[test]
fn a_fact_that_a_side_did_not_record_is_unknown_and_not_equal() {
    let plain = run(&[json!({})]);
    let mut older = json!({"data_sha256": {}, "libraries": {}, "flags": {}, "git": null});
    older["host_id"] = Value::Null;
    let older = run(&[older]);
    let (rows, same) = (of_cpu(), experiment("train: {steps: 5}"));
    let found = diff((&rows, Some(&plain), &same), (&rows, Some(&older), &same));
    assert_eq!(found.differences, []);
    assert_eq!(
        keys(&found.unknown),
        [
            "data_sha256.generated",
            "train_samples",
            "host_id",
            "git.commit",
            "git.dirty",
            "libraries.libtorch",
            "flags.tf32_matmul",
        ]
    );
    assert!(
        !found.equal.contains_key(&Section::Flags) && !found.equal.contains_key(&Section::Data)
    );
    let text = found.text("a", "b");
    assert!(
        text.contains("nothing that both runs recorded differs; 7 facts not recorded by both")
            && text.contains("  train_samples          by neither\n")
            && text.contains("  host_id                by B (A: net-1)\n"),
        "{text}"
    );
    // A table alone: its columns are compared, and all else is said to be unknown, once each.
    let alone = diff((&rows, Some(&plain), &same), (&rows, None, ""));
    assert_eq!(alone.differences, []);
    assert_eq!(
        keys(&alone.unknown),
        [
            "experiment.yaml",
            "data_sha256",
            "train_samples",
            "machine.cpu.model",
            "machine.memory.total",
            "host_id",
            "git.commit",
            "libraries.libtorch",
            "versions.kiln",
            "versions.trial_program_sha256",
            "flags",
            "run.json",
        ]
    );
    assert_eq!(alone.equal[&Section::Settings], 8);
}

#[test]
fn a_fact_that_changed_during_a_run_has_both_values_and_a_launch_without_rows_has_none() {
    let resumed = run(&[
        json!({"driver": "570.1"}),
        json!({"driver": "580.1"}),
        json!({"driver": "590.1"}),
    ]);
    let whole = run(&[json!({"driver": "580.1"})]);
    let row = |id, launch| TrialRow {
        launch,
        ..row(id, 10.0)
    };
    let two = table(&[], vec![(row(1, 1), &[]), (row(2, 2), &[])]);
    let one = table(&[], vec![(row(1, 1), &[])]);
    let same = experiment("train: {steps: 5}");
    let found = diff((&two, Some(&resumed), &same), (&one, Some(&whole), &same));
    assert_eq!(keys(&found.differences), ["driver"]);
    assert_eq!(found.differences[0].a.as_deref(), Some("570.1, then 580.1"));
}

#[test]
fn each_hash_of_a_file_that_changed_during_a_run_is_short() {
    let with = |content: &str| {
        let files = json!({"t.py": content.repeat(32)});
        json!({"programs": {"model": {"program": ["t.py"], "files": files}}})
    };
    let (one, both) = (run(&[with("84")]), run(&[with("84"), with("1b")]));
    let two = table(&[], vec![(on_cpu(1, 1), &[]), (on_cpu(2, 2), &[])]);
    let found = diff((&of_cpu(), Some(&one), ""), (&two, Some(&both), ""));
    let text = found.text("a", "b");
    let told = "848484848484… → 848484848484…, then 1b1b1b1b1b1b…\n";
    assert!(text.contains(told), "{text}");
}

#[test]
fn a_key_that_is_newer_than_a_run_has_the_value_that_stands_for_what_kiln_did_before() {
    let rows = of_cpu();
    let file = run(&[json!({})]);
    let (old, new) = (
        experiment("train: {steps: 5}"),
        SMALL.replace("generated", "generated, pin_memory: false")
            + "train: {steps: 5, cudnn_benchmark: false}\n",
    );
    let found = diff((&rows, Some(&file), &old), (&rows, Some(&file), &new));
    assert_eq!(found.differences, [], "{found:?}");
    // Not so for a file that this kiln cannot read as a whole.
    let newer = new.replace("cudnn_benchmark: false", "warp_drive: true");
    let found = diff((&rows, Some(&file), &old), (&rows, Some(&file), &newer));
    assert_eq!(found.differences, []);
    assert!(
        keys(&found.unknown).contains(&"train.precision")
            && keys(&found.unknown).contains(&"train.warp_drive")
    );
}

#[test]
fn data_of_another_name_differ_and_workers_are_told_where_both_runs_left_them_to_kiln() {
    let with_workers = |workers| {
        let row = TrialRow {
            num_workers: Some(workers),
            ..on_cpu(1, 1)
        };
        table(&[], vec![(row, &[])])
    };
    let (one, two) = (with_workers(1), with_workers(2));
    let plain = run(&[json!({})]);
    let other = run(&[json!({"data_sha256": {"text": "d"}})]);
    let of = |workers: &str| {
        SMALL.replace("generated", &format!("generated, num_workers: {workers}"))
            + "train: {steps: 5}\n"
    };
    let found = diff(
        (&one, Some(&plain), &of("auto")),
        (&two, Some(&other), &of("auto")),
    );
    assert_eq!(
        keys(&found.differences),
        ["data_sha256.generated", "data_sha256.text", "num_workers"]
    );
    let found = diff(
        (&one, Some(&plain), &of("auto")),
        (&two, Some(&plain), &of("2")),
    );
    assert_eq!(keys(&found.differences), ["data.num_workers"]);
}

#[test]
fn long_values_show_their_first_difference_and_stay_whole_for_programs() {
    let rows = of_cpu();
    let file = run(&[json!({})]);
    let list = |last: u64| {
        let values: Vec<String> = (1..60)
            .chain([last])
            .map(|value| value.to_string())
            .collect();
        experiment(&format!(
            "train: {{steps: 5}}\nsweep: {{grid: {{train.batch_size: [{}]}}}}",
            values.join(", ")
        ))
    };
    let (a, b) = (list(100), list(200));
    let found = diff((&rows, Some(&file), &a), (&rows, Some(&file), &b));
    let text = found.text("a", "b");
    let line = text.lines().find(|line| line.contains("train.batch_size"));
    let line = line.unwrap();
    assert!(
        line.contains("58, 59, 100 → …") && line.ends_with("58, 59, 200"),
        "{line}"
    );
    let json: Value = serde_json::from_str(&found.json("a", "b")).unwrap();
    let whole = json["differences"][0]["a"].as_str().unwrap();
    assert!(whole.starts_with("swept: 1, 2, 3, ") && whole.ends_with(", 59, 100"));
    assert_eq!(json["equal"]["data"], 1);
    assert!(
        found
            .csv()
            .lines()
            .nth(1)
            .unwrap()
            .starts_with("settings,train.batch_size,different,")
            && found
                .csv()
                .contains("\ndata,train_samples,not-recorded,,\n"),
        "{}",
        found.csv()
    );
}

#[test]
fn a_run_has_no_difference_to_itself() {
    let id = |id| TrialId(format!("{id:010x}"));
    let rows = table(
        &["train.batch_size"],
        vec![(on_cpu(1, 1), &["8"]), (on_cpu(2, 1), &["16"])],
    );
    assert_eq!(rows.rows[0].fixed.trial, id(1));
    let file = run(&[json!({})]);
    let text = experiment("train: {steps: 5}\nsweep: {grid: {train.batch_size: [8, 16]}}");
    let found = diff((&rows, Some(&file), &text), (&rows, Some(&file), &text));
    assert!(
        found.is_empty() && found.equal[&Section::Settings] > 30,
        "{found:?}"
    );
    assert_eq!(keys(&found.unknown), ["train_samples"]);
}

#[test]
fn a_run_that_continues_another_differs_in_where_it_began() {
    let anew = run(&[json!({})]);
    let continued = continued(&anew);
    let found = diff(
        (&of_cpu(), Some(&anew), SMALL),
        (&of_cpu(), Some(&continued), SMALL),
    );
    assert_eq!(
        found.differences,
        [FactPair {
            section: Section::Settings,
            key: "continues".to_owned(),
            a: None,
            b: Some(BEGINNING.to_owned()),
        }]
    );
}

#[test]
fn variables_that_another_build_of_kiln_did_not_record_are_unknown() {
    let of_build = |hash: &str, environment: Value| {
        run(&[json!({
            "versions": {
                "kiln": "0.1.0", "kiln_sha256": hash, "trial_program": "kiln-trial",
                "trial_program_sha256": "t",
            },
            "environment": environment,
        })])
    };
    let table = of_cpu();
    let found = |base: &str| {
        let base = of_build(base, json!({}));
        let new = of_build("k", json!({"OMP_WAIT_POLICY": "passive"}));
        let text = experiment("");
        let found = diff((&table, Some(&base), &text), (&table, Some(&new), &text));
        let is_there = |pairs: &[FactPair]| keys(pairs).contains(&"environment.OMP_WAIT_POLICY");
        [is_there(&found.differences), is_there(&found.unknown)]
    };
    assert_eq!(found("k"), [true, false]);
    assert_eq!(found("older"), [false, true]);
}
