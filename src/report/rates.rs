//! Compares the rates of the points of one run. Points come in; out comes by how much one is
//! faster, with an interval; the spread is that of all repeats of the run together ([`Field`]).
//!
//! Points are compared only within blocks of repeats: the runs of one block met one state of the
//! machine. Points that ran one after the other differ also by the machine's drift, and the spread
//! of single runs is unknown: nothing is claimed about either. `benches/findings.rs` measures how
//! often noise alone leads to a claim.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use kiln_core::{
    plan::TrialId,
    record::TrialRow,
    spec::Goal,
    statistics::{self, Estimate, Field, SESSION_JUMP, TimedRun, WORTH},
    units::Fraction,
};

use super::{launches::Launches, layout::significant, points::Point};

/// Upper end from which an interval is too wide to be useful.
const FAR: f64 = 2.0;

/// Reason why differences between points cannot be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// No point was repeated.
    Single,
    /// The repeats of a point ran one after the other, or their times are unknown.
    Apart,
    /// No launch ran all of the points.
    Launches,
    /// Too few runs have a seed in common with runs of other points.
    Seeds,
    /// A number is not above 0, so it has no ratio to the others; without it, those that are left
    /// would be chosen by what they measured.
    NoRatio,
}

/// How the values of an objective are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// By their ratios: all are above 0.
    Ratio,
    /// By their differences from `middle`, counted in `unit`: some are 0 or negative.
    Difference { middle: f64, unit: f64 },
}

impl Scale {
    /// The scale of the differences of finite values.
    pub(super) fn of_differences(values: &[f64]) -> Self {
        let middle = statistics::mean(values).unwrap_or_default();
        let furthest = values
            .iter()
            .fold(0.0_f64, |most, value| most.max((value - middle).abs()));
        Self::Difference {
            middle,
            unit: if furthest > 0.0 { furthest } else { 1.0 },
        }
    }

    /// A number above 0 for [`Rates`], higher for a better value. The statistics compare
    /// logarithms: with exponentials these are the values themselves.
    pub(super) fn rate(self, value: f64, goal: Goal) -> f64 {
        match (self, goal) {
            (Self::Ratio, Goal::Max) => value,
            (Self::Ratio, Goal::Min) => 1.0 / value,
            (Self::Difference { middle, unit }, Goal::Max) => ((value - middle) / unit).exp(),
            (Self::Difference { middle, unit }, Goal::Min) => ((middle - value) / unit).exp(),
        }
    }

    /// By how much a value is better than another, as a ratio of their [`Self::rate`].
    pub(super) fn lead(self, best: f64, next: f64, goal: Goal) -> f64 {
        self.rate(best, goal) / self.rate(next, goal)
    }

    /// A ratio of rates: `12.3 %`, above 1000 % `a factor of 14.0`; on the scale of differences the
    /// difference.
    pub(super) fn words(self, ratio: f64) -> String {
        match self {
            Self::Ratio if ratio >= 1e6 => format!("a factor of {ratio:.2e}"),
            Self::Ratio if ratio > 11.0 => format!("a factor of {}", significant(ratio)),
            Self::Ratio => small_share(ratio - 1.0),
            Self::Difference { unit, .. } => significant(ratio.ln() * unit),
        }
    }

    /// Whether an interval is too wide to be useful.
    fn is_too_wide(self, high: f64) -> bool {
        match self {
            Self::Ratio => high >= FAR,
            Self::Difference { .. } => !high.is_finite(),
        }
    }
}

/// A share in percent: `12.3 %`; below 0.05 % with two significant digits: `0.0012 %`.
fn small_share(share: f64) -> String {
    /// In percent; a smaller share is that of rounding.
    const LEAST: f64 = 1e-9;
    let percent = share * 100.0;
    match percent.abs() {
        size if size < LEAST => Fraction(0.0).to_string(),
        size if size < 0.05 => {
            let places = (1.0 - size.log10().floor()) as usize;
            format!("{percent:.places$} %")
        }
        _ => Fraction(share).to_string(),
    }
}

/// The runs that are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    Blocks,
    Seeds,
}

impl Within {
    fn each(self) -> &'static str {
        match self {
            Self::Blocks => "in every block",
            Self::Seeds => "with every seed",
        }
    }

    pub(super) fn several(self) -> &'static str {
        match self {
            Self::Blocks => "within blocks",
            Self::Seeds => "between runs of one seed",
        }
    }
}

