//! One attempt of one trial: creates its files and process, and enforces its limits; `finish` makes
//! its row.

mod finish;
mod late_end;

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{
        ChildDevice, Origin, Outcome, TRIAL_FILE, Trial, TrialFile, child_data, child_train,
        differs_from_defaults,
    },
    record::{
        AttemptFile, Checkpoints, DEVICE_SEPARATOR, RunFolder, attempt::listed_attempts,
        checkpoint::aside, launch_folder, run_folder::TRIAL_YAML,
    },
    spec::{AfterTraining, Run, expand_home},
};
use kiln_data::source::absolute_data_folder;
use kiln_hardware::{OomKillWatch, children, host::usable_cores};
use rustix::process::Signal;

use super::{
    Event, RunRequest,
    child::{self, ChildStart, Running},
    clock,
    instruments::{AttemptWatch, LeasedGpu},
    judge::StopCause,
    limits::{AttemptTimes, Due, SignsOfLife},
    listen::ChildState,
    memory,
    programs::{self, ChildKind, TrialProgram},
    provenance::LoadedLibraries,
};
use crate::{relay, subprocess::not_started};

pub(super) use finish::{Finished, Hindrance, Lost, Surroundings, loss_rose};

/// Input of a child as JSON, beside `trial.yaml`.
const ASKED_FILE: &str = "trial.asked.json";

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
    /// Whether other launches work on the run at the same time.
    pub(super) is_among_others: bool,
    /// How that attempt ended.
    pub(super) last_outcome: Option<Outcome>,
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
    kind: ChildKind,
    folder: PathBuf,
    started: Instant,
    started_utc: String,
    run_seconds: f64,
    times: AttemptTimes,
    /// The first cause of the stop.
    stopped: Option<StopCause>,
    oom_kills: OomKillWatch,
    libraries: LoadedLibraries,
    checkpoints: Checkpoints,
    /// Whether [`Attempt::note_resumed`] has written the step.
    is_resume_noted: bool,
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
    let number = next_number(setting)?;
    let (started_utc, run_seconds) = (
        clock::utc_now(),
        clock::run_seconds(setting.run_anchor_nanoseconds),
    );
    let oom_kills = OomKillWatch::start(Path::new("/"));
    clear_checkpoints(setting)?;
    let (attempt, folder) = make_folder(setting, number)?;
    let started = start_child(setting, attempt, &folder, &started_utc, events);
    let (child, kind) = started.inspect_err(|_| {
        let _ = setting.folder.remove(&folder);
    })?;
    Ok(Attempt {
        token: setting.token,
        index,
        attempt,
        slot,
        most_concurrent: 1,
        child,
        times: AttemptTimes::new(trial.keeps_checkpoints(), kind == ChildKind::Relay),
        kind,
        folder,
        started: Instant::now(),
        started_utc,
        run_seconds,
        stopped: None,
        oom_kills,
        libraries: LoadedLibraries::new(trial),
        checkpoints: checkpoints(setting.folder, trial),
        is_resume_noted: false,
    })
}

impl Attempt {
    /// When the end of its child was seen.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.child.ended()
    }
}

/// The number of the trial's next attempt. A copy of the run may have its rows without the folders of
/// its attempts.
fn next_number(setting: &AttemptSetting) -> io::Result<u64> {
    let folders = listed_attempts(setting.folder, &setting.trial.id)?;
    Ok(folders.last().copied().unwrap_or(0).max(setting.last_row) + 1)
}

/// Lets a trial that has a result begin anew: what it trained stays aside until another attempt has
/// completed, and what diverged is deleted. Removes the unfinished checkpoints of another trial.
fn clear_checkpoints(setting: &AttemptSetting) -> io::Result<()> {
    let checkpoints = checkpoints(setting.folder, setting.trial);
    match setting.last_outcome {
        Some(Outcome::Completed) => {
            aside::set_aside(setting.folder, &setting.trial.id, setting.last_row)?;
        }
        Some(Outcome::Diverged) => checkpoints.delete()?,
        _ => {}
    }
    if setting.trial.train.checkpoint.is_some() {
        checkpoints.check_folder()?;
        // A worker that was out of reach may be writing one; they go once the trial is completed.
        if !setting.is_among_others {
            checkpoints.sweep()?;
        }
    }
    Ok(())
}

/// Makes the folder of the attempt of this number, or of the next one that is free where other launches
/// take numbers too; returns the number and the folder.
fn make_folder(setting: &AttemptSetting, mut number: u64) -> io::Result<(u64, PathBuf)> {
    loop {
        match setting.folder.make_attempt(&setting.trial.id, number) {
            // Another launch has the number, or a file server lost its reply.
            Err(error)
                if setting.is_among_others && error.kind() == io::ErrorKind::AlreadyExists =>
            {
                number += 1;
            }
            made => return Ok((number, made?)),
        }
    }
}

