//! One attempt of one trial: creates its files and process, enforces its limits, and makes its row.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{ChildDevice, Outcome, TRIAL_FILE, Trial, TrialFile, child_data, child_train},
    record::{
        AttemptFile, Checkpoints, DEVICE_SEPARATOR, RunFolder, TableRow, TrialResult,
        attempt::{attempts, result},
        message::exit_status,
    },
    spec::{AfterTraining, Precision, Run},
    units::ByteSize,
};
use kiln_hardware::{OomKillWatch, processor::has_bf16};
use rustix::process::Signal;

use super::{
    Event, Instruments, RunRequest,
    child::{self, ChildStart, Running},
    clock,
    instruments::{AttemptReadings, AttemptWatch, LeasedGpu},
    judge::{AttemptEnding, Exit, StopCause, Verdict, judge},
    limits::{AttemptTimes, Due, SignsOfLife},
    listen::ChildState,
    memory,
    row::{AttemptFacts, row},
    supervisor::Supervisor,
    testimony::{Testimony, contradiction},
};

/// Setting of an attempt: its folder, devices and program.
pub(super) struct AttemptSetting<'a> {
    pub(super) request: &'a RunRequest<'a>,
    pub(super) trial: &'a Trial,
    pub(super) folder: &'a RunFolder,
    pub(super) launch: u64,
    pub(super) run_anchor_nanoseconds: i64,
    /// Empty for the CPU.
    pub(super) devices: &'a [LeasedGpu],
    pub(super) token: u64,
    /// The trial's highest attempt that has a row; 0 if none has.
    pub(super) last_row: u64,
    /// True if it ignores the checkpoints of earlier attempts.
    pub(super) begins_anew: bool,
}

/// A running attempt.
pub(super) struct Attempt {
    pub(super) token: u64,
    /// Index of the trial in the plan.
    pub(super) index: usize,
    pub(super) attempt: u64,
    /// Index of its devices in the launch's list of slots.
    pub(super) slot: usize,
    /// Largest number of trials that ran at the same time as this one, including it.
    pub(super) most_concurrent: u64,
    child: Running,
    folder: PathBuf,
    started: Instant,
    started_utc: String,
    run_seconds: f64,
    times: AttemptTimes,
    /// The first cause of the stop.
    stopped: Option<StopCause>,
    oom_kills: OomKillWatch,
}

/// An ended attempt.
pub(super) struct Finished {
    pub(super) row: TableRow,
    /// The child reported that this machine cannot run it; no other trial would run either.
    pub(super) cannot_run: bool,
    /// The reason, if the child could not write.
    pub(super) disk_full: Option<String>,
    pub(super) lost: Option<Lost>,
    /// Libraries loaded into the child: name to version.
    pub(super) libraries: BTreeMap<String, String>,
    /// Settings of the engine in the child that affect numeric results.
    pub(super) flags: BTreeMap<String, String>,
}

/// A lost device.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    pub(super) uuid: String,
    /// Its name, and the message of NVML.
    pub(super) words: String,
}

/// Facts that a row needs in addition to the attempt.
pub(super) struct Surroundings<'a> {
    pub(super) launch: u64,
    /// `run.memory_limit`.
    pub(super) memory_limit: Option<ByteSize>,
    /// Empty for the CPU.
    pub(super) devices: &'a [LeasedGpu],
    pub(super) driver: Option<String>,
    /// Name of the CPU for the row if the child did not report it.
    pub(super) cpu_name: Option<String>,
    /// Full description of the host's processor.
    pub(super) processor: Option<String>,
    pub(super) host_id: Option<String>,
    /// Whether the repeats run round by round.
    pub(super) has_blocks: bool,
    pub(super) cores: u64,
    /// A full disk, or a folder that was moved away: then a failure is not the trial's, and not
    /// final.
    pub(super) fault_of_the_disk: Option<&'static str>,
}

