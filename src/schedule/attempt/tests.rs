//! The limits of an attempt, with times that the test sets: no limit is waited for.

use std::sync::mpsc::{Receiver, channel};

use kiln_core::{spec::Experiment, units::TimeSpan};

use super::*;
use crate::schedule::sweep::tests::{request, script, trial};

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
        request: &request(&experiment, &trials, [&results, &program, &locks]),
        trial: &trials[0],
        folder: &RunFolder::at(place.join("run")),
        launch: 1,
        run_anchor_nanoseconds: 0,
        devices: &[],
        token: 7,
        begins_anew: false,
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

fn limits(timeout: Option<u64>, stall: u64) -> Run {
    Run {
        timeout: timeout.map(TimeSpan::from_secs),
        stall: TimeSpan::from_secs(stall),
        ..Run::default()
    }
}

/// Returns the cause of a stop by the limits, as if the attempt had not been stopped before.
fn stopped_for(attempt: &mut Attempt, limits: &Run) -> Option<StopCause> {
    attempt.keep_limits(limits);
    attempt.stopped.take().map(|(cause, _)| cause)
}

#[test]
fn each_limit_stops_a_trial_at_its_time_and_one_that_ignores_it_is_killed_after_the_grace() {
    let place = tempfile::tempdir().unwrap();
    let (mut attempt, events) = deaf(place.path());
    let ago = |seconds: u64| Instant::now() - Duration::from_secs(seconds);

    // It has run for an hour and has just spoken.
    attempt.started = ago(3600);
    attempt.child.ear.heard().last_message = Instant::now();
    assert_eq!(stopped_for(&mut attempt, &limits(None, 600)), None);
    assert_eq!(
        stopped_for(&mut attempt, &limits(Some(2 * 3600), 600)),
        None
    );
    assert_eq!(
        stopped_for(&mut attempt, &limits(Some(1800), 600)),
        Some(StopCause::Timeout(TimeSpan::from_secs(1800)))
    );
    attempt.child.ear.heard().last_message = ago(601);
    assert_eq!(
        stopped_for(&mut attempt, &limits(Some(2 * 3600), 600)),
        Some(StopCause::Stall(TimeSpan::from_secs(600)))
    );

    // Once it has said `finished` it has a while to end, whatever the limits say.
    attempt.child.ear.heard().finished = Some((Outcome::Completed, None));
    assert_eq!(stopped_for(&mut attempt, &limits(Some(1800), 600)), None);
    attempt.finished_since = Some(ago(LINGER.as_secs()));
    assert_eq!(
        stopped_for(&mut attempt, &limits(None, 600)),
        Some(StopCause::Lingering)
    );

    attempt.child.ear.heard().foreign_protocol = Some(2);
    assert_eq!(
        stopped_for(&mut attempt, &limits(None, 600)),
        Some(StopCause::Protocol)
    );

    // SIGTERM did nothing so far. After the grace comes SIGKILL.
    attempt.stopped = Some((StopCause::Told, ago(GRACE.as_secs())));
    attempt.keep_limits(&limits(None, 600));
    assert!(matches!(
        events.recv_timeout(Duration::from_secs(60)),
        Ok(Event::Ended(7))
    ));
    assert_eq!(attempt.child.reap().unwrap().exit, Exit::Signal(9));
}
