//! `gpt`: decoder-only transformer; its keys, its published shapes by name, parameter count and
//! FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KeyFault, text_model::TextModel};

/// Decoder-only transformer with its shape resolved; the `model` section is an [`AskedGpt`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "AskedGpt")]
pub struct Gpt {
    /// Width of the residual stream.
    pub d_model: u64,
    /// Transformer blocks.
    pub num_layers: u64,
    /// Attention heads; they divide `d_model`.
    pub num_heads: u64,
    /// Tokens per sample.
    pub seq_len: u64,
    /// Dropout probability in embedding, attention and both residual branches.
    pub dropout: f64,
    /// Rows of the token table; default: the data's vocabulary. May be larger than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u64>,
    /// Whether the output projection shares the token table.
    pub tie_head: bool,
    /// Whether linear layers and norms have biases (the head never has one).
    pub bias: bool,
}

/// Decoder-only transformer: pre-norm blocks, learned positions, causal attention, GELU MLP of 4 ×
/// d_model, final norm.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskedGpt {
    /// A published shape by name, which sets `d_model`, `num_layers`, `num_heads`, `seq_len` and
    /// `vocabulary`; keys that are also written take precedence.
    #[serde(default)]
    size: Option<GptSize>,
    /// Width of the residual stream; default 256, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576))]
    d_model: Option<u64>,
    /// Transformer blocks; default 2, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    num_layers: Option<u64>,
    /// Attention heads, which divide `d_model`; default 4, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    num_heads: Option<u64>,
    /// Tokens per sample; default 128, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576))]
    seq_len: Option<u64>,
    /// Dropout probability in embedding, attention and both residual branches.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.95))]
    dropout: f64,
    /// Rows of the token table; from `size`, else the data's vocabulary. May be larger than that.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216))]
    vocabulary: Option<u64>,
    /// Whether the output projection shares the token table.
    #[serde(default = "yes")]
    tie_head: bool,
    /// Whether linear layers and norms have biases (the head never has one).
    #[serde(default = "yes")]
    bias: bool,
}

/// A published shape of GPT-2. Source: Radford et al. 2019, table 2; heads and vocabulary from the
/// released models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum GptSize {
    /// 124 million parameters: width 768, 12 blocks, 12 heads.
    Gpt2,
    /// 355 million: 1024, 24, 16.
    Gpt2Medium,
    /// 774 million: 1280, 36, 20.
    Gpt2Large,
    /// 1,558 million: 1600, 48, 25.
    Gpt2Xl,
}

/// The values that a size sets, or the defaults without a size.
struct GptShape {
    d_model: u64,
    num_layers: u64,
    num_heads: u64,
    seq_len: u64,
    vocabulary: Option<u64>,
}

impl GptShape {
    /// Without a size these are the format-1 defaults.
    fn of(size: Option<GptSize>) -> Self {
        let gpt2 = |d_model, num_layers, num_heads| Self {
            d_model,
            num_layers,
            num_heads,
            seq_len: 1024,
            vocabulary: Some(50_257),
        };
        match size {
            None => Self {
                d_model: 256,
                num_layers: 2,
                num_heads: 4,
                seq_len: 128,
                vocabulary: None,
            },
            Some(GptSize::Gpt2) => gpt2(768, 12, 12),
            Some(GptSize::Gpt2Medium) => gpt2(1024, 24, 16),
            Some(GptSize::Gpt2Large) => gpt2(1280, 36, 20),
            Some(GptSize::Gpt2Xl) => gpt2(1600, 48, 25),
        }
    }
}

impl From<AskedGpt> for Gpt {
    fn from(asked: AskedGpt) -> Self {
        let shape = GptShape::of(asked.size);
        Self {
            d_model: asked.d_model.unwrap_or(shape.d_model),
            num_layers: asked.num_layers.unwrap_or(shape.num_layers),
            num_heads: asked.num_heads.unwrap_or(shape.num_heads),
            seq_len: asked.seq_len.unwrap_or(shape.seq_len),
            dropout: asked.dropout,
            vocabulary: asked.vocabulary.or(shape.vocabulary),
            tie_head: asked.tie_head,
            bias: asked.bias,
        }
    }
}

fn yes() -> bool {
    true
}

impl Gpt {
    /// Weights of one block that take part in matrix products: q k v, projection, two MLP layers.
    fn block_weights(&self) -> u64 {
        let d = self.d_model;
        3 * d * d + d * d + 4 * d * d + 4 * d * d
    }

    /// Parameters of one block: its weights, two norms, biases.
    fn block_parameters(&self) -> u64 {
        let d = self.d_model;
        let norms = 2 * d;
        let biases = if self.bias {
            (3 * d + d + 4 * d + d) + 2 * d
        } else {
            0
        };
        self.block_weights() + norms + biases
    }

    fn final_norm_parameters(&self) -> u64 {
        self.d_model * if self.bias { 2 } else { 1 }
    }
}

