//! The end of an attempt: reaps the child, judges how it ended, and makes its row.

mod notes;

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Outcome, Trial},
    record::{
        TableRow, TrialResult,
        attempt::{ResultError, STDERR, result_patiently},
        course,
        message::exit_status,
        note::LossRose,
        trial_reason,
    },
    units::ByteSize,
};

use super::{
    Attempt,
    late_end::{end_in_gap, result_written},
};
use crate::{
    relay,
    schedule::{
        Instruments,
        contradiction::{ReportedEnd, contradiction},
        instruments::{AttemptReadings, LeasedGpu},
        judge::{AttemptEnding, Exit, Judgment, StopCause, is_of_the_loader, judge},
        listen::ChildState,
        memory,
        programs::ChildKind,
        row::{AttemptFacts, row},
        supervisor::Supervisor,
    },
};

/// A command that ran for so long has begun, also if it prints nothing.
const BEGUN: Duration = Duration::from_secs(60);

/// An ended attempt.
pub(in crate::schedule) struct Finished {
    pub(in crate::schedule) row: TableRow,
    /// Why no other trial of the run can run here either; `None` if one can.
    pub(in crate::schedule) hindrance: Option<Hindrance>,
    /// Whether its model and data were ready.
    pub(in crate::schedule) was_ready: bool,
    /// The reason, if the child could not write.
    pub(in crate::schedule) disk_full: Option<String>,
    /// The reason, if the result of a trial that was over cannot be read now.
    pub(in crate::schedule) unread: Option<String>,
    pub(in crate::schedule) lost: Option<Lost>,
    /// Libraries loaded into the child: name to version.
    pub(in crate::schedule) libraries: BTreeMap<String, String>,
    /// Settings of the engine in the child that affect numeric results.
    pub(in crate::schedule) flags: BTreeMap<String, String>,
    /// Says that it has built another model than the planned one, unless that was said before.
    pub(in crate::schedule) other_model: Option<String>,
}

/// A lost device.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct Lost {
    pub(in crate::schedule) uuid: String,
    /// Its name, and the message of NVML.
    pub(in crate::schedule) words: String,
}

impl Lost {
    /// `message` is NVML's.
    pub(in crate::schedule) fn of(gpu: &LeasedGpu, message: &str) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            words: format!(
                "GPU {} ({}) was lost (NVML: {message})",
                gpu.index, gpu.name
            ),
        }
    }
}

/// Why the trials of a run cannot run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) enum Hindrance {
    /// A device or the program itself is missing.
    Absent,
    /// The program is of another version.
    OtherVersion,
}

/// Facts that a row needs in addition to the attempt.
pub(in crate::schedule) struct Surroundings<'a> {
    pub(in crate::schedule) launch: u64,
    /// `run.memory_limit`.
    pub(in crate::schedule) memory_limit: Option<ByteSize>,
    /// Empty for the CPU.
    pub(in crate::schedule) devices: &'a [LeasedGpu],
    pub(in crate::schedule) driver: Option<String>,
    /// Name of the CPU for the row if the child did not report it.
    pub(in crate::schedule) cpu_name: Option<String>,
    /// Full description of the host's processor.
    pub(in crate::schedule) processor: Option<String>,
    pub(in crate::schedule) host_id: Option<String>,
    /// Whether trials run in blocks.
    pub(in crate::schedule) has_blocks: bool,
    /// Whether the repeats run round by round.
    pub(in crate::schedule) has_rounds: bool,
    pub(in crate::schedule) cores: u64,
    /// A full disk, or a folder that was moved away or is no longer writable: then a failure is not
    /// the trial's, and not final.
    pub(in crate::schedule) fault_of_the_disk: Option<&'static str>,
    /// From when kiln was stopped until it saw the end of the child; `None` if it was not.
    pub(in crate::schedule) unwatched_since: Option<Instant>,
}

/// A command of whose memory the relay knows nothing holds less than this, some MiB, or ran in
/// processes that hold more together.
const WHOLE: u64 = 4 << 20;

