//! What the words of the two parts of a probe mean. Pure.

use std::collections::BTreeMap;

use kiln_core::{
    record::{Check, CheckState},
    units::{counted, without_controls},
};

use super::part::{Clock, Meeting, PartWord, Rounds, TICKETS};

pub(super) const NODES: &str = "probe-nodes";
const TICKETS_RACED: &str = "probe-tickets";
const NAMES: &str = "probe-names";
const CLOCKS: &str = "probe-clocks";
const DATA: &str = "probe-data";
const NODE: &str = "probe-node";
const NOT_SHARED: &str =
    "use a folder that every node sees under the same path and in the same state";
/// Longer than a list may be old on NFS with its usual settings.
const LONGEST_SIGHT: f64 = 60.0;
/// Times of two nodes stand side by side in tables.
const MOST_APART: f64 = 1.0;

/// The checks of a probe whose parts both spoke.
pub(super) fn of_words([first, second]: [&PartWord; 2]) -> Vec<Check> {
    let mut checks = vec![nodes(first, second)];
    if let (Some(one), Some(other)) = (&first.meeting, &second.meeting) {
        checks.push(tickets(one, other));
        checks.extend(one.rounds.as_ref().map(names));
    }
    checks.push(clocks(first.clock, second.clock));
    checks.extend(data(first, second));
    checks.extend([first, second].map(node));
    checks
}

fn nodes(first: &PartWord, second: &PartWord) -> Check {
    let names = [first, second].map(|word| without_controls(&word.node));
    let evidence = format!("{} and {}", names[0], names[1]);
    if first.boot.is_some() && first.boot == second.boot {
        return Check::warning(
            NODES,
            format!("{evidence}, which are one host"),
            "what follows says nothing of files between hosts",
        );
    }
    match first.meeting.is_some() && second.meeting.is_some() {
        true => Check::ok(NODES, evidence),
        false => Check::problem(
            NODES,
            format!("{evidence} did not see each other's files"),
            NOT_SHARED,
        ),
    }
}

/// The first part has waited in vain for the second one, a file of which was seen here `for_seconds`
/// before the first one gave up.
pub(super) fn alone(for_seconds: Option<f64>) -> Check {
    match for_seconds {
        Some(seconds) if seconds > LONGEST_SIGHT => Check::problem(
            NODES,
            format!(
                "the node of the first job did not see a file of the second one that was there for \
                 {seconds:.0} s"
            ),
            NOT_SHARED,
        ),
        _ => Check::unknown(
            NODES,
            "the job on a second node did not begin in time while the first one waited",
        ),
    }
}

/// Slurm takes no job on a second node.
pub(super) fn no_second(node: &str, why: &str) -> Check {
    Check::warning(
        NODES,
        format!(
            "there is no second node beside {}: {why}",
            without_controls(node)
        ),
        "a probe needs two nodes on which the jobs of `run.slurm` may run",
    )
}

/// Each ticket must have exactly one winner.
fn tickets(first: &Meeting, second: &Meeting) -> Check {
    let mut winners: BTreeMap<u64, u32> = BTreeMap::new();
    for number in first.won.iter().chain(&second.won) {
        *winners.entry(*number).or_default() += 1;
    }
    let twice = winners.values().filter(|count| **count > 1).count();
    let lost = (1..=TICKETS)
        .filter(|number| !winners.contains_key(number))
        .count();
    let evidence = format!(
        "both nodes raced for {TICKETS} tickets and took {} and {}",
        first.won.len(),
        second.won.len()
    );
    match (twice, lost) {
        (0, 0) if first.won.is_empty() || second.won.is_empty() => {
            let why = format!("{evidence}: one of them was always later, so nothing was tried");
            Check::unknown(TICKETS_RACED, why)
        }
        (0, 0) => Check::ok(TICKETS_RACED, format!("{evidence}: each has one winner")),
        _ => Check::problem(
            TICKETS_RACED,
            format!("{evidence}: {twice} have two winners, {lost} have none"),
            "renames of this file system do not exclude each other between nodes; use another folder \
             for the results of workers",
        ),
    }
}

