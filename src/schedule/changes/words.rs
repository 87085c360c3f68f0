//! Changes of an experiment in words.

use kiln_core::{record::difference::is_same, units::few};
use serde_json::Value;

use super::{AXES, KeyChange};

/// Most values of an axis that are listed.
const MOST_VALUES: usize = 6;

/// The changes as lines of old and new value.
pub(in crate::schedule) fn describe(changes: &[KeyChange]) -> String {
    let lines: Vec<String> = changes.iter().map(described).collect();
    lines.join("\n")
}

fn described(change: &KeyChange) -> String {
    // Variables may be secrets.
    if change.key.starts_with("model.environment.") {
        return format!("  `{}`: another value", change.key);
    }
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let axis = AXES.iter().find_map(|section| {
        let key = change.key.strip_prefix(section)?.strip_prefix('.')?;
        Some((section, key))
    });
    match axis {
        Some((section, key)) => format!("  `{section}` `{key}`: {}", axis_change(old, new)),
        None => {
            let show = |value: Option<&Value>| {
                value.map_or_else(|| "(not set)".to_owned(), Value::to_string)
            };
            format!(
                "  `{}`: was {}, is now {}",
                change.key,
                show(old),
                show(new)
            )
        }
    }
}

/// Says how an axis changed.
fn axis_change(old: Option<&Value>, new: Option<&Value>) -> String {
    match (old, new) {
        (Some(Value::Array(before)), Some(Value::Array(after)))
            if before.len().max(after.len()) > MOST_VALUES =>
        {
            long_list_change(before, after)
        }
        (Some(old), Some(new)) => {
            format!("was {}, is now {}", shown_values(old), shown_values(new))
        }
        (None, Some(new)) => format!("axis added, {}", shown_values(new)),
        (Some(old), None) => format!("axis removed, was {}", shown_values(old)),
        (None, None) => "unchanged".to_owned(),
    }
}

/// The values that were added to a long list, and those that were removed.
fn long_list_change(before: &[Value], after: &[Value]) -> String {
    let without = |values: &[Value], others: &[Value]| -> Vec<String> {
        let is_new = |value: &&Value| !others.iter().any(|other| is_same(value, other));
        values.iter().filter(is_new).map(Value::to_string).collect()
    };
    let named = |word: &str, values: Vec<String>| {
        (!values.is_empty()).then(|| format!("{word} {}", few(&values, MOST_VALUES)))
    };
    let parts = [
        named("added", without(after, before)),
        named("removed", without(before, after)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    match parts.is_empty() {
        true => "the same values in another order or number".to_owned(),
        false => format!(
            "{} (was {} values, is now {})",
            parts.join(", "),
            before.len(),
            after.len()
        ),
    }
}

/// The values of an axis, `[1, 2, 4]`; of a long list the first ones.
fn shown_values(values: &Value) -> String {
    match values {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            format!("[{}]", few(&values, MOST_VALUES))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::spec::Experiment;

    use super::{
        super::{changes, tests::experiment},
        *,
    };

    #[test]
    fn each_changed_key_is_named_with_both_values() {
        let found = changes(
            &experiment("train: {batch_size: 4, steps: 3}"),
            &experiment("train: {batch_size: 8, epochs: 1}"),
        );
        assert_eq!(
            describe(&found),
            "  `train.batch_size`: was 4, is now 8\n  `train.epochs`: was (not set), is now 1\n  \
             `train.steps`: was 3, is now (not set)"
        );
    }

    #[test]
    fn axes_of_a_sweep_are_compared_one_by_one() {
        let told = |old: &str, new: &str| {
            let of = |swept: &str| experiment(&format!("sweep: {{{swept}}}"));
            describe(&changes(&of(old), &of(new)))
        };
        assert_eq!(
            told(
                "grid: {train.optimizer.learning_rate: [0.001, 0.01], train.batch_size: [4, 8]}",
                "grid: {train.optimizer.learning_rate: [0.001, 0.01, 0.03], train.batch_size: \
                 [4, 8]}"
            ),
            "  `sweep.grid` `train.optimizer.learning_rate`: was [0.001, 0.01], is now [0.001, 0.01, \
             0.03]"
        );
        assert_eq!(
            told("grid: {model.size: [8]}", "zip: {train.seed: [1, 2]}"),
            "  `sweep.grid` `model.size`: axis removed, was [8]\n  `sweep.zip` `train.seed`: axis \
             added, [1, 2]"
        );
        assert_eq!(
            told(
                "grid: {train.seed: [1, 2, 3, 4, 5, 6, 7, 8]}",
                "grid: {train.seed: [1, 2, 3, 4, 5, 6, 7, 9]}"
            ),
            "  `sweep.grid` `train.seed`: added 9, removed 8 (was 8 values, is now 8)"
        );
    }

    #[test]
    fn the_values_of_variables_are_not_told() {
        let of = |key: &str| {
            serde_yaml::from_str::<Experiment>(&format!(
                "{{kiln: 1, name: x, model: {{kind: command, argv: [run], environment: {{KEY: \
                 {key}}}}}}}"
            ))
            .unwrap()
        };
        assert_eq!(
            describe(&changes(&of("abc"), &of("def"))),
            "  `model.environment.KEY`: another value"
        );
    }
}
