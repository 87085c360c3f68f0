//! `mlp`: the smallest model. For each position it embeds the last `context` tokens (zeros before
//! the sample's start), concatenates them, and goes through one hidden layer with GELU to the
//! logits. PyTorch's default initial values.

use burn::{
    module::{Module, Param},
    tensor::{FloatDType, Int, Tensor},
};
use kiln_core::kinds;

use super::{
    Init, Input, Linear, RecurrentMemory,
    architecture::{Architecture, Facts, by_target, unread},
};
use crate::{engine::Ops, error::TrialError};

/// The multilayer perceptron over the last `context` tokens.
#[derive(Module, Debug)]
pub struct Mlp {
    token_table: Param<Tensor<2>>, // [vocabulary, width]
    hidden: Linear,
    output: Linear,
    context: usize,
}

impl Mlp {
    /// Random: from the seed of `init`.
    pub fn new(shape: &kinds::Mlp, vocabulary: usize, init: &Init) -> Self {
        let (context, width, hidden) = (
            shape.context as usize,
            shape.d_model as usize,
            shape.hidden as usize,
        );
        Self {
            token_table: init.normal("token_table", [vocabulary, width], 1.0),
            hidden: Linear::uniform(init, "hidden", [context * width, hidden]),
            output: Linear::uniform(init, "output", [hidden, vocabulary]),
            context,
        }
    }

    /// tokens [batch, time]; out: logits [batch, time, vocabulary].
    pub fn forward(&self, tokens: Tensor<2, Int>, ops: Ops) -> Tensor<3> {
        let ([batch, time], [_, width]) = (tokens.dims(), self.token_table.dims());
        let there = self
            .windows(Tensor::ones([1, time], &tokens.device()))
            .float()
            .unsqueeze_dim::<4>(3); // [1, time, context, 1]
        let there = there.cast(FloatDType::from(self.token_table.val().dtype()));
        let windows = self.windows(tokens).reshape([batch, time * self.context]);
        let embedded = ops.embedding(self.token_table.val(), windows); // [batch, time × context, width]
        let embedded = embedded.reshape([batch, time, self.context, width]) * there;
        let hidden = self
            .hidden
            .forward(embedded.reshape([batch, time, self.context * width]), ops);
        self.output.forward(ops.gelu(hidden), ops)
    }

    /// The last `context` values up to each position, oldest first, 0 before the start: [batch,
    /// time] to [batch, time, context].
    fn windows(&self, values: Tensor<2, Int>) -> Tensor<3, Int> {
        let [batch, time] = values.dims();
        let before = Tensor::zeros([batch, self.context - 1], &values.device());
        let padded = if self.context > 1 {
            Tensor::cat(vec![before, values], 1)
        } else {
            values
        }; // [batch, context − 1 + time]
        let shifted = (0..self.context)
            .map(|shift| padded.clone().narrow(1, shift, time))
            .collect();
        Tensor::stack(shifted, 2)
    }
}

impl Architecture for Mlp {
    type Settings = kinds::Mlp;

    fn build(settings: &kinds::Mlp, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.vocabulary()?, init))
    }

    fn outputs(&self, input: Input, _memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Text(tokens) = input else { unread() };
        by_target(self.forward(tokens, ops))
    }
}
