//! Requirements of a precision: the number format of products, and a device that has it. Input: a
//! precision and the open device. A missing capability is an error that names it; libtorch's switch
//! for TF32 is set.

use kiln_core::spec::Precision;

use super::EngineDevice;
use crate::error::TrialError;

/// First compute capability with TF32: NVIDIA A100 white paper (2020), "TF32 Tensor Cores".
const OLDEST_WITH_TF32: (u32, u32) = (8, 0);

/// The number format of matrix products. The numbers are those of the shim's `product_kind`.
#[cfg(feature = "libtorch")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductFormat {
    /// That of the weights: everything is in one format.
    OfWeights = 0,
    /// Everything that holds a parameter, and the loss, stays f32.
    Bf16 = 1,
    /// Likewise.
    F16 = 2,
}

#[cfg(feature = "libtorch")]
impl ProductFormat {
    pub(super) fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::Tf32 | Precision::Bf16 => Self::OfWeights,
            Precision::AmpBf16 => Self::Bf16,
            Precision::AmpF16 => Self::F16,
        }
    }

    /// `None` is that of the weights.
    pub(super) fn kind(self) -> Option<tch::Kind> {
        match self {
            Self::OfWeights => None,
            Self::Bf16 => Some(tch::Kind::BFloat16),
            Self::F16 => Some(tch::Kind::Half),
        }
    }
}

impl EngineDevice {
    /// Makes this device compute in `precision` from now on.
    ///
    /// Errors: `tf32` on the CPU, or on a GPU whose compute capability is below 8.0.
    pub fn set_precision(&self, precision: Precision) -> Result<(), TrialError> {
        if precision == Precision::Tf32 {
            self.refuse_tf32()?;
        }
        #[cfg(feature = "libtorch")]
        if self.engine == kiln_core::spec::Engine::Libtorch {
            super::libtorch::allow_tf32(precision == Precision::Tf32, precision != Precision::F32)?;
        }
        Ok(())
    }

    fn refuse_tf32(&self) -> Result<(), TrialError> {
        if !self.is_cuda() {
            let text = "`train.precision` tf32 needs a GPU, and this trial runs on the CPU; set \
                        `train.precision` to f32, or `run.devices` to a GPU";
            return Err(TrialError::Bad(text.to_owned()));
        }
        #[cfg(feature = "libtorch")]
        if let Some(capability) = super::probe::compute_capability()
            && !has_tf32(&capability)
        {
            return Err(TrialError::Bad(too_old(&capability)));
        }
        Ok(())
    }
}

#[cfg_attr(
    not(feature = "libtorch"),
    allow(dead_code, reason = "there is no CUDA without libtorch")
)]
fn too_old(capability: &str) -> String {
    format!(
        "`train.precision` tf32 needs a GPU of compute capability 8.0 or newer, and this one has \
         {capability}; set `train.precision` to f32 or amp-f16"
    )
}

/// A capability that cannot be read does not exclude the device.
#[cfg_attr(
    not(feature = "libtorch"),
    allow(dead_code, reason = "there is no CUDA without libtorch")
)]
fn has_tf32(capability: &str) -> bool {
    let parts = capability
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.is_none_or(|parts: (u32, u32)| parts >= OLDEST_WITH_TF32)
}

#[cfg(test)]
mod tests {
    use kiln_core::{plan::ChildDevice, spec::Engine};

    use super::*;

    #[test]
    fn tf32_is_refused_on_the_cpu_by_name_and_nothing_else_is() {
        let engine = if cfg!(feature = "libtorch") {
            Engine::Libtorch
        } else {
            Engine::Flex
        };
        let device = EngineDevice::open(engine, ChildDevice::Cpu, 1).unwrap();
        let text = device
            .set_precision(Precision::Tf32)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "`train.precision` tf32 needs a GPU, and this trial runs on the CPU; set \
             `train.precision` to f32, or `run.devices` to a GPU"
        );
        for precision in [
            Precision::F32,
            Precision::Bf16,
            Precision::AmpBf16,
            Precision::AmpF16,
        ] {
            device.set_precision(precision).unwrap();
        }
    }

    #[test]
    fn chips_before_ampere_have_no_tf32_and_the_refusal_says_what_this_one_is() {
        assert_eq!(["7.0", "7.5"].map(has_tf32), [false, false]);
        assert_eq!(
            ["8.0", "8.9", "9.0", "10.0", "12.1", "unknown"].map(has_tf32),
            [true; 6]
        );
        assert_eq!(
            too_old("7.5"),
            "`train.precision` tf32 needs a GPU of compute capability 8.0 or newer, and this one \
             has 7.5; set `train.precision` to f32 or amp-f16"
        );
    }
}
