//! Checks the `sweep` section: every axis is a real key, every value is valid for its key, and the
//! lengths of the lists agree.

mod conflicts;
mod derive;
mod points;
mod together;

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
};

pub(super) use together::resolve_order;

use serde_json::Value;

use super::{
    axes::{AXES, RUN_AXES_IN_WORDS, SAMPLE_AXES, may_vary},
    check, future,
    keys::{self, KeyLookup},
    node::{Node, NodeContent, NodeEntry},
    problem::{Location, Problem},
    range_axis::{NumberRange, is_range},
    shapes::{KeyField, KeyShape, join},
    suggest::{listed, nearest},
    synonyms,
};
use crate::{
    kinds::text_of,
    limits::{AXIS_VALUES, Limit},
};

/// Faults of one sweep after which the entries of `include` and `exclude` are not checked any
/// further: each fault looks for the nearest key.
const MOST_FAULTS: usize = 1000;

/// Checks the section in a merged tree.
pub(super) fn check(tree: &Node) -> Vec<Problem> {
    let Some(sweep) = tree.get("sweep").filter(|sweep| sweep.is_map()) else {
        return Vec::new();
    };
    let mut checker = SweepChecker {
        tree,
        sweep,
        problems: Vec::new(),
        kinds: RefCell::default(),
        fields: HashMap::new(),
    };
    for place in AXES {
        checker.axes(place);
    }
    checker.derive();
    checker.conflicts();
    checker.points("include");
    checker.points("exclude");
    checker.together();
    checker.problems
}

struct SweepChecker<'a> {
    tree: &'a Node,
    sweep: &'a Node,
    problems: Vec<Problem>,
    /// Cached per path: a sweep may list thousands of points.
    kinds: RefCell<HashMap<String, Vec<String>>>,
    /// The allowed values of the keys so far.
    fields: HashMap<String, Fields>,
}

/// The allowed values of a key; several if they depend on the kind.
type Fields = Rc<[KeyField]>;

