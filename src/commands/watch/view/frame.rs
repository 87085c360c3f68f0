//! Fits a page of lines to a terminal and draws it over the previous page, with one write for each
//! reading.

use kiln_core::units::without_controls;

use crate::output::terminal;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Size {
    /// Size of the terminal at standard output; 24 lines of 80 characters if it is unknown.
    pub(super) fn of_stdout() -> Self {
        match terminal::size().filter(|(rows, columns)| *rows > 0 && *columns > 0) {
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
    pub(super) fn line_width(self) -> usize {
        self.columns.saturating_sub(1).max(1)
    }
}

/// A page to draw.
pub(super) struct FramePage {
    pub(super) heading: Option<String>,
    pub(super) lines: Vec<String>,
    pub(super) footer: Option<String>,
}

impl FramePage {
    /// Returns the lines of the page that fit; the last row is for the cursor. The hidden lines are
    /// counted.
    pub(super) fn fitted(self, size: Size) -> Vec<String> {
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

/// Returns the first `width` characters; the last one is an ellipsis if the text was cut.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The page on the terminal; the cursor is on the line below it.
#[derive(Default)]
pub(super) struct DrawnFrame {
    /// Length of each line, in characters.
    lengths: Vec<usize>,
}

impl DrawnFrame {
    /// Returns the text that draws `lines` over the previous page.
    pub(super) fn draw(&mut self, lines: &[String], size: Size) -> String {
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
        self.lengths = lines.iter().map(|line| line.chars().count()).collect();
        let body: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        format!("\r{up}{body}\x1b[J")
    }

    /// Returns the text that ends the drawing: the page stays, and an echoed `^C` below it is
    /// erased.
    pub(super) fn end(&self) -> &'static str {
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
}