/// An attempt whose child is reaped.
struct Reaped {
    attempt: u64,
    most_concurrent: u64,
    started_utc: String,
    run_seconds: f64,
    seconds: f64,
    /// A note on `seconds`.
    late: Option<(String, String)>,
    stopped: Option<StopCause>,
    kind: ChildKind,
    loss_rose: Option<LossRose>,
    /// Step of the trial's newest checkpoint.
    checkpoint: Option<u64>,
    exit: Exit,
    stderr_tail: String,
    heard: ChildState,
    oom_killer_struck: bool,
    /// The libraries that the child reported, and others that were seen in its processes.
    libraries: BTreeMap<String, String>,
    result: Result<TrialResult, ResultError>,
}

impl Attempt {
    /// Reaps the child, ends what it left, and makes the attempt's row.
    pub(in crate::schedule) fn finish(
        self,
        trial: &Trial,
        around: &Surroundings,
        instruments: &mut Instruments,
        supervisor: &mut Supervisor,
    ) -> Finished {
        let has_begun = self.has_begun();
        let mut reaped = self.reap(supervisor, around.unwatched_since);
        let readings = reaped.readings(trial, around, instruments);
        let lost = lost(&readings, around.devices);
        let contradiction = reaped.contradiction(trial);
        // The figures of a child with another protocol may have another meaning, and those of one
        // that contradicts itself may be another trial's.
        let is_believed = reaped.heard.foreign_protocol.is_none() && contradiction.is_none();
        let mut judgment = reaped.judge(trial, lost.as_ref(), contradiction);
        let disk_full = judgment.reason.clone().filter(|_| judgment.is_disk_full);
        let is_unread = judgment.outcome == Outcome::Interrupted && reaped.is_over_and_unread();
        let unread = judgment.reason.clone().filter(|_| is_unread);
        explain(&mut judgment, around, &readings);
        let result = reaped.result.as_ref().ok().filter(|_| is_believed);
        let libtorch = result.and_then(TrialResult::libtorch);
        let on_cpu = around.devices.is_empty();
        // A retry does not run together with the other trials of its block.
        let is_in_place = reaped.attempt == 1;
        let row = row(&AttemptFacts {
            trial,
            attempt: reaped.attempt,
            launch: around.launch,
            outcome: judgment.outcome,
            reason: judgment.reason,
            started_utc: Some(reaped.started_utc.clone()),
            run_seconds: Some(reaped.run_seconds),
            trial_seconds: Some(reaped.seconds),
            result,
            readings: &readings,
            devices: around.devices,
            cpu_name: around.cpu_name.as_deref().filter(|_| on_cpu),
            processor: around.processor.as_deref(),
            host_id: around.host_id.as_deref(),
            block: (around.has_blocks && is_in_place).then_some(trial.block),
            round: (around.has_rounds && is_in_place).then_some(trial.repeat + 1),
            driver: around.driver.as_deref(),
            peak: instruments.peak_flops(around.devices, trial, libtorch),
            concurrent_trials: reaped.most_concurrent,
            cores: around.cores,
            parameters: reaped.heard.parameters,
            step: reaped.heard.step,
            resumed_at_step: reaped.heard.resumed_at_step,
            notes: reaped.notes(trial, around, judgment.outcome),
        });
        Finished {
            row,
            hindrance: reaped.hindrance().filter(|_| lost.is_none()),
            was_ready: reaped.heard.is_ready() && (!reaped.kind.is_relay() || has_begun),
            disk_full,
            unread,
            lost,
            flags: result
                .map(|result| result.flags.clone())
                .unwrap_or_default(),
            other_model: reaped.heard.other_model(trial),
            libraries: reaped.libraries,
        }
    }

    /// A command is ready once its program is started, which may lack a library or its device.
    fn has_begun(&self) -> bool {
        let printed = self.folder.join(relay::STDOUT).metadata();
        self.started.elapsed() >= BEGUN || printed.is_ok_and(|printed| printed.len() > 0)
    }

