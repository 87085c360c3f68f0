//! `lstm`: recurrent language model. Embedding, LSTM layers, output projection tied to the token
//! table or separate; dropout after the embedding, between layers and before the projection.
//! Initial values as in pytorch/examples, word_language_model.

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};
use kiln_core::kinds;

use super::{
    Init, Input, RecurrentMemory,
    architecture::{Architecture, Facts, by_target, unread},
};
use crate::{
    engine::{LstmState, LstmWeights, Ops},
    error::TrialError,
};

/// Bound of the token table's and the projection's initial weights. Source: word_language_model's
/// `init_weights`.
const BOUND: f64 = 0.1;

#[derive(Module, Debug)]
pub struct Lstm {
    token_table: Param<Tensor<2>>, // [vocabulary, width]
    layers: Vec<Layer>,
    /// Absent if the token table serves.
    head: Option<Param<Tensor<2>>>, // [vocabulary, hidden]
    head_bias: Param<Tensor<1>>, // [vocabulary]
    dropout: f64,
}

/// One LSTM layer.
#[derive(Module, Debug)]
pub(super) struct Layer {
    input_weight: Param<Tensor<2>>, // [4 × hidden, in]
    state_weight: Param<Tensor<2>>, // [4 × hidden, hidden]
    bias_input: Param<Tensor<1>>,   // [4 × hidden]
    bias_state: Param<Tensor<1>>,   // [4 × hidden]
}

impl Lstm {
    /// Random: initial weights, from `init`.
    pub fn new(shape: &kinds::Lstm, vocabulary: usize, init: &Init) -> Self {
        let (width, hidden) = (shape.d_model as usize, shape.hidden as usize);
        Self {
            token_table: init.uniform("token_table", [vocabulary, width], BOUND),
            layers: (0..shape.num_layers)
                .map(|layer| {
                    Layer::new(layer, if layer == 0 { width } else { hidden }, hidden, init)
                })
                .collect(),
            head: (!shape.tie_head).then(|| init.uniform("head", [vocabulary, hidden], BOUND)),
            head_bias: init.zeros([vocabulary]),
            dropout: shape.dropout,
        }
    }

    /// tokens [batch, time], and the states that the windows before left; out: logits [batch, time,
    /// vocabulary] and the states now. Random: dropout.
    pub fn forward(
        &self,
        tokens: Tensor<2, Int>,
        before: Option<LstmState>,
        ops: Ops,
    ) -> (Tensor<3>, LstmState) {
        let x = ops.dropout(ops.embedding(self.token_table.val(), tokens), self.dropout); // [batch, time, width]
        let layers: Vec<LstmWeights> = self.layers.iter().map(Layer::weights).collect();
        let (x, after) = ops.lstm(x, &layers, before, self.dropout); // [batch, time, hidden]
        let head = self.head.as_ref().unwrap_or(&self.token_table);
        (
            ops.linear(
                ops.dropout(x, self.dropout),
                head.val(),
                Some(self.head_bias.val()),
            ),
            after,
        )
    }
}

impl Layer {
    /// PyTorch's default: everything uniform within 1 / √hidden.
    pub(super) fn new(layer: u64, inputs: usize, hidden: usize, init: &Init) -> Self {
        let bound = 1.0 / (hidden as f64).sqrt();
        let name = |part: &str| format!("layers.{layer}.{part}");
        Self {
            input_weight: init.uniform(&name("input_weight"), [4 * hidden, inputs], bound),
            state_weight: init.uniform(&name("state_weight"), [4 * hidden, hidden], bound),
            bias_input: init.uniform(&name("bias_input"), [4 * hidden], bound),
            bias_state: init.uniform(&name("bias_state"), [4 * hidden], bound),
        }
    }

    pub(super) fn weights(&self) -> LstmWeights {
        LstmWeights {
            input: self.input_weight.val(),
            state: self.state_weight.val(),
            input_bias: self.bias_input.val(),
            state_bias: self.bias_state.val(),
        }
    }
}

impl Architecture for Lstm {
    type Settings = kinds::Lstm;

    fn build(settings: &kinds::Lstm, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.vocabulary()?, init))
    }

    fn outputs(&self, input: Input, memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Text(tokens) = input else { unread() };
        let [batch, _] = tokens.dims();
        let before = memory.take().map(|before| before.of_rows(batch));
        let (logits, after) = self.forward(tokens, before, ops);
        *memory = Some(after);
        by_target(logits)
    }
}
