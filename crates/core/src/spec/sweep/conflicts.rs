//! Sections of a sweep that contradict each other: lists of different lengths, keys that are given
//! twice, and sections that do nothing beside another.

use super::SweepChecker;
use crate::spec::{
    axes::{AXES, DERIVED, SAMPLE_AXES, varying_sections},
    node::{Node, NodeEntry},
};

impl<'a> SweepChecker<'a> {
    /// Checks the sections against each other.
    pub(super) fn conflicts(&mut self) {
        self.beside_search();
        self.length();
        self.zip_lengths();
        self.grid_and_zip();
        self.displacing();
        self.seeds();
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
        for section in [
            "grid", "zip", "sample", "derive", "include", "exclude", "together",
        ] {
            let Some(entry) = self
                .sweep
                .entry(section)
                .filter(|entry| !is_empty(&entry.value))
            else {
                continue;
            };
            let message = match section {
                "together" => "`sweep.together` is for listed points, and `sweep.search` chooses \
                               its own; remove it"
                    .to_owned(),
                "derive" => "`sweep.derive` is for listed points, and `sweep.search` chooses its \
                             own; remove one of them"
                    .to_owned(),
                _ => format!(
                    "`sweep.{section}` lists points and `sweep.search` chooses its own; keep one \
                     of them (`successive-halving` has `axes`)"
                ),
            };
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
        let sections = varying_sections().filter_map(|place| self.tree.get_path(place));
        let axes: Vec<&'a NodeEntry> = sections.flat_map(Node::entries).filter(stays).collect();
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
        self.included_seeds();
        for place in varying_sections() {
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
                .filter(|entry| repeats > 1 && stays(entry))
            {
                let message = format!(
                    "`train.seed` is {} while `{around}.repeats` is {repeats}, and repeats vary the \
                     seed too; keep one of them",
                    if place == DERIVED {
                        "derived"
                    } else {
                        "an axis"
                    }
                );
                self.push(&entry.key_location, &format!("{path}.train.seed"), message);
            }
        }
    }

    fn included_seeds(&mut self) {
        let repeats = self.sweep.get("repeats").map(Node::to_json);
        let repeats = repeats.and_then(|value| value.as_u64()).unwrap_or(1);
        let points = self.sweep.get("include").map(Node::items);
        for (at, point) in points.unwrap_or_default().iter().enumerate() {
            let seed = point.entry("train.seed").filter(stays);
            let Some(seed) = seed.filter(|_| repeats > 1) else {
                continue;
            };
            let message = format!(
                "`train.seed` is that of a point while `sweep.repeats` is {repeats}, and repeats vary \
                 the seed too; keep one of them"
            );
            let key = format!("sweep.include[{at}].train.seed");
            self.push(&seed.key_location, &key, message);
        }
    }
}

/// Whether an axis stays: `null` removes it, so that a layer can move it to another section.
fn stays(entry: &&NodeEntry) -> bool {
    !entry.value.is_null()
}

fn is_empty(node: &Node) -> bool {
    node.is_null() || (node.entries().is_empty() && node.items().is_empty())
}

/// A scalar as written.
fn shown(node: &Node) -> String {
    node.text()
        .map_or_else(|| node.to_json().to_string(), str::to_owned)
}
