//! Lines of CSV on their way to a writer, some at a time.

use std::io;

use crate::output::csv;

/// Size of a piece of the table.
pub(super) const PIECE_BYTES: usize = 1 << 16;

/// Lines on their way to a writer.
pub(super) struct Pieces<'w> {
    /// Not yet written.
    text: String,
    write: &'w mut dyn FnMut(&str) -> io::Result<bool>,
    /// Whether anybody reads on.
    pub(super) is_read: bool,
    pub(super) fault: Option<io::Error>,
}

impl<'w> Pieces<'w> {
    pub(super) fn to(write: &'w mut dyn FnMut(&str) -> io::Result<bool>) -> Self {
        Self {
            text: String::new(),
            write,
            is_read: true,
            fault: None,
        }
    }

    pub(super) fn add<'c>(&mut self, cells: impl Iterator<Item = &'c str>) {
        match csv::exact_line(cells) {
            Ok(line) => self.text.push_str(&line),
            Err(error) => self.fault = Some(error),
        }
        if self.text.len() >= PIECE_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.is_read && self.fault.is_none() {
            match (self.write)(&self.text) {
                Ok(is_read) => self.is_read = is_read,
                Err(error) => self.fault = Some(error),
            }
        }
        self.is_read &= self.fault.is_none();
        self.text.clear();
    }

    pub(super) fn end(mut self) -> io::Result<()> {
        self.flush();
        self.fault.map_or(Ok(()), Err)
    }
}
