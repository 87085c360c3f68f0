//! The name of a run on the command line: the one place that tells what it means.
//!
//! A path that exists is that path; one that exists only below the folder of the runs is that one; any
//! other text is a short name ([`super::runs`]). A folder that holds no run does not hide the run that
//! has its name. Each command says which names it takes ([`Taken`]).
//!
//! `REVISION:PATH` is told apart here and read by [`super::sources`]; [`super::run_and_trial`] splits
//! RUN:TRIAL.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use kiln_core::record::{RunFolder, run_folder::runs};

use super::{
    Stop,
    runs::{
        NAME_A_RUN, find, find_if_any, is_beside_table, leftover, newest_past_link,
        refuse_leftover, run_in, tell_old_link, uncertain,
    },
};
use crate::git;

/// What was found where the folder of a run is needed.
const NOT_A_RUN: &str = "this is not a run's folder";

/// The names that a command takes. All take the folder of a run, its link `latest`, and short names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The folder of an experiment, which means its newest run; a file of a run's record; any table; and
    /// `REVISION:PATH`.
    Tables,
    /// As [`Self::Tables`], without `REVISION:PATH`: the weights of the run are wanted.
    Weights,
    /// The folder of an experiment, and a file in a run's folder. The run may be at work, so a link
    /// `latest` means the run that it leads to.
    Runs,
    /// Nothing else: what is removed is named exactly.
    RunFolders,
}

/// The run or the file that a name means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NamedPlace {
    Run(RunFolder),
    /// A file that is read as a table.
    Table(PathBuf),
}

impl Taken {
    fn reads_tables(self) -> bool {
        matches!(self, Self::Tables | Self::Weights)
    }

    /// The refusal of a name: what was found, the names that are taken, and how to find one.
    pub(super) fn refused(self, named: &str, found: &str) -> Stop {
        let others = match self {
            Self::Tables | Self::Weights => {
                ", an experiment's folder, a short name, such as `NAME~1`, or a `trials.csv`"
            }
            Self::Runs => ", an experiment's folder, or a short name, such as `NAME~1`",
            Self::RunFolders => ", or a short name, such as `NAME~1`",
        };
        Stop::bad_input(format!(
            "{named}: {found}; {NAME_A_RUN}{others}; `kiln ls` lists the runs"
        ))
    }

    /// The refusal of a name without a run, which may be meant for git.
    fn refused_in_git(self, named: &str, stop: Stop) -> Stop {
        let message = match (self, revision_and_path(named)) {
            (Self::Tables, None) if git::is_revision(named) => format!(
                "{}; `{named}` is a git revision: name a run in it, such as \
                 `{named}:results/NAME/latest`",
                stop.message
            ),
            (Self::Weights | Self::Runs | Self::RunFolders, Some((revision, _)))
                if git::is_revision(revision) =>
            {
                let why = match self {
                    Self::Weights => "the weights of a run are not in git",
                    _ => "a run in the working tree is needed",
                };
                format!("{named}: it names a run in a git revision, and {why}; {NAME_A_RUN}")
            }
            _ => return stop,
        };
        Stop { message, ..stop }
    }
}

/// The parts of `REVISION:PATH`; `None` for a path that exists and for a text without a colon.
pub(super) fn revision_and_path(named: &str) -> Option<(&str, &str)> {
    named.split_once(':').filter(|_| !Path::new(named).exists())
}

/// Whether the name is `REVISION:PATH`.
pub(super) fn is_of_revision(named: &str) -> bool {
    revision_and_path(named).is_some()
}

/// Returns the run or the file that a name means.
///
/// # Errors
/// It means none that is taken, or it is not certain which.
pub(super) fn place_of(named: &str, results: &Path, taken: Taken) -> Result<NamedPlace, Stop> {
    let path = path_of(named, results);
    let newest = newest_past_link(&path).map_err(|error| uncertain(named, &error))?;
    if let Some(newest) = newest {
        tell_old_link(&path, &newest, taken.reads_tables());
        if taken.reads_tables() {
            return Ok(NamedPlace::Run(newest));
        }
    }
    if taken == Taken::RunFolders && path.is_symlink() {
        return Ok(NamedPlace::Run(RunFolder::at(path)));
    }
    if path.is_dir() {
        return in_folder(named, &path, results, taken).map(NamedPlace::Run);
    }
    if path.is_file() {
        let run = run_of_file(&path, taken).map_err(|error| uncertain(named, &error))?;
        return Ok(run.map_or(NamedPlace::Table(path), NamedPlace::Run));
    }
    match find(named, results) {
        Ok(found) => Ok(NamedPlace::Run(found.run)),
        Err(stop) => Err(taken.refused_in_git(named, stop)),
    }
}

/// Returns the run that a name means.
///
/// # Errors
/// As [`place_of`]; or it means a file that belongs to no run.
pub(super) fn named_run(named: &str, results: &Path, taken: Taken) -> Result<RunFolder, Stop> {
    match place_of(named, results, taken)? {
        NamedPlace::Run(run) => Ok(run),
        NamedPlace::Table(_) => Err(taken.refused(named, NOT_A_RUN)),
    }
}

