//! Saves and restores the checkpoints of one trial: `trials/<id>/checkpoint/<step>/`. The child
//! defines their content; this module makes each checkpoint atomic, and decides which one is usable
//! and which ones are kept.
//!
//! A checkpoint is built in a folder whose name begins with a dot, synced, then renamed; deletion
//! reverses these steps. A folder with such a name after a kill is not a checkpoint.

pub mod aside;
mod draft;
mod header;
mod listing;
mod mark;
pub mod removal;

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    folder::{self, Folder, may_be_read_later, system_error},
    input,
    limits::STATE_BYTES,
    patience::again_after,
    plan::TrialId,
};
pub use draft::Draft;
pub use header::{CHECKPOINT, FileContent, HEADER, Header, Unusable};
use header::{check, content_sum, header};
pub use listing::Listing;
use listing::unread_at;
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
    /// The folder cannot be made, or it cannot be told whether the checkpoint exists.
    pub fn begin(&self, step: u64) -> io::Result<Option<Draft>> {
        let finished = self.at(step);
        if finished.try_exists()? {
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
    /// one is of a newer format, which is no damage; the folder cannot be listed, or a link or a file
    /// stands in its place.
    pub fn newest<T>(
        &self,
        understood: impl Fn(UsableCheckpoint) -> Result<T, String>,
    ) -> io::Result<(Option<T>, Vec<String>)> {
        let mut refused = Vec::new();
        for step in self.listed_patiently()?.into_iter().rev() {
            let found = self.read_patiently(step);
            match found.and_then(|found| understood(found).map_err(Unusable::Content)) {
                Ok(found) => return Ok((Some(found), refused)),
                Err(Unusable::Unread(cause)) => return Err(unread_at(&self.at(step), &cause)),
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

    /// Reads it again where the system could not.
    fn read_patiently(&self, step: u64) -> Result<UsableCheckpoint, Unusable> {
        let is_unread = |why: &Unusable| matches!(why, Unusable::Unread(_));
        again_after(&UNREAD_AGAIN, is_unread, || self.read(step))
    }

    /// Lists them again where the system could not.
    fn listed_patiently(&self) -> io::Result<Vec<u64>> {
        let is_unread = |error: &io::Error| system_error(error).is_some();
        again_after(&UNREAD_AGAIN, is_unread, || self.listed())
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
        if !folder.try_exists()? {
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
    /// if requested. One that cannot be read now stays, and so do all if they cannot be listed.
    ///
    /// # Errors
    /// One cannot be deleted.
    pub fn keep(&self, newest: u64, with_best: bool) -> io::Result<()> {
        match self.listing() {
            Ok(listing) => self.remove_all(listing.superfluous(newest, with_best)),
            Err(_) => Ok(()),
        }
    }

    /// Deletes all but the one whose weights are the trial's result ([`Listing::result`]).
    ///
    /// # Errors
    /// One cannot be deleted, or cannot be read now and stays: it may be the result.
    pub fn keep_result(&self) -> io::Result<()> {
        let listing = self.listing()?;
        self.remove_all(listing.all_but_result())?;
        listing.unread().map_or(Ok(()), Err)
    }

    fn remove_all(&self, steps: Vec<u64>) -> io::Result<()> {
        steps.into_iter().try_for_each(|step| self.remove(step))
    }

    /// Deletes all of them, so that a new attempt starts from the beginning.
    ///
    /// # Errors
    /// One cannot be deleted.
    pub fn delete(&self) -> io::Result<()> {
        self.remove_all(self.steps())?;
        let (above, name) = folder::split(&self.folder)?;
        match Folder::open(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            opened => opened?.remove(name),
        }
    }

    /// The checkpoints with their headers, each of which is read once.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn listing(&self) -> io::Result<Listing> {
        let steps = self.listed()?.into_iter();
        let headers = steps.map(|step| (step, header(&self.at(step)))).collect();
        Ok(Listing::new(self.folder.clone(), headers))
    }

    /// The steps that have a checkpoint, in order; none if the folder cannot be listed, so it does not
    /// decide what is lost or begun anew.
    pub fn steps(&self) -> Vec<u64> {
        self.listed().unwrap_or_default()
    }

    /// The steps that have a checkpoint, in order; none if there is no folder.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn listed(&self) -> io::Result<Vec<u64>> {
        let Some(place) = self.open()? else {
            return Ok(Vec::new());
        };
        // Only kiln's own spelling counts: kiln never writes `007`.
        let step = |name: &str| {
            name.parse()
                .ok()
                .filter(|step: &u64| step.to_string() == name)
        };
        let mut steps: Vec<u64> = place
            .names()?
            .iter()
            .filter_map(|name| step(name.to_str()?))
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Optimizer updates of the newest checkpoint, by its name alone.
    pub fn newest_step(&self) -> Option<u64> {
        self.steps().last().copied()
    }

    /// The checkpoint of a step, of whose files only `needed` are checked. Changes nothing.
    ///
    /// # Errors
    /// The reason why it cannot be used: there is none, it is another trial's, or one of these
    /// files is missing, has changed, or could not be read now.
    pub fn usable(&self, step: u64, needed: &[&str]) -> Result<UsableCheckpoint, Unusable> {
        let found = self
            .read_files(step, &|name| needed.contains(&name))
            .map_err(|why| match why {
                Unusable::Unread(cause) => Unusable::Unread(unread_at(&self.at(step), &cause)),
                other => other,
            })?;
        let missing = needed
            .iter()
            .find(|name| !found.header.files.contains_key(**name));
        match missing {
            Some(name) => Err(Unusable::Content(format!("{HEADER} does not list {name}"))),
            None => Ok(found),
        }
    }

    /// The newest checkpoint whose files are all unchanged, with the SHA-256 of its header without times,
    /// which is the same of a training that is repeated. Changes nothing.
    ///
    /// # Errors
    /// The reasons why those that exist cannot be used; empty if there is none. Where the system cannot
    /// read one now, no older one is taken in its place.
    pub fn newest_whole(&self) -> Result<(UsableCheckpoint, String), Vec<Unusable>> {
        let unlisted = |error: io::Error| match may_be_read_later(&error) {
            true => vec![Unusable::Unread(error)],
            false => vec![Unusable::Content(error.to_string())],
        };
        let mut refused = Vec::new();
        for step in self.listed().map_err(unlisted)?.into_iter().rev() {
            let why = match self.whole(step) {
                Ok(found) => return Ok(found),
                Err(why) => self.named(step, why),
            };
            let is_unread = matches!(why, Unusable::Unread(_));
            refused.push(why);
            if is_unread {
                break;
            }
        }
        Err(refused)
    }

    fn whole(&self, step: u64) -> Result<(UsableCheckpoint, String), Unusable> {
        let found = self.read(step)?;
        let sum = content_sum(&self.header_bytes(step)?).map_err(Unusable::Content)?;
        Ok((found, sum))
    }

    /// Adds which checkpoint it is.
    fn named(&self, step: u64, why: Unusable) -> Unusable {
        let of_step = |why: String| format!("the checkpoint of step {step}: {why}");
        match why {
            Unusable::Unread(cause) => Unusable::Unread(unread_at(&self.at(step), &cause)),
            Unusable::Newer(why) => Unusable::Newer(of_step(why)),
            Unusable::Content(why) => Unusable::Content(of_step(why)),
        }
    }

    /// The checkpoint of a step whose header has this SHA-256, without its times or (as earlier versions
    /// recorded it) with them, and whose files are unchanged.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn with_sum(&self, step: u64, sha256: &str) -> Result<UsableCheckpoint, String> {
        let bytes = self.header_bytes(step).map_err(|why| why.to_string())?;
        let found = content_sum(&bytes)?;
        if found != sha256 && hex::encode(Sha256::digest(&bytes)) != sha256 {
            return Err(format!(
                "{HEADER} has SHA-256 {found}, and should have {sha256}"
            ));
        }
        self.read_patiently(step).map_err(|why| why.to_string())
    }

    fn header_bytes(&self, step: u64) -> Result<Vec<u8>, Unusable> {
        input::read(&self.at(step).join(HEADER), &STATE_BYTES)
            .map_err(|error| Unusable::unreadable(HEADER, &error))
    }

    /// The lowest validation loss among the checkpoints that can be read now.
    pub fn lowest_loss(&self) -> Option<f64> {
        self.listing().ok()?.lowest().map(|(loss, _)| loss)
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