/// Writes the attempt's files and starts its child.
fn start_child(
    setting: &AttemptSetting,
    attempt: u64,
    folder: &Path,
    started_utc: &str,
    events: Sender<Event>,
) -> io::Result<(Running, ChildKind)> {
    let trial = setting.trial;
    let trial_file = match setting.is_among_others {
        true => folder.join(TRIAL_YAML),
        false => setting.folder.trial_file(&trial.id),
    };
    if setting.is_among_others {
        launch_folder::note_attempt(setting.folder, setting.launch, &trial.id, attempt)?;
    }
    let paths = AttemptPaths {
        folder,
        trial_file: &trial_file,
    };
    write_files(setting, attempt, paths, started_utc)?;
    if trial.saves_by_itself() {
        setting.folder.make_checkpoints(&trial.id)?;
    }
    let asked = trial_file.with_file_name(ASKED_FILE);
    let program = TrialProgram::of(setting.request, trial, &asked)?;
    let start = ChildStart {
        program: &program,
        trial_file: &trial_file,
        folder,
        visible_devices: &uuids(setting.devices).join(","),
        limit: memory::limit(setting.request.experiment.run.memory_limit, setting.devices),
        token: setting.token,
    };
    let child =
        child::start(&start, events).map_err(|error| named(&error, &program, setting.folder))?;
    Ok((child, program.kind))
}

/// The files of the training that a trial keeps.
fn checkpoints(folder: &RunFolder, trial: &Trial) -> Checkpoints {
    Checkpoints::new(folder.checkpoints(&trial.id), trial.id.clone())
}

/// Removes the checkpoints that an attempt of a trial, which has ended, was writing or deleting.
pub(super) fn sweep_drafts(folder: &RunFolder, trial: &Trial, attempt: u64) -> io::Result<()> {
    match trial.train.checkpoint {
        Some(_) => checkpoints(folder, trial).by(attempt).sweep_own(),
        None => Ok(()),
    }
}

/// Deletes what attempts of a trial with a final outcome left unfinished, and the checkpoints of a
/// completed one that are not requested. One that cannot be read now stays: it may be the best.
pub(super) fn settle_checkpoints(
    folder: &RunFolder,
    trial: &Trial,
    outcome: Outcome,
) -> io::Result<()> {
    if outcome == Outcome::Completed {
        aside::delete_aside(folder, &trial.id)?;
    }
    let Some(policy) = &trial.train.checkpoint else {
        return Ok(());
    };
    let checkpoints = checkpoints(folder, trial);
    checkpoints.sweep()?;
    if outcome != Outcome::Completed {
        return Ok(());
    }
    match policy.after {
        AfterTraining::Delete => checkpoints.delete(),
        after if after.keeps_best() => checkpoints.keep_result(),
        _ => checkpoints.keep(1, false),
    }
}

/// Names what cannot be started: the relay is this very program, whose path says nothing.
fn named(error: &io::Error, program: &TrialProgram, run: &RunFolder) -> io::Error {
    let what = match program.kind.is_relay() {
        true => format!("{}: kiln's relay", run.path().display()),
        false => program.path.display().to_string(),
    };
    let why = not_started(error);
    io::Error::new(error.kind(), format!("{what} cannot be started: {why}"))
}

/// Where an attempt finds its files.
#[derive(Clone, Copy)]
struct AttemptPaths<'a> {
    folder: &'a Path,
    /// The child's input.
    trial_file: &'a Path,
}

fn write_files(
    setting: &AttemptSetting,
    attempt: u64,
    paths: AttemptPaths<'_>,
    started_utc: &str,
) -> io::Result<()> {
    let (trial, path) = (setting.trial, paths.trial_file);
    let file = trial_file(setting, trial, attempt, paths.folder);
    let started = AttemptFile {
        trial: trial.id.clone(),
        attempt,
        launch: setting.launch,
        started_utc: started_utc.to_owned(),
        device: if setting.devices.is_empty() {
            "cpu".to_owned()
        } else {
            uuids(setting.devices).join(DEVICE_SEPARATOR)
        },
        steps: trial.steps,
        argv: command_line(setting.request, trial, &file, path),
        resumed_at_step: None,
    };
    started.write(setting.folder)?;
    if programs::reads_json(setting.request, trial) {
        let text = asked_json(&file, trial)?;
        setting
            .folder
            .write(&path.with_file_name(ASKED_FILE), text.as_bytes())?;
    }
    let text = serde_yaml::to_string(&file).map_err(io::Error::other)?;
    setting.folder.write(path, text.as_bytes())
}

