//! The parts of a step that are recorded: the first micro-batch, a further one, and the update.
//! Each reads and writes memory that stays where it is.

use std::fmt;

use burn::tensor::{Gradients, Tensor};

use super::super::{
    Divisor, IS_THERE, MicroBatch, StepState,
    batch_memory::{duplicate, tensors},
};
use crate::{
    engine::{
        LstmState,
        capture::{Graph, Pool, empty_cache},
        fixed::Raw,
        recorded_work,
        updates::{LearningRate, accumulate},
    },
    error::TrialError,
    model::RecurrentMemory,
    train::DeviceBatch,
};

/// The way in which a part is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) enum Recorder {
    /// A CUDA graph.
    Graph,
    /// A closure that is run again.
    Closure,
}

/// The recorded parts of a step, and the memory that they share.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) pool: Pool,
    batch: DeviceBatch,
    /// Targets in the whole step, [1].
    total_targets: Tensor<1>,
    /// The learning rate, without axes.
    pub(super) rate: tch::Tensor,
    /// State of a recurrent network before a micro-batch.
    memory: RecurrentMemory,
    pub(super) first: Recorded,
    pub(super) further: Option<Recorded>,
    pub(super) update: Option<Recorded>,
}

/// Outputs of a part, in memory that stays in place.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// [1].
    pub(super) loss: Option<Tensor<1>>,
    pub(super) gradients: Vec<tch::Tensor>,
    pub(super) memory: RecurrentMemory,
}

/// A part of a step.
pub(super) type StepPart = Box<dyn Fn(&mut StepState) -> Result<Left, TrialError> + Send>;

/// A part that can be run again.
#[derive(Debug)]
pub(super) struct Recorded {
    recording: Recording,
    pub(super) left: Left,
}

enum Recording {
    Graph(Graph),
    Closure(StepPart),
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Graph(graph) => graph.fmt(f),
            Self::Closure(_) => f.write_str("Closure"),
        }
    }
}

impl Recorded {
    /// Records the part and runs it once.
    pub(super) fn record(
        recorder: Recorder,
        pool: Pool,
        part: StepPart,
        state: &mut StepState,
    ) -> Result<Self, TrialError> {
        match recorder {
            Recorder::Graph => {
                let (graph, left) = Graph::capture(pool, || recorded_work::during(|| part(state)))?;
                graph.replay()?;
                Ok(Self {
                    recording: Recording::Graph(graph),
                    left,
                })
            }
            Recorder::Closure => {
                let left = recorded_work::during(|| part(state))?;
                Ok(Self {
                    recording: Recording::Closure(part),
                    left,
                })
            }
        }
    }

    /// Runs the part with what its memory holds now; what it leaves is where it was before.
    pub(super) fn replay(&self, state: &mut StepState) -> Result<(), TrialError> {
        match &self.recording {
            Recording::Graph(graph) => graph.replay(),
            Recording::Closure(part) => {
                let latest = recorded_work::during(|| part(state))?;
                self.left
                    .tensors()
                    .into_iter()
                    .zip(latest.tensors())
                    .for_each(|(mut place, latest)| place.copy_(&latest));
                Ok(())
            }
        }
    }
}

impl Left {
    fn tensors(&self) -> Vec<tch::Tensor> {
        let gradients = self.gradients.iter().map(tch::Tensor::shallow_clone);
        self.loss
            .iter()
            .map(Raw::raw)
            .chain(gradients)
            .chain(tensors_of(self.memory.as_ref()))
            .collect()
    }
}

fn tensors_of(memory: Option<&LstmState>) -> Vec<tch::Tensor> {
    memory.map_or(Vec::new(), |LstmState { hidden, cell }| {
        vec![hidden.raw(), cell.raw()]
    })
}

pub(super) fn duplicate_of(memory: &LstmState) -> LstmState {
    LstmState {
        hidden: memory.hidden.duplicate(),
        cell: memory.cell.duplicate(),
    }
}

impl StepState {
    /// The gradients of a backward pass as an update takes them.
    fn terms(&mut self, gradients: Gradients) -> Result<Vec<tch::Tensor>, TrialError> {
        self.updater
            .fused()?
            .terms(self.network.as_deref().expect(IS_THERE), gradients)
    }
}

