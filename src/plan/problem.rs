//! A reason why an experiment cannot be planned.

use std::fmt;

use serde_json::Value;

/// One fault, for the command to put `file:line:column` before.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanProblem {
    /// Dotted key the fault is about, as in the file: `train.batch_size`, `sweep.zip`, `sweep.exclude[1]`.
    pub key: String,
    /// The axis values of the first point that has it; empty if it is no point's.
    pub axes: Vec<(String, Value)>,
    /// How many points have it; 0 if it is no point's.
    pub points: u64,
    pub message: String,
}

impl PlanProblem {
    /// A fault of the sweep itself.
    pub(super) fn of_sweep(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), axes: Vec::new(), points: 0, message: message.into() }
    }

    /// The place in the file to point at: the axis if the key is swept, else the key.
    pub fn place(&self, is_zip: impl Fn(&str) -> bool) -> String {
        if !self.axes.iter().any(|(axis, _)| *axis == self.key) {
            return self.key.clone();
        }
        format!("sweep.{}.{}", if is_zip(&self.key) { "zip" } else { "grid" }, self.key)
    }
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.key, self.message)?;
        if self.axes.is_empty() {
            return Ok(());
        }
        let axes: Vec<String> = self.axes.iter().map(|(key, value)| format!("{key} = {}", show(value))).collect();
        write!(f, " (at {}", axes.join(", "))?;
        match self.points {
            0 | 1 => write!(f, ")"),
            points => write!(f, " and {} more)", points - 1),
        }
    }
}

/// An axis value as a person reads it: strings without quotes, an absent one as a dash.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The problems of all points, the same fault kept once with the number of its points.
#[derive(Default)]
pub(super) struct Problems(Vec<PlanProblem>);

impl Problems {
    pub(super) fn add_for_point(&mut self, axes: &[(String, Value)], key: String, message: String) {
        match self.0.iter_mut().find(|problem| problem.key == key && problem.message == message) {
            Some(known) => known.points += 1,
            None => self.0.push(PlanProblem { key, axes: axes.to_vec(), points: 1, message }),
        }
    }

    pub(super) fn add(&mut self, problem: PlanProblem) {
        self.0.push(problem);
    }

    pub(super) fn none_or<T>(self, value: T) -> Result<T, Vec<PlanProblem>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}
