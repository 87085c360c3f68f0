//! Saves and restores a learner, and builds a learner from saved files.

use std::{cell::RefCell, path::Path};

use burn::tensor::{Tensor, TensorData};
use kiln_core::{kinds::InputShape, plan::TrialFile, record::checkpoint::MODEL_FILE};

use super::{Learner, Replica};
use crate::{
    engine::{LstmState, guard_result},
    error::TrialError,
    model::Registry,
    train::{
        optimizer::{self, Counters},
        pretrained::{Pretrained, about_model},
        step::StepState,
        tensor_file::{NamedTensors, OutgoingTensor, TensorFile, write},
    },
};

/// A checkpoint's tensors, and the optimizer's counters.
#[derive(Debug)]
pub(crate) struct SavedLearner {
    model: TensorFile,
    training: TensorFile,
    counters: Counters,
}

/// Moments of the optimizer, and what a recurrent network remembers.
pub(in crate::train) const TRAINING_FILE: &str = "training.safetensors";

impl SavedLearner {
    /// Reads what [`Learner::save`] wrote.
    ///
    /// Errors: a file cannot be read, or is none of these.
    pub(crate) fn read(folder: &Path, counters: Counters) -> Result<Self, TrialError> {
        Ok(Self {
            model: TensorFile::read(&folder.join(MODEL_FILE))?,
            training: TensorFile::read(&folder.join(TRAINING_FILE))?,
            counters,
        })
    }
}

