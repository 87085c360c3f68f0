//! The layout of `results/`: paths of a run's files, and the list of runs.
//!
//! Only paths; `run_file`, `run_folder_table` and `attempt` read the content.

mod gitignore;
mod order;

use std::{
    borrow::Cow,
    collections::HashSet,
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use rustix::{fs::FileType, io::Errno};

use self::gitignore::{GITIGNORE, OF_RUN_IGNORED, write_gitignore, write_gitignore_of_experiment};
pub use self::order::{in_order, is_run_name};
use super::attempt::attempts;
use crate::{
    folder::{self, Folder, named, system_error},
    input,
    limits::RUN_FILE_BYTES,
    patience::patiently,
    plan::TrialId,
};

/// The link to the newest run of an experiment.
pub use crate::spec::LATEST;
/// Name of the folder that the attempts of a trial share.
pub(super) const CHECKPOINTS: &str = "checkpoint";
/// File of an attempt with the texts of `train.sample`.
pub const SAMPLE_TEXTS: &str = "sample.txt";
/// Stands between two of them. Source: nanoGPT's `sample.py`.
pub const BETWEEN_TEXTS: &str = "---------------\n";
/// Answers to validation prompts, in an attempt's folder.
pub const RESPONSES: &str = "responses.jsonl";
/// The input of a trial's child, in the trial's folder; where several launches work on a run, in
/// that of the attempt.
pub const TRIAL_YAML: &str = "trial.yaml";
/// Prefix of a run in creation; it is renamed once its first files exist.
const UNBORN: &str = ".new-";

/// The record of a run; a folder with none of these holds no run.
const RECORD: [&str; 5] = [
    "run.json",
    "trials.csv",
    "experiment.yaml",
    "queue",
    "launches",
];
/// Parts of a run that git ignores, and leaves in place when it takes the record away.
const IGNORED_PARTS: [&str; 2] = ["trials", "samples.csv"];

/// One run's folder: `results/<name>/<UTC>-<git short>/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// Opens a folder that already exists.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Opens the folder to write its files. It may be a link, where a user moved it to another disk;
    /// no link below it is followed.
    ///
    /// # Errors
    /// It is missing, or not a folder.
    pub fn open(&self) -> io::Result<Folder> {
        Folder::follow(&self.0)
    }

    /// This run by an absolute path. Links in it are resolved, but for one in place of a run that was
    /// moved elsewhere: the run's experiment is the folder in which that link lies.
    ///
    /// # Errors
    /// The folder cannot be found.
    pub fn in_experiment(&self) -> io::Result<Self> {
        let latest = match self.0.ends_with(LATEST) {
            true => fs::read_link(&self.0).ok(),
            false => None,
        };
        let linked = latest.filter(|target| target.components().count() == 1);
        let run = linked.map_or_else(|| self.clone(), |name| Self(self.above().join(name)));
        match run.0.file_name() {
            Some(name) if is_run_name(&run.name()) && run.0.is_symlink() && is_moved(&run) => {
                Ok(Self(run.above().canonicalize()?.join(name)))
            }
            _ => self.0.canonicalize().map(Self),
        }
    }

    /// The folder that it lies in.
    fn above(&self) -> &Path {
        let above = self
            .0
            .parent()
            .filter(|above| !above.as_os_str().is_empty());
        above.unwrap_or(Path::new("."))
    }

    /// Writes one of its files atomically.
    ///
    /// # Errors
    /// The file or a folder on the way to it is a link, is missing, or cannot be written; the old
    /// file then stays unchanged.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = folder::split(path)?;
        self.open_below(folder)?.write_whole(name, bytes)
    }

    /// Writes one of its files, which other processes may write too ([`Folder::write_among_others`]).
    ///
    /// # Errors
    /// As [`RunFolder::write`].
    pub fn write_among_others(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = folder::split(path)?;
        self.open_below(folder)?.write_among_others(name, bytes)
    }

    /// Opens one of its files to read.
    ///
    /// # Errors
    /// The file or a folder on the way to it is a link, or is missing, or cannot be opened.
    pub(super) fn read_file(&self, path: &Path) -> io::Result<fs::File> {
        let (folder, name) = folder::split(path)?;
        self.open_below(folder)?.read(name)
    }

    /// Creates the folder of an attempt that has none, and those above it.
    ///
    /// # Errors
    /// It exists, one above it is a link, or it cannot be created.
    pub fn make_attempt(&self, trial: &TrialId, attempt: u64) -> io::Result<PathBuf> {
        let path = self.attempt(trial, attempt);
        let (above, name) = folder::split(&path)?;
        let below = self.relative(above)?;
        self.open()?.make_folder(below)?.make_new_folder(name)?;
        Ok(path)
    }

    /// Creates the folder that the attempts of a trial share, if it is missing, and those above it.
    ///
    /// # Errors
    /// One of them is a link, or cannot be created.
    pub fn make_checkpoints(&self, trial: &TrialId) -> io::Result<()> {
        let path = self.checkpoints(trial);
        let below = self.relative(&path)?;
        self.open()?.make_folder(below).map(drop)
    }

    /// Opens the folder of a trial without following a link; `None` if it is missing.
    ///
    /// # Errors
    /// It, or one above it, is a link or cannot be opened.
    pub fn open_trial(&self, trial: &TrialId) -> io::Result<Option<Folder>> {
        let path = self.trial(trial);
        match self.open_below(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Removes one of its files or folders, with everything in it, if it exists. What a link leads
    /// to stays.
    ///
    /// # Errors
    /// A folder on the way to it is a link, or it cannot be removed.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = folder::split(path)?;
        match self.open_below(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => opened?.remove(name),
        }
    }

    /// Removes the drafts that a kill left in one of its folders: files of [`Folder::write_whole`]
    /// that were not renamed. Returns the names of the other entries; none if there is no such
    /// folder.
    ///
    /// # Errors
    /// A folder on the way to it is a link, it cannot be listed, or a draft cannot be removed.
    pub fn remove_drafts(&self, folder: &Path) -> io::Result<Vec<OsString>> {
        match self.open_below(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            opened => opened?.remove_drafts(),
        }
    }

    /// Its place among the runs of its experiment; 0 in runs older than that key.
    ///
    /// # Errors
    /// Its `run.json` cannot be read; the text names the file.
    pub fn number(&self) -> Result<u64, String> {
        #[derive(serde::Deserialize)]
        struct Numbered {
            #[serde(default)]
            number: u64,
        }
        let path = self.run_file();
        let describe = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let text = input::read_text(&path, &RUN_FILE_BYTES).map_err(|error| describe(&error))?;
        let found: Numbered = serde_json::from_str(&text).map_err(|error| describe(&error))?;
        Ok(found.number)
    }

    fn open_below(&self, path: &Path) -> io::Result<Folder> {
        let below = self.relative(path)?;
        self.open()?.folder(below)
    }

    fn relative<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        path.strip_prefix(&self.0).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not below {}", path.display(), self.0.display()),
            )
        })
    }

    /// Whether the folder holds only what git ignored: a switch to another branch takes the record of
    /// a committed run away and leaves the rest.
    pub fn is_leftover(&self) -> bool {
        let has = |name: &&str| self.0.join(name).symlink_metadata().is_ok();
        is_run_name(&self.name()) && !RECORD.iter().any(has) && IGNORED_PARTS.iter().any(has)
    }

    /// The folder's own name, `<UTC>-<git short>`.
    pub fn name(&self) -> String {
        self.0
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    /// The folder of the runs that it lies in, and the name of its experiment; `None` if its path has
    /// no two folders above it.
    pub fn place(&self) -> Option<(&Path, Cow<'_, str>)> {
        let above = self.0.parent()?;
        Some((above.parent()?, above.file_name()?.to_string_lossy()))
    }

    /// Whether its experiment has no newer run: only the newest one can be resumed. True for a path
    /// that has no folder of an experiment above it.
    ///
    /// # Errors
    /// As [`runs`].
    pub fn is_newest(&self) -> io::Result<bool> {
        match self.place() {
            Some((results, experiment)) => Ok(newest(results, &experiment)?.as_ref() == Some(self)),
            None => Ok(true),
        }
    }

    /// The name of its experiment; empty if its path has none.
    pub fn experiment_name(&self) -> Cow<'_, str> {
        let place = self.place();
        place.map(|(_, experiment)| experiment).unwrap_or_default()
    }

    pub fn experiment(&self) -> PathBuf {
        self.0.join("experiment.yaml")
    }

    pub fn run_file(&self) -> PathBuf {
        self.0.join("run.json")
    }

    pub fn trials_table(&self) -> PathBuf {
        self.0.join("trials.csv")
    }

    /// The narrow table of the points, for people.
    pub fn summary_table(&self) -> PathBuf {
        self.0.join("summary.csv")
    }

    pub fn snapshots_table(&self) -> PathBuf {
        self.path().join("snapshots.csv")
    }

    /// The readable page of one launch's snapshot.
    pub fn snapshot_page(&self, launch: u64) -> PathBuf {
        self.0.join(format!("snapshot-{launch}.txt"))
    }

    /// The packages of the interpreters of one launch's programs.
    pub fn packages_list(&self, launch: u64) -> PathBuf {
        self.0.join(format!("packages-{launch}.txt"))
    }

    pub fn samples_table(&self) -> PathBuf {
        self.0.join("samples.csv")
    }

    /// Reserve file whose space is used for the last rows of a run when the disk is full.
    pub fn reserve(&self) -> PathBuf {
        self.0.join(".reserve")
    }

    pub fn trials(&self) -> PathBuf {
        self.0.join("trials")
    }

    /// Folder of a trial in a run of an older kiln, under the id without its letter.
    pub fn trial(&self, trial: &TrialId) -> PathBuf {
        let older = self.trials().join(trial.digits());
        if patiently(|| older.symlink_metadata()).is_ok_and(|found| found.is_dir()) {
            older
        } else {
            self.trials().join(&trial.0)
        }
    }

    /// The input of a trial's child; of its newest attempt, where each has its own.
    pub fn trial_file(&self, trial: &TrialId) -> PathBuf {
        let one = self.trial(trial).join(TRIAL_YAML);
        if one.is_file() {
            return one;
        }
        let own = |attempt: &u64| self.attempt(trial, *attempt).join(TRIAL_YAML);
        let newest = attempts(self, trial)
            .iter()
            .rev()
            .map(own)
            .find(|path| path.is_file());
        newest.unwrap_or(one)
    }

    pub fn attempt(&self, trial: &TrialId, attempt: u64) -> PathBuf {
        self.trial(trial).join(attempt.to_string())
    }

    /// The texts that the attempt's trained model wrote, if the experiment asks for any.
    pub fn sample_texts(&self, trial: &TrialId, attempt: u64) -> PathBuf {
        self.attempt(trial, attempt).join(SAMPLE_TEXTS)
    }

    /// The attempt's answers to validation prompts at its last evaluation, if the experiment asks
    /// for any.
    pub fn responses(&self, trial: &TrialId, attempt: u64) -> PathBuf {
        self.attempt(trial, attempt).join(RESPONSES)
    }

    /// Folder shared by the attempts of a trial.
    pub fn checkpoints(&self, trial: &TrialId) -> PathBuf {
        self.trial(trial).join(CHECKPOINTS)
    }
}

