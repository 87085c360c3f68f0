//! Files that a command line names to be written: nothing but a file of kiln's own is written over.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

use super::Stop;

/// What kiln's own files of a kind say of themselves near their beginning.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub(super) text: &'static str,
    /// The command that makes them.
    pub(super) maker: &'static str,
    /// A name for one.
    pub(super) example: &'static str,
}

/// How far from the beginning.
const HEAD: u64 = 2048;

/// A slip of the keyboard must not cost a table, an experiment or a device.
pub(super) fn refuse_foreign(file: &Path, own: Mark) -> Result<(), Stop> {
    let refuse = |what: &str| Err(Stop::bad_input(format!("{}: {what}; name a new file, such as `{}`", file.display(), own.example)));
    match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(&error.to_string()),
        Ok(kept) if kept.is_dir() => return refuse("it is a folder"),
        Ok(kept) if !kept.is_file() => return refuse("it is there already and no plain file"),
        Ok(_) => {}
    }
    let mut head = Vec::new();
    match File::open(file).and_then(|kept| kept.take(HEAD).read_to_end(&mut head)) {
        Err(error) => refuse(&error.to_string()),
        Ok(0) => Ok(()),
        // A template has a brace where a page has its version.
        Ok(_) if String::from_utf8_lossy(&head).split(own.text).nth(1).is_some_and(|rest| !rest.starts_with('{')) => Ok(()),
        Ok(_) => refuse(&format!("it is there already and was not made by `{}`", own.maker)),
    }
}
