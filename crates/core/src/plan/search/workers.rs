//! `workers`: 0, 1, 2, 4, … loader workers while training waits for data and more workers help;
//! then a [`Race`] of the numbers that may be the fastest.

use super::{
    Ask, OwnPlace, Probe, SearchTrial, Strategy, StrategyOutcome, Warning, answer, listed,
    own_value,
    race::{Race, RaceEnd, Values, allowed, within_rounds},
    seen::{Probes, mean},
    warning::{self, speed},
};
use crate::{
    statistics::WORTH,
    units::{Fraction, WholePercent, counted},
};

/// Minimum budget of a search, even if it exceeds a quarter of the grid: 0 to 8 workers by
/// doubling, and three repeats.
const LEAST: u64 = 8;
/// This many numbers in a row with too little gain end the rise.
const MOST_FLAT: usize = 2;
/// Maximum factor between successive numbers of the rise.
const LARGEST_STEP: u64 = 4;

/// The search for the number of loader workers. An index is a number of workers.
pub(super) struct Workers {
    /// The dotted key of the number.
    pub(super) key: String,
    pub(super) most: u64,
    /// The file's own number.
    pub(super) own: u64,
    /// Maximum fraction of the window that training may wait for data.
    pub(super) wait: f64,
    pub(super) repeats: u64,
    pub(super) cores: u64,
    pub(super) gpus: u64,
}

impl Strategy for Workers {
    fn keys(&self) -> Vec<String> {
        vec![self.key.clone()]
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        answer(probes, |seen| self.search(seen))
    }

    fn ranked_speed(&self, probe: &Probe) -> Option<f64> {
        self.speed(probe)
    }

    fn place_of_own(&self) -> OwnPlace {
        match self.own_place() {
            Some(_) => OwnPlace::Raced,
            None => OwnPlace::Outside,
        }
    }
}

impl Values for Workers {
    fn choice(&self, place: usize, repeat: u64) -> SearchTrial {
        SearchTrial::new([(self.key.as_str(), place as u64)], repeat)
    }

    fn number(&self, place: usize) -> f64 {
        place as f64
    }

    fn up_to(&self, number: f64) -> usize {
        (number.max(0.0) as u64).min(self.most) as usize
    }

    fn speed(&self, probe: &Probe) -> Option<f64> {
        probe.speed().filter(|_| probe.completed())
    }

    fn rises_to(&self, race: &Race<'_, Self>, place: usize) -> Option<usize> {
        mean_wait(race, place).map(|wait| needed(place as u64, wait) as usize)
    }

    /// Without any wait for data, training would be faster by the wait; more workers cannot gain
    /// more.
    fn most_gain(&self, race: &Race<'_, Self>, place: usize) -> Option<f64> {
        mean_wait(race, place).map(|wait| wait / (1.0 - wait))
    }
}

fn wait(probe: &Probe) -> Option<f64> {
    probe
        .data_wait_fraction
        .filter(|wait| (0.0..1.0).contains(wait))
}

fn mean_wait(race: &Race<'_, Workers>, place: usize) -> Option<f64> {
    mean(&race.probes(place).filter_map(wait).collect::<Vec<f64>>())
}

/// Number of workers that would remove the wait if each loads as much as the current ones.
fn needed(workers: u64, wait: f64) -> u64 {
    (workers as f64 / (1.0 - wait)).ceil() as u64
}

impl Workers {
    fn search(&self, seen: &Probes<'_>) -> Result<StrategyOutcome, Vec<SearchTrial>> {
        let mut race = Race::new(
            self,
            seen,
            self.repeats,
            allowed(self.most + 1, self.repeats, LEAST),
            self.own_place(),
        );
        self.rise(&mut race)?;
        let rise_ended = self.rise_ended(&race);
        let end = race.finish()?;
        Ok(self.found(&race, &end, rise_ended))
    }

    /// The file's own number, if the search may try it.
    fn own_place(&self) -> Option<usize> {
        (self.own <= self.most).then_some(self.own as usize)
    }

