//! Matches a point's value against a key of an `exclude` entry: an equal value, or a quoted
//! comparison such as `">8"`.

use serde_json::Value;

use crate::spec::{Operator, condition};

/// The condition of an entry on one key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Equals(Value),
    Compares(Operator, f64),
}

impl Condition {
    /// The error shows a valid comparison.
    pub(super) fn read(asked: &Value) -> Result<Self, String> {
        let Some((operator, number)) = asked.as_str().and_then(condition) else {
            return Ok(Self::Equals(asked.clone()));
        };
        match number.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Self::Compares(operator, number)),
            _ => Err(format!(
                "{asked} is not a comparison; write one of {} and a number, such as \">8\"",
                Operator::listed(" ")
            )),
        }
    }

    /// The same text for equal values: numbers compare by value, maps without the order of their
    /// keys.
    pub(super) fn identity(value: &Value) -> String {
        sorted(value)
    }

    /// Whether a value of a point matches; a value that is not a number matches no comparison.
    pub(super) fn matches(&self, found: &Value) -> bool {
        match self {
            Self::Equals(asked) => are_equal(asked, found),
            Self::Compares(operator, number) => found
                .as_f64()
                .and_then(|found| found.partial_cmp(number))
                .is_some_and(|ordering| operator.holds(ordering)),
        }
    }
}

fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), sorted(value)))
                .collect();
            entries.sort_unstable();
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(sorted).collect();
            format!("[{}]", items.join(","))
        }
        scalar => match scalar.as_f64() {
            // Zero has two signs.
            Some(number) => format!("{:e}", number + 0.0),
            None => scalar.to_string(),
        },
    }
}

/// Whether two values are equal: numbers by value, also inside lists and maps.
fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other)
                    .all(|(one, other)| are_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, value)| other.get(key).is_some_and(|other| are_equal(value, other)))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(asked: Value, found: Value) -> bool {
        Condition::read(&asked).unwrap().matches(&found)
    }

    #[test]
    fn equal_values_have_one_identity() {
        let values = [
            json!(1),
            json!(1.0),
            json!(0),
            json!(-0.0),
            json!("1"),
            json!(null),
            json!(true),
            json!({"a": 1, "b": [2]}),
            json!({"b": [2], "a": 1}),
            json!({"a": 1.0, "b": [2]}),
            json!([1, 2]),
            json!([2, 1]),
            json!(u64::MAX),
        ];
        for one in &values {
            for other in &values {
                assert_eq!(
                    Condition::identity(one) == Condition::identity(other),
                    Condition::Equals(one.clone()).matches(other),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn comparisons_and_equal_values_match() {
        assert!(matches(json!(">8"), json!(9)) && !matches(json!(">8"), json!(8)));
        assert!(
            matches(json!(" >8"), json!(9)),
            "spec also reads it as a comparison"
        );
        assert!(
            matches(json!(">= 8"), json!(8))
                && matches(json!("<8"), json!(7.5))
                && matches(json!("<=8"), json!(8))
        );
        assert!(
            matches(json!("!=8"), json!(7))
                && !matches(json!("!=8"), json!(8))
                && matches(json!("==8"), json!(8.0))
        );
        assert!(
            matches(json!(1), json!(1.0))
                && matches(json!({"a": 1, "b": [2]}), json!({"b": [2.0], "a": 1.0}))
                && !matches(json!({"a": 1}), json!({"a": 1, "b": [2]}))
                && matches(json!("auto"), json!("auto"))
                && !matches(json!(1), json!(2))
        );
        assert!(!matches(json!(">0"), json!("auto")));
        assert!(
            Condition::read(&json!(">many"))
                .unwrap_err()
                .contains("\">8\"")
        );
    }
}
