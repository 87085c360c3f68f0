//! Runs an engine of one's own, which speaks the child's protocol itself: its output and its end
//! are passed on as they are. The relay only sees to it that nothing that the engine started
//! outlives it or kiln.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    time::Duration,
};

use super::{complain, guard::Guard, program};
use crate::processes;

/// Exit statuses of a shell for a program that is not there, or cannot be started.
const NOT_STARTED: i32 = 127;
const FAILED: i32 = 1;
/// Longest time for the end of what the engine left.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a program with its arguments to its end; the exit status of the relay.
pub fn keep(program: &OsString, arguments: &[OsString]) -> i32 {
    if let Err(error) = Guard::start() {
        complain(&format!(
            "the thread for signals cannot be started: {error}"
        ));
        return FAILED;
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    program::end_with_this_process(&mut command);
    let ended = command.spawn().map(|mut child| child.wait());
    match ended {
        Ok(Ok(status)) => {
            processes::end_descendants(PATIENCE);
            match (status.code(), status.signal()) {
                (Some(status), _) => status,
                (None, signal) => program::end_by(signal.unwrap_or(libc::SIGKILL)),
            }
        }
        Ok(Err(error)) => {
            complain(&format!("the engine could not be waited for: {error}"));
            FAILED
        }
        Err(error) => {
            complain(&format!("{} cannot be started: {error}", program.display()));
            NOT_STARTED
        }
    }
}
