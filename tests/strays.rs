//! What a trial starts beside itself ends with it, however it hides; what a killed launch leaves is
//! ended by the next one, whatever that one runs.

use std::{fs, os::unix::process::ExitStatusExt, path::Path, process::Command, time::Duration};

use crate::scripted_child::{Ended, Place, end_programs_of, send, variables, wait_until};

const ONE: &str = "train: {steps: 10}";

/// The process that the child of an attempt has started beside itself.
fn stray(attempt: &Path) -> u32 {
    let text = fs::read_to_string(attempt.join("stray")).unwrap();
    text.trim().parse().unwrap()
}

fn is_there(pid: u32) -> bool {
    // A `sleep`, unless the id is used again.
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("sleep"))
}

#[test]
fn a_process_in_a_session_of_its_own_without_an_environment_ends_with_its_trial() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let ended = place.run("escapes", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let strays: Vec<u32> = place.attempts().iter().map(|path| stray(path)).collect();
    assert_eq!(strays.len(), 2);
    assert!(!strays.iter().any(|pid| is_there(*pid)), "{strays:?}");
    let records = fs::read_dir(place.path("locks")).unwrap().count();
    assert_eq!(records, 0, "the record of a launch goes with it");
}

/// Kills a launch whose trial has started such a process; returns the process, which runs on.
fn killed_launch(place: &Place) -> u32 {
    let mut kiln = place.start("escapes_and_waits");
    wait_until("the child is at work", || {
        place.attempts_with("at-work") == 1
    });
    let pid = stray(&place.attempts()[0]);
    wait_until("the process is recorded", || {
        let files = fs::read_dir(place.path("locks")).into_iter().flatten();
        files.flatten().any(|file| {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            text.contains(&format!("\"pid\":{pid},"))
        })
    });
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    wait_until("the child has ended with its parent", || {
        place.processes().is_empty()
    });
    assert!(is_there(pid), "nothing has ended it yet");
    pid
}

fn ended_by(pid: u32, next: &Ended) {
    assert!(!is_there(pid), "{next:?}");
    assert!(
        next.stderr
            .contains("ended leftover processes of an earlier launch: 1"),
        "{next:?}"
    );
    assert_eq!(next.status, Some(0), "{next:?}");
}

#[test]
fn a_fresh_run_ends_what_a_killed_launch_left() {
    let place = Place::with(ONE);
    let pid = killed_launch(&place);
    ended_by(pid, &place.run("completes", &["--fresh"]));
}

#[test]
fn another_experiment_ends_what_a_killed_launch_left_even_if_its_results_were_moved() {
    let place = Place::with(ONE);
    let pid = killed_launch(&place);
    fs::rename(place.path("results"), place.path("moved")).unwrap();
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    fs::write(place.path("y.yaml"), text.replace("name: x", "name: y")).unwrap();
    let mut kiln = place.kiln(&["run", "y.yaml"]);
    let next = Ended::of(kiln.env("SCRIPTED_CHILD", "completes").output().unwrap());
    ended_by(pid, &next);
}

/// A shell that replaces itself by kiln hands its own children over to it.
#[test]
fn a_process_that_kiln_did_not_start_is_left_alone() {
    let place = Place::with(ONE);
    let kiln = place.kiln(&[]);
    let commands = "sleep 300 >/dev/null 2>&1 & echo $! >other; exec \"$0\" run x.yaml";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", commands])
        .arg(kiln.get_program())
        .envs(variables(&kiln))
        .env("SCRIPTED_CHILD", "grandchild")
        .current_dir(place.path(""));
    let ended = Ended::of(shell.output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let other = fs::read_to_string(place.path("other")).unwrap();
    assert!(is_there(other.trim().parse().unwrap()), "{ended:?}");
    send(other.trim(), "KILL");
    let grandchild = fs::read_to_string(place.attempts()[0].join("grandchild")).unwrap();
    assert!(!is_there(grandchild.trim().parse().unwrap()));
}

/// Checks the tests' own safeguard: a hanging program is killed, so that only its own test fails.
#[test]
fn a_program_that_hangs_in_a_place_is_ended_unless_its_test_is_over() {
    let place = Place::with("");
    let here = fs::canonicalize(place.path("")).unwrap();
    let mut command = Command::new("sleep");
    let mut hanging = command.arg("600").current_dir(&here).spawn().unwrap();
    drop(end_programs_of(here.clone(), Duration::from_secs(1)));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(hanging.try_wait().unwrap(), None);
    let _lasts = end_programs_of(here, Duration::from_millis(20));
    assert_eq!(hanging.wait().unwrap().signal(), Some(9));
}
