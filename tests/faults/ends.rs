//! The conditions with which every case ends.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    listing::difference,
    rows::{self, Key, Row},
    scene::{Launch, Scene, Verb},
    undisturbed,
};

/// A condition that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// Such as `row lost`.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

impl Violation {
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }
}

/// Violations that a case allows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Excuse {
    /// A trial may have failed for good: an error was injected into the child that is its own.
    pub(crate) failed_trials: bool,
}

/// Statuses of `docs/running.md`.
const STATUSES: [i32; 5] = [0, 1, 2, 3, 130];

impl Scene {
    /// What holds after every launch: rows that were there or were announced are there, once,
    /// unchanged; and the status is true.
    pub(crate) fn observe(&self, launch: &Launch) {
        self.announced
            .borrow_mut()
            .extend(rows::announced(&launch.stdout));
        // A person finds the rows in the folder that was moved, as kiln says.
        let moved = self.work("moved/x/latest/trials.csv");
        let table = match !self.work("results").exists() && moved.is_file() {
            true => moved,
            false => self.table(),
        };
        let found = rows::read(&table);
        self.compare_rows(&found, &launch.words());
        if launch.stderr.contains("panicked") || matches!(launch.status, Some(101 | 134)) {
            self.note("panic", launch.words());
        } else if launch
            .status
            .is_some_and(|status| !STATUSES.contains(&status))
        {
            self.note("status", launch.words());
        }
        if launch.status == Some(0) {
            let missing: Vec<String> = self
                .plan()
                .into_iter()
                .filter(|id| !found.iter().any(|row| row.key.0 == *id && row.is_final()))
                .collect();
            if !missing.is_empty() {
                self.note(
                    "status untrue",
                    format!("status 0 without rows of {missing:?}"),
                );
            }
        }
    }

    fn compare_rows(&self, found: &[Row], words: &str) {
        let mut now: BTreeMap<&Key, Vec<&Row>> = BTreeMap::new();
        found
            .iter()
            .for_each(|row| now.entry(&row.key).or_default().push(row));
        for (key, rows) in &now {
            if rows.len() > 1 {
                self.note(
                    "row doubled",
                    format!("{key:?} stands there {} times; {words}", rows.len()),
                );
            }
        }
        for (key, old) in self.kept.borrow().iter() {
            match now.get(key) {
                _ if self.excused.borrow().contains(key) => {}
                None => self.note("row lost", format!("{key:?} is gone; {words}")),
                Some(rows) if rows.iter().any(|row| row.bytes != old.bytes) => {
                    self.note("row changed", format!("{key:?}; {words}"));
                }
                Some(_) => {}
            }
        }
        for (key, outcome) in self.announced.borrow().iter() {
            let is_there = now
                .get(key)
                .is_some_and(|rows| rows.iter().any(|row| row.outcome() == outcome));
            let is_known =
                self.kept.borrow().contains_key(key) || self.excused.borrow().contains(key);
            if !is_there && !is_known {
                self.note(
                    "row lost",
                    format!("{key:?} was announced as {outcome}; {words}"),
                );
            }
        }
        let mut kept = self.kept.borrow_mut();
        for row in found {
            kept.entry(row.key.clone()).or_insert_with(|| row.clone());
        }
    }

    /// Resumes the run with the same command, and checks all conditions. Returns the violations of
    /// the whole case.
    pub(crate) fn finish(self, excuse: Excuse) -> Vec<Violation> {
        self.finish_beside(excuse)
    }

    /// The same for a scene that something else still uses.
    pub(crate) fn finish_beside(&self, excuse: Excuse) -> Vec<Violation> {
        if self.resume(excuse) {
            // A search goes on without a setting that failed, to other settings.
            if !(excuse.failed_trials && self.workload.verb == Verb::Tune) {
                self.check_results();
            }
            self.check_leftovers();
        }
        self.check_surroundings()
    }

    /// The same for a workload that is too large to be run without a disturbance first.
    pub(crate) fn finish_without_undisturbed(self, excuse: Excuse) -> Vec<Violation> {
        if self.resume(excuse) {
            self.check_leftovers();
        }
        self.check_surroundings()
    }

