//! A process and all that it started, directly or through others, as far as they live: a wrapper
//! does its work in a child, and a loader of Python in workers.

use std::{fs, time::Instant};

use crate::process;

/// The part of a tree that a tick records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TreeUse {
    /// Pages that several of its processes hold count once. `None` where that was not read.
    pub(super) resident_bytes: Option<u64>,
    /// The most that one of its processes ever held, or the whole tree holds now.
    pub(super) peak_resident_bytes: u64,
    /// Bytes fetched from disks since they started. `None` where the kernel does not report it.
    pub(super) disk_read_bytes: Option<u64>,
    /// Time it took to read the memory of several processes.
    pub(super) pages_seconds: Option<f64>,
    /// Whether one of its processes is stopped.
    pub(super) is_stopped: bool,
}

/// Most readings of a tree in one tick: processes that start and end in between shift its sums.
const MOST_ROUNDS: usize = 3;

/// Reads a tree; `None` once all its processes are gone. The memory of several processes is read
/// only if `wants_pages`, because that takes milliseconds; `list` then finds the processes again.
pub(super) fn read(
    pids: &[u32],
    wants_pages: bool,
    list: impl Fn() -> Vec<u32>,
) -> Option<TreeUse> {
    let live: Vec<(u32, process::ProcessUse)> = pids
        .iter()
        .filter_map(|pid| Some((*pid, process::read(*pid)?)))
        .collect();
    let peak_of_one = live
        .iter()
        .map(|(_, used)| used.peak_resident_bytes)
        .max()?;
    let began = Instant::now();
    let (resident_bytes, pages_seconds) = match &live[..] {
        [(_, one)] => (Some(one.resident_bytes), None),
        several if wants_pages => {
            let first = several.iter().map(|(pid, _)| *pid).collect();
            let held = |pid| process::read(pid).map_or(0, |used| used.resident_bytes);
            let sum = least_sum(first, || holders(list()), process::share_bytes, held);
            (Some(sum), Some(began.elapsed().as_secs_f64()))
        }
        _ => (None, None),
    };
    Some(TreeUse {
        resident_bytes,
        peak_resident_bytes: peak_of_one.max(resident_bytes.unwrap_or(0)),
        disk_read_bytes: live
            .iter()
            .map(|(_, used)| used.disk_read_bytes)
            .reduce(|sum, bytes| Some(sum? + bytes?))
            .flatten(),
        pages_seconds,
        is_stopped: live.iter().any(|(_, used)| used.is_stopped),
    })
}

/// The processes that hold memory.
fn holders(pids: Vec<u32>) -> Vec<u32> {
    let holds = |pid: &u32| process::read(*pid).is_some();
    pids.into_iter().filter(holds).collect()
}

/// Sum of the shares of the processes. They are read one after another: after a fork or an end, a
/// page counts in full in one and in part in another. So if the processes have changed, they are
/// read again, and of sums that all had a change the smallest is taken. A process that none of the
/// sums has may hold part of the pages; but the tree holds no less than the largest of its processes.
fn least_sum(
    mut pids: Vec<u32>,
    list: impl Fn() -> Vec<u32>,
    share: impl Fn(u32) -> u64,
    held: impl Fn(u32) -> u64,
) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..MOST_ROUNDS {
        let sum: u64 = pids.iter().map(|pid| share(*pid)).sum();
        let now = list();
        if now == pids {
            return sum;
        }
        least = least.min(sum);
        pids = now;
    }
    let largest = pids.iter().map(|pid| held(*pid)).max();
    least.max(largest.unwrap_or(0))
}

/// The processes of a tree, its root first.
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

