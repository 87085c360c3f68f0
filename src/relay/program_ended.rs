//! How the program of an attempt ended: `program.json`, which the relay writes for
//! `kiln run --read-again`.

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::Path,
};

use kiln_core::{folder::Folder, limits::STATE_BYTES};
use serde::{Deserialize, Serialize};

use super::{
    files::{self, FileFault},
    metrics::Measurements,
};

const FILE: &str = "program.json";
/// Its name until it is whole.
const DRAFT: &str = ".program.json.new";
/// Format of `program.json`.
pub(super) const FORMAT: u32 = 1;

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ProgramEnded {
    /// [`FORMAT`].
    pub(super) kiln_program: u32,
    /// The attempt in which it ran.
    pub(super) attempt: u64,
    /// `None` if a signal ended it, or it was told to stop.
    pub(super) exit_status: Option<i32>,
    #[serde(flatten)]
    pub(super) measured: Measurements,
    /// `None` if a line that begins or ends the window never came.
    pub(super) window_nanoseconds: Option<(u64, u64)>,
    pub(super) finds_checkpoint: bool,
    /// Bytes that it wrote to each output. The files may have fewer.
    pub(super) stdout_bytes: u64,
    pub(super) stderr_bytes: u64,
}

impl ProgramEnded {
    /// An attempt without this file cannot be read again, which is not a fault of its trial.
    pub(super) fn write(&self, folder: &Path) {
        let _ = self.write_whole(folder);
    }

    /// Not synced: a trial does not wait for the disk because of it.
    ///
    /// # Errors
    /// The folder is not writable or full; an old file then stays unchanged.
    fn write_whole(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        let folder = Folder::open(folder)?;
        let draft = OsStr::new(DRAFT);
        let written = folder
            .create(draft)
            .and_then(|mut file| file.write_all(&text));
        let renamed = written.and_then(|()| folder.rename(draft, OsStr::new(FILE)));
        renamed.inspect_err(|_| {
            let _ = folder.remove(draft);
        })
    }

    /// `None` if the file is missing, torn or of another format.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, FileFault> {
        let Some(text) = files::kept(&folder.join(FILE), &STATE_BYTES)? else {
            return Ok(None);
        };
        let ended: Option<Self> = serde_json::from_slice(&text).ok();
        Ok(ended.filter(|ended| ended.kiln_program == FORMAT))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_record_of_an_end_appears_whole() {
        let ended = ProgramEnded {
            kiln_program: FORMAT,
            attempt: 1,
            exit_status: Some(0),
            measured: Measurements {
                began: 1,
                ended: 9,
                cpu_seconds: 0.5,
                peak_memory_bytes: None,
            },
            window_nanoseconds: Some((4, 6)),
            finds_checkpoint: false,
            stdout_bytes: 3,
            stderr_bytes: 0,
        };
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = [FILE, "other"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        fs::hard_link(&file, &other).unwrap();
        ended.write(folder.path());
        assert_eq!(ProgramEnded::read(folder.path()), Ok(Some(ended.clone())));
        let text = fs::read_to_string(other).unwrap();
        assert_eq!(text, "old", "the old file was written to");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        ended.write(folder.path());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "a draft is left");
        assert_eq!(ProgramEnded::read(folder.path()), Ok(None), "a folder");
        fs::remove_dir(&file).unwrap();
        assert_eq!(ProgramEnded::read(folder.path()), Ok(None));
        std::os::unix::fs::symlink(FILE, &file).unwrap();
        assert!(ProgramEnded::read(folder.path()).is_err());
    }
}
