//! Prints the verdicts on one metric: a table where some verdict is interesting, else a line.

use std::fmt::Write;

use kiln_core::units::{Change, counted};

use super::{
    TableForm,
    point_columns::{PointVerdict, point_columns},
};
use crate::report::{
    compare::{
        Compared, ComparedMetric, Comparison, Comparisons, Verdict,
        words::{
            beside, both_shown, heading, interval_of, reach, refusals, verdict, visible, words,
        },
    },
    layout::{MUST_STAY, PageColumn, as_markdown, fitting, hidden, layout},
};

/// Longest table that is printed, in lines.
const MOST_LINES: usize = 200;

/// Said where the numbers of a table are not those of a report on the same rows.
const GEOMETRIC: &str = "base and new are geometric means, whose ratio is the change; `kiln report` \
                         shows arithmetic means";

/// The comparisons by one metric.
pub(super) struct MetricVerdicts<'a> {
    pub(super) metric: ComparedMetric,
    pub(super) comparisons: Vec<PointVerdict<'a>>,
    pub(super) found: &'a Comparisons,
}

impl MetricVerdicts<'_> {
    pub(super) fn write(self, page: &mut String, form: &TableForm) {
        if self.comparisons.is_empty() {
            return;
        }
        let refusals = refusals(&self.comparisons);
        let is_refused = self
            .comparisons
            .iter()
            .all(|(_, one)| one.refusal.is_some());
        // A loss or an accuracy is worth reading without a verdict too.
        let is_reached = matches!(
            self.metric,
            ComparedMetric::Loss | ComparedMetric::Accuracy(_)
        );
        if is_refused && !is_reached {
            let line = format!(
                "{}: not compared: {}",
                heading(self.metric, &self.comparisons),
                refusals.join("; ")
            );
            let _ = writeln!(page, "\n{}", form.plain(&line));
            return;
        }
        if self.metric != ComparedMetric::Throughput && !is_refused && self.is_quiet() {
            let _ = writeln!(page, "\n{}", self.line());
            return;
        }
        let (shown, left_out) = worth_showing(self.comparisons);
        let heading = heading(self.metric, &shown);
        let columns = columns(self.metric, &shown, self.found);
        let has_worse = shown.iter().any(|(_, one)| one.verdict == Verdict::Worse);
        write_table(page, form, &heading, &columns, has_worse);
        if shown.iter().any(|(_, one)| one.is_apart_from_report) {
            let _ = writeln!(page, "{}{GEOMETRIC}", form.paragraph());
        }
        write_refusals(page, form, &refusals);
        if left_out > 0 {
            let _ = writeln!(
                page,
                "\nand {} more (`--format csv` has all)",
                counted(left_out, "point")
            );
        }
    }

    /// Whether no verdict is worth a table.
    fn is_quiet(&self) -> bool {
        let is_quiet = |(_, comparison): &PointVerdict<'_>| match comparison.verdict {
            Verdict::Better | Verdict::Worse | Verdict::Ambiguous | Verdict::CannotTell => false,
            // Numbers alone, where there is no verdict.
            Verdict::TooFewRuns => comparison.ratio == 1.0,
            Verdict::Same | Verdict::NotComparable => true,
        };
        self.comparisons.iter().all(is_quiet)
    }

    /// The counts of the verdicts.
    fn line(&self) -> String {
        let comparisons = self.comparisons.iter().map(|(_, comparison)| *comparison);
        format!(
            "{}: {}{}",
            heading(self.metric, &self.comparisons),
            words(self.metric, comparisons),
            reach(&self.comparisons)
        )
    }
}

fn write_table(
    page: &mut String,
    form: &TableForm,
    heading: &str,
    columns: &[PageColumn],
    has_worse: bool,
) {
    match form {
        TableForm::Text(style) => {
            let kept = fitting(columns, style.width);
            let table = layout(&kept, style.width, style.has_color);
            let _ = write!(page, "\n{heading}\n{table}");
            if has_worse {
                page.push_str("* for the worse\n");
            }
            if let Some(hidden) = hidden(columns, &kept) {
                let _ = writeln!(page, "{hidden}");
            }
        }
        TableForm::Markdown => {
            let _ = write!(page, "\n## {heading}\n\n{}", as_markdown(columns));
        }
    }
}

fn write_refusals(page: &mut String, form: &TableForm, refusals: &[String]) {
    for (place, refusal) in refusals.iter().enumerate() {
        // Paragraphs of Markdown need a line between them.
        if place == 0 || matches!(form, TableForm::Markdown) {
            page.push('\n');
        }
        let line = format!("not compared: {refusal}");
        let _ = writeln!(page, "{}", form.plain(&line));
    }
}

/// Returns the lines to print, and the number of hidden lines. Of very many, changes for the worse
/// come first, then changes for the better.
fn worth_showing(mut comparisons: Vec<PointVerdict<'_>>) -> (Vec<PointVerdict<'_>>, usize) {
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

fn columns(
    metric: ComparedMetric,
    comparisons: &[PointVerdict<'_>],
    found: &Comparisons,
) -> Vec<PageColumn> {
    let is_clean = found.is_clean;
    let column = |head: &str, keep: u8, of: &dyn Fn(&Compared, &Comparison) -> Option<String>| {
        PageColumn::new(
            head,
            keep,
            comparisons
                .iter()
                .map(|(pair, comparison)| of(pair, comparison)),
        )
    };
    let marks = PageColumn::of_marks(
        comparisons
            .iter()
            .map(|(_, comparison)| comparison.verdict == Verdict::Worse),
    );
    let numbers = [
        column("verdict", MUST_STAY, &|pair, comparison| {
            Some(verdict(comparison) + if is_clean { "" } else { beside(pair) })
        }),
        column("base", 90, &|_, comparison| {
            let [base, _] = both_shown(metric, comparison.base, comparison.new);
            Some(base)
        }),
        column("new", 90, &|_, comparison| {
            let [_, new] = both_shown(metric, comparison.base, comparison.new);
            Some(new)
        }),
        column("change", MUST_STAY, &|pair, comparison| {
            let is_told = pair.unlike.is_empty() && comparison.refusal.is_none();
            (is_told && comparison.ratio.is_finite()).then(|| Change(comparison.ratio).to_string())
        }),
        column("95 % interval", 80, &|_, comparison| {
            interval_of(comparison)
        }),
        column("smallest visible", 60, &|_, comparison| {
            comparison.visible.map(visible)
        }),
        column(runs_head(found), 70, &|_, comparison| {
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
    let heads = numbers.iter().map(|column| column.head.as_str());
    let heads: Vec<&str> = heads.chain(RUNS_HEADS).collect();
    let points = point_columns(comparisons, found, &heads);
    let mut columns: Vec<PageColumn> = [marks].into_iter().chain(points).chain(numbers).collect();
    columns.retain(PageColumn::says_something);
    columns
}

/// Heads of the column of runs: outside of blocks, and in blocks, where each side has one run in each.
const RUNS_HEADS: [&str; 2] = ["n", "blocks"];

fn runs_head(found: &Comparisons) -> &'static str {
    let mut blocks = found.pairs.iter().map(|pair| pair.blocks.as_ref());
    let is_in_blocks = blocks.all(|blocks| blocks.is_some_and(|blocks| blocks.are_enough));
    RUNS_HEADS[usize::from(is_in_blocks)]
}
