//! The table of keys, generated from the types: the allowed values of each key of an experiment
//! file.
//!
//! The source is the JSON Schema that schemars derives from [`Experiment`]; here it becomes a tree
//! of [shapes](super::shapes), used by the checker, the merging and the sweep. Built once per
//! process.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::{
    experiment::Experiment,
    shapes::{KeyField, KeyShape, MapKeys, Pattern, Range, Tagged, is_own_key, join, kind_choice},
};

/// The JSON Schema of the types, as schemars derives it.
pub(super) fn derived() -> Value {
    schemars::schema_for!(Experiment).to_value()
}

/// The keys of an experiment file.
pub(super) fn table() -> &'static MapKeys {
    static TABLE: OnceLock<MapKeys> = OnceLock::new();
    TABLE.get_or_init(|| {
        let schema = derived();
        fields(&schema, &schema)
    })
}

fn fields(root: &Value, schema: &Value) -> MapKeys {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let field = |(name, property): (&String, &Value)| KeyField {
        name: name.clone(),
        shape: shape(root, property),
        default: property
            .get("default")
            .cloned()
            .filter(|value| !value.is_null()),
        required: required.contains(&name.as_str()),
    };
    let known = properties
        .iter()
        .filter(|(name, _)| *name != "kind")
        .map(field)
        .collect();
    MapKeys {
        known,
        is_open: schema["additionalProperties"] == true,
    }
}

fn shape(root: &Value, schema: &Value) -> KeyShape {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or(&Value::Null);
        return shape(root, target);
    }
    if let Some(branches) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return alternatives(root, branches);
    }
    if let Some(choice) = schema["const"].as_str() {
        return KeyShape::Choice(vec![choice.to_owned()]);
    }
    if let Some(choices) = schema["enum"].as_array() {
        return KeyShape::Choice(
            choices
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        );
    }
    if let Some(scalar) = scalar(schema) {
        return scalar;
    }
    let named = schema["type"].as_str();
    let first = schema["type"].as_array().and_then(|types| {
        types
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
    });
    match named.or(first) {
        Some("integer") => KeyShape::Integer {
            min: bound(schema, "minimum", 0),
            max: bound(schema, "maximum", i128::from(u64::MAX)),
        },
        Some("number") => KeyShape::Number(range(schema)),
        Some("boolean") => KeyShape::Bool,
        Some("string") if schema["format"] == "time-span" => KeyShape::TimeSpan,
        Some("string") if schema["format"] == "byte-size" => KeyShape::ByteSize,
        Some("string") => KeyShape::Text(schema["pattern"].as_str().map(Pattern::named)),
        Some("array") if schema["format"] == "arguments" => KeyShape::Arguments {
            has_conditions: true,
        },
        Some("array") if schema["format"] == "texts" => KeyShape::Arguments {
            has_conditions: false,
        },
        Some("array") => KeyShape::List(Box::new(shape(root, &schema["items"]))),
        _ if schema["properties"].is_object() => KeyShape::Map(fields(root, schema)),
        _ if schema["additionalProperties"].is_object() => {
            KeyShape::Named(Box::new(shape(root, &schema["additionalProperties"])))
        }
        _ => KeyShape::Free,
    }
}

/// Reads a shape of several types of scalars.
fn scalar(schema: &Value) -> Option<KeyShape> {
    let types = schema["type"].as_array()?;
    let is_nullable = types.iter().any(|name| name == "null");
    (types.len() - usize::from(is_nullable) > 1).then_some(KeyShape::Scalar { is_nullable })
}

