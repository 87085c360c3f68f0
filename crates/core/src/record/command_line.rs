//! Recorded command lines: the experiment file, and the command that resumes a run.

use std::fs;

use super::{RunFile, RunFolder};
use crate::units::shell_word;

/// Options of one launch, which a resume leaves out; those that take a value.
const LEFT_OUT: [&str; 4] = ["--fresh", "--quiet", "--dry-run", "--detach"];
const LEFT_OUT_WITH_VALUE: [&str; 6] = [
    "--only",
    "--rerun",
    "--keep",
    "--across",
    "--read-again",
    "--progress",
];

/// The command that resumes a run; `None` if a newer run of the experiment is there, or no recorded
/// command line tells it.
pub fn resuming(file: &RunFile, folder: &RunFolder) -> Option<String> {
    let folder = RunFolder::at(fs::canonicalize(folder.path()).ok()?);
    let is_newest = folder.is_newest().ok()?;
    let mut launches = file.launches.iter().rev();
    let command = launches.find_map(|launch| same_command(&launch.command_line))?;
    is_newest.then_some(command)
}

/// The same command without the options of one launch.
fn same_command(words: &[String]) -> Option<String> {
    experiment_file(words)?;
    // The name of the trial of `--at` may mean another one by now.
    let is_known = words
        .get(1)
        .is_some_and(|word| word == "run" || word == "tune");
    if !is_known || words.iter().any(|word| word.starts_with("--at")) {
        return None;
    }
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if LEFT_OUT_WITH_VALUE.contains(&word.as_str()) {
            words.next();
        } else if !is_left_out(word) {
            kept.push(typed(word));
        }
    }
    Some(kept.join(" "))
}

fn is_left_out(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    let has_value = name.is_some_and(|name| LEFT_OUT_WITH_VALUE.contains(&name));
    has_value || LEFT_OUT.contains(&word)
}

/// A word for a shell; a path below the home folder is recorded with `~`, which the shell replaces.
fn typed(word: &str) -> String {
    match word.strip_prefix("~/") {
        Some(rest) if shell_word(rest) == rest => word.to_owned(),
        _ => shell_word(word),
    }
}

/// The one experiment file that a command line names; `None` if it names none or several.
pub fn experiment_file(words: &[String]) -> Option<&str> {
    let is_file = |word: &&str| {
        let is_yaml = word.ends_with(".yaml") || word.ends_with(".yml");
        is_yaml && !word.starts_with('-') && !word.contains('=')
    };
    let mut files = words.iter().map(String::as_str).filter(is_file);
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_found_and_a_set_value_is_not_a_file() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            experiment_file(&words).map(str::to_owned)
        };
        let one = of("kiln run --set model.values.config=c.yaml a/x.yaml --fresh");
        assert_eq!(one.as_deref(), Some("a/x.yaml"));
        assert_eq!(of("kiln run x.yaml y.yaml"), None);
        assert_eq!(of("kiln reproduce latest"), None);
    }

    #[test]
    fn options_of_one_launch_are_left_out_of_a_resume() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            same_command(&words)
        };
        for (line, resume) in [
            ("kiln run x.yaml --fresh --quiet", "kiln run x.yaml"),
            (
                "kiln run --only t1 ~/x.yaml --progress=json --set train.steps=3",
                "kiln run ~/x.yaml --set train.steps=3",
            ),
            ("kiln tune x.yaml --progress plain", "kiln tune x.yaml"),
        ] {
            assert_eq!(of(line).as_deref(), Some(resume), "{line}");
        }
        for other in ["kiln run x.yaml --at y", "kiln reproduce x", "kiln run"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
