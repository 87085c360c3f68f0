//! `kiln rm --weights`: the checkpoints of a run that go, and those that stay.
//!
//! In: a run that nobody works on, and `--but`. Out: the folders to remove, with their bytes; trials
//! that keep theirs are told. Asking, and whether git tracks them, is left to `kiln rm`.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use kiln_core::{
    folder::names_in,
    input,
    limits::RUN_FILE_BYTES,
    plan::{Origin, TrialId},
    record::{
        Checkpoints, RunFile, RunFolder, TableRow, attempt::later_than, checkpoint::removal,
        run_folder,
    },
    spec::expand_home,
    units::{clock, counted, decimals, few},
};

use super::shown;
use crate::commands::{
    Status, Stop,
    folder_size::{FolderSize, size},
    note,
    run_and_trial::named_trial,
    sources::table_of_run,
    trained_model::{ranked, told_table},
};

/// Most ids that a message lists.
const MOST_LISTED: usize = 10;
/// More digits than this are the beginning of an id.
const MOST_DIGITS: usize = 6;

/// The trials that keep their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeptTrials {
    /// This number of trials with the lowest validation loss, as `kiln sample` ranks them.
    Best(usize),
    /// The trials with these ids, each given by its beginning.
    Named(Vec<String>),
}

impl KeptTrials {
    /// Reads `best`, a number, or ids.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let count = text.parse::<usize>().ok();
        let count = count.filter(|_| text.len() <= MOST_DIGITS);
        match count {
            _ if text == "best" => Ok(Self::Best(1)),
            Some(0) => Err("expected 1 or more; without `--but` no weights are kept".to_owned()),
            Some(count) => Ok(Self::Best(count)),
            None => Ok(Self::Named(
                text.split(',').map(|id| id.trim().to_owned()).collect(),
            )),
        }
    }
}

/// The checkpoints of a trial.
struct TrialWeights {
    trial: TrialId,
    /// The attempt of its last row, if that completed.
    completed: Option<u64>,
    /// Whether the run would resume the trial at these checkpoints.
    is_unfinished: bool,
    folders: Vec<PathBuf>,
    size: FolderSize,
}

/// The checkpoints of a run that are to go.
pub(super) struct DoomedWeights {
    pub(super) run: RunFolder,
    trials: Vec<TrialWeights>,
}

impl DoomedWeights {
    /// Finds the checkpoints to remove, and says on standard error which trials keep theirs.
    ///
    /// # Errors
    /// The table or a folder cannot be read, it is not certain which trials are to keep theirs, or an
    /// unfinished run begins with one of the checkpoints.
    pub(super) fn find(run: &RunFolder, kept: Option<&KeptTrials>) -> Result<Self, Stop> {
        let table = told_table(run)?;
        let rows = table.last_attempts();
        let mut trials = with_weights(run, &rows)?;
        if let Some(kept) = kept.filter(|_| !trials.is_empty()) {
            let kept = kept_trials(run, &table.axes, &rows, kept)?;
            trials.retain(|of| !kept.contains(&of.trial));
            note(&format!(
                "{}: keeping the weights of {}",
                shown(run),
                ids(&kept)
            ));
        }
        // An older run than the newest cannot be resumed.
        if run.is_newest().map_err(unread)? {
            let (unfinished, ended): (Vec<_>, Vec<_>) =
                trials.into_iter().partition(|of| of.is_unfinished);
            if !unfinished.is_empty() {
                let kept: Vec<TrialId> = unfinished.into_iter().map(|of| of.trial).collect();
                note(&format!(
                    "{}: the checkpoints of {} stay ({}): `kiln run` resumes there",
                    shown(run),
                    counted(kept.len(), "unfinished trial"),
                    ids(&kept)
                ));
            }
            trials = ended;
        }
        refuse_continued(run, &trials)?;
        Ok(Self {
            run: run.clone(),
            trials,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trials.is_empty()
    }

    /// The results folder whose unfinished runs begin with none of these checkpoints.
    pub(super) fn results(&self) -> Option<&Path> {
        self.run.path().parent().and_then(Path::parent)
    }

    /// The folders that go.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let folders = self.trials.iter().flat_map(|of| of.folders.iter().cloned());
        folders.collect()
    }

    /// Removes the checkpoints.
    ///
    /// # Errors
    /// The checkpoints of a trial cannot be removed; those of the trials before it are gone.
    pub(super) fn remove(&self) -> io::Result<()> {
        let now = clock::utc_now().to_string();
        self.trials
            .iter()
            .try_for_each(|of| removal::remove(&self.run, &of.trial, of.completed, &now))
    }
}

impl fmt::Display for DoomedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.trials.iter().map(|of| of.size);
        let size = sizes.fold(FolderSize::default(), FolderSize::plus);
        write!(
            f,
            "the checkpoints of {} of {} ({size})",
            counted(self.trials.len(), "trial"),
            shown(&self.run)
        )
    }
}

