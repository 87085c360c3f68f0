//! Finds, starts and waits for a program.

use std::{
    env, fmt,
    io::{self, PipeReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{ChildStderr, ChildStdout, Command, Stdio},
};

use kiln_core::{
    kinds::command::{Expanded, Placeholders},
    plan::{ChildDevice, TrialFile},
    units::{MORE_THREADS, clock::monotonic_nanoseconds},
};
use rustix::{
    fs::{Access, access},
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
};

use super::guard;

/// Python then passes on each line as it is printed.
const UNBUFFERED: (&str, &str) = ("PYTHONUNBUFFERED", "1");

/// A started program.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: u32,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
    /// CLOCK_MONOTONIC just before it was started, in nanoseconds.
    pub(super) began: u64,
    /// The most memory that the new process held before it became the program.
    floor_bytes: u64,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

/// The end of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramEnd {
    pub(super) exit: Exit,
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) at: u64,
    /// CPU time of the program and of all that descended from it and ended before it.
    pub(super) cpu_seconds: f64,
    /// Maximum resident memory of its largest process; `None` if it was too small to tell from the
    /// process that started it.
    pub(super) peak_memory_bytes: Option<u64>,
}

/// Reason why a program cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    Empty,
    /// It is in no folder of `PATH`.
    NotInPath(String),
    NotThere(PathBuf),
    NotExecutable(PathBuf),
    NoFolder(PathBuf),
    /// Its arguments and variables are longer than the system allows.
    TooLong(PathBuf),
    NotStarted {
        program: PathBuf,
        why: String,
    },
}

impl fmt::Display for ProgramFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the program's name is empty; name one in `argv`"),
            Self::NotInPath(name) => write!(
                f,
                "{name}: there is no such program in the folders of `PATH`; install it, or give its \
                 path"
            ),
            Self::NotThere(path) => write!(
                f,
                "{}: the program does not exist; build it, or correct `argv`",
                path.display()
            ),
            Self::NotExecutable(path) => write!(
                f,
                "{}: the program is not executable; run `chmod +x` on it, or put its interpreter \
                 first",
                path.display()
            ),
            Self::NoFolder(path) => write!(
                f,
                "{}: the folder in which the program runs does not exist; make it, or correct \
                 `folder`",
                path.display()
            ),
            Self::TooLong(program) => write!(
                f,
                "{}: its arguments and environment are longer than the system allows; write the \
                 long value to a file, and give its path",
                program.display()
            ),
            Self::NotStarted { program, why } => {
                write!(
                    f,
                    "{}: the program cannot be started: {why}",
                    program.display()
                )
            }
        }
    }
}

/// The values of the placeholders of a command in the trial of this file.
pub fn placeholders(file: &TrialFile, trial_file: &Path) -> Placeholders {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let device = match file.device {
        ChildDevice::Cpu => "cpu",
        ChildDevice::Cuda => "cuda",
    };
    Placeholders {
        seed: Some(file.train.seed),
        trial: Some(file.trial.to_string()),
        attempt: Some(file.attempt),
        folder: Some(text(&file.folder)),
        device: Some(device.to_owned()),
        data_folder: file.data_folder.as_deref().map(text),
        checkpoint_folder: file.checkpoint_folder.as_deref().map(text),
        trial_file: Some(text(trial_file)),
    }
}

/// The path of a program: as it is given, relative to the folder in which it runs, or from the
/// folders of `path` if it is a plain name.
///
/// # Errors
/// It does not exist or is not executable.
pub fn find_program(
    name: &str,
    folder: Option<&str>,
    path: Option<&str>,
) -> Result<PathBuf, ProgramFault> {
    if name.is_empty() {
        return Err(ProgramFault::Empty);
    }
    let here = env::current_dir().unwrap_or_default();
    let folder = folder.map_or_else(|| here.clone(), |folder| here.join(folder));
    if !folder.is_dir() {
        return Err(ProgramFault::NoFolder(folder));
    }
    if name.contains('/') {
        let program = folder.join(name);
        return match () {
            () if !program.is_file() => Err(ProgramFault::NotThere(program)),
            () if access(&program, Access::EXEC_OK).is_err() => {
                Err(ProgramFault::NotExecutable(program))
            }
            () => Ok(program),
        };
    }
    let own = env::var_os("PATH");
    let path = path.map(Into::into).or(own).unwrap_or_default();
    env::split_paths(&path)
        .map(|place| folder.join(place).join(name))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
        .ok_or_else(|| ProgramFault::NotInPath(name.to_owned()))
}

/// Starts a program of a command: with pipes of its own, in the relay's process group, and ended by
/// the kernel when the relay ends.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(expanded: &Expanded, argv: &[String]) -> Result<Started, ProgramFault> {
    let (name, arguments) = argv.split_first().ok_or(ProgramFault::Empty)?;
    let variable = |wanted: &str| {
        let mut found = expanded.environment.iter();
        found.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
    };
    let program = find_program(name, expanded.folder.as_deref(), variable("PATH"))?;
    let mut command = Command::new(&program);
    command
        .arg0(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if env::var_os(UNBUFFERED.0).is_none() {
        command.env(UNBUFFERED.0, UNBUFFERED.1);
    }
    for name in &expanded.unset {
        command.env_remove(name);
    }
    command.envs(
        expanded
            .environment
            .iter()
            .map(|(name, value)| (name, value)),
    );
    if let Some(folder) = &expanded.folder {
        command.current_dir(folder);
    }
    end_with_this_process(&mut command);
    let floor = FloorPipe::of(&mut command);
    let began = monotonic_nanoseconds();
    let not_started = |why: String| ProgramFault::NotStarted {
        program: program.clone(),
        why,
    };
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::ArgumentListTooLong => ProgramFault::TooLong(program.clone()),
        _ => not_started(start_fault(&error)),
    })?;
    // It holds the other end of the pipe.
    drop(command);
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(not_started("its pipes are missing".to_owned()));
    };
    Ok(Started {
        pid: child.id(),
        stdout,
        stderr,
        began,
        floor_bytes: floor.map_or_else(|_| own_resident_bytes(), FloorPipe::bytes),
    })
}

