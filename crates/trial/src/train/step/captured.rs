//! Steps whose parts are recorded once and replayed. On a GPU the recording is a CUDA graph, and a
//! replay costs the host one call for each part; on the CPU, for tests, a replay runs the recorded
//! part again on the same memory. A recorded part reads nothing of the host: batches, the number of
//! targets, the learning rate and the state of a recurrent network are copied or written into
//! memory that stays where it is.
//!
//! The first steps of each shape of batch are run operator by operator, so that libtorch's
//! workspaces and plans are there. A step whose further micro-batches have another shape than its
//! first continues operator by operator. A step that cannot be recorded does so, too, with a note.

use std::fmt;

use burn::tensor::{Gradients, Tensor};

use super::{
    Divisor, Eager, IS_THERE, MicroBatch, StepRunner, StepState,
    batch_memory::{duplicate, shape_of, tensors},
};
use crate::{
    engine::{
        LstmState,
        capture::Graph,
        fixed::Raw,
        guard_result,
        updates::{LearningRate, accumulate},
    },
    error::TrialError,
    model::RecurrentMemory,
    train::DeviceBatch,
};

/// Steps of a shape before it is recorded. Source: PyTorch's notes on CUDA graphs, which ask for
/// three.
const STEPS_BEFORE: u64 = 3;

/// Maximum number of recorded shapes; batches of further ones are trained operator by operator.
/// Each has its own memory.
const MOST_SHAPES: usize = 16;

/// The way in which a part is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) enum Recorder {
    /// As a CUDA graph.
    Graph,
    /// As a closure that is run again.
    Closure,
}

#[derive(Debug)]
pub(in crate::train) struct Captured {
    recorder: Recorder,
    shapes: Vec<OfShape>,
    under_way: UnderWay,
    /// The reason why nothing is recorded any more.
    failure: Option<String>,
    replayed_steps: u64,
    peak_allocated_bytes: Option<u64>,
}

/// The way in which the current step is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnderWay {
    Nothing,
    Eager,
    /// By the parts of this shape.
    Recorded(usize),
}

/// State of one shape of batch.
#[derive(Debug)]
struct OfShape {
    shape: Vec<Vec<i64>>,
    steps: u64,
    parts: Option<Parts>,
}

/// The recorded parts of a step, and the memory that they share.
#[derive(Debug)]
struct Parts {
    batch: DeviceBatch,
    /// Targets in the whole step, [1].
    total_targets: Tensor<1>,
    /// The learning rate, without axes.
    rate: tch::Tensor,
    /// State of a recurrent network before a micro-batch.
    memory: RecurrentMemory,
    first: Recorded,
    further: Option<Recorded>,
    update: Option<Recorded>,
}

/// Outputs of a part, in memory that stays in place.
#[derive(Debug, Default)]
struct Left {
    /// [1].
    loss: Option<Tensor<1>>,
    gradients: Vec<tch::Tensor>,
    memory: RecurrentMemory,
}

/// A part of a step.
type StepPart = Box<dyn Fn(&mut StepState) -> Result<Left, TrialError> + Send>;

/// A part that can be run again.
#[derive(Debug)]
struct Recorded {
    recording: Recording,
    left: Left,
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
    fn record(
        recorder: Recorder,
        part: StepPart,
        state: &mut StepState,
    ) -> Result<Self, TrialError> {
        match recorder {
            Recorder::Graph => {
                let (graph, left) = Graph::capture(|| part(state))?;
                graph.replay()?;
                Ok(Self {
                    recording: Recording::Graph(graph),
                    left,
                })
            }
            Recorder::Closure => {
                let left = part(state)?;
                Ok(Self {
                    recording: Recording::Closure(part),
                    left,
                })
            }
        }
    }

