//! `gpt`: decoder-only transformer; its keys, parameter count and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Contradiction;

/// Decoder-only transformer: pre-norm blocks, learned positions, causal attention, GELU MLP of 4 × d_model, final norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpt {
    /// Width of the residual stream.
    #[serde(default = "d_model")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub d_model: u64,
    /// Transformer blocks.
    #[serde(default = "num_layers")]
    #[schemars(range(min = 1, max = 4096))]
    pub num_layers: u64,
    /// Attention heads; they divide `d_model`.
    #[serde(default = "num_heads")]
    #[schemars(range(min = 1, max = 4096))]
    pub num_heads: u64,
    /// Tokens per sample.
    #[serde(default = "seq_len")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub seq_len: u64,
    /// Dropout probability in embedding, attention and both residual branches.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.95))]
    pub dropout: f64,
    /// Rows of the token table; the data's vocabulary if not given. It may exceed the data's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub vocabulary: Option<u64>,
    /// Whether the output projection shares the token table.
    #[serde(default = "yes")]
    pub tie_head: bool,
    /// Whether linear layers and norms have biases (the head never has one).
    #[serde(default = "yes")]
    pub bias: bool,
}

fn d_model() -> u64 {
    256
}
fn num_layers() -> u64 {
    2
}
fn num_heads() -> u64 {
    4
}
fn seq_len() -> u64 {
    128
}
fn yes() -> bool {
    true
}

impl Gpt {
    /// Parameters of one block: norm, q k v, projection, norm, two MLP layers.
    fn block_parameters(&self) -> u64 {
        let d = self.d_model;
        let weights = 3 * d * d + d * d + 4 * d * d + 4 * d * d;
        let norms = 2 * d;
        let biases = if self.bias { (3 * d + d + 4 * d + d) + 2 * d } else { 0 };
        weights + norms + biases
    }

    fn final_norm_parameters(&self) -> u64 {
        self.d_model * if self.bias { 2 } else { 1 }
    }

    pub(super) fn parameters(&self, vocabulary: u64) -> u64 {
        let tables = vocabulary * self.d_model + self.seq_len * self.d_model;
        let head = if self.tie_head { 0 } else { vocabulary * self.d_model };
        tables + self.num_layers * self.block_parameters() + self.final_norm_parameters() + head
    }

    /// Per token `6 N + 12 L H Q T`, times the sample's tokens. N leaves out the position table, and the input embedding
    /// unless the head shares it. Source: `docs/measurement.md` 8; Chowdhery et al. 2022, appendix B (arXiv 2204.02311).
    /// `None` for more than a `u64` holds.
    pub(super) fn flops_per_sample(&self, vocabulary: u64) -> Option<u64> {
        let used = self.num_layers * self.block_parameters() + self.final_norm_parameters() + vocabulary * self.d_model;
        let attention = 12 * u128::from(self.num_layers * self.d_model) * u128::from(self.seq_len);
        u64::try_from((6 * u128::from(used) + attention) * u128::from(self.seq_len)).ok()
    }

    pub(super) fn contradictions(&self) -> Vec<Contradiction> {
        if self.num_heads > 0 && !self.d_model.is_multiple_of(self.num_heads) {
            return vec![("num_heads", format!("`num_heads` {} does not divide `d_model` {}", self.num_heads, self.d_model))];
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt2_124m() -> Gpt {
        Gpt { d_model: 768, num_layers: 12, num_heads: 12, seq_len: 1024, dropout: 0.0, vocabulary: None, tie_head: true, bias: false }
    }

    #[test]
    fn gpt2_124m_has_the_published_parameters_and_flops() {
        let gpt = gpt2_124m();
        assert_eq!(gpt.parameters(50_304) - 1024 * 768, 123_587_328);
        assert_eq!(gpt.flops_per_sample(50_304), Some(854_770_176 * 1024));
    }

    #[test]
    fn the_small_case_that_people_run_has_about_28_million_parameters() {
        let gpt = Gpt { d_model: 256, num_layers: 2, num_heads: 4, seq_len: 128, tie_head: false, bias: true, ..gpt2_124m() };
        let parameters = gpt.parameters(50_257);
        assert!((27_000_000..28_500_000).contains(&parameters), "{parameters}");
    }

    #[test]
    fn the_largest_shape_that_the_keys_allow_has_no_wrong_figure() {
        let largest = Gpt { d_model: 1_048_576, num_layers: 4096, num_heads: 4096, seq_len: 1_048_576, tie_head: false, bias: true, ..gpt2_124m() };
        let model = crate::catalog::Model::Gpt(largest);
        assert_eq!(model.flops_per_sample(Some(crate::catalog::InputShape::Text { vocabulary: 16_777_216 })), None, "about 3e23 is no u64");
        assert_eq!(model.parameters(Some(crate::catalog::InputShape::Text { vocabulary: 16_777_216 })), Some(54_079_535_248_834_560));
    }

    #[test]
    fn heads_must_divide_the_width() {
        let gpt = Gpt { num_heads: 5, ..gpt2_124m() };
        assert_eq!(gpt.contradictions(), vec![("num_heads", "`num_heads` 5 does not divide `d_model` 768".to_owned())]);
    }
}
