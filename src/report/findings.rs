//! Findings on a page: one line per rule below a summary, and the whole evidence of each.

use std::{collections::HashMap, fmt::Write};

use kiln_core::{
    record::note::BusyHost,
    units::{Bytes, Fraction, Seconds, counted, decimals, significant, without_controls},
};

use super::{
    diagnosis::{Evidence, RuleFinding, Threshold},
    points::UNSWEPT,
};
use crate::output::markdown;

/// Largest number of lines at the end of a run.
const MOST_LINES: usize = 5;

/// Findings of one rule.
struct FindingGroup<'a> {
    rule: &'static str,
    /// Findings of greatest weight first.
    findings: Vec<&'a RuleFinding>,
}

/// Findings by rule; a rule is placed by its finding of greatest weight.
fn by_rule(findings: &[RuleFinding]) -> Vec<FindingGroup<'_>> {
    let mut groups: Vec<FindingGroup<'_>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|group| group.rule == finding.rule) {
            Some(group) => group.findings.push(finding),
            None => groups.push(FindingGroup {
                rule: finding.rule,
                findings: vec![finding],
            }),
        }
    }
    groups
}

/// A line for each rule that fired, a handful at most, and how to see the rest. `trials` is how
/// many have ended.
pub(super) fn lines(findings: &[RuleFinding], trials: usize) -> Vec<String> {
    let groups = by_rule(findings);
    let mut lines: Vec<String> = groups
        .iter()
        .take(MOST_LINES)
        .map(|group| group.line(trials))
        .collect();
    if groups.len() > MOST_LINES {
        let names: Vec<&str> = groups[MOST_LINES..]
            .iter()
            .map(|group| group.rule)
            .collect();
        lines.push(format!("further: {}", names.join(", ")));
    }
    lines
}

impl FindingGroup<'_> {
    /// `data-bound (3 of 18 trials, data.num_workers 0): the trainer waited …`
    fn line(&self, trials: usize) -> String {
        let worst = self.findings[0];
        without_controls(&format!(
            "{}{}: {}",
            self.rule,
            self.whose(trials),
            worst.says
        ))
    }

    fn whose(&self, trials: usize) -> String {
        let worst = self.findings[0];
        let is_swept = worst.point != UNSWEPT;
        let name = if is_swept {
            &worst.point
        } else {
            &worst.trial.0
        };
        match self.findings.len() {
            _ if trials == 1 => String::new(),
            1 if is_swept => format!(" (trial {}, {name})", worst.trial),
            1 => format!(" (trial {name})"),
            many if is_swept
                && self
                    .findings
                    .iter()
                    .all(|finding| finding.point == worst.point) =>
            {
                format!(" ({many} of {trials} trials, {name})")
            }
            many => {
                let rank = match self
                    .findings
                    .iter()
                    .any(|other| worst.compare(other).is_lt())
                {
                    true => "worst",
                    false => "first",
                };
                let trial = if is_swept { "" } else { "trial " };
                format!(" ({many} of {trials} trials, {rank}: {trial}{name})")
            }
        }
    }
}

/// A finding as pages show it: repeats of a point grouped, numbers with their units.
pub(super) struct WordedFinding {
    /// `data-bound: trial 504d19fd42 (data.num_workers 0) and 2 repeats`.
    pub(super) head: String,
    pub(super) is_fault: bool,
    pub(super) says: String,
    /// The other points of which it holds: `data.num_workers 2 (trial …): the trainer waited …`.
    pub(super) also: Vec<String>,
    pub(super) means: &'static str,
    pub(super) refuted_by: &'static str,
    pub(super) evidence: Vec<ToldCell>,
    pub(super) thresholds: Vec<String>,
    pub(super) next_yaml: String,
}

/// A cell of its evidence.
pub(super) struct ToldCell {
    pub(super) column: &'static str,
    /// ` (data.num_workers 8)`, or nothing where it is the trial's own.
    pub(super) whose: String,
    pub(super) value: String,
}

/// Most further points of a rule that are listed.
const MOST_POINTS: usize = 8;

