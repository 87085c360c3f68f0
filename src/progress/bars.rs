//! Bars on a terminal: one for each running trial, and one for the launch below them. They are a page
//! that is drawn over the one before, so nothing is left behind and no line wraps.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Trial, TrialId},
    units::without_controls,
};

use super::{
    outlook::Outlook,
    words::{activity, ended, figures, started},
};
use crate::{
    output::{
        frame::{DrawnFrame, Size, bar, cut, width, wrapped},
        terminal,
    },
    schedule::{LaunchCounts, LaunchEvent, LaunchListener, TrialProgress},
};

/// Shortest time between two drawings that only show progress.
const EVERY: Duration = Duration::from_millis(150);
/// Characters of the bar of a launch, and of a trial where there is room and where there is little.
const LAUNCH_BAR: usize = 24;
const TRIAL_BAR: usize = 16;
const SHORT_BAR: usize = 8;
/// Most characters of a trial's name on a line that is too short for all.
const SHORT_NAME: usize = 24;

/// Draws bars.
#[derive(Debug)]
pub(super) struct ProgressBars {
    outlook: Outlook,
    state: RefCell<BarState>,
}

#[derive(Debug, Default)]
struct BarState {
    drawn: DrawnFrame,
    /// The running trials, in the order of their starts.
    trials: Vec<TrialBar>,
    /// The counts of the launch; `None` before it starts and after it has ended.
    counts: Option<LaunchCounts>,
    drawn_at: Option<Instant>,
}

/// A running trial.
#[derive(Debug)]
struct TrialBar {
    trial: TrialId,
    name: String,
    progress: TrialProgress,
}

impl ProgressBars {
    pub(super) fn new() -> Self {
        Self {
            outlook: Outlook::new(),
            state: RefCell::default(),
        }
    }

    /// Draws the bars again, below a further line that stays.
    fn print(&self, line: &str) {
        self.draw(Some(line), Size::of_stderr());
    }

    fn draw(&self, line: Option<&str>, size: Size) {
        let mut state = self.state.borrow_mut();
        let above = line.map(|line| wrapped(&without_controls(line), size.line_width()));
        let page = self.page(&state, size);
        let text = state
            .drawn
            .draw_below(&above.unwrap_or_default(), &page, size);
        terminal::draw_on_stderr(&text);
        state.drawn_at = Some(Instant::now());
    }

    /// Draws the bars again if they have not been drawn for a while.
    fn draw_progress(&self) {
        let drawn_at = self.state.borrow().drawn_at;
        if drawn_at.is_none_or(|at| at.elapsed() >= EVERY) {
            self.draw(None, Size::of_stderr());
        }
    }

    fn page(&self, state: &BarState, size: Size) -> Vec<String> {
        let Some(counts) = state.counts else {
            return Vec::new();
        };
        let columns = size.line_width();
        // One row is for the launch and one for the cursor.
        let room = size.rows.saturating_sub(2);
        let mut lines: Vec<String> = state
            .trials
            .iter()
            .flat_map(|trial| trial.lines(columns))
            .collect();
        if lines.len() > room {
            lines = state
                .trials
                .iter()
                .map(|trial| trial.short_line(columns))
                .collect();
        }
        if lines.len() > room {
            let hidden = lines.len() - room.saturating_sub(1);
            lines.truncate(room.saturating_sub(1));
            lines.push(cut(&format!("… {hidden} more trials"), columns));
            lines.truncate(room);
        }
        lines.push(self.launch_line(counts, columns));
        lines
    }

    fn launch_line(&self, counts: LaunchCounts, columns: usize) -> String {
        let fraction = counts.plan.settled as f64 / counts.total.max(1) as f64;
        let text = format!(
            "{}/{} trials{}",
            counts.plan.settled,
            counts.total,
            self.outlook.text(counts)
        );
        with_bar("", fraction, (LAUNCH_BAR, SHORT_BAR), &text, columns)
    }
}

