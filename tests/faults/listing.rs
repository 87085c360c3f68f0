//! The content of a folder, to see whether anybody changed it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Every path below a folder, with its type, mode and content.
pub(crate) type Listing = BTreeMap<PathBuf, String>;

/// Lists a folder; links are not followed.
pub(crate) fn list(folder: &Path) -> Listing {
    let mut found = Listing::new();
    add(folder, &mut found);
    found
}

fn add(path: &Path, found: &mut Listing) {
    let Ok(entries) = fs::read_dir(path) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(about) = fs::symlink_metadata(&path) else {
            continue;
        };
        let mode = about.permissions().mode();
        let content = if about.is_symlink() {
            format!("link to {}", fs::read_link(&path).unwrap().display())
        } else if about.is_dir() {
            add(&path, found);
            "folder".to_owned()
        } else if about.is_file() {
            hex::encode(Sha256::digest(fs::read(&path).unwrap_or_default()))
        } else {
            "special".to_owned()
        };
        found.insert(path, format!("{mode:o} {content}"));
    }
}

/// The paths that differ, in words; `None` if there are none.
pub(crate) fn difference(before: &Listing, after: &Listing) -> Option<String> {
    let gone = before
        .keys()
        .filter(|path| !after.contains_key(*path))
        .map(|path| format!("{} is gone", path.display()));
    let new = after
        .keys()
        .filter(|path| !before.contains_key(*path))
        .map(|path| format!("{} is new", path.display()));
    let changed = before
        .iter()
        .filter(|(path, content)| after.get(*path).is_some_and(|now| now != *content))
        .map(|(path, _)| format!("{} has changed", path.display()));
    let all: Vec<String> = gone.chain(new).chain(changed).collect();
    (!all.is_empty()).then(|| all.join(", "))
}
