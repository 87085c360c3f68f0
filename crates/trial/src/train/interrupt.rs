//! SIGTERM and SIGINT: the first stops the loop after the current step, one that comes some time later
//! ends the process at once.
//!
//! No thread that computes may handle a signal: oneDNN's matrix products (`x64:gemm:jit`, of which
//! libtorch makes LSTM layers in f32 on the CPU) let the stack pointer point to the heap, and what
//! the system pushes there for a handler writes over tensors. Source: oneDNN issue 4845.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    thread,
    time::Instant,
};

use kiln_core::record::message::{SAME_STOP, exit_status::INTERRUPTED};
use nix::sys::signal::{SigSet, Signal};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level,
};

use crate::TrialError;

/// The signal that the process received last, 0 for none: signals are the process's, not a trial's.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

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
    let heeded = Signals::new([SIGTERM, SIGINT]).map_err(|error| unwatched(&error))?;
    heed_in_a_thread(heeded, Arc::clone(&interrupted)).map_err(|error| unwatched(&error))?;
    Ok(interrupted)
}

fn unwatched(error: &io::Error) -> TrialError {
    TrialError::of_starting("a thread must watch for signals", error)
}

/// A process's signal goes to any thread that does not block it.
fn heed_in_a_thread(mut heeded: Signals, interrupted: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = SigSet::all();
    for fault in OWN_FAULTS {
        signals.remove(fault);
    }
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // Whoever started this process may have had them blocked.
            let _ = signals.thread_unblock();
            let mut first = None;
            for signal in heeded.forever() {
                RECEIVED.store(signal, Ordering::Relaxed);
                interrupted.store(true, Ordering::Relaxed);
                let first: Instant = *first.get_or_insert_with(Instant::now);
                if first.elapsed() >= SAME_STOP {
                    low_level::exit(INTERRUPTED);
                }
            }
        })?;
    Ok(signals.thread_block()?)
}

/// The name of the signal that stopped this process; `None` if there was none.
pub(crate) fn interrupting_signal() -> Option<&'static str> {
    low_level::signal_name(RECEIVED.load(Ordering::Relaxed))
}
