//! The fastest of many values in few trials: a look at each part of the range, then repeats in turns of those that cannot be told apart.
//!
//! In: the values with their first runs (the rise of a search). Out: the [`End`] of the race: one value that is as fast as any that was run, or
//! those that cannot be told apart. All comparisons are those of [`statistics::Field`](crate::statistics::Field): one spread, pooled over all
//! repeats, and 95 % intervals. `benches/searches.rs` measures how often the end is right and what it costs.

use std::collections::BTreeMap;

use super::{Choice, Probe, seen::Seen};
use crate::statistics::{Estimate, Field, ROUNDING, Run, WORTH, middle};

/// Of values that differ by no more than this, the smaller one is taken.
const SAME: f64 = 0.01;
/// Trials beside the rise, at most.
const MOST_AFTER_RISE: u64 = 12;
/// Trials kept back for repeats while values are looked for.
const FOR_REPEATS: u64 = 3;
/// Values in a round of repeats, at most.
const MOST_IN_ROUND: usize = 3;
/// Neighbouring values that differ by less than this factor are not told apart any further.
const CLOSE: f64 = 1.1;
/// A slope is taken over values that differ by this factor at least: over less it is noise.
const SPAN: f64 = 1.5;
/// How much more than it promises a gap may hold when the search ends, by the square of the spread from run to run: at 2 % a twenty-fifth more, at 5 % a quarter.
/// Chosen by `benches/searches.rs`: with the spread alone, one search in seventeen over a cliff at a spread of 5 % named no value near the best.
const UNSURE: f64 = 100.0;
/// How far into a gap the golden section lies.
const GOLDEN: f64 = 0.381_966;
/// Blocks: each value once, and all repeats, which run in turns. A drift between the two is no difference of values.
const LOOKING: u64 = 1;
const REPEATING: u64 = 2;

/// What can be raced: values by their places from 0, smallest first.
pub(super) trait Values {
    fn choice(&self, place: usize, repeat: u64) -> Choice;
    fn number(&self, place: usize) -> f64;
    /// The place of the largest number that is no more than so much.
    fn up_to(&self, number: f64) -> usize;
    /// Of a trial whose value can be chosen.
    fn speed(&self, probe: &Probe) -> Option<f64>;

