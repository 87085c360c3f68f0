//! The resident memory of a process, from `/proc`.

/// The largest resident set a live process ever had; `None` once it has ended.
pub(super) fn peak_resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_peak_of_a_live_process_is_read() {
        assert!(peak_resident_bytes(std::process::id()).unwrap() > 100_000);
        assert_eq!(peak_resident_bytes(u32::MAX), None);
    }
}
