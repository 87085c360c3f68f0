//! The layers that several models share, with PyTorch's weight layout and initial values given by
//! the model.

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use super::Init;
use crate::engine::Ops;

/// y = x wᵀ + b.
#[derive(Module, Debug)]
pub struct Linear {
    pub weight: Param<Tensor<2>>,       // [out, in]
    pub bias: Option<Param<Tensor<1>>>, // [out]
}

impl Linear {
    /// Normal weights of this deviation; biases 0.
    pub fn normal(
        init: &Init,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
        deviation: f64,
    ) -> Self {
        Self {
            weight: init.normal(name, [outputs, inputs], deviation),
            bias: bias.then(|| init.zeros([outputs])),
        }
    }

    /// PyTorch's default: weights and biases uniform within 1 / √inputs.
    pub fn uniform(init: &Init, name: &str, [inputs, outputs]: [usize; 2]) -> Self {
        let bound = 1.0 / (inputs as f64).sqrt();
        let bias = init.uniform(&format!("{name}.bias"), [outputs], bound);
        Self {
            weight: init.uniform(name, [outputs, inputs], bound),
            bias: Some(bias),
        }
    }

    /// x [.., in]; out [.., out].
    pub fn forward<const D: usize>(&self, x: Tensor<D>, ops: Ops) -> Tensor<D> {
        ops.linear(x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

/// Layer norm over the last axis.
#[derive(Module, Debug)]
pub struct LayerNorm {
    pub weight: Param<Tensor<1>>,       // [width]
    pub bias: Option<Param<Tensor<1>>>, // [width]
}

impl LayerNorm {
    /// Weights of one; a bias of zeros, if there is one.
    pub fn new(init: &Init, width: usize, bias: bool) -> Self {
        Self {
            weight: init.ones([width]),
            bias: bias.then(|| init.zeros([width])),
        }
    }

    /// x [.., width]; out [.., width].
    pub fn forward<const D: usize>(&self, x: Tensor<D>, ops: Ops) -> Tensor<D> {
        ops.layer_norm(x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }

    /// The same for products alone to read.
    pub(crate) fn forward_for_products<const D: usize>(&self, x: Tensor<D>, ops: Ops) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        ops.layer_norm_for_products(x, self.weight.val(), bias)
    }

    /// stream + branch, both [batch, time, width], and its norm for products alone to read.
    pub(crate) fn forward_sum(
        &self,
        stream: Tensor<3>,
        branch: Tensor<3>,
        ops: Ops,
    ) -> (Tensor<3>, Tensor<3>) {
        let bias = self.bias.as_ref().map(Param::val);
        ops.residual_norm(stream, branch, self.weight.val(), bias)
    }
}
