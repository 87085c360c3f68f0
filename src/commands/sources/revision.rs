//! Reads the tables of a commit through git; the files of the working tree are not touched.

use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    path::{Component, Path, PathBuf},
};

use kiln_core::{
    input,
    record::{
        RunFile, RunFolder, TrialTable,
        run_folder::{LATEST, in_order, is_run_name},
        tables::TRIALS,
    },
};
use serde_json::Value;

use super::{
    RESULTS, Stop, TableSource, lfs, note,
    record::{or_fault, packages_path, readable_experiment, readable_run},
    runs, tell_torn,
};
use crate::git;

/// Most symbolic links that are followed.
const MOST_LINKS: usize = 8;

/// `path` is relative to the root of the repository.
pub(super) fn of_revision(revision: &str, path: &str) -> Result<TableSource, Stop> {
    let named = NameInRevision { revision, path };
    let cannot = |why: String| named.cannot(why);
    let Some(commit) = git::commit_of(revision).map_err(cannot)? else {
        return Err(named.refuse(&format!(
            "there is no such file or folder, and `{revision}` is not a git revision here{}",
            git_says()
        )));
    };
    let tree = Tree { commit };
    let table_path = named.table(&tree)?;
    let shown = named.shown(&table_path);
    let bytes = tree.read(&table_path).map_err(cannot)?;
    let table = TrialTable::read_from(&mut Cursor::new(&bytes), &shown).map_err(Stop::bad_input)?;
    let folder = RunFolder::at(table_path.parent().unwrap_or(Path::new("")));
    let run = tree.text(&folder.run_file()).map_err(cannot)?;
    let run = run.map(|text| readable_run(RunFile::parse(&text, &named.shown(&folder.run_file()))));
    let (run, run_fault) = or_fault(run.transpose());
    tell_torn(&shown, &table);
    let experiment = tree.text(&folder.experiment()).map_err(cannot)?;
    let experiment = match experiment {
        None if run.is_none() => Ok(None),
        found => {
            let read = found.ok_or_else(|| "it is missing there, or no text".to_owned());
            let path = named.shown(&folder.experiment());
            readable_experiment(read, &path, run.as_ref()).map(Some)
        }
    };
    let (experiment, experiment_fault) = or_fault(experiment);
    let packages = match packages_path(&folder, run.as_ref()) {
        Some(packages) => tree.text(&packages).map_err(cannot)?,
        None => None,
    };
    let source = TableSource {
        name: shown.display().to_string(),
        table,
        run,
        run_fault,
        experiment,
        experiment_fault,
        packages,
        folder: None,
    };
    source.tell_other_record();
    source.checked(|planned| planned.check(&mut Cursor::new(&bytes), &shown))
}

/// `REVISION:PATH` on the command line, or `REVISION:NAME` with the name of an experiment.
struct NameInRevision<'a> {
    revision: &'a str,
    path: &'a str,
}

