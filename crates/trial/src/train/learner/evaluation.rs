//! An evaluation in progress: sums over the validation targets, on the device until it ends.

use burn::{module::Module, tensor::Tensor};

use super::read;
use crate::{
    engine::guard_result,
    error::TrialError,
    model::{RecurrentMemory, check_outputs},
    train::{
        DeviceBatch,
        objective::{BatchTarget, Scores},
        step::StepState,
    },
};

/// Sums over the batches of the current evaluation.
#[derive(Debug, Default)]
pub(super) struct Evaluator {
    sums: Option<Sums>,
    /// State of a recurrent network.
    memory: RecurrentMemory,
}

#[derive(Debug)]
struct Sums {
    /// On the device; see [`BatchTarget::sums`].
    sums: Tensor<1>,
    targets: u64,
    /// Target of the first batch: it defines the meaning of the sums.
    target: BatchTarget,
    outputs: usize,
}

impl Evaluator {
    /// Adds a batch: no gradient, no dropout, no wait. After an error the evaluation is as before.
    pub(super) fn add(&mut self, state: &StepState, batch: DeviceBatch) -> Result<(), TrialError> {
        let arithmetic = state.arithmetic.evaluating();
        let targets = batch.counted_targets;
        let mut memory = self.memory.clone();
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
        self.memory = memory.filter(|_| state.carries_memory);
        self.sums = Some(match self.sums.take() {
            Some(so_far) => Sums {
                sums: so_far.sums + sums,
                targets: so_far.targets + targets,
                ..so_far
            },
            None => Sums {
                sums,
                targets,
                target,
                outputs,
            },
        });
        Ok(())
    }

    /// Mean loss, in nats per target, and the scores. Waits for the device.
    ///
    /// Errors: no target was evaluated.
    pub(super) fn finish(&mut self) -> Result<Scores, TrialError> {
        self.memory = None;
        match self.sums.take() {
            Some(Sums {
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
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use kiln_core::{
        kinds::InputShape,
        plan::ChildDevice,
        spec::{Engine, Precision, Train},
    };

    use super::*;
    use crate::{
        engine::{EngineDevice, Ops},
        model::{Init, Input, Network},
        train::optimizer::Updater,
    };

    const VOCABULARY: i64 = 20;

    fn recurrent() -> StepState {
        let device = EngineDevice::open(Engine::Flex, ChildDevice::Cpu, 1).unwrap();
        let init = Init {
            seed: 1,
            device: device.with_gradients(),
        };
        let shape =
            serde_yaml::from_str("{kind: lstm, d_model: 4, hidden: 8, seq_len: 4}").unwrap();
        let input = InputShape::Text {
            vocabulary: VOCABULARY as u64,
        };
        let network = Network::new(&shape, Some(input), &init).unwrap();
        let updater = Updater::new(&network, Engine::Flex, &Train::default());
        let ops = Ops::new(Engine::Flex, Precision::F32).unwrap();
        let mut state = StepState::new(device, network, updater, ops);
        state.carries_memory = true;
        state
    }

    /// One row of `tokens` [1, 4] and `targets` targets.
    fn batch(state: &StepState, tokens: [i64; 4], targets: usize) -> DeviceBatch {
        let device = state.device.plain();
        let of = |values: &[i64]| TensorData::new(values.to_vec(), [values.len()]);
        let input = Tensor::<1, burn::tensor::Int>::from_data(of(&tokens), device);
        let target = Tensor::from_data(of(&vec![3; targets]), device);
        DeviceBatch {
            input: Input::Text(input.reshape([1, 4])),
            target: BatchTarget::Classes(target),
            counted_targets: targets as u64,
            rows: 1,
        }
    }

    /// As after a lack of memory, which is tried again without recorded steps.
    #[test]
    fn a_batch_that_failed_leaves_the_evaluation_as_it_was() {
        let state = recurrent();
        let loss = |disturbed: bool| {
            let mut evaluator = Evaluator::default();
            evaluator
                .add(&state, batch(&state, [5, 6, 7, 8], 4))
                .unwrap();
            if disturbed {
                let failed = evaluator.add(&state, batch(&state, [9, 1, 2, 3], 3));
                assert!(failed.is_err(), "its targets are too few");
            }
            evaluator
                .add(&state, batch(&state, [9, 1, 2, 3], 4))
                .unwrap();
            evaluator.finish().unwrap().loss
        };
        assert_eq!(loss(true), loss(false));
        let empty = {
            let mut evaluator = Evaluator::default();
            evaluator
                .add(&state, batch(&state, [9, 1, 2, 3], 4))
                .unwrap();
            evaluator.finish().unwrap().loss
        };
        assert_ne!(loss(false), empty, "the state of the first batch counts");
    }
}
