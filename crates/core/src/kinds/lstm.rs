//! `lstm`: recurrent language model; its keys, parameter count and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KeyFault, text_model::TextModel};

/// Recurrent language model: embedding, LSTM layers, output projection. With
/// `data.sampling: contiguous` its state carries over from window to window. Source:
/// pytorch/examples, word_language_model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lstm {
    /// Width of a token's embedding.
    #[serde(default = "width")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub d_model: u64,
    /// Width of the state of each layer.
    #[serde(default = "width")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub hidden: u64,
    /// LSTM layers, one on top of the other.
    #[serde(default = "num_layers")]
    #[schemars(range(min = 1, max = 256))]
    pub num_layers: u64,
    /// Tokens per sample: the length of backpropagation through time.
    #[serde(default = "seq_len")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub seq_len: u64,
    /// Dropout probability after the embedding, between layers and before the output projection.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.95))]
    pub dropout: f64,
    /// Rows of the token table; default: the data's vocabulary. May be larger than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub vocabulary: Option<u64>,
    /// Whether the output projection shares the token table; `hidden` must equal `d_model` then.
    #[serde(default)]
    pub tie_head: bool,
}

fn width() -> u64 {
    200
}
fn num_layers() -> u64 {
    2
}
fn seq_len() -> u64 {
    35
}

impl Lstm {
    /// Weights of the matrix products of all layers: from the layer's input and from its state to
    /// the four gates.
    fn layer_weights(&self) -> u64 {
        let h = self.hidden;
        4 * h * (self.d_model + h) + (self.num_layers - 1) * 4 * h * 2 * h
    }
}

impl TextModel for Lstm {
    const KIND: &'static str = "lstm";
    const FLOPS_FORMULA: &'static str = "6N";

    fn seq_len(&self) -> u64 {
        self.seq_len
    }

    fn own_vocabulary(&self) -> Option<u64> {
        self.vocabulary
    }

    /// Each layer has two biases per gate, as in PyTorch.
    fn parameters_with(&self, vocabulary: u64) -> u64 {
        let biases = self.num_layers * 8 * self.hidden;
        let head = if self.tie_head {
            0
        } else {
            vocabulary * self.hidden
        };
        vocabulary * self.d_model + self.layer_weights() + biases + head + vocabulary
    }

    /// Per token 6 N, where N counts the weights of matrix products: the input embedding counts
    /// only if the head shares it. Source: `docs/measurement.md` 8. `None` if the result exceeds a
    /// `u64`.
    fn flops_with(&self, vocabulary: u64) -> Option<u64> {
        let used =
            u128::from(self.layer_weights()) + u128::from(vocabulary) * u128::from(self.hidden);
        u64::try_from(6 * used * u128::from(self.seq_len)).ok()
    }

    fn contradiction(&self) -> Option<KeyFault> {
        (self.tie_head && self.hidden != self.d_model).then(|| {
            let text = format!(
                "`tie_head` needs `hidden` equal to `d_model`, but they are {} and {}",
                self.hidden, self.d_model
            );
            KeyFault::new("tie_head", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{InputShape, ModelKind};

    fn published(tie_head: bool) -> Lstm {
        Lstm {
            d_model: 200,
            hidden: 200,
            num_layers: 2,
            seq_len: 35,
            dropout: 0.2,
            vocabulary: None,
            tie_head,
        }
    }

    #[test]
    fn the_published_models_have_their_parameters() {
        assert_eq!(published(false).parameters_with(33_278), 13_987_678);
        assert_eq!(published(true).parameters_with(33_278), 7_332_078);
    }

    #[test]
    fn flops_are_six_per_weight_of_a_product_and_token() {
        let layers = 4 * 200 * 400 * 2;
        assert_eq!(
            published(true).flops_with(33_278),
            Some(6 * (layers + 33_278 * 200) * 35)
        );
        assert_eq!(
            published(false).flops_with(33_278),
            published(true).flops_with(33_278)
        );
        let largest = Lstm {
            d_model: 1_048_576,
            hidden: 1_048_576,
            num_layers: 256,
            seq_len: 1_048_576,
            ..published(false)
        };
        assert_eq!(
            crate::kinds::Model::Lstm(largest).flops_per_sample(Some(InputShape::Text {
                vocabulary: 16_777_216
            })),
            None,
            "about 1e22 is no u64"
        );
    }

    #[test]
    fn a_tied_head_needs_equal_widths() {
        let unequal = Lstm {
            hidden: 100,
            ..published(true)
        };
        assert_eq!(
            unequal.contradictions(),
            vec![KeyFault::new(
                "tie_head",
                "`tie_head` needs `hidden` equal to `d_model`, but they are 100 and 200"
            )]
        );
        assert!(published(true).contradictions().is_empty());
    }
}
