//! `sweep.together`: the axes whose values run side by side, in blocks.

use super::SweepChecker;
use crate::spec::{
    axes::{derived_keys, may_vary, varied_keys},
    node::{Node, NodeContent},
    problem::Location,
    suggest::{listed, nearest},
};

const KEY: &str = "sweep.together";

/// A block runs on one device.
const OF_DEVICES: [&str; 2] = ["run.devices", "run.devices_per_trial"];

impl SweepChecker<'_> {
    /// Checks that each entry is an axis of this sweep, once.
    pub(super) fn together(&mut self) {
        let Some(node) = self.sweep.get("together").filter(|node| !node.is_null()) else {
            return;
        };
        // Another type has its problem already.
        let NodeContent::List(entries) = &node.content else {
            return;
        };
        let mut axes = varied_keys(self.tree);
        // They follow from the axes of a block.
        axes.retain(|key| !derived_keys(self.tree).any(|derived| derived == *key));
        let mut known: Vec<&str> = Vec::new();
        for entry in entries {
            let Some(key) = entry.text() else { continue };
            let message = match axes.contains(&key) {
                false => Some(not_an_axis(key, &axes)),
                true if OF_DEVICES.contains(&key) => Some(format!(
                    "`{KEY}` names `{key}`, but a block runs on one device; remove it"
                )),
                true => known
                    .contains(&key)
                    .then(|| format!("`{KEY}` names `{key}` twice")),
            };
            known.push(key);
            if let Some(message) = message {
                self.push(&entry.location, KEY, message);
            }
        }
    }
}

fn not_an_axis(key: &str, axes: &[&str]) -> String {
    let near = nearest(key, axes.iter().copied()).or_else(|| {
        let ending = format!(".{key}");
        axes.iter().copied().find(|axis| axis.ends_with(&ending))
    });
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None if axes.is_empty() => "this sweep has no axes".to_owned(),
        None if may_vary(key) => format!(
            "add it to `sweep.grid`, or name one of the axes {}",
            listed(axes, "and")
        ),
        None => format!("the axes are {}", listed(axes, "and")),
    };
    format!("`{KEY}` names `{key}`, which is not an axis of this sweep; {hint}")
}

/// Blocks ask for the order that changes who is first in them, unless a layer has chosen one.
pub(in crate::spec) fn resolve_order(user: &Node, tree: &mut Node) {
    let together = user.get_path(&["sweep", "together"]);
    let has_blocks = together.is_some_and(|axes| !axes.items().is_empty());
    let is_chosen = user
        .get_path(&["sweep", "order"])
        .is_some_and(|order| !order.is_null());
    if has_blocks && !is_chosen {
        let rotated = Node::from_json(&"rotated".into(), &Location::named("default"));
        tree.set_path(&["sweep", "order"], rotated);
    }
}
