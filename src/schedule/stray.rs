//! Finds processes that outlived their trial by the environment variable of every child, and ends
//! them.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that marks a trial's processes; its value is the attempt's folder.
pub(super) const MARK: &str = "KILN_ATTEMPT";

/// Ends every process that was started for an attempt at or under `folder`; returns how many there
/// were.
///
/// Only processes that kiln started match: the mark with this folder is in their environment.
pub(super) fn end_strays(folder: &Path) -> usize {
    let mark = format!("{MARK}={}", folder.display());
    let own = std::process::id();
    let strays = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            (pid != own && is_marked(&entry.path(), &mark)).then_some(pid)
        });
    strays.filter(|pid| end(*pid)).count()
}

fn is_marked(process: &Path, mark: &str) -> bool {
    let Ok(environment) = fs::read(process.join("environ")) else {
        return false;
    };
    environment.split(|byte| *byte == 0).any(|variable| {
        variable
            .strip_prefix(mark.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    })
}

fn end(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn a_marked_process_is_ended_and_its_neighbour_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let sleep = |name: &str| {
            Command::new("sleep")
                .arg("60")
                .env(MARK, folder.path().join(name))
                .spawn()
                .unwrap()
        };
        let (mut ours, mut other) = (sleep("run/trials/a/1"), sleep("run2/trials/a/1"));
        while fs::read(format!("/proc/{}/cmdline", other.id()))
            .unwrap()
            .first()
            != Some(&b's')
        {}
        assert_eq!(end_strays(&folder.path().join("run")), 1);
        assert_eq!(ours.wait().unwrap().signal(), Some(9));
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
