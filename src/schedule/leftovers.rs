//! Cleans up after launches that were killed: their processes, the drafts of their files, and rows
//! for attempts that have none.

use std::{
    collections::{HashMap, HashSet},
    io, iter,
    path::Path,
};

use kiln_core::{
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptEnd, AttemptFile, Checkpoints, RunFile, RunFolder, TableRow, TrialResult,
        TrialTable,
        attempt::{ResultError, result_patiently, sweep_attempts},
        checkpoint::aside,
        note::LossRose,
        run_file::Launch,
        trial_reason,
    },
};
use kiln_hardware::host::usable_cores;

use super::{
    RunRequest, RunStop,
    attempt::{self, loss_rose},
    disk::{cannot_read, cannot_write},
    existing_run::ExistingRun,
    instruments::{AttemptReadings, Instruments, LeasedGpu},
    machine,
    open::OpenRun,
    process_record,
    row::{self, AttemptFacts, LostAttempt},
    stray,
};
use crate::readings::{Paths, Privacy};

/// The name under which a row has the note below.
const ADOPTED: &str = "adopted";
const WHAT_IS_MISSING: &str = "kiln was killed before it wrote this row, so the next launch made it \
                               from the trial's `trial.json`: what kiln itself measures (times, \
                               memory, power) is missing";

/// Refuses a run on which another launch works now: its lock was removed, or copied away.
///
/// # Errors
/// If there is one, or it cannot be told now.
pub(super) fn refuse_living(found: &ExistingRun, request: &RunRequest) -> Result<(), RunStop> {
    let ExistingRun::Old(old) = found else {
        return Ok(());
    };
    let folder = old.folder.path();
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let launcher = process_record::launcher_in(request.locks, &real);
    match launcher.map_err(|error| cannot_read(&error))? {
        None => Ok(()),
        Some(pid) => Err(RunStop::CannotRun(format!(
            "{}: process {pid} works on this run, although the lock of its experiment is free \
             (`.kiln-lock` was removed?); wait for its end, or stop it with `kill {pid}`",
            folder.display()
        ))),
    }
}

/// Ends the processes that a killed parent left running, removes drafts, and writes a row for each
/// attempt without a row: from its result if it left one, else `killed`.
///
/// # Errors
/// If a row cannot be written, or what an attempt left cannot be read now: it may have completed.
pub(super) fn adopt(
    open: &mut OpenRun,
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<(), RunStop> {
    let strays = stray::end_strays(open.folder.path());
    if strays > 0 {
        open.notices.push(ended_strays(strays));
    }
    let paths = Paths::here(Privacy::of(request.experiment));
    let devices = instruments.devices();
    let unrecorded = unrecorded(open, request.trials).map_err(|error| cannot_read(&error))?;
    if unrecorded.is_empty() {
        return Ok(());
    }
    let rows = TrialTable::read_of(&open.folder).map_or(Vec::new(), |table| table.rows);
    for of in &unrecorded {
        let folder = open.folder.attempt(&of.trial.id, of.attempt);
        let mut row = match of.result(&folder).map_err(|error| cannot_read(&error))? {
            Some(result) => {
                let concurrent = concurrent(of, &unrecorded, &rows);
                of_result(open, (request, instruments), of, &result, concurrent)
            }
            None => killed(open, of, &devices),
        };
        row::hide_paths(&mut row.fixed, &paths);
        let changes = open
            .store
            .keep(&row)
            .map_err(io::Error::from)
            .map_err(cannot_write(request))?;
        open.notices.extend(changes.iter().map(ToString::to_string));
        open.notices.push(notice(of, row.fixed.outcome));
        if row.fixed.outcome.is_final()
            && let Err(error) =
                attempt::settle_checkpoints(&open.folder, of.trial, row.fixed.outcome)
        {
            open.notices.push(format!(
                "trial {}: its checkpoints could not be deleted: {error}",
                of.trial.id
            ));
        }
    }
    Ok(())
}

/// How many trials of its launch ran at a time: those without a row ran when kiln ended, and others
/// may have ended before.
fn concurrent(of: &Unrecorded<'_>, unrecorded: &[Unrecorded<'_>], rows: &[TableRow]) -> u64 {
    let beside = unrecorded.iter().filter(|other| other.launch == of.launch);
    let rows = rows.iter().map(|row| &row.fixed);
    let rows = rows.filter(|row| row.launch == of.launch);
    let known = rows.map(|row| row.concurrent_trials).max();
    known.unwrap_or(0).max(beside.count() as u64)
}

/// The notice about a row that another launch should have written.
fn notice(of: &Unrecorded<'_>, outcome: Outcome) -> String {
    let by = match outcome.is_final() {
        true => ", as its `trial.json` says",
        false => "",
    };
    format!(
        "trial {} attempt {} had no row because its parent was killed; its outcome is \
         `{outcome}`{by}",
        of.trial.id, of.attempt
    )
}

/// An attempt without a row.
struct Unrecorded<'t> {
    trial: &'t Trial,
    attempt: u64,
    /// `None` if its file is missing or torn.
    started: Option<AttemptFile>,
    launch: u64,
}

impl Unrecorded<'_> {
    /// The result that its program left, if the trial was over. A failure does not count: the program
    /// may have failed because kiln had ended and nobody read its output.
    ///
    /// # Errors
    /// The system cannot read it now.
    fn result(&self, folder: &Path) -> io::Result<Option<TrialResult>> {
        if self.started.is_none() {
            return Ok(None);
        }
        let result = match result_patiently(folder) {
            Ok(result) => result,
            Err(ResultError::Unread(why)) => return Err(io::Error::other(why)),
            Err(ResultError::Unreadable(_) | ResultError::Version { .. }) => return Ok(None),
        };
        let is_its = result.trial == self.trial.id && result.attempt == self.attempt;
        Ok((is_its && result.outcome.is_end_of_training()).then_some(result))
    }
}

