//! `seq2seq`: encoder and decoder of T5; its keys, its published shapes by name, parameter count
//! and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Content, InputShape, KeyFault, data::PairCounts, model::ModelKind};

/// Encoder-decoder transformer with its shape resolved; the `model` section is an [`AskedSeq2seq`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "AskedSeq2seq")]
pub struct Seq2seq {
    /// Width of the residual stream.
    pub d_model: u64,
    /// Width of the queries, keys and values of one head.
    pub d_kv: u64,
    /// Width between the two layers of a feed-forward block.
    pub d_ff: u64,
    pub encoder_layers: u64,
    pub decoder_layers: u64,
    /// Attention heads of each layer.
    pub num_heads: u64,
    /// Dropout probability of embeddings, attention weights, feed-forward blocks, residual branches
    /// and the outputs of both stacks.
    pub dropout: f64,
    /// Buckets for the distances between tokens, each with a learned bias per head.
    pub relative_buckets: u64,
    /// Distance from which all tokens share one bucket.
    pub relative_max_distance: u64,
    /// Rows of the token table; default: the data's vocabulary. May be larger than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u64>,
}

/// Encoder-decoder transformer of T5: pre-norm blocks without biases, relative attention, ReLU, one
/// token table for encoder, decoder and head. Source: Raffel et al. 2020 (arXiv 1910.10683).
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskedSeq2seq {
    /// A published shape by name, which sets `d_model`, `d_kv`, `d_ff`, `encoder_layers`,
    /// `decoder_layers`, `num_heads` and `vocabulary`; keys that are also written take precedence.
    #[serde(default)]
    size: Option<Seq2seqSize>,
    /// Width of the residual stream; default 256, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576))]
    d_model: Option<u64>,
    /// Width of the queries, keys and values of one head; default 64, or from `size`. Heads × d_kv
    /// may differ from `d_model`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65_536))]
    d_kv: Option<u64>,
    /// Width between the two layers of a feed-forward block; default 1024, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_048_576))]
    d_ff: Option<u64>,
    /// Encoder blocks; default 2, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    encoder_layers: Option<u64>,
    /// Decoder blocks; default 2, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    decoder_layers: Option<u64>,
    /// Attention heads of each layer; default 4, or from `size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4096))]
    num_heads: Option<u64>,
    /// Dropout probability of embeddings, attention weights, feed-forward blocks, residual branches
    /// and the outputs of both stacks.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.95))]
    dropout: f64,
    /// Buckets for the distances between tokens, each with a learned bias per head; an even number.
    /// In the encoder, half of them are for later tokens.
    #[serde(default = "relative_buckets")]
    #[schemars(range(min = 4, max = 65_536))]
    relative_buckets: u64,
    /// Distance from which all tokens share one bucket; larger than half of `relative_buckets`.
    #[serde(default = "relative_max_distance")]
    #[schemars(range(min = 3, max = 1_048_576))]
    relative_max_distance: u64,
    /// Rows of the token table; from `size`, else the data's vocabulary. May be larger than that.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216))]
    vocabulary: Option<u64>,
}

/// A published shape. Source: Raffel et al. 2020, section 2.3 and 3.7, with the released models'
/// vocabulary; ChatLM-mini-Chinese.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Seq2seqSize {
    /// ChatLM-mini-Chinese: 188 million parameters, width 768, 10 + 10 blocks, 12 heads, 29,298
    /// tokens.
    Chatlm,
    /// 61 million: 512, 6 + 6, 8 heads, 32,128 tokens.
    T5Small,
    /// 223 million: 768, 12 + 12, 12 heads.
    T5Base,
    /// 738 million: 1024, 24 + 24, 16 heads.
    T5Large,
}

/// The values that a size sets, or the defaults without a size.
struct Seq2seqShape {
    d_model: u64,
    d_ff: u64,
    layers: u64,
    num_heads: u64,
    vocabulary: Option<u64>,
}

/// Values that all published shapes share.
const D_KV: u64 = 64;

impl Seq2seqShape {
    /// Without a size these are the format-1 defaults.
    fn of(size: Option<Seq2seqSize>) -> Self {
        let t5 = |d_model, layers, num_heads| Self {
            d_model,
            d_ff: 4 * d_model,
            layers,
            num_heads,
            vocabulary: Some(32_128),
        };
        match size {
            None => Self {
                vocabulary: None,
                ..t5(256, 2, 4)
            },
            Some(Seq2seqSize::Chatlm) => Self {
                vocabulary: Some(29_298),
                ..t5(768, 10, 12)
            },
            Some(Seq2seqSize::T5Small) => t5(512, 6, 8),
            Some(Seq2seqSize::T5Base) => t5(768, 12, 12),
            Some(Seq2seqSize::T5Large) => t5(1024, 24, 16),
        }
    }
}

