//! Metrics of pairs before and after their verdicts: numbers of rows come in, comparisons go out.

use std::collections::HashSet;

use kiln_core::statistics::{
    self, Drift, Estimate, ExactTest, Nature, Question, Sides, TimedRun, estimates,
    estimates_beside,
};

use super::{
    ComparedMetric, Comparison, Comparisons, Matchup, Verdict,
    differences::{Differences, mean},
    matching::MatchedPair,
    metric::RunReader,
    pair::completed,
    scope,
    words::{ALL_SEEDS_ALIKE, USABLE},
};

/// From this share on an arithmetic and a geometric mean are told to differ: half a unit of the
/// third digit. Runs with a spread of 10 % are so far apart.
const VISIBLY_APART: f64 = 0.005;

/// A metric of a pair before its verdict.
struct MeasuredPair {
    place: usize,
    metric: ComparedMetric,
    column: &'static str,
    sides: Sides,
    /// Where some runs have 0.
    differences: Option<Differences>,
    missing: [usize; 2],
    passed_over: Option<&'static str>,
    refusal: Option<String>,
    /// Whether a side has one number with every seed, and the other side another: its runs count as
    /// one.
    are_copies: bool,
    /// Better or worse than the number of such a side, where the other side varies and lies apart
    /// from it ([`beside_copies`]).
    beside_copies: Option<Verdict>,
    /// Whether what a test decides is more than chance.
    is_test_sure: bool,
}

impl MeasuredPair {
    fn of(
        place: usize,
        metric: ComparedMetric,
        pair: &MatchedPair<'_>,
        matchup: &Matchup<'_>,
    ) -> Option<Self> {
        let reader = RunReader {
            at_once: &matchup.at_once,
            keys: pair.keys,
        };
        let rows = [&pair.base, &pair.new].map(|rows| completed(rows));
        let (column, [base, new]) = metric.of_both(&rows[0], &rows[1], reader)?;
        let missing = [rows[0].len() - base.len(), rows[1].len() - new.len()];
        let passed_over = metric.passed_over(&rows[0], &rows[1]);
        let sides = Sides {
            base,
            new,
            nature: metric.nature(),
        };
        let copied = rows.each_ref().map(|rows| metric.are_copies(column, rows));
        // Both sides have one number, and it is the same.
        let is_alike = sides.is_constant() || metric.are_copies(column, &rows.concat());
        let beside_copies = beside_copies(metric, &sides, copied);
        (!sides.base.is_empty() && !sides.new.is_empty()).then_some(Self {
            place,
            metric,
            column,
            differences: Differences::of(&sides),
            missing,
            passed_over,
            refusal: matchup
                .options
                .treatment
                .as_ref()
                .and_then(|treatment| scope::refusal(metric, column, treatment, pair))
                .or_else(|| scope::of_source(metric, column, &matchup.options.other_sources))
                .or_else(|| scope::of_formula(column, pair))
                .or_else(|| scope::of_meaning(column, pair, matchup.options.treatment.as_ref()))
                .or_else(|| scope::of_unknown_processor(metric, pair, &matchup.options.across))
                .or_else(|| scope::chosen_runs(metric, pair))
                .or_else(|| {
                    let is_unusable = rows.iter().any(|rows| metric.has_unusable(column, rows));
                    is_unusable.then(|| format!("a `{column}` is not {USABLE}"))
                })
                .or_else(|| zero_beside_some(column, &sides)),
            are_copies: copied != [false; 2] && !is_alike && beside_copies.is_none(),
            beside_copies,
            is_test_sure: false,
            sides,
        })
    }

    /// Its runs and its threshold for the statistics.
    fn question(&self, weight: f64) -> Question {
        let (sides, worth) = (&self.sides, self.metric.worth());
        let (sides, worth) = match self.differences {
            Some(differences) => (differences.sides(sides), differences.worth(worth)),
            None => (sides.clone(), worth),
        };
        Question {
            sides,
            worth,
            weight,
        }
    }

    /// The estimate of the statistics as a ratio of new to base.
    fn estimate(&self, found: Estimate) -> Estimate {
        match self.differences {
            Some(differences) => differences.estimate(found),
            None => found,
        }
    }

    /// The verdict where all runs of a side are 0, if they are no chance: there is no ratio. `None`
    /// elsewhere.
    fn verdict_of_zeros(&self) -> Option<Verdict> {
        let is_zero = |runs: &Vec<TimedRun>| runs.iter().all(|run| run.value == 0.0);
        let is_higher = match [&self.sides.base, &self.sides.new].map(is_zero) {
            [false, false] => return None,
            [true, true] => return Some(Verdict::Same),
            [base_is_zero, _] => base_is_zero,
        };
        Some(change(self.metric, is_higher))
    }

