//! The text of a value: in an argument of a command, a cell of a table, a sentence.

use serde_json::Value;

/// A value as arguments and cells have it: texts without quotes, nothing for `null`, the rest as
/// JSON, which has no NaN and no infinity.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
