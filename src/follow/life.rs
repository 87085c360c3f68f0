//! Whether a run goes on, as its files and its lock tell.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use kiln_core::record::{
    RunFolder, TicketQueue,
    lock::{Holder, launch_at_work},
    run_file::{Launch, LaunchEnded},
};

/// A run on another machine, whose lock may be invisible here, goes on as long as its files change
/// at least so often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// Whether a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    Running,
    /// The last launch has ended, as it says itself: `finished`, `interrupted`, ….
    Ended(String),
    /// The last launch was killed, or its machine went down. The time of the last change, in UTC,
    /// by the clock of the file system.
    Stopped {
        since: Option<String>,
    },
    /// No launch is recorded yet.
    Beginning,
}

impl Life {
    /// Whether the run goes on, as far as anybody knows.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Running | Self::Beginning)
    }
}

/// Watches whether a run goes on.
#[derive(Debug)]
pub(super) struct LifeWatch {
    folder: RunFolder,
    /// The folder of the experiment and its name.
    results: PathBuf,
    experiment: String,
    /// Id of this machine since it booted.
    boot_id: Option<String>,
    /// When a file was last seen to grow.
    grown: Option<Instant>,
}

/// Whether a run goes on whose trials workers take. A worker that died keeps its tickets until
/// somebody takes them back.
fn of_queue(queue: &TicketQueue) -> Life {
    // The next look may tell more.
    let Ok(counts) = queue.counts() else {
        return Life::Running;
    };
    match (counts.taken, counts.open) {
        (1.., _) => Life::Running,
        (_, 0) if counts.later > 0 => {
            Life::Ended("the other trials are for later (`--only`)".to_owned())
        }
        (_, 0) => Life::Ended("finished".to_owned()),
        (_, 1) => Life::Ended("1 ticket waits for a worker".to_owned()),
        (_, open) => Life::Ended(format!("{open} tickets wait for a worker")),
    }
}

impl LifeWatch {
    pub(super) fn new(folder: &RunFolder) -> Self {
        let folder = folder.in_experiment().unwrap_or_else(|_| folder.clone());
        let (results, experiment) = folder.place().unwrap_or((Path::new(""), "".into()));
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        Self {
            results: results.to_owned(),
            experiment: experiment.into_owned(),
            folder,
            boot_id: boot_id.map(|id| id.trim().to_owned()),
            grown: None,
        }
    }

    /// Whether the run goes on; `has_grown` if a file has grown since the last call.
    pub(super) fn look(&mut self, launch: Option<&Launch>, has_grown: bool) -> Life {
        match TicketQueue::of(&self.folder) {
            Ok(Some(queue)) => return of_queue(&queue),
            Ok(None) => {}
            // The next look may tell more.
            Err(_) => return Life::Running,
        }
        if has_grown && self.grown.is_some() {
            self.grown = Some(Instant::now());
        }
        let held_by = launch_at_work(&self.results, &self.experiment);
        let Some(launch) = launch else {
            return match held_by {
                Some(_) => Life::Beginning,
                None => self.stopped(),
            };
        };
        let is_own = |holder: &Holder| holder.pid() == Some(launch.pid);
        match (&held_by, &launch.ended) {
            (Some(holder), None) if is_own(holder) => Life::Running,
            // A new launch holds the lock before it is recorded.
            (Some(holder), _) if !is_own(holder) && self.is_newest() => Life::Beginning,
            (_, ended) => self.without_lock(launch, ended.as_ref()),
        }
    }

    fn without_lock(&mut self, launch: &Launch, ended: Option<&LaunchEnded>) -> Life {
        match ended {
            Some(ended) => Life::Ended(ended.how.clone()),
            None if self.boot_id.as_deref() == Some(&launch.anchor.boot_id) => self.stopped(),
            None => self.by_growth(),
        }
    }

    fn by_growth(&mut self) -> Life {
        let grown = self.grown.unwrap_or_else(|| self.grown_before());
        self.grown = Some(grown);
        if grown.elapsed() < SIGN_OF_LIFE {
            Life::Running
        } else {
            self.stopped()
        }
    }

    /// When the files grew before any of them was seen to grow, by their times. A clock that is off
    /// may say that they will be written; then they were just now.
    fn grown_before(&self) -> Instant {
        let age = self.changed().and_then(|at| at.elapsed().ok());
        let now = Instant::now();
        now.checked_sub(age.unwrap_or_default()).unwrap_or(now)
    }

    fn stopped(&self) -> Life {
        let since = self
            .changed()
            .and_then(|at| jiff::Timestamp::try_from(at).ok());
        Life::Stopped {
            since: since.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()),
        }
    }

    /// When the run's files last changed.
    fn changed(&self) -> Option<SystemTime> {
        let files = [
            self.folder.samples_table(),
            self.folder.trials_table(),
            self.folder.run_file(),
        ];
        let times = files
            .iter()
            .filter_map(|file| fs::metadata(file).ok()?.modified().ok());
        times.max()
    }

    /// Whether the experiment has no newer run, so that a launch that begins now may resume this one. False
    /// if the runs cannot be listed. The link `latest` is not read: git does not move it to newer runs.
    fn is_newest(&self) -> bool {
        self.folder.is_newest().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::lock::lock;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_launch_begins_in_the_newest_run_wherever_the_link_leads() {
        let place = tempfile::tempdir().unwrap();
        let results = place.path().canonicalize().unwrap();
        let run = |number: u64, name: &str| {
            let run = RunFolder::at(results.join("x").join(name));
            fs::create_dir_all(run.path()).unwrap();
            fs::write(run.run_file(), json!({ "number": number }).to_string()).unwrap();
            run
        };
        let older = run(1, "20260101T000000Z-aaaaaaa");
        let newer = run(2, "20260102T000000Z-bbbbbbb");
        let latest = results.join("x/latest");
        std::os::unix::fs::symlink(older.name(), latest).unwrap();
        let launch: Launch = serde_json::from_value(json!({
            "launch": 1, "started_utc": "2026-01-01T00:00:00Z", "boot_id": "then",
            "monotonic_nanoseconds": 1, "run_anchor_nanoseconds": 1, "pid": 4194305,
            "command_line": [], "machine": {}, "devices": {}, "environment": {},
            "versions": {"kiln": "0", "kiln_sha256": null, "trial_program": "t",
                         "trial_program_sha256": null},
            "ended": {"utc": "2026-01-01T00:01:00Z", "how": "finished"},
        }))
        .unwrap();
        let own = std::process::id();
        let _held = lock(&results, "x", own, "today").unwrap().unwrap();
        let look = |run: &RunFolder| LifeWatch::new(run).look(Some(&launch), false);
        assert_eq!(look(&newer), Life::Beginning);
        assert_eq!(look(&older), Life::Ended("finished".to_owned()));
    }
}
