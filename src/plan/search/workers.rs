//! `workers`: 0, 1, 2, 4, … loader workers while data is waited for and more of them help; then the fewest that do as well.

use std::collections::BTreeMap;

use super::{
    Ask, Choice, Found, Probe, Strategy, Warning, answer,
    seen::{Seen, chance, mean, relative_deviation},
    warning::{End, speed},
};
use crate::units::{Fraction, counted};

/// A step that brings less than this share is not worth its workers (`docs/measurement.md`, "Tuning").
const WORTH: f64 = 0.03;
/// Numbers tried between the last ones of the rise, at most.
const MOST_REFINED: usize = 3;
/// Numbers that are repeated, at most.
const MOST_CONTENDERS: usize = 3;

/// The search for the number of loader workers.
pub(super) struct Workers {
    pub(super) most: u64,
    /// Share of the window that may be waited for data.
    pub(super) wait: f64,
    pub(super) repeats: u64,
    pub(super) cores: u64,
    pub(super) gpus: u64,
}

/// What a number of workers showed.
#[derive(Clone, Debug, Default)]
struct Shown {
    speeds: Vec<f64>,
    waits: Vec<f64>,
    /// Whether all its runs completed with a speed.
    is_whole: bool,
}

impl Shown {
    fn of(probes: &[&Probe]) -> Self {
        let completed = probes.iter().filter(|probe| probe.completed());
        let speeds: Vec<f64> = completed.clone().filter_map(|probe| probe.speed()).collect();
        let waits = completed.filter_map(|probe| probe.data_wait_fraction.filter(|wait| wait.is_finite())).collect();
        Self { is_whole: speeds.len() == probes.len(), speeds, waits }
    }

    fn speed(&self) -> Option<f64> {
        mean(&self.speeds).filter(|_| self.is_whole)
    }

    fn waits_at_most(&self, share: f64) -> bool {
        mean(&self.waits).is_some_and(|wait| wait <= share)
    }
}

/// By number of workers.
type Tried = BTreeMap<u64, Shown>;

impl Strategy for Workers {
    fn keys(&self) -> Vec<String> {
        vec!["data.num_workers".to_owned()]
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        answer(probes, |seen| self.search(seen))
    }
}

impl Workers {
    fn search(&self, seen: &Seen<'_>) -> Result<Found, Vec<Choice>> {
        let mut tried = Tried::new();
        self.rise(seen, &mut tried)?;
        self.refine(seen, &mut tried)?;
        let repeated = self.repeat(seen, &tried)?;
        Ok(self.found(seen, &tried, &repeated))
    }

    fn run_once(&self, seen: &Seen<'_>, workers: u64, tried: &mut Tried) -> Result<(), Vec<Choice>> {
        let probe = seen.one(Choice::new([("data.num_workers", workers)], 0))?;
        tried.insert(workers, Shown::of(&[probe]));
        Ok(())
    }

    /// Doubles until data is hardly waited for, or a step brings too little.
    fn rise(&self, seen: &Seen<'_>, tried: &mut Tried) -> Result<(), Vec<Choice>> {
        let mut last: Option<f64> = None;
        let mut workers = 0;
        loop {
            self.run_once(seen, workers, tried)?;
            let shown = tried.get(&workers).cloned().unwrap_or_default();
            let Some(speed) = shown.speed() else { return Ok(()) };
            // The first worker only takes over what training did itself; what loading in parallel brings is seen from the second on.
            let is_worth = workers <= 1 || last.is_none_or(|last| speed >= last * (1.0 + WORTH));
            if shown.waits_at_most(self.wait) || !is_worth || workers >= self.most {
                return Ok(());
            }
            last = Some(speed);
            workers = (workers * 2).max(1).min(self.most);
        }
    }

    /// Between the last two: where the last brought nothing there may be a better one in the middle; then the fewest that do as well.
    fn refine(&self, seen: &Seen<'_>, tried: &mut Tried) -> Result<(), Vec<Choice>> {
        let mut rest = MOST_REFINED;
        let last_two: Vec<u64> = tried.keys().rev().take(2).copied().collect();
        if let [high, low] = last_two[..]
            && high - low > 1
            && Self::fewest(tried, self.wait).is_some_and(|fewest| fewest <= low)
        {
            self.run_once(seen, low + (high - low) / 2, tried)?;
            rest -= 1;
        }
        for _ in 0..rest {
            let Some(fewest) = Self::fewest(tried, self.wait) else { break };
            let Some(fewer) = tried.range(..fewest).next_back().map(|(workers, _)| *workers).filter(|fewer| fewest - fewer > 1) else { break };
            self.run_once(seen, fewer + (fewest - fewer) / 2, tried)?;
        }
        Ok(())
    }

    /// The fewest workers that are as fast as any; of these, where some wait little enough for data, the fewest that do.
    fn fewest(tried: &Tried, wait: f64) -> Option<u64> {
        let best = tried.values().filter_map(Shown::speed).reduce(f64::max)?;
        let fast: Vec<(&u64, &Shown)> = tried.iter().filter(|(_, shown)| shown.speed().is_some_and(|speed| speed >= best / (1.0 + WORTH))).collect();
        let patient = fast.iter().find(|(_, shown)| shown.waits_at_most(wait));
        patient.or(fast.first()).map(|(workers, _)| **workers)
    }

