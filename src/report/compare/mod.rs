//! Two tables set against each other: what changed, by how much, and whether that can be told from chance.
//!
//! Rows in, verdicts out; how they look is for [`Page`]. The rules are in `docs/comparing.md`.

mod comparable;
mod matching;
mod metric;
mod record;
mod render;
mod statistics;

use serde::Serialize;

pub use comparable::{Field, Unlike};
pub use metric::Metric;
pub use record::{Fact, facts};
pub use render::{Page, now_different, word};

use super::points::note_on;
use crate::{
    plan::Outcome,
    record::{TrialRow, TrialTable},
};
use matching::{Matched, Pair, by_id, by_keys};
use statistics::{Arms, FEWEST_RUNS, estimates};

/// How tables are compared.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Dotted keys or columns by whose values rows are matched; by trial id if there are none.
    pub by: Vec<String>,
    /// Fields that may differ: the comparison is about them.
    pub across: Vec<Field>,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    Worse,
    Same,
    /// The interval reaches across what would be a change.
    Ambiguous,
    TooFewRuns,
    NotComparable,
}

/// One metric of one pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub metric: Metric,
    pub verdict: Verdict,
    /// Where the numbers stand, the same of both sides.
    pub column: &'static str,
    /// Runs with the number on each side.
    pub base_runs: usize,
    pub new_runs: usize,
    /// Runs that completed without it, or with one that cannot be in a ratio.
    pub base_missing: usize,
    pub new_missing: usize,
    /// The middle of each side in the metric's unit: geometric mean, from ten runs on the median.
    pub base: f64,
    pub new: f64,
    /// new / base.
    pub ratio: f64,
    /// Of the ratio, adjusted for all pairs of the metric; `None` where there are too few runs.
    pub interval: Option<[f64; 2]>,
    /// The smallest change, as a share, that these runs would show four times in five.
    pub visible: Option<f64>,
}

/// One point that both tables have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub name: String,
    pub comparisons: Vec<Comparison>,
    /// Why it cannot be compared; empty if it can.
    pub unlike: Vec<Unlike>,
    /// Of the trials that are in both tables: how many have losses, and how many of these are equal to the bit.
    pub losses: usize,
    pub equal_losses: usize,
    /// How trials ended on each side, where that is not `completed` for all.
    pub ends: Option<[String; 2]>,
    /// Runs that lie far from the others of their side, with what may be the reason.
    pub outliers: Vec<String>,
}

/// Two tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparisons {
    pub pairs: Vec<Compared>,
    pub only_base: Vec<String>,
    pub only_new: Vec<String>,
    /// Fields in which compared rows differ, as asked for.
    pub across: Vec<Unlike>,
}

impl Comparisons {
    /// Whether anything could be set against anything.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Compares two tables.
///
/// # Errors
/// A key of [`Options::by`] that does not match rows one to one, in words.
pub fn compare(base: &TrialTable, new: &TrialTable, options: &Options) -> Result<Comparisons, String> {
    let matched = if options.by.is_empty() { by_id(base, new) } else { by_keys(base, new, &options.by)? };
    let Matched { pairs, only_base, only_new } = matched;
    let mut across: Vec<Unlike> = Vec::new();
    let mut compared: Vec<Compared> = Vec::new();
    for pair in &pairs {
        let (asked, unlike): (Vec<Unlike>, Vec<Unlike>) = unlike_in(pair).into_iter().partition(|unlike| options.across.contains(&unlike.field));
        asked.into_iter().for_each(|unlike| {
            if !across.contains(&unlike) {
                across.push(unlike)
            }
        });
        compared.push(without_numbers(pair, unlike));
    }
    for metric in Metric::ALL {
        fill(metric, &pairs, &mut compared);
    }
    Ok(Comparisons { pairs: compared, only_base, only_new, across })
}

/// Of runs that have numbers to compare.
fn unlike_in(pair: &Pair<'_>) -> Vec<Unlike> {
    comparable::unlike(&completed(&pair.base), &completed(&pair.new))
}

fn completed<'a>(rows: &[&'a TrialRow]) -> Vec<&'a TrialRow> {
    rows.iter().copied().filter(|row| row.outcome == Outcome::Completed).collect()
}

