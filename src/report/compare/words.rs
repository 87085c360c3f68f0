//! Words and numbers of a comparison, as pages show them.

use kiln_core::{
    statistics::Design,
    units::{Bytes, Change, Fraction, Seconds, counted, decimals, listed},
};

use super::{Compared, ComparedMetric, Comparison, TreatedKey, Unlike, Verdict};
use crate::report::{layout::significant, points::order, two_values};

/// Condition for a number to be part of a ratio, as `metric` checks it.
pub(super) const USABLE: &str = "from 1e-150 to 1e150";

/// Why runs of several seeds count as one.
pub(super) const ALL_SEEDS_ALIKE: &str =
    "all seeds gave the same number: does the program use its seed?";

/// Sentence about runs that are enough in number, and yet too few.
pub(super) fn too_few(point: &str, comparison: &Comparison) -> Option<String> {
    let why = comparison.why_too_few?;
    Some(format!(
        "too few runs: {point}: `{}`: {why}",
        comparison.column
    ))
}

/// Sentence about the runs that a comparison excludes.
pub(super) fn missing(point: &str, comparison: &Comparison) -> Option<String> {
    let Comparison {
        column,
        base_missing,
        new_missing,
        base_runs,
        new_runs,
        ..
    } = comparison;
    let side = |missing: &usize, runs: &usize, side: &str| {
        (*missing > 0).then(|| format!("{missing} of {} runs of {side}", missing + runs))
    };
    let sides: Vec<String> = [
        side(base_missing, base_runs, "base"),
        side(new_missing, new_runs, "new"),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!sides.is_empty()).then(|| {
        format!(
            "excluded: {point}: {} completed without a `{column}` {USABLE}",
            sides.join(" and ")
        )
    })
}

/// Sentences about numbers of which a side has none above 0, each once; the points are named where
/// it is not all of them.
pub(super) fn not_positive(pairs: &[Compared]) -> Vec<String> {
    let mut columns: Vec<&str> = Vec::new();
    for column in pairs.iter().flat_map(|pair| &pair.not_positive) {
        if !columns.contains(column) {
            columns.push(column);
        }
    }
    let sentence = |column: &&str| {
        let of_column = pairs
            .iter()
            .filter(|pair| pair.not_positive.contains(column));
        let points: Vec<String> = of_column.map(|pair| pair.name.clone()).collect();
        let points = match points.len() == pairs.len() {
            true => String::new(),
            false => format!("{}: ", listed(&points, "; ")),
        };
        format!(
            "not compared: {points}`{column}` is negative or 0 in all runs of a side, so there is \
             no ratio"
        )
    };
    columns.iter().map(sentence).collect()
}

/// Sentence about a number that is 0 in some runs.
pub(super) fn of_differences(point: &str, comparison: &Comparison) -> Option<String> {
    let is_judged = comparison.verdict != Verdict::NotComparable;
    (comparison.is_of_differences && is_judged).then(|| {
        format!(
            "differences: {point}: `{}` is 0 in some runs, so its means are arithmetic, and the change \
             is their difference as a part of base's",
            comparison.column
        )
    })
}

/// `train.precision: f32 → bf16`.
pub(super) fn treated(one: &TreatedKey) -> String {
    // Settings have a dot, columns have none.
    let none = match one.key.contains('.') {
        true => "(not set)",
        false => "(none)",
    };
    let [base, new] = two_values::sides([one.base.as_deref(), one.new.as_deref()], none);
    format!("{}: {base} → {new}", one.key)
}

/// Reasons why numbers are not compared, each once; of several each names its points.
pub(super) fn refusals(comparisons: &[(&Compared, &Comparison)]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for (pair, comparison) in comparisons {
        let Some(refusal) = comparison.refusal.as_deref() else {
            continue;
        };
        match found.iter_mut().find(|(known, _)| *known == refusal) {
            Some((_, points)) => points.push(pair.name.clone()),
            None => found.push((refusal, vec![pair.name.clone()])),
        }
    }
    let is_of_all = found.len() == 1 && found[0].1.len() == comparisons.len();
    let named = |(refusal, points): &(&str, Vec<String>)| match is_of_all {
        true => (*refusal).to_owned(),
        false => format!("{}: {refusal}", listed(points, "; ")),
    };
    found.iter().map(named).collect()
}

