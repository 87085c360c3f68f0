//! The keys that a sweep may vary, and those that one does vary.

use super::node::Node;
use crate::kinds::command::COMMAND;

/// The keys of `run` that may be axes.
const RUN_AXES: [&str; 3] = ["run.engine", "run.devices", "run.devices_per_trial"];
pub(super) const RUN_AXES_IN_WORDS: &str =
    "`run.engine`, `run.devices` and `run.devices_per_trial`";

/// Sections that hold axes.
pub(super) const AXES: [&[&str]; 4] = [
    &["sweep", "grid"],
    &["sweep", "zip"],
    &["sweep", "search", "axes"],
    SAMPLE_AXES,
];
/// The axes of random points.
pub(super) const SAMPLE_AXES: &[&str] = &["sweep", "sample", "axes"];

/// The keys whose values follow from those of other keys.
pub(super) const DERIVED: &[&str] = &["sweep", "derive"];

/// Sections whose keys have values of their own at each point.
pub(super) fn varying_sections() -> impl Iterator<Item = &'static [&'static str]> {
    AXES.into_iter().chain([DERIVED])
}

/// The derived keys.
pub(super) fn derived_keys(tree: &Node) -> impl Iterator<Item = &str> {
    given_keys(tree, DERIVED).into_iter()
}

/// The keys of a section that have a value; `null` is none.
pub(super) fn given_keys<'a>(tree: &'a Node, section: &[&str]) -> Vec<&'a str> {
    let entries = tree.get_path(section).map(Node::entries);
    let given = entries.unwrap_or_default().iter();
    given
        .filter(|entry| !entry.value.is_null())
        .map(|entry| entry.key.as_str())
        .collect()
}

/// The keys that vary: axes, derived keys, and the keys of the search.
pub(super) fn axis_keys(tree: &Node) -> Vec<&str> {
    [AXES[0], AXES[1], SAMPLE_AXES]
        .into_iter()
        .flat_map(|section| given_keys(tree, section))
        .chain(derived_keys(tree))
        .chain(searched_keys(tree))
        .collect()
}

/// The keys for which some point gives its own value.
pub(super) fn varied_keys(tree: &Node) -> Vec<&str> {
    let points = tree
        .get_path(&["sweep", "include"])
        .map(Node::items)
        .unwrap_or_default();
    axis_keys(tree)
        .into_iter()
        .chain(
            points
                .iter()
                .flat_map(Node::entries)
                .map(|entry| entry.key.as_str()),
        )
        .collect()
}

/// Whether a key may be an axis.
pub(crate) fn may_vary(key: &str) -> bool {
    ["model.", "data.", "train."]
        .iter()
        .any(|section| key.starts_with(section))
        || RUN_AXES.contains(&key)
}

/// Returns the dotted keys that the search of a merged tree varies.
fn searched_keys(tree: &Node) -> Vec<&str> {
    let Some(search) = tree.get_path(&["sweep", "search"]) else {
        return Vec::new();
    };
    let is_command = tree
        .get_path(&["model", "kind"])
        .and_then(Node::text)
        .is_some_and(|kind| kind == COMMAND);
    match search.get("kind").and_then(Node::text) {
        _ if is_command => vec!["model.values"],
        Some("largest-batch") => vec!["train.batch_size"],
        Some("best-throughput-batch") => vec!["train.batch_size", "train.grad_accumulation"],
        Some("workers") => vec!["data.num_workers"],
        _ => {
            let axes = search.get("axes").map(Node::entries).unwrap_or_default();
            axes.iter()
                .map(|entry| entry.key.as_str())
                .chain(["train.steps", "train.epochs"])
                .collect()
        }
    }
}
