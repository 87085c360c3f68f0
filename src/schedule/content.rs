//! Whether programs and data are still those with which a run began, in words.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use kiln_core::{
    kinds::command::Placeholders,
    plan::Trial,
    record::{
        RunFile,
        run_file::{Launch, Versions},
    },
    spec::Experiment,
    units::short_hash,
};

use super::provenance::{Programs, advice};
use crate::readings::{Paths, Privacy};

/// The data that are not those which the run last read, in words.
pub(super) fn other_data(file: &RunFile, here: &BTreeMap<String, String>) -> Vec<String> {
    let last = file.launches.last();
    let others = last.into_iter().flat_map(|launch| launch.other_data(here));
    others
        .map(|(kind, then, now)| {
            format!(
                "the data of `data.kind` {kind} has sha256 {}, and had {}",
                short_hash(&now),
                short_hash(&then)
            )
        })
        .collect()
}

/// Why the programs of trials are not those with which the run was handed to its workers; `None` if
/// they are.
pub(super) fn changed_programs(
    here: &mut Programs,
    run: &RunFile,
    paths: &Paths,
) -> Option<String> {
    // Launches of workers name a node, and their programs may have files that no other node has.
    let submitted = run.launches.iter().rfind(|launch| launch.node.is_none())?;
    let alone = std::slice::from_ref(submitted);
    let changes = here.compare(alone, submitted.launch, paths).refused;
    let each: Vec<String> = changes.iter().map(ToString::to_string).collect();
    (!each.is_empty()).then(|| {
        format!(
            "{}; a run is made with one program: put it back, or start a new run with `--fresh`{}",
            each.join("; "),
            advice(&changes)
        )
    })
}

/// The programs of a run that have changed since it ran.
pub struct ChangedPrograms {
    /// A sentence for each file, with both hashes.
    pub files: Vec<String>,
    /// The commit that has the files of then; `None` if it is unknown, or they were not committed.
    commit: Option<String>,
    /// Whether none of them is found: kiln may have been started in another folder than then.
    pub are_not_found: bool,
    /// Whether another checkout of this folder has the files at the same paths: none is absolute, and no
    /// other repository holds them.
    pub keeps_its_paths: bool,
}

impl ChangedPrograms {
    /// The commit for a command to copy: the record may come from anybody.
    pub fn commit(&self) -> Option<&str> {
        let commit = self.commit.as_deref();
        commit.filter(|commit| commit.bytes().all(|byte| byte.is_ascii_hexdigit()))
    }
}

/// Compares the programs of a recorded run with those that its trials would start now; `None` if
/// they are the same, or none were recorded. `is_elsewhere`: another folder was named for them, which
/// need not have every recorded file.
///
/// # Errors
/// An entry of `files` stands for no file.
pub fn programs_changed_since(
    run: &RunFile,
    (experiment, trials): (&Experiment, &[Trial]),
    results: &Path,
    is_elsewhere: bool,
) -> Result<Option<ChangedPrograms>, String> {
    // Launches of workers name a node, and their programs may have files that no other node has.
    let is_recorded = |launch: &&Launch| launch.node.is_none() && !launch.programs.is_empty();
    let Some(launch) = run.launches.iter().rfind(is_recorded) else {
        return Ok(None);
    };
    let mut here = Programs::read(experiment, trials.iter(), results)?;
    let paths = Paths::here(Privacy::of(experiment));
    let alone = std::slice::from_ref(launch);
    let changes = here.compare(alone, launch.launch, &paths).refused;
    let mut files: Vec<String> = changes
        .iter()
        .filter(|change| !is_elsewhere || change.is_in_place())
        .map(|change| change.not_found().unwrap_or_else(|| change.to_string()))
        .collect();
    let are_not_found = changes.iter().all(|change| change.not_found().is_some());
    if is_elsewhere {
        files.extend(here.unlike_in(&folders(trials), launch, &paths));
    }
    let programs = launch.programs.values();
    let mut repositories = programs.flat_map(|program| program.repositories.values());
    let around = launch.git.as_ref();
    let git = repositories.next().or(around);
    let is_of_here = git.map(|git| &git.commit) == around.map(|git| &git.commit);
    let has_fixed = changes.iter().any(|change| change.is_of_absolute_path());
    let commit = git.filter(|git| !git.dirty).map(|git| git.commit.clone());
    Ok((!files.is_empty()).then_some(ChangedPrograms {
        files,
        commit,
        are_not_found,
        keeps_its_paths: is_of_here && !has_fixed,
    }))
}

/// The folders in which the commands of trials run.
fn folders(trials: &[Trial]) -> BTreeSet<String> {
    let folder = |trial: &Trial| {
        let known = Placeholders {
            seed: Some(trial.train.seed),
            trial: Some(trial.id.to_string()),
            ..Placeholders::default()
        };
        trial.model.command()?.expand(&known).folder
    };
    trials.iter().filter_map(folder).collect()
}

/// How the programs and data of a launch differ from those that the run began with; empty if they do
/// not.
pub(super) fn other_content(first: &Launch, here: &Launch) -> Vec<String> {
    let data = first.other_data(&here.data_sha256);
    let data = data.filter_map(|(kind, then, now)| other(kind, &then, &now));
    let programs = other_programs(&first.versions, &here.versions);
    programs.into_iter().chain(data).collect()
}

/// The programs of a launch that are not those of the first one, in words.
pub(super) fn other_programs(first: &Versions, here: &Versions) -> Vec<String> {
    let kiln = ("kiln", &first.kiln_sha256, &here.kiln_sha256);
    let trial = (
        "kiln-trial",
        &first.trial_program_sha256,
        &here.trial_program_sha256,
    );
    let differing = |(what, then, now): (&str, &Option<String>, &Option<String>)| {
        other(what, then.as_ref()?, now.as_ref()?)
    };
    [kiln, trial].into_iter().filter_map(differing).collect()
}

fn other(what: &str, then: &str, now: &str) -> Option<String> {
    (then != now).then(|| {
        format!(
            "another {what} (sha256 {}, the run began with {})",
            short_hash(now),
            short_hash(then)
        )
    })
}
