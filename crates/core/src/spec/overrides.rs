//! Applies one value of an axis to the resolved sections of an experiment by the rules of merging.

use serde_json::{Map, Value, json};

use super::{
    keys,
    merge::default_field,
    node::Node,
    problem::Location,
    shapes::{KeyField, KeyShape, MapKeys, Tagged},
};

/// Sets a dotted key of the resolved sections `{model, data, train, run}`.
///
/// A map is merged key by key; another `kind` resets its map to that kind's defaults; `train.steps`
/// replaces `train.epochs` and the reverse; `null` restores the default. An unknown key changes
/// nothing: the check has refused it.
pub fn apply_override(sections: &mut Value, key: &str, value: &Value) {
    let Some(map) = sections.as_object_mut() else {
        return;
    };
    let names: Vec<&str> = key.split('.').collect();
    set(keys::table(), map, &names, value);
}

/// Sets all keys of one point. Whole maps and kinds come first, so that the order of the axes does
/// not matter.
pub fn apply_point<'a>(
    sections: &mut Value,
    values: impl IntoIterator<Item = (&'a str, &'a Value)>,
) {
    let mut values: Vec<(&str, &Value)> = values.into_iter().collect();
    let rank = |key: &str| key.matches('.').count() * 2 - usize::from(key.ends_with(".kind"));
    values.sort_by_key(|(key, _)| rank(key));
    for (key, value) in values {
        apply_override(sections, key, value);
    }
}

fn set(fields: &MapKeys, map: &mut Map<String, Value>, names: &[&str], value: &Value) {
    let Some((first, rest)) = names.split_first() else {
        return;
    };
    let Some(field) = fields.get(first) else {
        if fields.is_open {
            set_own(map, first, rest, value);
        }
        return;
    };
    match (&field.shape, rest) {
        (_, []) => put(field, map, value),
        (KeyShape::Tagged(_), ["kind"]) => put(field, map, &json!({ "kind": value })),
        (KeyShape::Tagged(tagged), _) => {
            let kind = kind_of(field, map).unwrap_or_default();
            if let (Some(fields), Some(child)) = (tagged.kind(&kind), child(field, map)) {
                set(fields, child, rest, value);
            }
        }
        (KeyShape::Map(fields), _) => {
            if let Some(child) = child(field, map) {
                set(fields, child, rest, value);
            }
        }
        _ => {}
    }
}

/// Sets an unknown key, where such keys are allowed: maps are merged, `null` removes.
fn set_own(map: &mut Map<String, Value>, name: &str, rest: &[&str], value: &Value) {
    if let Some((next, rest)) = rest.split_first() {
        let child = map.entry(name).or_insert_with(|| json!({}));
        if !child.is_object() {
            *child = json!({});
        }
        if let Value::Object(child) = child {
            set_own(child, next, rest, value);
        }
        return;
    }
    match value {
        Value::Null => drop(map.shift_remove(name)),
        Value::Object(given) => given
            .iter()
            .for_each(|(key, value)| set_own(map, name, &[key.as_str()], value)),
        _ => drop(map.insert(name.to_owned(), value.clone())),
    }
}

fn put(field: &KeyField, map: &mut Map<String, Value>, value: &Value) {
    match (&field.shape, value) {
        (_, Value::Null) => match default_of(field, None) {
            Some(default) => drop(map.insert(field.name.clone(), default)),
            None => drop(map.shift_remove(&field.name)),
        },
        (KeyShape::Map(fields), Value::Object(given)) => {
            let Some(child) = child(field, map) else {
                return;
            };
            for (key, value) in given {
                set(fields, child, &[key.as_str()], value);
            }
        }
        (KeyShape::Tagged(tagged), Value::Object(given)) => put_tagged(field, tagged, map, given),
        _ => {
            map.insert(field.name.clone(), value.clone());
        }
    }
    match field.name.as_str() {
        "steps" if !value.is_null() => drop(map.shift_remove("epochs")),
        "epochs" if !value.is_null() => drop(map.shift_remove("steps")),
        _ => {}
    }
}

fn put_tagged(
    field: &KeyField,
    tagged: &Tagged,
    map: &mut Map<String, Value>,
    given: &Map<String, Value>,
) {
    let now = kind_of(field, map);
    let kind = given
        .get("kind")
        .and_then(Value::as_str)
        .map(str::to_owned)
        .or(now.clone());
    if kind != now || !map.contains_key(&field.name) {
        let Some(reset) = default_of(field, kind.as_deref()) else {
            return;
        };
        map.insert(field.name.clone(), reset);
    }
    let Some(fields) = kind.as_deref().and_then(|kind| tagged.kind(kind)) else {
        return;
    };
    let Some(child) = map.get_mut(&field.name).and_then(Value::as_object_mut) else {
        return;
    };
    for (key, value) in given.iter().filter(|(key, _)| *key != "kind") {
        set(fields, child, &[key.as_str()], value);
    }
}

/// The current or default kind of a map.
fn kind_of(field: &KeyField, map: &Map<String, Value>) -> Option<String> {
    let now = map
        .get(&field.name)
        .and_then(|value| value.get("kind"))
        .and_then(Value::as_str);
    now.or(field.default_kind()).map(str::to_owned)
}

