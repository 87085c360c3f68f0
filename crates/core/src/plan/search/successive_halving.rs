//! `successive-halving`: every setting trains for a short time, the best for longer, until few are
//! left or trials reach the file's length. Source: Jamieson & Talwalkar 2016, "Non-stochastic best
//! arm identification and hyperparameter optimization" (arXiv 1502.07943).

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::{
    Ask, Probe, SearchTrial, Strategy, StrategyOutcome, Warning, answer,
    seen::{Probes, Spread, mean},
    spelled,
    warning::RangeEnd,
};
use crate::{
    spec::{Metric, learned::is_learned},
    units::{Count, counted, decimals},
};

/// The search for the best of many settings.
pub(super) struct SuccessiveHalving {
    /// The settings, each with the value of every axis, in plan order.
    settings: Vec<Vec<(String, Value)>>,
    axes: Vec<String>,
    metric: Metric,
    /// Steps of the first round.
    steps: u64,
    factor: u64,
    repeats: u64,
    /// Steps of the longest trials.
    most_steps: Option<u64>,
}

/// The result of a setting in a round.
struct RoundStanding<'a> {
    /// Its index in plan order.
    setting: usize,
    /// Metrics of its completed repeats.
    metrics: Vec<f64>,
    probes: Vec<&'a Probe>,
}

/// A round that all of its settings have finished.
struct Round<'a> {
    steps: u64,
    /// Best first.
    standings: Vec<RoundStanding<'a>>,
}

impl Round<'_> {
    /// How much the repeats of its settings vary.
    fn spread(&self) -> Option<Spread> {
        let groups = self.standings.iter();
        Spread::pooled(groups.map(|standing| standing.metrics.as_slice()))
    }
}

impl RoundStanding<'_> {
    fn score(&self) -> Option<f64> {
        mean(&self.metrics)
    }

    /// Whether all its repeats completed, with a metric or without.
    fn completed(&self) -> bool {
        self.probes.iter().all(|probe| probe.completed())
    }

    /// Whether all its repeats completed with a metric.
    fn is_whole(&self) -> bool {
        self.metrics.len() == self.probes.len()
    }
}

impl Strategy for SuccessiveHalving {
    fn keys(&self) -> Vec<String> {
        self.axes
            .iter()
            .cloned()
            .chain(["train.steps".to_owned()])
            .collect()
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        answer(probes, |seen| self.search(seen))
    }
}

impl SuccessiveHalving {
    /// `most_steps` is the length in the file.
    pub(super) fn new(
        axes: &Map<String, Value>,
        metric: Metric,
        steps: u64,
        factor: u64,
        repeats: u64,
        most_steps: Option<u64>,
    ) -> Self {
        let mut settings: Vec<Vec<(String, Value)>> = vec![Vec::new()];
        for (key, values) in axes {
            let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
            let with = |setting: &Vec<(String, Value)>, value: &Value| {
                setting
                    .iter()
                    .cloned()
                    .chain([(key.clone(), value.clone())])
                    .collect()
            };
            settings = settings
                .iter()
                .flat_map(|setting| values.iter().map(move |value| with(setting, value)))
                .collect();
        }
        Self {
            settings,
            axes: axes.keys().cloned().collect(),
            metric,
            steps,
            factor: factor.max(2),
            repeats: repeats.max(1),
            most_steps,
        }
    }

    fn search(&self, seen: &Probes<'_>) -> Result<StrategyOutcome, Vec<SearchTrial>> {
        let mut left: Vec<usize> = (0..self.settings.len()).collect();
        let mut steps = self.at_most(self.steps);
        let mut rounds: Vec<Round<'_>> = Vec::new();
        loop {
            let round = self.round(seen, &left, steps)?;
            left = self.kept(&round);
            // The trials run in plan order.
            left.sort_unstable();
            rounds.push(round);
            let longer = self.at_most(steps.saturating_mul(self.factor));
            if left.len() <= 1 || longer == steps {
                return Ok(self.found(seen, &rounds));
            }
            steps = longer;
        }
    }

    /// The settings that go on to longer trials, best first. Where trials completed and none has the
    /// metric, such as the time to a loss that none reached yet, those go on that completed; not if the
    /// length of a trial has no end.
    fn kept(&self, round: &Round<'_>) -> Vec<usize> {
        let keep = round.standings.len().div_ceil(self.factor as usize);
        let with_metric: Vec<usize> = round
            .standings
            .iter()
            .filter(|standing| !standing.metrics.is_empty())
            .take(keep)
            .map(|standing| standing.setting)
            .collect();
        if !with_metric.is_empty() || self.most_steps.is_none() {
            return with_metric;
        }
        let completed = round
            .standings
            .iter()
            .filter(|standing| standing.completed());
        completed.map(|standing| standing.setting).collect()
    }

    fn at_most(&self, steps: u64) -> u64 {
        self.most_steps.map_or(steps, |most| steps.min(most.max(1)))
    }

