//! Opens the run of a launch: creates the folder and first files of a new run, or adds the launch to
//! the run that it resumes.

use std::{collections::BTreeMap, fs, io};

use kiln_core::{
    folder::is_full,
    kinds::{Model, command::METRIC_PREFIX},
    plan::{Origin, Trial, TrialId},
    record::{
        Check, RunFile, RunFolder, TableError, TornLine, TrialStore,
        run_file::{Launch, RUN_FILE},
        run_folder::{create, next_number},
        tables::{EPOCHS, SAMPLES, SNAPSHOTS, STEPS, TRIALS},
    },
    spec::Identity,
};
use kiln_hardware::host::usable_cores;
use sha2::{Digest, Sha256};

use super::{
    RunRequest, RunStop,
    changes::KeyChange,
    clock,
    existing_run::{ExistingRun, Old},
    instruments::Instruments,
    launch::{FactSources, gather, git},
};
use crate::{
    preflight::notice,
    readings::{Paths, Privacy},
};

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
    let git = git(request.results);
    let paths = Paths::here(privacy(request));
    let hidden_line = |word: &String| paths.hide(word);
    let sources = FactSources {
        command_line: &request
            .command_line
            .iter()
            .map(hidden_line)
            .collect::<Vec<_>>(),
        data: request.data,
        trial_program: request.trial_program,
        sha256: request.sha256,
        git: &git,
        instruments,
        preflight: &hidden_checks(preflight, &paths),
    };
    let mut notices: Vec<String> = preflight
        .iter()
        .filter(|check| check.is_worth_saying())
        .map(notice)
        .collect();
    let (folder, file) = match found {
        ExistingRun::New { notice } => {
            notices.extend(notice);
            create_run(request, &sources)
        }
        ExistingRun::Old(old) => add_launch(request, *old, &sources),
    }
    .map_err(cannot_write(request))?;
    // The children receive absolute paths, and are recognized by them.
    let folder = RunFolder::at(fs::canonicalize(folder.path()).map_err(cannot_write(request))?);
    let (store, torn) = open_store(request, &folder)?;
    notices.extend(torn.map(|torn| {
        format!(
            "{}:{}: the last line was incomplete and has been removed: {}",
            folder.trials_table().display(),
            torn.line,
            torn.text
        )
    }));
    let (launch, run_anchor_nanoseconds) = file.launches.last().map_or((1, 0), |launch| {
        (launch.launch, launch.run_anchor_nanoseconds)
    });
    Ok(OpenRun {
        folder,
        launch,
        run_anchor_nanoseconds,
        file,
        store,
        notices,
    })
}

/// Creates the folder of a new run with its first files.
fn create_run(request: &RunRequest, sources: &FactSources) -> io::Result<(RunFolder, RunFile)> {
    let anchor = clock::anchor();
    let commit = sources
        .git
        .as_ref()
        .map_or("nogit", |git| git.commit.get(..7).unwrap_or(&git.commit));
    let stamp = format!("{}-{commit}", stamp(&anchor.started_utc));
    let run_anchor = anchor.monotonic_nanoseconds;
    let file = new_file(request, gather(1, anchor, run_anchor, sources));
    let name = &request.experiment.name;
    let folder = create(request.results, name, &stamp, |folder| {
        fill(folder, request, &file)
    })?;
    Ok((folder, file))
}

/// Adds this launch to the files of a run that is resumed.
fn add_launch(
    request: &RunRequest,
    old: Old,
    sources: &FactSources,
) -> io::Result<(RunFolder, RunFile)> {
    let Old {
        folder,
        mut file,
        changed,
        ..
    } = old;
    let anchor = clock::anchor();
    let last = file.launches.iter().map(|launch| launch.launch).max();
    let run = file.launches.first().map_or(&anchor, |first| &first.anchor);
    let run_anchor = clock::run_anchor(run, &anchor);
    let mut launch = gather(last.unwrap_or(0) + 1, anchor, run_anchor, sources);
    if changed.iter().any(KeyChange::is_of_the_device) {
        // The run has no measurement yet; it now belongs to the new device.
        folder.write(&folder.experiment(), resolved(request).as_bytes())?;
        file.experiment_sha256 = Some(experiment_sha256(request));
    }
    launch.changed = changed
        .into_iter()
        .map(|change| (change.key, change.new.unwrap_or_default()))
        .collect();
    file.launches.push(launch);
    file.write(&folder)?;
    Ok((folder, file))
}

fn open_store(
    request: &RunRequest,
    folder: &RunFolder,
) -> Result<(TrialStore, Option<TornLine>), RunStop> {
    TrialStore::open(folder, &axes(request.trials)).map_err(|error| match error {
        TableError::Io { .. } => cannot_write(request)(error.into()),
        _ => RunStop::Refused(error.to_string()),
    })
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

/// The checks without private paths.
fn hidden_checks(checks: &[Check], paths: &Paths) -> Vec<Check> {
    let hidden = |check: &Check| Check {
        evidence: paths.hide(&check.evidence),
        remedy: check.remedy.as_deref().map(|remedy| paths.hide(remedy)),
        ..check.clone()
    };
    checks.iter().map(hidden).collect()
}

fn new_file(request: &RunRequest, launch: Launch) -> RunFile {
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
        continues: origins(request.trials, &Paths::here(privacy(request))),
        launches: vec![launch],
    }
}

/// The checkpoints with which trials begin.
fn origins(trials: &[Trial], paths: &Paths) -> BTreeMap<TrialId, Origin> {
    let hidden = |origin: &Origin| Origin {
        run: paths.hide(&origin.run.to_string_lossy()).into(),
        ..origin.clone()
    };
    let origin = |trial: &Trial| Some((trial.id.clone(), hidden(trial.origin.as_ref()?)));
    trials.iter().filter_map(origin).collect()
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

/// Number of cores that kiln may use: the control group's quota, else that of the machine.
pub(super) fn cores() -> u64 {
    usable_cores()
}

/// Returns the names of the sweep's axes and the columns of a command's own metrics, which are the
/// same for every trial.
fn axes(trials: &[Trial]) -> Vec<String> {
    let Some(first) = trials.first() else {
        return Vec::new();
    };
    let axes = first.axes.iter().map(|(key, _)| key.clone());
    let metrics = match &first.model {
        Model::Command(command) => command.own_metrics(),
        _ => Vec::new(),
    };
    let metrics = metrics.iter().map(|name| format!("{METRIC_PREFIX}{name}"));
    axes.chain(metrics).collect()
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
