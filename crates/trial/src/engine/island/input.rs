//! The float inputs of islands: burn tensors on libtorch, in a graph or not.

use burn::{
    backend::{Autodiff, LibTorch, tensor::FloatTensor},
    tensor::Tensor,
};
use burn_tch::TchTensor;

/// A tensor of burn's graph.
pub(super) type Tracked = FloatTensor<Autodiff<LibTorch>>;

pub(super) const ON_LIBTORCH: &str = "an operation of the engine libtorch gets tensors of libtorch";

/// A float input of any number of axes.
pub(in crate::engine) enum FloatInput {
    Plain(TchTensor),
    Tracked(Tracked),
}

impl FloatInput {
    pub(super) fn is_autodiff(&self) -> bool {
        matches!(self, Self::Tracked(_))
    }

    pub(super) fn plain(&self) -> &TchTensor {
        match self {
            Self::Plain(tensor) => tensor,
            Self::Tracked(tensor) => tensor.primitive(),
        }
    }

    pub(super) fn into_plain(self) -> TchTensor {
        match self {
            Self::Plain(tensor) => tensor,
            Self::Tracked(tensor) => tensor.into_primitive(),
        }
    }

    pub(super) fn into_tracked(self) -> Tracked {
        match self {
            Self::Plain(tensor) => Tensor::<1>::from_primitive::<LibTorch>(tensor)
                .autodiff()
                .try_into_primitive::<Autodiff<LibTorch>>()
                .expect(ON_LIBTORCH),
            Self::Tracked(tensor) => tensor,
        }
    }
}

impl<const D: usize> From<Tensor<D>> for FloatInput {
    fn from(tensor: Tensor<D>) -> Self {
        if tensor.is_autodiff() {
            Self::Tracked(
                tensor
                    .try_into_primitive::<Autodiff<LibTorch>>()
                    .expect(ON_LIBTORCH),
            )
        } else {
            Self::Plain(tensor.try_into_primitive::<LibTorch>().expect(ON_LIBTORCH))
        }
    }
}
