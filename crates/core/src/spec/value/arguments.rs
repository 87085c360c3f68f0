//! Checks a program and its arguments.

use super::{allowed, fault};
use crate::spec::{
    node::{Node, NodeContent},
    problem::Problem,
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
        let message = format!("`{path}` is an empty list; its first entry is the program");
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
