//! The pattern of a metric's line: what its group holds, and whether that is a whole number.

use std::ops::Range;

use kiln_core::kinds::command::line_pattern;
use regex::Regex;

use super::number;

/// Takes the place of a group that matches digits alone, to find NaN and infinity there.
const NOT_FINITE: &str = r"((?i:[+-]?\b(?:nan|inf(?:inity)?)\b))";

/// A pattern with one group.
#[derive(Debug)]
pub(super) struct LinePattern {
    regex: Regex,
    /// The same with NaN and infinity in the group, if the group does not match them itself.
    not_finite: Option<Regex>,
    /// Whether the pattern says which letter follows the number.
    names_the_next: bool,
}

/// What the group of a pattern holds in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Captured<'a> {
    Text(&'a str),
    /// It ends inside this longer number.
    Inside(String),
}

/// Why a metric's text is not its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextFault {
    NotANumber(String),
    /// The group ends inside this number.
    CutOff(String),
}

impl LinePattern {
    /// # Errors
    /// It is not a pattern with one group.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let regex = line_pattern(pattern)?;
        let group = group(pattern);
        Ok(Self {
            regex,
            not_finite: group.clone().and_then(|group| not_finite(pattern, group)),
            names_the_next: group.is_some_and(|group| begins_with_letter(&pattern[group.end..])),
        })
    }

    pub(super) fn find<'a>(&self, line: &'a str) -> Option<Captured<'a>> {
        let Some(found) = self.regex.captures(line) else {
            let found = self.not_finite.as_ref()?.captures(line)?;
            return Some(Captured::Text(found.get(1)?.as_str()));
        };
        let group = found.get(1)?;
        let text = group.as_str();
        let longer = match self.names_the_next {
            true => None,
            false => longer(text, &line[group.end()..]),
        };
        Some(longer.map_or(Captured::Text(text), Captured::Inside))
    }
}

impl TextFault {
    pub(super) fn of(text: &str) -> Self {
        Self::NotANumber(text.chars().take(60).collect())
    }

    /// For the notes of a trial that may lack the metric.
    pub(super) fn note(&self) -> String {
        match self {
            Self::NotANumber(text) => format!("'{text}' is not a number"),
            Self::CutOff(longer) => format!("the group of its pattern ends inside '{longer}'"),
        }
    }

    /// For the reason of a trial that must have the metric `name`.
    pub(super) fn reason(&self, name: &str, pattern: &str) -> String {
        match self {
            Self::NotANumber(text) => format!("`{name}` is '{text}', which is not a number"),
            Self::CutOff(longer) => format!(
                "`{name}` is cut off: the group of '{pattern}' ends inside '{longer}'; use `(\\S+)`, \
                 or put the text that follows the number into the pattern"
            ),
        }
    }
}

