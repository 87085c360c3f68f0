//! Numbers as programs write them.

use serde_json::Value;

/// The number of a text, whose digits may stand in groups: `1,234.5`, `1_000`. NaN and infinity
/// count as numbers here.
pub(super) fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    text.parse()
        .ok()
        .or_else(|| without_groups(text)?.parse().ok())
}

/// A number without what stands between its groups of digits; `None` if that is no such number. A
/// decimal comma (`3,14`) is none: read as a group it would be another number.
fn without_groups(text: &str) -> Option<String> {
    let after_sign = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = after_sign.find(|letter: char| !letter.is_ascii_digit() && !",_".contains(letter));
    let (whole, rest) = after_sign.split_at(end.unwrap_or(after_sign.len()));
    let between = whole.find([',', '_'])?;
    let separator = whole[between..].chars().next()?;
    let mut groups = whole.split(separator);
    let is_number = |group: &str| !group.is_empty() && group.bytes().all(|it| it.is_ascii_digit());
    let has_first = groups
        .next()
        .is_some_and(|first| is_number(first) && (separator == '_' || is_first_group(first)));
    let has_rest = groups.all(|group| is_number(group) && (separator == '_' || group.len() == 3));
    let sign = &text[..text.len() - after_sign.len()];
    (has_first && has_rest).then(|| format!("{sign}{}{rest}", whole.replace(separator, "")))
}

/// Whether digits may stand before a comma between groups: `0,123` and `00,123` are no thousands.
fn is_first_group(digits: &str) -> bool {
    digits.len() <= 3 && !digits.starts_with('0')
}

/// The number of a JSON value.
pub(super) fn of_json(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => parse(text),
        _ => None,
    }
}

/// The value at a place: a key, or keys and indices separated by dots.
pub(super) fn at<'a>(value: &'a Value, place: &str) -> Option<&'a Value> {
    if let Some(found) = value.get(place) {
        return Some(found);
    }
    place.split('.').try_fold(value, |value, key| match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    })
}

/// The JSON object of a line. Python writes `NaN` and `Infinity`, which JSON does not have.
pub(super) fn object(line: &str) -> Option<Value> {
    let line = line.trim();
    if !(line.starts_with('{') && line.ends_with('}')) {
        return None;
    }
    let strict = serde_json::from_str(line).ok();
    strict.or_else(|| serde_json::from_str(&with_quoted_words(line)?).ok())
}

/// A number at the start of a text that is too large for an `f64`, such as `1e400`.
fn too_large(text: &str) -> Option<&str> {
    if !text.starts_with(|letter: char| letter.is_ascii_digit() || letter == '-') {
        return None;
    }
    let is_inside = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
    let end = text.find(|letter| !is_inside(letter)).unwrap_or(text.len());
    let number = &text[..end];
    number
        .parse::<f64>()
        .is_ok_and(f64::is_infinite)
        .then_some(number)
}

/// The same with `NaN`, `Infinity` and numbers that are too large for an `f64` put in quotes where they stand
/// outside texts; `None` if there are none.
pub(super) fn with_quoted_words(json: &str) -> Option<String> {
    let mut quoted = String::with_capacity(json.len() + 16);
    let (mut rest, mut in_text, mut is_changed) = (json, false, false);
    while let Some(first) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"]
            .into_iter()
            .find(|word| !in_text && rest.starts_with(word));
        let too_large = (!in_text).then(|| too_large(rest)).flatten();
        let length = match (word.or(too_large), first) {
            (Some(word), _) => {
                quoted.push('"');
                quoted.push_str(word);
                quoted.push('"');
                is_changed = true;
                word.len()
            }
            (None, '\\') if in_text => {
                let two: String = rest.chars().take(2).collect();
                quoted.push_str(&two);
                two.len()
            }
            (None, other) => {
                in_text ^= other == '"';
                quoted.push(other);
                other.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    is_changed.then_some(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_programs_are_read() {
        assert_eq!(parse(" 12.5 "), Some(12.5));
        assert_eq!(parse("1,234.5"), Some(1234.5));
        assert_eq!(parse("1e-3"), Some(0.001));
        assert!(parse("nan").is_some_and(f64::is_nan));
        assert_eq!(parse("12 ms"), None);
        assert_eq!(parse("-12,345,678e-3"), Some(-12_345.678));
        assert_eq!(parse("1_000_0"), Some(10_000.0));
        for not_a_group in [
            "3,14159", "0,123", "-00,250", "1,5", ",5", "_7_", "1,234,5", "1234,567", "1,,234",
            "1_,234",
        ] {
            assert_eq!(parse(not_a_group), None, "{not_a_group}");
        }
    }

    #[test]
    fn lines_of_python_are_json_with_words_for_no_number() {
        let value = object(r#"{"loss": NaN, "text": "NaN \" Infinity", "x": [-Infinity, 1]}"#);
        let value = value.unwrap();
        assert!(of_json(&value["loss"]).is_some_and(f64::is_nan));
        assert_eq!(value["text"], "NaN \" Infinity");
        assert_eq!(at(&value, "x.1").and_then(of_json), Some(1.0));
        assert_eq!(of_json(&value["x"][0]), Some(f64::NEG_INFINITY));
        let large = object(r#"{"a": 1e400, "b": [-2E+999], "c": "1e400", "d": 12}"#).unwrap();
        assert_eq!(of_json(&large["a"]), Some(f64::INFINITY));
        assert_eq!(of_json(&large["b"][0]), Some(f64::NEG_INFINITY));
        assert_eq!((&large["c"], &large["d"]), (&"1e400".into(), &12.into()));
        assert_eq!(object("[1]"), None);
        assert_eq!(object("{broken"), None);
    }
}
