//! Ends what attempts left running. A process is ended only on evidence that kiln started it or
//! something above it: it was seen below a child, its environment names an attempt's folder, the
//! kernel handed it to this process as an orphan of a trial, or it descends from one of these.

use std::{
    collections::HashSet,
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::processes::{self, ProcessId, ProcessStat};

/// The variable that marks a trial's processes; its value is the attempt's folder.
pub(super) const MARK: &str = "KILN_ATTEMPT";

/// Longest time until all of them are gone: a process that hangs in the kernel ends later.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// Evidence that a process belongs to attempts that have ended.
pub(super) struct StrayEvidence<'a> {
    /// Processes that were seen below the attempts' children.
    pub(super) seen: &'a HashSet<ProcessId>,
    /// Folders of attempts, or of runs.
    pub(super) folders: &'a [&'a Path],
    /// The children of this process that belong to something else; all others are orphans of these
    /// attempts. `None` if that is not certain.
    pub(super) expected: Option<&'a HashSet<u32>>,
}

/// Ends every process that was started for an attempt at or under `folder`; returns how many there
/// were.
pub(super) fn end_strays(folder: &Path) -> usize {
    end(&StrayEvidence {
        seen: &HashSet::new(),
        folders: &[folder],
        expected: None,
    })
}

/// Ends the processes that the evidence names and all that descends from them, waits until they are
/// gone and reaps those that are children of this process; returns how many there were.
pub(super) fn end(evidence: &StrayEvidence) -> usize {
    let mark = |folder: &&Path| [MARK.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let marks: Vec<Vec<u8>> = evidence.folders.iter().map(mark).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut ended: HashSet<ProcessId> = HashSet::new();
    loop {
        let table = processes::all();
        let left = named(evidence, &marks, &table);
        ended.extend(left.iter().filter(|id| id.end()).copied());
        reap(evidence, &table);
        if left.is_empty() || Instant::now() >= deadline {
            return ended.len();
        }
        thread::sleep(LOOK);
    }
}

/// The living processes that the evidence names, with their descendants.
fn named(evidence: &StrayEvidence, marks: &[Vec<u8>], table: &[ProcessStat]) -> HashSet<ProcessId> {
    let own = std::process::id();
    let is_named = |process: &&ProcessStat| {
        process.id.pid != own
            && (evidence.seen.contains(&process.id)
                || is_orphan(evidence, process)
                || is_marked(process.id.pid, marks))
    };
    let roots: HashSet<ProcessId> = table
        .iter()
        .filter(is_named)
        .map(|process| process.id)
        .collect();
    let pids = roots.iter().map(|id| id.pid).collect();
    let all: HashSet<ProcessId> = processes::below(table, &pids)
        .into_iter()
        .chain(roots)
        .collect();
    table
        .iter()
        .filter(|process| !process.is_zombie && process.id.pid != own && all.contains(&process.id))
        .map(|process| process.id)
        .collect()
}

fn is_orphan(evidence: &StrayEvidence, process: &ProcessStat) -> bool {
    let is_ours = process.parent == std::process::id();
    evidence
        .expected
        .is_some_and(|expected| is_ours && !expected.contains(&process.id.pid))
}

/// Orphans that have ended wait for this process.
fn reap(evidence: &StrayEvidence, table: &[ProcessStat]) {
    let ended = table
        .iter()
        .filter(|process| process.is_zombie && is_orphan(evidence, process));
    for process in ended {
        if let Some(pid) = i32::try_from(process.id.pid).ok().and_then(Pid::from_raw) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn is_marked(pid: u32, marks: &[Vec<u8>]) -> bool {
    if marks.is_empty() {
        return false;
    }
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    environment.split(|byte| *byte == 0).any(|variable| {
        marks.iter().any(|mark| {
            variable
                .strip_prefix(mark.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::unix::process::ExitStatusExt,
        process::{Child, Command},
    };

    use super::*;

    /// Waits for a child beside the test, as the system's first process does for strays.
    fn reaped(mut child: Child) -> thread::JoinHandle<Option<i32>> {
        thread::spawn(move || child.wait().unwrap().signal())
    }

    #[test]
    fn a_marked_process_is_ended_and_its_neighbour_is_not() {
        let folder = tempfile::tempdir().unwrap();
        // A path is bytes.
        let own = OsStr::from_bytes(b"r\xffn");
        let sleep = |run: &OsStr| {
            Command::new("sleep")
                .arg("60")
                .env(MARK, folder.path().join(run).join("trials/a/1"))
                .spawn()
                .unwrap()
        };
        let (ours, mut other) = (sleep(own), sleep(OsStr::from_bytes(b"r\xffn2")));
        // Until then its environment is not that of `sleep`.
        let has_begun = |child: &Child| {
            let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
            line.first() == Some(&b's')
        };
        while !has_begun(&ours) || !has_begun(&other) {}
        let ours = reaped(ours);
        assert_eq!(end_strays(&folder.path().join(own)), 1);
        assert_eq!(ours.join().unwrap(), Some(9));
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn the_descendants_of_a_named_process_end_with_it() {
        let process = |pid, parent, is_zombie| ProcessStat {
            id: ProcessId {
                pid,
                started: u64::from(pid),
            },
            parent,
            is_zombie,
        };
        let own = std::process::id();
        // Ids that this machine cannot have, so that no environment is read.
        let base = u32::MAX - 100;
        let table = [
            process(base, 1, true),
            process(base + 1, base, false),
            process(base + 2, base + 1, false),
            process(base + 3, 1, false),
            process(base + 4, own, false),
            process(base + 5, own, false),
        ];
        let found = |seen: &[u32], expected: Option<&HashSet<u32>>| {
            let seen = seen.iter().map(|at| table[*at as usize].id).collect();
            let evidence = StrayEvidence {
                seen: &seen,
                folders: &[],
                expected,
            };
            let mut found: Vec<u32> = named(&evidence, &[], &table)
                .into_iter()
                .map(|id| id.pid - base)
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&[], None), [0_u32; 0]);
        assert_eq!(found(&[0], None), [1, 2], "a zombie need not be ended");
        assert_eq!(found(&[2], None), [2]);
        assert_eq!(found(&[], Some(&HashSet::from([base + 4]))), [5]);
    }
}
