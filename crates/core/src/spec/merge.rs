//! Merges layers: figment decides which layer's value wins, and the trees of the layers record
//! where each value is written.
//!
//! figment merges maps key by key and replaces lists as a whole; the other
//! [rules](super::merge_rules) (`null`, `kind`, `steps` and `epochs`) remove replaced keys from the
//! lower layers first. figment sorts keys, so their order is restored from the trees.

use figment::{
    Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};

use super::{
    axes::{AXES, DERIVED, derived_keys, given_keys, varying_sections},
    keys,
    merge_rules::{LayerAction, changes},
    node::{Node, NodeContent, NodeEntry},
    problem::Location,
    shapes::{KeyField, KeyShape, MapKeys},
};

/// One layer: a file, a variable, a `--set`, or the defaults.
#[derive(Clone, Debug)]
pub(super) struct SpecLayer {
    pub(super) tree: Node,
    /// The single dotted key of a variable or `--set`.
    pub(super) overrides: Option<String>,
}

/// A layer by its index, which is its name in figment.
struct Provided<'a>(usize, &'a SpecLayer);

impl Provider for Provided<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.0.to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        match Value::serialize(self.1.tree.to_json())? {
            Value::Dict(_, dict) => Ok(Profile::Default.collect(dict)),
            _ => Ok(Profile::Default.collect(Dict::new())),
        }
    }
}

/// Merges the layers, lowest first, into one tree in which every part records where it is written.
pub(super) fn merged(layers: &[SpecLayer]) -> Node {
    let figment = layers
        .iter()
        .enumerate()
        .fold(Figment::new(), |figment, (index, layer)| {
            figment.merge(Provided(index, layer))
        });
    let dict = figment
        .data()
        .ok()
        .and_then(|mut profiles| profiles.remove(&Profile::Default))
        .unwrap_or_default();
    Rebuild {
        figment: &figment,
        layers,
    }
    .map(&dict, &mut Vec::new())
}

struct Rebuild<'a> {
    figment: &'a Figment,
    layers: &'a [SpecLayer],
}

impl<'a> Rebuild<'a> {
    fn map(&self, dict: &'a Dict, path: &mut Vec<&'a str>) -> Node {
        let mut entries: Vec<NodeEntry> = Vec::new();
        let maps: Vec<&'a Node> = self
            .layers
            .iter()
            .filter_map(|layer| layer.tree.get_path(path))
            .filter(|node| node.is_map())
            .collect();
        for entry in maps.iter().flat_map(|map| map.entries()) {
            if let Some(known) = entries.iter_mut().find(|known| known.key == entry.key) {
                known.key_location = entry.key_location.clone();
            } else if let Some(value) = dict.get(&entry.key) {
                path.push(&entry.key);
                let value = self.value(value, path);
                path.pop();
                entries.push(NodeEntry {
                    key: entry.key.clone(),
                    key_location: entry.key_location.clone(),
                    value,
                });
            }
        }
        let location = maps
            .last()
            .map_or_else(|| Location::named(""), |map| map.location.clone());
        Node {
            content: NodeContent::Map(entries),
            location,
        }
    }

    fn value(&self, value: &'a Value, path: &mut Vec<&'a str>) -> Node {
        if let Value::Dict(_, dict) = value {
            return self.map(dict, path);
        }
        let metadata = self.figment.get_metadata(value.tag());
        let index = metadata.and_then(|metadata| metadata.name.parse::<usize>().ok());
        index
            .and_then(|index| self.layers.get(index)?.tree.get_path(path))
            .cloned()
            .unwrap_or_else(|| Node::empty_map(Location::named("")))
    }
}

/// Adds one more layer on top: removes the keys that it replaces from the lower layers, which are
/// merged in `beneath`.
pub(super) fn lay(layers: &mut Vec<SpecLayer>, beneath: &Node, mut layer: SpecLayer) {
    for key in overridden_axes(beneath, &layer) {
        override_axis(beneath, &key, &mut layer, layers);
    }
    displace_length(&layer, layers);
    replace_sources(&layer, layers);
    for change in changes(beneath, &layer.tree) {
        if let LayerAction::Reset(_) = change.action {
            remove_from_all(layers, &change.path);
        }
    }
    layers.push(layer);
}

