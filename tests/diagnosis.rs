//! The diagnosis from outside: of the runs that are committed here, of faults planted through
//! `kiln run`, and `kiln report` with its page of rules. Every next experiment is one that
//! `kiln check` takes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fake_nvml::{Scenario, install::install};
use kiln::report::{
    diagnose,
    diagnosis::{RULES, RuleFinding, Weight},
    manual,
};
use kiln_core::record::{TableRow, TrialRow, TrialTable};
use serde_json::{Value, json};

use crate::scripted_child::{Ended, Place};

/// A committed run's table.
fn recorded(experiment: &str) -> TrialTable {
    TrialTable::read(&recorded_folder(experiment).join("trials.csv")).unwrap()
}

fn recorded_folder(experiment: &str) -> PathBuf {
    fs::canonicalize(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("results")
            .join(experiment)
            .join("latest"),
    )
    .unwrap()
}

/// Rule and point of each finding, once.
fn found(table: &TrialTable) -> BTreeSet<(&'static str, String)> {
    diagnose(table)
        .into_iter()
        .map(|finding| (finding.rule, finding.point))
        .collect()
}

fn of(rule: &'static str, point: &str) -> (&'static str, String) {
    (rule, point.to_owned())
}

/// One row of a committed run in a table of its own, changed by `plant`.
fn planted(experiment: &str, row: usize, plant: impl FnOnce(&mut TrialRow)) -> Vec<RuleFinding> {
    let mut table = recorded(experiment);
    let TableRow { mut fixed, .. } = table.rows.swap_remove(row);
    plant(&mut fixed);
    diagnose(&TrialTable {
        axes: Vec::new(),
        rows: vec![TableRow {
            fixed,
            axes: Vec::new(),
        }],
        metrics: Vec::new(),
        others: Vec::new(),
        varied: Vec::new(),
        torn: None,
    })
}

