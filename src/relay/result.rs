//! Writes the result of a command's trial, `trial.json`.

use std::{collections::BTreeMap, io};

use kiln_core::{
    kinds::command::{MetricTarget, metric_target},
    plan::{Outcome, TrialFile, TrialId},
    record::{TrialResult, note::MISSING_WINDOW, run_file::write_json},
};
use serde_json::{Value, json};

use super::metrics::Numbers;

/// The numbers of an ended program.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) window: Option<(u64, u64)>,
    /// Why it has none: a line that begins or ends it never came.
    pub(super) missing_window: Option<String>,
    pub(super) numbers: Numbers,
    pub(super) notes: BTreeMap<String, String>,
    /// Peak resident memory of the program's largest process, in bytes.
    pub(super) peak_memory_bytes: Option<u64>,
}

/// # Errors
/// The file cannot be written.
pub(super) fn write(
    file: &TrialFile,
    outcome: Outcome,
    reason: Option<&str>,
    figures: Option<Figures>,
) -> io::Result<()> {
    let attempt = (&file.trial, file.attempt);
    let result =
        result(attempt, outcome, reason, figures.unwrap_or_default()).map_err(io::Error::other)?;
    write_json(&file.folder.join("trial.json"), &result)
}

/// The result of an attempt, as `trial.json` has it.
///
/// # Errors
/// It cannot be written as JSON.
pub(super) fn result(
    (trial, attempt): (&TrialId, u64),
    outcome: Outcome,
    reason: Option<&str>,
    figures: Figures,
) -> serde_json::Result<TrialResult> {
    let mut result = TrialResult::empty(trial.clone(), attempt);
    result.outcome = outcome;
    result.reason = reason.map(str::to_owned);
    // A metric `steps` fills it; `step` is for the time while the program runs.
    (result.figures.steps, result.figures.left_out_steps) = (None, None);
    result.notes = figures.notes;
    if outcome == Outcome::Completed
        && let Some(why) = figures.missing_window
    {
        result.notes.insert(MISSING_WINDOW.to_owned(), why);
    }
    result.peak_resident_bytes = figures.peak_memory_bytes;
    if let Some((from, to)) = figures.window {
        result.window_started_nanoseconds = Some(from);
        result.window_ended_nanoseconds = Some(to);
        result.figures.window_seconds = Some(to.saturating_sub(from) as f64 / 1e9);
    }
    let mut columns = serde_json::to_value(&result)?;
    for (name, value) in figures.numbers {
        match metric_target(&name) {
            MetricTarget::Own => {
                result.metrics.insert(name, value);
            }
            MetricTarget::Column(column) => columns[column] = number(metric_target(&name), value),
            MetricTarget::Progress => {}
        }
    }
    let own = std::mem::take(&mut result.metrics);
    let mut result: TrialResult = serde_json::from_value(columns)?;
    result.metrics = own;
    Ok(result)
}

fn number(target: MetricTarget, value: f64) -> Value {
    match target.is_count() {
        true => json!(value.round() as u64),
        false => json!(value),
    }
}
