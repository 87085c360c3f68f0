//! Files that appear whole: a draft beside the file is written, synced and renamed over it.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    path::Path,
};

use rustix::fs::{AtFlags, FileType};

use super::{Folder, draft::Draft, split};
use crate::patience::patiently;

/// Gives the content of a file in pieces.
pub type Fill<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

/// End of the name of a draft, which begins with a dot.
const DRAFT: &str = ".new";

impl Folder {
    /// Writes a file atomically: a temporary file beside it, synced, then renamed over it; then the
    /// folder is synced.
    ///
    /// # Errors
    /// The folder is not writable or full; the old file then stays unchanged and the temporary file
    /// is removed. An error of the last sync leaves the new file.
    pub fn write_whole(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.write_by(&temporary(name), name, bytes)
    }

    /// Writes a file by a temporary one of this name.
    fn write_by(&self, temporary: &OsStr, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        let written = self.new_file(temporary).and_then(|mut file| {
            file.write_all(bytes)
                .map_err(|error| self.in_words(name, error))?;
            Ok(file)
        });
        self.put_in_place(temporary, name, written)
    }

    /// The same for a file that several processes may write, on this host or others: the last one
    /// counts, and none disturbs another. A file that has this content stays as it is.
    ///
    /// # Errors
    /// As [`Folder::write_whole`].
    pub fn write_among_others(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.fill_among_others(name, &mut |file| file.write_all(bytes))
    }

    /// The same of a content that `fill` gives in pieces, so that nobody needs to hold the whole.
    ///
    /// # Errors
    /// As [`Folder::write_whole`]; what `fill` returns.
    pub fn fill_among_others(&self, name: &OsStr, fill: Fill<'_>) -> io::Result<()> {
        let temporary = own_temporary(name);
        // What cannot be read (a link, or nothing) is replaced.
        let mut draft = Draft::new(self, &temporary, self.read(name).ok());
        let mut filled = fill(&mut draft).and_then(|()| draft.finish());
        if filled.is_err() && draft.is_lost() {
            draft = Draft::new(self, &temporary, None);
            filled = fill(&mut draft).and_then(|()| draft.finish());
        }
        let written = match filled {
            Ok(None) => return Ok(()),
            Ok(Some(file)) => Ok(file),
            // One that names its file says where.
            Err(error) if error.raw_os_error().is_none() => Err(error),
            Err(error) => Err(self.in_words(name, error)),
        };
        match self.put_in_place(&temporary, name, written) {
            // The same, where another process has replaced it since.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && self.kind(name)? == Some(FileType::RegularFile) =>
            {
                self.sync()
            }
            written => written,
        }
    }

    /// Renames a draft that was written, or removes one that was not.
    fn put_in_place(
        &self,
        temporary: &OsStr,
        name: &OsStr,
        written: io::Result<File>,
    ) -> io::Result<()> {
        let synced = written.and_then(|file| {
            file.sync_all()
                .map_err(|error| self.in_words(name, error))?;
            Ok(file)
        });
        let rename = || self.rename(temporary, name);
        let renamed = synced.and_then(|file| match patiently(rename) {
            // A file server may rename it, lose the reply, and miss the old name when asked again.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.has(name, &file) => {
                Ok(())
            }
            renamed => renamed,
        });
        renamed.inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&self.handle, temporary, AtFlags::empty());
        })?;
        self.sync()
    }

    /// Removes the files that a kill left before [`Folder::write_whole`] could rename them, and
    /// returns the names of the other entries.
    ///
    /// # Errors
    /// It cannot be listed, or one cannot be removed.
    pub fn remove_drafts(&self) -> io::Result<Vec<OsString>> {
        let (drafts, mut others): (Vec<_>, Vec<_>) =
            self.names()?.into_iter().partition(|name| is_draft(name));
        for name in drafts {
            if self.kind(&name)? == Some(FileType::Directory) {
                others.push(name);
            } else {
                self.remove(&name)?;
            }
        }
        Ok(others)
    }
}

/// Writes a file atomically, as [`Folder::write_whole`] does, into a folder that may be a link.
///
/// # Errors
/// The folder is missing, not writable or full; the old file then stays unchanged.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = split(path)?;
    Folder::follow(folder)?.write_whole(name, bytes)
}

/// The same for a file that several processes may write at once: the last one counts, and none
/// disturbs another.
///
/// # Errors
/// As [`write_whole`].
pub fn write_among_others(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = split(path)?;
    Folder::follow(folder)?.write_by(&own_temporary(name), name, bytes)
}

/// Name of the temporary file of [`Folder::write_whole`]; a kill may leave it.
fn temporary(name: &OsStr) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(DRAFT);
    hidden
}

/// The same, with a part that no other process has.
fn own_temporary(name: &OsStr) -> OsString {
    let mut own = name.to_owned();
    own.push(format!(".{:08x}", fastrand::u32(..)));
    temporary(&own)
}

fn is_draft(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    text.starts_with('.') && text.ends_with(DRAFT)
}
