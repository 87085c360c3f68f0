//! Points of a sweep that are the same trial, and the entries of `exclude` that drop all but the
//! first of them.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use serde_json::{Map, Value};

use super::{Trial, TrialId};
use crate::{
    kinds::Data,
    spec::{Sweep, written},
};

/// Most entries of `exclude` that a message offers.
const MOST_ENTRIES: usize = 5;

/// A point that has a trial in common with an earlier one.
pub(super) struct Twin {
    first: usize,
    point: usize,
    /// The trial of this point that is the same.
    trial: Trial,
}

/// The first point with each id.
#[derive(Default)]
pub(super) struct UsedIds(HashMap<TrialId, usize>);

impl UsedIds {
    /// The point, if one of its trials is that of an earlier one.
    pub(super) fn twin(&mut self, point: usize, trials: &[Trial]) -> Option<Twin> {
        for trial in trials {
            match self.0.entry(trial.id.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(point);
                }
                Entry::Occupied(entry) => {
                    return Some(Twin {
                        first: *entry.get(),
                        point,
                        trial: trial.clone(),
                    });
                }
            }
        }
        None
    }
}

impl Twin {
    pub(super) fn axes(&self) -> &[(String, Value)] {
        &self.trial.axes
    }

    /// The fault; `repair` is [`repair`] of all twins.
    pub(super) fn message(&self, repair: Option<&str>) -> String {
        let repair = repair.map(|repair| format!(", {repair}"));
        format!(
            "points {} and {} are the same trial ({}, seed {}); drop one of them{}{}",
            self.first + 1,
            self.point + 1,
            self.trial.id,
            self.trial.train.seed,
            repair.unwrap_or_default(),
            why_the_same(self.axes())
        )
    }
}

fn why_the_same(axes: &[(String, Value)]) -> &'static str {
    let is_of_data = |key: &str| Data::PATH_KEYS.contains(&key) || key == "data.tokenizer";
    if axes.iter().any(|(key, _)| is_of_data(key)) {
        return "; a different path does not make a different trial: run each in an experiment of \
                its own (`--set name=…`), and compare the runs with `kiln compare`";
    }
    if axes
        .iter()
        .any(|(key, _)| key == "train.initial_weights.path")
    {
        return "; a different path does not make a different trial";
    }
    if axes.iter().any(|(key, _)| key == "train.seed") {
        return "; `sweep.repeats` counts up from each `train.seed`";
    }
    ""
}

/// The entries of `exclude` that drop each twin and no other point, in words; `None` if there is no
/// short list of them. `points` are the trials of each point.
pub(super) fn repair(twins: &[Twin], points: &[Vec<Trial>], sweep: &Sweep) -> Option<String> {
    // `exclude` drops no point of `include`.
    if !sweep.include.is_empty() {
        return None;
    }
    let mut entries: Vec<Map<String, Value>> = Vec::new();
    for twin in twins {
        let entry = entry(&points.get(twin.first)?.first()?.axes, twin.axes())?;
        if !entries.contains(&entry) {
            entries.push(entry);
        }
        if entries.len() > MOST_ENTRIES {
            return None;
        }
    }
    let later: HashSet<usize> = twins.iter().map(|twin| twin.point).collect();
    let mut stay = points.iter().enumerate();
    let drops_more = stay.any(|(point, trials)| {
        let is_dropped = |trial: &Trial| entries.iter().any(|entry| matches(entry, &trial.axes));
        !later.contains(&point) && trials.first().is_some_and(is_dropped)
    });
    if entries.is_empty() || drops_more {
        return None;
    }
    let entries: Vec<String> = entries
        .into_iter()
        .map(|entry| written(&Value::Object(entry)))
        .collect();
    let listed = entries.join(", ");
    Some(match sweep.exclude.is_empty() {
        true => format!("with `exclude: [{listed}]` in `sweep`"),
        false => format!("with `{listed}` in `sweep.exclude`"),
    })
}

/// The values of a point that differ from those of its twin, each with the kind by which it has no
/// effect; `None` if there is a difference without such a kind.
fn entry(first: &[(String, Value)], later: &[(String, Value)]) -> Option<Map<String, Value>> {
    let differing = later.iter().filter(|pair| !first.contains(pair));
    let mut entry = Map::new();
    for (key, value) in differing {
        let kind = later.iter().find(|(axis, _)| {
            let holder = axis.strip_suffix("kind");
            holder.is_some_and(|holder| holder.ends_with('.') && key.starts_with(holder))
        });
        let (axis, kind) = kind.filter(|(axis, _)| axis != key && !value.is_null())?;
        entry.insert(axis.clone(), kind.clone());
        entry.insert(key.clone(), value.clone());
    }
    Some(entry)
}

fn matches(entry: &Map<String, Value>, axes: &[(String, Value)]) -> bool {
    entry.iter().all(|(key, value)| {
        let mut axes = axes.iter();
        axes.any(|(axis, own)| axis == key && own == value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_compare_files_of_data_is_named() {
        let why = |key: &str| why_the_same(&[(key.to_owned(), Value::Null)]);
        for key in ["data.path", "data.valid_path", "data.tokenizer"] {
            assert!(
                why(key).ends_with("compare the runs with `kiln compare`"),
                "{key}"
            );
        }
        assert!(!why("train.initial_weights.path").contains("kiln compare"));
        assert_eq!(why("data.num_workers"), "");
    }
}