/// Blocks: runs that took turns with one run of each other point.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    of: HashMap<&'a TrialId, u64>,
    launches: Launches,
    /// Whether the rows have a `block`. Blocks inferred from the order always go through the points
    /// in one direction, as in older tables, so that a drift favors the same points each time.
    are_told: bool,
    /// Whether the runs of a block are alike in the state of the machine, or only in their seed.
    within: Within,
}

impl<'a> Blocks<'a> {
    pub(super) fn of(points: &[Point<'a>]) -> Self {
        let rows = || points.iter().flat_map(|point| point.rows.iter().copied());
        let launches = Launches::of(rows());
        // A round that a second launch continued met two states of the machine; in tables before
        // `trials/7` a block is a round.
        let round = |row: &TrialRow| row.round.or(row.block);
        let rounds: HashMap<&TrialId, u64> = rows()
            .filter_map(|row| Some((&row.trial, (launches.number(row) << 32) + round(row)?)))
            .collect();
        if !rounds.is_empty() {
            return Self {
                of: rounds,
                launches,
                are_told: true,
                within: Within::Blocks,
            };
        }
        Self {
            of: by_order(points, &launches).unwrap_or_default(),
            launches,
            are_told: false,
            within: Within::Blocks,
        }
    }

    /// Blocks for what is learned: runs with the same seed. The state of the machine has no effect
    /// on it.
    pub(super) fn of_seeds(points: &[Point<'a>]) -> Self {
        let rows = || points.iter().flat_map(|point| point.rows.iter().copied());
        Self {
            of: rows().map(|row| (&row.trial, row.seed)).collect(),
            launches: Launches::of(rows()),
            are_told: true,
            within: Within::Seeds,
        }
    }
}

/// Blocks by order: the first run of each point, then the second of each, and so on; `None` if the
/// runs had another order.
fn by_order<'a>(points: &[Point<'a>], launches: &Launches) -> Option<HashMap<&'a TrialId, u64>> {
    let rows = || points.iter().flat_map(|point| point.rows.iter());
    let launch = launches.number(rows().next()?);
    // The oldest tables have only the time of day.
    let has_run_seconds = rows().all(|row| row.run_seconds.is_some());
    let started = |row: &TrialRow| {
        if has_run_seconds {
            row.run_seconds
        } else {
            row.started_seconds()
        }
    };
    let mut blocks: HashMap<&TrialId, u64> = HashMap::new();
    // For each round: start of its first and of its last run.
    let mut rounds: Vec<(f64, f64)> = Vec::new();
    for point in points {
        let timed = |row: &&'a TrialRow| {
            let timed = Some((started(row)?, &row.trial));
            timed.filter(|_| launches.number(row) == launch)
        };
        let mut runs: Vec<(f64, &TrialId)> = point.rows.iter().map(timed).collect::<Option<_>>()?;
        runs.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (round, (seconds, trial)) in runs.into_iter().enumerate() {
            match rounds.get_mut(round) {
                Some((first, last)) => (*first, *last) = (first.min(seconds), last.max(seconds)),
                None => rounds.push((seconds, seconds)),
            }
            blocks.insert(trial, round as u64);
        }
    }
    rounds
        .windows(2)
        .all(|pair| pair[0].1 < pair[1].0)
        .then_some(blocks)
}

/// The rates of a run's points.
#[derive(Debug)]
pub(super) struct Rates {
    field: Result<Field, Unknown>,
    /// Geometric mean of each point's rates, and their number.
    middles: Vec<Option<(f64, usize)>>,
    /// Factor by which the interval is widened.
    margin: f64,
    pub(super) within: Within,
}

/// Ratio of the speeds of two points, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gain {
    /// Its rate over the other's.
    pub(super) ratio: f64,
    /// The estimate; its interval is adjusted for all statements that are made together.
    estimate: Estimate,
}

impl Gain {
    /// Whether its lead is larger than noise.
    pub(super) fn is_ahead(&self) -> bool {
        self.estimate.is_above()
    }

    /// Whether both points have equal speed without any spread.
    fn is_equal(&self) -> bool {
        self.estimate.low == 1.0 && self.estimate.high == 1.0
    }

