//! Reports the progress of a sweep: bars on a terminal, lines with times elsewhere, JSON events for
//! programs, or nothing.

use std::{
    collections::HashMap,
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::TrialRow,
    units::{Fraction, Seconds, counted, decimals, significant},
};
use serde_json::{Value, json};

use super::{listen::ChildState, remaining::PlanProgress};

/// Time between two lines, or two JSON events, of one trial's progress.
const PLAIN_EVERY: Duration = Duration::from_secs(10);
const JSON_EVERY: Duration = Duration::from_millis(500);

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
    /// Bars if standard error is a terminal, else plain lines.
    pub fn for_terminal() -> Self {
        if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Plain
        }
    }
}

/// Prints a notice before the sweep exists.
pub(super) fn say(style: ProgressMode, text: &str) {
    let _ = match style {
        ProgressMode::Quiet => Ok(()),
        ProgressMode::Json => writeln!(
            std::io::stdout().lock(),
            "{}",
            json!({"event": "notice", "text": text})
        ),
        ProgressMode::Plain | ProgressMode::Bars => writeln!(std::io::stderr().lock(), "{text}"),
    };
}

/// Writes the last event of a launch that has nothing to run; for people the command prints a line.
pub(super) fn nothing_to_do(style: ProgressMode, total: usize, standing: PlanProgress) {
    if style == ProgressMode::Json {
        let event = json!({"event": "run_ended", "how": "nothing to do", "done": standing.settled, "failed": standing.failed, "total": total});
        let _ = writeln!(std::io::stdout().lock(), "{event}");
    }
}

/// Progress output of one sweep.
pub(super) struct ProgressReporter {
    style: ProgressMode,
    started: Instant,
    total: usize,
    /// Numbers of trials that this launch has to run, and that it has settled.
    to_run: usize,
    made: usize,
    /// Whether the waiting trials will not be started, so that there is no remaining time to
    /// estimate.
    is_over: bool,
    /// Whether a search may add trials, so that their number and the remaining time are unknown.
    is_open: bool,
    standing: PlanProgress,
    bars: MultiProgress,
    sweep: ProgressBar,
    trials: HashMap<TrialId, ProgressBar>,
    spoken: HashMap<TrialId, Instant>,
}

