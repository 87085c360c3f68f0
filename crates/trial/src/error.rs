//! The ways in which a trial's child can fail. The kind decides the outcome.

use std::{any::Any, error::Error, io};

use kiln_core::{folder, record::message::exit_status, units::MORE_THREADS};
use thiserror::Error;

/// The reason why training stopped.
#[derive(Debug, Error)]
pub enum TrialError {
    /// Host or device memory ran out; `text` is the engine's own words.
    #[error("out of memory: {text}")]
    OutOfMemory { text: String },
    /// The device, or something else of the machine that the trial needs, is not available.
    #[error("{0}")]
    NoDevice(String),
    /// The trial file asks for something that is not possible; the text names the key.
    #[error("{0}")]
    Bad(String),
    /// Something broke underway.
    #[error("{0}")]
    Failed(String),
    /// A file that is not part of the result could not be written; training can continue without
    /// it.
    #[error("{0}")]
    NotSaved(io::Error),
    /// A file of the result could not be written because the disk, a quota or the limit on the
    /// size of files is full: the disk failed, not the trial.
    #[error("{0}")]
    DiskFull(String),
    /// The child received a signal to stop.
    #[error("interrupted")]
    Interrupted,
}

impl TrialError {
    /// The error of threads that could not be started; `what` needs them.
    pub(crate) fn of_starting(what: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::NoDevice(format!(
                "{what}, and no more may be started ({error}); {MORE_THREADS}"
            )),
            _ => Self::Failed(format!("{what}, and none could be started: {error}")),
        }
    }

    /// The exit status of a process that ends by this error ([`exit_status`]).
    pub(crate) fn exit_status(&self) -> i32 {
        match self {
            Self::OutOfMemory { .. } => exit_status::OOM,
            Self::NoDevice(_) => exit_status::NO_DEVICE,
            Self::Bad(_) => exit_status::BAD_FILE,
            Self::DiskFull(_) => exit_status::DISK_FULL,
            Self::NotSaved(error) if is_full(error) => exit_status::DISK_FULL,
            Self::Failed(_) | Self::NotSaved(_) => exit_status::FAILED,
            Self::Interrupted => exit_status::INTERRUPTED,
        }
    }

    /// The error of a file that could not be written; `text` has its place.
    pub(crate) fn of_writing(text: String, error: &(dyn Error + 'static)) -> Self {
        match is_full(error) {
            true => Self::DiskFull(text),
            false => Self::Failed(text),
        }
    }
}

/// Whether an error or one of its causes means that no more can be written
/// ([`kiln_core::folder::is_full`]).
pub(crate) fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An error of the CSV writer does not name its cause as a source.
        let of_table = error.downcast_ref().map(csv::Error::kind);
        let of_system = match of_table {
            Some(csv::ErrorKind::Io(error)) => Some(error),
            _ => error.downcast_ref(),
        };
        if let Some(error) = of_system {
            return folder::is_full(error);
        }
        cause = error.source();
    }
    false
}

/// The words of a panic that was caught.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| {
        payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    })
    .unwrap_or_else(|| "a panic without words".to_owned())
}
