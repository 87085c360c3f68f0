//! Lines with times on standard error, for logs.

use std::time::{Duration, Instant};

use kiln_core::units::{Seconds, counted};

use super::{
    LastShown,
    outlook::Outlook,
    words::{all_figures, ended, started},
};
use crate::{
    output::terminal::note,
    schedule::{LaunchCounts, LaunchEvent, LaunchListener, TrialProgress},
};

/// Time between two lines of one trial's progress.
const EVERY: Duration = Duration::from_secs(10);

/// Prints lines.
#[derive(Debug)]
pub(super) struct ProgressLines {
    /// When kiln began to tell; the launch begins later.
    began: Instant,
    outlook: Outlook,
    shown: LastShown,
}

impl ProgressLines {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            outlook: Outlook::new(),
            shown: LastShown::default(),
        }
    }

    /// Prints a line with the time since the first one could come.
    fn line(&self, text: &str) {
        let elapsed = Seconds(self.began.elapsed().as_secs_f64()).to_string();
        note(&format!("{elapsed:>9}  {text}"));
    }

    fn progress(&self, name: &str, progress: TrialProgress, counts: LaunchCounts) {
        let step = match (progress.step.unwrap_or(0), progress.total_steps) {
            // A command that reports no step.
            (0, None) => "running".to_owned(),
            (step, Some(total)) => format!("step {step}/{total}"),
            (step, None) => format!("step {step}"),
        };
        let left = self.outlook.time_left(counts);
        self.line(&format!(
            "{name}: {step}{}{}",
            all_figures(progress),
            left.map(|left| format!("; {left} in this run"))
                .unwrap_or_default()
        ));
    }
}

impl LaunchListener for ProgressLines {
    fn hear(&self, event: LaunchEvent<'_>) {
        self.outlook.hear(&event);
        match event {
            LaunchEvent::Notice(text) => self.line(text),
            LaunchEvent::TrialNotice { trial, text } => {
                if let Some(line) = self.outlook.notice(trial, text) {
                    self.line(&line);
                }
            }
            LaunchEvent::RunStarted {
                folder,
                launch,
                counts,
                ..
            } => self.line(&started(folder, launch, counts)),
            LaunchEvent::TrialStarted {
                trial,
                attempt,
                device,
            } => {
                let again = match attempt {
                    1 => String::new(),
                    attempt => format!(", attempt {attempt}"),
                };
                let name = self.outlook.name(trial);
                self.line(&format!("{name}: started on {device}{again}"));
                if trial.model.command().is_some() {
                    // It has begun as it starts: the next line is due later.
                    self.shown.is_due(&trial.id, EVERY);
                }
            }
            LaunchEvent::TrialProgressed {
                trial,
                progress,
                counts,
            } => {
                if self.shown.is_due(&trial.id, EVERY) {
                    self.progress(&self.outlook.name(trial), progress, counts);
                }
            }
            LaunchEvent::TrialEnded { trial, row, counts } => {
                self.shown.forget(&row.trial);
                self.line(&ended(&self.outlook.name(trial), row));
                let of = if counts.is_open {
                    counted(counts.plan.settled, "trial")
                } else {
                    format!("{}/{} trials", counts.plan.settled, counts.total)
                };
                self.line(&format!("{of}{}", self.outlook.text(counts)));
            }
            LaunchEvent::TrialAdded { .. } | LaunchEvent::RunEnded { .. } => {}
        }
    }
}