impl From<AskedSeq2seq> for Seq2seq {
    fn from(asked: AskedSeq2seq) -> Self {
        let shape = Seq2seqShape::of(asked.size);
        Self {
            d_model: asked.d_model.unwrap_or(shape.d_model),
            d_kv: asked.d_kv.unwrap_or(D_KV),
            d_ff: asked.d_ff.unwrap_or(shape.d_ff),
            encoder_layers: asked.encoder_layers.unwrap_or(shape.layers),
            decoder_layers: asked.decoder_layers.unwrap_or(shape.layers),
            num_heads: asked.num_heads.unwrap_or(shape.num_heads),
            dropout: asked.dropout,
            relative_buckets: asked.relative_buckets,
            relative_max_distance: asked.relative_max_distance,
            vocabulary: asked.vocabulary.or(shape.vocabulary),
        }
    }
}

/// Source: T5.
fn relative_buckets() -> u64 {
    32
}
fn relative_max_distance() -> u64 {
    128
}

impl Seq2seq {
    /// The values that a size sets.
    pub(super) const KEYS_OF_SIZES: [&str; 7] = [
        "d_model",
        "d_kv",
        "d_ff",
        "encoder_layers",
        "decoder_layers",
        "num_heads",
        "vocabulary",
    ];

    /// Width of all heads together.
    fn inner(&self) -> u64 {
        self.num_heads * self.d_kv
    }

    /// Weights of the products of one attention: queries, keys, values, output.
    fn attention_weights(&self) -> u64 {
        4 * self.d_model * self.inner()
    }

    fn feed_forward_weights(&self) -> u64 {
        2 * self.d_model * self.d_ff
    }

    fn encoder_weights(&self) -> u64 {
        self.encoder_layers * (self.attention_weights() + self.feed_forward_weights())
    }

    fn decoder_weights(&self) -> u64 {
        self.decoder_layers * (2 * self.attention_weights() + self.feed_forward_weights())
    }

    /// Encoder, decoder and head share one table; each stack has one bias table and one norm at its
    /// end.
    fn parameters_with(&self, vocabulary: u64) -> u64 {
        let norms = (2 * self.encoder_layers + 1 + 3 * self.decoder_layers + 1) * self.d_model;
        let biases = 2 * self.relative_buckets * self.num_heads;
        vocabulary * self.d_model + self.encoder_weights() + self.decoder_weights() + norms + biases
    }

    /// The mean over the training rows, with S prompt tokens and R response tokens: 6 S of the
    /// encoder's weights and of those that compute keys and values from its output, 6 R of the
    /// decoder's other weights and of the head, and 12 H Q of S² per encoder block, of R² + S R per
    /// decoder block. Padding does not count. Source: `docs/measurement.md` 8. `None` if the result
    /// exceeds a `u64`, and without rows.
    fn flops_with(&self, vocabulary: u64, rows: &PairCounts) -> Option<u64> {
        u64::try_from(
            self.flops(vocabulary, rows)
                .checked_div(u128::from(rows.rows))?,
        )
        .ok()
    }

    /// The sum over the rows. A day on a fast device exceeds a `u64`.
    fn flops_of_rows_with(&self, vocabulary: u64, rows: &PairCounts) -> f64 {
        self.flops(vocabulary, rows) as f64
    }

    fn flops(&self, vocabulary: u64, rows: &PairCounts) -> u128 {
        let wide = |number: u64| u128::from(number);
        let of_memory = self.decoder_layers * self.attention_weights() / 2;
        let prompts = wide(self.encoder_weights() + of_memory) * wide(rows.prompt_tokens);
        let responses = wide(self.decoder_weights() - of_memory + vocabulary * self.d_model)
            * wide(rows.response_tokens);
        let encoder = wide(self.encoder_layers * self.inner()) * wide(rows.prompt_squares);
        let decoder = wide(self.decoder_layers * self.inner())
            * (wide(rows.response_squares) + wide(rows.prompt_response_products));
        6 * (prompts + responses) + 12 * (encoder + decoder)
    }
}