impl ProgressReporter {
    /// `total` trials, of which this launch runs `to_run`; `standing` counts all of them.
    pub(super) fn new(
        style: ProgressMode,
        total: usize,
        to_run: usize,
        standing: PlanProgress,
    ) -> Self {
        let target = if style == ProgressMode::Bars {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bars = MultiProgress::with_draw_target(target);
        let sweep = bars.add(
            ProgressBar::new(total as u64).with_style(template("{bar:24} {pos}/{len} trials{msg}")),
        );
        sweep.set_position(standing.settled as u64);
        Self {
            style,
            started: Instant::now(),
            total,
            to_run,
            made: 0,
            is_over: false,
            is_open: false,
            standing,
            bars,
            sweep,
            trials: HashMap::new(),
            spoken: HashMap::new(),
        }
    }

    /// Prints a notice for the user.
    pub(super) fn notice(&self, text: &str) {
        match self.style {
            ProgressMode::Quiet => {}
            ProgressMode::Json => self.event(json!({"event": "notice", "text": text})),
            ProgressMode::Plain | ProgressMode::Bars => self.line(text),
        }
    }

    pub(super) fn run_started(&self, folder: &str, launch: u64) {
        let to_run = self.to_run;
        match self.style {
            ProgressMode::Quiet => {}
            ProgressMode::Json => {
                self.event(json!({"event": "run_started", "folder": folder, "launch": launch, "trials": self.total, "to_run": to_run}))
            }
            ProgressMode::Plain | ProgressMode::Bars => {
                let more = if self.is_open { ", then further trials that depend on their results" } else { "" };
                self.line(&format!("{folder}: launch {launch}, {to_run} of {} to run{more}", counted(self.total, "trial")));
            }
        }
    }

    pub(super) fn trial_started(&mut self, trial: &Trial, attempt: u64, device: &str) {
        let id = &trial.id;
        match self.style {
            ProgressMode::Quiet => {}
            ProgressMode::Json => {
                self.event(json!({"event": "trial_started", "trial": id, "attempt": attempt, "number": trial.number, "device": device}))
            }
            ProgressMode::Plain => self.line(&format!("trial {id} ({}) started on {device}, \
                attempt {attempt}", describe(trial))),
            ProgressMode::Bars => {
                let bar = ProgressBar::new(trial.steps.unwrap_or(0)).with_style(template("  \
                    {prefix} {bar:16} {pos}/{len} steps{msg}"));
                let bar = self.bars.insert_before(&self.sweep, bar);
                bar.set_prefix(format!("{id} ({})", describe(trial)));
                self.trials.insert(id.clone(), bar);
            }
        }
    }

    pub(super) fn trial_progress(&mut self, id: &TrialId, heard: &ChildState) {
        let every = match self.style {
            ProgressMode::Quiet | ProgressMode::Bars => Duration::ZERO,
            ProgressMode::Plain => PLAIN_EVERY,
            ProgressMode::Json => JSON_EVERY,
        };
        if !self.is_due(id, every) {
            return;
        }
        match self.style {
            ProgressMode::Quiet => {}
            ProgressMode::Json => self.event(json!({
                "event": "trial_progress", "trial": id, "step": heard.step, "total_steps": heard.total_steps, "loss": heard.loss,
                "samples_per_second": heard.samples_per_second, "data_wait_fraction": heard.data_wait_fraction,
            })),
            ProgressMode::Plain => {
                let of = heard.total_steps.map(|total| format!("/{total}")).unwrap_or_default();
                self.line(&format!("trial {id}: step {}{of}{}", heard.step.unwrap_or(0), figures(heard)));
            }
            ProgressMode::Bars => {
                if let Some(bar) = self.trials.get(id) {
                    heard.total_steps.inspect(|total| bar.set_length(*total));
                    heard.step.inspect(|step| bar.set_position(*step));
                    bar.set_message(figures(heard));
                }
                self.sweep.set_message(self.outlook());
            }
        }
    }

    /// `settled`: whether the trial needs no further attempt; `standing` includes this trial.
    pub(super) fn trial_ended(&mut self, row: &TrialRow, settled: bool, standing: PlanProgress) {
        self.made += usize::from(settled);
        self.standing = standing;
        self.spoken.remove(&row.trial);
        if let Some(bar) = self.trials.remove(&row.trial) {
            bar.finish_and_clear();
            self.bars.remove(&bar);
        }
        match self.style {
            ProgressMode::Quiet => {}
            ProgressMode::Json => self.event(json!({
                "event": "trial_ended", "trial": row.trial, "attempt": row.attempt, "outcome": row.outcome, "reason": row.reason,
                "seconds": row.trial_seconds, "samples_per_second": row.samples_per_second, "done": standing.settled,
                "failed": standing.failed, "total": self.total,
            })),
            ProgressMode::Plain | ProgressMode::Bars => {
                self.line(&ended(row));
                self.sweep.set_position(standing.settled as u64);
                self.sweep.set_message(self.outlook());
            }
        }
        if self.style == ProgressMode::Plain {
            let of = if self.is_open {
                counted(standing.settled, "trial")
            } else {
                format!("{}/{} trials", standing.settled, self.total)
            };
            self.line(&format!("{of}{}", self.outlook()));
        }
    }

    /// Adds a replacement trial.
    pub(super) fn one_more(&mut self) {
        self.total += 1;
        self.to_run += 1;
        self.sweep.set_length(self.total as u64);
    }

    /// Marks that a search may add trials.
    pub(super) fn leave_open(&mut self) {
        self.is_open = true;
    }

    /// Marks that the waiting trials will not run.
    pub(super) fn start_no_more(&mut self) {
        self.is_over = true;
    }

    /// Prints the end of a launch.
    pub(super) fn run_ended(&self, how: &str) {
        self.sweep.finish_and_clear();
        if self.style == ProgressMode::Json {
            let PlanProgress { settled, failed } = self.standing;
            self.event(json!({"event": "run_ended", "how": how, "done": settled, "failed": failed, "total": self.total}));
        }
    }

    /// Returns text such as `, 1 failed, about 3 min 5 s left`.
    fn outlook(&self) -> String {
        let failed = if self.standing.failed > 0 {
            format!(", {} failed", self.standing.failed)
        } else {
            String::new()
        };
        let left = self.to_run.saturating_sub(self.made);
        if self.made == 0 || left == 0 || self.is_over || self.is_open {
            return failed;
        }
        let seconds = self.started.elapsed().as_secs_f64() / self.made as f64 * left as f64;
        format!("{failed}, about {} left", Seconds(seconds))
    }

    fn is_due(&mut self, id: &TrialId, every: Duration) -> bool {
        let due = self
            .spoken
            .get(id)
            .is_none_or(|last| last.elapsed() >= every);
        if due {
            self.spoken.insert(id.clone(), Instant::now());
        }
        due
    }

    fn event(&self, event: Value) {
        let _ = writeln!(std::io::stdout().lock(), "{event}");
    }

    fn line(&self, text: &str) {
        match self.style {
            ProgressMode::Bars if !self.bars.is_hidden() => {
                let _ = self.bars.println(text);
            }
            _ => {
                let _ = writeln!(
                    std::io::stderr().lock(),
                    "{:>9}  {text}",
                    Seconds(self.started.elapsed().as_secs_f64()).to_string()
                );
            }
        }
    }
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns the axis values of a trial: `batch_size=8, num_workers=4`.
fn describe(trial: &Trial) -> String {
    if trial.axes.is_empty() {
        return format!("seed={}", trial.train.seed);
    }
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let axes: Vec<String> = trial
        .axes
        .iter()
        .map(|(key, value)| format!("{}={value}", last(key)))
        .collect();
    axes.join(", ")
}

fn figures(heard: &ChildState) -> String {
    let mut text = String::new();
    if let Some(loss) = heard.loss {
        text.push_str(&format!(", loss {}", decimals(loss, 4)));
    }
    if let Some(rate) = heard.samples_per_second {
        text.push_str(&format!(", {} samples/s", significant(rate)));
    }
    if let Some(share) = heard.data_wait_fraction {
        text.push_str(&format!(", data wait {}", Fraction(share)));
    }
    if let Some((batch, total)) = heard.evaluating {
        text.push_str(&format!(", evaluating {batch}/{total}"));
    }
    if let Some((token, total)) = heard.sampling {
        text.push_str(&format!(", writing text {token}/{total}"));
    }
    if !heard.ready && heard.step.is_none() {
        text.push_str(", building");
    }
    text
}

fn ended(row: &TrialRow) -> String {
    let name = format!("trial {}", row.trial);
    let reason = row
        .reason
        .as_deref()
        .filter(|_| row.outcome != Outcome::Completed);
    if let Some(whole) = reason.filter(|reason| reason.starts_with(&name)) {
        return format!("{}: {whole}", row.outcome);
    }
    let mut text = format!("{name} {}", row.outcome);
    if let Some(seconds) = row.trial_seconds {
        text.push_str(&format!(" after {}", Seconds(seconds)));
    }
    if let Some(rate) = row.samples_per_second {
        text.push_str(&format!(", {} samples/s", significant(rate)));
    }
    match (row.valid_loss, row.train_loss) {
        (Some(loss), _) => text.push_str(&format!(", valid loss {}", decimals(loss, 4))),
        (None, Some(loss)) => text.push_str(&format!(", loss {}", decimals(loss, 4))),
        (None, None) => {}
    }
    if let Some(reason) = reason {
        text.push_str(&format!(": {reason}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_trial_says_which_loss_it_tells() {
        let mut fields: serde_json::Map<String, Value> = kiln_core::record::tables::TRIALS
            .columns
            .iter()
            .map(|column| (column.name.to_owned(), Value::Null))
            .collect();
        for name in [
            "kiln_table",
            "trial",
            "model_kind",
            "data_kind",
            "engine",
            "precision",
        ] {
            fields.insert(name.to_owned(), json!("t"));
        }
        for name in [
            "attempt",
            "launch",
            "number",
            "batch_size",
            "grad_accumulation",
            "effective_batch_size",
            "seed",
            "concurrent_trials",
        ] {
            fields.insert(name.to_owned(), json!(1));
        }
        fields.insert("outcome".to_owned(), json!("completed"));
        let row: TrialRow = serde_json::from_value(Value::Object(fields)).unwrap();
        let trained = TrialRow {
            train_loss: Some(2.5),
            ..row
        };
        assert_eq!(ended(&trained), "trial t completed, loss 2.5000");
        assert_eq!(
            ended(&TrialRow {
                valid_loss: Some(3.5),
                ..trained
            }),
            "trial t completed, valid loss 3.5000"
        );
    }
}
