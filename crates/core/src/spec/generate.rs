//! `train.evaluate.generate`: responses that a sequence-to-sequence model writes at each evaluation. What they are held against is told
//! here; how they are found, by `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Responses to validation prompts, written at each evaluation into `responses.jsonl` and held against those of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Generate {
    /// How many validation prompts are answered, the first ones; all of them if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub rows: Option<u64>,
    /// Tokens of a response, at most; the end token counts.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_tokens: u64,
    /// Responses that a beam search keeps at a time; 1 always takes the likeliest token.
    #[schemars(range(min = 1, max = 256))]
    pub beams: u64,
}

impl Default for Generate {
    fn default() -> Self {
        Self { rows: None, max_tokens: 256, beams: 1 }
    }
}
