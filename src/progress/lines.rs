//! Lines with times on standard error, for logs.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use kiln_core::units::{Seconds, counted};

use super::{
    LastShown,
    words::{described, ended, figures, outlook, started},
};
use crate::{
    output::terminal::note,
    schedule::{LaunchEvent, LaunchListener},
};

/// Time between two lines of one trial's progress.
const EVERY: Duration = Duration::from_secs(10);

/// Prints lines.
#[derive(Debug)]
pub(super) struct ProgressLines {
    /// The start of the launch.
    started: Cell<Instant>,
    shown: LastShown,
}

impl ProgressLines {
    pub(super) fn new() -> Self {
        Self {
            started: Cell::new(Instant::now()),
            shown: LastShown::default(),
        }
    }

    fn line(&self, text: &str) {
        print_line(self.started.get(), text);
    }
}

/// Prints a line on standard error with the time since the start of the launch.
pub(super) fn print_line(started: Instant, text: &str) {
    let elapsed = Seconds(started.elapsed().as_secs_f64()).to_string();
    note(&format!("{elapsed:>9}  {text}"));
}

impl LaunchListener for ProgressLines {
    fn hear(&self, event: LaunchEvent<'_>) {
        match event {
            LaunchEvent::Notice(text) => self.line(text),
            LaunchEvent::RunStarted {
                folder,
                launch,
                counts,
            } => {
                self.started.set(Instant::now());
                self.line(&started(folder, launch, counts));
            }
            LaunchEvent::TrialStarted {
                trial,
                attempt,
                device,
            } => self.line(&format!(
                "trial {} ({}) started on {device}, attempt {attempt}",
                trial.id,
                described(trial)
            )),
            LaunchEvent::TrialProgressed {
                trial, progress, ..
            } => {
                if self.shown.is_due(trial, EVERY) {
                    let of = progress.total_steps.map(|total| format!("/{total}"));
                    self.line(&format!(
                        "trial {trial}: step {}{}{}",
                        progress.step.unwrap_or(0),
                        of.unwrap_or_default(),
                        figures(progress)
                    ));
                }
            }
            LaunchEvent::TrialEnded { row, counts } => {
                self.shown.forget(&row.trial);
                self.line(&ended(row));
                let of = if counts.is_open {
                    counted(counts.plan.settled, "trial")
                } else {
                    format!("{}/{} trials", counts.plan.settled, counts.total)
                };
                let elapsed = self.started.get().elapsed();
                self.line(&format!("{of}{}", outlook(counts, elapsed)));
            }
            LaunchEvent::TrialAdded { .. } | LaunchEvent::RunEnded { .. } => {}
        }
    }
}
