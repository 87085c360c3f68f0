//! For tests of published data: its folder.

use std::path::PathBuf;

use crate::source::absolute_data_folder;

/// `$KILN_DATA`, absolute; `None`, with a message, if it is not set.
pub(super) fn folder() -> Option<PathBuf> {
    let folder = absolute_data_folder();
    if folder.is_none() {
        eprintln!("skipped: KILN_DATA is not set");
    }
    folder
}
