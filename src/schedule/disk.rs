//! The disk under `results/`: what is free, what a run needs at least, and the reserve for its last rows.

use std::{fs, io, path::Path};

use kiln_core::{record::RunFolder, units::Bytes};
use kiln_hardware::host::disk_free_bytes;

/// Room that must be free before a trial starts: its own tables and messages, and the run's.
const NEEDED_BYTES: u64 = 2 << 20;
/// Room kept for the rows of the trials that are running when the disk fills up.
const RESERVE_BYTES: usize = 64 << 10;

/// Whether an error says that no more can be written here.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | FileTooLarge | QuotaExceeded)
}

/// Bytes that this user may still write at `path`; `None` if the system does not say.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    disk_free_bytes(path).ok()
}

/// Whether there is room for one more trial.
pub(super) fn has_room(path: &Path) -> bool {
    free_bytes(path).is_none_or(|free| free >= NEEDED_BYTES)
}

/// What to tell the user.
pub(super) fn full_message(path: &Path) -> String {
    let free = free_bytes(path).map_or("an unknown amount".to_owned(), |free| Bytes(free).to_string());
    format!(
        "{}: the disk, a quota or a file's allowed size is full: {free} is free, {} is needed to start a trial; nothing is torn; make room and run the same command again",
        path.display(),
        Bytes(NEEDED_BYTES)
    )
}

/// Takes the reserve; a run goes on without one.
pub(super) fn keep_reserve(run: &RunFolder) {
    if fs::metadata(run.reserve()).is_ok_and(|file| file.len() == RESERVE_BYTES as u64) {
        return;
    }
    // Bytes that are not zero, so that no file system stores them as a hole.
    if fs::write(run.reserve(), vec![b'.'; RESERVE_BYTES]).is_err() {
        release_reserve(run);
    }
}

/// Gives the reserve's room back.
pub(super) fn release_reserve(run: &RunFolder) {
    let _ = fs::remove_file(run.reserve());
}
