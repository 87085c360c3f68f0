//! Axes written as a range: `{from: 1.0e-4, to: 1.0e-2, steps: 5, scale: log}` stands for a list.
//!
//! In: the tree of one layer. Out: the same tree with lists, so that nothing behind this module
//! knows of ranges; faulty ranges stay and have a problem. A generated value has at most 6
//! significant digits, and both ends are as written.

use std::collections::HashSet;

use super::{
    axes::{AXES, SAMPLE_AXES},
    keys,
    node::{Node, NodeContent},
    problem::Problem,
    scalar::{Resolved, Scalar},
    shapes::KeyShape,
    suggest::{did_you_mean, listed},
};
use crate::limits::{AXIS_VALUES, YAML_VALUES};

const RANGE_KEYS: [&str; 4] = ["from", "to", "steps", "scale"];
/// Significant digits of a generated value.
const DIGITS: usize = 6;

/// Whether the value of an axis is meant as a range.
pub(super) fn is_range(node: &Node) -> bool {
    let mut entries = node.entries().iter();
    entries.any(|entry| RANGE_KEYS.contains(&entry.key.as_str()))
}

/// Replaces the ranges in a layer by their lists, and returns the faults of those that have none.
pub(super) fn expand(tree: &mut Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut values = 0;
    for place in AXES.into_iter().filter(|place| *place != SAMPLE_AXES) {
        let Some(NodeContent::Map(entries)) =
            tree.get_path_mut(place).map(|node| &mut node.content)
        else {
            continue;
        };
        for entry in entries.iter_mut().filter(|entry| is_range(&entry.value)) {
            let full = format!("{}.{}", place.join("."), entry.key);
            match NumberRange::read(&full, &entry.key, &entry.value, true) {
                // Keys that vary together need as many values as are written.
                Ok(range) => {
                    values += range.steps;
                    if let Err(exceeded) = YAML_VALUES.check(values) {
                        let message = format!("`{full}`: with this range, {exceeded}");
                        problems.push(Problem::new(&entry.value.location, full, message));
                        return problems;
                    }
                    entry.value.content = NodeContent::List(range.listed(!place.contains(&"zip")));
                }
                Err(faults) => problems.extend(faults),
            }
        }
    }
    problems
}

/// The numbers between two ends.
#[derive(Debug)]
pub(super) struct NumberRange {
    from: Node,
    to: Node,
    ends: (f64, f64),
    /// 0 if the range has no steps.
    steps: u64,
    is_log: bool,
    is_integer: bool,
    /// Place of the generated values.
    whole: Node,
}

impl NumberRange {
    /// Reads the range of an axis; `full` is its place, `has_steps` whether `steps` is needed or
    /// refused.
    pub(super) fn read(
        full: &str,
        key: &str,
        node: &Node,
        has_steps: bool,
    ) -> Result<Self, Vec<Problem>> {
        let allowed: Vec<&str> = RANGE_KEYS
            .into_iter()
            .filter(|name| has_steps || *name != "steps")
            .collect();
        let mut problems = Vec::new();
        let unknown = |name: &str| !allowed.contains(&name);
        for entry in node.entries().iter().filter(|entry| unknown(&entry.key)) {
            let message = format!(
                "unknown key `{full}.{}`; a range here has {}{}",
                entry.key,
                listed(&allowed, "and"),
                did_you_mean(&entry.key, allowed.iter().copied())
            );
            problems.push(Problem::new(&entry.key_location, full, message));
        }
        let kind = number_kind(key);
        if kind == NumberKind::None {
            let message =
                format!("`{full}` is a range, but `{key}` does not hold numbers; list its values");
            return Err(vec![Problem::new(&node.location, full, message)]);
        }
        let mut end =
            |name: &str| read_end(full, node, name, kind).map_err(|problem| problems.push(problem));
        let (from, to) = (end("from"), end("to"));
        let steps = match has_steps {
            true => read_steps(full, node).map_err(|problem| problems.push(problem)),
            false => Ok(0),
        };
        let is_log = read_scale(full, node).map_err(|problem| problems.push(problem));
        let (Ok((from, first)), Ok((to, last)), Ok(steps), Ok(is_log)) = (from, to, steps, is_log)
        else {
            return Err(problems);
        };
        problems.extend(faulty_ends(full, (&from, first), (&to, last), is_log));
        if !problems.is_empty() {
            return Err(problems);
        }
        let are_integers = [&from, &to]
            .iter()
            .all(|end| matches!(end.scalar_value(), Some(Resolved::Integer(_))));
        Ok(Self {
            is_integer: kind == NumberKind::Integer || (kind == NumberKind::Any && are_integers),
            from,
            to,
            ends: (first, last),
            steps,
            is_log,
            whole: Node::empty_map(node.location.clone()),
        })
    }

