//! Cleans up after launches that were killed: their processes, the drafts of their files, and rows
//! for attempts that have none.

use std::{collections::HashSet, io};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{AttemptFile, Checkpoints, RunFile, RunFolder, TableRow, attempt::sweep_attempts},
};

use super::{
    RunRequest, RunStop,
    disk::cannot_write,
    existing_run::ExistingRun,
    instruments::{Instruments, LeasedGpu},
    machine,
    open::OpenRun,
    process_record,
    row::{self, LostAttempt},
    stray,
};
use kiln_hardware::host::usable_cores;

/// Refuses a run on which another launch works now: its lock was removed, or copied away.
///
/// # Errors
/// If there is one.
pub(super) fn refuse_living(found: &ExistingRun, request: &RunRequest) -> Result<(), RunStop> {
    let ExistingRun::Old(old) = found else {
        return Ok(());
    };
    let folder = old.folder.path();
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match process_record::launcher_in(request.locks, &real) {
        None => Ok(()),
        Some(pid) => Err(RunStop::CannotRun(format!(
            "{}: process {pid} works on this run, although the lock of its experiment is free \
             (`.kiln-lock` was removed?); wait for its end, or stop it with `kill {pid}`",
            folder.display()
        ))),
    }
}

/// Ends the processes that a killed parent left running, removes drafts, and writes a `killed` row
/// for each attempt without a row.
///
/// # Errors
/// If a row cannot be written.
pub(super) fn adopt(
    open: &mut OpenRun,
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<(), RunStop> {
    let strays = stray::end_strays(open.folder.path());
    if strays > 0 {
        open.notices.push(ended_strays(strays));
    }
    let known: HashSet<(TrialId, u64)> = open
        .store
        .ends()
        .iter()
        .map(|end| (end.trial.clone(), end.attempt))
        .collect();
    let devices = instruments.devices();
    for (trial, attempts) in sweep_drafts(&open.folder, request.trials) {
        for attempt in attempts {
            if !known.contains(&(trial.id.clone(), attempt)) {
                let row = killed(open, trial, attempt, &devices);
                let changes = open
                    .store
                    .keep(&row)
                    .map_err(io::Error::from)
                    .map_err(cannot_write(request))?;
                open.notices.extend(changes.iter().map(ToString::to_string));
                open.notices.push(format!(
                    "trial {} attempt {attempt} had no row because its parent was killed; its \
                     outcome is `killed`",
                    trial.id
                ));
            }
        }
    }
    Ok(())
}

/// Removes the drafts of files that a killed launch left, and returns the attempts of each trial; an
/// error leaves drafts.
pub(super) fn sweep_drafts<'a>(
    folder: &RunFolder,
    trials: &'a [Trial],
) -> Vec<(&'a Trial, Vec<u64>)> {
    let _ = folder.remove_drafts(folder.path());
    let sweep = |trial: &'a Trial| {
        if trial.train.checkpoint.is_some() {
            let _ = Checkpoints::new(folder.checkpoints(&trial.id), trial.id.clone()).sweep();
        }
        (trial, sweep_attempts(folder, &trial.id))
    };
    trials.iter().map(sweep).collect()
}

/// The notice about processes that killed launches left.
pub(super) fn ended_strays(count: usize) -> String {
    format!("ended leftover processes of an earlier launch: {count}")
}

fn killed(open: &OpenRun, trial: &Trial, attempt: u64, devices: &[LeasedGpu]) -> TableRow {
    let started = AttemptFile::read(&open.folder.attempt(&trial.id, attempt));
    let launch = started
        .as_ref()
        .map_or(open.launch.saturating_sub(1), |started| started.launch);
    let reason = format!(
        "trial {} was running when `kiln run` itself ended (launch {launch})",
        trial.id
    );
    let lost = LostAttempt {
        attempt,
        started: started.as_ref(),
        devices,
        cpu_name: recorded_cpu(&open.file, launch),
        note: None,
        cores: usable_cores(),
    };
    row::of_lost(trial, launch, (Outcome::Killed, reason), &lost)
}

/// The model of the processor that a launch recorded.
fn recorded_cpu(file: &RunFile, launch: u64) -> Option<&str> {
    file.launches
        .iter()
        .find(|known| known.launch == launch)
        .and_then(machine::cpu_model)
}