/// Returns the folder of one run, without links, that is among the runs of its experiment.
///
/// # Errors
/// As [`named_run`]; or it is not one of its own experiment's folder.
pub(super) fn listed_run(named: &str, results: &Path, taken: Taken) -> Result<RunFolder, Stop> {
    let run = named_run(named, results, taken)?;
    let real = run
        .in_experiment()
        .map_err(|error| Stop::bad_input(format!("{named}: {error}")))?;
    let siblings = match real.place() {
        Some((results, experiment)) => {
            runs(results, &experiment).map_err(|error| uncertain(named, &error))?
        }
        None => Vec::new(),
    };
    if !siblings.contains(&real) {
        return Err(taken.refused(named, NOT_A_RUN));
    }
    let path = path_of(named, results);
    if taken == Taken::RunFolders && path.is_symlink() && !is_beside(&path, &real) {
        return Err(Stop::bad_input(format!(
            "{named}: this link leads to another folder, {}; name that run itself",
            real.path().display()
        )));
    }
    Ok(real)
}

/// Whether a path lies in the folder in which a run lies.
fn is_beside(path: &Path, run: &RunFolder) -> bool {
    let folder = folder_of(path).canonicalize().ok();
    folder.as_deref() == run.path().parent()
}

/// The path that a name stands for: its own, or that below the folder of the runs where only that one
/// exists.
fn path_of(named: &str, results: &Path) -> PathBuf {
    let own = PathBuf::from(named);
    let is_below = |part: Component<'_>| matches!(part, Component::Normal(_));
    let has_folder = named.contains('/') && own.components().all(is_below);
    let below = results.join(named);
    match own.symlink_metadata() {
        Err(_) if has_folder && below.exists() => below,
        _ => own,
    }
}

/// The folder that a path lies in.
fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// The run in a folder, or the run that has the folder's name: a folder of data may have the name of the
/// experiment that reads it.
fn in_folder(named: &str, folder: &Path, results: &Path, taken: Taken) -> Result<RunFolder, Stop> {
    let is_exact = taken == Taken::RunFolders;
    let run = run_in(folder).map_err(|error| uncertain(named, &error))?;
    if let Some(run) = run {
        return match is_exact && run.path() != folder {
            true => Err(taken.refused(named, NOT_A_RUN)),
            false => Ok(run),
        };
    }
    if let Some(left) = leftover(named, results) {
        return Err(refuse_leftover(&left));
    }
    let holds = match is_exact {
        true => NOT_A_RUN,
        false => "there is no run in it; it holds no `trials.csv` and no `run.json`",
    };
    find_if_any(named, results)?.ok_or_else(|| taken.refused(named, holds))
}