    /// Doubles the number, or jumps to the number that the wait requires, until training hardly
    /// waits for data or two steps gain too little.
    fn rise(&self, race: &mut Race<'_, Self>) -> Result<(), Vec<SearchTrial>> {
        let (mut workers, mut flat) = (0, 0);
        loop {
            let before = race.best();
            let probe = race.look(workers as usize)?;
            let Some(speed) = self.speed(probe) else {
                return Ok(());
            };
            // The first worker only takes over work of the training thread; the gain of parallel
            // loading shows from the second on.
            let is_worth =
                workers <= 1 || before.is_none_or(|before| speed >= before * (1.0 + WORTH));
            flat = if is_worth { 0 } else { flat + 1 };
            let has_enough = wait(probe).is_some_and(|wait| wait <= self.wait);
            if has_enough || flat == MOST_FLAT || workers >= self.most {
                return Ok(());
            }
            workers = self.next(workers, wait(probe));
        }
    }

    /// Number that would remove the wait, limited to two to four times the current number.
    fn next(&self, workers: u64, wait: Option<f64>) -> u64 {
        let needed = wait.map_or(0, |wait| needed(workers, wait));
        needed
            .clamp(2 * workers, LARGEST_STEP * workers)
            .clamp(1, self.most.max(1))
    }

    fn found(&self, race: &Race<'_, Self>, end: &RaceEnd, rise_ended: &str) -> StrategyOutcome {
        let mut warnings: Vec<Warning> = race
            .seen
            .without("samples_per_second", Probe::speed)
            .into_iter()
            .collect();
        let mut notes = vec![self.rules_of_thumb(race)];
        let grid_trials = (self.most + 1).saturating_mul(self.repeats);
        let own = self.own_place().and_then(|own| {
            let unit = race.first(own).map_or("", Probe::unit);
            own_value::in_race(race, end, own, unit)
        });
        let Some(place) = end.proposed() else {
            notes.extend(own);
            warnings.push(Warning::NothingFitted {
                smallest: "that without workers".to_owned(),
            });
            let why = "no number of workers completed with a speed".to_owned();
            return StrategyOutcome {
                why,
                warnings,
                notes,
                grid_trials,
                ..StrategyOutcome::default()
            };
        };
        warnings.extend(self.warnings(race, end, place));
        let first = race.left_out().map(|place| {
            format!(
                "the first trial, with {}, also filled the page cache: its speed is not counted",
                counted(place, "worker")
            )
        });
        notes.extend(first);
        notes.push(race.stopped(end, rise_ended));
        notes.extend(own);
        let why = match end.choice {
            Some(place) => self.why(race, end, place),
            None => self.why_not(race, end),
        };
        let values = |place: &usize| self.choice(*place, 0).values;
        let alike = end.alike.iter().map(values).collect();
        StrategyOutcome {
            chosen: Some(values(&place)),
            alike,
            why,
            warnings,
            notes,
            grid_trials,
            grid_trial_seconds: None,
        }
    }

