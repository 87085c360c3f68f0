//! The state of a run, from its files.

use std::{
    collections::{HashMap, HashSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::Instant,
};

use kiln_core::{
    input,
    limits::RESOLVED_BYTES,
    plan::{Outcome, TrialId},
    record::{
        RunFile, RunFolder, TicketQueue, TicketState,
        attempt::attempts,
        command_line::{Resume, resuming},
        launch_folder,
        trials::is_axis,
    },
    spec,
};
use serde_json::Value;

use super::{
    attempt::AttemptFollower,
    curve::Curve,
    launch_tables::LaunchTables,
    life::{Life, LifeWatch},
    table::{GrownRow, RowSink},
};
use crate::progress::{
    names::NamedSettings,
    pace::Costs,
    time_left::{TimeLeft, TrialSize, rough},
};

/// Bytes at the end of `samples.csv` that are read at first: some minutes of a few devices.
const NEWEST_SAMPLES: u64 = 256 << 10;
/// Most trials whose last readings are kept.
const MOST_READ: usize = 1000;

/// The state of a run.
#[derive(Clone, Debug)]
pub struct RunState {
    /// The run's folder, as it was named.
    pub folder: PathBuf,
    pub life: Life,
    /// Number of the last launch; `None` if none is recorded.
    pub launch: Option<u64>,
    /// Numbers of planned trials, of those with a final outcome, and of these without a result.
    pub trials: usize,
    pub done: usize,
    pub failed: usize,
    /// Whether a search may plan more.
    pub is_searching: bool,
    pub running: Vec<RunningTrial>,
    /// `3 min 10 s`; `None` if unknown.
    pub time_left: Option<String>,
    /// How it is resumed; `None` while it goes on, if nothing is left, or if a newer run is there.
    pub resume: Option<Resume>,
    /// Why `run.json` cannot be read.
    pub problem: Option<String>,
}

/// A trial that runs, or ran when the run was killed.
#[derive(Clone, Debug)]
pub struct RunningTrial {
    /// Its parameters.
    pub name: String,
    pub id: TrialId,
    pub attempt: u64,
    pub step: Option<u64>,
    pub total_steps: Option<u64>,
    pub losses: Curve,
    pub loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub data_wait_fraction: Option<f64>,
    /// The last readings of each of its devices.
    pub readings: Vec<DeviceReadings>,
}

/// The last row of `samples.csv` for a trial and a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReadings {
    /// UUID of the GPU, or `cpu`.
    pub device: String,
    pub gpu_utilization: Option<f64>,
    pub sm_active: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub cpu_cores: Option<f64>,
    pub host_cpu_fraction: Option<f64>,
    /// Why the device has no readings.
    pub absence: Option<String>,
}

/// Reads a run's files again and again.
#[derive(Debug)]
pub struct RunFollower {
    folder: RunFolder,
    file: RecordFollower,
    /// Whether points have several seeds, and the steps of a trial that has no own.
    settings: Value,
    trials_table: LaunchTables,
    trials: EndedTrials,
    samples_table: LaunchTables,
    samples: Samples,
    /// The trials with a folder, and the state of their folder when they were listed.
    started: (Option<FileMark>, Vec<TrialId>),
    running: Vec<AttemptFollower>,
    life: LifeWatch,
    time: TimeLeft,
    clock: RunClock,
}

/// Attributes that change when a file is written.
type FileMark = (u64, u64, i64, i64);

fn mark(path: &std::path::Path) -> Option<FileMark> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

/// `run.json`, read when it changes.
#[derive(Debug, Default)]
struct RecordFollower {
    mark: Option<FileMark>,
    file: Option<RunFile>,
    problem: Option<String>,
}

impl RecordFollower {
    /// Returns whether it has changed.
    fn read(&mut self, run: &RunFolder) -> bool {
        let path = run.run_file();
        let found = mark(&path);
        if found.is_some() && found == self.mark {
            return false;
        }
        self.mark = found;
        match RunFile::read(&path) {
            Ok(file) => (self.file, self.problem) = (Some(file), None),
            Err(problem) => self.problem = Some(problem),
        }
        true
    }
}

/// The clock of `run_seconds`, by the newest row that was read.
#[derive(Debug)]
struct RunClock {
    newest: f64,
    read: Instant,
}

