//! Devices and tensors for tests of single operations.
#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use burn::tensor::{FloatDType, Tensor};
use kiln_core::{
    plan::ChildDevice,
    spec::{Engine, Precision},
};
use kiln_trial::engine::EngineDevice;

use super::is_cuda;

/// The device of an engine, on which it computes with one thread.
pub(crate) fn opened(engine: Engine) -> EngineDevice {
    let kind = if engine == Engine::Libtorch && is_cuda() {
        ChildDevice::Cuda
    } else {
        ChildDevice::Cpu
    };
    EngineDevice::open(engine, kind, 1).unwrap()
}

/// The tensor in the format in which products of this precision leave it.
pub(crate) fn of_products<const D: usize>(precision: Precision, x: Tensor<D>) -> Tensor<D> {
    match precision {
        Precision::AmpBf16 => x.cast(FloatDType::BF16),
        Precision::AmpF16 => x.cast(FloatDType::F16),
        _ => x,
    }
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor
        .cast(FloatDType::F32)
        .into_data()
        .try_to_vec()
        .unwrap()
}

/// Ways meant for CUDA on this thread, as long as it lives.
#[cfg(feature = "libtorch")]
pub(crate) struct Forced;

#[cfg(feature = "libtorch")]
impl Forced {
    pub(crate) fn begin() -> Self {
        kiln_trial::engine::libtorch::force_cuda_branches(true);
        Self
    }
}

#[cfg(feature = "libtorch")]
impl Drop for Forced {
    fn drop(&mut self) {
        kiln_trial::engine::libtorch::force_cuda_branches(false);
    }
}