/// The axes and derived keys beneath to which a layer gives a plain value, in a map too. A file may name
/// the same axis itself, or give keys of a map that the values of an axis complete.
fn overridden_axes(beneath: &Node, layer: &SpecLayer) -> Vec<String> {
    let is_overridden = |key: &&str| {
        let Some(value) = plain_value(&layer.tree, key) else {
            return false;
        };
        match &layer.overrides {
            Some(set) => key.starts_with(set.as_str()),
            None => {
                let is_own = |section: &[&str]| speaks_of(&layer.tree, section, key);
                !value.is_map() && !varying_sections().any(is_own)
            }
        }
    };
    let keys = varying_sections().flat_map(|section| given_keys(beneath, section));
    keys.filter(is_overridden).map(str::to_owned).collect()
}

/// The value that a layer gives to a key outside of the sweep; `null` where it takes a map around the key
/// away.
fn plain_value<'a>(tree: &'a Node, key: &str) -> Option<&'a Node> {
    let mut node = tree;
    for name in key.split('.') {
        if node.is_null() {
            break;
        }
        node = node.get(name)?;
    }
    Some(node)
}

/// Whether a layer itself gives a key of a section, or takes the key or the whole section away.
fn speaks_of(tree: &Node, section: &[&str], key: &str) -> bool {
    let is_away = |depth| tree.get_path(&section[..depth]).is_some_and(Node::is_null);
    (1..=section.len()).any(is_away)
        || tree
            .get_path(section)
            .is_some_and(|node| node.entry(key).is_some())
}

/// Removes the axis beneath that a plain length of training takes the place of.
fn displace_length(layer: &SpecLayer, layers: &mut [SpecLayer]) {
    for (length, other) in [("steps", "train.epochs"), ("epochs", "train.steps")] {
        let given = layer.tree.get_path(&["train", length]);
        if given.is_none_or(Node::is_null) {
            continue;
        }
        for section in varying_sections() {
            remove_from_all(layers, &[section, &[other]].concat());
        }
    }
}

/// Applies a plain value to a swept key: the axis stays, with this one value; `null` removes it. Of a
/// derived key the expression goes, and an axis takes its place.
fn override_axis(beneath: &Node, key: &str, layer: &mut SpecLayer, layers: &mut [SpecLayer]) {
    let Some(value) = plain_value(&layer.tree, key).cloned() else {
        return;
    };
    let swept = |section: &[&str]| beneath.get_path(&[section, &[key]].concat()).is_some();
    let section = match AXES.into_iter().find(|section| swept(section)) {
        Some(section) if !section.contains(&"zip") => section,
        // A list of `zip` becomes independent once it has one value.
        Some(_) => AXES[0],
        None if swept(DERIVED) && has_only_included_points(beneath) => {
            return remove_from_all(layers, &[DERIVED, &[key]].concat());
        }
        None if swept(DERIVED) => AXES[0],
        None => return,
    };
    remove_from_all(layers, &["sweep", "zip", key]);
    remove_from_all(layers, &[DERIVED, &[key]].concat());
    let location = value.location.clone();
    let axis = if value.is_null() {
        value
    } else {
        Node {
            content: NodeContent::List(vec![value]),
            location,
        }
    };
    layer.tree.set_path(&[section, &[key]].concat(), axis);
}

/// Whether all points are those of `include`: an axis would add one.
fn has_only_included_points(tree: &Node) -> bool {
    let has_axes = AXES
        .into_iter()
        .any(|section| !given_keys(tree, section).is_empty());
    let included = tree.get_path(&["sweep", "include"]).map(Node::items);
    !has_axes && !included.unwrap_or_default().is_empty()
}

fn remove_from_all(layers: &mut [SpecLayer], path: &[&str]) {
    for layer in layers {
        layer.tree.remove_path(path);
    }
}

