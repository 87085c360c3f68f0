//! Finds the fastest of many values in few trials: tests each part of the range, then alternates
//! repeats of the values that cannot be told apart.
//!
//! In: the values with their first runs (the rise of a search). Out: the [`RaceEnd`] of the race:
//! one value that is as fast as every tested value, or the values that cannot be told apart. All
//! comparisons use [`statistics::Field`](crate::statistics::Field): one spread, pooled over all
//! repeats, and 95 % intervals. `benches/searches.rs` measures how often the result is right and
//! its cost.

mod standings;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Probe, SearchTrial, seen::Probes};
use crate::{
    statistics::{ROUNDING, SEARCH_EQUAL, TimedRun, WORTH, middle},
    units::counted,
};

pub(super) use standings::Standings;

/// Maximum trials in addition to the rise.
const MOST_AFTER_RISE: u64 = 12;
/// Trials reserved for repeats while values are explored.
const FOR_REPEATS: u64 = 3;
/// Maximum values in a round of repeats.
const MOST_IN_ROUND: usize = 3;
/// Neighboring values that differ by less than this factor are not separated further.
const CLOSE: f64 = 1.1;
/// A slope needs values that differ by at least this factor: below it, noise dominates.
const SPAN: f64 = 1.5;
/// Factor for the margin on a gap's promise when the search ends, by the squared run-to-run spread:
/// at 2 % spread 4 % more, at 5 % 25 % more. Chosen by `benches/searches.rs`: without it, one
/// search in 17 over a cliff at a spread of 5 % named no value near the best.
const UNSURE: f64 = 100.0;
/// Relative position of the golden section in a gap.
const GOLDEN: f64 = 0.381_966;
/// Blocks: the first runs of all values, and all repeats, which alternate. A drift between the two
/// is not a difference between values.
const LOOKING: u64 = 1;
const REPEATING: u64 = 2;

/// A set of values that can be raced, by index from 0, smallest first.
pub(super) trait Values {
    fn choice(&self, place: usize, repeat: u64) -> SearchTrial;
    fn number(&self, place: usize) -> f64;
    /// Index of the largest number that does not exceed the argument.
    fn up_to(&self, number: f64) -> usize;
    /// Speed of a trial whose value may be chosen.
    fn speed(&self, probe: &Probe) -> Option<f64>;

