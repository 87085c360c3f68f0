//! Asks git about the repository around this folder. git reads the repository's settings, and a
//! repository may come from somebody else: programs that it names are not run, nothing is written,
//! and a git that hangs is ended.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// Longest time that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks whether git has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Settings that keep a repository from having its own programs run.
const SETTINGS: [&str; 2] = ["core.fsmonitor=false", "core.hooksPath=/dev/null"];

/// The answer of a git that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitAnswer {
    pub(crate) is_success: bool,
    pub(crate) stdout: Vec<u8>,
    /// As text.
    pub(crate) stderr: String,
}

/// Runs git in the current folder.
///
/// # Errors
/// If git cannot be started, or gives no answer within 5 s ([`io::ErrorKind::TimedOut`]).
pub(crate) fn ask(arguments: &[&str]) -> io::Result<GitAnswer> {
    answer(command(arguments), PATIENCE)
}

/// Returns standard output if git succeeds.
///
/// # Errors
/// As [`ask`].
pub(crate) fn stdout(arguments: &[&str]) -> io::Result<Option<Vec<u8>>> {
    ask(arguments).map(|answer| answer.is_success.then_some(answer.stdout))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    command
        .args(arguments)
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0");
    command
}

fn answer(mut command: Command, patience: Duration) -> io::Result<GitAnswer> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let deadline = Instant::now() + patience;
    let ended = wait(&mut child, deadline);
    let read = |stream: Receiver<Vec<u8>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.recv_timeout(left).ok()
    };
    let answered = ended.and_then(|status| Some((status, read(stdout)?, read(stderr)?)));
    let Some((status, stdout, stderr)) = answered else {
        end(child);
        let text = format!("git gave no answer in {} s", patience.as_secs_f64());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    };
    Ok(GitAnswer {
        is_success: status.success(),
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

/// Reads a stream to its end in a thread of its own.
fn drain(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Bytes read before an error are used.
            let _ = stream.read_to_end(&mut bytes);
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
    use std::{fs, path::Path};

    use super::*;
    use crate::program::write_program;

    fn in_repository(folder: &Path, arguments: &[&str]) -> GitAnswer {
        let mut command = command(arguments);
        command.current_dir(folder);
        answer(command, Duration::from_secs(60)).unwrap()
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
        answer(plain, Duration::from_secs(60)).unwrap();
        assert!(folder.path().join("run").exists());
    }

    #[test]
    fn a_git_that_hangs_is_ended_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("git");
        let child = folder.path().join("child");
        let text = format!(
            "#!/bin/sh\nsleep 60 & echo $! >'{}'\nwait\n",
            child.display()
        );
        write_program(&program, &text);
        let refused = answer(Command::new(&program), Duration::from_millis(500)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        let pid = fs::read_to_string(&child).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // It has been killed; who reaps it is the system's matter.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn the_answer_is_told_with_what_git_complains_of() {
        let folder = tempfile::tempdir().unwrap();
        let answer = in_repository(folder.path(), &["rev-parse", "HEAD"]);
        assert!(!answer.is_success && answer.stderr.contains("not a git repository"));
    }
}
