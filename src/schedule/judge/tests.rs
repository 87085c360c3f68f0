//! Every end of an attempt with its outcome.

use super::*;

const LIMIT: TimeSpan = TimeSpan::from_secs(60);

fn judged(exit: Exit, change: impl FnOnce(&mut AttemptEnding)) -> (Outcome, String) {
    judged_child(&ChildKind::KilnTrial, exit, change)
}

fn judged_child(
    child: &ChildKind,
    exit: Exit,
    change: impl FnOnce(&mut AttemptEnding),
) -> (Outcome, String) {
    let trial = TrialId("4f0c1a2b3d".to_owned());
    let mut ending = AttemptEnding {
        trial: &trial,
        exit,
        child,
        finished: None,
        stopped: None,
        seconds: 41.0,
        has_spoken: true,
        contradiction: None,
        foreign_protocol: None,
        step: Some(118),
        is_preparing: false,
        oom_killer_struck: false,
        lost: None,
        stderr_tail: "",
        stderr_path: "trials/4f0c1a2b3d/1/stderr.txt",
    };
    change(&mut ending);
    let Judgment {
        outcome, reason, ..
    } = judge(&ending);
    (outcome, reason.unwrap_or_default())
}

#[test]
fn every_end_has_its_outcome() {
    use Exit::{Signal, Status};
    type Case = (Exit, fn(&mut AttemptEnding), Outcome, &'static str);
    let cases: [Case; 39] = [
        (
            Signal(7),
            |e| e.has_spoken = false,
            Outcome::Interrupted,
            "crashed by signal 7 (SIGBUS) before its first message, as with a damaged libtorch",
        ),
        (Signal(7), |_| {}, Outcome::Failed, "crashed by signal 7"),
        (
            Status(0),
            |e| e.finished = Some((Outcome::Completed, None)),
            Outcome::Completed,
            "",
        ),
        (
            Signal(11),
            |e| e.finished = Some((Outcome::Completed, None)),
            Outcome::Completed,
            "",
        ),
        (
            Status(0),
            |e| e.finished = Some((Outcome::Diverged, Some("loss is NaN".into()))),
            Outcome::Diverged,
            "loss is NaN",
        ),
        (
            Status(1),
            |e| e.finished = Some((Outcome::Failed, None)),
            Outcome::Failed,
            "gave no reason",
        ),
        (
            Status(0),
            |_| {},
            Outcome::Failed,
            "without a `finished` message",
        ),
        (
            Status(1),
            |_| {},
            Outcome::Failed,
            "failed after 41 s, at step 118",
        ),
        (Status(2), |_| {}, Outcome::Failed, "same version"),
        (Status(3), |_| {}, Outcome::Interrupted, "engine or device"),
        (
            Status(3),
            |e| e.finished = Some((Outcome::Failed, Some("no CUDA".into()))),
            Outcome::Interrupted,
            "no CUDA",
        ),
        (Status(4), |_| {}, Outcome::Oom, "ran out of memory"),
        (Status(77), |_| {}, Outcome::Failed, "status 77"),
        (
            Status(1),
            |e| e.stderr_tail = "CUDA out of memory. Tried",
            Outcome::Oom,
            "out of memory",
        ),
        (
            Signal(11),
            |e| {
                e.stderr_tail = "retrying after CUDA out of memory\n\
                                 Traceback (most recent call last):\n  File \"x.py\"\nKeyError: 'x'\n"
            },
            Outcome::Failed,
            "crashed by signal 11",
        ),
        (Status(130), |_| {}, Outcome::Killed, "other than kiln"),
        (
            Status(130),
            |e| e.stopped = Some(StopCause::Told),
            Outcome::Interrupted,
            "with the run",
        ),
        (
            Signal(15),
            |e| {
                e.stopped = Some(StopCause::ToldAtTheEnd(JobTime {
                    left: LIMIT,
                    whole: LIMIT,
                }))
            },
            Outcome::Interrupted,
            "with its worker, 1m before the end of its job's time",
        ),
        (
            Signal(9),
            |e| e.stopped = Some(StopCause::Timeout(LIMIT)),
            Outcome::TimedOut,
            "`run.timeout` 1m",
        ),
        (
            Signal(15),
            |e| e.stopped = Some(StopCause::Stall(LIMIT)),
            Outcome::TimedOut,
            "sent no message for 1m",
        ),
        (
            Signal(9),
            |_| {},
            Outcome::Killed,
            "killed from outside by signal 9 (SIGKILL) after 41 s, at step 118; see trials/",
        ),
        (
            Signal(9),
            |e| e.oom_killer_struck = true,
            Outcome::Oom,
            "out-of-memory killer",
        ),
        (Signal(15), |_| {}, Outcome::Killed, "signal 15"),
        (
            Signal(11),
            |_| {},
            Outcome::Failed,
            "crashed by signal 11 (SIGSEGV)",
        ),
        (Signal(6), |_| {}, Outcome::Failed, "SIGABRT"),
        (
            Signal(6),
            |e| e.stderr_tail = "memory allocation of 9 bytes failed",
            Outcome::Oom,
            "ran out of memory",
        ),
        (
            Status(0),
            |e| (e.foreign_protocol, e.finished) = (Some(2), Some((Outcome::Completed, None))),
            Outcome::Interrupted,
            "speaks version 2",
        ),
        (
            Signal(9),
            |e| e.stopped = Some(StopCause::RunFailed),
            Outcome::Interrupted,
            "could not continue",
        ),
        (
            Status(130),
            |e| e.finished = Some((Outcome::Interrupted, Some("SIGINT stopped it".into()))),
            Outcome::Killed,
            "was told to stop by something other than kiln (SIGINT stopped it) and ended after",
        ),
        (Signal(2), |_| {}, Outcome::Killed, "signal 2 (SIGINT)"),
        (
            Status(137),
            |e| e.oom_killer_struck = true,
            Outcome::Oom,
            "out-of-memory killer",
        ),
        (Status(137), |_| {}, Outcome::Failed, "status 137"),
        (
            Status(0),
            |e| {
                e.finished = Some((Outcome::Completed, None));
                e.contradiction = Some("contradicts itself; it ended".into());
            },
            Outcome::Failed,
            "trial 4f0c1a2b3d contradicts itself; it ended after 41 s",
        ),
        (
            Status(5),
            |e| e.finished = Some((Outcome::Interrupted, Some("no room for steps.csv".into()))),
            Outcome::Interrupted,
            "the disk or a quota is full: no room for steps.csv",
        ),
        (Status(5), |_| {}, Outcome::Interrupted, "could not write"),
        (
            Status(1),
            |e| e.stderr_tail = "OSError: [Errno 28] No space left on device\n",
            Outcome::Interrupted,
            "the disk or a quota is full: trial 4f0c1a2b3d failed after",
        ),
        (
            Status(1),
            |e| {
                let reason = "steps.csv cannot be written: Disk quota exceeded (os error 122)";
                e.finished = Some((Outcome::Failed, Some(reason.into())));
            },
            Outcome::Interrupted,
            "quota exceeded",
        ),
        (
            Status(1),
            |e| {
                let fault = metric_reason::nearest_lines("stdout.txt", "'No space left on device'");
                let reason = metric_reason::of_program("sh", &format!("`x` never came{fault}"));
                e.finished = Some((Outcome::Failed, Some(reason)));
            },
            Outcome::Failed,
            "`x` never came; the nearest in stdout.txt: 'No space left on device'",
        ),
        (
            Status(1),
            |e| e.stderr_tail = "retry: No space left on device\nValueError: bad shape\n",
            Outcome::Failed,
            "bad shape",
        ),
    ];
    for (number, (exit, change, outcome, words)) in cases.into_iter().enumerate() {
        let (found, reason) = judged(exit, change);
        assert_eq!(found, outcome, "case {number}: {reason}");
        assert!(reason.contains(words), "case {number}: {reason}");
    }
}

#[test]
fn a_result_that_arrived_beside_a_stop_is_kept() {
    let (outcome, _) = judged(Exit::Status(0), |e| {
        e.finished = Some((Outcome::Completed, None));
        e.stopped = Some(StopCause::Timeout(LIMIT));
    });
    assert_eq!(outcome, Outcome::Completed);
    let (outcome, _) = judged(Exit::Status(130), |e| {
        e.finished = Some((Outcome::Interrupted, None));
        e.stopped = Some(StopCause::Timeout(LIMIT));
    });
    assert_eq!(outcome, Outcome::TimedOut);
}

#[test]
fn a_child_that_is_stopped_may_call_that_a_failure() {
    let of = |cause: StopCause, outcome: Outcome| {
        judged(Exit::Status(1), |e| {
            e.stopped = Some(cause);
            e.finished = Some((outcome, Some("DataLoader worker was terminated".to_owned())));
        })
        .0
    };
    for cause in [StopCause::Told, StopCause::RunFailed, StopCause::TakenBack] {
        assert_eq!(
            of(cause, Outcome::Failed),
            Outcome::Interrupted,
            "{cause:?}"
        );
        assert_eq!(
            of(cause, Outcome::Completed),
            Outcome::Completed,
            "{cause:?}"
        );
        assert_eq!(of(cause, Outcome::Oom), Outcome::Oom, "{cause:?}");
    }
    assert_eq!(of(StopCause::Lingering, Outcome::Failed), Outcome::Failed);
}

#[test]
fn a_machine_that_cannot_run_a_trial_is_no_failure_of_it_also_when_the_run_is_being_stopped() {
    for (stopped, expected) in [
        (None, Outcome::Interrupted),
        (Some(StopCause::RunFailed), Outcome::Interrupted),
        (Some(StopCause::Told), Outcome::Interrupted),
        (Some(StopCause::Timeout(LIMIT)), Outcome::TimedOut),
    ] {
        let (outcome, reason) = judged(Exit::Status(exit_status::NO_DEVICE), |e| {
            e.finished = Some((Outcome::Failed, Some("CUDA is not usable here".into())));
            e.stopped = stopped;
        });
        assert_eq!(outcome, expected, "{stopped:?}: {reason}");
    }
}

#[test]
fn a_lost_device_is_the_reason_of_a_failure_and_of_nothing_else() {
    let lost = |change: fn(&mut AttemptEnding)| {
        judged(Exit::Signal(6), |e| {
            e.lost = Some("GPU 0 (H200) was lost (NVML: it is lost)".into());
            change(e);
        })
    };
    let (outcome, reason) = lost(|e| e.stderr_tail = "CUDA error: out of memory");
    assert_eq!(outcome, Outcome::Failed);
    assert!(
        reason.starts_with(
            "trial 4f0c1a2b3d lost its device: GPU 0 (H200) was lost (NVML: it is lost) after \
             41 s, at step 118; see "
        ),
        "{reason}"
    );
    for change in [
        (|e| e.finished = Some((Outcome::Failed, Some("CUDA error".into()))))
            as fn(&mut AttemptEnding),
        |e| e.stopped = Some(StopCause::DeviceLost),
        |e| e.stopped = Some(StopCause::Stall(LIMIT)),
    ] {
        assert!(lost(change).1.contains("was lost (NVML"));
    }
    assert_eq!(
        lost(|e| e.finished = Some((Outcome::Completed, None))).0,
        Outcome::Completed
    );
    assert_eq!(
        lost(|e| e.stopped = Some(StopCause::Told)).0,
        Outcome::Interrupted
    );
}

#[test]
fn the_reason_ends_with_the_last_line_of_standard_error() {
    let (_, reason) = judged(Exit::Status(1), |e| {
        e.stderr_tail = "first\n\u{1b}[31mlast\n\n"
    });
    assert!(reason.ends_with("stderr.txt:  [31mlast"), "{reason}");
}

#[test]
fn a_line_that_a_stop_may_have_caused_is_not_in_the_reason() {
    let ends_with_path = |exit, stopped: Option<StopCause>, tail: &'static str| {
        let (_, reason) = judged_child(&ChildKind::Relay, exit, |ending| {
            ending.stopped = stopped;
            ending.stderr_tail = tail;
        });
        (reason.ends_with("/1/stderr.txt"), reason)
    };
    let traceback = "waiting\nTraceback (most recent call last):\n  File \"x.py\"\n\
                     RuntimeError: DataLoader worker (pid(s) 2483) exited unexpectedly\n";
    let (timeout, stall) = (StopCause::Timeout(LIMIT), StopCause::Stall(LIMIT));
    for (exit, stopped, tail, wanted) in [
        (Exit::Status(130), Some(timeout), traceback, true),
        (Exit::Status(130), Some(stall), traceback, true),
        (Exit::Status(130), Some(stall), "waiting\n", false),
        (Exit::Signal(9), None, "x is deprecated\n", true),
        (Exit::Signal(11), None, traceback, false),
    ] {
        let (found, reason) = ends_with_path(exit, stopped, tail);
        assert_eq!(found, wanted, "{reason}");
    }
}