impl TextModel for Gpt {
    const KIND: &'static str = "gpt";
    const FLOPS_FORMULA: &'static str = "6W+12LHQT";
    const KEYS_OF_SIZES: &'static [&'static str] = &[
        "d_model",
        "num_layers",
        "num_heads",
        "seq_len",
        "vocabulary",
    ];

    fn seq_len(&self) -> u64 {
        self.seq_len
    }

    fn own_vocabulary(&self) -> Option<u64> {
        self.vocabulary
    }

    fn parameters_with(&self, vocabulary: u64) -> u64 {
        let tables = vocabulary * self.d_model + self.seq_len * self.d_model;
        let head = if self.tie_head {
            0
        } else {
            vocabulary * self.d_model
        };
        tables + self.num_layers * self.block_parameters() + self.final_norm_parameters() + head
    }

    /// Per token `6 W + 12 L H Q T`, times the sample's tokens. W counts the weights in matrix
    /// products, including those of the head, tied or not; norms, biases and the look-up of
    /// embeddings and positions do not count. Source: `docs/measurement.md` 8; Chowdhery et al.
    /// 2022, appendix B (arXiv 2204.02311). `None` if the result exceeds a `u64`.
    fn flops_with(&self, vocabulary: u64) -> Option<u64> {
        let used = self.num_layers * self.block_weights() + vocabulary * self.d_model;
        let attention = 12 * u128::from(self.num_layers * self.d_model) * u128::from(self.seq_len);
        u64::try_from((6 * u128::from(used) + attention) * u128::from(self.seq_len)).ok()
    }

    fn contradiction(&self) -> Option<KeyFault> {
        let is_divided = self.num_heads == 0 || self.d_model.is_multiple_of(self.num_heads);
        (!is_divided).then(|| {
            let text = format!(
                "`num_heads` {} does not divide `d_model` {}",
                self.num_heads, self.d_model
            );
            KeyFault::new("num_heads", text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{InputShape, ModelKind};

    fn gpt2_124m() -> Gpt {
        Gpt {
            d_model: 768,
            num_layers: 12,
            num_heads: 12,
            seq_len: 1024,
            dropout: 0.0,
            vocabulary: None,
            tie_head: true,
            bias: false,
        }
    }

    #[test]
    fn gpt2_124m_has_the_published_parameters_and_flops() {
        let gpt = gpt2_124m();
        assert_eq!(gpt.parameters_with(50_304) - 1024 * 768, 123_587_328);
        // 12 blocks of 12 × 768² weights and a head of 50,304 × 768, six FLOPs each; 12 × 12 × 768
        // × 1024 for attention.
        assert_eq!(gpt.flops_with(50_304), Some(854_654_976 * 1024));
        assert_eq!(
            Gpt {
                bias: true,
                tie_head: false,
                ..gpt
            }
            .flops_with(50_304),
            Some(854_654_976 * 1024),
            "biases are no products"
        );
    }

    fn read(text: &str) -> Gpt {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn each_size_has_its_published_parameters() {
        for (size, parameters) in [
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
        ] {
            let gpt = read(&format!("{{size: {size}}}"));
            assert_eq!(
                gpt.parameters_with(gpt.vocabulary.unwrap()),
                parameters,
                "{size}"
            );
            assert_eq!(
                (
                    gpt.seq_len,
                    gpt.d_model / gpt.num_heads,
                    gpt.contradictions()
                ),
                (1024, 64, vec![]),
                "{size}"
            );
        }
    }

    #[test]
    fn a_size_is_the_same_as_its_numbers_and_what_is_written_beside_it_wins() {
        let small = read(
            "{d_model: 768, num_layers: 12, num_heads: 12, seq_len: 1024, vocabulary: 50304, bias: \
             false}",
        );
        assert_eq!(read("{vocabulary: 50304, size: gpt2, bias: false}"), small);
        assert_eq!(
            read(
                "{size: gpt2-xl, d_model: 768, num_layers: 12, num_heads: 12, vocabulary: 50304, \
                 bias: false}"
            ),
            small
        );
        assert_eq!(
            serde_json::to_value(&small).unwrap().get("size"),
            None,
            "the numbers say it all"
        );
        assert_eq!(
            read("{}"),
            read("{size: null, d_model: 256, num_layers: 2, num_heads: 4, seq_len: 128}")
        );
        assert!(serde_yaml::from_str::<Gpt>("{size: gpt3}").is_err());
        assert!(serde_yaml::from_str::<Gpt>("{depth: 3}").is_err());
    }

    #[test]
    fn the_small_case_that_people_run_has_about_28_million_parameters() {
        let gpt = Gpt {
            d_model: 256,
            num_layers: 2,
            num_heads: 4,
            seq_len: 128,
            tie_head: false,
            bias: true,
            ..gpt2_124m()
        };
        let parameters = gpt.parameters_with(50_257);
        assert!(
            (27_000_000..28_500_000).contains(&parameters),
            "{parameters}"
        );
    }

    #[test]
    fn the_largest_shape_that_the_keys_allow_has_no_wrong_figure() {
        let largest = Gpt {
            d_model: 1_048_576,
            num_layers: 4096,
            num_heads: 4096,
            seq_len: 1_048_576,
            tie_head: false,
            bias: true,
            ..gpt2_124m()
        };
        let model = crate::kinds::Model::Gpt(largest);
        assert_eq!(
            model.flops_per_sample(Some(InputShape::Text {
                vocabulary: 16_777_216
            })),
            None,
            "about 3e23 is no u64"
        );
        assert_eq!(
            model.parameters(Some(InputShape::Text {
                vocabulary: 16_777_216
            })),
            Some(54_079_535_248_834_560)
        );
    }

    #[test]
    fn heads_must_divide_the_width() {
        let gpt = Gpt {
            num_heads: 5,
            ..gpt2_124m()
        };
        assert_eq!(
            gpt.contradictions(),
            vec![KeyFault::new(
                "num_heads",
                "`num_heads` 5 does not divide `d_model` 768"
            )]
        );
    }
}
