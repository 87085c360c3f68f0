//! `train.initial_weights`: trained parameters to start a training from. `kiln-trial` documents how
//! they are read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters from a safetensors file, instead of random ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitialWeights {
    /// The file: `model.safetensors` of a checkpoint, or for `seq2seq` a T5 in Hugging Face's
    /// format. Relative to the directory where kiln was started.
    pub path: String,
    /// SHA-256 of the file, as `sha256sum` prints it. It is part of the trial id, the path is not.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}
