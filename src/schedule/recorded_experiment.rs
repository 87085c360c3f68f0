//! Compares an experiment and its trials with those of a run, before it is resumed.

use std::{collections::BTreeSet, io};

use kiln_core::{
    input,
    limits::RESOLVED_BYTES,
    plan::{Origin, Trial, TrialId},
    record::{AttemptEnd, RunFile, RunFolder, TableRow},
    spec::{self, Experiment},
};

use super::{
    WantedTrials,
    changes::{KeyChange, changes, describe},
};

/// How a sentence on the experiment's file of a run begins.
const EXPERIMENT: &str = "experiment.yaml";

/// Why the experiment of a run is not the wanted one, in lines that are indented by two blanks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExperimentMismatch {
    /// Its file cannot be read.
    Unread(String),
    /// It has changed, or its trials are others now.
    Changed(String),
}

impl ExperimentMismatch {
    pub(super) fn lines(&self) -> &str {
        match self {
            Self::Unread(lines) | Self::Changed(lines) => lines,
        }
    }

    /// The clause before the lines.
    pub(super) fn clause(&self) -> &'static str {
        match self {
            Self::Unread(_) => "its experiment cannot be compared with this one",
            Self::Changed(_) => "the experiment has changed since",
        }
    }
}

/// The experiment of a run.
///
/// # Errors
/// It cannot be read: a line that begins with the file's name.
pub(super) fn experiment_of(folder: &RunFolder) -> Result<Experiment, String> {
    let text = input::read_text(&folder.experiment(), &RESOLVED_BYTES)
        .map_err(|error| format!("  {EXPERIMENT}: {error}"))?;
    spec::read_yaml(&text).map_err(|error| {
        format!("  {EXPERIMENT} of that run cannot be read (a newer kiln's?): {error}")
    })
}

/// Says why the experiment of a run cannot be read, although its file is there; `None` if it can be
/// read, is missing, or is damaged, which [`compare`] tells.
pub(super) fn unread(folder: &RunFolder) -> Option<String> {
    let path = folder.experiment();
    let is_missing = || {
        let found = path.symlink_metadata();
        found.is_err_and(|error| input::is_absent(&error))
    };
    let error = input::read_text(&path, &RESOLVED_BYTES).err()?;
    let is_damaged = error.kind() == io::ErrorKind::InvalidData;
    (!is_damaged && !is_missing()).then(|| format!("{}: {error}", path.display()))
}

/// Returns the changes that a resume accepts; the error lists those that it does not.
pub(super) fn compare(
    wanted: &WantedTrials,
    folder: &RunFolder,
    file: &RunFile,
    (ends, searched): (&[AttemptEnd], &[TableRow]),
) -> Result<Vec<KeyChange>, ExperimentMismatch> {
    let has_begun = ends.iter().any(|end| end.outcome.is_final());
    let old = experiment_of(folder).map_err(ExperimentMismatch::Unread)?;
    let (free, bound): (Vec<KeyChange>, Vec<KeyChange>) = changes(&old, wanted.experiment)
        .into_iter()
        .partition(|change| change.is_free() || (!has_begun && change.is_of_the_device()));
    if !bound.is_empty() {
        return Err(ExperimentMismatch::Changed(describe(&bound)));
    }
    let is_same = match wanted.search {
        // `run.retries` may change: earlier choices were made with the old number.
        Some(search) => same_path(
            file,
            &search.progress_with(searched, old.run.retries).trials,
        ),
        None => same_origins(file, wanted.trials).and_then(|()| same_plan(file, wanted.trials)),
    };
    is_same.map_err(ExperimentMismatch::Changed)?;
    Ok(free)
}

/// Checks that the trials continue the same checkpoints, or none.
fn same_origins(file: &RunFile, trials: &[Trial]) -> Result<(), String> {
    let first = |origins: Vec<&Origin>| match origins.first() {
        None => "no trial of another run".to_owned(),
        Some(origin) => format!(
            "{} ({})",
            origin.run.display(),
            first_ids(origins.iter().map(|origin| &origin.trial))
        ),
    };
    let now: Vec<&Origin> = trials
        .iter()
        .filter_map(|trial| trial.origin.as_ref())
        .collect();
    let is_same = trials.iter().all(|trial| {
        let before = file.continues.get(&trial.id);
        before.map(Origin::content) == trial.origin.as_ref().map(Origin::content)
    });
    if is_same && (now.is_empty() == file.continues.is_empty()) {
        return Ok(());
    }
    Err(format!(
        "  `--continue`: it continued {}, now {}",
        first(file.continues.values().collect()),
        first(now)
    ))
}

/// The first ids of a list.
fn first_ids<'a>(mut ids: impl Iterator<Item = &'a TrialId>) -> String {
    let first: Vec<String> = ids.by_ref().take(3).map(ToString::to_string).collect();
    match ids.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use serde_json::json;

    use super::*;

    #[test]
    fn an_experiment_that_cannot_be_read_is_not_one_that_has_changed() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        let file: RunFile = serde_json::from_value(json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [],
        }))
        .unwrap();
        let text =
            |size: u64| format!("{{kiln: 1, name: x, model: {{kind: matmul, size: {size}}}}}");
        let experiment: Experiment = serde_yaml::from_str(&text(8)).unwrap();
        let data = BTreeMap::new();
        let wanted = WantedTrials {
            experiment: &experiment,
            trials: &[],
            search: None,
            data: &data,
            results: place.path(),
            fresh: false,
            reruns: false,
            command_line: &[],
        };
        let mismatch = || compare(&wanted, &run, &file, (&[], &[])).err();
        for damaged in [None, Some("[")] {
            if let Some(text) = damaged {
                fs::write(run.experiment(), text).unwrap();
            }
            let Some(ExperimentMismatch::Unread(lines)) = mismatch() else {
                panic!("{:?}", mismatch());
            };
            assert!(lines.starts_with("  experiment.yaml"), "{lines}");
        }
        fs::write(run.experiment(), text(9)).unwrap();
        let Some(ExperimentMismatch::Changed(lines)) = mismatch() else {
            panic!("{:?}", mismatch());
        };
        assert!(lines.contains("`model.size`"), "{lines}");
        fs::write(run.experiment(), text(8)).unwrap();
        assert_eq!(mismatch(), None);
    }
}