/// The refusal where it is not certain what needs the checkpoints, because a folder cannot be read now.
fn unread(error: io::Error) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!(
            "{error}; nothing was removed, because it is not certain what is in use; try again"
        ),
    )
}

fn ids(trials: &[TrialId]) -> String {
    let ids: Vec<String> = trials.iter().map(ToString::to_string).collect();
    few(&ids, MOST_LISTED)
}

/// The trials that have checkpoints, also those without a row.
fn with_weights(run: &RunFolder, rows: &[&TableRow]) -> Result<Vec<TrialWeights>, Stop> {
    let mut found = Vec::new();
    for name in names_in(&run.trials()).map_err(Stop::bad_input)? {
        let Some(id) = name.to_str().filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let trial = TrialId(id.to_owned());
        let folder = run.trial(&trial);
        let is_its = folder == run.trials().join(&name)
            && fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir());
        if !is_its {
            continue;
        }
        let names = removal::folders(run, &trial).map_err(Stop::bad_input)?;
        let folders: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
        let size = folders
            .iter()
            .try_fold(FolderSize::default(), |sum, folder| {
                io::Result::Ok(sum.plus(size(folder)?))
            })
            .map_err(|error| {
                let folder = folder.display();
                Stop::new(
                    Status::Failed,
                    format!("{folder}: its checkpoints cannot be read: {error}"),
                )
            })?;
        let row = row_of(rows, &trial);
        if size.all > 0 || folders.iter().any(|folder| is_left(folder)) {
            found.push(TrialWeights {
                completed: row.and_then(|row| row.fixed.completed_attempt()),
                is_unfinished: is_unfinished(run, &trial, row).map_err(unread)?,
                trial,
                folders,
                size,
            });
        }
    }
    Ok(found)
}

/// Whether a folder without a byte is what a killed removal left: it has folders, or its name says so.
fn is_left(folder: &Path) -> bool {
    folder.ends_with(removal::REMOVED) || names_in(folder).is_ok_and(|names| !names.is_empty())
}

fn row_of<'a>(rows: &[&'a TableRow], trial: &TrialId) -> Option<&'a TableRow> {
    let row = rows.iter().find(|row| row.fixed.trial == *trial);
    row.copied()
}

/// Whether a trial has no final outcome yet, or an attempt without a row. `row` is its last one.
fn is_unfinished(run: &RunFolder, trial: &TrialId, row: Option<&TableRow>) -> io::Result<bool> {
    let Some(row) = row else {
        return Ok(true);
    };
    let later = later_than(run, trial, row.fixed.attempt)?;
    Ok(!row.fixed.outcome.is_final() || !later.is_empty())
}

/// The trials that keep their weights.
fn kept_trials(
    run: &RunFolder,
    axes: &[String],
    rows: &[&TableRow],
    kept: &KeptTrials,
) -> Result<Vec<TrialId>, Stop> {
    match kept {
        KeptTrials::Best(count) => best_trials(run, axes, rows, *count),
        KeptTrials::Named(named) => {
            let all: Vec<&TrialId> = rows.iter().map(|row| &row.fixed.trial).collect();
            named
                .iter()
                .map(|named| named_trial(run, &all, named))
                .collect()
        }
    }
}

/// The trials with the lowest validation loss. What is removed does not come back, so doubt is refused.
fn best_trials(
    run: &RunFolder,
    axes: &[String],
    rows: &[&TableRow],
    count: usize,
) -> Result<Vec<TrialId>, Stop> {
    const ADVICE: &str = "name the trials to keep: `--but ID,ID`";
    let ranked = ranked(run, axes, rows)
        .map_err(|stop| Stop::new(stop.status, format!("{}; {ADVICE}", stop.message)))?;
    let refuse = |why: String| Err(Stop::bad_input(format!("{}: {why}; {ADVICE}", shown(run))));
    let (kept, rest) = ranked.split_at(count.min(ranked.len()));
    let Some((last, with)) = kept.last() else {
        return refuse("no trial has weights that kiln reads, so none is the best".to_owned());
    };
    if let Some((next, without)) = rest.first() {
        let Some(loss) = with.valid_loss else {
            return refuse(format!(
                "the weights of trial {} have no validation loss, so it is not certain which are \
                 the best {count}",
                last.fixed.trial
            ));
        };
        if without.valid_loss == Some(loss) {
            return refuse(format!(
                "trials {} and {} have the same validation loss, {}, so it is not certain which \
                 are the best {count}",
                last.fixed.trial,
                next.fixed.trial,
                decimals(loss, 4)
            ));
        }
    }
    Ok(kept
        .iter()
        .map(|(row, _)| row.fixed.trial.clone())
        .collect())
}