    /// The likely choice and those nearest to it in speed, run again in turns.
    fn repeat(&self, seen: &Seen<'_>, tried: &Tried) -> Result<Tried, Vec<Choice>> {
        let mut left = tried.clone();
        loop {
            let Some(fewest) = Self::fewest(&left, self.wait) else { return Ok(Tried::new()) };
            let speed_of = |workers: u64| left.get(&workers).and_then(Shown::speed).unwrap_or_default();
            let mut others: Vec<u64> =
                left.iter().filter(|(workers, shown)| **workers != fewest && shown.is_whole).map(|(workers, _)| *workers).collect();
            others.sort_by(|one, other| speed_of(*other).total_cmp(&speed_of(*one)));
            let contenders: Vec<u64> = [fewest].into_iter().chain(others).take(MOST_CONTENDERS).collect();
            let run = |workers: &u64, repeat| Choice::new([("data.num_workers", *workers)], repeat);
            let probes = seen.all((0..self.repeats).flat_map(|repeat| contenders.iter().map(move |workers| run(workers, repeat))).collect())?;
            let shown = |index: usize| Shown::of(&probes.iter().skip(index).step_by(contenders.len()).copied().collect::<Vec<_>>());
            let repeated: Tried = contenders.iter().enumerate().map(|(index, workers)| (*workers, shown(index))).collect();
            if repeated.values().all(|shown| shown.is_whole) {
                return Ok(repeated);
            }
            left.retain(|workers, _| repeated.get(workers).is_none_or(|shown| shown.is_whole));
        }
    }

    fn found(&self, seen: &Seen<'_>, tried: &Tried, repeated: &Tried) -> Found {
        let mut warnings: Vec<Warning> = seen.without("samples_per_second", Probe::speed).into_iter().collect();
        let notes = vec![self.rules_of_thumb(tried)];
        let grid_trials = (self.most + 1).saturating_mul(self.repeats);
        let chosen = Self::fewest(repeated, self.wait).and_then(|workers| Some((workers, repeated.get(&workers)?)));
        let Some((workers, shown)) = chosen else {
            warnings.push(Warning::NothingFitted { smallest: "that without workers".to_owned() });
            let why = "no number of workers completed with a speed".to_owned();
            return Found { chosen: None, why, warnings, notes, grid_trials, grid_trial_seconds: None };
        };
        warnings.extend(self.warnings(tried, repeated, workers, shown));
        let values = Choice::new([("data.num_workers", workers)], 0).values;
        Found { chosen: Some(values), why: self.why(tried, workers, shown), warnings, notes, grid_trials, grid_trial_seconds: None }
    }

    fn warnings(&self, tried: &Tried, repeated: &Tried, workers: u64, shown: &Shown) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let own = shown.speed().unwrap_or_default();
        let slower = |known: &Tried| known.iter().next_back().and_then(|(most, shown)| Some((*most, 1.0 - shown.speed()? / own)));
        if let Some((most, slower)) = slower(tried).filter(|(most, slower)| *most > workers && *slower >= WORTH) {
            warnings.push(Warning::MoreWorkersSlower { workers: most, chosen: workers, slower });
        }
        let groups: Vec<Vec<f64>> = repeated.values().map(|shown| shown.speeds.clone()).collect();
        let by_chance = relative_deviation(&groups).map(|spread| chance(spread, shown.speeds.len()));
        let others =
            repeated.iter().filter(|(other, _)| **other != workers).filter_map(|(other, shown)| Some((*other, (shown.speed()? / own - 1.0).abs())));
        match (others.min_by(|one, other| one.1.total_cmp(&other.1)), by_chance) {
            (_, None) => warnings.push(Warning::OneRunEach),
            (Some((other, difference)), Some(spread)) if difference < spread => {
                let name = |workers: u64| counted(workers as usize, "worker");
                warnings.push(Warning::WithinSpread { chosen: name(workers), other: name(other), difference, spread });
            }
            _ => {}
        }
        if workers == self.most && !shown.waits_at_most(self.wait) {
            warnings.push(Warning::EndOfRange { key: "data.num_workers".to_owned(), value: workers.to_string(), end: End::Highest });
        }
        warnings
    }

    fn why(&self, tried: &Tried, workers: u64, shown: &Shown) -> String {
        let speed = speed(shown.speed().unwrap_or_default());
        let waits = mean(&shown.waits).map(|wait| format!(", data was waited for {} of the time", Fraction(wait))).unwrap_or_default();
        let most = tried.keys().next_back().copied().unwrap_or_default();
        let among = if workers == most { "more were not needed or not allowed" } else { "more brought less than 3 %" };
        let number = if workers == 1 { "1 worker is".to_owned() } else { format!("{workers} workers are the fewest that are") };
        format!("{number} as fast as any tried up to {most}: {speed} per second{waits}; {among}")
    }

    /// What people would try without a measurement, and whether it was run here.
    fn rules_of_thumb(&self, tried: &Tried) -> String {
        let rules = [("cores", self.cores), ("cores / 2", self.cores / 2)];
        let of_gpus = (self.gpus > 0).then_some(("4 per GPU", self.gpus.saturating_mul(4)));
        let tell = |(rule, workers): (&str, u64)| {
            let speed_of = tried.get(&workers).and_then(Shown::speed);
            let seen = speed_of.map_or_else(|| "not run".to_owned(), |value| format!("{} per second", speed(value)));
            format!("{rule} = {workers} ({seen})")
        };
        format!("rules of thumb: {}", rules.into_iter().chain(of_gpus).map(tell).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests;
