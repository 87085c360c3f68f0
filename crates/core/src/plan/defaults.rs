//! The defaults of format 1, and what of a section differs from them.

use std::sync::LazyLock;

use serde_json::Value;

use super::canonical::canonical;

/// Defaults per section and, for sections with kinds, per kind.
pub(super) static FORMAT_1_DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("format_1_defaults.json")).unwrap_or(Value::Null)
});

/// `path` is the dotted key of `value`; maps with a `kind`, and maps that are absent by default,
/// have separate defaults.
pub(super) fn leave_out_defaults(value: &mut Value, path: &str, inherited: &Value) {
    let Value::Object(map) = value else { return };
    let defaults = match map.get("kind").and_then(Value::as_str) {
        Some(kind) => &FORMAT_1_DEFAULTS[path][kind],
        None if inherited.is_null() => &FORMAT_1_DEFAULTS[path],
        None => inherited,
    };
    map.retain(|key, value| {
        if value.is_object() {
            let inherited = &defaults[key.as_str()];
            leave_out_defaults(value, &format!("{path}.{key}"), inherited);
            // The presence of a map that is absent by default is part of the id.
            return inherited.is_null() || value.as_object().is_some_and(|map| !map.is_empty());
        }
        key == "kind" || !same(value, &defaults[key.as_str()])
    });
}

/// 1 and 1.0 are the same value.
fn same(value: &Value, default: &Value) -> bool {
    match (value, default) {
        (_, Value::Null) => false,
        // Texts and switches have one form only.
        (Value::String(_) | Value::Bool(_) | Value::Null, _) => value == default,
        _ => value == default || canonical(value) == canonical(default),
    }
}