    /// The verdict that a test decides, where there is no estimate.
    fn verdict_of_test(&self) -> Option<Verdict> {
        self.beside_copies.or_else(|| self.verdict_of_zeros())
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
        let middle = |runs: &[TimedRun]| match self.differences {
            Some(_) => mean(runs),
            None => statistics::middle(&runs.iter().map(|run| run.value).collect::<Vec<_>>()),
        };
        let (base, new) = (middle(&self.sides.base)?, middle(&self.sides.new)?);
        let is_apart = |runs: &[TimedRun], middle: f64| {
            mean(runs).is_some_and(|mean| (mean / middle - 1.0).abs() >= VISIBLY_APART)
        };
        // 0 / 0: both are equal.
        let ratio = if base == new { 1.0 } else { new / base };
        let is_small = (ratio - 1.0).abs() < metric.worth();
        let of_test = self.verdict_of_test().filter(|_| self.sides.has_enough());
        let of_test = of_test.map(|verdict| match verdict {
            Verdict::Better | Verdict::Worse if is_small || !self.is_test_sure => {
                Verdict::Ambiguous
            }
            settled => settled,
        });
        let verdict = match (&estimate, of_test) {
            _ if !is_comparable || self.refusal.is_some() => Verdict::NotComparable,
            _ if self.are_copies => Verdict::TooFewRuns,
            (Some(estimate), _) => verdict(metric, estimate),
            (None, Some(of_test)) => of_test,
            (None, None) => Verdict::TooFewRuns,
        };
        let is_not_worse = of_test.is_some() && matches!(verdict, Verdict::Same | Verdict::Better);
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
            is_apart_from_report: is_apart(&self.sides.base, base)
                || is_apart(&self.sides.new, new),
            is_of_differences: self.differences.is_some(),
            ratio: estimate.map_or(ratio, |estimate| estimate.ratio),
            interval: estimate
                .map(|estimate| [estimate.low, estimate.high])
                .filter(|[_, high]| high.is_finite()),
            visible: estimate.and_then(|estimate| estimate.visible),
            design: estimate.map(|estimate| estimate.design),
            refusal: self.refusal,
            why_too_few: (verdict == Verdict::TooFewRuns && self.are_copies)
                .then_some(ALL_SEEDS_ALIKE),
            excludes_worse: estimate.map_or(is_not_worse, |one| excludes_worse(metric, &one)),
            drift: estimate
                .filter(|_| metric.nature() == Nature::Drifting)
                .map(|_| Drift::of(&self.sides, looks))
                .unwrap_or_default(),
        })
    }
}

