//! State that all listeners for people keep of a launch: its start, the names of its trials, and
//! how long it still takes.

use std::{cell::RefCell, collections::HashSet, time::Instant};

use kiln_core::plan::Trial;

use super::{
    names::name,
    pace::Pace,
    time_left::{TimeLeft, TrialSize, rough},
};
use crate::schedule::{LaunchCounts, LaunchEvent, TrialProgress};

/// The start, the names and the time left of a launch.
#[derive(Debug)]
pub(super) struct Outlook(RefCell<OutlookState>);

#[derive(Debug)]
struct OutlookState {
    started: Instant,
    time: TimeLeft,
    /// Whether a point has several seeds.
    is_repeated: bool,
    /// The notices on trials that were shown.
    told: HashSet<String>,
}

impl Outlook {
    pub(super) fn new() -> Self {
        Self(RefCell::new(OutlookState {
            started: Instant::now(),
            time: TimeLeft::default(),
            is_repeated: false,
            told: HashSet::new(),
        }))
    }

    /// The line of a notice on a trial; `None` if it was shown of another trial: many have the same
    /// one, and their rows note it.
    pub(super) fn notice(&self, trial: &Trial, text: &str) -> Option<String> {
        self.is_new(text)
            .then(|| format!("{}: {text}", self.name(trial)))
    }

    fn is_new(&self, notice: &str) -> bool {
        self.0.borrow_mut().told.insert(notice.to_owned())
    }

    pub(super) fn name(&self, trial: &Trial) -> String {
        name(trial, self.0.borrow().is_repeated)
    }

    pub(super) fn hear(&self, event: &LaunchEvent<'_>) {
        self.0.borrow_mut().hear(event);
    }

    /// Returns text such as `, 1 failed, about 3 min 10 s left`.
    pub(super) fn text(&self, counts: LaunchCounts) -> String {
        let failed = match counts.plan.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        match self.time_left(counts) {
            Some(left) => format!("{failed}, {left}"),
            None => failed,
        }
    }

    /// Returns `about 3 min 10 s left`; `None` if it is unknown.
    pub(super) fn time_left(&self, counts: LaunchCounts) -> Option<String> {
        let mut state = self.0.borrow_mut();
        // A search may add trials.
        if counts.is_open && !counts.is_over {
            return None;
        }
        if counts.is_over {
            state.time.start_no_more();
        }
        let now = state.now();
        let seconds = state.time.left(now)?;
        Some(format!("about {} left", rough(seconds)))
    }
}

impl OutlookState {
    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn hear(&mut self, event: &LaunchEvent<'_>) {
        match *event {
            LaunchEvent::RunStarted { trials, to_run, .. } => {
                self.started = Instant::now();
                self.is_repeated = trials.iter().any(|trial| trial.repeat > 0);
                for trial in to_run.iter().filter_map(|index| trials.get(*index)) {
                    self.time.wait_for(&trial.id, size(trial));
                }
            }
            LaunchEvent::TrialAdded { trial, .. } => {
                self.is_repeated |= trial.repeat > 0;
                self.time.wait_for(&trial.id, size(trial));
            }
            LaunchEvent::TrialStarted { trial, .. } => {
                let pace = Pace::new(self.now(), trial.steps);
                self.time.start(&trial.id, size(trial), pace);
            }
            LaunchEvent::TrialProgressed {
                trial, progress, ..
            } => {
                let now = self.now();
                self.time
                    .update(&trial.id, |pace| follow(pace, now, progress));
            }
            LaunchEvent::TrialEnded { trial, row, .. } => {
                let is_whole = row.is_completed();
                self.time.end(&trial.id, self.now(), is_whole);
            }
            LaunchEvent::Notice(_)
            | LaunchEvent::TrialNotice { .. }
            | LaunchEvent::RunEnded { .. } => {}
        }
    }
}

fn follow(pace: &mut Pace, now: f64, progress: TrialProgress) {
    if let Some(total) = progress.total_steps {
        pace.set_total(total);
    }
    match progress.evaluating {
        Some((batch, total)) => pace.evaluates(now, batch as f64 / total.max(1) as f64),
        None => pace.trains(now),
    }
    if let Some(step) = progress.step {
        pace.stepped(now, step);
    }
}

fn size(trial: &Trial) -> TrialSize {
    let per_sample = trial.flops_per_sample.unwrap_or(1);
    TrialSize {
        steps: trial.steps,
        work: Some(per_sample as f64 * trial.effective_batch_size as f64),
        point: trial.point,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_notice_of_a_further_trial_is_not_shown_again() {
        let outlook = Outlook::new();
        let shown = ["a", "b", "a"].map(|notice| outlook.is_new(notice));
        assert_eq!(shown, [true, true, false]);
    }
}
