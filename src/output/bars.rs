//! Progress bars on standard error, drawn by indicatif: texts beside a bar and lines above it are
//! one line each.

#![allow(
    clippy::disallowed_types,
    reason = "this is the one place that draws bars, and it escapes every text"
)]

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kiln_core::units::without_controls;

/// Bars below each other.
#[derive(Debug)]
pub struct BarGroup(MultiProgress);

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar(ProgressBar);

impl BarGroup {
    /// Draws on standard error, if it is a terminal.
    pub fn on_stderr() -> Self {
        Self(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
    }

    /// Prints a line above the bars; `false` if nothing is drawn.
    pub fn print_line(&self, line: &str) -> bool {
        !self.0.is_hidden() && self.0.println(without_controls(line)).is_ok()
    }

    pub fn add(&self, bar: &Bar) {
        self.0.add(bar.0.clone());
    }

    pub fn insert_before(&self, next: &Bar, bar: Bar) -> Bar {
        Bar(self.0.insert_before(&next.0, bar.0))
    }

    pub fn remove(&self, bar: &Bar) {
        self.0.remove(&bar.0);
    }
}

impl Bar {
    /// A bar that is drawn once it is in a group.
    pub fn hidden(template: &str) -> Self {
        Self(ProgressBar::hidden().with_style(style(template)))
    }

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
