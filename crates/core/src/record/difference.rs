//! Differences between two files of settings or facts, key by key.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::plan::canonical;

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

/// Whether two values are equal, however they are written: `1` and `1.0` are one number, and the order
/// of a map's keys means nothing. A text is never a number.
pub fn is_same(one: &Value, other: &Value) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// Returns every key with different values ([`is_same`]), sorted by key.
pub fn differences(old: BTreeMap<String, Value>, new: BTreeMap<String, Value>) -> Vec<Difference> {
    let mut before = old;
    let mut found: Vec<Difference> = new
        .into_iter()
        .filter_map(|(key, new)| {
            let old = before.remove(&key);
            let is_unchanged = old.as_ref().is_some_and(|old| is_same(old, &new));
            (!is_unchanged).then_some(Difference {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_way_to_write_a_value_is_no_difference_and_a_text_is_not_a_number() {
        let all = |value| BTreeMap::from([("key".to_owned(), value)]);
        let differ = |old: Value, new: Value| !differences(all(old), all(new)).is_empty();
        let written = json!({"b": [1, 0.001], "a": {"x": 2, "y": null}});
        let otherwise = json!({"a": {"y": null, "x": 2.0}, "b": [1.0, 1e-3]});
        assert!(!differ(written, otherwise));
        assert!(!differ(json!(8), json!(8.0)));
        assert!(differ(json!("1"), json!(1)));
        assert!(differ(json!([1, 2]), json!([2, 1])));
        assert!(differ(json!(1), json!(1.5)));
    }
}
