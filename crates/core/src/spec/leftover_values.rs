//! Values of a command that only a replaced expression of `sweep.derive` used. A `--set` of a derived
//! key leaves them without a use, and a value without a use is refused.

use super::{
    axes::{DERIVED, varied_keys},
    contradictions::is_unused,
    derivation::sources,
    experiment::Experiment,
    expression::Expression,
    merge::{SpecLayer, merged},
    node::Node,
};

/// How the key of such a value begins.
const VALUES: &str = "model.values.";

/// The keys that the expression uses which this layer replaces: a `--set` or a variable of a derived
/// key.
pub(super) fn replaced(layers: &[SpecLayer], layer: &SpecLayer) -> Vec<String> {
    let Some(key) = layer.overrides.as_deref() else {
        return Vec::new();
    };
    let beneath = merged(layers);
    let text = beneath
        .get_path(&[DERIVED, &[key]].concat())
        .and_then(Node::text);
    let expression = text.and_then(|text| Expression::read(text).ok());
    expression.map_or_else(Vec::new, |expression| expression.keys().to_vec())
}

/// Those of these keys that are values of a command and have no use any more. One that varies, or that
/// is given with the file and not in it, is none of them: that is a mistake to tell.
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

/// The names of the key of a value.
pub(super) fn path(key: &str) -> Vec<&str> {
    key.splitn(3, '.').collect()
}
