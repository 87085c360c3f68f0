//! Creates a new run: its folder, and the first content of its files.

use std::{collections::BTreeMap, fs, io};

use kiln_core::{
    plan::{Origin, Trial, TrialId},
    record::{
        RunFile, RunFolder, TrialStore, TrialTable,
        programs::Git,
        run_file::{KeptFrom, Launch, RUN_FILE},
        run_folder::{create, next_number},
        tables::TABLES,
    },
};
use sha2::{Digest, Sha256};

use super::super::{
    RunRequest, clock,
    instruments::Instruments,
    launch::{FactSources, gather, git, with_programs},
    provenance::Programs,
};
use crate::readings::{Paths, Privacy};

/// Creates the folder of a new run with its first files.
pub(super) fn create_run(
    request: &RunRequest,
    sources: &FactSources,
    packages: Option<&str>,
) -> io::Result<(RunFolder, RunFile)> {
    let anchor = clock::anchor();
    let run_name = run_name(&anchor.started_utc, sources.git.as_ref());
    let run_anchor = anchor.monotonic_nanoseconds;
    let number = number(request)?;
    let launch = gather(1, anchor, run_anchor, sources);
    let file = new_file(request, number, vec![launch]);
    let name = &request.experiment.name;
    let folder = create(request.results, name, &run_name, |folder| {
        fill(folder, request, &file, packages).map(drop)
    })?;
    Ok((folder, file))
}

/// Creates the folder of a new run that takes over the launches of another run, with a note on that
/// run; `add` writes what it has of their attempts. The folder appears whole.
///
/// # Errors
/// A file cannot be written, or `add` failed; then there is no new run.
pub(in crate::schedule) fn create_with(
    request: &RunRequest,
    (launches, kept_from): (Vec<Launch>, Option<KeptFrom>),
    add: impl FnOnce(&RunFolder, &mut TrialStore) -> io::Result<()>,
) -> io::Result<(RunFolder, RunFile)> {
    let run_name = run_name(&clock::utc_now(), git(request.results).as_ref());
    let file = RunFile {
        kept_from,
        ..new_file(request, number(request)?, launches)
    };
    let name = &request.experiment.name;
    let folder = create(request.results, name, &run_name, |folder| {
        let mut store = fill(folder, request, &file, None)?;
        add(folder, &mut store)
    })?;
    Ok((folder, file))
}

/// The name of the folder of a run that begins now.
fn run_name(now_utc: &str, git: Option<&Git>) -> String {
    let commit = git.map_or("nogit", |git| git.commit.get(..7).unwrap_or(&git.commit));
    format!("{}-{commit}", stamp(now_utc))
}

/// Returns the first content of `run.json` of a new run, and of its list of packages.
pub(in crate::schedule) fn record_now(
    request: &RunRequest,
    instruments: &Instruments,
) -> (RunFile, Option<String>) {
    let RunRequest {
        data,
        trial_program,
        sha256,
        ..
    } = *request;
    let (anchor, git) = (clock::anchor(), git(request.results));
    let programs = Programs::read(request.experiment, request.trials.iter(), request.results)
        .unwrap_or_default();
    let described = programs.describe(&Paths::here(Privacy::of(request.experiment)), git.as_ref());
    let git = with_programs(git, &described.programs);
    let sources = FactSources {
        command_line: &[],
        data,
        trial_program,
        sha256,
        git: &git,
        programs: &described.programs,
        instruments,
        preflight: &[],
    };
    let launch = gather(1, anchor.clone(), anchor.monotonic_nanoseconds, &sources);
    let packages = Some(described.packages_text).filter(|text| !text.is_empty());
    // It is compared and not kept, so its place among the runs does not matter.
    let number = number(request).unwrap_or_default();
    (new_file(request, number, vec![launch]), packages)
}

/// The place of a new run among those of its experiment.
fn number(request: &RunRequest) -> io::Result<u64> {
    next_number(request.results, &request.experiment.name)
}

/// The first content of `run.json`.
fn new_file(request: &RunRequest, number: u64, launches: Vec<Launch>) -> RunFile {
    RunFile {
        kiln_run: RUN_FILE,
        experiment: request.experiment.name.clone(),
        number,
        experiment_sha256: Some(experiment_sha256(request)),
        tables: TABLES
            .iter()
            .map(|table| (table.file.to_owned(), table.version.to_owned()))
            .collect(),
        plan: request
            .trials
            .iter()
            .map(|trial| trial.id.clone())
            .collect(),
        is_searching: request.search.is_some(),
        continues: origins(
            request.trials,
            &Paths::here(Privacy::of(request.experiment)),
        ),
        kept_from: None,
        launches,
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
pub(super) fn resolved(request: &RunRequest) -> String {
    let paths = Paths::here(Privacy::of(request.experiment));
    // The values do not change; only the comments with their origin do.
    let line = |line: &str| match line.rfind("  # ") {
        Some(at) => format!("{}{}\n", &line[..at], paths.hide(&line[at..])),
        None => format!("{line}\n"),
    };
    request.resolved.lines().map(line).collect()
}

/// SHA-256 of that text, as hex.
pub(super) fn experiment_sha256(request: &RunRequest) -> String {
    hex::encode(Sha256::digest(resolved(request)))
}

/// Writes the first files of a new run, without a row.
fn fill(
    folder: &RunFolder,
    request: &RunRequest,
    file: &RunFile,
    packages: Option<&str>,
) -> io::Result<TrialStore> {
    fs::create_dir(folder.trials())?;
    if let Some(packages) = packages {
        folder.write(&folder.packages_list(1), packages.as_bytes())?;
    }
    folder.write(&folder.experiment(), resolved(request).as_bytes())?;
    let (mut store, _) = TrialStore::open(folder, &TrialTable::axes_of(request.trials))?;
    store.sync()?;
    file.write(folder)?;
    Ok(store)
}

/// Returns `2026-11-20T10:08:09.5Z` as a folder's name: `20261120T100809Z`.
fn stamp(utc: &str) -> String {
    let seconds = utc.split('.').next().unwrap_or(utc).trim_end_matches('Z');
    format!("{}Z", seconds.replace(['-', ':'], ""))
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
