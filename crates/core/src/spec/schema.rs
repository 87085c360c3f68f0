//! The JSON Schema of an experiment file (draft 2020-12), for editors.
//!
//! It is the schema of the types, relaxed by what a file may do but a resolved experiment may not:
//! leave a key to another layer, give `null`, leave `kind` to a lower layer, name axes by dotted
//! keys. `kiln check` checks more rules.

use serde_json::{Map, Value, json};

use super::{
    axes::may_vary,
    condition::Operator,
    keys::{derived, every_key, table},
    shapes::{KeyField, KeyShape, MapKeys},
};

/// Axes of `model` may be keys of a user's own model; a schema cannot know whether a key is one.
const OWN_AXIS: &str = r"^model\.[A-Za-z0-9_.-]+$";

/// Makes one line of each paragraph of a description: the lines of the source end where its width
/// ends.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if let Some(Value::String(text)) = keys.get_mut("description") {
                let paragraphs: Vec<String> = text
                    .split("\n\n")
                    .map(|part| part.replace('\n', " "))
                    .collect();
                *text = paragraphs.join("\n\n");
            }
            keys.values_mut().for_each(join_lines);
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// The schema that `kiln schema` prints.
pub fn schema() -> Value {
    let mut schema = derived();
    let axes = axes(&schema);
    loosen(&mut schema);
    join_lines(&mut schema);
    schema["$id"] = json!("https://kiln.invalid/experiment.schema.json");
    schema["title"] = json!("kiln experiment");
    schema["description"] = json!(
        "An experiment file of kiln, format 1. A file without `extends` needs `kiln`, `name` and \
         `model`; a fragment that other files extend needs none of them."
    );
    schema["properties"]["extends"] = json!({
        "type": "string",
        "minLength": 1,
        "description": "Path of a file to build on, relative to this file; merged key by key.",
    });
    schema["anyOf"] = json!([
        {"required": ["kiln", "name", "model"]},
        {"required": ["extends"], "properties": {"extends": {"type": "string"}}},
        {
            "not": {"required": ["name"]},
            "description": "A fragment that other files extend has no name.",
        },
        fragment(),
    ]);
    // Only a complete file must give what its sections need: otherwise another file may give it.
    schema["if"] = json!({"required": ["kiln", "name", "model"], "not": {"required": ["extends"]}});
    schema["then"] = needed(table()).unwrap_or(json!(true));
    put_axes(&mut schema, axes);
    schema
}

/// The required keys of a map, and those of the maps in it; `None` if it has none. An absent map is
/// valid.
fn needed(fields: &MapKeys) -> Option<Value> {
    let names: Vec<&str> = fields
        .known
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name.as_str())
        .collect();
    let within = |field: &KeyField| Some((field.name.clone(), needed_in(field)?));
    let within: Map<String, Value> = fields.known.iter().filter_map(within).collect();
    (!names.is_empty() || !within.is_empty())
        .then(|| json!({"required": names, "properties": within}))
}

fn needed_in(field: &KeyField) -> Option<Value> {
    let KeyShape::Tagged(tagged) = &field.shape else {
        return if let KeyShape::Map(fields) = &field.shape {
            needed(fields)
        } else {
            None
        };
    };
    let of_kind = |(kind, fields): &(String, MapKeys)| {
        let is_kind = json!({"properties": {"kind": {"const": kind}}, "required": ["kind"]});
        Some(json!({"if": is_kind, "then": needed(fields)?}))
    };
    let mut rules: Vec<Value> = tagged.0.iter().filter_map(of_kind).collect();
    if field.default_kind().is_none() {
        rules.push(json!({"required": ["kind"]}));
    }
    (!rules.is_empty()).then(|| json!({"allOf": rules}))
}

/// Condition that holds for a file in a folder `base`, which a schema cannot see: it has no key
/// that belongs to one experiment only.
fn fragment() -> Value {
    let of_one_experiment = ["name", "description", "sweep"].map(|key| json!({"required": [key]}));
    json!({"not": {"anyOf": of_one_experiment}})
}

/// Returns each key that may vary, with the schemas of the kinds that have it.
fn axes(schema: &Value) -> Map<String, Value> {
    let mut axes = Map::new();
    for known in every_key().iter().filter(|known| may_vary(&known.path)) {
        let mut schemas = Vec::new();
        properties_at(
            schema,
            schema,
            &known.path.split('.').collect::<Vec<_>>(),
            &mut schemas,
        );
        schemas.dedup();
        let description = schemas
            .iter()
            .find_map(|found| found["description"].as_str())
            .unwrap_or_default()
            .to_owned();
        for found in &mut schemas {
            if let Some(found) = found.as_object_mut() {
                found.retain(|key, _| key != "description" && key != "default");
            }
        }
        schemas.dedup();
        schemas.push(json!({"type": "null"}));
        axes.insert(
            known.path.clone(),
            json!({"description": description, "anyOf": schemas}),
        );
    }
    axes
}

/// Returns the schemas of a dotted key, one per kind that has it.
fn properties_at(root: &Value, schema: &Value, names: &[&str], found: &mut Vec<Value>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or(&Value::Null);
        return properties_at(root, target, names, found);
    }
    let Some((first, rest)) = names.split_first() else {
        return;
    };
    let branches = ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|word| schema[word].as_array())
        .flatten();
    branches.for_each(|branch| properties_at(root, branch, names, found));
    match (schema["properties"].get(*first), rest) {
        (Some(property), []) if !found.contains(property) => found.push(property.clone()),
        (Some(property), [_, ..]) => properties_at(root, property, rest, found),
        _ => {}
    }
}

