//! `gpt`: decoder-only transformer. Pre-norm blocks, learned positions, causal attention, GELU MLP
//! of 4 × width, final norm, head tied to the token table or separate. Initial values as in nanoGPT
//! (Karpathy 2022, `model.py`).

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};
use kiln_core::kinds;

use super::{
    Init, Input, LayerNorm, Linear, RecurrentMemory,
    architecture::{Architecture, Facts, by_target, unread},
    keys_values::KeysValues,
};
use crate::{engine::Ops, error::TrialError};

/// Deviation of the initial weights. Source: GPT-2, nanoGPT.
const DEVIATION: f64 = 0.02;

/// The decoder-only transformer.
#[derive(Module, Debug)]
pub struct Gpt {
    token_table: Param<Tensor<2>>,    // [vocabulary, width]
    position_table: Param<Tensor<2>>, // [seq_len, width]
    blocks: Vec<Block>,
    final_norm: LayerNorm,
    /// Absent if the token table serves.
    head: Option<Param<Tensor<2>>>, // [vocabulary, width]
    dropout: f64,
}

/// Keys and values of the tokens that a model has seen, of each block.
#[derive(Clone, Debug, Default)]
pub struct GptCache {
    of_blocks: Vec<KeysValues>, // empty before the first token
}

#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: Attention,
    mlp_norm: LayerNorm,
    mlp: FeedForward,
    dropout: f64,
}

#[derive(Module, Debug)]
struct Attention {
    queries_keys_values: Linear,
    projection: Linear,
    heads: usize,
    dropout: f64,
}

#[derive(Module, Debug)]
struct FeedForward {
    widening: Linear,
    projection: Linear,
}

impl Gpt {
    /// Random: from the seed of `init`.
    pub fn new(shape: &kinds::Gpt, vocabulary: usize, init: &Init) -> Self {
        let (width, seq_len) = (shape.d_model as usize, shape.seq_len as usize);
        Self {
            token_table: init.normal("token_table", [vocabulary, width], DEVIATION),
            position_table: init.normal("position_table", [seq_len, width], DEVIATION),
            blocks: (0..shape.num_layers)
                .map(|layer| Block::new(shape, layer, init))
                .collect(),
            final_norm: LayerNorm::new(init, width, shape.bias),
            head: (!shape.tie_head).then(|| init.normal("head", [vocabulary, width], DEVIATION)),
            dropout: shape.dropout,
        }
    }

    /// tokens [batch, time], time at most `seq_len`; out: logits [batch, time, vocabulary].
    pub fn forward(&self, tokens: Tensor<2, Int>, ops: Ops) -> Tensor<3> {
        let [_, time] = tokens.dims();
        let positions = self.positions(time).unsqueeze::<3>(); // [1, time, width]
        let x = ops.embedding(self.token_table.val(), tokens) + positions; // [batch, time, width]
        let x = ops.dropout(x, self.dropout);
        let normed = self.through_blocks(x, ops, |_, attention, normed| {
            attention.forward(normed, ops)
        });
        let head = self.head.as_ref().unwrap_or(&self.token_table);
        ops.linear(normed, head.val(), None) // [batch, time, vocabulary]
    }

