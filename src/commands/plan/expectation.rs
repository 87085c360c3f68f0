//! The time and memory that the trials of a plan will probably need: from rows of the same
//! settings on the same engine and device under `results/`, for the time also from those that differ
//! in the number of steps, and for memory at least what parameters, gradients and optimizer take.

use std::{collections::HashMap, path::Path, time::Duration};

use kiln_core::{
    plan::{Outcome, Plan, Trial, TrialId},
    spec::Precision,
    units::{Bytes, Seconds, counted},
};

use super::known_rows::{DevicesHere, KnownRows};
use crate::schedule::{EstimateGrade, FittingTrials, KnownTimes, TimeEstimate, fitting_trials};

/// Expected time and memory of one trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Expected {
    /// Estimate from trials like it.
    pub(super) time: Option<TimeEstimate>,
    /// Most that a trial like it has used.
    pub(super) memory_bytes: Option<u64>,
    /// Bytes of parameters, gradients and optimizer.
    pub(super) least_memory_bytes: Option<u64>,
}

/// The expectations of a plan.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    of_trials: HashMap<TrialId, Expected>,
    /// Trials that cannot fit, in words.
    pub(super) warnings: Vec<String>,
    /// The times that the estimates are from.
    times: KnownTimes,
}

impl Expectations {
    /// Reads the tables under `results`; what cannot be read is not used. `experiment` is the name of
    /// the plan's experiment.
    pub(super) fn of(plan: &Plan, experiment: &str, results: &Path) -> Self {
        let devices = DevicesHere::of(plan);
        let known = KnownRows::read(plan, experiment, results);
        let mut times = known.times(plan, &devices);
        // Trials of one point differ in their seed alone.
        let mut of_points: HashMap<u64, Expected> = HashMap::new();
        let mut of_trials = HashMap::new();
        let mut too_large = Vec::new();
        for trial in &plan.trials {
            let device = devices.of_trial(trial);
            let expected = *of_points.entry(trial.point).or_insert_with(|| Expected {
                least_memory_bytes: least_memory(trial),
                time: times.estimate(trial),
                memory_bytes: known.memory(trial, device),
            });
            if expected.least_memory_bytes > device.memory_bytes
                && let (Some(least), Some(memory)) =
                    (expected.least_memory_bytes, device.memory_bytes)
            {
                too_large.push((trial, least, device, memory));
            }
            of_trials.insert(trial.id.clone(), expected);
        }
        let warnings = too_large.first().map(|(trial, least, device, memory)| {
            let more = match too_large.len() - 1 {
                0 => String::new(),
                more => format!("; so do {more} more"),
            };
            format!(
                "warning: trial {} cannot fit: its parameters, gradients and optimizer need at \
                 least {}, and {} has {}{more}",
                trial.id,
                Bytes(*least),
                device.name.as_deref().unwrap_or("the device"),
                Bytes(*memory)
            )
        });
        Self {
            of_trials,
            warnings: warnings.into_iter().collect(),
            times,
        }
    }

    pub(super) fn of_trial(&self, trial: &TrialId) -> Expected {
        self.of_trials.get(trial).copied().unwrap_or_default()
    }

    /// The trials that have not ended and fit into this time.
    pub(super) fn fitting(
        &self,
        plan: &Plan,
        ended: &HashMap<TrialId, Outcome>,
        whole: Duration,
    ) -> FittingTrials {
        let is_left = |trial: &Trial| !has_ended(trial, ended);
        fitting_trials(&plan.trials, is_left, &self.times, whole)
    }

    /// The time of the trials that have not ended, in words; `None` if all have.
    pub(super) fn time(&self, plan: &Plan, ended: &HashMap<TrialId, Outcome>) -> Option<String> {
        let left: Vec<&Trial> = plan
            .trials
            .iter()
            .filter(|trial| !has_ended(trial, ended))
            .collect();
        let known: Vec<TimeEstimate> = left
            .iter()
            .filter_map(|trial| self.of_trial(&trial.id).time)
            .collect();
        if left.is_empty() {
            return None;
        }
        let (about, basis) = (sum_in_words(&known), basis_in_words(&known));
        Some(match left.len() - known.len() {
            left if known.is_empty() => unknown_in_words(left, plan.trials.len()),
            0 => format!("about {about}, one trial after the other, {basis}"),
            unknown => format!(
                "about {about} for {}, {basis}; unknown for {unknown} more",
                counted(known.len(), "trial")
            ),
        })
    }
}

/// Where some trials have ended or are kept, the table may show their times, and they cost none.
fn unknown_in_words(left: usize, all: usize) -> String {
    let none = "has run on this device";
    match left == all {
        true => format!("time unknown: no trial with these settings {none}"),
        false => format!(
            "time unknown for the {} left to run: no trial with such settings {none}",
            counted(left, "trial")
        ),
    }
}

/// Whether a trial has a final outcome.
pub(super) fn has_ended(trial: &Trial, ended: &HashMap<TrialId, Outcome>) -> bool {
    ended.get(&trial.id).is_some_and(|end| end.is_final())
}

/// The sum of estimates, with the range of what is known: `3 min 20 s (3 min 2 s to 4 min 1 s)`.
pub(super) fn sum_in_words(known: &[TimeEstimate]) -> String {
    let sum = |of: fn(&TimeEstimate) -> f64| Seconds(known.iter().map(of).sum()).to_string();
    let median = sum(|known| known.median);
    match (sum(|known| known.lowest), sum(|known| known.highest)) {
        (lowest, highest) if lowest == highest => median,
        (lowest, highest) => format!("{median} ({lowest} to {highest})"),
    }
}

/// The trials that estimates are from.
fn basis_in_words(known: &[TimeEstimate]) -> String {
    let is_by_steps = |known: &&TimeEstimate| known.grade == EstimateGrade::BySteps;
    match known.iter().filter(is_by_steps).count() {
        0 => "as such trials took before".to_owned(),
        by_steps if by_steps == known.len() => {
            "by steps: from trials that differ in their number of steps".to_owned()
        }
        by_steps => format!("as such trials took before, {by_steps} of them by steps"),
    }
}

/// Bytes of parameters, gradients and the optimizer's state; activations come on top.
fn least_memory(trial: &Trial) -> Option<u64> {
    if !trial.model.trains() {
        return None;
    }
    let number = match trial.train.precision {
        Precision::Bf16 => 2,
        _ => 4,
    };
    trial
        .parameters?
        .checked_mul(number * (2 + trial.train.optimizer.moments()))
}

#[cfg(test)]
impl Expectations {
    /// A plan whose trials are all expected to take one time.
    pub(super) fn of_each(plan: &Plan, expected: Expected) -> Self {
        let trials = plan.trials.iter();
        Self {
            of_trials: trials.map(|trial| (trial.id.clone(), expected)).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_has_its_range_and_says_what_it_is_from() {
        let known = |grade, lowest, highest| TimeEstimate {
            grade,
            lowest,
            median: lowest,
            highest,
        };
        let (before, steps) = (EstimateGrade::AsBefore, EstimateGrade::BySteps);
        let both = [known(before, 10.0, 12.0), known(steps, 20.0, 20.0)];
        assert_eq!(sum_in_words(&both), "30 s (30 s to 32 s)");
        assert_eq!(sum_in_words(&both[1..]), "20 s");
        let basis = "as such trials took before, 1 of them by steps";
        assert_eq!(basis_in_words(&both), basis);
        assert!(basis_in_words(&both[1..]).starts_with("by steps: "));
        assert_eq!(basis_in_words(&both[..1]), "as such trials took before");
    }
}
