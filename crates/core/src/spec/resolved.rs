//! The resolved experiment: every value with its layer, and the YAML file that holds both.

use serde_json::Value;

use super::{
    Loaded,
    contradictions::is_ignored,
    node::{Node, NodeContent, NodeEntry},
    scalar::{Resolved, resolve},
    shapes::join,
};
use crate::kinds::Model;

/// One resolved value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueOrigin {
    /// Dotted key; for an axis, `sweep.grid.train.batch_size`.
    pub key: String,
    pub value: Value,
    /// `experiments/x.yaml:12`, `KILN_TRAIN__BATCH_SIZE`, `--at x:t4f0c1a2b3d`,
    /// `--set train.batch_size=8` or `default`.
    pub layer: String,
}

/// Returns every value of a resolved tree, in document order.
pub(super) fn origins(tree: &Node) -> Vec<ValueOrigin> {
    let mut origins = Vec::new();
    collect(tree, "", &mut origins);
    origins
}

fn collect(node: &Node, path: &str, origins: &mut Vec<ValueOrigin>) {
    for entry in node.entries() {
        let key = join(path, &entry.key);
        if entry.value.is_map() {
            collect(&entry.value, &key, origins);
        } else {
            origins.push(ValueOrigin {
                key,
                value: entry.value.to_json(),
                layer: entry.value.location.layer(),
            });
        }
    }
}

/// The resolved experiment as YAML, each value with its layer as a comment. A value that a variable
/// takes away is a comment of its own: the command that resumes the run needs that variable, too.
/// Reading it gives the same experiment.
pub fn write_resolved(loaded: &Loaded) -> String {
    let mut text = write_with(loaded, str::to_owned);
    for ValueOrigin { key, layer, .. } in &loaded.unset {
        let line = format!("# {key}: null  # {layer}").replace(char::is_control, " ");
        text += &(line + "\n");
    }
    text
}

/// The same, with a custom comment for each layer.
pub(super) fn write_with(loaded: &Loaded, comment: impl Fn(&str) -> String) -> String {
    let model: &Model = &loaded.experiment.model;
    let mut lines = Vec::new();
    write(&loaded.tree, "", 0, model, &mut lines);
    let lines: Vec<(String, String)> = lines
        .into_iter()
        .map(|(line, layer)| (line, comment(&layer)))
        .collect();
    let width = lines
        .iter()
        .filter(|(_, layer)| !layer.is_empty())
        .map(|(line, _)| line.chars().count())
        .filter(|width| *width <= 60)
        .max();
    let width = width.unwrap_or_default();
    let whole = |(line, layer): (String, String)| {
        if layer.is_empty() {
            line
        } else {
            format!("{line:<width$}  # {layer}")
        }
    };
    lines.into_iter().map(|line| whole(line) + "\n").collect()
}

fn write(node: &Node, path: &str, depth: usize, model: &Model, lines: &mut Vec<(String, String)>) {
    for entry in node.entries() {
        let key = join(path, &entry.key);
        // A key that is ignored must not be given, so its default is not written either.
        if !is_ignored(model, &key) {
            write_entry(entry, &key, depth, model, lines);
        }
    }
}

fn write_entry(
    entry: &NodeEntry,
    key: &str,
    depth: usize,
    model: &Model,
    lines: &mut Vec<(String, String)>,
) {
    let indent = "  ".repeat(depth);
    let name = written_text(&entry.key);
    match &entry.value.content {
        NodeContent::Map(entries) if entries.is_empty() => {}
        NodeContent::List(items) if items.is_empty() => {}
        NodeContent::Map(_) => {
            lines.push((format!("{indent}{name}:"), String::new()));
            write(&entry.value, key, depth + 1, model, lines);
        }
        _ => {
            let layer = entry.value.location.layer().replace(char::is_control, " ");
            lines.push((
                format!("{indent}{name}: {}", written(&entry.value.to_json())),
                layer,
            ));
        }
    }
}

/// Formats a value on one line: JSON is YAML, but text that needs no quotes has none.
pub(crate) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => written_text(text),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(written).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(map) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", written_text(key), written(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Number(number) => written_number(&number.to_string()),
        other => other.to_string(),
    }
}

/// Formats a number so that YAML 1.1 also reads it as a number: an exponent needs a point before it
/// and an explicit sign.
fn written_number(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text.to_owned();
    };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) {
        ""
    } else {
        "+"
    };
    format!("{mantissa}{point}e{sign}{exponent}")
}

/// Words that YAML 1.1 reads as `true` or `false`.
const WORDS_OF_YAML_1_1: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];

fn written_text(text: &str) -> String {
    let simple = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let simple = simple && !WORDS_OF_YAML_1_1.contains(&text.to_ascii_lowercase().as_str());
    if simple && resolve(text) == Resolved::Text {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_yaml_1_1_reads_otherwise_is_written_so_that_it_does_not() {
        let cases = [
            ("1e-8", "1.0e-8"),
            ("1e300", "1.0e+300"),
            ("1.5e-7", "1.5e-7"),
            ("2.5e+20", "2.5e+20"),
            ("0.001", "0.001"),
            ("-3", "-3"),
        ];
        for (json, yaml) in cases {
            assert_eq!(written_number(json), yaml);
            assert_eq!(json.parse::<f64>(), yaml.parse::<f64>());
        }
        assert_eq!(
            ["no", "On", "north"].map(written_text),
            ["\"no\"", "\"On\"", "north"]
        );
    }
}
