//! The process of an attempt: starts it in its own process group, reads its output, stops it and
//! reaps it. It ends with its parent (a relay with all that it started), and it is the parent of its own orphans.
//!
//! Children are started only by the scheduler's thread, which outlives them: the kernel sends the
//! parent-death signal when the *thread* that started a child ends.

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock, mpsc::Sender},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use kiln_core::{limits, record::attempt::STDERR};
use kiln_data::source::DATA_VARIABLE;
use kiln_hardware::VISIBLE_DEVICES;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, set_parent_process_death_signal, setrlimit, waitid,
};

use super::{
    Event,
    judge::Exit,
    listen::{ChildListener, WindowMoment},
    memory::MemoryLimit,
    programs::TrialProgram,
    stray::MARK,
    supervisor::Supervisor,
};

/// Longest time that the pipes of an ended child may stay open.
const PIPES_MAY_LINGER: Duration = Duration::from_secs(2);

/// Program, folder and environment of a new child.
#[derive(Debug)]
pub(super) struct ChildStart<'a> {
    pub(super) program: &'a TrialProgram,
    pub(super) trial_file: &'a Path,
    /// The attempt's folder, absolute.
    pub(super) folder: &'a Path,
    /// `CUDA_VISIBLE_DEVICES`: a UUID, or empty for the CPU.
    pub(super) visible_devices: &'a str,
    pub(super) limit: MemoryLimit,
    /// Identifies the child in [`Event::Ended`].
    pub(super) token: u64,
}

/// A started child.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    group: Pid,
    pub(super) ear: ChildListener,
    stdout: JoinHandle<()>,
    stderr: JoinHandle<String>,
    ended: Arc<OnceLock<Instant>>,
}

/// The end of a child.
#[derive(Debug)]
pub(super) struct ChildEnded {
    pub(super) exit: Exit,
    pub(super) stderr_tail: String,
}

/// Starts a child and the threads that read its output.
///
/// # Errors
/// If the program cannot be started, or kiln itself ended meanwhile.
pub(super) fn start(start: &ChildStart, events: Sender<Event>) -> io::Result<Running> {
    let mut child = command(start).spawn()?;
    match listen(&mut child, start, events) {
        Ok(Listening {
            ear,
            stdout,
            stderr,
            ended,
        }) => Ok(Running {
            group: Pid::from_child(&child),
            child,
            ear,
            stdout,
            stderr,
            ended,
        }),
        Err(error) => {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            Err(error)
        }
    }
}

/// The threads that listen to a child.
struct Listening {
    ear: ChildListener,
    stdout: JoinHandle<()>,
    stderr: JoinHandle<String>,
    ended: Arc<OnceLock<Instant>>,
}

/// Starts the threads of a child.
///
/// # Errors
/// The system has no more threads.
fn listen(child: &mut Child, start: &ChildStart, events: Sender<Event>) -> io::Result<Listening> {
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the pipes of a new child are missing"));
    };
    let group = Pid::from_child(child);
    let ear = ChildListener::new(child.id(), start.program.kind.is_relay());
    let (listening, kept_in) = (ear.clone(), start.folder.join(STDERR));
    let (token, window_events) = (start.token, events.clone());
    let at_window = move |moment| {
        let event = match moment {
            WindowMoment::Window => Event::Window(token),
            WindowMoment::Cut => Event::Cut(token),
        };
        drop(window_events.send(event));
    };
    let stdout = thread("stdout", move || listening.listen(stdout, at_window))?;
    let keeping = ear.clone();
    let stderr = thread("stderr", move || keeping.keep_stderr(stderr, &kept_in))?;
    let token = start.token;
    let ended = Arc::new(OnceLock::new());
    let end = Arc::clone(&ended);
    thread("waiter", move || {
        // The child is a zombie until it is reaped, so its process group id is not reused
        // meanwhile.
        while let Err(rustix::io::Errno::INTR) = waitid(
            WaitId::Pid(group),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        ) {}
        let _ = end.set(Instant::now());
        let _ = events.send(Event::Ended(token));
    })?;
    Ok(Listening {
        ear,
        stdout,
        stderr,
        ended,
    })
}

fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

fn command(start: &ChildStart) -> Command {
    let mut command = Command::new(&start.program.path);
    if start.program.kind.is_relay() {
        command.arg0("kiln");
    }
    command
        .args(&start.program.arguments)
        .arg(start.trial_file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    for (name, value) in environment(std::env::vars_os()) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .env(VISIBLE_DEVICES, start.visible_devices)
        .env(MARK, start.folder);
    command.envs(
        start
            .program
            .environment
            .iter()
            .map(|(name, value)| (name, value)),
    );
    if let MemoryLimit::OfTensors(Some((name, value))) = &start.limit {
        command.env(name, value);
    }
    if !start.program.kind.is_relay() {
        // With it, a trial whose allocation fails hangs where the trace is made.
        command.env_remove("RUST_BACKTRACE");
    }
    let of_process = match start.limit {
        MemoryLimit::OfProcess(bytes) => Some(Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        }),
        _ => None,
    };
    // A relay ends the processes below it first.
    let when_kiln_ends = match start.program.kind.is_relay() {
        true => Signal::TERM,
        false => Signal::KILL,
    };
    let parent = getpid();
    // SAFETY: only system calls run between fork and exec; no memory is allocated and no lock is
    // taken.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(when_kiln_ends))?;
            set_child_subreaper(Some(getpid()))?;
            if let Some(limit) = of_process {
                setrlimit(Resource::Data, limit)?;
            }
            match getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::SRCH.raw_os_error(),
                )),
            }
        });
    }
    command
}

