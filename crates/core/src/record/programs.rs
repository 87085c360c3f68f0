//! The programs of a launch that are not kiln's own, with the files, interpreters and libraries
//! that make them what they are: a part of `run.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Key of the program of `model.kind: command` among the programs of a launch; an engine's is
/// `run.engines.NAME`.
pub const COMMAND_PROGRAM: &str = "model";

/// Most values that one library has, joined, where trials loaded different files.
const MOST_VARIANTS: usize = 4;
/// Between them.
const VARIANTS: &str = " and ";

/// Returns the key of an engine of one's own.
pub fn engine_key(name: &str) -> String {
    format!("run.engines.{name}")
}

/// The state of the source tree in which kiln was started, or of a program's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    pub commit: String,
    /// Whether tracked files differed from the commit, or it lacks a file of the program.
    pub dirty: bool,
}

/// One program of a launch. Paths are as the experiment writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRecord {
    /// The program and the files among its arguments: `python train.py`. Several where the values
    /// of a sweep choose the program.
    pub program: Vec<String>,
    /// The file whose hash stands for the program: its script, else the program itself. `None`
    /// where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main: Option<String>,
    /// SHA-256 of the files that may not change within a run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// SHA-256 of files that may change within a run: interpreters, and what `prepare` may make.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<String, String>,
    /// Files without a hash, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<String, String>,
    /// The git repositories in which its files lie, by their folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub repositories: BTreeMap<String, Git>,
    /// Its interpreters, by their path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub interpreters: BTreeMap<String, Interpreter>,
    /// Libraries loaded into its processes: name to the version that it reported, else to the file
    /// and its build id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
}

/// An interpreter, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// `python 3.12.3`; absent if it gave no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Number of installed packages; absent if they could not be listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<usize>,
    /// SHA-256 of their sorted list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages_sha256: Option<String>,
    /// The file of the run that lists them: `packages-1.txt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages_file: Option<String>,
    /// The reason why something is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl ProgramRecord {
    /// Adds the libraries of one trial; returns whether something was new. Trials that loaded
    /// different files of one name have them all.
    pub fn add_libraries(&mut self, libraries: &BTreeMap<String, String>) -> bool {
        let mut is_new = false;
        for (name, value) in libraries {
            let known = self.libraries.entry(name.clone()).or_default();
            let variants: Vec<&str> = known.split(VARIANTS).collect();
            if variants.contains(&value.as_str()) || variants.len() >= MOST_VARIANTS {
                continue;
            }
            *known = match known.is_empty() {
                true => value.clone(),
                false => format!("{known}{VARIANTS}{value}"),
            };
            is_new = true;
        }
        is_new
    }
}

/// One line of the list of packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageList {
    /// Path of the interpreter.
    pub interpreter: String,
    /// Name to version.
    pub packages: BTreeMap<String, String>,
}

impl PackageList {
    /// The lines of its packages: `numpy 2.1.0`.
    pub fn lines(&self) -> String {
        let line = |(name, version): (&String, &String)| format!("{name} {version}\n");
        self.packages.iter().map(line).collect()
    }

    /// A section of `packages-<launch>.txt`; `interpreter` describes it.
    pub fn section(&self, interpreter: &str) -> String {
        format!(
            "{HEAD}{}: {interpreter}\n{}",
            self.interpreter,
            self.lines()
        )
    }

    /// Reads `packages-<launch>.txt`.
    pub fn parse(text: &str) -> Vec<Self> {
        let mut lists: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix(HEAD) {
                let (interpreter, _) = head.rsplit_once(": ").unwrap_or((head, ""));
                lists.push(Self {
                    interpreter: interpreter.to_owned(),
                    packages: BTreeMap::new(),
                });
            } else if let (Some((name, version)), Some(list)) =
                (line.split_once(' '), lists.last_mut())
            {
                list.packages.insert(name.to_owned(), version.to_owned());
            }
        }
        lists
    }
}

/// Begins the line above the packages of an interpreter.
const HEAD: &str = "# ";

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn trials_that_loaded_different_files_of_one_library_have_both() {
        let mut record = ProgramRecord::default();
        assert!(record.add_libraries(&map(&[("blas", "libopenblas.so.0"), ("openmp", "x")])));
        assert!(!record.add_libraries(&map(&[("blas", "libopenblas.so.0")])));
        assert!(record.add_libraries(&map(&[("blas", "libblis.so.4")])));
        assert!(!record.add_libraries(&map(&[("blas", "libblis.so.4")])));
        let both = map(&[
            ("blas", "libopenblas.so.0 and libblis.so.4"),
            ("openmp", "x"),
        ]);
        assert_eq!(record.libraries, both);
    }

    #[test]
    fn a_list_of_packages_is_read_as_it_was_written() {
        let list = |interpreter: &str, packages: &[(&str, &str)]| PackageList {
            interpreter: interpreter.to_owned(),
            packages: map(packages),
        };
        let lists = [
            list(
                ".venv/bin/python",
                &[("numpy", "2.1.0"), ("torch", "2.11.0 (commit ab)")],
            ),
            list("a: b/python", &[]),
        ];
        let text: String = lists
            .iter()
            .map(|list| list.section("python 3.12.3"))
            .collect();
        assert_eq!(PackageList::parse(&text), lists);
        assert_eq!(
            text,
            "# .venv/bin/python: python 3.12.3\nnumpy 2.1.0\ntorch 2.11.0 (commit ab)\n\
             # a: b/python: python 3.12.3\n"
        );
    }
}
