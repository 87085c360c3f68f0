//! Saves and restores the checkpoints of one trial: `trials/<id>/checkpoint/<step>/`. The child
//! defines their content; this module makes each checkpoint atomic, and decides which one is usable
//! and which ones are kept.
//!
//! A checkpoint is built in a folder whose name begins with a dot, synced, then renamed; deletion
//! reverses these steps. A folder with such a name after a kill is not a checkpoint.

pub mod aside;
mod draft;
mod header;
mod mark;
pub mod removal;

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    folder::{self, Folder},
    input,
    limits::STATE_BYTES,
    plan::TrialId,
};
pub use draft::Draft;
pub use header::{CHECKPOINT, FileContent, HEADER, Header};
use header::{Unusable, check, content_sum, header};
pub use mark::removal_in;

/// The file of a checkpoint with parameters and running statistics.
pub const MODEL_FILE: &str = "model.safetensors";

/// Suffix after the step of an unusable checkpoint.
const REFUSED: &str = "refused";
/// Waits between tries to read one that the system could not read.
const UNREAD_AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

/// A checkpoint whose files are unchanged since they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct UsableCheckpoint {
    pub header: Header,
    pub folder: PathBuf,
}

/// A checkpoint by its header alone; its files are not read.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedCheckpoint {
    /// Optimizer updates made.
    pub step: u64,
    /// Validation loss after that step, if there was an evaluation.
    pub valid_loss: Option<f64>,
    pub folder: PathBuf,
}

/// The folder of a trial's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    trial: TrialId,
    /// The attempt that writes and deletes; 0 if it is the launch.
    attempt: u64,
}

impl Checkpoints {
    pub fn new(folder: PathBuf, trial: TrialId) -> Self {
        Self {
            folder,
            trial,
            attempt: 0,
        }
    }