    /// The final norm of what the blocks make of x [batch, time, width]. `attend` is the attention
    /// of the block of this number. Each norm comes with the sum that it reads.
    fn through_blocks(
        &self,
        x: Tensor<3>,
        ops: Ops,
        mut attend: impl FnMut(usize, &Attention, Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let norms = self.blocks.iter().map(|block| &block.attention_norm);
        let mut norms = norms.chain([&self.final_norm]);
        let first = norms.next().expect("the final norm is there");
        let (mut x, mut normed) = (x.clone(), first.forward_for_products(x, ops));
        for (at, (block, next)) in self.blocks.iter().zip(norms).enumerate() {
            let branch = attend(at, &block.attention, normed);
            (x, normed) = block
                .mlp_norm
                .forward_sum(x, block.dropped(branch, ops), ops);
            let branch = block.mlp.forward(normed, ops);
            (x, normed) = next.forward_sum(x, block.dropped(branch, ops), ops);
        }
        normed
    }

    /// Logits [rows, vocabulary] of what follows `tokens` [rows, time], which come after those in
    /// the cache; the cache then holds these too, at most `seq_len` in all. After the first tokens
    /// one comes at a time.
    pub fn go_on(&self, tokens: Tensor<2, Int>, cache: &mut GptCache, ops: Ops) -> Tensor<2> {
        let [_, time] = tokens.dims();
        let positions = self.places(cache.seen(), time).unsqueeze::<3>(); // [1, time, width]
        let x = ops.embedding(self.token_table.val(), tokens) + positions; // [rows, time, width]
        let all = &mut cache.of_blocks;
        all.resize_with(self.blocks.len(), KeysValues::default);
        let normed = self.through_blocks(x, ops, |at, attention, normed| {
            attention.go_on(normed, &mut all[at], ops)
        });
        let last = normed.narrow(1, time - 1, 1); // [rows, 1, width]
        let head = self.head.as_ref().unwrap_or(&self.token_table);
        ops.linear(last, head.val(), None).squeeze_dim(1)
    }

    fn positions(&self, time: usize) -> Tensor<2> {
        self.places(0, time)
    }

    /// Positions from `first` on: [time, width].
    fn places(&self, first: usize, time: usize) -> Tensor<2> {
        let [seq_len, _] = self.position_table.dims();
        let table = self.position_table.val();
        if time == seq_len {
            table
        } else {
            table.narrow(0, first, time)
        }
    }
}

impl GptCache {
    /// Tokens of each row.
    pub fn seen(&self) -> usize {
        self.of_blocks.first().map_or(0, |kept| kept.seen())
    }
}

impl Block {
    fn new(shape: &kinds::Gpt, layer: u64, init: &Init) -> Self {
        let width = shape.d_model as usize;
        // Two branches per block add to the stream; their sum keeps its variance. Source: GPT-2,
        // section 2.3.
        let into_stream = DEVIATION / (2.0 * shape.num_layers as f64).sqrt();
        let linear = |name: &str, sizes, deviation| {
            Linear::normal(
                init,
                &format!("blocks.{layer}.{name}"),
                sizes,
                shape.bias,
                deviation,
            )
        };
        Self {
            attention_norm: LayerNorm::new(init, width, shape.bias),
            attention: Attention {
                queries_keys_values: linear(
                    "attention.queries_keys_values",
                    [width, 3 * width],
                    DEVIATION,
                ),
                projection: linear("attention.projection", [width, width], into_stream),
                heads: shape.num_heads as usize,
                dropout: shape.dropout,
            },
            mlp_norm: LayerNorm::new(init, width, shape.bias),
            mlp: FeedForward {
                widening: linear("mlp.widening", [width, 4 * width], DEVIATION),
                projection: linear("mlp.projection", [4 * width, width], into_stream),
            },
            dropout: shape.dropout,
        }
    }

    fn dropped(&self, branch: Tensor<3>, ops: Ops) -> Tensor<3> {
        ops.dropout(branch, self.dropout)
    }
}

impl Attention {
    /// x [rows, time, width] after the tokens whose keys and values are kept, where those of x are
    /// added. No dropout.
    fn go_on(&self, x: Tensor<3>, kept: &mut KeysValues, ops: Ops) -> Tensor<3> {
        let [_, _, width] = x.dims();
        let qkv = self.queries_keys_values.forward(x, ops); // [rows, time, 3 × width]
        let is_first = kept.seen() == 0;
        let all = kept.add(qkv.clone().narrow(2, width, 2 * width));
        let mixed = if is_first {
            ops.causal_attention(qkv, self.heads, 0.0)
        } else {
            // `attention_to` does not scale its scores.
            let scale = ((width / self.heads) as f64).sqrt();
            let queries = qkv.narrow(2, 0, width).div_scalar(scale);
            ops.attention_to(
                queries,
                all,
                &ops.added_to_scores(None, None),
                self.heads,
                0.0,
            )
        };
        self.projection.forward(mixed, ops)
    }

    fn forward(&self, x: Tensor<3>, ops: Ops) -> Tensor<3> {
        let qkv = self.queries_keys_values.forward(x, ops); // [batch, time, 3 × width]
        let mixed = ops.causal_attention(qkv, self.heads, self.dropout); // [batch, time, width]
        self.projection.forward(mixed, ops)
    }
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>, ops: Ops) -> Tensor<3> {
        let hidden = ops.gelu(self.widening.forward(x, ops)); // [batch, time, 4 × width]
        self.projection.forward(hidden, ops)
    }
}