/// Source of the initial values of a model's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beginning<'a> {
    /// From `train.seed`.
    Drawn,
    /// The rest begins as with drawn ones.
    Pretrained(&'a Pretrained),
    /// Everything is resumed.
    Saved(&'a SavedLearner),
}

/// The values of a parameter or statistic at a path, of this shape, row after row; `None` where it keeps
/// those that it has.
type ReadValues<'a> = dyn Fn(&str, &[usize]) -> Result<Option<Vec<f32>>, TrialError> + 'a;

impl Learner {
    /// The replicas of the file's `devices_per_trial`, equal to the bit, each on its device.
    ///
    /// Errors: also where what they begin with is of another model.
    pub(in crate::train) fn build_replicas(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
        beginning: Beginning<'_>,
    ) -> Result<Vec<Self>, TrialError> {
        let replicas = (0..file.devices_per_trial).map(|index| Replica {
            index,
            of: file.devices_per_trial,
        });
        replicas
            .map(|replica| Self::build_beginning(file, input, registry, beginning, replica))
            .collect()
    }

    fn build_beginning(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
        beginning: Beginning<'_>,
        replica: Replica,
    ) -> Result<Self, TrialError> {
        let read =
            |values: &ReadValues<'_>| Self::build_read(file, input, registry, values, replica);
        match beginning {
            Beginning::Drawn => Self::build_from(file, input, registry, None, replica),
            Beginning::Pretrained(pretrained) => {
                let learner = read(&|path, shape| pretrained.replacement(path, shape))?;
                pretrained.all_taken().map(|()| learner)
            }
            Beginning::Saved(saved) => {
                let mut learner = read(&|path, shape| {
                    let values = saved.model.values(path, shape.iter().product());
                    values.map(Some)
                })?;
                learner.restore(saved).map(|()| learner)
            }
        }
    }

    /// With the parameters and running statistics of a file of weights, to use and not to train.
    ///
    /// Errors: the file does not fit the model.
    pub(crate) fn build_trained(
        file: &TrialFile,
        input: InputShape,
        registry: &Registry,
        weights: &TensorFile,
    ) -> Result<Self, TrialError> {
        let values = |path: &str, shape: &[usize]| {
            let values = weights.values(path, shape.iter().product());
            values.map(Some)
        };
        Self::build_read(file, Some(input), registry, &values, Replica::ONLY)
    }

    /// With parameters and running statistics that are read.
    fn build_read(
        file: &TrialFile,
        input: Option<InputShape>,
        registry: &Registry,
        values: &ReadValues<'_>,
        replica: Replica,
    ) -> Result<Self, TrialError> {
        let missing = RefCell::new(None);
        let given = |path: &str, shape: &[usize]| {
            values(path, shape).unwrap_or_else(|error| {
                missing.borrow_mut().get_or_insert(error);
                Some(vec![0.0; shape.iter().product()])
            })
        };
        let learner = Self::build_from(file, input, registry, Some(&given), replica)?;
        missing.take().map_or(Ok(()), Err)?;
        learner.restore_statistics(values).map(|()| learner)
    }

    /// Writes parameters, running statistics, moments and memories into a folder, between two
    /// steps; what else the optimizer remembers is returned. The other replicas have the memories
    /// of their micro-batches to themselves. Waits for the device.
    ///
    /// Errors: a file cannot be written.
    pub(in crate::train) fn save_with(
        &self,
        others: &[Self],
        folder: &Path,
    ) -> Result<Counters, TrialError> {
        let state = &self.state;
        guard_result(|| {
            let mut model = optimizer::leaving_parameters(state.network());
            for (name, stats) in state.network().running_stats() {
                model.extend(STATS.into_iter().zip(stats.get()).map(|(which, values)| {
                    (format!("{name}.{which}"), OutgoingTensor::new(values))
                }));
            }
            let (counters, mut training) = state.updater.state()?;
            training.extend(
                std::iter::once(self)
                    .chain(others)
                    .flat_map(Self::leaving_memories),
            );
            write(
                &folder.join(MODEL_FILE),
                model,
                Some(about_model(&self.model, self.token_sum.as_deref())),
            )?;
            write(&folder.join(TRAINING_FILE), training, None)?;
            Ok(counters)
        })
    }

    fn leaving_memories(&self) -> NamedTensors {
        let there = self
            .state
            .memories
            .iter()
            .enumerate()
            .filter_map(|(micro, memory)| Some((micro, memory.as_ref()?)));
        let parts = |(micro, LstmState { hidden, cell }): (usize, &LstmState)| {
            [
                (
                    memory_name(micro, HIDDEN),
                    OutgoingTensor::new(hidden.clone()),
                ),
                (memory_name(micro, CELL), OutgoingTensor::new(cell.clone())),
            ]
        };
        there.flat_map(parts).collect()
    }

    /// Takes over the running statistics of norms.
    fn restore_statistics(&self, values: &ReadValues<'_>) -> Result<(), TrialError> {
        let state = &self.state;
        guard_result(|| {
            for (name, stats) in state.network().running_stats() {
                let [mean, variance] = stats.get();
                let read = |which: &str| values(&format!("{name}.{which}"), &mean.dims());
                let (Some(means), Some(variances)) = (read(STATS[0])?, read(STATS[1])?) else {
                    continue;
                };
                stats.set(
                    [means, variances]
                        .map(|values| Tensor::from_data(values.as_slice(), &variance.device())),
                );
            }
            Ok(())
        })
    }

    /// Takes over what the optimizer and recurrent networks remember; the parameters are there
    /// already.
    fn restore(&mut self, saved: &SavedLearner) -> Result<(), TrialError> {
        let plain = self.device.plain().clone();
        let Self {
            state: StepState {
                updater, memories, ..
            },
            replica,
            ..
        } = self;
        guard_result(|| {
            updater.restore(&saved.counters, &saved.training)?;
            let tensor = |name: &str| -> Result<Tensor<3>, TrialError> {
                let shape = saved.training.shape(name)?.to_vec();
                let values = saved.training.values(name, shape.iter().product())?;
                Ok(Tensor::from_data(TensorData::new(values, shape), &plain))
            };
            let names = saved.training.names();
            for micro in (0..).take_while(|micro| names.contains(&memory_name(*micro, HIDDEN))) {
                if !replica.takes(micro as u64) {
                    memories.push(None);
                    continue;
                }
                let (hidden, cell) = (
                    tensor(&memory_name(micro, HIDDEN))?,
                    tensor(&memory_name(micro, CELL))?,
                );
                memories.push(Some(LstmState { hidden, cell }));
            }
            Ok(())
        })
    }
}

const STATS: [&str; 2] = ["running_mean", "running_variance"];
const HIDDEN: &str = "hidden";
const CELL: &str = "cell";

/// A recurrent network's memory of a micro-batch, in a file.
fn memory_name(micro: usize, part: &str) -> String {
    format!("memory.{micro}.{part}")
}
