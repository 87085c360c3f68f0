//! `seq2seq`: T5's encoder and decoder. Pre-norm blocks without biases, RMS norm, attention whose
//! scores are not scaled and get a learned bias by relative position, ReLU feed-forward blocks; one
//! token table for encoder, decoder and head. Shapes, arithmetic and initial values as in T5
//! (Raffel et al. 2020, arXiv 1910.10683; Mesh TensorFlow's `transformer_layers`).

mod positions;

use burn::{
    module::{Module, Param},
    tensor::{Bool, Int, Tensor},
};
use kiln_core::kinds;

use self::positions::Positions;
use super::{
    Init, Input, Linear, RecurrentMemory,
    architecture::{Architecture, Facts, by_target, unread},
    keys_values::KeysValues,
};
use crate::{
    engine::{AddedToScores, Ops},
    error::TrialError,
};

/// The encoder-decoder transformer.
#[derive(Module, Debug)]
pub struct Seq2seq {
    token_table: Param<Tensor<2>>, // [vocabulary, width]
    encoder: Encoder,
    decoder: Decoder,
    width: usize,
    dropout: f64,
}

#[derive(Module, Debug)]
struct Encoder {
    blocks: Vec<EncoderBlock>,
    positions: Positions,
    final_norm: Param<Tensor<1>>, // [width]
}

#[derive(Module, Debug)]
struct Decoder {
    blocks: Vec<DecoderBlock>,
    positions: Positions,
    final_norm: Param<Tensor<1>>, // [width]
}

#[derive(Module, Debug)]
struct EncoderBlock {
    attention: Attention,
    feed_forward: FeedForward,
}

#[derive(Module, Debug)]
struct DecoderBlock {
    attention: Attention,
    /// To what the encoder made.
    cross_attention: Attention,
    feed_forward: FeedForward,
}

#[derive(Module, Debug)]
struct Attention {
    norm: Param<Tensor<1>>,    // [width]
    queries: Param<Tensor<2>>, // [inner, width]
    keys: Param<Tensor<2>>,    // [inner, width]
    values: Param<Tensor<2>>,  // [inner, width]
    output: Linear,
    heads: usize,
    dropout: f64,
}

#[derive(Module, Debug)]
struct FeedForward {
    norm: Param<Tensor<1>>, // [width]
    widening: Linear,
    projection: Linear,
    dropout: f64,
}

/// Prompts and the responses so far, as they go in.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// Padded at the end.
    pub prompts: Tensor<2, Int>, // [batch, prompt_len]
    /// Tokens that count.
    pub prompt_lengths: Tensor<1, Int>, // [batch]
    /// Each response one place on, after the start token.
    pub decoder_inputs: Tensor<2, Int>, // [batch, response_len]
}

/// Cache of the decoder while it generates: keys and values of each block, side by side.
#[derive(Clone, Debug)]
pub struct Cache {
    of_prompts: Vec<Tensor<3>>, // [rows, prompt_len, 2 × inner]
    of_responses: Vec<KeysValues>,
    mask: Tensor<4>, // [rows, 1, 1, prompt_len]
    written: usize,
}

impl Seq2seq {
    /// Random: from the seed of `init`.
    pub fn new(shape: &kinds::Seq2seq, vocabulary: usize, init: &Init) -> Self {
        let width = shape.d_model as usize;
        Self {
            token_table: init.normal("token_table", [vocabulary, width], 1.0),
            encoder: Encoder {
                blocks: (0..shape.encoder_layers)
                    .map(|layer| EncoderBlock::new(shape, &format!("encoder.blocks.{layer}"), init))
                    .collect(),
                positions: Positions::new(shape, "encoder.positions", true, init),
                final_norm: init.ones([width]),
            },
            decoder: Decoder {
                blocks: (0..shape.decoder_layers)
                    .map(|layer| DecoderBlock::new(shape, &format!("decoder.blocks.{layer}"), init))
                    .collect(),
                positions: Positions::new(shape, "decoder.positions", false, init),
                final_norm: init.ones([width]),
            },
            width,
            dropout: shape.dropout,
        }
    }

