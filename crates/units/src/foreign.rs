//! Text from elsewhere (a file, a child, a device, the environment) on a line of a page.
//!
//! In comes any text; out comes text that stays on its line and reads in the order in which it is
//! written.

/// Stands for an invisible character that was taken out.
const REPLACED: char = '\u{fffd}';

/// Whether a character acts on the text around it instead of being shown: control characters, line
/// and paragraph separators, marks and overrides of the writing direction, and characters without
/// a shape.
///
/// U+200C and U+200D (joiners) are not among them: Persian, Indic scripts and emoji need them.
/// Source: Unicode 16, general categories Cc, Cf, Zl and Zp; UAX #9 for the direction.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The character to show instead of any other: a space for control characters and separators, `�`
/// for other hidden ones.
pub fn shown_letter(letter: char) -> char {
    match letter {
        '\u{2028}' | '\u{2029}' => ' ',
        _ if letter.is_control() => ' ',
        _ if is_hidden(letter) => REPLACED,
        _ => letter,
    }
}

/// Makes foreign text safe for one line: no character moves a terminal's cursor, ends the line or
/// changes the order in which it is read.
pub fn without_controls(text: &str) -> String {
    text.chars().map(shown_letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_replaced_and_all_others_stay() {
        assert_eq!(
            without_controls("a\u{1b}[31m\r\nb\u{9b}2J\u{7f}\u{2028}c"),
            "a [31m  b 2J  c"
        );
        assert_eq!(
            without_controls("x\u{202e}y\u{2066}\u{200b}\u{feff}\u{e0041}"),
            "x�y����"
        );
        let plain = "Ünïcödé — 温度 🔥 👩\u{200d}🔬 می\u{200c}خواهم <b> & |";
        assert_eq!(without_controls(plain), plain);
    }
}
