//! Observes the other launches of a run: one is gone by its own last word, by what Slurm says of its
//! task, by its process on this host, or by a heartbeat that stands still. No clock of another host is
//! read, and no time of a file: a counter is watched on this host's own clock. A launch that is wrongly
//! believed gone costs a second attempt, and nothing else.

use std::{
    cell::OnceCell,
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use kiln_core::{
    record::{
        Heartbeat, LaunchFile, LaunchProcess, RunFolder, launch_folder::launches,
        run_file::SlurmTask,
    },
    spec::Slurm,
    units::TimeSpan,
};

use crate::{
    processes::ProcessId,
    schedule::clock::beat,
    schedule::{
        process_record::ProcessNamespace,
        slurm::{Fate, SlurmSays, TaskId, Word},
    },
};

/// Looks at an unmoved heartbeat before its launch counts as gone; as many beats must have passed.
pub(in crate::schedule) const LOOKS: u32 = 20;
/// Looks within this part of a beat are one.
const LOOK_PART: u32 = 4;

/// This process as other launches of the run find it.
pub(in crate::schedule) fn own_process() -> LaunchProcess {
    LaunchProcess {
        namespace: ProcessNamespace::here().pid_namespace,
        started: ProcessId::own().map_or(0, |own| own.started),
        // As Slurm names it.
        node: std::env::var("SLURMD_NODENAME")
            .ok()
            .or_else(kiln_hardware::host::node_name),
    }
}

/// The process of a launch, if it is of this host and can be seen from `here`.
pub(in crate::schedule) fn process_here(
    here: &ProcessNamespace,
    file: &LaunchFile,
) -> Option<ProcessId> {
    let is_here = file.launch.anchor.boot_id == here.boot_id
        && !here.boot_id.is_empty()
        && file.process.namespace == here.pid_namespace;
    is_here.then_some(ProcessId {
        pid: file.launch.pid,
        started: file.process.started,
    })
}

/// How often each task had been started when the last of its launches began.
#[derive(Debug, Default)]
struct LastStarts(OnceCell<HashMap<TaskId, u32>>);

impl LastStarts {
    /// Whether a launch of the run is a later start of this task. The launches are read once.
    fn has_later(&self, run: &RunFolder, task: SlurmTask) -> bool {
        let read = || {
            let mut last = HashMap::new();
            let all = launches(run).into_iter();
            for other in all.filter_map(|launch| LaunchFile::read(run, launch)?.launch.slurm) {
                let most = last.entry(TaskId::of(other)).or_insert(0);
                *most = other.restarts.max(*most);
            }
            last
        };
        let last = self.0.get_or_init(read).get(&TaskId::of(task));
        last.is_some_and(|last| *last > task.restarts)
    }
}

/// Watches the launches of a run.
#[derive(Debug)]
pub(in crate::schedule) struct LaunchObserver {
    here: ProcessNamespace,
    beat: Duration,
    sights: HashMap<u64, Sight>,
    /// Launches that are gone for certain and have been looked after.
    settled: HashSet<u64>,
    /// Whether this is a worker, which never asks Slurm.
    is_worker: bool,
    /// The reports of Slurm on the tasks of the run, and their requests; `None` if nobody asks it.
    slurm: Option<(SlurmSays, Slurm)>,
    /// Since Slurm was heard last.
    starts: LastStarts,
}

/// When the heartbeat of a launch last moved, as seen from here.
#[derive(Debug)]
struct Sight {
    heartbeat: Option<Heartbeat>,
    since: Instant,
    /// The last look that counted.
    looked: Option<Instant>,
    looks: u32,
}

impl LaunchObserver {
    pub(in crate::schedule) fn new() -> Self {
        Self {
            here: ProcessNamespace::here(),
            beat: beat(),
            sights: HashMap::new(),
            settled: HashSet::new(),
            is_worker: false,
            slurm: None,
            starts: LastStarts::default(),
        }
    }

    /// The observer of a worker.
    pub(in crate::schedule) fn of_worker() -> Self {
        Self {
            is_worker: true,
            ..Self::new()
        }
    }

    /// Takes the newest reports of Slurm on the tasks of the run, and their requests.
    pub(in crate::schedule) fn hear(&mut self, says: SlurmSays, slurm: Slurm) {
        self.slurm = Some((says, slurm));
        self.starts = LastStarts::default();
    }

    /// Whether nothing is left to do for a launch that is gone.
    pub(in crate::schedule) fn is_settled(&self, launch: u64) -> bool {
        self.settled.contains(&launch)
    }

    /// A launch was looked after. One that only seems to be gone may come back, and is looked at
    /// again.
    pub(in crate::schedule) fn settle(&mut self, run: &RunFolder, launch: u64) {
        let file = LaunchFile::read(run, launch);
        let is_certain = file.is_some_and(|file| {
            file.launch.ended.is_some()
                || self.lives_here(&file) == Some(false)
                || self.is_over_in_slurm(run, &file)
        });
        if is_certain {
            self.settled.insert(launch);
        }
    }

    /// Whether Slurm says of a launch's task that it is over, or was started again.
    fn is_over_in_slurm(&self, run: &RunFolder, file: &LaunchFile) -> bool {
        let (Some(task), Some((says, slurm))) = (file.launch.slurm, &self.slurm) else {
            return false;
        };
        let fate = |word: &Word| match word {
            Word::Said(report) => {
                report.fate(task.restarts, || self.starts.has_later(run, task), slurm)
            }
            Word::Forgotten => None,
        };
        says.word(task).and_then(fate).is_some()
    }

    /// The fate of a launch that is gone; `None` while it may go on.
    pub(in crate::schedule) fn gone(&mut self, run: &RunFolder, launch: u64) -> Option<Fate> {
        let file = LaunchFile::read(run, launch);
        if let Some(ended) = file.as_ref().and_then(|file| file.launch.ended.as_ref()) {
            return Some(Fate::killed(format!("it has ended ({})", ended.how)));
        }
        let task = file.as_ref().and_then(|file| file.launch.slurm);
        if let Some(task) = task
            && let Some((says, slurm)) = &self.slurm
        {
            match says.word(task) {
                Some(Word::Said(report)) => {
                    return report.fate(task.restarts, || self.starts.has_later(run, task), slurm);
                }
                None if !says.has_answered => return None,
                // It was asked, or nobody knows of the submission any more (`submit/` was removed).
                None | Some(Word::Forgotten) => {}
            }
        }
        if let Some(lives) = file.as_ref().and_then(|file| self.lives_here(file)) {
            return (!lives).then(|| Fate::killed("its process has ended".to_owned()));
        }
        // A worker cannot tell a slow one from one that is gone; who attends asks Slurm.
        if task.is_some() && self.is_worker {
            return None;
        }
        self.by_heartbeat(Heartbeat::read(run, launch), launch, Instant::now())
            .map(Fate::killed)
    }

    /// Why a launch of which Slurm says that it runs may hang all the same: in words.
    pub(in crate::schedule) fn silence(
        &mut self,
        run: &RunFolder,
        file: &LaunchFile,
    ) -> Option<String> {
        let task = file.launch.slurm?;
        let (says, _) = self.slurm.as_ref()?;
        if !matches!(says.word(task), Some(Word::Said(_))) {
            return None;
        }
        let still = self.by_heartbeat(
            Heartbeat::read(run, file.launch.launch),
            file.launch.launch,
            Instant::now(),
        )?;
        Some(format!(
            "{still}, though Slurm says that its job is not over: it is suspended, or it hangs; look at its node, or end it by `scancel \
             {task}`, and its trial is run again"
        ))
    }

    /// Whether the process of a launch of this host lives; `None` for another host, and for another
    /// container of this one.
    fn lives_here(&self, file: &LaunchFile) -> Option<bool> {
        process_here(&self.here, file).map(|process| process.is_alive())
    }

    fn by_heartbeat(
        &mut self,
        heartbeat: Option<Heartbeat>,
        launch: u64,
        now: Instant,
    ) -> Option<String> {
        let sight = self.sights.entry(launch).or_insert(Sight {
            heartbeat,
            since: now,
            looked: None,
            looks: 0,
        });
        if sight.heartbeat != heartbeat {
            *sight = Sight {
                heartbeat,
                since: now,
                looked: None,
                looks: 0,
            };
        }
        // Several that ask at one time are one look.
        let is_new = |at| now.saturating_duration_since(at) >= self.beat / LOOK_PART;
        if sight.looked.is_none_or(is_new) {
            sight.looked = Some(now);
            sight.looks += 1;
        }
        let still = now.saturating_duration_since(sight.since);
        (sight.looks > LOOKS && still >= self.beat * LOOKS).then(|| {
            let still = TimeSpan(Duration::from_secs(still.as_secs()));
            format!("its heartbeat has not moved for {still}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_must_stand_still_for_many_looks_and_a_long_time() {
        let start = Instant::now();
        let mut observer = LaunchObserver {
            beat: Duration::from_secs(30),
            ..LaunchObserver::new()
        };
        let mut look = |count: u64, seconds: u64| {
            let heartbeat = Some(Heartbeat { count, running: 1 });
            let now = start + Duration::from_secs(seconds);
            observer.by_heartbeat(heartbeat, 7, now).is_some()
        };
        // Long, but seen only twice.
        assert!(!look(1, 0) && !look(1, 6000));
        // Often, but not for long.
        assert!((0..40).all(|second| !look(2, 6001 + second)));
        // It moved in between.
        assert!(!look(3, 6600));
        assert!((1..20).all(|minute| !look(3, 6600 + 30 * minute)));
        assert!(look(3, 7200));
        // A launch that was only out of reach.
        assert!(!look(4, 7201));
        // Twice at each of fifteen ticks: few looks over a long time.
        assert!((0..15).all(|tick| !look(5, 7300 + 90 * tick) && !look(5, 7300 + 90 * tick)));
    }
}
