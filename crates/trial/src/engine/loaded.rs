//! The libraries that this process has loaded, and their files.

use std::{collections::BTreeMap, fs};

use kiln_core::record::libraries::watched_files;

/// Files by name, of the watched libraries in `/proc/self/maps`.
pub fn library_files() -> BTreeMap<String, String> {
    watched_files(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}
