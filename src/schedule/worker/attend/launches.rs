//! Tells which launches work on a run, and which are gone or silent.

use kiln_core::record::{LaunchFile, launch_folder};

use super::Attendant;
use crate::schedule::slurm::WorkerSeen;

/// The state in which a launch was seen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchSeen {
    Running,
    Gone,
}

impl Attendant<'_> {
    /// Says which launches have begun and which are gone.
    pub(super) fn tell_launches(&mut self) {
        let own = self.own.as_ref().map(|own| own.launch);
        for launch in launch_folder::launches(self.run) {
            if launch == launch_folder::BEFORE || Some(launch) == own {
                continue;
            }
            let Some(file) = LaunchFile::read(self.run, launch) else {
                continue;
            };
            let seen = self.launches.get(&launch).copied();
            if seen == Some(LaunchSeen::Gone) {
                continue;
            }
            self.see_worker(&file);
            let gone = self.observer.gone(self.run, launch);
            let now = match &gone {
                None => LaunchSeen::Running,
                Some(_) => LaunchSeen::Gone,
            };
            let name = launch_name(&file);
            if gone.is_none() {
                self.tell_silence(&name, &file);
            }
            match (seen, gone) {
                (None, None) => self.notice(&format!("{name} is at work")),
                (Some(_), Some(fate)) => self.notice(&format!("{name}: {}", fate.why)),
                // One that was gone before this attendance is not told.
                (None, Some(_)) | (Some(_), None) => {}
            }
            self.launches.insert(launch, now);
        }
    }

    /// Says once of a worker of Slurm that its heartbeat stands still: nobody takes its ticket back.
    fn tell_silence(&mut self, name: &str, file: &LaunchFile) {
        let launch = file.launch.launch;
        let is_of_slurm = self.fleet.is_some() && file.launch.slurm.is_some();
        let silence = is_of_slurm.then(|| self.observer.silence(self.run, file));
        match silence.flatten() {
            None => {
                self.silent.remove(&launch);
            }
            Some(still) if self.silent.insert(launch) => self.notice(&format!("{name}: {still}")),
            Some(_) => {}
        }
    }

    /// Remembers a worker in a task of Slurm.
    fn see_worker(&mut self, file: &LaunchFile) {
        let (launch, Some(task)) = (file.launch.launch, file.launch.slurm) else {
            return;
        };
        let known = self.workers.get(&launch);
        let has_begun_a_trial = known.is_some_and(|known| known.has_begun_a_trial)
            || launch_folder::noted_attempts(self.run, launch).is_ok_and(|begun| !begun.is_empty());
        let ended = file.launch.ended.as_ref();
        let worker = WorkerSeen {
            launch,
            task,
            node: file.process.node.clone(),
            cause: ended.and_then(|ended| ended.cause),
            has_begun_a_trial,
        };
        self.workers.insert(launch, worker);
    }
}

/// The launch as people name it.
fn launch_name(file: &LaunchFile) -> String {
    let number = file.launch.launch;
    let node = match file.launch.slurm {
        Some(_) => &file.process.node,
        None => &file.launch.node,
    };
    let task = file.launch.slurm.map(|task| format!(" ({task})"));
    let task = task.unwrap_or_default();
    match node {
        Some(node) => format!("launch {number} on {node}{task}"),
        None => format!("launch {number}{task}"),
    }
}
