//! The gates of `kiln report --fail-on`: whether a number of a point is beyond a bound. No other run
//! is needed.
//!
//! In: tables and conditions. Out: an answer for each point, for lines and for programs. The repeats of
//! a point are independent runs, and the interval of their mean decides; of one run, its value.

mod condition;

use std::collections::HashSet;

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    plan::TrialId,
    record::{TrialRow, note::ResumedCommand},
    statistics::{ALPHA, mean, mean_interval},
    units::{Bytes, counted, exact, shorten, without_controls},
};
use serde_json::{Value, json};

pub use self::condition::{GateCondition, NumberBound};
use super::{
    compare::Gate,
    page::axes_of,
    points::{Point, points},
    ranking::Ranking,
    subject::Subject,
    tidy::{
        hint_and_names,
        measures::{self, TidyMeasure},
    },
};

/// Longest reason of a line, in letters.
const MOST_LETTERS: usize = 200;

/// The answers of some conditions at the points of some runs.
pub struct Bounds<'a> {
    conditions: &'a [GateCondition],
    runs: Vec<RunAnswers>,
}

/// The answers of a run.
struct RunAnswers {
    /// The path of its table.
    name: String,
    /// The points, of each condition.
    answers: Vec<Vec<PointAnswer>>,
}

/// The gate of a condition.
pub struct BoundGate {
    /// As it is written.
    pub condition: String,
    pub gate: Gate,
    /// The number of the gate's last entries, which are about a run as a whole.
    of_runs: usize,
}

impl BoundGate {
    pub fn sentence(&self) -> String {
        self.gate.sentence_beside(self.of_runs)
    }
}

/// Sentences on points, then on runs as a whole.
struct BoundSentences {
    all: Vec<String>,
    of_runs: usize,
}

/// Whether a condition holds at a point.
struct PointAnswer {
    /// The name of the point and its axes; `None` for the run as a whole.
    point: Option<(String, Value)>,
    /// `None` if it cannot be told.
    holds: Option<bool>,
    measured: Option<PointNumber>,
    /// The number in words.
    shown: Option<String>,
    /// Number of completed runs that have the number.
    runs: usize,
    reason: Option<String>,
}

/// A number of a point: the mean of its runs.
#[derive(Clone, Copy)]
struct PointNumber {
    mean: f64,
    /// The interval of the mean; `None` for one run.
    interval: Option<(f64, f64)>,
}