    /// Both ends, as written.
    pub(super) fn ends(&self) -> impl Iterator<Item = &Node> {
        [&self.from, &self.to].into_iter()
    }

    /// The values at equal distances; each once if they are `distinct`.
    fn listed(&self, distinct: bool) -> Vec<Node> {
        let last = self.steps - 1;
        let mut seen = HashSet::new();
        let values = (0..self.steps).map(|step| match step {
            0 => self.from.clone(),
            step if step == last => self.to.clone(),
            step => self.value(step as f64 / last as f64),
        });
        values
            .filter(|value| !distinct || seen.insert(value.to_json().as_f64().map(f64::to_bits)))
            .collect()
    }

    /// The value at a fraction of the way, rounded.
    fn value(&self, fraction: f64) -> Node {
        let (from, to) = self.ends;
        let value = if self.is_log {
            let (from, to) = (libm::log(from), libm::log(to));
            libm::exp(from + (to - from) * fraction)
        } else {
            from + (to - from) * fraction
        };
        self.node(value)
    }

    /// A random value, from 64 random bits.
    pub(super) fn random(&self, bits: u64) -> Node {
        let fraction = crate::kinds::random::fraction(bits);
        if !self.is_integer || self.is_log {
            return self.value(fraction);
        }
        // Every integer is equally likely, the ends too.
        let (low, high) = self.bounds();
        self.node((low + fraction * (high - low + 1.0)).floor().min(high))
    }

    /// The lower and the higher end.
    fn bounds(&self) -> (f64, f64) {
        let (from, to) = self.ends;
        (from.min(to), from.max(to))
    }

    fn node(&self, value: f64) -> Node {
        let text = if self.is_integer {
            format!("{:.0}", value.round())
        } else {
            let rounded = format!("{value:.*e}", DIGITS - 1);
            let rounded: f64 = rounded.parse().unwrap_or(value);
            // An end with more digits, such as 0.9999999, may be rounded past itself.
            let (low, high) = self.bounds();
            serde_json::Value::from(rounded.clamp(low, high)).to_string()
        };
        Node {
            content: NodeContent::Scalar(Scalar::plain(&text)),
            location: self.whole.location.clone(),
        }
    }
}

/// The numbers that a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberKind {
    Integer,
    Number,
    /// A key of a user's own model, or an unknown key, which another check reports.
    Any,
    None,
}

/// The numbers that a key holds for any kind of its map.
fn number_kind(key: &str) -> NumberKind {
    let Some(shapes) = keys::of_every_kind(key) else {
        return NumberKind::Any;
    };
    let alternatives = shapes.iter().flat_map(|shape| match shape {
        KeyShape::Any(shapes) => shapes.iter().collect(),
        shape => vec![shape],
    });
    let kinds: Vec<NumberKind> = alternatives
        .filter_map(|shape| match shape {
            KeyShape::Integer { .. } => Some(NumberKind::Integer),
            KeyShape::Number(_) => Some(NumberKind::Number),
            KeyShape::Anything | KeyShape::Scalar { .. } => Some(NumberKind::Any),
            _ => None,
        })
        .collect();
    let first = kinds.first().copied();
    match first {
        Some(first) if kinds.iter().all(|kind| *kind == first) => first,
        Some(_) => NumberKind::Any,
        None => NumberKind::None,
    }
}

