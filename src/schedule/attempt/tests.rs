//! The limits of an attempt, with times that the test sets: no limit is waited for.

use std::sync::mpsc::{Receiver, channel};

use kiln_core::{spec::Experiment, units::TimeSpan};

use super::*;
use crate::schedule::{
    judge::Exit,
    supervisor::Supervisor,
    sweep::tests::{request, script, trial},
};

/// An attempt whose child says nothing, ignores SIGTERM and goes on until it is killed.
fn deaf(place: &Path) -> (Attempt, Receiver<Event>) {
    let experiment: Experiment =
        serde_yaml::from_str("{kiln: 1, name: x, model: {kind: matmul, size: 8}}").unwrap();
    let program = script(
        place,
        "trap '' TERM; : >$folder/deaf; while :; do sleep 0.05; done",
    );
    let (trials, results, locks) = (
        [trial(&experiment, 1, 0)],
        place.join("results"),
        place.join("locks"),
    );
    let setting = AttemptSetting {
        is_among_others: false,
        request: &request(&experiment, &trials, [&results, &program, &locks]),
        trial: &trials[0],
        folder: &RunFolder::at(place.join("run")),
        launch: 1,
        run_anchor_nanoseconds: 0,
        devices: &[],
        token: 7,
        last_row: 0,
        last_outcome: None,
    };
    std::fs::create_dir(place.join("run")).unwrap();
    let (sender, events) = channel();
    let attempt = start(&setting, 0, 0, sender).unwrap();
    while !attempt.folder.join("deaf").exists() {
        assert!(events.try_recv().is_err(), "the child has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    (attempt, events)
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_after_the_grace_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (mut attempt, events) = deaf(place.path());
    let mut supervisor = Supervisor::new(&place.path().join("locks"), place.path());
    supervisor.add(attempt.pid(), attempt.folder()).unwrap();
    let limits = Run {
        timeout: Some(TimeSpan::from_secs(60)),
        ..Run::default()
    };
    let at = Duration::from_secs;

    attempt.keep_limits(&limits, at(0));
    assert_eq!(attempt.stopped, None);
    attempt.keep_limits(&limits, at(60));
    let timeout = Some(StopCause::Timeout(TimeSpan::from_secs(60)));
    assert_eq!(attempt.stopped, timeout);
    attempt.stop(StopCause::Told);
    assert_eq!(attempt.stopped, timeout, "the first cause counts");

    // SIGTERM did nothing. After the grace comes SIGKILL.
    attempt.keep_limits(&limits, at(61));
    assert!(events.try_recv().is_err());
    attempt.keep_limits(&limits, at(3600));
    assert!(matches!(
        events.recv_timeout(Duration::from_secs(60)),
        Ok(Event::Ended(7))
    ));
    let ended = attempt.child.reap(&mut supervisor).unwrap();
    assert_eq!(ended.exit, Exit::Signal(9));
}

#[test]
fn a_relay_that_cannot_be_started_is_named_as_that_with_the_limit_to_raise() {
    let program = TrialProgram {
        path: "/proc/self/exe".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        kind: ChildKind::Relay,
    };
    let error = io::Error::from(rustix::io::Errno::MFILE);
    let told = named(&error, &program, &RunFolder::at("/results/x/run")).to_string();
    assert!(
        told.starts_with("/results/x/run: kiln's relay cannot be started: ")
            && told.ends_with("raise the limit of open files (`ulimit -n`)"),
        "{told}"
    );
}
