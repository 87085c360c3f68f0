//! Derived keys: each is one more axis, whose value at a point follows from the point's other values.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{AxisValues, Place};
use crate::{
    kinds::KeyFault,
    plan::{
        problem::{PlanProblem, PointProblems},
        settings::Chosen,
    },
    spec::Derivation,
};

/// The derived keys of a sweep with their values so far.
pub(super) struct DerivedAxes<'a>(Vec<DerivedAxis<'a>>);

struct DerivedAxis<'a> {
    key: &'a String,
    derivation: Derivation,
    /// Each value once; `null` stands for none.
    values: Vec<Value>,
    /// The index of each value, by its text.
    known: HashMap<String, u32>,
}

impl<'a> DerivedAxes<'a> {
    /// Reads the expressions; a text that is not one is a problem.
    pub(super) fn read(derive: &'a Map<String, Value>, problems: &mut PointProblems) -> Self {
        let mut axes = Vec::new();
        for (key, expression) in derive {
            match Derivation::read(key, expression) {
                Ok(derivation) => axes.push(DerivedAxis {
                    key,
                    derivation,
                    values: Vec::new(),
                    known: HashMap::new(),
                }),
                Err(message) => problems.add(PlanProblem::of_sweep(place_of(key), message)),
            }
        }
        Self(axes)
    }

    /// The axes, in the order of the file.
    pub(super) fn axes(&self) -> impl Iterator<Item = AxisValues<'_>> {
        self.0.iter().map(|axis| (axis.key, axis.values.as_slice()))
    }

    /// Adds to each place the index of each derived value. `axes` are those of the places.
    pub(super) fn extend(
        &mut self,
        places: &mut [Place],
        axes: &[AxisValues<'_>],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) {
        if self.0.is_empty() {
            return;
        }
        for place in places {
            let chosen = chosen_at(place, axes);
            let derived = self.0.iter_mut();
            let indices: Vec<u32> = derived
                .map(|axis| axis.index(axis.value(&chosen, value_at).unwrap_or_default()))
                .collect();
            place.extend(indices);
        }
    }

    /// Adds a problem for each of these places that lacks a derived value.
    pub(super) fn missing(
        &self,
        places: &[Place],
        axes: &[AxisValues<'_>],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
        problems: &mut PointProblems,
    ) {
        for place in places {
            let derived = self.0.iter().zip(place.iter().skip(axes.len()));
            let lacking = derived.filter(|(axis, index)| axis.values[**index as usize].is_null());
            for (axis, _) in lacking {
                let chosen = chosen_at(place, axes);
                if let Err(fault) = axis.value(&chosen, value_at) {
                    problems.add_for_point(&owned(&chosen), fault);
                }
            }
        }
    }

    /// The entries of `include` with their derived values; a problem for each value that is missing.
    pub(super) fn with_values(
        &self,
        include: &[Map<String, Value>],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
        problems: &mut PointProblems,
    ) -> Vec<Map<String, Value>> {
        let mut whole = include.to_vec();
        for (entry, whole) in include.iter().zip(&mut whole) {
            let chosen: Vec<(&str, &Value)> = entry
                .iter()
                .map(|(key, value)| (key.as_str(), value))
                .collect();
            for axis in &self.0 {
                match axis.value(&chosen, value_at) {
                    Ok(value) => drop(whole.insert(axis.key.clone(), value)),
                    Err(fault) => problems.add_for_point(&owned(&chosen), fault),
                }
            }
        }
        whole
    }
}

impl DerivedAxis<'_> {
    /// The value at a point of these choices.
    fn value(
        &self,
        chosen: &Chosen<'_>,
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) -> Result<Value, KeyFault> {
        let of_key = |key: &String| match chosen.iter().find(|(axis, _)| axis == key) {
            Some((_, value)) => (*value).clone(),
            None => value_at(key, chosen),
        };
        let of_keys: Vec<Value> = self.derivation.keys().iter().map(of_key).collect();
        let value = self.derivation.value(&of_keys);
        value.map_err(|message| KeyFault::new(place_of(self.key), message))
    }

    /// The index of a value, which is added if it is new.
    fn index(&mut self, value: Value) -> u32 {
        let next = self.values.len() as u32;
        let index = *self.known.entry(value.to_string()).or_insert(next);
        if index == next {
            self.values.push(value);
        }
        index
    }
}

fn place_of(key: &str) -> String {
    format!("sweep.derive.{key}")
}

/// The values of the axes at a place.
fn chosen_at<'v>(place: &Place, axes: &[AxisValues<'v>]) -> Vec<(&'v str, &'v Value)> {
    let chosen = axes.iter().zip(place);
    chosen
        .map(|((key, values), index)| (key.as_str(), &values[*index as usize]))
        .collect()
}

fn owned(chosen: &Chosen<'_>) -> Vec<(String, Value)> {
    let pairs = chosen.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).clone()))
        .collect()
}