impl Parts {
    /// Records the first part of a step with this micro-batch, and runs it.
    pub(super) fn record(
        recorder: Recorder,
        state: &mut StepState,
        micro: &MicroBatch,
    ) -> Result<Self, TrialError> {
        let device = state.device.plain();
        let total_targets = Tensor::full([1], micro.total_targets as f64, device);
        // CUDA's kernels read an f32; those of the CPU read what is there, and an f64 is what they
        // get otherwise.
        let place = total_targets.raw().device();
        let kind = if place.is_cuda() {
            tch::Kind::Float
        } else {
            tch::Kind::Double
        };
        let rate = tch::Tensor::zeros([] as [i64; 0], (kind, place));
        let batch = duplicate(&micro.batch);
        // Any micro-batch's memory has the size; at the start of an epoch it begins as zeros.
        let own = state.memories.get(micro.micro).and_then(Option::as_ref);
        let memory = own
            .or_else(|| state.memories.iter().flatten().next())
            .filter(|_| state.carries_memory)
            .map(duplicate_of);
        if own.is_none() {
            tensors_of(memory.as_ref())
                .iter_mut()
                .for_each(|tensor| drop(tensor.zero_()));
        }
        let (read, divisor, remembered) = (
            batch.clone(),
            Divisor::OnDevice(Box::new(total_targets.clone())),
            memory.clone(),
        );
        let part: StepPart = Box::new(move |state: &mut StepState| {
            let mut memory = remembered.clone();
            let (loss, gradients) = state.pass(read.clone(), &mut memory, &divisor)?;
            let gradients = state.terms(gradients)?;
            Ok(Left {
                loss: Some(loss),
                gradients,
                memory: memory.filter(|_| state.carries_memory),
            })
        });
        // What the steps before have cached would stay beside the graphs' own memory. Where CUDA
        // fails, the capture says so.
        if recorder == Recorder::Graph {
            let _ = empty_cache();
        }
        let pool = Pool::new();
        let first = Recorded::record(recorder, pool, part, state)?;
        Ok(Self {
            pool,
            batch,
            total_targets,
            rate,
            memory,
            first,
            further: None,
            update: None,
        })
    }

    /// A further micro-batch of the same shape: adds to the first one's loss and gradients.
    pub(super) fn further(&self) -> StepPart {
        let (read, divisor, remembered) = (
            self.batch.clone(),
            Divisor::OnDevice(Box::new(self.total_targets.clone())),
            self.memory.clone(),
        );
        let gradients: Vec<tch::Tensor> = self
            .first
            .left
            .gradients
            .iter()
            .map(tch::Tensor::shallow_clone)
            .collect();
        let sum = self.first.left.loss.as_ref().map(Raw::raw);
        Box::new(move |state: &mut StepState| {
            let mut memory = remembered.clone();
            let (loss, latest) = state.pass(read.clone(), &mut memory, &divisor)?;
            accumulate(&gradients, &state.terms(latest)?)?;
            sum.iter()
                .map(tch::Tensor::shallow_clone)
                .for_each(|mut sum| drop(sum.g_add_(&loss.raw())));
            Ok(Left {
                memory: memory.filter(|_| state.carries_memory),
                ..Left::default()
            })
        })
    }

    /// The update with the gradients of the first part.
    pub(super) fn update(&self) -> StepPart {
        let gradients: Vec<tch::Tensor> = self
            .first
            .left
            .gradients
            .iter()
            .map(tch::Tensor::shallow_clone)
            .collect();
        let rate = self.rate.shallow_clone();
        Box::new(move |state: &mut StepState| {
            state
                .updater
                .fused()?
                .apply(&gradients, LearningRate::OnDevice(&rate))
                .map(|()| Left::default())
        })
    }

    /// Puts a micro-batch into the memory that the parts read.
    pub(super) fn hold(&mut self, micro: &MicroBatch, memory: Option<&LstmState>) {
        tensors(&self.batch)
            .into_iter()
            .zip(tensors(&micro.batch))
            .for_each(|(mut place, latest)| place.copy_(&latest));
        let _ = self.total_targets.raw().fill_(micro.total_targets as f64);
        let mut places = tensors_of(self.memory.as_ref());
        match memory {
            Some(memory) => places
                .iter_mut()
                .zip(tensors_of(Some(memory)))
                .for_each(|(place, latest)| place.copy_(&latest)),
            None => places.iter_mut().for_each(|place| drop(place.zero_())),
        }
    }
}
