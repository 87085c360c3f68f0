//! The `model` section in two forms: as the layers give it, and as its types resolve it. They
//! differ if a key sets the defaults of other keys (`size` of kind `gpt`): an axis changes the
//! given form, and each point is resolved again.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value};

use super::{axes::varied_keys, node::Node, problem::Location};
use crate::kinds::Model;

/// The key that sets the defaults of other keys; it is not part of a resolved model.
const SIZE: &str = "size";

/// A model, and the form in which the layers give it.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedModel {
    /// The given form as its types read it, with `size` if present, and without keys that have a
    /// default.
    asked: Map<String, Value>,
    model: Model,
}

impl Deref for AskedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl<'de> Deserialize<'de> for AskedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given: Map<String, Value> = Map::deserialize(deserializer)?;
        let model: Model =
            serde_json::from_value(Value::Object(given.clone())).map_err(D::Error::custom)?;
        let Value::Object(mut asked) = serde_json::to_value(&model).map_err(D::Error::custom)?
        else {
            return Err(D::Error::custom("no map"));
        };
        let is_given = |key: &str| given.get(key).is_some_and(|value| !value.is_null());
        asked.retain(|key, _| is_given(key) || !model.keys_of_sizes().contains(&key.as_str()));
        if is_given(SIZE) {
            asked.entry(SIZE).or_insert_with(|| given[SIZE].clone());
        }
        Ok(Self { asked, model })
    }
}

impl Serialize for AskedModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.asked.serialize(serializer)
    }
}

/// Inserts the defaults of `model`, each at the place of its source, and removes `size`. If the
/// sweep varies a key that a size sets, both stay unchanged: each point resolves its own.
pub(super) fn resolve_model(tree: &mut Node) {
    let Some(given) = tree.get("model") else {
        return;
    };
    let Ok(model) = serde_json::from_value::<Model>(given.to_json()) else {
        return;
    };
    let size = given.get(SIZE).map(|size| size.location.clone());
    if model.keys_of_sizes().is_empty() || is_varied(tree, &model, size.is_some()) {
        return;
    }
    let resolved = serde_json::to_value(&model).unwrap_or_default();
    let missing = model
        .keys_of_sizes()
        .iter()
        .filter(|key| given.get(key).is_none());
    let location = size.unwrap_or_else(|| Location::named("default"));
    let missing: Vec<(&str, Node)> = missing
        .filter_map(|key| Some((*key, Node::from_json(resolved.get(key)?, &location))))
        .collect();
    for (key, value) in missing {
        tree.set_path(&["model", key], value);
    }
    tree.remove_path(&["model", SIZE]);
}

/// Whether points differ in their size, or in a value that their common size sets.
fn is_varied(tree: &Node, model: &Model, has_size: bool) -> bool {
    let name = |key: &str| key == SIZE || (has_size && model.keys_of_sizes().contains(&key));
    varied_keys(tree)
        .iter()
        .filter_map(|key| key.strip_prefix("model."))
        .any(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(model: Value) -> Value {
        serde_json::to_value(serde_json::from_value::<AskedModel>(model).unwrap()).unwrap()
    }

    #[test]
    fn what_is_left_to_a_size_stays_left_to_it_and_all_else_is_written_out() {
        let open = asked(
            json!({"kind": "gpt", "size": "gpt2", "num_layers": 2, "dropout": 0, "d_model": null}),
        );
        assert_eq!(
            open,
            json!({"kind": "gpt", "size": "gpt2", "num_layers": 2, "dropout": 0.0, "tie_head": true, "bias": true})
        );
        assert_eq!(
            asked(json!({"kind": "matmul", "size": 8})),
            json!({"kind": "matmul", "size": 8})
        );
        assert_eq!(
            asked(json!({"kind": "matmul"})),
            json!({"kind": "matmul", "size": 1000})
        );
    }
}
