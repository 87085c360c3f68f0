//! Lists of runs, newest first: of all experiments, or of one.

use std::{ffi::OsStr, io, path::Path};

use kiln_core::record::{
    RunFolder,
    run_folder::{experiments, runs},
};

/// A run, and the name of its experiment.
#[derive(Clone, Debug)]
pub(in crate::commands) struct NamedRun {
    pub(in crate::commands) experiment: String,
    pub(in crate::commands) run: RunFolder,
}

/// The runs under a folder, newest first. The runs of one experiment keep their order; among
/// experiments the names decide, which begin with the time of the start.
///
/// # Errors
/// The folder, or that of an experiment, cannot be listed.
pub(in crate::commands) fn newest_first(results: &Path) -> io::Result<Vec<NamedRun>> {
    let (all, unlisted) = newest_listed(results)?;
    unlisted.into_iter().next().map_or(Ok(all), Err)
}

/// The runs of the experiments whose folder can be listed, newest first, and the error of each other
/// folder.
///
/// # Errors
/// The folder cannot be listed.
pub(in crate::commands) fn newest_listed(
    results: &Path,
) -> io::Result<(Vec<NamedRun>, Vec<io::Error>)> {
    let mut queues: Vec<(String, Vec<RunFolder>)> = Vec::new();
    let mut unlisted = Vec::new();
    for name in experiments(results)? {
        match runs(results, &name) {
            Ok(runs) => queues.push((name, runs)),
            Err(error) => unlisted.push(error),
        }
    }
    let mut all = Vec::new();
    loop {
        let next = queues
            .iter_mut()
            .filter(|(_, runs)| !runs.is_empty())
            .max_by_key(|(_, runs)| runs.last().map(RunFolder::name));
        let Some((experiment, runs)) = next else {
            return Ok((all, unlisted));
        };
        all.extend(runs.pop().map(|run| NamedRun {
            experiment: experiment.clone(),
            run,
        }));
    }
}

/// The runs of one experiment, newest first; none if the text is not the name of one.
///
/// # Errors
/// Its folder cannot be listed.
pub(in crate::commands) fn of_experiment(results: &Path, name: &str) -> io::Result<Vec<NamedRun>> {
    if Path::new(name).file_name() != Some(OsStr::new(name)) || name.starts_with('.') {
        return Ok(Vec::new());
    }
    let newest_first = runs(results, name)?.into_iter().rev();
    let named = newest_first.map(|run| NamedRun {
        experiment: name.to_owned(),
        run,
    });
    Ok(named.collect())
}
