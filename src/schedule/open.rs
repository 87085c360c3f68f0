//! Finds the run to resume or creates a new one, and writes rows for attempts whose parent was
//! killed.

use std::{
    collections::{BTreeSet, HashSet},
    fs, io,
};

use kiln_core::{
    folder::is_full,
    input,
    limits::RESOLVED_BYTES,
    plan::{Outcome, Trial, TrialId},
    record::{
        AttemptFile, Check, Checkpoints, DEVICE_SEPARATOR, RunFile, RunFolder, TableError,
        TableRow, TrialStore, TrialTable,
        attempt::attempts,
        run_file::RUN_FILE,
        run_folder::{create, next_number, runs},
        tables::{EPOCHS, SAMPLES, SNAPSHOTS, STEPS, TRIALS},
    },
    spec::{self, Experiment, Identity},
};
use kiln_hardware::host::usable_cores;
use sha2::{Digest, Sha256};

use super::{
    RunRequest, RunStop, WantedTrials,
    changes::{KeyChange, changes, describe},
    clock,
    instruments::{AttemptReadings, Instruments, LeasedGpu},
    launch::{FactSources, gather, git},
    machine::{self, MachineIdentity},
    remaining::History,
    row::{AttemptFacts, row},
    stray,
};
use crate::{
    preflight::notice,
    readings::{Paths, Privacy},
};

/// The run to resume, or a new one.
pub(super) enum ExistingRun {
    New {
        /// The reason why a finished run of the same experiment is not used.
        notice: Option<String>,
    },
    Old(Box<Old>),
}

/// A run of this experiment that can be resumed.
pub(super) struct Old {
    pub(super) folder: RunFolder,
    pub(super) file: RunFile,
    pub(super) rows: Vec<TableRow>,
    pub(super) history: History,
    /// Changed keys that a resume accepts.
    pub(super) changed: Vec<KeyChange>,
}

/// The run of this launch.
pub(super) struct OpenRun {
    pub(super) folder: RunFolder,
    pub(super) launch: u64,
    pub(super) run_anchor_nanoseconds: i64,
    pub(super) file: RunFile,
    pub(super) store: TrialStore,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
}

impl OpenRun {
    /// Writes `run.json`, and `experiment.yaml` if somebody has removed it.
    pub(super) fn write_files(&self, request: &RunRequest) -> io::Result<()> {
        let experiment = self.folder.experiment();
        if experiment.symlink_metadata().is_err() {
            self.folder
                .write(&experiment, resolved(request).as_bytes())?;
        }
        self.file.write(&self.folder)
    }
}

/// Reads the newest run of the experiment; changes nothing. `here` is called only if the decision
/// depends on the machine.
///
/// # Errors
/// If the run is unfinished and the experiment has changed, or the run cannot be read.
pub(super) fn find(
    wanted: &WantedTrials,
    here: &dyn Fn() -> MachineIdentity,
) -> Result<ExistingRun, RunStop> {
    let newest = runs(wanted.results, &wanted.experiment.name).pop();
    let Some(folder) = newest.filter(|_| !wanted.fresh) else {
        return Ok(ExistingRun::New { notice: None });
    };
    let unreadable = |what: String| {
        RunStop::Refused(format!(
            "{what}; repair it, or start a new run with `--fresh`"
        ))
    };
    let file = RunFile::read(&folder.run_file()).map_err(unreadable)?;
    let rows = TrialTable::read_of(&folder)
        .map_err(|error| unreadable(error.to_string()))?
        .rows;
    let history = History::of(&rows);
    let finished = !file.is_searching && file.plan.iter().all(|trial| history.is_settled(trial, 0));
    match compare(wanted, &folder, &file, &rows) {
        Ok(_)
            if finished
                && !wanted.reruns
                && let Some(notice) = elsewhere(&folder, &file, here) =>
        {
            Ok(ExistingRun::New {
                notice: Some(notice),
            })
        }
        Ok(changed) => Ok(ExistingRun::Old(Box::new(Old {
            folder,
            file,
            rows,
            history,
            changed,
        }))),
        Err(what) if finished && wanted.reruns => Err(RunStop::Refused(format!(
            "`--rerun` retries trials of a run, but the experiment has changed since {}:\n{what}\n\
             restore it to retry trials of that run, or leave `--rerun` out to start a new run",
            folder.path().display()
        ))),
        Err(_) if finished => Ok(ExistingRun::New { notice: None }),
        Err(what) => Err(RunStop::Refused(format!(
            "{} is unfinished and the experiment has changed since:\n{what}\nrestore it to resume \
             that run, or start a new one with `--fresh`",
            folder.path().display()
        ))),
    }
}