impl NameInRevision<'_> {
    /// The path of a table in the commit: the file that is named, that of a run's folder, or that of
    /// an experiment's newest run.
    fn table(&self, tree: &Tree) -> Result<PathBuf, Stop> {
        let cannot = |why: String| self.cannot(why);
        // Like git, a path is relative to the root unless it begins with a dot.
        let here = match self.path.starts_with('.') {
            true => git::prefix(),
            false => String::new(),
        };
        let wanted = Path::new(&here).join(self.path);
        let linked = tree.follow(&wanted).map_err(cannot)?;
        let newest = tree.newest_past_link(&wanted, linked.as_deref());
        match (newest.map_err(cannot)?, linked) {
            (Some(newest), linked) => {
                let place = linked.unwrap_or_else(|| newest.clone());
                if !newest.starts_with(&place) && newest.parent() != place.parent() {
                    note(&format!(
                        "note: `{}:{}` points to an older run; the newest one is read",
                        self.revision, self.path
                    ));
                }
                Ok(newest)
            }
            (None, Some(place)) => {
                let table = tree.table(&place).map_err(cannot)?;
                table.ok_or_else(|| self.refuse("it holds no `trials.csv`"))
            }
            (None, None) => match self.of_experiment(tree).map_err(cannot)? {
                Some(path) => {
                    let named = NameInRevision {
                        revision: self.revision,
                        path: &path,
                    };
                    named.table(tree)
                }
                None => Err(self.refuse("the path does not exist in that revision")),
            },
        }
    }

    /// The path of the experiment that a name without a folder may mean, if the commit has it.
    fn of_experiment(&self, tree: &Tree) -> Result<Option<String>, String> {
        if self.path.contains('/') {
            return Ok(None);
        }
        // With a dot it is read from the current folder, as the usual folder of the runs.
        let path = format!("./{RESULTS}/{}", self.path);
        let found = tree.follow(&Path::new(&git::prefix()).join(&path))?;
        Ok(found.map(|_| path))
    }

    /// A path of the commit, for a message.
    fn shown(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}:{}", self.revision, path.display()))
    }

    fn refuse(&self, what: &str) -> Stop {
        self.cannot(format!(
            "{what}; name a run's folder, an experiment's folder, or a `trials.csv` that is \
             committed there"
        ))
    }

    /// A file that git cannot read is not taken for missing.
    fn cannot(&self, why: String) -> Stop {
        Stop::bad_input(format!("{}:{}: {why}", self.revision, self.path))
    }
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
    /// Another repository, whose files are not in the commit.
    Submodule,
}

impl Tree {
    /// The kind of a path; `None` if it does not exist in the commit.
    fn kind(&self, path: &Path) -> Result<Option<GitKind>, String> {
        let Some(name) = path.to_str() else {
            return Ok(None);
        };
        if name.is_empty() {
            return Ok(Some(GitKind::Folder));
        }
        let listed = git(&["ls-tree", "--full-tree", &self.commit, "--", name])?;
        Ok(match listed.get(..6) {
            Some(b"100644" | b"100755") => Some(GitKind::File),
            Some(b"120000") => Some(GitKind::Link),
            Some(b"040000") => Some(GitKind::Folder),
            Some(b"160000") => Some(GitKind::Submodule),
            _ => None,
        })
    }

