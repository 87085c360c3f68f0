//! The folders that `kiln compare --rerun` makes under `results/`: each holds the runs of two sides.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use kiln_core::{
    folder::{Folder, split},
    input::is_absent,
    record::{
        RunFolder,
        run_folder::{experiments, leftovers},
    },
};

use super::runs::newest_first;

/// The beginning of the name of such a folder; the time of its start follows.
pub(super) const RERUN: &str = "rerun-";
/// The folders in it, each with the experiments of one side.
const SIDES: [&str; 2] = ["base", "new"];

/// The folders of reruns, newest first.
pub(super) fn reruns(results: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(results).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths.filter(|path| is_rerun(path)).collect();
    found.sort();
    found.reverse();
    found
}

/// The folders of the sides of a rerun; none if the path is not that of one.
pub(super) fn sides(rerun: &Path) -> Vec<PathBuf> {
    if !is_rerun(rerun) {
        return Vec::new();
    }
    let sides = SIDES.iter().map(|side| rerun.join(side));
    sides.filter(|side| side.is_dir()).collect()
}

/// The folder of a rerun that a path names, alone or below `results`; without links.
pub(super) fn named(named: &str, results: &Path) -> Option<PathBuf> {
    let mut places = [PathBuf::from(named), results.join(named)].into_iter();
    let found = places.find(|place| is_rerun(place))?;
    found.canonicalize().ok().filter(|real| is_rerun(real))
}

/// The runs of both sides.
///
/// # Errors
/// A side is there and cannot be listed.
pub(super) fn runs_in(rerun: &Path) -> io::Result<Vec<RunFolder>> {
    let mut all = Vec::new();
    for side in SIDES {
        let runs = listed(newest_first(&rerun.join(side)))?.into_iter();
        all.extend(runs.map(|named| named.run));
    }
    Ok(all)
}

/// The rest of one of its runs that a switch to another branch has left.
///
/// # Errors
/// As [`runs_in`].
pub(super) fn leftover_in(rerun: &Path) -> io::Result<Option<RunFolder>> {
    for side in SIDES.map(|side| rerun.join(side)) {
        for name in listed(experiments(&side))? {
            if let Some(left) = leftovers(&side, &name)?.into_iter().next() {
                return Ok(Some(left));
            }
        }
    }
    Ok(None)
}

/// The entries of a side; none if there is no such side.
fn listed<T>(side: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match side {
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        side => side,
    }
}

/// Removes the folder of a rerun with everything in it; what links lead to stays.
///
/// # Errors
/// It cannot be removed.
pub(super) fn remove(rerun: &Path) -> io::Result<()> {
    let (above, name) = split(rerun)?;
    Folder::follow(above)?.remove(name)
}

fn is_rerun(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let time = name.and_then(|name| name.strip_prefix(RERUN));
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    time.is_some_and(is_time)
        && is_folder(path)
        && SIDES.iter().any(|side| is_folder(&path.join(side)))
}

/// Whether a text is a time such as `20261123T160618Z`.
fn is_time(text: &str) -> bool {
    let digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|letter| letter.is_ascii_digit())
    };
    let parts = text.strip_suffix('Z').and_then(|text| text.split_once('T'));
    parts.is_some_and(|(day, time)| digits(day, 8) && digits(time, 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rerun_is_known_by_its_name_and_sides_and_its_runs_are_found() {
        let place = tempfile::tempdir().unwrap();
        let results = place.path();
        let (old, new) = ("rerun-20261123T160618Z", "rerun-20261124T160618Z");
        for folder in [old, new, "rerun-of-mine"] {
            let run = results.join(folder).join("base/x/20261123T160618Z-9a32e95");
            fs::create_dir_all(&run).unwrap();
            fs::write(run.join("trials.csv"), "").unwrap();
        }
        fs::create_dir(results.join("rerun-20261125T160618Z")).unwrap();
        assert_eq!(reruns(results), [results.join(new), results.join(old)]);
        let found = named(old, results).unwrap();
        assert_eq!(runs_in(&found).unwrap().len(), 1);
        assert_eq!(leftover_in(&found).unwrap(), None);
        let left = results.join(new).join("base/x/20261123T160618Z-9a32e95");
        fs::remove_file(left.join("trials.csv")).unwrap();
        fs::create_dir(left.join("trials")).unwrap();
        let leftover = leftover_in(&results.join(new)).unwrap();
        assert_eq!(leftover, Some(RunFolder::at(left)));
        assert_eq!(named("rerun-of-mine", results), None);
        std::os::unix::fs::symlink("new", found.join("new")).unwrap();
        assert!(runs_in(&found).is_err(), "a side that cannot be listed");
        assert!(leftover_in(&found).is_err());
        remove(&found).unwrap();
        assert_eq!(reruns(results), [results.join(new)]);
    }
}
