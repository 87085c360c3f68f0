//! `best-throughput-batch`: rising by doubling, a search in the golden section around the best, then repeats of the contenders alone.
//!
//! The largest batch that fits is often not the fastest (`docs/measurement.md`, "Tuning"), so memory is a limit here and never the goal.
//! A speed is that of one run until contenders are told apart; these run in turns, so that drift hits all alike.

use std::collections::BTreeMap;

use super::{
    Ask, Choice, Found, Given, Probe, Strategy, Warning, answer,
    seen::{Seen, chance, mean, relative_deviation},
    sizes::{Fit, Sizes, effective_batch, fit, too_large_because},
    warning::speed,
};
use crate::units::Fraction;

/// A grid of fewer sizes is small enough to run whole.
const SMALL_GRID: usize = 24;
/// Of a larger grid one trial in so many is run at most.
const ONE_IN: u64 = 4;
/// A size must be so much faster than all before it for the rise to count as going on, as a share.
const RISES: f64 = 0.01;
/// So many sizes in a row that are no faster end the rise.
const MOST_FLAT: usize = 2;
/// Sizes that differ by less than this factor are not told apart any further.
const CLOSE: f64 = 1.1;
/// Further sizes tried around the best, at most.
const MOST_REFINED: usize = 8;
/// How far into a gap the golden section lies.
const GOLDEN: f64 = 0.381_966;
/// Sizes that are repeated, at most, and how much slower than the fastest they may have been.
const MOST_CONTENDERS: usize = 3;
const CONTENDS: f64 = 0.95;
/// Speeds are the same within this share whatever the spread, and never beyond the second.
const SAME: f64 = 0.01;
const DIFFERENT: f64 = 0.03;

/// The search for the fastest batch size.
#[derive(Debug)]
pub(super) struct BestThroughputBatch {
    pub(super) sizes: Sizes,
    pub(super) at_most: f64,
    /// Batch × accumulation, if that is to stay.
    pub(super) kept: Option<u64>,
    pub(super) repeats: u64,
    pub(super) given: Given,
}

/// What one run of each size showed, by place; `None` where no speed can be chosen.
#[derive(Default)]
struct Tried {
    speeds: BTreeMap<usize, Option<f64>>,
    /// Shares of the memory that those which fitted held.
    shares: BTreeMap<usize, f64>,
    too_large: Option<usize>,
}

/// A size with the speeds of its runs.
struct Contender {
    place: usize,
    speeds: Vec<f64>,
    mean: f64,
}

impl Strategy for BestThroughputBatch {
    fn keys(&self) -> Vec<String> {
        let keys: &[&str] = if self.kept.is_some() { &["train.batch_size", "train.grad_accumulation"] } else { &["train.batch_size"] };
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        answer(probes, |seen| self.search(seen))
    }
}

impl Tried {
    /// The place of the fastest; of equals the smaller size.
    fn best(&self) -> Option<(usize, f64)> {
        let speeds = self.speeds.iter().filter_map(|(place, speed)| Some((*place, (*speed)?)));
        speeds.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    fn used(&self) -> u64 {
        self.speeds.len() as u64
    }
}

impl BestThroughputBatch {
    fn search(&self, seen: &Seen<'_>) -> Result<Found, Vec<Choice>> {
        let mut tried = Tried::default();
        self.rise(seen, &mut tried)?;
        self.refine(seen, &mut tried)?;
        let mut contenders = self.contend(seen, &tried)?;
        contenders.sort_by(|one, other| other.mean.total_cmp(&one.mean));
        Ok(self.found(seen, &tried, &contenders))
    }

    fn choice(&self, place: usize, repeat: u64) -> Choice {
        let size = self.sizes.at(place);
        match self.kept {
            Some(effective) => Choice::new([("train.batch_size", size), ("train.grad_accumulation", effective / size.max(1))], repeat),
            None => Choice::new([("train.batch_size", size)], repeat),
        }
    }

