//! JSON on standard output: exact for programs, harmless on a terminal.

use kiln_core::units::is_hidden;

/// Writes hidden characters as `\u` escapes. They stand in texts alone, where an escape is the same
/// value; serde escapes only the first 32 characters itself.
pub fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter == '\n' || !is_hidden(letter) {
            text.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn values_read_back_equal_and_no_hidden_character_is_left() {
        let value = json!({"\u{202e}key": ["a\n\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{e0041}ü", 1.5]});
        for text in [
            value.to_string(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let escaped = escaped(&text);
            assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), value);
            let is_plain = |letter: char| letter == '\n' || !is_hidden(letter);
            assert!(escaped.chars().all(is_plain), "{escaped:?}");
            assert!(escaped.contains("\\u202e") && escaped.contains("\\udb40\\udc41"));
        }
    }
}