/// The map under a key, created with its defaults if absent.
fn child<'a>(
    field: &KeyField,
    map: &'a mut Map<String, Value>,
) -> Option<&'a mut Map<String, Value>> {
    if !map.get(&field.name).is_some_and(Value::is_object) {
        let user = Node::empty_map(Location::named("default"));
        let default = default_field(field, Some(&user), &user.location)?.to_json();
        map.insert(field.name.clone(), default);
    }
    map.get_mut(&field.name)?.as_object_mut()
}

fn default_of(field: &KeyField, kind: Option<&str>) -> Option<Value> {
    let location = Location::named("default");
    let user = kind.map(|kind| Node::from_json(&json!({ "kind": kind }), &location));
    default_field(field, user.as_ref(), &location).map(|node| node.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Train;

    fn sections() -> Value {
        json!({
            "model": {"kind": "gpt", "d_model": 512, "num_layers": 2},
            "data": {"kind": "generated", "num_workers": 4},
            "train": serde_json::to_value(Train { epochs: Some(5), ..Train::default() }).unwrap(),
            "run": {"engine": "libtorch", "devices": "auto"},
        })
    }

    fn after(key: &str, value: Value) -> Value {
        let mut sections = sections();
        apply_override(&mut sections, key, &value);
        sections
    }

    #[test]
    fn a_plain_key_is_set_where_it_stands() {
        assert_eq!(
            after("train.batch_size", json!(32))["train"]["batch_size"],
            json!(32)
        );
        assert_eq!(
            after("run.devices", json!([0, 1]))["run"]["devices"],
            json!([0, 1])
        );
        assert_eq!(
            after("train.evaluate.every", json!("epoch"))["train"]["evaluate"],
            json!({"every": "epoch", "batch_multiple": 1})
        );
    }

    #[test]
    fn steps_and_epochs_displace_each_other() {
        let train = &after("train.steps", json!(200))["train"];
        assert_eq!(
            (train.get("steps"), train.get("epochs")),
            (Some(&json!(200)), None)
        );
        assert_eq!(
            after("train.steps", Value::Null)["train"]["epochs"],
            json!(5)
        );
    }

    #[test]
    fn another_kind_resets_the_map_and_the_same_kind_keeps_it() {
        let sgd = json!({"kind": "sgd", "momentum": 0.9});
        let optimizer = after("train.optimizer", sgd.clone())["train"]["optimizer"].clone();
        assert_eq!(optimizer["momentum"], json!(0.9));
        assert_eq!(optimizer["learning_rate"], json!(0.1));
        assert_eq!(optimizer.get("beta1"), None);
        assert_eq!(
            after("model.kind", json!("mlp"))["model"]["hidden"],
            json!(128)
        );
        assert_eq!(
            after("model.kind", json!("gpt"))["model"]["d_model"],
            json!(512)
        );
        assert_eq!(
            after("train.optimizer", json!({"learning_rate": 0.5}))["train"]["optimizer"]["beta1"],
            json!(0.9)
        );
    }

    #[test]
    fn keys_of_a_model_of_ones_own_are_set_merged_and_removed() {
        let mut sections = sections();
        sections["model"] = json!({"kind": "custom", "name": "mine", "reads": "images", "width": 3, "stem": {"kernel": 3}});
        let set = |key: &str, value: Value| {
            let mut sections = sections.clone();
            apply_override(&mut sections, key, &value);
            sections["model"].clone()
        };
        assert_eq!(set("model.width", json!(5))["width"], json!(5));
        assert_eq!(set("model.width", Value::Null).get("width"), None);
        assert_eq!(
            set("model.stem", json!({"stride": 2}))["stem"],
            json!({"kernel": 3, "stride": 2})
        );
        assert_eq!(
            set("model.stem.kernel", json!(7))["stem"],
            json!({"kernel": 7})
        );
        assert_eq!(
            set("model.head.width", json!(9))["head"],
            json!({"width": 9})
        );
        assert_eq!(set("model.kind", json!("mlp")).get("stem"), None);
    }

    #[test]
    fn null_restores_the_default() {
        assert_eq!(
            after("model.dropout", Value::Null)["model"]["dropout"],
            json!(0.0)
        );
        assert_eq!(
            after("model.num_layers", Value::Null)["model"].get("num_layers"),
            None,
            "its default is the size's, where there is one"
        );
        let mut sections = sections();
        apply_override(&mut sections, "train.target", &json!({"valid_loss": 2.0}));
        assert_eq!(sections["train"]["target"], json!({"valid_loss": 2.0}));
        apply_override(&mut sections, "train.target", &Value::Null);
        assert_eq!(sections["train"].get("target"), None);
    }

    #[test]
    fn the_order_of_axes_does_not_matter_to_a_point() {
        let (rate, kind) = (json!(0.5), json!("sgd"));
        let mut one = sections();
        apply_point(
            &mut one,
            [
                ("train.optimizer.learning_rate", &rate),
                ("train.optimizer.kind", &kind),
            ],
        );
        assert_eq!(
            (
                &one["train"]["optimizer"]["kind"],
                &one["train"]["optimizer"]["learning_rate"]
            ),
            (&kind, &rate)
        );
    }
}