/// `precision f32 → bf16`.
pub(super) fn difference(unlike: &Unlike) -> String {
    let side = |values: &[String]| {
        values
            .iter()
            .map(|value| if value.is_empty() { "(none)" } else { value })
            .collect::<Vec<_>>()
            .join(" and ")
    };
    format!(
        "{} {} → {}",
        unlike.field.name(),
        side(&unlike.base),
        side(&unlike.new)
    )
}

/// Name of a verdict on pages and in `--fail-on`.
pub fn word(comparison: &Comparison) -> &'static str {
    match comparison.verdict {
        Verdict::Better => comparison.metric.word(true),
        Verdict::Worse => comparison.metric.word(false),
        Verdict::Same => "same",
        Verdict::Ambiguous => "ambiguous",
        Verdict::CannotTell => "cannot-tell",
        Verdict::TooFewRuns => "too-few-runs",
        Verdict::NotComparable => "not-comparable",
    }
}

/// `2 faster, 5 same`.
pub(super) fn words<'c>(
    metric: ComparedMetric,
    comparisons: impl Iterator<Item = &'c Comparison> + Clone,
) -> String {
    words_beside(metric, comparisons, 0)
}

/// The counts of verdicts as [`words`] has them, with `not_comparable` more points that are not
/// comparable.
pub(super) fn words_beside<'c>(
    metric: ComparedMetric,
    comparisons: impl Iterator<Item = &'c Comparison> + Clone,
    not_comparable: usize,
) -> String {
    let order = [
        metric.word(false),
        metric.word(true),
        "cannot-tell",
        "ambiguous",
        "same",
        "too-few-runs",
        "not-comparable",
    ];
    let count = |wanted: &str| {
        let more = match wanted {
            "not-comparable" => not_comparable,
            _ => 0,
        };
        let found = comparisons.clone();
        found
            .filter(|comparison| word(comparison) == wanted)
            .count()
            + more
    };
    let counts = order
        .iter()
        .map(|wanted| (count(wanted), wanted))
        .filter(|(count, _)| *count > 0);
    counts
        .map(|(count, word)| format!("{count} {}", word.replace('-', " ")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Name of a metric and the columns that were compared, where these are other than the name:
/// `throughput (tokens_per_second)`.
pub(super) fn heading(metric: ComparedMetric, comparisons: &[(&Compared, &Comparison)]) -> String {
    let (name, columns) = (metric.short_name(), columns(comparisons));
    match metric.is_column() || columns == name {
        true => name.to_owned(),
        false => format!("{name} ({columns})"),
    }
}

/// The columns that were compared.
fn columns(comparisons: &[(&Compared, &Comparison)]) -> String {
    let mut names: Vec<&str> = comparisons
        .iter()
        .map(|(_, comparison)| comparison.column)
        .collect();
    names.sort_unstable();
    names.dedup();
    names.join(" or ")
}

/// Text on the widest interval and the smallest visible change, where there are any: `; 95 %
/// intervals from -1.2 % to +0.8 %, smallest visible 0.9 %`.
pub(super) fn reach(comparisons: &[(&Compared, &Comparison)]) -> String {
    let intervals = || {
        comparisons
            .iter()
            .filter_map(|(_, comparison)| comparison.interval)
    };
    let (low, high) = intervals().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), ends| {
        (low.min(ends[0]), high.max(ends[1]))
    });
    let visible = comparisons
        .iter()
        .filter_map(|(_, comparison)| comparison.visible)
        .fold(f64::NEG_INFINITY, f64::max);
    match (low.is_finite(), visible.is_finite()) {
        (true, true) => format!(
            "; 95 % intervals from {} to {}, smallest visible {} or less",
            Change(low),
            Change(high),
            Fraction(visible)
        ),
        (true, false) => format!("; 95 % intervals from {} to {}", Change(low), Change(high)),
        (false, _) => String::new(),
    }
}

/// The verdict in words; an open verdict lists what is possible: `ambiguous: same or faster`.
pub(super) fn verdict(comparison: &Comparison) -> String {
    let plain = word(comparison).replace('-', " ");
    let is_open = matches!(comparison.verdict, Verdict::Ambiguous | Verdict::CannotTell);
    let Some([low, high]) = comparison.interval.filter(|_| is_open) else {
        return plain;
    };
    let (metric, worth) = (comparison.metric, comparison.metric.worth());
    let of = |is_better: bool| metric.word(is_better).replace('-', " ");
    let below = (low < 1.0 - worth).then(|| of(!metric.is_better_high()));
    let same = (low < 1.0 + worth && high > 1.0 - worth).then(|| "same".to_owned());
    let above = (high > 1.0 + worth).then(|| of(metric.is_better_high()));
    let may_be: Vec<String> = [below, same, above].into_iter().flatten().collect();
    match &may_be[..] {
        [first @ .., last] if !first.is_empty() => {
            format!("{plain}: {} or {last}", first.join(", "))
        }
        _ => plain,
    }
}

/// Suffix of a verdict whose runs were disturbed.
pub(super) fn beside(pair: &Compared) -> &'static str {
    if pair.disturbed.iter().all(Vec::is_empty) {
        ""
    } else {
        " (disturbed)"
    }
}

