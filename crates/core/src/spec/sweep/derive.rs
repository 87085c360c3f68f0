//! `sweep.derive`: keys whose values follow from those of other keys.

use super::{Fields, SweepChecker};
use crate::spec::{
    axes::{AXES, DERIVED, RUN_AXES_IN_WORDS, derived_keys, may_vary},
    derivation::EXAMPLE,
    expression::Expression,
    keys::{self, KeyLookup},
    node::{Node, NodeContent, NodeEntry},
};

/// Advice on an expression that a comma cut off.
const IN_QUOTES: &str = "; in a map within `{}` a comma ends the expression, so put it in quotes";

/// Whether a comma cut off an unquoted expression: YAML reads its end as a key behind it.
fn is_cut(entry: &NodeEntry, entries: &[NodeEntry]) -> bool {
    let count = |text: &str, letter: char| text.matches(letter).count();
    let is_open = |text: &str| count(text, '(') > count(text, ')');
    let is_end = |text: &str| count(text, ')') > count(text, '(');
    let is_plain = matches!(&entry.value.content, NodeContent::Scalar(scalar) if !scalar.quoted);
    let places = entries.iter().skip_while(|other| other.key != entry.key);
    let mut behind = places.skip(1);
    is_plain && entry.value.text().is_some_and(is_open) && behind.any(|other| is_end(&other.key))
}

impl<'a> SweepChecker<'a> {
    /// Checks each derived key and its expression.
    pub(super) fn derive(&mut self) {
        let Some(node) = self.tree.get_path(DERIVED).filter(|node| !node.is_null()) else {
            return;
        };
        let path = DERIVED.join(".");
        if !node.is_map() {
            let message = format!(
                "`{path}` is {}; it must be a map of keys, each with an expression, such as \
                 `train.grad_accumulation: {EXAMPLE}`",
                node.found()
            );
            return self.push(&node.location, &path, message);
        }
        let entries = node.entries();
        for entry in entries.iter().filter(|entry| !entry.value.is_null()) {
            self.derived_key(&format!("{path}.{}", entry.key), entry, entries);
        }
    }

    /// Checks one entry of `entries`.
    fn derived_key(&mut self, full: &str, entry: &'a NodeEntry, entries: &[NodeEntry]) {
        let key = &entry.key;
        let Some(fields) = self.fields(full, entry) else {
            return;
        };
        if !fields.iter().any(|field| field.shape.holds_numbers()) {
            let message = format!("`{full}`: `{key}` does not hold numbers; list its values");
            return self.push(&entry.key_location, full, message);
        }
        if let Some(section) = self.section_with_values(key) {
            let message = format!(
                "`{key}` is in both `{}` and `{section}`; keep one of them",
                DERIVED.join(".")
            );
            self.push(&entry.key_location, full, message);
        }
        let Some(text) = entry.value.text() else {
            let message = format!(
                "`{full}` is {}; it must be an expression over other keys, such as `{EXAMPLE}`",
                entry.value.found()
            );
            return self.push(&entry.value.location, full, message);
        };
        match Expression::read(text) {
            Err(fault) => {
                let advice = if is_cut(entry, entries) {
                    IN_QUOTES
                } else {
                    ""
                };
                let message = format!("`{full}`: {fault}{advice}");
                self.push(&entry.value.location, full, message);
            }
            Ok(expression) if expression.keys().is_empty() => {
                let message = format!(
                    "`{full}` is `{text}`, which uses no key; write the value at `{key}` itself"
                );
                self.push(&entry.value.location, full, message);
            }
            Ok(expression) => {
                for used in expression.keys() {
                    self.used_key(full, used, entry);
                }
            }
        }
    }

    /// Checks a key that an expression uses.
    fn used_key(&mut self, full: &str, used: &str, entry: &NodeEntry) {
        let location = &entry.value.location;
        let is_derived = derived_keys(self.tree).any(|key| key == used);
        let known = keys::find(used, &|path| self.kinds(path));
        let message = match known {
            _ if used == entry.key => format!("`{full}` uses itself"),
            _ if is_derived => format!(
                "`{full}` uses `{used}`, which is derived too; write the expression of `{used}` in \
                 its place"
            ),
            _ if used == "train.seed" && self.repeats() > 1 => format!(
                "`{full}` uses `train.seed` while `sweep.repeats` is {}, and repeats vary the seed; \
                 leave one of them out",
                self.repeats()
            ),
            KeyLookup::Shapes(_) if !may_vary(used) => format!(
                "`{full}` uses `{used}`; expressions use keys of `model`, `data` and `train`, and \
                 {RUN_AXES_IN_WORDS}"
            ),
            _ => {
                let at_expression = NodeEntry {
                    key: used.to_owned(),
                    key_location: location.clone(),
                    value: entry.value.clone(),
                };
                let fields = self.fields(full, &at_expression);
                let holds_numbers =
                    |fields: Fields| fields.iter().any(|field| field.shape.holds_numbers());
                if fields.is_none_or(holds_numbers) {
                    return;
                }
                format!("`{full}` uses `{used}`, which does not hold numbers")
            }
        };
        self.push(location, full, message);
    }

    /// The number of repeats of each point.
    fn repeats(&self) -> u64 {
        let repeats = self.sweep.get("repeats").map(Node::to_json);
        repeats.and_then(|value| value.as_u64()).unwrap_or(1)
    }

    /// The section that also gives values to a derived key.
    fn section_with_values(&self, key: &str) -> Option<String> {
        let is_given = |value: Option<&Node>| value.is_some_and(|value| !value.is_null());
        let mut axes = AXES.into_iter();
        let axes = axes.find(|place| is_given(self.tree.get_path(&[*place, &[key]].concat())));
        let points = self.sweep.get("include").map(Node::items);
        let mut points = points.unwrap_or_default().iter();
        let axes = axes.map(|place| place.join("."));
        axes.or_else(|| {
            let is_included = points.any(|point| point.get(key).is_some());
            is_included.then(|| "sweep.include".to_owned())
        })
    }
}
