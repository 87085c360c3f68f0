//! Checks the `sweep` section: every axis is a real key, every value is valid for its key, and the
//! lengths of the lists agree.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
};

use serde_json::Value;

use super::{
    axes::{AXES, RUN_AXES_IN_WORDS, SAMPLE_AXES, may_vary},
    check,
    condition::{Operator, condition},
    future,
    keys::{self, KeyLookup},
    node::{Node, NodeContent, NodeEntry},
    problem::{Location, Problem},
    range_axis::{NumberRange, is_range},
    scalar::{Resolved, Scalar},
    shapes::{KeyField, KeyShape, join},
    suggest::{listed, nearest},
    synonyms,
};
use crate::limits::{AXIS_VALUES, EXCLUDE_ENTRIES, Limit, POINTS};

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
    checker.beside_search();
    checker.length();
    checker.zip_lengths();
    checker.grid_and_zip();
    checker.displacing();
    checker.seeds();
    checker.points("include");
    checker.points("exclude");
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
            let example = serde_json::to_string(&entry.value.to_json()).unwrap_or_default();
            let message = format!(
                "`{full}` is {}; an axis is a list of values, such as `[{}]`",
                entry.value.found(),
                example.replace("null", "8")
            );
            return self.push(&entry.value.location, &full, message);
        };
        if values.is_empty() {
            return self.push(
                &entry.value.location,
                &full,
                format!("`{full}` is an empty list; an axis needs at least one value"),
            );
        }
        if !self.is_within(&AXIS_VALUES, values.len(), &entry.value.location, &full) {
            return;
        }
        let mut seen = HashSet::new();
        let mut faulty = None;
        for value in values {
            // The values of a range have one place, and one fault there is enough.
            if faulty == Some(&value.location) && value.location == entry.value.location {
                continue;
            }
            let known = self.problems.len();
            self.value(&entry.key, &fields, value);
            if self.problems.len() > known {
                faulty = Some(&value.location);
            }
            // For keys that vary together, only whole rows must differ.
            if path != "sweep.zip" && !seen.insert(identity(&value.to_json())) {
                self.push(
                    &value.location,
                    &full,
                    format!(
                        "`{full}` has {} twice; each value is one point",
                        value.found()
                    ),
                );
            }
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
            } => {
                format!(
                    "`{parent}.{name}` is not a key of kind {}; it belongs to kind {}",
                    listed(&kinds, "or"),
                    listed(&others, "or")
                )
            }
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

    fn zip_lengths(&mut self) {
        let entries = self.sweep.get("zip").map(Node::entries).unwrap_or_default();
        let mut lists = entries
            .iter()
            .filter(|entry| !entry.value.items().is_empty());
        let Some(first) = lists.next() else { return };
        let wanted = first.value.items().len();
        for entry in lists.filter(|entry| entry.value.items().len() != wanted) {
            let found = entry.value.items().len();
            let message = format!(
                "`sweep.zip` walks its keys together, but `{}` has {wanted} values and `{}` \
                 {found}",
                first.key, entry.key
            );
            self.push(
                &entry.key_location,
                &format!("sweep.zip.{}", entry.key),
                message,
            );
        }
    }

    fn grid_and_zip(&mut self) {
        self.sample_beside();
        let Some(grid) = self.sweep.get("grid") else {
            return;
        };
        // `null` removes an axis from one of them, so that a layer can move it to the other.
        let stays = |entry: &&NodeEntry| !entry.value.is_null();
        for entry in self
            .sweep
            .get("zip")
            .map(Node::entries)
            .unwrap_or_default()
            .iter()
            .filter(stays)
        {
            if grid.entry(&entry.key).as_ref().is_some_and(stays) {
                let message = format!(
                    "`{}` is in both `sweep.grid` and `sweep.zip`; keep one of them",
                    entry.key
                );
                self.push(
                    &entry.key_location,
                    &format!("sweep.zip.{}", entry.key),
                    message,
                );
            }
        }
    }

    /// Random points are rows of their own, and no key may come from two places.
    fn sample_beside(&mut self) {
        let Some(axes) = self.tree.get_path(SAMPLE_AXES) else {
            return;
        };
        let stays = |entry: &&NodeEntry| !entry.value.is_null();
        if let Some(zip) = self.sweep.entry("zip")
            && zip.value.entries().iter().any(|entry| stays(&entry))
        {
            let message = "`sweep.zip` and `sweep.sample` both give rows of values; keep one of \
                           them, or move the keys of `zip` into `sweep.grid`";
            self.push(&zip.key_location, "sweep.zip", message);
        }
        if axes.is_map() && !axes.entries().iter().any(|entry| stays(&entry)) {
            let message = "`sweep.sample.axes` is empty; it needs at least one axis";
            self.push(&axes.location, "sweep.sample.axes", message);
        }
        for entry in axes.entries().iter().filter(stays) {
            let in_grid = self
                .sweep
                .get("grid")
                .and_then(|grid| grid.entry(&entry.key));
            if in_grid.as_ref().is_some_and(stays) {
                let message = format!(
                    "`{}` is in both `sweep.grid` and `sweep.sample`; keep one of them",
                    entry.key
                );
                let full = format!("sweep.sample.axes.{}", entry.key);
                self.push(&entry.key_location, &full, message);
            }
        }
    }

    /// A search chooses the points itself: listed points would be read and ignored.
    fn beside_search(&mut self) {
        if self.sweep.get("search").is_none_or(Node::is_null) {
            return;
        }
        for section in ["grid", "zip", "sample", "include", "exclude"] {
            let Some(entry) = self
                .sweep
                .entry(section)
                .filter(|entry| !is_empty(&entry.value))
            else {
                continue;
            };
            let message = format!(
                "`sweep.{section}` lists points and `sweep.search` chooses its own; keep one of \
                 them (`successive-halving` has `axes`)"
            );
            self.push(&entry.key_location, &format!("sweep.{section}"), message);
        }
        let in_place = [
            ("repeats", "1", "the search has its own `repeats`"),
            (
                "order",
                "interleaved",
                "a search decides the order from its results",
            ),
        ];
        for (key, default, why) in in_place {
            // Resolved experiments contain the defaults.
            let Some(entry) = self
                .sweep
                .entry(key)
                .filter(|entry| !entry.value.is_null() && shown(&entry.value) != default)
            else {
                continue;
            };
            let message = format!("`sweep.{key}` is for listed points, and {why}; remove it");
            self.push(&entry.key_location, &format!("sweep.{key}"), message);
        }
    }

    /// The rounds of successive halving have their own lengths.
    fn length(&mut self) {
        for key in ["train.steps", "train.epochs"] {
            let Some(entry) = self.tree.get_path(AXES[2]).and_then(|axes| axes.entry(key)) else {
                continue;
            };
            let message = format!(
                "`{key}` cannot be an axis here: each round of `successive-halving` sets the \
                 length of its trials"
            );
            self.push(
                &entry.key_location,
                &format!("sweep.search.axes.{key}"),
                message,
            );
        }
    }

    /// Checks for two axes of which one would replace the other.
    fn displacing(&mut self) {
        let sections = AXES
            .into_iter()
            .filter_map(|place| self.tree.get_path(place));
        let axes: Vec<&'a NodeEntry> = sections.flat_map(Node::entries).collect();
        let undoes = |a: &str, b: &str| {
            (a, b) == ("train.steps", "train.epochs") || b.strip_suffix(".kind") == Some(a)
        };
        for (index, later) in axes.iter().enumerate() {
            for earlier in &axes[..index] {
                if undoes(&earlier.key, &later.key) || undoes(&later.key, &earlier.key) {
                    let message = format!(
                        "`{}` and `{}` cannot both vary: one replaces the other",
                        earlier.key, later.key
                    );
                    self.push(&later.key_location, &later.key, message);
                }
            }
        }
    }

    fn seeds(&mut self) {
        for place in AXES {
            let (path, around) = (place.join("."), place[..place.len() - 1].join("."));
            // Random points are repeated as the others.
            let around = match around.as_str() {
                "sweep.sample" => "sweep",
                around => around,
            };
            let repeats: Vec<&str> = around.split('.').chain(["repeats"]).collect();
            let repeats = self.tree.get_path(&repeats).map(Node::to_json);
            let repeats = repeats.and_then(|value| value.as_u64()).unwrap_or(1);
            if let Some(entry) = self
                .tree
                .get_path(place)
                .and_then(|node| node.entry("train.seed"))
                .filter(|_| repeats > 1)
            {
                let message = format!(
                    "`train.seed` is an axis while `{around}.repeats` is {repeats}, and repeats \
                     vary the seed too; keep one of them"
                );
                self.push(&entry.key_location, &format!("{path}.train.seed"), message);
            }
        }
    }

    /// Checks the entries of `include` or `exclude`.
    fn points(&mut self, section: &str) {
        let Some(node) = self.sweep.get(section).filter(|node| !node.is_null()) else {
            return;
        };
        let path = format!("sweep.{section}");
        let NodeContent::List(points) = &node.content else {
            let message = format!(
                "`{path}` is {}; it must be a list of points, such as `[{{train.batch_size: 8}}]`",
                node.found()
            );
            return self.push(&node.location, &path, message);
        };
        let limit = if section == "exclude" {
            &EXCLUDE_ENTRIES
        } else {
            &POINTS
        };
        if !self.is_within(limit, points.len(), &node.location, &path) {
            return;
        }
        for (index, point) in points.iter().enumerate() {
            if self.problems.len() >= MOST_FAULTS {
                let message = format!(
                    "`{path}` is checked up to here only: the sweep has {MOST_FAULTS} faults; \
                     correct them first"
                );
                return self.push(&point.location, &path, message);
            }
            let path = format!("{path}[{index}]");
            if point.entries().is_empty() {
                self.push(
                    &point.location,
                    &path,
                    format!(
                        "`{path}` is {}; a point names at least one key, such as \
                         `{{train.batch_size: 8}}`",
                        or_empty(point)
                    ),
                );
            }
            for entry in point.entries() {
                self.point_key(section, &path, entry);
            }
        }
    }

    fn point_key(&mut self, section: &str, path: &str, entry: &'a NodeEntry) {
        let full = format!("{path}.{}", entry.key);
        let Some(fields) = self.fields(&full, entry) else {
            return;
        };
        if section == "include" {
            return self.value(&entry.key, &fields, &entry.value);
        }
        // An unquoted `>8` begins a folded text in YAML, which is empty.
        if entry.value.text() == Some("") {
            let message = format!(
                "`{}` is empty; put a comparison in quotes, such as `\">8\"`",
                entry.key
            );
            return self.push(&entry.value.location, &full, message);
        }
        match entry.value.text().and_then(condition) {
            Some((operator, number)) => self.condition(&full, &fields, entry, operator, number),
            None => self.value(&entry.key, &fields, &entry.value),
        }
    }

    fn condition(
        &mut self,
        full: &str,
        fields: &[KeyField],
        entry: &NodeEntry,
        operator: Operator,
        number: &str,
    ) {
        let operator = operator.text();
        let numeric = |field: &KeyField| match &field.shape {
            KeyShape::Integer { .. } | KeyShape::Number(_) | KeyShape::Anything => true,
            KeyShape::Any(shapes) => shapes
                .iter()
                .any(|shape| matches!(shape, KeyShape::Integer { .. } | KeyShape::Number(_))),
            _ => false,
        };
        if !fields.iter().any(numeric) {
            let message = format!(
                "`{}` does not hold numbers, so the comparison `{operator}` is not possible; name \
                 one of its values",
                entry.key
            );
            return self.push(&entry.value.location, full, message);
        }
        let value = Scalar::plain(number);
        let finite = matches!(value.value, Resolved::Integer(_))
            || matches!(value.value, Resolved::Float(value) if value.is_finite());
        if !finite {
            let found = if number.is_empty() {
                "nothing".to_owned()
            } else {
                format!("`{number}`")
            };
            let message = format!(
                "`{operator}` needs a number after it, such as `\"{operator}8\"`; found {found}"
            );
            self.push(&entry.value.location, full, message);
        }
    }
}

fn is_empty(node: &Node) -> bool {
    node.is_null() || (node.entries().is_empty() && node.items().is_empty())
}

/// A scalar as written.
fn shown(node: &Node) -> String {
    node.text()
        .map_or_else(|| node.to_json().to_string(), str::to_owned)
}

fn or_empty(point: &Node) -> String {
    if point.is_map() {
        "empty".to_owned()
    } else {
        point.found()
    }
}

/// Returns the same key for equal values: numbers compare by value, so that `8` and `8.0` are
/// equal.
fn identity(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| value.to_string(), |number| number.to_string())
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
    }
}
