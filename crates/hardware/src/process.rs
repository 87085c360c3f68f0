//! Data of `/proc` about one process: memory, CPU time, owner.

use std::{fs, os::unix::fs::MetadataExt};

/// Ticks per second of the times in `/proc/<pid>/stat`. The kernel's interface (`USER_HZ`) fixes
/// 100 on x86-64 and AArch64.
const TICKS_PER_SECOND: f64 = 100.0;

/// The part of a process that a tick records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessUse {
    pub(super) resident_bytes: u64,
    pub(super) peak_resident_bytes: u64,
    /// Bytes fetched from disks since it started, by it and its children that have ended. `None`
    /// where the kernel does not report it.
    pub(super) disk_read_bytes: Option<u64>,
    /// Whether a signal (SIGSTOP, SIGTSTP) has stopped it.
    pub(super) is_stopped: bool,
}

/// `None` once the process is gone (or is a zombie, which holds no memory).
pub(super) fn read(pid: u32) -> Option<ProcessUse> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |key: &str| kibibytes(&status, key).map(|kib| kib * 1024);
    let disk_read_bytes = fs::read_to_string(format!("/proc/{pid}/io"))
        .ok()
        .and_then(|text| number_after(&text, "read_bytes:"));
    Some(ProcessUse {
        resident_bytes: bytes("VmRSS:")?,
        peak_resident_bytes: bytes("VmHWM:")?,
        disk_read_bytes,
        is_stopped: is_stopped(&status),
    })
}

/// Whether `/proc/<pid>/status` has the state `T (stopped)`.
fn is_stopped(status: &str) -> bool {
    let mut states = status
        .lines()
        .filter_map(|line| line.strip_prefix("State:"));
    states.any(|state| state.trim_start().starts_with('T'))
}

/// Memory of a process in which a page that several processes hold counts as its share, in bytes; 0
/// once the process is gone. One of another user does not show its pages: all that it holds counts.
pub(super) fn share_bytes(pid: u32) -> u64 {
    proportional_bytes(pid)
        .or_else(|| read(pid).map(|used| used.resident_bytes))
        .unwrap_or(0)
}

/// `None` if the kernel does not tell. It walks all pages: some ms for each GB.
fn proportional_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    kibibytes(&text, "Pss:").map(|kib| kib * 1024)
}

/// A line `Key:   1234 kB` of `/proc/<pid>/status` or `/proc/meminfo`.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    number_after(text, key)
}

fn number_after(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// CPU time of a process in s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) own: f64,
    pub(super) of_ended_children: f64,
}

/// `None` once the process is gone.
pub(super) fn times_of(pid: u32) -> Option<Times> {
    times(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 14 to 17 of `/proc/<pid>/stat`, counted after the name, which may hold spaces and
/// parentheses.
fn times(stat: &str) -> Option<Times> {
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, system, of_children, of_children_in_system] = ticks[..] else {
        return None;
    };
    Some(Times {
        own: (user + system) / TICKS_PER_SECOND,
        of_ended_children: (of_children + of_children_in_system) / TICKS_PER_SECOND,
    })
}

/// The name of a process's owner, else its number; `None` if the process is not visible from here.
pub(super) fn owner(pid: u32) -> Option<String> {
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(name.unwrap_or_else(|| uid.to_string()))
}

/// Whether process numbers here are the machine's own: inside a container NVML's are the host's, or
/// hidden.
pub(super) fn pids_are_the_machines() -> bool {
    // The first process namespace has this fixed number (`PROC_PID_INIT_INO`).
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_times() {
        let stat = "7 (a ) (b) R 1 2 3 4 -1 5 6 7 8 9 150 50 30 20 20";
        assert_eq!(
            times(stat),
            Some(Times {
                own: 2.0,
                of_ended_children: 0.5
            })
        );
    }

    /// One that has ended and was not waited for can be seen, and holds nothing.
    #[test]
    fn an_ended_process_has_no_share() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let began = std::time::Instant::now();
        while read(ended.id()).is_some() {
            assert!(began.elapsed().as_secs() < 60, "it never ended");
        }
        assert!(owner(ended.id()).is_some());
        assert_eq!((share_bytes(ended.id()), share_bytes(u32::MAX)), (0, 0));
        assert!(share_bytes(std::process::id()) > 0);
        ended.wait().unwrap();
    }

    #[test]
    fn this_process_is_read_and_a_gone_one_is_none() {
        let own = read(std::process::id()).unwrap();
        assert!(own.resident_bytes > 0 && own.peak_resident_bytes >= own.resident_bytes);
        assert!(owner(std::process::id()).is_some());
        assert_eq!(read(u32::MAX), None);
    }
}
