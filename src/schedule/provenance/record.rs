//! Makes the record of the programs of a launch: their files, repositories, interpreters and
//! packages.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use kiln_core::record::{Interpreter, PackageList, ProgramRecord, programs::Git};
use sha2::{Digest, Sha256};

use super::{FileNow, Programs, interpreter};
use crate::{
    git,
    readings::Paths,
    schedule::launch::{LIST_CHANGES, state_of},
};

/// Most folders of one program's files whose repository is asked for.
const MOST_FOLDERS: usize = 64;

/// The programs of a launch with the packages of their interpreters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schedule) struct Described {
    pub(in crate::schedule) programs: BTreeMap<String, ProgramRecord>,
    pub(in crate::schedule) packages: Vec<PackageList>,
    /// The text of `packages-<launch>.txt`; empty without an interpreter.
    pub(in crate::schedule) packages_text: String,
    /// Notices for the user.
    pub(in crate::schedule) notices: Vec<String>,
}

impl Programs {
    /// Asks the repositories and interpreters. `here` is the commit of the working directory, if it
    /// is known.
    pub(in crate::schedule) fn describe(&self, paths: &Paths, here: Option<&Git>) -> Described {
        let mut described = Described::default();
        let mut repositories = Repositories::new(here);
        let mut interpreters: BTreeMap<String, Interpreter> = BTreeMap::new();
        for (key, source) in &self.sources {
            let files = &self.files[key];
            let mut record = ProgramRecord {
                program: source.program.iter().map(|text| paths.hide(text)).collect(),
                main: match source.mains.as_slice() {
                    [main] => Some(paths.hide(main)),
                    _ => None,
                },
                repositories: repositories.of(files, paths),
                ..ProgramRecord::default()
            };
            for (name, file) in files {
                let name = paths.hide(name);
                match &file.sha256 {
                    Ok(sha256) if file.is_held => record.files.insert(name, sha256.clone()),
                    Ok(sha256) => record.beside.insert(name, sha256.clone()),
                    Err(why) => {
                        let of_disk = format!(
                            "`{name}` has no hash, so a change of it is not noticed: {why}"
                        );
                        described.notices.push(of_disk);
                        record.unread.insert(name, paths.hide(why))
                    }
                };
            }
            if let Some(client) = &source.container_client {
                described.notices.push(format!(
                    "`{client}` has a daemon start the processes of its container, so they are not \
                     this trial's: kiln's limits do not hold for them, and the readings of memory, \
                     CPU and disk are without them; give the limits to `{client}`"
                ));
            }
            if source.left_out > 0 {
                described.notices.push(format!(
                    "{} more files among the arguments of `{key}` have no hash, so changes of them \
                     are not noticed",
                    source.left_out
                ));
            }
            for (name, python) in &source.pythons {
                let name = paths.hide(name);
                let known = interpreters.entry(name.clone()).or_insert_with(|| {
                    let answer = interpreter::ask(python, interpreter::PATIENCE);
                    described.add_interpreter(&name, &answer, paths)
                });
                record.interpreters.insert(name, known.clone());
            }
            described.programs.insert(key.clone(), record);
        }
        described
    }
}

impl Described {
    fn add_interpreter(
        &mut self,
        name: &str,
        answer: &interpreter::InterpreterAnswer,
        paths: &Paths,
    ) -> Interpreter {
        let list = answer.list(name);
        let sentence = paths.hide(&answer.sentence());
        if let Some(why) = &answer.unknown {
            self.notices.push(format!(
                "the packages of {name} are not recorded: {}",
                paths.hide(why)
            ));
        }
        let section = list.clone().unwrap_or_else(|| PackageList {
            interpreter: name.to_owned(),
            packages: BTreeMap::new(),
        });
        self.packages_text.push_str(&section.section(&sentence));
        let sha256 = |list: &PackageList| hex::encode(Sha256::digest(list.lines()));
        let packages_sha256 = list.as_ref().map(sha256);
        self.packages.extend(list);
        Interpreter {
            version: answer.version.clone(),
            packages: answer.packages.as_ref().map(BTreeMap::len),
            packages_sha256,
            packages_file: None,
            unknown: answer.unknown.as_deref().map(|why| paths.hide(why)),
        }
    }

