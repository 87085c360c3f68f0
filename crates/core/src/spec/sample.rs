//! `train.sample`: texts that the trained model writes. The settings are documented here, the
//! sampling in `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Texts that a trained language model writes once it is trained and evaluated, into `sample.txt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sample {
    /// Start of each text; its tokens must occur in the training text.
    pub prompt: String,
    /// Tokens written after the prompt.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub tokens: u64,
    /// Divisor of the model's outputs before sampling; 0 always takes the most likely token.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: f64,
    /// Number of most likely tokens to sample from; default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub top_k: Option<u64>,
    /// Number of texts.
    #[schemars(range(min = 1, max = 1000))]
    pub samples: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            prompt: "\n".to_owned(),
            tokens: 200,
            temperature: 1.0,
            top_k: None,
            samples: 1,
        }
    }
}
