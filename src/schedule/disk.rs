//! The disk under `results/`: free space, the minimum for a run, and the reserve for its last rows.

use std::{io, path::Path};

use kiln_core::{
    folder::is_full,
    record::RunFolder,
    units::{Bytes, counted},
};
use kiln_hardware::host::{disk_free_bytes, disk_free_files};
use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::{RunRequest, RunStop, SAME_COMMAND};

/// Bytes that must be free before a trial starts, for its tables and messages and those of the run.
const NEEDED_BYTES: u64 = 2 << 20;
/// Files that must be possible before a trial starts: its folder and files, drafts included.
const NEEDED_FILES: u64 = 16;
/// Bytes reserved for the rows of the running trials when the disk fills up.
const RESERVE_BYTES: usize = 64 << 10;

/// The system's words for ENOSPC, EDQUOT and EFBIG.
const FULL: [&str; 3] = [
    "no space left on device",
    "disk quota exceeded",
    "file too large",
];

/// Whether a program's text reports a full disk, quota or file-size limit.
pub(super) fn speaks_of_full_disk(text: &str) -> bool {
    let text = text.to_lowercase();
    FULL.iter().any(|words| text.contains(words))
}

/// Returns the message for a child that could not write although kiln sees room: inodes, a quota or
/// another file system may be exhausted.
/// `again` is the command that resumes the run.
pub(super) fn full_in_the_child(reason: &str, path: &Path, again: &str) -> String {
    let free = amount(free_bytes(path));
    format!(
        "{reason}; {free} is free at {}, so inodes, a quota or another file system may be \
         exhausted; make room and run {again}",
        path.display()
    )
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or("an unknown amount".to_owned(), |bytes| {
        Bytes(bytes).to_string()
    })
}

/// Returns the bytes that this user can still write at `path`; `None` if unknown.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    disk_free_bytes(path).ok()
}

/// Whether there is enough free space for one more trial, in bytes and in files.
pub(super) fn has_room(path: &Path) -> bool {
    free_bytes(path).is_none_or(|free| free >= NEEDED_BYTES)
        && disk_free_files(path).is_none_or(|free| free >= NEEDED_FILES)
}

/// Why no file can be made in the folder of a trial that has run; `None` if one can.
///
/// It is not the folder of an attempt, with which a program may do what it likes.
pub(super) fn folder_fault(folder: &Path) -> Option<&'static str> {
    match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Err(Errno::NOENT) => Some("the folder of the trial was removed"),
        Err(Errno::ACCESS) => Some("the folder of the trial is not writable"),
        Err(Errno::ROFS) => Some("the file system of the run is read-only"),
        _ => None,
    }
}

/// Returns the message for such a fault, by which a trial has ended without its result; `again` is the
/// command that resumes the run.
pub(super) fn nothing_can_be_kept(fault: &str, folder: &Path, again: &str) -> String {
    format!(
        "{}: {fault} while it ran, so no more are started; make sure that the folder of the run can \
         be written, and run {again}",
        folder.display()
    )
}

/// The error of a file or folder that cannot be read now, so that it is not certain what is there.
pub(super) fn cannot_read(error: &io::Error) -> RunStop {
    RunStop::CannotRun(format!(
        "{error}; nothing was started, because it is not certain what is there; run the same \
         command again"
    ))
}

/// The error of a file of the run that cannot be written.
pub(super) fn cannot_write(request: &RunRequest) -> impl Fn(io::Error) -> RunStop {
    unwritable(request, request.same_command())
}

/// The error of a file that cannot be written before this launch has begun its run.
pub(super) fn cannot_begin(request: &RunRequest) -> impl Fn(io::Error) -> RunStop {
    unwritable(request, SAME_COMMAND.to_owned())
}

fn unwritable(request: &RunRequest, again: String) -> impl Fn(io::Error) -> RunStop {
    let folder = request.results.join(&request.experiment.name);
    move |error| {
        if is_full(&error) {
            return RunStop::CannotRun(full_message(&folder, &again));
        }
        let text = error.to_string();
        // Errors of files of the run name the file.
        RunStop::CannotRun(match text.starts_with('/') {
            true => text,
            false => format!(
                "{}: the run cannot be written here: {text}; {}",
                folder.display(),
                remedy(&error)
            ),
        })
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "make the folder writable, or name another one with `--results`"
        }
        _ if matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE)
        ) =>
        {
            "raise the limit of open files (`ulimit -n`)"
        }
        _ => "name another folder with `--results`",
    }
}

/// Returns the message for a full disk; `again` is the command that resumes the run.
pub(super) fn full_message(path: &Path, again: &str) -> String {
    let bytes = free_bytes(path);
    let free = amount(bytes);
    let place = path.display();
    match disk_free_files(path).filter(|files| *files < NEEDED_FILES) {
        Some(files) => format!(
            "{place}: the file system has no more room for files: {} (inodes) can be created, a \
             trial needs {NEEDED_FILES}; no file is damaged; delete files and run {again}",
            counted(files as usize, "file")
        ),
        None => format!(
            "{place}: the disk, a quota or the file-size limit is full: {free} is free, a trial \
             needs {}{}; no file is damaged; free some space and run {again}",
            Bytes(NEEDED_BYTES),
            match bytes.is_some_and(|free| free >= NEEDED_BYTES) {
                true => " (it may be a quota or that limit, or room was made since)",
                false => "",
            }
        ),
    }
}

/// Returns the message for a disk that is full while attempts of the run `from` are copied into a new
/// run below `path`; `bytes` is the size of their files.
pub(super) fn full_of_copies(
    path: &Path,
    from: &RunFolder,
    bytes: u64,
    error: &io::Error,
) -> String {
    format!(
        "{}: the attempts of {from} could not be copied, because the disk, a quota or the file-size \
         limit is full ({error}), so no run was made: their files are {} in all, {} is free; free \
         some space and run the same command again; below a `--results` on the file system of {from} \
         the files are linked and need no room",
        path.display(),
        Bytes(bytes),
        amount(free_bytes(path)),
        from = from.path().display(),
    )
}

/// Creates the reserve; a run continues without one.
pub(super) fn keep_reserve(run: &RunFolder) {
    // The bytes are not zero, so that no file system stores them as a hole.
    if run.write(&run.reserve(), &[b'.'; RESERVE_BYTES]).is_err() {
        release_reserve(run);
    }
}

/// Frees the reserve.
pub(super) fn release_reserve(run: &RunFolder) {
    let _ = run.remove(&run.reserve());
}

#[cfg(test)]
mod tests {
    use std::io;

    use kiln_core::folder::is_full;

    use super::*;

    #[test]
    fn the_systems_words_for_a_full_disk_a_quota_and_a_size_limit_are_known() {
        use rustix::io::Errno;
        for code in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            let error = io::Error::from(code);
            assert!(is_full(&error), "{error}");
            assert!(speaks_of_full_disk(&error.to_string()), "{error}");
        }
        assert!(!speaks_of_full_disk("no space left in the box"));
    }

    #[test]
    fn a_removed_folder_is_a_fault_and_a_writable_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(folder_fault(place.path()), None);
        let gone = folder_fault(&place.path().join("gone"));
        assert_eq!(gone, Some("the folder of the trial was removed"));
    }
}
