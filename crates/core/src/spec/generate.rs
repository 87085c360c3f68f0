//! `train.evaluate.generate`: responses that a sequence-to-sequence model writes at each
//! evaluation. The settings are documented here, the search for a response in `kiln-trial`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Responses to validation prompts, written at each evaluation into `responses.jsonl` and compared
/// with those of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Generate {
    /// Number of validation prompts to answer, from the first; default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub rows: Option<u64>,
    /// Maximum tokens of a response, including the end token.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_tokens: u64,
    /// Number of candidates of the beam search; 1 always takes the most likely token.
    #[schemars(range(min = 1, max = 256))]
    pub beams: u64,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            rows: None,
            max_tokens: 256,
            beams: 1,
        }
    }
}