    /// The bytes of a file, or the target of a link.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let object = format!("{}:{}", self.commit, path.display());
        let bytes = git(&["cat-file", "blob", &object])?;
        match input::is_lfs_pointer(&bytes) {
            true => lfs::content(&object, bytes),
            false => Ok(bytes),
        }
    }

    /// The text of a file; `None` if there is no such file, or it is no text.
    fn text(&self, path: &Path) -> Result<Option<String>, String> {
        if self.kind(path)? != Some(GitKind::File) {
            return Ok(None);
        }
        Ok(input::text_of(self.read(path)?).ok())
    }

    /// Follows symbolic links to their target; `None` if it does not exist in the commit.
    fn follow(&self, path: &Path) -> Result<Option<PathBuf>, String> {
        let mut links = 0;
        let mut place = PathBuf::new();
        let Some(mut left) = parts_of(path) else {
            return Ok(None);
        };
        while let Some(name) = left.pop() {
            let here = place.join(name);
            match self.kind(&here)? {
                None => return Ok(None),
                Some(GitKind::File | GitKind::Folder) => {
                    place = here;
                    continue;
                }
                Some(GitKind::Submodule) => {
                    return Err(format!(
                        "`{}` is a submodule, whose files are not in this repository's commits; run \
                         kiln in that folder, and name a revision of its repository",
                        here.display()
                    ));
                }
                Some(GitKind::Link) => links += 1,
            }
            let target = String::from_utf8(self.read(&here)?).ok();
            let rest: PathBuf = left.iter().rev().collect();
            let target = target.and_then(|target| parts_of(&place.join(target).join(rest)));
            let Some(parts) = target.filter(|_| links <= MOST_LINKS) else {
                return Ok(None);
            };
            left = parts;
            place = PathBuf::new();
        }
        Ok(Some(place))
    }

    /// The table of an experiment's newest run, if a path leads to its link `latest`, or to the table
    /// there, and `linked` is a run beside it: a commit may have an old link, or none.
    fn newest_past_link(
        &self,
        path: &Path,
        linked: Option<&Path>,
    ) -> Result<Option<PathBuf>, String> {
        let Some(above) = runs::above_latest(path) else {
            return Ok(None);
        };
        let Some(experiment) = self.follow(above)? else {
            return Ok(None);
        };
        let is_link = self.kind(&experiment.join(LATEST))? == Some(GitKind::Link);
        match linked {
            Some(place) if !runs::is_own_link(is_link, place, &experiment) => Ok(None),
            _ => self.table(&experiment),
        }
    }

    /// Returns the table for a path: the file itself, that beside another file of a run's record, that
    /// of a run's folder, or that of an experiment's newest run.
    fn table(&self, place: &Path) -> Result<Option<PathBuf>, String> {
        if runs::is_beside_table(place) {
            let table = place.with_file_name(TRIALS.file);
            if self.kind(&table)? == Some(GitKind::File) {
                return Ok(Some(table));
            }
        }
        if self.kind(place)? == Some(GitKind::File) {
            return Ok(Some(place.to_owned()));
        }
        let own = RunFolder::at(place).trials_table();
        if self.kind(&own)? == Some(GitKind::File) {
            return Ok(Some(own));
        }
        let runs = self.runs(place)?;
        let newest = runs.iter().rev().find(|run| run.has_table);
        Ok(newest.map(|run| run.folder.trials_table()))
    }

    /// The runs of an experiment, oldest first, in the order of [`kiln_core::record::run_folder::runs`].
    fn runs(&self, experiment: &Path) -> Result<Vec<CommittedRun>, String> {
        let folder = format!("{}:{}", self.commit, experiment.display());
        let listed = git(&["ls-tree", "-r", "--full-tree", "-z", &folder])?;
        let mut runs: BTreeMap<&str, CommittedRun> = BTreeMap::new();
        let files = listed.split(|byte| *byte == 0).filter_map(file_of_run);
        for (name, file) in files {
            let run = runs.entry(name).or_insert_with(|| CommittedRun {
                folder: RunFolder::at(experiment.join(name)),
                has_file: false,
                has_table: false,
            });
            run.has_file |= file == RUN_FILE;
            run.has_table |= file == TRIALS.file;
        }
        let is_run = |run: &CommittedRun| run.has_file || is_run_name(&run.folder.name());
        let runs: Vec<CommittedRun> = runs.into_values().filter(is_run).collect();
        // A single run needs no order, and no file is read.
        if runs.len() < 2 {
            return Ok(runs);
        }
        let numbered = runs.into_iter().map(|run| Ok((self.number(&run)?, run)));
        let numbered: Result<Vec<_>, String> = numbered.collect();
        numbered.map(|runs| in_order(runs, |run| &run.folder))
    }

    /// As [`RunFolder::number`]; `None` where `run.json` does not tell it.
    fn number(&self, run: &CommittedRun) -> Result<Option<u64>, String> {
        if !run.has_file {
            return Ok(None);
        }
        let text = input::text_of(self.read(&run.folder.run_file())?).ok();
        let found: Option<Value> = text.and_then(|text| serde_json::from_str(&text).ok());
        let found = found.as_ref().and_then(Value::as_object);
        Ok(found.and_then(|file| match file.get("number") {
            Some(number) => number.as_u64(),
            None => Some(0),
        }))
    }
}

/// The file with a run's record.
const RUN_FILE: &str = "run.json";

/// A run's folder in a commit, and which of its files are there.
struct CommittedRun {
    folder: RunFolder,
    has_file: bool,
    has_table: bool,
}

