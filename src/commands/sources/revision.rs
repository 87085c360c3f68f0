//! Reads the tables of a commit through git; the files of the working tree are not touched.

use std::{
    io::{self, Cursor},
    path::{Component, Path, PathBuf},
};

use kiln_core::record::{RunFile, RunFolder, TrialTable};

use super::{
    Stop, TableSource, packages_path, readable_experiment, readable_run, runs, tell_torn,
};
use crate::git;

/// Most symbolic links that are followed.
const MOST_LINKS: usize = 8;

/// `path` is relative to the root of the repository.
pub(super) fn of_revision(revision: &str, path: &str) -> Result<TableSource, Stop> {
    let refuse = |what: String| {
        Stop::bad_input(format!(
            "{revision}:{path}: {what}; name a run's folder, an experiment's folder, or a \
             `trials.csv` that is committed there"
        ))
    };
    let commit = git(&[
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &format!("{revision}^{{commit}}"),
    ]);
    let commit = commit.map(|commit| String::from_utf8_lossy(&commit).trim().to_owned());
    let Some(commit) = commit else {
        return Err(refuse(format!(
            "there is no such file or folder, and `{revision}` is not a git revision here{}",
            git_says()
        )));
    };
    let tree = Tree { commit };
    // Like git, a path is relative to the root unless it begins with a dot.
    let prefix = git(&["rev-parse", "--show-prefix"]).filter(|_| path.starts_with('.'));
    let here = String::from_utf8_lossy(&prefix.unwrap_or_default())
        .trim()
        .to_owned();
    let wanted = Path::new(&here).join(path);
    // A commit need not have the link to the newest run.
    let place = tree
        .follow(&wanted)
        .or_else(|| tree.follow(runs::above_latest(&wanted)?))
        .ok_or_else(|| refuse("the path does not exist in that revision".to_owned()))?;
    let table_path = tree
        .table(&place)
        .ok_or_else(|| refuse("it holds no `trials.csv`".to_owned()))?;
    let shown = PathBuf::from(format!("{revision}:{}", table_path.display()));
    let bytes = tree
        .read(&table_path)
        .ok_or_else(|| refuse("it cannot be read".to_owned()))?;
    let table = TrialTable::read_from(&mut Cursor::new(&bytes), &shown).map_err(Stop::bad_input)?;
    let folder = RunFolder::at(table_path.parent().unwrap_or(Path::new("")));
    let text = |path: PathBuf| String::from_utf8(tree.read(&path)?).ok();
    let run = text(folder.run_file()).and_then(|text| readable_run(RunFile::parse(&text, &shown)));
    tell_torn(&shown, &table);
    let path = PathBuf::from(format!("{revision}:{}", folder.experiment().display()));
    let experiment = match text(folder.experiment()) {
        None if run.is_none() => None,
        found => {
            let read = found.ok_or_else(|| "it is missing there, or no text".to_owned());
            readable_experiment(read, &path, run.as_ref())
        }
    };
    let packages = packages_path(&folder, run.as_ref()).and_then(text);
    let source = TableSource {
        name: shown.display().to_string(),
        table,
        run,
        experiment,
        packages,
        folder: None,
    };
    source.checked(|planned| planned.check(&mut Cursor::new(&bytes), &shown))
}

/// The files of a commit.
struct Tree {
    commit: String,
}

/// The kind of entry that git stores at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GitKind {
    File,
    Link,
    Folder,
}

impl Tree {
    fn kind(&self, path: &Path) -> Option<GitKind> {
        let listed = git(&["ls-tree", "--full-tree", &self.commit, "--", path.to_str()?])?;
        match listed.get(..6)? {
            b"100644" | b"100755" => Some(GitKind::File),
            b"120000" => Some(GitKind::Link),
            b"040000" => Some(GitKind::Folder),
            _ => None,
        }
    }

    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        git(&[
            "cat-file",
            "blob",
            &format!("{}:{}", self.commit, path.to_str()?),
        ])
    }

    /// Follows symbolic links to their target.
    fn follow(&self, path: &Path) -> Option<PathBuf> {
        let mut links = 0;
        let mut place = PathBuf::new();
        let mut left: Vec<PathBuf> = plain(path)?.iter().rev().map(PathBuf::from).collect();
        while let Some(name) = left.pop() {
            let here = place.join(name);
            if self.kind(&here)? != GitKind::Link {
                place = here;
                continue;
            }
            links += 1;
            let target = PathBuf::from(String::from_utf8(self.read(&here)?).ok()?);
            let rest: PathBuf = left.iter().rev().collect();
            left = plain(&place.join(target).join(rest))?
                .iter()
                .rev()
                .map(PathBuf::from)
                .collect();
            place = PathBuf::new();
            if links > MOST_LINKS {
                return None;
            }
        }
        Some(place)
    }

    /// Returns the table for a path: the file itself, that of a run's folder, or that of an
    /// experiment's newest run.
    fn table(&self, place: &Path) -> Option<PathBuf> {
        if self.kind(place)? == GitKind::File {
            return Some(place.to_owned());
        }
        let of_run = |folder: &Path| {
            let table = RunFolder::at(folder).trials_table();
            (self.kind(&table) == Some(GitKind::File)).then_some(table)
        };
        let names = || {
            let listed = git(&[
                "ls-tree",
                "--full-tree",
                "--name-only",
                "-z",
                &format!("{}:{}", self.commit, place.to_str()?),
            ])?;
            let mut names: Vec<String> = String::from_utf8(listed)
                .ok()?
                .split('\0')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            // A run's name begins with the time of its start; `latest` is a link to one of them.
            names.retain(|name| name.starts_with(|first: char| first.is_ascii_digit()));
            names.sort();
            names
                .iter()
                .rev()
                .find_map(|name| of_run(&place.join(name)))
        };
        of_run(place).or_else(names)
    }
}

/// Returns a repository path without `.` and `..`; `None` if it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

fn git(arguments: &[&str]) -> Option<Vec<u8>> {
    git::stdout(arguments).ok()?
}

/// Returns the reason why git does not work in this folder: it is not a repository, or git does not
/// trust it.
fn git_says() -> String {
    match git::ask(&["rev-parse", "--git-dir"]) {
        Ok(answer) if answer.is_success => String::new(),
        Ok(answer) => format!(
            " ({})",
            answer.stderr.lines().next().unwrap_or("it gives no reason")
        ),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => format!(" (git: {error})"),
        Err(error) => format!(" (git cannot be started: {error})"),
    }
}
