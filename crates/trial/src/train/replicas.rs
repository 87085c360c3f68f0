//! Data parallel within one trial: replicas of one model, each on its device, share the batches of
//! every step.
//!
//! Micro-batch m of a step goes to replica m mod N. Each replica's gradients are divided by the
//! targets of the whole step, so before the update they are summed over the replicas; then all make
//! the same update, and their parameters stay equal to the bit. The first replica is the one that
//! is evaluated, sampled and saved. Waits for the devices: only where [`Trainable`] says so.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use kiln_core::spec::GradientNoise;

use super::{
    DeviceBatch, Learner,
    clock::{monotonic_nanoseconds, seconds_between},
    generation::Writing,
    gradient::MeasuredGradient,
    measurement::{AllocatorPeaks, DeviceWork},
    objective::Scores,
    optimizer::Counters,
    trainable::{Copying, Trainable},
};
#[cfg(feature = "libtorch")]
use crate::engine::cuda;
use crate::{
    TrialError,
    data::HostBatch,
    engine::{self, CopyMarks, error_from_text},
    error::panic_text,
    model::TextMemory,
};

/// Replicas that learn together.
pub(super) struct Parallel {
    /// In the order of their devices.
    replicas: Vec<Learner>,
    /// Batches of the current round, one per replica, in their order.
    round: Vec<DeviceBatch>,
    /// One for each replica but the first, so that no device waits for the launches of another's
    /// work. None on the CPU, where all would draw from one generator.
    lanes: Vec<Lane>,
    clock: ExchangeClock,
    /// Begin and end of the exchange of each step since they were last taken.
    exchanges: Vec<Option<(ExchangeMoment, ExchangeMoment)>>,
}

/// A thread for one replica's passes. It lives as long as the training: libtorch keeps cuDNN's
/// plans by thread, and would make them anew in a new one.
struct Lane {
    passes: Sender<Pass>,
    ended: Receiver<(Learner, Result<(), TrialError>)>,
}

/// One forward and backward pass, and who makes it.
struct Pass {
    learner: Learner,
    batch: DeviceBatch,
    step: u64,
    micro: u64,
    total_targets: u64,
}

impl Lane {
    /// Errors: the thread cannot be started.
    fn start() -> Result<Self, TrialError> {
        let ((passes, asked), (answer, ended)) = (channel::<Pass>(), channel());
        // It ends when `passes` is dropped.
        let work = move || {
            engine::begin_thread();
            // Nobody waits for an answer any more once the training is over.
            asked
                .into_iter()
                .map(Pass::make)
                .all(|made| answer.send(made).is_ok())
        };
        let started = thread::Builder::new().name("lane".to_owned()).spawn(work);
        started.map_err(|error| {
            TrialError::of_starting("each of the trial's devices needs a thread", &error)
        })?;
        Ok(Self { passes, ended })
    }
}

impl Pass {
    /// Gives the learner back whatever happens.
    fn make(self) -> (Learner, Result<(), TrialError>) {
        let Self {
            mut learner,
            batch,
            step,
            micro,
            total_targets,
        } = self;
        let made = catch_unwind(AssertUnwindSafe(|| {
            learner.micro_step(batch, step, micro, total_targets)
        }));
        (
            learner,
            made.unwrap_or_else(|payload| Err(error_from_text(&panic_text(&*payload)))),
        )
    }
}

/// The clock that times an exchange.
#[derive(Clone, Copy, Debug)]
enum ExchangeClock {
    Host,
    /// On the streams of this many devices.
    #[cfg(feature = "libtorch")]
    Devices(usize),
}

#[derive(Debug)]
enum ExchangeMoment {
    /// CLOCK_MONOTONIC.
    Host(u64),
    #[cfg(feature = "libtorch")]
    Device(cuda::DeviceMoment),
}

impl ExchangeClock {
    /// The moment at which every replica has finished its earlier work; does not wait. `None` if
    /// the devices' clock fails.
    fn all_done(self) -> Option<ExchangeMoment> {
        match self {
            Self::Host => Some(ExchangeMoment::Host(monotonic_nanoseconds())),
            // Without it the trial has no time of its exchanges: an empty cell. A device that has
            // failed is told by the next wait.
            #[cfg(feature = "libtorch")]
            Self::Devices(count) => cuda::DeviceMoment::record_on_all(count)
                .ok()
                .map(ExchangeMoment::Device),
        }
    }
}