impl<'a> Bounds<'a> {
    /// Judges the points of all runs, or only those that the summary marks as the best.
    ///
    /// # Errors
    /// No run has a column.
    pub fn of(
        subjects: &[Subject<'_>],
        conditions: &'a [GateCondition],
        is_best: bool,
    ) -> Result<Self, String> {
        check_columns(subjects, conditions)?;
        let of_run = |subject: &Subject<'_>| RunAnswers::of(*subject, conditions, is_best);
        Ok(Self {
            conditions,
            runs: subjects.iter().map(of_run).collect(),
        })
    }

    /// The gate of each condition.
    pub fn gates(&self) -> Vec<BoundGate> {
        let gate = |(place, condition): (usize, &GateCondition)| {
            let (fails, untold) = (self.lines(place, Some(true)), self.lines(place, None));
            let of_runs = match fails.all.is_empty() {
                true => untold.of_runs,
                false => fails.of_runs,
            };
            BoundGate {
                condition: condition.text().to_owned(),
                gate: Gate::of(fails.all, untold.all),
                of_runs,
            }
        };
        self.conditions.iter().enumerate().map(gate).collect()
    }

    /// The points with this answer of a condition, then the runs.
    fn lines(&self, place: usize, holds: Option<bool>) -> BoundSentences {
        let is_several = self.runs.len() > 1;
        let (mut points, mut runs) = (Vec::new(), Vec::new());
        for run in &self.runs {
            let answers = run.answers[place].iter();
            for answer in answers.filter(|answer| answer.holds == holds) {
                let line = match is_several {
                    true => format!("{}: {}", run.name, answer.line()),
                    false => answer.line(),
                };
                match answer.point {
                    Some(_) => points.push(line),
                    None => runs.push(line),
                }
            }
        }
        BoundSentences {
            of_runs: runs.len(),
            all: [points, runs].concat(),
        }
    }

    /// The answers of a run for programs: an entry for each condition and point.
    pub fn json(&self, run: usize) -> Vec<Value> {
        let answers = self.conditions.iter().zip(&self.runs[run].answers);
        let entries = answers.flat_map(|(condition, answers)| {
            let entry = |answer: &PointAnswer| answer.json(condition.text());
            answers.iter().map(entry).collect::<Vec<Value>>()
        });
        entries.collect()
    }
}

impl RunAnswers {
    fn of(subject: Subject<'_>, conditions: &[GateCondition], is_best: bool) -> Self {
        let all = points(subject.table);
        let (judged, unmarked) = match is_best {
            true => marked(&all, subject),
            false => (all.iter().collect(), None),
        };
        let answers = conditions.iter().map(|condition| match condition {
            GateCondition::NotCompleted => completions(&all, subject),
            GateCondition::Beyond(bound) => {
                let of_point = |point: &&Point<'_>| beyond(bound, point, subject);
                let mut answers: Vec<PointAnswer> = judged.iter().map(of_point).collect();
                // A trial that has not ended may belong to the best point, or make another the best.
                let reason = unmarked.clone().or_else(|| not_ended(subject));
                answers.extend(reason.map(|reason| PointAnswer::of_run(None, reason)));
                answers
            }
        });
        Self {
            name: without_controls(subject.run_path()),
            answers: answers.collect(),
        }
    }
}

/// The points that the summary marks, or why there are none.
fn marked<'p>(all: &'p [Point<'p>], subject: Subject<'p>) -> (Vec<&'p Point<'p>>, Option<String>) {
    let ranking = Ranking::new(all, subject.table, subject.objective());
    let marked = ranking.points.iter().filter(|ranked| ranked.is_marked);
    let marked: Vec<&Point<'_>> = marked.map(|ranked| ranked.point).collect();
    let reason = marked.is_empty().then(|| match ranking.verdict() {
        Some(verdict) => format!("no point is marked as the best: {verdict}"),
        None => "no point is marked as the best".to_owned(),
    });
    (marked, reason)
}

/// Whether trials of each point did not complete, and whether planned ones have not ended.
fn completions(all: &[Point<'_>], subject: Subject<'_>) -> Vec<PointAnswer> {
    let of_point = |point: &Point<'_>| {
        let reason = not_completed(point);
        PointAnswer {
            point: Some(named(point, subject)),
            holds: Some(reason.is_some()),
            measured: None,
            shown: None,
            runs: point.completed().count(),
            reason,
        }
    };
    let mut answers: Vec<PointAnswer> = all.iter().map(of_point).collect();
    // A table alone does not tell what was planned.
    let holds = subject.run.map(|_| true);
    answers.extend(not_ended(subject).map(|reason| PointAnswer::of_run(holds, reason)));
    answers
}

/// Whether a number of a point is beyond a bound. Runs without the number, and trials that did not
/// complete, leave it open, unless those that have it are beyond.
fn beyond(bound: &NumberBound, point: &Point<'_>, subject: Subject<'_>) -> PointAnswer {
    let (mut values, mut lacking) = (Vec::new(), Vec::new());
    let number = measures::reader(point, &bound.column);
    for row in point.completed() {
        match number(row) {
            Some(value) => values.push(value),
            None => lacking.push(row),
        }
    }
    let measured = PointNumber::of(&values);
    let holds = measured.and_then(|number| number.is_beyond(bound));
    let doubt = not_completed(point).or_else(|| lacks(&bound.column, &lacking, values.len()));
    let (holds, reason) = match (holds, doubt) {
        (Some(true), _) => (Some(true), None),
        (_, Some(doubt)) => (None, Some(doubt)),
        (Some(false), None) => (Some(false), None),
        (None, None) => {
            let reason = match measured {
                Some(_) => "the interval contains the bound",
                None => "a value is not a finite number",
            };
            (None, Some(reason.to_owned()))
        }
    };
    PointAnswer {
        point: Some(named(point, subject)),
        holds,
        measured,
        shown: measured.map(|number| number.in_words(&bound.column, values.len())),
        runs: values.len(),
        reason,
    }
}

impl PointNumber {
    /// `None` for no values, and if one is not finite.
    fn of(values: &[f64]) -> Option<Self> {
        let mean = mean(values).filter(|mean| mean.is_finite())?;
        let interval = mean_interval(values, 1.0 - ALPHA);
        let number = match interval {
            // Equal values: their mean may be rounded.
            Some((low, high)) if low == high => Self {
                mean: low,
                interval,
            },
            _ => Self { mean, interval },
        };
        (values.len() == 1 || interval.is_some()).then_some(number)
    }

    /// `None` if the bound is within the interval.
    fn is_beyond(self, bound: &NumberBound) -> Option<bool> {
        let (low, high) = self.interval.unwrap_or((self.mean, self.mean));
        let (low, high) = (bound.holds(low), bound.holds(high));
        (low == high).then_some(low)
    }

    fn in_words(self, column: &str, runs: usize) -> String {
        let shown = |value: f64| shown(column, value);
        let mean = shown(self.mean);
        match self.interval {
            Some((low, high)) => format!(
                "{mean}, 95 % interval {} to {}, n {runs}",
                shown(low),
                shown(high)
            ),
            None => format!("{mean}, one run: no interval"),
        }
    }
}

impl PointAnswer {
    /// An answer that is of no point.
    fn of_run(holds: Option<bool>, reason: String) -> Self {
        Self {
            point: None,
            holds,
            measured: None,
            shown: None,
            runs: 0,
            reason: Some(reason),
        }
    }

