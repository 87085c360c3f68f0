//! `train.sample`: texts that the trained model writes. What they are made from is told here; how, by `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Texts that a trained language model writes once it is trained and evaluated, into `sample.txt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sample {
    /// What each text begins with; in tokens that the training text has.
    pub prompt: String,
    /// Tokens that are written after it.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub tokens: u64,
    /// What the model's outputs are divided by before one is drawn; 0 always takes the likeliest token.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub temperature: f64,
    /// How many tokens, the likeliest ones, may be drawn; all of them if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub top_k: Option<u64>,
    /// How many texts.
    #[schemars(range(min = 1, max = 1000))]
    pub samples: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self { prompt: "\n".to_owned(), tokens: 200, temperature: 1.0, top_k: None, samples: 1 }
    }
}