/// A key is listed or derived: the axes of a layer replace the expressions beneath for the same
/// keys, and its expressions the axes.
fn replace_sources(layer: &SpecLayer, layers: &mut [SpecLayer]) {
    for section in AXES {
        for key in given_keys(&layer.tree, section) {
            remove_from_all(layers, &[DERIVED, &[key]].concat());
        }
        for key in derived_keys(&layer.tree) {
            remove_from_all(layers, &[section, &[key]].concat());
        }
    }
}

/// Removes the keys whose value is `null`, after they have been applied. `null` stays where it is a
/// value of its own: among the values of a command, which the model of the layers is if
/// `has_command`.
pub(super) fn strip_nulls(node: &mut Node, has_command: bool) {
    let values = node
        .get_path(&VALUES)
        .filter(|values| has_command && values.is_map())
        .cloned();
    strip(node);
    if let Some(values) = values {
        node.set_path(&VALUES, values);
    }
}

/// The values of a command.
const VALUES: [&str; 2] = ["model", "values"];

fn strip(node: &mut Node) {
    let NodeContent::Map(entries) = &mut node.content else {
        return;
    };
    entries.retain(|entry| !entry.value.is_null());
    for entry in entries {
        strip(&mut entry.value);
    }
}

/// Sorts the keys of every map into the order of the types; axes keep the order of the file.
pub(super) fn order_keys(node: &mut Node) {
    order_fields(keys::table(), node);
}

fn order_fields(fields: &MapKeys, node: &mut Node) {
    let NodeContent::Map(entries) = &mut node.content else {
        return;
    };
    // `kind` is not a field and comes first; axes and the keys of a user's own model are not fields
    // either and come last, as written.
    entries.sort_by_key(|entry| {
        (
            entry.key != "kind",
            fields
                .names()
                .position(|name| name == entry.key)
                .unwrap_or(usize::MAX),
        )
    });
    for entry in entries {
        match fields.get(&entry.key).map(|field| &field.shape) {
            Some(KeyShape::Map(fields)) => order_fields(fields, &mut entry.value),
            Some(KeyShape::Tagged(tagged)) => {
                let kind = entry
                    .value
                    .get("kind")
                    .and_then(Node::text)
                    .map(str::to_owned);
                if let Some(fields) = kind.and_then(|kind| tagged.kind(&kind)) {
                    order_fields(fields, &mut entry.value);
                }
            }
            _ => {}
        }
    }
}

/// The defaults of all optional keys, for the kinds in use.
pub(super) fn defaults(user: &Node) -> Node {
    let mut defaults = default_fields(keys::table(), Some(user), &Location::named("default"));
    // A text has one tokenizer.
    if user.get_path(&["data", "tokenizer_file"]).is_some() {
        defaults.remove_path(&["data", "tokenizer"]);
    }
    defaults
}

fn default_fields(fields: &MapKeys, user: Option<&Node>, location: &Location) -> Node {
    let entry = |field: &KeyField| {
        let value = default_field(field, user.and_then(|node| node.get(&field.name)), location)?;
        Some(NodeEntry {
            key: field.name.clone(),
            key_location: location.clone(),
            value,
        })
    };
    Node {
        content: NodeContent::Map(fields.known.iter().filter_map(entry).collect()),
        location: location.clone(),
    }
}

/// The default of one key; `None` for a key without a default.
pub(super) fn default_field(
    field: &KeyField,
    user: Option<&Node>,
    location: &Location,
) -> Option<Node> {
    match &field.shape {
        KeyShape::Map(fields) if field.default.is_some() || user.is_some() => {
            Some(default_fields(fields, user, location))
        }
        KeyShape::Map(_) => None,
        KeyShape::Tagged(tagged) => {
            let kind = user
                .and_then(|node| node.get("kind"))
                .and_then(Node::text)
                .or(field.default_kind())?;
            let mut node = default_fields(tagged.kind(kind)?, user, location);
            if let NodeContent::Map(entries) = &mut node.content {
                let value = Node::from_json(&kind.into(), location);
                entries.insert(
                    0,
                    NodeEntry {
                        key: "kind".to_owned(),
                        key_location: location.clone(),
                        value,
                    },
                );
            }
            Some(node)
        }
        _ => field
            .default
            .as_ref()
            .map(|value| Node::from_json(value, location)),
    }
}
