//! `sweep.sample`: random points. They become the rows of `sweep.zip`, so that they are trials like
//! those of a written list.
//!
//! The value of an axis in a draw depends on the seed, the name of the axis and the number of the
//! draw alone, so more points leave the first ones as they are. A point that was drawn before is
//! dropped, and the next draw takes its place.

use std::collections::HashSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    axes::SAMPLE_AXES,
    node::{Node, NodeContent},
    problem::Problem,
    range_axis::{NumberRange, is_range},
};
use crate::{
    kinds::random::{GAMMA, mix, scaled},
    limits::YAML_VALUES,
};

/// Draws per point after which the axes count as having no further points.
const MOST_DRAWS: u64 = 1000;

/// Replaces `sweep.sample` in a checked tree by the rows of `sweep.zip`.
pub(super) fn expand(tree: &mut Node) -> Result<(), Problem> {
    let place = ["sweep", "sample"];
    let Some(sample) = tree.get_path(&place).filter(|node| node.is_map()).cloned() else {
        return Ok(());
    };
    let number = |name: &str| sample.get(name).and_then(|node| node.to_json().as_u64());
    let (count, seed) = (number("count").unwrap_or(1), number("seed").unwrap_or(1));
    let mut axes = Vec::new();
    for entry in sample.get("axes").map(Node::entries).unwrap_or_default() {
        axes.push(RandomAxis::read(&entry.key, &entry.value, seed)?);
    }
    let values = count.saturating_mul(axes.len() as u64);
    YAML_VALUES.check(values).map_err(|exceeded| {
        let message = format!("`sweep.sample`: with {count} points, {exceeded}");
        Problem::new(&sample.location, "sweep.sample", message)
    })?;
    let rows = rows(&axes, count).map_err(|found| {
        let at = sample.get("count").unwrap_or(&sample);
        let message = format!(
            "`sweep.sample.count` is {count}, but its axes have only {found} different points; \
             lower it, or widen the axes"
        );
        Problem::new(&at.location, "sweep.sample.count", message)
    })?;
    tree.remove_path(&place);
    for (index, axis) in axes.iter().enumerate() {
        let values = rows.iter().map(|row| row[index].clone()).collect();
        let list = Node {
            content: NodeContent::List(values),
            location: axis.values.location().clone(),
        };
        tree.set_path(&["sweep", "zip", axis.key], list);
    }
    Ok(())
}

/// Different rows; if there are not enough, their number.
fn rows(axes: &[RandomAxis<'_>], count: u64) -> Result<Vec<Vec<Node>>, usize> {
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    let mut missed = 0;
    for draw in 0.. {
        if rows.len() as u64 == count {
            break;
        }
        let row: Vec<Node> = axes.iter().map(|axis| axis.draw(draw)).collect();
        if seen.insert(Value::from_iter(row.iter().map(Node::to_json)).to_string()) {
            rows.push(row);
            missed = 0;
        } else {
            missed += 1;
            if missed > MOST_DRAWS {
                return Err(rows.len());
            }
        }
    }
    Ok(rows)
}

struct RandomAxis<'a> {
    key: &'a str,
    values: RandomValues<'a>,
    /// Start of the axis's own random stream.
    stream: u64,
}

enum RandomValues<'a> {
    Range(Box<NumberRange>, &'a Node),
    List(&'a Node),
}

impl RandomValues<'_> {
    fn location(&self) -> &super::problem::Location {
        match self {
            Self::Range(_, node) | Self::List(node) => &node.location,
        }
    }
}

impl<'a> RandomAxis<'a> {
    fn read(key: &'a str, node: &'a Node, seed: u64) -> Result<Self, Problem> {
        let full = format!("{}.{key}", SAMPLE_AXES.join("."));
        let values = match is_range(node) {
            true => NumberRange::read(&full, key, node, false)
                .map(|range| RandomValues::Range(Box::new(range), node))
                .map_err(|mut problems| problems.swap_remove(0))?,
            false => RandomValues::List(node),
        };
        let hash = Sha256::digest(format!("{seed} {key}"));
        let first = hash.iter().take(8);
        Ok(Self {
            key,
            values,
            stream: first.fold(0, |bits, byte| (bits << 8) | u64::from(*byte)),
        })
    }

    fn draw(&self, number: u64) -> Node {
        let counter = GAMMA.wrapping_mul(number.wrapping_add(1));
        let bits = mix(self.stream.wrapping_add(counter));
        match &self.values {
            RandomValues::Range(range, _) => range.random(bits),
            RandomValues::List(list) => {
                let index = scaled(bits, list.items().len().max(1) as u64);
                let item = list.items().get(index as usize);
                item.map_or_else(|| (*list).clone(), Node::clone)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::read::read_text_as_tree;

    fn zip(sample: &str) -> Result<Value, String> {
        let text = format!("sweep: {{sample: {sample}}}");
        let mut tree = read_text_as_tree(&text, &"x".into()).unwrap().tree;
        match expand(&mut tree) {
            Ok(()) => Ok(tree.to_json()["sweep"]["zip"].clone()),
            Err(problem) => Err(problem.message),
        }
    }

    /// The numbers are part of the format: they never change.
    #[test]
    fn the_points_of_a_seed_are_these() {
        let found = zip(
            "{count: 4, axes: {train.optimizer.learning_rate: {from: 1.0e-5, to: 1.0e-2, scale: \
             log}, train.batch_size: {from: 4, to: 64}, model.dropout: [0.0, 0.1, 0.2]}}",
        );
        assert_eq!(
            found.unwrap(),
            serde_json::json!({
                "train.optimizer.learning_rate": [0.000584852, 0.000283756, 0.0000430597, 0.00267145],
                "train.batch_size": [26, 46, 6, 41],
                "model.dropout": [0.1, 0.1, 0.1, 0.0],
            })
        );
    }

    #[test]
    fn more_points_and_more_axes_leave_the_values_as_they_are() {
        let axes = "train.batch_size: {from: 1, to: 1000}, train.steps: [1, 2, 3]";
        let few = zip(&format!("{{count: 20, seed: 7, axes: {{{axes}}}}}")).unwrap();
        let many = zip(&format!(
            "{{count: 30, seed: 7, axes: {{{axes}, model.dropout: {{from: 0, to: 0.5}}}}}}"
        ))
        .unwrap();
        for (key, values) in few.as_object().unwrap() {
            assert_eq!(
                values.as_array().unwrap()[..],
                many[key].as_array().unwrap()[..20]
            );
        }
        let other = zip(&format!("{{count: 20, seed: 8, axes: {{{axes}}}}}")).unwrap();
        assert_ne!(few, other);
    }

    #[test]
    fn every_value_of_a_small_range_is_drawn_once_and_no_more_are_there() {
        let found = zip("{count: 5, axes: {train.batch_size: {from: 4, to: 8}}}").unwrap();
        let mut sizes: Vec<u64> =
            serde_json::from_value(found["train.batch_size"].clone()).unwrap();
        sizes.sort_unstable();
        assert_eq!(sizes, [4, 5, 6, 7, 8]);
        let refused = zip("{count: 6, axes: {train.batch_size: {from: 4, to: 8}}}").unwrap_err();
        assert!(refused.contains("only 5 different points"), "{refused}");
    }
}
