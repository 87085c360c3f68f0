//! SIGTERM and SIGINT: the first stops the loop after the current step, a second ends the process
//! at once.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use kiln_core::record::message::exit_status::INTERRUPTED;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
    low_level::signal_name,
};

use crate::TrialError;

/// The signal that the process received last, 0 for none: signals are the process's, not a trial's.
static RECEIVED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The flag becomes true with the first signal.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, TrialError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for (signal, number) in [(SIGTERM, 15), (SIGINT, 2)] {
        // Registered before the flag is set, so only a second signal finds it true.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&interrupted))
            .and_then(|_| flag::register_usize(signal, Arc::clone(&RECEIVED), number))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .map_err(|error| TrialError::Failed(format!("signals cannot be watched: {error}")))?;
    }
    Ok(interrupted)
}

/// The name of the signal that stopped this process; `None` if there was none.
pub(crate) fn interrupting_signal() -> Option<&'static str> {
    let received = i32::try_from(RECEIVED.load(Ordering::Relaxed)).ok()?;
    signal_name(received)
}