/// The run in whose folder a file lies; `None` if that is no run's folder, or the file is read itself.
fn run_of_file(file: &Path, taken: Taken) -> io::Result<Option<RunFolder>> {
    let is_of_run = match taken {
        Taken::Tables | Taken::Weights => is_beside_table(file),
        Taken::Runs => true,
        Taken::RunFolders => false,
    };
    if !is_of_run {
        return Ok(None);
    }
    let folder = folder_of(file);
    Ok(run_in(folder)?.filter(|run| run.path() == folder))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const OLD: &str = "20260101T000000Z-x";
    const NEW: &str = "20260103T000000Z-x";

    /// Two runs of `a`, with a link to the newer one, whose record has each of its files.
    fn results() -> tempfile::TempDir {
        let results = tempfile::tempdir().unwrap();
        let experiment = results.path().join("a");
        fs::create_dir_all(experiment.join(OLD)).unwrap();
        fs::create_dir_all(experiment.join(NEW)).unwrap();
        for file in ["trials.csv", "summary.csv", "run.json", "notes.csv"] {
            fs::write(experiment.join(NEW).join(file), "").unwrap();
        }
        symlink(NEW, experiment.join("latest")).unwrap();
        results
    }

    #[test]
    fn each_command_takes_the_folder_of_a_run_its_link_and_short_names() {
        let results = results();
        let newest = results.path().join("a").join(NEW);
        for taken in [
            Taken::Tables,
            Taken::Weights,
            Taken::Runs,
            Taken::RunFolders,
        ] {
            let path = |below: &str| results.path().join(below).display().to_string();
            let names = [
                path(&format!("a/{NEW}")),
                path(&format!("a/{NEW}/")),
                path("a/latest"),
                path("a/latest/"),
                "a/latest".to_owned(),
                format!("a/{NEW}"),
                NEW.to_owned(),
                "a".to_owned(),
                "latest".to_owned(),
            ];
            for named in names {
                let found = named_run(&named, results.path(), taken).unwrap();
                let found = found.path().canonicalize().unwrap();
                assert_eq!(found, newest.canonicalize().unwrap(), "{named}: {taken:?}");
            }
        }
    }

    #[test]
    fn the_folder_of_an_experiment_and_files_of_a_run_are_taken_where_nothing_is_removed() {
        let results = results();
        let run = results.path().join("a").join(NEW);
        let found = |named: &str, taken| {
            let path = results.path().join(named);
            place_of(path.to_str().unwrap(), results.path(), taken)
        };
        let a_run = || Ok(NamedPlace::Run(RunFolder::at(&run)));
        let a_file = |name: &str| Ok(NamedPlace::Table(run.join(name)));
        let is = |found: Result<NamedPlace, Stop>, expected: Result<NamedPlace, ()>| {
            assert_eq!(found.map_err(|_| ()), expected);
        };
        for taken in [Taken::Tables, Taken::Weights] {
            is(found("a", taken), a_run());
            for file in ["summary.csv", "run.json"] {
                is(found(&format!("a/{NEW}/{file}"), taken), a_run());
            }
            for file in ["trials.csv", "notes.csv"] {
                is(found(&format!("a/{NEW}/{file}"), taken), a_file(file));
            }
        }
        is(found("a", Taken::Runs), a_run());
        for file in ["trials.csv", "summary.csv", "notes.csv"] {
            is(found(&format!("a/{NEW}/{file}"), Taken::Runs), a_run());
        }
        for named in ["a".to_owned(), format!("a/{NEW}/trials.csv")] {
            let path = results.path().join(named);
            let removed = listed_run(path.to_str().unwrap(), results.path(), Taken::RunFolders);
            let why = removed.unwrap_err().message;
            assert!(why.contains(": this is not a run's folder; "), "{why}");
        }
    }

    #[test]
    fn a_link_to_an_older_run_is_the_newest_one_where_tables_are_read() {
        let results = results();
        let link = results.path().join("a/latest");
        fs::remove_file(&link).unwrap();
        symlink(OLD, &link).unwrap();
        let found = |taken| {
            let run = named_run(link.to_str().unwrap(), results.path(), taken).unwrap();
            let real = run.path().canonicalize().unwrap();
            real.file_name().unwrap().to_owned()
        };
        assert_eq!(found(Taken::Tables), NEW);
        assert_eq!(found(Taken::Weights), NEW);
        assert_eq!(found(Taken::Runs), OLD);
        assert_eq!(found(Taken::RunFolders), OLD);
    }

    #[test]
    fn a_refusal_says_what_was_found_and_only_names_that_are_taken() {
        let results = results();
        let plain = results.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let told = |taken| {
            let stop = place_of(plain.to_str().unwrap(), results.path(), taken).unwrap_err();
            stop.message
        };
        for (taken, found, has_experiment, has_table) in [
            (Taken::Tables, "there is no run in it; ", true, true),
            (Taken::Weights, "there is no run in it; ", true, true),
            (Taken::Runs, "there is no run in it; ", true, false),
            (
                Taken::RunFolders,
                "this is not a run's folder; ",
                false,
                false,
            ),
        ] {
            let why = told(taken);
            let begins = format!("{}: {found}", plain.display());
            assert!(
                why.starts_with(&begins) && why.ends_with("`kiln ls` lists the runs"),
                "{why}"
            );
            assert_eq!(why.contains("an experiment's folder"), has_experiment);
            assert_eq!(why.contains("or a `trials.csv`"), has_table);
        }
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_refused_where_a_run_is_removed() {
        let results = results();
        fs::create_dir(results.path().join("b")).unwrap();
        let run = results.path().join("a").join(OLD);
        let link = |at: &str| {
            let link = results.path().join(at);
            let _ = fs::remove_file(&link);
            symlink(&run, &link).unwrap();
            link.to_str().unwrap().to_owned()
        };
        let real = run.canonicalize().unwrap();
        let beside = listed_run(&link("a/latest"), results.path(), Taken::RunFolders);
        assert_eq!(beside.unwrap().path(), real);
        let elsewhere = link("b/latest");
        let removed = listed_run(&elsewhere, results.path(), Taken::RunFolders);
        assert!(removed.unwrap_err().message.contains("another folder"));
        let waited = listed_run(&elsewhere, results.path(), Taken::Runs);
        assert_eq!(waited.unwrap().path(), real);
    }

    #[test]
    fn a_run_that_was_moved_behind_a_link_stays_one_of_its_experiment() {
        let (results, elsewhere) = (results(), tempfile::tempdir().unwrap());
        let run = results.path().join("a").join(NEW);
        fs::rename(&run, elsewhere.path().join("moved")).unwrap();
        symlink(elsewhere.path().join("moved"), &run).unwrap();
        let expected = results.path().canonicalize().unwrap().join("a").join(NEW);
        let latest = results.path().join("a/latest");
        for named in ["a", run.to_str().unwrap(), latest.to_str().unwrap()] {
            for taken in [Taken::Runs, Taken::RunFolders] {
                let found = listed_run(named, results.path(), taken).unwrap();
                assert_eq!(found.path(), expected, "{named}");
            }
        }
    }
}
