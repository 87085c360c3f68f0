//! One model on one device, in training: forward, backward, accumulation, update, evaluation. The
//! training loop decides the order; nothing here reads a clock. Losses stay on the device until
//! they are read.

mod checkpoint;

use std::collections::BTreeMap;

use burn::{module::Module, tensor::Tensor};
use kiln_core::{
    kinds::{
        self, InputShape,
        random::{GAMMA, mix},
    },
    plan::TrialFile,
    spec::CpuThreads,
};

pub(super) use checkpoint::{Beginning, MODEL_FILE, SavedLearner, TRAINING_FILE};

use super::{
    DeviceBatch, HostBatch,
    decoder::Responding,
    generation::Writing,
    objective::{BatchTarget, Scores},
    optimizer::{self, NamedValues, Updater},
    step::{self, MicroBatch, StepRunner, StepState},
    step_clock::{StepClock, WallClock},
    tensor_file::{NamedTensors, OutgoingTensor},
    trainable::Copying,
};
use crate::{
    engine::{self, AllocatorStats, EngineDevice, HostCopy, Ops, guard, guard_result, on_host},
    error::TrialError,
    model::{
        GivenValues, Init, Input, Matmul, Network, RecurrentMemory, Registry, check_outputs,
        stored, with_values,
    },
};

/// A model with its optimizer on its device.
#[derive(Debug)]
pub struct Learner {
    device: EngineDevice,
    host_copy: HostCopy,
    work: LearnerWork,
    seed: u64,
    replica: Replica,
    /// The `model` section.
    model: kinds::Model,
    /// As last read.
    skipped_steps: Option<u64>,
    evaluation: Option<Evaluated>,
    /// State of a recurrent network during the current evaluation.
    evaluation_memory: RecurrentMemory,
}

/// One of several networks that share a step's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) index: u64,
    /// Total number.
    pub(super) of: u64,
}

impl Replica {
    const ONLY: Self = Self { index: 0, of: 1 };

    /// Whether micro-batch `micro` of a step is its own.
    pub(super) fn takes(self, micro: u64) -> bool {
        micro % self.of == self.index
    }
}

/// The current evaluation.
#[derive(Debug)]
struct Evaluated {
    /// On the device; see [`BatchTarget::sums`].
    sums: Tensor<1>,
    targets: u64,
    /// Target of the first batch: it defines the meaning of the sums.
    target: BatchTarget,
    outputs: usize,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per process")]
enum LearnerWork {
    Training {
        state: StepState,
        runner: Box<dyn StepRunner>,
    },
    Products {
        factors: Matmul,
        per_step: u64,
    },
}

impl Learner {
    /// Opens the device and builds the model with its initial weights. Random: from `train.seed`.
    ///
    /// Errors: no such device, a precision the engine lacks, an unknown vocabulary, too little
    /// memory.
    pub fn build(file: &TrialFile, input: Option<InputShape>) -> Result<Self, TrialError> {
        Self::build_own(file, input, &Registry::new())
    }

    /// The same with users' own models.
    pub fn build_own(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
    ) -> Result<Self, TrialError> {
        Self::build_from(file, input, registry, None, Replica::ONLY)
    }

    /// The same with these values in the place of the initial weights, for comparisons with other
    /// programs.
    pub fn build_with(
        file: &TrialFile,
        input: Option<InputShape>,
        values: &GivenValues<'_>,
    ) -> Result<Self, TrialError> {
        Self::build_from(file, input, &Registry::new(), Some(values), Replica::ONLY)
    }

    fn build_from(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
        values: Option<&GivenValues<'_>>,
        replica: Replica,
    ) -> Result<Self, TrialError> {
        let train = &file.train;
        let CpuThreads::Count(threads) = train.cpu_threads else {
            return Err(TrialError::Bad(
                "`train.cpu_threads` must be a number in a trial file".to_owned(),
            ));
        };
        let device =
            EngineDevice::open_replica(file.engine, file.device, threads, replica.index as usize)?;
        let arithmetic =
            Ops::new(file.engine, train.precision)?.on_cuda(device.takes_cuda_branches());
        device.set_precision(train.precision)?;
        device.set_cudnn_benchmark(train.cudnn_benchmark)?;
        let runner = step::runner(file, &device)?;
        let init = Init {
            seed: train.seed,
            device: device.with_gradients(),
        };
        let work = guard_result(|| match &file.model {
            kinds::Model::Matmul(shape) => {
                let per_step = train.batch_size * train.grad_accumulation;
                Ok(LearnerWork::Products {
                    factors: Matmul::new(shape, train.precision, &init),
                    per_step,
                })
            }
            shape => {
                let drawn = Network::with(registry, shape, input, &init)?;
                let network = match values {
                    Some(values) => with_values(drawn, values),
                    None => drawn,
                };
                let network = stored(network, train.precision);
                let updater = Updater::new(&network, file.engine, train);
                let mut state = StepState::new(device.clone(), network, updater, arithmetic);
                state.own_input = input.filter(|_| matches!(file.model, kinds::Model::Custom(_)));
                state.label_smoothing = train.label_smoothing;
                state.carries_memory = file.data.is_contiguous();
                Ok(LearnerWork::Training { state, runner })
            }
        })?;
        let pin_memory = file
            .data
            .loader()
            .map(|loader| loader.pin_memory)
            .unwrap_or_default();
        let host_copy = HostCopy::new(&device, pin_memory);
        Ok(Self {
            device,
            host_copy,
            work,
            seed: train.seed,
            replica,
            model: file.model.clone(),
            skipped_steps: None,
            evaluation: None,
            evaluation_memory: None,
        })
    }

