//! Steps whose parts are recorded once and replayed. On a GPU the recording is a CUDA graph, and a
//! replay costs the host one call for each part; on the CPU, for tests, a replay runs the recorded
//! part again on the same memory. A recorded part reads nothing of the host: batches, the number of
//! targets, the learning rate and the state of a recurrent network are copied or written into
//! memory that stays where it is.
//!
//! The first steps of each shape of batch are run operator by operator, so that libtorch's
//! workspaces and plans are there. A step whose further micro-batches have another shape than its
//! first continues operator by operator. A step that cannot be recorded does so, too, with a note. A
//! step whose gradients are measured is run operator by operator.

mod parts;

use super::{Eager, MicroBatch, StepRunner, StepState, batch_memory::shape_of};
use crate::{
    engine::{fixed::Raw, guard_result},
    error::TrialError,
    train::measurement::{AllocatorPeaks, DeviceWork},
};
use kiln_core::record::note::ReplayedSteps;
use parts::{Parts, Recorded, duplicate_of};

pub(in crate::train) use parts::Recorder;

/// Steps of a shape before it is recorded. Source: PyTorch's notes on CUDA graphs, which ask for
/// three.
const STEPS_BEFORE: u64 = 3;

/// Maximum number of recorded shapes; batches of further ones are trained operator by operator.
/// Each has its own memory.
const MOST_SHAPES: usize = 16;

#[derive(Debug)]
pub(in crate::train) struct Captured {
    recorder: Recorder,
    shapes: Vec<OfShape>,
    under_way: UnderWay,
    /// The reason why nothing is recorded any more.
    failure: Option<String>,
    replayed_steps: u64,
    peak_allocated_bytes: Option<u64>,
    peaks_before: Option<AllocatorPeaks>,
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

impl Captured {
    pub(in crate::train) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            shapes: Vec::new(),
            under_way: UnderWay::Nothing,
            failure: None,
            replayed_steps: 0,
            peak_allocated_bytes: None,
            peaks_before: None,
        }
    }

    /// Resets the allocator's figures: memory of earlier work, such as cuDNN's benchmarks, must not count in
    /// the peak of the recording. They are kept for the window.
    fn begin_recording(&mut self, state: &StepState) {
        let peaks = DeviceWork::allocator_peaks(&state.device);
        self.peaks_before = match (self.peaks_before, peaks) {
            (Some(before), Some(peaks)) => Some(before.followed_by(peaks)),
            (before, peaks) => before.or(peaks),
        };
        state.device.reset_allocator_peaks();
    }

    /// Decides how a step that begins with this micro-batch is run.
    fn begin_step(&mut self, state: &StepState, micro: &MicroBatch) -> UnderWay {
        if state.updater.watches_norms() {
            return UnderWay::Eager;
        }
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
        if self.shapes[at].parts.is_none() {
            self.begin_recording(state);
        }
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
                    let part = parts.further();
                    parts.further = Some(Recorded::record(*recorder, parts.pool, part, state)?);
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
            None => {
                let part = parts.update();
                parts.update = Some(Recorded::record(*recorder, parts.pool, part, state)?);
            }
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
        self.failure = Some(format!("the step could not be recorded: {error}"));
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
            return Some(format!("trained operator by operator because {failure}"));
        }
        let shapes = self
            .shapes
            .iter()
            .filter(|of_shape| of_shape.parts.is_some())
            .count();
        let replayed = ReplayedSteps {
            steps: self.replayed_steps,
            shapes,
        };
        Some(match self.recorder {
            Recorder::Graph => replayed.to_string(),
            Recorder::Closure => replayed.closures_text(),
        })
    }

    fn give_back(&mut self, shortage: &TrialError) -> bool {
        let is_any = self.shapes.iter().any(|of_shape| of_shape.parts.is_some());
        if is_any && self.under_way == UnderWay::Nothing {
            self.shapes.clear();
            self.failure = Some(format!(
                "beside {} replayed steps there was too little memory: {shortage}",
                self.replayed_steps
            ));
            return true;
        }
        false
    }

    fn peak_allocated_bytes(&self) -> Option<u64> {
        self.peak_allocated_bytes
    }

    fn peaks_before_recording(&self) -> Option<AllocatorPeaks> {
        self.peaks_before
    }

    fn forget_peaks(&mut self) {
        self.peaks_before = None;
    }
}

#[cfg(test)]
mod tests;
