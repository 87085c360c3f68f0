//! Findings on a page: one line per rule below a summary, and the whole evidence of each.

use std::fmt::Write;

use super::{
    diagnosis::{Evidence, Finding, Threshold},
    points::UNSWEPT,
};
use crate::units::{Bytes, Fraction, Seconds, counted};

/// More lines than this nobody reads at the end of a run.
const MOST_LINES: usize = 5;

/// Findings of one rule.
struct Group<'a> {
    rule: &'static str,
    /// The weightiest first.
    findings: Vec<&'a Finding>,
}

/// By rule, each where its weightiest finding stands.
fn by_rule(findings: &[Finding]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|group| group.rule == finding.rule) {
            Some(group) => group.findings.push(finding),
            None => groups.push(Group { rule: finding.rule, findings: vec![finding] }),
        }
    }
    groups
}

/// A line for each rule that fired, a handful at most, and how to see the rest. `trials` is how many have ended.
pub(super) fn lines(findings: &[Finding], trials: usize) -> Vec<String> {
    let groups = by_rule(findings);
    let mut lines: Vec<String> = groups.iter().take(MOST_LINES).map(|group| group.line(trials)).collect();
    if groups.len() > MOST_LINES {
        let names: Vec<&str> = groups[MOST_LINES..].iter().map(|group| group.rule).collect();
        lines.push(format!("further: {}", names.join(", ")));
    }
    lines
}

impl Group<'_> {
    /// `data-bound (3 of 18 trials, data.num_workers 0): the trainer waited …`
    fn line(&self, trials: usize) -> String {
        let worst = self.findings[0];
        format!("{}{}: {}", self.rule, self.whose(trials), worst.says)
    }

    fn whose(&self, trials: usize) -> String {
        let worst = self.findings[0];
        let is_swept = worst.point != UNSWEPT;
        let name = if is_swept { &worst.point } else { &worst.trial.0 };
        match self.findings.len() {
            _ if trials == 1 => String::new(),
            1 if is_swept => format!(" (trial {}, {name})", worst.trial),
            1 => format!(" (trial {name})"),
            many if is_swept && self.findings.iter().all(|finding| finding.point == worst.point) => format!(" ({many} of {trials} trials, {name})"),
            many if is_swept => format!(" ({many} of {trials} trials, worst: {name})"),
            many => format!(" ({many} of {trials} trials, worst: trial {name})"),
        }
    }
}

/// Everything known of each finding, repeats of a point together.
pub(super) fn in_full(findings: &[Finding], form: Form) -> String {
    let mut text = String::new();
    for group in by_rule(findings) {
        let mut points: Vec<Vec<&Finding>> = Vec::new();
        for finding in &group.findings {
            match points.iter_mut().find(|known| known[0].point == finding.point) {
                Some(known) => known.push(finding),
                None => points.push(vec![finding]),
            }
        }
        for point in points {
            text.push_str(&match form {
                Form::Text => as_text(&point),
                Form::Markdown => as_markdown(&point),
            });
        }
    }
    text
}

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Markdown,
}

/// `data-bound: trial 504d19fd42 (data.num_workers 0) and 2 repeats`.
fn head(point: &[&Finding]) -> String {
    let worst = point[0];
    let values = if worst.point == UNSWEPT { String::new() } else { format!(" ({})", worst.point) };
    let more = if point.len() > 1 { format!(" and {}", counted(point.len() - 1, "repeat")) } else { String::new() };
    let kind = if worst.is_fault { "" } else { ", not a fault" };
    format!("{}: trial {}{values}{more}{kind}", worst.rule, worst.trial)
}

fn as_text(point: &[&Finding]) -> String {
    let worst = point[0];
    let width = worst.evidence.iter().map(|cell| cell.column.chars().count()).max().unwrap_or(0);
    let mut text = format!("\n{}\n  {}\n  {}\n  read:\n", head(point), worst.says, worst.means);
    for cell in &worst.evidence {
        let _ = writeln!(text, "    {:<width$}  {}{}", cell.column, shown(cell), whose(cell));
    }
    for threshold in worst.thresholds {
        let _ = writeln!(text, "  threshold: {}", sourced(threshold).replace('`', ""));
    }
    let _ = writeln!(text, "  next:");
    worst.next_yaml.lines().for_each(|line| {
        let _ = writeln!(text, "    {line}");
    });
    text
}

fn as_markdown(point: &[&Finding]) -> String {
    let worst = point[0];
    let mut text = format!("\n## {}\n\n{}. {}\n\n| column | value |\n|---|---|\n", head(point), capitalized(&worst.says), worst.means);
    for cell in &worst.evidence {
        let _ = writeln!(text, "| `{}`{} | {} |", cell.column, whose(cell), shown(cell).replace('|', "\\|"));
    }
    if !worst.thresholds.is_empty() {
        text.push_str("\nThresholds:\n\n");
    }
    for threshold in worst.thresholds {
        let _ = writeln!(text, "- {}", sourced(threshold));
    }
    let _ = write!(text, "\nNext:\n\n```yaml\n{}```\n", worst.next_yaml);
    text
}

pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn whose(cell: &Evidence) -> String {
    cell.of.as_ref().map(|of| format!(" ({of})")).unwrap_or_default()
}

pub(super) fn sourced(threshold: &Threshold) -> String {
    format!("{threshold} ({})", threshold.source)
}

/// A cell with its unit, as its column's name tells it.
fn shown(cell: &Evidence) -> String {
    let Some(number) = cell.value.as_f64() else { return cell.value.as_str().map_or_else(|| cell.value.to_string(), str::to_owned) };
    match cell.column {
        name if name.ends_with("bytes_per_second") => format!("{}/s", Bytes(number.max(0.0) as u64)),
        name if name.ends_with("bytes_per_step") => format!("{}{} per step", if number < 0.0 { "-" } else { "" }, Bytes(number.abs() as u64)),
        name if name.ends_with("_bytes") => Bytes(number as u64).to_string(),
        name if name.ends_with("_fraction") || ["mfu", "mean_gpu_utilization", "mean_sm_active"].contains(&name) => Fraction(number).to_string(),
        name if name.ends_with("per_second") => format!("{number:.1}"),
        name if name.ends_with("_seconds") => Seconds(number).to_string(),
        name if name.ends_with("_watts") => format!("{number:.0} W"),
        name if name.ends_with("_celsius") => format!("{number:.0} °C"),
        name if name.ends_with("_megahertz") => format!("{number:.0} MHz"),
        _ if number.fract() == 0.0 => format!("{number:.0}"),
        _ => format!("{number:.2}"),
    }
}