fn missing(full: &str, node: &Node, name: &str, example: &str) -> Problem {
    let message = format!("`{full}.{name}` is missing; a range is written `{example}`");
    Problem::new(&node.location, full, message)
}

const EXAMPLE: &str = "{from: 8, to: 64, steps: 4}";

fn read_end(full: &str, node: &Node, name: &str, kind: NumberKind) -> Result<(Node, f64), Problem> {
    let Some(end) = node.get(name).filter(|end| !end.is_null()) else {
        return Err(missing(full, node, name, EXAMPLE));
    };
    let value = match end.scalar_value() {
        Some(Resolved::Integer(value)) => Some(value as f64),
        Some(Resolved::Float(value)) if kind != NumberKind::Integer && value.is_finite() => {
            Some(value)
        }
        _ => None,
    };
    let allowed = match kind {
        NumberKind::Integer => "an integer",
        _ => "a number",
    };
    value.map(|value| (end.clone(), value)).ok_or_else(|| {
        let message = format!("`{full}.{name}` is {}; it must be {allowed}", end.found());
        Problem::new(&end.location, full, message)
    })
}

fn read_steps(full: &str, node: &Node) -> Result<u64, Problem> {
    let Some(steps) = node.get("steps").filter(|steps| !steps.is_null()) else {
        return Err(missing(full, node, "steps", EXAMPLE));
    };
    let most = AXIS_VALUES.value();
    let value = match steps.scalar_value() {
        Some(Resolved::Integer(value)) => u64::try_from(value).ok(),
        _ => None,
    };
    value.filter(|value| (2..=most).contains(value)).ok_or_else(|| {
        let more = value.filter(|value| *value > most);
        let remedy = more.map(|value| format!("; {}", AXIS_VALUES.remedy(Some(value))));
        let message = format!(
            "`{full}.steps` is {}; it must be an integer from 2 to {most}, the number of values{}",
            steps.found(),
            remedy.unwrap_or_default()
        );
        Problem::new(&steps.location, full, message)
    })
}

/// Whether the scale is logarithmic.
fn read_scale(full: &str, node: &Node) -> Result<bool, Problem> {
    let Some(scale) = node.get("scale").filter(|scale| !scale.is_null()) else {
        return Ok(false);
    };
    match scale.text() {
        Some("linear") => Ok(false),
        Some("log") => Ok(true),
        text => {
            let hint = did_you_mean(text.unwrap_or_default(), ["linear", "log"]);
            let message = format!(
                "`{full}.scale` is {}; it must be `linear` or `log`{hint}",
                scale.found()
            );
            Err(Problem::new(&scale.location, full, message))
        }
    }
}

