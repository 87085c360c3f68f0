//! Runs a program for its answer: without input, for a limited time and up to a limited size. One
//! that hangs is ended with all that it started.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// Time between two looks whether the program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// The answer of a program that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) is_success: bool,
    pub(crate) stdout: Vec<u8>,
    /// As text.
    pub(crate) stderr: String,
}

/// Runs a program to its end. Of each output at most `most_bytes` are kept.
///
/// # Errors
/// It cannot be started, or gives no answer in time ([`io::ErrorKind::TimedOut`]).
pub(crate) fn answer(
    mut command: Command,
    patience: Duration,
    most_bytes: u64,
) -> io::Result<Answer> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let stdout = drain(child.stdout.take(), most_bytes);
    let stderr = drain(child.stderr.take(), most_bytes);
    let deadline = Instant::now() + patience;
    let ended = wait(&mut child, deadline);
    let read = |stream: Receiver<Vec<u8>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.recv_timeout(left).ok()
    };
    let answered = ended.and_then(|status| Some((status, read(stdout)?, read(stderr)?)));
    let Some((status, stdout, stderr)) = answered else {
        end(child);
        let text = format!("it gave no answer in {} s", patience.as_secs_f64());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    };
    Ok(Answer {
        is_success: status.success(),
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

/// Reads a stream to its end in a thread of its own, and keeps its beginning.
fn drain(stream: Option<impl Read + Send + 'static>, most_bytes: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Bytes read before an error are used.
            let _ = stream.by_ref().take(most_bytes).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        let _ = sender.send(bytes);
    });
    receiver
}

/// `None` if it still runs at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Ends it with what it started.
fn end(mut child: Child) {
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::program::write_program;

    #[test]
    fn a_program_that_hangs_is_ended_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("git");
        let child = folder.path().join("child");
        let text = format!(
            "#!/bin/sh\nsleep 60 & echo $! >'{}'\nwait\n",
            child.display()
        );
        write_program(&program, &text);
        // A busy machine may take longer to start it.
        let pid = [500, 5_000, 60_000].into_iter().find_map(|patience| {
            let patience = Duration::from_millis(patience);
            let refused = answer(Command::new(&program), patience, 100).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
            let pid = fs::read_to_string(&child).ok()?;
            pid.ends_with('\n').then_some(pid)
        });
        let pid = pid.expect("it started nothing");
        let stat = format!("/proc/{}/stat", pid.trim());
        // It has been killed; who reaps it is the system's matter.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn an_answer_is_kept_up_to_a_limit_and_a_long_one_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("long");
        write_program(
            &program,
            "#!/bin/sh\nhead -c 1000000 /dev/zero\necho no >&2\n",
        );
        let long = answer(Command::new(&program), Duration::from_secs(60), 100).unwrap();
        assert!(long.is_success && long.stdout == [0; 100], "{long:?}");
        assert_eq!(long.stderr, "no\n");
    }
}