/// Why a program or a thread cannot be started, with what to do where a limit is reached.
pub(super) fn start_fault(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => format!("{error}; {MORE_THREADS}"),
        _ => error.to_string(),
    }
}

/// The kernel ends the new process when this one ends. It hears the signals for which this one has a
/// thread.
pub(super) fn end_with_this_process(command: &mut Command) {
    let parent = getpid();
    // SAFETY: only system calls run between fork and exec; no memory is allocated and no lock is
    // taken.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            guard::unblock();
            match getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::SRCH.raw_os_error(),
                )),
            }
        });
    }
}

impl Started {
    /// The input of [`wait`], without the pipes.
    pub(super) fn waited(&self) -> Waited {
        Waited {
            pid: self.pid,
            floor_bytes: self.floor_bytes,
        }
    }
}

/// A program to wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waited {
    pub(super) pid: u32,
    floor_bytes: u64,
}

/// Waits for a program, and meanwhile for the orphans that it leaves to the relay, whose use counts
/// as the program's. Those of `prepare` count as well where they end while the program runs.
///
/// # Errors
/// If there is nothing to wait for.
pub(super) fn wait(waited: Waited) -> io::Result<ProgramEnd> {
    let mut used_by_all = Used::default();
    loop {
        let mut status = 0;
        // SAFETY: both pointers are to values of this frame, and zero is a valid `rusage`.
        let (pid, used) = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            (libc::wait4(-1, &raw mut status, 0, &raw mut used), used)
        };
        let at = monotonic_nanoseconds();
        match u32::try_from(pid) {
            Ok(pid) => {
                used_by_all.add(&used);
                if pid == waited.pid {
                    return Ok(ended(status, at, used_by_all, waited.floor_bytes));
                }
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// CPU time and memory of ended processes, with those of the children that they waited for.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu_seconds: f64,
    /// Peak resident memory of the largest process, in bytes.
    peak_bytes: u64,
}

impl Used {
    fn add(&mut self, used: &libc::rusage) {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        self.cpu_seconds += seconds(used.ru_utime) + seconds(used.ru_stime);
        self.peak_bytes = self.peak_bytes.max(bytes_of(used.ru_maxrss));
    }
}

fn ended(status: i32, at: u64, used: Used, floor_bytes: u64) -> ProgramEnd {
    let exit = match libc::WIFSIGNALED(status) {
        true => Exit::Signal(libc::WTERMSIG(status)),
        false => Exit::Status(libc::WEXITSTATUS(status)),
    };
    let peak = used.peak_bytes;
    ProgramEnd {
        exit,
        at,
        cpu_seconds: used.cpu_seconds,
        peak_memory_bytes: (peak > floor_bytes + MARGIN_BYTES).then_some(peak),
    }
}

/// Memory that the new process may touch after it told what it has, until it becomes the program:
/// some pages, and those that the kernel counts late for each processor.
const MARGIN_BYTES: u64 = 512 << 10;

/// A new process first has a part of the memory of the one that started it, and the kernel counts
/// that as the program's. Through this pipe it tells how much that was.
struct FloorPipe(PipeReader);

impl FloorPipe {
    /// # Errors
    /// There is no pipe.
    fn of(command: &mut Command) -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // SAFETY: only system calls run between fork and exec; no memory is allocated and no lock is
        // taken.
        unsafe {
            command.pre_exec(move || {
                let mut used: libc::rusage = std::mem::zeroed();
                if libc::getrusage(libc::RUSAGE_SELF, &raw mut used) == 0 {
                    let _ = (&writer).write(&used.ru_maxrss.to_ne_bytes());
                }
                Ok(())
            });
        }
        Ok(Self(reader))
    }

    /// The memory in bytes; of a process that told nothing, the most that it can have been.
    fn bytes(mut self) -> u64 {
        let mut kibibytes = [0; size_of::<libc::c_long>()];
        match self.0.read_exact(&mut kibibytes) {
            Ok(()) => bytes_of(libc::c_long::from_ne_bytes(kibibytes)),
            Err(_) => own_resident_bytes(),
        }
    }
}

fn bytes_of(kibibytes: libc::c_long) -> u64 {
    u64::try_from(kibibytes).unwrap_or(0) * 1024
}

fn own_resident_bytes() -> u64 {
    kiln_hardware::peak_resident_bytes_of(std::process::id()).unwrap_or(0)
}

/// Ends this process by a signal that ended the program, without a core file. The exit status, if
/// the signal does not end it.
pub(super) fn end_by(signal: i32) -> i32 {
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    guard::unblock();
    // SAFETY: the default action replaces the handler of this process, then the signal is sent to
    // this thread; nothing depends on the handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    128 + signal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest process of a program that is smaller than the one that started it had the
    /// memory of that one.
    #[test]
    fn memory_that_may_be_the_starting_processs_is_not_told() {
        let peak = |kibibytes: libc::c_long| {
            // SAFETY: zero is a valid `rusage`.
            let mut used: libc::rusage = unsafe { std::mem::zeroed() };
            used.ru_maxrss = kibibytes;
            let mut all = Used::default();
            all.add(&used);
            ended(0, 0, all, 2700 << 10).peak_memory_bytes
        };
        assert_eq!([2700, 2750, 3212].map(peak), [None; 3]);
        assert_eq!(peak(3300), Some(3300 << 10));
    }
}