fn put_axes(schema: &mut Value, axes: Map<String, Value>) {
    let each = |wrap: &dyn Fn(&Value) -> Value| -> Value {
        axes.iter()
            .map(|(key, value)| (key.clone(), wrap(value)))
            .collect::<Map<_, _>>()
            .into()
    };
    let reference = |key: &str| json!({"$ref": format!("#/$defs/Axes/properties/{key}")});
    let section = |wrap: &dyn Fn(Value) -> Value| -> Value {
        axes.keys()
            .map(|key| (key.clone(), wrap(reference(key))))
            .collect::<Map<String, Value>>()
            .into()
    };
    let lists = section(&|item| {
        let list = json!({"type": "array", "minItems": 1, "items": item});
        json!({"anyOf": [list, {"$ref": "#/$defs/AxisRange"}, {"type": "null"}]})
    });
    let random = section(&|item| {
        let list = json!({"type": "array", "minItems": 1, "items": item});
        json!({"anyOf": [list, {"$ref": "#/$defs/RandomRange"}, {"type": "null"}]})
    });
    let values = section(&|item| item);
    let expressions = section(&|_| json!({"type": ["string", "null"]}));
    let conditions = section(&|item| {
        let pattern = format!("^ *({})", Operator::listed("|"));
        json!({"anyOf": [item, {"type": "string", "pattern": pattern}]})
    });
    schema["$defs"]["Axes"] = json!({
        "description": "The keys that a sweep may vary.",
        "properties": each(&Value::clone),
    });
    schema["$defs"]["AxisRange"] = range(true);
    schema["$defs"]["RandomRange"] = range(false);
    let properties = &mut schema["$defs"]["Sweep"]["properties"];
    for name in ["grid", "zip"] {
        put_lists(&mut properties[name], &lists);
    }
    properties["derive"]["properties"] = expressions;
    properties["derive"]["patternProperties"] = json!({OWN_AXIS: {"type": ["string", "null"]}});
    properties["derive"]["additionalProperties"] = json!(false);
    for (name, properties_of) in [("include", values), ("exclude", conditions)] {
        properties[name]["items"] = json!({
            "type": "object",
            "minProperties": 1,
            "properties": properties_of,
            "patternProperties": {OWN_AXIS: {}},
            "additionalProperties": false,
        });
    }
    let with_axes = schema["$defs"]["Search"]["oneOf"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(|kind| kind["properties"].get_mut("axes"));
    for property in with_axes {
        put_lists(property, &lists);
    }
    put_lists(
        &mut schema["$defs"]["RandomPoints"]["properties"]["axes"],
        &random,
    );
}

fn put_lists(property: &mut Value, lists: &Value) {
    property["properties"] = lists.clone();
    property["patternProperties"] =
        json!({OWN_AXIS: {"type": ["array", "object", "null"], "minItems": 1}});
    property["additionalProperties"] = json!(false);
}

/// An axis as a range; random points have no steps.
fn range(has_steps: bool) -> Value {
    let mut required = vec!["from", "to"];
    let mut properties = json!({
        "from": {"type": "number"},
        "to": {"type": "number"},
        "scale": {"enum": ["linear", "log"]},
    });
    if has_steps {
        required.push("steps");
        properties["steps"] = json!({"type": "integer", "minimum": 2});
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Makes keys optional that another layer may give, and allows `null`, which restores the default.
fn loosen(schema: &mut Value) {
    let Value::Object(map) = schema else {
        if let Value::Array(items) = schema {
            items.iter_mut().for_each(loosen);
        }
        return;
    };
    map.values_mut().for_each(loosen);
    map.remove("required");
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties
            .iter_mut()
            .filter(|(name, _)| *name != "kind")
            .for_each(|(_, property)| allow_null(property));
    }
    if let Some(named @ Value::Object(_)) = map.get_mut("additionalProperties") {
        allow_null(named);
    }
    let tagged = map
        .get("oneOf")
        .and_then(Value::as_array)
        .filter(|branches| {
            branches
                .iter()
                .all(|branch| branch["properties"]["kind"].is_object())
        });
    if let Some(tagged) = tagged.map(|branches| with_kind_beneath(branches)) {
        map.insert("oneOf".to_owned(), tagged);
    }
}

/// The kinds, each with its `kind` required, and a map that leaves its kind to a lower layer.
fn with_kind_beneath(branches: &[Value]) -> Value {
    let mut union = Map::new();
    for (name, property) in branches
        .iter()
        .filter_map(|branch| branch["properties"].as_object())
        .flatten()
        .filter(|(name, _)| *name != "kind")
    {
        union.entry(name).or_insert_with(|| property.clone());
    }
    let is_open = branches
        .iter()
        .any(|branch| branch["additionalProperties"] == true);
    let mut kinds = branches.to_vec();
    for kind in &mut kinds {
        kind["required"] = json!(["kind"]);
    }
    kinds.push(json!({
        "description": "Keys of the kind that a lower layer gives, or of the default kind.",
        "type": "object",
        "properties": union,
        "not": {"required": ["kind"]},
        "additionalProperties": is_open,
    }));
    kinds.into()
}

fn allow_null(property: &mut Value) {
    let Value::Object(map) = property else { return };
    match map.get_mut("type") {
        Some(Value::String(name)) if name != "null" => {
            let name = std::mem::take(name);
            map.insert("type".to_owned(), json!([name, "null"]));
        }
        Some(Value::Array(names)) if !names.contains(&json!("null")) => names.push(json!("null")),
        Some(_) => {}
        None => {
            if let Some(reference) = map.remove("$ref") {
                map.insert(
                    "anyOf".to_owned(),
                    json!([{"$ref": reference}, {"type": "null"}]),
                );
            }
        }
    }
}
