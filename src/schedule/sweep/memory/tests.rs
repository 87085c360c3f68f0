use std::{cell::RefCell, sync::mpsc::Sender};

use kiln_core::{
    plan::{Outcome, Trial},
    record::TrialTable,
    spec::{DeviceName, Devices, Experiment},
};
use signal_hook::consts::SIGINT;

use crate::schedule::{
    Event, Instruments, LaunchEnd, LaunchEvent, LaunchListener, LaunchReport, RunRequest,
    disk::has_room,
    existing_run::ExistingRun,
    open,
    pools::KnownRun,
    remaining::History,
    sweep::{
        self, PreparedLaunch,
        tests::{places, request, trial},
    },
    worker::join,
};

/// Sends one SIGINT to the launch as soon as a trial is skipped.
#[derive(Default)]
struct StopsAtTheFirstSkipped(RefCell<Option<Sender<Event>>>);

impl LaunchListener for StopsAtTheFirstSkipped {
    fn hear(&self, event: LaunchEvent<'_>) {
        if let LaunchEvent::TrialEnded { row, .. } = event
            && row.outcome == Outcome::Skipped
            && let Some(sender) = self.0.take()
        {
            sender.send(Event::Signal(SIGINT)).unwrap();
        }
    }
}

/// Runs the trials in a new run, whose events the listener may send, too.
fn run_heard(request: &RunRequest, listener: &StopsAtTheFirstSkipped) -> LaunchReport {
    let none = History::default();
    let known = KnownRun {
        settled: &none,
        ended: &none,
        is_worker: false,
    };
    let instruments = Instruments::pretending(Vec::new());
    let prepared = PreparedLaunch::new(request, &known, instruments, None).unwrap();
    let new = ExistingRun::New { notice: None };
    let open = open::open(request, new, &prepared.instruments, &prepared.checks).unwrap();
    let keep = |sender| {
        *listener.0.borrow_mut() = Some(sender);
        None
    };
    prepared.run(request, open, has_room, keep).unwrap()
}

fn outcomes(report: &LaunchReport) -> Vec<Outcome> {
    let rows = TrialTable::read_of(&report.folder).unwrap().rows;
    rows.iter().map(|row| row.fixed.outcome).collect()
}

#[test]
fn a_signal_while_trials_are_skipped_ends_the_launch_and_the_next_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {on_oom: skip-larger}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [1, 2, 3, 4].map(|number| Trial {
        devices: Devices::Named(DeviceName::Cpu),
        ..trial(&experiment, number, 0)
    });
    // The status of a child that ran out of memory.
    let [results, program, locks] = places(place.path(), "exit 4");
    let listener = StopsAtTheFirstSkipped::default();
    let request = RunRequest {
        resolved: text,
        listener: &listener,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let report = run_heard(&request, &listener);
    assert_eq!((report.end, report.left), (LaunchEnd::Interrupted, 2));
    assert_eq!(outcomes(&report), [Outcome::Oom, Outcome::Skipped]);
    let report = sweep::run(&request, Instruments::pretending(Vec::new()), join).unwrap();
    assert_eq!((report.end, report.left), (LaunchEnd::Finished, 0));
    assert_eq!(
        outcomes(&report),
        [
            Outcome::Oom,
            Outcome::Skipped,
            Outcome::Skipped,
            Outcome::Skipped
        ]
    );
}
