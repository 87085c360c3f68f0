//! SIGTERM and SIGINT: the first stops the loop after the current step, a second ends the process
//! at once.

use std::sync::{Arc, atomic::AtomicBool};

use kiln_core::record::message::exit_status::INTERRUPTED;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use crate::TrialError;

/// The flag becomes true with the first signal.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, TrialError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // Registered before the flag is set, so only a second signal finds it true.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .map_err(|error| TrialError::Failed(format!("signals cannot be watched: {error}")))?;
    }
    Ok(interrupted)
}
