//! Writes to standard output and standard error; no other code does (`clippy.toml`).
//!
//! Every text is filtered, also for a pipe or a file: a hidden character becomes a space or `�`.
//! Line feeds stay, and kiln's own colors and cursor moves, where the stream is a terminal.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the one place that uses the standard streams"
)]

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    sync::OnceLock,
};

use kiln_core::units::{shown_letter, without_controls};

use super::json;

/// Control sequences of kiln that a text may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnControls {
    Nothing,
    /// Colors and weights of letters.
    Colors,
    /// Cursor moves of a page that is drawn over the one before.
    Drawing,
}

/// Colors of `kiln doctor`, bold lines of tables, and the styles of clap.
const COLORS: [&str; 8] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[4m",
    "\u{1b}[31m",
    "\u{1b}[31;1m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];
const DRAWING: [&str; 3] = ["\r", "\u{1b}[K", "\u{1b}[J"];

/// Writes a page to standard output; `false` once nobody reads it (`kiln plan | head`).
///
/// # Errors
/// If it cannot be written.
pub fn print(page: &str) -> io::Result<bool> {
    let own = if has_color() {
        OwnControls::Colors
    } else {
        OwnControls::Nothing
    };
    write(&filtered(page, own))
}

/// As [`print`], for one line without its line feed: a line feed in `line` does not end it.
///
/// # Errors
/// If it cannot be written.
pub fn print_line(line: &str) -> io::Result<bool> {
    write(&(without_controls(line) + "\n"))
}

/// As [`print`], for JSON: its values stay exact.
///
/// # Errors
/// If it cannot be written.
pub fn print_json(text: &str) -> io::Result<bool> {
    write(&json::escaped(text))
}

/// As [`print`], for text of a model, names of files or a table: exact where it does not go to a terminal.
///
/// # Errors
/// If it cannot be written.
pub fn print_content(text: &str) -> io::Result<bool> {
    match stdout_is_terminal() {
        true => print(text),
        false => write(text),
    }
}

/// As [`print`], without a filter: for programs and manual pages that hold no text from elsewhere.
///
/// # Errors
/// If it cannot be written.
pub fn print_own(text: &str) -> io::Result<bool> {
    write(text)
}

/// As [`print`], for a page that is drawn over the one before.
///
/// # Errors
/// If it cannot be written.
pub fn draw(page: &str) -> io::Result<bool> {
    write(&filtered(page, OwnControls::Drawing))
}

/// As [`draw`], to standard error; ignores the error if it is closed.
pub fn draw_on_stderr(page: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(filtered(page, OwnControls::Drawing).as_bytes());
}

/// Writes one line to standard error; ignores the error if it is closed.
pub fn note(line: &str) {
    let line = without_controls(line) + "\n";
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// As [`note`], in yellow where standard error may show colors.
pub fn warning(line: &str) {
    note_in(line, "\u{1b}[33m");
}

/// As [`note`], in red where standard error may show colors.
pub fn problem(line: &str) {
    note_in(line, "\u{1b}[31m");
}

fn note_in(line: &str, color: &str) {
    match stderr_has_color() {
        true => note_page(&format!("{color}{}\u{1b}[0m\n", without_controls(line))),
        false => note(line),
    }
}

/// Writes a page to standard error; ignores the error if it is closed.
pub fn note_page(page: &str) {
    let own = if stderr_has_color() {
        OwnControls::Colors
    } else {
        OwnControls::Nothing
    };
    let _ = io::stderr()
        .lock()
        .write_all(filtered(page, own).as_bytes());
}

/// When colors are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also in a pipe or a file.
    Always,
    /// Nowhere.
    Never,
}

static COLOR: OnceLock<ColorChoice> = OnceLock::new();

/// Decides for the whole process when colors are used; only the first choice counts.
pub fn choose_color(choice: ColorChoice) {
    let _ = COLOR.set(choice);
}

/// Whether standard output may show colors.
pub fn has_color() -> bool {
    may_show_color(stdout_is_terminal())
}

/// Whether standard error may show colors.
pub fn stderr_has_color() -> bool {
    may_show_color(stderr_is_terminal())
}

fn may_show_color(is_terminal: bool) -> bool {
    match COLOR.get().copied().unwrap_or_default() {
        ColorChoice::Auto => is_terminal && is_color_wanted(|name| std::env::var_os(name)),
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    }
}

/// Whether the environment allows colors: a dumb terminal would print their codes. An empty NO_COLOR
/// counts as not set (no-color.org).
fn is_color_wanted(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
    !is_dumb && variable("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether a page can be drawn over another on a terminal, as `TERM` says.
pub fn can_draw(is_terminal: bool) -> bool {
    is_terminal && is_drawing_terminal(std::env::var("TERM").ok().as_deref())
}

fn is_drawing_terminal(term: Option<&str>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Rows and columns of the terminal at standard output; `None` if unknown.
pub fn size() -> Option<(u16, u16)> {
    size_of(io::stdout())
}

/// Rows and columns of the terminal at standard error; `None` if unknown.
pub fn stderr_size() -> Option<(u16, u16)> {
    size_of(io::stderr())
}

/// Columns of the terminal at standard error; `None` if it is none, or unknown.
pub fn stderr_columns() -> Option<usize> {
    let columns = stderr_size().map(|(_, columns)| columns);
    columns
        .filter(|columns| *columns > 0 && stderr_is_terminal())
        .map(usize::from)
}

fn size_of(stream: impl std::os::fd::AsFd) -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some((size.ws_row, size.ws_col))
}

fn write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Replaces every hidden character but line feeds and kiln's own sequences.
fn filtered(text: &str, own: OwnControls) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let length = match own_sequence(rest, own) {
            Some(length) => {
                shown.push_str(&rest[..length]);
                length
            }
            None => {
                shown.push(if letter == '\n' {
                    letter
                } else {
                    shown_letter(letter)
                });
                letter.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    shown
}

/// Length of the sequence of kiln's own at the beginning of a text, in bytes.
fn own_sequence(text: &str, own: OwnControls) -> Option<usize> {
    let known: &[&str] = match own {
        OwnControls::Nothing => &[],
        OwnControls::Colors => &COLORS,
        OwnControls::Drawing => &DRAWING,
    };
    let known = known
        .iter()
        .find(|known| text.starts_with(**known))
        .map(|known| known.len());
    known.or_else(|| rows_up(text).filter(|_| own == OwnControls::Drawing))
}

/// Length of `ESC [ <rows> A`.
fn rows_up(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("\u{1b}[")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0 && rest[digits..].starts_with('A')).then_some(digits + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}1Ab\r\u{202e}c\n\u{1b}[31md";

    #[test]
    fn only_line_feeds_pass_where_there_is_no_color() {
        assert_eq!(
            filtered(HOSTILE, OwnControls::Nothing),
            "a [2J ]0;x  1Ab �c\n [31md"
        );
    }

    #[test]
    fn colors_pass_on_a_terminal_and_cursor_moves_do_not() {
        let own = "\u{1b}[31;1mproblem\u{1b}[0m \u{1b}[1mbest\u{1b}[0m\n";
        assert_eq!(filtered(own, OwnControls::Colors), own);
        let moves = "\r\u{1b}[2Aline\u{1b}[K\n\u{1b}[J";
        assert_eq!(filtered(moves, OwnControls::Colors), "  [2Aline [K\n [J");
        assert_eq!(filtered(moves, OwnControls::Drawing), moves);
        assert_eq!(
            filtered("\u{1b}[A\u{1b}[8m", OwnControls::Drawing),
            " [A [8m"
        );
    }

    #[test]
    fn a_dumb_terminal_and_no_color_have_no_colors() {
        let wanted = |set: &[(&str, &str)]| {
            is_color_wanted(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).into())
            })
        };
        assert!(wanted(&[]) && wanted(&[("TERM", "xterm"), ("NO_COLOR", "")]));
        assert!(!wanted(&[("TERM", "dumb")]) && !wanted(&[("NO_COLOR", "1")]));
    }

    #[test]
    fn a_terminal_without_a_name_or_a_dumb_one_is_not_drawn_on() {
        assert!(is_drawing_terminal(Some("xterm-256color")));
        assert!(
            !is_drawing_terminal(Some("dumb"))
                && !is_drawing_terminal(Some(""))
                && !is_drawing_terminal(None)
        );
    }
}
