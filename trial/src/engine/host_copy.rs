//! Batches of tokens on their way to the device. In come numbers on the host, out go tensors on the device; from what kind of
//! host memory they were copied is remembered for the result.

#![allow(deprecated, reason = "burn-tch ends with burn 0.22, which this package pins")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln::spec::Engine;

use super::EngineDevice;
use crate::error::TrialError;

/// A batch as its loader made it: both [rows, seq_len], row after row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    pub(crate) inputs: &'a [i64],
    pub(crate) targets: &'a [i64],
    pub(crate) rows: usize,
    pub(crate) seq_len: usize,
}

/// Copies batches to one device.
#[derive(Debug)]
pub(crate) struct HostCopy {
    device: Device,
    engine: Engine,
    to_cuda: bool,
    /// Whether the next batch goes through pinned memory.
    pinned: bool,
    note: Option<String>,
}

impl HostCopy {
    /// `pin_memory` is `data.pin_memory`; without a GPU there is nothing to copy to, and a note says so.
    pub(crate) fn new(device: &EngineDevice, pin_memory: bool) -> Self {
        let to_cuda = device.is_cuda();
        let note = (pin_memory && !to_cuda).then(|| "no effect on the CPU, which reads batches where they are".to_owned());
        Self { device: device.plain().clone(), engine: device.engine, to_cuda, pinned: pin_memory && to_cuda, note }
    }

    /// The kind of host memory that batches are copied from: `pinned` or `pageable`; `None` where none is copied to a device.
    pub(crate) fn copied_from(&self) -> Option<&'static str> {
        self.to_cuda.then_some(if self.pinned { "pinned" } else { "pageable" })
    }

    /// Why `data.pin_memory` did not do what it says.
    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Inputs [rows, seq_len] and targets [rows × seq_len] on the device. Does not wait for a copy from pinned memory.
    pub(crate) fn copy(&mut self, tokens: Tokens<'_>) -> Result<(Tensor<2, Int>, Tensor<1, Int>), TrialError> {
        #[cfg(feature = "libtorch")]
        if self.engine == Engine::Libtorch {
            return Ok(split(self.copied(tokens)?, tokens));
        }
        debug_assert!(self.engine == Engine::Flex, "libtorch copies through its own allocator");
        let Tokens { inputs, targets, rows, seq_len } = tokens;
        let inputs = Tensor::from_data(TensorData::new(inputs.to_vec(), [rows, seq_len]), &self.device);
        Ok((inputs, Tensor::from_data(TensorData::new(targets.to_vec(), [rows * seq_len]), &self.device)))
    }

    /// Pinned memory is limited by the system: where there is none to be had, copies go on from pageable memory.
    #[cfg(feature = "libtorch")]
    fn copied(&mut self, tokens: Tokens<'_>) -> Result<tch::Tensor, TrialError> {
        use super::cuda::{Route, copy_batch};
        let copy = |pinned| copy_batch(tokens.inputs, tokens.targets, Route { to_cuda: self.to_cuda, pinned });
        if self.pinned {
            match copy(true) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    self.pinned = false;
                    self.note = Some(format!("batches are copied from pageable memory, pinned memory failed: {error}"));
                }
            }
        }
        copy_batch(tokens.inputs, tokens.targets, Route { to_cuda: self.to_cuda, pinned: false })
    }
}

/// Takes the two rows of [2, rows × seq_len] apart, on the device.
#[cfg(feature = "libtorch")]
fn split(both: tch::Tensor, tokens: Tokens<'_>) -> (Tensor<2, Int>, Tensor<1, Int>) {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    let whole = TchTensor::new(both);
    // The halves share memory; burn must know, or it writes over one as if nobody held the other.
    let half = |at: i64| TchTensor::partial(whole.tensor.get(at), whole.storage.clone());
    let inputs = Tensor::<1, Int>::from_primitive::<LibTorch>(half(0));
    (inputs.reshape([tokens.rows, tokens.seq_len]), Tensor::from_primitive::<LibTorch>(half(1)))
}

#[cfg(test)]
mod tests {
    use kiln::plan::ChildDevice;

    use super::*;

    const TOKENS: Tokens<'_> = Tokens { inputs: &[1, 2, 3, 4, 5, 6], targets: &[2, 3, 4, 5, 6, 7], rows: 2, seq_len: 3 };

    fn engines() -> Vec<Engine> {
        if cfg!(feature = "libtorch") { vec![Engine::Libtorch, Engine::Flex] } else { vec![Engine::Flex] }
    }

    fn on_cpu(engine: Engine, pin_memory: bool) -> HostCopy {
        HostCopy::new(&EngineDevice::open(engine, ChildDevice::Cpu, 1).unwrap(), pin_memory)
    }

    fn numbers(copy: &mut HostCopy) -> (Vec<i64>, Vec<i64>) {
        let (inputs, targets) = copy.copy(TOKENS).unwrap();
        assert_eq!((inputs.dims(), targets.dims()), ([2, 3], [6]));
        (inputs.into_data().iter::<i64>().collect(), targets.into_data().iter::<i64>().collect())
    }

    #[test]
    fn inputs_and_targets_arrive_in_their_shapes_on_each_engine() {
        for engine in engines() {
            let (inputs, targets) = numbers(&mut on_cpu(engine, false));
            assert_eq!((inputs.as_slice(), targets.as_slice()), (TOKENS.inputs, TOKENS.targets), "{engine:?}");
        }
    }

    #[test]
    fn writing_over_one_half_leaves_the_other() {
        for engine in engines() {
            let (inputs, targets) = on_cpu(engine, false).copy(TOKENS).unwrap();
            let changed = inputs.mul_scalar(0).add_scalar(9);
            assert_eq!(targets.into_data().iter::<i64>().collect::<Vec<_>>(), TOKENS.targets, "{engine:?}");
            assert!(changed.into_data().iter::<i64>().all(|value| value == 9));
        }
    }

    #[test]
    fn on_the_cpu_pin_memory_changes_nothing_and_a_note_says_so() {
        for engine in engines() {
            let (mut with, mut without) = (on_cpu(engine, true), on_cpu(engine, false));
            assert_eq!(numbers(&mut with), numbers(&mut without));
            assert_eq!((with.copied_from(), without.copied_from()), (None, None));
            assert_eq!((with.note().is_some(), without.note()), (true, None));
        }
    }

    #[test]
    #[cfg(feature = "libtorch")]
    fn where_pinned_memory_fails_copies_go_on_from_pageable_memory_with_a_note() {
        if tch::Cuda::is_available() {
            return; // Pinned memory works there; `scripts/check-gpu.sh` looks at it.
        }
        let mut copy = HostCopy { pinned: true, ..on_cpu(Engine::Libtorch, false) };
        assert_eq!(numbers(&mut copy).0, TOKENS.inputs);
        assert!(!copy.pinned && copy.note().unwrap().contains("pinned memory failed"), "{:?}", copy.note());
    }
}
