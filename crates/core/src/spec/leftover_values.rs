//! Values of a command that only a replaced expression of `sweep.derive` used. A `--set` of a derived
//! key leaves them without a use, and a value without a use is refused.

use super::{
    axes::{DERIVED, varied_keys},
    contradictions::is_unused,
    derivation::sources,
    experiment::Experiment,
    expression::Expression,
    merge::SpecLayer,
    node::Node,
};

/// How the key of such a value begins.
const VALUES: &str = "model.values.";

/// The keys in the expression that this layer replaces, where it is a `--set` or a variable of a
/// derived key; `layers` are those below it.
pub(super) fn replaced(layers: &[SpecLayer], layer: &SpecLayer) -> Vec<String> {
    let Some(key) = layer.overrides.as_deref() else {
        return Vec::new();
    };
    let path = [DERIVED, &[key]].concat();
    let derived = layers
        .iter()
        .rev()
        .find_map(|beneath| beneath.tree.get_path(&path));
    let text = derived.and_then(Node::text);
    let expression = text.and_then(|text| Expression::read(text).ok());
    expression.map_or_else(Vec::new, |expression| expression.keys().to_vec())
}

/// The keys among these that are values of a command and no longer have a use. A key that varies is not
/// one of them, nor is one that a `--set` or a variable gives: that is a mistake, which is refused.
pub(super) fn of(replaced: &[String], experiment: &Experiment, user: &Node) -> Vec<String> {
    let Some(command) = experiment.model.command() else {
        return Vec::new();
    };
    let (sources, varied) = (sources(&experiment.sweep.derive), varied_keys(user));
    let is_in_file = |key: &str| {
        let value = user.get_path(&path(key));
        value.is_some_and(|value| value.location.position.is_some())
    };
    let is_left = |key: &&String| {
        let name = key.strip_prefix(VALUES);
        name.is_some_and(|name| is_unused(command, name, &sources))
            && is_in_file(key)
            && !varied.contains(&key.as_str())
    };
    let mut left: Vec<String> = replaced.iter().filter(is_left).cloned().collect();
    left.sort();
    left.dedup();
    left
}

/// The path of the key of a value.
pub(super) fn path(key: &str) -> Vec<&str> {
    key.splitn(3, '.').collect()
}
