//! A program with its arguments, folder and environment, as trials start it.

use std::{
    cell::RefCell,
    collections::HashMap,
    hash::Hash,
    path::{Path, PathBuf},
};

use super::names::{FirstLine, first_line};
use crate::relay;

/// A cache of file lookups for one pass over the trials of an experiment. Most trials start the same
/// program, and on a shared file system each lookup is a request to the file server.
#[derive(Debug)]
pub(super) struct Lookups {
    /// The folder in which kiln was started.
    here: PathBuf,
    /// By name, folder and `PATH`.
    programs: RefCell<HashMap<ProgramName, Option<PathBuf>>>,
    files: RefCell<HashMap<PathBuf, bool>>,
    first_lines: RefCell<HashMap<PathBuf, Option<FirstLine>>>,
}

type ProgramName = (String, Option<String>, Option<String>);

impl Lookups {
    pub(super) fn new() -> Self {
        Self {
            here: std::env::current_dir().unwrap_or_default(),
            programs: RefCell::default(),
            files: RefCell::default(),
            first_lines: RefCell::default(),
        }
    }
}

/// Returns the cached value of a key; for a new key `look` computes it.
fn once<K: Eq + Hash + Clone, V: Clone>(
    known: &RefCell<HashMap<K, V>>,
    key: &K,
    look: impl FnOnce(&K) -> V,
) -> V {
    if let Some(value) = known.borrow().get(key) {
        return value.clone();
    }
    let value = look(key);
    known.borrow_mut().insert(key.clone(), value.clone());
    value
}

/// A program as one trial starts it.
pub(super) struct Invocation<'a> {
    pub(super) argv: &'a [String],
    pub(super) prepare: &'a [String],
    pub(super) folder: Option<&'a str>,
    pub(super) environment: &'a [(String, String)],
    pub(super) files: &'a [String],
    /// The key of the experiment that holds `files`.
    pub(super) files_key: &'a str,
    /// The folder of the runs: what lies there is no part of a program.
    pub(super) results: &'a Path,
    pub(super) lookups: &'a Lookups,
}

impl Invocation<'_> {
    pub(super) fn base(&self) -> PathBuf {
        let here = &self.lookups.here;
        self.folder
            .map_or_else(|| here.clone(), |folder| here.join(folder))
    }

    /// A path from the folder in which kiln was started.
    pub(super) fn shown(&self, path: &str) -> String {
        let whole = Path::new(self.folder.unwrap_or("")).join(path);
        let text = whole.to_string_lossy();
        text.strip_prefix("./").unwrap_or(&text).to_owned()
    }

    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        let path = self.environment.iter().find(|(name, _)| name == "PATH");
        let path = path.map(|(_, value)| value.clone());
        let name = (program.to_owned(), self.folder.map(str::to_owned), path);
        once(&self.lookups.programs, &name, |(name, folder, path)| {
            relay::find_program(name, folder.as_deref(), path.as_deref()).ok()
        })
    }

    pub(super) fn is_file(&self, path: &PathBuf) -> bool {
        once(&self.lookups.files, path, |path| path.is_file())
    }

    /// The Python that the first line of a script names.
    pub(super) fn first_line(&self, script: &PathBuf) -> Option<FirstLine> {
        once(&self.lookups.first_lines, script, |script| {
            first_line(script)
        })
    }
}
