//! Prints a comparison for people and programs: differences between the records, verdicts, then the
//! points that could not be compared.

use std::fmt::Write;

use kiln_core::{
    statistics::Design,
    units::{Bytes, Change, Fraction, Seconds, counted, decimals, exact, listed, without_controls},
};
use serde_json::{Value, json};

use super::{
    Compared, ComparedMetric, Comparison, Comparisons, Fact, Unlike, Verdict, order::sentences,
};
use crate::report::layout::{
    MUST_STAY, PageColumn, PageStyle, as_markdown, escaped, fitting, layout, significant,
};

/// Version of the object that [`ComparisonPage::json`] makes.
const KILN_COMPARE: u32 = 1;
const CSV_COLUMNS: [&str; 17] = [
    "point",
    "metric",
    "verdict",
    "base",
    "new",
    "ratio",
    "low",
    "high",
    "visible",
    "base_runs",
    "new_runs",
    "not_comparable",
    "column",
    "across",
    "order",
    "base_disturbed",
    "new_disturbed",
];
/// Longest table that is printed, in lines.
const MOST_LINES: usize = 200;
/// Largest number of remarks on single points that is printed.
const MOST_REMARKS: usize = 20;
/// Largest number of facts printed; the rest is counted, and `--format json` has all.
const MOST_FACTS: usize = 20;
/// Values longer than this are cut, in characters.
const LONGEST_FACT: usize = 60;

/// A printable comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonPage<'a> {
    /// Names of the two sides.
    pub base: &'a str,
    pub new: &'a str,
    /// `None` where a side has no record beside its table.
    pub facts: Option<&'a [Fact]>,
    pub found: &'a Comparisons,
}

/// Output format of a table.
enum TableForm {
    Text(PageStyle),
    Markdown,
}

