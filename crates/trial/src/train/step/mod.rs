//! One training step in its parts: the first micro-batch (forward and backward), each further one,
//! the update. In: batches on the device, a learning rate. Out: parameters one update later, a loss
//! that stays on the device. A [`StepRunner`] decides how the parts are run: operator by operator
//! ([`Eager`]), or recorded once and replayed ([`captured`]).

#[cfg(feature = "libtorch")]
mod batch_memory;
#[cfg(feature = "libtorch")]
pub(super) mod captured;

use std::fmt::Debug;

use burn::tensor::{Gradients, Tensor};
use kiln_core::{kinds::InputShape, plan::TrialFile, spec::CudaGraph};

use super::{DeviceBatch, measurement::AllocatorPeaks, optimizer::Updater};
use crate::{
    engine::{EngineDevice, Ops, guard_result},
    error::TrialError,
    model::{Network, RecurrentMemory, check_outputs},
};

const IS_THERE: &str = "the network is put back after each update";

/// State that the steps of a training read and change.
#[derive(Debug)]
pub(super) struct StepState {
    pub(super) device: EngineDevice,
    /// Absent only while an update is made.
    network: Option<Box<Network>>,
    pub(super) updater: Updater,
    pub(super) arithmetic: Ops,
    /// The input that a user's own model was built for: its outputs are checked against it.
    pub(super) own_input: Option<InputShape>,
    /// Share of a class's target that all classes share in training.
    pub(super) label_smoothing: f64,
    /// Whether a recurrent network continues where the batch before ended.
    pub(super) carries_memory: bool,
    /// Recurrent state by micro-batch of a step: their rows continue separately.
    pub(super) memories: Vec<RecurrentMemory>,
    /// Loss of the current step, on the device.
    loss: Option<Tensor<1>>,
    /// One mean loss per finished step, on the device.
    losses: Vec<Tensor<1>>,
}

/// One micro-batch of a step.
#[derive(Debug)]
pub(super) struct MicroBatch {
    pub(super) batch: DeviceBatch,
    /// Its place among those of the step, from 0.
    pub(super) micro: usize,
    /// Seed of the model's dropout.
    pub(super) seed: u64,
    /// Number of targets in the whole step.
    pub(super) total_targets: u64,
}

/// Runs the parts of a step.
pub(super) trait StepRunner: Debug + Send {
    /// One forward and backward pass: adds to the step's gradient and loss, which are sums over
    /// targets divided by the step's number of targets. Does not wait for the device.
    fn micro_step(&mut self, state: &mut StepState, micro: MicroBatch) -> Result<(), TrialError>;

    /// Clips the step's gradient, updates the parameters, forgets the gradient. Does not wait for
    /// the device.
    fn update(&mut self, state: &mut StepState, learning_rate: f64) -> Result<(), TrialError>;

    /// Note for the trial's row about the way its steps were run.
    fn note(&self) -> Option<String> {
        None
    }

    /// Gives back the memory of recorded work between two steps, and records none any more; whether
    /// there was any. `shortage` is of work beside the steps, such as an evaluation.
    fn give_back(&mut self, _shortage: &TrialError) -> bool {
        false
    }

    /// Bytes that recorded work needs on the device at its peak, which the allocator's own peak
    /// does not show while that work is replayed.
    fn peak_allocated_bytes(&self) -> Option<u64> {
        None
    }

    /// The allocator's figures since they were last reset from outside, if a recording has reset them
    /// since then.
    fn peaks_before_recording(&self) -> Option<AllocatorPeaks> {
        None
    }

    /// The allocator's figures are reset from outside.
    fn forget_peaks(&mut self) {}
}

/// The number that a loss is divided by.
#[derive(Clone, Debug)]
enum Divisor {
    Number(f64),
    /// [1], f32, on the device.
    #[cfg(feature = "libtorch")]
    OnDevice(Box<Tensor<1>>),
}

impl StepState {
    pub(super) fn new(
        device: EngineDevice,
        network: Network,
        updater: Updater,
        arithmetic: Ops,
    ) -> Self {
        Self {
            device,
            network: Some(Box::new(network)),
            updater,
            arithmetic,
            own_input: None,
            label_smoothing: 0.0,
            carries_memory: false,
            memories: Vec::new(),
            loss: None,
            losses: Vec::new(),
        }
    }

