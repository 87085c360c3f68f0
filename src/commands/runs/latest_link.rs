//! The link `latest` in the folder of an experiment, which leads to one of its runs, and the newest
//! run there.

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_core::record::{
    RunFolder,
    run_folder::{self, LATEST},
};

use crate::commands::note;

/// The folder of the experiment, if a path leads to its link `latest`, or to the table there. It is
/// empty where the path names it from inside that folder.
fn folder_of_latest(path: &Path) -> Option<&Path> {
    let link = run_of(path)?;
    link.parent().filter(|_| link.ends_with(LATEST))
}

/// The same, but only a folder that the path names.
pub(in crate::commands) fn above_latest(path: &Path) -> Option<&Path> {
    folder_of_latest(path).filter(|above| !above.as_os_str().is_empty())
}

/// Whether the name `latest` in an experiment's folder is kiln's: a link that leads to a run beside
/// it, `place` being the run or its table. A folder of that name, or a link to another folder, is its
/// user's.
pub(in crate::commands) fn is_own_link(is_link: bool, place: &Path, experiment: &Path) -> bool {
    is_link && run_of(place).and_then(Path::parent) == Some(experiment)
}

/// Whether a path names a file of a run's record that lies beside its table.
pub(in crate::commands) fn is_beside_table(path: &Path) -> bool {
    let files = ["run.json", "experiment.yaml", "summary.csv"];
    files.iter().any(|file| path.ends_with(file))
}

/// The folder of the run that a path names, or whose table or record it names.
fn run_of(path: &Path) -> Option<&Path> {
    match path.ends_with("trials.csv") || is_beside_table(path) {
        true => path.parent(),
        false => Some(path),
    }
}

/// The newest run of an experiment, where its link `latest`, to which a path leads, leads to an older
/// run: git does not keep the link, so a newer run that it brings does not move it. One without a
/// table has nothing to read.
///
/// # Errors
/// The folder of the experiment cannot be listed.
pub(in crate::commands) fn newest_past_link(path: &Path) -> io::Result<Option<RunFolder>> {
    let Some((experiment, old)) = linked_run(path) else {
        return Ok(None);
    };
    let newest = newest_of(&experiment)?;
    Ok(newest.filter(|newest| newest.name() != old && newest.trials_table().is_file()))
}

/// The folder of the experiment and the name of the run that its link `latest` leads to, if a path
/// leads to that link, or to the table there.
fn linked_run(path: &Path) -> Option<(PathBuf, String)> {
    let above = match folder_of_latest(path)? {
        above if above.as_os_str().is_empty() => Path::new("."),
        above => above,
    };
    let link = above.join(LATEST);
    let run = link.canonicalize().ok()?;
    let experiment = above.canonicalize().ok()?;
    let name = run.file_name()?.to_string_lossy().into_owned();
    is_own_link(link.is_symlink(), &run, &experiment).then(|| (above.to_owned(), name))
}

/// Says that a link `latest` leads to an older run, and which of the two is meant.
pub(in crate::commands) fn tell_old_link(path: &Path, newest: &RunFolder, is_newest_meant: bool) {
    let Some((experiment, old)) = linked_run(path) else {
        return;
    };
    let (link, newest) = (experiment.join(LATEST), newest.name());
    let meant = match is_newest_meant {
        true => format!("the newest one, {newest}, is read"),
        false => format!("that one is meant, and the newest one is {newest}"),
    };
    note(&format!(
        "note: `{}` points to an older run ({old}); {meant}",
        link.display()
    ));
}

/// The newest run of an experiment, by its folder.
///
/// # Errors
/// The folder cannot be listed.
pub(in crate::commands) fn newest_of(experiment: &Path) -> io::Result<Option<RunFolder>> {
    let absolute = std::path::absolute(experiment)?;
    let (Some(results), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(None);
    };
    let newest = run_folder::newest(results, &name.to_string_lossy())?;
    Ok(newest.map(|newest| RunFolder::at(experiment.join(newest.name()))))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::commands::runs::tests::results;

    #[test]
    fn only_a_link_to_a_run_beside_it_is_not_its_users() {
        let own = |is_link, place: &str| is_own_link(is_link, Path::new(place), Path::new("x/a"));
        assert!(own(true, "x/a/run") && own(true, "x/a/run/trials.csv"));
        assert!(!own(false, "x/a/latest"));
        for elsewhere in ["x/b/run", "x/a", "x/a/run/trials"] {
            assert!(!own(true, elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn past_a_link_to_an_older_run_is_the_newest_one() {
        let results = results();
        let folder = results.path().join("a");
        let newest = |target: &str, named: &str| {
            let link = folder.join("latest");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).unwrap();
            let found = newest_past_link(&folder.join(named)).unwrap();
            found.map(|run| run.name())
        };
        let (old, new) = ("20260101T000000Z-x", "20260103T000000Z-x");
        assert_eq!(newest(old, "latest"), None, "it has no table yet");
        fs::write(folder.join(new).join("trials.csv"), "").unwrap();
        for named in ["latest", "latest/", "latest/trials.csv", "latest/run.json"] {
            assert_eq!(newest(old, named).as_deref(), Some(new), "{named}");
            assert_eq!(newest(new, named), None, "{named}");
        }
        // Another path, and a link that its user made.
        assert_eq!(newest(old, old), None);
        assert_eq!(newest("../b/20260102T000000Z-y", "latest"), None);
    }
}
