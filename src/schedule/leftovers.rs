//! Cleans up after launches that were killed: their processes, the drafts of their files, and rows
//! for attempts that have none.

use std::{collections::HashSet, io};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, Checkpoints, RunFile, RunFolder, TableRow,
        attempt::{listed_attempts, sweep_attempts},
    },
};

use super::{
    RunRequest, RunStop,
    disk::cannot_write,
    instruments::{Instruments, LeasedGpu},
    machine,
    open::OpenRun,
    remaining::History,
    row::{self, LostAttempt},
    stray,
};
use kiln_hardware::host::usable_cores;

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

/// Counts the attempts of a settled trial that came after its last row as killed: where a trial with a
/// result was run again and that launch was killed, the rows alone would say that nothing is to do.
pub(super) fn add_lost(history: &mut History, folder: &RunFolder, plan: &[TrialId]) {
    for trial in plan {
        if !history.last(trial).is_some_and(Outcome::is_final) {
            continue;
        }
        let last = history.last_attempt(trial);
        let attempts = listed_attempts(folder, trial).unwrap_or_default();
        for attempt in attempts.into_iter().filter(|attempt| *attempt > last) {
            history.add(&AttemptEnd {
                trial: trial.clone(),
                attempt,
                outcome: Outcome::Killed,
                cut_off: None,
                device_uuid: None,
                memory_limit_bytes: None,
            });
        }
    }
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
