//! The lines of an output that come nearest to a pattern that matched none of them.

use kiln_core::units::shorten_line;
use regex::Regex;

const MOST_LINES: usize = 3;
const LONGEST_SHOWN: usize = 100;
/// After so many lines with a metric's name, one should have matched.
pub(super) const MANY_LINES: u64 = 10;

/// The lines that contain the name of a metric and a number, counted until they are many.
#[derive(Debug)]
pub(super) struct NearMisses {
    /// The name as a word, directly before a number.
    name: Option<Regex>,
    /// The first word of the pattern, in lower case, if it tells these lines from others.
    first_word: Option<String>,
    lines: u64,
    last: String,
    is_taken: bool,
}

impl NearMisses {
    pub(super) fn of(name: &str, pattern: Option<&str>) -> Self {
        let number = r#"[\s:='"]{0,3}(?:[+-]?\.?\d|[+-]?(?:nan|inf)\b)"#;
        let named = format!(r"(?i)\b{}\b{number}", regex::escape(name));
        Self {
            name: Regex::new(&named).ok(),
            first_word: pattern.and_then(|pattern| first_word(name, pattern)),
            lines: 0,
            last: String::new(),
            is_taken: false,
        }
    }

    pub(super) fn line(&mut self, line: &str) {
        if self.lines < MANY_LINES && self.is_near(line) {
            self.lines += 1;
            line.clone_into(&mut self.last);
        }
    }

    fn is_near(&self, line: &str) -> bool {
        let has_word = |word: &String| line.to_lowercase().contains(word.as_str());
        let is_named = self.name.as_ref().is_some_and(|name| name.is_match(line));
        is_named && self.first_word.as_ref().is_none_or(has_word)
    }

    /// The number of these lines and the last one, once, when they are many.
    pub(super) fn take_if_many(&mut self) -> Option<(u64, String)> {
        let is_due = self.lines == MANY_LINES && !self.is_taken;
        self.is_taken |= is_due;
        is_due.then(|| (self.lines, quoted(&self.last)))
    }
}

/// The word with which a pattern begins, in lower case, if the metric's name comes later: `final` of
/// `final loss: (.*)`.
fn first_word(name: &str, pattern: &str) -> Option<String> {
    let (name, pattern) = (name.to_lowercase(), pattern.to_lowercase());
    let literal = pattern.trim_start_matches('^').split('(').next()?;
    let end = literal.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let word = &literal[..end.unwrap_or(literal.len())];
    let is_other = !word.is_empty() && word != name && literal.contains(&name);
    is_other.then(|| word.to_owned())
}

/// The last different lines that contain the metric's name, else those with a digit, in their order.
pub(super) fn nearest(name: &str, output: &str) -> Vec<String> {
    let name = name.to_lowercase();
    let named = last_lines(output, |line| line.to_lowercase().contains(&name));
    match named.is_empty() {
        true => last_lines(output, |line| line.contains(|c: char| c.is_ascii_digit())),
        false => named,
    }
}

fn last_lines(output: &str, is_near: impl Fn(&str) -> bool) -> Vec<String> {
    let mut near: Vec<String> = Vec::new();
    for line in output.split(['\n', '\r']).rev().map(str::trim) {
        let shown = quoted(line);
        if is_near(line) && !near.contains(&shown) {
            near.push(shown);
        }
        if near.len() == MOST_LINES {
            break;
        }
    }
    near.reverse();
    near
}

/// A line for a message: without control characters, cut if it is long, in quotation marks.
fn quoted(line: &str) -> String {
    format!("'{}'", shorten_line(line, LONGEST_SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_the_name_come_before_lines_with_a_number() {
        let output = "loaded 3 files\nLoss = 2.5\nLoss = 2.0\rLoss = 2.0\nepoch 1 done\nbye\n";
        assert_eq!(nearest("loss", output), ["'Loss = 2.5'", "'Loss = 2.0'"]);
        assert_eq!(
            nearest("gflops", output),
            ["'Loss = 2.5'", "'Loss = 2.0'", "'epoch 1 done'"]
        );
        assert!(nearest("gflops", "hello\nbye\n").is_empty());
    }

    #[test]
    fn a_line_is_near_if_it_has_the_name_and_a_number_as_the_pattern_means_them() {
        let is_near = |name: &str, pattern: &str, line: &str| {
            NearMisses::of(name, Some(pattern)).is_near(line)
        };
        for (name, pattern, line) in [
            ("loss", "los: (.*)", "epoch 1 Loss: 2.5"),
            ("loss", "final loss: (.*)", "Final loss = -0.3"),
            ("loss", "^loss (.*)", "{'loss': nan}"),
        ] {
            assert!(is_near(name, pattern, line), "{pattern}: {line}");
        }
        for (name, pattern, line) in [
            ("loss", "final loss: (.*)", "epoch 1 train loss 2.5"),
            ("acc", "test_acc (.*)", "train acc 0.5"),
            ("acc", "acc=(.*)", "acc: training accuracy 3"),
            ("loss", "los: (.*)", "the loss of epoch 3"),
            ("q", "q=(.*)", "quick 3"),
        ] {
            assert!(!is_near(name, pattern, line), "{pattern}: {line}");
        }
    }

    #[test]
    fn a_long_line_is_cut() {
        let cut = quoted(&"é".repeat(LONGEST_SHOWN + 1));
        assert_eq!(cut.chars().count(), LONGEST_SHOWN + 3);
        assert!(cut.ends_with("…'"), "{cut}");
    }
}