    /// Trainable parameters of the built model.
    pub fn parameters(&self) -> u64 {
        match &self.work {
            LearnerWork::Training { state, .. } => state.network().num_params() as u64,
            LearnerWork::Products { .. } => 0,
        }
    }

    /// Addresses of each parameter's first element in the device's memory, for tests; empty for
    /// engine flex.
    pub fn parameter_addresses(&self) -> Vec<usize> {
        match &self.work {
            LearnerWork::Training { state, .. } => state.updater.parameter_addresses(),
            LearnerWork::Products { .. } => Vec::new(),
        }
    }

    /// FLOPs per sample as a user's own model reports them; `None` for other models.
    pub(crate) fn own_flops_per_sample(&self) -> Option<u64> {
        match &self.work {
            LearnerWork::Training { state, .. } => match state.network() {
                Network::Own(model) => model.flops_per_sample(),
                _ => None,
            },
            LearnerWork::Products { .. } => None,
        }
    }

    /// The device, as its maker calls it.
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    pub(super) fn is_on_cuda(&self) -> bool {
        self.device.is_cuda()
    }

    /// Threads that the engine computes with on the CPU.
    pub fn cpu_threads(&self) -> u64 {
        self.device.cpu_threads()
    }

    /// Copies a batch to the device; the batch may be written over when this returns. Does not wait
    /// for a copy from pinned memory.
    pub fn to_device(&mut self, batch: &HostBatch) -> Result<DeviceBatch, TrialError> {
        guard_result(|| DeviceBatch::new(batch, &mut self.host_copy))
    }

    pub(crate) fn copying(&self) -> Copying {
        Copying {
            from: self.host_copy.copied_from(),
            note: self.host_copy.note().map(str::to_owned),
        }
    }

    /// The clock of the device's steps, started at `now` (CLOCK_MONOTONIC in nanoseconds).
    pub(crate) fn step_clock(&self, now: u64) -> Box<dyn StepClock> {
        #[cfg(feature = "libtorch")]
        if self.device.is_cuda() {
            return Box::new(super::step_clock::EventClock::<engine::cuda::DeviceMoment>::new());
        }
        Box::new(WallClock::new(now))
    }

    /// One forward and backward pass; adds to the step's gradient and loss, which are sums over
    /// targets divided by `total_targets`, the number of targets in the whole step. Random:
    /// dropout, seeded from (seed, step, micro).
    pub fn micro_step(
        &mut self,
        batch: DeviceBatch,
        step: u64,
        micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        if total_targets == 0 {
            return Err(TrialError::Failed(format!(
                "step {step} has no target to predict"
            )));
        }
        let LearnerWork::Training { state, runner } = &mut self.work else {
            return Err(not_trained());
        };
        runner.micro_step(
            state,
            MicroBatch {
                batch,
                micro: micro as usize,
                seed: mixed_seed(self.seed, step, micro),
                total_targets,
            },
        )
    }

    /// Makes the gradients that each replica has accumulated the sum over all of them. Does not
    /// wait.
    pub(super) fn sum_gradients(replicas: &mut [Self]) -> Result<(), TrialError> {
        guard_result(|| {
            let updaters = replicas
                .iter_mut()
                .filter_map(|replica| match &mut replica.work {
                    LearnerWork::Training { state, .. } => Some(&mut state.updater),
                    LearnerWork::Products { .. } => None,
                });
            Updater::sum(updaters)
        })
    }

