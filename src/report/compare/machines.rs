//! Tells the machines of runs apart whose hosts have no id of their own.
//!
//! Tables with the records beside them come in; their rows get the id of their machine in the place
//! of the host's, where that shows that not all ran on one.

use std::collections::BTreeSet;

use kiln_core::record::{RunFile, TrialRow, TrialTable};

use crate::readings::MASKED;

/// A table and the record of its run, if there is one.
pub type RecordedTable<'a> = (&'a mut TrialTable, Option<&'a RunFile>);

/// Fills `host_id` from the recorded machine ids, where a row has no host id and the ids are of
/// several machines. One id proves nothing: every copy of an image has it.
pub fn tell_machines_apart(sides: &mut [RecordedTable<'_>]) {
    let machines: Vec<Vec<Option<String>>> = sides
        .iter()
        .map(|(table, run)| {
            let rows = table.rows.iter();
            rows.map(|row| machine_of(&row.fixed, *run)).collect()
        })
        .collect();
    let mut rows = sides.iter().flat_map(|(table, _)| table.rows.iter());
    let has_hosts = rows.all(|row| row.fixed.host_id.is_some());
    let is_recorded = machines.iter().all(|side| side.iter().any(Option::is_some));
    let known: BTreeSet<&String> = machines.iter().flatten().flatten().collect();
    if has_hosts || !is_recorded || known.len() < 2 {
        return;
    }
    for ((table, _), side) in sides.iter_mut().zip(machines) {
        for (row, machine) in table.rows.iter_mut().zip(side) {
            if machine.is_some() {
                row.fixed.host_id = machine;
            }
        }
    }
}

/// The id of the machine of a row's launch, as a host id of its own kind.
fn machine_of(row: &TrialRow, run: Option<&RunFile>) -> Option<String> {
    let mut launches = run?.launches.iter();
    let launch = launches.find(|launch| launch.launch == row.launch)?;
    let machine = launch.machine_id.as_deref().filter(|id| *id != MASKED)?;
    Some(format!("machine-{machine}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{
        compare::{ComparedMetric, Gate, Options, RowFact, Treatment, compare, gate},
        points::tests::{row, table},
    };

    fn run(machine_id: Option<&str>) -> RunFile {
        let launch = json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": {}, "devices": {},
            "machine_id": machine_id,
            "versions": {
                "kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                "trial_program_sha256": null,
            },
            "environment": {},
        });
        let whole = json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
        });
        serde_json::from_value(whole).unwrap()
    }

    /// Whether the two sides are told apart by their machines.
    fn are_apart(machines: [Option<&str>; 2], hosts: [Option<&str>; 2]) -> bool {
        let runs = machines.map(run);
        let side = |host: Option<&str>| {
            let mut rates = table(&[], (1..=3).map(|id| (row(id, 10.0), &[][..])).collect());
            for row in &mut rates.rows {
                row.fixed.host_id = host.map(str::to_owned);
            }
            rates
        };
        let [mut base, mut new] = hosts.map(side);
        tell_machines_apart(&mut [(&mut base, Some(&runs[0])), (&mut new, Some(&runs[1]))]);
        let options = Options {
            treatment: Some(Treatment::default()),
            ..Options::default()
        };
        let found = compare(&base, &new, &options).unwrap();
        let is_apart = found.unnamed == [RowFact::HostId.name()];
        let answer = gate(&found, ComparedMetric::Throughput);
        let asks = matches!(&answer, Gate::CannotTell(why) if why[0].contains("--across host_id"));
        assert_eq!(is_apart, asks, "{answer:?}");
        is_apart
    }

    #[test]
    fn machines_of_other_ids_are_others_where_a_host_is_unknown() {
        let none = [None; 2];
        assert!(are_apart([Some("aaa"), Some("bbb")], none));
        assert!(are_apart([Some("aaa"), Some("bbb")], [Some("net-1"), None]));
        for machines in [
            [Some("aaa"), Some("aaa")],
            [Some("aaa"), None],
            [Some("aaa"), Some(MASKED)],
            [None, None],
        ] {
            assert!(!are_apart(machines, none), "{machines:?}");
        }
        // Hosts that are known decide by themselves: the system was installed anew.
        let one_host = [Some("net-1"), Some("net-1")];
        assert!(!are_apart([Some("aaa"), Some("bbb")], one_host));
    }
}