/// Creates a run's folder with its first files atomically: `fill` writes into a folder that is
/// renamed afterwards.
///
/// # Errors
/// The folder cannot be created, or `fill` failed; then nothing is left.
pub fn create(
    results: &Path,
    experiment: &str,
    stamp: &str,
    fill: impl FnOnce(&RunFolder) -> io::Result<()>,
) -> io::Result<RunFolder> {
    let parent = results.join(experiment);
    fs::create_dir_all(&parent)?;
    refuse_latest_folder(&parent)?;
    write_gitignore(results)?;
    let folder = Folder::follow(&parent)?;
    remove_unborn(&folder);
    let unborn = OsString::from(format!("{UNBORN}{stamp}"));
    folder.make_new_folder(&unborn)?;
    let run = RunFolder(parent.join(&unborn));
    let ignored = run.write(&run.path().join(GITIGNORE), OF_RUN_IGNORED);
    let made = ignored.and_then(|()| fill(&run)).and_then(|()| {
        run.open()?.sync()?;
        write_gitignore_of_experiment(&parent)?;
        let named = free_name(&parent, stamp);
        folder.rename(&unborn, named.file_name().unwrap_or_default())?;
        Ok(RunFolder(named))
    });
    let made = made.inspect_err(|_| {
        let _ = folder.remove(&unborn);
    })?;
    point_latest(&folder, &made.name())?;
    sync_all(results, &folder)?;
    Ok(made)
}

