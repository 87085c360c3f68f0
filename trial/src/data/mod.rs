//! Data inside the child: token files become samples, samples become batches, batches wait in bounded host memory.
//!
//! In: the trial file's `data` section. Out: [`HostBatch`]es in an order that depends on the seed and the epoch alone. How
//! they reach the device and what is learned from them is left to `train`.

mod batch;
mod loader;
mod order;
mod schedule;
mod text;

pub use batch::HostBatch;
pub use loader::{LoadedBatch, Loader, LoaderOptions};
pub use schedule::BatchSchedule;
pub(crate) use text::load_text;
pub use text::{EvaluationWindows, TextWindows};

/// Samples that can be made one by one, from any thread.
pub trait Source: Send + Sync + 'static {
    /// How many samples there are.
    fn sample_count(&self) -> u64;

    /// Tokens of input per sample.
    fn seq_len(&self) -> usize;

    /// Writes sample `sample` (below [`Source::sample_count`]) into row `row`. The error is in words.
    fn write(&self, sample: u64, row: usize, batch: &mut HostBatch) -> Result<(), String>;
}

/// Why the loader has no batch.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("sample {sample} could not be made for batch {batch}: {reason}")]
    Sample { sample: u64, batch: u64, reason: String },
    #[error("a loader worker panicked while it made batch {batch}: {reason}")]
    Panicked { batch: u64, reason: String },
    #[error("loader worker {worker} could not be started: {source}; try a smaller `num_workers`")]
    Thread { worker: usize, source: std::io::Error },
    #[error("batch {batch} was asked for, but the schedule ends after {total} batches")]
    Ended { batch: u64, total: u64 },
}
