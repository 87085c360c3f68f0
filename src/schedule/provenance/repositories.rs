//! Compares the git repositories of a launch's programs with those of the launches before.

use std::{collections::BTreeSet, path::Path};

use kiln_core::{
    record::{RunFile, programs::Git},
    units::{few, short_hash},
};

use super::Described;
use crate::git;

/// Largest number of changed files that a sentence names.
const MOST_NAMED: usize = 3;

/// Sentences on repositories of programs that are in another state than at the launch before.
/// Launches before `first` measured nothing. The files that a program imports have no hash. Files
/// under `results` do not count.
pub(in crate::schedule) fn repositories(
    run: &RunFile,
    first: u64,
    now: &Described,
    results: &Path,
) -> BTreeSet<String> {
    let measured = || {
        run.launches
            .iter()
            .filter(move |launch| launch.launch >= first)
    };
    let files = |old: &str, new: &str| git::changed_files(old, new, results);
    let mut sentences = BTreeSet::new();
    for (key, record) in &now.programs {
        for (folder, new) in &record.repositories {
            let before = measured().rev().find_map(|launch| {
                let old = launch.programs.get(key)?.repositories.get(folder)?;
                Some((launch.launch, old))
            });
            let what = before.and_then(|(_, old)| difference(old, new, files));
            let launch = before.map_or(0, |(launch, _)| launch);
            sentences.extend(what.map(|what| sentence(folder, launch, &what)));
        }
    }
    sentences
}

fn sentence(folder: &str, launch: u64, what: &str) -> String {
    format!(
        "the program's repository `{folder}` has changed since launch {launch} ({what}), and rows \
         of both stand in one table; list the files that the program reads in `files` to have them \
         checked, or start a new run with `--fresh`"
    )
}

/// The difference between two states of a repository; `None` if none is known. Of uncommitted changes
/// only their existence is recorded. `files` tells which files differ between
/// two commits, if git knows.
fn difference(
    old: &Git,
    new: &Git,
    files: impl Fn(&str, &str) -> Option<Vec<String>>,
) -> Option<String> {
    let uncommitted = match (old.dirty, new.dirty) {
        (false, true) => Some("it has uncommitted changes now"),
        (true, false) => Some("it had uncommitted changes then"),
        _ => None,
    };
    if old.commit == new.commit {
        return uncommitted.map(str::to_owned);
    }
    let files = files(&old.commit, &new.commit);
    if files.as_ref().is_some_and(Vec::is_empty) {
        return uncommitted.map(str::to_owned);
    }
    let commits = format!(
        "commit {} → {}",
        short_hash(&old.commit),
        short_hash(&new.commit)
    );
    let files = files.map(|files| format!(": {}", few(&files, MOST_NAMED)));
    let uncommitted = uncommitted.map(|what| format!("; {what}"));
    Some(commits + &files.unwrap_or_default() + &uncommitted.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_told_by_what_changed_in_it() {
        let git = |digit: &str, dirty| Git {
            commit: digit.repeat(40),
            dirty,
        };
        let told = |old, new, files: Option<&[&str]>| {
            let files: Option<Vec<String>> =
                files.map(|files| files.iter().map(|&file| file.to_owned()).collect());
            difference(&old, &new, |_, _| files.clone())
        };
        for same in [false, true] {
            assert_eq!(told(git("a", same), git("a", same), None), None);
            // Only results were committed.
            assert_eq!(told(git("a", same), git("b", same), Some(&[])), None);
        }
        let commits = "commit aaaaaaaaaaaa… → bbbbbbbbbbbb…";
        let (now, then) = (
            "it has uncommitted changes now",
            "it had uncommitted changes then",
        );
        for (old, new, files, what) in [
            (git("a", false), git("a", true), None, now.to_owned()),
            (git("a", true), git("a", false), None, then.to_owned()),
            (
                git("a", true),
                git("b", false),
                Some(&[][..]),
                then.to_owned(),
            ),
            (git("a", true), git("b", true), None, commits.to_owned()),
            (
                git("a", false),
                git("b", true),
                Some(&["model.py"][..]),
                format!("{commits}: model.py; {now}"),
            ),
            (
                git("a", false),
                git("b", false),
                Some(&["a", "b", "c", "d", "e"][..]),
                format!("{commits}: a, b, c and 2 more"),
            ),
        ] {
            assert_eq!(told(old, new, files), Some(what));
        }
        assert!(sentence("~/work", 2, now).contains("`~/work` has changed since launch 2 (it has"));
    }
}
