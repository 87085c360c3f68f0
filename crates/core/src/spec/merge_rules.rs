//! The rules of merging, for the layers of a file and for the points of a sweep: the changes that
//! one layer makes to the values beneath it.
//!
//! Maps merge key by key, and a list replaces the list beneath. A map whose `kind` differs replaces
//! the map beneath; a map without a `kind` keeps the kind beneath, or the default. `train.steps`
//! replaces `train.epochs` and the reverse. `null` restores the default; it is a value of its own in
//! `model.values` of a command.
//!
//! In: the values beneath and the layer, two trees. Out: [`LayerChange`]s in the order in
//! which they apply. Applying them is left to [`merge`](super::merge), which keeps the places of
//! values, and to [`overrides`](super::overrides), which works on resolved values.

use serde_json::Value;

use super::{
    keys,
    node::Node,
    shapes::{KeyField, KeyShape, MapKeys, Tagged},
};

/// A view of a tree of values.
pub(super) trait ValueTree<'a>: Copy {
    /// The keys of a map and their values, in order; none for other values.
    fn pairs(self) -> impl Iterator<Item = (&'a str, Self)>;
    fn child(self, key: &str) -> Option<Self>;
    fn word(self) -> Option<&'a str>;
    fn is_absent(self) -> bool;
    fn has_keys(self) -> bool;
}

impl<'a> ValueTree<'a> for &'a Node {
    fn pairs(self) -> impl Iterator<Item = (&'a str, Self)> {
        self.entries()
            .iter()
            .map(|entry| (entry.key.as_str(), &entry.value))
    }

    fn child(self, key: &str) -> Option<Self> {
        self.get(key)
    }

    fn word(self) -> Option<&'a str> {
        self.text()
    }

    fn is_absent(self) -> bool {
        self.is_null()
    }

    fn has_keys(self) -> bool {
        self.is_map()
    }
}

impl<'a> ValueTree<'a> for &'a Value {
    fn pairs(self) -> impl Iterator<Item = (&'a str, Self)> {
        let map = self.as_object().into_iter().flatten();
        map.map(|(key, value)| (key.as_str(), value))
    }

    fn child(self, key: &str) -> Option<Self> {
        self.get(key)
    }

    fn word(self) -> Option<&'a str> {
        self.as_str()
    }

    fn is_absent(self) -> bool {
        self.is_null()
    }

    fn has_keys(self) -> bool {
        self.is_object()
    }
}

/// The maps around one value that a dotted key stands for: `a.b` with 3 is `{a: {b: 3}}`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DottedValue<'a> {
    /// The names that are not entered yet, outermost first.
    pub(super) names: &'a [&'a str],
    pub(super) value: &'a Value,
}

impl<'a> ValueTree<'a> for DottedValue<'a> {
    fn pairs(self) -> impl Iterator<Item = (&'a str, Self)> {
        let within = |names| move |value| DottedValue { names, value };
        let outer = self.names.split_first();
        let outer = outer.map(|(name, names)| (*name, within(names)(self.value)));
        let value = self.names.is_empty().then_some(self.value);
        let inner = value.into_iter().flat_map(ValueTree::pairs);
        outer
            .into_iter()
            .chain(inner.map(move |(key, value)| (key, within(&[])(value))))
    }

    fn child(self, key: &str) -> Option<Self> {
        self.pairs()
            .find_map(|(name, value)| (name == key).then_some(value))
    }

    fn word(self) -> Option<&'a str> {
        self.value.as_str().filter(|_| self.names.is_empty())
    }

    fn is_absent(self) -> bool {
        self.names.is_empty() && self.value.is_null()
    }

    fn has_keys(self) -> bool {
        !self.names.is_empty() || self.value.is_object()
    }
}

/// One change to the values beneath a layer.
pub(super) struct LayerChange<'a, T> {
    /// The names of the key, outermost first.
    pub(super) path: Vec<&'a str>,
    /// The key in the table; `None` if its default is absence.
    pub(super) field: Option<&'static KeyField>,
    pub(super) action: LayerAction<'a, T>,
}

pub(super) enum LayerAction<'a, T> {
    /// The value beneath is removed, which restores the default: of this kind, if it is a map of
    /// another kind.
    Reset(Option<&'a str>),
    /// A map is added with its defaults, of this kind if it has one, unless there is a map.
    Open(Option<&'a str>),
    /// The value replaces the value beneath.
    Set(T),
}

/// Returns the changes that `layer` makes to the values `beneath`. Unknown keys change nothing: the
/// check has refused them, or they belong to another kind.
pub(super) fn changes<'a, 'b, T: ValueTree<'a>>(
    beneath: impl ValueTree<'b>,
    layer: T,
) -> Vec<LayerChange<'a, T>> {
    let mut walk = RuleWalk {
        path: Vec::new(),
        changes: Vec::new(),
    };
    walk.fields(keys::table(), Some(beneath), layer);
    walk.changes
}