fn names(findings: &[RuleFinding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn recorded_runs_without_a_fault_give_none() {
    for experiment in ["quickstart-2core-xeon", "shakespeare-char"] {
        assert!(found(&recorded(experiment)).is_empty(), "{experiment}");
    }
}

#[test]
fn a_recorded_run_beside_busy_processes_is_marked() {
    let findings = diagnose(&recorded("fashion-resnet18"));
    assert_eq!(names(&findings), ["busy-host"]);
    assert_eq!(
        findings[0].says,
        "other processes kept 0.9 of 2 cores busy in the window; its timings are unreliable"
    );
}

#[test]
fn a_recorded_sweep_of_workers_says_who_waited_and_who_were_too_many() {
    let table = recorded("image-folder-workers");
    // 8 workers made 5 % more than 40: less than a drift can make of rows that went through the
    // points in one direction.
    assert_eq!(
        found(&table),
        BTreeSet::from([of("data-bound", "data.num_workers 0")])
    );
    let findings = diagnose(&table);
    assert_eq!(findings.len(), 3, "three repeats");
    assert!(findings.iter().all(|finding| finding.rule == "data-bound"
        && matches!(finding.weight, Weight::Costs(cost) if cost > 0.41)));
    assert!(findings[0].says.contains(
        "waited for data 42.0 % of the window, with 0 workers: the loader is the limit; 8 workers \
         made 80.0 % more"
    ));
    assert_eq!(
        findings[0].next_yaml,
        "sweep: {grid: {data.num_workers: [8], data.synthetic: [false, true]}}\n"
    );
    let mean = findings[0]
        .evidence
        .iter()
        .find(|cell| {
            cell.column == "samples_per_second"
                && cell.of.as_deref() == Some("data.num_workers 8, mean of 3")
        })
        .unwrap();
    assert!(
        (mean.value.as_f64().unwrap() - 592.2).abs() < 5.0,
        "{mean:?}"
    );
}

#[test]
fn recorded_rows_alone_say_what_they_can_without_the_sweep() {
    let waiting = planted("image-folder-workers", 0, |_| ());
    assert_eq!(names(&waiting), ["data-bound"]);
    assert!(
        waiting[0].says.ends_with("try more `data.num_workers`")
            && waiting[0].next_yaml.contains("data.num_workers: [0, 1, 2]"),
        "{waiting:?}"
    );
    assert_eq!(
        names(&planted("image-folder-workers", 5, |_| ())),
        ["too-many-workers"]
    );
    for row in 1..5 {
        assert!(
            planted("image-folder-workers", row, |_| ()).is_empty(),
            "row {row}"
        );
    }
}

#[test]
fn faults_planted_into_recorded_rows_are_found_and_nothing_else() {
    type Plant = fn(&mut TrialRow);
    let faults: [(&str, &str, Plant); 9] = [
        ("shakespeare-char", "evaluation-dominates", |row| {
            row.evaluation_seconds = row.trial_seconds.map(|all| all * 0.4)
        }),
        ("shakespeare-char", "checkpoints-dominate", |row| {
            row.checkpoint_seconds = row.trial_seconds.map(|all| all * 0.3)
        }),
        ("shakespeare-char", "memory-nearly-full", |row| {
            row.peak_resident_bytes = row.memory_limit_bytes.map(|limit| limit / 20 * 19)
        }),
        ("shakespeare-char", "memory-growing", |row| {
            row.notes = Some(
                "resident_slope_bytes_per_step: grew by 1.1 GiB to 1.3 GiB over 1912 steps".into(),
            );
            row.resident_slope_bytes_per_step = Some(617_000.0);
        }),
        ("shakespeare-char", "cpu-only-by-accident", |row| {
            row.driver = Some("590.48.01".into())
        }),
        ("quickstart-2core-xeon", "transfer-bound", |row| {
            row.transfer_fraction = Some(0.15)
        }),
        ("quickstart-2core-xeon", "data-wait", |row| {
            row.data_wait_fraction = Some(0.12)
        }),
        ("image-folder-workers", "disk-bound", |row| {
            row.mean_disk_busy_fraction = Some(0.93);
            row.disk_read_bytes = Some(2_400_000_000);
        }),
        ("image-folder-workers", "workers-starved", |row| {
            row.num_workers = Some(2);
            row.load_seconds = row.window_seconds.map(|seconds| seconds * 1.9);
        }),
    ];
    for (experiment, rule, plant) in faults {
        assert_eq!(
            names(&planted(experiment, 0, plant)),
            [rule],
            "{experiment}"
        );
    }
}

/// A row of a trial on a GPU in which each of these columns is planted.
fn made(columns: &[(&str, Value)]) -> TrialRow {
    let mut fields = serde_json::to_value(TrialRow::default()).unwrap();
    let good = json!({
        "kiln_table": "trials/5", "trial": "00000000aa", "attempt": 1, "launch": 1, "number": 1, "outcome": "completed", "trial_seconds": 300.0,
        "model_kind": "gpt", "data_kind": "generated", "engine": "libtorch", "device_name": "NVIDIA H200", "device_uuid": "GPU-1", "driver": "590.48.01",
        "precision": "f32", "batch_size": 8, "grad_accumulation": 1, "effective_batch_size": 8, "num_workers": 2, "seed": 1, "steps": 900,
        "window_seconds": 200.0, "left_out_steps": 10, "samples_per_second": 90.0, "median_step_seconds": 0.09, "epoch_seconds": 60.0, "data_wait_fraction": 0.01,
        "load_seconds": 9.0, "transfer_fraction": 0.01, "mean_gpu_utilization": 0.97, "mean_sm_active": 0.8, "peak_allocated_bytes": 50_000_000_000_u64,
        "peak_nvml_used_bytes": 60_000_000_000_u64, "memory_limit_bytes": 150_000_000_000_u64, "foreign_processes": "none", "concurrent_trials": 1,
        "cpu_threads": 8, "devices_per_trial": 1,
    });
    let planted = columns
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    let cells = good.as_object().unwrap().clone().into_iter().chain(planted);
    fields.as_object_mut().unwrap().extend(cells);
    serde_json::from_value(fields).unwrap()
}

/// For each rule a row on which it fires.
fn one_of_each() -> Vec<(&'static str, TrialRow)> {
    let gone = Value::Null;
    let grew = "allocated_slope_bytes_per_step: grew by 9.0 GiB to 40.0 GiB over 890 steps";
    let busy = "samples_per_second: other processes kept 3.0 of 8 cores busy in the window";
    vec![
        (
            "oom",
            made(&[
                ("outcome", json!("oom")),
                ("steps", json!(0)),
                ("samples_per_second", gone.clone()),
            ]),
        ),
        (
            "memory-growing",
            made(&[
                ("notes", json!(grew)),
                ("allocated_slope_bytes_per_step", json!(1e7)),
            ]),
        ),
        (
            "memory-nearly-full",
            made(&[("peak_allocated_bytes", json!(140_000_000_000_u64))]),
        ),
        (
            "allocator-thrashing",
            made(&[("allocator_retries", json!(40))]),
        ),
        (
            "disk-bound",
            made(&[
                ("data_wait_fraction", json!(0.5)),
                ("mean_gpu_utilization", json!(0.6)),
                ("mean_disk_busy_fraction", json!(0.95)),
                ("disk_read_bytes", json!(9_000_000_000_u64)),
            ]),
        ),
        (
            "workers-starved",
            made(&[
                ("data_wait_fraction", json!(0.5)),
                ("mean_gpu_utilization", json!(0.6)),
                ("num_workers", json!(8)),
                ("load_seconds", json!(1590.0)),
            ]),
        ),
        (
            "data-bound",
            made(&[
                ("data_wait_fraction", json!(0.5)),
                ("mean_gpu_utilization", json!(0.6)),
                ("num_workers", json!(0)),
            ]),
        ),
        (
            "data-wait",
            made(&[
                ("data_wait_fraction", json!(0.12)),
                ("mean_gpu_utilization", json!(0.85)),
            ]),
        ),
        ("too-many-workers", made(&[("num_workers", json!(40))])),
        ("transfer-bound", made(&[("transfer_fraction", json!(0.3))])),
        (
            "launch-bound",
            made(&[
                ("median_step_seconds", json!(0.001)),
                ("mean_sm_active", json!(0.02)),
            ]),
        ),
        ("batch-too-small", made(&[("mean_sm_active", json!(0.3))])),
        (
            "low-utilization",
            made(&[("mean_gpu_utilization", json!(0.1))]),
        ),
        (
            "communication-bound",
            made(&[
                ("communication_fraction", json!(0.4)),
                ("devices_per_trial", json!(2)),
            ]),
        ),
        (
            "unknown-tokens",
            made(&[(
                "notes",
                json!(
                    "unknown_tokens: 98.1 % of the tokens of the training rows are unknown to the \
                     tokenizer"
                ),
            )]),
        ),
        (
            "loss-rose",
            made(&[
                ("train_loss", json!(2366.0)),
                (
                    "notes",
                    json!("train_loss: ended above the first logged loss, 4.25"),
                ),
            ]),
        ),
        (
            "validation-above-training",
            made(&[("train_loss", json!(0.5)), ("valid_loss", json!(2.5))]),
        ),
        (
            "no-better-than-baseline",
            made(&[
                ("valid_mean_absolute_error", json!(0.017)),
                ("persistence_mean_absolute_error", json!(0.0154)),
                ("valid_hit_rate", json!(0.5)),
                ("majority_hit_rate", json!(0.667)),
            ]),
        ),
        (
            "evaluation-dominates",
            made(&[("evaluation_seconds", json!(150.0))]),
        ),
        (
            "checkpoints-dominate",
            made(&[("checkpoint_seconds", json!(150.0))]),
        ),
        (
            "throttled",
            made(&[
                ("throttled_fraction", json!(0.5)),
                ("throttle_reasons", json!("hw_thermal_slowdown")),
            ]),
        ),
        (
            "power-capped",
            made(&[
                ("throttled_fraction", json!(0.5)),
                ("throttle_reasons", json!("sw_power_cap")),
            ]),
        ),
        (
            "shared-device",
            made(&[("foreign_processes", json!("1 with 2.0 GiB"))]),
        ),
        ("busy-host", made(&[("notes", json!(busy))])),
        (
            "memory-errors",
            made(&[("ecc_uncorrected_errors", json!(1))]),
        ),
        (
            "energies-apart",
            made(&[
                ("energy_counter_joules", json!(500.0)),
                ("energy_integral_joules", json!(100.0)),
            ]),
        ),
        (
            "cpu-only-by-accident",
            made(&[
                ("device_uuid", gone.clone()),
                ("mean_gpu_utilization", gone.clone()),
                ("peak_allocated_bytes", gone),
            ]),
        ),
        (
            "memory-to-spare",
            made(&[
                ("peak_nvml_used_bytes", json!(30_000_000_000_u64)),
                ("mean_gpu_utilization", json!(0.9)),
            ]),
        ),
    ]
}

/// `kiln check` takes these lines on top of an experiment; says what it refused otherwise.
fn is_taken(experiment: &Path, lines: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("next.yaml");
    fs::write(
        &file,
        format!(
            "kiln: 1\nname: next\nextends: {}\n{lines}",
            experiment.display()
        ),
    )
    .unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .arg("check")
        .arg(&file)
        .output()
        .unwrap();
    if checked.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{lines}{}",
            String::from_utf8_lossy(&checked.stderr)
        ))
    }
}