/// Waits until the names of the run's folder, of the experiment's and of the results' are on the
/// disk.
fn sync_all(results: &Path, folder: &Folder) -> io::Result<()> {
    folder.sync()?;
    Folder::follow(results)?.sync()?;
    match results.parent() {
        Some(above) => Folder::follow(above)?.sync(),
        None => Ok(()),
    }
}

/// Makes `latest` point to a run if it does not yet: the link may have been deleted, or dangle.
///
/// # Errors
/// The link cannot be created, or a folder of that name exists.
pub fn repair_latest(run: &RunFolder) -> io::Result<()> {
    let parent = run.0.parent().unwrap_or(Path::new(""));
    refuse_latest_folder(parent)?;
    match fs::read_link(parent.join(LATEST)) {
        Ok(target) if target == Path::new(&run.name()) => Ok(()),
        _ => point_latest(&Folder::follow(parent)?, &run.name()),
    }
}

/// Brings the `.gitignore` above a run that is resumed up to date, if an older version wrote it.
pub fn update_gitignore(run: &RunFolder) {
    if let Some(results) = run.0.parent().and_then(Path::parent) {
        gitignore::update_gitignore(results);
    }
}

/// Removes a run and everything in it; what links lead to stays. `latest` then points to the newest
/// run that is left, or is gone.
///
/// The run disappears at once: it is renamed first, and the next launch removes what a kill left.
///
/// # Errors
/// The folder above it is not writable or cannot be listed, or one entry cannot be removed.
pub fn remove(run: &RunFolder) -> io::Result<()> {
    let (parent, name) = folder::split(&run.0)?;
    refuse_latest_folder(parent)?;
    let folder = Folder::follow(parent)?;
    let mut left = match (parent.parent(), parent.file_name()) {
        (Some(results), Some(experiment)) => runs(results, &experiment.to_string_lossy())?,
        _ => Vec::new(),
    };
    left.retain(|other| other.0.file_name() != Some(name));
    let mut gone = OsString::from(UNBORN);
    gone.push(name);
    folder.rename(name, &gone)?;
    match left.last() {
        Some(newest) => repair_latest(newest)?,
        None => folder.remove(LATEST.as_ref())?,
    }
    folder.sync()?;
    folder.remove(&gone)
}