impl Architecture for Gpt {
    type Settings = kinds::Gpt;

    fn build(settings: &kinds::Gpt, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.vocabulary()?, init))
    }

    fn outputs(&self, input: Input, _memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Text(tokens) = input else { unread() };
        by_target(self.forward(tokens, ops))
    }
}

#[cfg(test)]
impl Gpt {
    /// Standard deviation of the weights of the first block's MLP: widening, projection.
    pub(super) fn deviations(&self) -> [f64; 2] {
        let mlp = &self.blocks[0].mlp;
        [&mlp.widening, &mlp.projection].map(|linear| {
            let values: Vec<f32> = linear.weight.val().into_data().try_to_vec().unwrap();
            (values
                .iter()
                .map(|value| f64::from(*value).powi(2))
                .sum::<f64>()
                / values.len() as f64)
                .sqrt()
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use kiln_core::spec::{Engine, Precision};

    use super::*;

    fn gpt(tied: bool) -> Gpt {
        let text =
            format!("{{d_model: 16, num_layers: 2, num_heads: 2, seq_len: 6, tie_head: {tied}}}");
        let init = Init {
            seed: 3,
            device: Device::flex().autodiff(),
        };
        Gpt::new(&serde_yaml::from_str(&text).unwrap(), 20, &init)
    }

    fn gradients(gpt: &Gpt) -> burn::tensor::Gradients {
        let device = Device::flex();
        let ops = Ops::new(Engine::Flex, Precision::F32).unwrap();
        let logits = gpt.forward(
            Tensor::from_data([[1, 2, 3, 4, 5, 6], [0, 9, 9, 1, 7, 19]], &device),
            ops,
        );
        let targets = Tensor::from_data([2, 3, 4, 5, 6, 7, 9, 9, 1, 7, 19, 0], &device);
        ops.cross_entropy(logits.reshape([12, 20]), targets, 0.0)
            .backward()
    }

    #[test]
    fn what_is_kept_of_earlier_tokens_changes_no_output() {
        for tied in [true, false] {
            let gpt = gpt(tied).valid();
            let device = Device::flex();
            let ops = Ops::new(Engine::Flex, Precision::F32).unwrap().evaluating();
            let tokens = [3_i64, 1, 4, 1, 5, 9];
            let whole: Vec<f32> = gpt
                .forward(Tensor::from_data([tokens], &device), ops)
                .into_data()
                .try_to_vec()
                .unwrap();
            let mut cache = GptCache::default();
            let mut next = |tokens: &[i64], seen: usize| -> Vec<f32> {
                let tokens = Tensor::<1, Int>::from_data(tokens, &device).unsqueeze();
                let out = gpt.go_on(tokens, &mut cache, ops);
                assert_eq!(cache.seen(), seen);
                out.into_data().try_to_vec().unwrap()
            };
            for (seen, out) in [
                (2, next(&tokens[..2], 2)),
                (3, next(&tokens[2..3], 3)),
                (4, next(&tokens[3..4], 4)),
                (5, next(&tokens[4..5], 5)),
                (6, next(&tokens[5..], 6)),
            ] {
                for (kept, anew) in out.iter().zip(&whole[(seen - 1) * 20..]) {
                    // f32 sums in another order.
                    assert!((kept - anew).abs() < 1e-5, "{kept} {anew}");
                }
            }
        }
    }

    #[test]
    fn a_tied_table_gets_the_gradient_of_both_its_uses() {
        let (tied, mut untied) = (gpt(true), gpt(false));
        untied.head = Some(Param::from_tensor(tied.token_table.val().detach()));
        let (of_tied, of_untied) = (gradients(&tied), gradients(&untied));
        let as_table = untied.token_table.val().grad(&of_untied).unwrap();
        let as_head = untied
            .head
            .as_ref()
            .unwrap()
            .val()
            .grad(&of_untied)
            .unwrap();
        let both = tied.token_table.val().grad(&of_tied).unwrap();
        let size = |tensor: Tensor<2>| tensor.abs().max().into_scalar::<f32>();
        assert!(size(as_table.clone()) > 0.1 && size(as_head.clone()) > 0.1);
        // f32 sums of 12 rows.
        assert!(size(both - as_table - as_head) < 1e-5);
    }
}
