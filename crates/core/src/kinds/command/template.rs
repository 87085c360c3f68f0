//! Texts with placeholders: `--bs={batch_size}`. `{{` and `}}` are braces.

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Placeholder(String),
}

/// The pieces of a text.
///
/// # Errors
/// A brace that belongs to no placeholder, in words that follow the name of a key.
pub(crate) fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
        } else if brace == "}" {
            plain.push('}');
        } else {
            let name = placeholder(rest)?;
            rest = &rest[name.len() + 1..];
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Placeholder(name.to_owned()));
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

/// The name of the placeholder whose opening brace has just been read.
fn placeholder(rest: &str) -> Result<&str, String> {
    let Some((name, _)) = rest.split_once('}') else {
        return Err("has a `{` that is not closed; write `{{` for a brace".to_owned());
    };
    if is_name(name) {
        return Ok(name);
    }
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "has `{{{shown}}}`, which is not a placeholder: names have letters, digits, `_` and `-`; \
         write `{{{{` for a brace"
    ))
}

/// Whether a text can be the name of a value.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let part = |part| match part {
            Part::Text(text) => text,
            Part::Placeholder(name) => format!("<{name}>"),
        };
        match parse(text) {
            Ok(parts) => parts.into_iter().map(part).collect(),
            Err(error) => error,
        }
    }

    #[test]
    fn placeholders_are_found_and_doubled_braces_are_braces() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("{n}", "<n>"),
            ("a{n}b{m-1}c", "a<n>b<m-1>c"),
            ("{{n}}", "{n}"),
            ("{{{n}}}", "{<n>}"),
            ("{{\"a\": {{\"b\": {n}}}}}", "{\"a\": {\"b\": <n>}}"),
            ("}", "}"),
            ("{{\"a\": 1}", "{\"a\": 1}"),
            ("ü{n}ß", "ü<n>ß"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for (text, part) in [
            ("{", "not closed"),
            ("a{n", "not closed"),
            ("{}", "`{}`, which is not a placeholder"),
            ("{a b}", "`{a b}`, which is not a placeholder"),
            ("{ü}", "`{ü}`, which is not a placeholder"),
        ] {
            assert!(shown(text).contains(part), "{text}: {}", shown(text));
        }
    }
}
