//! A reason why an experiment cannot be planned.

use std::{collections::HashMap, fmt};

use serde_json::Value;

use super::TrialId;
use crate::kinds::KeyFault;

/// The fault of a key, and the points of the sweep that it affects; the command adds
/// `file:line:column`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanProblem {
    /// The fault of the first point. Its key is as in the file: `train.batch_size`, `sweep.zip`,
    /// `sweep.exclude[1]`.
    pub fault: KeyFault,
    /// Axis values of the first affected point; empty if the fault does not belong to a point.
    pub axes: Vec<(String, Value)>,
    /// Axis values of the next points with the same fault, or one that differs only in its numbers.
    pub alike: Vec<Vec<(String, Value)>>,
    /// Number of affected points; 0 if the fault does not belong to a point.
    pub points: u64,
}

impl PlanProblem {
    /// A fault of the sweep itself.
    pub(super) fn of_sweep(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            fault: KeyFault::new(key, message),
            axes: Vec::new(),
            alike: Vec::new(),
            points: 0,
        }
    }

    /// A fault of the point with these axis values.
    pub fn of_point(fault: KeyFault, axes: &[(String, Value)]) -> Self {
        Self {
            fault,
            axes: axes.to_vec(),
            alike: Vec::new(),
            points: 1,
        }
    }

    /// The place in the file to report: the axis if the key is swept, else the key. `section` names
    /// the section of an axis: `grid`, `zip` or `derive`.
    pub fn place(&self, section: impl Fn(&str) -> &'static str) -> String {
        let key = &self.fault.key;
        if !self.axes.iter().any(|(axis, _)| axis == key) {
            return key.clone();
        }
        format!("sweep.{}.{key}", section(key))
    }
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyFault { key, message, .. } = &self.fault;
        match message.contains(&format!("`{key}`")) {
            true => write!(f, "{message}")?,
            false => write!(f, "`{key}`: {message}")?,
        }
        if self.axes.is_empty() {
            return Ok(());
        }
        write!(f, " (at {}", place(&self.axes))?;
        for axes in &self.alike {
            write!(f, "; {}", place(axes))?;
        }
        match self.points.saturating_sub(1 + self.alike.len() as u64) {
            0 => write!(f, ")"),
            1 => write!(f, " and 1 more point)"),
            more => write!(f, " and {more} more points)"),
        }
    }
}

fn place(axes: &[(String, Value)]) -> String {
    axes.iter()
        .map(|(key, value)| format!("{key} = {}", show(value)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats an axis value for a reader: strings without quotes, an absent one as a dash.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Number of further points that a problem names after its first.
const MOST_ALIKE: usize = 2;

/// Collects the problems of all points; faults that are equal, or differ only in their numbers, are
/// kept once.
#[derive(Default)]
pub(super) struct PointProblems {
    found: Vec<PlanProblem>,
    /// Index of a point's fault in `found`, by key and message without numbers.
    places: HashMap<(String, String), usize>,
}

impl PointProblems {
    pub(super) fn add_for_point(&mut self, axes: &[(String, Value)], fault: KeyFault) {
        let next = self.found.len();
        let place = *self
            .places
            .entry((fault.key.clone(), without_numbers(&fault.message)))
            .or_insert(next);
        match self.found.get_mut(place) {
            Some(known) => {
                known.points += 1;
                if known.alike.len() < MOST_ALIKE {
                    known.alike.push(axes.to_vec());
                }
            }
            None => self.found.push(PlanProblem::of_point(fault, axes)),
        }
    }

    pub(super) fn add(&mut self, problem: PlanProblem) {
        self.found.push(problem);
    }

    pub(super) fn none_or<T>(self, value: T) -> Result<T, Vec<PlanProblem>> {
        if self.found.is_empty() {
            Ok(value)
        } else {
            Err(self.found)
        }
    }
}

/// Returns the text with each number, and each trial id, replaced by `#`.
fn without_numbers(text: &str) -> String {
    let is_number =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.parse::<f64>().is_ok();
    let is_id = |word: &str| {
        let digits = word.strip_prefix(TrialId::LETTER).unwrap_or(word);
        digits.len() == 10 && digits.chars().all(|c| c.is_ascii_hexdigit())
    };
    let is_part = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let mut masked = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let word = rest[start..]
            .split(|c| !is_part(c))
            .next()
            .unwrap_or_default();
        masked.push_str(&rest[..start]);
        masked.push_str(if is_number(word.trim_end_matches('.')) || is_id(word) {
            "#"
        } else {
            word
        });
        rest = &rest[start + word.len()..];
    }
    masked + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_swept_key_is_pointed_at_where_it_is_swept() {
        let problem = |key: &str| PlanProblem {
            axes: vec![("model.d_model".to_owned(), json!(6))],
            ..PlanProblem::of_sweep(key, "")
        };
        assert_eq!(
            problem("model.d_model").place(|_| "grid"),
            "sweep.grid.model.d_model"
        );
        assert_eq!(
            problem("model.d_model").place(|_| "zip"),
            "sweep.zip.model.d_model"
        );
        assert_eq!(
            problem("model.num_heads").place(|_| "zip"),
            "model.num_heads"
        );
    }

    #[test]
    fn faults_that_differ_in_numbers_alone_are_one_that_names_the_first_points() {
        let mut problems = PointProblems::default();
        for width in 1..=20 {
            let message = format!("`num_heads` 3 does not divide `d_model` {width}");
            problems.add_for_point(
                &[("model.d_model".to_owned(), json!(width))],
                KeyFault::new("model.num_heads", message),
            );
        }
        problems.add_for_point(
            &[("model.d_model".to_owned(), json!(7))],
            KeyFault::new("model.num_heads", "`num_heads` is odd"),
        );
        let found: Vec<String> = problems
            .none_or(())
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            found,
            [
                "`model.num_heads`: `num_heads` 3 does not divide `d_model` 1 (at model.d_model = \
                 1; model.d_model = 2; model.d_model = 3 and 17 more points)",
                "`model.num_heads`: `num_heads` is odd (at model.d_model = 7)"
            ]
        );
    }

    #[test]
    fn words_and_names_are_no_numbers() {
        assert_eq!(
            without_numbers("points 1 and 13 are the same trial (4f0c1a2b3d, seed 0.5)"),
            "points # and # are the same trial (#, seed #)"
        );
        assert_eq!(without_numbers("trial t4f0c1a2b3d"), "trial #");
        assert_eq!(
            without_numbers("`f32` of layer2 in 3.txt, 4."),
            "`f32` of layer2 in 3.txt, #"
        );
    }
}
