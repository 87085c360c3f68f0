//! Checks of output files that a command line names: only a file that kiln wrote is overwritten.

use std::{
    io::{ErrorKind, Read},
    path::Path,
};

use kiln_core::input;

use super::Stop;

/// Mark near the beginning of a file that kiln wrote.
#[derive(Clone, Copy)]
pub(super) struct OwnMark {
    pub(super) text: &'static str,
    /// The command that writes such files.
    pub(super) maker: &'static str,
    /// An example of a file name.
    pub(super) example: &'static str,
}

/// Number of bytes from the beginning that are searched for the mark.
const HEAD: u64 = 2048;

/// Refuses to overwrite a file that kiln did not write, such as a table, an experiment or a device.
pub(super) fn refuse_foreign(file: &Path, own: OwnMark) -> Result<(), Stop> {
    let refuse = |what: &str| {
        Err(Stop::bad_input(format!(
            "{}: {what}; name a new file, such as `{}`",
            file.display(),
            own.example
        )))
    };
    match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(&error.to_string()),
        Ok(kept) if kept.is_dir() => return refuse("it is a folder"),
        Ok(kept) if !kept.is_file() => return refuse("it exists and is not a regular file"),
        Ok(_) => {}
    }
    match head(file) {
        Err(error) => refuse(&error.to_string()),
        Ok(head) if head.is_empty() || has_mark(&head, own) => Ok(()),
        Ok(_) => refuse(&format!("it exists and was not written by `{}`", own.maker)),
    }
}

/// Whether kiln wrote this file.
pub(super) fn is_own(file: &Path, own: OwnMark) -> bool {
    let is_regular = std::fs::symlink_metadata(file).is_ok_and(|kept| kept.is_file());
    is_regular && head(file).is_ok_and(|head| has_mark(&head, own))
}

fn head(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input::open(file)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

/// A template has a brace in the place of the version, and no mark.
fn has_mark(head: &[u8], own: OwnMark) -> bool {
    String::from_utf8_lossy(head)
        .split(own.text)
        .nth(1)
        .is_some_and(|rest| !rest.starts_with('{'))
}