/// The runs of one experiment, oldest first: by the number in `run.json`, then by name. A run whose
/// number cannot be read has its place by the time in its name. A run without `run.json` is
/// recognized by its name; one without any record is a leftover and no run. None if the experiment
/// has no folder.
///
/// # Errors
/// The folder cannot be listed; the text names it.
pub fn runs(results: &Path, experiment: &str) -> io::Result<Vec<RunFolder>> {
    let runs = unordered_runs(results, experiment)?;
    // A single run needs no order, and no file is read.
    if runs.len() < 2 {
        return Ok(runs);
    }
    let numbered = runs.into_iter().map(|run| (run.number().ok(), run));
    Ok(in_order(numbered.collect(), |run| run))
}

/// The newest run of one experiment; `None` if it has none.
///
/// # Errors
/// As [`runs`].
pub fn newest(results: &Path, experiment: &str) -> io::Result<Option<RunFolder>> {
    Ok(runs(results, experiment)?.pop())
}

/// The runs of one experiment in any order; no file is read.
fn unordered_runs(results: &Path, experiment: &str) -> io::Result<Vec<RunFolder>> {
    let mut runs = folders(results, experiment)?;
    runs.retain(|run| !run.is_leftover());
    Ok(runs)
}

/// The folders of one experiment that hold only the leftovers of a run, by name.
///
/// # Errors
/// As [`runs`].
pub fn leftovers(results: &Path, experiment: &str) -> io::Result<Vec<RunFolder>> {
    let mut left = folders(results, experiment)?;
    left.retain(RunFolder::is_leftover);
    left.sort();
    Ok(left)
}

/// The folders of the runs of one experiment, with those of leftovers.
fn folders(results: &Path, experiment: &str) -> io::Result<Vec<RunFolder>> {
    let place = results.join(experiment);
    let folder = match Folder::follow(&place) {
        Err(error) if input::is_absent(&error) => return Ok(Vec::new()),
        folder => folder?,
    };
    let mut found = Vec::new();
    for name in folder.names()? {
        let run = RunFolder(place.join(&name));
        if run.name().starts_with('.') || run.name() == LATEST {
            continue;
        }
        let is_named = is_run_name(&run.name());
        let is_run = match folder.kind(&name)? {
            Some(FileType::Directory) => is_named || has_run_file(&run)?,
            Some(FileType::Symlink) => is_named && is_moved(&run),
            _ => false,
        };
        if is_run {
            found.push(run);
        }
    }
    Ok(found)
}

