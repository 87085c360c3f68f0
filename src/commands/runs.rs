//! Runs named on the command line: by a path, or by a short name.
//!
//! A path that exists is that path, except a folder that holds no run where a run has its name, and a
//! link `latest` that leads to an older run: the newest one is read then. Any other text is a short
//! name.

mod latest_link;
mod leftovers;
mod list;
mod short_name;

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    record::{RunFolder, run_folder::runs},
};

pub(super) use self::{
    latest_link::{above_latest, is_own_link, newest_of, newest_past_link, tell_old_link},
    leftovers::{LEFTOVER, leftover, refuse_leftover},
    list::{NamedRun, newest_first, newest_listed, of_experiment},
    short_name::{find, find_if_any, find_without, leftover_by_name, name_of_earlier},
};
use super::{Status, Stop};

/// The refusal of a name where a folder cannot be read now: another run could be taken for the one that
/// is meant.
pub(super) fn uncertain(named: impl Display, error: &io::Error) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!(
            "{named}: it is not certain which run is meant, because a folder cannot be read now: \
             {error}; try again, or name the run's own folder"
        ),
    )
}

/// The run in a folder, or the newest one of an experiment's folder; `None` if there is none.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn run_in(folder: &Path) -> io::Result<Option<RunFolder>> {
    let own = RunFolder::at(folder);
    for path in [own.run_file(), own.trials_table()] {
        if input::find(&path)?.is_some_and(|found| found.is_file()) {
            return Ok(Some(own));
        }
    }
    newest_of(folder)
}

/// Returns the folder of one run: by its path, also through the link `latest`, or by a short name.
///
/// # Errors
/// It is not a run, or not one of its own experiment's folder.
pub(super) fn run_folder(named: &str, results: &Path) -> Result<RunFolder, Stop> {
    let path = Path::new(named);
    let unread = |error| uncertain(named, &error);
    let by_name = match path.symlink_metadata() {
        Err(_) => Some(find(named, results)?.run),
        // A folder of data may have the name of the experiment that reads it.
        Ok(found) if found.is_dir() => match run_in(path).map_err(unread)? {
            Some(_) => None,
            None => find_if_any(named, results)?,
        },
        Ok(_) => None,
    };
    if let Some(run) = by_name {
        return run
            .in_experiment()
            .map_err(|error| Stop::bad_input(format!("{named}: {error}")));
    }
    let refuse = |what: &str| Stop::bad_input(format!("{named}: {what}"));
    let cannot = |error: io::Error| refuse(&format!("{error}"));
    let real = RunFolder::at(path).in_experiment().map_err(cannot)?;
    let real = real.path();
    let (Some(above), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(refuse("this is not a run's folder"));
    };
    let experiment = above.file_name().map(|name| name.to_string_lossy());
    let siblings = match (above.parent(), experiment) {
        (Some(results), Some(experiment)) => runs(results, &experiment).map_err(unread)?,
        _ => Vec::new(),
    };
    let Some(run) = siblings.iter().find(|run| run.path() == real) else {
        return Err(refuse(
            "this is not a run's folder; name one, such as `results/NAME/latest`, or by its short \
             name, such as `NAME` or `NAME~1`",
        ));
    };
    // Through a link, only a run beside that link is meant.
    let is_link = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_symlink());
    let beside = path
        .parent()
        .map(|parent| match parent.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => parent.to_owned(),
        });
    let beside = beside.and_then(|parent| parent.canonicalize().ok());
    if is_link && beside.as_deref() != Some(above) {
        return Err(refuse(&format!(
            "this link leads to another folder, {}; name that run itself",
            above.join(name).display()
        )));
    }
    if let Some(newest) = newest_past_link(path).map_err(unread)? {
        tell_old_link(path, &newest, false);
    }
    Ok(run.clone())
}

/// A path below the current folder, relative to it; any other path as it is.
pub(super) fn below_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let below = here
        .ok()
        .and_then(|here| path.strip_prefix(here).map(Path::to_owned).ok());
    match below {
        Some(here) if here.as_os_str().is_empty() => PathBuf::from("."),
        below => below.unwrap_or_else(|| path.to_owned()),
    }
}

/// A path without links, relative if it is below the current folder; one that cannot be followed as it
/// is.
pub(super) fn without_links(path: &Path) -> PathBuf {
    let place = path.canonicalize();
    place.map_or_else(|_| path.to_owned(), |place| below_here(&place))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    pub(super) fn results() -> tempfile::TempDir {
        let results = tempfile::tempdir().unwrap();
        for run in [
            "a/20260101T000000Z-x",
            "a/20260103T000000Z-x",
            "b/20260102T000000Z-y",
        ] {
            fs::create_dir_all(results.path().join(run)).unwrap();
        }
        results
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_refused() {
        let results = results();
        let run = results.path().join("a/20260101T000000Z-x");
        let link = |at: &str| {
            let link = results.path().join(at);
            std::os::unix::fs::symlink(&run, &link).unwrap();
            run_folder(link.to_str().unwrap(), results.path())
        };
        assert_eq!(
            link("a/latest").unwrap().path(),
            run.canonicalize().unwrap()
        );
        assert!(
            link("b/latest")
                .unwrap_err()
                .message
                .contains("another folder")
        );
        let folder = results.path().join("a");
        assert!(run_folder(folder.to_str().unwrap(), results.path()).is_err());
    }

    #[test]
    fn a_run_that_was_moved_behind_a_link_stays_one_of_its_experiment() {
        let (results, elsewhere) = (results(), tempfile::tempdir().unwrap());
        let run = results.path().join("a/20260103T000000Z-x");
        fs::rename(&run, elsewhere.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("moved"), &run).unwrap();
        let latest = results.path().join("a/latest");
        std::os::unix::fs::symlink("20260103T000000Z-x", &latest).unwrap();
        let expected = results.path().canonicalize().unwrap();
        let expected = expected.join("a/20260103T000000Z-x");
        for named in ["a", run.to_str().unwrap(), latest.to_str().unwrap()] {
            let found = run_folder(named, results.path()).unwrap();
            assert_eq!(found.path(), expected, "{named}");
        }
    }
}
