//! Bars on a terminal: one for the launch, one for each running trial.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    time::Instant,
};

use kiln_core::plan::TrialId;

use super::{
    lines::print_line,
    words::{described, ended, figures, outlook, started},
};
use crate::{
    output::bars::{Bar, BarGroup},
    schedule::{LaunchCounts, LaunchEvent, LaunchListener},
};

/// Draws bars.
#[derive(Debug)]
pub(super) struct ProgressBars {
    bars: BarGroup,
    launch: Bar,
    trials: RefCell<HashMap<TrialId, Bar>>,
    started: Cell<Instant>,
}

impl ProgressBars {
    pub(super) fn new() -> Self {
        Self {
            launch: Bar::hidden("{bar:24} {pos}/{len} trials{msg}"),
            bars: BarGroup::on_stderr(),
            trials: RefCell::default(),
            started: Cell::new(Instant::now()),
        }
    }

    fn line(&self, text: &str) {
        if !self.bars.print_line(text) {
            print_line(self.started.get(), text);
        }
    }

    fn show(&self, counts: LaunchCounts) {
        self.launch.set_length(counts.total as u64);
        self.launch.set_position(counts.plan.settled as u64);
        let elapsed = self.started.get().elapsed();
        self.launch.set_message(&outlook(counts, elapsed));
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
                self.bars.add(&self.launch);
                self.show(counts);
            }
            LaunchEvent::TrialStarted { trial, .. } => {
                let bar = Bar::new(
                    Some(trial.steps.unwrap_or(0)),
                    "  {prefix} {bar:16} {pos}/{len} steps{msg}",
                );
                let bar = self.bars.insert_before(&self.launch, bar);
                bar.set_prefix(&format!("{} ({})", trial.id, described(trial)));
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
                    bar.set_message(&figures(progress));
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
