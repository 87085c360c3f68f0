//! Kills by the kernel's out-of-memory killer, as the control groups of one process count them.
//!
//! A process comes in, and whether the killer struck in one of its groups goes out. The count of
//! the whole machine is used only where no group of the process can be read: on a shared machine it
//! counts the kills of others. Everything is read below a root folder that is passed in, so that
//! tests need no container.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::cgroup::{MemoryGroup, memory_groups};

/// Most groups of one process that are watched; a process rarely changes its group at all.
const MOST_GROUPS: usize = 16;

/// Counts of the groups that a process was in, from the start of the watch.
#[derive(Clone, Debug)]
pub struct OomKillWatch {
    root: PathBuf,
    /// In the order in which the process was seen in them.
    groups: Vec<WatchedGroup>,
    /// The machine's count at the start.
    machine: Option<u64>,
    /// The last answer of `/proc/<pid>/cgroup`.
    found: String,
}

#[derive(Clone, Debug)]
struct WatchedGroup {
    own: PathBuf,
    /// Nearest first. In version 2 the groups above count this group's kills too, so they answer
    /// where the group is removed before its count is read.
    counters: Vec<Counter>,
}

#[derive(Clone, Debug)]
struct Counter {
    file: PathBuf,
    before: u64,
}

impl OomKillWatch {
    /// Starts with the groups of this process, in which its children start; `root` is `/` outside
    /// tests.
    pub fn start(root: &Path) -> Self {
        let mut watch = Self {
            root: root.to_owned(),
            groups: Vec::new(),
            machine: machine(root),
            found: String::new(),
        };
        watch.add(memory_groups(root, "self"));
        watch
    }

    /// Looks in which groups the process is now; a trial's program may move to one of its own.
    /// Costs one file unless it has moved.
    pub fn follow(&mut self, pid: u32) {
        let found = fs::read_to_string(self.root.join(format!("proc/{pid}/cgroup")));
        if let Ok(found) = found
            && found != self.found
        {
            self.add(memory_groups(&self.root, &pid.to_string()));
            self.found = found;
        }
    }

    /// The chains are those of the file systems: one for each version that counts memory.
    fn add(&mut self, chains: Vec<Vec<MemoryGroup>>) {
        for chain in chains {
            let Some(own) = chain.first().map(|group| group.folder.clone()) else {
                continue;
            };
            let is_known = self.groups.iter().any(|group| group.own == own);
            let counters = counters(&chain);
            if !is_known && !counters.is_empty() && self.groups.len() < MOST_GROUPS {
                self.groups.push(WatchedGroup { own, counters });
            }
        }
    }

    /// Whether the killer struck since the start in a group of the process.
    pub fn struck(&self) -> bool {
        let answers: Vec<Option<bool>> = self.groups.iter().map(WatchedGroup::struck).collect();
        match answers.last() {
            _ if answers.contains(&Some(true)) => true,
            // The group in which the process ended can be read, and counts nothing.
            Some(Some(false)) => false,
            _ => machine(&self.root)
                .zip(self.machine)
                .is_some_and(|(now, before)| now > before),
        }
    }
}

impl WatchedGroup {
    /// `None` if no counter can be read any more.
    fn struck(&self) -> Option<bool> {
        self.counters
            .iter()
            .find_map(|counter| Some(read(&counter.file)? > counter.before))
    }
}

fn counters(chain: &[MemoryGroup]) -> Vec<Counter> {
    let counter = |group: &MemoryGroup| {
        let names: &[&str] = match group.version {
            1 => &["memory.oom_control", "memory.failcnt"],
            _ => &["memory.events"],
        };
        names.iter().find_map(|name| {
            let file = group.folder.join(name);
            let before = read(&file)?;
            Some(Counter { file, before })
        })
    };
    let nearest_first = chain.iter().filter_map(counter);
    match chain.first() {
        // In version 1 a group counts only its own kills.
        Some(group) if group.version == 1 => nearest_first.take(1).collect(),
        _ => nearest_first.collect(),
    }
}

fn read(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    match file.file_name()?.to_str()? {
        "memory.failcnt" => text.trim().parse().ok(),
        _ => oom_kill(&text),
    }
}

fn machine(root: &Path) -> Option<u64> {
    oom_kill(&fs::read_to_string(root.join("proc/vmstat")).ok()?)
}