    /// Runs a size once and notes what it showed.
    fn try_size(&self, seen: &Seen<'_>, place: usize, tried: &mut Tried) -> Result<Fit, Vec<Choice>> {
        let probe = seen.one(self.choice(place, 0))?;
        let fit = fit(probe, self.at_most);
        tried.speeds.insert(place, probe.speed().filter(|_| fit == Fit::Fits));
        if fit == Fit::Fits {
            tried.shares.extend(probe.memory_share().map(|share| (place, share)));
        }
        if fit == Fit::TooLarge {
            tried.too_large = Some(tried.too_large.map_or(place, |known| known.min(place)));
        }
        Ok(fit)
    }

    /// Doubles (where few trials are allowed, rises faster than that) the size until one is too large, or some are no faster.
    fn rise(&self, seen: &Seen<'_>, tried: &mut Tried) -> Result<(), Vec<Choice>> {
        let factor = self.factor();
        let (mut flat, mut broken) = (0, 0);
        let mut next = (self.sizes.count() > 0).then_some(0);
        while let Some(place) = next {
            let before = tried.best();
            match self.try_size(seen, place, tried)? {
                Fit::TooLarge => break,
                Fit::Broken => broken += 1,
                Fit::Fits => {
                    let rises = tried.best().is_some_and(|(_, now)| before.is_none_or(|(_, before)| now > before * (1.0 + RISES)));
                    (flat, broken) = (if rises { 0 } else { flat + 1 }, 0);
                }
            }
            if flat == MOST_FLAT || broken == MOST_FLAT {
                break;
            }
            next = self.sizes.risen(place, factor);
        }
        Ok(())
    }

    /// 2, or the next power of it that leaves something of the trials that are allowed for what comes after the rise.
    fn factor(&self) -> f64 {
        let risen = |factor: f64| std::iter::successors(Some(0), |place| self.sizes.risen(*place, factor)).count() as u64;
        let leaves = |factor: &f64| self.sizes.count() < SMALL_GRID || risen(*factor) + 2 + 2 * (self.repeats - 1) <= self.allowed();
        std::iter::successors(Some(2.0), |factor| Some(factor * 2.0)).take(20).find(leaves).unwrap_or(2.0)
    }

    /// Trials that may be run in place of a grid of all sizes.
    fn allowed(&self) -> u64 {
        let grid = (self.sizes.count() as u64).saturating_mul(self.repeats);
        if self.sizes.count() >= SMALL_GRID { grid / ONE_IN } else { grid }
    }

    /// Sizes up to the first that is known to be too large.
    fn grid(&self, tried: &Tried) -> usize {
        tried.too_large.map_or(self.sizes.count(), |place| place + 1)
    }

    /// Tries sizes in the larger gap beside the best one until the gaps are small.
    fn refine(&self, seen: &Seen<'_>, tried: &mut Tried) -> Result<(), Vec<Choice>> {
        for _ in 0..MOST_REFINED {
            let Some(place) = self.gap(tried).filter(|_| self.may_try(tried)) else { break };
            self.try_size(seen, place, tried)?;
        }
        Ok(())
    }

    /// Whether one more size leaves the runs that two contenders need.
    fn may_try(&self, tried: &Tried) -> bool {
        tried.used() + 1 + 2 * (self.repeats - 1) <= self.allowed()
    }

    /// Where to look next to the best size: in the wider gap; nowhere once both are small.
    fn gap(&self, tried: &Tried) -> Option<usize> {
        let (best, _) = tried.best()?;
        let below = tried.speeds.range(..best).next_back().map(|(place, _)| *place);
        let above = tried.speeds.range(best + 1..).next().map(|(place, _)| *place);
        let gaps = [below, above].into_iter().flatten().filter_map(|other| self.within(best, other, tried));
        gaps.reduce(|one, other| if other.0 > one.0 { other } else { one }).map(|(_, place)| place)
    }

