//! Compares a program that lies in a folder named for it with the recorded one.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use kiln_core::{
    record::{programs::COMMAND_PROGRAM, run_file::Launch},
    units::{listed, short_hash},
};

use super::Programs;
use crate::readings::Paths;

impl Programs {
    /// How the program of a command in these folders is not the one that a launch recorded, in
    /// words; empty if it is that one. Files are matched by their paths from the folder. A recorded
    /// file that is not there is left out, unless none is there.
    pub(in crate::schedule) fn unlike_in(
        &self,
        folders: &BTreeSet<String>,
        launch: &Launch,
        paths: &Paths,
    ) -> Vec<String> {
        let recorded = launch.programs.get(COMMAND_PROGRAM);
        let Some(recorded) = recorded.map(|program| &program.files) else {
            return Vec::new();
        };
        if recorded.is_empty() {
            return Vec::new();
        }
        let contents: BTreeSet<&str> = recorded.values().map(String::as_str).collect();
        let mut unlike = Vec::new();
        let mut is_found = false;
        for (name, file) in self.files.get(COMMAND_PROGRAM).into_iter().flatten() {
            let shown = paths.hide(name);
            // A file under its recorded path is compared by `Programs::compare`.
            if recorded.contains_key(&shown) {
                is_found = true;
                continue;
            }
            let then = of_the_same_name(recorded, below(folders, name));
            let Some((path, before)) = then.first() else {
                let now = file.sha256.as_deref();
                is_found |= now.is_ok_and(|sha256| contents.contains(sha256));
                continue;
            };
            is_found = true;
            let is_same = then
                .iter()
                .any(|(_, before)| file.sha256.as_ref() == Ok(*before));
            if is_same || !file.is_held {
                continue;
            }
            let (number, before) = (launch.launch, short_hash(before));
            unlike.push(match &file.sha256 {
                Ok(now) => format!(
                    "`{shown}` is another than `{path}` of launch {number} ({before}, {})",
                    short_hash(now)
                ),
                Err(why) => {
                    let why = paths.hide(why);
                    format!("`{shown}`, then `{path}` ({before}), cannot be read: {why}")
                }
            });
        }
        if !is_found {
            let files: Vec<String> = recorded.keys().map(|path| format!("`{path}`")).collect();
            unlike.push(format!(
                "none of its files is there: {}",
                listed(&files, ", ")
            ));
        }
        unlike
    }
}

/// The path of a file from the folder in which it lies.
fn below<'a>(folders: &BTreeSet<String>, name: &'a str) -> Option<&'a Path> {
    let name = Path::new(name);
    folders.iter().find_map(|folder| {
        let folder = folder.strip_prefix("./").unwrap_or(folder);
        name.strip_prefix(folder).ok()
    })
}

/// The recorded files that end in a path: the program may have been in a folder then.
fn of_the_same_name<'a>(
    recorded: &'a BTreeMap<String, String>,
    path: Option<&Path>,
) -> Vec<(&'a String, &'a String)> {
    let Some(path) = path else {
        return Vec::new();
    };
    let recorded = recorded.iter();
    recorded
        .filter(|(then, _)| Path::new(then).ends_with(path))
        .collect()
}
