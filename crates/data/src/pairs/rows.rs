//! Reads files of JSON lines as prompts and responses.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{DataError, PairsError};

/// The two texts of a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PairTexts {
    pub(super) prompt: String,
    pub(super) response: String,
}

/// Returns every row of a file's uncompressed bytes.
///
/// # Errors
/// The bytes are not UTF-8 text, there is no row, or a line is not an object with two texts that
/// are not blank.
pub(super) fn read(
    file: &Path,
    bytes: Vec<u8>,
    prompt_key: &str,
    response_key: &str,
    remedy: &'static str,
) -> Result<Vec<PairTexts>, DataError> {
    let text =
        String::from_utf8(bytes).map_err(|error| DataError::not_utf8(file.to_owned(), &error))?;
    // Some editors start a file with a byte order mark, and many end it with an empty line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).trim_end();
    if text.is_empty() {
        return Err(PairsError::NoRows {
            file: file.to_owned(),
        }
        .into());
    }
    let row = |(index, line): (usize, &str)| {
        row(line, prompt_key, response_key).map_err(|fault| {
            PairsError::Row {
                file: file.to_owned(),
                line: index + 1,
                fault,
                remedy,
            }
            .into()
        })
    };
    text.split('\n').enumerate().map(row).collect()
}

fn row(line: &str, prompt_key: &str, response_key: &str) -> Result<PairTexts, String> {
    if line.trim().is_empty() {
        return Err("the line is empty, expected a JSON object".to_owned());
    }
    let value: Value = serde_json::from_str(line).map_err(|error| no_json(&error))?;
    let Value::Object(map) = value else {
        return Err(format!("found {}, expected a JSON object", found(&value)));
    };
    Ok(PairTexts {
        prompt: text(&map, prompt_key, "prompt_key")?,
        response: text(&map, response_key, "response_key")?,
    })
}

/// Removes the line number from the parser's message: the error names the line already.
fn no_json(error: &serde_json::Error) -> String {
    format!(
        "not valid JSON ({})",
        error
            .to_string()
            .replace(" at line 1 column ", " at column ")
    )
}

fn text(map: &Map<String, Value>, key: &str, named_by: &str) -> Result<String, String> {
    let there = || {
        map.keys()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<String>>()
            .join(", ")
    };
    match map.get(key) {
        Some(Value::String(text)) if text.trim().is_empty() => {
            Err(format!("`{key}` is blank: {text:?}"))
        }
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{key}` is {}, expected text", found(other))),
        None if map.is_empty() => Err(format!(
            "the object is empty; it needs `{key}`, as `data.{named_by}` says"
        )),
        None => Err(format!(
            "no key `{key}`, which `data.{named_by}` names; the row has {}",
            there()
        )),
    }
}

/// Describes a value, in words.
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