fn without_numbers(pair: &Pair<'_>, unlike: Vec<Unlike>) -> Compared {
    let twice = pair.base.iter().filter_map(|old| Some((*old, *pair.new.iter().find(|new| new.trial == old.trial)?)));
    let losses: Vec<bool> = twice.filter_map(|(old, new)| equal_losses(old, new)).collect();
    let is_whole = |rows: &[&TrialRow]| rows.iter().all(|row| row.outcome == Outcome::Completed);
    let whole = is_whole(&pair.base) && is_whole(&pair.new);
    Compared {
        name: pair.name.clone(),
        comparisons: Vec::new(),
        unlike,
        losses: losses.len(),
        equal_losses: losses.iter().filter(|equal| **equal).count(),
        ends: (!whole).then(|| [ends(&pair.base), ends(&pair.new)]),
        outliers: [("base", &pair.base), ("new", &pair.new)].into_iter().flat_map(|(side, rows)| outliers(side, rows)).collect(),
    }
}

/// Whether two attempts of one trial learned the same; `None` where a loss is missing.
fn equal_losses(old: &TrialRow, new: &TrialRow) -> Option<bool> {
    let is_equal = |old: Option<f64>, new: Option<f64>| Some(old?.to_bits() == new?.to_bits());
    match (is_equal(old.train_loss, new.train_loss), is_equal(old.valid_loss, new.valid_loss)) {
        (Some(train), valid) => Some(train && valid.unwrap_or(true)),
        (None, valid) => valid,
    }
}

/// `3 completed, 1 oom`.
fn ends(rows: &[&TrialRow]) -> String {
    let of = |outcome: Outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let counts: Vec<String> =
        Outcome::ALL.into_iter().filter(|outcome| of(*outcome) > 0).map(|outcome| format!("{} {outcome}", of(outcome))).collect();
    counts.join(", ")
}

