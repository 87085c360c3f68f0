//! Compares two tables: the changes, their size, and whether they are larger than noise.
//!
//! Rows come in, verdicts go out; [`ComparisonPage`] prints them. The rules are in
//! `docs/comparing.md`.

mod applied;
mod at_once;
mod comparable;
mod export;
mod gate;
mod matching;
mod metric;
mod order;
mod outliers;
mod record;
mod render;
mod reproduced;
mod scope;
mod treatment;
mod words;

use std::collections::HashSet;

use kiln_core::{
    plan::Outcome,
    record::{TrialRow, TrialTable},
    statistics::{self, Design, Drift, Estimate, Question, Sides, estimates},
};
use serde::Serialize;

pub use comparable::{RowFact, Unlike};
pub use gate::{Gate, gate, unsaid};
pub use metric::ComparedMetric;
pub use record::{Fact, facts};
pub(in crate::report) use record::{beginning, is_fleeting};
pub use render::{ComparisonPage, now_different};
pub use reproduced::{Reproduction, reproduced};
pub use treatment::{MOST_TREATED, TreatedKey, Treatment, is_treatable};
pub use words::word;

use self::{applied::AppliedTreatment, at_once::AtOnce};
use matching::{Matched, MatchedPair, by_id, by_keys};
use outliers::outliers;

/// Options of a comparison of two tables.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Dotted keys or columns by whose values rows are matched; by trial id if there are none.
    pub by: Vec<String>,
    /// Fields that may differ, because the comparison is about them.
    pub across: Vec<RowFact>,
    /// Settings that the comparison is about, by dotted key.
    pub across_settings: Vec<String>,
    /// Settings in which the runs are known to differ; `None` refuses whatever `across` does not
    /// name.
    pub treatment: Option<Treatment>,
    /// Exclude disturbed runs ([`TrialRow::disturbances`]).
    pub is_clean: bool,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    Worse,
    Same,
    /// The interval includes both a change that counts and no change.
    Ambiguous,
    /// One side ran after the other, and drift of the machine alone may explain the change.
    CannotTell,
    TooFewRuns,
    NotComparable,
}

/// One metric of one pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub metric: ComparedMetric,
    pub verdict: Verdict,
    /// Column of the numbers, the same for both sides.
    pub column: &'static str,
    /// Runs with the number on each side.
    pub base_runs: usize,
    pub new_runs: usize,
    /// Completed runs without the number, or with one that cannot be part of a ratio.
    pub base_missing: usize,
    pub new_missing: usize,
    /// A preferred column that only one side has.
    pub passed_over: Option<&'static str>,
    /// The geometric mean of each side in the metric's unit.
    pub base: f64,
    pub new: f64,
    /// new / base.
    pub ratio: f64,
    /// 95 % interval of the ratio, adjusted for all comparisons of these tables; `None` where there
    /// are too few runs.
    pub interval: Option<[f64; 2]>,
    /// The smallest change, as a share, that so many runs of this spread would show four times in
    /// five; never less than what counts as a change.
    pub visible: Option<f64>,
    /// Order of the runs of both sides in time; `None` where there are too few.
    pub design: Option<Design>,
    /// Drift of the machine during the runs.
    pub drift: Drift,
    /// Why the numbers cannot be compared, although the rows can.
    pub refusal: Option<String>,
    /// Whether these runs exclude a change for the worse that is large enough to count.
    #[serde(skip)]
    pub excludes_worse: bool,
}

/// One point that both tables have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub name: String,
    pub comparisons: Vec<Comparison>,
    /// Fields that make it not comparable; empty if it can be compared.
    pub unlike: Vec<Unlike>,
    /// Number of trials in both tables that have losses, and how many of these losses are equal to
    /// the bit.
    pub losses: usize,
    pub equal_losses: usize,
    /// Trials of which one side has a loss that the other has not.
    pub lacking_losses: usize,
    /// The largest distance of two losses of one trial, as a share of that of base.
    pub losses_apart: Option<f64>,
    /// Outcomes of the trials of each side, where not all are `completed`.
    pub ends: Option<[String; 2]>,
    /// Outliers, runs that are far from the others of their side, with what may be the reason.
    pub outliers: Vec<String>,
    /// Runs that both sides have: one and the same row.
    pub shared: usize,
    /// The GPUs that each side ran on, by UUID, where they are not the same ones.
    pub boards: Option<[Vec<String>; 2]>,
    /// Columns that both sides have while one of them has no number there that can be in a ratio.
    pub unusable: Vec<&'static str>,
    /// Descriptions of the completed runs of each side that were disturbed; excluded from the
    /// numbers on request.
    pub disturbed: [Vec<String>; 2],
}

