//! A `--set` of a key within the maps of an axis: where a value of the axis gives the key too, the `--set`
//! would change nothing.

use super::{
    axes::{AXES, given_keys},
    merge::SpecLayer,
    node::Node,
    problem::Problem,
};

/// Refuses a `--set` or a variable whose key the values of an axis `beneath` give.
pub(super) fn check(beneath: &Node, layer: &SpecLayer) -> Option<Problem> {
    let key = layer.overrides.as_deref()?;
    let names: Vec<&str> = key.split('.').collect();
    let location = &layer.tree.get_path(&names)?.location;
    let hides = |section: &[&str], axis: &str| {
        let within = key.strip_prefix(axis)?.strip_prefix('.')?;
        let within: Vec<&str> = within.split('.').collect();
        let values = beneath.get_path(&[section, &[axis]].concat())?.items();
        let hidden = values
            .iter()
            .filter(|value| value.get_path(&within).is_some());
        Some(hidden.count()).filter(|hidden| *hidden > 0)
    };
    AXES.into_iter().find_map(|section| {
        given_keys(beneath, section).into_iter().find_map(|axis| {
            let hidden = hides(section, axis)?;
            Some(Problem::new(
                location,
                key,
                format!(
                    "`{key}` is given by {hidden} of the values of the axis `{axis}`, where this one \
                     would not count; change the values of the axis, or set `{axis}` as a whole"
                ),
            ))
        })
    })
}
