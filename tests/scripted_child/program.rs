//! Writes a program that can be started at once. Also a module of the library's own tests
//! (`src/schedule/mod.rs`).

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Writes `text` as a program at `path`.
///
/// Another process writes the file. While this process had it open for writing, a child that
/// another thread is starting at that moment would have it open too, and the system does not start
/// a file that is open for writing ("text file busy").
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(
        shell.wait().unwrap().success(),
        "{} cannot be written",
        path.display()
    );
}