    /// How wide the gap between two places is, as a factor, and which place in it is next: where memory should end, if it ends there, else
    /// that in the golden section. `None` if there is none, or the gap is small.
    fn within(&self, best: usize, other: usize, tried: &Tried) -> Option<(f64, usize)> {
        let (from, to) = (self.sizes.at(best) as f64, self.sizes.at(other) as f64);
        let width = (to / from).max(from / to);
        let (low, high) = (best.min(other), best.max(other));
        let place = self.sizes.up_to((from * (to / from).powf(GOLDEN)).round());
        let place = place.clamp(low + 1, high.saturating_sub(1).max(low + 1));
        if high - low <= 1 || width <= CLOSE {
            return None;
        }
        let memory_ends = tried.too_large == Some(high);
        match self.memory_end(tried).filter(|_| memory_ends) {
            Some(end) if self.sizes.at(end) as f64 <= from * CLOSE.sqrt() => None,
            Some(end) if end < high => Some((width, end)),
            _ => Some((width, place)),
        }
    }

    /// Where memory should end, on a line through the largest two sizes that fitted.
    fn memory_end(&self, tried: &Tried) -> Option<usize> {
        let mut largest = tried.shares.iter().rev().map(|(place, share)| (self.sizes.at(*place) as f64, *share));
        let ((size, share), (smaller, its)) = (largest.next()?, largest.next()?);
        let each = (share - its) / (size - smaller);
        (each > 0.0).then(|| self.sizes.up_to(size + (self.at_most - share) / each))
    }

    /// Repeats the fastest sizes, in turns. A size of which one run fails is out, and the next one is in.
    fn contend(&self, seen: &Seen<'_>, tried: &Tried) -> Result<Vec<Contender>, Vec<Choice>> {
        let mut ranked: Vec<(usize, f64)> = tried.speeds.iter().filter_map(|(place, speed)| Some((*place, (*speed)?))).collect();
        ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
        let left = self.allowed().saturating_sub(tried.used());
        let affordable = left.checked_div(self.repeats - 1).unwrap_or(u64::MAX);
        let mut spent = 0;
        loop {
            let fastest = ranked.first().map_or(0.0, |(_, speed)| *speed);
            let close = ranked.iter().enumerate().filter(|(rank, (_, speed))| *rank < 2 || *speed >= fastest * CONTENDS);
            let count = (close.count().min(MOST_CONTENDERS) as u64).min(affordable.saturating_sub(spent));
            if count == 0 {
                let single = |(place, speed): (usize, f64)| Contender { place, speeds: vec![speed], mean: speed };
                return Ok(ranked.into_iter().take(1).map(single).collect());
            }
            let places: Vec<usize> = ranked.iter().take(count as usize).map(|(place, _)| *place).collect();
            let (contenders, out) = self.repeated(seen, &places)?;
            if out.is_empty() {
                return Ok(contenders);
            }
            spent += out.len() as u64;
            ranked.retain(|(place, _)| !out.contains(place));
        }
    }

    /// The sizes all of whose runs can be chosen, with their speeds; and the others.
    fn repeated(&self, seen: &Seen<'_>, places: &[usize]) -> Result<(Vec<Contender>, Vec<usize>), Vec<Choice>> {
        let runs = (0..self.repeats).flat_map(|repeat| places.iter().map(move |place| self.choice(*place, repeat))).collect();
        let probes = seen.all(runs)?;
        let (mut contenders, mut out) = (Vec::new(), Vec::new());
        for (index, place) in places.iter().enumerate() {
            let own: Vec<&&Probe> = probes.iter().skip(index).step_by(places.len()).collect();
            let speeds: Vec<f64> = own.iter().filter(|probe| fit(probe, self.at_most) == Fit::Fits).filter_map(|probe| probe.speed()).collect();
            match mean(&speeds).filter(|_| speeds.len() == own.len()) {
                Some(mean) => contenders.push(Contender { place: *place, speeds, mean }),
                None => out.push(*place),
            }
        }
        Ok((contenders, out))
    }

