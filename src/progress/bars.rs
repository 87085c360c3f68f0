//! Bars on a terminal: one for the launch, one for each running trial.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    time::Instant,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kiln_core::plan::TrialId;

use super::{
    lines::print_line,
    words::{described, ended, figures, outlook, started},
};
use crate::schedule::{LaunchCounts, LaunchEvent, LaunchListener};

/// Draws bars.
#[derive(Debug)]
pub(super) struct ProgressBars {
    bars: MultiProgress,
    launch: ProgressBar,
    trials: RefCell<HashMap<TrialId, ProgressBar>>,
    started: Cell<Instant>,
}

impl ProgressBars {
    pub(super) fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let style = template("{bar:24} {pos}/{len} trials{msg}");
        Self {
            launch: ProgressBar::hidden().with_style(style),
            bars,
            trials: RefCell::default(),
            started: Cell::new(Instant::now()),
        }
    }

    fn line(&self, text: &str) {
        if self.bars.is_hidden() {
            print_line(self.started.get(), text);
        } else {
            let _ = self.bars.println(text);
        }
    }

    fn show(&self, counts: LaunchCounts) {
        self.launch.set_length(counts.total as u64);
        self.launch.set_position(counts.plan.settled as u64);
        let elapsed = self.started.get().elapsed();
        self.launch.set_message(outlook(counts, elapsed));
    }
}

impl LaunchListener for ProgressBars {
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
                self.bars.add(self.launch.clone());
                self.show(counts);
            }
            LaunchEvent::TrialStarted { trial, .. } => {
                let style = template("  {prefix} {bar:16} {pos}/{len} steps{msg}");
                let bar = ProgressBar::new(trial.steps.unwrap_or(0)).with_style(style);
                let bar = self.bars.insert_before(&self.launch, bar);
                bar.set_prefix(format!("{} ({})", trial.id, described(trial)));
                self.trials.borrow_mut().insert(trial.id.clone(), bar);
            }
            LaunchEvent::TrialProgressed {
                trial,
                progress,
                counts,
            } => {
                if let Some(bar) = self.trials.borrow().get(trial) {
                    progress.total_steps.inspect(|total| bar.set_length(*total));
                    progress.step.inspect(|step| bar.set_position(*step));
                    bar.set_message(figures(progress));
                }
                self.show(counts);
            }
            LaunchEvent::TrialEnded { row, counts } => {
                if let Some(bar) = self.trials.borrow_mut().remove(&row.trial) {
                    bar.finish_and_clear();
                    self.bars.remove(&bar);
                }
                self.line(&ended(row));
                self.show(counts);
            }
            LaunchEvent::TrialAdded { counts } => self.show(counts),
            LaunchEvent::RunEnded { .. } => self.launch.finish_and_clear(),
        }
    }
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}