impl RunClock {
    fn hear(&mut self, run_seconds: Option<f64>) {
        if let Some(seconds) = run_seconds.filter(|seconds| *seconds > self.newest) {
            (self.newest, self.read) = (seconds, Instant::now());
        }
    }

    fn now(&self) -> f64 {
        self.newest + self.read.elapsed().as_secs_f64()
    }
}

/// The rows of `trials.csv`.
#[derive(Debug, Default)]
struct EndedTrials {
    /// Attempt and outcome of each trial's last row.
    last: HashMap<TrialId, (u64, Outcome)>,
    /// Durations of the completed trials, until they are taken.
    costs: Vec<(TrialSize, Costs)>,
}

impl RowSink for EndedTrials {
    fn restart(&mut self) {
        self.last.clear();
    }

    fn row(&mut self, row: &GrownRow<'_>) {
        let outcome = row.text("outcome").and_then(Outcome::named);
        let (Some(trial), Some(outcome)) = (row.text("trial"), outcome) else {
            return;
        };
        let attempt = row.value("attempt").unwrap_or(1);
        let trial = TrialId(trial.to_owned());
        let last = self.last.entry(trial).or_insert((attempt, outcome));
        if attempt >= last.0 {
            *last = (attempt, outcome);
        }
        if outcome == Outcome::Completed {
            self.costs.extend(costs(row));
        }
    }
}

/// Durations of a completed trial; `None` if its row does not have them.
fn costs(row: &GrownRow<'_>) -> Option<(TrialSize, Costs)> {
    let steps: u64 = row.value("steps").filter(|steps| *steps > 0)?;
    let whole = row.number("trial_seconds")?;
    let evaluation = row.number("evaluation_seconds").unwrap_or(0.0);
    let measured = || {
        let counted = steps.checked_sub(row.value("left_out_steps")?)?;
        (counted > 0).then_some(row.number("window_seconds")? / counted as f64)
    };
    let step_seconds = measured().unwrap_or((whole - evaluation).max(0.0) / steps as f64);
    let training = steps as f64 * step_seconds;
    let axes = row.axes();
    let size = TrialSize {
        steps: Some(steps),
        work: None,
        point: point(&axes),
    };
    let costs = Costs {
        step_seconds,
        evaluation_seconds: evaluation / steps as f64,
        preparation_seconds: (whole - training - evaluation).max(0.0),
    };
    Some((size, costs))
}

