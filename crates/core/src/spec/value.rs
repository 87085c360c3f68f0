//! Checks one value against the shape of its key: type, range, pattern, choice. The checker handles
//! maps.

mod arguments;

use std::collections::HashSet;

use super::{
    future,
    node::{Node, NodeContent},
    problem::Problem,
    scalar::{Resolved, Scalar},
    shapes::{KeyShape, Range, is_own_key, join},
    suggest::{did_you_mean, listed},
    synonyms,
};
use crate::units::{ByteSize, TimeSpan};

/// Returns the faults of a scalar or list at `path`.
pub(super) fn fault(path: &str, shape: &KeyShape, node: &Node) -> Vec<Problem> {
    if let (KeyShape::Any(shapes), NodeContent::List(_)) = (shape, &node.content)
        && let Some(list) = shapes
            .iter()
            .find(|shape| matches!(shape, KeyShape::List(_)))
    {
        return fault(path, list, node);
    }
    match (shape, &node.content) {
        (KeyShape::Free, _) => Vec::new(),
        (KeyShape::Anything, _) => anything_faults(path, node),
        (KeyShape::List(item), NodeContent::List(nodes)) => list_faults(path, item, nodes, node),
        (KeyShape::Arguments { has_conditions }, NodeContent::List(nodes)) => {
            arguments::faults(path, *has_conditions, nodes, node)
        }
        (_, NodeContent::Scalar(scalar)) => {
            let message = if scalar.value == Resolved::Empty {
                Some(format!(
                    "`{path}` has no value; write {}, or remove the key",
                    allowed(shape)
                ))
            } else {
                scalar_fault(path, shape, scalar)
            };
            message
                .map(|message| Problem::new(&node.location, path, message))
                .into_iter()
                .collect()
        }
        _ => vec![Problem::new(
            &node.location,
            path,
            format!(
                "`{path}` is {}; it must be {}",
                node.found(),
                allowed(shape)
            ),
        )],
    }
}

fn list_faults(path: &str, item: &KeyShape, nodes: &[Node], list: &Node) -> Vec<Problem> {
    if nodes.is_empty() {
        return vec![Problem::new(
            &list.location,
            path,
            format!("`{path}` is an empty list; it needs at least one value"),
        )];
    }
    let mut problems: Vec<Problem> = nodes
        .iter()
        .enumerate()
        .flat_map(|(index, node)| item_faults(&format!("{path}[{index}]"), item, node))
        .collect();
    let mut seen = HashSet::new();
    for node in nodes {
        if !seen.insert(node.to_json().to_string()) {
            problems.push(Problem::new(
                &node.location,
                path,
                format!("`{path}` names {} twice", node.found()),
            ));
        }
    }
    problems
}

/// Refuses values that look absent or cannot be stored: kiln does not know which values the user's
/// own key accepts.
fn anything_faults(path: &str, node: &Node) -> Vec<Problem> {
    let refuse = |what: String| {
        vec![Problem::new(
            &node.location,
            path,
            format!("`{path}` {what}"),
        )]
    };
    match &node.content {
        NodeContent::List(items) if items.is_empty() => {
            refuse("is an empty list; give it a value, or remove the key".to_owned())
        }
        NodeContent::Map(entries) if entries.is_empty() => {
            refuse("is an empty map; give it a key, or remove it".to_owned())
        }
        NodeContent::List(items) => {
            let each = items
                .iter()
                .enumerate()
                .map(|(index, item)| (format!("{path}[{index}]"), item));
            each.flat_map(|(path, item)| item_faults(&path, &KeyShape::Anything, item))
                .collect()
        }
        NodeContent::Map(entries) => {
            let bad = entries.iter().find(|entry| !is_own_key(&entry.key));
            let bad = bad.map(|entry| {
                refuse(format!(
                    "has the key `{}`; keys have letters, digits, `_` and `-`",
                    entry.key
                ))
            });
            let given = entries.iter().filter(|entry| !entry.value.is_null());
            let within =
                given.flat_map(|entry| anything_faults(&join(path, &entry.key), &entry.value));
            bad.into_iter().flatten().chain(within).collect()
        }
        NodeContent::Scalar(scalar) => match scalar.value {
            Resolved::Empty => refuse("has no value; write one, or remove the key".to_owned()),
            Resolved::LeadingZero => refuse(format!(
                "is {}; it must be a number or text{}, or put it in quotes",
                scalar.found(),
                number_words(scalar)
            )),
            Resolved::Integer(_) | Resolved::Float(_) if !scalar.is_exact() => refuse(format!(
                "is {}; a number must be finite, and an integer must fit in 64 bits",
                scalar.found()
            )),
            _ => Vec::new(),
        },
    }
}