/// Adds the comparisons of a metric, the intervals adjusted for all of them.
fn fill(metric: Metric, pairs: &[Pair<'_>], compared: &mut [Compared]) {
    let runs: Vec<[Vec<&TrialRow>; 2]> = pairs.iter().map(|pair| [completed(&pair.base), completed(&pair.new)]).collect();
    let told_of = |[base, new]: &[Vec<&TrialRow>; 2]| metric.of_both(base, new).unwrap_or_default();
    let (names, arms): (Vec<&str>, Vec<Arms>) = runs.iter().map(told_of).map(|(name, [base, new])| (name, Arms { base, new })).unzip();
    let is_told = |place: usize| {
        let (arms, compared) = (&arms[place], &compared[place]);
        compared.unlike.is_empty() && arms.base.len() >= FEWEST_RUNS && arms.new.len() >= FEWEST_RUNS
    };
    let told: Vec<usize> = (0..pairs.len()).filter(|place| is_told(*place)).collect();
    let found = estimates(&told.iter().map(|place| arms[*place].clone()).collect::<Vec<_>>());
    let mut estimate_of = vec![None; pairs.len()];
    told.iter().copied().zip(found).for_each(|(place, estimate)| estimate_of[place] = Some(estimate));
    for (place, (compared, estimate)) in compared.iter_mut().zip(estimate_of).enumerate() {
        let (arms, [base_rows, new_rows]) = (&arms[place], &runs[place]);
        let is_median = estimate.is_some() && statistics::takes_medians(arms, told.len());
        let middle = |runs: &[f64]| statistics::middle(runs, is_median);
        let (Some(base), Some(new)) = (middle(&arms.base), middle(&arms.new)) else { continue };
        let verdict = match &estimate {
            _ if !compared.unlike.is_empty() => Verdict::NotComparable,
            None => Verdict::TooFewRuns,
            Some(estimate) => verdict(metric, estimate),
        };
        compared.comparisons.push(Comparison {
            metric,
            verdict,
            column: names[place],
            base_runs: arms.base.len(),
            new_runs: arms.new.len(),
            base_missing: base_rows.len() - arms.base.len(),
            new_missing: new_rows.len() - arms.new.len(),
            base,
            new,
            ratio: estimate.map_or(new / base, |estimate| estimate.ratio),
            interval: estimate.map(|estimate| [estimate.low, estimate.high]),
            visible: estimate.and_then(|estimate| estimate.visible),
        });
    }
}

/// The verdict on one metric of one point by itself; all numbers are positive.
pub fn verdict_of(metric: Metric, base: &[f64], new: &[f64]) -> Verdict {
    if base.len().min(new.len()) < FEWEST_RUNS {
        return Verdict::TooFewRuns;
    }
    let arms = Arms { base: base.to_vec(), new: new.to_vec() };
    estimates(&[arms]).first().map_or(Verdict::TooFewRuns, |estimate| verdict(metric, estimate))
}

fn verdict(metric: Metric, estimate: &statistics::Estimate) -> Verdict {
    let worth = metric.worth();
    let is_sure = estimate.low > 1.0 || estimate.high < 1.0;
    match estimate.ratio {
        ratio if is_sure && (ratio - 1.0).abs() >= worth => {
            if (ratio > 1.0) == metric.is_better_high() {
                Verdict::Better
            } else {
                Verdict::Worse
            }
        }
        _ if estimate.low > 1.0 - worth && estimate.high < 1.0 + worth => Verdict::Same,
        _ => Verdict::Ambiguous,
    }
}

/// Further from the median than this, in deviations estimated from the median of distances, is far (Iglewicz & Hoaglin 1993).
const FAR: f64 = 3.5;
/// What makes the median distance of a normal distribution its standard deviation.
const TO_DEVIATION: f64 = 0.6745;
/// Nearer than this to the median no run is far, however close together the others lie.
const NEAR: f64 = 0.03;
/// Of fewer runs nobody can say which one is far.
const FEWEST_FOR_OUTLIERS: usize = 4;

/// Runs whose speed is far from that of the others. They are told, never left out.
fn outliers(side: &str, rows: &[&TrialRow]) -> Vec<String> {
    let rows = completed(rows);
    let speeds: Vec<(&TrialRow, f64)> = rows.iter().filter_map(|row| Some((*row, Metric::Throughput.of(row)?))).collect();
    if speeds.len() < FEWEST_FOR_OUTLIERS {
        return Vec::new();
    }
    let middle = statistics::median_of(speeds.iter().map(|(_, speed)| *speed));
    let distance = statistics::median_of(speeds.iter().map(|(_, speed)| (speed - middle).abs()));
    let is_far = |speed: f64| {
        let away = (speed - middle).abs();
        away > NEAR * middle && away * TO_DEVIATION > FAR * distance
    };
    let earliest = speeds
        .iter()
        .map(|(row, _)| (row.launch, row.run_seconds.unwrap_or(f64::MAX)))
        .min_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    let first = |row: &TrialRow| earliest == Some((row.launch, row.run_seconds.unwrap_or(f64::MAX)));
    let tell = |(row, speed): &(&TrialRow, f64)| {
        let share = speed / middle - 1.0;
        let why = likely_reason(row).or_else(|| first(row).then(|| "the first run of its side".to_owned()));
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{side}: trial {} is {:+.0} % off the median of its side{why}", row.trial, share * 100.0)
    };
    speeds.iter().filter(|(_, speed)| is_far(*speed)).map(tell).collect()
}

fn likely_reason(row: &TrialRow) -> Option<String> {
    if let Some(seen) = row.others_on_device() {
        return Some(format!("others on the device: {seen}"));
    }
    if let Some(reasons) = row.throttle_reasons.as_deref().filter(|_| row.throttled_fraction.is_some_and(|share| share > 0.0)) {
        return Some(format!("throttled: {reasons}"));
    }
    note_on(row, "samples_per_second").map(str::to_owned)
}

#[cfg(test)]
mod tests;
