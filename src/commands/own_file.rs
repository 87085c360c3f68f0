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
    let mut head = Vec::new();
    match input::open(file).and_then(|kept| kept.take(HEAD).read_to_end(&mut head)) {
        Err(error) => refuse(&error.to_string()),
        Ok(0) => Ok(()),
        // A template has a brace in the place of the version.
        Ok(_)
            if String::from_utf8_lossy(&head)
                .split(own.text)
                .nth(1)
                .is_some_and(|rest| !rest.starts_with('{')) =>
        {
            Ok(())
        }
        Ok(_) => refuse(&format!("it exists and was not written by `{}`", own.maker)),
    }
}
