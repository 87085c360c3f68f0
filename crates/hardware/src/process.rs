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
    /// CPU time of all its threads since it started, user and system.
    pub(super) cpu_seconds: f64,
    /// Bytes fetched from disks since it started. `None` where the kernel does not report it.
    pub(super) disk_read_bytes: Option<u64>,
}

/// `None` once the process is gone (or is a zombie, which holds no memory).
pub(super) fn read(pid: u32) -> Option<ProcessUse> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let bytes = |key: &str| kibibytes(&status, key).map(|kib| kib * 1024);
    let disk_read_bytes = fs::read_to_string(format!("/proc/{pid}/io"))
        .ok()
        .and_then(|text| number_after(&text, "read_bytes:"));
    Some(ProcessUse {
        resident_bytes: bytes("VmRSS:")?,
        peak_resident_bytes: bytes("VmHWM:")?,
        cpu_seconds: times(&stat)?.own,
        disk_read_bytes,
    })
}

/// A process and all that it started, directly or through others, as far as they live. A program
/// that starts the trial (a wrapper) does its work in a child of its own.
pub(super) fn family(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut place = 0;
    while let Some(parent) = found.get(place).copied() {
        place += 1;
        let children: Vec<u32> = children(parent)
            .into_iter()
            .filter(|child| !found.contains(child))
            .collect();
        found.extend(children);
    }
    found
}

/// Processes that any thread of a process started. Empty if the kernel does not list them.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|child| child.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// CPU time of these processes since they started, that of their children that have ended included.
pub(super) fn cpu_seconds_of(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        times(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
            .map(|times| times.own + times.of_ended_children)
    };
    pids.iter().filter_map(of).sum()
}

/// The largest resident set that a live process, or one that it started and that still lives, ever
/// had, in bytes: of a wrapper that of the program in it. `None` once it has ended.
pub fn peak_resident_bytes(pid: u32) -> Option<u64> {
    family(pid)
        .into_iter()
        .filter_map(read)
        .map(|used| used.peak_resident_bytes)
        .max()
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
struct Times {
    own: f64,
    of_ended_children: f64,
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
pub(super) mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::{Child, Command},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// A script that starts a process and waits for it, as one around the trial's program does;
    /// [`end`] ends both.
    pub(crate) fn busy_wrapper() -> Child {
        Command::new("sh")
            .args(["-c", "sh -c 'while :; do :; done' & wait"])
            .process_group(0)
            .spawn()
            .unwrap()
    }

    pub(crate) fn end(wrapper: &mut Child) {
        let group = rustix::process::Pid::from_child(wrapper);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        wrapper.wait().unwrap();
    }

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

    #[test]
    fn this_process_is_read_and_a_gone_one_is_none() {
        let own = read(std::process::id()).unwrap();
        assert!(own.resident_bytes > 0 && own.peak_resident_bytes >= own.resident_bytes);
        assert!(owner(std::process::id()).is_some());
        assert_eq!(read(u32::MAX), None);
    }

    #[test]
    fn the_memory_of_a_wrapper_is_that_of_what_it_started() {
        // It copies without end, through a buffer of so many bytes.
        let mut wrapper = Command::new("sh")
            .args(["-c", "dd if=/dev/zero of=/dev/null bs=50000000 & wait"])
            .process_group(0)
            .spawn()
            .unwrap();
        let began = Instant::now();
        let mut found = None;
        while found.is_none_or(|bytes| bytes < 50_000_000)
            && began.elapsed() < Duration::from_secs(60)
        {
            found = peak_resident_bytes(wrapper.id());
            thread::yield_now();
        }
        let alone = read(wrapper.id()).map(|used| used.peak_resident_bytes);
        end(&mut wrapper);
        assert!(
            found.is_some_and(|bytes| bytes >= 50_000_000)
                && alone.is_some_and(|bytes| bytes < 20_000_000),
            "{found:?} {alone:?}"
        );
    }

    #[test]
    fn what_a_wrapper_starts_belongs_to_it_and_works_for_it() {
        let mut wrapper = busy_wrapper();
        let began = Instant::now();
        let (mut found, mut seconds) = (Vec::new(), 0.0);
        while seconds < 0.1 && began.elapsed() < Duration::from_secs(60) {
            found = family(wrapper.id());
            seconds = cpu_seconds_of(&found);
            thread::yield_now();
        }
        let alone = read(wrapper.id()).map(|used| used.cpu_seconds);
        let of_this = family(std::process::id());
        end(&mut wrapper);
        assert!(
            found.len() == 2 && found[0] == wrapper.id() && seconds >= 0.1,
            "{found:?}, {seconds} s"
        );
        assert!(
            alone.is_some_and(|alone| alone < 0.1) && found.iter().all(|pid| of_this.contains(pid)),
            "{alone:?} {of_this:?}"
        );
    }
}
