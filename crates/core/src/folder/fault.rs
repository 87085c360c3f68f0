//! Errors of a folder's files: each names its path and keeps the kind and number of the system's.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Stat},
    io::Errno,
};

use crate::patience::Passing;

/// Whether an error means that no more can be written: the disk, a quota or a limit on the size of
/// files is full.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | FileTooLarge | QuotaExceeded)
}

pub(super) fn outside(path: &Path) -> io::Error {
    named(path, invalid("it leads out of its folder"))
}

pub(super) fn folder_fault(found: Result<Stat, Errno>, errno: Errno) -> io::Error {
    match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
        Ok(FileType::Symlink) => is_link(),
        Ok(FileType::Directory) | Err(_) => errno.into(),
        Ok(_) => io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder"),
    }
}

pub(super) fn kind_fault(found: &Stat, errno: Errno) -> io::Error {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => errno.into(),
        FileType::Symlink => is_link(),
        FileType::Directory => io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"),
        FileType::Fifo => invalid("it is a FIFO, not a regular file"),
        FileType::CharacterDevice | FileType::BlockDevice => {
            invalid("it is a device, not a regular file")
        }
        FileType::Socket => invalid("it is a socket, not a regular file"),
        _ => invalid("it is not a regular file"),
    }
}

fn is_link() -> io::Error {
    invalid(
        "it is a link, and kiln follows no link here; replace it by what it leads to, or remove it",
    )
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Puts the path before the error; the kind stays.
pub(crate) fn named(path: &Path, error: io::Error) -> io::Error {
    let path = path.to_owned();
    io::Error::new(error.kind(), NamedError { path, error })
}

/// An error with the path of its file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
struct NamedError {
    path: PathBuf,
    error: io::Error,
}

impl Passing for io::Error {
    fn errno(&self) -> Option<Errno> {
        system_error(self)
    }
}

/// The system's number of an error, also of one that names its file.
pub fn system_error(error: &io::Error) -> Option<Errno> {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<NamedError>());
    let found = inner.map_or(error, |named| &named.error);
    found.raw_os_error().map(Errno::from_raw_os_error)
}

/// Whether reading failed for a reason that says nothing about what is there: the next time it may be
/// read. That it is missing, too large, or not a file or folder is not such a reason.
pub fn may_be_read_later(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    let is_of_path = matches!(
        error.kind(),
        InvalidInput | IsADirectory | NotADirectory | NotFound
    );
    let errno = system_error(error);
    errno.is_some() && errno != Some(Errno::LOOP) && !is_of_path
}