#[test]
fn every_rule_has_a_row_and_its_next_experiment_is_one_that_check_takes() {
    let rows = one_of_each();
    assert_eq!(
        rows.iter().map(|(rule, _)| *rule).collect::<Vec<_>>(),
        RULES.map(|rule| rule.name)
    );
    let folder = tempfile::tempdir().unwrap();
    let base = "kiln: 1\nname: base\nmodel: {kind: gpt, d_model: 32, num_heads: 2, num_layers: 1, \
                seq_len: 16}\ndata: {kind: generated, num_workers: 2}\n\
                train: {batch_size: 8, steps: 900, checkpoint: {every_steps: 100}}\n";
    let sweeps = [
        ("", &[][..], &[][..]),
        (
            "sweep: {grid: {train.batch_size: [8, 16], data.num_workers: [0, 2]}}\n",
            &["train.batch_size", "data.num_workers"],
            &["8", "2"],
        ),
        (
            "sweep: {zip: {train.batch_size: [8, 16], model.d_model: [32, 64]}, repeats: 2}\n",
            &["train.batch_size", "model.d_model"],
            &["8", "32"],
        ),
        (
            "sweep: {grid: {train.optimizer: [{kind: sgd}, {kind: adamw, beta1: 0.8}], train.seed: \
             [1, 2]}}\n",
            &["train.optimizer", "train.seed"],
            &[r#"{"kind":"adamw","beta1":0.8}"#, "1"],
        ),
    ];
    for (number, (sweep, axes, values)) in sweeps.into_iter().enumerate() {
        let experiment = folder.path().join(format!("{number}.yaml"));
        fs::write(&experiment, format!("{base}{sweep}")).unwrap();
        // A second point, so that a zipped sweep is seen to be no grid.
        let other: Vec<String> = axes
            .iter()
            .map(|axis| if *axis == "model.d_model" { "64" } else { "16" }.to_owned())
            .collect();
        for (rule, fixed) in &rows {
            let own = TableRow {
                fixed: Box::new(fixed.clone()),
                axes: values.iter().map(|value| (*value).to_owned()).collect(),
            };
            let beside = made(&[
                ("trial", json!("00000000bb")),
                ("number", json!(2)),
                ("outcome", json!("failed")),
                ("samples_per_second", Value::Null),
            ]);
            let beside = (number == 2).then(|| TableRow {
                fixed: Box::new(beside),
                axes: other.clone(),
            });
            let table = TrialTable {
                axes: axes.iter().map(|axis| (*axis).to_owned()).collect(),
                rows: std::iter::once(own).chain(beside).collect(),
                metrics: Vec::new(),
                others: Vec::new(),
                varied: Vec::new(),
                torn: None,
            };
            let findings: Vec<RuleFinding> = diagnose(&table)
                .into_iter()
                .filter(|finding| finding.trial.0 == "00000000aa")
                .collect();
            assert_eq!(names(&findings), [*rule]);
            assert_eq!(
                is_taken(&experiment, &findings[0].next_yaml),
                Ok(()),
                "{rule}, sweep {number}"
            );
        }
    }
}

#[test]
fn next_experiments_of_recorded_runs_are_ones_that_check_takes() {
    for experiment in ["image-folder-workers", "fashion-resnet18"] {
        for finding in diagnose(&recorded(experiment)) {
            assert_eq!(
                is_taken(
                    &recorded_folder(experiment).join("experiment.yaml"),
                    &finding.next_yaml
                ),
                Ok(()),
                "{}",
                finding.rule
            );
        }
    }
}

/// An H200 that works: busy, its memory half full, nobody else on it.
fn working() -> Scenario {
    let mut scenario = Scenario::read(Path::new("tests/scenarios/h200.yaml")).unwrap();
    let calls = &mut scenario.devices[0].calls;
    calls.insert(
        "nvmlDeviceGetUtilizationRates".into(),
        json!({"gpu": 97, "memory": 40}),
    );
    let memory = json!({"total": 150_754_820_096_u64, "reserved": 643_825_664, "used": 80_000_000_000_u64, "free": 70_110_994_432_u64});
    calls.insert("nvmlDeviceGetMemoryInfo_v2".into(), memory);
    scenario
}

/// `kiln run` of two trials on this device, and what it printed.
fn run_on(scenario: &Scenario) -> (Place, String) {
    let place = Place::with(
        "train: {steps: 10}\nmeasure: {sample_interval: 100ms}\nrun: {require_idle_device: false, \
         devices: [0]}\nsweep: {grid: {train.batch_size: [1, 2]}}",
    );
    let library = install(place.path("x.yaml").parent().unwrap(), scenario).unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "plain"]);
    // A mean takes five looks at least; a busy machine may take its time for each.
    kiln.env("SCRIPTED_CHILD", "sampled")
        .env("SCRIPTED_CHILD_LOOKS", "6")
        .env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60");
    kiln.env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("FAKE_NVML_SCENARIO");
    let ended = Ended::of(kiln.output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    (place, ended.stdout)
}

