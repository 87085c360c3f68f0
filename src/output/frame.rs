//! Pages of lines that are drawn over each other on a terminal: `kiln watch`, and the bars of a run.
//!
//! A page is fitted to the terminal, so that no line wraps, and drawn with one write. The cursor rests
//! on the line below the page. The terminal's state is not changed: no alternate screen, no hidden
//! cursor, nothing to restore after a panic.

use kiln_core::units::without_controls;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::terminal;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

impl Size {
    /// Size of the terminal at standard output; 24 lines of 80 characters if it is unknown.
    pub fn of_stdout() -> Self {
        Self::known(terminal::size())
    }

    /// Size of the terminal at standard error.
    pub fn of_stderr() -> Self {
        Self::known(terminal::stderr_size())
    }

    fn known(found: Option<(u16, u16)>) -> Self {
        match found.filter(|(rows, columns)| *rows > 0 && *columns > 0) {
            Some((rows, columns)) => Self {
                rows: rows.into(),
                columns: columns.into(),
            },
            None => Self {
                rows: 24,
                columns: 80,
            },
        }
    }

    /// Longest line: a character in the last column would make the terminal wrap.
    pub fn line_width(self) -> usize {
        self.columns.saturating_sub(1).max(1)
    }
}

/// A page to draw.
pub struct FramePage {
    pub heading: Option<String>,
    pub lines: Vec<String>,
    pub footer: Option<String>,
}

impl FramePage {
    /// Returns the lines of the page that fit; the last row is for the cursor. The hidden lines are
    /// counted.
    pub fn fitted(self, size: Size) -> Vec<String> {
        let room = size.rows.saturating_sub(1).max(1);
        let heading = self.heading.filter(|_| room >= 3);
        let left = room - usize::from(heading.is_some());
        let mut lines = self.lines;
        if lines.len() > left {
            let more = lines.len() - (left - 1);
            lines.truncate(left - 1);
            let too = self
                .footer
                .as_ref()
                .map(|footer| format!("; {footer}"))
                .unwrap_or_default();
            lines.push(format!(
                "… {more} more, enlarge the terminal to see them{too}"
            ));
        }
        let footer = self.footer.filter(|_| lines.len() < left);
        heading
            .into_iter()
            .chain(lines)
            .chain(footer)
            .map(|line| cut(&without_controls(&line), size.line_width()))
            .collect()
    }
}

/// Columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns as much of a text as fits into `columns`; it ends with an ellipsis if it was cut.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let mut shown = String::new();
    for letter in text.chars() {
        let Some(rest) = left.checked_sub(letter.width().unwrap_or(0)) else {
            break;
        };
        left = rest;
        shown.push(letter);
    }
    shown + "…"
}

/// Prefix of the continuation lines of a wrapped line. It shows that they continue the line above, so
/// that text of a value in it cannot look like a line of kiln's own.
const GOES_ON: &str = "│ ";

/// Breaks a line between words, so that the terminal does not break it inside one; further lines
/// begin with [`GOES_ON`]. A word that is longer than a line stays whole.
pub fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for (index, word) in line.split(' ').enumerate() {
        let last = lines.len() - 1;
        if index == 0 || word.is_empty() || width(&lines[last]) + 1 + width(word) <= columns {
            if index > 0 {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        } else {
            lines.push(format!("{GOES_ON}{word}"));
        }
    }
    lines
}

