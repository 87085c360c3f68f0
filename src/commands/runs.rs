//! The runs on this machine: in a folder, in the list of all, behind the link `latest`, and by a short
//! name. [`super::run_name`] tells which of these a command line means.

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
    record::{RunFolder, run_folder::is_run_name},
};

pub(super) use self::{
    latest_link::{
        above_latest, is_beside_table, is_own_link, newest_of, newest_past_link, tell_old_link,
    },
    leftovers::{LEFTOVER, leftover, refuse_leftover},
    list::{NamedRun, newest_first, newest_listed, of_experiment},
    short_name::{find, find_if_any, find_without, leftover_by_name, name_of_earlier},
};
use super::{Status, Stop};

/// What to write in place of a name that means no run.
pub(super) const NAME_A_RUN: &str = "name a run's folder, such as `results/NAME/latest`";

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
    match is_run(&own)? {
        true => Ok(Some(own)),
        false => newest_of(folder),
    }
}

/// Whether a folder is that of a run: something stands in place of its table or its record, or it has a
/// run's name and is no leftover.
fn is_run(folder: &RunFolder) -> io::Result<bool> {
    for path in [folder.trials_table(), folder.run_file()] {
        match path.symlink_metadata() {
            Err(error) if input::is_absent(&error) => {}
            found => return found.map(|_| true),
        }
    }
    let real = folder.in_experiment();
    Ok(real.is_ok_and(|run| is_run_name(&run.name()) && !run.is_leftover()))
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
    fn a_folder_is_a_run_by_its_record_or_its_name_else_that_of_an_experiment() {
        let results = results();
        let found = |folder: &str| {
            let run = run_in(&results.path().join(folder)).unwrap();
            run.map(|run| run.path().strip_prefix(results.path()).unwrap().to_owned())
        };
        let (run, newest) = ("a/20260101T000000Z-x", "a/20260103T000000Z-x");
        assert_eq!(found(run).as_deref(), Some(Path::new(run)));
        assert_eq!(found("a").as_deref(), Some(Path::new(newest)));
        fs::create_dir(results.path().join("plain")).unwrap();
        assert_eq!(found("plain"), None);
        // Whatever stands in place of a table is told where the table is read.
        fs::create_dir(results.path().join("plain/trials.csv")).unwrap();
        assert_eq!(found("plain").as_deref(), Some(Path::new("plain")));
        let leftover = results.path().join(run).join("trials");
        fs::create_dir(leftover).unwrap();
        assert_eq!(found(run), None);
    }
}
