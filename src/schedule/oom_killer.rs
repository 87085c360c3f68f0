//! Counts the kills of the kernel's out-of-memory killer in kiln's own control group.

use std::{fs, path::PathBuf};

/// Number of kills so far; `None` if the kernel does not report it.
pub(super) fn kills() -> Option<u64> {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = group
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let root = PathBuf::from("/sys/fs/cgroup");
    let unified = [
        root.join(own).join("memory.events"),
        root.join("memory.events"),
    ];
    let old = root.join("memory/memory.oom_control");
    let found = unified
        .iter()
        .chain([&old])
        .find_map(|path| count(&fs::read_to_string(path).ok()?));
    found.or_else(|| count(&fs::read_to_string("/proc/vmstat").ok()?))
}

/// The figure on the line `oom_kill N`.
fn count(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_each_kernels_text() {
        assert_eq!(
            count("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n"),
            Some(1)
        );
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
            Some(4)
        );
        assert_eq!(count("oom_kill_disable 0\n"), None);
    }
}
