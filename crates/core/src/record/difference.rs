//! Differences between two files of settings or facts, key by key.

use std::collections::BTreeMap;

use serde_json::Value;

/// One key with different values; `None` means absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Dotted key.
    pub key: String,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

/// Returns every value by its dotted key. A map whose key satisfies `is_whole` stays one value.
pub fn leaves(value: Value, is_whole: &dyn Fn(&str) -> bool) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    collect(String::new(), value, is_whole, &mut leaves);
    leaves
}

fn collect(
    key: String,
    value: Value,
    is_whole: &dyn Fn(&str) -> bool,
    leaves: &mut BTreeMap<String, Value>,
) {
    match value {
        Value::Object(map) if !is_whole(&key) => {
            for (name, value) in map {
                let key = if key.is_empty() {
                    name
                } else {
                    format!("{key}.{name}")
                };
                collect(key, value, is_whole, leaves);
            }
        }
        value => {
            leaves.insert(key, value);
        }
    }
}

/// Returns every key with different values, sorted by key.
pub fn differences(old: BTreeMap<String, Value>, new: BTreeMap<String, Value>) -> Vec<Difference> {
    let mut before = old;
    let mut found: Vec<Difference> = new
        .into_iter()
        .filter_map(|(key, new)| {
            let old = before.remove(&key);
            (old.as_ref() != Some(&new)).then_some(Difference {
                key,
                old,
                new: Some(new),
            })
        })
        .collect();
    found.extend(before.into_iter().map(|(key, old)| Difference {
        key,
        old: Some(old),
        new: None,
    }));
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}
