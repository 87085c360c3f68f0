//! A `--set` of a key within a map that an axis replaces: at points where a value of the axis gives the key,
//! or gives the map another kind, the `--set` would change nothing.

use super::{
    axes::{AXES, given_keys},
    keys,
    merge::SpecLayer,
    node::Node,
    problem::Problem,
    shapes::KeyShape,
};

/// The map that an axis replaces, and a key within it.
struct Within<'a> {
    map: &'a str,
    /// The names of the key in the map.
    names: Vec<&'a str>,
    /// Whether the values of the axis are kinds.
    of_kinds: bool,
}

impl<'a> Within<'a> {
    fn of(key: &'a str, axis: &'a str) -> Option<Self> {
        let (map, of_kinds) = match axis.strip_suffix(".kind") {
            Some(map) => (map, true),
            None => (axis, false),
        };
        let names = key.strip_prefix(map)?.strip_prefix('.')?;
        (key != axis).then(|| Self {
            map,
            names: names.split('.').collect(),
            of_kinds,
        })
    }

    /// Whether a value of the axis hides what the file has at the key. A map of another kind than
    /// `beneath` begins with the defaults of its own; where it lacks the key, nothing is missed.
    fn is_hidden_by(&self, value: &Node, beneath: Option<&str>) -> bool {
        let kind = match self.of_kinds {
            true => value.text(),
            false => value.get("kind").and_then(Node::text),
        };
        let is_given = !self.of_kinds && value.get_path(&self.names).is_some();
        is_given || kind.is_some_and(|kind| beneath != Some(kind) && self.is_key_of(kind))
    }

    fn is_key_of(&self, kind: &str) -> bool {
        let field = keys::field(self.map).map(|field| &field.shape);
        let Some(KeyShape::Tagged(tagged)) = field else {
            return false;
        };
        let fields = tagged.kind(kind);
        fields.is_some_and(|fields| fields.get(self.names[0]).is_some())
    }

    /// The kind of the map in the file, or by default.
    fn kind_beneath<'t>(&self, tree: &'t Node) -> Option<&'t str> {
        let names: Vec<&str> = self.map.split('.').collect();
        let given = tree.get_path(&names).and_then(|map| map.get("kind"));
        let default = || keys::field(self.map)?.default_kind();
        given.and_then(Node::text).or_else(default)
    }
}

/// Refuses a `--set` or a variable whose key an axis `beneath` hides at some points.
pub(super) fn check(beneath: &Node, layer: &SpecLayer) -> Option<Problem> {
    let key = layer.overrides.as_deref()?;
    let names: Vec<&str> = key.split('.').collect();
    let location = &layer.tree.get_path(&names)?.location;
    let is_axis = |section: &[&str]| given_keys(beneath, section).contains(&key);
    if AXES.into_iter().any(is_axis) {
        return None;
    }
    let hiding = |section: &[&str], axis: &str| {
        let within = Within::of(key, axis)?;
        let kind = within.kind_beneath(beneath);
        let values = beneath.get_path(&[section, &[axis]].concat())?.items();
        let hidden = values
            .iter()
            .filter(|value| within.is_hidden_by(value, kind));
        Some(hidden.count()).filter(|hidden| *hidden > 0)
    };
    AXES.into_iter().find_map(|section| {
        given_keys(beneath, section).into_iter().find_map(|axis| {
            let hidden = hiding(section, axis)?;
            Some(Problem::new(
                location,
                key,
                format!(
                    "`{key}` would not count at {hidden} of the values of the axis `{axis}`, which \
                     replace it; `--set 'sweep.grid.{key}=[…]'` gives it to every point"
                ),
            ))
        })
    })
}
