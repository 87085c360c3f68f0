//! Processes of this machine, as `/proc` describes them: who they are, what they descend from, and
//! their end. A process is named by its id and its start time, because the kernel uses ids again.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use kiln_hardware::children;
use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, getpgid, getsid, kill_process, kill_process_group,
        pidfd_open, pidfd_send_signal, wait,
    },
};
use serde::{Deserialize, Serialize};

/// Most processes below one that are listed; a trial with more keeps the rest for its end.
const MOST_LISTED: usize = 4096;

/// Time between two looks at processes that have been sent SIGKILL.
const LOOK: Duration = Duration::from_millis(5);

/// One process of this boot and process namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Time of its start, in clock ticks since the boot.
    pub(crate) started: u64,
}

/// A line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) id: ProcessId,
    pub(crate) parent: u32,
    /// It has ended and waits for its parent.
    pub(crate) is_zombie: bool,
}

impl ProcessStat {
    /// `None` if there is no such process.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `pid (name) state parent …`; the name may hold spaces and parentheses.
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        // Field 22 of proc_pid_stat(5); the state is the third.
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self {
            id: ProcessId { pid, started },
            parent,
            is_zombie: matches!(state, "Z" | "X"),
        })
    }
}

impl ProcessId {
    /// `None` if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        ProcessStat::read(pid).map(|process| process.id)
    }

    /// This process.
    pub(crate) fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Whether this very process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        ProcessStat::read(self.pid).is_some_and(|found| found.id == *self && !found.is_zombie)
    }

    /// Sends SIGKILL to this very process, never to a later one with its id; returns whether it was
    /// sent.
    pub(crate) fn end(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The descriptor stays with the process, so the look after it holds for the signal.
            Ok(process) => self.is_alive() && pidfd_send_signal(process, Signal::KILL).is_ok(),
            Err(Errno::NOSYS | Errno::PERM) => {
                self.is_alive() && kill_process(pid, Signal::KILL).is_ok()
            }
            Err(_) => false,
        }
    }
}

impl ProcessId {
    /// Sends SIGKILL to the process group of a descendant of this process, if it is in another
    /// session than this one: descendants alone are in a session that a descendant began. The
    /// kernel reaches the whole group at once, also one whose processes hand themselves on.
    fn end_session_group(&self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return;
        };
        if let (Ok(group), Ok(session), Ok(own)) =
            (getpgid(Some(pid)), getsid(Some(pid)), getsid(None))
            && session != own
            && self.is_alive()
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The whole process table.
pub(crate) fn all() -> Vec<ProcessStat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| ProcessStat::read(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The processes of `table` that descend from one of `roots`; without the roots.
pub(crate) fn below(table: &[ProcessStat], roots: &HashSet<u32>) -> HashSet<ProcessId> {
    let (mut reached, mut found) = (roots.clone(), HashSet::new());
    loop {
        let next: Vec<ProcessId> = table
            .iter()
            .filter(|process| {
                reached.contains(&process.parent) && !reached.contains(&process.id.pid)
            })
            .map(|process| process.id)
            .collect();
        if next.is_empty() {
            return found;
        }
        reached.extend(next.iter().map(|id| id.pid));
        found.extend(next);
    }
}

/// The processes that descend from `pid`. Where the kernel lists children it costs a file for each
/// thread, else the whole process table.
pub(crate) fn descendants(pid: u32) -> HashSet<ProcessId> {
    if !Path::new("/proc/thread-self/children").exists() {
        return below(&all(), &HashSet::from([pid]));
    }
    let (mut found, mut open) = (HashSet::new(), vec![pid]);
    while let Some(parent) = open.pop()
        && found.len() < MOST_LISTED
    {
        let new = children(parent).into_iter().filter_map(ProcessId::of);
        open.extend(new.filter(|id| found.insert(*id)).map(|id| id.pid));
    }
    found
}

/// Sends SIGKILL to all that descends from this process, which must be the subreaper of its
/// descendants, and reaps them; returns whether all were gone within `patience`. A process that
/// hangs in the kernel ends later.
pub(crate) fn end_descendants(patience: Duration) -> bool {
    let until = Instant::now() + patience;
    // Where no child is left, nothing below one is: it would have become a child. A list of
    // processes can miss one that hands itself on by a fork.
    while !has_reaped_all() {
        kill_descendants();
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// Sends SIGKILL to all that descends from this process, once, and reaps none.
pub(crate) fn kill_descendants() {
    for process in descendants(std::process::id()) {
        process.end_session_group();
        process.end();
    }
}

/// Reaps the children that have ended; whether none is left.
fn has_reaped_all() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "41 (a) R 9 (b) S 7 41 41 0 -1 4194560 99 0 0 0 1 2 3 4 20 0 1 0 77001 8192 1\n";
        let wanted = ProcessStat {
            id: ProcessId {
                pid: 41,
                started: 77001,
            },
            parent: 7,
            is_zombie: false,
        };
        assert_eq!(ProcessStat::parse(41, stat), Some(wanted));
        assert_eq!(ProcessStat::parse(41, "41 (cut"), None);
    }

    /// A shell whose grandchild waits; it prints the grandchild's id.
    fn family() -> (Child, u32) {
        let script = "sh -c 'sleep 60 & echo $!; wait' & wait";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        (child, line.trim().parse().unwrap())
    }

    #[test]
    fn descendants_are_found_in_both_ways_and_end_only_by_their_own_name() {
        let (mut child, grandchild) = family();
        let grandchild = ProcessId::of(grandchild).unwrap();
        for found in [
            descendants(child.id()),
            below(&all(), &HashSet::from([child.id()])),
        ] {
            assert!(found.len() == 2 && found.contains(&grandchild), "{found:?}");
        }
        let other = ProcessId {
            started: grandchild.started + 1,
            ..grandchild
        };
        assert!(!other.is_alive() && !other.end() && grandchild.is_alive());
        assert!(grandchild.end());
        assert!(child.wait().unwrap().success());
        assert!(!grandchild.is_alive() && !grandchild.end());
    }
}
