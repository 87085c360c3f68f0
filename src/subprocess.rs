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

use kiln_core::{folder::system_error, units::MORE_THREADS};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

/// Time between two looks whether the program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Time for the streams of a program that has ended: another that it started may hold them open.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
pub(crate) fn answer(command: Command, patience: Duration, most_bytes: u64) -> io::Result<Answer> {
    let output = run_limited(command, Group::Own, patience, most_bytes)?;
    let (Some(status), Some(stdout), Some(stderr)) = (output.status, output.stdout, output.stderr)
    else {
        let text = format!("it gave no answer in {} s", patience.as_secs_f64());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    };
    Ok(Answer {
        is_success: status.success(),
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

/// Why a program or a thread could not be started, with what to do where a limit is reached.
pub(crate) fn not_started(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            format!("{error}: no more processes or threads may be started; {MORE_THREADS}")
        }
        _ if matches!(system_error(error), Some(Errno::MFILE | Errno::NFILE)) => {
            format!("{error}; raise the limit of open files (`ulimit -n`)")
        }
        _ => error.to_string(),
    }
}

/// The process group of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// A group of its own: the processes that it starts are killed with it.
    Own,
    /// The group of kiln, so that Ctrl-C reaches it.
    Ours,
}

/// The end of a program that ended or was ended, and its output.
pub(crate) struct ProgramOutput {
    /// `None` if it still ran when its time was over.
    pub(crate) status: Option<ExitStatus>,
    /// `None` if a process that it started held the stream open.
    pub(crate) stdout: Option<Vec<u8>>,
    pub(crate) stderr: Option<Vec<u8>>,
}

/// Runs a program to its end, or to the end of its time: then what it had written by then is
/// returned.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run_limited(
    mut command: Command,
    group: Group,
    patience: Duration,
    most_bytes: u64,
) -> io::Result<ProgramOutput> {
    if group == Group::Own {
        command.process_group(0);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let streams = drain(child.stdout.take(), most_bytes)
        .and_then(|stdout| Ok((stdout, drain(child.stderr.take(), most_bytes)?)));
    let (stdout, stderr) = match streams {
        Ok(streams) => streams,
        Err(error) => {
            end(&mut child, group);
            return Err(error);
        }
    };
    let deadline = Instant::now() + patience;
    let status = wait(&mut child, deadline);
    if status.is_none() {
        end(&mut child, group);
    }
    let last = Instant::now() + LAST_WORDS;
    let read = |stream: Receiver<Vec<u8>>| {
        let left = last.saturating_duration_since(Instant::now());
        stream.recv_timeout(left).ok()
    };
    let (stdout, stderr) = (read(stdout), read(stderr));
    if stdout.is_none() || stderr.is_none() {
        end(&mut child, group);
    }
    Ok(ProgramOutput {
        status,
        stdout,
        stderr,
    })
}

/// Reads a stream to its end in a thread of its own, and keeps its beginning.
fn drain(
    stream: Option<impl Read + Send + 'static>,
    most_bytes: u64,
) -> io::Result<Receiver<Vec<u8>>> {
    let (sender, receiver) = channel();
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Bytes read before an error are used.
            let _ = stream.by_ref().take(most_bytes).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        let _ = sender.send(bytes);
    })?;
    Ok(receiver)
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

/// Ends it, and what it started if that is a group of its own.
fn end(child: &mut Child, group: Group) {
    if group == Group::Own {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    }
    let _ = child.kill();
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
