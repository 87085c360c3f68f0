//! A reason why an experiment cannot be planned.

use std::{collections::HashMap, fmt};

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
        match self.message.contains(&format!("`{}`", self.key)) {
            true => write!(f, "{}", self.message)?,
            false => write!(f, "`{}`: {}", self.key, self.message)?,
        }
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
pub(super) struct Problems {
    found: Vec<PlanProblem>,
    /// Where a point's fault stands in `found`, by key and message.
    places: HashMap<(String, String), usize>,
}

impl Problems {
    pub(super) fn add_for_point(&mut self, axes: &[(String, Value)], key: String, message: String) {
        let next = self.found.len();
        let place = *self.places.entry((key.clone(), message.clone())).or_insert(next);
        match self.found.get_mut(place) {
            Some(known) => known.points += 1,
            None => self.found.push(PlanProblem { key, axes: axes.to_vec(), points: 1, message }),
        }
    }

    pub(super) fn add(&mut self, problem: PlanProblem) {
        self.found.push(problem);
    }

    pub(super) fn none_or<T>(self, value: T) -> Result<T, Vec<PlanProblem>> {
        if self.found.is_empty() { Ok(value) } else { Err(self.found) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_swept_key_is_pointed_at_where_it_is_swept() {
        let problem =
            |key: &str| PlanProblem { key: key.to_owned(), axes: vec![("model.d_model".to_owned(), json!(6))], points: 1, message: String::new() };
        assert_eq!(problem("model.d_model").place(|_| false), "sweep.grid.model.d_model");
        assert_eq!(problem("model.d_model").place(|_| true), "sweep.zip.model.d_model");
        assert_eq!(problem("model.num_heads").place(|_| true), "model.num_heads");
    }
}