/// Whether a link with a run's name stands for a run that was moved elsewhere, such as to another
/// disk, which may not be there now. It is not a second name of a run beside it.
fn is_moved(link: &RunFolder) -> bool {
    let Ok(target) = link.0.canonicalize() else {
        return true;
    };
    let beside = link.above().canonicalize().ok();
    target.is_dir() && target.parent() != beside.as_deref()
}

/// Whether a folder without a run's name has the record of one; a folder that is closed to this user
/// has none.
fn has_run_file(run: &RunFolder) -> io::Result<bool> {
    let path = run.run_file();
    match input::find(&path) {
        Ok(found) => Ok(found.is_some_and(|found| found.is_file())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(named(&path, error)),
    }
}

/// The number for one more run of an experiment.
///
/// # Errors
/// As [`runs`].
pub fn next_number(results: &Path, experiment: &str) -> io::Result<u64> {
    let runs = unordered_runs(results, experiment)?;
    let numbers = runs.iter().filter_map(|run| run.number().ok());
    Ok(numbers.max().unwrap_or(0) + 1)
}

/// The folder that ext4 makes on each disk, closed to users.
const LOST_AND_FOUND: &str = "lost+found";

/// The names of the experiments that have a folder under `results`, sorted.
///
/// # Errors
/// `results` cannot be listed, or it cannot be told whether an entry is a folder.
pub fn experiments(results: &Path) -> io::Result<Vec<String>> {
    let entries = patiently(|| fs::read_dir(results)?.collect::<io::Result<Vec<fs::DirEntry>>>())?;
    // Also one that is kept on another disk, behind a link; not a second name of one.
    let mut found: Vec<(bool, String, PathBuf)> = Vec::new();
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == LOST_AND_FOUND {
            continue;
        }
        if let Some(place) = real_folder(&path).map_err(|error| named(&path, error))? {
            found.push((path.is_symlink(), name, place));
        }
    }
    found.sort();
    let mut known = HashSet::new();
    found.retain(|(.., place)| known.insert(place.clone()));
    let mut names: Vec<String> = found.into_iter().map(|(_, name, _)| name).collect();
    names.sort();
    Ok(names)
}

/// The path without links, if it leads to a folder.
fn real_folder(path: &Path) -> io::Result<Option<PathBuf>> {
    match input::find(path) {
        Ok(Some(found)) if found.is_dir() => path.canonicalize().map(Some),
        Ok(_) => Ok(None),
        // A link that leads to itself.
        Err(error) if system_error(&error) == Some(Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Folders whose creation was interrupted; the caller holds the experiment's lock, so no other
/// process uses them.
fn remove_unborn(folder: &Folder) {
    for name in folder.names().unwrap_or_default() {
        if name.to_string_lossy().starts_with(UNBORN) {
            let _ = folder.remove(&name);
        }
    }
}

fn free_name(parent: &Path, stamp: &str) -> PathBuf {
    let mut path = parent.join(stamp);
    for again in 2_u32.. {
        if !path.exists() {
            break;
        }
        path = parent.join(format!("{stamp}-{again}"));
    }
    path
}

fn point_latest(folder: &Folder, name: &str) -> io::Result<()> {
    let link = OsString::from(format!("{UNBORN}{LATEST}"));
    folder.remove(&link)?;
    folder.link(name.as_ref(), &link)?;
    folder.rename(&link, LATEST.as_ref())?;
    folder.sync()
}

/// A folder in place of the link, which some copy tools create, or somebody's file, is not deleted.
fn refuse_latest_folder(parent: &Path) -> io::Result<()> {
    match fs::symlink_metadata(parent.join(LATEST)) {
        Ok(found) if found.is_dir() => {
            let message = format!(
                "`{LATEST}` is a folder and not kiln's link to the newest run; move it away"
            );
            Err(io::Error::new(io::ErrorKind::IsADirectory, message))
        }
        Ok(found) if !found.is_symlink() => {
            let message =
                format!("`{LATEST}` is a file and not kiln's link to the newest run; move it away");
            Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
