//! A program with its arguments, folder and environment, as trials start it.

use std::path::{Path, PathBuf};

use crate::relay;

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
}

impl Invocation<'_> {
    pub(super) fn base(&self) -> PathBuf {
        let here = std::env::current_dir().unwrap_or_default();
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
        let path = path.map(|(_, value)| value.as_str());
        relay::find_program(program, self.folder, path).ok()
    }
}
