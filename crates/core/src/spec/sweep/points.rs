//! The entries of `include` and `exclude`: points, and conditions of points.

use super::{MOST_FAULTS, SweepChecker};
use crate::{
    limits::{EXCLUDE_ENTRIES, POINTS},
    spec::{
        condition::{Operator, condition},
        node::{Node, NodeContent, NodeEntry},
        scalar::{Resolved, Scalar},
        shapes::KeyField,
    },
};

impl<'a> SweepChecker<'a> {
    /// Checks the entries of `include` or `exclude`.
    pub(super) fn points(&mut self, section: &str) {
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
        if !fields.iter().any(|field| field.shape.holds_numbers()) {
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

fn or_empty(point: &Node) -> String {
    if point.is_map() {
        "empty".to_owned()
    } else {
        point.found()
    }
}
