//! Decides how an attempt ended: all facts about the end go in, an outcome and its reason come out.
//! Pure, so that all cases can be tested in a table.

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        message::{PROTOCOL, exit_status},
        metric_reason, trial_reason,
    },
    units::{Seconds, TimeSpan},
};

use super::{disk::speaks_of_full_disk, programs::ChildKind};
use crate::relay::{STDERR_LINES, Words, shortened};

pub(super) use crate::relay::Exit;

/// Reason why the parent stopped the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// Over `run.timeout`.
    Timeout(TimeSpan),
    /// No message for `run.stall`.
    Stall(TimeSpan),
    /// The user, or the system by SIGTERM or SIGHUP.
    Told,
    /// As [`Self::Told`], shortly before the time of the worker's Slurm job was over.
    ToldAtTheEnd(JobTime),
    /// The run itself cannot continue: a full disk, or a table that cannot be written.
    RunFailed,
    /// It uses a version of the protocol that this kiln does not support.
    Protocol,
    /// It sent `finished` and then did not end.
    Lingering,
    /// Its GPU was lost.
    DeviceLost,
    /// Another launch has taken its ticket back, because it believed this one gone.
    TakenBack,
}

/// The time of a worker's Slurm job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobTime {
    pub(super) left: TimeSpan,
    /// Time left in the job when the worker started.
    pub(super) whole: TimeSpan,
}

/// All facts about the end of an attempt.
#[derive(Clone, Debug)]
pub(super) struct AttemptEnding<'a> {
    pub(super) trial: &'a TrialId,
    pub(super) exit: Exit,
    pub(super) child: &'a ChildKind,
    /// The `finished` message, if there was one.
    pub(super) finished: Option<(Outcome, Option<String>)>,
    pub(super) stopped: Option<StopCause>,
    pub(super) seconds: f64,
    /// Whether it sent a valid message.
    pub(super) has_spoken: bool,
    /// A predicate that says how its words contradict each other, if they do.
    pub(super) contradiction: Option<String>,
    /// Its version of the protocol, if it differs from kiln's.
    pub(super) foreign_protocol: Option<u32>,
    /// The last reported step.
    pub(super) step: Option<u64>,
    /// Whether `prepare` of a command had not ended.
    pub(super) is_preparing: bool,
    /// Whether the kernel's out-of-memory killer was at work during the attempt.
    pub(super) oom_killer_struck: bool,
    /// The device that NVML reported as lost during the attempt, with the message.
    pub(super) lost: Option<String>,
    /// The last lines of standard error.
    pub(super) stderr_tail: &'a str,
    /// Path of `stderr.txt` for the message.
    pub(super) stderr_path: &'a str,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judgment {
    pub(super) outcome: Outcome,
    /// Empty for a plain `completed`.
    pub(super) reason: Option<String>,
    /// The child could not write, whatever room kiln itself sees.
    pub(super) is_disk_full: bool,
}

pub(super) fn judge(ending: &AttemptEnding) -> Judgment {
    let believed = ending.foreign_protocol.is_none() && ending.contradiction.is_none();
    let (outcome, reason) = by_rules(ending);
    if believed && ending.stopped.is_none() && is_for_the_disk(outcome, ending) {
        return Judgment {
            outcome: Outcome::Interrupted,
            reason: reason.map(without_room),
            is_disk_full: true,
        };
    }
    Judgment {
        outcome,
        reason,
        is_disk_full: false,
    }
}

/// Whether a full disk or quota explains the end: the disk failed, not the trial.
fn is_for_the_disk(outcome: Outcome, ending: &AttemptEnding) -> bool {
    let said = ending.finished.as_ref();
    let reason = said.and_then(|(_, reason)| reason.as_deref());
    match (ending.exit, outcome) {
        (Exit::Status(exit_status::DISK_FULL), Outcome::Failed | Outcome::Interrupted) => true,
        (_, Outcome::Failed) => {
            // Lines that are quoted for a pattern do not say how the program ended.
            let own = reason.map(|reason| metric_reason::split_nearest(reason).0);
            let words = own.or(Words::of(ending.stderr_tail).line());
            words.is_some_and(speaks_of_full_disk)
        }
        _ => false,
    }
}

fn without_room(reason: String) -> String {
    format!("the disk or a quota is full: {reason}")
}

