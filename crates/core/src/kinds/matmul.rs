//! `matmul`: N × N products at a given precision, no training: a first test of a device and the
//! measured ceiling for MFU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Square matrix products; one product is one sample and one step is `train.batch_size` of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Matmul {
    /// Rows and columns of both factors.
    #[serde(default = "size")]
    #[schemars(range(min = 1, max = 131_072))]
    pub size: u64,
}

fn size() -> u64 {
    1000
}

impl Matmul {
    /// 2 N³: one multiply and one add per term.
    pub(super) fn flops_per_sample(&self) -> u64 {
        2 * self.size.pow(3)
    }
}
