//! One model on one device, in training: forward, backward, accumulation, update. The training loop
//! decides the order; nothing here reads a clock. Losses stay on the device until they are read.

mod checkpoint;
mod evaluation;
mod gradient_norms;
mod inference;
mod values;

use std::path::Path;

use burn::{module::Module, tensor::Tensor};
use kiln_core::{
    kinds::{
        self, InputShape,
        random::{GAMMA, mix},
    },
    plan::TrialFile,
    spec::GradientNoise,
};

pub(super) use checkpoint::{Beginning, SavedLearner, TRAINING_FILE};

use self::{evaluation::Evaluator, gradient_norms::GradientWatch};
use super::{
    DeviceBatch, HostBatch,
    generation::Writing,
    gradient::MeasuredGradient,
    measurement::{AllocatorPeaks, DeviceWork},
    objective::Scores,
    optimizer::{Counters, Updater},
    step::{self, MicroBatch, StepRunner, StepState},
    trainable::{Copying, Trainable},
    trial_device,
};
use crate::{
    engine::{CopyMarks, EngineDevice, HostCopy, Ops, guard_result, on_host},
    error::TrialError,
    model::{
        GivenValues, Init, Network, Registry, ReplacedValues, TextMemory, stored, with_values,
    },
};

/// A model with its optimizer on its device.
#[derive(Debug)]
pub struct Learner {
    device: EngineDevice,
    host_copy: HostCopy,
    state: StepState,
    runner: Box<dyn StepRunner>,
    seed: u64,
    replica: Replica,
    /// The `model` section.
    model: kinds::Model,
    /// SHA-256 of the numbering of the data's tokens, for the files of its weights.
    pub(super) token_sum: Option<String>,
    /// As last read.
    skipped_steps: Option<u64>,
    evaluator: Evaluator,
    gradient_watch: GradientWatch,
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
        let values = |path: &str, shape: &[usize]| Some(values(path, shape));
        Self::build_from(file, input, &Registry::new(), Some(&values), Replica::ONLY)
    }

    fn build_from(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
        values: Option<&ReplacedValues<'_>>,
        replica: Replica,
    ) -> Result<Self, TrialError> {
        let train = &file.train;
        let device = trial_device::open(file, replica.index)?;
        let arithmetic =
            Ops::new(file.engine, train.precision)?.on_cuda(device.takes_cuda_branches());
        let runner = step::runner(file, &device)?;
        let init = Init {
            seed: train.seed,
            device: device.with_gradients(),
        };
        let state = guard_result(|| {
            let drawn = Network::with(registry, &file.model, input, &init)?;
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
            Ok(state)
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
            state,
            runner,
            seed: train.seed,
            replica,
            model: file.model.clone(),
            token_sum: None,
            skipped_steps: None,
            evaluator: Evaluator::default(),
            gradient_watch: GradientWatch::default(),
        })
    }

    pub fn device(&self) -> &EngineDevice {
        &self.device
    }

    /// Trainable parameters of the built model.
    pub fn parameters(&self) -> u64 {
        self.state.network().num_params() as u64
    }

    /// FLOPs per sample as a user's own model reports them; `None` for other models.
    pub(crate) fn own_flops_per_sample(&self) -> Option<u64> {
        match self.state.network() {
            Network::Own(model) => model.flops_per_sample(),
            _ => None,
        }
    }

    /// Copies a batch to the device; the batch may be written over when this returns. Does not wait
    /// for a copy from pinned memory.
    pub fn to_device(&mut self, batch: &HostBatch) -> Result<DeviceBatch, TrialError> {
        self.copy_marked(batch, &mut ())
    }

    /// The same; `marks` hears of the copies.
    fn copy_marked(
        &mut self,
        batch: &HostBatch,
        marks: &mut dyn CopyMarks,
    ) -> Result<DeviceBatch, TrialError> {
        self.beside_steps(|learner| {
            guard_result(|| DeviceBatch::new(batch, &mut learner.host_copy.marked(marks)))
        })
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
        self.gradient_watch
            .add(batch.counted_targets as f64 / total_targets as f64);
        self.runner.micro_step(
            &mut self.state,
            MicroBatch {
                batch,
                micro: micro as usize,
                seed: mixed_seed(self.seed, step, micro),
                total_targets,
            },
        )
    }

    /// Clips the accumulated gradient, updates the parameters, forgets the gradient: one step. Does
    /// not wait.
    pub fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        self.runner.update(&mut self.state, learning_rate)?;
        self.gradient_watch.end_step(&mut self.state.updater);
        Ok(())
    }

    /// The gradient of the coming step is measured, whose micro-batches have so many samples.
    pub fn watch_gradient(&mut self, step: u64, samples: u64, wanted: GradientNoise) {
        self.gradient_watch.begin(step, samples as f64);
        self.state.updater.watch_norms(wanted);
    }

    /// The steps measured since the last call, in order. Waits for the device.
    pub fn take_gradient_norms(&mut self) -> Result<Vec<MeasuredGradient>, TrialError> {
        guard_result(|| self.gradient_watch.take())
    }

    /// The mean loss of each step since the last call, in nats per target, in order. Waits for the
    /// device.
    pub fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        let losses = self.state.take_losses();
        if losses.is_empty() {
            return Ok(Vec::new());
        }
        let losses = guard_result(|| read(Tensor::cat(losses, 0)))?;
        self.skipped_steps = guard_result(|| self.state.updater.skipped_steps())?;
        Ok(losses)
    }

    /// Steps that `amp-f16` skipped because a gradient overflowed, as of the last losses read;
    /// `None` in other precisions.
    pub fn skipped_steps(&self) -> Option<u64> {
        self.skipped_steps
    }

    /// The way in which its steps were run, where `train.cuda_graph` asked for one.
    pub fn step_note(&self) -> Option<String> {
        self.runner.note()
    }

    /// Most bytes that were allocated on the device at once; `None` on the CPU.
    pub fn peak_allocated_bytes(&self) -> Option<u64> {
        self.allocator_peaks().map(|peaks| peaks.allocated_bytes)
    }

    /// Adds a batch to the current evaluation: no gradient, no dropout, no wait.
    pub fn evaluate(&mut self, batch: DeviceBatch) -> Result<(), TrialError> {
        self.beside_steps(|learner| learner.evaluator.add(&learner.state, batch.clone()))
    }

    /// Does work between two steps, such as an evaluation. It cannot use the memory that recorded steps
    /// keep: where that is too little, they are given up, and it is done once more.
    fn beside_steps<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, TrialError>,
    ) -> Result<T, TrialError> {
        match work(self) {
            Err(error @ TrialError::OutOfMemory { .. }) if self.runner.give_back(&error) => {
                work(self)
            }
            done => done,
        }
    }

    /// The mean loss of [`Learner::evaluate`]'s batches since the last call, for comparisons. Waits
    /// for the device.
    pub fn finish_evaluation_loss(&mut self) -> Result<f64, TrialError> {
        self.finish_evaluation().map(|scores| scores.loss)
    }

    /// Makes the gradients that each replica has accumulated the sum over all of them. Does not
    /// wait.
    pub(super) fn sum_gradients(replicas: &mut [Self]) -> Result<(), TrialError> {
        let updaters = replicas
            .iter_mut()
            .map(|replica| &mut replica.state.updater);
        guard_result(|| Updater::sum(updaters))
    }
}

