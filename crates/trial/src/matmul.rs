//! Matrix products, N × N: what `model.kind: matmul` makes instead of training, and `kiln calibrate`
//! to find a device's peak.

use burn::tensor::{FloatDType, Tensor};
use kiln_core::{kinds, spec::Precision};

use crate::{engine::Ops, model::Init};

/// Two factors on the device, in the number format of the product; those of `tf32` are f32, and the
/// device rounds them.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    ops: Ops,
    left: Tensor<2>,  // [size, size]
    right: Tensor<2>, // [size, size]
}

impl Factors {
    /// Factors of normal values, scaled so that the product's values are about 1 in size. Random:
    /// from the seed.
    pub(crate) fn new(shape: &kinds::Matmul, precision: Precision, ops: Ops, init: &Init) -> Self {
        let size = shape.size as usize;
        let deviation = 1.0 / (size as f64).powf(0.25);
        let factor = |name: &str| {
            let values = init
                .normal(name, [size, size], deviation)
                .val()
                .detach()
                .inner();
            match precision {
                Precision::F32 | Precision::Tf32 => values,
                Precision::Bf16 | Precision::AmpBf16 => values.cast(FloatDType::BF16),
                Precision::AmpF16 => values.cast(FloatDType::F16),
            }
        };
        Self {
            ops,
            left: factor("left"),
            right: factor("right"),
        }
    }

    /// One product, [size, size].
    pub(crate) fn product(&self) -> Tensor<2> {
        self.ops.product(self.left.clone(), self.right.clone())
    }
}