    /// Runs the part with what its memory holds now; what it leaves is where it was before.
    fn replay(&self, state: &mut StepState) -> Result<(), TrialError> {
        match &self.recording {
            Recording::Graph(graph) => graph.replay(),
            Recording::Closure(part) => {
                let latest = part(state)?;
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

fn duplicate_of(memory: &LstmState) -> LstmState {
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

impl Captured {
    pub(in crate::train) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            shapes: Vec::new(),
            under_way: UnderWay::Nothing,
            failure: None,
            replayed_steps: 0,
            peak_allocated_bytes: None,
        }
    }

    /// Decides how a step that begins with this micro-batch is run.
    fn begin_step(&mut self, state: &StepState, micro: &MicroBatch) -> UnderWay {
        let shape = shape_of(&micro.batch);
        let known = self.shapes.iter().position(|known| known.shape == shape);
        if known.is_none() && self.shapes.len() < MOST_SHAPES {
            self.shapes.push(OfShape {
                shape,
                steps: 0,
                parts: None,
            });
        }
        let Some(at) = known
            .or_else(|| Some(self.shapes.len() - 1).filter(|last| self.shapes[*last].steps == 0))
        else {
            return UnderWay::Eager;
        };
        let of_shape = &mut self.shapes[at];
        of_shape.steps += 1;
        // A recording needs to know how large a memory is.
        let knows_memory = !state.carries_memory
            || state.memories.iter().flatten().next().is_some()
            || of_shape.parts.is_some();
        if self.failure.is_none() && of_shape.steps > STEPS_BEFORE && knows_memory {
            UnderWay::Recorded(at)
        } else {
            UnderWay::Eager
        }
    }

    /// A micro-batch of a step that is run by the parts of a shape.
    fn recorded_micro_step(
        &mut self,
        at: usize,
        state: &mut StepState,
        micro: &MicroBatch,
        is_first: bool,
    ) -> Result<(), TrialError> {
        let Self {
            recorder, shapes, ..
        } = self;
        let parts = &mut shapes[at].parts;
        state.device.seed(micro.seed)?;
        if let Some(parts) = parts {
            parts.hold(
                micro,
                state.memories.get(micro.micro).and_then(Option::as_ref),
            );
            match (is_first, &parts.further) {
                (true, _) => parts.first.replay(state)?,
                (false, Some(further)) => further.replay(state)?,
                (false, None) => {
                    parts.further = Some(Recorded::record(*recorder, parts.further(), state)?)
                }
            }
        } else {
            *parts = Some(Parts::record(*recorder, state, micro)?);
        }
        let Some(parts) = parts else { return Ok(()) };
        if state.carries_memory {
            let left = if is_first {
                Some(&parts.first)
            } else {
                parts.further.as_ref()
            };
            let memory = left
                .and_then(|recorded| recorded.left.memory.as_ref())
                .map(duplicate_of);
            state
                .memories
                .resize(state.memories.len().max(micro.micro + 1), None);
            state.memories[micro.micro] = memory;
        }
        Ok(())
    }

    /// The update of a step that was run by the parts of a shape.
    fn recorded_update(
        &mut self,
        at: usize,
        state: &mut StepState,
        learning_rate: f64,
    ) -> Result<(), TrialError> {
        let Self {
            recorder, shapes, ..
        } = self;
        let Some(parts) = &mut shapes[at].parts else {
            return Ok(());
        };
        let _ = parts.rate.fill_(learning_rate);
        match &parts.update {
            Some(update) => update.replay(state)?,
            None => parts.update = Some(Recorded::record(*recorder, parts.update(), state)?),
        }
        state.updater.fused()?.count_update();
        state
            .losses
            .extend(parts.first.left.loss.as_ref().map(Raw::duplicate));
        Ok(())
    }

    /// The step continues operator by operator, with the loss and the gradients that it has so far.
    fn go_on_eagerly(&mut self, state: &mut StepState) {
        if let UnderWay::Recorded(at) = self.under_way
            && let Some(parts) = &self.shapes[at].parts
        {
            state.loss = parts.first.left.loss.as_ref().map(Raw::duplicate);
            if let Ok(fused) = state.updater.fused() {
                fused.set_gradients(
                    parts
                        .first
                        .left
                        .gradients
                        .iter()
                        .map(tch::Tensor::shallow_clone)
                        .collect(),
                );
            }
        }
        self.under_way = UnderWay::Eager;
    }

    /// Nothing is recorded or replayed any more.
    fn give_up(&mut self, state: &mut StepState, error: &TrialError, is_begun: bool) {
        if is_begun {
            self.go_on_eagerly(state);
        }
        self.under_way = UnderWay::Eager;
        self.shapes.clear();
        self.failure = Some(error.to_string());
    }
}

impl StepRunner for Captured {
    fn micro_step(&mut self, state: &mut StepState, micro: MicroBatch) -> Result<(), TrialError> {
        let is_first = self.under_way == UnderWay::Nothing;
        if is_first {
            self.under_way = self.begin_step(state, &micro);
        }
        if let UnderWay::Recorded(at) = self.under_way {
            if self.shapes[at].shape != shape_of(&micro.batch) {
                self.go_on_eagerly(state);
                return Eager::default().micro_step(state, micro);
            }
            let is_recording = self.shapes[at]
                .parts
                .as_ref()
                .is_none_or(|parts| !is_first && parts.further.is_none());
            match guard_result(|| self.recorded_micro_step(at, state, &micro, is_first)) {
                // Earlier recordings are usable for training, so a failure of theirs is the
                // device's.
                Err(error) if is_recording => self.give_up(state, &error, !is_first),
                ended => return ended,
            }
        }
        Eager::default().micro_step(state, micro)
    }

    fn update(&mut self, state: &mut StepState, learning_rate: f64) -> Result<(), TrialError> {
        if let UnderWay::Recorded(at) = self.under_way {
            let is_recording = self.shapes[at]
                .parts
                .as_ref()
                .is_some_and(|parts| parts.update.is_none());
            match guard_result(|| self.recorded_update(at, state, learning_rate)) {
                Err(error) if is_recording => self.give_up(state, &error, true),
                ended => {
                    self.under_way = UnderWay::Nothing;
                    if is_recording {
                        let peak = state
                            .device
                            .allocator()
                            .map(|stats| stats.peak_allocated_bytes);
                        self.peak_allocated_bytes = self.peak_allocated_bytes.max(peak);
                    } else {
                        self.replayed_steps += 1;
                    }
                    return ended;
                }
            }
        }
        self.under_way = UnderWay::Nothing;
        Eager::default().update(state, learning_rate)
    }

    fn note(&self) -> Option<String> {
        if let Some(failure) = &self.failure {
            return Some(format!(
                "trained operator by operator because the step could not be recorded: {failure}"
            ));
        }
        let shapes = self
            .shapes
            .iter()
            .filter(|of_shape| of_shape.parts.is_some())
            .count();
        let by = if self.recorder == Recorder::Graph {
            "CUDA graphs"
        } else {
            "closures on the CPU, a test of CUDA graphs"
        };
        Some(format!(
            "{} steps replayed from {by}; shapes of batches recorded: {shapes}",
            self.replayed_steps
        ))
    }

    fn peak_allocated_bytes(&self) -> Option<u64> {
        self.peak_allocated_bytes
    }
}

impl Parts {
    /// Records the first part of a step with this micro-batch, and runs it.
    fn record(
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
        let first = Recorded::record(recorder, part, state)?;
        Ok(Self {
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
    fn further(&self) -> StepPart {
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
    fn update(&self) -> StepPart {
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
    fn hold(&mut self, micro: &MicroBatch, memory: Option<&LstmState>) {
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

#[cfg(test)]
mod tests {
    use kiln_core::{
        kinds::InputShape,
        plan::ChildDevice,
        spec::{Engine, Precision, Train},
    };

    use super::*;
    use crate::{
        engine::{EngineDevice, Ops},
        model::{Init, Network},
        train::optimizer::Updater,
    };
    use crate::{model::Input, train::objective::BatchTarget};

    const ROWS: i64 = 2;

    fn state(optimizer: &str) -> StepState {
        let device = EngineDevice::open(Engine::Libtorch, ChildDevice::Cpu, 1).unwrap();
        let init = Init {
            seed: 1,
            device: device.with_gradients(),
        };
        let shape =
            serde_yaml::from_str("{kind: mlp, seq_len: 4, d_model: 4, hidden: 8, context: 2}")
                .unwrap();
        let network =
            Network::new(&shape, Some(InputShape::Text { vocabulary: 20 }), &init).unwrap();
        let train = Train {
            optimizer: serde_yaml::from_str(optimizer).unwrap(),
            clip_norm: Some(0.5),
            ..Train::default()
        };
        let updater = Updater::new(&network, Engine::Libtorch, &train);
        StepState::new(
            device,
            network,
            updater,
            Ops::new(Engine::Libtorch, Precision::F32).unwrap(),
        )
    }

    /// A micro-batch of `rows` rows; different for each number.
    fn micro(number: i64, micro: usize, rows: i64, total_targets: u64) -> MicroBatch {
        let tokens: Vec<i64> = (0..rows * 4).map(|at| (at * 7 + number * 5) % 20).collect();
        let tensor = tch::Tensor::from_slice(&tokens);
        let target = BatchTarget::Classes(Raw::over((&tensor + 1).fmod(20)));
        let batch = DeviceBatch {
            input: Input::Text(Raw::over(tensor.reshape([rows, 4]))),
            target,
            counted_targets: rows as u64 * 4,
            rows: rows as usize,
        };
        MicroBatch {
            batch,
            micro,
            seed: number as u64,
            total_targets,
        }
    }

    fn losses(state: &mut StepState) -> Vec<f64> {
        state
            .take_losses()
            .iter()
            .map(|loss| loss.raw().double_value(&[0]))
            .collect()
    }

    fn parameters(state: &mut StepState) -> Vec<tch::Tensor> {
        state.updater.fused().unwrap().values()
    }

    /// Steps of two micro-batches; learning rate, targets and now and then the shape change from
    /// step to step.
    fn train(
        state: &mut StepState,
        runner: &mut dyn StepRunner,
        steps: std::ops::RangeInclusive<i64>,
    ) {
        for step in steps {
            let targets = 16 + step as u64;
            runner
                .micro_step(state, micro(step, 0, ROWS, targets))
                .unwrap();
            runner
                .micro_step(
                    state,
                    micro(
                        step + 50,
                        1,
                        if step % 7 == 0 { ROWS + 1 } else { ROWS },
                        targets,
                    ),
                )
                .unwrap();
            runner.update(state, 0.01 * step as f64).unwrap();
        }
    }

    fn are_equal(one: &mut StepState, other: &mut StepState, what: &str) {
        assert_eq!(losses(one), losses(other), "{what}");
        assert!(
            parameters(one)
                .iter()
                .zip(parameters(other))
                .all(|(one, other)| one.equal(&other)),
            "{what}"
        );
    }

    #[test]
    fn a_replay_takes_batch_targets_and_rate_of_its_own_step_and_another_shape_goes_on_without() {
        for optimizer in [
            "{kind: adamw}",
            "{kind: sgd, momentum: 0.9, nesterov: true}",
            "{kind: adafactor, weight_decay: 0.1}",
        ] {
            let (mut eager, mut recorded) = (state(optimizer), state(optimizer));
            let mut captured = Captured::new(Recorder::Closure);
            train(&mut eager, &mut Eager::default(), 1..=20);
            train(&mut recorded, &mut captured, 1..=20);
            are_equal(&mut eager, &mut recorded, optimizer);
            // Of 20 steps, 3 run before recording and one is recorded; two have a further
            // micro-batch of another shape.
            assert_eq!(
                (captured.replayed_steps, captured.shapes.len()),
                (14, 1),
                "{optimizer}: {:?}",
                captured.note()
            );
        }
    }

    /// As on a GPU whose work cannot be captured, at any of the three parts.
    #[test]
    fn what_cannot_be_recorded_is_trained_operator_by_operator_and_told() {
        if tch::Cuda::is_available() {
            return;
        }
        for part in 0..3 {
            let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
            train(&mut eager, &mut Eager::default(), 1..=6);
            let mut captured = Captured::new(Recorder::Graph);
            train(&mut recorded, &mut captured, 1..=3);
            captured.recorder = if part == 0 {
                Recorder::Graph
            } else {
                Recorder::Closure
            };
            captured
                .micro_step(&mut recorded, micro(4, 0, ROWS, 20))
                .unwrap();
            captured.recorder = if part <= 1 {
                Recorder::Graph
            } else {
                Recorder::Closure
            };
            captured
                .micro_step(&mut recorded, micro(54, 1, ROWS, 20))
                .unwrap();
            captured.recorder = Recorder::Graph;
            captured.update(&mut recorded, 0.04).unwrap();
            train(&mut recorded, &mut captured, 5..=6);
            are_equal(&mut eager, &mut recorded, &format!("part {part}"));
            let note = captured.note().unwrap();
            assert!(
                note.starts_with("trained operator by operator")
                    && note.contains("captures work on a GPU"),
                "{note}"
            );
        }
    }

    #[test]
    fn no_more_shapes_are_recorded_than_there_is_room_for() {
        let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
        let mut captured = Captured::new(Recorder::Closure);
        let runners: [(&mut StepState, &mut dyn StepRunner); 2] = [
            (&mut eager, &mut Eager::default()),
            (&mut recorded, &mut captured),
        ];
        for (state, runner) in runners {
            for step in 0..5 * (MOST_SHAPES as i64 + 2) {
                runner
                    .micro_step(
                        state,
                        micro(step, 0, 1 + step % (MOST_SHAPES as i64 + 2), 30),
                    )
                    .unwrap();
                runner.update(state, 0.001).unwrap();
            }
        }
        are_equal(&mut eager, &mut recorded, "many shapes");
        assert_eq!(
            (captured.shapes.len(), captured.replayed_steps),
            (MOST_SHAPES, MOST_SHAPES as u64),
            "of 5 steps of a shape the last is replayed"
        );
    }
}