impl Compared {
    /// The comparison of speed: by throughput, or by step time where there is no throughput.
    pub(super) fn speed(&self) -> Option<&Comparison> {
        [ComparedMetric::Throughput, ComparedMetric::StepTime]
            .into_iter()
            .find_map(|metric| self.comparisons.iter().find(|one| one.metric == metric))
    }

    /// The first of its numbers that the state of the machine reaches: it tells how the runs lie in
    /// time.
    fn timed(&self) -> Option<&Comparison> {
        self.comparisons
            .iter()
            .find(|one| one.metric.nature() == statistics::Nature::Drifting)
    }
}

/// Two tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparisons {
    pub pairs: Vec<Compared>,
    pub only_base: Vec<String>,
    pub only_new: Vec<String>,
    /// Fields in which compared rows differ, as asked for.
    pub across: Vec<Unlike>,
    /// Differences between the runs as a whole, which the comparison is about.
    pub treatment: Vec<TreatedKey>,
    /// The keys of these that nobody named in advance; no gate passes for them.
    #[serde(skip)]
    pub unnamed: Vec<String>,
    /// Whether disturbed runs were excluded.
    pub is_clean: bool,
}

impl Comparisons {
    /// Whether the tables have no point in common.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Compares two tables.
///
/// # Errors
/// A message about a key of [`Options::by`] that does not match rows one to one.
pub fn compare(
    base: &TrialTable,
    new: &TrialTable,
    options: &Options,
) -> Result<Comparisons, String> {
    let (matched, is_by_treatment) = matched(base, new, options)?;
    let Matched {
        mut pairs,
        only_base,
        only_new,
    } = matched;
    let at_once = AtOnce::of(base, new);
    let of_pair = |pair: &MatchedPair<'_>| {
        [(&pair.base, "new"), (&pair.new, "base")]
            .map(|(rows, other)| disturbances(rows, &at_once, other))
    };
    let disturbed: Vec<[Vec<String>; 2]> = pairs.iter().map(of_pair).collect();
    if options.is_clean {
        let is_quiet =
            |row: &TrialRow| row.disturbances().is_empty() && at_once.beside(row).is_none();
        let is_clean = |row: &&TrialRow| row.outcome != Outcome::Completed || is_quiet(row);
        pairs
            .iter_mut()
            .flat_map(|pair| [&mut pair.base, &mut pair.new])
            .for_each(|rows| rows.retain(is_clean));
    }
    let treated = AppliedTreatment::of(&pairs, options, is_by_treatment);
    let mut across: Vec<Unlike> = Vec::new();
    let mut compared: Vec<Compared> = Vec::new();
    for (pair, disturbed) in pairs.iter().zip(disturbed) {
        let (asked, unlike): (Vec<Unlike>, Vec<Unlike>) = unlike_in(pair)
            .into_iter()
            .filter(|unlike| !treated.covers(unlike))
            .partition(|unlike| options.across.contains(&unlike.field));
        asked.into_iter().for_each(|unlike| {
            if !across.contains(&unlike) {
                across.push(unlike)
            }
        });
        compared.push(Compared {
            disturbed,
            ..without_numbers(pair, unlike)
        });
    }
    fill(&pairs, &at_once, options.treatment.as_ref(), &mut compared);
    Ok(Comparisons {
        pairs: compared,
        only_base,
        only_new,
        across,
        treatment: treated.keys,
        unnamed: treated.unnamed,
        is_clean: options.is_clean,
    })
}