impl ComparisonPage<'_> {
    /// For a terminal or a pipe, ending in a line feed.
    pub fn text(&self, style: PageStyle) -> String {
        let mut page = format!("base: {}\nnew:  {}\n", self.base, self.new);
        self.body(&mut page, &TableForm::Text(style));
        page
    }

    /// For a pull request.
    pub fn markdown(&self) -> String {
        let mut page = format!(
            "# {}\n\nBase: {}, new: {}.\n",
            escaped(&self.headline()),
            escaped(self.base),
            escaped(self.new)
        );
        self.body(&mut page, &TableForm::Markdown);
        page
    }

    fn body(&self, page: &mut String, form: &TableForm) {
        self.record(page, form);
        if let TableForm::Text(_) = form {
            let _ = writeln!(page, "\n{}", self.headline());
        }
        let order = sentences(self.found, self.base, self.new);
        if let TableForm::Markdown = form
            && !order.is_empty()
        {
            page.push('\n');
        }
        for sentence in order {
            let _ = writeln!(
                page,
                "{}{}",
                if let TableForm::Markdown = form {
                    "- "
                } else {
                    ""
                },
                self.plain(&sentence, form)
            );
        }
        for metric in ComparedMetric::ALL {
            self.metric(page, form, metric);
        }
        let remarks = self.remarks();
        if !remarks.is_empty() {
            page.push('\n');
        }
        for remark in remarks {
            let _ = writeln!(
                page,
                "{}{}",
                if let TableForm::Markdown = form {
                    "- "
                } else {
                    ""
                },
                self.plain(&remark, form)
            );
        }
    }

    /// Escapes a line that holds text from files.
    fn plain(&self, line: &str, form: &TableForm) -> String {
        match form {
            TableForm::Text(_) => without_controls(line),
            TableForm::Markdown => escaped(line),
        }
    }

    /// `throughput: 2 faster, 1 slower, 5 same`, and what it was compared across.
    pub fn headline(&self) -> String {
        let words = |metric: ComparedMetric| {
            words(
                metric,
                self.of(metric).iter().map(|(_, comparison)| *comparison),
            )
        };
        let verdicts = match (
            words(ComparedMetric::Throughput),
            words(ComparedMetric::StepTime),
        ) {
            (rates, steps) if rates.is_empty() && steps.is_empty() => {
                "no point has a rate to compare".to_owned()
            }
            (rates, steps) if rates.is_empty() => {
                format!("no point has a rate to compare; step-time: {steps}")
            }
            (rates, _) => format!("throughput: {rates}"),
        };
        let across: Vec<String> = self
            .found
            .across
            .iter()
            .map(|unlike| format!("ACROSS {}", difference(unlike)))
            .collect();
        if across.is_empty() {
            verdicts
        } else {
            format!("{}: {verdicts}", across.join(", "))
        }
    }

    /// Writes the differences between the records.
    fn record(&self, page: &mut String, form: &TableForm) {
        let bullet = if let TableForm::Markdown = form {
            "- "
        } else {
            "  "
        };
        let Some(facts) = self.facts else {
            page.push_str(
                "\none table has no record beside it: differences in code, libraries and machine \
                 are unknown\n",
            );
            return;
        };
        if facts.is_empty() {
            page.push_str("\nthe records of both agree: experiment, code, libraries, machine\n");
            return;
        }
        page.push_str("\nthe records differ in:\n");
        if let TableForm::Markdown = form {
            page.push('\n');
        }
        for line in lines_of(facts) {
            let _ = writeln!(page, "{bullet}{}", self.plain(&line, form));
        }
        if facts.len() > MOST_FACTS {
            let _ = writeln!(
                page,
                "{bullet}and {} more (`--format json` has all)",
                facts.len() - MOST_FACTS
            );
        }
    }

    fn of(&self, metric: ComparedMetric) -> Vec<(&Compared, &Comparison)> {
        let comparison = |pair: &'_ Compared| {
            pair.comparisons
                .iter()
                .position(|comparison| comparison.metric == metric)
        };
        self.found
            .pairs
            .iter()
            .filter_map(|pair| Some((pair, &pair.comparisons[comparison(pair)?])))
            .collect()
    }

    /// Prints a table where some verdict is interesting, else a line.
    fn metric(&self, page: &mut String, form: &TableForm, metric: ComparedMetric) {
        let comparisons = self.of(metric);
        let is_quiet = |(_, comparison): &(&Compared, &Comparison)| {
            !matches!(
                comparison.verdict,
                Verdict::Better | Verdict::Worse | Verdict::Ambiguous | Verdict::CannotTell
            )
        };
        if comparisons.is_empty() {
            return;
        }
        if metric != ComparedMetric::Throughput && comparisons.iter().all(is_quiet) {
            let told = words(
                metric,
                comparisons.iter().map(|(_, comparison)| *comparison),
            );
            let _ = writeln!(
                page,
                "\n{} ({}): {told}{}",
                metric.name(),
                unit(&comparisons),
                reach(&comparisons)
            );
            return;
        }
        let (shown, left_out) = worth_showing(comparisons);
        let columns = columns(metric, &shown, self.found.is_clean);
        match form {
            TableForm::Text(style) => {
                let _ = write!(
                    page,
                    "\n{} ({})\n{}",
                    metric.name(),
                    unit(&shown),
                    layout(
                        &fitting(&columns, style.width),
                        style.width,
                        style.has_color
                    )
                );
            }
            TableForm::Markdown => {
                let _ = write!(
                    page,
                    "\n## {} ({})\n\n{}",
                    metric.name(),
                    unit(&shown),
                    as_markdown(&columns)
                );
            }
        }
        if left_out > 0 {
            let _ = writeln!(
                page,
                "\nand {} more (`--format csv` has all)",
                counted(left_out, "point")
            );
        }
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        for pair in &self.found.pairs {
            if !pair.unlike.is_empty() {
                let fields: Vec<&str> = pair
                    .unlike
                    .iter()
                    .map(|unlike| unlike.field.name())
                    .collect();
                let differences: Vec<String> = pair.unlike.iter().map(difference).collect();
                remarks.push(format!(
                    "not comparable: {}: {}; `--across {}` compares them anyway",
                    pair.name,
                    differences.join(", "),
                    fields.join(",")
                ));
            }
            if let Some([base, new]) = &pair.ends {
                remarks.push(format!("not all completed: {}: {base} → {new}", pair.name));
            }
            remarks.extend(
                pair.comparisons
                    .iter()
                    .filter_map(|comparison| missing(&pair.name, comparison)),
            );
            let unusable = |column: &&str| {
                format!(
                    "not compared: {}: no run of one side has a `{column}` {USABLE}",
                    pair.name
                )
            };
            remarks.extend(pair.unusable.iter().map(unusable));
            remarks.extend(disturbed(pair, self.found.is_clean));
            remarks.extend(
                pair.outliers
                    .iter()
                    .map(|outlier| format!("outlier: {}: {outlier}", pair.name)),
            );
        }
        let left_out = remarks.len().saturating_sub(MOST_REMARKS);
        if left_out > 0 {
            remarks.truncate(MOST_REMARKS);
            remarks.push(format!(
                "and {left_out} more of these (`--format json` has all)"
            ));
        }
        let (losses, equal) = self.found.pairs.iter().fold((0, 0), |(all, equal), pair| {
            (all + pair.losses, equal + pair.equal_losses)
        });
        if losses > 0 {
            remarks.push(format!(
                "losses equal to the bit: {equal} of {} that both tables have",
                counted(losses, "trial")
            ));
        }
        for (side, names) in [
            ("base", &self.found.only_base),
            ("new", &self.found.only_new),
        ] {
            if !names.is_empty() {
                remarks.push(format!("only in {side}: {}", listed(names, "; ")));
            }
        }
        if self.found.pairs.iter().any(|pair| {
            pair.comparisons
                .iter()
                .any(|comparison| comparison.verdict == Verdict::TooFewRuns)
        }) {
            remarks.push(
                "a verdict needs 3 runs of a point on both sides (`sweep.repeats: 5`)".to_owned(),
            );
        }
        remarks
    }

    /// One line per comparison; numbers in the unit of their metric.
    pub fn csv(&self) -> String {
        let number = |value: Option<f64>| value.map(exact).unwrap_or_default();
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut lines = vec![CSV_COLUMNS.map(str::to_owned)];
        let across = self
            .found
            .across
            .iter()
            .map(|unlike| unlike.field.name())
            .collect::<Vec<_>>()
            .join(" ");
        for pair in &self.found.pairs {
            let unlike: Vec<&str> = pair
                .unlike
                .iter()
                .map(|unlike| unlike.field.name())
                .collect();
            for comparison in &pair.comparisons {
                let Comparison {
                    metric,
                    base,
                    new,
                    ratio,
                    interval,
                    visible,
                    base_runs,
                    new_runs,
                    ..
                } = comparison;
                lines.push([
                    pair.name.clone(),
                    metric.name().to_owned(),
                    word(comparison).to_owned(),
                    exact(*base),
                    exact(*new),
                    exact(*ratio),
                    number(interval.map(|ends| ends[0])),
                    number(interval.map(|ends| ends[1])),
                    number(*visible),
                    base_runs.to_string(),
                    new_runs.to_string(),
                    unlike.join(" "),
                    comparison.column.to_owned(),
                    across.clone(),
                    comparison.design.map(design).unwrap_or_default().to_owned(),
                    pair.disturbed[0].len().to_string(),
                    pair.disturbed[1].len().to_string(),
                ]);
            }
        }
        // Into memory: it cannot fail.
        lines
            .iter()
            .for_each(|line| drop(writer.write_record(line)));
        String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
    }

    /// For programs: one object, a line feed at its end.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(&self.value()).unwrap_or_default() + "\n"
    }

    /// Returns that object.
    pub fn value(&self) -> Value {
        let mut whole = json!({"kiln_compare": KILN_COMPARE, "base": self.base, "new": self.new, "facts": self.facts});
        if let (Value::Object(whole), Ok(Value::Object(found))) =
            (&mut whole, serde_json::to_value(self.found))
        {
            whole.extend(found);
        }
        whole
    }
}

