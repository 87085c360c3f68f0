//! Connects a search with its table: converts rows to probes and choices to trials. Pure.
//!
//! There is no stored state: each call replays the search from its first step with the existing
//! rows. So a search that was killed resumes where it was.

use kiln_core::{
    plan::{
        Outcome, PlanProblem, Prober, Trial,
        search::{Ask, Probe, Recommendation, SearchTrial, Strategy, describe_values},
    },
    record::{AttemptEnd, TableRow, TrialRow},
    spec::{Experiment, Metric, Search},
};

use super::remaining::History;

/// The search of an experiment.
pub struct Tuning<'a> {
    prober: &'a Prober<'a>,
    strategy: Box<dyn Strategy>,
    metric: Option<Metric>,
    retries: u64,
    /// Whether its trials are compared by their times.
    is_of_speed: bool,
}

/// Progress of a search.
#[derive(Clone, Debug)]
pub struct Progressed {
    /// Trials requested so far, in that order, numbered from 1.
    pub trials: Vec<Trial>,
    /// Requested choices that are impossible.
    pub refused: Vec<Refused>,
    /// Result of the search; `None` while trials are missing.
    pub recommendation: Option<Box<Recommendation>>,
}

/// A choice that cannot be a trial, such as a batch larger than the data.
#[derive(Clone, Debug)]
pub struct Refused {
    pub choice: SearchTrial,
    pub problems: Vec<PlanProblem>,
}

impl<'a> Tuning<'a> {
    /// `prober` belongs to the experiment.
    pub fn new(experiment: &Experiment, prober: &'a Prober<'a>) -> Self {
        let metric = match &experiment.sweep.search {
            Some(Search::SuccessiveHalving { metric, .. }) => Some(*metric),
            _ => None,
        };
        Self {
            prober,
            strategy: prober.strategy(),
            metric,
            retries: experiment.run.retries,
            is_of_speed: metric.is_none(),
        }
    }

    /// Replays the search with the rows of its run, in the order of the table.
    pub fn progress(&self, rows: &[TableRow]) -> Progressed {
        self.progress_with(rows, self.retries)
    }

    /// Replays the search as [`Self::progress`], with the number of retries of the launches so far.
    pub(super) fn progress_with(&self, rows: &[TableRow], retries: u64) -> Progressed {
        let ends: Vec<AttemptEnd> = rows.iter().map(AttemptEnd::of).collect();
        let history = History::of(&ends);
        let mut probes: Vec<Probe> = Vec::new();
        let mut progressed = Progressed {
            trials: Vec::new(),
            refused: Vec::new(),
            recommendation: None,
        };
        loop {
            let choices = match self.strategy.ask(&probes) {
                Ask::Run(choices) => choices,
                Ask::Done(recommendation) => {
                    progressed.recommendation = Some(recommendation);
                    return progressed;
                }
            };
            let mut is_missing = false;
            for choice in choices {
                match self.prober.trial(&choice) {
                    Ok(trial) if history.is_settled(&trial.id, retries) => {
                        let own = rows.iter().filter(|row| row.fixed.trial == trial.id);
                        probes.extend(own.map(|row| self.probe(choice.clone(), &row.fixed)));
                        progressed.add(trial);
                    }
                    Ok(trial) => {
                        is_missing = true;
                        progressed.add(trial);
                    }
                    Err(problems) => {
                        probes.push(Probe::that_showed_nothing(choice.clone(), Outcome::Skipped));
                        progressed.refused.push(Refused { choice, problems });
                    }
                }
            }
            if is_missing {
                return progressed;
            }
        }
    }

    /// Whether each round of repeats stays on one device, as all trials of a search with compared
    /// times do.
    pub(super) fn keeps_rounds(&self) -> bool {
        self.is_of_speed
    }

    fn probe(&self, choice: SearchTrial, row: &TrialRow) -> Probe {
        Probe {
            choice,
            outcome: row.outcome,
            reason: row.reason.clone(),
            samples_per_second: row.of_whole_work(row.samples_per_second),
            tokens_per_second: row.of_whole_work(row.tokens_per_second),
            memory_held_bytes: row.memory_held_bytes(),
            memory_limit_bytes: row.memory_limit_bytes,
            data_wait_fraction: row.data_wait_fraction,
            metric: self.metric.and_then(|metric| row.metric(metric)),
            noise: row.gradient_noise(),
            seconds: row.trial_seconds,
            is_disturbed: !row.disturbances().is_empty(),
        }
    }
}

impl Progressed {
    fn add(&mut self, trial: Trial) {
        if self.trials.iter().any(|known| known.id == trial.id) {
            return;
        }
        let alike = self
            .trials
            .iter()
            .find(|known| known.axes == trial.axes)
            .map(|known| known.point);
        let point = alike.unwrap_or_else(|| {
            self.trials
                .iter()
                .map(|known| known.point + 1)
                .max()
                .unwrap_or(0)
        });
        self.trials.push(Trial {
            number: self.trials.len() as u64 + 1,
            point,
            ..trial
        });
    }
}

impl Refused {
    /// Returns the choice and its problems as text.
    pub fn spelled(&self) -> (String, String) {
        (
            describe_values(&self.choice.values),
            self.problems
                .iter()
                .map(|problem| problem.fault.message.as_str())
                .collect::<Vec<_>>()
                .join("; "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_disturbed_by_others_and_by_heat_and_not_by_its_own_power() {
        let row = |cells: &str| -> TrialRow {
            let fixed = "kiln_table: t, trial: t, attempt: 1, launch: 1, number: 1, outcome: \
                         completed, model_kind: m, data_kind: d, engine: e, precision: f32, \
                         batch_size: 1, grad_accumulation: 1, effective_batch_size: 1, seed: 1, \
                         concurrent_trials: 1";
            let text = format!("{{{fixed}{cells}}}");
            serde_yaml::from_str(&text).unwrap()
        };
        let disturbed = |cells: &str| !row(cells).disturbances().is_empty();
        assert!(
            !disturbed("")
                && !disturbed(", foreign_processes: none")
                && !disturbed(", foreign_processes: unknown")
        );
        assert!(disturbed(", foreign_processes: 2 with 2.0 GiB"));
        assert!(
            !disturbed(", throttled_fraction: 0.9, throttle_reasons: sw_power_cap")
                && !disturbed(", throttled_fraction: 0.01")
        );
        assert!(disturbed(
            ", throttled_fraction: 0.2, throttle_reasons: sw_thermal_slowdown sw_power_cap"
        ));
        // A momentary slow-down beside the power cap.
        assert!(!disturbed(
            ", throttled_fraction: 0.2, throttle_reasons: sw_power_cap hw_thermal_slowdown"
        ));
        assert!(disturbed(
            ", notes: 'mfu: no peak; samples_per_second: other processes kept 1.2 of 2 cores busy \
             in the window'"
        ));
        assert_eq!(
            row(", peak_resident_bytes: 7, peak_allocated_bytes: 5").memory_held_bytes(),
            Some(7)
        );
        assert_eq!(
            row(", device_uuid: g, peak_resident_bytes: 7, peak_allocated_bytes: 5")
                .memory_held_bytes(),
            Some(5)
        );
        assert_eq!(
            row(", device_uuid: g, peak_nvml_used_bytes: 9").memory_held_bytes(),
            Some(9)
        );
    }
}
