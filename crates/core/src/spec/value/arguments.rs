//! Checks a program and its arguments.

use super::{allowed, fault};
use crate::spec::{
    node::{Node, NodeContent},
    problem::Problem,
    scalar::Scalar,
    shapes::{KeyShape, join},
    suggest::{did_you_mean, listed},
};

/// The keys of a condition.
const CONDITION: [&str; 2] = ["when", "then"];

/// Returns the faults of the entries of a list of arguments. Unlike other lists, its entries may
/// repeat.
pub(super) fn faults(
    path: &str,
    has_conditions: bool,
    nodes: &[Node],
    list: &Node,
) -> Vec<Problem> {
    if nodes.is_empty() {
        let instead = match path.ends_with(".then") {
            true => "list the arguments that are left out with the value, such as `[--flag]`",
            false => "its first entry is the program",
        };
        let message = format!("`{path}` is an empty list; {instead}");
        return vec![Problem::new(&list.location, path, message)];
    }
    let entry = |(index, node): (usize, &Node)| {
        let path = format!("{path}[{index}]");
        match &node.content {
            NodeContent::Map(_) if has_conditions => condition(&path, node),
            _ => text(&path, node),
        }
    };
    nodes.iter().enumerate().flat_map(entry).collect()
}

/// A program and its arguments in one text, as a shell takes them: the list to write instead.
pub(super) fn hint(scalar: &Scalar) -> String {
    let is_quoted_for_a_shell = scalar.text.contains(['"', '\'', '\\']);
    let words: Vec<String> = scalar.text.split_whitespace().map(item).collect();
    match words.is_empty() || is_quoted_for_a_shell {
        true => "; write a list with the program first, and one entry per argument".to_owned(),
        false => format!("; write `[{}]`", words.join(", ")),
    }
}

/// A word as an item of a list of texts in YAML, quoted where it has to be.
fn item(word: &str) -> String {
    let is_plain = word
        .chars()
        .all(|c| c.is_alphanumeric() || "._-/=+$".contains(c));
    match is_plain && word != "-" && Scalar::plain(word).as_text().is_some() {
        true => word.to_owned(),
        false => format!("\"{word}\""),
    }
}

/// An argument may be empty, as other texts may not.
fn text(path: &str, node: &Node) -> Vec<Problem> {
    if node.text() == Some("") {
        return Vec::new();
    }
    if node.is_null() {
        let message = format!(
            "`{path}` is {}; it must be text; put it in quotes, or remove it",
            node.found()
        );
        return vec![Problem::new(&node.location, path, message)];
    }
    fault(path, &KeyShape::Text(None), node)
}

fn condition(path: &str, node: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    for entry in node.entries() {
        let full = join(path, &entry.key);
        match entry.key.as_str() {
            "when" => problems.extend(fault(&full, &KeyShape::Text(None), &entry.value)),
            "then" => match &entry.value.content {
                NodeContent::List(items) => {
                    problems.extend(faults(&full, false, items, &entry.value))
                }
                _ => {
                    let shape = KeyShape::List(Box::new(KeyShape::Text(None)));
                    let message = format!(
                        "`{full}` is {}; it must be {}",
                        entry.value.found(),
                        allowed(&shape)
                    );
                    problems.push(Problem::new(&entry.value.location, full, message));
                }
            },
            other => {
                let message = format!(
                    "unknown key `{full}`{}; a condition has the keys {}",
                    did_you_mean(other, CONDITION),
                    listed(&CONDITION, "and")
                );
                problems.push(Problem::new(&entry.key_location, full, message));
            }
        }
    }
    for key in CONDITION {
        if node.get(key).is_none_or(Node::is_null) && problems.is_empty() {
            let full = join(path, key);
            let message =
                format!("`{full}` is missing; a condition is `{{when: NAME, then: [\"--flag\"]}}`");
            problems.push(Problem::new(&node.location, full, message));
        }
    }
    problems
}
