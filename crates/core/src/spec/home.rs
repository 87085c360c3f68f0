//! `~` at the beginning of a path of an experiment file.

use std::path::{Path, PathBuf};

/// A path as an experiment file gives it: `~`, or `~/` at its beginning, is `$HOME`. Without that
/// variable the path stays as it is.
pub fn expand_home(path: &str) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home_in(path, home.as_deref().map(Path::new))
}

fn home_in(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.to_owned(),
        (Some(rest), Some(home)) if rest.starts_with('/') => {
            home.join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_at_the_beginning_is_the_home() {
        let home = Some(Path::new("/home/me"));
        for (path, expected) in [
            ("~", "/home/me"),
            ("~/data/a.txt", "/home/me/data/a.txt"),
            ("~you/a.txt", "~you/a.txt"),
            ("a/~/b", "a/~/b"),
            ("/x", "/x"),
        ] {
            assert_eq!(home_in(path, home), Path::new(expected), "{path}");
        }
        assert_eq!(home_in("~/a", None), Path::new("~/a"));
    }
}