/// Refuses checkpoints with which an unfinished run (`kiln run --continue`) has yet to begin a trial.
fn refuse_continued(run: &RunFolder, doomed: &[TrialWeights]) -> Result<(), Stop> {
    let Some(results) = run.path().parent().and_then(Path::parent) else {
        return Ok(());
    };
    let experiments = match run_folder::experiments(results) {
        Err(error) if input::is_absent(&error) => Vec::new(),
        listed => listed.map_err(|error| not_known(results, &error))?,
    };
    for experiment in experiments {
        let newest = match run_folder::newest(results, &experiment) {
            // One of somebody else, closed to this user, such as one beside a copy of a run.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            newest => newest.map_err(|error| not_known(&results.join(&experiment), &error))?,
        };
        let Some(newest) = newest else {
            continue;
        };
        refuse_unread(&newest)?;
        if let Some((trial, origin)) = continuation(&newest, run, doomed) {
            return Err(Stop::bad_input(format!(
                "{}: trial {trial} of {}, which is unfinished, begins with the checkpoint of trial \
                 {}; finish or remove that run first, or keep this one: `--but {}`",
                shown(run),
                shown(&newest),
                origin.trial,
                origin.trial
            )));
        }
    }
    Ok(())
}

/// Refuses while the record of another run cannot be read: it may begin with these checkpoints.
fn refuse_unread(other: &RunFolder) -> Result<(), Stop> {
    let path = other.run_file();
    match input::read(&path, &RUN_FILE_BYTES) {
        Err(error) if input::is_of_system(&error) => Err(not_known(&path, &error)),
        _ => Ok(()),
    }
}

fn not_known(path: &Path, error: &io::Error) -> Stop {
    let text = format!(
        "{}: {error}; whether an unfinished run needs these checkpoints is not known",
        path.display()
    );
    Stop::new(Status::Failed, text)
}

/// An unfinished trial of `other` that has no checkpoint of its own yet, and the checkpoint of these
/// that it begins with.
fn continuation(
    other: &RunFolder,
    run: &RunFolder,
    doomed: &[TrialWeights],
) -> Option<(TrialId, Origin)> {
    let record = RunFile::read(&other.run_file()).ok()?;
    if record.continues.is_empty() {
        return None;
    }
    // A table that was changed says of no trial that it has ended.
    let table = table_of_run(other).unwrap_or_default();
    let rows = table.last_attempts();
    let mut begun = record.continues.into_iter();
    begun.find(|(trial, origin)| {
        let own = Checkpoints::new(other.checkpoints(trial), trial.clone());
        doomed.iter().any(|of| of.trial == origin.trial)
            && is_run_of(origin, run)
            && is_unfinished(other, trial, row_of(&rows, trial)).unwrap_or(true)
            && own.steps().is_empty()
    })
}

/// Whether a checkpoint is recorded as one of this run, whose path is absolute.
fn is_run_of(origin: &Origin, run: &RunFolder) -> bool {
    let recorded = expand_home(&origin.run.to_string_lossy());
    let is_it = |path: PathBuf| path == run.path();
    run.path().ends_with(&recorded) || recorded.canonicalize().is_ok_and(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_record_cannot_be_read_may_need_the_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        assert!(refuse_unread(&run).is_ok());
        std::os::unix::fs::symlink("run.json", run.run_file()).unwrap();
        assert!(refuse_unread(&run).is_err());
    }

    #[test]
    fn a_short_number_counts_trials_and_anything_else_names_them() {
        let named = |ids: &[&str]| {
            let ids = ids.iter().map(|id| (*id).to_owned());
            Ok(KeptTrials::Named(ids.collect()))
        };
        assert_eq!(KeptTrials::read("best"), Ok(KeptTrials::Best(1)));
        assert_eq!(KeptTrials::read("3"), Ok(KeptTrials::Best(3)));
        assert_eq!(KeptTrials::read("t31a, t02"), named(&["t31a", "t02"]));
        assert_eq!(KeptTrials::read("0123456789"), named(&["0123456789"]));
        assert!(KeptTrials::read("0").is_err());
    }
}