/// The name of a run's folder and that of a file in it, from a line of `git ls-tree -r`; `None` for
/// other files, and for folders that are not visible.
fn file_of_run(line: &[u8]) -> Option<(&str, &str)> {
    let (facts, path) = str::from_utf8(line).ok()?.split_once('\t')?;
    let (name, file) = path.split_once('/')?;
    let is_run = !name.starts_with('.') && name != LATEST;
    (is_run && facts.starts_with("100")).then_some((name, file))
}

/// The parts of [`plain`], the last one first.
fn parts_of(path: &Path) -> Option<Vec<PathBuf>> {
    Some(plain(path)?.iter().rev().map(PathBuf::from).collect())
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

/// Standard output of git.
///
/// # Errors
/// git cannot be started, gives no answer in time, or fails; the text says why.
fn git(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let answer = git::ask(arguments).map_err(|error| format!("git: {error}"))?;
    if answer.is_success {
        return Ok(answer.stdout);
    }
    let why = answer.stderr.lines().next();
    Err(format!(
        "git cannot read it: {}",
        why.unwrap_or("it gives no reason")
    ))
}

/// Returns the reason why git does not work in this folder: it is not a repository, or git does not
/// trust it; or that this clone lacks older commits.
fn git_says() -> String {
    match git::ask(&["rev-parse", "--is-shallow-repository"]) {
        Ok(answer) if answer.is_success => match answer.stdout.starts_with(b"true") {
            true => " (this clone is shallow: `git fetch --unshallow`)".to_owned(),
            false => String::new(),
        },
        Ok(answer) => format!(
            " ({})",
            answer.stderr.lines().next().unwrap_or("it gives no reason")
        ),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => format!(" (git: {error})"),
        Err(error) => format!(" (git cannot be started: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::record::run_folder::runs;

    use super::*;

    #[test]
    fn the_runs_of_a_commit_have_the_order_of_those_of_a_working_tree() {
        let results = tempfile::tempdir().unwrap();
        let known = [
            ("20300101T000000Z-abc", Some(1)),
            ("20260101T000000Z-abc", Some(2)),
            ("20260101T000000Z-abc-copy", Some(2)),
            ("20260102T000000Z-abc", None),
            ("20260103T000000Z-abc", Some(4)),
            ("20260103T000000Z-abc-2", None),
            ("20250103T000000Z-abc", Some(0)),
            ("20250103T000000Z-abc-2", Some(0)),
            ("renamed", Some(5)),
            ("kept", None),
        ];
        let mut committed = Vec::new();
        for (name, number) in known {
            let folder = RunFolder::at(results.path().join("x").join(name));
            fs::create_dir_all(folder.path()).unwrap();
            let text = number.map_or("{".to_owned(), |number| format!("{{\"number\": {number}}}"));
            fs::write(folder.run_file(), text).unwrap();
            let run = CommittedRun {
                folder,
                has_file: true,
                has_table: true,
            };
            committed.push((number, run));
        }
        let ordered = in_order(committed, |run| &run.folder);
        let folders: Vec<RunFolder> = ordered.into_iter().map(|run| run.folder).collect();
        assert_eq!(folders, runs(results.path(), "x").unwrap());
        assert_eq!(folders.last().unwrap().name(), "renamed");
    }

    #[test]
    fn files_of_runs_are_told_from_others() {
        let line = |path: &str| format!("100644 blob 587be6b4\t{path}");
        let found = |path: &str| {
            let line = line(path);
            file_of_run(line.as_bytes()).map(|(name, file)| (name.to_owned(), file.to_owned()))
        };
        let run = ("renamed".to_owned(), "run.json".to_owned());
        assert_eq!(found("renamed/run.json"), Some(run));
        for other in ["trials.csv", ".new-x/run.json", "latest/run.json"] {
            assert_eq!(found(other), None, "{other}");
        }
        assert_eq!(file_of_run(b"120000 blob 587be6b4\tx/run.json"), None);
    }
}
