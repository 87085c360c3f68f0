//! SIGTERM and SIGINT: the first stops the loop after the current step, a second ends the process
//! at once.
//!
//! No thread that computes may handle a signal: oneDNN's matrix products (`x64:gemm:jit`, of which
//! libtorch makes LSTM layers in f32 on the CPU) let the stack pointer point to the heap, and what
//! the system pushes there for a handler writes over tensors. Source: oneDNN issue 4845.

use std::{
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use kiln_core::record::message::exit_status::INTERRUPTED;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    low_level::signal_name,
};

use crate::TrialError;

/// The signal that the process received last, 0 for none: signals are the process's, not a trial's.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Signals that a fault of the thread itself causes.
const OWN_FAULTS: [Signal; 7] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
];

/// The flag becomes true with the first signal. Neither this thread nor any that it starts from
/// here on handles one; processes that they start begin with signals blocked.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, TrialError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for (signal, number) in [(SIGTERM, 15), (SIGINT, 2)] {
        // Registered before the flag is set, so only a second signal finds it true.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&interrupted))
            .and_then(|_| flag::register_usize(signal, Arc::clone(&RECEIVED), number))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .map_err(|error| unwatched(&error))?;
    }
    leave_signals_to_a_thread().map_err(|error| unwatched(&error))?;
    Ok(interrupted)
}

fn unwatched(error: &io::Error) -> TrialError {
    TrialError::Failed(format!("signals cannot be watched: {error}"))
}

/// A process's signal goes to any thread that does not block it.
fn leave_signals_to_a_thread() -> io::Result<()> {
    let mut signals = SigSet::all();
    for fault in OWN_FAULTS {
        signals.remove(fault);
    }
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // Whoever started this process may have had them blocked.
            let _ = signals.thread_unblock();
            loop {
                thread::park();
            }
        })?;
    Ok(signals.thread_block()?)
}

/// The name of the signal that stopped this process; `None` if there was none.
pub(crate) fn interrupting_signal() -> Option<&'static str> {
    let received = i32::try_from(RECEIVED.load(Ordering::Relaxed)).ok()?;
    signal_name(received)
}
