//! Finds the files of a pattern of `files`: `*`, `?` and `[…]` within a name, `**` for any number of
//! folders. Hidden names and `__pycache__` match only where they are written out.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use kiln_core::{input, limits::PROGRAM_FILES};
use regex::Regex;

/// Entries of folders that are looked at for each file that may be found.
const ENTRIES_PER_FILE: usize = 25;
/// Never matched by a wildcard: Python writes it.
const CACHE: &str = "__pycache__";

/// Reason why a pattern stands for no files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GlobFault {
    NotThere(String),
    NoMatch(String),
    Folder(String),
    /// The error of the file system or of the limit.
    Unreadable(String),
}

impl GlobFault {
    /// Whether a program may still make the file.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::NotThere(_) | Self::NoMatch(_))
    }
}

impl fmt::Display for GlobFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotThere(path) => write!(
                f,
                "{path}: there is no such file; correct the path, or leave it out"
            ),
            Self::NoMatch(pattern) => write!(
                f,
                "`{pattern}` matches no file; correct the pattern, or leave it out"
            ),
            Self::Folder(path) => write!(
                f,
                "{path} is a folder; write `{}/**` for all files in it",
                path.trim_end_matches('/')
            ),
            Self::Unreadable(what) => f.write_str(what),
        }
    }
}

/// One name between two slashes.
#[derive(Debug)]
enum Part {
    Name(String),
    Wildcard { of_hidden: bool, pattern: Regex },
    AnyDepth,
}

/// Returns the files of a pattern, sorted: each as the pattern would write it, relative to `base`.
///
/// # Errors
/// There is none, it is a folder, or one of them cannot be read.
pub(super) fn find(base: &Path, pattern: &str) -> Result<Vec<String>, GlobFault> {
    let whole = base.join(pattern);
    match input::open(&whole) {
        Ok(_) => return Ok(vec![pattern.to_owned()]),
        Err(_) if whole.is_dir() => return Err(GlobFault::Folder(pattern.to_owned())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(GlobFault::Unreadable(format!(
                "{pattern}: {error}; make it readable, or leave it out"
            )));
        }
        Err(_) if !pattern.contains(['*', '?', '[']) => {
            return Err(GlobFault::NotThere(pattern.to_owned()));
        }
        Err(_) => {}
    }
    let parts: Vec<Part> = pattern
        .split('/')
        .filter(|name| !name.is_empty())
        .map(part)
        .collect();
    let most = PROGRAM_FILES.size();
    let mut search = GlobSearch {
        found: Vec::new(),
        most,
        entries_left: most.saturating_mul(ENTRIES_PER_FILE),
    };
    let (root, shown) = match pattern.starts_with('/') {
        true => (PathBuf::from("/"), "/"),
        false => (base.to_owned(), ""),
    };
    search.descend(&root, shown, &parts).map_err(|exceeded| {
        GlobFault::Unreadable(format!("`{pattern}`: {exceeded}, or name fewer files"))
    })?;
    match search.found.is_empty() {
        true => Err(GlobFault::NoMatch(pattern.to_owned())),
        false => {
            search.found.sort();
            search.found.dedup();
            Ok(search.found)
        }
    }
}

fn part(name: &str) -> Part {
    if name == "**" {
        return Part::AnyDepth;
    }
    match wildcard(name) {
        Some(pattern) => Part::Wildcard {
            of_hidden: name.starts_with('.'),
            pattern,
        },
        None => Part::Name(name.to_owned()),
    }
}

/// `None` if the name has no wildcard.
fn wildcard(name: &str) -> Option<Regex> {
    if !name.contains(['*', '?', '[']) {
        return None;
    }
    let mut pattern = String::from("^");
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            '[' => {
                let text = rest.as_str();
                // A bracket right behind the first one is a character.
                let from = text.chars().next().map_or(0, char::len_utf8);
                let end = text.get(from..).and_then(|more| more.find(']'));
                match end {
                    Some(end) => {
                        let class = &text[..from + end];
                        pattern.push_str(&class_of(class));
                        rest = text[class.len() + 1..].chars();
                    }
                    None => pattern.push_str("\\["),
                }
            }
            other => pattern.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    pattern.push('$');
    Regex::new(&format!("(?s){pattern}")).ok()
}

/// `[!a-z]` is `[^a-z]`.
fn class_of(class: &str) -> String {
    let (negation, members) = match class.strip_prefix(['!', '^']) {
        Some(members) if !members.is_empty() => ("^", members),
        _ => ("", class),
    };
    let escape = |c: char| match c {
        '-' => "-".to_owned(),
        c if c.is_ascii_punctuation() => format!("\\{c}"),
        c => c.to_string(),
    };
    let members: String = members.chars().map(escape).collect();
    format!("[{negation}{members}]")
}

