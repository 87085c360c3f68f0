//! Asks git about the repository around this folder. git reads the repository's settings, and a
//! repository may come from somebody else: programs that it names are not run, nothing is written,
//! and a git that hangs is ended.

use std::{io, path::Path, process::Command, time::Duration};

use crate::subprocess::{Answer, answer};

/// Longest time that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A revision of a table is read through git.
const MOST_BYTES: u64 = 1 << 30;

/// Settings that keep a repository from having its own programs run.
const SETTINGS: [&str; 2] = ["core.fsmonitor=false", "core.hooksPath=/dev/null"];

/// Runs git in the current folder.
///
/// # Errors
/// If git cannot be started, or gives no answer within 5 s ([`io::ErrorKind::TimedOut`]).
pub(crate) fn ask(arguments: &[&str]) -> io::Result<Answer> {
    answer(command(arguments), PATIENCE, MOST_BYTES)
}

/// Returns standard output if git succeeds in a folder.
///
/// # Errors
/// As [`ask`].
pub(crate) fn stdout_in(folder: &Path, arguments: &[&str]) -> io::Result<Option<Vec<u8>>> {
    let mut command = command(arguments);
    command.current_dir(folder);
    let answer = answer(command, PATIENCE, MOST_BYTES)?;
    Ok(answer.is_success.then_some(answer.stdout))
}

/// Returns standard output if git succeeds.
///
/// # Errors
/// As [`ask`].
pub(crate) fn stdout(arguments: &[&str]) -> io::Result<Option<Vec<u8>>> {
    ask(arguments).map(|answer| answer.is_success.then_some(answer.stdout))
}

/// Returns standard output of a command on all files of the repository but those under `results`;
/// on all of them if `results` is outside the repository.
///
/// # Errors
/// As [`ask`].
pub(crate) fn stdout_but_for(results: &Path, arguments: &[&str]) -> io::Result<Option<Vec<u8>>> {
    let all = [arguments, &["--", ":/"]].concat();
    let but_results = format!(":(exclude){}", results.display());
    match stdout(&[all.as_slice(), &[&but_results]].concat()) {
        // A folder outside the repository cannot be named to git.
        Ok(None) => stdout(&all),
        // A git that gives no answer is not asked again.
        answered => answered,
    }
}

/// The files that differ between two commits of the repository around the current folder, but for
/// those under `results`; `None` if git cannot tell.
pub(crate) fn changed_files(old: &str, new: &str, results: &Path) -> Option<Vec<String>> {
    // The hashes come from a file, and git takes an argument that begins with a dash for an option.
    let is_hash = |commit: &str| commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hash(old) || !is_hash(new) {
        return None;
    }
    let diff = ["diff", "--name-only", "--no-ext-diff", "-z", old, new];
    let names = stdout_but_for(results, &diff).ok()??;
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Some(
        names
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect(),
    )
}

/// The rule by which git ignores a file, such as ".gitignore:3 `*.csv`"; `None` if git does not
/// ignore the file, or cannot tell.
pub(crate) fn ignored_by(file: &Path) -> Option<String> {
    let (folder, name) = (file.parent()?, file.file_name()?.to_str()?);
    let name = format!("./{name}");
    let answer = stdout_in(folder, &["check-ignore", "-v", "--", &name]).ok()??;
    let answer = String::from_utf8_lossy(&answer);
    let (rule, _) = answer.split_once('\t')?;
    let mut parts = rule.splitn(3, ':');
    let (place, line, pattern) = (parts.next()?, parts.next()?, parts.next()?);
    // git also prints a rule that includes the file again.
    let is_ignored = !pattern.starts_with('!');
    is_ignored.then(|| format!("{place}:{line} `{pattern}`"))
}

/// Whether git knows a revision with this name.
pub(crate) fn is_revision(named: &str) -> bool {
    matches!(commit_of(named), Ok(Some(_)))
}

