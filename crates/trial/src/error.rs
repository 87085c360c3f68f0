//! How a trial's child can fail, in kinds that decide its outcome.

use std::any::Any;

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
    /// A file that is no result could not be written; training can go on without it.
    #[error("{0}")]
    NotSaved(std::io::Error),
    /// Someone asked the child to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The words of a panic that was caught.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic without words".to_owned())
}