impl<'a> SweepChecker<'a> {
    fn push(&mut self, location: &Location, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(location, key, message));
    }

    fn axes(&mut self, place: &[&str]) {
        let Some(node) = self.tree.get_path(place).filter(|node| !node.is_null()) else {
            return;
        };
        let path = place.join(".");
        if !node.is_map() {
            let message = format!(
                "`{path}` is {}; it must be a map of axes, such as `train.batch_size: [4, 8]`",
                node.found()
            );
            return self.push(&node.location, &path, message);
        }
        for entry in node.entries().iter().filter(|entry| !entry.value.is_null()) {
            self.axis(&path, entry);
        }
    }

    fn axis(&mut self, path: &str, entry: &'a NodeEntry) {
        let full = format!("{path}.{}", entry.key);
        let Some(fields) = self.fields(&full, entry) else {
            return;
        };
        if is_range(&entry.value) {
            // Other ranges are lists by now, or have a problem.
            if path == SAMPLE_AXES.join(".") {
                let range = NumberRange::read(&full, &entry.key, &entry.value, false);
                match range {
                    Ok(range) => range
                        .ends()
                        .for_each(|end| self.value(&entry.key, &fields, end)),
                    Err(faults) => self.problems.extend(faults),
                }
            }
            return;
        }
        let NodeContent::List(values) = &entry.value.content else {
            let message = no_list(&full, &entry.value);
            return self.push(&entry.value.location, &full, message);
        };
        if values.is_empty() {
            return self.push(
                &entry.value.location,
                &full,
                format!("`{full}` is an empty list; an axis needs at least one value"),
            );
        }
        if self.is_within(&AXIS_VALUES, values.len(), &entry.value.location, &full) {
            self.values(path, entry, &fields, values);
        }
    }

    /// Checks each value of an axis, and that no two are the same point.
    fn values(&mut self, path: &str, entry: &NodeEntry, fields: &[KeyField], values: &[Node]) {
        let full = format!("{path}.{}", entry.key);
        let mut seen = HashSet::new();
        let mut texts: HashMap<String, String> = HashMap::new();
        let mut faulty = None;
        for value in values {
            // The values of a range have one place, and one fault there is enough.
            if faulty == Some(&value.location) && value.location == entry.value.location {
                continue;
            }
            let known = self.problems.len();
            self.value(&entry.key, fields, value);
            if self.problems.len() > known {
                faulty = Some(&value.location);
            }
            // For keys that vary together, only whole rows must differ.
            if path == "sweep.zip" {
                continue;
            }
            let (json, found) = (value.to_json(), value.found());
            let is_new = seen.insert(identity(&json));
            let other = texts.insert(text_of(&json), found.clone());
            let message = match other {
                _ if !is_new => format!("`{full}` has {found} twice; each value is one point"),
                Some(other) => format!(
                    "`{full}` has {other} and {found}, which tables write alike; name values that \
                     they tell apart"
                ),
                None => continue,
            };
            self.push(&value.location, &full, message);
        }
    }

    /// Whether a list is within its limit; if not, a problem says so.
    fn is_within(
        &mut self,
        limit: &'static Limit,
        found: usize,
        location: &Location,
        path: &str,
    ) -> bool {
        let within = limit.check(found as u64);
        if let Err(exceeded) = within {
            self.push(location, path, format!("`{path}`: {exceeded}"));
        }
        within.is_ok()
    }

    /// Returns the allowed values of an axis or point; `None`, with a problem, if the key cannot
    /// vary.
    fn fields(&mut self, full: &str, entry: &NodeEntry) -> Option<Fields> {
        let key = entry.key.as_str();
        if let Some(known) = self.fields.get(key) {
            return Some(Rc::clone(known));
        }
        if let Some(message) = self.of_command(key) {
            self.push(&entry.key_location, full, message);
            return None;
        }
        let known = keys::find(key, &|path| self.kinds(path));
        let message = match known {
            KeyLookup::Shapes(shapes) if may_vary(key) => {
                let fields: Fields = shapes
                    .into_iter()
                    .map(|shape| check::field_of(key, shape))
                    .collect();
                self.fields.insert(key.to_owned(), Rc::clone(&fields));
                return Some(fields);
            }
            KeyLookup::Shapes(_) if entry.value.is_map() => {
                let inner = entry
                    .value
                    .entries()
                    .first()
                    .map_or("…", |inner| inner.key.as_str());
                format!(
                    "`{key}` is a map of keys; write an axis with its dotted key: `{key}.{inner}: \
                     […]`"
                )
            }
            KeyLookup::Shapes(_) => {
                format!(
                    "`{key}` cannot be swept; axes are the keys of `model`, `data` and `train`, \
                     and {RUN_AXES_IN_WORDS}"
                )
            }
            _ if future::key(key).is_some() => future::key(key).unwrap_or_default(),
            KeyLookup::OtherKind {
                parent,
                name,
                kinds,
                others,
            } => format!(
                "`{parent}.{name}` is not a key of kind {}; it belongs to kind {}{}",
                listed(&kinds, "or"),
                listed(&others, "or"),
                self.synonym_hint(&parent, &name)
            ),
            KeyLookup::Unknown {
                parent,
                name,
                siblings,
            } => format!(
                "unknown key `{key}`{}",
                unknown_axis(key, &parent, &name, siblings)
            ),
        };
        self.push(&entry.key_location, full, message);
        None
    }

    /// Names the key of these kinds that is meant by the key of another kind, if there is one.
    fn synonym_hint(&self, parent: &str, name: &str) -> String {
        let is_meant = |synonym: &&&str| {
            let parent_of = synonym.rsplit_once('.').map(|(parent, _)| parent);
            let known = keys::find(synonym, &|path| self.kinds(path));
            parent_of == Some(parent) && matches!(known, KeyLookup::Shapes(_))
        };
        synonyms::keys(name)
            .iter()
            .find(is_meant)
            .map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"))
    }

    /// Why a key cannot vary where the model is a command: only its declared values can.
    fn of_command(&self, key: &str) -> Option<String> {
        if !self.kinds("model").iter().all(|kind| kind == "command") {
            return None;
        }
        let values = self.tree.get_path(&["model", "values"]);
        let declared: Vec<&str> = values
            .map(Node::entries)
            .unwrap_or_default()
            .iter()
            .map(|entry| entry.key.as_str())
            .collect();
        if let Some(name) = key.strip_prefix("model.values.") {
            let hint = match nearest(name, declared.iter().copied()) {
                Some(near) => format!("did you mean `model.values.{near}`?"),
                None => "declare it there, with the value of a file without this axis".to_owned(),
            };
            return (!declared.contains(&name))
                .then(|| format!("`{key}` is not among `model.values`; {hint}"));
        }
        let last = key.rsplit('.').next().unwrap_or(key);
        let is_section = |section: &str| key.starts_with(section);
        if declared.contains(&last) && !is_section("train.") && !is_section("run.") {
            return Some(format!(
                "unknown key `{key}`; did you mean `model.values.{last}`?"
            ));
        }
        is_section("model.").then(|| {
            format!(
                "`{key}` cannot be swept: of a command only values vary; write a placeholder in \
                 its place, and sweep `model.values.NAME`"
            )
        })
    }

    /// The possible kinds of a map: the file's, or the default, and those that axes and points give
    /// it.
    fn kinds(&self, path: &str) -> Vec<String> {
        self.kinds
            .borrow_mut()
            .entry(path.to_owned())
            .or_insert_with(|| self.find_kinds(path))
            .clone()
    }

    fn find_kinds(&self, path: &str) -> Vec<String> {
        let names: Vec<&str> = path.split('.').chain(["kind"]).collect();
        let base = self.tree.get_path(&names).and_then(Node::text);
        let mut kinds: Vec<String> = base
            .or(keys::field(path).and_then(KeyField::default_kind))
            .map(str::to_owned)
            .into_iter()
            .collect();
        let kind_key = format!("{path}.kind");
        for (key, value) in self.every_value() {
            let kind = if key == kind_key {
                value.text()
            } else {
                (key == path)
                    .then(|| value.get("kind").and_then(Node::text))
                    .flatten()
            };
            kinds.extend(kind.map(str::to_owned));
        }
        if kinds.is_empty()
            && let Some(KeyShape::Tagged(tagged)) = keys::field(path).map(|field| &field.shape)
        {
            kinds = tagged.names().into_iter().map(str::to_owned).collect();
        }
        kinds.sort();
        kinds.dedup();
        kinds
    }

    /// Returns each value that the sweep gives to a key.
    fn every_value(&self) -> impl Iterator<Item = (&'a str, &'a Node)> {
        let section = |name: &str| self.sweep.get(name);
        let axes = AXES
            .into_iter()
            .filter_map(|place| self.tree.get_path(place))
            .flat_map(Node::entries);
        let listed = axes.flat_map(|entry| {
            entry
                .value
                .items()
                .iter()
                .map(|value| (entry.key.as_str(), value))
        });
        let points = section("include")
            .into_iter()
            .flat_map(Node::items)
            .flat_map(Node::entries);
        listed.chain(points.map(|entry| (entry.key.as_str(), &entry.value)))
    }

    fn value(&mut self, key: &str, fields: &[KeyField], value: &Node) {
        let mut faults = fields.iter().map(|field| check::value(key, field, value));
        let first = faults.next().unwrap_or_default();
        if !first.is_empty() && faults.all(|others| !others.is_empty()) {
            self.problems.extend(first);
        }
    }
}