/// A line with a bar, which is shorter where the text would not fit.
fn with_bar(
    name: &str,
    fraction: f64,
    (long, short): (usize, usize),
    text: &str,
    columns: usize,
) -> String {
    let taken = width(name) + 1 + width(text);
    let bar_columns = columns.saturating_sub(taken).clamp(short, long);
    cut(
        &format!("{name}{} {text}", bar(fraction, bar_columns)),
        columns,
    )
}

impl TrialBar {
    fn fraction(&self) -> f64 {
        let total = self.progress.total_steps.unwrap_or(0).max(1);
        self.progress.step.unwrap_or(0) as f64 / total as f64
    }

    fn steps(&self) -> String {
        let step = self.progress.step.unwrap_or(0);
        match self.progress.total_steps {
            Some(total) => format!("{step}/{total} steps"),
            None if step == 0 => "running".to_owned(),
            None => format!("step {step}"),
        }
    }

    /// One line where everything fits on it, else a line with the name and one with the figures.
    fn lines(&self, columns: usize) -> Vec<String> {
        let figures = self.figures_within(usize::MAX);
        let activity = activity(self.progress);
        let all = activity
            .iter()
            .fold(figures, |all, activity| format!("{all}, {activity}"));
        let name = format!("{} ", self.name);
        if width(&name) + TRIAL_BAR + 1 + width(&all) <= columns {
            return vec![with_bar(
                &name,
                self.fraction(),
                (TRIAL_BAR, TRIAL_BAR),
                &all,
                columns,
            )];
        }
        let head = match activity {
            Some(activity) => format!("{}: {activity}", self.name),
            None => self.name.clone(),
        };
        let figures = self.figures_within(columns.saturating_sub(SHORT_BAR + 3));
        let bars = with_bar(
            "  ",
            self.fraction(),
            (TRIAL_BAR, SHORT_BAR),
            &figures,
            columns,
        );
        vec![cut(&head, columns), bars]
    }

    /// One line, where the terminal has too few rows for two.
    fn short_line(&self, columns: usize) -> String {
        let name = format!("{} ", cut(&self.name, SHORT_NAME));
        let room = columns.saturating_sub(width(&name) + SHORT_BAR + 1);
        let figures = self.figures_within(room);
        with_bar(
            &name,
            self.fraction(),
            (TRIAL_BAR, SHORT_BAR),
            &figures,
            columns,
        )
    }

    /// The steps and as many of the figures as fit.
    fn figures_within(&self, columns: usize) -> String {
        let mut text = self.steps();
        for figure in figures(self.progress) {
            let longer = format!("{text}, {figure}");
            if width(&longer) > columns {
                break;
            }
            text = longer;
        }
        text
    }
}

impl LaunchListener for ProgressBars {
    fn hear(&self, event: LaunchEvent<'_>) {
        self.outlook.hear(&event);
        match event {
            LaunchEvent::Notice(text) => self.print(text),
            LaunchEvent::TrialNotice { trial, text } => {
                if let Some(line) = self.outlook.notice(trial, text) {
                    self.print(&line);
                }
            }
            LaunchEvent::RunStarted {
                folder,
                launch,
                counts,
                ..
            } => {
                self.state.borrow_mut().counts = Some(counts);
                self.print(&started(folder, launch, counts));
            }
            LaunchEvent::TrialStarted { trial, .. } => {
                let bar = self.bar(trial);
                self.state.borrow_mut().trials.push(bar);
                self.draw(None, Size::of_stderr());
            }
            LaunchEvent::TrialProgressed {
                trial,
                progress,
                counts,
            } => {
                self.state.borrow_mut().follow(&trial.id, progress, counts);
                self.draw_progress();
            }
            LaunchEvent::TrialEnded { trial, row, counts } => {
                self.state.borrow_mut().end(&trial.id, counts);
                self.print(&ended(&self.outlook.name(trial), row));
            }
            LaunchEvent::TrialAdded { counts, .. } => {
                self.state.borrow_mut().counts = Some(counts);
                self.draw(None, Size::of_stderr());
            }
            LaunchEvent::RunEnded { .. } => self.clear(),
        }
    }
}

