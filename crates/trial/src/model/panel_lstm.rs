//! `panel-lstm`: one recurrent network for many series. The symbol's embedding is concatenated with
//! the features of each row; LSTM layers; one output from the last row. PyTorch's default initial
//! values.

use burn::{
    module::{Module, Param},
    tensor::{FloatDType, Int, Tensor},
};
use kiln_core::kinds::{self, data::PanelShape};

use super::{
    Init, Input, Linear, RecurrentMemory,
    architecture::{Architecture, Facts, unread},
    lstm::Layer,
};
use crate::{
    engine::{LstmWeights, Ops, beside},
    error::TrialError,
};

#[derive(Module, Debug)]
pub struct PanelLstm {
    symbol_table: Param<Tensor<2>>, // [symbols, symbol_width]
    layers: Vec<Layer>,
    head: Linear,
    dropout: f64,
}

impl PanelLstm {
    /// Random: initial weights, from `init`.
    pub fn new(shape: &kinds::PanelLstm, input: PanelShape, init: &Init) -> Self {
        let (width, hidden) = (shape.symbol_width as usize, shape.hidden as usize);
        let first = input.features as usize + width;
        Self {
            symbol_table: init.normal("symbol_table", [input.symbols as usize, width], 1.0),
            layers: (0..shape.num_layers)
                .map(|layer| {
                    Layer::new(layer, if layer == 0 { first } else { hidden }, hidden, init)
                })
                .collect(),
            head: Linear::uniform(init, "head", [hidden, 1]),
            dropout: shape.dropout,
        }
    }

    /// features [batch, time, features], symbols [batch]; out [batch, 1]. Random: dropout.
    pub fn forward(&self, features: Tensor<3>, symbols: Tensor<1, Int>, ops: Ops) -> Tensor<2> {
        let [batch, time, _] = features.dims();
        let features = features.cast(FloatDType::from(self.symbol_table.val().dtype()));
        let symbol = ops.embedding(self.symbol_table.val(), symbols.reshape([batch, 1])); // [batch, 1, symbol_width]
        let features = beside(&symbol, features);
        let symbol = symbol.expand([batch as i64, time as i64, -1]); // [batch, time, symbol_width]
        let x = Tensor::cat(vec![features, symbol], 2); // [batch, time, features + symbol_width]
        let layers: Vec<LstmWeights> = self.layers.iter().map(Layer::weights).collect();
        let (x, _) = ops.lstm(x, &layers, None, self.dropout); // [batch, time, hidden]
        let last = x.narrow(1, time - 1, 1).squeeze_dim::<2>(1); // [batch, hidden]
        self.head.forward(ops.dropout(last, self.dropout), ops)
    }
}

impl Architecture for PanelLstm {
    type Settings = kinds::PanelLstm;

    fn build(
        settings: &kinds::PanelLstm,
        facts: Facts<'_>,
        init: &Init,
    ) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.panel()?, init))
    }

    fn outputs(&self, input: Input, _memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Panel { features, symbols } = input else {
            unread()
        };
        self.forward(features, symbols, ops)
    }
}
