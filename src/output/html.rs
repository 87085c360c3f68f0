//! Escapes values in HTML. `askama.toml` names the escaper, so the templates use it for every value
//! that is not marked `|safe`.

use std::fmt::{self, Write};

use askama::filters::{Escaper, Html};
use kiln_core::units::shown_letter;

/// As askama's own [`Html`], and hidden characters are replaced; a line feed is only a space outside
/// `<pre>`, and stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageEscaper;

impl Escaper for PageEscaper {
    fn write_escaped_str<W: Write>(&self, mut dest: W, text: &str) -> fmt::Result {
        text.chars()
            .try_for_each(|letter| self.write_escaped_char(&mut dest, letter))
    }

    fn write_escaped_char<W: Write>(&self, dest: W, letter: char) -> fmt::Result {
        Html.write_escaped_char(
            dest,
            if letter == '\n' {
                letter
            } else {
                shown_letter(letter)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_hidden_characters_are_words() {
        let mut page = String::new();
        PageEscaper
            .write_escaped_str(&mut page, "<b>\"&'\u{202e}\u{1b}\nx")
            .unwrap();
        assert_eq!(page, "&#60;b&#62;&#34;&#38;&#39;� \nx");
    }
}
