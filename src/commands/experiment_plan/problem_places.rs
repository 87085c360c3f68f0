//! The places in an experiment file of the problems of its plan.

use std::collections::HashMap;

use kiln_core::{
    plan::PlanProblem,
    spec::{Loaded, Location, Problem, Problems},
};
use serde_json::Value;

/// Gives the problems of a plan their places in the file.
pub(super) fn placed(loaded: &Loaded, problems: &[PlanProblem]) -> Problems {
    let mut places = AxisPlaces {
        loaded,
        indices: HashMap::new(),
    };
    let placed = problems.iter().filter_map(|problem| {
        let at = places.of(problem)?;
        let key = problem.fault.key.as_str();
        Some(Problem::new(&at, key, problem.to_string()))
    });
    Problems::new(placed.collect())
}

/// Finds the places of faults in the file.
struct AxisPlaces<'a> {
    loaded: &'a Loaded,
    /// The index of each value of an axis, by section and key of the axis: there may be as many
    /// faults as values.
    indices: HashMap<(String, String), HashMap<String, usize>>,
}

impl AxisPlaces<'_> {
    fn of(&mut self, fault: &PlanProblem) -> Option<Location> {
        let sweep = &self.loaded.experiment.sweep;
        let place = fault.place(|key| match key {
            key if sweep.zip.contains_key(key) => "zip",
            key if sweep.derive.contains_key(key) => "derive",
            _ => "grid",
        });
        match place
            .strip_prefix("sweep.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some(_) if sweep.search.is_some() => self.loaded.locate("sweep.search"),
            Some((section @ "derive", key)) => self
                .loaded
                .axis_location(section, key, None)
                .or_else(|| self.loaded.locate("sweep")),
            Some((section @ ("grid" | "zip"), key)) => {
                let chosen = fault.axes.iter().find(|(axis, _)| axis == key);
                let index = chosen.and_then(|(_, value)| self.index(section, key, value));
                self.loaded
                    .axis_location(section, key, index)
                    .or_else(|| self.loaded.locate("sweep"))
            }
            _ => self.loaded.locate(&place),
        }
    }

    /// The index of the first such value of an axis.
    fn index(&mut self, section: &str, key: &str, value: &Value) -> Option<usize> {
        let sweep = &self.loaded.experiment.sweep;
        let indices = self
            .indices
            .entry((section.to_owned(), key.to_owned()))
            .or_insert_with(|| {
                let axes = if section == "zip" {
                    &sweep.zip
                } else {
                    &sweep.grid
                };
                let mut first = HashMap::new();
                let values = axes.get(key).and_then(Value::as_array);
                for (index, value) in values.into_iter().flatten().enumerate() {
                    first.entry(value.to_string()).or_insert(index);
                }
                first
            });
        indices.get(&value.to_string()).copied()
    }
}