impl ModelKind for Seq2seq {
    fn kind(&self) -> &'static str {
        "seq2seq"
    }

    fn reads(&self) -> Content {
        Content::Pairs
    }

    fn vocabulary(&self, input: Option<InputShape>) -> Option<u64> {
        self.vocabulary.or_else(|| input?.vocabulary())
    }

    fn parameters(&self, input: Option<InputShape>) -> Option<u64> {
        Some(self.parameters_with(self.vocabulary(input)?))
    }

    fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64> {
        self.flops_with(self.vocabulary(input)?, &input?.pairs()?.train)
    }

    fn flops_of_rows(&self, input: Option<InputShape>, rows: &PairCounts) -> Option<f64> {
        Some(self.flops_of_rows_with(self.vocabulary(input)?, rows))
    }

    fn flops_formula(&self) -> &'static str {
        "6NS+6NR+12LHQ(SS+RR+SR)"
    }

    fn keys_of_sizes(&self) -> &'static [&'static str] {
        &Self::KEYS_OF_SIZES
    }

    fn contradictions(&self) -> Vec<KeyFault> {
        let mut found = Vec::new();
        if !self.relative_buckets.is_multiple_of(2) {
            found.push(KeyFault::new(
                "relative_buckets",
                format!(
                    "`relative_buckets` {} is odd; it must be even, because half of the buckets \
                     are for later tokens",
                    self.relative_buckets
                ),
            ));
        }
        if self.relative_max_distance <= self.relative_buckets / 2 {
            let text = format!(
                "`relative_max_distance` {} leaves no room for wider buckets: half of \
                 `relative_buckets`, {}, are for one distance each; it must be larger",
                self.relative_max_distance,
                self.relative_buckets / 2
            );
            found.push(KeyFault::new("relative_max_distance", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Seq2seq {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn each_size_has_its_published_parameters() {
        for (size, parameters) in [
            ("chatlm", 187_692_288),
            ("t5-small", 60_506_624),
            ("t5-base", 222_903_552),
            ("t5-large", 737_668_096),
        ] {
            let shape = read(&format!("{{size: {size}}}"));
            assert_eq!(
                shape.parameters_with(shape.vocabulary.unwrap()),
                parameters,
                "{size}"
            );
            assert_eq!(
                (shape.num_heads * shape.d_kv, shape.contradictions()),
                (shape.d_model, vec![]),
                "{size}"
            );
        }
    }

    #[test]
    fn a_size_is_the_same_as_its_numbers_and_what_is_written_beside_it_wins() {
        let numbers = "d_model: 768, d_kv: 64, d_ff: 3072, encoder_layers: 10, decoder_layers: 10, \
                       num_heads: 12, vocabulary: 29298";
        assert_eq!(read("{size: chatlm}"), read(&format!("{{{numbers}}}")));
        assert_eq!(
            read(
                "{size: t5-large, d_model: 768, d_ff: 3072, num_heads: 12, encoder_layers: 10, \
                 decoder_layers: 10, vocabulary: 29298}"
            ),
            read("{size: chatlm}")
        );
        assert_eq!(
            serde_json::to_value(read("{size: t5-small}"))
                .unwrap()
                .get("size"),
            None,
            "the numbers say it all"
        );
        assert_eq!(
            read("{}"),
            read(
                "{size: null, d_model: 256, d_ff: 1024, encoder_layers: 2, decoder_layers: 2, \
                 num_heads: 4}"
            )
        );
        assert!(serde_yaml::from_str::<Seq2seq>("{size: t5-11b}").is_err());
        assert!(serde_yaml::from_str::<Seq2seq>("{num_layers: 3}").is_err());
    }

    #[test]
    fn flops_are_six_per_weight_and_token_and_twelve_per_product_of_attention() {
        let shape = read(
            "{d_model: 8, d_kv: 3, d_ff: 16, encoder_layers: 2, decoder_layers: 3, num_heads: 2}",
        );
        let mut rows = PairCounts::default();
        rows.add(10, 5);
        rows.add(4, 7);
        // Attention has 4 × 8 × 6 weights, a feed-forward block 2 × 8 × 16, the head 11 × 8.
        let of_row = |s: u64, r: u64| {
            let encoder = 2 * (192 + 256) * s;
            let decoder = 3 * ((192 + 96 + 256) * r + 96 * s);
            6 * (encoder + decoder + 88 * r) + 12 * 6 * (2 * s * s + 3 * (r * r + s * r))
        };
        assert_eq!(
            shape.flops_with(11, &rows),
            Some((of_row(10, 5) + of_row(4, 7)) / 2)
        );
        assert_eq!(
            shape.flops_of_rows_with(11, &rows),
            (of_row(10, 5) + of_row(4, 7)) as f64
        );
        assert_eq!(shape.flops_with(11, &PairCounts::default()), None);
        let most = PairCounts {
            rows: 1,
            prompt_tokens: u64::MAX,
            prompt_squares: u64::MAX,
            ..PairCounts::default()
        };
        assert_eq!(shape.flops_with(11, &most), None);
    }

    #[test]
    fn buckets_must_come_in_halves_and_end_before_the_largest_distance() {
        let faults = |text: &str| {
            read(text)
                .contradictions()
                .into_iter()
                .map(|fault| fault.key)
                .collect::<Vec<_>>()
        };
        assert_eq!(faults("{relative_buckets: 33}"), ["relative_buckets"]);
        assert_eq!(
            faults("{relative_buckets: 32, relative_max_distance: 16}"),
            ["relative_max_distance"]
        );
        assert_eq!(
            faults("{relative_buckets: 32, relative_max_distance: 17}"),
            [""; 0]
        );
    }
}