/// Breaks the sentences of a page between words. Other lines stay as they are: those of tables and
/// lists, which begin with a space or mark a row with a star, and those with colors.
pub fn wrapped_prose(page: &str, columns: usize) -> String {
    let is_prose = |line: &str| {
        let is_row = line.starts_with(' ') || line.starts_with("*  ");
        !is_row && !line.contains('\u{1b}')
    };
    page.split('\n')
        .map(|line| match is_prose(line) && width(line) > columns {
            true => wrapped(line, columns).join("\n"),
            false => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// A bar of so many characters, filled up to a fraction of 1.
pub fn bar(fraction: f64, columns: usize) -> String {
    let filled = (fraction.clamp(0.0, 1.0) * columns as f64).floor() as usize;
    "█".repeat(filled) + &"░".repeat(columns - filled.min(columns))
}

/// The page on the terminal; the cursor is on the line below it.
#[derive(Debug, Default)]
pub struct DrawnFrame {
    /// Length of each line, in columns.
    lengths: Vec<usize>,
}

impl DrawnFrame {
    /// Returns the text that draws `lines` over the previous page.
    pub fn draw(&mut self, lines: &[String], size: Size) -> String {
        self.draw_below(&[], lines, size)
    }

    /// The same with lines that stay above the page.
    pub fn draw_below(&mut self, above: &[String], lines: &[String], size: Size) -> String {
        // A terminal that became narrower has wrapped the lines.
        let rows: usize = self
            .lengths
            .iter()
            .map(|length| length.div_ceil(size.columns.max(1)).max(1))
            .sum();
        let up = match rows.min(size.rows.saturating_sub(1)) {
            0 => String::new(),
            rows => format!("\x1b[{rows}A"),
        };
        self.lengths = lines.iter().map(|line| width(line)).collect();
        let body: String = above
            .iter()
            .chain(lines)
            .map(|line| format!("{line}\x1b[K\n"))
            .collect();
        format!("\r{up}{body}\x1b[J")
    }

    /// Whether nothing is drawn.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Returns the text that ends the drawing: the page stays, and an echoed `^C` below it is
    /// erased.
    pub fn end(&self) -> &'static str {
        if self.lengths.is_empty() {
            ""
        } else {
            "\r\x1b[K"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(count: usize) -> FramePage {
        FramePage {
            heading: Some("heading".into()),
            lines: (0..count).map(|line| format!("GPU {line}")).collect(),
            footer: Some("left out".into()),
        }
    }

    #[test]
    fn a_page_without_room_counts_what_is_missing() {
        let size = |rows| Size { rows, columns: 80 };
        assert_eq!(
            page(2).fitted(size(5)),
            ["heading", "GPU 0", "GPU 1", "left out"]
        );
        assert_eq!(page(2).fitted(size(4)), ["heading", "GPU 0", "GPU 1"]);
        assert_eq!(
            page(8).fitted(size(6)),
            [
                "heading",
                "GPU 0",
                "GPU 1",
                "GPU 2",
                "… 5 more, enlarge the terminal to see them; left out"
            ]
        );
        assert_eq!(
            page(8).fitted(size(3)),
            [
                "GPU 0",
                "… 7 more, enlarge the terminal to see them; left out"
            ]
        );
        assert_eq!(
            page(8).fitted(size(1)),
            ["… 8 more, enlarge the terminal to see them; left out"]
        );
        assert_eq!(page(1).fitted(size(2)), ["GPU 0"]);
    }

    #[test]
    fn no_line_reaches_the_last_column() {
        let lines = page(1).fitted(Size {
            rows: 10,
            columns: 5,
        });
        assert_eq!(lines, ["hea…", "GPU…", "lef…"]);
    }

    #[test]
    fn a_page_is_drawn_over_the_one_before_in_one_piece() {
        let size = Size {
            rows: 24,
            columns: 80,
        };
        let mut drawn = DrawnFrame::default();
        assert_eq!(drawn.end(), "");
        assert_eq!(
            drawn.draw(&["one".to_owned(), "two".to_owned()], size),
            "\rone\x1b[K\n\
             two\x1b[K\n\x1b[J"
        );
        assert_eq!(
            drawn.draw(&["three".to_owned()], size),
            "\r\x1b[2Athree\x1b[K\n\x1b[J"
        );
        // Wrapped into two lines by a narrower terminal.
        assert_eq!(
            drawn.draw(
                &["x".to_owned()],
                Size {
                    rows: 24,
                    columns: 3
                }
            ),
            "\r\x1b[2Ax\x1b[K\n\
             \x1b[J"
        );
        assert_eq!(drawn.end(), "\r\x1b[K");
    }
    #[test]
    fn lines_that_stay_are_written_above_the_page() {
        let size = Size {
            rows: 24,
            columns: 80,
        };
        let mut drawn = DrawnFrame::default();
        drawn.draw(&["bar".to_owned()], size);
        assert_eq!(
            drawn.draw_below(&["notice".to_owned()], &["bar".to_owned()], size),
            "\r\x1b[1Anotice\x1b[K\nbar\x1b[K\n\x1b[J"
        );
        assert_eq!(drawn.draw(&[], size), "\r\x1b[1A\x1b[J");
        assert!(drawn.is_empty());
    }

    #[test]
    fn only_the_sentences_of_a_page_are_wrapped() {
        let page = "one two three\n  a list of files\n*  8  64.0  100 %\n* one star more\n";
        assert_eq!(
            wrapped_prose(page, 9),
            "one two\n│ three\n  a list of files\n*  8  64.0  100 %\n* one\n│ star\n│ more\n"
        );
        assert_eq!(wrapped_prose(page, 80), page);
    }

    #[test]
    fn wide_letters_count_twice_and_words_stay_whole() {
        assert_eq!(cut("数据数据", 5), "数据…");
        assert_eq!(cut("数据", 4), "数据");
        assert_eq!(
            wrapped("one two three four", 9),
            ["one two", "│ three", "│ four"]
        );
        assert_eq!(
            wrapped("a /long/path/of/a/file b", 8),
            ["a", "│ /long/path/of/a/file", "│ b"]
        );
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 2) + &bar(f64::NAN, 1), "██░");
    }
}