    /// The largest index between two that is worth a trial; `None` if there is none. The upper one
    /// may be a value that cannot be chosen.
    fn last_between(&self, _: &Race<'_, Self>, low: usize, high: usize) -> Option<usize>
    where
        Self: Sized,
    {
        (high - low > 1).then(|| high - 1)
    }

    /// Index above the given one from which the speed should no longer rise.
    fn rises_to(&self, _: &Race<'_, Self>, _: usize) -> Option<usize>
    where
        Self: Sized,
    {
        None
    }

    /// Upper bound of the gain of a larger value over this one, as a fraction, if its runs show
    /// one.
    fn most_gain(&self, _: &Race<'_, Self>, _: usize) -> Option<f64>
    where
        Self: Sized,
    {
        None
    }
}

/// The runs of one value.
#[derive(Clone, Debug, Default)]
struct RaceEntry<'a> {
    asked: u64,
    runs: Vec<(TimedRun, &'a Probe)>,
    /// The first trial of the search, which fills the page cache: it counts only while its value
    /// has no other run.
    first: Option<(TimedRun, &'a Probe)>,
    /// A run whose value cannot be chosen.
    is_out: bool,
}

impl<'a> RaceEntry<'a> {
    fn counted(&self) -> &[(TimedRun, &'a Probe)] {
        if self.runs.is_empty() {
            self.first.as_slice()
        } else {
            &self.runs
        }
    }

    fn may_be_chosen(&self) -> bool {
        !self.is_out && !self.counted().is_empty()
    }
}

/// The runs so far.
pub(super) struct Race<'a, V> {
    values: &'a V,
    pub(super) seen: &'a Probes<'a>,
    repeats: u64,
    entries: BTreeMap<usize, RaceEntry<'a>>,
    asked: u64,
    /// Maximum number of trials.
    most: u64,
    /// The file's own value, which always takes part.
    own: Option<usize>,
}

/// The result of a race.
pub(super) struct RaceEnd {
    pub(super) standings: Standings,
    /// The smallest value that is as fast as every tested value.
    pub(super) choice: Option<usize>,
    /// If there is no choice: the values that may be the fastest, smallest first.
    pub(super) alike: Vec<usize>,
    /// Neighboring tested values with a possibly faster value between them.
    pub(super) gaps: Vec<(usize, usize)>,
}

impl RaceEnd {
    /// The proposed value: among those that cannot be told apart, the smallest whose measured speed
    /// is within [`WORTH`] of the fastest.
    pub(super) fn proposed(&self) -> Option<usize> {
        let enough = self.standings.highest() - WORTH.ln_1p() - ROUNDING;
        self.choice.or_else(|| {
            self.alike
                .iter()
                .copied()
                .find(|place| self.standings.log(*place).is_some_and(|log| log >= enough))
        })
    }
}

/// A clause for the choice of [`RaceEnd::proposed`] where the plain means of runs, which come from other
/// rounds, would not make it; empty where they would.
pub(super) fn within_rounds(speeds: &[f64], proposed: Option<f64>) -> &'static str {
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    match proposed {
        Some(own) if own * (1.0 + WORTH) < fastest => {
            ", where runs of one round are compared with each other (the means are of other rounds)"
        }
        _ => "",
    }
}

/// The gap between two tested indices.
struct Gap {
    low: usize,
    high: usize,
    last: usize,
    /// Upper bound of the logarithm of the speed within the gap.
    most: f64,
}

impl<'a, V: Values> Race<'a, V> {
    /// `most` is the maximum number of trials in total, without that of the file's own value where
    /// the rise does not come by it.
    pub(super) fn new(
        values: &'a V,
        seen: &'a Probes<'a>,
        repeats: u64,
        most: u64,
        own: Option<usize>,
    ) -> Self {
        Self {
            values,
            seen,
            repeats,
            entries: BTreeMap::new(),
            asked: 0,
            most,
            own,
        }
    }

    /// Runs a value for the first time.
    pub(super) fn look(&mut self, place: usize) -> Result<&'a Probe, Vec<SearchTrial>> {
        let probe = self.seen.one(self.values.choice(place, 0))?;
        self.note(place, probe, LOOKING);
        Ok(probe)
    }

    fn note(&mut self, place: usize, probe: &'a Probe, block: u64) {
        let is_first = self.asked == 0;
        self.asked += 1;
        let entry = self.entries.entry(place).or_default();
        entry.asked += 1;
        match self.values.speed(probe).map(|value| {
            (
                TimedRun {
                    block: Some(block),
                    is_disturbed: probe.is_disturbed,
                    ..TimedRun::of(value)
                },
                probe,
            )
        }) {
            Some(run) if is_first => entry.first = Some(run),
            Some(run) => entry.runs.push(run),
            None => entry.is_out = true,
        }
    }

    /// Runs values again, alternating.
    fn run_round(&mut self, places: &[usize], block: u64) -> Result<(), Vec<SearchTrial>> {
        let asked = |place: &usize| self.entries.get(place).map_or(0, |entry| entry.asked);
        let probes = self.seen.all(
            places
                .iter()
                .map(|place| self.values.choice(*place, asked(place)))
                .collect(),
        )?;
        places
            .iter()
            .zip(probes)
            .for_each(|(place, probe)| self.note(*place, probe, block));
        Ok(())
    }

    /// Speeds of the valid runs of a value.
    pub(super) fn speeds(&self, place: usize) -> Vec<f64> {
        self.entries
            .get(&place)
            .into_iter()
            .flat_map(RaceEntry::counted)
            .map(|(run, _)| run.value)
            .collect()
    }

    /// The valid runs of a value.
    pub(super) fn probes(&self, place: usize) -> impl Iterator<Item = &'a Probe> {
        self.entries
            .get(&place)
            .into_iter()
            .flat_map(RaceEntry::counted)
            .map(|(_, probe)| *probe)
    }

    /// The searched keys of a value, with what they are set to.
    pub(super) fn chosen(&self, place: usize) -> Vec<(String, Value)> {
        self.values.choice(place, 0).values
    }

    /// The first trial of a value that was run.
    pub(super) fn first(&self, place: usize) -> Option<&'a Probe> {
        self.seen.one(self.values.choice(place, 0)).ok()
    }

