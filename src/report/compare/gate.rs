//! A gate answers whether something is so at any point, as that a metric became worse. It has three
//! answers; "cannot tell" is not "no".

use std::collections::BTreeMap;

use kiln_core::{
    statistics::{MUCH_DISTURBED, Nature},
    units::{counted, listed},
};

use super::{
    Compared, ComparedMetric, Comparison, Comparisons, DisturbedRun, Verdict, word,
    words::{USABLE, shown},
};

/// Answer of a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Pass,
    /// The points where it is so, as where the metric became worse.
    Fail(Vec<String>),
    /// The points where these runs cannot exclude it, each with the reason.
    CannotTell(Vec<String>),
}

/// Largest number of points that a sentence names.
const MOST_NAMED: usize = 5;

impl Gate {
    /// It fails if a point fails, whatever cannot be told of others.
    pub(in crate::report) fn of(fails: Vec<String>, untold: Vec<String>) -> Self {
        match (fails.is_empty(), untold.is_empty()) {
            (false, _) => Self::Fail(fails),
            (true, false) => Self::CannotTell(untold),
            (true, true) => Self::Pass,
        }
    }

    /// The answer for programs.
    pub fn answer(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
            Self::CannotTell(_) => "cannot-tell",
        }
    }

    /// The points for which it does not pass, with reasons where it cannot be told.
    pub fn points(&self) -> &[String] {
        match self {
            Self::Pass => &[],
            Self::Fail(points) | Self::CannotTell(points) => points,
        }
    }

    pub fn sentence(&self) -> String {
        self.sentence_beside(0)
    }

    /// The same where the last `of_runs` entries are about a run as a whole, not about a point.
    pub fn sentence_beside(&self, of_runs: usize) -> String {
        let (answer, entries) = match self {
            Self::Pass => return "pass".to_owned(),
            Self::Fail(entries) => ("fail", entries),
            Self::CannotTell(entries) => ("cannot tell", entries),
        };
        let (points, runs) = entries.split_at(entries.len().saturating_sub(of_runs));
        let at_points = format!(
            "{answer} at {}: {}",
            counted(points.len(), "point"),
            named_first(points)
        );
        match (points.is_empty(), runs.is_empty()) {
            (true, false) => format!("{answer}: {}", named_first(runs)),
            (false, false) => format!("{at_points}; and {}", named_first(runs)),
            (_, true) => at_points,
        }
    }
}