fn by_rules(ending: &AttemptEnding) -> (Outcome, Option<String>) {
    if let Some(spoken) = ending.foreign_protocol {
        // With another `kiln-trial` no trial of the run can be made; an engine is the fault of its author.
        let outcome = match ending.child {
            ChildKind::Engine(_) => Outcome::Failed,
            ChildKind::KilnTrial | ChildKind::Relay => Outcome::Interrupted,
        };
        return (outcome, Some(foreign(spoken, ending)));
    }
    if let Some(contradiction) = &ending.contradiction {
        let words = in_words(contradiction, Outcome::Failed, ending);
        return (Outcome::Failed, Some(words));
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
    // Also of a trial that was being stopped because another one could not run.
    if let (Exit::Status(status), Some((outcome, reason))) = (ending.exit, &ending.finished)
        && matches!(
            (status, outcome),
            (exit_status::NO_DEVICE, Outcome::Failed)
                | (
                    exit_status::DISK_FULL,
                    Outcome::Failed | Outcome::Interrupted
                )
        )
        && !matches!(
            ending.stopped,
            Some(StopCause::Timeout(_) | StopCause::Stall(_))
        )
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
        && !(*outcome == Outcome::Failed && may_look_like_a_failure(ending.stopped))
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

fn foreign(spoken: u32, ending: &AttemptEnding) -> String {
    let remedy = match ending.child {
        ChildKind::Engine(program) => format!(
            "`{program}` must say `protocol` {PROTOCOL} in its `hello` (docs/child-protocol.md)"
        ),
        ChildKind::KilnTrial | ChildKind::Relay => {
            "build `kiln` and `kiln-trial` from the same version, or set `KILN_TRIAL` to a \
             matching program"
                .to_owned()
        }
    };
    format!(
        "trial {}: its program speaks version {spoken} of the child's protocol, and this kiln \
         supports only version {PROTOCOL}; {remedy}",
        ending.trial
    )
}

/// Whether a lost device explains the end. A result that exists anyway is kept, and so is a stop by
/// the user.
fn is_fault_of_the_device(ending: &AttemptEnding) -> bool {
    match (&ending.finished, ending.stopped) {
        (
            _,
            Some(
                StopCause::Told
                | StopCause::ToldAtTheEnd(_)
                | StopCause::RunFailed
                | StopCause::TakenBack,
            ),
        ) => false,
        (Some((outcome, _)), _) => *outcome == Outcome::Failed || !outcome.is_final(),
        (None, _) => true,
    }
}

/// Whether a child may call it a failure that it was stopped: an error that the signal raised in it, or
/// in a process of its own.
fn may_look_like_a_failure(stopped: Option<StopCause>) -> bool {
    match stopped {
        Some(
            StopCause::Timeout(_)
            | StopCause::Stall(_)
            | StopCause::Told
            | StopCause::ToldAtTheEnd(_)
            | StopCause::RunFailed
            | StopCause::TakenBack,
        ) => true,
        Some(StopCause::Protocol | StopCause::Lingering | StopCause::DeviceLost) | None => false,
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
            match ending.is_preparing {
                true => {
                    format!("was stopped at its time limit (`run.timeout` {limit}), in `prepare`,")
                }
                false => format!("was stopped at its time limit (`run.timeout` {limit})"),
            },
        ),
        StopCause::Stall(limit) => (
            Outcome::TimedOut,
            match ending.child {
                ChildKind::Relay => format!(
                    "was stopped because {} wrote nothing and used less than 1 % of a core for \
                     {limit} (`run.stall`)",
                    match ending.is_preparing {
                        true => "`prepare`",
                        false => "its program",
                    }
                ),
                ChildKind::KilnTrial | ChildKind::Engine(_) => {
                    format!("was stopped because it sent no message for {limit} (`run.stall`)")
                }
            },
        ),
        StopCause::Told => (Outcome::Interrupted, "was stopped with the run".to_owned()),
        StopCause::ToldAtTheEnd(JobTime { left, .. }) => (
            Outcome::Interrupted,
            format!("was stopped with its worker, {left} before the end of its job's time"),
        ),
        StopCause::RunFailed => (
            Outcome::Interrupted,
            "was stopped because the run could not continue".to_owned(),
        ),
        StopCause::TakenBack => (
            Outcome::Interrupted,
            "was stopped because its ticket was taken back: its worker was believed gone"
                .to_owned(),
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
        exit_status::INTERRUPTED => (Outcome::Killed, stopped_by_others(ending)),
        exit_status::DISK_FULL => (
            Outcome::Interrupted,
            "could not write its files and ended".to_owned(),
        ),
        // A shell's word for a process of its own that SIGKILL ended.
        KILLED_IN_A_SHELL if ending.oom_killer_struck => (
            Outcome::Oom,
            "ran out of host memory: the kernel's out-of-memory killer ended a process of it, and \
             it ended with status 137"
                .to_owned(),
        ),
        _ if Words::of(ending.stderr_tail).speak_of_memory(STDERR_LINES) => (
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
            match ending.child {
                ChildKind::Engine(program) => format!(
                    "ended with status 2: `{program}` could not read its command line or its \
                     `trial.yaml`"
                ),
                ChildKind::KilnTrial | ChildKind::Relay => {
                    "could not read its `trial.yaml`; are `kiln` and `kiln-trial` of the same \
                     version?"
                        .to_owned()
                }
            },
        ),
        exit_status::NO_DEVICE => (
            Outcome::Interrupted,
            match ending.child {
                ChildKind::Relay => "could not start its program".to_owned(),
                ChildKind::KilnTrial | ChildKind::Engine(_) => {
                    "found no engine or device on this machine and ended".to_owned()
                }
            },
        ),
        126 | 127 if !ending.has_spoken => (
            Outcome::Interrupted,
            match ending.child {
                ChildKind::Engine(program) => {
                    format!("could not be started (status {status}): `{program}` ended")
                }
                ChildKind::KilnTrial | ChildKind::Relay => format!(
                    "could not be started (status {status}); is libtorch there (`make libtorch`)? \
                     It ended"
                ),
            },
        ),
        other => (Outcome::Failed, format!("ended with status {other}")),
    }
}

/// 128 and the signal.
const KILLED_IN_A_SHELL: i32 = 128 + 9;

/// The child itself knows which signal it was.
fn stopped_by_others(ending: &AttemptEnding) -> String {
    let said = match &ending.finished {
        Some((Outcome::Interrupted, Some(reason))) => format!(" ({})", shortened(reason)),
        _ => String::new(),
    };
    format!("was told to stop by something other than kiln{said} and ended")
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
        _ if Words::of(ending.stderr_tail).speak_of_memory(STDERR_LINES) => (
            Outcome::Oom,
            format!("ran out of memory and ended by signal {signal}{name}"),
        ),
        _ if is_of_the_loader(signal, ending.child, ending.has_spoken) => (
            Outcome::Interrupted,
            format!(
                "crashed by signal {signal}{name} before its first message, as with a damaged \
                 libtorch, and ended"
            ),
        ),
        _ => (Outcome::Failed, format!("crashed by signal {signal}{name}")),
    }
}

/// Whether the program of kiln crashed before it said anything: no setting of a trial has been used
/// then, so that every other trial would crash, too. It is the end of a program whose libraries are cut off,
/// or use instructions that the processor lacks.
pub(super) fn is_of_the_loader(signal: i32, child: &ChildKind, has_spoken: bool) -> bool {
    const ILL: i32 = 4;
    const BUS: i32 = 7;
    *child == ChildKind::KilnTrial && !has_spoken && [ILL, BUS].contains(&signal)
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map(|name| format!(" ({name})"))
        .unwrap_or_default()
}

/// `trial 4f0c1a2b3d was killed by signal 9 after 41 s, at step 118; see
/// trials/4f0c1a2b3d/1/stderr.txt: <line>`.
fn in_words(what: &str, outcome: Outcome, ending: &AttemptEnding) -> String {
    let step = match (ending.step, ending.child) {
        // A command that reports no step.
        (None | Some(0), ChildKind::Relay) => String::new(),
        (None, _) => ", before its first step".to_owned(),
        (Some(step), _) => format!(", at step {step}"),
    };
    let what = format!("{what} after {}{step}", Seconds(ending.seconds));
    let mut text = trial_reason::of_trial(ending.trial, &what);
    if ending.stopped.is_some() && outcome == Outcome::Interrupted {
        return text;
    }
    text.push_str(&format!("; see {}", ending.stderr_path));
    if let Some(line) = line_of_the_end(ending) {
        text.push_str(&format!(": {}", shortened(line)));
    }
    text
}

/// The line of standard error that explains the end; `None` after SIGKILL, which no program can
/// report.
fn line_of_the_end<'a>(ending: &AttemptEnding<'a>) -> Option<&'a str> {
    let words = Words::of(ending.stderr_tail);
    match (ending.stopped, ending.exit) {
        (Some(StopCause::Timeout(_) | StopCause::Stall(_)), _) => words.line_before_a_stop(),
        (_, Exit::Signal(9)) => None,
        _ => words.line(),
    }
}

#[cfg(test)]
mod tests;
