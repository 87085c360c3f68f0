//! The disk under `results/`: free space, the minimum for a run, and the reserve for its last rows.

use std::{fs, io, path::Path};

use kiln_core::{record::RunFolder, units::Bytes};
use kiln_hardware::host::disk_free_bytes;

/// Bytes that must be free before a trial starts, for its tables and messages and those of the run.
const NEEDED_BYTES: u64 = 2 << 20;
/// Bytes reserved for the rows of the running trials when the disk fills up.
const RESERVE_BYTES: usize = 64 << 10;

/// Whether an error means that no more can be written.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | FileTooLarge | QuotaExceeded)
}

/// Returns the bytes that this user can still write at `path`; `None` if unknown.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    disk_free_bytes(path).ok()
}

/// Whether there is enough free space for one more trial.
pub(super) fn has_room(path: &Path) -> bool {
    free_bytes(path).is_none_or(|free| free >= NEEDED_BYTES)
}

/// Returns the message for a full disk.
pub(super) fn full_message(path: &Path) -> String {
    let free = free_bytes(path).map_or("an unknown amount".to_owned(), |free| {
        Bytes(free).to_string()
    });
    format!(
        "{}: the disk, a quota or the file-size limit is full: {free} is free, a trial needs {}; \
         no file is damaged; free some space and run the same command again",
        path.display(),
        Bytes(NEEDED_BYTES)
    )
}

/// Creates the reserve; a run continues without one.
pub(super) fn keep_reserve(run: &RunFolder) {
    if fs::metadata(run.reserve()).is_ok_and(|file| file.len() == RESERVE_BYTES as u64) {
        return;
    }
    // The bytes are not zero, so that no file system stores them as a hole.
    if fs::write(run.reserve(), vec![b'.'; RESERVE_BYTES]).is_err() {
        release_reserve(run);
    }
}

/// Frees the reserve.
pub(super) fn release_reserve(run: &RunFolder) {
    let _ = fs::remove_file(run.reserve());
}