/// The first entries, and the number of the others.
fn named_first(entries: &[String]) -> String {
    let named = listed(&entries[..entries.len().min(MOST_NAMED)], "; ");
    match entries.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

/// Decides whether a metric became worse at any point of base. It passes where the runs exclude
/// that at every point.
pub fn gate(found: &Comparisons, metric: ComparedMetric) -> Gate {
    gate_of_all(found, &[metric])
}

/// Decides whether one of these metrics became worse at any point of base. Each point is named once.
pub fn gate_of_all(found: &Comparisons, metrics: &[ComparedMetric]) -> Gate {
    let by_metric: Vec<(ComparedMetric, ToldPoints)> = metrics
        .iter()
        .map(|metric| (*metric, ToldPoints::of(found, *metric)))
        .collect();
    let points = |of: fn(&ToldPoints) -> &BTreeMap<usize, String>| {
        let mut points: BTreeMap<usize, Vec<(ComparedMetric, &str)>> = BTreeMap::new();
        for (metric, of_metric) in &by_metric {
            for (place, why) in of(of_metric) {
                points
                    .entry(*place)
                    .or_default()
                    .push((*metric, why.as_str()));
            }
        }
        points
            .into_iter()
            .map(|(place, whys)| named(point_name(found, place), &whys, metrics.len()))
            .collect::<Vec<String>>()
    };
    Gate::of(points(|one| &one.worse), points(|one| &one.untold))
}

/// A point with what is to be said of each of the metrics; their names are left out where all of
/// them say the same, and where only one was asked for.
fn named(point: &str, whys: &[(ComparedMetric, &str)], metrics: usize) -> String {
    let (_, first) = whys[0];
    let is_alike = whys.len() == metrics && whys.iter().all(|(_, why)| *why == first);
    let words = |(metric, why): &(ComparedMetric, &str)| match why.is_empty() {
        true => format!("`{}`", metric.short_name()),
        false => format!("`{}`: {why}", metric.short_name()),
    };
    let words = match is_alike && (metrics == 1 || !first.is_empty()) {
        true => first.to_owned(),
        false => whys.iter().map(words).collect::<Vec<String>>().join(", "),
    };
    match words.is_empty() {
        true => point.to_owned(),
        false => format!("{point} ({words})"),
    }
}

/// The name of a point: the pairs, then those that only base has.
fn point_name(found: &Comparisons, place: usize) -> &str {
    match found.pairs.get(place) {
        Some(pair) => &pair.name,
        None => &found.only_base[place - found.pairs.len()],
    }
}

/// The points where a metric became worse, or where that cannot be told, by their places, with the
/// reason; it is empty where the verdict says enough.
#[derive(Default)]
struct ToldPoints {
    worse: BTreeMap<usize, String>,
    untold: BTreeMap<usize, String>,
}

impl ToldPoints {
    fn of(found: &Comparisons, metric: ComparedMetric) -> Self {
        let mut points = Self::default();
        for (place, pair) in found.pairs.iter().enumerate() {
            let mut comparisons = pair.comparisons.iter();
            let comparison = comparisons.find(|comparison| comparison.metric == metric);
            if let Some(why) = why_untold_first(found, pair, comparison) {
                points.untold.insert(place, why);
            } else if let Some(worse) = comparison.filter(|one| one.verdict == Verdict::Worse) {
                points.worse.insert(place, at_zero(worse));
            } else if let Some(why) = why_untold(pair, comparison, metric) {
                points.untold.insert(place, why);
            }
        }
        let places = found.pairs.len()..found.pairs.len() + found.only_base.len();
        let only_base = places.map(|place| (place, "only in base".to_owned()));
        points.untold.extend(only_base);
        points
    }
}

/// How an accuracy fell to 0 or rose from it, of which there is no ratio; else empty.
fn at_zero(comparison: &Comparison) -> String {
    let of = |value: f64| shown(comparison.metric, value);
    let (base, new) = (comparison.base, comparison.new);
    match (base == 0.0, new == 0.0) {
        (false, true) => format!("fell from {} to 0", of(base)),
        (true, false) => format!("rose from 0 to {}", of(new)),
        _ => String::new(),
    }
}

/// Why a point has no answer, whatever its verdict.
fn why_untold_first(
    found: &Comparisons,
    pair: &Compared,
    comparison: Option<&Comparison>,
) -> Option<String> {
    if !pair.unlike.is_empty() {
        return Some("not comparable".to_owned());
    }
    if !found.unnamed.is_empty() {
        return Some(format!(
            "the runs differ in {}; `--across {}` makes that the question",
            listed(&found.unnamed, ", "),
            found.unnamed.join(",")
        ));
    }
    if pair.shared > 0 {
        let runs = counted(pair.shared, "run");
        return Some(format!("{runs} on both sides the same"));
    }
    let comparison = comparison.filter(|one| !found.is_clean && is_lopsided(pair, one))?;
    Some(disturbed(pair, comparison))
}

/// Why it cannot be told that a point did not become worse; `None` if it can.
fn why_untold(
    pair: &Compared,
    comparison: Option<&Comparison>,
    metric: ComparedMetric,
) -> Option<String> {
    if pair.ends.is_some() {
        return Some("not all its trials completed".to_owned());
    }
    let Some(comparison) = comparison else {
        let mut unusable = pair.unusable.iter();
        return Some(match unusable.find(|column| metric.has(column)) {
            Some(column) => format!("a `{column}` is not {USABLE}"),
            None => format!("no {} on both sides", metric.name()),
        });
    };
    if comparison.base_missing + comparison.new_missing > 0 {
        return Some(format!("a run lacks `{}`", comparison.column));
    }
    if let Some(column) = comparison.passed_over {
        return Some(format!("only one side has `{column}`"));
    }
    let verdict = || word(comparison).replace('-', " ");
    (!comparison.excludes_worse).then(|| match comparison.why_too_few {
        Some(why) => format!("{}: {why}", verdict()),
        None => verdict(),
    })
}

/// Whether one side was disturbed so much more than the other that this may explain the difference.
fn is_lopsided(pair: &Compared, comparison: &Comparison) -> bool {
    let [base, new] = &pair.disturbed;
    let share =
        |disturbed: &Vec<DisturbedRun>, runs: usize| disturbed.len() as f64 / runs.max(1) as f64;
    let apart = share(base, comparison.base_runs) - share(new, comparison.new_runs);
    comparison.metric.nature() == Nature::Drifting && apart.abs() >= MUCH_DISTURBED
}

/// How many runs of each side were disturbed, and whether enough are left without them.
fn disturbed(pair: &Compared, comparison: &Comparison) -> String {
    let [base, new] = pair.disturbed.each_ref().map(Vec::len);
    let counts = format!(
        "{base} of {} of base and {new} of {} of new",
        counted(comparison.base_runs, "run"),
        comparison.new_runs
    );
    let disturbance = match base == 0 || new == 0 {
        true => format!("disturbed on one side: {counts}"),
        false => format!("{counts} were disturbed"),
    };
    match pair.has_enough_clean_runs() {
        true => format!("{disturbance}; `--clean` judges without these runs"),
        false => disturbance,
    }
}

/// Returns the points without a verdict: none of their trials can be compared, or only base has
/// them.
pub fn unsaid(found: &Comparisons) -> Vec<String> {
    let is_unsaid = |pair: &&Compared| {
        pair.unlike.is_empty() && (pair.comparisons.is_empty() || pair.ends.is_some())
    };
    let unsaid = found
        .pairs
        .iter()
        .filter(is_unsaid)
        .map(|pair| format!("{} (not all its trials completed with a number)", pair.name));
    unsaid
        .chain(
            found
                .only_base
                .iter()
                .map(|name| format!("{name} (only in base)")),
        )
        .collect()
}
