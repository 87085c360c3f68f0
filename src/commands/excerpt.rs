//! The line of a file in which a problem is, with a caret under the fault.
//!
//! In: problems with their places. Out: lines to print below each problem. A tab and every hidden
//! character counts as the one character that is shown for it; a long line is cut around the
//! fault.

use std::{collections::HashMap, path::Path, sync::Arc};

use kiln_core::{
    input,
    limits::EXPERIMENT_BYTES,
    spec::{Location, Problem},
    units::shown_letter,
};
use unicode_width::UnicodeWidthChar;

/// Most columns of a line that are shown.
const MOST_COLUMNS: usize = 90;
/// Stands for the part of a line that is cut off.
const CUT: char = '…';

/// The texts of the files that problems are in, each read once.
#[derive(Default)]
pub(super) struct Excerpts {
    lines: HashMap<Arc<str>, Vec<String>>,
}

impl Excerpts {
    /// The problem on one line, and below it the line of the file, if it has one.
    pub(super) fn with_problem(&mut self, problem: &Problem) -> Vec<String> {
        let mut lines = vec![problem.to_string()];
        lines.extend(self.of(&problem.location, &problem.key));
        lines
    }

    /// The line at a place, and a caret under it; nothing if it cannot be read.
    pub(super) fn of(&mut self, location: &Location, key: &str) -> Vec<String> {
        let Some((number, column)) = location.position else {
            return Vec::new();
        };
        let lines = self
            .lines
            .entry(Arc::clone(&location.source))
            .or_insert_with(|| lines_of(Path::new(&*location.source)));
        let line = number.checked_sub(1).and_then(|index| lines.get(index));
        match line {
            Some(line) if is_about(line, (number, column), key) => excerpt(line, number, column),
            _ => Vec::new(),
        }
    }
}

fn lines_of(file: &Path) -> Vec<String> {
    let Ok(text) = input::read_text(file, &EXPERIMENT_BYTES) else {
        return Vec::new();
    };
    text.lines().map(str::to_owned).collect()
}

/// A key that is missing in a whole file has the file's start as its place, where there is nothing
/// to see.
fn is_about(line: &str, position: (usize, usize), key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or_default();
    !line.trim().is_empty() && (position != (1, 1) || line.starts_with(name))
}

fn excerpt(line: &str, number: usize, column: usize) -> Vec<String> {
    let letters: Vec<char> = line.chars().map(shown_letter).collect();
    let fault = column.saturating_sub(1).min(letters.len());
    let (before, shown) = cut(&letters, fault);
    let number = number.to_string();
    vec![
        format!("  {number} | {shown}").trim_end().to_owned(),
        format!("  {} | {}^", " ".repeat(number.len()), " ".repeat(before)),
    ]
}

/// Returns the columns before the fault, and the line, cut to the part around the fault.
fn cut(letters: &[char], fault: usize) -> (usize, String) {
    let width = |letters: &[char]| -> usize {
        let widths = letters.iter().map(|letter| letter.width().unwrap_or(0));
        widths.sum()
    };
    if width(letters) <= MOST_COLUMNS {
        return (width(&letters[..fault]), letters.iter().collect());
    }
    // Most of what is shown lies before the fault: the key and its section.
    let mut first = fault;
    while first > 0 && width(&letters[first - 1..fault]) <= MOST_COLUMNS * 2 / 3 {
        first -= 1;
    }
    let mut last = fault;
    while last < letters.len() && width(&letters[first..=last]) <= MOST_COLUMNS - 2 {
        last += 1;
    }
    let mut shown: String = letters[first..last].iter().collect();
    let mut before = width(&letters[first..fault]);
    if first > 0 {
        shown.insert(0, CUT);
        before += 1;
    }
    if last < letters.len() {
        shown.push(CUT);
    }
    (before, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_is_under_the_fault() {
        let cases = [
            ("  steps: 1e3", 10, "  7 |   steps: 1e3\n    |          ^"),
            // A tab is shown as one space, and a letter may be two columns wide.
            ("a:\tb", 4, "  7 | a: b\n    |    ^"),
            ("名前: x", 5, "  7 | 名前: x\n    |       ^"),
            ("x:", 9, "  7 | x:\n    |   ^"),
        ];
        for (line, column, expected) in cases {
            assert_eq!(excerpt(line, 7, column).join("\n"), expected, "{line}");
        }
    }

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let line = "a".repeat(300) + "b" + &"c".repeat(300);
        let lines = excerpt(&line, 12, 301);
        let at = lines[1].chars().position(|letter| letter == '^').unwrap();
        assert_eq!(lines[0].chars().nth(at), Some('b'));
        assert!(lines[0].starts_with("  12 | …a") && lines[0].ends_with("c…"));
        assert_eq!(lines[0].chars().count(), "  12 | ".len() + MOST_COLUMNS);
        let wide = "漢".repeat(300);
        let lines = excerpt(&wide, 1, 200);
        assert!(lines[0].chars().count() < 60, "{}", lines[0]);
        let begins = excerpt(&line, 1, 1);
        assert!(begins[0].starts_with("  1 | aaa") && begins[0].ends_with('…'));
        let ends = excerpt(&line, 1, 601);
        assert!(ends[0].starts_with("  1 | …") && ends[0].ends_with('c'));
    }
}