/// One finding per rule that fired, most costly first: in full on the point where it weighs most,
/// and a line for each other point. `trials` is how many have ended.
pub(super) fn told(findings: &[RuleFinding], trials: usize) -> Vec<WordedFinding> {
    let worded = |group: &FindingGroup<'_>| {
        let is_of_all = group.findings.len() == trials;
        WordedFinding::of(&by_point(&group.findings), is_of_all)
    };
    by_rule(findings).iter().map(worded).collect()
}

fn by_point<'a>(findings: &[&'a RuleFinding]) -> Vec<Vec<&'a RuleFinding>> {
    let mut points: Vec<Vec<&RuleFinding>> = Vec::new();
    let mut place_of: HashMap<&str, usize> = HashMap::new();
    for finding in findings {
        let place = *place_of.entry(&finding.point).or_insert(points.len());
        if place == points.len() {
            points.push(Vec::new());
        }
        points[place].push(finding);
    }
    points
}

impl WordedFinding {
    /// `is_of_all`: the rule holds for each trial that has ended.
    fn of(points: &[Vec<&RuleFinding>], is_of_all: bool) -> Self {
        let (point, others) = (&points[0], &points[1..]);
        let worst = point[0];
        let cell = |cell: &Evidence| ToldCell {
            column: cell.column,
            whose: without_controls(&whose(cell)),
            value: without_controls(&shown(cell)),
        };
        Self {
            head: without_controls(&head(point, points.len())),
            also: match all_busy(others).filter(|_| is_of_all) {
                Some(line) => vec![line],
                None => also(others),
            },
            is_fault: worst.is_fault,
            says: without_controls(&worst.says),
            means: worst.means,
            refuted_by: worst.refuted_by,
            evidence: worst.evidence.iter().map(cell).collect(),
            thresholds: worst.thresholds.iter().map(sourced).collect(),
            next_yaml: worst
                .next_yaml
                .lines()
                .map(|line| without_controls(line) + "\n")
                .collect(),
        }
    }

    /// The same with these lines above the next experiment, by which it is a whole file.
    pub(super) fn below(mut self, head: &str) -> Self {
        if !self.next_yaml.is_empty() {
            self.next_yaml.insert_str(0, head);
        }
        self
    }
}

/// Full text of each finding, repeats of a point grouped; `head` stands above each next experiment,
/// and `trials` have ended.
pub(super) fn in_full(
    findings: &[RuleFinding],
    trials: usize,
    form: FindingForm,
    head: &str,
) -> String {
    let write = match form {
        FindingForm::Text => as_text,
        FindingForm::Markdown => as_markdown,
    };
    let worded = told(findings, trials).into_iter();
    worded.map(|finding| write(&finding.below(head))).collect()
}

/// Output format of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindingForm {
    Text,
    Markdown,
}

/// One line for several points, if each of their trials ran on a busy host.
fn all_busy(points: &[Vec<&RuleFinding>]) -> Option<String> {
    let trials = || points.iter().flatten();
    let busy: Option<Vec<BusyHost>> = trials().map(|finding| finding.busy).collect();
    let busy = BusyHost::range(&busy?).filter(|_| points.len() > 1)?;
    Some(format!(
        "the {} ({}): {busy}; their timings are unreliable",
        counted(points.len(), "other point"),
        counted(trials().count(), "trial")
    ))
}

/// A line for each point, a handful at most.
fn also(points: &[Vec<&RuleFinding>]) -> Vec<String> {
    let line = |point: &Vec<&RuleFinding>| {
        let worst = point[0];
        let place = match worst.point == UNSWEPT {
            true => format!("trial {}", worst.trial),
            false => format!("{} (trial {}{})", worst.point, worst.trial, repeats(point)),
        };
        without_controls(&format!("{place}: {}", worst.says))
    };
    let mut lines: Vec<String> = points.iter().take(MOST_POINTS).map(line).collect();
    if points.len() > MOST_POINTS {
        lines.push(format!(
            "{} more",
            counted(points.len() - MOST_POINTS, "point")
        ));
    }
    lines
}

fn repeats(point: &[&RuleFinding]) -> String {
    match point.len() {
        1 => String::new(),
        several => format!(" and {}", counted(several - 1, "repeat")),
    }
}