/// Those that the machine of this test does not add: others may well keep its cores busy.
fn findings_of(page: &str) -> Vec<&str> {
    page.lines()
        .filter(|line| line.starts_with("finding: ") && !line.starts_with("finding: busy-host"))
        .collect()
}

#[test]
fn an_undisturbed_run_ends_without_a_finding() {
    let (place, page) = run_on(&working());
    assert!(
        findings_of(&page).is_empty() && page.contains("2 trials: 2 completed"),
        "{page}"
    );
    let report = Ended::of(place.kiln(&["report"]).output().unwrap());
    assert!(
        report.status == Some(0)
            && findings_of(&report.stdout).is_empty()
            && report.stdout.contains("2 trials: 2 completed"),
        "{report:?}"
    );
}

#[test]
fn planted_faults_of_the_device_end_the_run_with_their_findings() {
    let with = |call: &str, answer: Value| {
        let mut scenario = working();
        scenario.devices[0].calls.insert(call.into(), answer);
        run_on(&scenario).1
    };
    let reasons = |bits: u64| {
        let mut scenario = working();
        for call in [
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ] {
            scenario.devices[0].calls.insert(call.into(), json!(bits));
        }
        run_on(&scenario).1
    };
    let hot = reasons(0x48);
    let wanted = "finding: throttled (2 of 2 trials, first: train.batch_size 1): the GPU's clocks \
                  were limited for 100.0 % of the window: hw_slowdown, hw_thermal_slowdown, at up \
                  to 38 °C";
    assert_eq!(findings_of(&hot), [wanted], "{hot}");
    let capped = reasons(0x4);
    let wanted = "finding: power-capped (2 of 2 trials, first: train.batch_size 1): the power \
                  limit lowered the clocks for 100.0 % of the window at 480 W: sw_power_cap";
    assert_eq!(findings_of(&capped), [wanted], "{capped}");
    let shared = with(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        json!([{"pid": 1, "usedGpuMemory": 2_147_483_648_u64}]),
    );
    let wanted = "finding: shared-device (2 of 2 trials, first: train.batch_size 1): other \
                  processes used the device during the trial (1 with 2.0 GiB); its timings may be \
                  wrong";
    assert_eq!(findings_of(&shared), [wanted], "{shared}");
    let idle = with(
        "nvmlDeviceGetUtilizationRates",
        json!({"gpu": 3, "memory": 0}),
    );
    assert!(
        findings_of(&idle)[0].starts_with("finding: low-utilization (2 of 2 trials"),
        "{idle}"
    );
}