/// Returns the same key for equal values: numbers compare by value, so that `8` and `8.0` are
/// equal. Integers that no `f64` tells apart are compared as integers.
fn identity(value: &Value) -> String {
    const LARGEST_EXACT: f64 = (1_u64 << 53) as f64;
    value
        .as_f64()
        .filter(|number| number.abs() < LARGEST_EXACT)
        .map_or_else(|| value.to_string(), |number| number.to_string())
}

/// Says that an axis is not a list, with the list that may be meant.
fn no_list(full: &str, value: &Node) -> String {
    let json = value.to_json();
    let example = match json.as_str().and_then(numbers_in) {
        Some(numbers) => numbers,
        None => serde_json::to_string(&json)
            .unwrap_or_default()
            .replace("null", "8"),
    };
    format!(
        "`{full}` is {}; an axis is a list of values, such as `[{example}]`",
        value.found(),
    )
}

/// The numbers of a text that was meant as several values, such as `0..4` or `8 16`, with commas
/// between them.
fn numbers_in(text: &str) -> Option<String> {
    let is_between = |letter: char| letter.is_whitespace() || ",;:-/".contains(letter);
    let text = text.replace("..", ",");
    let parts: Vec<&str> = text
        .split(is_between)
        .filter(|part| !part.is_empty())
        .collect();
    let are_numbers = parts.iter().all(|part| part.parse::<f64>().is_ok());
    (parts.len() > 1 && are_numbers).then(|| parts.join(", "))
}

fn unknown_axis(key: &str, parent: &str, name: &str, siblings: Vec<&'static str>) -> String {
    let every: Vec<String> = keys::every_key()
        .iter()
        .map(|known| known.path.clone())
        .filter(|path| may_vary(path))
        .collect();
    let ending = |path: &&String| {
        path.strip_suffix(key)
            .is_some_and(|rest| rest.ends_with('.'))
    };
    let in_same_map = |synonym: &str| {
        let rest = synonym.strip_prefix(parent);
        let rest = rest.and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| siblings.contains(&rest))
    };
    let synonyms = synonyms::keys(name.rsplit('.').next().unwrap_or(name));
    let synonym = synonyms
        .iter()
        .find(|synonym| in_same_map(synonym))
        .or(synonyms.first())
        .filter(|synonym| may_vary(synonym))
        .map(|synonym| (*synonym).to_owned());
    let near = nearest(name, siblings.into_iter().chain(["kind"]))
        .map(|near| join(parent, near))
        .filter(|near| may_vary(near));
    let found = every
        .iter()
        .find(ending)
        .cloned()
        .or(synonym)
        .or(near)
        .or_else(|| nearest(key, every.iter().map(String::as_str)).map(str::to_owned));
    match found {
        Some(found) => format!("; did you mean `{found}`?"),
        None => {
            format!("; axes are the keys of `model`, `data` and `train`, and {RUN_AXES_IN_WORDS}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_an_axis_are_equal_as_numbers() {
        assert_eq!(
            identity(&serde_json::json!(8)),
            identity(&serde_json::json!(8.0))
        );
        assert_ne!(
            identity(&serde_json::json!("8")),
            identity(&serde_json::json!(8))
        );
        assert_ne!(
            identity(&serde_json::json!(9_007_199_254_740_992_u64)),
            identity(&serde_json::json!(9_007_199_254_740_993_u64))
        );
    }

    #[test]
    fn numbers_of_a_text_are_offered_as_a_list_and_other_texts_are_not_taken_apart() {
        for (text, list) in [
            ("0..4", Some("0, 4")),
            ("8, 16", Some("8, 16")),
            ("8 16 32", Some("8, 16, 32")),
            ("64k", None),
            ("amp-bf16", None),
            ("8", None),
        ] {
            assert_eq!(numbers_in(text).as_deref(), list, "{text}");
        }
    }
}
