//! The guard of a relay: a thread that waits for signals and for the end of `kiln`, whatever the
//! rest of the relay does meanwhile. SIGTERM of kiln's sets a flag, and a second one ends the program,
//! whose numbers the relay then writes; SIGTERM from elsewhere, sent to the relay alone, is passed on to
//! the program; when kiln itself has ended, all that the program started is ended, and then the relay.

use std::{
    io, mem, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use libc::{SIGINT, SIGTERM};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, getppid, kill_current_process_group, set_child_subreaper,
};

use crate::processes;

/// Time between two looks at the parent, whose end the kernel tells at once.
const LOOK: Duration = Duration::from_secs(1);
/// Time that kiln's own signal has to come after another one: whoever ends all processes of a job
/// also signals kiln, and the program should be told once.
const PASSED_ON_AFTER: Duration = Duration::from_secs(1);
/// Longest time for the end of the program's processes.
const PATIENCE: Duration = Duration::from_secs(10);
/// The relay's name in a list of processes. It is not `kiln`: it has work to do after
/// `killall -9 kiln`.
const NAME: &std::ffi::CStr = c"trial-relay";

/// Whether the relay was told to stop, or kiln has ended.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    told: Arc<AtomicBool>,
}

impl Guard {
    /// Begins to wait for signals. To be called before other threads are started: they inherit that
    /// the signals are blocked.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start() -> io::Result<Self> {
        let _ = rustix::thread::set_name(NAME);
        // Orphans of the program then come to the relay, and none is missed at the end.
        let _ = set_child_subreaper(Some(getpid()));
        let signals = signals();
        // SAFETY: the set is initialized, and the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, ptr::null_mut()) };
        let told = Arc::new(AtomicBool::new(false));
        let guard = Self {
            told: Arc::clone(&told),
        };
        let parent = getppid();
        thread::Builder::new()
            .name("guard".to_owned())
            .spawn(move || watch(parent, &told))?;
        Ok(guard)
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
}

fn watch(parent: Option<Pid>, told: &AtomicBool) {
    let mut passed_on_at: Option<Instant> = None;
    let mut is_told_by_kiln = false;
    loop {
        let patience = passed_on_at.map_or(LOOK, |at| {
            at.saturating_duration_since(Instant::now()).min(LOOK)
        });
        let sender = next_signal(patience);
        if getppid() != parent {
            // Set before anything is ended: a shell whose last child is ended may itself end with
            // status 0, which would count as a success, and start the program after `prepare`.
            told.store(true, Ordering::Relaxed);
            processes::end_descendants(PATIENCE);
            // With the relay ends what still is in the group that kiln made for the trial.
            if getpgrp() == getpid() {
                let _ = kill_current_process_group(Signal::KILL);
            }
            std::process::exit(128 + SIGTERM);
        }
        match sender {
            Some(sender) if sender == Some(getpid()) => {}
            Some(sender) if sender == parent && is_told_by_kiln => processes::kill_descendants(),
            Some(sender) => {
                is_told_by_kiln |= sender == parent;
                told.store(true, Ordering::Relaxed);
                passed_on_at = (sender != parent).then(|| Instant::now() + PASSED_ON_AFTER);
            }
            None if passed_on_at.is_some_and(|at| at <= Instant::now()) => {
                passed_on_at = None;
                // As kiln's own signal, it goes to the group that kiln made for the trial.
                if getpgrp() == getpid() {
                    let _ = kill_current_process_group(Signal::TERM);
                }
            }
            None => {}
        }
    }
}

fn signals() -> libc::sigset_t {
    // SAFETY: `sigemptyset` initializes the set before the others read it.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGTERM);
        libc::sigaddset(&raw mut set, SIGINT);
        set
    }
}

/// Waits for a signal; `Some` with its sender if one came.
fn next_signal(patience: Duration) -> Option<Option<Pid>> {
    let (signals, patience) = (
        signals(),
        libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: patience.subsec_nanos().into(),
        },
    );
    // SAFETY: all pointers are to values of this frame, and zero is a valid `siginfo_t`. The
    // sender is read only of a signal that came; SIGTERM and SIGINT are sent by processes.
    unsafe {
        let mut about: libc::siginfo_t = mem::zeroed();
        let signal = libc::sigtimedwait(&raw const signals, &raw mut about, &raw const patience);
        (signal > 0).then(|| Pid::from_raw(about.si_pid()))
    }
}

/// Lets the signals end this process, or be handled by the program that it becomes.
pub(super) fn unblock() {
    let signals = signals();
    // SAFETY: the set is initialized, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, ptr::null_mut()) };
}
