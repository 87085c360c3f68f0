//! Stand-in for the merge of one dotted key into resolved sections, until `spec` offers it.

use serde_json::{Map, Value};

/// Puts `value` at the dotted `key`: a map whose `kind` differs starts anew, `steps` displaces `epochs` and the reverse, `null`
/// restores the default.
pub(crate) fn apply_override(sections: &mut Value, key: &str, value: &Value) {
    let (parent, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut place = sections;
    for part in parent.split('.').filter(|part| !part.is_empty()) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(map) = place else { return };
        place = map.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
    if !place.is_object() {
        *place = Value::Object(Map::new());
    }
    let Value::Object(map) = place else { return };
    set(map, parent, last, value);
}

fn set(map: &mut Map<String, Value>, parent: &str, last: &str, value: &Value) {
    if last == "kind" && map.get("kind") != Some(value) {
        map.clear();
    }
    match (parent, last) {
        ("train", "steps") if !value.is_null() => drop(map.shift_remove("epochs")),
        ("train", "epochs") if !value.is_null() => drop(map.shift_remove("steps")),
        _ => {}
    }
    match (map.get_mut(last), value) {
        (_, Value::Null) => drop(map.shift_remove(last)),
        (Some(Value::Object(below)), Value::Object(above)) if above.get("kind").is_none_or(|kind| below.get("kind") == Some(kind)) => {
            for (key, value) in above {
                set(below, &format!("{parent}.{last}"), key, value);
            }
        }
        _ => drop(map.insert(last.to_owned(), value.clone())),
    }
}

/// Lays one tree over another.
pub(crate) fn merge(below: &mut Value, above: &Value) {
    let (Value::Object(below), Value::Object(above)) = (below, above) else { return };
    for (key, value) in above {
        match (below.get_mut(key), value) {
            (Some(section @ Value::Object(_)), Value::Object(keys)) if key != "sweep" => {
                let mut wrapped = serde_json::json!({ key: section.clone() });
                for (name, value) in keys {
                    apply_override(&mut wrapped, &format!("{key}.{name}"), value);
                }
                *section = wrapped[key].take();
            }
            _ => drop(below.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_put_in_place_and_displace_what_they_contradict() {
        let mut sections = json!({"model": {"kind": "gpt", "d_model": 8}, "train": {"epochs": 3, "optimizer": {"kind": "adamw", "beta1": 0.5}}});
        apply_override(&mut sections, "train.steps", &json!(7));
        apply_override(&mut sections, "train.optimizer", &json!({"beta2": 0.9}));
        apply_override(&mut sections, "train.epochs", &Value::Null);
        assert_eq!(sections["train"], json!({"steps": 7, "optimizer": {"kind": "adamw", "beta1": 0.5, "beta2": 0.9}}));
        apply_override(&mut sections, "train.optimizer", &json!({"kind": "sgd"}));
        apply_override(&mut sections, "model.kind", &json!("mlp"));
        apply_override(&mut sections, "train.steps", &Value::Null);
        assert_eq!(sections, json!({"model": {"kind": "mlp"}, "train": {"optimizer": {"kind": "sgd"}}}));
    }
}
