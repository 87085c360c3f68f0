//! Suffixes of the files that kiln reads besides plain ones.

/// Suffixes of compressed files; a file may also have none.
pub(crate) const COMPRESSED: [&str; 3] = ["", ".gz", ".xz"];
/// Suffixes of archives.
pub(crate) const ARCHIVES: [&str; 4] = [".tar", ".tar.gz", ".tar.xz", ".zip"];
