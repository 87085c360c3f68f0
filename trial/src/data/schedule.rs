//! Which samples make up which batch, and how many batches an epoch has. Batches are numbered through all epochs from 0.

use kiln::catalog::{data::Sampling, samples::Epoch};

use super::order::Stream;

/// The batches of a whole training, as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSchedule {
    /// Samples that may be drawn: `sample_count` of the source.
    pub source_samples: u64,
    /// Samples that one epoch passes over, before what fills no step is dropped.
    pub epoch_samples: u64,
    pub batch_size: u64,
    /// Batches per optimizer step.
    pub grad_accumulation: u64,
    /// Steps of the whole training.
    pub total_steps: u64,
    pub sampling: Sampling,
    pub seed: u64,
}

/// The samples of one epoch, in their order.
#[derive(Debug)]
pub(super) enum EpochOrder {
    Shuffled(Vec<u64>),
    Random {
        stream: Stream,
        source_samples: u64,
    },
    /// Row `r` of the rows of a step, over all its micro-batches, goes through samples `r × steps` to `r × steps + steps − 1`.
    Contiguous {
        rows: u64,
        steps: u64,
    },
}

impl EpochOrder {
    /// The sample at a place of the epoch.
    pub(super) fn sample(&self, place: u64) -> u64 {
        match self {
            Self::Shuffled(order) => order[place as usize],
            Self::Random { stream, source_samples } => stream.below(place, *source_samples),
            Self::Contiguous { rows, steps } => place % rows * steps + place / rows,
        }
    }
}

impl BatchSchedule {
    /// Samples of one optimizer step.
    pub fn samples_per_step(&self) -> u64 {
        self.batch_size * self.grad_accumulation
    }

    /// Whole steps in one epoch; what is left over is dropped.
    pub fn steps_per_epoch(&self) -> u64 {
        self.epoch().steps
    }

    /// Batches that fill whole steps.
    pub fn batches_per_epoch(&self) -> u64 {
        self.steps_per_epoch() * self.grad_accumulation
    }

    /// Batches of the whole training.
    pub fn total_batches(&self) -> u64 {
        self.total_steps * self.grad_accumulation
    }

    /// Steps of one epoch, and what is left over at its end.
    pub fn epoch(&self) -> Epoch {
        Epoch::of(self.epoch_samples, self.sampling, self.batch_size, self.grad_accumulation)
    }

    /// Epoch (from 0) of a batch, and the place of its first sample in the epoch.
    pub(super) fn place(&self, batch: u64) -> (u64, u64) {
        let per_epoch = self.batches_per_epoch().max(1);
        (batch / per_epoch, batch % per_epoch * self.batch_size)
    }

    pub(super) fn order(&self, epoch: u64) -> EpochOrder {
        let stream = Stream::new(self.seed, epoch);
        match self.sampling {
            Sampling::Shuffled => EpochOrder::Shuffled(stream.permutation(self.epoch_samples)),
            Sampling::Random => EpochOrder::Random { stream, source_samples: self.source_samples },
            Sampling::Contiguous => EpochOrder::Contiguous { rows: self.samples_per_step(), steps: self.steps_per_epoch() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(sampling: Sampling) -> BatchSchedule {
        BatchSchedule { source_samples: 50, epoch_samples: 23, batch_size: 4, grad_accumulation: 2, total_steps: 5, sampling, seed: 1 }
    }

    #[test]
    fn what_fills_no_step_makes_no_batch() {
        let schedule = schedule(Sampling::Shuffled);
        assert_eq!((schedule.steps_per_epoch(), schedule.batches_per_epoch(), schedule.total_batches()), (2, 4, 10));
        // 23 samples: 5 whole batches of 4 (3 samples over), 2 whole steps of 2 batches (1 batch over).
        assert_eq!(schedule.epoch(), Epoch { samples: 23, steps: 2, dropped_partial_batch: 3, dropped_partial_accumulation: 4 });
        assert_eq!(schedule.place(9), (2, 4));
    }

    #[test]
    fn contiguous_rows_go_on_from_step_to_step_in_every_epoch() {
        let schedule = schedule(Sampling::Contiguous);
        for epoch in 0..2 {
            let order = schedule.order(epoch);
            let sample = |batch: u64, row: u64| order.sample(schedule.place(batch).1 + row);
            for row in 0..4 {
                // Batches 0 and 2 are the first micro-batch of steps 1 and 2, batches 1 and 3 the second.
                assert_eq!((sample(2, row), sample(3, row)), (sample(0, row) + 1, sample(1, row) + 1));
            }
            let mut all: Vec<u64> = (0..4).flat_map(|batch| (0..4).map(move |row| (batch, row))).map(|(batch, row)| sample(batch, row)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..16).collect::<Vec<u64>>(), "each sample once");
        }
    }

    #[test]
    fn random_sampling_draws_from_all_of_the_source_with_replacement() {
        let schedule = schedule(Sampling::Random);
        let drawn: Vec<u64> = (0..1000).map(|place| schedule.order(0).sample(place)).collect();
        assert!(drawn.iter().all(|sample| *sample < 50));
        assert!(drawn.contains(&0) && drawn.contains(&49));
        assert_ne!(drawn[..20], (0..20).map(|place| schedule.order(1).sample(place)).collect::<Vec<u64>>()[..]);
    }
}
