//! The end of a launch: what is written into the run's file, and what the caller is told.

use std::{collections::HashMap, time::Instant};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{AttemptEnd, RunFolder},
    units::counted,
};

use super::LaunchState;
use crate::schedule::{
    LaunchEnd, LaunchEvent, LaunchReport, RunRequest, RunStop, disk,
    remaining::{History, Selection, unsettled},
};

impl LaunchState<'_> {
    pub(super) fn close(mut self) -> Result<LaunchReport, RunStop> {
        // The table may have been replaced after the last row.
        let settled = self.open.store.settle();
        self.tell_changes(settled);
        // A run is complete without the snapshots of its GPUs.
        let _ = self.instruments.finish_snapshots(self.asked.is_some());
        self.tell_silences();
        self.restore_snapshot();
        self.give_tickets_back();
        let mut report = report(
            self.request,
            &self.trials,
            self.open.folder.clone(),
            LaunchEnd::Finished,
            self.open.ends(),
        );
        report.is_stop_asked = self.asked.is_some();
        // Trials of `--rerun` that have a final row may wait.
        let has_more = report.asked_left > 0 || !self.queue.is_empty();
        if report.is_stop_asked && (has_more || self.open.file.is_searching) {
            report.end = LaunchEnd::Interrupted;
        }
        report.budget = self.budget.as_ref().map(|watch| watch.end(Instant::now()));
        let unbegun = report.budget.as_ref().map_or(0, |budget| budget.left);
        let how = match (&self.failure, report.end, report.left) {
            (Some(stop), ..) => stop.to_string(),
            (None, LaunchEnd::Finished, _) if unbegun > 0 => {
                format!("{} left by `--for`", counted(unbegun, "trial"))
            }
            (None, LaunchEnd::Finished, 1..) if self.cause.is_some() => "more to do".to_owned(),
            (None, LaunchEnd::Interrupted, _) => "interrupted".to_owned(),
            (None, _, 0) => "finished".to_owned(),
            (None, _, left) => format!("{} left", counted(left, "trial")),
        };
        self.open.note_end(self.paths.hide(&how), self.cause);
        let written = self.open.write_files(self.request);
        self.tell(LaunchEvent::RunEnded {
            how: &how,
            counts: self.counts,
        });
        let unwritten = written.err().map(disk::cannot_write(self.request));
        report.failure = self.failure.or(unwritten);
        report.cause = self.cause;
        Ok(report)
    }
}

pub(in crate::schedule) fn report<'e>(
    request: &RunRequest,
    trials: &[Trial],
    folder: RunFolder,
    end: LaunchEnd,
    ends: impl Iterator<Item = &'e AttemptEnd>,
) -> LaunchReport {
    let ends: Vec<&AttemptEnd> = ends.collect();
    let history = History::of(ends.iter().copied());
    let left = |selection: &Selection| {
        unsettled(trials, &history, selection, request.experiment.run.retries).count()
    };
    // Rows of other launches come first, whatever the attempt.
    let mut last: HashMap<&TrialId, &AttemptEnd> = HashMap::new();
    for end in &ends {
        let known = last.entry(&end.trial).or_insert(end);
        if end.rank() > known.rank() {
            *known = end;
        }
    }
    let last_attempts = trials
        .iter()
        .filter(|trial| request.selection.wants(trial))
        .filter_map(|trial| last.get(&trial.id).map(|end| (*end).clone()))
        .collect();
    let folder = RunFolder::at(
        request
            .results
            .join(&request.experiment.name)
            .join(folder.name()),
    );
    LaunchReport {
        folder,
        end,
        is_stop_asked: end == LaunchEnd::Interrupted,
        trials: trials.len(),
        left: left(&Selection::default()),
        asked_left: left(&request.selection),
        last_attempts,
        failure: None,
        cause: None,
        budget: None,
        lost_events: None,
    }
}