#[test]
fn words_about_a_program_are_about_the_one_that_ran() {
    let engine = ChildKind::Engine("python engines/gpt.py".to_owned());
    let of_engine = |exit, change: fn(&mut AttemptEnding)| judged_child(&engine, exit, change).1;
    let found = of_engine(Exit::Status(2), |_| {});
    assert!(
        found.contains("`python engines/gpt.py` could not read its command line")
            && !found.contains("kiln-trial"),
        "{found}"
    );
    let found = of_engine(Exit::Status(127), |ending| ending.has_spoken = false);
    assert!(
        found.contains("(status 127): `python engines/gpt.py` ended")
            && !found.contains("libtorch"),
        "{found}"
    );
    let found = of_engine(Exit::Signal(9), |ending| ending.foreign_protocol = Some(7));
    assert!(
        found.contains("speaks version 7")
            && found.ends_with(
                "`python engines/gpt.py` must say `protocol` 1 in its `hello` \
                                (docs/child-protocol.md)"
            ),
        "{found}"
    );
    let found = judged_child(&ChildKind::Relay, Exit::Signal(15), |ending| {
        ending.step = Some(0);
        ending.stopped = Some(StopCause::Stall(LIMIT));
    });
    let wanted = "trial 4f0c1a2b3d was stopped because its program wrote nothing and used less \
                  than 1 % of a core for 1m (`run.stall`) after 41 s; see ";
    assert!(found.1.starts_with(wanted), "{found:?}");
    let of_prepare = |cause| {
        judged_child(&ChildKind::Relay, Exit::Signal(15), |ending| {
            (ending.step, ending.stopped) = (None, Some(cause));
            ending.is_preparing = true;
        })
    };
    for (cause, wanted) in [
        (
            StopCause::Stall(LIMIT),
            "because `prepare` wrote nothing and used less than 1 % of a core for 1m (`run.stall`)",
        ),
        (
            StopCause::Timeout(LIMIT),
            "at its time limit (`run.timeout` 1m), in `prepare`, after 41 s",
        ),
    ] {
        let (outcome, reason) = of_prepare(cause);
        assert_eq!(outcome, Outcome::TimedOut);
        assert!(reason.contains(wanted), "{reason}");
    }
}
