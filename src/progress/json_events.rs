//! Events for programs: one JSON object per line on standard output, as `docs/running.md` has them.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    time::Duration,
};

use serde_json::{Value, json};

use super::LastShown;
use crate::{
    output::terminal,
    schedule::{LaunchEvent, LaunchListener},
};

/// Time between two events of one trial's progress.
const EVERY: Duration = Duration::from_millis(500);

/// Writes events.
#[derive(Debug, Default)]
pub(super) struct JsonEvents {
    shown: LastShown,
    /// The first error of writing; not that of a reader that went away on purpose.
    failure: RefCell<Option<io::Error>>,
}

impl LaunchListener for JsonEvents {
    fn hear(&self, event: LaunchEvent<'_>) {
        if let Some(object) = self.object(event)
            && let Err(error) = terminal::print_json(&format!("{object}\n"))
            && error.kind() != ErrorKind::BrokenPipe
        {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    fn lost_events(&self) -> Option<String> {
        let failure = self.failure.borrow();
        let error = failure.as_ref()?;
        Some(format!(
            "standard output could not be written, so events are missing there: {error}"
        ))
    }
}

impl JsonEvents {
    /// `None` for what programs are not told.
    fn object(&self, event: LaunchEvent<'_>) -> Option<Value> {
        Some(match event {
            LaunchEvent::Notice(text) => json!({"event": "notice", "text": text}),
            LaunchEvent::TrialNotice { trial, text } => {
                json!({"event": "notice", "text": format!("trial {}: {text}", trial.id)})
            }
            LaunchEvent::RunStarted {
                folder,
                launch,
                counts,
                ..
            } => json!({
                "event": "run_started",
                "folder": folder,
                "launch": launch,
                "trials": counts.total,
                "to_run": counts.to_run,
            }),
            LaunchEvent::TrialStarted {
                trial,
                attempt,
                device,
            } => json!({
                "event": "trial_started",
                "trial": trial.id,
                "attempt": attempt,
                "number": trial.number,
                "device": device,
            }),
            LaunchEvent::TrialProgressed {
                trial, progress, ..
            } => {
                if !self.shown.is_due(&trial.id, EVERY) {
                    return None;
                }
                // A command that reports no step has none.
                let is_command = trial.model.command().is_some();
                let step = progress.step.filter(|step| !is_command || *step > 0);
                json!({
                    "event": "trial_progress",
                    "trial": trial.id,
                    "step": step,
                    "total_steps": progress.total_steps,
                    "loss": progress.loss,
                    "samples_per_second": progress.samples_per_second,
                    "data_wait_fraction": progress.data_wait_fraction,
                })
            }
            LaunchEvent::TrialEnded { row, counts, .. } => {
                self.shown.forget(&row.trial);
                json!({
                    "event": "trial_ended",
                    "trial": row.trial,
                    "attempt": row.attempt,
                    "outcome": row.outcome,
                    "reason": row.reason,
                    "seconds": row.trial_seconds,
                    "samples_per_second": row.samples_per_second,
                    "done": counts.plan.settled,
                    "failed": counts.plan.failed,
                    "total": counts.total,
                })
            }
            LaunchEvent::TrialAdded { .. } => return None,
            LaunchEvent::RunEnded { how, counts } => json!({
                "event": "run_ended",
                "how": how,
                "done": counts.plan.settled,
                "failed": counts.plan.failed,
                "total": counts.total,
            }),
        })
    }
}