/// Name of a design in tables.
pub(super) fn design(design: Design) -> &'static str {
    match design {
        Design::Paired { .. } => "paired",
        Design::PairedLaunches { .. } => "paired-launches",
        Design::Mixed => "mixed",
        Design::Apart => "apart",
        Design::OrderUnknown => "unknown",
        Design::ApartDisturbed => "apart-disturbed",
        Design::AtOnce => "at-once",
        Design::Independent => "independent",
    }
}

pub(super) fn shown(metric: ComparedMetric, value: f64) -> String {
    match metric {
        ComparedMetric::Throughput => significant(value),
        ComparedMetric::StepTime => Seconds(value).to_string(),
        ComparedMetric::Memory => Bytes(value as u64).to_string(),
        ComparedMetric::Energy => significant(value),
        ComparedMetric::Loss => decimals(value, 4),
        ComparedMetric::Accuracy(_) | ComparedMetric::Column(_) => significant(value),
    }
}

/// The numbers of base and new. Accuracies and own metrics have four significant digits, and up to
/// six until the shown numbers give the change that the page tells.
pub(super) fn both_shown(metric: ComparedMetric, base: f64, new: f64) -> [String; 2] {
    if !matches!(
        metric,
        ComparedMetric::Accuracy(_) | ComparedMetric::Column(_)
    ) {
        return [base, new].map(|value| shown(metric, value));
    }
    let change = |base: f64, new: f64| Change(new / base).to_string();
    let tells_change = |texts: &[String; 2]| {
        let number = |text: &String| text.parse::<f64>().unwrap_or_default();
        change(number(&texts[0]), number(&texts[1])) == change(base, new)
    };
    let texts = |digits: usize| [base, new].map(|value| with_digits(value, digits));
    (4..6)
        .map(texts)
        .find(tells_change)
        .unwrap_or_else(|| texts(6))
}

/// A number with so many significant digits, or all digits before the point.
fn with_digits(value: f64, digits: usize) -> String {
    let short = significant(value);
    if value == 0.0 || !value.is_finite() {
        return short;
    }
    let decimals = digits - 1;
    if short.contains('e') {
        return format!("{value:.decimals$e}");
    }
    let places = usize::try_from(decimals as i32 - order(value)).unwrap_or(0);
    format!("{value:.places$}")
}