/// In a list `null` is not allowed: there is no default to restore.
fn item_faults(path: &str, item: &KeyShape, node: &Node) -> Vec<Problem> {
    if node.is_null() {
        return vec![Problem::new(
            &node.location,
            path,
            format!("`{path}` is {}; it must be {}", node.found(), allowed(item)),
        )];
    }
    fault(path, item, node)
}

/// Returns the error of a scalar, in one sentence.
fn scalar_fault(path: &str, shape: &KeyShape, scalar: &Scalar) -> Option<String> {
    if scalar.value == Resolved::Null {
        return None;
    }
    if future::value(path, &scalar.text) {
        let instead = allowed(shape);
        return Some(format!(
            "`{path}: {}` is not there yet in kiln {}; use {instead}",
            scalar.text,
            env!("CARGO_PKG_VERSION")
        ));
    }
    if let KeyShape::Any(shapes) = shape {
        return any_fault(path, shape, shapes, scalar);
    }
    if let ("kiln", KeyShape::Integer { max, .. }, Resolved::Integer(format)) =
        (path, shape, &scalar.value)
        && *format > *max
    {
        return Some(newer_format(*format, *max));
    }
    let hint = synonym_or(path, scalar, hint(shape, scalar)?);
    Some(format!(
        "`{path}` is {}; it must be {}{hint}",
        scalar.found(),
        allowed(shape)
    ))
}

/// The hint to the value that another tool's word stands for, else the given hint, else that to a
/// misspelt word of another tool.
fn synonym_or(path: &str, scalar: &Scalar, hint: String) -> String {
    synonyms::value(path, &scalar.text)
        .or_else(|| {
            let near = || synonyms::near_value(path, &scalar.text);
            hint.is_empty().then(near).flatten()
        })
        .map(|value| format!("; did you mean `{value}`?"))
        .unwrap_or(hint)
}

fn newer_format(found: i128, newest: i128) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "`kiln` is `{found}`, a newer format than this kiln ({version}) reads, which is \
         `{newest}`; update kiln, or write the file in format {newest}"
    )
}

fn any_fault(path: &str, shape: &KeyShape, shapes: &[KeyShape], scalar: &Scalar) -> Option<String> {
    let is_number = matches!(
        scalar.value,
        Resolved::Integer(_) | Resolved::Float(_) | Resolved::LeadingZero
    );
    let takes_number =
        |shape: &KeyShape| matches!(shape, KeyShape::Integer { .. } | KeyShape::Number(_));
    if let Some(number) = shapes.iter().find(|shape| is_number && takes_number(shape)) {
        let hint = hint(number, scalar)?;
        return Some(format!(
            "`{path}` is {}; it must be {}{hint}",
            scalar.found(),
            allowed(shape)
        ));
    }
    let hints: Option<Vec<String>> = shapes.iter().map(|shape| hint(shape, scalar)).collect();
    let best = hints?
        .into_iter()
        .find(|hint| !hint.is_empty())
        .unwrap_or_default();
    let best = synonym_or(path, scalar, best);
    Some(format!(
        "`{path}` is {}; it must be {}{best}",
        scalar.found(),
        allowed(shape)
    ))
}

/// Returns `None` if the scalar is valid, else a hint: `; write …`, or an empty text.
fn hint(shape: &KeyShape, scalar: &Scalar) -> Option<String> {
    match shape {
        KeyShape::Integer { min, max } => integer_hint(*min, *max, scalar),
        KeyShape::Number(range) => number_hint(*range, scalar),
        KeyShape::Bool => bool_hint(scalar),
        KeyShape::Choice(words) => choice_hint(words, scalar),
        KeyShape::Text(pattern) => match scalar.as_text() {
            Some("") => Some(String::new()),
            Some(text) => pattern
                .is_some_and(|pattern| !pattern.holds(text))
                .then(String::new),
            None => Some(format!("; put it in quotes: `\"{}\"`", scalar.text)),
        },
        KeyShape::TimeSpan => time_hint(scalar),
        KeyShape::ByteSize => size_hint(scalar),
        KeyShape::Free | KeyShape::Anything => None,
        KeyShape::Scalar { .. } => match scalar.value {
            Resolved::LeadingZero => Some(format!("{}, or put it in quotes", number_words(scalar))),
            Resolved::Integer(_) | Resolved::Float(_) if !scalar.is_exact() => {
                Some("; a number must be finite, and an integer must fit in 64 bits".to_owned())
            }
            _ => None,
        },
        KeyShape::Arguments { .. } => Some(arguments::hint(scalar)),
        KeyShape::List(item) => Some(if hint(item, scalar).is_none() {
            format!("; write `[{}]`", scalar.text)
        } else {
            String::new()
        }),
        KeyShape::Map(_) | KeyShape::Tagged(_) | KeyShape::Named(_) | KeyShape::Any(_) => {
            Some(String::new())
        }
    }
}