/// Adds the comparisons of all metrics, the intervals adjusted for all of them together. The pairs
/// of all matchups are in `found`, in their order.
pub(super) fn fill(matchups: &[Matchup<'_>], found: &mut Comparisons) {
    let is_one_run = found.is_one_run;
    let (metrics, compared) = (&found.metrics, &mut found.pairs);
    let pairs = || {
        matchups
            .iter()
            .flat_map(|matchup| {
                matchup
                    .matched
                    .pairs
                    .iter()
                    .map(move |pair| (matchup, pair))
            })
            .enumerate()
    };
    let of_attempts: Vec<Option<String>> = pairs()
        .map(|(_, (_, pair))| scope::of_one_attempt(pair, is_one_run))
        .collect();
    let of_metric = |metric: &ComparedMetric| {
        let (metric, of_attempts) = (*metric, &of_attempts);
        pairs().filter_map(move |(place, (matchup, pair))| {
            let one = MeasuredPair::of(place, metric, pair, matchup)?;
            let refusal = of_attempts[place].clone().or(one.refusal);
            Some(MeasuredPair { refusal, ..one })
        })
    };
    let mut measured: Vec<MeasuredPair> = metrics.iter().flat_map(of_metric).collect();
    let is_judged = |one: &&MeasuredPair| {
        compared[one.place].unlike.is_empty()
            && one.refusal.is_none()
            && one.sides.has_enough()
            && !one.are_copies
            && one.verdict_of_test() != Some(Verdict::Same)
    };
    let (judged, tested): (Vec<usize>, Vec<usize>) = measured
        .iter()
        .enumerate()
        .filter(|(_, one)| is_judged(one))
        .map(|(place, _)| place)
        .partition(|place| measured[*place].verdict_of_test().is_none());
    let of = |places: &[usize]| {
        let pairs = places.iter().map(|place| &measured[*place]);
        pairs.collect::<Vec<&MeasuredPair>>()
    };
    let (questions, tests) = questions(of(&judged), of(&tested));
    let (estimated, are_sure) = estimates_beside(&questions, &tests);
    // A drift is looked for once at each point, by its rate, else by its steps, else by the first
    // number that was asked for and that the state of the machine reaches.
    let points: HashSet<usize> = judged
        .iter()
        .map(|place| &measured[*place])
        .filter(|one| one.metric.is_speed() || one.metric.is_main())
        .filter(|one| one.metric.nature() == Nature::Drifting)
        .map(|one| one.place)
        .collect();
    let looks = points.len();
    let mut estimate_of: Vec<Option<Estimate>> = vec![None; measured.len()];
    judged
        .into_iter()
        .zip(estimated)
        .for_each(|(place, one)| estimate_of[place] = Some(measured[place].estimate(one)));
    for (place, is_sure) in tested.into_iter().zip(are_sure) {
        measured[place].is_test_sure = is_sure;
    }
    for (one, estimate) in measured.into_iter().zip(estimate_of) {
        let into = &mut compared[one.place];
        let is_comparable = into.unlike.is_empty();
        into.comparisons
            .extend(one.compared(estimate, is_comparable, looks));
    }
}

/// Half of the error level is for throughput and the metrics that were asked for by name, half for
/// all others together; comparisons of constant numbers count for neither. Where all runs of a side
/// are 0, or one number with every seed, a test takes the place of an estimate.
fn questions(
    measured: Vec<&MeasuredPair>,
    tested: Vec<&MeasuredPair>,
) -> (Vec<Question>, Vec<ExactTest>) {
    let count = |is_main: bool| {
        let asked = measured.iter().filter(|one| !one.sides.is_constant());
        let asked = asked.chain(&tested);
        asked
            .filter(|one| one.metric.is_main() == is_main)
            .count()
            .max(1) as f64
    };
    let [of_main, of_others] = [true, false].map(count);
    let weight = |one: &MeasuredPair| match one.metric.is_main() {
        true => 1.0 / of_main,
        false => 1.0 / of_others,
    };
    let questions = measured.iter().map(|one| one.question(weight(one)));
    let test = |one: &&MeasuredPair| {
        let sides = &one.sides;
        ExactTest::of_all_against_none(sides.base.len(), sides.new.len(), weight(one))
    };
    (questions.collect(), tested.iter().map(test).collect())
}

/// Better or worse where one side alone has one number with every seed, the other varies, and all
/// its runs lie on the same side of that number. `None` elsewhere.
fn beside_copies(metric: ComparedMetric, sides: &Sides, copied: [bool; 2]) -> Option<Verdict> {
    let varied = match copied {
        [true, false] => &sides.new,
        [false, true] => &sides.base,
        [true, true] | [false, false] => return None,
    };
    let is_varied = varied.iter().any(|run| run.value != varied[0].value);
    let is_below = |lower: &[TimedRun], higher: &[TimedRun]| {
        let is_below_all = |run: &TimedRun| higher.iter().all(|other| run.value < other.value);
        lower.iter().all(is_below_all)
    };
    let is_higher = is_below(&sides.base, &sides.new);
    let is_apart = is_higher || is_below(&sides.new, &sides.base);
    (is_varied && is_apart).then(|| change(metric, is_higher))
}

fn change(metric: ComparedMetric, is_higher: bool) -> Verdict {
    match is_higher == metric.is_better_high() {
        true => Verdict::Better,
        false => Verdict::Worse,
    }
}

/// The refusal where all runs of one side have 0, and some of the other; `None` elsewhere.
fn zero_beside_some(column: &str, sides: &Sides) -> Option<String> {
    let zeros = [&sides.base, &sides.new].map(|runs| {
        let zeros = runs.iter().filter(|run| run.value == 0.0).count();
        (zeros > 0, zeros == runs.len())
    });
    let (all, some) = match zeros {
        [(_, true), (true, false)] => ("base", "new"),
        [(true, false), (_, true)] => ("new", "base"),
        _ => return None,
    };
    Some(format!(
        "`{column}` is 0 in all runs of {all} and in some of {some}, so neither a rise nor a fall \
         is clear"
    ))
}

/// The verdict on one metric of one point by itself.
pub fn verdict_of(metric: ComparedMetric, base: &[TimedRun], new: &[TimedRun]) -> Verdict {
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
    match estimate {
        _ if estimate.is_higher(worth) => change(metric, true),
        _ if estimate.is_lower(worth) => change(metric, false),
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
