//! The canonical form of a JSON value: the text that is hashed.

use serde_json::{Map, Value};

/// JSON without spaces, keys in byte order, integers without a fraction.
pub(crate) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => write_object(map, text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Number(number) => match number.as_f64() {
            // Up to 2⁵³ a float represents every integer exactly.
            Some(float)
                if number.is_f64()
                    && float.fract() == 0.0
                    && float.abs() <= 9_007_199_254_740_992.0 =>
            {
                text.push_str(&(float as i64).to_string());
            }
            _ => text.push_str(&number.to_string()),
        },
        other => text.push_str(&other.to_string()),
    }
}

/// The same of a map.
pub(super) fn write_object(map: &Map<String, Value>, text: &mut String) {
    let mut keys: Vec<(&String, &Value)> = map.iter().collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    text.push('{');
    for (index, (key, value)) in keys.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&Value::String(key.clone()).to_string());
        text.push(':');
        write(value, text);
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn canonical_json_has_one_way_to_write_a_value() {
        assert_eq!(
            canonical(&json!({"b": 1.0, "a": [0.5, 1e-7, "é\n"], "c": -0.0})),
            r#"{"a":[0.5,1e-7,"é\n"],"b":1,"c":0}"#
        );
    }
}
