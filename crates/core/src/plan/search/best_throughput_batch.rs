//! `best-throughput-batch`: rises by doubling, then runs a [`Race`] of the sizes that may be the
//! fastest.
//!
//! The largest batch that fits is often not the fastest (`docs/measurement.md`, "Tuning"), so
//! memory is a limit here and never the goal. Where the time until a loss is asked for, the speed of
//! a size is divided by the samples that it needs until then, as far as the trials have measured the
//! gradient noise scale.

use super::{
    Ask, OwnPlace, Probe, SearchContext, SearchTrial, Strategy, StrategyOutcome, Warning, answer,
    listed,
    noise::{SearchNoise, effective},
    own_value,
    race::{Race, RaceEnd, Values, allowed, within_rounds},
    seen::Probes,
    sizes::{BatchSizes, Fit, MOST_BROKEN, effective_batch, fit, too_large_because},
    warning::speed,
};
use crate::{
    statistics::{SEARCH_EQUAL, WORTH},
    units::{Fraction, WholePercent, counted},
};

/// A grid of fewer sizes is not reduced to a quarter if that is less than [`LEAST`] trials.
const SMALL_GRID: usize = 24;
const LEAST: u64 = 12;
/// This many sizes in a row without a gain end the rise.
const MOST_FLAT: usize = 3;
/// This many sizes in a row without a measured speed end it, too.
const MOST_UNMEASURED: usize = 6;
/// Trials of the budget that the rise leaves for later.
const AFTER_RISE: u64 = 5;

/// The search for the fastest batch size.
#[derive(Clone, Debug)]
pub(super) struct BestThroughputBatch {
    pub(super) sizes: BatchSizes,
    pub(super) at_most: f64,
    /// Batch × accumulation, if it must stay constant.
    pub(super) kept: Option<u64>,
    pub(super) repeats: u64,
    /// The gradient noise scale that divides the speeds; `None` before a trial has measured one, and
    /// where sizes are ranked by speed alone.
    pub(super) noise: Option<SearchNoise>,
    pub(super) given: SearchContext,
}

impl Strategy for BestThroughputBatch {
    fn keys(&self) -> Vec<String> {
        let keys = &self.given.keys;
        let accumulation = self.kept.map(|_| keys.grad_accumulation.clone());
        [keys.batch_size.clone()]
            .into_iter()
            .chain(accumulation)
            .collect()
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        let own = Self {
            noise: SearchNoise::first(probes).filter(|_| self.given.is_until_target),
            ..self.clone()
        };
        answer(probes, |seen| own.search(seen))
    }

    fn ranked_speed(&self, probe: &Probe) -> Option<f64> {
        // Useful speeds depend on what other trials measured.
        self.speed(probe).filter(|_| !self.given.is_until_target)
    }

    fn place_of_own(&self) -> OwnPlace {
        match self.own_place() {
            Some(_) => OwnPlace::Raced,
            None => OwnPlace::Outside,
        }
    }
}

impl Values for BestThroughputBatch {
    fn choice(&self, place: usize, repeat: u64) -> SearchTrial {
        let (size, keys) = (self.sizes.at(place), &self.given.keys);
        let batch = (keys.batch_size.as_str(), size);
        match self.kept {
            Some(effective) => SearchTrial::new(
                [batch, (&keys.grad_accumulation, effective / size.max(1))],
                repeat,
            ),
            None => SearchTrial::new([batch], repeat),
        }
    }

    fn number(&self, place: usize) -> f64 {
        self.sizes.at(place) as f64
    }

    fn up_to(&self, number: f64) -> usize {
        self.sizes.up_to(number)
    }

    fn speed(&self, probe: &Probe) -> Option<f64> {
        let speed = probe
            .speed()
            .filter(|_| fit(probe, self.at_most) == Fit::Fits)?;
        let needed = |noise: &SearchNoise| noise.samples(self.effective_of(probe));
        Some(speed / self.noise.as_ref().map_or(1.0, needed))
    }

    /// Estimates the size, below one that was too large, at which memory runs out.
    fn last_between(&self, race: &Race<'_, Self>, low: usize, high: usize) -> Option<usize> {
        let last = Some(high - 1).filter(|last| *last > low);
        if self.too_large(race) != Some(high) {
            return last;
        }
        match self.memory_end(race) {
            Some(end) if end <= low => None,
            Some(end) if end < high => Some(end),
            _ => last,
        }
    }
}

