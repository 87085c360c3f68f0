//! The keys of an experiment file, from what `kiln schema` prints.

use std::fmt;

use serde_json::Value;

/// A key that holds a value, not a map of further keys.
pub(crate) struct Key {
    path: String,
    /// The kind of the map around it, such as `gpt`.
    kind: Option<String>,
    pub(crate) has_one_value: bool,
}

impl fmt::Display for Key {
    /// `model.d_model (gpt)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        self.kind
            .as_ref()
            .map_or(Ok(()), |kind| write!(f, " ({kind})"))
    }
}

/// The output of `kiln schema`.
pub(crate) fn schema() -> Value {
    serde_json::to_value(kiln_core::spec::schema()).unwrap()
}

pub(crate) fn leaves(schema: &Value) -> Vec<Key> {
    let mut keys = Vec::new();
    collect(schema, schema, "", None, &mut keys);
    keys
}

fn collect(root: &Value, schema: &Value, path: &str, kind: Option<&str>, keys: &mut Vec<Key>) {
    let schema = resolved(root, schema);
    if let Some(kinds) = kinds(schema) {
        keys.push(Key {
            path: join(path, "kind"),
            kind: None,
            has_one_value: kinds.len() == 1,
        });
        for (kind, properties) in kinds {
            let others = properties.iter().filter(|(name, _)| *name != "kind");
            others.for_each(|(name, property)| {
                collect(root, property, &join(path, name), Some(kind), keys)
            });
        }
        return;
    }
    // The maps of `sweep` have other keys' dotted names in them: they are values.
    match schema["properties"]
        .as_object()
        .filter(|properties| properties.keys().all(|name| !name.contains('.')))
    {
        Some(properties) => properties
            .iter()
            .for_each(|(name, property)| collect(root, property, &join(path, name), kind, keys)),
        None => keys.push(Key {
            path: path.to_owned(),
            kind: kind.map(str::to_owned),
            has_one_value: has_one_value(root, schema),
        }),
    }
}

/// The schema meant by a reference, or by a choice between it and `null`.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolved(
            root,
            root.pointer(reference.trim_start_matches('#')).unwrap(),
        );
    }
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([one, null]) if null["type"] == "null" => resolved(root, one),
        _ => schema,
    }
}

/// The kinds of a map that has several, with the keys of each.
fn kinds(schema: &Value) -> Option<Vec<(&str, &serde_json::Map<String, Value>)>> {
    let branches = schema["oneOf"].as_array()?.iter();
    let kinds: Vec<_> = branches
        .filter_map(|branch| {
            Some((
                branch["properties"]["kind"]["const"].as_str()?,
                branch["properties"].as_object()?,
            ))
        })
        .collect();
    (!kinds.is_empty()).then_some(kinds)
}

fn has_one_value(root: &Value, schema: &Value) -> bool {
    let schema = resolved(root, schema);
    let is_one = |word: &str| {
        schema[word]
            .as_array()
            .is_some_and(|values| values.len() == 1)
    };
    let is_narrow = schema["minimum"].is_number() && schema["minimum"] == schema["maximum"];
    !schema["const"].is_null()
        || is_one("enum")
        || is_narrow
        || (is_one("oneOf") && has_one_value(root, &schema["oneOf"][0]))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