/// Reads the kinds of a tagged map, the choices of a word, or several shapes.
fn alternatives(root: &Value, branches: &[Value]) -> KeyShape {
    let kinds = |branch: &Value| {
        Some((
            branch["properties"]["kind"]["const"].as_str()?.to_owned(),
            fields(root, branch),
        ))
    };
    if let Some(tagged) = branches.iter().map(kinds).collect::<Option<Vec<_>>>() {
        return KeyShape::Tagged(Tagged(tagged));
    }
    let shapes: Vec<KeyShape> = branches
        .iter()
        .filter(|branch| branch["type"] != "null")
        .map(|branch| shape(root, branch))
        .collect();
    let words: Option<Vec<String>> = shapes
        .iter()
        .map(|shape| match shape {
            KeyShape::Choice(words) => Some(words.clone()),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()
        .map(|lists| lists.concat());
    match words {
        Some(words) => KeyShape::Choice(words),
        None if shapes.len() == 1 => shapes.into_iter().next().unwrap_or(KeyShape::Free),
        None => KeyShape::Any(shapes),
    }
}

fn bound(schema: &Value, name: &str, otherwise: i128) -> i128 {
    schema[name]
        .as_i64()
        .map(i128::from)
        .or(schema[name].as_u64().map(i128::from))
        .unwrap_or(otherwise)
}

fn range(schema: &Value) -> Range {
    Range {
        min: schema["minimum"].as_f64(),
        max: schema["maximum"].as_f64(),
        above: schema["exclusiveMinimum"].as_f64(),
    }
}

/// Every key of the table as a dotted path, with the kind that its map must have, in the table's
/// order.
pub(super) fn every_key() -> &'static [KnownKey] {
    static KEYS: OnceLock<Vec<KnownKey>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = Vec::new();
        collect(table(), "", None, &mut keys);
        keys
    })
}

/// One key of the table.
#[derive(Clone, Debug)]
pub(super) struct KnownKey {
    pub(super) path: String,
    /// `train.optimizer` and `sgd`: the map around it, and the kind that has this key.
    pub(super) kind: Option<(String, String)>,
}

