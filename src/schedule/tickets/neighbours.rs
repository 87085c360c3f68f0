//! The other launches of a run on this host, and how many trials they run.

use std::collections::HashSet;

use kiln_core::record::{Heartbeat, LaunchFile, RunFolder, launch_folder};

use super::launch_observer::process_here;
use crate::{processes::ProcessId, schedule::process_record::ProcessNamespace};

/// Launches beside the own one, as far as their processes are to be seen here: not those in another
/// container of this host.
#[derive(Debug)]
pub(super) struct Neighbours {
    own: u64,
    here: ProcessNamespace,
    alive: Vec<(u64, ProcessId)>,
    /// Launches of other hosts, and launches that have ended.
    left_out: HashSet<u64>,
}

impl Neighbours {
    pub(super) fn of(own: u64) -> Self {
        Self {
            own,
            here: ProcessNamespace::here(),
            alive: Vec::new(),
            left_out: HashSet::new(),
        }
    }

    /// Looks for launches that have begun.
    pub(super) fn find(&mut self, run: &RunFolder) {
        for launch in launch_folder::launches(run) {
            let is_known = launch == self.own
                || self.left_out.contains(&launch)
                || self.alive.iter().any(|(known, _)| *known == launch);
            // One that has not written its record yet is looked at again.
            let file = (!is_known).then(|| LaunchFile::read(run, launch)).flatten();
            let Some(file) = file else { continue };
            match process_here(&self.here, &file) {
                Some(process) => self.alive.push((launch, process)),
                None => {
                    self.left_out.insert(launch);
                }
            }
        }
    }

    /// The trials that they run, as their heartbeats say.
    pub(super) fn running(&mut self, run: &RunFolder) -> u64 {
        let ended = self
            .alive
            .extract_if(.., |(_, process)| !process.is_alive())
            .map(|(launch, _)| launch);
        self.left_out.extend(ended);
        let beats = self.alive.iter();
        let beats = beats.filter_map(|(launch, _)| Heartbeat::read(run, *launch));
        beats.map(|beat| beat.running).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kiln_core::record::LaunchProcess;
    use serde_json::json;

    use super::*;
    use crate::schedule::tickets::launch_observer::own_process;

    /// A launch of this process, told to run so many trials.
    fn begin(run: &RunFolder, running: u64, process: LaunchProcess, boot_id: &str) -> u64 {
        let number = launch_folder::make(run, 0).unwrap();
        let launch = serde_json::from_value(json!({
            "launch": number, "started_utc": "2026-01-01T00:00:00Z", "boot_id": boot_id, "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": std::process::id(), "command_line": [], "machine": {}, "devices": [],
            "versions": {"kiln": "0", "kiln_sha256": null, "trial_program": "t", "trial_program_sha256": null},
            "environment": {},
        }));
        LaunchFile::new(process, launch.unwrap())
            .write(run)
            .unwrap();
        let beat = Heartbeat { count: 1, running };
        beat.write(run, number).unwrap();
        number
    }

    /// A launch of this process on this host.
    pub(in crate::schedule::tickets) fn begin_here(run: &RunFolder, running: u64) -> u64 {
        begin(
            run,
            running,
            own_process(),
            &ProcessNamespace::here().boot_id,
        )
    }

    #[test]
    fn trials_of_living_launches_of_this_host_are_counted_without_the_own_ones() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let here = ProcessNamespace::here().boot_id;
        let own = begin_here(&run, 3);
        let mut neighbours = Neighbours::of(own);
        let count = |neighbours: &mut Neighbours| {
            neighbours.find(&run);
            neighbours.running(&run)
        };
        assert_eq!(count(&mut neighbours), 0);
        let other = begin_here(&run, 2);
        assert_eq!(neighbours.running(&run), 0, "it was not looked for");
        assert_eq!(count(&mut neighbours), 2);
        begin(&run, 5, own_process(), "another host");
        // A process that has ended: none with its id began then.
        let ended = LaunchProcess {
            started: 1,
            ..own_process()
        };
        begin(&run, 7, ended, &here);
        assert_eq!(count(&mut neighbours), 2);
        let beat = Heartbeat {
            count: 2,
            running: 1,
        };
        beat.write(&run, other).unwrap();
        assert_eq!(neighbours.running(&run), 1);
    }
}
