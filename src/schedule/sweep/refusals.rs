//! Checks that can refuse a launch.

use std::path::Path;

use kiln_core::{
    record::{
        Check, CheckState,
        command_line::results_option,
        lock::{Holder, Lock, is_without_locks, lock},
    },
    spec::{DeviceName, Devices, Engine},
    units::Seconds,
};

use super::LaunchState;
use crate::{
    preflight,
    schedule::{RunRequest, RunStop, clock, disk, existing_run, pools::Pools, provenance::advice},
};

/// # Errors
/// If the trial program does not exist or is not executable.
pub(in crate::schedule) fn without_program(program: &Path) -> Result<(), RunStop> {
    if program.is_file() {
        return match rustix::fs::access(program, rustix::fs::Access::EXEC_OK) {
            Ok(()) => Ok(()),
            Err(error) => Err(RunStop::CannotRun(format!(
                "{}: the trial program is not executable ({error}); run `chmod +x` on it, or name \
                 another in `KILN_TRIAL`",
                program.display()
            ))),
        };
    }
    if program.exists() {
        return Err(RunStop::CannotRun(format!(
            "{}: this is not a program, but a folder, a FIFO or another special file; name the trial \
             program in `KILN_TRIAL`, or put it there",
            program.display()
        )));
    }
    Err(RunStop::CannotRun(format!(
        "{}: the trial program does not exist; build it (`cargo build --release -p kiln-trial`) or \
         name it in `KILN_TRIAL`",
        program.display()
    )))
}

impl LaunchState<'_> {
    /// The reason to start no more trials because a program is another one than at the start of the
    /// launch.
    pub(super) fn changed_programs(&mut self) -> Option<RunStop> {
        let changes = self.open.programs.changed_since_read(self.open.launch);
        let each: Vec<String> = changes.iter().map(ToString::to_string).collect();
        (!each.is_empty()).then(|| {
            RunStop::CannotRun(format!(
                "{}; put it back to resume this run, or start a new one with `--fresh`{}",
                each.join("; "),
                advice(&changes)
            ))
        })
    }
}

/// # Errors
/// If another launch runs the experiment, or the file system has no locks.
pub(super) fn take_lock(request: &RunRequest) -> Result<Lock, RunStop> {
    take_lock_if_any(request)?.ok_or_else(|| {
        RunStop::CannotRun(format!(
            "{}: this file system has no locks (`flock`), which keep two launches of one experiment \
             apart; name another folder by `--results`, or use `--on workers`, which needs none",
            request.results.join(&request.experiment.name).display()
        ))
    })
}

/// The same where workers need no lock; `None` if the file system has none.
///
/// # Errors
/// If another launch runs the experiment.
pub(in crate::schedule) fn take_lock_if_any(request: &RunRequest) -> Result<Option<Lock>, RunStop> {
    existing_run::refuse_unwritable_path(request.results)?;
    let name = &request.experiment.name;
    match lock(request.results, name, std::process::id(), &clock::utc_now()) {
        Ok(Ok(lock)) => Ok(Some(lock)),
        Ok(Err(holder)) if !holder.is_launch() => Err(RunStop::CannotRun(format!(
            "runs of experiment `{name}` are being removed by {} (folder {}); wait for it",
            holder.0,
            request.results.join(name).display()
        ))),
        Ok(Err(holder)) => Err(RunStop::CannotRun(format!(
            "experiment `{name}` is being run by {}{} (folder {}); `kiln watch {name}{}` shows it; wait \
             for it, or stop it",
            holder.0,
            began_ago(&holder, jiff::Timestamp::now()).unwrap_or_default(),
            request.results.join(name).display(),
            results_option(request.results)
        ))),
        Err(error) if is_without_locks(&error) => Ok(None),
        Err(error) => Err(disk::cannot_begin(request)(error)),
    }
}

/// `, 25 min 3 s ago`: when the holder took the lock.
fn began_ago(holder: &Holder, now: jiff::Timestamp) -> Option<String> {
    let (_, since) = holder.0.rsplit_once(" since ")?;
    let since: jiff::Timestamp = since.parse().ok()?;
    let seconds = now.as_second() - since.as_second();
    (seconds >= 0).then(|| format!(", {} ago", Seconds(seconds as f64)))
}

/// Refuses a launch whose `CUDA_VISIBLE_DEVICES` names only GPUs that do not exist: the trials that
/// would use a GPU would run on the CPU without notice.
pub(super) fn mistaken_variable(
    request: &RunRequest,
    pools: &Pools,
    checks: &[Check],
) -> Result<(), RunStop> {
    let wants_a_gpu = pools.requests.iter().any(|(wanted, _)| {
        wanted.devices == Devices::Named(DeviceName::Auto) && wanted.engine != Engine::Flex
    });
    let mistake = checks.iter().find(|check| {
        check.name == preflight::VISIBLE_DEVICES_CHECK && check.state == CheckState::Problem
    });
    match mistake {
        Some(check)
            if wants_a_gpu && pools.uuids().is_empty() && request.visible_devices.is_some() =>
        {
            Err(RunStop::CannotRun(format!(
                "{}; `--device cpu` runs the trials on the CPU",
                preflight::notice(check)
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_lock_is_told() {
        let now = "2026-12-01T03:00:00Z".parse().unwrap();
        let told = |since: &str| began_ago(&Holder(format!("process 4 since {since}")), now);
        let ago = told("2026-12-01T02:34:57.5Z");
        assert_eq!(ago.as_deref(), Some(", 25 min 3 s ago"));
        assert_eq!(told("2026-12-01T03:00:09Z"), None);
        assert_eq!(told("never"), None);
    }
}