fn faulty_ends(full: &str, from: (&Node, f64), to: (&Node, f64), is_log: bool) -> Vec<Problem> {
    if from.1 == to.1 {
        let message = format!(
            "`{full}.from` and `{full}.to` are both {}; a range needs two ends",
            to.0.found()
        );
        return vec![Problem::new(&to.0.location, full, message)];
    }
    let mut problems = Vec::new();
    for (name, (end, value)) in [("from", from), ("to", to)] {
        if is_log && value <= 0.0 {
            let message = format!(
                "`{full}.{name}` is {}; with `scale: log` both ends must be above 0",
                end.found()
            );
            problems.push(Problem::new(&end.location, full, message));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::read::read_text_as_tree;

    fn range(key: &str, text: &str) -> Result<String, String> {
        let tree = read_text_as_tree(text, &"x".into()).unwrap().tree;
        match NumberRange::read("axis", key, &tree, true) {
            Ok(range) => {
                let listed = range.listed(true);
                Ok(serde_json::Value::from_iter(listed.iter().map(Node::to_json)).to_string())
            }
            Err(problems) => Err(problems[0].message.clone()),
        }
    }

    #[test]
    fn values_are_short_and_the_ends_are_as_written() {
        let cases = [
            (
                "train.optimizer.learning_rate",
                "{from: 1.0e-4, to: 1.0e-2, steps: 5, scale: log}",
                "[0.0001,0.000316228,0.001,0.00316228,0.01]",
            ),
            (
                "model.dropout",
                "{from: 0, to: 0.3, steps: 4}",
                "[0,0.1,0.2,0.3]",
            ),
            (
                "model.dropout",
                "{from: 0.5, to: 0.1, steps: 3}",
                "[0.5,0.3,0.1]",
            ),
            (
                "train.batch_size",
                "{from: 1, to: 1024, steps: 11, scale: log}",
                "[1,2,4,8,16,32,64,128,256,512,1024]",
            ),
            (
                "train.batch_size",
                "{from: 1, to: 4, steps: 9, scale: linear}",
                "[1,2,3,4]",
            ),
            ("data.num_workers", "{from: 0, to: 8, steps: 3}", "[0,4,8]"),
            (
                "train.seed",
                "{from: 1000001, to: 3000003, steps: 3}",
                "[1000001,2000002,3000003]",
            ),
            (
                "train.optimizer.beta2",
                "{from: 0.999999, to: 0.9999999, steps: 4}",
                "[0.999999,0.9999999]",
            ),
        ];
        for (key, text, expected) in cases {
            assert_eq!(range(key, text).as_deref(), Ok(expected), "{key}: {text}");
        }
    }

    #[test]
    fn a_random_value_is_not_rounded_past_an_end() {
        let text = "{from: 0.9999994, to: 0.9999999}";
        let tree = read_text_as_tree(text, &"x".into()).unwrap().tree;
        let range = NumberRange::read("axis", "train.optimizer.beta2", &tree, false).unwrap();
        for (bits, end) in [(0, 0.999_999_4), (u64::MAX, 0.999_999_9)] {
            assert_eq!(range.random(bits).to_json(), serde_json::json!(end));
        }
    }

    #[test]
    fn a_faulty_range_says_what_is_wrong() {
        let cases = [
            (
                "train.batch_size",
                "{from: 1.5, to: 8, steps: 3}",
                "an integer",
            ),
            (
                "model.dropout",
                "{from: 0, steps: 3}",
                "`axis.to` is missing",
            ),
            ("model.dropout", "{from: 0, to: 1, steps: 1}", "from 2 to"),
            (
                "model.dropout",
                "{from: 0, to: x, steps: 3}",
                "it must be a number",
            ),
            (
                "model.dropout",
                "{from: 0, to: .inf, steps: 3}",
                "it must be a number",
            ),
            (
                "model.dropout",
                "{from: 0, to: 1, steps: 3, scale: log}",
                "above 0",
            ),
            (
                "model.dropout",
                "{from: 0, to: 1, steps: 3, scale: logs}",
                "did you mean `log`?",
            ),
            (
                "model.dropout",
                "{from: 0, to: 1, step: 3}",
                "did you mean `steps`?",
            ),
            ("model.dropout", "{from: 1, to: 1, steps: 3}", "two ends"),
            (
                "train.precision",
                "{from: 1, to: 2, steps: 3}",
                "does not hold numbers",
            ),
        ];
        for (key, text, part) in cases {
            let found = range(key, text).unwrap_err();
            assert!(found.contains(part), "{key}: {text} -> {found}");
        }
    }

    #[test]
    fn all_ranges_together_are_within_the_limit_of_values() {
        let axes: String = (0..4)
            .map(|axis| format!("model.own{axis}: {{from: 0, to: 9, steps: 30000}}, "))
            .collect();
        let text = format!("sweep: {{grid: {{{axes}}}}}");
        let mut tree = read_text_as_tree(&text, &"x".into()).unwrap().tree;
        let problems = expand(&mut tree);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].message.contains("KILN_LIMIT_YAML_VALUES"),
            "{}",
            problems[0].message
        );
    }
}