/// `points` is how many the rule holds for.
fn head(point: &[&RuleFinding], points: usize) -> String {
    let worst = point[0];
    let values = if worst.point == UNSWEPT {
        String::new()
    } else {
        format!(" ({})", worst.point)
    };
    let more = repeats(point);
    let several = match points {
        1 => String::new(),
        several => format!("{several} points, most at "),
    };
    let kind = if worst.is_fault { "" } else { ", not a fault" };
    format!(
        "{}: {several}trial {}{values}{more}{kind}",
        worst.rule, worst.trial
    )
}

fn as_text(finding: &WordedFinding) -> String {
    let width = finding
        .evidence
        .iter()
        .map(|cell| cell.column.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = format!(
        "\n{}\n  {}\n  {}\n  refuted by: {}\n  read:\n",
        finding.head, finding.says, finding.means, finding.refuted_by
    );
    for cell in &finding.evidence {
        let _ = writeln!(
            text,
            "    {:<width$}  {}{}",
            cell.column, cell.value, cell.whose
        );
    }
    for threshold in &finding.thresholds {
        let _ = writeln!(text, "  threshold: {}", threshold.replace('`', ""));
    }
    if !finding.also.is_empty() {
        let _ = writeln!(text, "  also:");
    }
    for point in &finding.also {
        let _ = writeln!(text, "    {point}");
    }
    if !finding.next_yaml.is_empty() {
        let _ = writeln!(text, "  next:");
    }
    finding.next_yaml.lines().for_each(|line| {
        let _ = writeln!(text, "    {line}");
    });
    text
}

fn as_markdown(finding: &WordedFinding) -> String {
    let says = markdown::line(&capitalized(&finding.says));
    let (
        head,
        WordedFinding {
            means, refuted_by, ..
        },
    ) = (markdown::inline(&finding.head), finding);
    let mut text = format!(
        "\n## {head}\n\n{says}. {means}\n\nRefuted by: {refuted_by}\n\n| column | value |\n\
         |---|---|\n"
    );
    for cell in &finding.evidence {
        let _ = writeln!(
            text,
            "| `{}`{} | {} |",
            cell.column,
            markdown::inline(&cell.whose),
            markdown::inline(&cell.value)
        );
    }
    if !finding.thresholds.is_empty() {
        text.push_str("\nThresholds:\n\n");
    }
    for threshold in &finding.thresholds {
        let _ = writeln!(text, "- {threshold}");
    }
    if !finding.also.is_empty() {
        text.push_str("\nAlso:\n\n");
    }
    for point in &finding.also {
        let _ = writeln!(text, "- {}", markdown::inline(point));
    }
    if !finding.next_yaml.is_empty() {
        let yaml = markdown::fenced("yaml", &finding.next_yaml);
        let _ = write!(text, "\nNext:\n\n{yaml}");
    }
    text
}

pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

fn whose(cell: &Evidence) -> String {
    cell.of
        .as_ref()
        .map(|of| format!(" ({of})"))
        .unwrap_or_default()
}

pub(super) fn sourced(threshold: &Threshold) -> String {
    format!("{threshold} ({})", threshold.source)
}

/// A cell with its unit, as its column's name tells it.
fn shown(cell: &Evidence) -> String {
    let Some(number) = cell.value.as_f64() else {
        return cell
            .value
            .as_str()
            .map_or_else(|| cell.value.to_string(), str::to_owned);
    };
    match cell.column {
        name if name.ends_with("bytes_per_second") => {
            format!("{}/s", Bytes(number.max(0.0) as u64))
        }
        name if name.ends_with("bytes_per_step") => format!(
            "{}{} per step",
            if number < 0.0 { "-" } else { "" },
            Bytes(number.abs() as u64)
        ),
        name if name.ends_with("_bytes") => Bytes(number as u64).to_string(),
        name if name.ends_with("_fraction")
            || ["mfu", "mean_gpu_utilization", "mean_sm_active"].contains(&name) =>
        {
            Fraction(number).to_string()
        }
        name if name.ends_with("_hit_rate") => Fraction(number).to_string(),
        name if name.ends_with("_error") => decimals(number, 4),
        name if name.ends_with("per_second") => significant(number),
        name if name.ends_with("_seconds") => Seconds(number).to_string(),
        name if name.ends_with("_watts") => format!("{} W", decimals(number, 0)),
        name if name.ends_with("_celsius") => format!("{} °C", decimals(number, 0)),
        name if name.ends_with("_megahertz") => format!("{} MHz", decimals(number, 0)),
        _ if number.fract() == 0.0 => decimals(number, 0),
        _ => decimals(number, 2),
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::TrialRow;

    use super::*;
    use crate::report::{
        diagnosis::diagnose,
        points::tests::{row, table},
    };

    #[test]
    fn metrics_of_a_panel_keep_the_digits_that_tell_them_apart() {
        let cell = |column, value: f64| {
            shown(&Evidence {
                of: None,
                column,
                value: value.into(),
            })
        };
        assert_eq!(cell("valid_mean_absolute_error", 0.0154), "0.0154");
        assert_eq!(cell("majority_hit_rate", 0.667), "66.7 %");
    }

    #[test]
    fn points_that_all_ran_on_a_busy_host_are_told_in_one_line() {
        let row = |id: u64| TrialRow {
            notes: Some(format!(
                "samples_per_second: other processes kept 1.{} of 2 cores busy in the window",
                id % 2
            )),
            ..row(id, 10.0)
        };
        let rows = [(1, "8"), (2, "16"), (3, "16"), (4, "32")];
        let rows = rows.map(|(id, size)| (row(id), [size]));
        let rows = rows.iter().map(|(row, axes)| (row.clone(), &axes[..]));
        let findings = diagnose(&table(&["train.batch_size"], rows.collect()));
        let also = |trials| {
            let mut told = told(&findings, trials).into_iter();
            let busy = told.find(|finding| finding.head.starts_with("busy-host"));
            busy.unwrap().also
        };
        let of_all = also(4);
        assert_eq!(of_all.len(), 1, "{of_all:?}");
        let end = "of 2 cores busy in the window; their timings are unreliable";
        assert!(
            of_all[0].starts_with("the 2 other points (") && of_all[0].ends_with(end),
            "{of_all:?}"
        );
        // Where some trials were not disturbed, a reader needs to know which ones were.
        let of_some = also(5);
        assert_eq!(of_some.len(), 2, "{of_some:?}");
        assert!(
            of_some
                .iter()
                .all(|line| line.starts_with("train.batch_size "))
        );
    }

    #[test]
    fn a_rule_is_told_once_with_the_other_points_of_which_it_holds() {
        let rows = (1..=12)
            .map(|number| {
                let row = TrialRow {
                    train_loss: Some(1.0),
                    valid_loss: Some(2.0 + number as f64),
                    ..row(number, 10.0)
                };
                (row, number.to_string())
            })
            .collect::<Vec<_>>();
        let values: Vec<[&str; 1]> = rows.iter().map(|(_, value)| [value.as_str()]).collect();
        let rows = rows
            .iter()
            .zip(&values)
            .map(|((row, _), values)| (row.clone(), &values[..]))
            .collect();
        let findings = diagnose(&table(&["model.hidden"], rows));
        let told = told(&findings, 12);
        let of_rule: Vec<&WordedFinding> = told
            .iter()
            .filter(|finding| finding.head.starts_with("validation-above-training"))
            .collect();
        assert_eq!(of_rule.len(), 1);
        let finding = of_rule[0];
        assert_eq!(
            finding.head,
            "validation-above-training: 12 points, most at trial 000000000c (model.hidden 12)"
        );
        assert_eq!(finding.also.len(), MOST_POINTS + 1);
        assert!(
            finding.also[0].starts_with(
                "model.hidden 11 (trial 000000000b): the validation loss is 13.0000, 13.0 times"
            ),
            "{:?}",
            finding.also
        );
        assert_eq!(finding.also[MOST_POINTS], "3 points more");
        for form in [FindingForm::Text, FindingForm::Markdown] {
            let page = in_full(&findings, 12, form, "");
            assert_eq!(
                page.matches("validation-above-training").count(),
                1,
                "{page}"
            );
            assert!(page.contains("model.hidden 9"), "{page}");
        }
    }
}