    /// Share of speed that the other point loses against this one, and the ends of its interval;
    /// negative if it is faster.
    pub(super) fn cost(&self) -> (f64, [f64; 2]) {
        let cost = |ratio: f64| 1.0 - 1.0 / ratio;
        (
            cost(self.ratio),
            [cost(self.estimate.low), cost(self.estimate.high)],
        )
    }

    pub(super) fn interval(&self, scale: Scale) -> String {
        let Estimate { low, high, .. } = self.estimate;
        format!(
            "95 % interval {} to {}",
            scale.words(low),
            scale.words(high)
        )
    }

    /// The interval beside a lead by the means. The interval is of the mean logarithm of the ratios
    /// within blocks, which a few far runs move less than they move a mean.
    fn interval_in_words(&self, scale: Scale, lead: f64, within: Within) -> String {
        let (high, told) = (self.estimate.high, self.interval(scale));
        match () {
            () if scale.is_too_wide(high) => "(the interval is too wide to be of use: too few \
                                              undisturbed repeats)"
                .to_owned(),
            () if lead > high => format!("by its mean, but not {} ({told})", within.several()),
            () => format!("({told})"),
        }
    }

    /// Whether the change is also large enough to count.
    pub(super) fn is_faster(&self) -> bool {
        self.estimate.is_higher(WORTH)
    }
}

/// `95 % interval 12.3 % to 32.5 %`.
impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.interval(Scale::Ratio))
    }
}

impl Rates {
    /// The rates of all points of a run.
    pub(super) fn of(points: &[Point<'_>], rate: fn(&TrialRow) -> Option<f64>) -> Self {
        Self::within(points, &Blocks::of(points), rate)
    }

    /// The rates of points whose blocks are known already.
    pub(super) fn within(
        points: &[Point<'_>],
        blocks: &Blocks<'_>,
        rate: impl Fn(&TrialRow) -> Option<f64>,
    ) -> Self {
        let run = |row: &TrialRow| {
            let (value, block) = (rate(row)?, Some(*blocks.of.get(&row.trial)?));
            Some(TimedRun {
                value,
                seconds: row.started_seconds(),
                block,
                launch: Some(blocks.launches.number(row)),
                is_disturbed: blocks.within == Within::Blocks && !row.disturbances().is_empty(),
                is_at_once: false,
            })
        };
        let runs: Vec<Vec<TimedRun>> = points
            .iter()
            .map(|point| point.completed().filter_map(run).collect())
            .collect();
        let middle = |runs: &Vec<TimedRun>| {
            Some((
                statistics::middle(&runs.iter().map(|run| run.value).collect::<Vec<_>>())?,
                runs.len(),
            ))
        };
        let rates = || points.iter().flat_map(Point::completed).filter_map(&rate);
        let field = match rates().all(|rate| rate.is_finite() && rate > 0.0) {
            true => Field::of(&runs).filter(Field::has_blocks),
            false => None,
        };
        Self {
            field: field.ok_or_else(|| lack(points, blocks, &rate)),
            middles: runs.iter().map(middle).collect(),
            margin: if blocks.are_told { 0.0 } else { SESSION_JUMP },
            within: blocks.within,
        }
    }

    /// Reason why differences cannot be judged; `None` where they can.
    pub(super) fn unknown(&self) -> Option<Unknown> {
        self.field.as_ref().err().copied()
    }

    /// Whether a point can be compared with others; the spread of a single run is unknown.
    pub(super) fn has(&self, place: usize) -> bool {
        self.field.is_ok()
            && self
                .middles
                .get(place)
                .is_some_and(|middle| middle.is_some_and(|(_, runs)| runs > 1))
    }

    /// Returns how much faster `other` is than `own`; the interval is adjusted for `statements`
    /// such comparisons made together. Each is about one direction but has a two-sided interval:
    /// half of the level stays in reserve, because consecutive runs may be correlated.
    pub(super) fn gain(&self, own: usize, other: usize, statements: usize) -> Option<Gain> {
        let field = self
            .field
            .as_ref()
            .ok()
            .filter(|_| self.has(own) && self.has(other))?;
        let found = field.compare(own, other, statements)?;
        let estimate = Estimate {
            low: found.low / (1.0 + self.margin),
            high: found.high * (1.0 + self.margin),
            ..found
        };
        Some(Gain {
            ratio: found.ratio,
            estimate,
        })
    }

    /// The gain of another point, only where it is clearly faster.
    pub(super) fn faster(&self, own: usize, other: usize, statements: usize) -> Option<Gain> {
        let (own_rate, own_runs) = (*self.middles.get(own)?)?;
        let (other_rate, other_runs) = (*self.middles.get(other)?)?;
        // Mostly such points ran in the same blocks, and then these decide which is ahead: most
        // comparisons need no interval.
        if own_runs == other_runs && other_rate <= own_rate {
            return None;
        }
        self.gain(own, other, statements).filter(Gain::is_faster)
    }
}

/// Reason why the rates of points cannot be judged.
fn lack(
    points: &[Point<'_>],
    blocks: &Blocks<'_>,
    rate: &impl Fn(&TrialRow) -> Option<f64>,
) -> Unknown {
    let rates = || points.iter().flat_map(Point::completed).filter_map(rate);
    let is_repeated = |point: &Point<'_>| point.completed().filter_map(rate).count() > 1;
    match () {
        () if !points.iter().any(is_repeated) => Unknown::Single,
        () if !rates().all(|rate| rate.is_finite() && rate > 0.0) => Unknown::NoRatio,
        () => match blocks.within {
            Within::Blocks if !share_a_launch(points, &blocks.launches) => Unknown::Launches,
            Within::Blocks => Unknown::Apart,
            Within::Seeds => Unknown::Seeds,
        },
    }
}

/// Whether there is a launch that ran each of these points.
fn share_a_launch(points: &[Point<'_>], launches: &Launches) -> bool {
    let of_point = |point: &Point<'_>| -> HashSet<u64> {
        point.completed().map(|row| launches.number(row)).collect()
    };
    let of_points = points.iter().map(of_point);
    let of_points = of_points.filter(|launches| !launches.is_empty());
    let shared = of_points.reduce(|one, other| one.intersection(&other).copied().collect());
    shared.is_none_or(|shared| !shared.is_empty())
}

/// Reason to doubt the order of the best two points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Doubt {
    /// Differences between the points cannot be judged.
    Unknown(Unknown),
    /// One of the two ran only once beside the others.
    Once,
    /// Both are equal in every block.
    Equal,
    /// The interval of the lead includes none.
    Noise(Gain),
}

impl Unknown {
    /// The reason as a clause.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Single => "one run per point: the order may be noise",
            Self::Apart => {
                "the points did not all run in turns: the order may come from drift of the machine"
            }
            Self::Launches => {
                "no launch ran all of the points: the order may come from drift of the machine"
            }
            Self::Seeds => {
                "too few runs have a seed in common with other points: the order may be noise"
            }
            Self::NoRatio => {
                "cannot tell whether its lead is larger than noise: ratios need values above 0"
            }
        }
    }
}

