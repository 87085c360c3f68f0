//! The probes so far, by choice; their means, and the spread of repeats.

use std::collections::HashMap;

use super::{Probe, SearchTrial, Warning, spelled};
use crate::plan::Outcome;
pub(super) use crate::statistics::mean;
use crate::statistics::{ALPHA, quantile};

/// Whether a trial ended for a reason other than memory.
fn failed_otherwise(probe: &Probe) -> bool {
    !matches!(
        probe.outcome,
        Outcome::Completed | Outcome::Oom | Outcome::Skipped
    )
}

/// The probes of a search.
pub(super) struct Probes<'a> {
    probes: &'a [Probe],
    /// The last probe of each choice that has a final outcome.
    ended: HashMap<String, &'a Probe>,
}

impl<'a> Probes<'a> {
    pub(super) fn new(probes: &'a [Probe]) -> Self {
        let ended = probes
            .iter()
            .filter(|probe| probe.outcome.is_final())
            .map(|probe| (name(&probe.choice), probe))
            .collect();
        Self { probes, ended }
    }

    /// Returns the probe of a choice, or the choice itself if it must run first.
    pub(super) fn one(&self, choice: SearchTrial) -> Result<&'a Probe, Vec<SearchTrial>> {
        self.ended
            .get(&name(&choice))
            .copied()
            .ok_or_else(|| vec![choice])
    }

    /// Returns the probes of all choices, in their order, or the choices that must run first.
    pub(super) fn all(
        &self,
        choices: Vec<SearchTrial>,
    ) -> Result<Vec<&'a Probe>, Vec<SearchTrial>> {
        let found: Vec<Option<&'a Probe>> = choices
            .iter()
            .map(|choice| self.ended.get(&name(choice)).copied())
            .collect();
        let missing: Vec<SearchTrial> = choices
            .into_iter()
            .zip(&found)
            .filter(|(_, probe)| probe.is_none())
            .map(|(choice, _)| choice)
            .collect();
        if missing.is_empty() {
            Ok(found.into_iter().flatten().collect())
        } else {
            Err(missing)
        }
    }

    /// The probes that count, in the order in which they were given.
    pub(super) fn ended(&self) -> impl Iterator<Item = &'a Probe> {
        self.probes.iter().filter(|probe| {
            self.ended
                .get(&name(&probe.choice))
                .is_some_and(|counts| std::ptr::eq(*counts, *probe))
        })
    }

    /// Whether trials ended, and each for a reason other than memory: nothing is known of it.
    pub(super) fn none_showed_memory(&self) -> bool {
        let mut ended = self.ended().peekable();
        ended.peek().is_some() && ended.all(failed_otherwise)
    }

    /// Warns if trials failed for a reason other than memory.
    pub(super) fn not_completed(&self) -> Option<Warning> {
        let found: Vec<&Probe> = self
            .ended()
            .filter(|probe| failed_otherwise(probe))
            .collect();
        let first = found.first()?;
        Some(Warning::NotCompleted {
            choice: spelled(&first.choice.values),
            outcome: first.outcome,
            reason: first.reason.clone(),
            trials: found.len(),
        })
    }

    /// Warns if the memory fraction of a completed trial is unknown.
    pub(super) fn memory_unknown(&self) -> Option<Warning> {
        let is_unknown = self
            .ended()
            .any(|probe| probe.completed() && probe.memory_share().is_none());
        is_unknown.then_some(Warning::MemoryUnknown)
    }

    /// Warns if some of the trials that count were disturbed.
    pub(super) fn disturbed(&self) -> Option<Warning> {
        let trials = self.ended().filter(|probe| probe.is_disturbed).count();
        (trials > 0).then_some(Warning::Disturbed { trials })
    }

    /// Warns if completed trials lack a required number.
    pub(super) fn without(
        &self,
        what: &str,
        number: impl Fn(&Probe) -> Option<f64>,
    ) -> Option<Warning> {
        let without: Vec<&Probe> = self
            .ended()
            .filter(|probe| probe.completed() && number(probe).is_none())
            .collect();
        let first = without.first()?;
        Some(Warning::NoNumber {
            choice: spelled(&first.choice.values),
            what: what.to_owned(),
            trials: without.len(),
        })
    }
}

fn name(choice: &SearchTrial) -> String {
    let values: Vec<String> = choice
        .values
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    format!("{} {}", choice.repeat, values.join(" "))
}

/// How much repeats vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// The standard deviation of all groups, each around its own mean.
    deviation: f64,
    /// Its degrees of freedom.
    freedom: usize,
}

impl Spread {
    /// `None` if no group has two values.
    pub(super) fn pooled<'v>(groups: impl IntoIterator<Item = &'v [f64]>) -> Option<Self> {
        let (mut squares, mut freedom) = (0.0, 0_usize);
        for group in groups {
            let Some(mean) = mean(group).filter(|_| group.len() > 1) else {
                continue;
            };
            squares += group
                .iter()
                .map(|value| (value - mean).powi(2))
                .sum::<f64>();
            freedom += group.len() - 1;
        }
        (freedom > 0).then(|| Self {
            deviation: (squares / freedom as f64).sqrt(),
            freedom,
        })
    }

    /// The largest difference of two means of so many runs that is within noise: half of its 95 %
    /// interval, by Student's t.
    pub(super) fn of_difference(self, one: usize, other: usize) -> f64 {
        let runs = |count: usize| 1.0 / count.max(1) as f64;
        let error = self.deviation * (runs(one) + runs(other)).sqrt();
        quantile(1.0 - ALPHA / 2.0, self.freedom as f64) * error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_pooled_over_groups_of_two_and_more() {
        let of = |groups: &[&[f64]]| Spread::pooled(groups.iter().copied());
        let found = of(&[&[1.0, 3.0], &[7.0]]).unwrap();
        assert_eq!((found.deviation, found.freedom), (2_f64.sqrt(), 1));
        let found = of(&[&[1.0, 3.0], &[10.0, 12.0]]).unwrap();
        assert_eq!((found.deviation, found.freedom), (2_f64.sqrt(), 2));
        assert_eq!(of(&[&[1.0], &[]]), None);
    }

    #[test]
    fn settings_without_a_difference_are_told_apart_in_1_of_20_searches() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        for runs in [2, 3, 5] {
            let apart = (0..4000).filter(|_| {
                let mut group = || (0..runs).map(|_| normal()).collect::<Vec<f64>>();
                let [one, other] = [group(), group()];
                let spread = Spread::pooled([one.as_slice(), other.as_slice()]).unwrap();
                let difference = mean(&one).unwrap() - mean(&other).unwrap();
                difference.abs() > spread.of_difference(runs, runs)
            });
            let share = apart.count() as f64 / 4000.0;
            assert!((0.035..0.065).contains(&share), "{runs} runs: {share}");
        }
    }
}