/// The figure on the line `oom_kill N` of `memory.events` (version 2), `memory.oom_control`
/// (version 1, since Linux 4.13) and `/proc/vmstat`.
fn oom_kill(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{super::cgroup::tests::tree, *};

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_count_is_read_from_each_kernels_text() {
        let v2 = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(oom_kill(v2), Some(1));
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n";
        assert_eq!(oom_kill(v1), Some(4));
        let before_4_13 = "oom_kill_disable 0\nunder_oom 0\n";
        assert_eq!(oom_kill(before_4_13), None);
        let vmstat = "pgfault 1\noom_kill 7\nnuma_hit 3\n";
        assert_eq!(oom_kill(vmstat), Some(7));
    }

    #[test]
    fn a_kill_in_a_nested_group_of_version_1_is_seen_there_and_nowhere_else() {
        let control = |count: u64| format!("oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n");
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/batch/job7\n0::/batch/job7\n"),
            ("proc/self/mountinfo", HYBRID),
            ("proc/vmstat", "oom_kill 9\n"),
            ("sys/fs/cgroup/memory/memory.oom_control", &control(1)),
            (
                "sys/fs/cgroup/memory/batch/job7/memory.oom_control",
                &control(2),
            ),
            ("sys/fs/cgroup/unified/batch/job7/cgroup.procs", "1\n"),
        ]);
        let watch = OomKillWatch::start(root.path());
        assert!(!watch.struck());
        // Another group of the machine.
        write(
            root.path(),
            "sys/fs/cgroup/memory/memory.oom_control",
            &control(2),
        );
        write(root.path(), "proc/vmstat", "oom_kill 10\n");
        assert!(!watch.struck(), "the kill of another group is not ours");
        let own = "sys/fs/cgroup/memory/batch/job7/memory.oom_control";
        write(root.path(), own, &control(3));
        assert!(watch.struck());
    }

    #[test]
    fn version_2_is_read_from_the_nearest_group_that_counts_memory() {
        let events = |count: u64| format!("low 0\nhigh 0\nmax 3\noom 2\noom_kill {count}\n");
        let root = tree(&[
            ("proc/self/cgroup", "0::/user.slice/scope\n"),
            ("proc/self/mountinfo", V2),
            ("proc/vmstat", "oom_kill 9\n"),
            // The scope itself has no memory controller.
            ("sys/fs/cgroup/user.slice/scope/cgroup.procs", "1\n"),
            ("sys/fs/cgroup/user.slice/memory.events", &events(5)),
        ]);
        let watch = OomKillWatch::start(root.path());
        write(root.path(), "proc/vmstat", "oom_kill 10\n");
        assert!(!watch.struck());
        let nearest = "sys/fs/cgroup/user.slice/memory.events";
        write(root.path(), nearest, &events(6));
        assert!(watch.struck());
    }

    #[test]
    fn a_group_that_the_process_moved_to_is_followed_even_if_it_is_removed_with_the_process() {
        let events = |count: u64| format!("oom 2\noom_kill {count}\n");
        let root = tree(&[
            ("proc/self/cgroup", "0::/slice\n"),
            ("proc/self/mountinfo", V2),
            ("proc/41/cgroup", "0::/slice/run-41.scope\n"),
            ("sys/fs/cgroup/slice/memory.events", &events(1)),
            ("sys/fs/cgroup/slice/run-41.scope/memory.events", &events(0)),
        ]);
        let mut watch = OomKillWatch::start(root.path());
        watch.follow(41);
        let scope = root.path().join("sys/fs/cgroup/slice/run-41.scope");
        write(&scope, "memory.events", &events(1));
        assert!(watch.struck());
        fs::remove_dir_all(&scope).unwrap();
        assert!(!watch.struck(), "nothing above it has counted");
        write(root.path(), "sys/fs/cgroup/slice/memory.events", &events(2));
        assert!(watch.struck(), "a group of version 2 counts those below it");
    }

    #[test]
    fn an_old_kernel_counts_the_times_at_the_limit() {
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/job\n"),
            ("proc/self/mountinfo", V1),
            (
                "sys/fs/cgroup/memory/job/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.failcnt", "3\n"),
        ]);
        let watch = OomKillWatch::start(root.path());
        assert!(!watch.struck());
        let failures = "sys/fs/cgroup/memory/job/memory.failcnt";
        write(root.path(), failures, "4\n");
        assert!(watch.struck());
    }

    #[test]
    fn without_a_readable_group_the_machine_answers() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/cgroup.procs", "1\n"),
            ("proc/vmstat", "oom_kill 9\n"),
        ]);
        let watch = OomKillWatch::start(root.path());
        assert!(!watch.struck());
        write(root.path(), "proc/vmstat", "oom_kill 10\n");
        assert!(watch.struck());
    }
}
