//! The value of a derived key at a point: the expression of `sweep.derive`, computed and checked as
//! if its value were written at the key.

use serde_json::{Map, Value};

use super::{
    expression::{Expression, to_digits, without_noise},
    keys,
    node::Node,
    problem::Location,
    shapes::KeyShape,
    value::{allowed, fault},
};

/// An expression, as a message shows one.
pub(super) const EXAMPLE: &str = "64 / train.batch_size";

/// Significant digits of a value in a message.
const SHOWN_DIGITS: usize = 6;
/// Integers below this are exact.
const LARGEST_EXACT: f64 = (1_u64 << 53) as f64;

/// A derived key with its expression.
#[derive(Clone, Debug)]
pub(crate) struct Derivation {
    key: String,
    text: String,
    expression: Expression,
    /// The allowed values of the key, for every kind of the maps around it.
    shapes: Vec<KeyShape>,
}

impl Derivation {
    /// Reads the expression of a key.
    ///
    /// # Errors
    /// It is not an expression.
    pub(crate) fn read(key: &str, expression: &Value) -> Result<Self, String> {
        let Some(text) = expression.as_str() else {
            return Err(format!(
                "it is {expression}; it must be an expression, such as `{EXAMPLE}`"
            ));
        };
        Ok(Self {
            key: key.to_owned(),
            text: text.to_owned(),
            expression: Expression::read(text)?,
            shapes: keys::of_every_kind(key).unwrap_or_default(),
        })
    }

    /// The keys that the expression uses, each once.
    pub(crate) fn keys(&self) -> &[String] {
        self.expression.keys()
    }

    /// The value of the key where [`Derivation::keys`] have these values.
    ///
    /// # Errors
    /// The expression has no value there, or one that the key does not take.
    pub(crate) fn value(&self, of_keys: &[Value]) -> Result<Value, String> {
        let text = &self.text;
        let numbers = self.numbers(of_keys)?;
        let number = self.expression.value(&numbers);
        let number = number.map_err(|why| format!("`{text}` {why}{}", self.place(of_keys)))?;
        let value = as_written(number);
        let node = Node::from_json(&value, &Location::named(""));
        let takes = |shape: &KeyShape| fault(&self.key, shape, &node).is_empty();
        if self.shapes.iter().any(takes) {
            return Ok(value);
        }
        Err(format!(
            "`{text}` is {}{}; it must be {}",
            as_written(to_digits(number, SHOWN_DIGITS)),
            self.place(of_keys),
            self.allowed()
        ))
    }

    fn numbers(&self, of_keys: &[Value]) -> Result<Vec<f64>, String> {
        let number = |(key, value): (&String, &Value)| {
            value.as_f64().ok_or_else(|| {
                let found = match value {
                    Value::Null => "not set".to_owned(),
                    Value::String(text) => format!("`{text}`"),
                    other => format!("`{other}`"),
                };
                format!("`{}` needs numbers, and `{key}` is {found} here", self.text)
            })
        };
        self.keys().iter().zip(of_keys).map(number).collect()
    }

    /// `` where `train.batch_size` is 24``.
    fn place(&self, of_keys: &[Value]) -> String {
        let pairs = self.keys().iter().zip(of_keys);
        let pairs: Vec<String> = pairs
            .map(|(key, value)| format!("`{key}` is {value}"))
            .collect();
        match pairs.is_empty() {
            true => String::new(),
            false => format!(" where {}", pairs.join(" and ")),
        }
    }

    fn allowed(&self) -> String {
        let of_numbers = self.shapes.iter().filter(|shape| shape.holds_numbers());
        let mut words: Vec<String> = of_numbers.map(allowed).collect();
        words.dedup();
        words.join(", or ")
    }
}

/// The keys that the expressions of `sweep.derive` use.
pub(crate) fn sources(derive: &Map<String, Value>) -> Vec<String> {
    let expressions = derive.values().filter_map(Value::as_str);
    let read = expressions.filter_map(|text| Expression::read(text).ok());
    read.flat_map(|expression| expression.keys().to_vec())
        .collect()
}

/// The number as one would write it: an integer without a point.
fn as_written(number: f64) -> Value {
    let rounded = without_noise(number);
    match rounded.fract() == 0.0 && rounded.abs() < LARGEST_EXACT {
        true => Value::from(rounded as i64),
        false => Value::from(rounded),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(key: &str, text: &str, of_keys: &[Value]) -> Result<Value, String> {
        Derivation::read(key, &json!(text))?.value(of_keys)
    }

    #[test]
    fn a_value_is_the_number_that_one_would_write() {
        let rate = "train.optimizer.learning_rate";
        let cases = [
            ("train.grad_accumulation", "64 / a", json!(8), json!(8)),
            (rate, "3e-4 * a", json!(2), json!(0.0006)),
            (rate, "0.1 * a", json!(3), json!(0.3)),
            (rate, "a / 10", json!(3), json!(0.3)),
            (rate, "a / 3", json!(1), json!(0.333333333333333)),
            (rate, "a / 8", json!(8.0), json!(1)),
            ("train.batch_size", "0.7 * a", json!(10), json!(7)),
            ("model.values.scale", "a - 2", json!(1.5), json!(-0.5)),
            ("model.dropout", "0 * -a", json!(1), json!(0)),
            ("data.num_workers", "a / 2", json!(8), json!(4)),
        ];
        for (key, text, of_key, expected) in cases {
            let found = value(key, text, &[of_key]).unwrap();
            assert_eq!(found.to_string(), expected.to_string(), "{key}: {text}");
        }
    }

    #[test]
    fn a_value_that_the_key_does_not_take_is_refused_with_where_it_comes_from() {
        let accumulation = "train.grad_accumulation";
        let cases = [
            (
                accumulation,
                "64 / a",
                json!(24),
                "`64 / a` is 2.66667 where `a` is 24; it must be an integer from 1 to 1048576",
            ),
            (
                accumulation,
                "a - 8",
                json!(8),
                "`a - 8` is 0 where `a` is 8; it must be an integer from 1 to 1048576",
            ),
            (
                "train.optimizer.learning_rate",
                "-a",
                json!(0.5),
                "`-a` is -0.5 where `a` is 0.5; it must be a number above 0",
            ),
            (
                accumulation,
                "64 / a",
                json!(0),
                "`64 / a` divides by 0 where `a` is 0",
            ),
            (
                accumulation,
                "64 / a",
                json!("auto"),
                "`64 / a` needs numbers, and `a` is `auto` here",
            ),
            (
                accumulation,
                "64 / a",
                json!(null),
                "`64 / a` needs numbers, and `a` is not set here",
            ),
        ];
        for (key, text, of_key, expected) in cases {
            assert_eq!(value(key, text, &[of_key]), Err(expected.to_owned()));
        }
        let refused = Derivation::read(accumulation, &json!(8)).unwrap_err();
        assert!(refused.contains("it must be an expression"), "{refused}");
    }
}