/// The attempts that have a folder and no row; removes drafts.
///
/// # Errors
/// A folder cannot be listed, or the file of an attempt's start cannot be read now.
fn unrecorded<'t>(open: &OpenRun, trials: &'t [Trial]) -> io::Result<Vec<Unrecorded<'t>>> {
    let known: HashSet<(TrialId, u64)> = open
        .store
        .ends()
        .iter()
        .map(|end| (end.trial.clone(), end.attempt))
        .collect();
    let mut found = Vec::new();
    for (trial, attempts) in sweep_drafts(&open.folder, trials, open.store.ends())? {
        for attempt in attempts {
            if known.contains(&(trial.id.clone(), attempt)) {
                continue;
            }
            let started = AttemptFile::read(&open.folder.attempt(&trial.id, attempt))?;
            let launch = started
                .as_ref()
                .map_or(open.launch.saturating_sub(1), |started| started.launch);
            found.push(Unrecorded {
                trial,
                attempt,
                started,
                launch,
            });
        }
    }
    Ok(found)
}

/// Removes the drafts of files that a killed launch left, and the checkpoints that a completed rerun
/// replaced; returns the attempts of each trial. `ends` are those of the rows; a file that cannot be
/// removed stays.
///
/// # Errors
/// The attempts of a trial cannot be listed.
pub(super) fn sweep_drafts<'a>(
    folder: &RunFolder,
    trials: &'a [Trial],
    ends: &[AttemptEnd],
) -> io::Result<Vec<(&'a Trial, Vec<u64>)>> {
    let _ = folder.remove_drafts(folder.path());
    let completed = ends.iter().filter(|end| end.outcome == Outcome::Completed);
    // The last of each trial counts.
    let completed: HashMap<&TrialId, u64> =
        completed.map(|end| (&end.trial, end.attempt)).collect();
    let sweep = |trial: &'a Trial| {
        if trial.train.checkpoint.is_some() {
            let _ = Checkpoints::new(folder.checkpoints(&trial.id), trial.id.clone()).sweep();
            if let Some(attempt) = completed.get(&trial.id) {
                let _ = aside::delete_before(folder, &trial.id, *attempt);
            }
        }
        sweep_attempts(folder, &trial.id).map(|attempts| (trial, attempts))
    };
    trials.iter().map(sweep).collect()
}

/// The notice about processes that killed launches left.
pub(super) fn ended_strays(count: usize) -> String {
    format!("ended leftover processes of an earlier launch: {count}")
}

/// The row of an attempt from the result that its program left. `concurrent` attempts of its launch ran
/// at a time, as far as its rows tell.
fn of_result(
    open: &OpenRun,
    (request, instruments): (&RunRequest, &Instruments),
    of: &Unrecorded<'_>,
    result: &TrialResult,
    concurrent: u64,
) -> TableRow {
    let trial = of.trial;
    let started = of.started.as_ref();
    let launch = recorded(&open.file, of.launch);
    let used = row::used_gpus(started, &instruments.devices());
    let is_on_cpu = row::is_on_cpu(started);
    let is_device_known = is_on_cpu || !used.is_empty();
    let peak = || instruments.peak_flops(&used, trial, result.libtorch());
    let folder = open.folder.attempt(&trial.id, of.attempt);
    let rose = loss_rose(&folder, of.attempt, result)
        .map(|rose| (LossRose::COLUMN.to_owned(), rose.to_string()));
    // A retry did not run together with the other trials of its block.
    let is_in_place = of.attempt == 1;
    let end = (result.outcome, String::new());
    row::row(&AttemptFacts {
        attempt: of.attempt,
        reason: result.reason.clone(),
        started_utc: started.map(|started| started.started_utc.clone()),
        result: Some(result),
        devices: &used,
        cpu_name: launch.and_then(machine::cpu_model).filter(|_| is_on_cpu),
        processor: launch.and_then(machine::processor),
        host_id: launch.and_then(|launch| launch.host_id.as_deref()),
        block: (request.has_blocks() && is_in_place).then_some(trial.block),
        round: (request.has_rounds() && is_in_place).then_some(trial.repeat + 1),
        driver: launch.and_then(|launch| launch.driver.as_deref()),
        peak: is_device_known.then(peak).flatten(),
        concurrent_trials: concurrent,
        resumed_at_step: started.and_then(|started| started.resumed_at_step),
        notes: iter::once((ADOPTED.to_owned(), WHAT_IS_MISSING.to_owned()))
            .chain(rose)
            .collect(),
        ..AttemptFacts::of_end(
            trial,
            of.launch,
            end,
            &AttemptReadings::default(),
            usable_cores(),
        )
    })
}

fn killed(open: &OpenRun, of: &Unrecorded<'_>, devices: &[LeasedGpu]) -> TableRow {
    let Unrecorded { trial, launch, .. } = of;
    let what = format!("was running when `kiln run` itself ended (launch {launch})");
    let reason = trial_reason::of_trial(&trial.id, &what);
    let lost = LostAttempt {
        attempt: of.attempt,
        started: of.started.as_ref(),
        devices,
        cpu_name: recorded(&open.file, *launch).and_then(machine::cpu_model),
        note: None,
        cores: usable_cores(),
    };
    row::of_lost(trial, *launch, (Outcome::Killed, reason), &lost)
}

/// The record of a launch.
fn recorded(file: &RunFile, launch: u64) -> Option<&Launch> {
    file.launches.iter().find(|known| known.launch == launch)
}
