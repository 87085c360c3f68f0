//! A run of ten thousand trials: no process that works on it, or tells of it, holds much of it.

use std::{fs, process::Command};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        RunFile, RunFolder, TableRow, TrialRow, launch_folder,
        trial_row::TRIALS,
        trials::{TrialTable, TrialWriter},
    },
};
use serde_json::json;

use crate::scripted_child::{Ended, Place, variables};

/// Prints the highest resident memory of a command, in MiB, its exit status, and what it said.
const PEAK: &str = "import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, ended.returncode, ended.stderr)";

/// What `docs/cluster-evidence.md` says, and room for another allocator or larger pages.
const MOST_MEBIBYTES: u64 = 70;

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
    let own = place.kiln(&[]);
    let peak = |arguments: &[&str]| -> (u64, String) {
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
    };
    for arguments in [
        &["worker", "x"][..],
        &["wait", "x", "--once"],
        &["plan", "x.yaml"],
        &["ls"],
        &["report", "x"],
        &["run", "x.yaml", "--on", "workers", "--detach"],
    ] {
        let (mebibytes, ended) = peak(arguments);
        assert!(ended.starts_with("0 "), "{arguments:?}: {ended}");
        assert!(mebibytes < MOST_MEBIBYTES, "{arguments:?}: {mebibytes} MiB");
    }
    assert_eq!(place.rows().len(), 10_000);
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
