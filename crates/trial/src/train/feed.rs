//! Input of a training: the trial's data becomes a loader, a number of steps and the validation
//! data.

use std::{num::NonZero, sync::Arc, thread::available_parallelism};

use kiln_core::{
    kinds::{Content, data::Counts, samples},
    plan::TrialFile,
    spec::Train,
};

use crate::{
    TrialError,
    data::{BatchLoader, BatchSchedule, EvaluationSchedule, LoaderOptions, Opened, Source},
};

/// Number of steps, and the content of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepPlan {
    pub(crate) total_steps: u64,
    /// `None` for a model that reads no data.
    pub(crate) steps_per_epoch: Option<u64>,
    pub(crate) samples_per_step: u64,
    /// Tokens of input per sample, of prompts and responses the mean of both together; 0 for a
    /// model that reads no tokens.
    pub(crate) tokens_per_sample: f64,
    /// Number of targets of a sample, if all samples have the same number.
    pub(crate) targets_per_sample: u64,
}

impl StepPlan {
    /// The epoch that a step lies in, both from 1.
    pub(crate) fn epoch(&self, step: u64) -> u64 {
        self.steps_per_epoch
            .map_or(1, |per_epoch| (step.saturating_sub(1)) / per_epoch + 1)
    }

    pub(crate) fn begins_epoch(&self, step: u64) -> bool {
        self.steps_per_epoch
            .is_some_and(|per_epoch| (step - 1).is_multiple_of(per_epoch))
    }

    pub(crate) fn ends_epoch(&self, step: u64) -> bool {
        self.steps_per_epoch
            .is_some_and(|per_epoch| step.is_multiple_of(per_epoch))
    }
}

/// Everything that feeds a training.
pub(crate) struct Feed {
    pub(crate) loader: BatchLoader,
    /// `None` where nothing is kept for validation.
    pub(crate) validation: Option<Validation>,
}

/// Validation data, read once per evaluation.
pub(crate) struct Validation {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) schedule: EvaluationSchedule,
    pub(crate) options: LoaderOptions,
}

impl Validation {
    /// The batches of one evaluation.
    pub(crate) fn loader(&self) -> BatchLoader {
        BatchLoader::evaluating(Arc::clone(&self.source), self.schedule, self.options)
    }
}

/// The plan of a model that reads data, the schedule of its batches, and what makes them.
///
/// Errors: fewer samples than one step, neither steps nor epochs.
pub(crate) fn plan_feed(
    file: &TrialFile,
    data: &Opened,
) -> Result<(StepPlan, BatchSchedule, Feed), TrialError> {
    let train = &file.train;
    let mut schedule = BatchSchedule {
        source_samples: data.train.sample_count(),
        epoch_samples: data.epoch_samples,
        batch_size: train.batch_size,
        grad_accumulation: file.batches_per_step(),
        total_steps: 0,
        sampling: data.sampling,
        seed: train.seed,
        sort_keys: data.sort_keys.clone(),
    };
    if schedule.steps_per_epoch() == 0 {
        return Err(too_little(file, &schedule));
    }
    schedule.total_steps = total_steps(train, schedule.steps_per_epoch())?;
    let (tokens, targets) = match &data.facts.counts {
        Counts::Text { .. } => (
            file.model.seq_len().unwrap_or_default() as f64,
            file.model.seq_len().unwrap_or(1),
        ),
        Counts::Pairs { train, .. } => (train.tokens() as f64 / train.rows.max(1) as f64, 1),
        Counts::Images { .. } | Counts::Panel { .. } => (0.0, 1),
    };
    let plan = StepPlan {
        total_steps: schedule.total_steps,
        steps_per_epoch: Some(schedule.steps_per_epoch()),
        samples_per_step: schedule.samples_per_step(),
        tokens_per_sample: tokens,
        targets_per_sample: targets,
    };
    let loader = BatchLoader::new(
        Arc::clone(&data.train),
        schedule.clone(),
        loader_options(file),
    );
    let validation = validation(file, &data.valid);
    if validation.is_none()
        && let Some(key) = file.train.needing_validation().next()
    {
        return Err(TrialError::Bad(format!(
            "`{key}` needs a validation loss, but the data has no validation part; give it one, or remove \
             the key"
        )));
    }
    Ok((plan, schedule, Feed { loader, validation }))
}