    /// Logits [batch, response_len, vocabulary] of the tokens that follow each of `decoder_inputs`.
    /// Random: dropout.
    pub fn forward(&self, pairs: Pairs, ops: Ops) -> Tensor<3> {
        let Pairs {
            prompts,
            prompt_lengths,
            decoder_inputs,
        } = pairs;
        let mask = padding_mask(prompts.dims(), prompt_lengths); // [batch, 1, 1, prompt_len]
        let prompts = self.encode(prompts, mask.clone(), ops); // [batch, prompt_len, width]
        let [_, time] = decoder_inputs.dims();
        let own = ops.added_to_scores(
            Some(self.decoder.positions.bias(0, time, time, ops)),
            Some(causal_mask(time, &mask)),
        );
        let of_prompts = ops.added_to_scores(None, Some(mask));
        let x = ops.dropout(
            ops.embedding(self.token_table.val(), decoder_inputs),
            self.dropout,
        ); // [batch, response_len, width]
        let x = self.decoder.blocks.iter().fold(x, |x, block| {
            block.forward(x, prompts.clone(), &own, &of_prompts, ops)
        });
        self.logits(x, ops)
    }

    /// Runs the encoder: prompts [batch, prompt_len] to [batch, prompt_len, width], which the
    /// decoder attends to.
    fn encode(&self, prompts: Tensor<2, Int>, mask: Tensor<4>, ops: Ops) -> Tensor<3> {
        let [_, time] = prompts.dims();
        let added = ops.added_to_scores(
            Some(self.encoder.positions.bias(0, time, time, ops)),
            Some(mask),
        );
        let x = ops.dropout(ops.embedding(self.token_table.val(), prompts), self.dropout);
        let x = self
            .encoder
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, &added, ops));
        ops.dropout(ops.rms_norm(x, self.encoder.final_norm.val()), self.dropout)
    }

    /// x [batch, time, width]; out [batch, time, vocabulary].
    fn logits(&self, x: Tensor<3>, ops: Ops) -> Tensor<3> {
        let x = ops.dropout(ops.rms_norm(x, self.decoder.final_norm.val()), self.dropout);
        // The table serves as the head; its rows are as long as an embedding's.
        ops.linear(
            x.div_scalar((self.width as f64).sqrt()),
            self.token_table.val(),
            None,
        )
    }

    /// The cache for responses to prompts [rows, prompt_len] of which `lengths` [rows] tokens
    /// count.
    pub fn begin(&self, prompts: Tensor<2, Int>, lengths: Tensor<1, Int>, ops: Ops) -> Cache {
        let mask = padding_mask(prompts.dims(), lengths);
        let prompts = self.encode(prompts, mask.clone(), ops);
        let of_prompts = self
            .decoder
            .blocks
            .iter()
            .map(|block| block.cross_attention.keys_values(prompts.clone(), ops))
            .collect();
        Cache {
            of_prompts,
            of_responses: vec![KeysValues::default(); self.decoder.blocks.len()],
            mask,
            written: 0,
        }
    }

    /// Logits [rows, vocabulary] of what follows `tokens` [rows], each the next of its row's
    /// response; the first one is the start token. The cache then holds these too.
    pub fn go_on(&self, tokens: Tensor<1, Int>, cache: &mut Cache, ops: Ops) -> Tensor<2> {
        let time = cache.written + 1;
        let own = ops.added_to_scores(
            Some(self.decoder.positions.bias(cache.written, 1, time, ops)),
            None,
        );
        let of_prompts = ops.added_to_scores(None, Some(cache.mask.clone()));
        let mut x = ops.embedding(self.token_table.val(), tokens.unsqueeze_dim(1)); // [rows, 1, width]
        let blocks = self.decoder.blocks.iter();
        let caches = cache.of_prompts.iter().zip(&mut cache.of_responses);
        for (block, (of_prompt, kept)) in blocks.zip(caches) {
            x = block.go_on(x, kept, of_prompt.clone(), [&own, &of_prompts], ops);
        }
        cache.written = time;
        self.logits(x, ops).squeeze_dim(1)
    }
}