    /// `batch_size 8 (2.71, 95 % interval 2.65 to 2.77, n 3)`.
    fn line(&self) -> String {
        let words = [&self.shown, &self.reason].into_iter().flatten();
        let words: Vec<String> = words
            .map(|words| shorten(&without_controls(words), MOST_LETTERS))
            .collect();
        let words = words.join("; ");
        match &self.point {
            Some((point, _)) => format!("{point} ({words})"),
            None => words,
        }
    }

    fn json(&self, condition: &str) -> Value {
        let (point, axes) = self.point.clone().unzip();
        let interval = self.measured.and_then(|number| number.interval);
        let answer = match self.holds {
            Some(true) => "fail",
            Some(false) => "pass",
            None => "cannot-tell",
        };
        json!({
            "condition": condition,
            "point": point,
            "axes": axes,
            "answer": answer,
            "value": self.measured.map(|number| number.mean),
            "low": interval.map(|(low, _)| low),
            "high": interval.map(|(_, high)| high),
            "n": self.runs,
            "reason": self.reason,
        })
    }
}

fn named(point: &Point<'_>, subject: Subject<'_>) -> (String, Value) {
    let table = subject.table;
    (point.short_name(&table.axes), axes_of(table, point))
}

/// A number with five digits, so that one close to its bound is told from it.
fn shown(column: &str, value: f64) -> String {
    if column.ends_with("_bytes") && value >= 0.0 {
        return Bytes(value.round() as u64).to_string();
    }
    let rounded = format!("{value:.4e}").parse().unwrap_or(value);
    exact(rounded)
}

/// How the trials of a point ended that did not complete; `None` if all did.
fn not_completed(point: &Point<'_>) -> Option<String> {
    let count = point.rows.len() - point.completed().count();
    (count > 0).then(|| {
        format!(
            "{count} of {} did not complete: {}",
            counted(point.rows.len(), "trial"),
            point.others().join(", ")
        )
    })
}

/// Completed trials without a number, with the reason in `notes` of one of them; `known` others have
/// it.
fn lacks(column: &str, lacking: &[&TrialRow], known: usize) -> Option<String> {
    let has = match lacking.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    let count = lacking.len();
    let all = counted(count + known, "completed trial");
    let words = format!("{count} of {all} {has} no `{column}`");
    let reason = lacking.iter().find_map(|row| why_empty(column, row));
    Some(match reason {
        Some(reason) => format!("{words}: {reason}"),
        None => words,
    })
}

/// Why a row has no number of this column.
fn why_empty<'r>(column: &str, row: &'r TrialRow) -> Option<&'r str> {
    let measure = TidyMeasure::named(column);
    let own: &[&str] = measure.map_or(&[], |measure| measure.notes);
    let metric = column.strip_prefix(METRIC_PREFIX);
    let own = own.iter().copied();
    let names = [column].into_iter().chain(own).chain(metric);
    let mut notes = names.filter_map(|name| row.note(name));
    let is_left_out = match column {
        "trial_seconds" => row.is_resumed(),
        _ => measure.is_some_and(|one| one.is_of_whole_work) && ResumedCommand::is_of(row),
    };
    let resumed = || is_left_out.then_some("the trial was resumed");
    notes.next().or_else(resumed)
}

/// Planned trials without a row; `None` if there are none.
fn not_ended(subject: Subject<'_>) -> Option<String> {
    let rows = subject.table.last_attempts();
    let ended: HashSet<&TrialId> = rows.iter().map(|row| &row.fixed.trial).collect();
    let plan: &[TrialId] = match subject.run {
        Some(run) => &run.plan,
        None => &[],
    };
    let count = plan.iter().filter(|trial| !ended.contains(trial)).count();
    let has = if count == 1 { "has" } else { "have" };
    match count {
        0 if rows.is_empty() => Some("no trial has ended".to_owned()),
        0 => None,
        _ => Some(format!(
            "{count} of {} {has} not ended",
            counted(plan.len(), "planned trial")
        )),
    }
}

/// Refuses a column that no run has.
fn check_columns(subjects: &[Subject<'_>], conditions: &[GateCondition]) -> Result<(), String> {
    let metrics = subjects.iter().flat_map(|subject| &subject.table.metrics);
    let mut known: Vec<&str> = measures::names().collect();
    for metric in metrics {
        if !known.contains(&metric.as_str()) {
            known.push(metric);
        }
    }
    for condition in conditions {
        let GateCondition::Beyond(bound) = condition else {
            continue;
        };
        if !known.contains(&bound.column.as_str()) {
            return Err(unknown(&bound.column, &known));
        }
    }
    Ok(())
}

fn unknown(column: &str, known: &[&str]) -> String {
    let (hint, numbers) = hint_and_names(column, known);
    format!("`--fail-on`: `{column}` is not a number of a point{hint}; the numbers are {numbers}")
}

#[cfg(test)]
mod tests;
