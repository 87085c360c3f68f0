//! A run of ten thousand trials, and a long trial: no process that works on them, or tells of them,
//! holds much of them.

use std::{fs, path::Path, process::Command};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        RunFile, RunFolder, SampleRow, StepRow, TableRow, TrialRow, launch_folder,
        tables::{SAMPLES, STEPS},
        trial_row::TRIALS,
        trials::{TrialTable, TrialWriter},
    },
};
use serde::Serialize;
use serde_json::json;

use crate::scripted_child::{Ended, Place, variables};

/// Prints the highest resident memory of a command, in MiB, its exit status, and what it said.
const PEAK: &str = "import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, ended.returncode, ended.stderr)";

/// What `docs/cluster-evidence.md` says, and room for another allocator or larger pages.
const MOST_MEBIBYTES: u64 = 70;
/// How much more a page of long tables may take than one of short ones; the tables have 40 MiB.
const MOST_MORE_MEBIBYTES: u64 = 40;

/// The highest resident memory of kiln with these arguments, in MiB, and how it ended.
fn peak(place: &Place, arguments: &[&str]) -> (u64, String) {
    let own = place.kiln(&[]);
    let said = Command::new("python3")
        .args(["-c", PEAK])
        .arg(own.get_program())
        .args(arguments)
        .envs(variables(&own))
        .current_dir(place.path(""))
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let (peak, ended) = said.split_once(' ').unwrap();
    (peak.parse().unwrap(), ended.to_owned())
}

#[test]
fn no_process_holds_much_of_ten_thousand_trials() {
    let values = |last: u64| {
        (1..=last)
            .map(|value| value.to_string())
            .collect::<Vec<_>>()
    };
    let (ten, hundred) = (values(10).join(", "), values(100).join(", "));
    let place = Place::of_command(
        "  argv: ['true', '{a}', '{b}', '{c}']\n  values: {a: 0, b: 0, c: 0}",
        &format!(
            "sweep: {{grid: {{model.values.a: [{ten}], model.values.b: [{ten}], model.values.c: \
             [{hundred}]}}}}"
        ),
    );
    let submit = ["run", "x.yaml", "--on", "workers", "--detach"];
    let submitted = Ended::of(place.kiln(&submit).output().unwrap());
    assert_eq!(submitted.status, Some(0), "{submitted:?}");
    let run = RunFolder::at(fs::canonicalize(place.latest()).unwrap());
    end_all_but_one(&run);
    for arguments in [
        &["worker", "x"][..],
        &["wait", "x", "--once"],
        &["plan", "x.yaml"],
        &["ls"],
        &["report", "x"],
        &["run", "x.yaml", "--on", "workers", "--detach"],
    ] {
        let (mebibytes, ended) = peak(&place, arguments);
        assert!(ended.starts_with("0 "), "{arguments:?}: {ended}");
        assert!(mebibytes < MOST_MEBIBYTES, "{arguments:?}: {mebibytes} MiB");
    }
    assert_eq!(place.rows().len(), 10_000);
}

#[test]
fn a_page_of_long_tables_takes_little_more_memory_than_one_of_short_ones() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let page = ["report", "x", "--html", "report.html"];
    let (short, ended) = peak(&place, &page);
    assert!(ended.starts_with("0 "), "{ended}");
    let run = RunFolder::at(fs::canonicalize(place.latest()).unwrap());
    let row = TrialTable::read(&run.trials_table())
        .unwrap()
        .rows
        .remove(0);
    let TrialRow { trial, attempt, .. } = *row.fixed;
    let sample = |tick: u32| SampleRow {
        kiln_table: SAMPLES.version.to_owned(),
        launch: 1,
        run_seconds: f64::from(tick) / 2.0,
        trial: trial.0.clone(),
        attempt,
        device: format!("GPU-{}", tick % 2),
        power_watts: Some(f64::from(tick % 700)),
        memory_used_bytes: Some(u64::from(tick) << 12),
        throttle_bits: Some(1),
        // As wide as a row of a GPU.
        throttle_reasons: Some("hw_thermal_slowdown sw_power_cap ".repeat(8)),
        ..SampleRow::default()
    };
    write(&run.samples_table(), (0..60_000).map(sample));
    let step = |step: u32| StepRow {
        kiln_table: STEPS.version.to_owned(),
        run_seconds: f64::from(step) / 8.0,
        epoch: 1,
        step: u64::from(step),
        loss: Some(f64::from(step % 1000) / 7.0),
        learning_rate: Some(1e-3 / 7.0),
        step_seconds: Some(0.125),
        ..StepRow::default()
    };
    let folder = run.attempt(&trial, attempt);
    write(&folder.join("steps.csv"), (1..=200_000).map(step));
    let (long, ended) = peak(&place, &page);
    assert!(ended.starts_with("0 "), "{ended}");
    let page = fs::read_to_string(place.path("report.html")).unwrap();
    for picture in ["Power, W", "Loss by steps"] {
        assert!(page.contains(picture), "no picture `{picture}`");
    }
    assert!(long < short + MOST_MORE_MEBIBYTES, "{short} and {long} MiB");
}

fn write<T: Serialize>(table: &Path, rows: impl Iterator<Item = T>) {
    let mut writer = csv::Writer::from_path(table).unwrap();
    rows.for_each(|row| writer.serialize(row).unwrap());
    writer.flush().unwrap();
}

/// Writes the rows of all trials but the last as one launch would, and hands in their tickets.
fn end_all_but_one(run: &RunFolder) {
    let launch = launch_folder::make(run, 1).unwrap();
    let made = TrialTable::read(&launch_folder::folder(run, 0).trials_table()).unwrap();
    let columns = [made.axes, made.metrics].concat();
    let table = launch_folder::folder(run, launch).trials_table();
    let (mut writer, _) = TrialWriter::open(&table, &columns).unwrap();
    let plan: Vec<TrialId> = RunFile::read(&run.run_file()).unwrap().plan;
    for (place, trial) in (0_u64..).zip(plan).take(9999) {
        let row = TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            trial,
            number: place + 1,
            attempt: 1,
            launch,
            outcome: Outcome::Completed,
            started_utc: Some("2026-01-01T00:00:00.000Z".to_owned()),
            trial_seconds: Some(1.0 + place as f64 / 7.0),
            model_kind: "command".to_owned(),
            data_kind: "none".to_owned(),
            engine: "command".to_owned(),
            device_name: Some("A processor with a name of some length, 64 cores".to_owned()),
            host_id: Some("0123456789abcdef".to_owned()),
            seed: place,
            ..TrialRow::default()
        };
        let of = [place / 1000, place / 100 % 10, place % 100].map(|value| json!(value + 1));
        writer.append(&TableRow::new(row, &of)).unwrap();
    }
    let queue = run.path().join("queue");
    for number in 1..10_000 {
        let ticket = |state: &str| queue.join(format!("{number:04}.{state}"));
        fs::rename(ticket("open"), ticket("done")).unwrap();
    }
}
