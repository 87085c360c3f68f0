//! Load of the machine's disks, from the kernel's own counters.

use std::{collections::BTreeMap, fs, path::Path};

/// Milliseconds that each whole disk has been busy since boot, by name.
pub(super) type BusyTimes = BTreeMap<String, u64>;

/// Devices that are not disks: files mounted as disks, memory.
const NO_DISKS: [&str; 4] = ["loop", "ram", "zram", "fd"];

/// Reads all whole disks; `root` is `/` outside tests. `None` where the kernel shows none (some
/// containers).
pub(super) fn busy_times(root: &Path) -> Option<BusyTimes> {
    let text = fs::read_to_string(root.join("proc/diskstats")).ok()?;
    let times: BusyTimes = text
        .lines()
        .filter_map(|line| busy_time(line, root))
        .collect();
    (!times.is_empty()).then_some(times)
}

/// A line `major minor name` and counters, of which the tenth is the time with any request under
/// way, in milliseconds.
fn busy_time(line: &str, root: &Path) -> Option<(String, u64)> {
    let mut fields = line.split_whitespace().skip(2);
    let name = fields.next()?;
    let is_part = !root.join("sys/block").join(name).exists();
    if is_part
        || NO_DISKS.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        })
    {
        return None;
    }
    Some((name.to_owned(), fields.nth(9)?.parse().ok()?))
}

/// Share of `seconds` that the busiest disk was busy, as a fraction of 1.
pub(super) fn busiest(before: &BusyTimes, now: &BusyTimes, seconds: f64) -> Option<f64> {
    // The counter has steps of a millisecond (some kernels: 4); over a shorter time the quotient
    // says nothing.
    if seconds < 0.1 {
        return None;
    }
    let busy = |(name, now): (&String, &u64)| {
        Some(now.checked_sub(*before.get(name)?)? as f64 / 1e3 / seconds)
    };
    now.iter()
        .filter_map(busy)
        .reduce(f64::max)
        .map(|share| share.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_memory_are_no_disks_and_the_busiest_counts() {
        let root = tempfile::tempdir().unwrap();
        for name in ["sda", "nvme0n1", "loop0", "zram0"] {
            fs::create_dir_all(root.path().join("sys/block").join(name)).unwrap();
        }
        fs::create_dir(root.path().join("proc")).unwrap();
        let line =
            |name: &str, busy: u64| format!(" 8 0 {name} 1 2 3 4 5 6 7 8 0 {busy} 11 0 0 0 0\n");
        let text: String = [
            ("sda", 100),
            ("sda1", 90),
            ("nvme0n1", 1000),
            ("loop0", 7),
            ("zram0", 7),
        ]
        .map(|(name, busy)| line(name, busy))
        .concat();
        fs::write(root.path().join("proc/diskstats"), text).unwrap();
        let before = busy_times(root.path()).unwrap();
        assert_eq!(
            before,
            BTreeMap::from([("sda".to_owned(), 100), ("nvme0n1".to_owned(), 1000)])
        );
        let now = BTreeMap::from([
            ("sda".to_owned(), 1100),
            ("nvme0n1".to_owned(), 1500),
            ("new".to_owned(), 9),
        ]);
        assert_eq!(busiest(&before, &now, 2.0), Some(0.5));
        assert_eq!(busiest(&before, &now, 0.5), Some(1.0));
        assert_eq!(
            (
                busiest(&before, &now, 0.01),
                busiest(&BusyTimes::new(), &now, 2.0)
            ),
            (None, None)
        );
        assert_eq!(busy_times(Path::new("/nowhere")), None);
    }
}
