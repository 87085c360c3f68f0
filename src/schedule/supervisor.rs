//! The processes that a launch is responsible for: the trials' children and all that descends from
//! them, whatever group, session, parent or environment it has taken.
//!
//! Each child is the subreaper of its own descendants, and kiln of its children's: as long as a
//! child runs, every process that it started, directly or not, is below it; when it ends, the
//! kernel hands to kiln what is left. Nothing else is ever handed to kiln, unless it is the first
//! process of a container or had children when it was started; then only what was seen below a
//! child is ended.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_hardware::children;
use rustix::process::{child_subreaper, getpid, set_child_subreaper};

use super::{
    process_record::RecordFile,
    stray::{self, StrayEvidence},
};
use crate::processes::{ProcessId, descendants};

/// Time between two looks at the trials' processes. A look costs a file for each of their threads.
const LOOK: Duration = Duration::from_secs(1);

/// Makes orphans of this process's descendants its children.
pub(super) fn receive_orphans() {
    // Without it, what a child leaves is ended only if it was seen before.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Knows the processes of the running trials.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// By the child's id.
    trials: BTreeMap<u32, TrialProcesses>,
    record: Option<RecordFile>,
    /// Whether each unknown child of this process is an orphan of a trial.
    receives_orphans: bool,
    /// On the supervisor's clock.
    looked: Duration,
}

#[derive(Debug)]
struct TrialProcesses {
    /// The attempt's folder.
    folder: PathBuf,
    child: Option<ProcessId>,
    /// Everything that was seen below the child.
    seen: HashSet<ProcessId>,
}

impl Supervisor {
    /// `locks` is the folder of the devices' locks, where the launch's processes are recorded, with
    /// the folder of the run.
    pub(super) fn new(locks: &Path, run: &Path) -> Self {
        let own = std::process::id();
        let mut new = Self {
            trials: BTreeMap::new(),
            record: RecordFile::new(locks, run),
            receives_orphans: own != 1
                && child_subreaper().is_ok_and(|set| set.is_some())
                && children(own).is_empty(),
            looked: Duration::ZERO,
        };
        // From now on; where it fails, the first trial tells.
        let _ = new.keep_record();
        new
    }

    /// Takes responsibility for a child that has just been started.
    ///
    /// # Errors
    /// If its record cannot be written.
    pub(super) fn add(&mut self, pid: u32, folder: &Path) -> io::Result<()> {
        let processes = TrialProcesses {
            folder: folder.to_owned(),
            child: ProcessId::of(pid),
            seen: HashSet::new(),
        };
        self.trials.insert(pid, processes);
        self.keep_record()
    }

    /// Looks for new processes of the trials if it is time to.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn look(&mut self, now: Duration) -> io::Result<()> {
        if now < self.looked + LOOK {
            return Ok(());
        }
        self.looked = now;
        for (pid, trial) in &mut self.trials {
            trial.seen.retain(ProcessId::is_alive);
            trial.seen.extend(descendants(*pid));
        }
        self.keep_record()
    }

    /// Ends everything that a child left, after the child itself was reaped.
    pub(super) fn end_left(&mut self, pid: u32) {
        let Some(trial) = self.trials.remove(&pid) else {
            return;
        };
        let running: HashSet<u32> = self.trials.keys().copied().collect();
        stray::end(&StrayEvidence {
            seen: &trial.seen,
            folders: &[&trial.folder],
            expected: self.receives_orphans.then_some(&running),
        });
        // The next look writes it too.
        let _ = self.keep_record();
    }

    fn keep_record(&mut self) -> io::Result<()> {
        let Some(record) = &mut self.record else {
            return Ok(());
        };
        let processes: BTreeSet<ProcessId> = self
            .trials
            .values()
            .flat_map(|trial| trial.child.into_iter().chain(trial.seen.iter().copied()))
            .collect();
        let folders = self.trials.values().map(|trial| trial.folder.clone());
        record.keep(processes, folders.collect())
    }
}