/// Returns the reason why a finished run is not a result of this machine; `None` if it is one.
fn elsewhere(
    folder: &RunFolder,
    file: &RunFile,
    here: &dyn Fn() -> MachineIdentity,
) -> Option<String> {
    let difference = machine::made_elsewhere(&file.launches, &here())?;
    Some(format!(
        "{} is finished, but ran on another machine ({difference}); starting a new run",
        folder.path().display()
    ))
}

/// Returns the changes that a resume accepts; the error lists those that it does not.
fn compare(
    wanted: &WantedTrials,
    folder: &RunFolder,
    file: &RunFile,
    rows: &[TableRow],
) -> Result<Vec<KeyChange>, String> {
    let has_begun = rows.iter().any(|row| row.fixed.outcome.is_final());
    let old: Experiment = input::read_text(&folder.experiment(), &RESOLVED_BYTES)
        .map_err(|error| format!("  experiment.yaml: {error}"))
        .and_then(|text| {
            spec::read_yaml(&text)
                .map_err(|error| format!("  experiment.yaml of that run cannot be read: {error}"))
        })?;
    let (free, bound): (Vec<KeyChange>, Vec<KeyChange>) = changes(&old, wanted.experiment)
        .into_iter()
        .partition(|change| change.is_free() || (!has_begun && change.is_of_the_device()));
    if !bound.is_empty() {
        return Err(describe(&bound));
    }
    match wanted.search {
        // `run.retries` may change: earlier choices were made with the old number.
        Some(search) => same_path(file, &search.progress_with(rows, old.run.retries).trials)?,
        None => same_plan(file, wanted.trials)?,
    }
    Ok(free)
}

fn same_plan(file: &RunFile, trials: &[Trial]) -> Result<(), String> {
    // An earlier version of kiln may have planned the same trials in another order.
    let is_same =
        file.plan.iter().collect::<BTreeSet<_>>() == trials.iter().map(|trial| &trial.id).collect();
    let differ = || {
        format!(
            "  the plan: it had {} trials, now it has {}, and the ids differ",
            file.plan.len(),
            trials.len()
        )
    };
    is_same.then_some(()).ok_or_else(differ)
}

/// Checks that the search requests the same trials for the same rows; it may not if the data or the
/// machine changed.
fn same_path(file: &RunFile, trials: &[Trial]) -> Result<(), String> {
    let stray = file
        .plan
        .iter()
        .enumerate()
        .find(|(place, id)| trials.get(*place).map(|trial| &trial.id) != Some(*id));
    let differ = |(place, id): (usize, &TrialId)| {
        format!(
            "  the search: trial {id} was number {} of the search, and now it is not (did the data \
             or the number of cores change?)",
            place + 1
        )
    };
    stray.map_or(Ok(()), |stray| Err(differ(stray)))
}

