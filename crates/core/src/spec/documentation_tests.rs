//! Tests that each key is described in the documentation, whose table is generated from the types.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::fs;

use serde_json::Value;

use super::{
    generated_tests::{every_key, shape},
    keys::{self, KnownKey},
    shapes::{KeyShape, join},
    value::allowed,
};

/// The documentation's table of keys, generated from the types: a row per key, or several rows if
/// kinds differ in it.
fn documented_keys() -> String {
    let schema = keys::derived();
    let mut rows: Vec<(String, String, Vec<String>)> = Vec::new();
    for known in every_key() {
        let property = property(&schema, known);
        let default = match property.as_ref().map(|property| &property["default"]) {
            Some(Value::Object(map)) => map
                .get("kind")
                .and_then(Value::as_str)
                .map(|kind| format!("kind `{kind}`"))
                .unwrap_or_default(),
            Some(Value::String(text)) => format!("`{}`", text.escape_debug()),
            Some(Value::Array(_) | Value::Null) | None => String::new(),
            Some(value) => format!("`{value}`"),
        };
        let holds = match shape(known) {
            KeyShape::Map(_) | KeyShape::Tagged(_) => "a map".to_owned(),
            KeyShape::Free if known.path == "sweep.derive" => {
                "a map of keys, each with an expression".to_owned()
            }
            KeyShape::Free => "axes".to_owned(),
            KeyShape::List(item) if matches!(*item, KeyShape::Free) => {
                "a list of points".to_owned()
            }
            KeyShape::List(item) => format!("a list, each {}", allowed(&item)),
            shape => allowed(&shape),
        };
        let meaning = property
            .and_then(|property| described(&schema, &property))
            .unwrap_or_default();
        let rest = format!("{holds} | {default} | {meaning} |");
        let kind = known.kind.as_ref().map(|(_, kind)| format!("`{kind}`"));
        match rows
            .iter_mut()
            .find(|(path, other, _)| *path == known.path && *other == rest)
        {
            Some((_, _, kinds)) => kinds.extend(kind),
            None => rows.push((known.path.clone(), rest, kind.into_iter().collect())),
        }
    }
    let mut table =
        "| key | of kind | holds | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for (path, rest, kinds) in rows {
        table.push_str(&format!("| `{path}` | {} | {rest}\n", kinds.join(", ")));
    }
    table
}

/// Returns the schema of a key under its kind.
fn property(schema: &Value, known: &KnownKey) -> Option<Value> {
    let mut here = schema.clone();
    let mut path = String::new();
    for name in known.path.split('.') {
        here = here["properties"][name].clone();
        path = join(&path, name);
        let Some((_, kind)) = known.kind.as_ref().filter(|(map, _)| *map == path) else {
            if path != known.path {
                here = target(schema, &here);
            }
            continue;
        };
        let branches = target(schema, &here)["oneOf"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        here = branches
            .into_iter()
            .find(|branch| branch["properties"]["kind"]["const"] == kind.as_str())?;
    }
    Some(here).filter(|property| !property.is_null())
}

/// Returns the schema that a property refers to, or the property itself.
fn target(schema: &Value, property: &Value) -> Value {
    let reference = property["$ref"]
        .as_str()
        .or_else(|| property["anyOf"][0]["$ref"].as_str());
    reference
        .and_then(|reference| schema.pointer(reference.trim_start_matches('#')))
        .unwrap_or(property)
        .clone()
}

fn described(schema: &Value, property: &Value) -> Option<String> {
    let referred = target(schema, property);
    let text = property["description"]
        .as_str()
        .or_else(|| referred["description"].as_str())?;
    Some(text.replace('\n', " ").replace('|', "\\|"))
}

#[test]
fn every_key_is_described_in_the_schema_and_in_the_documentation() {
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/experiment-file.md");
    let text = fs::read_to_string(&file).unwrap();
    let (begin, end) = ("<!-- keys -->\n", "<!-- end of keys -->\n");
    let from = text.find(begin).unwrap() + begin.len();
    let to = text.find(end).unwrap();
    let table = documented_keys();
    for row in table.lines().filter(|row| !row.contains(".kind`")) {
        assert!(!row.ends_with("|  |"), "no description: {row}");
    }
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(&file, format!("{}{table}{}", &text[..from], &text[to..])).unwrap();
    } else {
        assert!(
            text[from..to] == table,
            "the table of keys in docs/experiment-file.md is old; write it with KILN_BLESS=1"
        );
    }
}