impl BestThroughputBatch {
    fn search(&self, seen: &Probes<'_>) -> Result<StrategyOutcome, Vec<SearchTrial>> {
        let own = self.own_place();
        let mut race = Race::new(self, seen, self.repeats, self.allowed(), own);
        self.rise(&mut race)?;
        let rise_ended = self.rise_ended(&race);
        let end = race.finish()?;
        Ok(self.found(&race, &end, &rise_ended))
    }

    /// The file's own size, if it is one of the sizes.
    fn own_place(&self) -> Option<usize> {
        self.sizes.place_of(self.given.batch_size)
    }

    fn allowed(&self) -> u64 {
        let least = if self.sizes.count() < SMALL_GRID {
            LEAST
        } else {
            1
        };
        allowed(self.sizes.count() as u64, self.repeats, least)
    }

    /// Doubles the size (or uses a larger factor if few trials are allowed) until one is too large,
    /// or several bring no gain.
    fn rise(&self, race: &mut Race<'_, Self>) -> Result<(), Vec<SearchTrial>> {
        let factor = self.factor();
        let (mut flat, mut broken, mut unmeasured) = (0, 0, 0);
        let mut next = (self.sizes.count() > 0).then_some(0);
        while let Some(place) = next {
            let before = race.best();
            match fit(race.look(place)?, self.at_most) {
                Fit::TooLarge => break,
                Fit::Broken => broken += 1,
                // Longer steps of a larger size may be measured where these were too few or too short.
                Fit::Fits if race.speed(place).is_none() => {
                    (unmeasured, broken) = (unmeasured + 1, 0);
                }
                Fit::Fits => {
                    let rises = race.best().is_some_and(|now| {
                        before.is_none_or(|before| now > before * (1.0 + SEARCH_EQUAL))
                    });
                    (flat, broken) = (if rises { 0 } else { flat + 1 }, 0);
                    unmeasured = 0;
                }
            }
            if flat == MOST_FLAT || broken == MOST_BROKEN || unmeasured == MOST_UNMEASURED {
                break;
            }
            next = self.sizes.risen(place, factor);
        }
        Ok(())
    }

    /// 2, or the next power of 2 that leaves part of the budget for the phases after the rise.
    fn factor(&self) -> f64 {
        let risen = |factor: f64| {
            std::iter::successors(Some(0), |place| self.sizes.risen(*place, factor)).count() as u64
        };
        let after = if self.repeats > 1 { AFTER_RISE } else { 2 };
        let leaves = |factor: &f64| risen(*factor) + after <= self.allowed();
        std::iter::successors(Some(2.0), |factor| Some(factor * 2.0))
            .take(20)
            .find(leaves)
            .unwrap_or(2.0)
    }

    /// Samples of an update of a trial.
    fn effective_of(&self, probe: &Probe) -> u64 {
        let first = probe.choice.values.first();
        let size = first.and_then(|(_, value)| value.as_u64()).unwrap_or(1);
        effective(&self.given, size, self.accumulation(size))
    }

    fn accumulation(&self, size: u64) -> u64 {
        self.kept.map_or(self.given.grad_accumulation, |effective| {
            effective / size.max(1)
        })
    }

    /// The smallest size that was too large.
    fn too_large(&self, race: &Race<'_, Self>) -> Option<usize> {
        race.places().find(|place| {
            race.first(*place)
                .is_some_and(|probe| fit(probe, self.at_most) == Fit::TooLarge)
        })
    }

    /// Estimates where memory runs out, on a line through the largest two sizes that fitted.
    fn memory_end(&self, race: &Race<'_, Self>) -> Option<usize> {
        let held = |place: usize| {
            race.first(place)
                .filter(|probe| fit(probe, self.at_most) == Fit::Fits)?
                .memory_share()
        };
        let mut largest = race
            .places()
            .rev()
            .filter_map(|place| Some((self.number(place), held(place)?)));
        let ((size, share), (smaller, its)) = (largest.next()?, largest.next()?);
        let each = (share - its) / (size - smaller);
        (each > 0.0).then(|| self.sizes.up_to(size + (self.at_most - share) / each))
    }