fn names(rounds: &Rounds) -> Check {
    let evidence = format!(
        "a new file and its answer were seen within {:.2} s ({} between the nodes)",
        rounds.longest_seconds,
        counted(rounds.count as usize, "round")
    );
    match rounds.longest_seconds > LONGEST_SIGHT {
        true => Check::warning(
            NAMES,
            evidence,
            "workers then learn late that tickets are open or taken back; ask for shorter caches of \
             directories (`acdirmax` of NFS)",
        ),
        false => Check::ok(NAMES, evidence),
    }
}

/// Both clocks were compared with the file server's.
fn clocks(first: Clock, second: Clock) -> Check {
    let offset = first.server_ahead_seconds - second.server_ahead_seconds;
    let error = first.error_seconds + second.error_seconds;
    let evidence = format!("{:.3} s apart, ± {error:.3} s", offset.abs());
    match offset.abs() - error > MOST_APART {
        true => Check::warning(
            CLOCKS,
            evidence,
            "times of different nodes in tables and pictures are shifted by this; let the nodes set \
             their clocks (NTP)",
        ),
        false => Check::ok(CLOCKS, evidence),
    }
}

/// `KILN_DATA` on both nodes, where it is set.
fn data(first: &PartWord, second: &PartWord) -> Option<Check> {
    let remedy = "set `KILN_DATA` in `run.slurm.setup` to where the data lie on the nodes";
    let describe = |word: &PartWord| {
        let node = without_controls(&word.node);
        match &word.data {
            None => format!("not set on {node}"),
            Some((path, true)) => format!("{} on {node}", without_controls(path)),
            Some((path, false)) => format!("no folder {} on {node}", without_controls(path)),
        }
    };
    let evidence = format!("{}, {}", describe(first), describe(second));
    Some(match (&first.data, &second.data) {
        (None, None) => return None,
        (Some((_, false)), _) | (_, Some((_, false))) => Check::problem(DATA, evidence, remedy),
        (Some(_), Some(_)) => Check::ok(DATA, evidence),
        _ => Check::warning(DATA, evidence, remedy),
    })
}

