//! Decides how an attempt ended: all facts about the end go in, an outcome and its reason come out.
//! Pure, so that all cases can be tested in a table.

use kiln_core::{
    plan::{Outcome, TrialId, speaks_of_memory},
    record::message::{PROTOCOL, exit_status},
    units::{Seconds, TimeSpan},
};

/// Exit of the child's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Status(i32),
    Signal(i32),
}

/// Reason why the parent stopped the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// Over `run.timeout`.
    Timeout(TimeSpan),
    /// No message for `run.stall`.
    Stall(TimeSpan),
    /// The user, or the system by SIGTERM or SIGHUP.
    Told,
    /// The run itself cannot continue: a full disk, or a table that cannot be written.
    RunFailed,
    /// It uses a version of the protocol that this kiln does not support.
    Protocol,
    /// It sent `finished` and then did not end.
    Lingering,
    /// Its GPU was lost.
    DeviceLost,
}

/// All facts about the end of an attempt.
#[derive(Clone, Debug)]
pub(super) struct AttemptEnding<'a> {
    pub(super) trial: &'a TrialId,
    pub(super) exit: Exit,
    /// The `finished` message, if there was one.
    pub(super) finished: Option<(Outcome, Option<String>)>,
    pub(super) stopped: Option<StopCause>,
    pub(super) seconds: f64,
    /// Whether it sent a valid message.
    pub(super) has_spoken: bool,
    /// Its version of the protocol, if it differs from kiln's.
    pub(super) foreign_protocol: Option<u32>,
    /// The last reported step.
    pub(super) step: Option<u64>,
    /// Whether the kernel's out-of-memory killer was at work during the attempt.
    pub(super) oom_killer_struck: bool,
    /// The device that NVML reported as lost during the attempt, with the message.
    pub(super) lost: Option<String>,
    /// The last lines of standard error.
    pub(super) stderr_tail: &'a str,
    /// Path of `stderr.txt` for the message.
    pub(super) stderr_path: &'a str,
}

/// The outcome and its reason; the reason is empty for a plain `completed`.
pub(super) fn judge(ending: &AttemptEnding) -> (Outcome, Option<String>) {
    if let Some(spoken) = ending.foreign_protocol {
        return (Outcome::Failed, Some(foreign(spoken, ending.trial)));
    }
    if let Some(lost) = &ending.lost
        && is_fault_of_the_device(ending)
    {
        return (
            Outcome::Failed,
            Some(in_words(
                &format!("lost its device: {lost}"),
                Outcome::Failed,
                ending,
            )),
        );
    }
    if let (Exit::Status(exit_status::NO_DEVICE), None, Some((Outcome::Failed, reason))) =
        (ending.exit, ending.stopped, &ending.finished)
    {
        // The machine failed, not the trial: the next run retries it.
        return (
            Outcome::Interrupted,
            reason
                .clone()
                .or_else(|| unexplained(Outcome::Interrupted, ending)),
        );
    }
    if let Some((outcome, reason)) = &ending.finished
        && outcome.is_final()
        && !matches!(ending.stopped, Some(StopCause::Timeout(_) | StopCause::Stall(_)) if *outcome == Outcome::Failed)
    {
        return (
            *outcome,
            reason.clone().or_else(|| unexplained(*outcome, ending)),
        );
    }
    if let Some(cause) = ending.stopped {
        return stopped(cause, ending);
    }
    let (outcome, what) = match ending.exit {
        Exit::Status(status) => by_status(status, ending),
        Exit::Signal(signal) => by_signal(signal, ending),
    };
    (outcome, Some(in_words(&what, outcome, ending)))
}

fn foreign(spoken: u32, trial: &TrialId) -> String {
    format!(
        "trial {trial}: its program speaks version {spoken} of the child's protocol, and this kiln \
         supports only version {PROTOCOL}; build `kiln` and `kiln-trial` from the same version, or \
         set `KILN_TRIAL` to a matching program"
    )
}

/// Whether a lost device explains the end. A result that exists anyway is kept, and so is a stop by
/// the user.
fn is_fault_of_the_device(ending: &AttemptEnding) -> bool {
    match (&ending.finished, ending.stopped) {
        (_, Some(StopCause::Told | StopCause::RunFailed)) => false,
        (Some((outcome, _)), _) => *outcome == Outcome::Failed || !outcome.is_final(),
        (None, _) => true,
    }
}

fn unexplained(outcome: Outcome, ending: &AttemptEnding) -> Option<String> {
    (outcome != Outcome::Completed).then(|| {
        in_words(
            &format!("ended as `{outcome}` and gave no reason"),
            outcome,
            ending,
        )
    })
}

fn stopped(cause: StopCause, ending: &AttemptEnding) -> (Outcome, Option<String>) {
    let (outcome, what) = match cause {
        StopCause::Timeout(limit) => (
            Outcome::TimedOut,
            format!("was stopped at its time limit (`run.timeout` {limit})"),
        ),
        StopCause::Stall(limit) => (
            Outcome::TimedOut,
            format!("was stopped because it sent no message for {limit} (`run.stall`)"),
        ),
        StopCause::Told => (Outcome::Interrupted, "was stopped with the run".to_owned()),
        StopCause::RunFailed => (
            Outcome::Interrupted,
            "was stopped because the run could not continue".to_owned(),
        ),
        StopCause::Protocol => (
            Outcome::Failed,
            "was stopped because it speaks another protocol".to_owned(),
        ),
        StopCause::DeviceLost => (
            Outcome::Failed,
            "was stopped because its device was lost".to_owned(),
        ),
        StopCause::Lingering => (
            Outcome::Killed,
            "reported that it was interrupted and then did not end".to_owned(),
        ),
    };
    (outcome, Some(in_words(&what, outcome, ending)))
}