impl ProgressBars {
    fn bar(&self, trial: &Trial) -> TrialBar {
        TrialBar {
            trial: trial.id.clone(),
            name: without_controls(&self.outlook.name(trial)),
            progress: TrialProgress {
                total_steps: trial.steps,
                ..TrialProgress::default()
            },
        }
    }

    /// Erases the bars; what is printed next takes their place.
    fn clear(&self) {
        let mut state = self.state.borrow_mut();
        state.counts = None;
        state.trials.clear();
        if !state.drawn.is_empty() {
            let text = state.drawn.draw(&[], Size::of_stderr());
            terminal::draw_on_stderr(&text);
        }
    }
}

impl Drop for ProgressBars {
    /// A launch that stops with an error tells no end.
    fn drop(&mut self) {
        self.clear();
    }
}

impl BarState {
    fn follow(&mut self, trial: &TrialId, progress: TrialProgress, counts: LaunchCounts) {
        self.counts = Some(counts);
        if let Some(bar) = self.trials.iter_mut().find(|bar| bar.trial == *trial) {
            bar.progress = TrialProgress {
                total_steps: progress.total_steps.or(bar.progress.total_steps),
                ..progress
            };
        }
    }

    fn end(&mut self, trial: &TrialId, counts: LaunchCounts) {
        self.counts = Some(counts);
        self.trials.retain(|bar| bar.trial != *trial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(trials: usize) -> (ProgressBars, BarState) {
        let bar = |number: usize| TrialBar {
            trial: TrialId(format!("t{number:010}")),
            name: format!("batch_size={}, num_workers=40, seed={number}", 8 << number),
            progress: TrialProgress {
                step: Some(123_456),
                total_steps: Some(1_000_000),
                loss: Some(2.345_678),
                samples_per_second: Some(123_456.0),
                data_wait_fraction: Some(0.123),
                evaluating: Some((3, 10)),
                ..TrialProgress::default()
            },
        };
        let state = BarState {
            trials: (0..trials).map(bar).collect(),
            counts: Some(LaunchCounts {
                total: 117,
                to_run: 117,
                ..LaunchCounts::default()
            }),
            ..BarState::default()
        };
        (ProgressBars::new(), state)
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_page_higher() {
        for (trials, rows, columns) in [
            (1, 24, 80),
            (2, 24, 40),
            (8, 24, 80),
            (16, 24, 80),
            (64, 24, 200),
            (3, 2, 10),
            (1, 1, 1),
        ] {
            let (bars, state) = bars(trials);
            let page = bars.page(&state, Size { rows, columns });
            assert!(page.len() < rows.max(2), "{page:?}");
            for line in &page {
                assert!(width(line) < columns.max(2), "{columns}: {line:?}");
            }
        }
    }

    #[test]
    fn a_wide_terminal_has_one_line_for_each_trial_and_a_narrow_one_two() {
        let (bars, state) = bars(1);
        let size = |columns| Size { rows: 24, columns };
        assert_eq!(
            bars.page(&state, size(160)),
            [
                "batch_size=8, num_workers=40, seed=0 █░░░░░░░░░░░░░░░ 123456/1000000 steps, \
                 loss 2.3457, 123456 samples/s, data wait 12.3 %, evaluating 3/10",
                "░░░░░░░░░░░░░░░░░░░░░░░░ 0/117 trials",
            ]
        );
        assert_eq!(
            bars.page(&state, size(80)),
            [
                "batch_size=8, num_workers=40, seed=0: evaluating 3/10",
                "  █░░░░░░░░░░░░░░░ 123456/1000000 steps, loss 2.3457, 123456 samples/s",
                "░░░░░░░░░░░░░░░░░░░░░░░░ 0/117 trials",
            ]
        );
        assert_eq!(
            bars.page(&state, size(50)),
            [
                "batch_size=8, num_workers=40, seed=0: evaluating…",
                "  █░░░░░░░░░░░░ 123456/1000000 steps, loss 2.3457",
                "░░░░░░░░░░░░░░░░░░░░░░░░ 0/117 trials",
            ]
        );
    }
}