/// A number that the trials of a point share.
fn point(axes: &[(String, String)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    axes.hash(&mut hasher);
    hasher.finish()
}

/// The newest rows of `samples.csv`.
#[derive(Debug, Default)]
struct Samples {
    /// The last readings of each attempt, one for each device.
    newest: HashMap<(TrialId, u64), Vec<DeviceReadings>>,
    run_seconds: Option<f64>,
}

impl RowSink for Samples {
    fn restart(&mut self) {
        *self = Self::default();
    }

    fn row(&mut self, row: &GrownRow<'_>) {
        let (Some(trial), Some(attempt)) = (row.text("trial"), row.value("attempt")) else {
            return;
        };
        self.run_seconds = row.number("run_seconds").or(self.run_seconds);
        if self.newest.len() >= MOST_READ {
            self.newest.clear();
        }
        let key = (TrialId(trial.to_owned()), attempt);
        let devices = self.newest.entry(key).or_default();
        let found = DeviceReadings {
            device: row.text("device").unwrap_or_default().to_owned(),
            gpu_utilization: row.number("gpu_utilization"),
            sm_active: row.number("sm_active"),
            memory_used_bytes: row.value("memory_used_bytes"),
            power_watts: row.number("power_watts"),
            temperature_celsius: row.number("temperature_celsius"),
            resident_bytes: row.value("resident_bytes"),
            cpu_cores: row.number("cpu_cores"),
            host_cpu_fraction: row.number("host_cpu_fraction"),
            absence: row.text("device_absence").map(str::to_owned),
        };
        match devices
            .iter_mut()
            .find(|known| known.device == found.device)
        {
            Some(known) => *known = found,
            None => devices.push(found),
        }
    }
}

impl RunFollower {
    /// Nothing is read yet.
    pub fn new(folder: RunFolder) -> Self {
        Self {
            file: RecordFollower::default(),
            settings: Value::Null,
            trials_table: LaunchTables::new(folder.clone(), RunFolder::trials_table, None),
            trials: EndedTrials::default(),
            samples_table: LaunchTables::new(
                folder.clone(),
                RunFolder::samples_table,
                Some(NEWEST_SAMPLES),
            ),
            samples: Samples::default(),
            started: (None, Vec::new()),
            running: Vec::new(),
            life: LifeWatch::new(&folder),
            time: TimeLeft::default(),
            clock: RunClock {
                newest: f64::NEG_INFINITY,
                read: Instant::now(),
            },
            folder,
        }
    }

    /// Reads what is new, and returns the state of the run.
    pub fn look(&mut self) -> RunState {
        let is_new = self.file.read(&self.folder);
        if is_new && let Ok(text) = input::read_text(&self.folder.experiment(), &RESOLVED_BYTES) {
            self.settings = spec::read_yaml(&text).unwrap_or_default();
        }
        let mut has_grown = self.trials_table.read(&mut self.trials) || is_new;
        has_grown |= self.samples_table.read(&mut self.samples);
        self.find_running();
        for attempt in &mut self.running {
            has_grown |= attempt.read();
        }
        self.clock.hear(self.samples.run_seconds);
        for attempt in &self.running {
            self.clock.hear(attempt.steps.last.map(|(at, _)| at));
        }
        let launch = self
            .file
            .file
            .as_ref()
            .and_then(|file| file.launches.last());
        let life = self.life.look(launch, has_grown);
        self.state(life)
    }

    fn state(&mut self, life: Life) -> RunState {
        let file = self.file.file.as_ref();
        let outcomes = file.into_iter().flat_map(|file| &file.plan);
        let ended: Vec<Outcome> = outcomes
            .filter_map(|trial| self.trials.last.get(trial))
            .map(|(_, outcome)| *outcome)
            .filter(|outcome| outcome.is_final())
            .collect();
        let trials = file.map_or(0, |file| file.plan.len());
        let is_searching = file.is_some_and(|file| file.is_searching);
        let launch = file
            .and_then(|file| file.launches.last())
            .map(|launch| launch.launch);
        let launch = launch_folder::launches(&self.folder)
            .last()
            .copied()
            .max(launch);
        let goes_on = life.goes_on();
        let running: Vec<RunningTrial> = self
            .running
            .iter()
            .map(|attempt| self.trial(attempt))
            .collect();
        let waiting = trials.saturating_sub(ended.len() + running.len());
        let time_left = if goes_on && !is_searching {
            self.time_left(waiting)
        } else {
            None
        };
        let is_left = !goes_on && (ended.len() < trials || is_searching);
        let resume = self.file.file.as_ref().filter(|_| is_left);
        let resume = resume.and_then(|file| resuming(file, &self.folder));
        RunState {
            folder: self.folder.path().to_owned(),
            life,
            launch,
            trials,
            done: ended.len(),
            failed: ended.iter().filter(|outcome| !outcome.is_result()).count(),
            is_searching,
            running,
            time_left,
            resume,
            problem: self.file.problem.clone(),
        }
    }

    fn time_left(&mut self, waiting: usize) -> Option<String> {
        for (size, costs) in self.trials.costs.drain(..) {
            self.time.learn(size, costs);
        }
        let running = self.running.iter().map(|attempt| {
            let size = TrialSize {
                steps: attempt.total_steps(),
                work: None,
                point: point(&self.axes(attempt)),
            };
            (attempt.file.trial.clone(), size, attempt.pace())
        });
        let running: Vec<_> = running.collect();
        // The waiting trials' own settings are in no file; they are like the others of this run.
        let steps = self
            .settings
            .pointer("/train/steps")
            .and_then(Value::as_u64);
        let of_running = running.first().and_then(|(_, size, _)| size.steps);
        let alike = TrialSize {
            steps: steps.or(of_running),
            work: None,
            point: u64::MAX,
        };
        self.time.set(running, waiting, alike);
        let left = self.time.left(self.clock.now())?;
        Some(rough(left))
    }

    fn trial(&self, attempt: &AttemptFollower) -> RunningTrial {
        let key = (attempt.file.trial.clone(), attempt.file.attempt);
        RunningTrial {
            name: self.name(attempt),
            id: attempt.file.trial.clone(),
            attempt: attempt.file.attempt,
            step: attempt.steps.last.map(|(_, step)| step),
            total_steps: attempt.total_steps(),
            losses: attempt.steps.losses.clone(),
            loss: attempt.steps.loss,
            valid_loss: attempt.evaluations.valid_loss,
            samples_per_second: attempt.samples_per_second(),
            data_wait_fraction: attempt.steps.data_wait_fraction(),
            readings: self.samples.newest.get(&key).cloned().unwrap_or_default(),
        }
    }

    /// Key and value of each axis, in file order.
    fn axes(&self, attempt: &AttemptFollower) -> Vec<(String, String)> {
        let keys = self.trials_table.header().iter();
        keys.filter(|column| is_axis(column))
            .filter_map(|key| Some((key.clone(), attempt.axis(key)?)))
            .collect()
    }

    fn name(&self, attempt: &AttemptFollower) -> String {
        let repeats = self.settings.pointer("/sweep/repeats");
        match attempt.seed() {
            Some(seed) => NamedSettings {
                axes: &self.axes(attempt),
                seed,
                is_repeated: repeats
                    .and_then(Value::as_u64)
                    .is_some_and(|number| number > 1),
            }
            .name(),
            None => format!("trial {}", attempt.file.trial),
        }
    }

    /// Finds the attempts of the last launch that have no row yet.
    fn find_running(&mut self) {
        let last = &self.trials.last;
        let has_row = |trial: &TrialId, attempt: u64| {
            last.get(trial).is_some_and(|(ended, _)| attempt <= *ended)
        };
        self.running
            .retain(|known| !has_row(&known.file.trial, known.file.attempt));
        let launch = self
            .file
            .file
            .as_ref()
            .and_then(|file| file.launches.last());
        let Some(launch) = launch.map(|launch| launch.launch) else {
            return;
        };
        let at_work = at_work(&self.folder, launch);
        self.running
            .retain(|known| at_work.contains(&known.file.launch));
        let folder = mark(&self.folder.trials());
        if folder != self.started.0 || folder.is_none() {
            self.started = (folder, started(&self.folder));
        }
        // A trial that runs again has a row of its attempt before; the samples name it.
        let sampled = self.samples.newest.keys();
        let sampled = sampled.filter(|(trial, attempt)| !has_row(trial, *attempt));
        let new = self
            .started
            .1
            .iter()
            .filter(|trial| !last.contains_key(trial));
        let candidates: HashSet<&TrialId> = new.chain(sampled.map(|(trial, _)| trial)).collect();
        let mut found = Vec::new();
        for trial in candidates {
            let Some(attempt) = attempts(&self.folder, trial).pop() else {
                continue;
            };
            let is_known = |known: &AttemptFollower| {
                known.file.trial == *trial && known.file.attempt == attempt
            };
            if has_row(trial, attempt) || self.running.iter().any(is_known) {
                continue;
            }
            let opened = AttemptFollower::open(&self.folder, trial, attempt);
            found.extend(opened.filter(|opened| at_work.contains(&opened.file.launch)));
        }
        // A newer attempt of a trial takes the place of the one before.
        for opened in found {
            self.running
                .retain(|known| known.file.trial != opened.file.trial);
            self.running.push(opened);
        }
        self.running
            .sort_by(|one, other| one.file.started_utc.cmp(&other.file.started_utc));
    }
}

/// The launches that may run trials: the last one, or those that have tickets of the run's queue.
fn at_work(run: &RunFolder, last: u64) -> HashSet<u64> {
    let Ok(Some(queue)) = TicketQueue::of(run) else {
        return HashSet::from([last]);
    };
    let tickets = queue.list().unwrap_or_default();
    let taken = tickets.iter().filter_map(|ticket| match ticket.state {
        TicketState::Taken(launch) => Some(launch),
        _ => None,
    });
    taken.collect()
}

/// The trials that have a folder.
fn started(run: &RunFolder) -> Vec<TrialId> {
    let entries = fs::read_dir(run.trials()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .map(TrialId)
        .collect()
}
