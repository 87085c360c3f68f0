//! Files of JSON lines as prompts and responses.

use std::path::Path;

use serde_json::{Map, Value};

use super::PairsError;
use crate::text::DataError;

/// The two texts of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) prompt: String,
    pub(super) response: String,
}

/// Every row of a file's uncompressed bytes.
///
/// # Errors
/// The bytes are no UTF-8 text, there is no row, or a line is no object with two texts that say something.
pub(super) fn read(file: &Path, bytes: Vec<u8>, prompt_key: &str, response_key: &str, remedy: &'static str) -> Result<Vec<Row>, DataError> {
    let text = String::from_utf8(bytes).map_err(|error| DataError::NotUtf8 { path: file.to_owned(), byte: error.utf8_error().valid_up_to() })?;
    // Some editors begin a file with a mark of its byte order, and many end it with an empty line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).trim_end();
    if text.is_empty() {
        return Err(PairsError::NoRows { file: file.to_owned() }.into());
    }
    let row = |(index, line): (usize, &str)| {
        row(line, prompt_key, response_key).map_err(|fault| PairsError::Row { file: file.to_owned(), line: index + 1, fault, remedy }.into())
    };
    text.split('\n').enumerate().map(row).collect()
}

fn row(line: &str, prompt_key: &str, response_key: &str) -> Result<Row, String> {
    if line.trim().is_empty() {
        return Err("the line is empty, where a JSON object was expected".to_owned());
    }
    let value: Value = serde_json::from_str(line).map_err(|error| no_json(&error))?;
    let Value::Object(map) = value else { return Err(format!("{} where a JSON object was expected", found(&value))) };
    Ok(Row { prompt: text(&map, prompt_key, "prompt_key")?, response: text(&map, response_key, "response_key")? })
}

/// The line is named already, and is the parser's first.
fn no_json(error: &serde_json::Error) -> String {
    format!("no JSON ({})", error.to_string().replace(" at line 1 column ", " at column "))
}

fn text(map: &Map<String, Value>, key: &str, named_by: &str) -> Result<String, String> {
    let there = || map.keys().map(|key| format!("`{key}`")).collect::<Vec<String>>().join(", ");
    match map.get(key) {
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("`{key}` holds no text, only {text:?}")),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{key}` holds {}, where a text was expected", found(other))),
        None if map.is_empty() => Err(format!("the object is empty; it needs `{key}`, as `data.{named_by}` says")),
        None => Err(format!("no key `{key}`, which `data.{named_by}` names; the row has {}", there())),
    }
}

/// What a value is, in words.
fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(map) => format!("an object of {} keys", map.len()),
    }
}