impl Cache {
    /// The cache whose row `r` is this one's row `rows[r]`; rows may repeat or be missing.
    pub fn select(self, rows: &Tensor<1, Int>) -> Self {
        let of_prompts = self.of_prompts.into_iter();
        let of_responses = self.of_responses.into_iter();
        Self {
            of_prompts: of_prompts
                .map(|tensor| tensor.select(0, rows.clone()))
                .collect(),
            of_responses: of_responses.map(|kept| kept.select(rows)).collect(),
            mask: self.mask.select(0, rows.clone()),
            ..self
        }
    }
}

impl EncoderBlock {
    fn new(shape: &kinds::Seq2seq, name: &str, init: &Init) -> Self {
        Self {
            attention: Attention::new(shape, &format!("{name}.attention"), init),
            feed_forward: FeedForward::new(shape, &format!("{name}.feed_forward"), init),
        }
    }

    /// x [batch, time, width], and so is the result.
    fn forward(&self, x: Tensor<3>, added: &AddedToScores, ops: Ops) -> Tensor<3> {
        self.feed_forward
            .forward(self.attention.forward(x, added, ops), ops)
    }
}

impl DecoderBlock {
    fn new(shape: &kinds::Seq2seq, name: &str, init: &Init) -> Self {
        Self {
            attention: Attention::new(shape, &format!("{name}.attention"), init),
            cross_attention: Attention::new(shape, &format!("{name}.cross_attention"), init),
            feed_forward: FeedForward::new(shape, &format!("{name}.feed_forward"), init),
        }
    }

    /// x [batch, response_len, width] and prompts [batch, prompt_len, width]; out as x.
    fn forward(
        &self,
        x: Tensor<3>,
        prompts: Tensor<3>,
        own: &AddedToScores,
        of_prompts: &AddedToScores,
        ops: Ops,
    ) -> Tensor<3> {
        let x = self.attention.forward(x, own, ops);
        let x = self.cross_attention.look(
            x,
            self.cross_attention.keys_values(prompts, ops),
            of_prompts,
            ops,
        );
        self.feed_forward.forward(x, ops)
    }

    /// One token on: x [rows, 1, width], what is kept of the tokens before, where those of x are
    /// added, and of the prompts; out the same x.
    fn go_on(
        &self,
        x: Tensor<3>,
        kept: &mut KeysValues,
        of_prompt: Tensor<3>,
        [own, of_prompts]: [&AddedToScores; 2],
        ops: Ops,
    ) -> Tensor<3> {
        let attention = &self.attention;
        let normed = ops.rms_norm(x.clone(), attention.norm.val());
        let latest = attention.keys_values(normed.clone(), ops); // [rows, 1, 2 × inner]
        let mixed = ops.attention_to(
            ops.linear(normed, attention.queries.val(), None),
            kept.add(latest),
            own,
            attention.heads,
            attention.dropout,
        );
        let x = attention.add(x, mixed, ops);
        let x = self.cross_attention.look(x, of_prompt, of_prompts, ops);
        self.feed_forward.forward(x, ops)
    }
}

impl Attention {
    fn new(shape: &kinds::Seq2seq, name: &str, init: &Init) -> Self {
        let (width, heads, of_head) = (
            shape.d_model as usize,
            shape.num_heads as usize,
            shape.d_kv as usize,
        );
        let inner = heads * of_head;
        let (of_width, of_inner) = (1.0 / (width as f64).sqrt(), 1.0 / (inner as f64).sqrt());
        Self {
            norm: init.ones([width]),
            // Smaller by the root of a head's width, since scores are not scaled.
            queries: init.normal(
                &format!("{name}.queries"),
                [inner, width],
                of_width / (of_head as f64).sqrt(),
            ),
            keys: init.normal(&format!("{name}.keys"), [inner, width], of_width),
            values: init.normal(&format!("{name}.values"), [inner, width], of_width),
            output: Linear::normal(
                init,
                &format!("{name}.output"),
                [inner, width],
                false,
                of_inner,
            ),
            heads,
            dropout: shape.dropout,
        }
    }

