//! One pass over validation data: the same for the evaluations of a training and for
//! `kiln evaluate`, so that their numbers are equal.

use super::{objective::Scores, trainable::Trainable};
use crate::{
    TrialError,
    data::{BatchLoader, LoadError},
};

/// Evaluates every batch of `loader` once. Waits. `failed` makes the error of a batch that cannot be
/// loaded. `on_progress` hears how many batches are done, from 0 to all of them, and may end the
/// pass with an error.
pub(crate) fn evaluate<T: Trainable>(
    trainee: &mut T,
    mut loader: BatchLoader,
    failed: fn(LoadError) -> TrialError,
    on_progress: &mut dyn FnMut(u64) -> Result<(), TrialError>,
) -> Result<Scores, TrialError> {
    let batches = loader.total_batches();
    for done in 0..batches {
        on_progress(done)?;
        let batch = loader.next_batch().map_err(failed)?;
        let on_device = trainee.to_device(&batch, &mut ())?;
        drop(batch);
        trainee.evaluate(on_device)?;
    }
    on_progress(batches)?;
    trainee.finish_evaluation()
}