/// Lists what has changed since a recorded run, before it is run again, for a terminal. Facts that
/// only trials can tell are not compared.
pub fn now_different(facts: &[Fact]) -> String {
    let known: Vec<Fact> = facts
        .iter()
        .filter(|fact| {
            !["libraries.", "flags."]
                .iter()
                .any(|of| fact.what.starts_with(of))
        })
        .cloned()
        .collect();
    if known.is_empty() {
        return "experiment, code, programs, machine and data are unchanged since the recorded run; \
                libraries are compared after the trials"
            .to_owned();
    }
    let lines: String = lines_of(&known)
        .map(|line| format!("\n  {}", without_controls(&line)))
        .collect();
    let more = known.len().saturating_sub(MOST_FACTS);
    let more = if more > 0 {
        format!("\n  and {more} more")
    } else {
        String::new()
    };
    format!("changed since the recorded run:{lines}{more}")
}

/// The first of them.
fn lines_of(facts: &[Fact]) -> impl Iterator<Item = String> {
    facts
        .iter()
        .take(MOST_FACTS)
        .map(|Fact { what, base, new }| {
            format!("{what}: {} → {}", shown_value(base), shown_value(new))
        })
}

/// Sentence about the runs that a comparison excludes.
fn missing(point: &str, comparison: &Comparison) -> Option<String> {
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

/// Condition for a number to be part of a ratio, as `metric` checks it.
const USABLE: &str = "from 1e-150 to 1e150";

/// Returns the lines to print, and the number of hidden lines. Of very many, changes for the worse
/// come first, then changes for the better.
fn worth_showing<'c>(
    mut comparisons: Vec<(&'c Compared, &'c Comparison)>,
) -> (Vec<(&'c Compared, &'c Comparison)>, usize) {
    let left_out = comparisons.len().saturating_sub(MOST_LINES);
    if left_out > 0 {
        let order = [
            Verdict::Worse,
            Verdict::Better,
            Verdict::Ambiguous,
            Verdict::CannotTell,
        ];
        comparisons.sort_by_key(|(_, comparison)| {
            order
                .iter()
                .position(|verdict| *verdict == comparison.verdict)
                .unwrap_or(order.len())
        });
        comparisons.truncate(MOST_LINES);
    }
    (comparisons, left_out)
}