/// The processes of a tree; with `without_root` those below its root.
pub(super) fn members(pid: u32, without_root: bool) -> Vec<u32> {
    let mut family = family(pid);
    if without_root {
        family.remove(0);
    }
    family
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

/// The memory maps of a process and of what it started, as the kernel lists them, each with its
/// process id: of so many processes at most.
pub fn maps(pid: u32, most: usize) -> Vec<(u32, String)> {
    let text = |pid: u32| {
        // The name of a mapped file may be any bytes.
        let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
        Some((pid, String::from_utf8_lossy(&maps).into_owned()))
    };
    family(pid)
        .into_iter()
        .filter_map(text)
        .take(most)
        .collect()
}

/// CPU time of these processes since they started, that of their children that have ended included.
pub(super) fn cpu_seconds_of(pids: &[u32]) -> f64 {
    let of = |pid| process::times_of(pid).map(|times| times.own + times.of_ended_children);
    whole_sum(pids.to_vec(), of)
}

/// Sum over the processes that are there. The time of one that ends goes over to its parent, which
/// may have been read before: then all are read again.
fn whole_sum(mut pids: Vec<u32>, mut of: impl FnMut(u32) -> Option<f64>) -> f64 {
    let mut round = 1;
    loop {
        let read: Vec<(u32, f64)> = pids
            .iter()
            .filter_map(|pid| Some((*pid, of(*pid)?)))
            .collect();
        if read.len() == pids.len() || round == MOST_ROUNDS {
            return read.iter().map(|(_, seconds)| seconds).sum();
        }
        pids = read.iter().map(|(pid, _)| *pid).collect();
        round += 1;
    }
}

/// CPU time in s of the processes below this one, and of all that they waited for.
pub fn cpu_seconds_below(pid: u32) -> f64 {
    cpu_seconds_of(&family(pid)[1..])
}

/// The most memory that a live process ever held, in bytes, without what it started.
pub fn peak_resident_bytes_of(pid: u32) -> Option<u64> {
    process::read(pid).map(|used| used.peak_resident_bytes)
}

/// The most memory that the tree of a live process holds now, or that one of its processes ever held,
/// in bytes. `None` once it has ended.
pub fn peak_resident_bytes(pid: u32) -> Option<u64> {
    peak_of_members(pid, false)
}

/// The same of the processes below a live process, without it. `None` if there are none.
pub fn peak_resident_bytes_below(pid: u32) -> Option<u64> {
    peak_of_members(pid, true)
}

fn peak_of_members(pid: u32, without_root: bool) -> Option<u64> {
    let list = || members(pid, without_root);
    read(&list(), true, list).map(|used| used.peak_resident_bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        cell::Cell,
        ffi::OsStr,
        os::unix::{ffi::OsStrExt, process::CommandExt},
        process::{Child, Command},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// Reads these processes, and no others.
    fn read(pids: &[u32], wants_pages: bool) -> Option<TreeUse> {
        super::read(pids, wants_pages, || pids.to_vec())
    }

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

    fn script(text: &str) -> Child {
        Command::new("sh")
            .args(["-c", text])
            .process_group(0)
            .spawn()
            .unwrap()
    }

    /// Calls `look` until it returns a value, for a minute at most.
    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it never came");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_memory_of_a_wrapper_is_that_of_what_it_started() {
        // It copies without end, through a buffer of so many bytes.
        let mut wrapper = script("dd if=/dev/zero of=/dev/null bs=50000000 & wait");
        wait_for(|| peak_resident_bytes(wrapper.id()).filter(|bytes| *bytes >= 50_000_000));
        let alone = process::read(wrapper.id()).map(|used| used.peak_resident_bytes);
        end(&mut wrapper);
        assert!(alone.is_some_and(|bytes| bytes < 20_000_000), "{alone:?}");
    }

    #[test]
    fn the_maps_of_a_process_with_a_file_whose_name_is_not_utf_8_are_read() {
        let own = fs::read_to_string("/proc/self/maps").unwrap();
        let library = own.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.contains("/libgcc_s.so").then_some(path)
        });
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(OsStr::from_bytes(b"lib\xff.so"));
        fs::copy(library.unwrap(), &copy).unwrap();
        let mut waiting = Command::new("sleep")
            .arg("300")
            .env("LD_PRELOAD", &copy)
            .process_group(0)
            .spawn()
            .unwrap();
        wait_for(|| {
            let found = maps(waiting.id(), 8);
            let mut texts = found.iter().map(|(_, text)| text);
            texts
                .any(|text| text.contains("/lib\u{fffd}.so"))
                .then_some(())
        });
        end(&mut waiting);
    }

    #[test]
    fn a_stopped_process_is_seen() {
        let mut one = script("exec sleep 300");
        let is_stopped = || Some(read(&family(one.id()), false)?.is_stopped);
        assert!(!wait_for(is_stopped));
        let group = rustix::process::Pid::from_child(&one);
        rustix::process::kill_process_group(group, rustix::process::Signal::STOP).unwrap();
        wait_for(|| is_stopped().filter(|stopped| *stopped));
        end(&mut one);
    }

    #[test]
    fn the_memory_of_workers_is_summed() {
        const EACH: u64 = 40_000_000;
        let one = format!("dd if=/dev/zero of=/dev/null bs={EACH} & ");
        let mut wrapper = script(&format!("{}wait", one.repeat(4)));
        let found = wait_for(|| {
            let used = read(&family(wrapper.id()), true)?;
            used.resident_bytes.filter(|bytes| *bytes >= 4 * EACH)
        });
        let unread = read(&family(wrapper.id()), false).unwrap();
        end(&mut wrapper);
        assert!(found < 4 * EACH + (4 * EACH) / 20, "{found}");
        // The most of one process is known without a look at the pages of all.
        assert!(
            unread.resident_bytes.is_none()
                && (EACH..2 * EACH).contains(&unread.peak_resident_bytes),
            "{unread:?}"
        );
    }

    /// As workers that Python forks do.
    #[test]
    fn pages_that_workers_share_with_their_parent_count_once() {
        const SHARED: u64 = 20_000_000;
        let text = format!(
            "x=$(head -c {SHARED} /dev/zero | tr '\\0' x); for i in 1 2 3 4; do (sleep 300; :) & done; wait"
        );
        let mut wrapper = script(&text);
        let (found, sum) = wait_for(|| {
            let family = family(wrapper.id());
            let used: Vec<u64> = family
                .iter()
                .filter_map(|pid| Some(process::read(*pid)?.resident_bytes))
                .collect();
            // A process that is forked and not yet `sleep` shares these pages too, and its share would
            // be missing.
            let has_begun =
                used.len() == 9 && used.iter().filter(|bytes| **bytes >= SHARED).count() == 5;
            has_begun.then(|| {
                (
                    read(&family, true).and_then(|used| used.resident_bytes),
                    used.iter().sum::<u64>(),
                )
            })
        });
        end(&mut wrapper);
        assert!(
            sum >= 5 * SHARED && found.is_some_and(|found| (SHARED..4 * SHARED).contains(&found)),
            "{found:?} {sum}"
        );
    }

    /// A root holds 100 pages, its child 50 of them; in each round one child ends and the next begins,
    /// after the root was read.
    #[test]
    fn shares_are_read_again_while_processes_come_and_go() {
        let sum_with = |changes: u32, sums: [u64; 3]| {
            let round = Cell::new(0_u32);
            let list = || {
                round.set(round.get() + 1);
                vec![1, 2 + round.get().min(changes)]
            };
            let share = |pid: u32| match pid {
                1 => sums[round.get() as usize] - 50,
                _ => 50,
            };
            let held = |pid: u32| if pid == 1 { 100 } else { 50 };
            (least_sum(vec![1, 2], list, share, held), round.get())
        };
        assert_eq!(sum_with(0, [100, 900, 900]), (100, 1));
        assert_eq!(sum_with(1, [150, 100, 900]), (100, 2));
        // Only the second round has no change in it.
        assert_eq!(sum_with(1, [90, 100, 900]), (100, 2));
        assert_eq!(sum_with(9, [150, 110, 140]), (110, 3));
        // In each round a child that is not in the list shares the root's pages.
        assert_eq!(sum_with(9, [70, 60, 80]), (100, 3));
    }

    /// A child ends after its parent was read, and its parent then has its time.
    #[test]
    fn the_time_of_a_child_that_ends_meanwhile_is_not_lost() {
        let asked = Cell::new(0);
        let seconds = whole_sum(vec![1, 2], |pid| {
            asked.set(asked.get() + 1);
            match (pid, asked.get()) {
                (1, 1) => Some(1.0),
                (1, _) => Some(9.0),
                _ => None,
            }
        });
        assert_eq!((seconds, asked.get()), (9.0, 3));
    }

    /// As the workers of a loader that is made anew each epoch.
    #[test]
    fn children_that_live_shortly_do_not_double_the_memory() {
        const SHARED: u64 = 20_000_000;
        const READINGS: usize = 1000;
        let text = format!(
            "x=$(head -c {SHARED} /dev/zero | tr '\\0' x); while :; do (i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done) & wait; done"
        );
        let mut wrapper = script(&text);
        let holds = || process::read(wrapper.id()).filter(|used| used.resident_bytes >= SHARED);
        wait_for(|| holds().filter(|_| family(wrapper.id()).len() > 1));
        let list = || family(wrapper.id());
        let reading = |_| super::read(&list(), true, list)?.resident_bytes;
        let read: Vec<u64> = (0..READINGS).filter_map(reading).collect();
        let own = holds().map(|used| used.peak_resident_bytes);
        end(&mut wrapper);
        let own = own.unwrap();
        let high = read.iter().filter(|bytes| **bytes > own + own / 4).count();
        // Where this test is held up in all rounds of a reading, the sum may be high.
        assert!(
            read.len() == READINGS && high <= 2,
            "{high} of {} above {own}: at most {:?}",
            read.len(),
            read.iter().max()
        );
    }

    #[test]
    fn one_process_is_read_as_it_is() {
        let own = std::process::id();
        let mut sleeper = Command::new("sleep").arg("300").spawn().unwrap();
        // While it starts, its memory grows between two readings.
        wait_for(|| {
            let tree = read(&[sleeper.id()], false)?;
            let alone = process::read(sleeper.id())?;
            assert_eq!(tree.pages_seconds, None);
            let is_same = tree.resident_bytes == Some(alone.resident_bytes)
                && tree.peak_resident_bytes == alone.peak_resident_bytes
                && tree.disk_read_bytes == alone.disk_read_bytes;
            is_same.then_some(())
        });
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(read(&[sleeper.id()], true), None);
        assert!(family(own).contains(&own));
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
        let alone = process::times_of(wrapper.id()).map(|times| times.own);
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