/// The hash of the commit that a revision names; `None` if git knows no such revision, or does not
/// work here.
///
/// # Errors
/// git gives no answer in time.
pub(crate) fn commit_of(revision: &str) -> Result<Option<String>, String> {
    let found = stdout(&[
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &format!("{revision}^{{commit}}"),
    ]);
    match found {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(format!("git: {error}")),
        // The caller asks again why git cannot be started.
        Err(_) => Ok(None),
        Ok(commit) => Ok(commit.map(|commit| String::from_utf8_lossy(&commit).trim().to_owned())),
    }
}

/// The path of the current folder from the root of its repository, with `/` at its end; empty in the
/// root and outside of a repository.
pub(crate) fn prefix() -> String {
    let prefix = stdout(&["rev-parse", "--show-prefix"]).ok().flatten();
    let prefix = String::from_utf8_lossy(&prefix.unwrap_or_default()).into_owned();
    prefix.trim_end_matches('\n').to_owned()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command
        .args(arguments)
        .env("GIT_OPTIONAL_LOCKS", "0")
        // Git LFS then gives what it has and downloads nothing.
        .env("GIT_LFS_SKIP_SMUDGE", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    command
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::program::write_program;

    fn in_repository(folder: &Path, arguments: &[&str]) -> Answer {
        let mut command = command(arguments);
        command.current_dir(folder);
        answer(command, Duration::from_secs(60), MOST_BYTES).unwrap()
    }

    /// A repository whose settings and hooks name a program that leaves the file `run`.
    fn booby_trapped(folder: &Path) {
        let set = |arguments: &[&str]| assert!(in_repository(folder, arguments).is_success);
        set(&["init", "-q"]);
        set(&["config", "user.name", "x"]);
        set(&["config", "user.email", "x@example.com"]);
        fs::write(folder.join("file"), "1").unwrap();
        set(&["add", "file"]);
        set(&["commit", "-q", "-m", "first"]);
        let program = folder.join(".git/trap");
        let text = format!("#!/bin/sh\n: >'{}'\n", folder.join("run").display());
        write_program(&program, &text);
        let hooks = folder.join(".git/hooks");
        fs::create_dir_all(&hooks).unwrap();
        write_program(&hooks.join("post-index-change"), &text);
        set(&["config", "core.fsmonitor", &program.display().to_string()]);
        // A changed time alone makes git refresh its index, and then it runs the hook.
        fs::write(folder.join("file"), "1").unwrap();
    }

    #[test]
    fn programs_that_a_repository_names_are_not_run() {
        let folder = tempfile::tempdir().unwrap();
        booby_trapped(folder.path());
        let status = ["status", "--porcelain", "--untracked-files=no"];
        let clean = in_repository(folder.path(), &status);
        assert!(clean.is_success && clean.stdout.is_empty(), "{clean:?}");
        assert!(!folder.path().join("run").exists());
        // The trap works.
        let mut plain = Command::new("git");
        plain.args(status).current_dir(folder.path());
        answer(plain, Duration::from_secs(60), MOST_BYTES).unwrap();
        assert!(folder.path().join("run").exists());
    }

    #[test]
    fn the_rule_that_ignores_a_file_is_told_and_one_that_takes_it_back_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sub/a.csv");
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join(".gitignore"), "x\n*.csv\n").unwrap();
        assert_eq!(ignored_by(&file), None, "outside of a repository");
        assert!(in_repository(folder.path(), &["init", "-q"]).is_success);
        assert_eq!(ignored_by(&file).as_deref(), Some(".gitignore:2 `*.csv`"));
        fs::write(folder.path().join("sub/.gitignore"), "!a.csv\n").unwrap();
        assert_eq!(ignored_by(&file), None);
        assert_eq!(ignored_by(&file.with_file_name("a.txt")), None);
    }

    #[test]
    fn the_answer_is_told_with_what_git_complains_of() {
        let folder = tempfile::tempdir().unwrap();
        let answer = in_repository(folder.path(), &["rev-parse", "HEAD"]);
        assert!(!answer.is_success && answer.stderr.contains("not a git repository"));
    }
}
