//! A YAML tree that records where each of its parts is written, and keeps the order of its keys.

use serde_json::Value;

use super::{
    problem::Location,
    scalar::{Resolved, Scalar},
};

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) content: NodeContent,
    pub(super) location: Location,
}

#[derive(Clone, Debug)]
pub(super) enum NodeContent {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<NodeEntry>),
}

#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    pub(super) key: String,
    pub(super) key_location: Location,
    pub(super) value: Node,
}

/// The size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeSize {
    pub(super) nodes: usize,
    pub(super) depth: usize,
    /// Bytes of its scalars and keys.
    pub(super) text_bytes: u64,
}

impl Node {
    pub(super) fn empty_map(location: Location) -> Self {
        Self {
            content: NodeContent::Map(Vec::new()),
            location,
        }
    }

    /// Makes a tree whose parts all have the same place: for defaults and for values from the
    /// command line.
    pub(super) fn from_json(value: &Value, location: &Location) -> Self {
        let content = match value {
            Value::Array(items) => NodeContent::List(
                items
                    .iter()
                    .map(|item| Self::from_json(item, location))
                    .collect(),
            ),
            Value::Object(map) => NodeContent::Map(
                map.iter()
                    .map(|(key, value)| NodeEntry {
                        key: key.clone(),
                        key_location: location.clone(),
                        value: Self::from_json(value, location),
                    })
                    .collect(),
            ),
            scalar => NodeContent::Scalar(Scalar::from_json(scalar)),
        };
        Self {
            content,
            location: location.clone(),
        }
    }

    /// The value as JSON, keys in order.
    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            NodeContent::Scalar(scalar) => scalar.to_json(),
            NodeContent::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            NodeContent::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_json()))
                    .collect(),
            ),
        }
    }

    pub(super) fn entries(&self) -> &[NodeEntry] {
        match &self.content {
            NodeContent::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.content {
            NodeContent::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn entry(&self, key: &str) -> Option<&NodeEntry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub(super) fn get_path(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(super) fn get_path_mut(&mut self, path: &[&str]) -> Option<&mut Self> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        let NodeContent::Map(entries) = &mut self.content else {
            return None;
        };
        let entry = entries.iter_mut().find(|entry| entry.key == **first)?;
        entry.value.get_path_mut(rest)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            NodeContent::Scalar(scalar) => scalar.as_text(),
            _ => None,
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.content, NodeContent::Map(_))
    }

    pub(super) fn is_null(&self) -> bool {
        self.scalar_value() == Some(Resolved::Null)
    }

    /// The meaning of a scalar; `None` for lists and maps.
    pub(super) fn scalar_value(&self) -> Option<Resolved> {
        match &self.content {
            NodeContent::Scalar(scalar) => Some(scalar.value),
            _ => None,
        }
    }

    /// Puts a value at a path and creates the maps on the way; a value that is in the way is
    /// replaced.
    pub(super) fn set_path(&mut self, path: &[&str], value: Node) {
        let Some((first, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !self.is_map() {
            self.content = NodeContent::Map(Vec::new());
        }
        let NodeContent::Map(entries) = &mut self.content else {
            return;
        };
        let location = value.location.clone();
        let index = entries
            .iter()
            .position(|entry| entry.key == **first)
            .unwrap_or_else(|| {
                let value = Self::empty_map(location.clone());
                entries.push(NodeEntry {
                    key: (*first).to_owned(),
                    key_location: location,
                    value,
                });
                entries.len() - 1
            });
        entries[index].value.set_path(rest, value);
    }

    /// Removes the value at a path, if there is one.
    pub(super) fn remove_path(&mut self, path: &[&str]) {
        let NodeContent::Map(entries) = &mut self.content else {
            return;
        };
        match path {
            [] => {}
            [last] => entries.retain(|entry| entry.key != **last),
            [first, rest @ ..] => {
                if let Some(entry) = entries.iter_mut().find(|entry| entry.key == **first) {
                    entry.value.remove_path(rest);
                }
            }
        }
    }

    /// The size of this tree.
    pub(super) fn size(&self) -> NodeSize {
        let own = NodeSize {
            nodes: 1,
            depth: 0,
            text_bytes: self.own_text_bytes(),
        };
        let children: Vec<&Self> = match &self.content {
            NodeContent::Scalar(_) => return own,
            NodeContent::List(items) => items.iter().collect(),
            NodeContent::Map(entries) => entries.iter().map(|entry| &entry.value).collect(),
        };
        let sizes = children.into_iter().map(Self::size);
        let whole = sizes.fold(own, |whole, child| NodeSize {
            nodes: whole.nodes + child.nodes,
            depth: whole.depth.max(child.depth),
            text_bytes: whole.text_bytes + child.text_bytes,
        });
        NodeSize {
            depth: whole.depth + 1,
            ..whole
        }
    }

    /// Bytes of a scalar's text, or of a map's keys.
    pub(super) fn own_text_bytes(&self) -> u64 {
        let bytes = match &self.content {
            NodeContent::Scalar(scalar) => scalar.text.len(),
            NodeContent::List(_) => 0,
            NodeContent::Map(entries) => entries.iter().map(|entry| entry.key.len()).sum(),
        };
        bytes as u64
    }

    /// Describes the node for an error message: `` `8` ``, `a list`, `a map`.
    pub(super) fn found(&self) -> String {
        match &self.content {
            NodeContent::Scalar(scalar) => scalar.found(),
            NodeContent::List(_) => "a list".to_owned(),
            NodeContent::Map(_) => "a map of keys".to_owned(),
        }
    }
}
