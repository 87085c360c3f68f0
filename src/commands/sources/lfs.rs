//! The content of files that a commit has as pointers of Git LFS.

use crate::git;

/// The settings with the programs that git gives the content of a file to.
const FILTERS: &str = r"^filter\..*\.(smudge|process)$";

/// The content that a pointer stands for; the pointer itself if git does not have the content. git
/// runs the filter of the file for it.
///
/// # Errors
/// git gives no answer in time, or a filter is set by the repository, which may come from somebody
/// else.
pub(super) fn content(object: &str, pointer: Vec<u8>) -> Result<Vec<u8>, String> {
    let ask = |arguments: &[&str]| git::ask(arguments).map_err(|error| format!("git: {error}"));
    let settings = ask(&["config", "-z", "--show-scope", "--get-regexp", FILTERS])?;
    // git fails without a word if there is no such setting.
    if !settings.is_success && !settings.stderr.is_empty() {
        return Ok(pointer);
    }
    if let Some(filter) = foreign_filter(&String::from_utf8_lossy(&settings.stdout)) {
        return Err(format!(
            "it is a pointer of Git LFS, and kiln does not run `{filter}`, which this repository \
             sets; move that setting to your own ones (`git config --global`)"
        ));
    }
    let answer = ask(&["cat-file", "--filters", object])?;
    Ok(match answer.is_success {
        true => answer.stdout,
        false => pointer,
    })
}

/// The name of a filter that the repository sets, other than what `git lfs install --local` sets.
fn foreign_filter(settings: &str) -> Option<&str> {
    let mut parts = settings.split('\0');
    while let (Some(scope), Some(setting)) = (parts.next(), parts.next()) {
        let (name, program) = setting.split_once('\n').unwrap_or((setting, ""));
        let is_own = ["system", "global", "command"].contains(&scope);
        if !is_own && !is_of_lfs(program) {
            return Some(name);
        }
    }
    None
}

fn is_of_lfs(program: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b" -%".contains(&byte);
    let begins = ["git-lfs smudge ", "git-lfs filter-process"];
    begins.iter().any(|begin| program.starts_with(begin)) && program.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_a_repository_sets_is_foreign_unless_it_is_that_of_git_lfs() {
        let of_user = "global\0filter.lfs.smudge\nsh -c x\0system\0filter.x.process\ny\0";
        assert_eq!(foreign_filter(of_user), None);
        assert_eq!(foreign_filter(""), None);
        let installed = "local\0filter.lfs.smudge\ngit-lfs smudge -- %f\0local\0\
                         filter.lfs.process\ngit-lfs filter-process\0";
        assert_eq!(foreign_filter(installed), None);
        for program in ["sh -c x", "git-lfs smudge -- %f; x", "git-lfs version"] {
            for scope in ["local", "worktree"] {
                let settings = format!("{of_user}{scope}\0filter.a.smudge\n{program}\0");
                assert_eq!(
                    foreign_filter(&settings),
                    Some("filter.a.smudge"),
                    "{program}"
                );
            }
        }
    }
}