    fn found(&self, race: &Race<'_, Self>, end: &RaceEnd, rise_ended: &str) -> StrategyOutcome {
        let mut warnings: Vec<Warning> = race.seen.memory_unknown().into_iter().collect();
        warnings.extend(race.seen.without("samples_per_second", Probe::speed));
        let grid = self
            .too_large(race)
            .map_or(self.sizes.count(), |place| place + 1);
        let grid_trials = (grid as u64).saturating_mul(self.repeats);
        let own = self
            .own_place()
            .and_then(|own| own_value::in_race(race, end, own, self.unit(race, own)));
        let Some(place) = end.proposed() else {
            if !race.has_unmeasured() {
                warnings.push(Warning::NothingFitted {
                    smallest: format!("batch size {}", self.sizes.at(0)),
                });
            }
            let why = format!(
                "no batch size ran with at most {} of the memory and has a speed",
                Fraction(self.at_most)
            );
            return StrategyOutcome {
                why,
                warnings,
                notes: own.into_iter().collect(),
                grid_trials,
                ..StrategyOutcome::default()
            };
        };
        warnings.extend(self.warnings(end, place));
        let why = match end.choice {
            Some(place) => self.why(race, end, place),
            None => self.why_not(race, end),
        };
        let values = |place: &usize| self.choice(*place, 0).values;
        let first = race.left_out().map(|place| {
            format!(
                "the first trial, of batch size {}, also filled the page cache: it is not counted",
                self.sizes.at(place)
            )
        });
        StrategyOutcome {
            chosen: Some(values(&place)),
            alike: end.alike.iter().map(values).collect(),
            why: match self.limit(race) {
                Some(limit) => format!("{why}; {limit}"),
                None => why,
            },
            warnings,
            notes: first
                .into_iter()
                .chain(self.of_noise(race))
                .chain([race.stopped(end, rise_ended)])
                .chain(own)
                .collect(),
            grid_trials,
            grid_trial_seconds: None,
        }
    }

    /// By what the sizes were ranked, where the time until a loss was asked for, and whether that
    /// depends on where in its interval the noise scale is.
    fn of_noise(&self, race: &Race<'_, Self>) -> Option<String> {
        let Some(noise) = &self.noise else {
            return self.given.is_until_target.then(|| {
                "no trial measured a gradient noise scale with both ends of its interval, so the sizes \
                 are ranked by their speed alone; measure more steps (`measure.gradient_noise.every`, \
                 `train.steps`)"
                    .to_owned()
            });
        };
        let speeds: Vec<(u64, u64, f64)> = race
            .places()
            .filter_map(|place| {
                let probe = race.first(place)?;
                let useful = race.speed(place)?;
                let effective = self.effective_of(probe);
                Some((
                    self.sizes.at(place),
                    effective,
                    useful * noise.samples(effective),
                ))
            })
            .collect();
        let best = |end: usize| {
            let useful = |(_, effective, speed): &(u64, u64, f64)| {
                speed / noise.samples_at_ends(*effective)[end]
            };
            let best = speeds.iter();
            best.max_by(|one, other| useful(one).total_cmp(&useful(other)))
                .map_or(0, |(size, ..)| *size)
        };
        let [low, high] = [0, 1].map(best);
        let ends = match low == high {
            true => format!("at both ends of the interval batch size {low} has the highest"),
            false => format!("over the interval the highest is that of batch size {low} to {high}"),
        };
        Some(format!("{}; {ends}", noise.explained()))
    }

    fn rise_ended(&self, race: &Race<'_, Self>) -> String {
        let last = race.places().next_back();
        let is_at_end = last.is_some_and(|last| last + 1 == self.sizes.count());
        self.limit(race).unwrap_or_else(|| {
            match is_at_end {
                true => "the range ends there",
                false if race.best().is_none() => "none had a measured speed",
                false => "several in a row brought no gain larger than noise",
            }
            .to_owned()
        })
    }

    fn warnings(&self, end: &RaceEnd, place: usize) -> Vec<Warning> {
        let size = self.sizes.at(place);
        let mut warnings: Vec<Warning> =
            effective_batch(&self.given, size, self.accumulation(size))
                .into_iter()
                .collect();
        warnings.extend(
            end.standings
                .spread()
                .is_none()
                .then_some(Warning::OneRunEach),
        );
        warnings.extend((!end.alike.is_empty()).then_some(Warning::CannotTell));
        let gaps: Vec<(u64, u64)> = end
            .gaps
            .iter()
            .map(|(low, high)| (self.sizes.at(*low), self.sizes.at(*high)))
            .collect();
        warnings.extend((!gaps.is_empty()).then_some(Warning::NotRunBetween { gaps }));
        let at_end = self.sizes.at_end(place, &self.given.keys.batch_size);
        warnings.extend(at_end.filter(|_| self.kept.is_none()));
        warnings
    }

