//! `matmul`: N × N products at a given precision, no training: a first test of a device and the
//! measured ceiling for MFU.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Content, InputShape, command::COMMAND, model::ModelKind};

const MATMUL: &str = "matmul";

/// Whether models of the kind of this name learn: [`ModelKind::trains`] for a row of a table.
pub fn kind_trains(name: &str) -> bool {
    name != MATMUL && name != COMMAND
}

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

impl ModelKind for Matmul {
    fn kind(&self) -> &'static str {
        MATMUL
    }

    fn trains(&self) -> bool {
        false
    }

    fn reads(&self) -> Content {
        Content::Nothing
    }

    fn parameters(&self, _input: Option<InputShape>) -> Option<u64> {
        Some(0)
    }

    fn flops_per_sample(&self, _input: Option<InputShape>) -> Option<u64> {
        Some(2 * self.size.pow(3)) // One multiply and one add per term.
    }

    fn flops_formula(&self) -> &'static str {
        "2N^3"
    }
}