    /// Runs the command again; whether every trial has completed then.
    fn resume(&self, excuse: Excuse) -> bool {
        let launch = self.launch(&[], |_| ());
        let mut is_complete = launch.status == Some(0);
        if launch.status == Some(1) && excuse.failed_trials {
            is_complete = self.launch(&["--rerun", "failed,timed-out"], |_| ()).status == Some(0);
        }
        if !is_complete {
            let kind = match launch.status {
                Some(1) => "wrong outcome",
                _ => "resume refused",
            };
            let failed: Vec<String> = rows::read(&self.table())
                .iter()
                .filter(|row| row.is_final() && row.outcome() != "completed")
                .map(|row| {
                    format!(
                        "{}: {}",
                        row.outcome(),
                        row.cells.get("reason").map_or("", String::as_str)
                    )
                })
                .collect();
            self.note(kind, format!("{}; {failed:?}", launch.words()));
        }
        is_complete
    }

    fn check_surroundings(&self) -> Vec<Violation> {
        self.check_locks();
        self.check_processes();
        self.check_outside();
        self.violations.borrow().clone()
    }

    /// Each trial has completed once, with the figures of an undisturbed run.
    pub(crate) fn check_results(&self) {
        let expected = undisturbed::of(self.workload);
        let found = rows::read(&self.table());
        for id in &expected.trials {
            let completed: Vec<&Row> = found
                .iter()
                .filter(|row| row.key.0 == *id && row.outcome() == "completed")
                .collect();
            match completed.as_slice() {
                [row] if undisturbed::cells(row) == expected.cells[id] => {}
                [row] => self.note(
                    "loss changed",
                    format!(
                        "{id}: {:?}, undisturbed {:?}",
                        undisturbed::cells(row),
                        expected.cells[id]
                    ),
                ),
                [] => self.note("row lost", format!("{id} has not completed")),
                several => self.note(
                    "run again",
                    format!("{id} has completed {} times", several.len()),
                ),
            }
        }
        for (step, loss) in undisturbed::losses(&self.run_folder()) {
            if expected.losses.get(&step) != Some(&loss) {
                let known = expected.losses.get(&step);
                self.note(
                    "loss changed",
                    format!("{step:?}: {loss}, undisturbed {known:?}"),
                );
            }
        }
    }

    /// No temporary file is left.
    fn check_leftovers(&self) {
        let mut left = Vec::new();
        find(&self.work("results"), &mut |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_temporary = name == ".reserve"
                || name.starts_with(".new-")
                || [".new", ".part", ".old", ".tmp"]
                    .iter()
                    .any(|end| name.ends_with(end));
            if is_temporary {
                left.push(
                    path.strip_prefix(self.work(""))
                        .unwrap()
                        .display()
                        .to_string(),
                );
            }
        });
        if !left.is_empty() {
            self.note("temporary left", left.join(", "));
        }
    }

    fn check_locks(&self) {
        let mut files = vec![self.work("results/x/.kiln-lock")];
        find(&self.work("locks"), &mut |path| files.push(path.to_owned()));
        for path in files {
            let Ok(file) = File::open(&path) else {
                continue;
            };
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                self.note("lock held", path.display().to_string());
            }
        }
    }

    /// Processes end within moments; a busy machine makes that longer, and the grace of SIGTERM is 30 s.
    pub(crate) fn check_processes(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            if Instant::now() > until {
                let words: Vec<String> = left
                    .iter()
                    .map(|pid| {
                        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                        format!(
                            "{pid} {}",
                            String::from_utf8_lossy(&line).replace('\0', " ")
                        )
                    })
                    .collect();
                return self.note("process left", words.join(", "));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn check_outside(&self) {
        if let Some(difference) = difference(&self.untouched.borrow(), &self.outside()) {
            self.note("outside touched", difference);
        }
    }
}

/// Calls `with` for every path below a folder; links are not followed.
fn find(folder: &Path, with: &mut impl FnMut(&Path)) {
    let entries: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    for path in entries {
        with(&path);
        if fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
            find(&path, with);
        }
    }
}