impl KnownKey {
    pub(super) fn last(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

fn collect(
    fields: &MapKeys,
    path: &str,
    kind: Option<&(String, String)>,
    keys: &mut Vec<KnownKey>,
) {
    for field in &fields.known {
        let path = join(path, &field.name);
        keys.push(KnownKey {
            path: path.clone(),
            kind: kind.cloned(),
        });
        match &field.shape {
            KeyShape::Map(fields) => collect(fields, &path, kind, keys),
            KeyShape::Tagged(tagged) => {
                keys.push(KnownKey {
                    path: join(&path, "kind"),
                    kind: None,
                });
                for (name, fields) in &tagged.0 {
                    collect(fields, &path, Some(&(path.clone(), name.clone())), keys);
                }
            }
            _ => {}
        }
    }
}

/// Returns the allowed values of a dotted key if the maps on its path may have several kinds: one
/// entry per kind that has the key.
///
/// `kinds` names the possible kinds of the tagged map at a path.
pub(super) fn find(key: &str, kinds: &dyn Fn(&str) -> Vec<String>) -> KeyLookup {
    let mut path = String::new();
    let mut here = vec![table()];
    let names: Vec<&str> = key.split('.').collect();
    for (depth, name) in names.iter().enumerate() {
        let found: Vec<&'static KeyShape> = here
            .iter()
            .filter_map(|fields| fields.shape(name))
            .collect();
        if found.is_empty() {
            return KeyLookup::Unknown {
                parent: path,
                name: (*name).to_owned(),
                siblings: here.iter().flat_map(|fields| fields.names()).collect(),
            };
        }
        path = join(&path, name);
        if depth + 1 == names.len() {
            return KeyLookup::Shapes(found.into_iter().cloned().collect());
        }
        here = Vec::new();
        for shape in found {
            match shape {
                KeyShape::Map(fields) => here.push(fields),
                KeyShape::Named(item) if is_own_key(names[depth + 1]) => {
                    let name = names[depth + 1];
                    match (&**item, &names[depth + 2..]) {
                        (item, []) => return KeyLookup::Shapes(vec![item.clone()]),
                        (KeyShape::Map(fields), [key]) => {
                            return match fields.shape(key) {
                                Some(shape) => KeyLookup::Shapes(vec![shape.clone()]),
                                None => KeyLookup::Unknown {
                                    parent: join(&path, name),
                                    name: (*key).to_owned(),
                                    siblings: fields.names().collect(),
                                },
                            };
                        }
                        _ => {}
                    }
                }
                KeyShape::Anything if names[depth + 1..].iter().all(|name| is_own_key(name)) => {
                    return KeyLookup::Shapes(vec![KeyShape::Anything]);
                }
                KeyShape::Tagged(tagged) if names[depth + 1..] == ["kind"] => {
                    return KeyLookup::Shapes(vec![kind_choice(tagged)]);
                }
                KeyShape::Tagged(tagged) => {
                    let possible = kinds(&path);
                    here.extend(possible.iter().filter_map(|kind| tagged.kind(kind)));
                    if here
                        .iter()
                        .all(|fields| fields.shape(names[depth + 1]).is_none())
                    {
                        let others: Vec<&'static str> = tagged.kinds_with(names[depth + 1]);
                        if !others.is_empty() {
                            return KeyLookup::OtherKind {
                                parent: path,
                                name: names[depth + 1].to_owned(),
                                kinds: possible,
                                others,
                            };
                        }
                    }
                }
                _ => {}
            }
        }
    }
    KeyLookup::Unknown {
        parent: String::new(),
        name: key.to_owned(),
        siblings: Vec::new(),
    }
}

/// Returns the table's entry of a dotted key, for any kind.
pub(super) fn field(key: &str) -> Option<&'static KeyField> {
    let mut here = vec![table()];
    let mut names = key.split('.').peekable();
    while let Some(name) = names.next() {
        let field = here.iter().find_map(|fields| fields.get(name))?;
        here = match &field.shape {
            _ if names.peek().is_none() => return Some(field),
            KeyShape::Map(fields) => vec![fields],
            KeyShape::Tagged(tagged) => tagged.0.iter().map(|(_, fields)| fields).collect(),
            _ => return None,
        };
    }
    None
}

/// The shapes of a dotted key for every kind of the maps around it; `None` for an unknown key.
pub(super) fn of_every_kind(key: &str) -> Option<Vec<KeyShape>> {
    let every_kind = |path: &str| match field(path).map(|field| &field.shape) {
        Some(KeyShape::Tagged(tagged)) => tagged.names().into_iter().map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    match find(key, &every_kind) {
        KeyLookup::Shapes(shapes) => Some(shapes),
        _ => None,
    }
}

/// The result of [`find`].
pub(super) enum KeyLookup {
    Shapes(Vec<KeyShape>),
    /// A key of kinds other than the possible ones.
    OtherKind {
        parent: String,
        name: String,
        kinds: Vec<String>,
        others: Vec<&'static str>,
    },
    Unknown {
        parent: String,
        name: String,
        siblings: Vec<&'static str>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_types_has_a_shape_with_words_for_it() {
        let keys = every_key();
        assert!(keys.len() > 80, "{}", keys.len());
        for key in keys {
            let kinds = |path: &str| {
                key.kind
                    .iter()
                    .filter(|(at, _)| at == path)
                    .map(|(_, kind)| kind.clone())
                    .collect()
            };
            let KeyLookup::Shapes(shapes) = find(&key.path, &kinds) else {
                panic!("{}", key.path)
            };
            let shape = &shapes[0];
            let free = matches!(shape, KeyShape::Free)
                || matches!(shape, KeyShape::List(items) if matches!(**items, KeyShape::Free));
            assert_eq!(
                free,
                [
                    "sweep.grid",
                    "sweep.zip",
                    "sweep.derive",
                    "sweep.include",
                    "sweep.exclude",
                    "sweep.search.axes",
                    "sweep.sample.axes"
                ]
                .contains(&key.path.as_str()),
                "{}",
                key.path
            );
            assert!(
                !matches!(shape, KeyShape::Text(Some(Pattern::Unknown))),
                "{}",
                key.path
            );
        }
    }

    #[test]
    fn a_dotted_key_has_the_shape_of_the_kinds_it_may_meet() {
        let adamw = |_: &str| vec!["adamw".to_owned()];
        assert!(
            matches!(find("train.optimizer.beta1", &adamw), KeyLookup::Shapes(shapes) if shapes.len() == 1)
        );
        assert!(
            matches!(find("train.optimizer.momentum", &adamw), KeyLookup::OtherKind { others, .. } if others == ["sgd"])
        );
        let both = |_: &str| vec!["adamw".to_owned(), "sgd".to_owned()];
        assert!(
            matches!(find("train.optimizer.weight_decay", &both), KeyLookup::Shapes(shapes) if shapes.len() == 2)
        );
        assert!(matches!(
            find("train.optimizer.kind", &both),
            KeyLookup::Shapes(_)
        ));
        assert!(
            matches!(find("train.batch_siz", &both), KeyLookup::Unknown { name, .. } if name == "batch_siz")
        );
        assert!(matches!(
            find("train.batch_size.deeper", &both),
            KeyLookup::Unknown { .. }
        ));
    }
}