fn integer_hint(min: i128, max: i128, scalar: &Scalar) -> Option<String> {
    match scalar.value {
        Resolved::Integer(value) if (min..=max).contains(&value) => None,
        Resolved::Float(value)
            if value.is_finite() && value.fract() == 0.0 && value.abs() < 1e15 =>
        {
            Some(format!("; write `{value:.0}`"))
        }
        _ => Some(number_words(scalar)),
    }
}

fn number_hint(range: Range, scalar: &Scalar) -> Option<String> {
    let value = match scalar.value {
        Resolved::Integer(value) => value as f64,
        Resolved::Float(value) => value,
        _ => return Some(number_words(scalar)),
    };
    let inside = range.min.is_none_or(|min| value >= min)
        && range.max.is_none_or(|max| value <= max)
        && range.above.is_none_or(|above| value > above);
    (!inside || !value.is_finite()).then(String::new)
}

/// Returns a hint for numbers that YAML reads as text.
fn number_words(scalar: &Scalar) -> String {
    if scalar.value == Resolved::LeadingZero {
        return format!(
            "; a leading zero may mean octal, write `{}`",
            scalar.text.trim_start_matches(['+', '0'])
        );
    }
    let plain = Scalar::plain(&scalar.text.replace(['_', ','], ""));
    let is_number = matches!(plain.value, Resolved::Integer(_) | Resolved::Float(_));
    match (scalar.quoted, scalar.value) {
        (true, _) if is_number => format!(
            "; in quotes it is text, write `{}` without them",
            plain.text
        ),
        (false, Resolved::Text) if is_number => {
            format!("; it reads as text, write `{}`", plain.text)
        }
        _ => String::new(),
    }
}

fn bool_hint(scalar: &Scalar) -> Option<String> {
    if matches!(scalar.value, Resolved::Bool(_)) {
        return None;
    }
    let word = match scalar.text.to_lowercase().as_str() {
        "yes" | "on" | "y" | "1" | "true" => "true",
        "no" | "off" | "n" | "0" | "false" => "false",
        _ => return Some(String::new()),
    };
    Some(if scalar.quoted {
        format!("; in quotes it is text, write `{word}`")
    } else {
        format!("; write `{word}`")
    })
}

fn choice_hint(words: &[String], scalar: &Scalar) -> Option<String> {
    match scalar.as_text() {
        Some(text) if words.iter().any(|word| word == text) => None,
        Some(text) => Some(did_you_mean(text, words.iter().map(String::as_str))),
        None => Some(String::new()),
    }
}

fn time_hint(scalar: &Scalar) -> Option<String> {
    match scalar.value {
        Resolved::Text => TimeSpan::parse(&scalar.text).err().map(|_| String::new()),
        Resolved::Integer(value) if value > 0 => {
            Some(format!("; add its unit, `{value}s` or `{value}ms`"))
        }
        _ => Some(String::new()),
    }
}

fn size_hint(scalar: &Scalar) -> Option<String> {
    match scalar.value {
        Resolved::Text => ByteSize::parse(&scalar.text).err().map(|_| String::new()),
        Resolved::Integer(value) if value > 0 => {
            Some(format!("; add its unit, `{value}GiB` or `{value}MiB`"))
        }
        _ => Some(String::new()),
    }
}

