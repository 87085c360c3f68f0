//! Adds the next trials of a search once all requested ones have ended.

use kiln_core::plan::Trial;

use super::LaunchState;
use crate::schedule::{RunRequest, RunStop, disk, existing_run::Old};

impl LaunchState<'_> {
    /// Puts the next trials of the search at the end of the queue; returns whether there are any.
    pub(super) fn ask_for_more(&mut self) -> bool {
        let Some(search) = self.request.search else {
            return false;
        };
        let rows = match self.open.store.rows() {
            Ok(rows) => rows,
            Err(error) => {
                self.fail(disk::cannot_write(self.request)(error.into()));
                return false;
            }
        };
        let progressed = search.progress(&rows);
        let new: Vec<Trial> = progressed
            .trials
            .into_iter()
            .filter(|trial| self.trials.iter().all(|known| known.id != trial.id))
            .collect();
        let retries = self.request.experiment.run.retries;
        let mut is_more = false;
        for trial in new {
            // With more retries than before, a failed trial runs again, and the trials after it are
            // requested again.
            if !self.history.is_settled(&trial.id, retries) {
                self.add_one(&trial);
                self.queue.then(self.trials.len());
                is_more = true;
            }
            self.trials.to_mut().push(trial);
        }
        self.note_oom_trials();
        // The whole list is written: a killed launch may not have written its last requests.
        self.open.file.plan = self.trials.iter().map(|trial| trial.id.clone()).collect();
        self.open.file.is_searching = progressed.recommendation.is_none();
        // Written before they start, so that a killed run has them.
        self.write_record();
        is_more
    }
}

/// Handles a search whose last row was written but whose end was not.
pub(super) fn note_end(request: &RunRequest, old: &Old) -> Result<(), RunStop> {
    if request.search.is_none() || !old.file.is_searching {
        return Ok(());
    }
    let file = kiln_core::record::RunFile {
        is_searching: false,
        plan: request
            .trials
            .iter()
            .map(|trial| trial.id.clone())
            .collect(),
        ..old.file.clone()
    };
    file.write(&old.folder).map_err(disk::cannot_write(request))
}