/// Matches rows by the keys of `--by`, else by id; where no id is in both tables because of a
/// treatment, by the axes, which the second value tells.
fn matched<'a>(
    base: &'a TrialTable,
    new: &'a TrialTable,
    options: &Options,
) -> Result<(Matched<'a>, bool), String> {
    if !options.by.is_empty() {
        return Ok((by_keys(base, new, &options.by)?, false));
    }
    let matched = by_id(base, new);
    match &options.treatment {
        Some(treatment) if matched.pairs.is_empty() && treatment.is_few() => {
            Ok((treatment.matched(base, new), true))
        }
        _ => Ok((matched, false)),
    }
}

/// Returns the fields in which the completed runs of both sides differ.
fn unlike_in(pair: &MatchedPair<'_>) -> Vec<Unlike> {
    comparable::unlike(&completed(&pair.base), &completed(&pair.new))
}

fn completed<'a>(rows: &[&'a TrialRow]) -> Vec<&'a TrialRow> {
    rows.iter()
        .copied()
        .filter(|row| row.outcome == Outcome::Completed)
        .collect()
}

fn without_numbers(pair: &MatchedPair<'_>, unlike: Vec<Unlike>) -> Compared {
    let twice = pair
        .base
        .iter()
        .filter_map(|old| Some((*old, *pair.new.iter().find(|new| new.trial == old.trial)?)));
    let twice: Vec<(&TrialRow, &TrialRow)> = twice.collect();
    let losses: Vec<bool> = twice
        .iter()
        .filter_map(|(old, new)| equal_losses(old, new))
        .collect();
    let apart = twice.iter().flat_map(|(old, new)| {
        [
            (old.train_loss, new.train_loss),
            (old.valid_loss, new.valid_loss),
        ]
    });
    let apart = apart
        .filter_map(|(old, new)| Some(((new? - old?) / old?).abs()))
        .filter(|share| !share.is_nan())
        .map(|share| share.min(FURTHEST));
    let is_whole = |rows: &[&TrialRow]| rows.iter().all(|row| row.outcome == Outcome::Completed);
    let whole = is_whole(&pair.base) && is_whole(&pair.new);
    Compared {
        name: pair.name.clone(),
        comparisons: Vec::new(),
        unlike,
        losses: losses.len(),
        equal_losses: losses.iter().filter(|equal| **equal).count(),
        lacking_losses: twice
            .iter()
            .filter(|(old, new)| lacks_loss(old, new))
            .count(),
        losses_apart: apart.reduce(f64::max),
        ends: (!whole).then(|| [ends(&pair.base), ends(&pair.new)]),
        outliers: [("base", &pair.base), ("new", &pair.new)]
            .into_iter()
            .flat_map(|(side, rows)| outliers(side, rows))
            .collect(),
        shared: pair
            .base
            .iter()
            .filter(|old| pair.new.iter().any(|new| is_same_run(old, new)))
            .count(),
        boards: comparable::boards(&completed(&pair.base), &completed(&pair.new)),
        unusable: ComparedMetric::ALL
            .into_iter()
            .filter_map(|metric| metric.unusable(&completed(&pair.base), &completed(&pair.new)))
            .collect(),
        disturbed: Default::default(),
    }
}

fn is_same_run(old: &TrialRow, new: &TrialRow) -> bool {
    old.started_utc.is_some() && old == new
}

/// Whether one of two attempts of a trial has a loss that the other lacks.
fn lacks_loss(old: &TrialRow, new: &TrialRow) -> bool {
    let differs = |old: Option<f64>, new: Option<f64>| old.is_some() != new.is_some();
    differs(old.train_loss, new.train_loss) || differs(old.valid_loss, new.valid_loss)
}

/// Whether two attempts of a trial have equal losses; `None` where a loss is missing.
fn equal_losses(old: &TrialRow, new: &TrialRow) -> Option<bool> {
    let is_equal = |old: Option<f64>, new: Option<f64>| Some(old?.to_bits() == new?.to_bits());
    match (
        is_equal(old.train_loss, new.train_loss),
        is_equal(old.valid_loss, new.valid_loss),
    ) {
        // One of them was not evaluated.
        (Some(_), None) if old.valid_loss.is_some() != new.valid_loss.is_some() => Some(false),
        (Some(train), valid) => Some(train && valid.unwrap_or(true)),
        (None, valid) => valid,
    }
}