fn too_little(file: &TrialFile, schedule: &BatchSchedule) -> TrialError {
    let (batch_size, accumulation) = (schedule.batch_size, file.train.grad_accumulation);
    let devices = if file.devices_per_trial == 1 {
        String::new()
    } else {
        format!(" × {} devices", file.devices_per_trial)
    };
    let smaller = if file.model.seq_len().is_some() {
        "a smaller `batch_size` or `seq_len`"
    } else {
        "a smaller `batch_size`"
    };
    TrialError::Bad(format!(
        "the training data has {} samples, fewer than the {} of one step (`batch_size` \
         {batch_size} × `grad_accumulation` {accumulation}{devices}); try {smaller}",
        schedule.epoch_samples,
        schedule.samples_per_step(),
    ))
}

/// Rows into which a contiguous validation text is divided. Each begins with an empty memory, so that
/// more rows have a higher loss: it is one number, whatever the batch size of the training is.
const CONTIGUOUS_ROWS: u64 = 20;

/// The batches of an evaluation of the trial's model on these samples; `None` if there are none.
pub(crate) fn validation(file: &TrialFile, valid: &Arc<dyn Source>) -> Option<Validation> {
    let samples = valid.sample_count();
    let is_contiguous = file.data.is_contiguous();
    let as_trained = file
        .train
        .batch_size
        .saturating_mul(file.train.evaluate.batch_multiple);
    let schedule = EvaluationSchedule {
        samples,
        batch_size: if is_contiguous {
            CONTIGUOUS_ROWS
        } else {
            as_trained
        },
        is_contiguous,
    };
    // Only images take time to make.
    let is_slow = file.model.reads() == Content::Images;
    let options = loader_options(file);
    let options = LoaderOptions {
        num_workers: if is_slow { options.num_workers } else { 0 },
        synthetic: false,
        ..options
    };
    (samples > 0).then(|| Validation {
        source: Arc::clone(valid),
        schedule,
        options,
    })
}

fn total_steps(train: &Train, steps_per_epoch: u64) -> Result<u64, TrialError> {
    let missing = || {
        TrialError::Bad(
            "`train.steps` and `train.epochs` are both missing; give one of them".to_string(),
        )
    };
    samples::total_steps(train.steps, train.epochs, steps_per_epoch).ok_or_else(missing)
}

fn loader_options(file: &TrialFile) -> LoaderOptions {
    let Some(loader) = file.data.loader() else {
        return LoaderOptions {
            num_workers: 0,
            prefetch: 1,
            persistent_workers: true,
            synthetic: false,
        };
    };
    LoaderOptions {
        num_workers: loader.num_workers.resolve(cores()) as usize,
        prefetch: loader.prefetch as usize,
        persistent_workers: loader.persistent_workers,
        synthetic: loader.synthetic,
    }
}

/// Cores this process may use; a trial file from `kiln run` names plain numbers and needs none of
/// this.
pub(crate) fn cores() -> u64 {
    available_parallelism().map_or(1, NonZero::get) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps_per_epoch: u64) -> StepPlan {
        StepPlan {
            total_steps: 10,
            steps_per_epoch: Some(steps_per_epoch),
            samples_per_step: 4,
            tokens_per_sample: 8.0,
            targets_per_sample: 8,
        }
    }

    #[test]
    fn steps_lie_in_epochs_counted_from_1() {
        let plan = plan(3);
        assert_eq!(
            [1, 3, 4, 6, 7].map(|step| plan.epoch(step)),
            [1, 1, 2, 2, 3]
        );
        assert_eq!(
            [2, 3, 6].map(|step| plan.ends_epoch(step)),
            [false, true, true]
        );
        assert_eq!(
            [1, 2, 3, 4, 7].map(|step| plan.begins_epoch(step)),
            [true, false, false, true, true]
        );
    }

    #[test]
    fn epochs_become_steps_and_steps_win() {
        let train = |steps, epochs| Train {
            steps,
            epochs,
            ..Train::default()
        };
        assert_eq!(total_steps(&train(None, Some(3)), 7).unwrap(), 21);
        assert_eq!(total_steps(&train(Some(5), None), 7).unwrap(), 5);
        assert!(
            total_steps(&train(None, None), 7)
                .unwrap_err()
                .to_string()
                .contains("`train.steps`")
        );
    }
}