/// Creates the attempt's folder and files and starts its child.
///
/// # Errors
/// If a file cannot be written or the child cannot be started; the attempt's folder is then
/// removed.
pub(super) fn start(
    setting: &AttemptSetting,
    index: usize,
    slot: usize,
    events: Sender<Event>,
) -> io::Result<Attempt> {
    let trial = setting.trial;
    // A copy of the run may have its rows without the folders of its attempts.
    let last_folder = attempts(setting.folder, &trial.id).last().copied();
    let attempt = last_folder.unwrap_or(0).max(setting.last_row) + 1;
    let (started_utc, run_seconds) = (
        clock::utc_now(),
        clock::run_seconds(setting.run_anchor_nanoseconds),
    );
    let oom_kills = OomKillWatch::start(Path::new("/"));
    if setting.begins_anew {
        checkpoints(setting.folder, trial).delete()?;
    }
    if trial.train.checkpoint.is_some() {
        checkpoints(setting.folder, trial).check_folder()?;
    }
    let folder = setting.folder.make_attempt(&trial.id, attempt)?;
    let started = write_files(setting, trial, attempt, &folder, &started_utc).and_then(|()| {
        let start = ChildStart {
            program: setting.request.trial_program,
            trial_file: &setting.folder.trial_file(&trial.id),
            folder: &folder,
            visible_devices: &uuids(setting.devices).join(","),
            limit: memory::limit(setting.request.experiment.run.memory_limit, setting.devices),
            token: setting.token,
        };
        child::start(&start, events).map_err(|error| named(error, setting.request.trial_program))
    });
    let child = started.inspect_err(|_| {
        let _ = setting.folder.remove(&folder);
    })?;
    Ok(Attempt {
        token: setting.token,
        index,
        attempt,
        slot,
        most_concurrent: 1,
        child,
        folder,
        started: Instant::now(),
        started_utc,
        run_seconds,
        times: AttemptTimes::new(trial.train.checkpoint.is_some()),
        stopped: None,
        oom_kills,
    })
}

/// The files of the training that a trial keeps.
fn checkpoints(folder: &RunFolder, trial: &Trial) -> Checkpoints {
    Checkpoints::new(folder.checkpoints(&trial.id), trial.id.clone())
}

/// Deletes the checkpoints of a completed trial that are not requested.
pub(super) fn settle_checkpoints(folder: &RunFolder, trial: &Trial) -> io::Result<()> {
    let Some(policy) = &trial.train.checkpoint else {
        return Ok(());
    };
    let checkpoints = checkpoints(folder, trial);
    match policy.after {
        AfterTraining::Delete => checkpoints.delete(),
        after if after.keeps_best() && checkpoints.lowest_loss().is_some() => {
            checkpoints.keep(0, true)
        }
        _ => checkpoints.keep(1, false),
    }
}

fn named(error: io::Error, program: &Path) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{} cannot be started: {error}", program.display()),
    )
}

fn write_files(
    setting: &AttemptSetting,
    trial: &Trial,
    attempt: u64,
    folder: &Path,
    started_utc: &str,
) -> io::Result<()> {
    let file = AttemptFile {
        trial: trial.id.clone(),
        attempt,
        launch: setting.launch,
        started_utc: started_utc.to_owned(),
        device: if setting.devices.is_empty() {
            "cpu".to_owned()
        } else {
            uuids(setting.devices).join(DEVICE_SEPARATOR)
        },
    };
    file.write(setting.folder)?;
    let text = serde_yaml::to_string(&trial_file(setting, trial, attempt, folder))
        .map_err(io::Error::other)?;
    setting
        .folder
        .write(&setting.folder.trial_file(&trial.id), text.as_bytes())
}

fn uuids(devices: &[LeasedGpu]) -> Vec<&str> {
    devices.iter().map(|gpu| gpu.uuid.as_str()).collect()
}

/// Returns the child's input: `auto` values are resolved, and every path is absolute.
fn trial_file(setting: &AttemptSetting, trial: &Trial, attempt: u64, folder: &Path) -> TrialFile {
    let cores = super::open::cores();
    let directory = std::env::current_dir().unwrap_or_default();
    TrialFile {
        kiln_trial: TRIAL_FILE,
        trial: trial.id.clone(),
        attempt,
        model: trial.model.clone(),
        data: child_data(&trial.data, cores, &directory),
        train: child_train(&trial.train, &trial.data, cores, &directory),
        measure: setting.request.experiment.measure.clone(),
        engine: trial.engine,
        device: if setting.devices.is_empty() {
            ChildDevice::Cpu
        } else {
            ChildDevice::Cuda
        },
        devices_per_trial: trial.devices_per_trial,
        data_folder: std::env::var_os("KILN_DATA")
            .filter(|value| !value.is_empty())
            .and_then(|path| std::path::absolute(path).ok()),
        folder: folder.to_owned(),
        checkpoint_folder: trial
            .train
            .checkpoint
            .as_ref()
            .map(|_| setting.folder.checkpoints(&trial.id)),
        run_anchor_nanoseconds: setting.run_anchor_nanoseconds,
    }
}