    /// The last place between two that is worth a trial; `None` if there is none. The upper one may be a value that cannot be chosen.
    fn last_between(&self, _: &Race<'_, Self>, low: usize, high: usize) -> Option<usize>
    where
        Self: Sized,
    {
        (high - low > 1).then(|| high - 1)
    }

    /// Above a place, the one from which on the speed should no longer rise.
    fn rises_to(&self, _: &Race<'_, Self>, _: usize) -> Option<usize>
    where
        Self: Sized,
    {
        None
    }

    /// How much faster than this value a larger one can be at most, as a share, where its runs show it.
    fn most_gain(&self, _: &Race<'_, Self>, _: usize) -> Option<f64>
    where
        Self: Sized,
    {
        None
    }
}

/// The runs of one value.
#[derive(Clone, Debug, Default)]
struct Entry<'a> {
    asked: u64,
    runs: Vec<(Run, &'a Probe)>,
    /// The first trial of the search, which fills the page cache: it counts while there is no other run of its value.
    first: Option<(Run, &'a Probe)>,
    /// A run could not be chosen.
    is_out: bool,
}

impl<'a> Entry<'a> {
    fn counted(&self) -> &[(Run, &'a Probe)] {
        if self.runs.is_empty() { self.first.as_slice() } else { &self.runs }
    }

    fn may_be_chosen(&self) -> bool {
        !self.is_out && !self.counted().is_empty()
    }
}

/// The runs so far.
pub(super) struct Race<'a, V> {
    values: &'a V,
    pub(super) seen: &'a Seen<'a>,
    repeats: u64,
    entries: BTreeMap<usize, Entry<'a>>,
    asked: u64,
    /// Trials, at most.
    most: u64,
}

/// How a race ended.
pub(super) struct End {
    pub(super) standings: Standings,
    /// The smallest value that is as fast as any that was run.
    pub(super) choice: Option<usize>,
    /// Without a choice: those that may be the fastest, the smallest first.
    pub(super) alike: Vec<usize>,
    /// Neighbours among those that were run, between which there may be a faster one.
    pub(super) gaps: Vec<(usize, usize)>,
}

impl End {
    /// The value to take: of those that cannot be told apart the smallest whose speed, as far as it is known, is that of the fastest within [`WORTH`].
    pub(super) fn proposed(&self) -> Option<usize> {
        let enough = self.standings.highest() - WORTH.ln_1p() - ROUNDING;
        self.choice.or_else(|| self.alike.iter().copied().find(|place| self.standings.log(*place).is_some_and(|log| log >= enough)))
    }
}

/// Values that can be chosen, compared with one another.
pub(super) struct Standings {
    pub(super) places: Vec<usize>,
    /// Logarithms of their speeds, whatever their origin.
    logs: Vec<f64>,
    /// `None` while nothing is repeated.
    field: Option<Field>,
}

/// Places between two that were run.
struct Gap {
    low: usize,
    high: usize,
    last: usize,
    /// The logarithm of the speed that may be hidden in it, at most.
    most: f64,
}

impl Standings {
    fn of(entries: &BTreeMap<usize, Entry<'_>>) -> Self {
        let of_entry = |entry: &Entry<'_>| entry.counted().iter().map(|(run, _)| *run).collect::<Vec<Run>>();
        let usable = entries.iter().filter(|(_, entry)| entry.may_be_chosen());
        let (places, runs): (Vec<usize>, Vec<Vec<Run>>) = usable.map(|(place, entry)| (*place, of_entry(entry))).unzip();
        let field = Field::of(&runs);
        let log = |place: usize| match &field {
            Some(field) => field.compare(0, place, 1).map_or(f64::NEG_INFINITY, |estimate| estimate.ratio.ln()),
            None => runs[place].iter().map(|run| run.value.ln()).sum::<f64>() / runs[place].len() as f64,
        };
        Self { logs: (0..places.len()).map(log).collect(), places, field }
    }

    fn log(&self, place: usize) -> Option<f64> {
        self.places.binary_search(&place).ok().map(|index| self.logs[index])
    }

    /// The fastest; of equals the smaller.
    pub(super) fn fastest(&self) -> Option<usize> {
        let all = self.places.iter().zip(&self.logs);
        all.reduce(|best, next| if *next.1 > *best.1 { next } else { best }).map(|(place, _)| *place)
    }

    fn highest(&self) -> f64 {
        self.logs.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The speed of a value as a ratio to another's; `None` while nothing is repeated.
    pub(super) fn compare(&self, base: usize, new: usize) -> Option<Estimate> {
        let index = |place: usize| self.places.binary_search(&place).ok();
        self.field.as_ref()?.compare(index(base)?, index(new)?, 1)
    }

    /// Standard deviation from run to run, as a share.
    pub(super) fn spread(&self) -> Option<f64> {
        self.field.as_ref().map(Field::spread)
    }

    /// Those that are not shown to be slower than the fastest, the smallest first.
    fn contenders(&self) -> Vec<usize> {
        let Some(fastest) = self.fastest().filter(|_| self.field.is_some()) else { return self.places.clone() };
        let may_be = |place: &usize| *place == fastest || self.compare(fastest, *place).is_some_and(|estimate| !estimate.is_below());
        self.places.iter().copied().filter(may_be).collect()
    }

    /// Ranked, the fastest first.
    fn ranked(&self, mut places: Vec<usize>) -> Vec<usize> {
        places.sort_by(|one, other| self.log(*other).unwrap_or(f64::NEG_INFINITY).total_cmp(&self.log(*one).unwrap_or(f64::NEG_INFINITY)));
        places
    }
}

impl<'a, V: Values> Race<'a, V> {
    /// `most` is how many trials may be run in all.
    pub(super) fn new(values: &'a V, seen: &'a Seen<'a>, repeats: u64, most: u64) -> Self {
        Self { values, seen, repeats, entries: BTreeMap::new(), asked: 0, most }
    }

    /// Runs a value for the first time.
    pub(super) fn look(&mut self, place: usize) -> Result<&'a Probe, Vec<Choice>> {
        let probe = self.seen.one(self.values.choice(place, 0))?;
        self.note(place, probe, LOOKING);
        Ok(probe)
    }

    fn note(&mut self, place: usize, probe: &'a Probe, block: u64) {
        let is_first = self.asked == 0;
        self.asked += 1;
        let entry = self.entries.entry(place).or_default();
        entry.asked += 1;
        match self.values.speed(probe).map(|value| (Run { block: Some(block), is_disturbed: probe.is_disturbed, ..Run::of(value) }, probe)) {
            Some(run) if is_first => entry.first = Some(run),
            Some(run) => entry.runs.push(run),
            None => entry.is_out = true,
        }
    }

    /// Runs values once more, in turns.
    fn run_round(&mut self, places: &[usize], block: u64) -> Result<(), Vec<Choice>> {
        let asked = |place: &usize| self.entries.get(place).map_or(0, |entry| entry.asked);
        let probes = self.seen.all(places.iter().map(|place| self.values.choice(*place, asked(place))).collect())?;
        places.iter().zip(probes).for_each(|(place, probe)| self.note(*place, probe, block));
        Ok(())
    }

    /// Speeds of the runs of a value that count.
    pub(super) fn speeds(&self, place: usize) -> Vec<f64> {
        self.entries.get(&place).into_iter().flat_map(Entry::counted).map(|(run, _)| run.value).collect()
    }

    /// Those of its runs that count.
    pub(super) fn probes(&self, place: usize) -> impl Iterator<Item = &'a Probe> {
        self.entries.get(&place).into_iter().flat_map(Entry::counted).map(|(_, probe)| *probe)
    }

    /// As it was measured; of several runs their geometric mean.
    pub(super) fn speed(&self, place: usize) -> Option<f64> {
        middle(&self.speeds(place))
    }

    /// The value of the first trial, if that does not count.
    pub(super) fn left_out(&self) -> Option<usize> {
        self.entries.iter().find(|(_, entry)| entry.first.is_some() && !entry.runs.is_empty()).map(|(place, _)| *place)
    }

    /// The largest speed so far of a run that counts.
    pub(super) fn best(&self) -> Option<f64> {
        let usable = self.entries.values().filter(|entry| entry.may_be_chosen());
        usable.flat_map(Entry::counted).map(|(run, _)| run.value).reduce(f64::max)
    }

    /// All places that were run, the smallest first.
    pub(super) fn places(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.entries.keys().copied()
    }

    fn left(&self) -> u64 {
        self.most.saturating_sub(self.asked)
    }

    /// From the rise to the end.
    pub(super) fn finish(&mut self) -> Result<End, Vec<Choice>> {
        self.most = self.most.min(self.asked + MOST_AFTER_RISE);
        self.repeat_first()?;
        self.look_around()?;
        self.repeat()?;
        Ok(self.end())
    }

    /// Runs the first value again where it may be among the fastest: its first run does not count.
    fn repeat_first(&mut self) -> Result<(), Vec<Choice>> {
        let nearest: Vec<usize> = self.places().take(2).collect();
        let first = self.entries.iter().find(|(_, entry)| entry.first.is_some()).map(|(place, _)| *place);
        let is_near = Standings::of(&self.entries).fastest().is_some_and(|fastest| nearest.contains(&fastest));
        match first {
            Some(first) if is_near && self.repeats > 1 && self.left() > 0 && !self.is_enough(first) => self.run_round(&[first], LOOKING),
            _ => Ok(()),
        }
    }

    /// Tries values where a faster one may be hidden, and one beside the fastest.
    fn look_around(&mut self) -> Result<(), Vec<Choice>> {
        let kept = if self.repeats > 1 { FOR_REPEATS } else { 0 };
        while self.left() > kept {
            let Some(place) = self.hidden(&Standings::of(&self.entries), WORTH.ln_1p()) else { break };
            self.look(place)?;
        }
        if self.left() > kept
            && let Some(place) = self.beside_fastest(&Standings::of(&self.entries))
        {
            self.look(place)?;
        }
        Ok(())
    }

    /// Repeats those that cannot be told apart; once one is as fast as any, what is left goes to values near it.
    fn repeat(&mut self) -> Result<(), Vec<Choice>> {
        while self.left() > 0 {
            let standings = Standings::of(&self.entries);
            if standings.places.is_empty() {
                break;
            }
            if self.repeats > 1 && self.decided(&standings).is_none() {
                self.run_round(&self.round(&standings), REPEATING)?;
                continue;
            }
            let next = self.hidden(&standings, Self::margin(&standings)).or_else(|| self.beside_fastest(&standings));
            let Some(place) = next else { break };
            self.run_round(&[place], if self.repeats > 1 { REPEATING } else { LOOKING })?;
        }
        Ok(())
    }

    /// The fastest of those that may be the fastest; a round that would leave one trial takes it in.
    fn round(&self, standings: &Standings) -> Vec<usize> {
        let ranked = standings.ranked(standings.contenders());
        let count = ranked.len().min(MOST_IN_ROUND).min(self.left() as usize);
        let count = if self.left() as usize == count + 1 { count + 1 } else { count };
        ranked.into_iter().take(count).collect()
    }

    /// Whether no larger value can be faster by so much that it counts.
    fn is_enough(&self, place: usize) -> bool {
        self.values.most_gain(self, place).is_some_and(|gain| gain <= WORTH)
    }

    /// The smallest value that is as fast as any that was run: none is faster by more than [`WORTH`], by its interval or because no larger one can
    /// be. A value that is slower, if by less than that, is taken only within [`SAME`].
    fn decided(&self, standings: &Standings) -> Option<usize> {
        let fastest = standings.fastest()?;
        if standings.field.is_none() {
            return (standings.places.first() == Some(&fastest) && self.is_enough(fastest)).then_some(fastest);
        }
        let contenders = standings.contenders();
        let is_as_fast = |place: usize| {
            let highest = standings.log(fastest).zip(standings.log(place)).map_or(f64::INFINITY, |(fastest, own)| fastest - own);
            (contenders.contains(&place) || highest <= SAME.ln_1p())
                && standings.places.iter().all(|other| {
                    let by_interval = || standings.compare(place, *other).is_some_and(|estimate| estimate.excludes_higher(WORTH));
                    *other == place || (*other > place && self.is_enough(place)) || by_interval()
                })
        };
        standings.places.iter().copied().find(|place| is_as_fast(*place))
    }

    fn end(&self) -> End {
        let standings = Standings::of(&self.entries);
        let choice = match standings.field {
            Some(_) => self.decided(&standings),
            None => standings.fastest(),
        };
        let alike = if choice.is_none() { standings.contenders() } else { Vec::new() };
        let best = standings.highest() + WORTH.ln_1p() - UNSURE * standings.spread().unwrap_or_default().powi(2);
        let gaps = self.gaps(&standings).into_iter().filter(|gap| gap.most > best).map(|gap| (gap.low, gap.high)).collect();
        End { choice, alike, gaps, standings }
    }

    /// How much more than the fastest a gap must promise for a trial: less where runs vary, so that the slope is unsure.
    fn margin(standings: &Standings) -> f64 {
        WORTH.ln_1p() - standings.spread().unwrap_or_default().ln_1p()
    }

    fn hidden(&self, standings: &Standings, margin: f64) -> Option<usize> {
        let best = standings.highest() + margin;
        let wide = self.gaps(standings).into_iter().filter(|gap| gap.most > best && !self.is_close(gap.low, gap.last + 1));
        let gap = wide.reduce(|one, other| if other.most > one.most { other } else { one })?;
        let middle = (self.log_number(gap.low) + self.log_number(gap.high)) / 2.0;
        let ends_early = gap.last + 1 < gap.high;
        Some(if ends_early { gap.last } else { self.values.up_to((middle.exp() + ROUNDING).floor()).clamp(gap.low + 1, gap.last) })
    }

    fn log_number(&self, place: usize) -> f64 {
        self.values.number(place).max(0.5).ln()
    }

    fn is_close(&self, low: usize, high: usize) -> bool {
        high - low <= 1 || self.log_number(high) - self.log_number(low) <= CLOSE.ln()
    }

    /// The gaps above values that can be chosen, with the speed that each may hide: as if it rose in the gap as it did before it.
    fn gaps(&self, standings: &Standings) -> Vec<Gap> {
        let tried: Vec<usize> = self.places().collect();
        let gap = |pair: &[usize]| {
            let (low, high) = (pair[0], pair[1]);
            let own = standings.log(low)?;
            let last = self.values.last_between(self, low, high)?;
            let risen = own + self.slope(standings, low) * (self.log_number(last) - self.log_number(low));
            let most = self.values.most_gain(self, low).map_or(f64::INFINITY, |gain| own + gain.ln_1p());
            Some(Gap { low, high, last, most: risen.min(most) })
        };
        tried.windows(2).filter_map(gap).collect()
    }

    /// By which power of the number the speed rises up to a place: 1, the most there is, where no run shows it. Up from the first trial of the search,
    /// which may have been slow for another reason, nothing is taken to rise: where it matters that value has run again.
    fn slope(&self, standings: &Standings, place: usize) -> f64 {
        let far = |other: &usize| self.values.number(*other) > 0.0 && self.values.number(*other) * SPAN <= self.values.number(place);
        let before = standings.places.iter().copied().rev().find(far);
        if before.and_then(|before| self.entries.get(&before)).is_some_and(|entry| entry.runs.is_empty()) {
            return 0.0;
        }
        let slope = before.and_then(|before| {
            let rise = standings.log(place)? - standings.log(before)?;
            Some(rise / (self.log_number(place) - self.log_number(before)))
        });
        slope.unwrap_or(1.0).clamp(0.0, 1.0)
    }

    /// A place in the wider gap beside the fastest: where the speed should stop rising, else in the golden section; nowhere once both are small.
    fn beside_fastest(&self, standings: &Standings) -> Option<usize> {
        let fastest = standings.fastest()?;
        let below = self.entries.range(..fastest).next_back().map(|(place, _)| *place);
        let above = self.entries.range(fastest + 1..).next().map(|(place, _)| *place);
        let gap = |other: usize| {
            let (low, high) = (fastest.min(other), fastest.max(other));
            let last = self.values.last_between(self, low, high)?;
            let (from, to) = (self.log_number(fastest), self.log_number(other));
            let golden = || self.values.up_to(((from + (to - from) * GOLDEN).exp()).round()).clamp(low + 1, last);
            let stops = self.values.rises_to(self, low).filter(|place| low == other && (low + 1..=last).contains(place));
            let place = stops.unwrap_or_else(golden);
            (!self.is_close(low, last + 1)).then_some(((to - from).abs(), place))
        };
        // Of gaps that are equally wide the upper one: most curves rise.
        let gaps = [above, below].into_iter().flatten().filter_map(gap);
        gaps.reduce(|one, other| if other.0 > one.0 + ROUNDING { other } else { one }).map(|(_, place)| place)
    }
}

/// Of a grid this part may be run in its place.
const ONE_IN: u64 = 4;

/// Trials that a search may take: a quarter of the grid that it stands for, and where that is little at least so many, if the grid has them.
pub(super) fn allowed(values: u64, repeats: u64, least: u64) -> u64 {
    let grid = values.saturating_mul(repeats);
    grid.min((grid / ONE_IN).max(least))
}
