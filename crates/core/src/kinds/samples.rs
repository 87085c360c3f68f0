//! Number of samples in the data, and number of steps they give: arithmetic shared by the plan and
//! the child.
//!
//! A sample of text is `seq_len + 1` tokens (input and shifted target). At the end of each epoch
//! training drops partial batches, and whole batches that do not fill an accumulation. Evaluation
//! covers every target once, including the remainder.

use super::data::text::Sampling;

/// One pass over the training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub samples: u64,
    /// Optimizer updates; 0 if there are fewer samples than one step needs.
    pub steps: u64,
    /// Samples in the last, partial batch.
    pub dropped_partial_batch: u64,
    /// Samples in whole batches at the end that do not fill an accumulation.
    pub dropped_partial_accumulation: u64,
}

impl Epoch {
    /// An epoch of this many samples, before samples are dropped.
    pub fn of(samples: u64, sampling: Sampling, batch_size: u64, grad_accumulation: u64) -> Self {
        let batch = batch_size.max(1);
        let step = batch_size.saturating_mul(grad_accumulation).max(1);
        let steps = samples / step;
        // Sampling with replacement leaves no remainder.
        let left = if sampling == Sampling::Random {
            0
        } else {
            samples - steps * step
        };
        Self {
            samples,
            steps,
            dropped_partial_batch: left % batch,
            dropped_partial_accumulation: left - left % batch,
        }
    }

    /// Samples that an epoch drops.
    pub fn dropped_samples(&self) -> u64 {
        self.dropped_partial_batch + self.dropped_partial_accumulation
    }
}

/// Number of samples of `seq_len + 1` tokens, one every `stride` tokens.
pub fn sample_count(tokens: u64, seq_len: u64, stride: u64) -> u64 {
    match seq_len
        .checked_add(1)
        .and_then(|sample| tokens.checked_sub(sample))
    {
        Some(room) => room / stride.max(1) + 1,
        None => 0,
    }
}

/// Number of evaluation windows: up to `seq_len` targets each, every target once; the last window
/// may be shorter.
pub fn evaluation_windows(tokens: u64, seq_len: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(seq_len.max(1))
}

/// All optimizer updates of a trial: its `steps`, else its `epochs` times the steps of an epoch;
/// `None` if neither is given.
pub fn total_steps(steps: Option<u64>, epochs: Option<u64>, steps_per_epoch: u64) -> Option<u64> {
    steps.or_else(|| Some(epochs?.saturating_mul(steps_per_epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of 5 tokens, three per batch, two batches per step.
    fn epoch(tokens: u64, sampling: Sampling) -> Epoch {
        Epoch::of(sample_count(tokens, 4, 4), sampling, 3, 2)
    }

    #[test]
    fn a_sample_needs_one_token_more_than_its_length() {
        assert_eq!(sample_count(4, 4, 4), 0);
        assert_eq!(sample_count(5, 4, 4), 1);
        assert_eq!(sample_count(8, 4, 4), 1);
        assert_eq!(sample_count(9, 4, 4), 2);
        assert_eq!(sample_count(9, 4, 1), 5);
        assert_eq!(sample_count(u64::MAX, u64::MAX, 1), 0);
    }

    #[test]
    fn every_sample_is_trained_on_or_counted_as_dropped() {
        for tokens in 0..300 {
            let epoch = epoch(tokens, Sampling::Shuffled);
            assert_eq!(epoch.steps * 6 + epoch.dropped_samples(), epoch.samples);
            assert!(
                epoch.dropped_partial_batch < 3
                    && epoch.dropped_partial_accumulation.is_multiple_of(3)
                    && epoch.dropped_samples() < 6
            );
        }
        // 11 samples: one step of 6, a whole batch of 3 that does not fill a step, 2 in a partial
        // batch.
        let expected = Epoch {
            samples: 11,
            steps: 1,
            dropped_partial_batch: 2,
            dropped_partial_accumulation: 3,
        };
        assert_eq!(epoch(45, Sampling::Shuffled), expected);
    }

    #[test]
    fn random_sampling_makes_as_many_steps_and_leaves_nothing_over() {
        for tokens in 0..300 {
            let random = epoch(tokens, Sampling::Random);
            assert_eq!(random.steps, epoch(tokens, Sampling::Shuffled).steps);
            assert_eq!(random.dropped_samples(), 0);
        }
    }

    #[test]
    fn evaluation_windows_hold_every_target() {
        assert_eq!(evaluation_windows(0, 4), 0);
        assert_eq!(evaluation_windows(1, 4), 0);
        assert_eq!(evaluation_windows(5, 4), 1);
        assert_eq!(evaluation_windows(6, 4), 2);
    }

    #[test]
    fn steps_stand_for_themselves_and_epochs_for_their_steps() {
        assert_eq!(total_steps(Some(7), None, 100), Some(7));
        assert_eq!(total_steps(None, Some(5), 100), Some(500));
        assert_eq!(total_steps(None, None, 100), None);
    }
}
