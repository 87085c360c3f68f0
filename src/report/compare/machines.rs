//! Tells the machines of runs apart whose hosts have no id of their own.
//!
//! Tables with the records beside them come in; their rows get the id of their machine in the place
//! of the host's, where that shows that not all ran on one.

use std::collections::BTreeSet;

use kiln_core::record::{RunFile, TrialRow, TrialTable, machine_traces::MachineTraces};

use crate::readings::MASKED;

/// A table and the record of its run, if there is one.
pub type RecordedTable<'a> = (&'a mut TrialTable, Option<&'a RunFile>);

/// Fills `host_id` from the recorded machine ids, where a row has no host id and the ids are of
/// several machines by the rule of [`MachineTraces`].
pub fn tell_machines_apart(sides: &mut [RecordedTable<'_>]) {
    let traces: Vec<Vec<Option<MachineTraces<'_>>>> = sides
        .iter()
        .map(|(table, run)| {
            let rows = table.rows.iter();
            rows.map(|row| traces_of(&row.fixed, *run)).collect()
        })
        .collect();
    let mut rows = sides.iter().flat_map(|(table, _)| table.rows.iter());
    let has_hosts = rows.all(|row| row.fixed.host_id.is_some());
    let is_recorded = traces.iter().all(|side| side.iter().any(Option::is_some));
    let machines = joined(traces.iter().flatten().flatten().copied());
    if has_hosts || !is_recorded || machines.len() < 2 {
        return;
    }
    let names = names(&machines);
    let name = |of: &MachineTraces<'_>| {
        let own = machines.iter().position(|machine| machine.contains(of))?;
        names.get(own).cloned()
    };
    let ids: Vec<Vec<Option<String>>> = traces
        .iter()
        .map(|side| side.iter().map(|of| name(of.as_ref()?)).collect())
        .collect();
    for ((table, _), side) in sides.iter_mut().zip(ids) {
        for (row, id) in table.rows.iter_mut().zip(side) {
            if id.is_some() {
                row.fixed.host_id = id;
            }
        }
    }
}

/// The traces of each machine.
fn joined<'a>(traces: impl Iterator<Item = MachineTraces<'a>>) -> Vec<BTreeSet<MachineTraces<'a>>> {
    let distinct: BTreeSet<MachineTraces<'_>> = traces.collect();
    let mut machines: Vec<BTreeSet<MachineTraces<'_>>> = Vec::new();
    for one in distinct {
        let is_its = |machine: &BTreeSet<MachineTraces<'_>>| {
            let mut others = machine.iter();
            others.any(|other| other.difference(&one).is_none())
        };
        let (same, others) = machines.into_iter().partition::<Vec<_>, _>(is_its);
        machines = others;
        machines.push(same.into_iter().flatten().chain([one]).collect());
    }
    machines
}

/// A name for each machine: by its first machine id, and what tells it from others of this id.
fn names(machines: &[BTreeSet<MachineTraces<'_>>]) -> Vec<String> {
    let id = |machine: &BTreeSet<MachineTraces<'_>>| {
        let ids = machine.iter().filter_map(|of| of.machine_id);
        ids.min().unwrap_or_default().to_owned()
    };
    let ids: Vec<String> = machines.iter().map(id).collect();
    let name = |(own, machine): (&String, &BTreeSet<MachineTraces<'_>>)| {
        let mut facts = machine.iter().filter_map(|of| of.host_id.or(of.cpu_model));
        let is_shared = ids.iter().filter(|id| *id == own).count() > 1;
        match facts.next().filter(|_| is_shared) {
            Some(fact) => format!("machine-{own} ({fact})"),
            None => format!("machine-{own}"),
        }
    };
    ids.iter().zip(machines).map(name).collect()
}

fn traces_of<'a>(row: &TrialRow, run: Option<&'a RunFile>) -> Option<MachineTraces<'a>> {
    let mut launches = run?.launches.iter();
    let launch = launches.find(|launch| launch.launch == row.launch)?;
    let traces = MachineTraces::of(launch);
    let is_known = traces.machine_id.is_some_and(|id| id != MASKED);
    is_known.then_some(traces)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{
        compare::{ComparedMetric, Gate, Options, RowFact, Treatment, compare, gate},
        points::tests::{row, table},
    };

    fn run(machine_id: Option<&str>, boot_id: &str) -> RunFile {
        let launch = json!({
            "launch": 1, "started_utc": "t", "boot_id": boot_id, "monotonic_nanoseconds": 1,
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
        are_apart_at(machines, hosts, "boot-b")
    }

    fn are_apart_at(machines: [Option<&str>; 2], hosts: [Option<&str>; 2], boot: &str) -> bool {
        are_runs_apart([run(machines[0], "boot-a"), run(machines[1], boot)], hosts)
    }

    fn are_runs_apart(runs: [RunFile; 2], hosts: [Option<&str>; 2]) -> bool {
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
        // Copies of one image on machines with other processors.
        let copies = ["Xeon", "EPYC"].map(|cpu| {
            let mut copy = run(Some("aaa"), cpu);
            copy.launches[0].machine = json!({"cpu": {"model": cpu}});
            copy
        });
        assert!(are_runs_apart(copies, none));
        // Two containers on one host.
        let containers = [Some("aaa"), Some("bbb")];
        assert!(!are_apart_at(containers, none, "boot-a"));
        // Hosts that are known decide by themselves: the system was installed anew.
        let one_host = [Some("net-1"), Some("net-1")];
        assert!(!are_apart([Some("aaa"), Some("bbb")], one_host));
    }
}
