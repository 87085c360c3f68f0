//! The time that a trial will probably take, from the rows of completed trials like it. Pure.
//!
//! Trials with other settings give no estimate, except by the number of steps: their steps cost the
//! same.

use std::{collections::HashMap, time::Duration};

use kiln_core::{
    plan::{TrainingLength, Trial, TrialId},
    record::TrialRow,
    spec::{EvaluateEvery, EvaluateMoment},
};

/// A trial may take so much longer than the longest one like it.
const MARGIN: f64 = 1.2;

/// The time to have left before trials begin, of which the longest ones like them took `seconds`.
/// `None` if it is not a duration.
pub(super) fn with_margin(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds * MARGIN).ok()
}

/// The trials that an estimate is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateGrade {
    /// They have the same settings but for the seed.
    AsBefore,
    /// They have another number of steps.
    BySteps,
}

impl EstimateGrade {
    /// In words, for people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsBefore => "as before",
            Self::BySteps => "by steps",
        }
    }
}

/// Seconds that a trial will probably take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeEstimate {
    pub grade: EstimateGrade,
    pub lowest: f64,
    pub median: f64,
    pub highest: f64,
}

impl TimeEstimate {
    /// By `times` of trials that differ in length and seed alone.
    pub fn of(trial: &Trial, times: &[TrialTime]) -> Option<Self> {
        let alike = times.iter().filter(|time| time.length == trial.length());
        let as_before = alike.map(|time| time.seconds).collect();
        let as_before = Self::among(EstimateGrade::AsBefore, as_before);
        // A continued training makes only some of its steps.
        if as_before.is_some() || trial.origin.is_some() || trial.train.early_stop.is_some() {
            return as_before;
        }
        let steps = trial.steps?;
        let by_steps = times.iter().filter_map(|time| time.parts);
        let by_steps = by_steps.filter_map(|parts| parts.seconds(trial, steps));
        Self::among(EstimateGrade::BySteps, by_steps.collect())
    }

    fn among(grade: EstimateGrade, mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.len() / 2;
        let upper = *seconds.get(middle)?;
        Some(Self {
            grade,
            lowest: *seconds.first()?,
            median: match seconds.len() % 2 {
                0 => f64::midpoint(seconds[middle - 1], upper),
                _ => upper,
            },
            highest: *seconds.last()?,
        })
    }
}

/// The time of one completed trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialTime {
    length: TrainingLength,
    seconds: f64,
    parts: Option<TimeParts>,
}

impl TrialTime {
    /// `None` if the row has not the time of a whole trial: it did not complete, or was resumed.
    pub fn of(length: TrainingLength, row: &TrialRow) -> Option<Self> {
        if !row.is_completed() {
            return None;
        }
        let seconds = row.whole_seconds()?;
        Some(Self {
            length,
            seconds,
            parts: TimeParts::of(seconds, row),
        })
    }
}

/// Number of steps of one pass over the training data, by the rates of a row. `None` without them.
pub fn steps_per_epoch(row: &TrialRow) -> Option<u64> {
    let steps = row.epoch_seconds? / step_seconds(row)?;
    (steps >= 0.5).then(|| steps.round() as u64)
}

/// Mean duration of a step in the window.
fn step_seconds(row: &TrialRow) -> Option<f64> {
    let in_window = row.steps?.checked_sub(row.left_out_steps?)?;
    let seconds = row.window_seconds? / in_window as f64;
    (seconds.is_finite() && seconds > 0.0).then_some(seconds)
}

/// The parts of the time of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimeParts {
    steps: u64,
    left_out_steps: u64,
    step_seconds: f64,
    steps_per_epoch: Option<u64>,
    evaluation_seconds: f64,
    checkpoint_seconds: f64,
    /// Start, steps before the window, and end.
    other_seconds: f64,
}