impl ExchangeMoment {
    /// `None` if the devices' clock fails, which leaves the trial's cell empty, too.
    fn seconds_until(&self, later: &Self) -> Option<f64> {
        match (self, later) {
            (Self::Host(from), Self::Host(to)) => Some(seconds_between(*from, *to)),
            #[cfg(feature = "libtorch")]
            (Self::Device(from), Self::Device(to)) => from.seconds_until(to).ok(),
            #[cfg(feature = "libtorch")]
            _ => None,
        }
    }
}

impl Parallel {
    /// `replicas` has at least one element; their parameters are equal to the bit.
    ///
    /// Errors: a thread cannot be started.
    pub(super) fn new(replicas: Vec<Learner>) -> Result<Self, TrialError> {
        let on_cuda = replicas.iter().any(|replica| replica.device().is_cuda());
        let clock = match on_cuda {
            #[cfg(feature = "libtorch")]
            true => ExchangeClock::Devices(replicas.len()),
            _ => ExchangeClock::Host,
        };
        let lanes = if on_cuda {
            lanes(replicas.len())?
        } else {
            Vec::new()
        };
        Ok(Self {
            replicas,
            round: Vec::new(),
            lanes,
            clock,
            exchanges: Vec::new(),
        })
    }

    fn first(&mut self) -> &mut Learner {
        &mut self.replicas[0]
    }

    fn each(
        &mut self,
        work: impl FnMut(&mut Learner) -> Result<(), TrialError>,
    ) -> Result<(), TrialError> {
        self.replicas.iter_mut().try_for_each(work)
    }

    /// Forward and backward of the round's batches, of which `first_micro` is the first replica's.
    fn run_round(
        &mut self,
        step: u64,
        first_micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        let mut batches = self.round.drain(..).zip(first_micro..);
        if self.lanes.is_empty() {
            let mut parts = self.replicas.iter_mut().zip(batches);
            return parts.try_for_each(|(replica, (batch, micro))| {
                replica.micro_step(batch, step, micro, total_targets)
            });
        }
        let own = batches.next();
        let others = self
            .replicas
            .split_off(1)
            .into_iter()
            .zip(batches)
            .zip(&self.lanes);
        let passing: Vec<&Lane> = others
            .map(|((learner, (batch, micro)), lane)| {
                let sent = lane.passes.send(Pass {
                    learner,
                    batch,
                    step,
                    micro,
                    total_targets,
                });
                sent.map(|()| lane).map_err(|_| lane_is_gone())
            })
            .collect::<Result<_, _>>()?;
        let first = &mut self.replicas[0];
        let mut ended = own.map_or(Ok(()), |(batch, micro)| {
            first.micro_step(batch, step, micro, total_targets)
        });
        for lane in passing {
            let (learner, made) = lane.ended.recv().map_err(|_| lane_is_gone())?;
            self.replicas.push(learner);
            ended = ended.and(made);
        }
        ended
    }
}

/// One for each replica but the first, which computes in the thread of the training.
fn lanes(replicas: usize) -> Result<Vec<Lane>, TrialError> {
    (1..replicas).map(|_| Lane::start()).collect()
}

fn lane_is_gone() -> TrialError {
    TrialError::Failed(
        "the thread of one of the trial's devices has ended; this is a bug in kiln; please report \
         it"
        .to_owned(),
    )
}

impl DeviceWork for Parallel {
    fn wait(&mut self) -> Result<(), TrialError> {
        self.each(DeviceWork::wait)
    }

    /// The peaks of the device with the highest values.
    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        self.replicas
            .iter()
            .filter_map(DeviceWork::allocator_peaks)
            .reduce(AllocatorPeaks::highest)
    }

    /// On all devices together.
    fn allocated_bytes(&self) -> Option<u64> {
        self.replicas.iter().map(DeviceWork::allocated_bytes).sum()
    }

    fn reset_allocator_peaks(&mut self) {
        self.replicas
            .iter_mut()
            .for_each(DeviceWork::reset_allocator_peaks);
    }
}

impl Trainable for Parallel {
    type Batch = DeviceBatch;

    fn begin_epoch(&mut self) {
        self.replicas.iter_mut().for_each(Learner::begin_epoch);
    }

