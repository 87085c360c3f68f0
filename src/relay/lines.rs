//! Splits an output into lines, in bounded memory. A carriage return ends a line too: progress bars
//! draw over themselves with it. Codes that color a terminal are left out of the lines.

use std::borrow::Cow;

use anstream::adapter::strip_str;

/// Longest line in bytes; the rest of a longer one is left out.
const LONGEST_LINE: usize = 1 << 20;

/// A text without the codes of a terminal: `\x1b[1mloss\x1b[0m 2` is `loss 2`.
pub(super) fn without_codes(text: &str) -> Cow<'_, str> {
    match text.contains('\x1b') {
        true => Cow::Owned(strip_str(text).to_string()),
        false => Cow::Borrowed(text),
    }
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    /// Whether a line was longer than is read.
    pub(super) has_cut: bool,
}

impl Lines {
    /// Calls `line` with each line that ends in the chunk, without its end. Empty lines are left out.
    pub(super) fn add(&mut self, chunk: &[u8], mut line: impl FnMut(&str)) {
        let mut rest = chunk;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&rest[..at]);
            self.end(&mut line);
            rest = &rest[at + 1..];
        }
        self.extend(rest);
    }

    /// The end of the output ends its last line.
    pub(super) fn finish(&mut self, mut line: impl FnMut(&str)) {
        self.end(&mut line);
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE - self.partial.len();
        self.has_cut |= bytes.len() > room;
        self.partial.extend(&bytes[..bytes.len().min(room)]);
    }

    fn end(&mut self, line: &mut impl FnMut(&str)) {
        if !self.partial.is_empty() {
            line(&without_codes(&String::from_utf8_lossy(&self.partial)));
            self.partial.clear();
        }
    }
}

/// The beginning of an output up to its last complete line.
pub(super) fn complete_from_beginning(head: &[u8]) -> &[u8] {
    let end = head.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
    &head[..end.map_or(0, |at| at + 1)]
}

/// The end of an output from its first line that is certainly complete.
pub(super) fn complete_to_end(tail: &[u8]) -> &[u8] {
    let end = tail.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    &tail[end.map_or(tail.len(), |at| at + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.add(chunk, |line| found.push(line.to_owned()));
        }
        lines.finish(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_end_at_line_feeds_carriage_returns_and_the_end() {
        assert_eq!(split(&[b"a\nb", b"c\r\nd\re"]), ["a", "bc", "d", "e"]);
        assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
        assert_eq!(split(&[b"", b"\n\n"]), Vec::<String>::new());
    }

    #[test]
    fn an_endless_line_takes_bounded_memory_and_the_next_one_is_read() {
        let chunk = vec![b'x'; 1 << 20];
        let found = split(&[&chunk, &chunk, &chunk, b"\nnext"]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len(), found[1].as_str()), (LONGEST_LINE, "next"));
    }

    #[test]
    fn a_line_that_was_cut_is_told() {
        let mut lines = Lines::default();
        lines.add(&vec![b'x'; LONGEST_LINE], |_| ());
        lines.add(b"\n", |_| ());
        assert!(!lines.has_cut);
        lines.add(&vec![b'x'; LONGEST_LINE + 1], |_| ());
        assert!(lines.has_cut);
    }

    #[test]
    fn a_line_has_no_codes_of_a_terminal() {
        let colored = b"\x1b[32mloss\x1b[0m \x1b[1;31m2.5\x1b[0m\n\x1b]8;;x\x07link\x1b]8;;\x07\n";
        assert_eq!(split(&[&colored[..9], &colored[9..]]), ["loss 2.5", "link"]);
        assert_eq!(
            split(&[b"\x1b[2K\rstep 1\ta \xc3\xa9\n"]),
            ["", "step 1\ta \u{e9}"]
        );
    }

    #[test]
    fn the_ends_of_an_output_have_no_part_of_a_line() {
        let ends = |text: &'static str| {
            let head = complete_from_beginning(text.as_bytes());
            let tail = complete_to_end(text.as_bytes());
            (str::from_utf8(head).unwrap(), str::from_utf8(tail).unwrap())
        };
        assert_eq!(ends("a 1\rb 2\nc"), ("a 1\rb 2\n", "b 2\nc"));
        assert_eq!(ends("a 1\n"), ("a 1\n", ""));
        assert_eq!(ends("a 1"), ("", ""));
    }
}