    /// The first parameter whose values differ between the replicas. Waits for the devices.
    pub(super) fn first_difference(replicas: &[Self]) -> Result<Option<String>, TrialError> {
        guard_result(|| {
            let networks = replicas.iter().filter_map(|replica| match &replica.work {
                LearnerWork::Training { state, .. } => Some(state.network()),
                LearnerWork::Products { .. } => None,
            });
            let parameters: Vec<NamedTensors> =
                networks.map(optimizer::leaving_parameters).collect();
            let Some((first, others)) = parameters.split_first() else {
                return Ok(None);
            };
            let differs = |at: usize, values: &OutgoingTensor| {
                others.iter().any(|other| !other[at].1.is_same(values))
            };
            Ok(first
                .iter()
                .enumerate()
                .find(|(at, (_, values))| differs(*at, values))
                .map(|(_, (path, _))| path.clone()))
        })
    }

    /// A recurrent network forgets: the next batch is the first of its epoch.
    pub fn begin_epoch(&mut self) {
        if let LearnerWork::Training { state, .. } = &mut self.work {
            state.memories.clear();
        }
    }

    /// Clips the accumulated gradient, updates the parameters, forgets the gradient: one step. Does
    /// not wait.
    pub fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        let LearnerWork::Training { state, runner } = &mut self.work else {
            return Err(not_trained());
        };
        runner.update(state, learning_rate)
    }

    /// Peak of what recorded steps need of the device, in bytes; the allocator does not see their
    /// replays. `None` if nothing is recorded.
    pub(crate) fn recorded_peak_bytes(&self) -> Option<u64> {
        match &self.work {
            LearnerWork::Training { runner, .. } => runner.peak_allocated_bytes(),
            LearnerWork::Products { .. } => None,
        }
    }

    /// Note for the trial's row about the way its steps were run.
    pub fn step_note(&self) -> Option<String> {
        match &self.work {
            LearnerWork::Training { runner, .. } => runner.note(),
            LearnerWork::Products { .. } => None,
        }
    }