impl Attempt {
    pub(super) fn watch(&self, trial: &Trial, devices: &[LeasedGpu]) -> AttemptWatch {
        let device_uuids = devices.iter().map(|gpu| gpu.uuid.clone()).collect();
        AttemptWatch {
            trial: trial.id.clone(),
            attempt: self.attempt,
            pid: self.child.pid(),
            device_uuids,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notices a control group that the child has moved to.
    pub(super) fn follow_memory_group(&mut self) {
        self.oom_kills.follow(self.child.pid());
    }

    /// Stops the child's process group with SIGTERM; the first cause counts.
    pub(super) fn stop(&mut self, cause: StopCause) {
        if self.stopped.is_none() {
            self.stopped = Some(cause);
            self.child.signal(Signal::TERM);
        }
    }

    /// Stops it with SIGKILL.
    pub(super) fn kill(&mut self) {
        self.stop(StopCause::Told);
        self.child.signal(Signal::KILL);
    }

    /// Does what is due `now` on the launch's clock ([`AttemptTimes::due`]).
    pub(super) fn keep_limits(&mut self, limits: &Run, now: Duration) {
        let signs = {
            let heard = self.child.ear.heard();
            SignsOfLife {
                messages: heard.messages,
                is_finished: heard.finished.is_some(),
                is_foreign: heard.foreign_protocol.is_some(),
                is_stopped: self.stopped.is_some(),
            }
        };
        match self.times.due(now, signs, limits) {
            Some(Due::Stop(cause)) => self.stop(cause),
            Some(Due::Kill) => self.child.signal(Signal::KILL),
            None => {}
        }
    }

    /// Returns the state that the child reported, and its notices since the last call.
    pub(super) fn look(&self) -> (ChildState, Vec<String>) {
        let mut heard = self.child.ear.heard();
        let notices = std::mem::take(&mut heard.notices);
        (heard.clone(), notices)
    }

    /// Reaps the child, ends what it left, and makes the attempt's row.
    pub(super) fn finish(
        self,
        trial: &Trial,
        around: &Surroundings,
        instruments: &mut Instruments,
        supervisor: &mut Supervisor,
    ) -> Finished {
        let seconds = self.started.elapsed().as_secs_f64();
        let ear = self.child.ear.clone();
        let (exit, stderr_tail) = match self.child.reap(supervisor) {
            Ok(ended) => (ended.exit, ended.stderr_tail),
            Err(error) => (Exit::Status(-1), error.to_string()),
        };
        let heard = ear.heard().clone();
        let struck = self.oom_kills.struck();
        let stderr_path = format!("trials/{}/{}/stderr.txt", trial.id, self.attempt);
        let result = result(&self.folder);
        let window = result.as_ref().ok().and_then(|result| {
            result
                .window_started_nanoseconds
                .zip(result.window_ended_nanoseconds)
        });
        let cuts = result
            .as_ref()
            .ok()
            .map(|result| result.window_cuts_nanoseconds.clone())
            .unwrap_or_default();
        let mut readings = instruments.unwatch(&trial.id, window, &cuts, self.most_concurrent == 1);
        readings.window.peak_resident_bytes = readings
            .window
            .peak_resident_bytes
            .max(heard.peak_resident_bytes);
        readings.memory_limit_bytes =
            memory::least(readings.memory_limit_bytes, around.memory_limit);
        let lost = lost(&readings, around.devices);
        let ending = AttemptEnding {
            trial: &trial.id,
            exit,
            finished: heard.finished.clone(),
            stopped: self.stopped,
            seconds,
            has_spoken: heard.messages > 0,
            contradiction: contradiction(&Testimony {
                trial: &trial.id,
                attempt: self.attempt,
                exit,
                finished: heard.finished.as_ref().map(|(outcome, _)| *outcome),
                finished_before: heard.finished_before,
                result: result.as_ref(),
            }),
            foreign_protocol: heard.foreign_protocol,
            step: heard.step,
            oom_killer_struck: struck,
            lost: lost.as_ref().map(|lost| lost.words.clone()),
            stderr_tail: &stderr_tail,
            stderr_path: &stderr_path,
        };
        let Verdict {
            mut outcome,
            mut reason,
            is_disk_full,
        } = judge(&ending);
        if let (Outcome::Completed, Err(why)) = (outcome, &result) {
            outcome = Outcome::Failed;
            reason = Some(format!(
                "trial {} reported that it completed, but its result cannot be read: {why}",
                trial.id
            ));
        }
        let full_for_the_child = reason.clone().filter(|_| is_disk_full);
        if let (Outcome::Failed, Some(fault)) = (outcome, around.fault_of_the_disk) {
            outcome = Outcome::Interrupted;
            reason = Some(format!("{fault}: {}", reason.unwrap_or_default()));
        }
        if outcome == Outcome::Oom && around.devices.is_empty() {
            reason = reason
                .map(|reason| memory::with_what_was_held(reason, &readings, around.memory_limit));
        }
        // The figures of a child with another protocol may have another meaning, and those of one
        // that contradicts itself may be another trial's.
        let is_believed = heard.foreign_protocol.is_none() && ending.contradiction.is_none();
        let result = result.ok().filter(|_| is_believed);
        let garbage = (heard.garbage_lines > 0).then(|| {
            (
                "stdout".to_owned(),
                format!("{} lines are not messages", heard.garbage_lines),
            )
        });
        let is_absent = match exit {
            Exit::Status(exit_status::NO_DEVICE) => true,
            // The dynamic loader did not find a library, or the file is not a program.
            Exit::Status(126 | 127) => heard.messages == 0,
            _ => false,
        };
        let cannot_run = ending.stopped.is_none() && is_absent && lost.is_none();
        let libtorch = result.as_ref().and_then(TrialResult::libtorch);
        let row = row(&AttemptFacts {
            trial,
            attempt: self.attempt,
            launch: around.launch,
            outcome,
            reason,
            started_utc: Some(self.started_utc),
            run_seconds: Some(self.run_seconds),
            trial_seconds: Some(seconds),
            result: result.as_ref(),
            readings: &readings,
            devices: around.devices,
            cpu_name: around
                .cpu_name
                .as_deref()
                .filter(|_| around.devices.is_empty()),
            processor: around.processor.as_deref(),
            host_id: around.host_id.as_deref(),
            // A retry does not run together with the other trials of its block.
            block: (around.has_blocks && self.attempt == 1).then_some(trial.repeat + 1),
            driver: around.driver.as_deref(),
            peak: instruments.peak_flops(around.devices, trial, libtorch),
            concurrent_trials: self.most_concurrent,
            cores: around.cores,
            step: heard.step,
            resumed_at_step: heard.resumed_at_step,
            notes: garbage.into_iter().chain(emulated(trial, around)).collect(),
        });
        let flags = result.map(|result| result.flags).unwrap_or_default();
        Finished {
            row,
            cannot_run,
            disk_full: full_for_the_child,
            lost,
            libraries: heard.libraries,
            flags,
        }
    }
}

/// Returns a note if the processor emulates the precision.
fn emulated(trial: &Trial, around: &Surroundings<'_>) -> Option<(String, String)> {
    let processor = around.processor.as_deref().filter(|_| {
        around.devices.is_empty()
            && matches!(trial.train.precision, Precision::AmpBf16 | Precision::Bf16)
    })?;
    let told = || {
        (
            "precision".to_owned(),
            "bf16 is emulated: this processor has no instructions for it (avx512_bf16, amx_bf16, \
             bf16)"
                .to_owned(),
        )
    };
    (!has_bf16(processor)).then(told)
}

fn lost(readings: &AttemptReadings, devices: &[LeasedGpu]) -> Option<Lost> {
    let (uuid, words) = readings.lost.as_ref()?;
    let gpu = devices.iter().find(|gpu| gpu.uuid == *uuid)?;
    Some(Lost {
        uuid: uuid.clone(),
        words: format!("GPU {} ({}) was lost (NVML: {words})", gpu.index, gpu.name),
    })
}

#[cfg(test)]
mod tests;