impl DeviceWork for Learner {
    fn wait(&mut self) -> Result<(), TrialError> {
        self.device.wait()
    }

    /// The allocator does not see the replays of recorded steps.
    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        let since = self.device.allocator_peaks()?;
        let peaks = self
            .runner
            .peaks_before_recording()
            .map_or(since, |before| before.followed_by(since));
        let recorded = self.runner.peak_allocated_bytes().unwrap_or(0);
        Some(AllocatorPeaks {
            allocated_bytes: peaks.allocated_bytes.max(recorded),
            ..peaks
        })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.device.allocated_bytes()
    }

    fn reset_allocator_peaks(&mut self) {
        DeviceWork::reset_allocator_peaks(&mut self.device);
        self.runner.forget_peaks();
    }
}

impl Trainable for Learner {
    type Batch = DeviceBatch;

    /// A recurrent network forgets.
    fn begin_epoch(&mut self) {
        self.state.memories.clear();
    }

    fn to_device(
        &mut self,
        batch: &HostBatch,
        marks: &mut dyn CopyMarks,
    ) -> Result<DeviceBatch, TrialError> {
        self.copy_marked(batch, marks)
    }

    fn micro_step(
        &mut self,
        batch: DeviceBatch,
        step: u64,
        micro: u64,
        total_targets: u64,
    ) -> Result<(), TrialError> {
        Self::micro_step(self, batch, step, micro, total_targets)
    }

    fn update(&mut self, learning_rate: f64) -> Result<(), TrialError> {
        Self::update(self, learning_rate)
    }

    fn take_losses(&mut self) -> Result<Vec<f64>, TrialError> {
        Self::take_losses(self)
    }

    fn watch_gradient(&mut self, step: u64, samples: u64, wanted: GradientNoise) {
        Self::watch_gradient(self, step, samples, wanted);
    }

    fn take_gradient_norms(&mut self) -> Result<Vec<MeasuredGradient>, TrialError> {
        Self::take_gradient_norms(self)
    }

    fn skipped_steps(&self) -> Option<u64> {
        self.skipped_steps
    }

    fn evaluate(&mut self, batch: DeviceBatch) -> Result<(), TrialError> {
        Self::evaluate(self, batch)
    }

    fn finish_evaluation(&mut self) -> Result<Scores, TrialError> {
        self.evaluator.finish()
    }

    fn predict(&mut self, tokens: &[u32], memory: &mut TextMemory) -> Result<Vec<f64>, TrialError> {
        Self::predict(self, tokens, memory)
    }

    fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        Self::respond(self, writing, prompts, on_progress)
    }

    fn copying(&self) -> Copying {
        Copying {
            from: self.host_copy.copied_from(),
            note: self.host_copy.note().map(str::to_owned),
        }
    }

    fn step_note(&self) -> Option<String> {
        Self::step_note(self)
    }

    fn save(&self, folder: &Path) -> Result<Counters, TrialError> {
        self.save_with(&[], folder)
    }
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
