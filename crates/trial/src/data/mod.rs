//! Data inside the child: files become samples, samples become batches, batches wait in bounded
//! host memory.
//!
//! In: the trial file's `data` section. Out: [`HostBatch`]es in an order that depends on the seed
//! and the epoch alone. How they reach the device and how the model is trained is left to `train`.

mod batch;
pub(crate) mod image_file;
mod images;
mod loader;
mod open;
mod order;
mod pairs;
mod panel;
pub(crate) mod pixels;
mod schedule;
mod text;
mod validation;

pub use batch::{
    BatchPixels, BatchSamples, HostBatch, ImageSamples, PairSamples, PanelSamples, TargetScale,
    TextSamples,
};
pub use images::ImageSource;
pub use loader::{BatchLoader, LoadedBatch, LoaderOptions};
pub(crate) use open::{Labels, Opened, OpenedPairs, open};
pub use pairs::PairRows;
pub use panel::PanelWindows;
pub use schedule::{BatchSchedule, EvaluationSchedule};
pub use text::{TextWindows, ValidationWindows};

use crate::error::TrialError;

/// One draw of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// From 0; what is done to a sample at random depends on it.
    pub epoch: u64,
    /// Below [`Source::sample_count`].
    pub sample: u64,
}

/// Steps that show how much memory a training takes: the optimizer's moments are there from the
/// second on.
pub const LONGEST_STEPS: u64 = 2;

/// Samples that can be made one by one, from any thread.
pub trait Source: Send + Sync + 'static {
    /// Number of samples.
    fn sample_count(&self) -> u64;

    /// Gives the batch room for these samples, row by row.
    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch);

    /// The same for a batch of the first [`LONGEST_STEPS`] steps.
    fn lay_out_first(&self, draws: &[Draw], batch: &mut HostBatch) {
        self.lay_out(draws, batch);
    }

    /// Writes one sample into row `row` of a batch that was laid out here. The error is in words.
    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String>;

    /// Targets of a sample that count in the loss; `None` where every sample of the training has as
    /// many.
    fn counted_targets(&self, _sample: u64) -> Option<u64> {
        None
    }

    /// Advice to a training for which this sample could not be made, in words.
    fn training_advice(&self, _sample: u64) -> Option<String> {
        None
    }
}

/// A source was given a batch that another kind of source laid out.
const OTHER_KIND: &str = "the batch was laid out for another kind of data; this is a bug in \
                          kiln-trial; please report it";

/// The reason why the loader has no batch.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("sample {sample} could not be made for batch {batch}: {reason}")]
    Sample {
        sample: u64,
        batch: u64,
        reason: String,
        /// Advice to a training, for the end of the message.
        training_advice: Option<String>,
    },
    #[error("a loader worker panicked while it made batch {batch}: {reason}")]
    Panicked { batch: u64, reason: String },
    #[error("loader worker {worker} could not be started: {source}")]
    Thread {
        worker: usize,
        source: std::io::Error,
    },
    #[error("batch {batch} was asked for, but the schedule ends after {total} batches")]
    Ended { batch: u64, total: u64 },
}

impl LoadError {
    /// The error of a training; `of` says which batches, with its separator.
    pub(crate) fn into_trial_error(self, of: &str) -> TrialError {
        match self {
            Self::Thread { worker, source } => TrialError::of_starting(
                &format!("{of}loader worker {worker} (`data.num_workers`) needs a thread"),
                &source,
            ),
            Self::Sample {
                training_advice: Some(ref advice),
                ..
            } => TrialError::Failed(format!("{of}{self}; {advice}")),
            error => TrialError::Failed(format!("{of}{error}")),
        }
    }

    /// The error of a training's evaluation.
    pub(crate) fn in_validation(self) -> TrialError {
        self.into_trial_error("validation: ")
    }

    /// The error of an evaluation of a trained model.
    pub(crate) fn in_use(self) -> TrialError {
        match self {
            Self::Sample { reason, .. } => TrialError::Bad(reason),
            error => error.into_trial_error(""),
        }
    }
}

impl From<LoadError> for TrialError {
    fn from(error: LoadError) -> Self {
        error.into_trial_error("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_to_a_training_is_given_to_a_training_alone() {
        let damaged = || LoadError::Sample {
            sample: 3,
            batch: 1,
            reason: "a.png could not be read".to_owned(),
            training_advice: Some("try again".to_owned()),
        };
        assert_eq!(
            damaged().in_validation().to_string(),
            "validation: sample 3 could not be made for batch 1: a.png could not be read; try again"
        );
        let in_use = damaged().in_use();
        assert!(
            matches!(&in_use, TrialError::Bad(text) if text == "a.png could not be read"),
            "{in_use}"
        );
    }
}
