//! The format in which a model's parameters are stored: bf16 under `bf16`, as PyTorch's
//! `model.bfloat16()`; f32 in every other precision.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{FloatDType, Tensor},
};
use kiln_core::spec::Precision;

use super::Network;

/// The same network with its parameters in the format of `precision`; they come in f32.
pub fn stored(network: Network, precision: Precision) -> Network {
    if precision == Precision::Bf16 {
        network.map(&mut InBf16)
    } else {
        network
    }
}

struct InBf16;

impl ModuleMapper for InBf16 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            tensor
                .detach()
                .inner()
                .cast(FloatDType::BF16)
                .autodiff()
                .require_grad()
        })
    }
}