    /// `contenders` are sorted, the fastest first. Of those that are as fast the smallest is chosen: it takes the least memory.
    fn found(&self, seen: &Seen<'_>, tried: &Tried, contenders: &[Contender]) -> Found {
        let spread = relative_deviation(&contenders.iter().map(|contender| contender.speeds.clone()).collect::<Vec<_>>());
        let runs = contenders.first().map_or(1, |first| first.speeds.len());
        let by_chance = spread.map(|spread| chance(spread, runs));
        let same = by_chance.unwrap_or(SAME).clamp(SAME, DIFFERENT);
        let fastest = contenders.first();
        let chosen = fastest.and_then(|fastest| {
            contenders.iter().filter(|contender| contender.mean >= fastest.mean * (1.0 - same)).min_by_key(|contender| contender.place)
        });
        let mut warnings: Vec<Warning> = seen.memory_unknown().into_iter().collect();
        warnings.extend(seen.without("samples_per_second", Probe::speed));
        let grid_trials = (self.grid(tried) as u64).saturating_mul(self.repeats);
        let Some(chosen) = chosen else {
            warnings.push(Warning::NothingFitted { smallest: format!("batch size {}", self.sizes.at(0)) });
            let why = format!("no batch size ran with at most {} of the memory and has a speed", Fraction(self.at_most));
            return Found { chosen: None, why, warnings, notes: Vec::new(), grid_trials, grid_trial_seconds: None };
        };
        warnings.extend(self.warnings(chosen, contenders, by_chance));
        let why = self.why(seen, tried, chosen, fastest);
        Found { chosen: Some(self.choice(chosen.place, 0).values), why, warnings, notes: Vec::new(), grid_trials, grid_trial_seconds: None }
    }

    fn warnings(&self, chosen: &Contender, contenders: &[Contender], by_chance: Option<f64>) -> Vec<Warning> {
        let size = self.sizes.at(chosen.place);
        let accumulation = self.kept.map_or(self.given.grad_accumulation, |effective| effective / size.max(1));
        let mut warnings: Vec<Warning> = effective_batch(&self.given, size, accumulation).into_iter().collect();
        let nearest = contenders.iter().filter(|other| other.place != chosen.place);
        let nearest = nearest.min_by(|one, other| (one.mean - chosen.mean).abs().total_cmp(&(other.mean - chosen.mean).abs()));
        match (nearest, by_chance) {
            (_, None) => warnings.push(Warning::OneRunEach),
            (Some(other), Some(spread)) => {
                let difference = (other.mean / chosen.mean - 1.0).abs();
                let name = |place| format!("batch size {}", self.sizes.at(place));
                warnings.extend((difference < spread).then(|| Warning::WithinSpread {
                    chosen: name(chosen.place),
                    other: name(other.place),
                    difference,
                    spread,
                }));
            }
            (None, Some(_)) => {}
        }
        warnings.extend(self.sizes.at_end(chosen.place).filter(|_| self.kept.is_none()));
        warnings
    }

    fn why(&self, seen: &Seen<'_>, tried: &Tried, chosen: &Contender, fastest: Option<&Contender>) -> String {
        let size = self.sizes.at(chosen.place);
        let one = seen.one(self.choice(chosen.place, 0)).ok();
        let unit = if one.is_some_and(|probe| probe.tokens_per_second.is_some()) { "tokens/s" } else { "samples/s" };
        let as_fast = fastest.filter(|fastest| fastest.place != chosen.place);
        let is = match as_fast {
            Some(fastest) => format!("is as fast as {}, which takes more memory", self.sizes.at(fastest.place)),
            None => "is the fastest".to_owned(),
        };
        let slower = |place: usize, was: f64| {
            let share = 1.0 - was / chosen.mean;
            (place > chosen.place && share > DIFFERENT)
                .then(|| format!("; the largest that fitted, {}, is {} slower", self.sizes.at(place), Fraction(share)))
        };
        let largest = tried.speeds.iter().rev().find_map(|(place, speed)| Some((*place, (*speed)?)));
        let largest = largest.and_then(|(place, was)| slower(place, was)).unwrap_or_default();
        let limit = tried.too_large.and_then(|place| Some((place, seen.one(self.choice(place, 0)).ok()?)));
        let limit = limit.map(|(place, probe)| format!("; {} {}", self.sizes.at(place), too_large_because(probe))).unwrap_or_default();
        let runs = chosen.speeds.len();
        let over = if runs > 1 { format!(" over {runs} runs") } else { String::new() };
        format!("batch size {size} {is}: {} {unit}{over}{largest}{limit}", speed(chosen.mean))
    }
}

#[cfg(test)]
mod tests;
