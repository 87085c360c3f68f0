//! One attempt that runs: its settings, its steps and its evaluations.

use std::{collections::VecDeque, path::Path};

use kiln_core::{
    input,
    limits::STATE_BYTES,
    plan::{TrialId, show},
    record::{AttemptFile, RunFolder},
    spec,
};
use serde_json::Value;

use super::{
    curve::Curve,
    table::{GrowingTable, GrownRow, RowSink},
};
use crate::progress::pace::Pace;

/// The newest steps whose rate is told: at most so many, and at most so long.
const RECENT_STEPS: usize = 200;
const RECENT_SECONDS: f64 = 10.0;

/// An attempt and what has been read of it.
#[derive(Debug)]
pub(super) struct AttemptFollower {
    pub(super) file: AttemptFile,
    settings: Value,
    steps_table: GrowingTable,
    epochs_table: GrowingTable,
    pub(super) steps: Steps,
    pub(super) evaluations: Evaluations,
}

/// The steps so far.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) losses: Curve,
    pub(super) loss: Option<f64>,
    /// Duration and data wait of the newest steps.
    recent: VecDeque<(f64, f64)>,
    /// About the sum of these durations.
    recent_sum: f64,
    /// The first step of this attempt, and the last: `run_seconds` and number.
    first: Option<(f64, u64)>,
    pub(super) last: Option<(f64, u64)>,
}

/// The evaluations so far.
#[derive(Debug, Default)]
pub(super) struct Evaluations {
    pub(super) valid_loss: Option<f64>,
    /// Step and duration of each of the newest two.
    newest: VecDeque<(u64, f64)>,
    /// Duration of all.
    seconds: f64,
}

impl AttemptFollower {
    /// `None` if its files are not written yet.
    pub(super) fn open(run: &RunFolder, trial: &TrialId, attempt: u64) -> Option<Self> {
        let folder = run.attempt(trial, attempt);
        Some(Self {
            file: AttemptFile::read(&folder).ok().flatten()?,
            settings: settings(&run.trial_file(trial)).unwrap_or_default(),
            steps_table: GrowingTable::new(folder.join("steps.csv")),
            epochs_table: GrowingTable::new(folder.join("epochs.csv")),
            steps: Steps::default(),
            evaluations: Evaluations::default(),
        })
    }

    /// Reads what is new; returns whether anything is.
    pub(super) fn read(&mut self) -> bool {
        let has_steps = self.steps_table.read(&mut self.steps);
        self.epochs_table.read(&mut self.evaluations) || has_steps
    }

    /// Planned steps; `None` if unknown.
    pub(super) fn total_steps(&self) -> Option<u64> {
        let of_train = || self.number("/train/steps");
        self.file.steps.or_else(of_train)
    }

    pub(super) fn seed(&self) -> Option<u64> {
        self.number("/train/seed")
    }

    /// Samples per second of the newest steps.
    pub(super) fn samples_per_second(&self) -> Option<f64> {
        let per_step = self.number("/train/batch_size")?
            * self.number("/train/grad_accumulation").unwrap_or(1)
            * self.number("/devices_per_trial").unwrap_or(1);
        let (seconds, _) = self.steps.recent_seconds()?;
        Some(per_step as f64 * self.steps.recent.len() as f64 / seconds)
    }

    /// The value of an axis, as its column in `trials.csv` shows it.
    pub(super) fn axis(&self, key: &str) -> Option<String> {
        match key {
            "run.devices" => return Some(self.file.device.clone()),
            "run.engine" => return self.settings.get("engine").map(show),
            "run.devices_per_trial" => {
                return Some(self.number("/devices_per_trial").unwrap_or(1).to_string());
            }
            _ => {}
        }
        let pointer = format!("/{}", key.replace('.', "/"));
        self.settings.pointer(&pointer).map(show)
    }

    /// Its pace, on the clock of `run_seconds`.
    pub(super) fn pace(&self) -> Pace {
        let began = self.steps.first.map_or(0.0, |(at, _)| at);
        let mut pace = Pace::new(began, self.total_steps());
        if let Some((at, step)) = self.steps.first {
            pace.stepped(at, step);
        }
        for (step, seconds) in &self.evaluations.newest {
            pace.evaluated(*step, *seconds);
        }
        let earlier = self.evaluations.seconds - self.evaluations.newest_seconds();
        pace.exclude(earlier);
        if let Some((at, step)) = self.steps.last {
            pace.stepped(at, step);
        }
        pace
    }

    fn number(&self, pointer: &str) -> Option<u64> {
        self.settings.pointer(pointer)?.as_u64()
    }
}

fn settings(file: &Path) -> Option<Value> {
    let text = input::read_text(file, &STATE_BYTES).ok()?;
    spec::read_yaml(&text).ok()
}

impl Steps {
    /// Duration and data wait of the newest steps.
    fn recent_seconds(&self) -> Option<(f64, f64)> {
        let seconds: f64 = self.recent.iter().map(|(seconds, _)| seconds).sum();
        let waits: f64 = self.recent.iter().map(|(_, wait)| wait).sum();
        (seconds > 0.0).then_some((seconds, waits))
    }

    /// The part of the newest steps in which the trainer waited for data.
    pub(super) fn data_wait_fraction(&self) -> Option<f64> {
        let (seconds, waits) = self.recent_seconds()?;
        Some((waits / seconds).min(1.0))
    }
}

impl RowSink for Steps {
    fn restart(&mut self) {
        *self = Self::default();
    }

    fn row(&mut self, row: &GrownRow<'_>) {
        let (Some(at), Some(step)) = (row.number("run_seconds"), row.value("step")) else {
            return;
        };
        self.first.get_or_insert((at, step));
        self.last = Some((at, step));
        if let Some(loss) = row.number("loss") {
            self.losses.push(loss);
            self.loss = Some(loss);
        }
        let Some(seconds) = row.number("step_seconds").filter(|seconds| *seconds > 0.0) else {
            return;
        };
        let wait = row.number("data_wait_seconds").unwrap_or(0.0);
        self.recent.push_back((seconds, wait));
        self.recent_sum += seconds;
        while self.recent.len() > RECENT_STEPS
            || (self.recent_sum > RECENT_SECONDS && self.recent.len() > 1)
        {
            let oldest = self.recent.pop_front();
            self.recent_sum -= oldest.map_or(0.0, |(seconds, _)| seconds);
        }
    }
}

impl Evaluations {
    fn newest_seconds(&self) -> f64 {
        self.newest.iter().map(|(_, seconds)| seconds).sum()
    }
}

impl RowSink for Evaluations {
    fn restart(&mut self) {
        *self = Self::default();
    }

    fn row(&mut self, row: &GrownRow<'_>) {
        self.valid_loss = row.number("valid_loss").or(self.valid_loss);
        let (Some(step), Some(seconds)) = (row.value("step"), row.number("evaluation_seconds"))
        else {
            return;
        };
        self.seconds += seconds;
        self.newest.push_back((step, seconds));
        if self.newest.len() > 2 {
            self.newest.pop_front();
        }
    }
}
