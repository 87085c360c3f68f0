//! Values in Markdown: as words, never as markup or HTML. CommonMark with the tables,
//! strikethrough and formulas of GitHub.

use kiln_core::units::without_controls;

/// Escapes a value within a line: in a sentence, a heading or a cell of a table.
pub fn inline(text: &str) -> String {
    let letters: Vec<char> = without_controls(text).chars().collect();
    let is_word = |place: Option<usize>| {
        place
            .and_then(|place| letters.get(place))
            .is_some_and(|letter| letter.is_alphanumeric())
    };
    let mut plain = String::with_capacity(text.len());
    for (place, letter) in letters.iter().enumerate() {
        match letter {
            '&' => plain.push_str("&amp;"),
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '|' | '*' | '`' | '[' | ']' | '\\' | '~' | '$' => plain.extend(['\\', *letter]),
            // Inside a word it does not begin emphasis: `batch_size`.
            '_' if !(is_word(place.checked_sub(1)) && is_word(Some(place + 1))) => {
                plain.push_str("\\_");
            }
            _ => plain.push(*letter),
        }
    }
    plain
}

/// Escapes a value that begins a paragraph or an entry of a list: it does not begin a heading, a
/// list or a block of code.
pub fn line(text: &str) -> String {
    as_line(&inline(text))
}

/// Escapes a sentence in which keys and other words of kiln stand between backticks: each stays code
/// if its letters mean nothing in Markdown.
pub fn sentence(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let begins_or_follows_text = |place: usize| place == 1 || !parts[place - 1].is_empty();
    let is_code = |place: usize| {
        place % 2 == 1
            && parts.get(place + 1).is_some()
            && begins_or_follows_text(place)
            && is_plain_code(parts[place])
    };
    let mut escaped = inline(parts[0]);
    for (place, part) in parts.iter().enumerate().skip(1) {
        // The backtick before a part ends the code before it, or begins its own.
        let is_of_code = is_code(place) || is_code(place - 1);
        escaped.push_str(if is_of_code { "`" } else { "\\`" });
        match is_code(place) {
            true => escaped.push_str(part),
            false => escaped.push_str(&inline(part)),
        }
    }
    as_line(&escaped)
}

/// Whether a text can stand between backticks as it is.
fn is_plain_code(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || " ._:,=+/%-".contains(letter);
    !text.is_empty() && text.chars().all(is_plain)
}

/// Escapes what begins a heading, a list or a block of code at the beginning of an escaped text.
fn as_line(plain: &str) -> String {
    let plain = plain.trim_start();
    let digits = plain.bytes().take_while(u8::is_ascii_digit).count();
    let ends_number = digits > 0 && plain[digits..].starts_with(['.', ')']);
    let mark = if plain.starts_with(['#', '+', '-', '=']) {
        0
    } else if ends_number {
        digits
    } else {
        return plain.to_owned();
    };
    format!("{}\\{}", &plain[..mark], &plain[mark..])
}

/// A table: the heads, then the rows.
pub fn table<C: AsRef<str>>(heads: &[C], rows: impl Iterator<Item = Vec<C>>) -> String {
    let row = |cells: &[C]| {
        let cells: Vec<String> = cells.iter().map(|cell| inline(cell.as_ref())).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = format!("|{}\n", "---|".repeat(heads.len()));
    let rows: String = rows.map(|cells| row(&cells)).collect();
    row(heads) + &rule + &rows
}

/// A block of code, in which nothing is markup: the fence is longer than any run of backticks in
/// `text`. `text` ends in a line feed.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text
        .split(|letter| letter != '`')
        .map(str::len)
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let lines: String = text
        .lines()
        .map(|line| without_controls(line) + "\n")
        .collect();
    format!("{fence}{language}\n{lines}{fence}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_words_wherever_it_stands() {
        let cases = [
            ("train.batch_size 8", "train.batch_size 8"),
            ("_a_ b__ __c", "\\_a\\_ b\\_\\_ \\_\\_c"),
            (
                "<b>x</b> &lt; `c` | *d* ~e~ $f$",
                "&lt;b&gt;x&lt;/b&gt; &amp;lt; \\`c\\` \\| \\*d\\* \\~e\\~ \\$f\\$",
            ),
            ("![a](b)\\", "!\\[a\\](b)\\\\"),
            ("a\n# b\u{202e}", "a # b�"),
            ("-1.5 %", "-1.5 %"),
        ];
        for (text, escaped) in cases {
            assert_eq!(inline(text), escaped);
        }
        let cases = [
            ("# a", "\\# a"),
            ("    - a", "\\- a"),
            ("12. a", "12\\. a"),
            ("1.5 a", "1\\.5 a"),
            ("> a", "&gt; a"),
            ("===", "\\==="),
            ("3 trials", "3 trials"),
        ];
        for (text, escaped) in cases {
            assert_eq!(line(text), escaped);
        }
    }

    #[test]
    fn a_key_in_a_sentence_stays_code_and_a_value_stays_words() {
        let cases = [
            (
                "a_ needs `sweep.repeats: 5`, or `--across x`",
                "a\\_ needs `sweep.repeats: 5`, or `--across x`",
            ),
            ("`x` `<b>` `y", "`x` \\`&lt;b&gt;\\` \\`y"),
            ("`` `a``b`", "\\`\\` `a`\\`b\\`"),
            ("# `x`", "\\# `x`"),
        ];
        for (text, escaped) in cases {
            assert_eq!(sentence(text), escaped, "{text}");
        }
    }

    #[test]
    fn a_block_of_code_cannot_be_closed_and_a_table_keeps_its_columns() {
        assert_eq!(
            fenced("yaml", "a ``` b\n\u{1b}c\n"),
            "````yaml\na ``` b\n c\n````\n"
        );
        assert_eq!(
            table(&["a|b", "c"], [vec!["1\n|", "`"]].into_iter()),
            "| a\\|b | c |\n|---|---|\n| 1 \\| | \\` |\n"
        );
    }
}