/// Number of spins of a waiting OpenMP thread before it sleeps. With the system library's default
/// it spins for up to tens of milliseconds, which are lost if another process needs the core: two
/// trainings on the same two cores slow each other down eightfold, with this value less than
/// threefold. For a single training it costs 1 or 2 % (`docs/development.md` has the figures).
const SPINS: (&str, &str) = ("GOMP_SPINCOUNT", "5000");
/// Variables that override [`SPINS`] if the user sets one.
const WAITING: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

/// Makes the child use the CUDA code paths on the CPU, for tests.
const CUDA_BRANCHES: &str = "KILN_CUDA_BRANCHES";

/// Returns the changes of a child's environment to kiln's own: experiment keys are removed, the
/// folders of program settings are made absolute, and waiting threads sleep soon. Limits of what is
/// read stay.
fn environment(
    own: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, Option<OsString>)> {
    const FOLDERS: [&str; 2] = [DATA_VARIABLE, "KILN_LIBTORCH"];
    let own: Vec<(OsString, OsString)> = own.collect();
    let decides =
        |(name, _): &(OsString, OsString)| WAITING.iter().any(|variable| name == *variable);
    let spins = (!own.iter().any(decides)).then(|| (SPINS.0.into(), Some(SPINS.1.into())));
    let is_left = |name: &str| name == CUDA_BRANCHES || name.starts_with(limits::PREFIX);
    let settings = own.into_iter().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("KILN_") && !is_left(&name)
    });
    settings
        .map(|(name, value)| {
            let is_folder = FOLDERS.iter().any(|folder| name == *folder) && !value.is_empty();
            // `KILN_LIBTORCH` may also be a flavor; only an existing path is a path.
            let path = is_folder
                .then(|| std::path::absolute(&value).ok())
                .flatten();
            match path {
                Some(path) if path.exists() => (name, Some(path.into_os_string())),
                _ => (name, is_folder.then_some(value)),
            }
        })
        .chain(spins)
        .collect()
}

impl Running {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// When the child ended, which kiln may learn later; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.ended.get().copied()
    }

    /// Sends a signal to the child's whole group.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Sends a signal to the child alone.
    pub(super) fn signal_itself(&self, signal: Signal) {
        let _ = kill_process(self.group, signal);
    }

    /// Reaps an ended child, and lets the supervisor end the processes that it left.
    ///
    /// # Errors
    /// If waiting for the child fails.
    pub(super) fn reap(mut self, supervisor: &mut Supervisor) -> io::Result<ChildEnded> {
        self.signal(Signal::KILL);
        let status = self.child.wait();
        supervisor.end_left(self.child.id());
        let status = status?;
        let deadline = Instant::now() + PIPES_MAY_LINGER;
        while !(self.stdout.is_finished() && self.stderr.is_finished()) && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stderr_tail = match self.stderr.is_finished() {
            true => self.stderr.join().unwrap_or_default(),
            false => String::new(),
        };
        let exit = status
            .signal()
            .map_or_else(|| Exit::Status(status.code().unwrap_or(-1)), Exit::Signal);
        Ok(ChildEnded { exit, stderr_tail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiment_keys_are_taken_out_of_the_childs_environment() {
        let own = [
            ("KILN_TRAIN__BATCH_SIZE", "8"),
            ("KILN_DATA", "."),
            ("KILN_LIBTORCH", "cpu"),
            ("PATH", "/bin"),
            (CUDA_BRANCHES, "1"),
            ("KILN_LIMIT_DATA_BYTES", "1GiB"),
        ];
        let child = environment(own.iter().map(|(name, value)| (name.into(), value.into())));
        let found = |name: &str| {
            child
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        };
        assert_eq!(found("KILN_TRAIN__BATCH_SIZE"), Some(None));
        assert!(
            found("KILN_DATA")
                .flatten()
                .is_some_and(|path| Path::new(&path).is_absolute())
        );
        assert_eq!(found("KILN_LIBTORCH"), Some(Some("cpu".into())));
        assert_eq!(
            ["PATH", CUDA_BRANCHES, "KILN_LIMIT_DATA_BYTES"].map(found),
            [None, None, None],
            "left as they are"
        );
    }

    #[test]
    fn threads_of_a_child_sleep_soon_unless_the_environment_says_how_they_wait() {
        let given = |own: &[(&str, &str)]| -> Vec<(OsString, Option<OsString>)> {
            let child = environment(own.iter().map(|(name, value)| (name.into(), value.into())));
            child
                .into_iter()
                .filter(|(name, _)| WAITING.iter().any(|variable| name == *variable))
                .collect()
        };
        assert_eq!(
            given(&[("PATH", "/bin")]),
            [("GOMP_SPINCOUNT".into(), Some("5000".into()))]
        );
        assert_eq!(given(&[("GOMP_SPINCOUNT", "0")]), []);
        assert_eq!(given(&[("OMP_WAIT_POLICY", "active")]), []);
    }
}
