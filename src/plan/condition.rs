//! When a point matches a key of an `exclude` entry: an equal value, or a quoted comparison such as `">8"`.

use std::cmp::Ordering;

use serde_json::Value;

const OPERATORS: [(&str, &[Ordering]); 6] = [
    (">=", &[Ordering::Greater, Ordering::Equal]),
    ("<=", &[Ordering::Less, Ordering::Equal]),
    ("==", &[Ordering::Equal]),
    ("!=", &[Ordering::Less, Ordering::Greater]),
    (">", &[Ordering::Greater]),
    ("<", &[Ordering::Less]),
];

/// What an entry asks of one key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    Equals(Value),
    /// The orderings of found against asked that match.
    Compares(&'static [Ordering], f64),
}

impl Condition {
    /// The error says what a comparison may look like.
    pub(super) fn read(asked: &Value) -> Result<Self, String> {
        let Value::String(text) = asked else { return Ok(Self::Equals(asked.clone())) };
        let Some((operator, orderings)) = OPERATORS.iter().find(|(operator, _)| text.starts_with(operator)) else {
            return Ok(Self::Equals(asked.clone()));
        };
        match text[operator.len()..].trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Self::Compares(orderings, number)),
            _ => Err(format!("{text:?} is no comparison; write one of >= <= == != > < and a number, such as \">8\"")),
        }
    }

    /// Whether a value of a point matches; what is no number matches no comparison.
    pub(super) fn matches(&self, found: &Value) -> bool {
        match self {
            Self::Equals(asked) => match (asked.as_f64(), found.as_f64()) {
                (Some(asked), Some(found)) => asked == found,
                _ => asked == found,
            },
            Self::Compares(orderings, number) => {
                found.as_f64().and_then(|found| found.partial_cmp(number)).is_some_and(|ordering| orderings.contains(&ordering))
            }
        }
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
    fn comparisons_and_equal_values_match() {
        assert!(matches(json!(">8"), json!(9)) && !matches(json!(">8"), json!(8)));
        assert!(matches(json!(">= 8"), json!(8)) && matches(json!("<8"), json!(7.5)) && matches(json!("<=8"), json!(8)));
        assert!(matches(json!("!=8"), json!(7)) && !matches(json!("!=8"), json!(8)) && matches(json!("==8"), json!(8.0)));
        assert!(matches(json!(1), json!(1.0)) && matches(json!("auto"), json!("auto")) && !matches(json!(1), json!(2)));
        assert!(!matches(json!(">0"), json!("auto")));
        assert!(Condition::read(&json!(">many")).unwrap_err().contains("\">8\""));
    }
}
