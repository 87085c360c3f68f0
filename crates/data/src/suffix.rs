//! Suffixes of archives.

pub(crate) const ARCHIVES: [&str; 4] = [".tar", ".tar.gz", ".tar.xz", ".zip"];
