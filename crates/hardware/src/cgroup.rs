//! Limits that control groups (version 1 and 2) put on this process: CPU time and memory.
//!
//! The tightest limit on the way from the process's own group up to the mounted root counts.
//! Everything is read below a root folder that is passed in, so that tests need no container.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Limits of the control groups; `None` where they set no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// Cores' worth of CPU time per second.
    pub(super) cpu_cores: Option<f64>,
    pub(super) memory_bytes: Option<u64>,
    /// 1, 2, or `None` where no group file system is mounted.
    pub(super) version: Option<u8>,
}

/// Reads the limits of this process; `root` is `/` outside tests.
pub(super) fn limits(root: &Path) -> Limits {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut found = Limits::default();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(group) = group_of(&groups, &mount) else {
            continue;
        };
        found.version = found.version.max(Some(mount.version()));
        for folder in folders(root, &mount, group) {
            found.cpu_cores = tighter(found.cpu_cores, cpu_cores(&folder));
            found.memory_bytes = tighter(found.memory_bytes, memory_bytes(&folder));
        }
    }
    found
}

/// A control group that may count the memory of a process.
pub(super) struct MemoryGroup {
    pub(super) folder: PathBuf,
    /// 1 or 2.
    pub(super) version: u8,
}

/// The groups of a process that may count its memory: for each mounted file system the process's
/// own group and those above it. `process` is its name in `/proc`: `self` or an id.
pub(super) fn memory_groups(root: &Path, process: &str) -> Vec<Vec<MemoryGroup>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (
        read(&format!("proc/{process}/cgroup")),
        read("proc/self/mountinfo"),
    );
    let chain = |mount: Mount| {
        let version = mount.version();
        let group = group_of(&groups, &mount).filter(|_| mount.may_count_memory())?;
        let folders = folders(root, &mount, group).into_iter();
        let groups = folders.map(|folder| MemoryGroup { folder, version });
        Some(groups.collect())
    };
    mounts
        .lines()
        .filter_map(Mount::parse)
        .filter_map(chain)
        .collect()
}

/// One mounted group file system. Version 2 has no controllers in its options.
struct Mount {
    /// The group that the mount point shows.
    shown: String,
    point: PathBuf,
    /// `None` for version 2.
    controllers: Option<Vec<String>>,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`:
    /// `id parent device root point options - type source super-options`.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (shown, point) = (left.next()?.to_owned(), PathBuf::from(left.next()?));
        let mut right = right.split(' ');
        let controllers = match right.next()? {
            "cgroup2" => None,
            "cgroup" => Some(right.nth(1)?.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self {
            shown,
            point,
            controllers,
        })
    }

    fn version(&self) -> u8 {
        if self.controllers.is_some() { 1 } else { 2 }
    }

    /// In version 2 the files of a group say whether it does.
    fn may_count_memory(&self) -> bool {
        self.controllers
            .as_ref()
            .is_none_or(|names| names.iter().any(|name| name == "memory"))
    }
}

/// The process's group in this hierarchy: lines of `/proc/self/cgroup` are `id:controllers:path`,
/// version 2 has none.
fn group_of<'a>(groups: &'a str, mount: &Mount) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = match &mount.controllers {
            None => names.is_empty(),
            Some(controllers) => {
                !names.is_empty()
                    && names
                        .split(',')
                        .all(|name| controllers.iter().any(|c| c == name))
            }
        };
        fits.then_some(path)
    })
}

/// The group's folder and those above it, as far as they are mounted here.
fn folders(root: &Path, mount: &Mount, group: &str) -> Vec<PathBuf> {
    let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    let below = Path::new(group)
        .strip_prefix(&mount.shown)
        .unwrap_or(Path::new(""));
    let below = below.strip_prefix("/").unwrap_or(below);
    below
        .ancestors()
        .map(|part| point.join(part))
        .filter(|folder| folder.is_dir())
        .collect()
}

fn number(folder: &Path, file: &str) -> Option<f64> {
    fs::read_to_string(folder.join(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn cpu_cores(folder: &Path) -> Option<f64> {
    if let Ok(text) = fs::read_to_string(folder.join("cpu.max")) {
        let (quota, period) = text.trim().split_once(' ')?;
        return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
    }
    let quota = number(folder, "cpu.cfs_quota_us")?;
    let period = number(folder, "cpu.cfs_period_us")?;
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn memory_bytes(folder: &Path) -> Option<u64> {
    // Version 1 writes "no limit" as the largest multiple of a page below 2^63.
    const NO_LIMIT: u64 = 1 << 60;
    let limit = ["memory.max", "memory.limit_in_bytes"]
        .iter()
        .find_map(|file| number(folder, file))?;
    (limit < NO_LIMIT as f64).then_some(limit as u64)
}

fn tighter<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if other < one { other } else { one }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A folder with these files, by path and text.
    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts_in_version_2() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/batch.slice/job7\n"),
            (
                "proc/self/mountinfo",
                "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/batch.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/batch.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/batch.slice/job7/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/batch.slice/job7/memory.max", "8589934592\n"),
        ]);
        assert_eq!(
            limits(root.path()),
            Limits {
                cpu_cores: Some(1.5),
                memory_bytes: Some(8 << 30),
                version: Some(2)
            }
        );
    }

    #[test]
    fn version_1_controllers_are_read_from_their_own_mounts() {
        let root = tree(&[
            (
                "proc/self/cgroup",
                "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            ),
            (
                "proc/self/mountinfo",
                "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup \
                 rw,cpu,cpuacct\n\
                 35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(
            limits(root.path()),
            Limits {
                cpu_cores: Some(2.0),
                memory_bytes: None,
                version: Some(1)
            }
        );
    }

    #[test]
    fn without_groups_there_is_no_limit() {
        assert_eq!(limits(tree(&[]).path()), Limits::default());
    }
}
