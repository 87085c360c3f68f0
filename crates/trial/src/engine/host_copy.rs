//! Batches on their way to the device, and values on their way back. Input: numbers on the host.
//! Output: tensors on the device; the kind of host memory they were copied from is kept for the
//! result.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use std::fmt::Debug;

use burn::tensor::{Device, Element, Int, Tensor, TensorData};
use kiln_core::{kinds::data::PinMemory, spec::Engine};
use kiln_data::images::Normalization;

use super::EngineDevice;
use crate::error::TrialError;

/// Hears when copies to the device begin and end, on the device's stream: after what was queued before.
pub(crate) trait CopyMarks {
    fn begin(&mut self);

    fn end(&mut self);
}

/// Copies that nobody times.
impl CopyMarks for () {
    fn begin(&mut self) {}

    fn end(&mut self) {}
}

/// Copies batches to one device.
#[derive(Debug)]
pub(crate) struct HostCopy {
    device: Device,
    engine: Engine,
    /// The CUDA device that batches are copied to.
    to: Option<usize>,
    /// Whether the next batch goes through pinned memory.
    pinned: bool,
    note: Option<String>,
    /// Values of pixels, if needed, for this number of channels: [channels, 256] on the device.
    #[cfg(feature = "libtorch")]
    of_pixels: Option<(Normalization, usize, tch::Tensor)>,
}

impl HostCopy {
    /// `pin_memory` is `data.pin_memory`; without a GPU it has no effect, and a note says so.
    pub(crate) fn new(device: &EngineDevice, pin_memory: PinMemory) -> Self {
        let to = device.cuda();
        let is_in_vain = pin_memory == PinMemory::Asked(true) && to.is_none();
        let note =
            is_in_vain.then(|| "no effect on the CPU, where batches are not copied".to_owned());
        Self {
            device: device.plain().clone(),
            engine: device.engine,
            to,
            pinned: pin_memory.is_wanted() && to.is_some(),
            note,
            #[cfg(feature = "libtorch")]
            of_pixels: None,
        }
    }

    /// The kind of host memory that batches are copied from: `pinned` or `pageable`; `None` where
    /// none is copied to a device.
    pub(crate) fn copied_from(&self) -> Option<&'static str> {
        self.to
            .map(|_| if self.pinned { "pinned" } else { "pageable" })
    }

    /// The reason why `data.pin_memory` has no effect.
    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Copies that are marked.
    pub(crate) fn marked<'a>(&'a mut self, marks: &'a mut dyn CopyMarks) -> MarkedCopy<'a> {
        MarkedCopy { of: self, marks }
    }

    /// Whole numbers, as [`MarkedCopy::whole_numbers`] copies them.
    pub(crate) fn whole_numbers<const D: usize>(
        &mut self,
        values: &[i64],
        shape: [usize; D],
    ) -> Result<Tensor<D, Int>, TrialError> {
        self.marked(&mut ()).whole_numbers(values, shape)
    }
}

/// A copier whose copies are marked.
pub(crate) struct MarkedCopy<'a> {
    of: &'a mut HostCopy,
    marks: &'a mut dyn CopyMarks,
}