    fn reap(self, supervisor: &mut Supervisor, unwatched_since: Option<Instant>) -> Reaped {
        // A driver that hangs holds kiln up, not the child.
        let seen = self.child.ended().unwrap_or_else(Instant::now);
        let (ended, late) = match unwatched_since {
            Some(since) => end_in_gap(since, seen, result_written(&self.folder)),
            None => (seen, None),
        };
        let seconds = ended.duration_since(self.started).as_secs_f64();
        let ear = self.child.ear.clone();
        let (exit, stderr_tail) = match self.child.reap(supervisor) {
            Ok(ended) => (ended.exit, ended.stderr_tail),
            Err(error) => (Exit::Status(-1), error.to_string()),
        };
        let heard = ear.heard().clone();
        let result = result_patiently(&self.folder);
        let loss_rose = result
            .as_ref()
            .ok()
            .and_then(|result| loss_rose(&self.folder, self.attempt, result));
        let libraries = self.libraries.with_reported(heard.libraries.clone());
        let checkpoint = self.checkpoints.newest_step();
        Reaped {
            attempt: self.attempt,
            most_concurrent: self.most_concurrent,
            started_utc: self.started_utc,
            run_seconds: self.run_seconds,
            seconds,
            late: late.map(|note| ("trial_seconds".to_owned(), note)),
            stopped: self.stopped,
            kind: self.kind,
            loss_rose,
            checkpoint,
            exit,
            stderr_tail,
            heard,
            oom_killer_struck: self.oom_kills.struck(),
            libraries,
            result,
        }
    }
}

/// Whether the training of an attempt in `folder` ended with a clearly higher loss than it began
/// with.
pub(in crate::schedule) fn loss_rose(
    folder: &Path,
    attempt: u64,
    result: &TrialResult,
) -> Option<LossRose> {
    let last = result.figures.train_loss?;
    // Another note says that it is not a loss of the training data.
    if result.notes.contains_key(LossRose::COLUMN) {
        return None;
    }
    let folder = folder.parent()?;
    let first = course::first_loss(folder, attempt)?;
    // The whole table is read only if the ends give cause.
    if !LossRose::is_suspected(first, last) {
        return None;
    }
    let losses = course::losses(folder, attempt).ok()?;
    LossRose::between(first, &losses[losses.len().div_ceil(2)..], last)
}

impl Reaped {
    /// The machine's readings over the measured window that the child's result names.
    fn readings(
        &self,
        trial: &Trial,
        around: &Surroundings,
        instruments: &mut Instruments,
    ) -> AttemptReadings {
        let result = self.result.as_ref().ok();
        let window = result.and_then(|result| {
            result
                .window_started_nanoseconds
                .zip(result.window_ended_nanoseconds)
        });
        let cuts = result.map_or(&[][..], |result| &result.window_cuts_nanoseconds);
        let is_alone = self.most_concurrent == 1;
        // Readings while `prepare` ran are not those of the program.
        let began = match prepares(trial) {
            true => self.heard.ready_nanoseconds.unwrap_or(u64::MAX),
            false => 0,
        };
        let mut readings = instruments.unwatch(&trial.id, window, cuts, began, is_alone);
        let measured = result.and_then(|result| result.peak_resident_bytes);
        let read = readings.window.peak_resident_bytes;
        let read = read.max(self.heard.peak_resident_bytes);
        // A program that the relay could not tell from itself was read before it was there whole.
        let tells = |bytes: &u64| !self.kind.is_relay() || measured.is_some() || *bytes >= WHOLE;
        readings.window.peak_resident_bytes = read.filter(tells).max(measured);
        if around.memory_limit.is_some()
            && !around.devices.is_empty()
            && around
                .devices
                .iter()
                .all(|gpu| gpu.memory_total_bytes.is_none())
        {
            let note = "the GPU does not tell how much memory it has, so `run.memory_limit` was not \
                        enforced";
            let notes = &mut readings.window.notes;
            notes.insert("memory_limit_bytes".to_owned(), note.to_owned());
        } else {
            readings.memory_limit_bytes =
                memory::least(readings.memory_limit_bytes, around.memory_limit);
        }
        readings
    }

    /// The contradiction between the child's message, result and status, if there is one.
    fn contradiction(&self, trial: &Trial) -> Option<String> {
        contradiction(&ReportedEnd {
            trial: &trial.id,
            attempt: self.attempt,
            exit: self.exit,
            finished: self.heard.finished.as_ref().map(|(outcome, _)| *outcome),
            finished_before: self.heard.finished_before,
            result: self.result.as_ref(),
        })
    }

