//! For tests of published data: its folder.

use std::path::PathBuf;

/// `$KILN_DATA`, absolute; `None`, with a message, if it is not set.
pub(super) fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("KILN_DATA")
        .filter(|folder| !folder.is_empty())
        .and_then(|folder| std::path::absolute(folder).ok());
    if folder.is_none() {
        eprintln!("skipped: KILN_DATA is not set");
    }
    folder
}
