//! How a trial's child can fail, in kinds that decide its outcome.

use thiserror::Error;

/// Why training could not go on.
#[derive(Debug, Error)]
pub enum TrialError {
    /// Host or device memory ran out; `text` is the engine's own words.
    #[error("out of memory: {text}")]
    OutOfMemory { text: String },
    /// The device asked for is not there.
    #[error("{0}")]
    NoDevice(String),
    /// What the trial file asks for cannot be done; the text names the key.
    #[error("{0}")]
    Bad(String),
    /// Something broke underway.
    #[error("{0}")]
    Failed(String),
    /// Someone asked the child to stop.
    #[error("interrupted")]
    Interrupted,
}