    /// The mean loss of each step since the last call, in nats per target, in order. Waits for the
    /// device.
    pub fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        let LearnerWork::Training { state, .. } = &mut self.work else {
            return Ok(Vec::new());
        };
        let losses = state.take_losses();
        if losses.is_empty() {
            return Ok(Vec::new());
        }
        let losses = guard_result(|| read(Tensor::cat(losses, 0)))?;
        self.skipped_steps = guard_result(|| state.updater.skipped_steps())?;
        Ok(losses)
    }

    /// Steps that `amp-f16` skipped because a gradient overflowed, as of the last losses read;
    /// `None` in other precisions.
    pub fn skipped_steps(&self) -> Option<u64> {
        self.skipped_steps
    }

    /// Adds a batch to the current evaluation: no gradient, no dropout, no wait.
    pub fn evaluate(&mut self, batch: DeviceBatch) -> Result<(), TrialError> {
        let LearnerWork::Training { state, .. } = &self.work else {
            return Err(not_trained());
        };
        let arithmetic = state.arithmetic.evaluating();
        let counted = batch.counted_targets;
        let mut memory = self.evaluation_memory.take();
        let DeviceBatch { input, target, .. } = batch;
        let (sums, outputs) = guard_result(|| {
            let outputs = state
                .network()
                .valid()
                .forward(input, &mut memory, arithmetic);
            state.own_input.map_or(Ok(()), |input| {
                check_outputs(&outputs, target.count(), input)
            })?;
            let [_, width] = outputs.dims();
            Ok((target.sums(outputs, arithmetic), width))
        })?;
        self.evaluation_memory = memory.filter(|_| state.carries_memory);
        self.evaluation = Some(match self.evaluation.take() {
            Some(so_far) => Evaluated {
                sums: so_far.sums + sums,
                targets: so_far.targets + counted,
                ..so_far
            },
            None => Evaluated {
                sums,
                targets: counted,
                target,
                outputs,
            },
        });
        Ok(())
    }

    /// Mean loss, in nats per target, and the scores of what was evaluated since the last call.
    /// Waits for the device.
    ///
    /// Errors: no target was evaluated.
    pub(crate) fn finish_evaluation(&mut self) -> Result<Scores, TrialError> {
        self.evaluation_memory = None;
        match self.evaluation.take() {
            Some(Evaluated {
                sums,
                targets,
                target,
                outputs,
            }) if targets > 0 => {
                let sums = guard_result(|| read(sums))?;
                Ok(target.scores(&sums, targets, outputs))
            }
            _ => Err(TrialError::Failed(
                "the validation data has no target to predict".to_owned(),
            )),
        }
    }

    /// The mean loss of [`Learner::evaluate`]'s batches since the last call, for comparisons. Waits
    /// for the device.
    pub fn finish_evaluation_loss(&mut self) -> Result<f64, TrialError> {
        self.finish_evaluation().map(|scores| scores.loss)
    }

    /// A language model's outputs [vocabulary] for what follows these tokens, of which there is at
    /// least one: no gradient, no dropout. They come after what `memory` holds, and a recurrent
    /// model leaves there what it remembers then. Waits for the device.
    ///
    /// Errors: a model that reads no text, too little memory.
    pub fn predict(
        &mut self,
        tokens: &[u32],
        memory: &mut RecurrentMemory,
    ) -> Result<Vec<f64>, TrialError> {
        let Self {
            work: LearnerWork::Training { state, .. },
            host_copy,
            ..
        } = self
        else {
            return Err(not_trained());
        };
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        guard_result(|| {
            let input = Input::Text(host_copy.whole_numbers(&tokens, [1, tokens.len()])?);
            let outputs =
                state
                    .network()
                    .valid()
                    .forward(input, memory, state.arithmetic.evaluating()); // [time, vocabulary]
            state
                .own_input
                .map_or(Ok(()), |input| check_outputs(&outputs, tokens.len(), input))?;
            let [time, vocabulary] = outputs.dims();
            read(outputs.narrow(0, time - 1, 1).reshape([vocabulary]))
        })
    }

    /// Responses to prompts, token ids without the end token: no gradient, no dropout.
    /// `on_progress` hears how many tokens are written, and may stop it. Waits for the device.
    ///
    /// Errors: a model that answers no prompts, too little memory.
    pub(crate) fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        mut on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let Self {
            work: LearnerWork::Training { state, .. },
            host_copy,
            ..
        } = self
        else {
            return Err(not_trained());
        };
        let mut responding = Responding::new(
            state.network(),
            host_copy,
            state.arithmetic.evaluating(),
            writing,
        )?;
        writing.respond(&mut responding, prompts, &mut on_progress)
    }

    /// The same for comparisons: the pad token starts a response, `end` ends it.
    pub fn responses(
        &mut self,
        prompts: &[&[u32]],
        [pad, end]: [u32; 2],
        beams: usize,
        most: usize,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let writing = Writing {
            most,
            beams,
            start: pad,
            end,
            vocabulary: usize::MAX,
        };
        self.respond(&writing, prompts, &mut |_| Ok(()))
    }

    /// One step of `matmul`: `batch_size` × `grad_accumulation` products. Does not wait.
    pub fn product(&mut self) -> Result<(), TrialError> {
        let LearnerWork::Products { factors, per_step } = &self.work else {
            return Err(TrialError::Bad(
                "only `model.kind` matmul multiplies matrices".to_owned(),
            ));
        };
        guard(|| (0..*per_step).for_each(|_| drop(factors.product())))
    }

    /// Waits until the device has finished all submitted work.
    pub fn wait(&self) -> Result<(), TrialError> {
        self.device.wait()
    }

    /// Allocator figures; `None` on the CPU.
    pub fn allocator(&self) -> Option<AllocatorStats> {
        self.device.allocator()
    }

    /// Resets the allocator's peaks; no effect on the CPU.
    pub fn reset_allocator_peaks(&self) {
        self.device.reset_allocator_peaks();
    }

    /// Versions of the libraries as loaded.
    pub fn libraries(&self) -> BTreeMap<String, String> {
        engine::libraries()
    }

    /// Files of the libraries as loaded.
    pub fn library_files(&self) -> BTreeMap<String, String> {
        engine::library_files()
    }

    /// Switches that decide numbers.
    pub fn flags(&self) -> BTreeMap<String, String> {
        engine::flags()
    }

    /// The gradient of the current step by parameter path, for comparisons. Waits for the device.
    pub fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        match &self.work {
            LearnerWork::Training { state, .. } => guard_result(|| state.updater.gradients()),
            LearnerWork::Products { .. } => Err(not_trained()),
        }
    }

    /// The parameters by path, for comparisons. Waits for the device.
    pub fn parameter_values(&self) -> Result<Vec<NamedValues>, TrialError> {
        match &self.work {
            LearnerWork::Training { state, .. } => {
                guard_result(|| optimizer::parameters(state.network()))
            }
            LearnerWork::Products { .. } => Err(not_trained()),
        }
    }
}

fn not_trained() -> TrialError {
    TrialError::Bad("`model.kind` matmul is not trained".to_owned())
}

fn read(values: Tensor<1>) -> Result<Vec<f64>, TrialError> {
    Ok(on_host(values.try_into_data())?.iter::<f64>().collect())
}

/// A number made of three, by SplitMix64's mixing, so that neighboring steps draw unrelated
/// numbers.
fn mixed_seed(seed: u64, step: u64, micro: u64) -> u64 {
    [step, micro].into_iter().fold(seed, |mixed, part| {
        mix(mixed.wrapping_add(part.wrapping_add(1).wrapping_mul(GAMMA)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_between_steps_micro_batches_and_trials() {
        let all = [
            mixed_seed(1, 0, 0),
            mixed_seed(1, 0, 1),
            mixed_seed(1, 1, 0),
            mixed_seed(2, 0, 0),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