/// The place of the one group of a pattern, with its parentheses.
fn group(pattern: &str) -> Option<Range<usize>> {
    let is_group = |inside: &str| {
        !inside.starts_with('?') || inside.starts_with("?P<") || inside.starts_with("?<")
    };
    let (mut depth, mut classes) = (0_usize, 0_usize);
    let mut began: Option<(usize, usize)> = None;
    let mut letters = pattern.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => {
                letters.next();
            }
            '[' => {
                classes += 1;
                // A bracket at the beginning of a class is one of its letters.
                letters.next_if(|(_, next)| *next == '^');
                letters.next_if(|(_, next)| *next == ']');
            }
            ']' if classes > 0 => classes -= 1,
            _ if classes > 0 => {}
            '(' => {
                if began.is_none() && is_group(&pattern[at + 1..]) {
                    began = Some((at, depth));
                }
                depth += 1;
            }
            ')' => {
                depth = depth.checked_sub(1)?;
                if let Some((from, outside)) = began
                    && outside == depth
                {
                    return Some(from..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The pattern for NaN and infinity in place of the number; `None` if the group matches them itself,
/// or if nothing beside it says which line is meant.
fn not_finite(pattern: &str, group: Range<usize>) -> Option<Regex> {
    let (before, after) = (&pattern[..group.start], &pattern[group.end..]);
    let matches_itself = Regex::new(&format!("^(?:{})$", &pattern[group])).ok()?;
    if matches_itself.is_match("nan") || before.is_empty() && after.is_empty() {
        return None;
    }
    let regex = Regex::new(&format!("{before}{NOT_FINITE}{after}")).ok()?;
    (regex.captures_len() == 2).then_some(regex)
}

/// Whether the rest of a pattern begins with a letter that must be there.
fn begins_with_letter(rest: &str) -> bool {
    let mut letters = rest.chars();
    let is_letter = match letters.next() {
        Some('\\') => letters
            .next()
            .is_some_and(|letter| letter.is_ascii_punctuation()),
        Some(letter) => !".^$*+?()[]{}|".contains(letter),
        None => false,
    };
    is_letter && !letters.as_str().starts_with(['?', '*', '{'])
}

/// The number of a text together with what follows it, if that is another one. A unit (`3.5ms`) is
/// no part of it.
fn longer(text: &str, rest: &str) -> Option<String> {
    let short = number::parse(text)?;
    let is_inside = |letter: char| letter.is_ascii_alphanumeric() || ".,_+-".contains(letter);
    let end = rest.find(|letter| !is_inside(letter)).unwrap_or(rest.len());
    let more = rest[..end].trim_end_matches(['.', ',', '_', '+', '-']);
    let without_unit = more.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    [more, without_unit]
        .into_iter()
        .filter(|more| !more.is_empty())
        .map(|more| format!("{text}{more}"))
        .find(|longer| number::parse(longer).is_some_and(|value| value != short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, line: &str) -> String {
        match LinePattern::new(pattern).unwrap().find(line) {
            Some(Captured::Text(text)) => text.to_owned(),
            Some(Captured::Inside(longer)) => format!("inside {longer}"),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn a_group_that_ends_inside_a_number_is_told_from_one_before_a_unit() {
        for (pattern, line, expected) in [
            ("loss ([0-9.]+)", "loss 2.06e-07", "inside 2.06e-07"),
            ("loss ([0-9.]+)", "loss 2.06e-07s, lr 1", "inside 2.06e-07"),
            ("loss ([0-9.e-]+)", "loss 1E-3", "inside 1E-3"),
            ("v ([0-9.]+)", "v 1,234.5", "inside 1,234.5"),
            ("v ([0-9.]+).*", "v 1_000", "inside 1_000"),
            (r"v (\d+)", "v 12.5.", "inside 12.5"),
            (r"v (\d)", "v 12", "inside 12"),
            (r"v (\d+)(?:e-\d+)?", "v 2e-3", "inside 2e-3"),
            (r"v (\d+),?", "v 1,234", "inside 1,234"),
            // What follows is no part of the number, or is named.
            (r"v (\d+)", "v 12ms", "12"),
            (r"v (\d+)", "v 3/4", "3"),
            (r"v (\d+)", "v 3.0, w 4", "3"),
            (r"v (\d+)", "v 12, 34", "12"),
            (r"v (\d+)", "v 2024-01-02", "2024"),
            (r"v ([0-9.]+)", "v 0.5.", "0.5."),
            (r"^(\d+),\d+", "1,234", "1"),
            (r"v (\d+)\.", "v 12.5", "12"),
            (r"v (\S+)", "v 2.06e-07", "2.06e-07"),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }

    #[test]
    fn nan_and_infinity_are_found_where_the_group_matches_digits_alone() {
        for (pattern, line, expected) in [
            ("loss ([0-9.]+)", "loss nan", "nan"),
            ("loss ([0-9.]+)", "loss -Inf, lr 1", "-Inf"),
            ("^loss (?P<n>[0-9.]+)$", "loss NaN", "NaN"),
            (r"[(\]] \( ([0-9.)]+) s", "( ( infinity s", "infinity"),
            (r"[^](] ([0-9]+) (?:s|min)", "x inf min", "inf"),
            ("loss ([0-9.]+)", "loss information", "none"),
            ("loss ([0-9.]+)", "lr nan", "none"),
            ("([0-9.]+)", "a nan somewhere", "none"),
            ("loss ([0-9.]+)", "loss 2", "2"),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }
}
