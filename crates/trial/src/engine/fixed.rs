//! Tensors in their own memory at fixed addresses, so that recorded work finds its inputs there.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use burn::{
    backend::LibTorch,
    tensor::{Int, Tensor},
};
use burn_tch::TchTensor;

const ON_LIBTORCH: &str = "recorded work runs on libtorch, and its tensors are there";

/// A tensor whose memory can be read from libtorch's side.
pub(crate) trait Raw: Clone {
    /// The same memory.
    fn raw(&self) -> tch::Tensor;

    /// A tensor over this memory.
    fn over(raw: tch::Tensor) -> Self;

    /// A copy of the values in its own memory.
    fn duplicate(&self) -> Self {
        Self::over(self.raw().copy())
    }
}

impl<const D: usize> Raw for Tensor<D> {
    fn raw(&self) -> tch::Tensor {
        self.clone()
            .try_into_primitive::<LibTorch>()
            .expect(ON_LIBTORCH)
            .tensor
    }

    fn over(raw: tch::Tensor) -> Self {
        Self::from_primitive::<LibTorch>(TchTensor::new(raw))
    }
}

impl<const D: usize> Raw for Tensor<D, Int> {
    fn raw(&self) -> tch::Tensor {
        self.clone()
            .try_into_primitive::<LibTorch>()
            .expect(ON_LIBTORCH)
            .tensor
    }

    fn over(raw: tch::Tensor) -> Self {
        Self::from_primitive::<LibTorch>(TchTensor::new(raw))
    }
}