    /// Names the file that has the packages.
    pub(in crate::schedule) fn set_packages_file(&mut self, name: &str) {
        let all = self.programs.values_mut();
        for interpreter in all.flat_map(|program| program.interpreters.values_mut()) {
            interpreter.packages_file = Some(name.to_owned());
        }
    }
}

/// The repositories that were asked for, by the folder of a file.
struct Repositories<'a> {
    here: Option<&'a Git>,
    roots: BTreeMap<PathBuf, Option<PathBuf>>,
    commits: BTreeMap<PathBuf, Option<Git>>,
}

impl<'a> Repositories<'a> {
    fn new(here: Option<&'a Git>) -> Self {
        Self {
            here,
            roots: BTreeMap::new(),
            commits: BTreeMap::new(),
        }
    }

    /// The repositories of these files, by their folder as a user would write it.
    fn of(&mut self, files: &BTreeMap<String, FileNow>, paths: &Paths) -> BTreeMap<String, Git> {
        // The repository of an interpreter is nobody's work on this program.
        let held = files.values().filter(|file| file.is_held);
        let mut folders: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
        for path in held.map(|file| &file.path) {
            if let Some((folder, name)) = path.parent().zip(path.file_name()) {
                let names = folders.entry(folder.to_owned()).or_default();
                names.push(name.to_owned());
            }
        }
        let mut of_root: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for (folder, names) in folders.into_iter().take(MOST_FOLDERS) {
            let root = self
                .roots
                .entry(folder.clone())
                .or_insert_with(|| root_of(&folder));
            let Some(root) = root.clone() else {
                continue;
            };
            // git takes no path that leads into the repository through a link.
            let folder = folder.canonicalize().unwrap_or(folder);
            let files = names.into_iter().map(|name| folder.join(name));
            of_root.entry(root).or_default().extend(files);
        }
        let mut found = BTreeMap::new();
        for (root, files) in of_root {
            let here = self.here;
            let commit = self
                .commits
                .entry(root.clone())
                .or_insert_with(|| commit_of(&root, here));
            if let Some(commit) = commit.clone() {
                let dirty = commit.dirty || has_untracked(&root, &files);
                let git = Git { dirty, ..commit };
                found.insert(paths.hide(&root.to_string_lossy()), git);
            }
        }
        found
    }
}

/// Whether one of these files is neither in the repository nor ignored by it, as what a build makes
/// is.
fn has_untracked(root: &Path, files: &[PathBuf]) -> bool {
    let files: Option<Vec<&str>> = files.iter().map(|file| file.to_str()).collect();
    let ask = |files: Vec<&str>| {
        let untracked = ["ls-files", "--others", "--exclude-standard", "-z", "--"];
        let all = [
            &["--literal-pathspecs"][..],
            &untracked[..],
            files.as_slice(),
        ]
        .concat();
        git::stdout_in(root, &all).ok()?
    };
    // If git cannot answer, the files count as untracked.
    files
        .and_then(ask)
        .is_none_or(|untracked| !untracked.is_empty())
}

/// The folder of the repository around a folder.
fn root_of(folder: &Path) -> Option<PathBuf> {
    let asked = git::stdout_in(folder, &["rev-parse", "--show-toplevel"]).ok()??;
    let text = String::from_utf8(asked).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n'))).filter(|root| root.is_absolute())
}

fn commit_of(root: &Path, here: Option<&Git>) -> Option<Git> {
    let current = std::env::current_dir().ok();
    let is_here = current.is_some_and(|current| {
        current.starts_with(root) && root_of(&current).as_deref() == Some(root)
    });
    if let Some(here) = here.filter(|_| is_here) {
        return Some(here.clone());
    }
    let commit = git::stdout_in(root, &["rev-parse", "HEAD"]).ok()??;
    let changes = git::stdout_in(root, &LIST_CHANGES);
    Some(state_of(&commit, changes))
}
