//! The pattern of a metric's line: what its group holds, and whether that is only a part of a number.

mod cut;

use std::ops::Range;

use kiln_core::{kinds::command::line_pattern, record::metric_reason};
use regex::{Match, Regex};

use self::cut::{Cut, Named, Place, cut_off};

/// Stands in for a group that matches digits alone, to find NaN and infinity there.
const NOT_FINITE: &str = r"((?i:[+-]?\b(?:nan|inf(?:inity)?)\b))";

/// A pattern with one group.
#[derive(Debug)]
pub(super) struct LinePattern {
    regex: Regex,
    /// The pattern with NaN and infinity as its group, if its own group does not match them.
    not_finite: Option<Regex>,
    named: Named,
}

/// The text that the group of a pattern matches in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Captured<'a> {
    Text(&'a str),
    /// NaN or infinity in place of the digits that the group matches.
    NotFinite(&'a str),
    /// The text begins or ends inside a longer number.
    Inside(Cut),
}

/// Why a metric's text is not its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextFault {
    NotANumber(String),
    /// The group begins or ends inside another number.
    CutOff(Cut),
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
            named: named(pattern, group.filter(|_| !is_verbose(pattern))),
        })
    }

    pub(super) fn find<'a>(&self, line: &'a str) -> Option<Captured<'a>> {
        let Some(found) = self.regex.captures(line) else {
            let (_, word) = self.find_not_finite(line)?;
            return Some(Captured::NotFinite(word.as_str()));
        };
        let (all, group) = (found.get(0)?, found.get(1)?);
        let skipped = line[all.start()..group.start()].to_ascii_lowercase();
        if ["nan", "inf"].iter().any(|word| skipped.contains(word))
            && let Some((start, word)) = self.find_not_finite(line)
            && start == all.start()
            && word.start() < group.start()
            && self.has_all_words_of(&line[start..word.start()])
        {
            return Some(Captured::NotFinite(word.as_str()));
        }
        let place = Place {
            before: &line[..group.start()],
            text: group.as_str(),
            after: &line[group.end()..],
        };
        let cut = cut_off(place, self.named);
        Some(cut.map_or(Captured::Text(place.text), Captured::Inside))
    }

    /// The first match with NaN or infinity in the group: its start, and the group.
    fn find_not_finite<'a>(&self, line: &'a str) -> Option<(usize, Match<'a>)> {
        let mut found = self.not_finite.as_ref()?.captures_iter(line);
        found.find_map(|found| {
            let (all, word) = (found.get(0)?, found.get(1)?);
            let after = &line[word.end()..];
            let ends = self.named.after
                || matches!(after, "" | ".")
                || after.starts_with([' ', '\t', ',', ';', ')', ']', '}', '\'', '"']);
            ends.then_some((all.start(), word))
        })
    }

    /// Whether all words of a text are in the pattern, so that it skips none between them.
    fn has_all_words_of(&self, text: &str) -> bool {
        let mut words = text.split(|letter: char| !letter.is_alphabetic());
        words.all(|word| self.regex.as_str().contains(word))
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
            Self::CutOff(cut) => format!("the group of its pattern {cut}"),
        }
    }

    /// For the reason of a trial that must have the metric `name`.
    pub(super) fn reason(&self, name: &str, pattern: &str) -> String {
        match self {
            Self::NotANumber(text) => metric_reason::of_no_number(name, &format!("'{text}'")),
            Self::CutOff(cut) => format!(
                "`{name}` is cut off: the group of '{pattern}' {cut}; {}",
                cut.remedy()
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

/// Whether a pattern ignores its blanks and comments: `(?x)`.
fn is_verbose(pattern: &str) -> bool {
    pattern.match_indices("(?").any(|(at, _)| {
        let rest = &pattern[at + 2..];
        let end = rest.find(|letter: char| !letter.is_ascii_alphabetic());
        let (flags, rest) = rest.split_at(end.unwrap_or(rest.len()));
        flags.contains('x') && rest.starts_with([')', ':', '-'])
    })
}

/// Whether a pattern itself names the characters beside its group.
fn named(pattern: &str, group: Option<Range<usize>>) -> Named {
    let (before, after) = group.map_or(("", ""), |group| {
        (&pattern[..group.start], &pattern[group.end..])
    });
    let signs = ["[+-]", "[-+]", "-", "\\+"];
    let without_mark = before.strip_suffix('?').unwrap_or(before);
    Named {
        before: ends_with_letter(before),
        sign: signs.iter().any(|sign| without_mark.ends_with(sign)),
        after: begins_with_letter(after) || begins_with_choice(after),
    }
}

/// Whether the beginning of a pattern ends with a letter that must be there.
fn ends_with_letter(before: &str) -> bool {
    let Some(last) = before.chars().next_back() else {
        return false;
    };
    let rest = &before[..before.len() - last.len_utf8()];
    let slashes = rest.len() - rest.trim_end_matches('\\').len();
    match slashes % 2 {
        1 => last.is_ascii_punctuation(),
        _ => !".^$*+?()[]{}|\\".contains(last),
    }
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
    is_letter && !may_be_left_out(letters.as_str())
}

/// Whether the rest of a pattern begins with one of some letters that must be there, or with the
/// line's end: `[,;]`, `(?:,|$)`.
fn begins_with_choice(rest: &str) -> bool {
    let class = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    if let Some((letters, rest)) = class {
        let is_plain = |letter: char| !letter.is_alphanumeric() && !"^[\\".contains(letter);
        return !letters.is_empty() && letters.chars().all(is_plain) && !may_be_left_out(rest);
    }
    let choices = rest
        .strip_prefix("(?:")
        .and_then(|rest| rest.split_once(')'));
    choices.is_some_and(|(choices, rest)| {
        let is_plain = |choice: &str| choice == "$" || begins_with_letter(choice);
        choices.split('|').all(is_plain) && !may_be_left_out(rest)
    })
}

fn may_be_left_out(rest: &str) -> bool {
    rest.starts_with(['?', '*', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, line: &str) -> String {
        match LinePattern::new(pattern).unwrap().find(line) {
            Some(Captured::Text(text) | Captured::NotFinite(text)) => text.to_owned(),
            Some(Captured::Inside(cut)) => format!("inside {}", cut.longer),
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
            // The letters behind the group do not belong to the number, or the pattern names them.
            (r"v (\d+)", "v 12ms", "12"),
            (r"v (\d+)", "v 3/4", "3"),
            (r"v (\d+)", "v 3.0, w 4", "3"),
            (r"v (\d+)", "v 12, 34", "12"),
            (r"v (\d+)", "v 2024-01-02", "2024"),
            (r"v ([0-9.]+)", "v 0.5.", "0.5."),
            (r"^(\d+),\d+", "1,234", "1"),
            (r"v (\d+)\.", "v 12.5", "12"),
            (r"v (\S+)", "v 2.06e-07", "2.06e-07"),
            (r"v (\d+)[,;]", "v 12,345", "12"),
            (r"v (\d+)[,;]?", "v 12,345", "inside 12,345"),
            (r"v (\d+)(?:,|$)", "v 12,345", "12"),
            (r"epoch (\d+)[./]", "epoch 3.5", "3"),
            (
                r"(?x) v \s ([0-9.]+) # no unit",
                "v 2.06e-07",
                "inside 2.06e-07",
            ),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }

    #[test]
    fn a_group_that_begins_inside_a_number_is_told() {
        for (pattern, line, expected) in [
            ("loss.*([0-9.]+)", "loss 0.987", "inside 0.987"),
            ("loss.*([0-9.]+)$", "loss: 2.06e-05", "inside 2.06e-05"),
            ("([0-9.]+)$", "loss 2.06e-05", "inside 2.06e-05"),
            ("loss.*([0-9.]+)", "loss0.987", "inside 0.987"),
            (
                r"counts.*(\d+)$",
                "counts 100,200,300",
                "inside 100,200,300",
            ),
            (r"loss\D*([0-9.]+)", "loss: -0.5", "inside -0.5"),
            (r"loss\D*([0-9.]+)", "loss=-0.5, lr 1", "inside -0.5"),
            // A sign that the pattern names, or that is none.
            (r"loss: -?([0-9.]+)", "loss: -0.5", "0.5"),
            (r"loss: [+-]?([0-9.]+)", "loss: -0.5", "0.5"),
            (r"loss\D*([0-9.]+)", "loss: +0.5", "0.5"),
            (r"GPU.(\d+)", "GPU-1", "1"),
            (r"layer\W(\d+)", "layer.3", "3"),
            // The letter before the number is named.
            (r"v\d\.(\d+)", "v1.5", "5"),
            (r"step\d+,(\d+)", "step1,234", "234"),
            (r"loss.* ([0-9.]+)", "loss 3 0.987", "0.987"),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }

    #[test]
    fn what_follows_a_number_in_a_list_a_clock_or_a_name_is_no_part_of_it() {
        for (pattern, line, expected) in [
            (r"^\d+:\d+:(\d+)", "12:34:56,789 INFO", "56"),
            (r"counts (\d+)", "counts 100,200,300", "100"),
            (r"total (\d+)", "total 1,234,567", "inside 1,234,567"),
            (r"ckpt_(\d+)", "saved ckpt_100_5.pt", "100"),
            (r"run (\d+)", "run 2024_01_02", "2024"),
            (r"CUDA (\d+)", "CUDA 12.4", "inside 12.4"),
            (r"loss (\d+\.\d{2})", "loss 10.5234", "10.52"),
            (r"loss (\d+\.\d{2})", "loss 2.0623e-05", "inside 2.0623e-05"),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }

    #[test]
    fn the_remedy_reads_the_number() {
        let reason = |pattern: &str, line: &str| match LinePattern::new(pattern).unwrap().find(line)
        {
            Some(Captured::Inside(cut)) => TextFault::CutOff(cut).reason("v", pattern),
            other => panic!("{other:?}"),
        };
        for (pattern, line, remedy) in [
            ("v ([0-9.]+)", "v 1e-7]", r"use `([^\s,\]]+)`"),
            ("v ([0-9.]+)", "v 1,234", r"use `(\S+)`"),
            ("v.*([0-9.]+)", "v 0.5", "put the text before the number"),
        ] {
            let reason = reason(pattern, line);
            assert!(reason.contains(remedy), "{reason}");
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
            (r"(?:loss|acc) .*?([0-9.]+)", "loss nan, lr 0.001", "nan"),
            (r"(?:loss|acc) .*?([0-9.]+)", "loss 0.5, lr nan", "0.5"),
            (
                "val_loss.*? ([0-9.]+)",
                "val_loss improved from inf to 0.5",
                "0.5",
            ),
            ("loss: ([0-9.]+)", "loss: nan.", "nan"),
            ("loss: ([0-9.]+)", "{loss: nan}", "nan"),
            ("loss: ([0-9.]+)%", "loss: nan%", "nan"),
            ("loss: ([0-9.]+)", "loss: nan-safe mode on", "none"),
            ("loss ([0-9.]+)", "loss inf-norm clipped 0 times", "none"),
        ] {
            assert_eq!(found(pattern, line), expected, "{pattern}: {line}");
        }
    }
}
