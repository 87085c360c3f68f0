//! Prints a comparison for people: differences between the records, verdicts, then the points that
//! could not be compared.

mod metric_verdicts;
mod point_columns;

use std::fmt::Write;

use kiln_core::{
    statistics::{Design, FEWEST_RUNS},
    units::{counted, listed, without_controls},
};

use self::metric_verdicts::MetricVerdicts;
use super::{
    Compared, ComparedMetric, Comparison, Comparisons, Fact, Verdict, between_page,
    disturbed_runs::{AllDisturbed, all_disturbed, all_excluded, disturbed},
    order,
    words::{
        USABLE, changes_without_interval, difference, missing, not_positive, of_differences,
        too_few, treated, words_beside,
    },
};
use crate::{output::markdown, report::layout::PageStyle};

/// Advice after an open verdict: the level holds for one look at the runs.
const DECIDE_ONCE: &str = "ambiguous: decide once how many repeats a new run has (`smallest visible` \
                           tells what these could show): where repeats are added until there is a \
                           verdict, up to 18 % of unchanged points get a false one, not 5 %";
/// Advice after an open verdict where each launch counts as one run.
const OF_LAUNCHES: &str = "ambiguous: each launch counts as one run, so more repeats in a launch tell \
                           little: decide once how many launches of each side a new comparison has";
/// Says how far the data of folders of images were compared.
const DATA_BY_NAME: &str = "folders of images are compared by the names and lengths of their files: \
                            contents were not compared";
/// Largest number of remarks on single points that is printed.
const MOST_REMARKS: usize = 20;
/// Largest number of facts printed; the rest is counted, and `--format json` has all.
const MOST_FACTS: usize = 20;

/// A printable comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonPage<'a> {
    /// Names of the two sides.
    pub base: &'a str,
    pub new: &'a str,
    /// `None` where a side has no record beside its table.
    pub facts: Option<&'a [Fact]>,
    /// Whether both sides have the experiment that made them.
    pub can_rerun: bool,
    /// Whether data of a side are known by the names and lengths of files alone.
    pub has_data_by_name: bool,
    pub found: &'a Comparisons,
}

/// Output format of a table.
enum TableForm {
    Text(PageStyle),
    Markdown,
}

impl TableForm {
    /// The separator of a line from a table above it.
    fn paragraph(&self) -> &'static str {
        match self {
            Self::Text(_) => "",
            Self::Markdown => "\n",
        }
    }

    /// Escapes a line that holds text from files.
    fn plain(&self, line: &str) -> String {
        match self {
            Self::Text(_) => without_controls(line),
            Self::Markdown => markdown::sentence(line),
        }
    }
}