impl Doubt {
    /// In a clause; `superlative` is `fastest` or such as `lowest validation loss`, `lead` the lead
    /// of the best by its mean, as a ratio on this scale.
    pub(super) fn in_words(
        &self,
        superlative: &str,
        scale: Scale,
        lead: f64,
        within: Within,
    ) -> String {
        match self {
            Self::Unknown(unknown) => unknown.in_words().to_owned(),
            Self::Once => {
                "the best or the next ran only once beside the others: their order may be noise"
                    .to_owned()
            }
            Self::Equal => format!(
                "the best and the next are equal {}, so neither alone is the {superlative}",
                within.each()
            ),
            Self::Noise(gain) => format!(
                "the best is {} ahead of the next {}: their order may be noise",
                scale.words(lead),
                gain.interval_in_words(scale, lead, within)
            ),
        }
    }
}

/// The number of comparisons among so many points. The best was picked after all had been seen: each could
/// have been ahead of each other.
pub(super) fn each_with_each(points: usize) -> usize {
    points * points.saturating_sub(1)
}

/// Whether the lead of the best over the next of so many `points` is larger than noise, with the
/// reason if it is not known to be.
pub(super) fn order(rates: &Rates, best: usize, next: usize, points: usize) -> Result<(), Doubt> {
    if let Some(unknown) = rates.unknown() {
        return Err(Doubt::Unknown(unknown));
    }
    match rates.gain(next, best, each_with_each(points)) {
        None => Err(Doubt::Once),
        Some(gain) if gain.is_equal() => Err(Doubt::Equal),
        Some(gain) if gain.is_ahead() => Ok(()),
        Some(gain) => Err(Doubt::Noise(gain)),
    }
}

#[cfg(test)]
mod tests;
