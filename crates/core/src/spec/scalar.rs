//! The meaning of an unquoted YAML scalar: the core schema of YAML 1.2, with two exceptions
//! (`docs/experiment-file.md`).
//!
//! An integer that begins with 0 (`08`) becomes [`Resolved::LeadingZero`], and an empty value
//! [`Resolved::Empty`]: the checker refuses both, with the name of the key.

use serde_json::{Number, Value};

use crate::units::shorten_line;

/// Characters of a text that a message shows.
const LONGEST_SHOWN: usize = 60;

/// One scalar: its text and its meaning.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) quoted: bool,
    pub(super) value: Resolved,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Resolved {
    /// `null` or `~`.
    Null,
    /// No text after the colon.
    Empty,
    Bool(bool),
    Integer(i128),
    /// An integer written with a leading zero: 8 here, octal elsewhere.
    LeadingZero,
    Float(f64),
    Text,
}

impl Scalar {
    pub(super) fn plain(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            quoted: false,
            value: resolve(text),
        }
    }

    pub(super) fn quoted(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            quoted: true,
            value: Resolved::Text,
        }
    }

    pub(super) fn from_json(value: &Value) -> Self {
        match value {
            Value::String(text) => Self {
                text: text.clone(),
                quoted: false,
                value: Resolved::Text,
            },
            other => Self::plain(&other.to_string()),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        match self.value {
            Resolved::Null | Resolved::Empty => Value::Null,
            Resolved::Bool(value) => Value::Bool(value),
            // JSON has integers of 64 bits; a larger one is the nearest number.
            Resolved::Integer(value) => Number::from_i128(value)
                .or_else(|| Number::from_f64(value as f64))
                .map_or(Value::Null, Value::Number),
            Resolved::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
            Resolved::Text | Resolved::LeadingZero => Value::String(self.text.clone()),
        }
    }

    /// Whether JSON can hold the number exactly: it is finite, and an integer has at most 64 bits.
    pub(super) fn is_exact(&self) -> bool {
        match self.value {
            Resolved::Integer(value) => Number::from_i128(value).is_some(),
            // An integer of more than 128 bits was read as a float and is not exact.
            Resolved::Float(value) => value.is_finite() && self.text.contains(['.', 'e', 'E']),
            _ => true,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        matches!(self.value, Resolved::Text).then_some(self.text.as_str())
    }

    pub(super) fn found(&self) -> String {
        match self.value {
            Resolved::Empty => "empty".to_owned(),
            _ if self.quoted => format!("`\"{}\"`", shorten_line(&self.text, LONGEST_SHOWN)),
            _ => format!("`{}`", shorten_line(&self.text, LONGEST_SHOWN)),
        }
    }
}

/// The meaning of a plain scalar.
pub(super) fn resolve(text: &str) -> Resolved {
    match text {
        "" => Resolved::Empty,
        "~" | "null" | "Null" | "NULL" => Resolved::Null,
        "true" | "True" | "TRUE" => Resolved::Bool(true),
        "false" | "False" | "FALSE" => Resolved::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Resolved::Float(f64::NAN),
        _ => number(text).unwrap_or(Resolved::Text),
    }
}

fn number(text: &str) -> Option<Resolved> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Some(Resolved::Float(f64::from(sign) * f64::INFINITY));
    }
    if sign == 1 && digits == text {
        for (prefix, radix) in [("0x", 16), ("0o", 8)] {
            if let Some(rest) = text
                .strip_prefix(prefix)
                .filter(|rest| rest.chars().all(|c| c.is_digit(radix)))
            {
                return i128::from_str_radix(rest, radix)
                    .ok()
                    .map(Resolved::Integer);
            }
        }
    }
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        if digits.len() > 1 && digits.starts_with('0') {
            return Some(Resolved::LeadingZero);
        }
        return Some(digits.parse::<i128>().map_or_else(
            |_| text.parse().map_or(Resolved::Text, Resolved::Float),
            |n| Resolved::Integer(n * i128::from(sign)),
        ));
    }
    is_float(digits)
        .then(|| text.parse().ok().map(Resolved::Float))
        .flatten()
}

/// `[0-9]+(\.[0-9]*)?` or `\.[0-9]+`, then an optional exponent.
fn is_float(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_holds = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(exponent)
    });
    all_digits(whole)
        && all_digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent_holds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_mean_what_yaml_1_2_says() {
        let cases = [
            ("no", Resolved::Text),
            ("yes", Resolved::Text),
            ("on", Resolved::Text),
            ("1e3", Resolved::Float(1000.0)),
            ("3.0e-4", Resolved::Float(3.0e-4)),
            (".5", Resolved::Float(0.5)),
            ("5.", Resolved::Float(5.0)),
            ("-1", Resolved::Integer(-1)),
            ("+8", Resolved::Integer(8)),
            ("0x10", Resolved::Integer(16)),
            ("0o17", Resolved::Integer(15)),
            ("0x", Resolved::Text),
            ("08", Resolved::LeadingZero),
            ("0", Resolved::Integer(0)),
            ("1_000", Resolved::Text),
            ("1e", Resolved::Text),
            (".", Resolved::Text),
            ("-", Resolved::Text),
            ("12:30", Resolved::Text),
            ("-.inf", Resolved::Float(f64::NEG_INFINITY)),
            ("~", Resolved::Null),
            ("", Resolved::Empty),
            ("True", Resolved::Bool(true)),
            (
                "18446744073709551616",
                Resolved::Integer(18_446_744_073_709_551_616),
            ),
        ];
        for (text, meaning) in cases {
            assert_eq!(resolve(text), meaning, "{text}");
        }
        assert!(matches!(resolve(".nan"), Resolved::Float(value) if value.is_nan()));
    }
}
