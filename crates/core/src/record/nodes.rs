//! Differences between the nodes of one run that may affect its rows: builds of libraries, clocks.

use std::collections::{BTreeMap, BTreeSet};

use super::{libraries::split_build_id, run_file::Launch};
use crate::units::short_hash;

/// Clocks may be apart by so much, in seconds.
const MOST_APART: f64 = 2.0;

/// A sentence for each difference between the launches of a run.
pub fn unlike_nodes(launches: &[Launch]) -> Vec<String> {
    let mut found = other_builds(launches);
    found.extend(clocks_apart(launches));
    found
}

/// The builds of a library by their ids, with the nodes that loaded each.
type Builds<'l> = BTreeMap<&'l str, BTreeSet<String>>;

/// Libraries of which several builds were loaded under one version of libtorch.
fn other_builds(launches: &[Launch]) -> Vec<String> {
    let mut by_library: BTreeMap<(&str, Option<&str>), Builds<'_>> = BTreeMap::new();
    for launch in launches {
        let version = launch.libraries.get("libtorch").map(String::as_str);
        let own = launch.libraries.iter().map(|library| (version, library));
        // Other engines, by their names.
        let programs = launch.programs.iter();
        let of_programs = programs.flat_map(|(key, program)| {
            let libraries = program.libraries.iter();
            libraries.map(|library| (Some(key.as_str()), library))
        });
        for (of, (name, value)) in own.chain(of_programs) {
            if let (_, Some(id)) = split_build_id(value) {
                let builds = by_library.entry((name, of)).or_default();
                builds.entry(id).or_default().insert(place(launch));
            }
        }
    }
    let remedy = match launches.iter().any(|launch| launch.node.is_some()) {
        true => "; install one build on all nodes",
        false => "",
    };
    let several = by_library
        .into_iter()
        .filter(|(_, builds)| builds.len() > 1);
    several
        .map(|((name, _), builds)| {
            let each = builds.iter().map(|(id, nodes)| {
                let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
                format!("build {} on {}", short_hash(id), nodes.join(", "))
            });
            format!(
                "the trials of this run loaded {} builds of {name} ({}): speeds and losses may differ \
                 by them{remedy}",
                builds.len(),
                each.collect::<Vec<_>>().join("; ")
            )
        })
        .collect()
}

fn place(launch: &Launch) -> String {
    let number = || format!("launch {}", launch.launch);
    launch.node.clone().unwrap_or_else(number)
}

/// By the clock of the file server, which is one for all.
fn clocks_apart(launches: &[Launch]) -> Option<String> {
    let ahead = launches
        .iter()
        .filter_map(|launch| Some((launch.clock_ahead_seconds?, launch)));
    let mut ahead: Vec<(f64, &Launch)> = ahead.collect();
    ahead.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let ((least, behind), (most, before)) = (ahead.first()?, ahead.last()?);
    let apart = most - least;
    let (before, behind) = match place(before) == place(behind) {
        true => (
            format!("{} in launch {}", place(before), before.launch),
            format!("launch {}", behind.launch),
        ),
        false => (place(before), place(behind)),
    };
    (apart > MOST_APART).then(|| {
        format!(
            "the clock of {before} was {apart:.1} s ahead of that of {behind}, and `started_utc` and \
             `run_seconds` of their rows are apart by as much; durations are not; set the clocks of all \
             nodes by NTP"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::libraries::with_build_id;

    fn launch(number: u64, node: &str, version: &str, id: &str) -> Launch {
        let file = with_build_id("libtorch_cpu.so", Some(id));
        let value = json!({
            "launch": number, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": {},
            "devices": {}, "environment": {}, "node": node,
            "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                         "trial_program_sha256": null},
            "libraries": {"libtorch": version, "libtorch_cpu": file, "openmp": "libgomp.so.1"},
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn two_builds_of_one_version_are_told_with_their_nodes() {
        let (one, other) = ("a".repeat(40), "b".repeat(40));
        let mut launches = vec![
            launch(2, "node-1", "2.11.0", &one),
            launch(3, "node-2", "2.11.0", &one),
        ];
        assert_eq!(unlike_nodes(&launches), Vec::<String>::new());
        launches.push(launch(4, "node-3", "2.11.0", &other));
        launches.push(launch(5, "node-3", "2.11.0", &other));
        let told = unlike_nodes(&launches);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains(
                "2 builds of libtorch_cpu (build aaaaaaaaaaaa… on node-1, node-2; build \
                 bbbbbbbbbbbb… on node-3)"
            ),
            "{told:?}"
        );
        // Another version shows in every other way.
        assert_eq!(
            unlike_nodes(&[launches[0].clone(), launch(6, "node-4", "2.12.0", &other)]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn clocks_are_told_that_are_more_than_two_seconds_apart() {
        let at = |number: u64, ahead: Option<f64>| Launch {
            clock_ahead_seconds: ahead,
            ..launch(number, &format!("node-{number}"), "2.11.0", "a")
        };
        let alike = [at(1, None), at(2, Some(-0.9)), at(3, Some(1.0))];
        assert_eq!(unlike_nodes(&alike), Vec::<String>::new());
        let apart = [at(1, Some(1.5)), at(2, Some(-1.0)), at(3, Some(0.5))];
        let told = unlike_nodes(&apart);
        assert!(
            told[0].starts_with("the clock of node-1 was 2.5 s ahead of that of node-2"),
            "{told:?}"
        );
    }
}