struct RuleWalk<'a, T> {
    path: Vec<&'a str>,
    changes: Vec<LayerChange<'a, T>>,
}

impl<'a, T: ValueTree<'a>> RuleWalk<'a, T> {
    fn push(&mut self, field: Option<&'static KeyField>, action: LayerAction<'a, T>) {
        self.changes.push(LayerChange {
            path: self.path.clone(),
            field,
            action,
        });
    }

    fn fields<'b>(
        &mut self,
        fields: &'static MapKeys,
        beneath: Option<impl ValueTree<'b>>,
        layer: T,
    ) {
        for (key, value) in layer.pairs() {
            let beneath = beneath.and_then(|beneath| beneath.child(key));
            self.path.push(key);
            match fields.get(key) {
                Some(field) => self.field(field, beneath, value),
                None if fields.is_open && key != "kind" => self.free(None, beneath, value),
                None => {}
            }
            self.path.pop();
        }
    }

    fn field<'b>(
        &mut self,
        field: &'static KeyField,
        beneath: Option<impl ValueTree<'b>>,
        value: T,
    ) {
        match &field.shape {
            KeyShape::Map(fields) if value.has_keys() => {
                self.open(Some(field), beneath, None);
                self.fields(fields, beneath, value);
            }
            KeyShape::Tagged(tagged) if value.has_keys() => {
                self.tagged(field, tagged, beneath, value)
            }
            KeyShape::Named(item) if value.has_keys() => {
                self.open(Some(field), beneath, None);
                self.named(item, value);
            }
            KeyShape::Free => self.free(Some(field), beneath, value),
            _ if value.is_absent() => self.push(Some(field), LayerAction::Reset(None)),
            _ => {
                self.push(Some(field), LayerAction::Set(value));
                self.replace_other_length();
            }
        }
    }

    fn tagged<'b>(
        &mut self,
        field: &'static KeyField,
        tagged: &'static Tagged,
        beneath: Option<impl ValueTree<'b>>,
        value: T,
    ) {
        let given = value.child("kind").and_then(T::word);
        let now = beneath.and_then(|beneath| beneath.child("kind")?.word());
        let now = now.or(field.default_kind());
        let is_another = beneath.is_some() && given.is_some_and(|given| now != Some(given));
        let beneath = if is_another {
            self.push(Some(field), LayerAction::Reset(given));
            None
        } else {
            self.open(Some(field), beneath, given.or(field.default_kind()));
            beneath
        };
        if let Some(fields) = given.or(now).and_then(|kind| tagged.kind(kind)) {
            self.fields(fields, beneath, value);
        }
    }

    /// A map whose names the file chooses: a name replaces the same name beneath as a whole. `null`
    /// removes it, unless `null` is one of its values.
    fn named(&mut self, item: &'static KeyShape, value: T) {
        let keeps_null = matches!(item, KeyShape::Scalar { is_nullable: true });
        let keys = match item {
            KeyShape::Map(fields) => &fields.known[..],
            _ => &[],
        };
        for (key, value) in value.pairs() {
            self.path.push(key);
            if value.is_absent() && !keeps_null {
                self.push(None, LayerAction::Reset(None));
            } else {
                // The name keeps its place among the others.
                for key in keys {
                    self.path.push(&key.name);
                    self.push(None, LayerAction::Reset(None));
                    self.path.pop();
                }
                self.push(None, LayerAction::Set(value));
            }
            self.path.pop();
        }
    }

    /// Keys that the table does not know: `null` removes them.
    fn free<'b>(
        &mut self,
        field: Option<&'static KeyField>,
        beneath: Option<impl ValueTree<'b>>,
        value: T,
    ) {
        if value.is_absent() {
            return self.push(field, LayerAction::Reset(None));
        }
        if !value.has_keys() {
            return self.push(field, LayerAction::Set(value));
        }
        self.open(field, beneath, None);
        for (key, value) in value.pairs() {
            self.path.push(key);
            self.free(None, beneath.and_then(|beneath| beneath.child(key)), value);
            self.path.pop();
        }
    }

    fn open<'b>(
        &mut self,
        field: Option<&'static KeyField>,
        beneath: Option<impl ValueTree<'b>>,
        kind: Option<&'a str>,
    ) {
        if !beneath.is_some_and(ValueTree::has_keys) {
            self.push(field, LayerAction::Open(kind));
        }
    }

    /// `train.steps` replaces `train.epochs` and the reverse. Neither has a default.
    fn replace_other_length(&mut self) {
        let other = match self.path[..] {
            ["train", "steps"] => "epochs",
            ["train", "epochs"] => "steps",
            _ => return,
        };
        self.changes.push(LayerChange {
            path: vec!["train", other],
            field: None,
            action: LayerAction::Reset(None),
        });
    }
}
