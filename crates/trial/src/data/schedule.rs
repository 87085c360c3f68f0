//! The samples of each batch, and the number of batches of an epoch. Batches are numbered through
//! all epochs from 0.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use kiln_core::kinds::{data::Sampling, samples::Epoch};

use super::{Draw, order::Stream};

/// Decides which samples a loader puts into which batch.
pub(super) trait Schedule: Send + Sync {
    fn total_batches(&self) -> u64;

    /// Number of batches of one epoch. A loader whose threads end with an epoch makes at most so
    /// many with the same threads.
    fn batches_per_epoch(&self) -> u64;

    /// The samples of a batch, row by row.
    fn draws(&self, batch: u64) -> Vec<Draw>;

    /// The batches of the step that a batch is of.
    fn step_of(&self, batch: u64) -> Range<u64>;
}

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
    /// One key per sample: samples with close keys share a step. `None` draws each step from all
    /// samples.
    pub sort_keys: Option<Arc<Vec<u64>>>,
}

/// The samples of one epoch, in their order.
#[derive(Debug)]
pub(super) enum EpochOrder {
    Shuffled(Vec<u64>),
    Random {
        stream: Stream,
        source_samples: u64,
    },
    /// Row `r` of the rows of a step, over all its micro-batches, goes through samples `r × steps`
    /// to `r × steps + steps − 1`.
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
            Self::Random {
                stream,
                source_samples,
            } => stream.below(place, *source_samples),
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
        Epoch::of(
            self.epoch_samples,
            self.sampling,
            self.batch_size,
            self.grad_accumulation,
        )
    }

    /// Epoch (from 0) of a batch, and the place of its first sample in the epoch.
    pub(super) fn place(&self, batch: u64) -> (u64, u64) {
        let per_epoch = self.batches_per_epoch().max(1);
        (batch / per_epoch, batch % per_epoch * self.batch_size)
    }

    pub(super) fn order(&self, epoch: u64) -> EpochOrder {
        let stream = Stream::new(self.seed, epoch);
        match self.sampling {
            Sampling::Shuffled => EpochOrder::Shuffled(match &self.sort_keys {
                Some(keys) => stream.permutation_by(keys, self.samples_per_step()),
                None => stream.permutation(self.epoch_samples),
            }),
            Sampling::Random => EpochOrder::Random {
                stream,
                source_samples: self.source_samples,
            },
            Sampling::Contiguous => EpochOrder::Contiguous {
                rows: self.samples_per_step(),
                steps: self.steps_per_epoch(),
            },
        }
    }
}

/// A training's schedule at work: it keeps the orders of the newest epochs.
pub(super) struct TrainingOrder {
    schedule: BatchSchedule,
    orders: Mutex<BTreeMap<u64, Arc<EpochOrder>>>,
}

impl TrainingOrder {
    pub(super) fn new(schedule: BatchSchedule) -> Self {
        Self {
            schedule,
            orders: Mutex::default(),
        }
    }

    /// The order of an epoch, made once by whoever needs it first; the two newest are kept.
    fn order(&self, epoch: u64) -> Arc<EpochOrder> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let order = Arc::clone(
            orders
                .entry(epoch)
                .or_insert_with(|| Arc::new(self.schedule.order(epoch))),
        );
        while orders.len() > 2 {
            orders.pop_first();
        }
        order
    }
}

impl Schedule for TrainingOrder {
    fn total_batches(&self) -> u64 {
        self.schedule.total_batches()
    }

    fn batches_per_epoch(&self) -> u64 {
        self.schedule.batches_per_epoch()
    }

    fn draws(&self, batch: u64) -> Vec<Draw> {
        let (epoch, first) = self.schedule.place(batch);
        let order = self.order(epoch);
        (first..first + self.schedule.batch_size)
            .map(|place| Draw {
                epoch,
                sample: order.sample(place),
            })
            .collect()
    }