impl TimeParts {
    fn of(seconds: f64, row: &TrialRow) -> Option<Self> {
        let evaluation_seconds = row.evaluation_seconds.unwrap_or_default();
        let checkpoint_seconds = row.checkpoint_seconds.unwrap_or_default();
        let other = seconds - row.window_seconds? - evaluation_seconds - checkpoint_seconds;
        Some(Self {
            steps: row.steps?,
            left_out_steps: row.left_out_steps?,
            step_seconds: step_seconds(row)?,
            steps_per_epoch: steps_per_epoch(row),
            evaluation_seconds,
            checkpoint_seconds,
            other_seconds: other.max(0.0),
        })
    }

    /// Seconds of a trial with so many steps. `None` if its evaluations cannot be counted.
    fn seconds(&self, trial: &Trial, steps: u64) -> Option<f64> {
        let in_window = steps.saturating_sub(self.left_out_steps) as f64;
        let evaluations = match trial.train.evaluate.every {
            EvaluateEvery::Moment(EvaluateMoment::End) => 1.0,
            EvaluateEvery::Moment(EvaluateMoment::Epoch) => {
                self.times(steps, self.steps_per_epoch?)
            }
            EvaluateEvery::Steps(each) => self.times(steps, each),
        };
        let checkpoint = trial.train.checkpoint.as_ref();
        let checkpoints = checkpoint.map_or(1.0, |own| self.times(steps, own.every_steps));
        Some(
            self.other_seconds
                + in_window * self.step_seconds
                + evaluations * self.evaluation_seconds
                + checkpoints * self.checkpoint_seconds,
        )
    }

    /// How many times as often something happens that happens every `each` steps and at the end.
    fn times(&self, steps: u64, each: u64) -> f64 {
        let count = |steps: u64| steps.div_ceil(each.max(1)).max(1) as f64;
        count(steps) / count(self.steps)
    }
}

/// The times of completed trials, by what they have in common but for length and seed.
#[derive(Clone, Debug, Default)]
pub struct KnownTimes {
    times: HashMap<TrialId, Vec<TrialTime>>,
    /// The id that stands for the trials like one, by its point and its batch: a stand-in of a trial
    /// that ran out of memory has the same point.
    alike: HashMap<(u64, u64), Option<TrialId>>,
}

impl KnownTimes {
    /// Adds times of trials that differ from this one in length and seed alone.
    pub fn add(&mut self, trial: &Trial, times: impl IntoIterator<Item = TrialTime>) {
        let mut times = times.into_iter().peekable();
        if times.peek().is_some()
            && let Some(alike) = self.alike(trial)
        {
            self.times.entry(alike).or_default().extend(times);
        }
    }

    /// A trial has ended.
    pub(super) fn learn(&mut self, trial: &Trial, row: &TrialRow) {
        self.add(trial, TrialTime::of(trial.length(), row));
    }

    /// `None` if no trial like it has completed.
    pub fn estimate(&mut self, trial: &Trial) -> Option<TimeEstimate> {
        if self.times.is_empty() {
            return None;
        }
        let alike = self.alike(trial)?;
        TimeEstimate::of(trial, self.times.get(&alike)?)
    }