#[test]
fn a_report_says_it_all_in_three_forms() {
    let folder = recorded_folder("image-folder-workers");
    let report = |arguments: &[&str]| {
        let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
        Ended::of(
            kiln.arg("report")
                .arg(&folder)
                .args(arguments)
                .output()
                .unwrap(),
        )
    };
    let text = report(&[]);
    assert_eq!(text.status, Some(0), "{text:?}");
    for part in [
        "18 trials: 18 completed\n",
        "finding: data-bound (3 of 18 trials, data.num_workers 0): the trainer waited",
        "\ndata-bound: trial 8b2c83bf7f (data.num_workers 0) and 2 repeats\n",
        "    data_wait_fraction  42.0 %\n",
        "  threshold: data_wait_fraction at least 20.0 % (docs/measurement.md 5: 20 % is a \
         diagnosis)\n",
        "  refuted by: `data.synthetic: true` reuses one batch",
        "    sweep: {grid: {data.num_workers: [8], data.synthetic: [false, true]}}\n",
    ] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    let markdown = report(&["--format", "markdown"]).stdout;
    assert!(
        markdown.contains("\n## data-bound: trial ")
            && markdown.contains("\nRefuted by: `data.synthetic: true` reuses one batch")
            && markdown.contains(
                "\nsweep: {grid: {data.num_workers: [8], data.synthetic: [false, true]}}\n\
                 ```\n"
            )
    );
    assert_eq!(markdown.matches("```").count() % 2, 0, "{markdown}");
    // The next experiment is a whole file.
    let (_, next) = markdown.split_once("```yaml\n").unwrap();
    let (next, _) = next.split_once("```").unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("next.yaml");
    fs::write(&file, next).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let checked = Ended::of(check.arg("check").arg(&file).output().unwrap());
    assert_eq!(checked.status, Some(0), "{next}{checked:?}");
    assert!(next.starts_with("kiln: 1\nname: "), "{next}");
    let told: Value = serde_json::from_str(&report(&["--format", "json"]).stdout).unwrap();
    assert_eq!(
        (
            &told["kiln_report"],
            &told["planned"],
            &told["outcomes"]["completed"]
        ),
        (&json!(1), &json!(18), &json!(18))
    );
    assert_eq!(
        (
            told["findings"].as_array().unwrap().len(),
            told["points"].as_array().unwrap().len()
        ),
        (3, 6)
    );
    assert_eq!(told["findings"][0]["thresholds"][0]["value"], 0.2);
    assert_eq!(told["points"][0]["axes"]["data.num_workers"], "0");
    assert_eq!(told["points"][0]["values"]["data.num_workers"], 0);
}

