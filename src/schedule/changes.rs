//! What changed between two resolved experiments, key by key.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::{catalog::data::Tokenizer, spec::Experiment};

/// Keys that decide no number: a run goes on when they change, and the launch writes the new value down.
const FREE: [&str; 6] = ["description", "data.path", "run.timeout", "run.stall", "run.retries", "run.wait"];

/// One key whose value differs; `None` is absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) key: String,
    pub(super) old: Option<Value>,
    pub(super) new: Option<Value>,
}

impl Change {
    /// Whether it is where trials run: free as long as no number was made anywhere.
    pub(super) fn is_of_the_device(&self) -> bool {
        self.key == "run.devices"
    }

    /// Whether a resume may take the new value.
    pub(super) fn is_free(&self) -> bool {
        FREE.contains(&self.key.as_str()) || self.is_another_place()
    }

    /// Whether a file was moved whose absence would say something, or whose key is no path for other kinds.
    fn is_another_place(&self) -> bool {
        let (Some(old), Some(new)) = (&self.old, &self.new) else { return false };
        let is_path = |value: &Value| value.is_string() && Tokenizer::deserialize(value).is_err();
        self.key == "data.valid_path" || (self.key == "data.tokenizer" && is_path(old) && is_path(new))
    }
}

/// Every key whose value differs, sorted by key.
pub(super) fn changes(old: &Experiment, new: &Experiment) -> Vec<Change> {
    let (mut old, new) = (leaves(old), leaves(new));
    let mut changes: Vec<Change> = new
        .into_iter()
        .filter_map(|(key, new)| {
            let old = old.remove(&key);
            (old.as_ref() != Some(&new)).then_some(Change { key, old, new: Some(new) })
        })
        .collect();
    changes.extend(old.into_iter().map(|(key, old)| Change { key, old: Some(old), new: None }));
    changes.sort_by(|a, b| a.key.cmp(&b.key));
    changes
}

/// The changes as lines of old and new value.
pub(super) fn describe(changes: &[Change]) -> String {
    let show = |value: &Option<Value>| value.as_ref().map_or("(not set)".to_owned(), Value::to_string);
    let lines: Vec<String> =
        changes.iter().map(|change| format!("  `{}`: was {}, is now {}", change.key, show(&change.old), show(&change.new))).collect();
    lines.join("\n")
}

fn leaves(experiment: &Experiment) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    if let Ok(value) = serde_json::to_value(experiment) {
        collect(String::new(), value, &mut leaves);
    }
    leaves
}

fn collect(key: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        // Axes are named by dotted keys already, and their order is part of the plan: each stays one leaf.
        Value::Object(map) if !key.starts_with("sweep.") => {
            for (name, value) in map {
                let key = if key.is_empty() { name } else { format!("{key}.{name}") };
                collect(key, value, leaves);
            }
        }
        value => {
            leaves.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(extra: &str) -> Experiment {
        serde_yaml::from_str(&format!("{{kiln: 1, name: x, model: {{kind: matmul, size: 8}}, {extra}}}")).unwrap()
    }

    #[test]
    fn each_changed_key_is_named_with_both_values() {
        let found = changes(&experiment("train: {batch_size: 4, steps: 3}"), &experiment("train: {batch_size: 8, epochs: 1}"));
        assert_eq!(
            describe(&found),
            "  `train.batch_size`: was 4, is now 8\n  `train.epochs`: was (not set), is now 1\n  `train.steps`: was 3, is now (not set)"
        );
    }

    #[test]
    fn the_same_experiment_has_no_changes_and_limits_are_free_to_change() {
        assert_eq!(changes(&experiment(""), &experiment("")), []);
        let found = changes(&experiment("run: {timeout: 30m}"), &experiment("run: {timeout: 1h}"));
        assert!(found.len() == 1 && found[0].is_free());
        let found = changes(&experiment("sweep: {grid: {train.seed: [1]}}"), &experiment("sweep: {grid: {train.seed: [1, 2]}}"));
        assert!(found.len() == 1 && !found[0].is_free());
    }
}
