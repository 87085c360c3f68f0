//! `mlp`: the smallest model, for tests and tutorials; its keys, parameter count and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KeyFault, text_model::TextModel};

/// Next-token model without recurrence: embeds the last `context` tokens, concatenates them,
/// applies one hidden layer, returns logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Tokens of context for each prediction; positions before the start of the sample are zeros.
    #[serde(default = "context")]
    #[schemars(range(min = 1, max = 4096))]
    pub context: u64,
    /// Width of a token's embedding.
    #[serde(default = "d_model")]
    #[schemars(range(min = 1, max = 65_536))]
    pub d_model: u64,
    /// Width of the hidden layer.
    #[serde(default = "hidden")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub hidden: u64,
    /// Tokens per sample; at least `context`.
    #[serde(default = "seq_len")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub seq_len: u64,
    /// Rows of the token table; default: the data's vocabulary. May be larger than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub vocabulary: Option<u64>,
}

fn context() -> u64 {
    8
}
fn d_model() -> u64 {
    32
}
fn hidden() -> u64 {
    128
}
fn seq_len() -> u64 {
    64
}

impl Mlp {
    /// The weights in matrix products.
    fn layer_weights(&self, vocabulary: u64) -> u64 {
        self.context * self.d_model * self.hidden + self.hidden * vocabulary
    }
}

impl TextModel for Mlp {
    const KIND: &'static str = "mlp";
    const FLOPS_FORMULA: &'static str = "6W";

    fn seq_len(&self) -> u64 {
        self.seq_len
    }

    fn own_vocabulary(&self) -> Option<u64> {
        self.vocabulary
    }

    fn parameters_with(&self, vocabulary: u64) -> u64 {
        let biases = self.hidden + vocabulary;
        vocabulary * self.d_model + self.layer_weights(vocabulary) + biases
    }

    /// Per token 6 W times the sample's tokens. Source: `docs/measurement.md` 8. `None` if the
    /// result exceeds a `u64`.
    fn flops_with(&self, vocabulary: u64) -> Option<u64> {
        self.layer_weights(vocabulary)
            .checked_mul(6)?
            .checked_mul(self.seq_len)
    }

    fn contradiction(&self) -> Option<KeyFault> {
        (self.seq_len < self.context).then(|| {
            let text = format!(
                "`context` {} is longer than `seq_len` {}",
                self.context, self.seq_len
            );
            KeyFault::new("context", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{InputShape, ModelKind};

    fn bengio() -> Mlp {
        Mlp {
            context: 8,
            d_model: 32,
            hidden: 128,
            seq_len: 64,
            vocabulary: None,
        }
    }

    #[test]
    fn parameters_and_flops_are_those_of_the_layers_written_out() {
        let (table, hidden, logits) = (65 * 32, 8 * 32 * 128, 128 * 65);
        let biases = 128 + 65;
        assert_eq!(
            bengio().parameters_with(65),
            table + hidden + logits + biases
        );
        assert_eq!(bengio().parameters_with(65), 43_361);
        assert_eq!(bengio().flops_with(65), Some(6 * (hidden + logits) * 64));
    }

    #[test]
    fn the_largest_shape_that_the_keys_allow_has_no_wrong_figure() {
        let largest = Mlp {
            context: 4096,
            d_model: 65_536,
            hidden: 1_048_576,
            seq_len: 1_048_576,
            vocabulary: None,
        };
        assert_eq!(
            crate::kinds::Model::Mlp(largest).flops_per_sample(Some(InputShape::Text {
                vocabulary: 16_777_216
            })),
            None,
            "about 2e21 is no u64"
        );
    }

    #[test]
    fn the_context_fits_in_the_sample() {
        assert!(bengio().contradictions().is_empty());
        assert_eq!(
            Mlp {
                seq_len: 7,
                ..bengio()
            }
            .contradictions(),
            vec![KeyFault::new(
                "context",
                "`context` 8 is longer than `seq_len` 7"
            )]
        );
    }
}