    /// Whether the trial has its result, which the system cannot read now.
    fn is_over_and_unread(&self) -> bool {
        let said = self.heard.finished.as_ref().map(|(outcome, _)| *outcome);
        said.is_some_and(Outcome::is_end_of_training)
            && matches!(self.result, Err(ResultError::Unread(_)))
    }

    /// The outcome; a trial that completed without a result failed, and one whose result the system
    /// cannot read now is run again.
    fn judge(&self, trial: &Trial, lost: Option<&Lost>, contradiction: Option<String>) -> Judgment {
        let judgment = judge(&AttemptEnding {
            trial: &trial.id,
            exit: self.exit,
            child: &self.kind,
            finished: self.heard.finished.clone(),
            stopped: self.stopped,
            seconds: self.seconds,
            has_spoken: self.heard.messages > 0,
            contradiction,
            foreign_protocol: self.heard.foreign_protocol,
            step: self.heard.step,
            is_preparing: prepares(trial) && !self.heard.is_ready(),
            oom_killer_struck: self.oom_killer_struck,
            lost: lost.map(|lost| lost.words.clone()),
            stderr_tail: &self.stderr_tail,
            stderr_path: &format!("trials/{}/{}/{STDERR}", trial.id, self.attempt),
        });
        let in_words = |what: String| Some(trial_reason::of_trial(&trial.id, &what));
        match (judgment.outcome, &self.result) {
            (said, Err(ResultError::Unread(why))) if said.is_end_of_training() => Judgment {
                outcome: Outcome::Interrupted,
                reason: in_words(format!(
                    "reported that it {said}, but its result cannot be read now: {why}"
                )),
                ..judgment
            },
            (Outcome::Completed, Err(why)) => Judgment {
                outcome: Outcome::Failed,
                reason: in_words(format!(
                    "reported that it completed, but its result cannot be read: {why}"
                )),
                ..judgment
            },
            _ => judgment,
        }
    }

    /// Why no other trial can run here either.
    fn hindrance(&self) -> Option<Hindrance> {
        let is_engine = matches!(self.kind, ChildKind::Engine(_));
        if self.heard.foreign_protocol.is_some() {
            return (!is_engine).then_some(Hindrance::OtherVersion);
        }
        (self.stopped.is_none() && self.is_absent()).then_some(Hindrance::Absent)
    }

    fn is_absent(&self) -> bool {
        match self.exit {
            Exit::Status(exit_status::NO_DEVICE) => true,
            // The dynamic loader did not find a library, or the file is not a program.
            Exit::Status(126 | 127) => self.heard.messages == 0,
            Exit::Signal(signal) => is_of_the_loader(signal, &self.kind, self.heard.messages > 0),
            Exit::Status(_) => false,
        }
    }
}

/// Whether a program runs before the trial's own.
fn prepares(trial: &Trial) -> bool {
    let command = trial.model.command();
    command.is_some_and(|command| !command.prepare.is_empty())
}

/// Corrects a failure that was the disk's, and adds to `oom` on the CPU what was held.
fn explain(judgment: &mut Judgment, around: &Surroundings, readings: &AttemptReadings) {
    let reason = judgment.reason.take();
    judgment.reason = match (judgment.outcome, around.fault_of_the_disk) {
        (Outcome::Failed, Some(fault)) => {
            judgment.outcome = Outcome::Interrupted;
            Some(format!("{fault}: {}", reason.unwrap_or_default()))
        }
        (Outcome::Oom, _) if around.devices.is_empty() => {
            reason.map(|reason| memory::with_what_was_held(reason, readings, around.memory_limit))
        }
        _ => reason,
    };
}

fn lost(readings: &AttemptReadings, devices: &[LeasedGpu]) -> Option<Lost> {
    let (uuid, words) = readings.lost.as_ref()?;
    let gpu = devices.iter().find(|gpu| gpu.uuid == *uuid)?;
    Some(Lost::of(gpu, words))
}