    /// To the replica whose turn it is: between two steps the first one's, which makes the
    /// evaluations.
    fn to_device(
        &mut self,
        batch: &HostBatch,
        marks: &mut dyn CopyMarks,
    ) -> Result<DeviceBatch, TrialError> {
        let turn = self.round.len();
        let replica = &mut self.replicas[turn];
        // The clock is that of the first GPU, on whose stream no other's copies are.
        let unheard: &mut dyn CopyMarks = &mut ();
        let marks = match turn > 0 && replica.device().is_cuda() {
            true => unheard,
            false => marks,
        };
        Trainable::to_device(replica, batch, marks)
    }

    /// A round is made once it has a batch for each replica; a step is made of whole rounds.
    fn micro_step(
        &mut self,
        batch: DeviceBatch,
        step: u64,
        micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        self.round.push(batch);
        if self.round.len() < self.replicas.len() {
            return Ok(());
        }
        let first_micro = micro + 1 - self.replicas.len() as u64;
        self.run_round(step, first_micro, total_targets)
    }

    fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        let began = self.clock.all_done();
        Learner::sum_gradients(&mut self.replicas)?;
        self.exchanges.push(began.zip(self.clock.all_done()));
        self.each(|replica| replica.update(learning_rate))
    }

    /// Each replica has its targets' part of a step's mean.
    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        let parts = self
            .replicas
            .iter_mut()
            .map(Learner::take_losses)
            .collect::<Result<Vec<_>, _>>()?;
        let added = |sums: Vec<f64>, terms: Vec<f64>| {
            sums.into_iter()
                .zip(terms)
                .map(|(sum, term)| sum + term)
                .collect()
        };
        Ok(parts.into_iter().reduce(added).unwrap_or_default())
    }

    fn take_exchanges(&mut self) -> Vec<Option<f64>> {
        let exchanges = self.exchanges.drain(..);
        exchanges
            .map(|exchange| exchange.and_then(|(began, ended)| began.seconds_until(&ended)))
            .collect()
    }

    fn watch_gradient(&mut self, step: u64, samples: u64, wanted: GradientNoise) {
        let replicas = self.replicas.iter_mut();
        replicas.for_each(|replica| replica.watch_gradient(step, samples, wanted));
    }

    /// Each replica has the norms of its own micro-batches, and that of the whole gradient.
    fn take_gradient_norms(&mut self) -> Result<Vec<MeasuredGradient>, TrialError> {
        let parts = self
            .replicas
            .iter_mut()
            .map(Learner::take_gradient_norms)
            .collect::<Result<Vec<_>, _>>()?;
        let added = |mut sums: Vec<MeasuredGradient>, terms: Vec<MeasuredGradient>| {
            let pairs = sums.iter_mut().zip(terms);
            pairs.for_each(|(sum, term)| sum.add(term));
            sums
        };
        Ok(parts.into_iter().reduce(added).unwrap_or_default())
    }

    fn skipped_steps(&self) -> Option<u64> {
        self.replicas[0].skipped_steps()
    }

    fn evaluate(&mut self, batch: DeviceBatch) -> Result<(), TrialError> {
        self.first().evaluate(batch)
    }

    fn finish_evaluation(&mut self) -> Result<Scores, TrialError> {
        self.first().finish_evaluation()
    }

    fn predict(&mut self, tokens: &[u32], memory: &mut TextMemory) -> Result<Vec<f64>, TrialError> {
        self.first().predict(tokens, memory)
    }

    fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        self.first().respond(writing, prompts, on_progress)
    }

    fn copying(&self) -> Copying {
        self.replicas[0].copying()
    }

    fn step_note(&self) -> Option<String> {
        self.replicas[0].step_note()
    }

    fn save(&self, folder: &Path) -> Result<Counters, TrialError> {
        self.replicas[0].save_with(&self.replicas[1..], folder)
    }

    fn check(&self) -> Result<(), TrialError> {
        let Some(path) = Learner::first_difference(&self.replicas)? else {
            return Ok(());
        };
        Err(TrialError::Failed(format!(
            "the devices of this trial are out of sync: the parameter `{path}` differs among the \
             {} devices, although each made the same updates; this is a bug in kiln; please report \
             it",
            self.replicas.len()
        )))
    }
}

#[cfg(test)]
mod tests;