/// The command line of a trial's program; empty for `kiln-trial`.
fn command_line(request: &RunRequest, trial: &Trial, file: &TrialFile, path: &Path) -> Vec<String> {
    if let Some(command) = trial.model.command() {
        return command.expand(&relay::placeholders(file, path)).argv;
    }
    let Some(engine) = programs::engine(request, trial) else {
        return Vec::new();
    };
    let mut argv = engine.argv.clone();
    argv.push(path.to_string_lossy().into_owned());
    argv
}

/// The trial as JSON for an engine of one's own, with the keys that it has to know.
fn asked_json(file: &TrialFile, trial: &Trial) -> io::Result<String> {
    let differing = differs_from_defaults(&trial.model, &trial.data, &trial.train)?;
    let mut asked = serde_json::to_value(file)?;
    asked["differs_from_defaults"] = differing.into();
    Ok(serde_json::to_string_pretty(&asked)? + "\n")
}

fn uuids(devices: &[LeasedGpu]) -> Vec<&str> {
    devices.iter().map(|gpu| gpu.uuid.as_str()).collect()
}

/// Returns the child's input: `auto` values are resolved, and every path is absolute.
fn trial_file(setting: &AttemptSetting, trial: &Trial, attempt: u64, folder: &Path) -> TrialFile {
    let cores = usable_cores();
    let directory = std::env::current_dir().unwrap_or_default();
    TrialFile {
        kiln_trial: TRIAL_FILE,
        trial: trial.id.clone(),
        attempt,
        model: (*trial.model).clone(),
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
        data_folder: absolute_data_folder(),
        folder: folder.to_owned(),
        checkpoint_folder: trial
            .keeps_checkpoints()
            .then(|| setting.folder.checkpoints(&trial.id)),
        origin: trial.origin.as_ref().map(|origin| Origin {
            run: directory.join(expand_home(&origin.run.to_string_lossy())),
            ..origin.clone()
        }),
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
            is_relay: self.kind.is_relay(),
            device_uuids,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notices a control group that the trial's program has moved to.
    pub(super) fn follow_memory_group(&mut self) {
        let child = self.child.pid();
        let below = self
            .kind
            .is_relay()
            .then(|| children(child).first().copied());
        self.oom_kills.follow(below.flatten().unwrap_or(child));
    }

    /// Looks which libraries a program has loaded, where that is due at a tick.
    pub(super) fn follow_libraries(&mut self) {
        let age = self.started.elapsed();
        self.libraries.at_tick(self.child.pid(), age);
    }

    /// The measured window begins or ends.
    pub(super) fn mark_window(&mut self) {
        self.libraries.at_window(self.child.pid());
    }

    /// Whether the child has said how the trial ended.
    pub(super) fn has_finished(&self) -> bool {
        self.child.ear.heard().finished.is_some()
    }

    /// Stops the child's process group with SIGTERM; the first cause counts.
    pub(super) fn stop(&mut self, cause: StopCause) {
        if self.stopped.is_none() {
            self.stopped = Some(cause);
            self.child.signal(Signal::TERM);
        }
    }

    /// From SIGTERM to SIGKILL passes no more than this.
    pub(super) fn shorten_grace(&mut self, most: Duration) {
        self.times.shorten_grace(most);
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
            // The program has had its own SIGTERM; a second one is for the relay alone.
            Some(Due::EndProgram) => self.child.signal_itself(Signal::TERM),
            Some(Due::Kill) => self.child.signal(Signal::KILL),
            None => {}
        }
    }

    /// Writes the step after which the trial resumed into the file of its start, once the child has said
    /// it: kiln may be killed before it writes the row.
    pub(super) fn note_resumed(&mut self, run: &RunFolder, step: Option<u64>) {
        if step.is_none() || self.is_resume_noted {
            return;
        }
        self.is_resume_noted = true;
        // Without it only the row of a killed launch lacks the step.
        if let Ok(Some(started)) = AttemptFile::read(&self.folder) {
            let resumed = AttemptFile {
                resumed_at_step: step,
                ..started
            };
            let _ = resumed.write(run);
        }
    }

    /// Says once that the child has built another model than the planned one.
    pub(super) fn other_model(&self, trial: &Trial) -> Option<String> {
        self.child.ear.heard().other_model(trial)
    }

    /// Returns the state that the child reported, and its notices since the last call.
    pub(super) fn look(&self) -> (ChildState, Vec<String>) {
        let mut heard = self.child.ear.heard();
        let notices = std::mem::take(&mut heard.notices);
        (heard.clone(), notices)
    }
}

#[cfg(test)]
mod tests;