/// `3 completed, 1 oom`.
fn ends(rows: &[&TrialRow]) -> String {
    let of = |outcome: Outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let counts: Vec<String> = Outcome::ALL
        .into_iter()
        .filter(|outcome| of(*outcome) > 0)
        .map(|outcome| format!("{} {outcome}", of(outcome)))
        .collect();
    counts.join(", ")
}

/// `trial 0123456789: clocks limited for 90 % of the window (hw_thermal_slowdown)`, of completed
/// runs; `other` is what the other side is called.
fn disturbances(rows: &[&TrialRow], at_once: &AtOnce<'_>, other: &str) -> Vec<String> {
    let told =
        |row: &TrialRow| {
            let mut found = row.disturbances();
            found.extend(at_once.beside(row).map(|beside| {
                format!("ran at the same time as trial {} of {other}", beside.trial)
            }));
            (!found.is_empty()).then(|| format!("trial {}: {}", row.trial, found.join(", ")))
        };
    completed(rows).into_iter().filter_map(told).collect()
}

/// A metric of a pair before its verdict.
struct MeasuredPair {
    place: usize,
    metric: ComparedMetric,
    column: &'static str,
    sides: Sides,
    missing: [usize; 2],
    passed_over: Option<&'static str>,
    refusal: Option<String>,
}

impl MeasuredPair {
    fn of(
        place: usize,
        metric: ComparedMetric,
        pair: &MatchedPair<'_>,
        at_once: &AtOnce<'_>,
        treatment: Option<&Treatment>,
    ) -> Option<Self> {
        let rows = [&pair.base, &pair.new].map(|rows| completed(rows));
        let (column, [base, new]) = metric.of_both(&rows[0], &rows[1], at_once)?;
        let missing = [rows[0].len() - base.len(), rows[1].len() - new.len()];
        let passed_over = metric.passed_over(&rows[0], &rows[1]);
        let sides = Sides {
            base,
            new,
            nature: metric.nature(),
        };
        (!sides.base.is_empty() && !sides.new.is_empty()).then_some(Self {
            place,
            metric,
            column,
            sides,
            missing,
            passed_over,
            refusal: treatment
                .and_then(|treatment| scope::refusal(metric, column, treatment, pair)),
        })
    }

    /// The verdict from an estimate, if there is one; `looks` is the number of points in which a
    /// drift is looked for.
    fn compared(
        self,
        estimate: Option<Estimate>,
        is_comparable: bool,
        looks: usize,
    ) -> Option<Comparison> {
        let metric = self.metric;
        let middle = |runs: &[statistics::TimedRun]| {
            statistics::middle(&runs.iter().map(|run| run.value).collect::<Vec<_>>())
        };
        let (base, new) = (middle(&self.sides.base)?, middle(&self.sides.new)?);
        let verdict = match &estimate {
            _ if !is_comparable || self.refusal.is_some() => Verdict::NotComparable,
            None => Verdict::TooFewRuns,
            Some(estimate) => verdict(metric, estimate),
        };
        Some(Comparison {
            metric,
            verdict,
            column: self.column,
            base_runs: self.sides.base.len(),
            new_runs: self.sides.new.len(),
            base_missing: self.missing[0],
            new_missing: self.missing[1],
            passed_over: self.passed_over,
            base,
            new,
            ratio: estimate.map_or(new / base, |estimate| estimate.ratio),
            interval: estimate
                .map(|estimate| [estimate.low, estimate.high])
                .filter(|[_, high]| high.is_finite()),
            visible: estimate.and_then(|estimate| estimate.visible),
            design: estimate.map(|estimate| estimate.design),
            refusal: self.refusal,
            excludes_worse: estimate.is_some_and(|estimate| excludes_worse(metric, &estimate)),
            drift: estimate
                .filter(|_| metric.nature() == statistics::Nature::Drifting)
                .map(|_| Drift::of(&self.sides, looks))
                .unwrap_or_default(),
        })
    }
}