/// Opens the run for one more launch. The caller holds the experiment's lock.
///
/// # Errors
/// If the files of the folder cannot be read or written.
pub(super) fn open(
    request: &RunRequest,
    found: ExistingRun,
    instruments: &Instruments,
    preflight: &[Check],
) -> Result<OpenRun, RunStop> {
    let anchor = clock::anchor();
    let git = git(request.results);
    let RunRequest {
        command_line,
        data,
        trial_program,
        sha256,
        ..
    } = *request;
    let paths = Paths::here(privacy(request));
    let command_line: &[String] = &command_line
        .iter()
        .map(|word| paths.hide(word))
        .collect::<Vec<_>>();
    let preflight_kept: Vec<Check> = preflight
        .iter()
        .map(|check| hidden(check, &paths))
        .collect();
    let sources = FactSources {
        command_line,
        data,
        trial_program,
        sha256,
        git: &git,
        instruments,
        preflight: &preflight_kept,
    };
    let mut notices: Vec<String> = preflight
        .iter()
        .filter(|check| check.is_worth_saying())
        .map(notice)
        .collect();
    let (folder, file, launch_number) = match found {
        ExistingRun::New { notice } => {
            notices.extend(notice);
            let launch = gather(1, anchor.clone(), anchor.monotonic_nanoseconds, &sources);
            let short = git
                .as_ref()
                .map_or("nogit", |git| git.commit.get(..7).unwrap_or(&git.commit));
            let stamp = format!("{}-{short}", stamp(&anchor.started_utc));
            let file = new_file(request, launch);
            let folder = create(
                request.results,
                &request.experiment.name,
                &stamp,
                |folder| fill(folder, request, &file),
            );
            (folder.map_err(cannot_write(request))?, file, 1)
        }
        ExistingRun::Old(old) => {
            let Old {
                folder,
                mut file,
                changed,
                ..
            } = *old;
            let number = file
                .launches
                .iter()
                .map(|launch| launch.launch)
                .max()
                .unwrap_or(0)
                + 1;
            let run = file.launches.first().map_or(&anchor, |first| &first.anchor);
            let mut launch = gather(
                number,
                anchor.clone(),
                clock::run_anchor(run, &anchor),
                &sources,
            );
            if changed.iter().any(KeyChange::is_of_the_device) {
                // The run has no measurement yet; it now belongs to the new device.
                folder
                    .write(&folder.experiment(), resolved(request).as_bytes())
                    .map_err(cannot_write(request))?;
                file.experiment_sha256 = Some(experiment_sha256(request));
            }
            launch.changed = changed
                .into_iter()
                .map(|change| (change.key, change.new.unwrap_or_default()))
                .collect();
            file.launches.push(launch);
            file.write(&folder).map_err(cannot_write(request))?;
            (folder, file, number)
        }
    };
    // The children receive absolute paths, and are recognized by them.
    let folder = RunFolder::at(fs::canonicalize(folder.path()).map_err(cannot_write(request))?);
    let (store, torn) =
        TrialStore::open(&folder, &axes(request.trials)).map_err(|error| {
            match matches!(error, TableError::Io { .. }) {
                true => cannot_write(request)(error.into()),
                false => RunStop::Refused(error.to_string()),
            }
        })?;
    let run_anchor_nanoseconds = file
        .launches
        .last()
        .map_or(0, |launch| launch.run_anchor_nanoseconds);
    let mut open = OpenRun {
        folder,
        launch: launch_number,
        run_anchor_nanoseconds,
        file,
        store,
        notices,
    };
    if let Some(torn) = torn {
        let path = open.folder.trials_table().display().to_string();
        open.notices.push(format!(
            "{path}:{}: the last line was incomplete and has been removed: {}",
            torn.line, torn.text
        ));
    }
    adopt(&mut open, request, instruments)?;
    Ok(open)
}

/// Returns the first content of `run.json` of a new run.
pub(super) fn record_now(request: &RunRequest, instruments: &Instruments) -> RunFile {
    let RunRequest {
        data,
        trial_program,
        sha256,
        ..
    } = *request;
    let (anchor, git) = (clock::anchor(), git(request.results));
    let sources = FactSources {
        command_line: &[],
        data,
        trial_program,
        sha256,
        git: &git,
        instruments,
        preflight: &[],
    };
    new_file(
        request,
        gather(1, anchor.clone(), anchor.monotonic_nanoseconds, &sources),
    )
}

fn hidden(check: &Check, paths: &Paths) -> Check {
    Check {
        evidence: paths.hide(&check.evidence),
        remedy: check.remedy.as_deref().map(|remedy| paths.hide(remedy)),
        ..check.clone()
    }
}

fn new_file(request: &RunRequest, launch: kiln_core::record::run_file::Launch) -> RunFile {
    RunFile {
        kiln_run: RUN_FILE,
        experiment: request.experiment.name.clone(),
        number: next_number(request.results, &request.experiment.name),
        experiment_sha256: Some(experiment_sha256(request)),
        tables: [TRIALS, SAMPLES, SNAPSHOTS, STEPS, EPOCHS]
            .iter()
            .map(|table| (table.file.to_owned(), table.version.to_owned()))
            .collect(),
        plan: request
            .trials
            .iter()
            .map(|trial| trial.id.clone())
            .collect(),
        is_searching: request.search.is_some(),
        launches: vec![launch],
    }
}

/// Text of `experiment.yaml`.
fn resolved(request: &RunRequest) -> String {
    let paths = Paths::here(privacy(request));
    // The values do not change; only the comments with their origin do.
    let line = |line: &str| match line.rfind("  # ") {
        Some(at) => format!("{}{}\n", &line[..at], paths.hide(&line[at..])),
        None => format!("{line}\n"),
    };
    request.resolved.lines().map(line).collect()
}

/// SHA-256 of that text, as hex.
fn experiment_sha256(request: &RunRequest) -> String {
    hex::encode(Sha256::digest(resolved(request)))
}

/// Whether the tables of this experiment may contain identities and paths.
pub(super) fn privacy(request: &RunRequest) -> Privacy {
    match request.experiment.record.identity {
        Identity::Masked => Privacy::Masked,
        Identity::Full => Privacy::Full,
    }
}