    /// The same for an attempt, whose unfinished ones bear its number.
    #[must_use]
    pub fn by(self, attempt: u64) -> Self {
        Self { attempt, ..self }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Begins the checkpoint after `step`; `None` if it already exists.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn begin(&self, step: u64) -> io::Result<Option<Draft>> {
        let finished = self.at(step);
        if finished.exists() {
            return Ok(None);
        }
        let (above, name) = folder::split(&self.folder)?;
        let place = Folder::open(above)?.make_folder(Path::new(name))?;
        let draft = self.unfinished(step, "new");
        place.make_new_folder(&draft)?;
        Ok(Some(Draft {
            trial: self.trial.clone(),
            step,
            folder: self.folder.join(draft),
        }))
    }

    /// Returns the newest checkpoint that is unchanged and that `understood` can read, and why
    /// newer ones are not usable.
    ///
    /// An unusable one is renamed (`500.refused`). Incomplete ones stay ([`Checkpoints::sweep`]): an
    /// attempt of another worker may be writing them.
    ///
    /// # Errors
    /// One cannot be renamed, or the system could not read it, which says nothing about its content;
    /// one is of a newer format, which is no damage; or a link or a file stands in place of the folder.
    pub fn newest<T>(
        &self,
        understood: impl Fn(UsableCheckpoint) -> Result<T, String>,
    ) -> io::Result<(Option<T>, Vec<String>)> {
        self.check_folder()?;
        let mut refused = Vec::new();
        for step in self.steps().into_iter().rev() {
            let found = self.read_patiently(step);
            match found.and_then(|found| understood(found).map_err(Unusable::Content)) {
                Ok(found) => return Ok((Some(found), refused)),
                Err(Unusable::Unread(cause)) => return Err(self.unread_at(step, &cause)),
                Err(Unusable::Newer(why)) => {
                    return Err(io::Error::other(format!(
                        "the checkpoint {}: {why}",
                        self.at(step).display()
                    )));
                }
                Err(Unusable::Content(reason)) => {
                    refused.push(format!(
                        "the checkpoint of step {step} is not usable and was renamed to \
                         `{step}.{REFUSED}`: {reason}"
                    ));
                    self.put_aside(step)?;
                }
            }
        }
        let removal = self.folder.parent().and_then(removal_in);
        let what = match removal.filter(|_| refused.is_empty()) {
            Some(removal) => format!("the checkpoints in {} {removal}", self.folder.display()),
            None if refused.is_empty() => return Ok((None, refused)),
            None => format!("no checkpoint in {} is usable", self.folder.display()),
        };
        refused.push(format!("{what}: the trial starts from the beginning"));
        Ok((None, refused))
    }

    /// Reads it again where the system could not. `patiently` ends after a second, which the hash of a large
    /// file takes.
    fn read_patiently(&self, step: u64) -> Result<UsableCheckpoint, Unusable> {
        for wait in UNREAD_AGAIN {
            match self.read(step) {
                Err(Unusable::Unread(_)) => thread::sleep(wait),
                read => return read,
            }
        }
        self.read(step)
    }

    fn unread_at(&self, step: u64, cause: &io::Error) -> io::Error {
        let path = self.at(step);
        io::Error::new(
            cause.kind(),
            format!(
                "the checkpoint {} could not be read now: {cause}",
                path.display()
            ),
        )
    }

    /// Adds the result of an evaluation to the checkpoint of a step, if the evaluation came after
    /// the checkpoint; `training` updates its part of the header. Does nothing if the checkpoint is
    /// absent or already has a loss.
    ///
    /// # Errors
    /// The header cannot be read or written; the old one is then untouched.
    pub fn amend(
        &self,
        step: u64,
        valid_loss: f64,
        training: impl FnOnce(&mut Value),
    ) -> io::Result<()> {
        let folder = self.at(step);
        if !folder.exists() {
            return Ok(());
        }
        let mut header = header(&folder).map_err(|why| io::Error::other(why.to_string()))?;
        if header.valid_loss.is_some() {
            return Ok(());
        }
        header.valid_loss = Some(valid_loss);
        training(&mut header.training);
        header.write(&folder)
    }

    /// Deletes all but this many of the newest; the one with the lowest validation loss also stays
    /// if requested.
    ///
    /// # Errors
    /// One cannot be deleted.
    pub fn keep(&self, newest: u64, with_best: bool) -> io::Result<()> {
        let steps = self.steps();
        let best = if with_best {
            self.lowest().map(|(_, step)| step)
        } else {
            None
        };
        let old = steps
            .len()
            .saturating_sub(usize::try_from(newest).unwrap_or(usize::MAX));
        // The best may be one whose loss cannot be read now, or not by this kiln.
        let is_unread = |step| {
            let found = header(&self.at(step));
            matches!(found, Err(Unusable::Unread(_) | Unusable::Newer(_)))
        };
        steps[..old]
            .iter()
            .filter(|step| best != Some(**step) && !is_unread(**step))
            .try_for_each(|step| self.remove(*step))
    }

    /// Deletes all of them, so that a new attempt starts from the beginning.
    ///
    /// # Errors
    /// One cannot be deleted.
    pub fn delete(&self) -> io::Result<()> {
        self.steps()
            .into_iter()
            .try_for_each(|step| self.remove(step))?;
        let (above, name) = folder::split(&self.folder)?;
        match Folder::open(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => opened?.remove(name),
        }
    }

    /// The steps that have a checkpoint, in order.
    pub fn steps(&self) -> Vec<u64> {
        let Ok(Some(names)) = self
            .open()
            .and_then(|place| place.map(|it| it.names()).transpose())
        else {
            return Vec::new();
        };
        // Only kiln's own spelling counts: kiln never writes `007`.
        let step = |name: &str| {
            name.parse()
                .ok()
                .filter(|step: &u64| step.to_string() == name)
        };
        let mut steps: Vec<u64> = names
            .iter()
            .filter_map(|name| step(name.to_str()?))
            .collect();
        steps.sort_unstable();
        steps
    }

    /// Optimizer updates of the newest checkpoint, by its name alone.
    pub fn newest_step(&self) -> Option<u64> {
        self.steps().last().copied()
    }

    /// The checkpoint whose weights are the trial's result: the one with the lowest validation
    /// loss, else the newest. Changes nothing; a header that cannot be read is passed over.
    pub fn result(&self) -> Option<ListedCheckpoint> {
        let listed = |step| {
            let folder = self.at(step);
            let valid_loss = header(&folder).ok()?.valid_loss;
            Some(ListedCheckpoint {
                step,
                valid_loss,
                folder,
            })
        };
        let newest = || self.steps().into_iter().rev().find_map(listed);
        match self.lowest() {
            Some((_, step)) => listed(step),
            None => newest(),
        }
    }

    /// Why the newest of those whose header the system cannot read now cannot be read; `None` if all can.
    pub fn unread(&self) -> Option<io::Error> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Unread(cause) => Some(self.unread_at(step, &cause)),
            Unusable::Content(_) | Unusable::Newer(_) => None,
        })
    }

    /// Why the newest of those whose header is damaged, or of another version, cannot be used; `None` if
    /// there is none.
    pub fn damaged(&self) -> Option<String> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Content(why) | Unusable::Newer(why) => {
                Some(format!("the checkpoint of step {step}: {why}"))
            }
            Unusable::Unread(_) => None,
        })
    }

    /// Why the newest of those that a newer kiln wrote cannot be used; `None` if there is none.
    pub fn newer(&self) -> Option<String> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Newer(why) => Some(format!("the checkpoint of step {step}: {why}")),
            Unusable::Unread(_) | Unusable::Content(_) => None,
        })
    }

    /// Looks at the headers that cannot be used, the newest first; returns the first answer of `of`.
    fn newest_fault<T>(&self, of: impl Fn(u64, Unusable) -> Option<T>) -> Option<T> {
        let mut steps = self.steps().into_iter().rev();
        steps.find_map(|step| of(step, header(&self.at(step)).err()?))
    }

    /// The checkpoint of a step, of whose files only `needed` are checked. Changes nothing.
    ///
    /// # Errors
    /// The reason why it cannot be used: there is none, it is another trial's, or one of these
    /// files is missing or has changed.
    pub fn usable(&self, step: u64, needed: &[&str]) -> Result<UsableCheckpoint, String> {
        self.read_files(step, &|name| needed.contains(&name))
            .map_err(|why| why.to_string())
            .and_then(|found| {
                let missing = needed
                    .iter()
                    .find(|name| !found.header.files.contains_key(**name));
                match missing {
                    Some(name) => Err(format!("{HEADER} does not list {name}")),
                    None => Ok(found),
                }
            })
    }

    /// The newest checkpoint whose files are all unchanged, with the SHA-256 of its header without times,
    /// which is the same of a training that is repeated. Changes nothing.
    ///
    /// # Errors
    /// The reasons why those that exist cannot be used; empty if there is none.
    pub fn newest_whole(&self) -> Result<(UsableCheckpoint, String), Vec<String>> {
        let mut refused = Vec::new();
        for step in self.steps().into_iter().rev() {
            let read = || self.read(step).map_err(|why| why.to_string());
            let sum = self
                .header_bytes(step)
                .and_then(|bytes| content_sum(&bytes));
            let whole = sum.and_then(|sum| Ok((read()?, sum)));
            match whole {
                Ok(found) => return Ok(found),
                Err(why) => refused.push(format!("the checkpoint of step {step}: {why}")),
            }
        }
        Err(refused)
    }

    /// The checkpoint of a step whose header has this SHA-256, without its times or (as earlier versions
    /// recorded it) with them, and whose files are unchanged.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn with_sum(&self, step: u64, sha256: &str) -> Result<UsableCheckpoint, String> {
        let bytes = self.header_bytes(step)?;
        let found = content_sum(&bytes)?;
        if found != sha256 && hex::encode(Sha256::digest(&bytes)) != sha256 {
            return Err(format!(
                "{HEADER} has SHA-256 {found}, and should have {sha256}"
            ));
        }
        self.read(step).map_err(|why| why.to_string())
    }

    fn header_bytes(&self, step: u64) -> Result<Vec<u8>, String> {
        input::read(&self.at(step).join(HEADER), &STATE_BYTES)
            .map_err(|error| format!("{HEADER}: {error}"))
    }

    /// The lowest validation loss among the checkpoints.
    pub fn lowest_loss(&self) -> Option<f64> {
        self.lowest().map(|(loss, _)| loss)
    }

    fn lowest(&self) -> Option<(f64, u64)> {
        let losses = self
            .steps()
            .into_iter()
            .filter_map(|step| Some((header(&self.at(step)).ok()?.valid_loss?, step)));
        losses.min_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    fn at(&self, step: u64) -> PathBuf {
        self.folder.join(step.to_string())
    }

    fn read(&self, step: u64) -> Result<UsableCheckpoint, Unusable> {
        self.read_files(step, &|_| true)
    }

    /// Checks the files that are `wanted`.
    fn read_files(
        &self,
        step: u64,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<UsableCheckpoint, Unusable> {
        let folder = self.at(step);
        let header = header(&folder)?;
        if header.trial != self.trial {
            return Err(Unusable::Content(format!(
                "it belongs to trial {}, but this is trial {}",
                header.trial, self.trial
            )));
        }
        if header.step != step {
            return Err(Unusable::Content(format!(
                "its header says step {}",
                header.step
            )));
        }
        header
            .files
            .iter()
            .filter(|(name, _)| wanted(name))
            .try_for_each(|(name, expected)| check(&folder.join(name), name, expected))?;
        Ok(UsableCheckpoint { header, folder })
    }

    /// Checks that a link or a file does not stand in place of the folder.
    ///
    /// # Errors
    /// One does; the text names it.
    pub fn check_folder(&self) -> io::Result<()> {
        self.open().map(|_| ())
    }

    /// The folder, without following a link in its place; `None` if it is missing.
    fn open(&self) -> io::Result<Option<Folder>> {
        match Folder::open(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Deletes a checkpoint after a rename to a name that is not a checkpoint's.
    fn remove(&self, step: u64) -> io::Result<()> {
        let doomed = self.unfinished(step, "old");
        self.rename(step, &doomed)?;
        Folder::open(&self.folder)?.remove(&doomed)
    }

    fn put_aside(&self, step: u64) -> io::Result<()> {
        self.rename(step, format!("{step}.{REFUSED}").as_ref())
    }

    /// Gives a checkpoint another name, unless another attempt has removed it; an entry that has that
    /// name is removed.
    fn rename(&self, step: u64, name: &OsStr) -> io::Result<()> {
        let place = Folder::open(&self.folder)?;
        place.remove(name)?;
        match place.rename(step.to_string().as_ref(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// Removes checkpoints that are partly written or partly deleted, which a kill leaves. No other
    /// attempt of the trial may be at work.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn sweep(&self) -> io::Result<()> {
        self.sweep_all(&|_| true)
    }

    /// The same of those of its own attempt, which must have ended; others may be at work.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn sweep_own(&self) -> io::Result<()> {
        let own = format!(".{}-", self.attempt);
        self.sweep_all(&|name| name.contains(&own))
    }

    fn sweep_all(&self, is_meant: &dyn Fn(&str) -> bool) -> io::Result<()> {
        let Some(place) = self.open()? else {
            return Ok(());
        };
        let names = place.names()?;
        let unfinished = names.iter().filter(|name| {
            let name = name.to_string_lossy();
            name.starts_with('.') && is_meant(&name)
        });
        unfinished
            .into_iter()
            .try_for_each(|name| place.remove(name))
    }

    /// A name for a checkpoint that is being written or deleted, which no other attempt has: a worker
    /// that was out of reach may still train beside the one that has its ticket now.
    fn unfinished(&self, step: u64, what: &str) -> OsString {
        let (attempt, random) = (self.attempt, fastrand::u32(..));
        OsString::from(format!(".{step}.{attempt}-{random:08x}.{what}"))
    }
}

#[cfg(test)]
mod tests;