impl ComparisonPage<'_> {
    /// For a terminal or a pipe, ending in a line feed.
    pub fn text(&self, style: PageStyle) -> String {
        let mut page = match &self.found.between {
            Some(between) => format!(
                "run:  {}\n{}\n",
                without_controls(self.base),
                without_controls(&between_page::sides(between, self.found))
            ),
            None => format!(
                "base: {}\nnew:  {}\n",
                without_controls(self.base),
                without_controls(self.new)
            ),
        };
        self.body(&mut page, &TableForm::Text(style));
        page
    }

    /// For a pull request.
    pub fn markdown(&self) -> String {
        let sides = match &self.found.between {
            Some(between) => format!(
                "Run: {}; {}",
                markdown::inline(self.base),
                markdown::inline(&between_page::sides(between, self.found))
            ),
            None => format!(
                "Base: {}, new: {}",
                markdown::inline(self.base),
                markdown::inline(self.new)
            ),
        };
        let mut page = format!("# {}\n\n{sides}.\n", markdown::inline(&self.headline()));
        self.body(&mut page, &TableForm::Markdown);
        page
    }

    fn body(&self, page: &mut String, form: &TableForm) {
        match &self.found.between {
            Some(between) => self.differences(page, form, "the sides differ in", &between.differ),
            None => {
                self.record(page, form);
                if self.has_data_by_name {
                    let _ = writeln!(page, "\n{DATA_BY_NAME}");
                }
                self.treatment(page, form);
            }
        }
        if let TableForm::Text(_) = form {
            let _ = writeln!(page, "\n{}", form.plain(&self.verdicts()));
        }
        let order = match &self.found.between {
            Some(between) => between_page::sentences(self.found, between),
            None => order::sentences(self.found, self),
        };
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
                form.plain(&sentence)
            );
        }
        for metric in &self.found.metrics {
            MetricVerdicts {
                metric: *metric,
                comparisons: self.of(*metric),
                found: self.found,
            }
            .write(page, form);
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
                form.plain(&remark)
            );
        }
    }

    /// `train.precision: f32 → bf16: throughput: 2 faster, 1 slower, 5 same`.
    pub fn headline(&self) -> String {
        let treatment: Vec<String> = self.found.treatment.iter().map(treated).collect();
        match treatment.is_empty() {
            true => self.verdicts(),
            false => format!("{}: {}", treatment.join(", "), self.verdicts()),
        }
    }

    /// Writes what differs between the runs as a whole, which the comparison is about.
    fn treatment(&self, page: &mut String, form: &TableForm) {
        let keys = &self.found.treatment;
        if keys.is_empty() {
            return;
        }
        let treatment: Vec<String> = keys.iter().map(treated).collect();
        let together = match keys.len() {
            1 => "",
            _ => {
                " (changed together: these runs do not tell which of them made a difference; `kiln \
                 diff` has all)"
            }
        };
        let line = format!("treatment: {}{together}", treatment.join(", "));
        let _ = writeln!(page, "\n{}", form.plain(&line));
    }

    /// `throughput: 2 faster, 1 slower, 5 same`, and what it was compared across.
    fn verdicts(&self) -> String {
        let unusable = |metric: ComparedMetric| {
            let is_unusable =
                |pair: &&Compared| pair.unusable.iter().any(|column| metric.has(column));
            self.found.pairs.iter().filter(is_unusable).count()
        };
        let words = |metric: ComparedMetric| {
            let comparisons: Vec<&Comparison> = self
                .of(metric)
                .iter()
                .map(|(_, comparison)| *comparison)
                .collect();
            let left_out = match metric.is_column() {
                true => unusable(metric),
                false => 0,
            };
            let counts = words_beside(metric, comparisons.iter().copied(), left_out);
            match changes_without_interval(&comparisons) {
                Some(changes) => format!("{counts}: {changes}"),
                None => counts,
            }
        };
        let asked: Vec<String> = self
            .found
            .metrics
            .iter()
            .filter(|metric| metric.is_column())
            .filter(|metric| !self.of(**metric).is_empty() || unusable(**metric) > 0)
            .map(|metric| format!("{}: {}", metric.short_name(), words(*metric)))
            .collect();
        let rates = words(ComparedMetric::Throughput);
        let steps = words(ComparedMetric::StepTime);
        let speed = match (rates.is_empty(), steps.is_empty()) {
            (false, _) => Some(format!("throughput: {rates}")),
            (true, false) => Some(format!(
                "no point has a rate to compare; step-time: {steps}"
            )),
            (true, true) => asked.is_empty().then(|| match all_excluded(self.found) {
                Some(excluded) => format!("no point has a rate to compare: {excluded}"),
                None => "no point has a rate to compare".to_owned(),
            }),
        };
        let verdicts: Vec<String> = asked.into_iter().chain(speed).collect();
        let verdicts = verdicts.join("; ");
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
                "\nthere is no record beside both tables: differences in code, libraries and \
                 machine are unknown\n",
            );
            return;
        };
        // It is the first of them.
        let unknown = facts.first().and_then(Fact::unknown_experiment);
        let facts = &facts[usize::from(unknown.is_some())..];
        if let Some(unknown) = unknown {
            let _ = writeln!(
                page,
                "\n{unknown}: `experiment.yaml` is missing or cannot be read"
            );
        }
        if facts.is_empty() {
            let experiment = if unknown.is_some() {
                ""
            } else {
                "experiment, "
            };
            let _ = writeln!(
                page,
                "\nthe records of both agree: {experiment}code, libraries, machine"
            );
            return;
        }
        page.push_str("\nthe records differ in:\n");
        if let TableForm::Markdown = form {
            page.push('\n');
        }
        for line in lines_of(facts) {
            let _ = writeln!(page, "{bullet}{}", form.plain(&line));
        }
        if facts.len() > MOST_FACTS {
            let _ = writeln!(
                page,
                "{bullet}and {} more (`--format json` has all)",
                facts.len() - MOST_FACTS
            );
        }
    }

    /// Writes a list of differences; nothing where there are none.
    fn differences(&self, page: &mut String, form: &TableForm, title: &str, all: &[String]) {
        if all.is_empty() {
            return;
        }
        let (after, bullet) = match form {
            TableForm::Text(_) => ("", "  "),
            TableForm::Markdown => ("\n", "- "),
        };
        let _ = writeln!(page, "\n{title}:{after}");
        for line in all {
            let _ = writeln!(page, "{bullet}{}", form.plain(line));
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

    fn remarks(&self) -> Vec<String> {
        let pairs = &self.found.pairs;
        let AllDisturbed { sentences, told } = all_disturbed(pairs, self.found.is_clean);
        let of_points = pairs.iter().flat_map(|pair| self.about(pair, told));
        let of_all = sentences.into_iter().chain(not_positive(pairs));
        let mut remarks: Vec<String> = of_all.chain(of_points).collect();
        let left_out = remarks.len().saturating_sub(MOST_REMARKS);
        if left_out > 0 {
            remarks.truncate(MOST_REMARKS);
            remarks.push(format!(
                "and {left_out} more of these (`--format json` has all)"
            ));
        }
        let (losses, equal) = pairs.iter().fold((0, 0), |(all, equal), pair| {
            (all + pair.losses, equal + pair.equal_losses)
        });
        if losses > 0 && !self.found.has_kept_rows_only() {
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
        remarks.extend(self.advice());
        remarks
    }

    /// Advice where verdicts are open, or runs are too few for one.
    fn advice(&self) -> Vec<String> {
        let comparisons = || self.found.pairs.iter().flat_map(|pair| &pair.comparisons);
        let is_open = |one: &Comparison| one.verdict == Verdict::Ambiguous && one.metric.is_main();
        let is_of_launches =
            |one: &Comparison| matches!(one.design, Some(Design::PairedLaunches { .. }));
        let is_short =
            |one: &Comparison| one.verdict == Verdict::TooFewRuns && one.why_too_few.is_none();
        let mut advice: Vec<String> = Vec::new();
        if comparisons().any(|one| is_open(one) && !is_of_launches(one)) {
            advice.push(DECIDE_ONCE.to_owned());
        }
        if comparisons().any(|one| is_open(one) && is_of_launches(one)) {
            advice.push(format!("{OF_LAUNCHES}; {}", order::how_to_rerun(self)));
        }
        if comparisons().any(is_short) {
            advice.push(format!(
                "a verdict needs {FEWEST_RUNS} runs of a point on both sides (`sweep.repeats: 5`)"
            ));
        }
        advice
    }

    /// Remarks on one pair of points. `told`: the sides of which one sentence tells that all runs
    /// were disturbed.
    fn about(&self, pair: &Compared, told: [bool; 2]) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        if !pair.unlike.is_empty() {
            let fields = pair.unlike.iter().map(|unlike| unlike.field.name());
            let fields: Vec<&str> = fields.collect();
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
        let comparisons = pair.comparisons.iter();
        remarks.extend(comparisons.filter_map(|comparison| missing(&pair.name, comparison)));
        let comparisons = pair.comparisons.iter();
        remarks.extend(comparisons.filter_map(|one| of_differences(&pair.name, one)));
        let comparisons = pair.comparisons.iter();
        remarks.extend(comparisons.filter_map(|one| too_few(&pair.name, one)));
        let unusable = |column: &&str| {
            format!(
                "not compared: {}: no run of one side has a `{column}` {USABLE}",
                pair.name
            )
        };
        let others = pair.unusable.iter();
        let others = others.filter(|column| !pair.not_positive.contains(column));
        remarks.extend(others.map(unusable));
        let one_sided = |(column, side): &(&str, &str)| {
            format!(
                "not compared: {}: no run of {side} has a `{column}`",
                pair.name
            )
        };
        remarks.extend(pair.one_sided.iter().map(one_sided));
        remarks.extend(between_page::unpaired(pair));
        remarks.extend(disturbed(pair, self.found.is_clean, told));
        let outliers = pair.outliers.iter();
        remarks.extend(outliers.map(|outlier| format!("outlier: {}: {outlier}", pair.name)));
        remarks
    }
}

/// Lists what has changed since a recorded run, before it is run again, for a terminal. Facts that
/// only trials can tell are not compared.
pub fn now_different(facts: &[Fact], has_data_by_name: bool) -> String {
    let differences = differences_by_now(facts);
    match has_data_by_name {
        true => format!("{differences}\n{DATA_BY_NAME}"),
        false => differences,
    }
}

fn differences_by_now(facts: &[Fact]) -> String {
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
    facts.iter().take(MOST_FACTS).map(|fact| {
        let [base, new] = fact.sides();
        format!("{}: {base} → {new}", fact.what)
    })
}