fn fill(folder: &RunFolder, request: &RunRequest, file: &RunFile) -> io::Result<()> {
    fs::create_dir(folder.trials())?;
    folder.write(&folder.experiment(), resolved(request).as_bytes())?;
    let (mut store, _) = TrialStore::open(folder, &axes(request.trials))?;
    store.sync()?;
    file.write(folder)
}

/// Ends the processes that a killed parent left running, and writes a `killed` row for each attempt
/// without a row.
fn adopt(
    open: &mut OpenRun,
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<(), RunStop> {
    sweep_drafts(&open.folder, request.trials);
    let strays = stray::end_strays(open.folder.path());
    if strays > 0 {
        open.notices.push(ended_strays(strays));
    }
    let known: HashSet<(TrialId, u64)> = open
        .store
        .rows()
        .iter()
        .map(|row| (row.fixed.trial.clone(), row.fixed.attempt))
        .collect();
    let devices = instruments.devices();
    for trial in request.trials {
        for attempt in attempts(&open.folder, &trial.id) {
            if !known.contains(&(trial.id.clone(), attempt)) {
                let row = killed(open, trial, attempt, &devices);
                let changes = open
                    .store
                    .keep(row)
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

/// Removes the drafts of files that a killed launch left; an error leaves them.
pub(super) fn sweep_drafts(folder: &RunFolder, trials: &[Trial]) {
    let _ = folder.remove_drafts(folder.path());
    for trial in trials {
        let _ = folder.remove_drafts(&folder.trial(&trial.id));
        if trial.train.checkpoint.is_some() {
            let _ = Checkpoints::new(folder.checkpoints(&trial.id), trial.id.clone()).sweep();
        }
        for attempt in attempts(folder, &trial.id) {
            let _ = folder.remove_drafts(&folder.attempt(&trial.id, attempt));
        }
    }
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
    let named = started
        .as_ref()
        .map(|started| started.device.split(DEVICE_SEPARATOR))
        .into_iter()
        .flatten();
    let used: Vec<LeasedGpu> = named
        .filter_map(|uuid| devices.iter().find(|device| device.uuid == uuid))
        .cloned()
        .collect();
    let cpu_name = started
        .as_ref()
        .filter(|started| started.device == "cpu")
        .and_then(|_| recorded_cpu(&open.file, launch));
    let reason = format!(
        "trial {} was running when `kiln run` itself ended (launch {launch})",
        trial.id
    );
    row(&AttemptFacts {
        attempt,
        started_utc: started.as_ref().map(|started| started.started_utc.clone()),
        devices: &used,
        cpu_name,
        concurrent_trials: 1,
        ..AttemptFacts::of_end(
            trial,
            launch,
            (Outcome::Killed, reason),
            &AttemptReadings::default(),
            cores(),
        )
    })
}

/// The model of the processor that a launch recorded.
fn recorded_cpu(file: &RunFile, launch: u64) -> Option<&str> {
    file.launches
        .iter()
        .find(|known| known.launch == launch)
        .and_then(machine::cpu_model)
}

/// Number of cores that kiln may use: the control group's quota, else that of the machine.
pub(super) fn cores() -> u64 {
    usable_cores()
}

/// Returns the names of the sweep's axes, which are the same for every trial.
fn axes(trials: &[Trial]) -> Vec<String> {
    trials
        .first()
        .map(|trial| trial.axes.iter().map(|(key, _)| key.clone()).collect())
        .unwrap_or_default()
}

/// Returns `2026-11-20T10:08:09.5Z` as a folder's name: `20261120T100809Z`.
fn stamp(utc: &str) -> String {
    let seconds = utc.split('.').next().unwrap_or(utc).trim_end_matches('Z');
    format!("{}Z", seconds.replace(['-', ':'], ""))
}

/// The error of a file of the run that cannot be written.
pub(super) fn cannot_write(request: &RunRequest) -> impl Fn(io::Error) -> RunStop {
    let folder = request.results.join(&request.experiment.name);
    move |error| {
        if is_full(&error) {
            return RunStop::CannotRun(super::disk::full_message(&folder));
        }
        let text = error.to_string();
        // Errors of files of the run name the file.
        RunStop::CannotRun(match text.starts_with('/') {
            true => text,
            false => format!("{}: {text}", folder.display()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_is_named_for_its_second() {
        assert_eq!(stamp("2026-11-20T10:08:09.123456789Z"), "20261120T100809Z");
        assert_eq!(stamp("2026-11-20T10:08:09Z"), "20261120T100809Z");
    }
}