/// Describes the allowed values of a key, in words.
pub(super) fn allowed(shape: &KeyShape) -> String {
    match shape {
        KeyShape::Map(fields) => format!(
            "a map of keys: {}",
            listed(&fields.names().collect::<Vec<_>>(), "and")
        ),
        KeyShape::Tagged(tagged) => {
            format!("a map of keys, of kind {}", listed(&tagged.names(), "or"))
        }
        KeyShape::Integer { min, max } if min == max => format!("`{min}`"),
        KeyShape::Integer { min, max } => format!("an integer from {min} to {max}"),
        KeyShape::Number(range) => number_allowed(*range),
        KeyShape::Bool => "`true` or `false`".to_owned(),
        KeyShape::Text(None) => "text".to_owned(),
        KeyShape::Text(Some(pattern)) => pattern.allowed().to_owned(),
        KeyShape::TimeSpan => "a duration such as `500ms`, `2s`, `30m` or `1h 30m`".to_owned(),
        KeyShape::ByteSize => "an amount of memory such as `512MiB`, `1.5GiB` or `8GB`".to_owned(),
        KeyShape::Choice(words) => listed(words, "or"),
        KeyShape::List(item) => format!("a list in which each item is {}", allowed(item)),
        KeyShape::Any(shapes) => shapes.iter().map(allowed).collect::<Vec<_>>().join(", or "),
        KeyShape::Scalar { is_nullable: true } => {
            "a number, text, `true`, `false` or `null`".to_owned()
        }
        KeyShape::Scalar { .. } => "a number, text, `true` or `false`".to_owned(),
        KeyShape::Arguments {
            has_conditions: true,
        } => {
            "a list of a program and its arguments: texts, and `{when: NAME, then: […]}`".to_owned()
        }
        KeyShape::Arguments { .. } => {
            "a list of a program and its arguments, each of them text".to_owned()
        }
        KeyShape::Named(item) => match &**item {
            KeyShape::Map(_) => "a map of names, each with a map of keys".to_owned(),
            item => format!("a map of names, each with {}", allowed(item)),
        },
        KeyShape::Free | KeyShape::Anything => "a value".to_owned(),
    }
}

fn number_allowed(range: Range) -> String {
    match (range.min, range.above, range.max) {
        (Some(min), _, Some(max)) => format!("a number from {min} to {max}"),
        (Some(min), _, None) => format!("a number of at least {min}"),
        (None, Some(above), Some(max)) => format!("a number above {above} and at most {max}"),
        (None, Some(above), None) => format!("a number above {above}"),
        (None, None, Some(max)) => format!("a number of at most {max}"),
        (None, None, None) => "a number".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{keys, problem::Location};

    fn message(key: &str, scalar: Scalar) -> Option<String> {
        let kinds = |path: &str| {
            vec![
                if path == "model" { "gpt" } else { "adamw" }.to_owned(),
                "generated".to_owned(),
            ]
        };
        let keys::KeyLookup::Shapes(shapes) = keys::find(key, &kinds) else {
            panic!("{key}")
        };
        let node = Node {
            content: NodeContent::Scalar(scalar),
            location: Location::named("x"),
        };
        fault(key, &shapes[0], &node)
            .into_iter()
            .next()
            .map(|problem| problem.message)
    }

    #[test]
    fn each_surprise_of_yaml_says_what_to_write() {
        let cases = [
            ("train.batch_size", "1e3", "write `1000`"),
            ("train.batch_size", "8.0", "write `8`"),
            (
                "train.batch_size",
                "08",
                "a leading zero may mean octal, write `8`",
            ),
            (
                "train.batch_size",
                "1_000",
                "it reads as text, write `1000`",
            ),
            (
                "train.batch_size",
                "0",
                "it must be an integer from 1 to 1048576",
            ),
            (
                "model.tie_head",
                "no",
                "it must be `true` or `false`; write `false`",
            ),
            ("model.tie_head", "on", "write `true`"),
            (
                "model.dropout",
                ".nan",
                "it must be a number from 0 to 0.95",
            ),
            (
                "train.optimizer.learning_rate",
                ".inf",
                "it must be a number above 0",
            ),
            (
                "train.optimizer.learning_rate",
                "0",
                "it must be a number above 0",
            ),
            ("train.precision", "f23", "did you mean `f32`?"),
            ("train.precision", "f16", "is not there yet"),
            (
                "measure.sample_interval",
                "500",
                "add its unit, `500s` or `500ms`",
            ),
            ("name", "2024", "put it in quotes: `\"2024\"`"),
            ("name", "a/b", "letters, digits"),
            ("name", "latest", "`latest` stands for the newest run"),
            (
                "data.num_workers",
                "-1",
                "an integer from 0 to 1024, or `auto`",
            ),
            ("data.num_workers", "atuo", "did you mean `auto`?"),
            ("run.devices", "gpu", "`auto`, `cpu` or `all`, or a list"),
            ("train.clip_norm", "", "has no value"),
        ];
        for (key, text, part) in cases {
            let found = message(key, Scalar::plain(text)).unwrap_or_default();
            assert!(found.contains(part), "{key}: {text} -> {found}");
        }
        assert!(
            message("train.batch_size", Scalar::quoted("8"))
                .unwrap()
                .contains("in quotes it is text, write `8` without them")
        );
        for (key, text) in [
            ("train.batch_size", "0x10"),
            ("train.optimizer.learning_rate", "1"),
            ("name", "no"),
            ("train.clip_norm", "~"),
        ] {
            assert_eq!(message(key, Scalar::plain(text)), None, "{key}");
        }
    }
}