impl MarkedCopy<'_> {
    /// Token ids, labels or symbols of this shape on the device. Does not wait for a copy from
    /// pinned memory.
    pub(crate) fn whole_numbers<const D: usize>(
        &mut self,
        values: &[i64],
        shape: [usize; D],
    ) -> Result<Tensor<D, Int>, TrialError> {
        #[cfg(feature = "libtorch")]
        if self.of.engine == Engine::Libtorch {
            use burn::backend::LibTorch;
            let copied = self.copied(values, shape)?;
            return Ok(Tensor::from_primitive::<LibTorch>(
                burn_tch::TchTensor::new(copied),
            ));
        }
        Ok(Tensor::from_data(
            self.on_flex(values, shape),
            &self.of.device,
        ))
    }

    /// Pixels, features or targets of this shape on the device. Does not wait for a copy from
    /// pinned memory.
    pub(crate) fn numbers<const D: usize>(
        &mut self,
        values: &[f32],
        shape: [usize; D],
    ) -> Result<Tensor<D>, TrialError> {
        #[cfg(feature = "libtorch")]
        if self.of.engine == Engine::Libtorch {
            use burn::backend::LibTorch;
            let copied = self.copied(values, shape)?;
            return Ok(Tensor::from_primitive::<LibTorch>(
                burn_tch::TchTensor::new(copied),
            ));
        }
        Ok(Tensor::from_data(
            self.on_flex(values, shape),
            &self.of.device,
        ))
    }

    /// Images of bytes as normalized numbers, both [rows, channels, height, width]: the bytes are
    /// copied, and the device looks the numbers up. Does not wait for a copy from pinned memory.
    pub(crate) fn pixels(
        &mut self,
        bytes: &[u8],
        shape: [usize; 4],
        normalization: Normalization,
    ) -> Result<Tensor<4>, TrialError> {
        let [_, channels, height, width] = shape;
        let tables = || (0..channels).map(|channel| normalization.table(channel));
        #[cfg(feature = "libtorch")]
        if self.of.engine == Engine::Libtorch {
            use burn::backend::LibTorch;
            let bytes = self.copied(bytes, shape)?;
            let table = match &self.of.of_pixels {
                Some((of, count, table)) if (*of, *count) == (normalization, channels) => {
                    table.shallow_clone()
                }
                _ => {
                    let numbers: Vec<f32> = tables().flatten().collect();
                    let table = self.copied(&numbers, [channels, 256])?;
                    self.of.of_pixels = Some((normalization, channels, table.shallow_clone()));
                    table
                }
            };
            let numbers = super::kernels::normalize(&bytes, &table)?;
            return Ok(Tensor::from_primitive::<LibTorch>(
                burn_tch::TchTensor::new(numbers),
            ));
        }
        let tables: Vec<[f32; 256]> = tables().collect();
        let planes = bytes.chunks(height * width).zip(tables.iter().cycle());
        let numbers: Vec<f32> = planes
            .flat_map(|(plane, table)| plane.iter().map(|byte| table[usize::from(*byte)]))
            .collect();
        Ok(Tensor::from_data(
            self.on_flex(&numbers, shape),
            &self.of.device,
        ))
    }

    fn on_flex<T: Element, const D: usize>(
        &mut self,
        values: &[T],
        shape: [usize; D],
    ) -> TensorData {
        debug_assert!(
            self.of.engine == Engine::Flex,
            "libtorch copies through its own allocator"
        );
        self.marks.begin();
        let copied = TensorData::new(values.to_vec(), shape);
        self.marks.end();
        copied
    }

    /// Pinned memory is limited by the system: where there is none to be had, copies go on from
    /// pageable memory. The marks are around the copy to the device alone: the host stages the values
    /// while the device works off what was queued before.
    #[cfg(feature = "libtorch")]
    fn copied<T: super::cuda::BatchNumber, const D: usize>(
        &mut self,
        values: &[T],
        shape: [usize; D],
    ) -> Result<tch::Tensor, TrialError> {
        use super::cuda::{StagingFault, send, stage};
        let shape = shape.map(|side| side as i64);
        // On the CPU the staging is all that there is to copy.
        if self.of.to.is_none() {
            self.marks.begin();
        }
        let staged = match stage(values, self.of.pinned) {
            Err(StagingFault::NotPinned(error)) => {
                self.of.pinned = false;
                self.of.note = Some(format!(
                    "batches are copied from pageable memory because pinned memory failed: {error}"
                ));
                stage(values, false)
            }
            staged => staged,
        };
        let mut copied = staged.map_err(StagingFault::error)?;
        if let Some(device) = self.of.to {
            self.marks.begin();
            copied = send(&copied, device)?;
        }
        self.marks.end();
        Ok(copied.reshape(shape))
    }
}