    fn alike(&mut self, trial: &Trial) -> Option<TrialId> {
        let settings = (trial.point, trial.train.batch_size);
        let make = || trial.id_with(TrainingLength::default(), 0);
        self.alike.entry(settings).or_insert_with(make).clone()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kiln_core::{plan::Outcome, spec::Experiment};

    use super::*;

    pub(in crate::schedule) fn trials(train: &str, sweep: &str) -> Vec<Trial> {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp}}, data: {{kind: generated}}, train: \
             {{{train}}}, sweep: {{{sweep}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        kiln_core::plan::expand(&experiment, &|_| None)
            .unwrap()
            .trials
    }

    /// 100 steps, of which 90 took 0.1 s each; 2 s for its evaluations, and 4 s for all else.
    fn row() -> TrialRow {
        TrialRow {
            outcome: Outcome::Completed,
            trial_seconds: Some(15.0),
            steps: Some(100),
            left_out_steps: Some(10),
            window_seconds: Some(9.0),
            evaluation_seconds: Some(2.0),
            // 50 steps.
            epoch_seconds: Some(5.0),
            ..TrialRow::default()
        }
    }

    fn estimate(train: &str, rows: &[(u64, TrialRow)]) -> Option<(&'static str, [f64; 3])> {
        let of = |steps: u64, row: &TrialRow| {
            let length = TrainingLength {
                steps: Some(steps),
                epochs: None,
            };
            TrialTime::of(length, row)
        };
        let times: Vec<TrialTime> = rows
            .iter()
            .filter_map(|(steps, row)| of(*steps, row))
            .collect();
        let trial = Trial {
            steps: Some(200),
            ..trials(train, "").remove(0)
        };
        let found = TimeEstimate::of(&trial, &times)?;
        let tenths = [found.lowest, found.median, found.highest].map(|s| (s * 10.0).round() / 10.0);
        Some((found.grade.name(), tenths))
    }

    #[test]
    fn equal_settings_give_what_they_took_with_its_range() {
        let took = |seconds: f64| {
            let row = TrialRow {
                trial_seconds: Some(seconds),
                ..row()
            };
            (200, row)
        };
        let rows = [took(30.0), took(10.0), took(12.0), (100, row())];
        let found = estimate("steps: 200", &rows);
        assert_eq!(found, Some(("as before", [10.0, 12.0, 30.0])));
    }

    #[test]
    fn another_number_of_steps_scales_the_steps_and_what_happens_between_them_alone() {
        let by_steps = |train: &str| {
            let found = estimate(train, &[(100, row())]).unwrap();
            assert_eq!(found.0, "by steps");
            found.1[1]
        };
        // 4 s, 190 steps, one evaluation.
        assert_eq!(by_steps("steps: 200"), 25.0);
        // Twice as many evaluations.
        assert_eq!(by_steps("steps: 200, evaluate: {every: epoch}"), 27.0);
        assert_eq!(by_steps("steps: 200, evaluate: {every: 50}"), 27.0);
        // Two of them, where there was one.
        assert_eq!(by_steps("steps: 200, evaluate: {every: 150}"), 27.0);
        let saved = TrialRow {
            trial_seconds: Some(16.0),
            checkpoint_seconds: Some(1.0),
            ..row()
        };
        let found = estimate(
            "steps: 200, checkpoint: {every_steps: 100}",
            &[(100, saved)],
        );
        assert_eq!(found, Some(("by steps", [27.0; 3])));
    }

    #[test]
    fn rows_that_do_not_tell_what_a_step_takes_give_no_estimate() {
        let without = |change: fn(&mut TrialRow)| {
            let mut row = row();
            change(&mut row);
            estimate("steps: 200", &[(100, row)])
        };
        assert!(without(|_| {}).is_some());
        assert_eq!(without(|row| row.window_seconds = None), None);
        assert_eq!(without(|row| row.left_out_steps = None), None);
        assert_eq!(without(|row| row.left_out_steps = Some(100)), None);
        assert_eq!(without(|row| row.outcome = Outcome::TimedOut), None);
        assert_eq!(without(|row| row.resumed_at_step = Some(50)), None);
        // Its length is not known before.
        let stops = "steps: 200, evaluate: {every: 50}, early_stop: {patience: 2}";
        assert_eq!(estimate(stops, &[(100, row())]), None);
    }

    #[test]
    fn trials_of_other_settings_say_nothing_and_those_of_another_length_do() {
        let sweep = "grid: {train.batch_size: [1, 2], train.steps: [100, 200]}, repeats: 2";
        let trials = trials("steps: 100", sweep);
        let of = |batch: u64, steps: u64, seed: u64| {
            let is_it = |trial: &&Trial| {
                let train = &trial.train;
                (train.batch_size, train.steps, train.seed) == (batch, Some(steps), seed)
            };
            trials.iter().find(is_it).unwrap()
        };
        let mut known = KnownTimes::default();
        assert_eq!(known.estimate(of(1, 100, 1)), None);
        known.learn(of(1, 100, 1), &row());
        let mut found = |trial: &Trial| {
            let found = known.estimate(trial)?;
            Some((found.grade.name(), found.median.round()))
        };
        assert_eq!(found(of(1, 100, 2)), Some(("as before", 15.0)));
        assert_eq!(found(of(1, 200, 2)), Some(("by steps", 25.0)));
        assert_eq!(found(of(2, 100, 1)), None);
    }
}