/// The findings of `kiln doctor --quick` on a node.
fn node(word: &PartWord) -> Check {
    let node = without_controls(&word.node);
    let of = |state: CheckState| word.checks.iter().filter(move |check| check.state == state);
    let named = |state| {
        let names: Vec<String> = of(state)
            .map(|check| format!("{}: {}", check.name, without_controls(&check.evidence)))
            .collect();
        names.join("; ")
    };
    let remedy = |state| {
        let remedies: Vec<&str> = of(state)
            .filter_map(|check| check.remedy.as_deref())
            .collect();
        without_controls(&remedies.join("; "))
    };
    for (state, make) in [
        (
            CheckState::Problem,
            Check::problem as fn(&str, String, String) -> Check,
        ),
        (CheckState::Warning, Check::warning),
    ] {
        if of(state).next().is_some() {
            return make(NODE, format!("{node}: {}", named(state)), remedy(state));
        }
    }
    Check::ok(
        NODE,
        format!(
            "{node}: {} without a problem",
            counted(word.checks.len(), "check")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(node: &str, boot: &str, won: impl IntoIterator<Item = u64>) -> PartWord {
        PartWord {
            node: node.to_owned(),
            boot: Some(boot.to_owned()),
            clock: Clock {
                server_ahead_seconds: 0.5,
                error_seconds: 0.005,
            },
            meeting: Some(Meeting {
                rounds: Some(Rounds {
                    count: 20,
                    longest_seconds: 0.25,
                }),
                won: won.into_iter().collect(),
            }),
            data: Some(("/data".to_owned(), true)),
            checks: vec![Check::ok("driver", "550.54")],
        }
    }

    fn said(first: &PartWord, second: &PartWord) -> BTreeMap<String, (CheckState, String)> {
        let checks = of_words([first, second]).into_iter().rev();
        checks
            .map(|check| (check.name, (check.state, check.evidence)))
            .collect()
    }

    #[test]
    fn two_nodes_that_agree_have_no_problem() {
        let told = said(&word("n1", "a", 1..=120), &word("n2", "b", 121..=200));
        assert!(
            told.values().all(|(state, _)| *state == CheckState::Ok),
            "{told:?}"
        );
        assert_eq!(
            told[TICKETS_RACED].1,
            "both nodes raced for 200 tickets and took 120 and 80: each has one winner"
        );
        assert_eq!(told[CLOCKS].1, "0.000 s apart, ± 0.010 s");
    }

    #[test]
    fn a_ticket_with_two_winners_or_none_is_a_problem() {
        let twice = said(&word("n1", "a", 1..=120), &word("n2", "b", 120..=200));
        let (state, text) = &twice[TICKETS_RACED];
        assert!(
            *state == CheckState::Problem && text.contains("1 have two winners"),
            "{text}"
        );
        let lost = said(&word("n1", "a", 1..=120), &word("n2", "b", 122..=200));
        let (state, text) = &lost[TICKETS_RACED];
        assert!(
            *state == CheckState::Problem && text.contains("1 have none"),
            "{text}"
        );
    }

    #[test]
    fn late_names_far_clocks_and_one_host_are_warnings() {
        let (mut first, mut second) = (word("n1", "a", 1..=200), word("n2", "a", []));
        first.meeting.as_mut().unwrap().rounds = Some(Rounds {
            count: 3,
            longest_seconds: 61.0,
        });
        second.clock.server_ahead_seconds = -2.5;
        let told = said(&first, &second);
        for name in [NAMES, CLOCKS, NODES] {
            assert_eq!(told[name].0, CheckState::Warning, "{name}");
        }
        assert_eq!(told[CLOCKS].1, "3.000 s apart, ± 0.010 s");
        // A race in which one was always later says nothing.
        assert_eq!(told[TICKETS_RACED].0, CheckState::Unknown);
        // An offset within its error is none.
        second.clock.error_seconds = 2.5;
        assert_eq!(said(&first, &second)[CLOCKS].0, CheckState::Ok);
    }

    #[test]
    fn a_second_job_that_begins_too_late_says_nothing_of_the_folder() {
        assert_eq!(alone(None).state, CheckState::Unknown);
        assert_eq!(alone(Some(30.0)).state, CheckState::Unknown);
        assert_eq!(alone(Some(200.0)).state, CheckState::Problem);
    }

    #[test]
    fn data_in_two_places_are_named_with_their_nodes() {
        let (mut first, mut second) = (word("n1", "a", []), word("n2", "b", []));
        second.data = Some(("/scratch".to_owned(), true));
        let told = said(&first, &second);
        let both = "/data on n1, /scratch on n2".to_owned();
        assert_eq!(told[DATA], (CheckState::Ok, both));
        first.data = None;
        assert_eq!(said(&first, &second)[DATA].0, CheckState::Warning);
        second.data = None;
        assert!(!said(&first, &second).contains_key(DATA));
    }

    #[test]
    fn nodes_that_do_not_see_each_other_or_their_data_are_named() {
        let (mut first, mut second) = (word("n1", "a", []), word("n2", "b", []));
        (first.meeting, second.meeting) = (None, None);
        second.data = Some(("/data".to_owned(), false));
        second.checks = vec![Check::problem(
            "nvml",
            "it does not answer",
            "load the driver",
        )];
        let told = said(&first, &second);
        assert_eq!(told[NODES].0, CheckState::Problem);
        assert_eq!(
            told[DATA],
            (
                CheckState::Problem,
                "/data on n1, no folder /data on n2".to_owned()
            )
        );
        assert!(!told.contains_key(TICKETS_RACED));
        let nodes = of_words([&first, &second]);
        let last = nodes.last().unwrap();
        assert_eq!(last.evidence, "n2: nvml: it does not answer");
        assert_eq!(last.remedy.as_deref(), Some("load the driver"));
    }
}