    /// The trial of a value that did not complete, if there is one; else the first.
    pub(super) fn worst(&self, place: usize) -> Option<&'a Probe> {
        let values = self.chosen(place);
        let own = |probe: &&Probe| probe.choice.values == values && !probe.completed();
        self.seen.ended().find(own).or_else(|| self.first(place))
    }

    /// The measured speed; for several runs their geometric mean.
    pub(super) fn speed(&self, place: usize) -> Option<f64> {
        middle(&self.speeds(place))
    }

    /// The same, or the speed of a value's first run where that is not part of the race; `Err`
    /// where it was not run, `Ok(None)` where it had no speed.
    pub(super) fn known_speed(&self, place: usize) -> Result<Option<f64>, Vec<SearchTrial>> {
        match self.speed(place) {
            Some(speed) => Ok(Some(speed)),
            None => {
                let first = self.seen.one(self.values.choice(place, 0))?;
                Ok(self.values.speed(first))
            }
        }
    }

    /// The value of the first trial, if that trial does not count.
    pub(super) fn left_out(&self) -> Option<usize> {
        self.entries
            .iter()
            .find(|(_, entry)| entry.first.is_some() && !entry.runs.is_empty())
            .map(|(place, _)| *place)
    }

    /// The highest speed of a valid run so far.
    pub(super) fn best(&self) -> Option<f64> {
        let usable = self.entries.values().filter(|entry| entry.may_be_chosen());
        usable
            .flat_map(RaceEntry::counted)
            .map(|(run, _)| run.value)
            .reduce(f64::max)
    }

    /// All tested indices, smallest first.
    pub(super) fn places(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.entries.keys().copied()
    }

    /// Why the search stopped; `rise` says why its first phase did.
    pub(super) fn stopped(&self, end: &RaceEnd, rise: &str) -> String {
        let then = match (self.left(), end.choice) {
            (0, _) => format!("the {} trials of its budget are used", self.asked),
            (_, Some(_)) => format!(
                "no other value can be faster by more than noise, as far as the {} ones show",
                match self.has_unmeasured() {
                    true => "measured",
                    false => "tested",
                }
            ),
            (_, None) => format!(
                "each candidate has had its {}, and their differences are within noise",
                counted(self.repeats as usize, "run")
            ),
        };
        format!("the search stopped trying larger values because {rise}, and ended because {then}")
    }

    /// Whether a value completed without a speed, so that nothing is known of how fast it is.
    pub(super) fn has_unmeasured(&self) -> bool {
        self.entries.iter().any(|(place, entry)| {
            let completed = |probe: &Probe| probe.completed() && probe.speed().is_none();
            entry.counted().is_empty() && self.first(*place).is_some_and(completed)
        })
    }

    fn left(&self) -> u64 {
        self.most.saturating_sub(self.asked)
    }

    /// Runs the race after the rise.
    pub(super) fn finish(&mut self) -> Result<RaceEnd, Vec<SearchTrial>> {
        self.most = self.most.min(self.asked + MOST_AFTER_RISE);
        if let Some(own) = self.own.filter(|own| !self.entries.contains_key(own)) {
            self.most += 1;
            self.look(own)?;
        }
        self.repeat_first()?;
        self.look_around()?;
        self.repeat()?;
        Ok(self.end())
    }

    /// Repeats the first value if it may be among the fastest: its first run does not count.
    fn repeat_first(&mut self) -> Result<(), Vec<SearchTrial>> {
        let nearest: Vec<usize> = self.places().take(2).collect();
        let first = self
            .entries
            .iter()
            .find(|(_, entry)| entry.first.is_some())
            .map(|(place, _)| *place);
        let is_near = Standings::of(&self.entries)
            .fastest()
            .is_some_and(|fastest| nearest.contains(&fastest));
        match first {
            Some(first)
                if is_near && self.repeats > 1 && self.left() > 0 && !self.is_enough(first) =>
            {
                self.run_round(&[first], LOOKING)
            }
            _ => Ok(()),
        }
    }

    /// Tests values in gaps that may hold a faster one, and one next to the fastest.
    fn look_around(&mut self) -> Result<(), Vec<SearchTrial>> {
        let kept = if self.repeats > 1 { FOR_REPEATS } else { 0 };
        while self.left() > kept {
            let Some(place) = self.hidden(&Standings::of(&self.entries), WORTH.ln_1p()) else {
                break;
            };
            self.look(place)?;
        }
        if self.left() > kept
            && let Some(place) = self.beside_fastest(&Standings::of(&self.entries))
        {
            self.look(place)?;
        }
        Ok(())
    }

    /// Repeats the values that cannot be told apart; once one is as fast as every other, the
    /// remaining trials test values near it.
    fn repeat(&mut self) -> Result<(), Vec<SearchTrial>> {
        while self.left() > 0 {
            let standings = Standings::of(&self.entries);
            if standings.places.is_empty() {
                break;
            }
            if self.repeats > 1 && self.decided(&standings).is_none() {
                self.run_round(&self.round(&standings), REPEATING)?;
                continue;
            }
            let next = self
                .hidden(&standings, Self::margin(&standings))
                .or_else(|| self.beside_fastest(&standings));
            let Some(place) = next else { break };
            self.run_round(&[place], if self.repeats > 1 { REPEATING } else { LOOKING })?;
        }
        Ok(())
    }

    /// The fastest of the candidates; a round that would leave a single trial includes it.
    fn round(&self, standings: &Standings) -> Vec<usize> {
        let ranked = standings.ranked(standings.contenders());
        let count = ranked.len().min(MOST_IN_ROUND).min(self.left() as usize);
        let count = if self.left() as usize == count + 1 {
            count + 1
        } else {
            count
        };
        ranked.into_iter().take(count).collect()
    }

    /// Whether no larger value can be faster by a relevant amount.
    fn is_enough(&self, place: usize) -> bool {
        self.values
            .most_gain(self, place)
            .is_some_and(|gain| gain <= WORTH)
    }

    /// The smallest value that is as fast as every tested value: none is faster by more than
    /// [`WORTH`], by its interval or because no larger one can be. A value that is slower by less
    /// than that is chosen only within [`SEARCH_EQUAL`].
    fn decided(&self, standings: &Standings) -> Option<usize> {
        let fastest = standings.fastest()?;
        if standings.field.is_none() {
            return (standings.places.first() == Some(&fastest) && self.is_enough(fastest))
                .then_some(fastest);
        }
        let contenders = standings.contenders();
        let is_as_fast = |place: usize| {
            let highest = standings
                .log(fastest)
                .zip(standings.log(place))
                .map_or(f64::INFINITY, |(fastest, own)| fastest - own);
            (contenders.contains(&place) || highest <= SEARCH_EQUAL.ln_1p())
                && standings.places.iter().all(|other| {
                    let by_interval = || {
                        standings
                            .compare(place, *other)
                            .is_some_and(|estimate| estimate.excludes_higher(WORTH))
                    };
                    *other == place || (*other > place && self.is_enough(place)) || by_interval()
                })
        };
        standings
            .places
            .iter()
            .copied()
            .find(|place| is_as_fast(*place))
    }

    fn end(&self) -> RaceEnd {
        let standings = Standings::of(&self.entries);
        let choice = match standings.field {
            Some(_) => self.decided(&standings),
            None => standings.fastest(),
        };
        let alike = if choice.is_none() {
            standings.contenders()
        } else {
            Vec::new()
        };
        let best = standings.highest() + WORTH.ln_1p()
            - UNSURE * standings.spread().unwrap_or_default().powi(2);
        let gaps = self
            .gaps(&standings)
            .into_iter()
            .filter(|gap| gap.most > best)
            .map(|gap| (gap.low, gap.high))
            .collect();
        RaceEnd {
            choice,
            alike,
            gaps,
            standings,
        }
    }

    /// Factor over the fastest that a gap must promise to deserve a trial: lower if runs vary,
    /// because the slope is then uncertain.
    fn margin(standings: &Standings) -> f64 {
        WORTH.ln_1p() - standings.spread().unwrap_or_default().ln_1p()
    }

    fn hidden(&self, standings: &Standings, margin: f64) -> Option<usize> {
        let best = standings.highest() + margin;
        let wide = self
            .gaps(standings)
            .into_iter()
            .filter(|gap| gap.most > best && !self.is_close(gap.low, gap.last + 1));
        let gap = wide.reduce(|one, other| if other.most > one.most { other } else { one })?;
        let middle = (self.log_number(gap.low) + self.log_number(gap.high)) / 2.0;
        let ends_early = gap.last + 1 < gap.high;
        Some(if ends_early {
            gap.last
        } else {
            self.values
                .up_to((middle.exp() + ROUNDING).floor())
                .clamp(gap.low + 1, gap.last)
        })
    }

    fn log_number(&self, place: usize) -> f64 {
        self.values.number(place).max(0.5).ln()
    }

    fn is_close(&self, low: usize, high: usize) -> bool {
        high - low <= 1 || self.log_number(high) - self.log_number(low) <= CLOSE.ln()
    }

    /// The gaps above values that can be chosen, with the maximum speed within each: the rise
    /// before the gap is extrapolated into it.
    fn gaps(&self, standings: &Standings) -> Vec<Gap> {
        let tried: Vec<usize> = self.places().collect();
        let gap = |pair: &[usize]| {
            let (low, high) = (pair[0], pair[1]);
            let own = standings.log(low)?;
            let last = self.values.last_between(self, low, high)?;
            let risen =
                own + self.slope(standings, low) * (self.log_number(last) - self.log_number(low));
            let most = self
                .values
                .most_gain(self, low)
                .map_or(f64::INFINITY, |gain| own + gain.ln_1p());
            Some(Gap {
                low,
                high,
                last,
                most: risen.min(most),
            })
        };
        tried.windows(2).filter_map(gap).collect()
    }

    /// Exponent of the rise of the speed up to an index: 1, the maximum, if no run shows it. The
    /// first trial of the search may have been slow for another reason, so no rise is assumed from
    /// it; if it matters, its value runs again.
    fn slope(&self, standings: &Standings, place: usize) -> f64 {
        let far = |other: &usize| {
            self.values.number(*other) > 0.0
                && self.values.number(*other) * SPAN <= self.values.number(place)
        };
        let before = standings.places.iter().copied().rev().find(far);
        if before
            .and_then(|before| self.entries.get(&before))
            .is_some_and(|entry| entry.runs.is_empty())
        {
            return 0.0;
        }
        let slope = before.and_then(|before| {
            let rise = standings.log(place)? - standings.log(before)?;
            Some(rise / (self.log_number(place) - self.log_number(before)))
        });
        slope.unwrap_or(1.0).clamp(0.0, 1.0)
    }

    /// An index in the wider gap next to the fastest: where the speed should stop rising, else at
    /// the golden section; `None` once both gaps are small.
    fn beside_fastest(&self, standings: &Standings) -> Option<usize> {
        let fastest = standings.fastest()?;
        let below = self
            .entries
            .range(..fastest)
            .next_back()
            .map(|(place, _)| *place);
        let above = self
            .entries
            .range(fastest + 1..)
            .next()
            .map(|(place, _)| *place);
        let gap = |other: usize| {
            let (low, high) = (fastest.min(other), fastest.max(other));
            let last = self.values.last_between(self, low, high)?;
            let (from, to) = (self.log_number(fastest), self.log_number(other));
            let golden = || {
                self.values
                    .up_to(((from + (to - from) * GOLDEN).exp()).round())
                    .clamp(low + 1, last)
            };
            let stops = self
                .values
                .rises_to(self, low)
                .filter(|place| low == other && (low + 1..=last).contains(place));
            let place = stops.unwrap_or_else(golden);
            (!self.is_close(low, last + 1)).then_some(((to - from).abs(), place))
        };
        // The upper one of equally wide gaps: most curves rise.
        let gaps = [above, below].into_iter().flatten().filter_map(gap);
        gaps.reduce(|one, other| {
            if other.0 > one.0 + ROUNDING {
                other
            } else {
                one
            }
        })
        .map(|(_, place)| place)
    }
}

/// Fraction of a grid that may run instead of it.
const ONE_IN: u64 = 4;

/// Maximum trials of a search: a quarter of the grid that it replaces, but at least this many if
/// the grid has them.
pub(super) fn allowed(values: u64, repeats: u64, least: u64) -> u64 {
    let grid = values.saturating_mul(repeats);
    grid.min((grid / ONE_IN).max(least))
}
