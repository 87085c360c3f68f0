//! The progress of a launch for people and programs: bars on a terminal, lines with times
//! elsewhere, JSON events for programs, or nothing.

mod bars;
mod json_events;
mod lines;
pub(crate) mod names;
mod outlook;
pub(crate) mod pace;
pub(crate) mod time_left;
mod words;

use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, Instant},
};

use kiln_core::plan::TrialId;

use self::{bars::ProgressBars, json_events::JsonEvents, lines::ProgressLines};
use crate::{
    output::terminal::{can_draw, stderr_is_terminal},
    schedule::{LaunchEvent, LaunchListener},
};

/// Form of the progress output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressMode {
    Quiet,
    /// Lines with times on standard error.
    Plain,
    /// One JSON object per line on standard output.
    Json,
    /// Bars on standard error.
    Bars,
}

impl ProgressMode {
    /// Bars if standard error is a terminal that can be drawn on, else plain lines.
    pub fn for_terminal() -> Self {
        if can_draw(stderr_is_terminal()) {
            Self::Bars
        } else {
            Self::Plain
        }
    }

    /// The listener that makes this output.
    pub fn listener(self) -> Box<dyn LaunchListener> {
        match self {
            Self::Quiet => Box::new(Quiet),
            Self::Plain => Box::new(ProgressLines::new()),
            Self::Json => Box::new(JsonEvents::default()),
            Self::Bars => Box::new(ProgressBars::new()),
        }
    }
}

/// Prints nothing.
struct Quiet;

impl LaunchListener for Quiet {
    fn hear(&self, _: LaunchEvent<'_>) {}
}

/// When each running trial was last shown.
#[derive(Debug, Default)]
struct LastShown(RefCell<HashMap<TrialId, Instant>>);

impl LastShown {
    /// Whether the trial is to be shown again, `every` so often; then it counts as shown now.
    fn is_due(&self, trial: &TrialId, every: Duration) -> bool {
        let mut shown = self.0.borrow_mut();
        let is_due = shown.get(trial).is_none_or(|last| last.elapsed() >= every);
        if is_due {
            shown.insert(trial.clone(), Instant::now());
        }
        is_due
    }

    fn forget(&self, trial: &TrialId) {
        self.0.borrow_mut().remove(trial);
    }
}