    fn unit(&self, race: &Race<'_, Self>, place: usize) -> &'static str {
        let has_tokens = race
            .first(place)
            .is_some_and(|probe| probe.tokens_per_second.is_some());
        match (has_tokens, self.noise.is_some()) {
            (true, false) => "tokens/s",
            (false, false) => "samples/s",
            (true, true) => "useful tokens/s",
            (false, true) => "useful samples/s",
        }
    }

    fn why(&self, race: &Race<'_, Self>, end: &RaceEnd, place: usize) -> String {
        let standings = &end.standings;
        let fastest = standings.fastest().filter(|fastest| *fastest != place);
        let among = standings.places.len();
        let is = match fastest
            .and_then(|fastest| Some((fastest, standings.compare(fastest, place)?)))
        {
            Some((fastest, estimate)) => format!(
                "{} {}, {} of the {among} that were run ({:.3} of its {}, 95 %: {:.3} to {:.3}), \
                     and takes less memory",
                self.words("is not slower than", "has no lower useful speed than"),
                self.sizes.at(fastest),
                self.words("the fastest", "which has the highest"),
                estimate.ratio,
                self.words("speed", "useful speed"),
                estimate.low,
                estimate.high
            ),
            None if race.has_unmeasured() && among == 1 => {
                "is the only one with a measured speed".to_owned()
            }
            None if among == 1 => "is the only one that ran".to_owned(),
            None => format!(
                "{} of the {among} that were {}",
                self.words("is the fastest", "has the highest useful speed"),
                if race.has_unmeasured() {
                    "measured"
                } else {
                    "run"
                }
            ),
        };
        let runs = race.speeds(place).len();
        let over = if runs > 1 {
            format!(" over {}", counted(runs, "run"))
        } else {
            " in one run".to_owned()
        };
        let largest = self.largest(end, place).unwrap_or_default();
        let own = speed(race.speed(place).unwrap_or_default());
        format!(
            "batch size {} {is}: {own} {}{over}{largest}",
            self.sizes.at(place),
            self.unit(race, place)
        )
    }

    /// Words of speeds, or of useful ones.
    fn words(&self, of_speed: &'static str, of_useful: &'static str) -> &'static str {
        match self.noise {
            None => of_speed,
            Some(_) => of_useful,
        }
    }

    /// Says how much slower the largest size is, if the difference is significant and counts.
    fn largest(&self, end: &RaceEnd, place: usize) -> Option<String> {
        let largest = *end.standings.places.last()?;
        let estimate = end
            .standings
            .compare(place, largest)
            .filter(|estimate| estimate.is_lower(WORTH))?;
        let [slower, least, most] =
            [estimate.ratio, estimate.high, estimate.low].map(|ratio| Fraction(1.0 - ratio));
        Some(format!(
            "; the largest that was run, {}, {} {slower} {} (95 %: {least} to {most})",
            self.sizes.at(largest),
            self.words("is", "has"),
            self.words("slower", "less of it")
        ))
    }

    fn why_not(&self, race: &Race<'_, Self>, end: &RaceEnd) -> String {
        let sizes = listed(end.alike.iter().map(|place| self.sizes.at(*place)));
        let proposed = end.proposed().unwrap_or_default();
        let speeds: Vec<f64> = end
            .alike
            .iter()
            .filter_map(|place| race.speed(*place))
            .collect();
        let [low, high] = [f64::min, f64::max]
            .map(|of| speed(speeds.iter().copied().reduce(of).unwrap_or_default()));
        let spread = Fraction(end.standings.spread().unwrap_or_default());
        let worth = WholePercent(WORTH);
        format!(
            "batch sizes {sizes} cannot be told apart: {low} to {high} {}, and runs of one size \
             vary by {spread} (standard deviation); {} is the smallest within {worth} of the {} \
             of them, as far as their speeds are known{}",
            self.unit(race, proposed),
            self.sizes.at(proposed),
            self.words("fastest", "highest"),
            within_rounds(&speeds, race.speed(proposed))
        )
    }

    /// The smallest size that was too large, and why; `None` if none was.
    fn limit(&self, race: &Race<'_, Self>) -> Option<String> {
        let place = self.too_large(race)?;
        let why = too_large_because(race.first(place)?);
        Some(format!("{} {why}", self.sizes.at(place)))
    }
}

#[cfg(test)]
mod tests;