    /// To itself: x [batch, time, width], and so is the result.
    fn forward(&self, x: Tensor<3>, added: &AddedToScores, ops: Ops) -> Tensor<3> {
        let normed = ops.rms_norm(x.clone(), self.norm.val());
        let qkv = ops.linears(
            normed,
            &[self.queries.val(), self.keys.val(), self.values.val()],
        ); // [batch, time, 3 × inner]
        let mixed = ops.self_attention(qkv, added, self.heads, self.dropout); // [batch, time, inner]
        self.add(x, mixed, ops)
    }

    /// To keys and values [batch, time', 2 × inner]: x [batch, time, width], and so is the result.
    fn look(
        &self,
        x: Tensor<3>,
        keys_values: Tensor<3>,
        added: &AddedToScores,
        ops: Ops,
    ) -> Tensor<3> {
        let queries = ops.linear(
            ops.rms_norm(x.clone(), self.norm.val()),
            self.queries.val(),
            None,
        ); // [batch, time, inner]
        let mixed = ops.attention_to(queries, keys_values, added, self.heads, self.dropout);
        self.add(x, mixed, ops)
    }

    /// y [batch, time, width]; out [batch, time, 2 × inner].
    fn keys_values(&self, y: Tensor<3>, ops: Ops) -> Tensor<3> {
        ops.linears(y, &[self.keys.val(), self.values.val()])
    }

    fn add(&self, x: Tensor<3>, mixed: Tensor<3>, ops: Ops) -> Tensor<3> {
        ops.residual(
            x,
            ops.dropout(self.output.forward(mixed, ops), self.dropout),
        )
    }
}

impl FeedForward {
    fn new(shape: &kinds::Seq2seq, name: &str, init: &Init) -> Self {
        let (width, hidden) = (shape.d_model as usize, shape.d_ff as usize);
        let linear = |part: &str, [inputs, outputs]: [usize; 2]| {
            Linear::normal(
                init,
                &format!("{name}.{part}"),
                [inputs, outputs],
                false,
                1.0 / (inputs as f64).sqrt(),
            )
        };
        Self {
            norm: init.ones([width]),
            widening: linear("widening", [width, hidden]),
            projection: linear("projection", [hidden, width]),
            dropout: shape.dropout,
        }
    }

    /// x [batch, time, width], and so is the result.
    fn forward(&self, x: Tensor<3>, ops: Ops) -> Tensor<3> {
        let hidden = ops.relu(
            self.widening
                .forward(ops.rms_norm(x.clone(), self.norm.val()), ops),
        ); // [batch, time, hidden]
        let branch = self
            .projection
            .forward(ops.dropout(hidden, self.dropout), ops);
        ops.residual(x, ops.dropout(branch, self.dropout))
    }
}

/// −∞ at the padding of `dims` [batch, time], 0 elsewhere: [batch, 1, 1, time].
fn padding_mask([batch, time]: [usize; 2], lengths: Tensor<1, Int>) -> Tensor<4> {
    let device = lengths.device();
    let places = Tensor::<1, Int>::arange(0..time as i64, &device)
        .unsqueeze_dim::<2>(0)
        .expand([batch, time]);
    let is_padding = places.greater_equal(lengths.unsqueeze_dim::<2>(1).expand([batch, time]));
    Tensor::<2>::zeros([batch, time], &device)
        .mask_fill(is_padding, f32::NEG_INFINITY)
        .reshape([batch, 1, 1, time])
}

/// −∞ above the diagonal: [1, 1, time, time].
fn causal_mask(time: usize, like: &Tensor<4>) -> Tensor<4> {
    let later = Tensor::<2, Bool>::tril_mask([time, time], 0, &like.device());
    Tensor::<2>::zeros([time, time], &like.device())
        .mask_fill(later, f32::NEG_INFINITY)
        .reshape([1, 1, time, time])
}

impl Architecture for Seq2seq {
    type Settings = kinds::Seq2seq;

    fn build(settings: &kinds::Seq2seq, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.vocabulary()?, init))
    }

    fn outputs(&self, input: Input, _memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Pairs(pairs) = input else { unread() };
        by_target(self.forward(pairs, ops))
    }
}
