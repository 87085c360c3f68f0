//! `kiln run` asked to stop: Ctrl-C once, twice, thrice, SIGTERM; nothing is left running, everything is kept.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod scripted_child;

use std::{fs, process::Child};

use scripted_child::{Ended, Place, hear, signal, wait_until};

const TWO: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}";

/// A sweep whose first trial is at work.
fn started(place: &Place, scenario: &str) -> Child {
    let child = place.start(scenario);
    wait_until("the first child runs its scenario", || speaks(place));
    child
}

/// Whether the child has got so far as to wait, as every scenario here does with `sleep`.
fn speaks(place: &Place) -> bool {
    place.processes().iter().any(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep"))
}

fn end(kiln: Child) -> Ended {
    Ended::of(kiln.wait_with_output().unwrap())
}

#[test]
fn the_first_ctrl_c_finishes_the_running_trial_and_starts_no_more() {
    let place = Place::with(TWO);
    let mut kiln = started(&place, "waits");
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing 1 running trial,");
    assert!(!place.processes().is_empty(), "the run goes on until the trial ends by itself");
    fs::write(place.path("release"), "").unwrap();
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert!(ended.stderr.contains("interrupted; the same command goes on from here"), "{ended:?}");
    assert_eq!(place.column("outcome"), ["completed"]);
    assert_eq!(place.run_file()["launches"][0]["ended"]["how"], "interrupted");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.column("outcome"), ["completed", "completed"]);
}

#[test]
fn the_second_ctrl_c_stops_the_children_now() {
    let place = Place::with(TWO);
    let mut kiln = started(&place, "hangs");
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing");
    signal(&kiln, "INT");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.processes(), [0_u32; 0]);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.column("outcome"), ["interrupted", "completed", "completed"]);
    assert_eq!(place.column("attempt"), ["1", "2", "1"]);
}

#[test]
fn sigterm_stops_at_once_and_an_obedient_child_is_heard_out() {
    for scenario in ["obeys_term", "grandchild_waits"] {
        let place = Place::with(TWO);
        let kiln = started(&place, scenario);
        signal(&kiln, "TERM");
        let ended = end(kiln);
        assert_eq!(ended.status, Some(130), "{scenario}: {ended:?}");
        assert_eq!(place.column("outcome"), ["interrupted"], "{scenario}");
        assert!(place.column("reason")[0].contains("was stopped with the run after"), "{scenario}");
        assert_eq!(place.processes(), [0_u32; 0], "{scenario}");
    }
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_by_one_more_signal() {
    let place = Place::with(TWO);
    let mut kiln = started(&place, "ignores_term");
    signal(&kiln, "TERM");
    hear(&mut kiln, "stopping the running trials");
    assert!(!place.processes().is_empty(), "it was given grace");
    let begun = std::time::Instant::now();
    signal(&kiln, "INT");
    let ended = end(kiln);
    assert!(begun.elapsed().as_secs() < 4, "it was not waited for");
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.processes(), [0_u32; 0]);
}

#[test]
fn children_are_in_a_process_group_of_their_own() {
    let place = Place::with(TWO);
    let kiln = started(&place, "waits");
    let group = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap().to_owned()
    };
    let own = group(kiln.id());
    // `sleep`s come and go; the script itself stays.
    let script =
        place.processes().into_iter().find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "child.sh"));
    let script = script.unwrap();
    assert_eq!(group(script), script.to_string());
    assert_ne!(group(script), own);
    fs::write(place.path("release"), "").unwrap();
    assert_eq!(end(kiln).status, Some(0));
}
