//! `<name>.part`: the file of a download while it grows.

use std::{
    error::Error,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use kiln_core::{folder::is_full, input, limits::STATE_BYTES};
use kiln_data::{error::DataError, source};

use super::{Download, FetchError};

/// The file while it grows, locked against a second kiln.
pub(super) struct PartFile {
    path: PathBuf,
    file: File,
    /// Number of bytes on disk.
    pub(super) done: u64,
    /// ETag of the version that is downloaded, if the server sent one.
    pub(super) etag: Option<String>,
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // A child that another thread is just starting still has the file until it becomes its
        // program.
        let _ = self.file.unlock();
    }
}

impl PartFile {
    pub(super) fn open(destination: &Path) -> Result<Self, FetchError> {
        let path = beside(destination, ".part");
        let failed = |error| FetchError::Write {
            path: path.clone(),
            error,
        };
        if let Some(folder) = destination.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .to_owned();
        let mut file = input::open_with(&path, &options).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FetchError::Busy { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let done = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let etag = input::read_text(&beside(&path, ".etag"), &STATE_BYTES)
            .ok()
            .filter(|_| done > 0);
        Ok(Self {
            path,
            file,
            done,
            etag,
        })
    }

    fn failed(&self, error: io::Error, total: Option<u64>) -> FetchError {
        let path = self.path.clone();
        if is_full(&error) {
            let done = self.done;
            return FetchError::DiskFull { path, done, total };
        }
        FetchError::Write { path, error }
    }

    /// Empties the file, and stores the ETag of the new version.
    pub(super) fn start_over(&mut self, etag: Option<String>) -> Result<(), FetchError> {
        self.done = 0;
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| match &etag {
                Some(etag) => fs::write(beside(&self.path, ".etag"), etag),
                None => remove(&beside(&self.path, ".etag")),
            });
        self.etag = etag;
        emptied.map_err(|error| self.failed(error, None))
    }

    pub(super) fn append(&mut self, bytes: &[u8], total: Option<u64>) -> Result<(), FetchError> {
        if let Err(error) = self.file.write_all(bytes) {
            // It is unknown how much of this piece was written; the next attempt resumes before it.
            let _ = self
                .file
                .set_len(self.done)
                .and_then(|()| self.file.seek(SeekFrom::Start(self.done)));
            return Err(self.failed(error, total));
        }
        self.done += bytes.len() as u64;
        Ok(())
    }

    /// Hashes the file; moves it to its destination, or aside if the hash is wrong.
    pub(super) fn finish(self, download: &Download) -> Result<(), FetchError> {
        self.file
            .sync_all()
            .map_err(|error| self.failed(error, None))?;
        // A damaged compressed file cannot be decompressed for the hash: it counts as a wrong hash.
        let summed = source::checksum_of(&self.path, &download.destination, &download.checksum);
        let found = match summed {
            Ok((sum, _)) => sum,
            Err(error) if is_of_system(&error) => {
                let path = self.path.clone();
                return Err(FetchError::Unchecked { path, error });
            }
            Err(error) => error.to_string(),
        };
        let right = found == download.checksum.hex();
        let place = if right {
            download.destination.clone()
        } else {
            beside(&download.destination, ".bad")
        };
        let placed =
            fs::rename(&self.path, &place).and_then(|()| remove(&beside(&self.path, ".etag")));
        placed.map_err(|error| FetchError::Write {
            path: place.clone(),
            error,
        })?;
        if right {
            return Ok(());
        }
        Err(FetchError::WrongHash {
            url: download.url.clone(),
            found,
            expected: download.checksum.clone(),
            kept: place,
        })
    }
}

/// Whether an error, or the one that it holds, is the system's: it does not say what the file has.
fn is_of_system(error: &(dyn Error + 'static)) -> bool {
    if let Some(DataError::Read { error, .. }) = error.downcast_ref() {
        return is_of_system(error);
    }
    let of_io = error.downcast_ref::<io::Error>();
    if of_io.is_some_and(|error| error.raw_os_error().is_some()) {
        return true;
    }
    // An error of `io` is not the source of what it holds.
    let held = of_io.and_then(io::Error::get_ref);
    let held = held.map(|held| held as &(dyn Error + 'static));
    held.or_else(|| error.source()).is_some_and(is_of_system)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut whole = path.as_os_str().to_owned();
    whole.push(ending);
    PathBuf::from(whole)
}

/// Removes a file that may not be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use kiln_data::dataset::Checksum;

    use super::*;

    #[test]
    fn a_download_that_cannot_be_read_is_not_taken_for_a_wrong_one() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("a.txt");
        let finish = |make: &dyn Fn(&Path)| {
            let part = PartFile::open(&destination).unwrap();
            make(&part.path);
            part.finish(&Download {
                url: "http://localhost/a.txt".to_owned(),
                destination: destination.clone(),
                checksum: Checksum::Sha256("00".into()),
                most_bytes: None,
                certificates: None,
            })
        };
        let bad = folder.path().join("a.txt.bad");
        let unread = finish(&|path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("a.txt.part", path).unwrap();
        });
        assert!(
            matches!(unread, Err(FetchError::Unchecked { .. })),
            "{unread:?}"
        );
        assert!(!bad.exists() && bad.symlink_metadata().is_err());
        fs::remove_file(folder.path().join("a.txt.part")).unwrap();
        let wrong = finish(&|_| ());
        assert!(
            matches!(wrong, Err(FetchError::WrongHash { .. })),
            "{wrong:?}"
        );
        assert!(bad.exists());
    }

    #[test]
    fn only_errors_of_the_system_say_nothing_of_the_file() {
        let of_system = || io::Error::from_raw_os_error(5);
        let of_data = DataError::Read {
            path: PathBuf::from("a"),
            error: of_system(),
        };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "corrupt deflate stream");
        assert!(is_of_system(&of_system()));
        assert!(is_of_system(&io::Error::other(of_system())));
        assert!(is_of_system(&io::Error::other(of_data)));
        assert!(!is_of_system(&damaged()));
        assert!(!is_of_system(&io::Error::other(damaged())));
    }

    #[test]
    fn a_full_disk_says_how_much_is_missing() {
        // A device of Linux on which every write fails with a full disk.
        let Ok(file) = OpenOptions::new().write(true).open("/dev/full") else {
            return;
        };
        let mut part = PartFile {
            path: PathBuf::from("set/file.part"),
            file,
            done: 1024,
            etag: None,
        };
        let error = part.append(&[0; 100], Some(4096)).unwrap_err();
        assert!(
            matches!(error, FetchError::DiskFull { done: 1024, .. }),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("1.0 KiB are done, 3.0 KiB are missing"),
            "{error}"
        );
        assert_eq!(part.done, 1024);
    }
}