fn shown_value(value: &str) -> String {
    match value.chars().count() {
        0 => "(not recorded)".to_owned(),
        many if many > LONGEST_FACT => {
            format!("{}…", value.chars().take(LONGEST_FACT).collect::<String>())
        }
        _ => value.to_owned(),
    }
}

/// `precision f32 → bf16`.
fn difference(unlike: &Unlike) -> String {
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
fn words<'c>(
    metric: ComparedMetric,
    comparisons: impl Iterator<Item = &'c Comparison> + Clone,
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
        comparisons
            .clone()
            .filter(|comparison| word(comparison) == wanted)
            .count()
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

/// The columns that were compared.
fn unit(comparisons: &[(&Compared, &Comparison)]) -> String {
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
fn reach(comparisons: &[(&Compared, &Comparison)]) -> String {
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
fn verdict(comparison: &Comparison) -> String {
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
fn beside(pair: &Compared) -> &'static str {
    if pair.disturbed.iter().all(Vec::is_empty) {
        ""
    } else {
        " (disturbed)"
    }
}

/// Runs of a point that were disturbed: how many of each side, and by what.
fn disturbed(pair: &Compared, is_clean: bool) -> Option<String> {
    let sides = [("base", &pair.disturbed[0]), ("new", &pair.disturbed[1])];
    let told = |(side, runs): (&str, &Vec<String>)| {
        let first = runs.first()?;
        let more = if runs.len() > 1 {
            format!(" and {} more", runs.len() - 1)
        } else {
            String::new()
        };
        Some(format!(
            "{} of {side} ({first}{more})",
            counted(runs.len(), "run")
        ))
    };
    let told: Vec<String> = sides.into_iter().filter_map(told).collect();
    let what = if is_clean {
        "excluded as disturbed"
    } else {
        "disturbed (`--clean` judges without these runs)"
    };
    (!told.is_empty()).then(|| format!("{what}: {}: {}", pair.name, told.join("; ")))
}

/// Name of a design in tables.
fn design(design: Design) -> &'static str {
    match design {
        Design::Paired { .. } => "paired",
        Design::Mixed => "mixed",
        Design::Apart => "apart",
        Design::OrderUnknown => "unknown",
        Design::ApartDisturbed => "apart-disturbed",
        Design::AtOnce => "at-once",
        Design::Independent => "independent",
    }
}

fn shown(metric: ComparedMetric, value: f64) -> String {
    match metric {
        ComparedMetric::Throughput => significant(value),
        ComparedMetric::StepTime => Seconds(value).to_string(),
        ComparedMetric::Memory => Bytes(value as u64).to_string(),
        ComparedMetric::Energy => significant(value),
        ComparedMetric::Loss => decimals(value, 4),
    }
}

/// Ratio of the ends of an interval above which it is too wide to be useful.
const FAR_APART: f64 = 4.0;

fn interval([low, high]: [f64; 2]) -> String {
    if high > FAR_APART * low {
        "too wide to be useful".to_owned()
    } else {
        format!("{} to {}", Change(low), Change(high))
    }
}

fn visible(share: f64) -> String {
    if share > 1.0 {
        "more than 100 %".to_owned()
    } else {
        Fraction(share).to_string()
    }
}

fn columns(
    metric: ComparedMetric,
    comparisons: &[(&Compared, &Comparison)],
    is_clean: bool,
) -> Vec<PageColumn> {
    let column = |head: &str, keep: u8, of: &dyn Fn(&Compared, &Comparison) -> Option<String>| {
        PageColumn::new(
            head,
            keep,
            comparisons
                .iter()
                .map(|(pair, comparison)| of(pair, comparison)),
        )
    };
    let mut columns = vec![
        PageColumn::of_marks(
            comparisons
                .iter()
                .map(|(_, comparison)| comparison.verdict == Verdict::Worse),
        ),
        column("point", u8::MAX, &|pair, _| Some(pair.name.clone())),
        column("verdict", MUST_STAY, &|pair, comparison| {
            Some(verdict(comparison) + if is_clean { "" } else { beside(pair) })
        }),
        column("base", 90, &|_, comparison| {
            Some(shown(metric, comparison.base))
        }),
        column("new", 90, &|_, comparison| {
            Some(shown(metric, comparison.new))
        }),
        column("change", MUST_STAY, &|pair, comparison| {
            pair.unlike
                .is_empty()
                .then(|| Change(comparison.ratio).to_string())
        }),
        column("95 % interval", 80, &|_, comparison| {
            comparison.interval.map(interval)
        }),
        column("smallest visible", 60, &|_, comparison| {
            comparison.visible.map(visible)
        }),
        column("n", 70, &|_, comparison| {
            let Comparison {
                base_runs,
                new_runs,
                ..
            } = comparison;
            Some(if base_runs == new_runs {
                base_runs.to_string()
            } else {
                format!("{base_runs} → {new_runs}")
            })
        }),
    ];
    columns.retain(PageColumn::says_something);
    columns
}