fn by_status(status: i32, ending: &AttemptEnding) -> (Outcome, String) {
    match status {
        exit_status::OOM => (Outcome::Oom, "ran out of memory".to_owned()),
        exit_status::INTERRUPTED => (
            Outcome::Killed,
            "was told to stop (SIGTERM) by something other than kiln".to_owned(),
        ),
        _ if speaks_of_memory(ending.stderr_tail) => (
            Outcome::Oom,
            format!("ran out of memory and ended with status {status}"),
        ),
        exit_status::RESULT => (
            Outcome::Failed,
            "ended with status 0 but without a `finished` message".to_owned(),
        ),
        exit_status::FAILED => (Outcome::Failed, "failed".to_owned()),
        exit_status::BAD_FILE => (
            Outcome::Failed,
            "could not read its `trial.yaml`; are `kiln` and `kiln-trial` of the same version?"
                .to_owned(),
        ),
        exit_status::NO_DEVICE => (
            Outcome::Interrupted,
            "found no engine or device on this machine and ended".to_owned(),
        ),
        126 | 127 if !ending.has_spoken => (
            Outcome::Interrupted,
            format!(
                "could not be started (status {status}); is libtorch there (`make libtorch`)? It \
                 ended"
            ),
        ),
        other => (Outcome::Failed, format!("ended with status {other}")),
    }
}

/// Signals: 9 with the out-of-memory killer at work is memory; those a person or a system sends are
/// `killed`; all others are the child's own crash.
fn by_signal(signal: i32, ending: &AttemptEnding) -> (Outcome, String) {
    let name = signal_name(signal);
    match signal {
        9 if ending.oom_killer_struck => (
            Outcome::Oom,
            "ran out of host memory: the kernel's out-of-memory killer ended it".to_owned(),
        ),
        1 | 2 | 9 | 15 | 24 => (
            Outcome::Killed,
            format!("was killed from outside by signal {signal}{name}"),
        ),
        _ if speaks_of_memory(ending.stderr_tail) => (
            Outcome::Oom,
            format!("ran out of memory and ended by signal {signal}{name}"),
        ),
        _ => (Outcome::Failed, format!("crashed by signal {signal}{name}")),
    }
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map(|name| format!(" ({name})"))
        .unwrap_or_default()
}

/// `trial 4f0c1a2b3d was killed by signal 9 after 41 s, at step 118; see
/// trials/4f0c1a2b3d/1/stderr.txt: <last line>`.
fn in_words(what: &str, outcome: Outcome, ending: &AttemptEnding) -> String {
    let step = ending
        .step
        .map_or(", before its first step".to_owned(), |step| {
            format!(", at step {step}")
        });
    let mut text = format!(
        "trial {} {what} after {}{step}",
        ending.trial,
        Seconds(ending.seconds)
    );
    // The line above a backtrace is more useful than the backtrace.
    let said = ending
        .stderr_tail
        .split("stack backtrace:")
        .next()
        .unwrap_or_default();
    let last = said
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("note: "));
    if ending.stopped.is_some() && outcome == Outcome::Interrupted {
        return text;
    }
    text.push_str(&format!("; see {}", ending.stderr_path));
    if let Some(line) = last {
        text.push_str(&format!(": {}", shortened(line)));
    }
    text
}

fn shortened(line: &str) -> String {
    const LONGEST: usize = 300;
    let clean: String = line
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match clean.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &clean[..at]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: TimeSpan = TimeSpan::from_secs(60);

    fn judged(exit: Exit, change: impl FnOnce(&mut AttemptEnding)) -> (Outcome, String) {
        let trial = TrialId("4f0c1a2b3d".to_owned());
        let mut ending = AttemptEnding {
            trial: &trial,
            exit,
            finished: None,
            stopped: None,
            seconds: 41.0,
            has_spoken: true,
            foreign_protocol: None,
            step: Some(118),
            oom_killer_struck: false,
            lost: None,
            stderr_tail: "",
            stderr_path: "trials/4f0c1a2b3d/1/stderr.txt",
        };
        change(&mut ending);
        let (outcome, reason) = judge(&ending);
        (outcome, reason.unwrap_or_default())
    }

    #[test]
    fn every_end_has_its_outcome() {
        use Exit::{Signal, Status};
        type Case = (Exit, fn(&mut AttemptEnding), Outcome, &'static str);
        let cases: [Case; 24] = [
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
            (Status(130), |_| {}, Outcome::Killed, "other than kiln"),
            (
                Status(130),
                |e| e.stopped = Some(StopCause::Told),
                Outcome::Interrupted,
                "with the run",
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
                Outcome::Failed,
                "speaks version 2",
            ),
            (
                Signal(9),
                |e| e.stopped = Some(StopCause::RunFailed),
                Outcome::Interrupted,
                "could not continue",
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
}
