//! Rows of another machine than that of their launch: somebody joined two tables, in which launches
//! of two machines have the same number. In: a table and `run.json`. Out: a sentence.

use std::fmt;

use serde_json::Value;

use super::{RunFile, TrialRow, TrialTable, run_file::Launch, trials::host_id_kind};
use crate::units::counted;

/// Rows with a machine that is not the one of their launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsOfOtherMachine {
    pub rows: usize,
    /// The trial, the attempt and the launch of the first one.
    pub trial: String,
    pub attempt: u64,
    pub launch: u64,
    /// The column of the first one that differs.
    pub column: &'static str,
}

impl fmt::Display for RowsOfOtherMachine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            trial,
            attempt,
            launch,
            column,
        } = self;
        write!(
            formatter,
            "the machine of {} is not that of the launch in `run.json` (the first: `{column}` of \
             trial {trial} attempt {attempt}, launch {launch}); rows of two machines may have been \
             joined by hand, and their speeds do not compare; keep the run of each machine in a \
             folder of its own",
            counted(*rows, "row")
        )
    }
}

/// The rows that contradict the record of their launch; `None` if there is none. A row of a launch
/// that is not recorded, and a fact that one side lacks, contradict nothing.
pub fn rows_of_other_machine(table: &TrialTable, run: &RunFile) -> Option<RowsOfOtherMachine> {
    let differing = |row: &TrialRow| {
        let mut launches = run.launches.iter();
        let launch = launches.find(|launch| launch.launch == row.launch)?;
        other_fact(row, launch)
    };
    let mut found = table
        .rows
        .iter()
        .filter_map(|row| Some((&row.fixed, differing(&row.fixed)?)));
    let (first, column) = found.next()?;
    Some(RowsOfOtherMachine {
        rows: 1 + found.count(),
        trial: first.trial.0.clone(),
        attempt: first.attempt,
        launch: first.launch,
        column,
    })
}

/// The column of a fact that holds for a whole launch, and differs from that of this launch. Clocks
/// may be set, so times decide nothing.
fn other_fact(row: &TrialRow, launch: &Launch) -> Option<&'static str> {
    let differs = |row: Option<&str>, launch: Option<&str>| {
        row.zip(launch).is_some_and(|(row, launch)| row != launch)
    };
    let processor = launch.machine.pointer("/cpu/processor");
    if has_other_device(row, launch) {
        return Some("device_uuid");
    }
    if differs(row.processor.as_deref(), processor.and_then(Value::as_str)) {
        return Some("processor");
    }
    let (own, recorded) = (row.host_id.as_deref(), launch.host_id.as_deref());
    let is_comparable = own.map(host_id_kind) == recorded.map(host_id_kind);
    (is_comparable && differs(own, recorded)).then_some("host_id")
}

/// Whether a GPU of the row is not among those of the launch, which lists all of its machine.
fn has_other_device(row: &TrialRow, launch: &Launch) -> bool {
    let is_known = |uuid: &str| match &launch.devices {
        Value::Array(listed) => listed.iter().any(|device| device["uuid"] == *uuid),
        // The machine had none, and the reason is recorded.
        devices => devices.get("none").is_none(),
    };
    row.device_uuids().any(|uuid| !is_known(uuid))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{plan::TrialId, record::TableRow};

    fn run(devices: &Value) -> RunFile {
        let launch = json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "host_id": "net-1",
            "machine": {"cpu": {"processor": "AMD 25/1"}}, "devices": devices, "environment": {},
            "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                         "trial_program_sha256": null},
        });
        let whole = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
        });
        serde_json::from_value(whole).unwrap()
    }

    /// The rows with another machine, and the first column that tells it.
    fn found(devices: &Value, changes: &[fn(&mut TrialRow)]) -> Option<(usize, &'static str)> {
        let row = |change: &fn(&mut TrialRow)| {
            let mut row = TrialRow {
                trial: TrialId("t1".to_owned()),
                attempt: 1,
                launch: 1,
                processor: Some("AMD 25/1".to_owned()),
                host_id: Some("net-1".to_owned()),
                ..TrialRow::default()
            };
            change(&mut row);
            TableRow::new(row, &[])
        };
        let table = TrialTable {
            rows: changes.iter().map(row).collect(),
            ..TrialTable::default()
        };
        rows_of_other_machine(&table, &run(devices)).map(|found| (found.rows, found.column))
    }

    #[test]
    fn a_row_of_another_machine_than_its_launch_is_found() {
        let gpus = json!([{"index": 0, "uuid": "GPU-1"}, {"index": 1, "uuid": "GPU-2"}]);
        let none = json!({"none": "no NVIDIA driver found"});
        assert_eq!(found(&gpus, &[|_| (), |_| ()]), None);
        let same: fn(&mut TrialRow) = |row| row.device_uuid = Some("GPU-1; GPU-2".to_owned());
        let other: fn(&mut TrialRow) = |row| row.device_uuid = Some("GPU-1; GPU-3".to_owned());
        assert_eq!(found(&gpus, &[same]), None);
        assert_eq!(
            found(&gpus, &[same, other, other]),
            Some((2, "device_uuid"))
        );
        assert_eq!(found(&none, &[same]), Some((1, "device_uuid")));
        // Older records say nothing of the devices.
        assert_eq!(found(&json!({}), &[other]), None);
        assert_eq!(
            found(
                &none,
                &[|row| row.processor = Some("Intel 6/143".to_owned())]
            ),
            Some((1, "processor"))
        );
        assert_eq!(
            found(&none, &[|row| row.host_id = Some("net-2".to_owned())]),
            Some((1, "host_id"))
        );
        let unknown: [fn(&mut TrialRow); 4] = [
            |row| row.processor = None,
            |row| row.host_id = None,
            // Ids of different sources do not compare.
            |row| row.host_id = Some("dmi-2".to_owned()),
            |row| (row.launch, row.processor) = (2, Some("Intel 6/143".to_owned())),
        ];
        assert_eq!(found(&none, &unknown), None);
    }
}