    fn choice(&self, setting: usize, steps: u64, repeat: u64) -> SearchTrial {
        let length = ("train.steps".to_owned(), Value::from(steps));
        SearchTrial {
            values: self.settings[setting]
                .iter()
                .cloned()
                .chain([length])
                .collect(),
            repeat,
        }
    }

    /// Ranks the settings at this length: completed ones first, by the metric; ties keep plan
    /// order.
    fn round<'a>(
        &self,
        seen: &Probes<'a>,
        settings: &[usize],
        steps: u64,
    ) -> Result<Round<'a>, Vec<SearchTrial>> {
        let runs = (0..self.repeats)
            .flat_map(|repeat| {
                settings
                    .iter()
                    .map(move |setting| self.choice(*setting, steps, repeat))
            })
            .collect();
        let probes = seen.all(runs)?;
        let standing = |(index, setting): (usize, &usize)| {
            let probes: Vec<&Probe> = probes
                .iter()
                .skip(index)
                .step_by(settings.len())
                .copied()
                .collect();
            RoundStanding {
                setting: *setting,
                metrics: probes.iter().filter_map(|probe| metric(probe)).collect(),
                probes,
            }
        };
        let mut standings: Vec<RoundStanding<'_>> =
            settings.iter().enumerate().map(standing).collect();
        standings.sort_by(|one, other| self.compare(one, other));
        Ok(Round { steps, standings })
    }

    /// Settings with an incomplete run come after those whose runs all completed; settings without
    /// any metric come last.
    fn compare(&self, one: &RoundStanding<'_>, other: &RoundStanding<'_>) -> Ordering {
        let class =
            |standing: &RoundStanding<'_>| (standing.metrics.is_empty(), !standing.is_whole());
        let by_metric = match (one.score(), other.score()) {
            (Some(one), Some(other)) if self.metric.is_better_high() => other.total_cmp(&one),
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => Ordering::Equal,
        };
        class(one)
            .cmp(&class(other))
            .then(by_metric)
            .then(one.setting.cmp(&other.setting))
    }

    fn found(&self, seen: &Probes<'_>, rounds: &[Round<'_>]) -> StrategyOutcome {
        let grid_trials = (self.settings.len() as u64).saturating_mul(self.repeats);
        let seconds: Vec<f64> = rounds
            .last()
            .into_iter()
            .flat_map(|round| &round.standings)
            .flat_map(|standing| &standing.probes)
            .filter_map(|probe| probe.seconds)
            .collect();
        let mut warnings: Vec<Warning> = seen
            .without(self.metric.name(), metric)
            .into_iter()
            .collect();
        let best = self.best(rounds);
        let (chosen, why) = match best {
            Some((round, standing)) => {
                warnings.extend(self.warnings(rounds, round, standing));
                (
                    Some(self.choice(standing.setting, round.steps, 0).values),
                    self.why(rounds, round, standing),
                )
            }
            None => {
                let first = self
                    .settings
                    .first()
                    .map(|setting| spelled(setting))
                    .unwrap_or_default();
                // Of trials that completed another warning says what they lack.
                let has_completed = seen.ended().any(Probe::completed);
                warnings
                    .extend((!has_completed).then_some(Warning::NothingFitted { smallest: first }));
                (
                    None,
                    match has_completed {
                        true => format!(
                            "no setting has a `{}` after {} steps",
                            self.metric.name(),
                            rounds.last().map_or(self.steps, |round| round.steps)
                        ),
                        false => format!("no setting completed with a `{}`", self.metric.name()),
                    },
                )
            }
        };
        StrategyOutcome {
            chosen,
            why,
            warnings,
            notes: vec![format!(
                "the search stopped after its last round ({} in all)",
                counted(rounds.len(), "round")
            )],
            grid_trials,
            grid_trial_seconds: mean(&seconds),
            ..StrategyOutcome::default()
        }
    }

    /// The best setting of the last round that did not fail in a longer round; if there is none,
    /// the best of all.
    fn best<'r, 'a>(
        &self,
        rounds: &'r [Round<'a>],
    ) -> Option<(&'r Round<'a>, &'r RoundStanding<'a>)> {
        let failed = |setting: usize| {
            rounds
                .iter()
                .flat_map(|round| &round.standings)
                .any(|other| other.setting == setting && other.metrics.is_empty())
        };
        let completed = rounds.iter().rev().flat_map(|round| {
            round
                .standings
                .iter()
                .map(move |standing| (round, standing))
        });
        let completed: Vec<_> = completed
            .filter(|(_, standing)| !standing.metrics.is_empty())
            .collect();
        completed
            .iter()
            .find(|(_, standing)| !failed(standing.setting))
            .or(completed.first())
            .copied()
    }

    fn warnings(
        &self,
        rounds: &[Round<'_>],
        round: &Round<'_>,
        chosen: &RoundStanding<'_>,
    ) -> Vec<Warning> {
        let mut warnings: Vec<Warning> = self
            .axes
            .iter()
            .filter_map(|axis| self.at_end(axis, chosen.setting))
            .collect();
        if self.repeats == 1 {
            warnings.push(Warning::OneRunEach);
        }
        let other = round
            .standings
            .iter()
            .find(|other| other.setting != chosen.setting && !other.metrics.is_empty());
        if let (Some(spread), Some(other)) = (round.spread(), other)
            && let Some(own) = chosen.score().filter(|own| *own != 0.0)
        {
            let difference = (other.score().unwrap_or(own) / own - 1.0).abs();
            let spread =
                spread.of_difference(chosen.metrics.len(), other.metrics.len()) / own.abs();
            let name = |standing: &RoundStanding<'_>| spelled(&self.settings[standing.setting]);
            let within = Warning::WithinSpread {
                chosen: name(chosen),
                other: name(other),
                difference,
                spread,
            };
            warnings.extend((difference < spread).then_some(within));
        }
        warnings.extend(self.dropped_within_noise(rounds));
        warnings.extend(self.of_samples());
        warnings
    }

    /// Warns if settings were dropped whose difference from one that went on is within noise.
    fn dropped_within_noise(&self, rounds: &[Round<'_>]) -> Option<Warning> {
        let mut dropped: Vec<&RoundStanding<'_>> = Vec::new();
        for round in rounds.iter().take(rounds.len().saturating_sub(1)) {
            let kept = self.kept(round);
            let goes_on = |standing: &&RoundStanding<'_>| kept.contains(&standing.setting);
            let last = round.standings.iter().rfind(goes_on);
            let (Some(spread), Some(last)) = (round.spread(), last) else {
                continue;
            };
            let is_close = |standing: &&RoundStanding<'_>| {
                let difference = standing
                    .score()
                    .zip(last.score())
                    .map(|(own, last)| (own - last).abs());
                let noise = spread.of_difference(standing.metrics.len(), last.metrics.len());
                standing.is_whole() && difference.is_some_and(|difference| difference < noise)
            };
            let out = round.standings.iter().filter(|one| !goes_on(one));
            dropped.extend(out.filter(is_close));
        }
        let first = dropped.first()?;
        Some(Warning::DroppedWithinSpread {
            first: spelled(&self.settings[first.setting]),
            settings: dropped.len(),
        })
    }

    /// Warns if settings train on different numbers of samples in the same steps, and what they
    /// learned ranks them.
    fn of_samples(&self) -> Option<Warning> {
        let varies = |key: &String| {
            let mut values = self.settings.iter().map(|setting| value_of(setting, key));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        let makes_others = |key: &&String| {
            ["train.batch_size", "train.grad_accumulation"].contains(&key.as_str()) && varies(key)
        };
        let key = self.axes.iter().find(makes_others)?;
        is_learned(self.metric.name()).then(|| Warning::OtherSamples { key: key.clone() })
    }

    /// Warns if the chosen value of an axis with three numbers or more is the smallest or largest.
    fn at_end(&self, axis: &str, setting: usize) -> Option<Warning> {
        let number_of = |setting: &Vec<(String, Value)>| value_of(setting, axis)?.as_f64();
        let mut all: Vec<f64> = self
            .settings
            .iter()
            .map(number_of)
            .collect::<Option<Vec<f64>>>()?;
        all.sort_by(f64::total_cmp);
        all.dedup();
        let own = number_of(&self.settings[setting])?;
        let end = match (all.first(), all.last()) {
            _ if all.len() < 3 => return None,
            (Some(first), _) if *first == own => RangeEnd::Lowest,
            (_, Some(last)) if *last == own => RangeEnd::Highest,
            _ => return None,
        };
        Some(Warning::EndOfRange {
            key: axis.to_owned(),
            value: own.to_string(),
            end,
        })
    }

    fn why(&self, rounds: &[Round<'_>], round: &Round<'_>, chosen: &RoundStanding<'_>) -> String {
        let most = if self.metric.is_better_high() {
            "highest"
        } else {
            "lowest"
        };
        let score = chosen.score().unwrap_or_default();
        let score = if score.abs() < 1e4 {
            decimals(score, 4)
        } else {
            Count(score).to_string()
        };
        format!(
            "{} has the {most} `{}`, {score}, of the {} that continued to {} steps; {} of {} \
             settings",
            spelled(&self.settings[chosen.setting]),
            self.metric.name(),
            round.standings.len(),
            round.steps,
            counted(rounds.len(), "round"),
            self.settings.len()
        )
    }
}

/// The value of an axis in a setting.
fn value_of<'s>(setting: &'s [(String, Value)], axis: &str) -> Option<&'s Value> {
    let found = setting.iter().find(|(key, _)| key == axis);
    found.map(|(_, value)| value)
}

/// The metric of a completed trial, if it is a finite number.
fn metric(probe: &Probe) -> Option<f64> {
    probe
        .metric
        .filter(|metric| probe.completed() && metric.is_finite())
}

#[cfg(test)]
mod tests;