/// Adds the comparisons of all metrics, the intervals adjusted for all of them together.
fn fill(
    pairs: &[MatchedPair<'_>],
    at_once: &AtOnce<'_>,
    treatment: Option<&Treatment>,
    compared: &mut [Compared],
) {
    let of_metric = |metric: ComparedMetric| {
        pairs.iter().enumerate().filter_map(move |(place, pair)| {
            MeasuredPair::of(place, metric, pair, at_once, treatment)
        })
    };
    let measured: Vec<MeasuredPair> = ComparedMetric::ALL
        .into_iter()
        .flat_map(of_metric)
        .collect();
    let is_told = |one: &&MeasuredPair| {
        compared[one.place].unlike.is_empty() && one.refusal.is_none() && one.sides.has_enough()
    };
    let told: Vec<usize> = measured
        .iter()
        .enumerate()
        .filter(|(_, one)| is_told(one))
        .map(|(place, _)| place)
        .collect();
    let found = estimates(&questions(
        told.iter().map(|place| &measured[*place]).collect(),
    ));
    // A drift is looked for once at each point, by its rate or else by its steps.
    let points: HashSet<usize> = told
        .iter()
        .map(|place| &measured[*place])
        .filter(|one| one.metric.is_speed())
        .map(|one| one.place)
        .collect();
    let looks = points.len();
    let mut estimate_of: Vec<Option<Estimate>> = vec![None; measured.len()];
    told.into_iter()
        .zip(found)
        .for_each(|(place, estimate)| estimate_of[place] = Some(estimate));
    for (one, estimate) in measured.into_iter().zip(estimate_of) {
        let into = &mut compared[one.place];
        let is_comparable = into.unlike.is_empty();
        into.comparisons
            .extend(one.compared(estimate, is_comparable, looks));
    }
}

/// Half of the error level is for throughput, half for all other metrics together; comparisons of
/// constant numbers count for neither.
fn questions(measured: Vec<&MeasuredPair>) -> Vec<Question> {
    let is_asked = |one: &&&MeasuredPair| !one.sides.is_constant();
    let of_throughput = measured
        .iter()
        .filter(is_asked)
        .filter(|one| one.metric == ComparedMetric::Throughput)
        .count()
        .max(1) as f64;
    let of_others = measured
        .iter()
        .filter(is_asked)
        .filter(|one| one.metric != ComparedMetric::Throughput)
        .count()
        .max(1) as f64;
    let weight = |one: &MeasuredPair| {
        1.0 / if one.metric == ComparedMetric::Throughput {
            of_throughput
        } else {
            of_others
        }
    };
    measured
        .iter()
        .map(|one| Question {
            sides: one.sides.clone(),
            worth: one.metric.worth(),
            weight: weight(one),
        })
        .collect()
}

/// The verdict on one metric of one point by itself.
pub fn verdict_of(
    metric: ComparedMetric,
    base: &[statistics::TimedRun],
    new: &[statistics::TimedRun],
) -> Verdict {
    let sides = Sides {
        base: base.to_vec(),
        new: new.to_vec(),
        nature: metric.nature(),
    };
    if !sides.has_enough() {
        return Verdict::TooFewRuns;
    }
    let question = Question {
        sides,
        worth: metric.worth(),
        weight: 1.0,
    };
    estimates(&[question])
        .first()
        .map_or(Verdict::TooFewRuns, |estimate| verdict(metric, estimate))
}

fn verdict(metric: ComparedMetric, estimate: &Estimate) -> Verdict {
    let worth = metric.worth();
    let change = |is_higher: bool| {
        if is_higher == metric.is_better_high() {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    };
    match estimate {
        _ if estimate.is_higher(worth) => change(true),
        _ if estimate.is_lower(worth) => change(false),
        _ if estimate.excludes_lower(worth) && estimate.excludes_higher(worth) => Verdict::Same,
        _ if estimate.design.is_apart() => Verdict::CannotTell,
        _ => Verdict::Ambiguous,
    }
}

fn excludes_worse(metric: ComparedMetric, estimate: &Estimate) -> bool {
    let worth = metric.worth();
    if metric.is_better_high() {
        estimate.excludes_lower(worth)
    } else {
        estimate.excludes_higher(worth)
    }
}

/// Relative distance of two losses of which one is 0, because a page has no infinite numbers.
const FURTHEST: f64 = 1e300;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod treatment_tests;