    fn step_of(&self, batch: u64) -> Range<u64> {
        let batches = self.schedule.grad_accumulation.max(1);
        let first = batch / batches * batches;
        first..first + batches
    }
}

/// One pass over validation samples: each once, the last batch with fewer rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationSchedule {
    pub samples: u64,
    /// Rows of every batch but the last.
    pub batch_size: u64,
    /// Whether each row continues where the same row of the batch before ended; else the rows of a
    /// batch follow one another.
    pub is_contiguous: bool,
}

impl EvaluationSchedule {
    /// The first rows have one sample more where they do not divide evenly, so that the last batch
    /// lacks rows at its end.
    fn first_of_row(&self, row: u64) -> u64 {
        let rows = self.batch_size.min(self.samples).max(1);
        row * (self.samples / rows) + row.min(self.samples % rows)
    }
}

impl Schedule for EvaluationSchedule {
    fn total_batches(&self) -> u64 {
        self.samples.div_ceil(self.batch_size.max(1))
    }

    fn batches_per_epoch(&self) -> u64 {
        self.total_batches()
    }

    fn draws(&self, batch: u64) -> Vec<Draw> {
        let first = batch * self.batch_size;
        let rows = self.batch_size.min(self.samples.saturating_sub(first));
        let sample = |row: u64| {
            if self.is_contiguous {
                self.first_of_row(row) + batch
            } else {
                first + row
            }
        };
        (0..rows)
            .map(|row| Draw {
                epoch: 0,
                sample: sample(row),
            })
            .collect()
    }

    fn step_of(&self, batch: u64) -> Range<u64> {
        batch..batch + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(sampling: Sampling) -> BatchSchedule {
        BatchSchedule {
            source_samples: 50,
            epoch_samples: 23,
            batch_size: 4,
            grad_accumulation: 2,
            total_steps: 5,
            sampling,
            seed: 1,
            sort_keys: None,
        }
    }

    #[test]
    fn what_fills_no_step_makes_no_batch() {
        let schedule = schedule(Sampling::Shuffled);
        assert_eq!(
            (
                schedule.steps_per_epoch(),
                schedule.batches_per_epoch(),
                schedule.total_batches()
            ),
            (2, 4, 10)
        );
        // 23 samples: 5 whole batches of 4 (3 samples over), 2 whole steps of 2 batches (1 batch
        // over).
        assert_eq!(
            schedule.epoch(),
            Epoch {
                samples: 23,
                steps: 2,
                dropped_partial_batch: 3,
                dropped_partial_accumulation: 4
            }
        );
        assert_eq!(schedule.place(9), (2, 4));
    }

    #[test]
    fn contiguous_rows_go_on_from_step_to_step_in_every_epoch() {
        let schedule = schedule(Sampling::Contiguous);
        for epoch in 0..2 {
            let order = schedule.order(epoch);
            let sample = |batch: u64, row: u64| order.sample(schedule.place(batch).1 + row);
            for row in 0..4 {
                // Batches 0 and 2 are the first micro-batch of steps 1 and 2, batches 1 and 3 the
                // second.
                assert_eq!(
                    (sample(2, row), sample(3, row)),
                    (sample(0, row) + 1, sample(1, row) + 1)
                );
            }
            let mut all: Vec<u64> = (0..4)
                .flat_map(|batch| (0..4).map(move |row| (batch, row)))
                .map(|(batch, row)| sample(batch, row))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..16).collect::<Vec<u64>>(), "each sample once");
        }
    }

    #[test]
    fn random_sampling_draws_from_all_of_the_source_with_replacement() {
        let schedule = schedule(Sampling::Random);
        let drawn: Vec<u64> = (0..1000)
            .map(|place| schedule.order(0).sample(place))
            .collect();
        assert!(drawn.iter().all(|sample| *sample < 50));
        assert!(drawn.contains(&0) && drawn.contains(&49));
        assert_ne!(
            drawn[..20],
            (0..20)
                .map(|place| schedule.order(1).sample(place))
                .collect::<Vec<u64>>()[..]
        );
    }
}
