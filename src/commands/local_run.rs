//! A run that goes on in one `kiln run`, without a queue for workers: what `kiln wait` and `kiln
//! stop` do with it. Only its files and its lock are read.

use std::{collections::HashMap, io, thread, time::Duration};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{RunFile, RunFolder, TrialTable, lock::launch_at_work},
};

use super::{
    Status, Stop, page_style, print, runs,
    sources::{experiment_text, table_of_run},
};
use crate::{
    follow::{Life, RunFollower},
    report,
};

/// From one look at the run to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// A run without a queue that goes on.
pub(super) struct LocalRun {
    run: RunFolder,
    follower: RunFollower,
    /// The last launch of the run, where another one holds the lock and is not recorded yet: it may
    /// begin a new run.
    before: Option<Option<u64>>,
    /// The process that runs it; `None` if its lock is not visible here, as on another machine.
    pid: Option<u32>,
}

impl LocalRun {
    /// `None` if nobody works on the run, as far as its files and its lock tell.
    pub(super) fn of(run: &RunFolder) -> Option<Self> {
        let mut follower = RunFollower::new(run.clone());
        let state = follower.look();
        state.life.goes_on().then(|| Self {
            run: run.clone(),
            follower,
            before: (state.life == Life::Beginning).then_some(state.launch),
            pid: holder_of(run),
        })
    }

    /// Says which process runs it, and how to stop that.
    pub(super) fn how_to_stop(&self) -> String {
        match self.pid {
            Some(pid) => format!(
                "it goes on in process {pid} on this machine; Ctrl-C in its terminal or `kill -INT \
                 {pid}` ends it after the running trials, and a second one stops those too"
            ),
            None => {
                "it goes on in a `kiln run` that is not on this machine; Ctrl-C in its terminal \
                     ends it after the running trials, and a second one stops those too"
                    .to_owned()
            }
        }
    }

    /// The run that is waited for, in words.
    pub(super) fn in_words(&self) -> String {
        let process = match self.pid {
            Some(pid) => format!("process {pid}"),
            None => "a `kiln run` that is not on this machine".to_owned(),
        };
        format!("waiting for the run in {process}; Ctrl-C leaves it running")
    }

    /// Returns once the run has ended, with the newest run of the experiment where the launch that was
    /// waited for began that one instead.
    ///
    /// # Errors
    /// The runs of the experiment cannot be listed.
    pub(super) fn wait(mut self) -> io::Result<Option<RunFolder>> {
        let mut state = self.follower.look();
        while state.life.goes_on() {
            thread::sleep(BETWEEN_LOOKS);
            state = self.follower.look();
        }
        match (self.before, self.run.path().parent()) {
            (Some(before), Some(experiment)) if before == state.launch => {
                let newest = runs::newest_of(experiment)?;
                Ok(newest.filter(|newest| newest.name() != self.run.name()))
            }
            _ => Ok(None),
        }
    }
}

/// The process that holds the lock of the run's experiment.
fn holder_of(run: &RunFolder) -> Option<u32> {
    let (results, experiment) = run.place()?;
    launch_at_work(results, &experiment)?.pid()
}

/// Prints the page of a run if it `is_shown`. The exit status is by all trials of its plan.
pub(super) fn result(run: &RunFolder, is_shown: bool) -> Result<Status, Stop> {
    let file = RunFile::read(&run.run_file()).map_err(|error| Stop::new(Status::Failed, error))?;
    let table = table_of_run(run).map_err(|error| Stop::new(Status::Failed, error))?;
    if is_shown {
        let experiment = experiment_text(run);
        let (planned, experiment) = (file.plan.len(), experiment.as_deref());
        let page = report::summary_in(run, &table, planned, experiment, page_style());
        print(&format!("{page}\n{}\n", run.path().display()))?;
    }
    Ok(status(&file.plan, &table))
}

/// The exit status of `kiln wait`: 1 if a trial has no row, or its last attempt is without a result.
fn status(plan: &[TrialId], table: &TrialTable) -> Status {
    let rows = table.last_attempts().into_iter();
    let ends: HashMap<&TrialId, Outcome> = rows
        .map(|row| (&row.fixed.trial, row.fixed.outcome))
        .collect();
    let is_ended = |trial: &TrialId| ends.contains_key(trial);
    match plan.iter().all(is_ended) && ends.values().all(|outcome| outcome.is_result()) {
        true => Status::Success,
        false => Status::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::record::{TableRow, TrialRow, lock::lock};

    use super::*;

    #[test]
    fn a_run_whose_lock_is_held_names_its_process_and_is_waited_for() {
        let results = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let path = results.path().join("x/20260101T000000Z-x");
        fs::create_dir_all(&path).unwrap();
        let run = RunFolder::at(path.canonicalize().unwrap());
        assert!(LocalRun::of(&run).is_none());
        let held = lock(results.path(), "x", pid, "today").unwrap().unwrap();
        let going = LocalRun::of(&run).unwrap();
        let how = going.how_to_stop();
        assert!(how.contains(&format!("`kill -INT {pid}`")), "{how}");
        drop(held);
        assert_eq!(going.wait().unwrap(), None);
        assert!(LocalRun::of(&run).is_none());
    }

    #[test]
    fn a_new_run_of_the_launch_that_is_waited_for_is_told() {
        let results = tempfile::tempdir().unwrap();
        let experiment = results.path().canonicalize().unwrap().join("x");
        let made = |name: &str| {
            let run = experiment.join(name);
            fs::create_dir_all(&run).unwrap();
            RunFolder::at(run)
        };
        let old = made("20260101T000000Z-0d1f9ad");
        let pid = std::process::id();
        let held = lock(results.path(), "x", pid, "today").unwrap().unwrap();
        let going = LocalRun::of(&old).unwrap();
        let new = made("20260102T000000Z-0d1f9ad");
        let going_new = LocalRun::of(&new).unwrap();
        drop(held);
        assert_eq!(going.wait().unwrap(), Some(new));
        assert_eq!(going_new.wait().unwrap(), None);
    }

    #[test]
    fn the_status_is_by_every_trial_of_the_plan() {
        let id = |name: &str| TrialId(name.to_owned());
        let table = |outcome| TrialTable {
            rows: vec![TableRow {
                fixed: Box::new(TrialRow {
                    trial: id("t1"),
                    outcome,
                    ..TrialRow::default()
                }),
                axes: Vec::new(),
            }],
            ..TrialTable::default()
        };
        let plan = [id("t1"), id("t2")];
        let oom = table(Outcome::Oom);
        assert_eq!(status(&plan[..1], &oom), Status::Success);
        assert_eq!(status(&plan, &oom), Status::Failed);
        let failed = table(Outcome::Failed);
        assert_eq!(status(&plan[..1], &failed), Status::Failed);
    }
}
