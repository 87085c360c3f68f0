//! Applies the values of one point of a sweep to the resolved sections of an experiment. Each value
//! is one more layer, merged by the [rules](super::merge_rules) that layers of a file follow.

use serde_json::{Value, json};

use super::{
    merge::default_field,
    merge_rules::{DottedValue, LayerAction, LayerChange, changes},
    node::Node,
    problem::Location,
    shapes::KeyField,
};

/// Sets a dotted key of the resolved sections `{model, data, train, run}`. An unknown key changes
/// nothing: the check has refused it, or it belongs to another kind.
pub fn apply_override(sections: &mut Value, key: &str, value: &Value) {
    let names: Vec<&str> = key.split('.').collect();
    let layer = DottedValue {
        names: &names,
        value,
    };
    for change in changes(&*sections, layer) {
        apply(sections, &change);
    }
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

fn apply(sections: &mut Value, change: &LayerChange<'_, DottedValue<'_>>) {
    let Some((name, parents)) = change.path.split_last() else {
        return;
    };
    let parent = parents
        .iter()
        .try_fold(sections, |place, name| place.get_mut(*name));
    let Some(map) = parent.and_then(Value::as_object_mut) else {
        return;
    };
    let value = match change.action {
        LayerAction::Open(_) if map.get(*name).is_some_and(Value::is_object) => return,
        LayerAction::Open(kind) => opened(change.field, kind),
        LayerAction::Reset(kind) => change.field.and_then(|field| default_of(field, kind)),
        LayerAction::Set(given) => Some(given.value.clone()),
    };
    match (value, map.get_mut(*name)) {
        (Some(value), Some(place)) => *place = value,
        (Some(value), None) => drop(map.insert((*name).to_owned(), value)),
        (None, _) => drop(map.shift_remove(*name)),
    }
}

/// A map that the sections lack, with the defaults of its keys.
fn opened(field: Option<&KeyField>, kind: Option<&str>) -> Option<Value> {
    let Some(field) = field else {
        return Some(json!({}));
    };
    let location = Location::named("default");
    let user = match kind {
        Some(kind) => Node::from_json(&json!({ "kind": kind }), &location),
        None => Node::empty_map(location.clone()),
    };
    default_field(field, Some(&user), &location).map(|node| node.to_json())
}

/// The default of a key, or of a map of this kind; `None` for a key without a default.
fn default_of(field: &KeyField, kind: Option<&str>) -> Option<Value> {
    if kind.is_some() {
        return opened(Some(field), kind);
    }
    default_field(field, None, &Location::named("default")).map(|node| node.to_json())
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
