//! A progress bar with rate and time left on standard error, for downloads, drawn by indicatif: texts
//! beside a bar and lines above it are one line each. The bars of a run are a page of `frame`.

#![allow(
    clippy::disallowed_types,
    reason = "this is the one place that draws bars, and it escapes every text"
)]

use indicatif::{ProgressBar, ProgressStyle};
use kiln_core::units::without_controls;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar of so many units; `None` if their number is unknown.
    pub fn new(length: Option<u64>, template: &str) -> Self {
        let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
        Self(bar.with_style(style(template)))
    }

    pub fn set_length(&self, length: u64) {
        self.0.set_length(length);
    }

    pub fn set_position(&self, position: u64) {
        self.0.set_position(position);
    }

    pub fn set_prefix(&self, text: &str) {
        self.0.set_prefix(without_controls(text));
    }

    pub fn set_message(&self, text: &str) {
        self.0.set_message(without_controls(text));
    }

    /// Prints a line above the bar.
    pub fn print_line(&self, line: &str) {
        self.0.println(without_controls(line));
    }

    pub fn finish_and_clear(&self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