    fn rise_ended(&self, race: &Race<'_, Self>) -> &'static str {
        let Some(last) = race.places().next_back() else {
            return "none could be run";
        };
        match mean_wait(race, last) {
            Some(wait) if wait <= self.wait => "training hardly waits for data any more",
            _ if last as u64 >= self.most => "the range ends there",
            _ => "further workers brought no gain larger than noise",
        }
    }

    fn warnings(&self, race: &Race<'_, Self>, end: &RaceEnd, place: usize) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let most = end
            .standings
            .places
            .last()
            .copied()
            .filter(|most| *most > place);
        let slower = most.and_then(|most| Some((most, end.standings.compare(place, most)?)));
        if let Some((most, estimate)) = slower.filter(|(_, estimate)| estimate.is_lower(WORTH)) {
            warnings.push(Warning::MoreWorkersSlower {
                workers: most as u64,
                chosen: place as u64,
                slower: 1.0 - estimate.ratio,
            });
        }
        warnings.extend(
            (end.standings.spread().is_none() && !self.is_enough(race, place))
                .then_some(Warning::OneRunEach),
        );
        warnings.extend((!end.alike.is_empty()).then_some(Warning::CannotTell));
        let gaps: Vec<(u64, u64)> = end
            .gaps
            .iter()
            .map(|(low, high)| (*low as u64, *high as u64))
            .collect();
        warnings.extend((!gaps.is_empty()).then_some(Warning::NotRunBetween { gaps }));
        if place as u64 == self.most && mean_wait(race, place).is_none_or(|wait| wait > self.wait) {
            warnings.push(Warning::EndOfRange {
                key: self.key.clone(),
                value: place.to_string(),
                end: warning::RangeEnd::Highest,
            });
        }
        warnings
    }

    /// Whether more workers cannot bring a relevant gain.
    fn is_enough(&self, race: &Race<'_, Self>, place: usize) -> bool {
        self.most_gain(race, place)
            .is_some_and(|gain| gain <= WORTH)
    }

    fn why(&self, race: &Race<'_, Self>, end: &RaceEnd, place: usize) -> String {
        let standings = &end.standings;
        let among = standings.places.len();
        let name = match place {
            1 => "1 worker is".to_owned(),
            _ => format!("{place} workers are"),
        };
        let fastest = standings.fastest().unwrap_or(place);
        let estimate = standings
            .compare(fastest, place)
            .filter(|estimate| estimate.low >= 1.0 / (1.0 + WORTH));
        let is = match (fastest == place, estimate) {
            (true, _) if among > 1 => {
                format!("{name} the fastest of the {among} numbers that were run")
            }
            (false, Some(estimate)) => format!(
                "{name} not slower than {fastest}, the fastest of the {among} numbers that were \
                 run ({:.3} of the speed, 95 %: {:.3} to {:.3})",
                estimate.ratio, estimate.low, estimate.high
            ),
            (true, _) if mean_wait(race, place).is_none() => {
                format!("{name} the only number that ran")
            }
            _ => format!(
                "with {} training hardly waits for data, so more workers bring no gain",
                counted(place, "worker")
            ),
        };
        let runs = race.speeds(place).len();
        let over = if runs > 1 {
            format!("over {}", counted(runs, "run"))
        } else {
            "in one run".to_owned()
        };
        let own = speed(race.speed(place).unwrap_or_default());
        let waits = mean_wait(race, place)
            .map(|wait| format!(", training waited for data {} of the time", Fraction(wait)))
            .unwrap_or_default();
        format!("{is}: {own} per second {over}{waits}")
    }

    fn why_not(&self, race: &Race<'_, Self>, end: &RaceEnd) -> String {
        let numbers = listed(end.alike.iter().map(|place| *place as u64));
        let speeds: Vec<f64> = end
            .alike
            .iter()
            .filter_map(|place| race.speed(*place))
            .collect();
        let [low, high] = [f64::min, f64::max]
            .map(|of| speed(speeds.iter().copied().reduce(of).unwrap_or_default()));
        let spread = Fraction(end.standings.spread().unwrap_or_default());
        let (proposed, worth) = (end.proposed().unwrap_or_default(), WholePercent(WORTH));
        format!(
            "{numbers} workers cannot be told apart: {low} to {high} per second, and runs of one \
             number vary by {spread} (standard deviation); {proposed} is the smallest within \
             {worth} of the fastest of them, as far as their speeds are known{}",
            within_rounds(&speeds, race.speed(proposed))
        )
    }

    /// Rules of thumb without a measurement, and whether each was tested here.
    fn rules_of_thumb(&self, race: &Race<'_, Self>) -> String {
        let rules = [("cores", self.cores), ("cores / 2", self.cores / 2)];
        let of_gpus = (self.gpus > 0).then_some(("4 per GPU", self.gpus.saturating_mul(4)));
        let tell = |(rule, workers): (&str, u64)| {
            let seen = match race.known_speed(workers as usize) {
                Ok(Some(value)) => format!("{} per second", speed(value)),
                Ok(None) => "without a speed".to_owned(),
                Err(_) => "not run".to_owned(),
            };
            format!("{rule} = {workers} ({seen})")
        };
        format!(
            "rules of thumb: {}",
            rules
                .into_iter()
                .chain(of_gpus)
                .map(tell)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}

#[cfg(test)]
mod tests;
