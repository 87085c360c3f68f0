//! `train.initial_weights`: trained parameters that a training begins with. How they are read is told by `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters from a safetensors file, in the place of those drawn from the seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitialWeights {
    /// The file: `model.safetensors` of a checkpoint, or for `seq2seq` a T5 as Hugging Face keeps it. Relative to where kiln is started.
    pub path: String,
    /// What `sha256sum` says of the file. It tells trials apart, the path does not.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}