    pub(super) fn network(&self) -> &Network {
        self.network.as_deref().expect(IS_THERE)
    }

    /// The losses of the steps since the last call, each [1], on the device.
    pub(super) fn take_losses(&mut self) -> Vec<Tensor<1>> {
        std::mem::take(&mut self.losses)
    }

    /// Forward and backward. Out: the loss, [1], and the gradients of the loss [`Updater::scaled`];
    /// `memory` then holds what a recurrent network remembers.
    fn pass(
        &self,
        batch: DeviceBatch,
        memory: &mut RecurrentMemory,
        divisor: &Divisor,
    ) -> Result<(Tensor<1>, Gradients), TrialError> {
        #[cfg(feature = "libtorch")]
        let _pass = (self.device.engine == kiln_core::spec::Engine::Libtorch)
            .then(crate::engine::libtorch::Pass::begin)
            .transpose()?;
        let outputs = self.network().forward(batch.input, memory, self.arithmetic);
        self.own_input.map_or(Ok(()), |input| {
            check_outputs(&outputs, batch.target.count(), input)
        })?;
        let sum = batch
            .target
            .loss(outputs, self.label_smoothing, self.arithmetic);
        let loss = match divisor {
            Divisor::Number(number) => sum / *number,
            #[cfg(feature = "libtorch")]
            Divisor::OnDevice(number) => sum / (**number).clone().autodiff(),
        };
        let gradients = self.updater.scaled(loss.clone()).backward();
        Ok((loss.detach().inner(), gradients))
    }

    fn take_memory(&mut self, micro: usize) -> RecurrentMemory {
        self.memories
            .resize(self.memories.len().max(micro + 1), None);
        self.memories[micro].take()
    }

    fn add_loss(&mut self, loss: Tensor<1>) {
        self.loss = Some(match self.loss.take() {
            Some(so_far) => so_far + loss,
            None => loss,
        });
    }
}

/// Operator by operator.
#[derive(Debug, Default)]
pub(super) struct Eager {
    /// The reason why steps are run this way although the file asks for another.
    note: Option<&'static str>,
}

impl StepRunner for Eager {
    fn micro_step(&mut self, state: &mut StepState, micro: MicroBatch) -> Result<(), TrialError> {
        let MicroBatch {
            batch,
            micro,
            seed,
            total_targets,
        } = micro;
        guard_result(|| {
            state.device.seed(seed)?;
            let mut memory = state.take_memory(micro);
            let (loss, gradients) =
                state.pass(batch, &mut memory, &Divisor::Number(total_targets as f64))?;
            if state.carries_memory {
                state.memories[micro] = memory;
            }
            state
                .updater
                .accumulate(state.network.as_deref().expect(IS_THERE), gradients)?;
            state.add_loss(loss);
            Ok(())
        })
    }

    fn update(&mut self, state: &mut StepState, learning_rate: f64) -> Result<(), TrialError> {
        guard_result(|| {
            let updated = state
                .updater
                .update(*state.network.take().expect(IS_THERE), learning_rate)?;
            state.network = Some(Box::new(updated));
            Ok(())
        })?;
        state.losses.extend(state.loss.take());
        Ok(())
    }

    fn note(&self) -> Option<String> {
        self.note.map(str::to_owned)
    }
}

/// As `train.cuda_graph` has it. Called before the model is built: a GPU's work is captured from
/// its own stream, which this thread then uses.
///
/// Errors: the device failed.
pub(super) fn runner(
    file: &TrialFile,
    device: &EngineDevice,
) -> Result<Box<dyn StepRunner>, TrialError> {
    let eager = |note| Ok(Box::new(Eager { note }) as Box<dyn StepRunner>);
    if file.train.cuda_graph != CudaGraph::On {
        return eager(None);
    }
    if file.devices_per_trial > 1 {
        return eager(Some(
            "no effect: the steps of a trial on several devices are not recorded",
        ));
    }
    #[cfg(feature = "libtorch")]
    if device.takes_cuda_branches() {
        let recorder = if device.is_cuda() {
            captured::Recorder::Graph
        } else {
            captured::Recorder::Closure
        };
        device.use_side_stream()?;
        return Ok(Box::new(captured::Captured::new(recorder)));
    }
    let _ = device;
    eager(Some("no effect on the CPU, which has no CUDA graphs"))
}
