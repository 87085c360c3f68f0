//! The libraries that this process has loaded, and their files.

use std::{collections::BTreeMap, fs};

use kiln_core::record::libraries::watched_files;

/// Files by name, of the watched libraries in `/proc/self/maps`.
pub fn library_files() -> BTreeMap<String, String> {
    watched_files(&own_maps())
}

/// `/proc/self/maps`. The name of a mapped file may be any bytes.
pub(super) fn own_maps() -> String {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    String::from_utf8_lossy(&maps).into_owned()
}