#[test]
fn a_report_is_of_a_run_an_experiment_a_table_or_the_newest() {
    let place = Place::with("train: {steps: 10}");
    let report = |arguments: &[&str]| {
        Ended::of(
            place
                .kiln(&[&["report"], arguments].concat())
                .output()
                .unwrap(),
        )
    };
    let nothing = report(&[]);
    assert!(
        nothing.status == Some(2)
            && nothing
                .stderr
                .contains("name another folder of runs with `--results`"),
        "{nothing:?}"
    );
    assert_eq!(place.run("completes", &[]).status, Some(0));
    for named in [
        &[][..],
        &["results/x"],
        &["results/x/latest"],
        &["results/x/latest/trials.csv"],
        &["results/x/latest/summary.csv"],
        &["results/x/latest/run.json"],
        &["x/latest"],
    ] {
        let told = report(named);
        assert!(
            told.status == Some(0) && told.stdout.contains("1 trial: 1 completed"),
            "{named:?}: {told:?}"
        );
    }
    let absent = report(&["results/y"]);
    assert!(
        absent.status == Some(2)
            && absent
                .stderr
                .contains("results/y: there is no such file or folder; name a run's folder"),
        "{absent:?}"
    );
    let empty = report(&["results"]);
    assert!(
        empty.status == Some(2) && empty.stderr.contains("holds no `trials.csv`"),
        "{empty:?}"
    );
    fs::write(place.path("other.csv"), "a,b\n1,2\n").unwrap();
    let other = report(&["other.csv"]);
    assert!(
        other.status == Some(2) && other.stderr.contains("other.csv"),
        "{other:?}"
    );
}

#[test]
fn the_page_of_rules_says_what_the_program_knows() {
    let page = Path::new("docs/diagnosis.md");
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(page, manual()).unwrap();
    }
    let text = fs::read_to_string(page).unwrap();
    assert!(
        text == manual(),
        "docs/diagnosis.md is out of date; write it again with `KILN_BLESS=1 cargo test --release \
         --test suite diagnosis::`"
    );
}