/// Converts values that were read from the device.
pub(crate) fn on_host<E: Debug>(data: Result<TensorData, E>) -> Result<TensorData, TrialError> {
    data.map_err(|error| {
        TrialError::Failed(format!(
            "values could not be read from the device: {error:?}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::ChildDevice;

    use super::*;

    const TOKENS: [i64; 6] = [1, 2, 3, 4, 5, 6];

    fn engines() -> Vec<Engine> {
        if cfg!(feature = "libtorch") {
            vec![Engine::Libtorch, Engine::Flex]
        } else {
            vec![Engine::Flex]
        }
    }

    fn on_cpu(engine: Engine, pin_memory: PinMemory) -> HostCopy {
        HostCopy::new(
            &EngineDevice::open(engine, ChildDevice::Cpu, 1).unwrap(),
            pin_memory,
        )
    }

    fn tokens(copy: &mut HostCopy) -> Vec<i64> {
        let tokens = copy.whole_numbers(&TOKENS, [2, 3]).unwrap();
        assert_eq!(tokens.dims(), [2, 3]);
        tokens.into_data().iter::<i64>().collect()
    }

    #[test]
    fn numbers_arrive_in_their_shapes_on_each_engine() {
        for engine in engines() {
            let mut copy = on_cpu(engine, PinMemory::default());
            assert_eq!(tokens(&mut copy), TOKENS, "{engine:?}");
            let pixels = copy
                .marked(&mut ())
                .numbers(&[0.5, -1.0, 2.0, 0.25], [1, 2, 2, 1])
                .unwrap();
            assert_eq!(pixels.dims(), [1, 2, 2, 1]);
            assert_eq!(
                pixels.into_data().iter::<f32>().collect::<Vec<_>>(),
                [0.5, -1.0, 2.0, 0.25],
                "{engine:?}"
            );
            assert_eq!(
                copy.marked(&mut ()).numbers(&[], [0, 3]).unwrap().dims(),
                [0, 3]
            );
        }
    }

    /// All 256 byte values in three channels, to the bit; 11 × 13 is not a multiple of a SIMD
    /// width.
    #[test]
    fn images_become_the_numbers_of_their_tables_wherever_they_are_normalized() {
        let normalization = Normalization {
            mean: [0.485, 0.456, 0.406],
            deviation: [0.229, 0.224, 0.225],
        };
        let shape = [2, 3, 11, 13];
        let bytes: Vec<u8> = (0..2 * 3 * 11 * 13)
            .map(|at| (at * 7 % 256) as u8)
            .collect();
        let expected: Vec<u32> = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| normalization.table(at / (11 * 13) % 3)[usize::from(*byte)].to_bits())
            .collect();
        let found = |engine: Engine| -> Vec<u32> {
            let mut copy = on_cpu(engine, PinMemory::default());
            let [first, second] = [0, 1].map(|_| {
                copy.marked(&mut ())
                    .pixels(&bytes, shape, normalization)
                    .unwrap()
            });
            assert_eq!(second.dims(), shape);
            assert_eq!(first.into_data(), second.clone().into_data());
            second.into_data().iter::<f32>().map(f32::to_bits).collect()
        };
        for engine in engines() {
            assert_eq!(found(engine), expected, "{engine:?}");
        }
        #[cfg(feature = "libtorch")]
        {
            crate::engine::libtorch::force_cuda_branches(true);
            let on_cuda = found(Engine::Libtorch);
            crate::engine::libtorch::force_cuda_branches(false);
            assert_eq!(on_cuda, expected, "as CUDA does it");
        }
    }

    #[test]
    fn each_copy_is_marked_at_both_ends() {
        #[derive(Default)]
        struct Heard(String);
        impl CopyMarks for Heard {
            fn begin(&mut self) {
                self.0.push('(');
            }
            fn end(&mut self) {
                self.0.push(')');
            }
        }
        for engine in engines() {
            let (mut copy, mut heard) = (on_cpu(engine, PinMemory::default()), Heard::default());
            let mut marked = copy.marked(&mut heard);
            marked.whole_numbers(&TOKENS, [2, 3]).unwrap();
            marked.numbers(&[0.5], [1]).unwrap();
            assert_eq!(heard.0, "()()", "{engine:?}");
        }
    }

    #[test]
    fn the_host_may_write_over_what_it_gave() {
        for engine in engines() {
            let mut values = vec![1.0_f32; 100];
            let copied = on_cpu(engine, PinMemory::default())
                .marked(&mut ())
                .numbers(&values, [100])
                .unwrap();
            values.fill(2.0);
            assert!(
                copied.into_data().iter::<f32>().all(|value| value == 1.0),
                "{engine:?}"
            );
        }
    }

    #[test]
    fn on_the_cpu_pin_memory_changes_nothing_and_a_note_says_so() {
        for engine in engines() {
            let [mut with, mut without, mut auto] = [
                PinMemory::Asked(true),
                PinMemory::Asked(false),
                PinMemory::default(),
            ]
            .map(|asked| on_cpu(engine, asked));
            assert_eq!(
                [tokens(&mut with), tokens(&mut auto)],
                [tokens(&mut without), tokens(&mut without)]
            );
            assert_eq!((with.copied_from(), without.copied_from()), (None, None));
            assert_eq!(
                (with.note().is_some(), without.note(), auto.note()),
                (true, None, None)
            );
        }
    }

    #[test]
    #[cfg(feature = "libtorch")]
    fn where_pinned_memory_fails_copies_go_on_from_pageable_memory_with_a_note() {
        if tch::Cuda::is_available() {
            return; // Pinned memory works there; `scripts/check-gpu.sh` looks at it.
        }
        let mut copy = HostCopy {
            pinned: true,
            ..on_cpu(Engine::Libtorch, PinMemory::default())
        };
        assert_eq!(tokens(&mut copy), TOKENS);
        assert!(
            !copy.pinned && copy.note().unwrap().contains("pinned memory failed"),
            "{:?}",
            copy.note()
        );
    }
}
