//! A page of lines that fits a terminal, and drawing it over the page before: one write for each look.

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Size {
    /// Of the terminal that standard output is; 24 lines of 80 characters if it does not say.
    pub(super) fn of_stdout() -> Self {
        let told = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        match told.filter(|size| size.ws_row > 0 && size.ws_col > 0) {
            Some(size) => Self { rows: size.ws_row.into(), columns: size.ws_col.into() },
            None => Self { rows: 24, columns: 80 },
        }
    }

    /// The longest line: one in the last column would make the terminal begin another.
    pub(super) fn line_width(self) -> usize {
        self.columns.saturating_sub(1).max(1)
    }
}

/// What is to be shown.
pub(super) struct Page {
    pub(super) heading: Option<String>,
    pub(super) lines: Vec<String>,
    pub(super) footer: Option<String>,
}

impl Page {
    /// The page's lines as far as there is room; the last row is left to the cursor. What is missing is counted.
    pub(super) fn fitted(self, size: Size) -> Vec<String> {
        let room = size.rows.saturating_sub(1).max(1);
        let heading = self.heading.filter(|_| room >= 3);
        let left = room - usize::from(heading.is_some());
        let mut lines = self.lines;
        if lines.len() > left {
            let more = lines.len() - (left - 1);
            lines.truncate(left - 1);
            let too = self.footer.as_ref().map(|footer| format!("; {footer}")).unwrap_or_default();
            lines.push(format!("… {more} more in a higher window{too}"));
        }
        let footer = self.footer.filter(|_| lines.len() < left);
        heading.into_iter().chain(lines).chain(footer).map(|line| cut(&line, size.line_width())).collect()
    }
}

/// The first `width` characters, the last of which says that there were more.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The page that stands on the terminal; the cursor is on the line below it.
#[derive(Default)]
pub(super) struct Drawn {
    /// Characters of each line.
    lengths: Vec<usize>,
}

impl Drawn {
    /// What draws `lines` over the page before.
    pub(super) fn draw(&mut self, lines: &[String], size: Size) -> String {
        // A terminal that has become narrower has broken the lines.
        let rows: usize = self.lengths.iter().map(|length| length.div_ceil(size.columns.max(1)).max(1)).sum();
        let up = match rows.min(size.rows.saturating_sub(1)) {
            0 => String::new(),
            rows => format!("\x1b[{rows}A"),
        };
        self.lengths = lines.iter().map(|line| line.chars().count()).collect();
        let body: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        format!("\r{up}{body}\x1b[J")
    }

    /// What leaves the terminal as it should be: the page stays, and an echoed `^C` below it goes.
    pub(super) fn end(&self) -> &'static str {
        if self.lengths.is_empty() { "" } else { "\r\x1b[K" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(count: usize) -> Page {
        Page { heading: Some("heading".into()), lines: (0..count).map(|line| format!("GPU {line}")).collect(), footer: Some("left out".into()) }
    }

    #[test]
    fn a_page_without_room_counts_what_is_missing() {
        let size = |rows| Size { rows, columns: 80 };
        assert_eq!(page(2).fitted(size(5)), ["heading", "GPU 0", "GPU 1", "left out"]);
        assert_eq!(page(2).fitted(size(4)), ["heading", "GPU 0", "GPU 1"]);
        assert_eq!(page(8).fitted(size(6)), ["heading", "GPU 0", "GPU 1", "GPU 2", "… 5 more in a higher window; left out"]);
        assert_eq!(page(8).fitted(size(3)), ["GPU 0", "… 7 more in a higher window; left out"]);
        assert_eq!(page(8).fitted(size(1)), ["… 8 more in a higher window; left out"]);
        assert_eq!(page(1).fitted(size(2)), ["GPU 0"]);
    }

    #[test]
    fn no_line_reaches_the_last_column() {
        let lines = page(1).fitted(Size { rows: 10, columns: 5 });
        assert_eq!(lines, ["hea…", "GPU…", "lef…"]);
    }

    #[test]
    fn a_page_is_drawn_over_the_one_before_in_one_piece() {
        let size = Size { rows: 24, columns: 80 };
        let mut drawn = Drawn::default();
        assert_eq!(drawn.end(), "");
        assert_eq!(drawn.draw(&["one".to_owned(), "two".to_owned()], size), "\rone\x1b[K\ntwo\x1b[K\n\x1b[J");
        assert_eq!(drawn.draw(&["three".to_owned()], size), "\r\x1b[2Athree\x1b[K\n\x1b[J");
        // Broken into two lines by a narrower terminal.
        assert_eq!(drawn.draw(&["x".to_owned()], Size { rows: 24, columns: 3 }), "\r\x1b[2Ax\x1b[K\n\x1b[J");
        assert_eq!(drawn.end(), "\r\x1b[K");
    }
}
