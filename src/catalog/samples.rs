//! How a stream of tokens is cut into samples and how many steps that makes: arithmetic that the plan and the child share.
//!
//! A sample is `seq_len + 1` tokens (input and, one on, target). Training drops what fills no whole batch, and whole batches
//! that fill no whole accumulation, at the end of each epoch. Evaluation covers every target once, remainder included.

use super::data::{Sampling, TextSampling};

/// What decides how many steps an epoch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Training tokens.
    pub tokens: u64,
    pub seq_len: u64,
    /// Tokens from one sample's start to the next.
    pub stride: u64,
    pub sampling: Sampling,
    /// Examples in one forward pass, over all devices of the trial.
    pub batch_size: u64,
    pub grad_accumulation: u64,
}

impl Cut {
    /// `stride` is the sampling's own, else `seq_len`.
    pub fn new(tokens: u64, seq_len: u64, sampling: &TextSampling, batch_size: u64, grad_accumulation: u64) -> Self {
        let stride = sampling.stride.unwrap_or(seq_len);
        Self { tokens, seq_len, stride, sampling: sampling.sampling, batch_size, grad_accumulation }
    }

    /// Samples of one epoch, before what fills no step is dropped.
    pub fn samples(&self) -> u64 {
        sample_count(self.tokens, self.seq_len, self.stride)
    }

    /// Examples in one optimizer step.
    pub fn effective_batch_size(&self) -> u64 {
        self.batch_size.saturating_mul(self.grad_accumulation)
    }

    /// What one pass over the training data comes to.
    pub fn epoch(&self) -> Epoch {
        Epoch::of(self.samples(), self.sampling, self.batch_size, self.grad_accumulation)
    }
}

/// One pass over the training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub samples: u64,
    /// Optimizer updates; 0 means there are fewer samples than one step takes.
    pub steps: u64,
    /// Samples in the last batch, when it is not whole.
    pub dropped_partial_batch: u64,
    /// Samples in whole batches at the end that fill no whole accumulation.
    pub dropped_partial_accumulation: u64,
}

impl Epoch {
    /// An epoch of this many samples, before what fills no step is dropped.
    pub fn of(samples: u64, sampling: Sampling, batch_size: u64, grad_accumulation: u64) -> Self {
        let batch = batch_size.max(1);
        let step = batch_size.saturating_mul(grad_accumulation).max(1);
        let steps = samples / step;
        // Samples drawn with replacement are never left over.
        let left = if sampling == Sampling::Random { 0 } else { samples - steps * step };
        Self { samples, steps, dropped_partial_batch: left % batch, dropped_partial_accumulation: left - left % batch }
    }

    /// Samples of an epoch that are not trained on.
    pub fn dropped_samples(&self) -> u64 {
        self.dropped_partial_batch + self.dropped_partial_accumulation
    }
}

/// Samples of `seq_len + 1` tokens, one every `stride` tokens.
pub fn sample_count(tokens: u64, seq_len: u64, stride: u64) -> u64 {
    match seq_len.checked_add(1).and_then(|sample| tokens.checked_sub(sample)) {
        Some(room) => room / stride.max(1) + 1,
        None => 0,
    }
}

/// Windows that evaluation goes through: up to `seq_len` targets each, every target once, the last one shorter if need be.
pub fn evaluation_windows(tokens: u64, seq_len: u64) -> u64 {
    tokens.saturating_sub(1).div_ceil(seq_len.max(1))
}

/// All optimizer updates of a trial: its `steps`, else its `epochs` times the steps of one; `None` if neither is given.
pub fn total_steps(steps: Option<u64>, epochs: Option<u64>, steps_per_epoch: u64) -> Option<u64> {
    steps.or_else(|| Some(epochs?.saturating_mul(steps_per_epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(tokens: u64) -> Cut {
        Cut { tokens, seq_len: 4, stride: 4, sampling: Sampling::Shuffled, batch_size: 3, grad_accumulation: 2 }
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
            let cut = cut(tokens);
            let epoch = cut.epoch();
            assert_eq!(epoch.steps * 6 + epoch.dropped_samples(), epoch.samples);
            assert!(epoch.dropped_partial_batch < 3 && epoch.dropped_partial_accumulation.is_multiple_of(3) && epoch.dropped_samples() < 6);
        }
        // 11 samples: one step of 6, a whole batch of 3 that fills no step, 2 in no whole batch.
        assert_eq!(cut(45).epoch(), Epoch { samples: 11, steps: 1, dropped_partial_batch: 2, dropped_partial_accumulation: 3 });
    }

    #[test]
    fn random_sampling_makes_as_many_steps_and_leaves_nothing_over() {
        for tokens in 0..300 {
            let random = Cut { sampling: Sampling::Random, ..cut(tokens) };
            assert_eq!(random.epoch().steps, cut(tokens).epoch().steps);
            assert_eq!(random.epoch().dropped_samples(), 0);
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