struct GlobSearch {
    found: Vec<String>,
    most: usize,
    entries_left: usize,
}

impl GlobSearch {
    /// `shown` is the path of the folder as the pattern writes it, with a slash at its end.
    fn descend(&mut self, folder: &Path, shown: &str, parts: &[Part]) -> Result<(), String> {
        let Some((part, rest)) = parts.split_first() else {
            return Ok(());
        };
        match part {
            Part::Name(name) => self.take(&folder.join(name), &format!("{shown}{name}"), rest),
            Part::Wildcard { of_hidden, pattern } => {
                for (name, path) in self.entries(folder, *of_hidden)? {
                    if pattern.is_match(&name) {
                        self.take(&path, &format!("{shown}{name}"), rest)?;
                    }
                }
                Ok(())
            }
            Part::AnyDepth => {
                if !rest.is_empty() {
                    self.descend(folder, shown, rest)?;
                }
                for (name, path) in self.entries(folder, false)? {
                    let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
                    let shown = format!("{shown}{name}");
                    if is_folder {
                        self.descend(&path, &format!("{shown}/"), parts)?;
                    } else if rest.is_empty() {
                        self.take(&path, &shown, &[])?;
                    }
                }
                Ok(())
            }
        }
    }

    fn take(&mut self, path: &Path, shown: &str, rest: &[Part]) -> Result<(), String> {
        if !rest.is_empty() {
            return match path.is_dir() {
                true => self.descend(path, &format!("{shown}/"), rest),
                false => Ok(()),
            };
        }
        if path.is_file() {
            self.found.push(shown.to_owned());
        }
        match self.found.len() > self.most {
            true => Err(self.exceeded()),
            false => Ok(()),
        }
    }

    /// The entries of a folder, without hidden ones unless they are asked for; of one that cannot be
    /// read there are none.
    fn entries(
        &mut self,
        folder: &Path,
        of_hidden: bool,
    ) -> Result<Vec<(String, PathBuf)>, String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Some(left) = self.entries_left.checked_sub(1) else {
                return Err(self.exceeded());
            };
            self.entries_left = left;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') == of_hidden && name != CACHE {
                names.push((name, entry.path()));
            }
        }
        names.sort();
        Ok(names)
    }

    fn exceeded(&self) -> String {
        PROGRAM_FILES.exceeded(self.most as u64).to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for file in [
            "a.py",
            "b.py",
            "[c].py",
            "note.txt",
            ".hidden.py",
            "src/d.py",
            "src/deep/e.py",
            "src/__pycache__/e.pyc",
            "src/.git/f.py",
        ] {
            let path = place.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        symlink("/", place.path().join("src/root")).unwrap();
        place
    }

    #[test]
    fn patterns_stand_for_the_files_that_a_shell_would_name() {
        let place = place();
        let find = |pattern: &str| find(place.path(), pattern).unwrap();
        assert_eq!(find("*.py"), ["[c].py", "a.py", "b.py"]);
        assert_eq!(find("[ab].py"), ["a.py", "b.py"]);
        assert_eq!(find("[!a].py"), ["b.py"]);
        assert_eq!(find("?.py"), ["a.py", "b.py"]);
        assert_eq!(find(".*.py"), [".hidden.py"]);
        assert_eq!(find("**/*.py").len(), 5);
        assert_eq!(find("src/**"), ["src/d.py", "src/deep/e.py"]);
        assert_eq!(find("s*/d*/e.py"), ["src/deep/e.py"]);
        assert_eq!(find("src/__pycache__/*"), ["src/__pycache__/e.pyc"]);
        // A name that exists is that file, whatever is in it.
        assert_eq!(find("[c].py"), ["[c].py"]);
        let absolute = place.path().join("src/*.py");
        assert_eq!(find(absolute.to_str().unwrap()).len(), 1);
    }

    #[test]
    fn a_pattern_that_stands_for_nothing_says_why() {
        let place = place();
        let fault = |pattern: &str| find(place.path(), pattern).unwrap_err();
        assert_eq!(fault("x.py"), GlobFault::NotThere("x.py".to_owned()));
        assert_eq!(fault("*.c"), GlobFault::NoMatch("*.c".to_owned()));
        assert_eq!(fault("[a.c"), GlobFault::NoMatch("[a.c".to_owned()));
        assert_eq!(fault("[z-a].py"), GlobFault::NoMatch("[z-a].py".to_owned()));
        assert_eq!(
            fault("src/").to_string(),
            "src/ is a folder; write `src/**` for all files in it"
        );
        assert!(matches!(fault("a.py/x"), GlobFault::Unreadable(_)));
    }
}
