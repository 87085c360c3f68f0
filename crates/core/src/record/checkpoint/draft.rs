//! A checkpoint while it is written.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;
use serde_json::Value;

use super::header::{CHECKPOINT, Header, content};
use crate::{
    folder::{self, Folder},
    patience::patiently,
    plan::TrialId,
};

/// A checkpoint in progress: its files go into [`Draft::folder`], then [`Draft::finish`] makes it a
/// checkpoint. A draft dropped earlier leaves nothing.
#[derive(Debug)]
pub struct Draft {
    pub(super) trial: TrialId,
    pub(super) step: u64,
    pub(super) folder: PathBuf,
}

impl Draft {
    /// The folder for its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Syncs the files, writes the header, and renames the draft to a checkpoint; returns its size
    /// in bytes.
    ///
    /// # Errors
    /// A file cannot be read or synced; then no checkpoint exists.
    pub fn finish(self, valid_loss: Option<f64>, training: Value) -> io::Result<u64> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let file = File::open(&path)?;
            file.sync_all()?;
            files.insert(
                path.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                content(file)?,
            );
        }
        let bytes = files.values().map(|content| content.bytes).sum();
        let mut header = Header {
            kiln_checkpoint: CHECKPOINT,
            trial: self.trial.clone(),
            step: self.step,
            valid_loss,
            files,
            training,
            header_sha256: None,
        };
        header.write(&self.folder)?;
        let (above, name) = folder::split(&self.folder)?;
        let place = Folder::open(above)?;
        let finished = self.step.to_string();
        match patiently(|| place.rename(name, finished.as_ref())) {
            // Another attempt has just made the same one.
            Err(_) if place.kind(finished.as_ref())? == Some(FileType::Directory) => {}
            renamed => renamed?,
        }
        place.sync()?;
        Ok(bytes)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // A finished draft has been renamed. A folder that cannot be removed here is swept later.
        let _ =
            folder::split(&self.folder).and_then(|(above, name)| Folder::open(above)?.remove(name));
    }
}