/// The interval, or how few runs there are for one.
pub(super) fn interval_of(comparison: &Comparison) -> Option<String> {
    let (base, new) = (comparison.base_runs, comparison.new_runs);
    match comparison.verdict {
        Verdict::TooFewRuns if comparison.why_too_few.is_some() => {
            Some("none (runs are copies)".to_owned())
        }
        Verdict::TooFewRuns if base == new => Some(format!("none ({})", counted(base, "run"))),
        Verdict::TooFewRuns => Some(format!("none ({base} and {new} runs)")),
        _ => {
            let ends = comparison.interval?;
            Some(interval(ends, comparison.is_of_differences))
        }
    }
}

/// `change -12.1 % without an interval`, of points that have too few runs for one.
pub(super) fn changes_without_interval(comparisons: &[&Comparison]) -> Option<String> {
    let ratios = || {
        let all = comparisons.iter().map(|one| one.ratio);
        all.filter(|ratio| ratio.is_finite())
    };
    let is_all = comparisons
        .iter()
        .all(|one| one.verdict == Verdict::TooFewRuns);
    let (least, most) = (ratios().reduce(f64::min)?, ratios().reduce(f64::max)?);
    let of = |ratio: f64| Change(ratio).to_string();
    let change = match of(least) == of(most) {
        true => of(least),
        false => format!("{} to {}", of(least), of(most)),
    };
    is_all.then(|| format!("change {change} without an interval"))
}

/// Ratio of the ends of an interval above which it is too wide to be useful.
const FAR_APART: f64 = 4.0;
/// Width above which one of differences is so too, in parts of base: its lower end may be 0.
const WIDE: f64 = 1.0;

fn interval([low, high]: [f64; 2], is_of_differences: bool) -> String {
    let is_narrow = is_of_differences && high - low <= WIDE;
    if high > FAR_APART * low && !is_narrow {
        "too wide to be useful".to_owned()
    } else {
        format!("{} to {}", Change(low), Change(high))
    }
}

pub(super) fn visible(share: f64) -> String {
    if share > 1.0 {
        "more than 100 %".to_owned()
    } else {
        Fraction(share).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_differences_is_judged_by_its_width() {
        let wide = "too wide to be useful";
        assert_eq!(interval([0.0, 0.064], true), "-100.0 % to -93.6 %");
        assert_eq!(interval([0.0, 0.064], false), wide);
        assert_eq!(interval([0.0, 1.5], true), wide);
        // A rise of several times base.
        assert_eq!(interval([1.5, 4.0], true), "+50.0 % to +300.0 %");
    }

    #[test]
    fn an_own_metric_has_digits_enough_for_its_change() {
        let metric = ComparedMetric::accuracies().next().unwrap();
        for ([base, new], told) in [
            ([12.04, 12.064], ["12.04", "12.06"]),
            // With four digits the change would be +0.2 %.
            ([1.000_49, 1.001_51], ["1.0005", "1.0015"]),
            ([10_001.2, 10_021.4], ["10001", "10021"]),
            ([1.2e-8, 1.206e-8], ["1.200e-8", "1.206e-8"]),
            ([0.9, 0.0], ["0.9000", "0"]),
            ([0.0, 0.0], ["0", "0"]),
        ] {
            assert_eq!(both_shown(metric, base, new), told, "{base} {new}");
        }
        let rates = both_shown(ComparedMetric::Throughput, 12.04, 12.06);
        assert_eq!(rates, ["12.0", "12.1"]);
    }

    #[test]
    fn long_values_of_a_treatment_show_their_first_difference() {
        let argv = |end: &str| Some(format!("[\"python\",{}{end}", "\"--option\",".repeat(10)));
        let told = treated(&TreatedKey {
            key: "model.argv".to_owned(),
            base: argv("\"a\"]"),
            new: argv("\"b\"]"),
        });
        assert!(
            told.contains("\"a\"] → …") && told.ends_with("\"b\"]"),
            "{told}"
        );
    }
}
