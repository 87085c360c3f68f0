//! `panel-lstm`: one recurrent network for many series; its keys, parameter count and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Content, InputShape, data::PanelShape, model::ModelKind};

/// Recurrent network over windows of a panel: the symbol's embedding is concatenated with each
/// row's features; LSTM layers; one output from the last row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PanelLstm {
    /// Rows per sample, oldest first.
    #[serde(default = "seq_len")]
    #[schemars(range(min = 1, max = 65_536))]
    pub seq_len: u64,
    /// Width of a symbol's embedding.
    #[serde(default = "symbol_width")]
    #[schemars(range(min = 1, max = 65_536))]
    pub symbol_width: u64,
    /// Width of the state of each layer.
    #[serde(default = "hidden")]
    #[schemars(range(min = 1, max = 65_536))]
    pub hidden: u64,
    /// LSTM layers, one on top of the other.
    #[serde(default = "num_layers")]
    #[schemars(range(min = 1, max = 256))]
    pub num_layers: u64,
    /// Dropout probability between layers and before the output.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.95))]
    pub dropout: f64,
}

fn seq_len() -> u64 {
    30
}
fn symbol_width() -> u64 {
    64
}
fn hidden() -> u64 {
    256
}
fn num_layers() -> u64 {
    3
}

impl PanelLstm {
    /// Weights of the matrix products of all layers, per row.
    fn layer_weights(&self, input: PanelShape) -> u64 {
        let h = self.hidden;
        4 * h * (input.features + self.symbol_width + h) + (self.num_layers - 1) * 4 * h * 2 * h
    }

    /// Each layer has two biases per gate, as in PyTorch.
    fn parameters_with(&self, input: PanelShape) -> u64 {
        let biases = self.num_layers * 8 * self.hidden;
        input.symbols * self.symbol_width + self.layer_weights(input) + biases + self.hidden + 1
    }

    /// 6 N per row, where N counts the weights of the layers' products, plus 6 per weight of the
    /// output, once. Source: `docs/measurement.md` 8. `None` if the result exceeds a `u64`.
    fn flops_with(&self, input: PanelShape) -> Option<u64> {
        let rows = u128::from(self.layer_weights(input)) * u128::from(self.seq_len);
        u64::try_from(6 * (rows + u128::from(self.hidden))).ok()
    }
}

impl ModelKind for PanelLstm {
    fn kind(&self) -> &'static str {
        "panel-lstm"
    }

    fn reads(&self) -> Content {
        Content::Panel
    }

    fn seq_len(&self) -> Option<u64> {
        Some(self.seq_len)
    }

    fn parameters(&self, input: Option<InputShape>) -> Option<u64> {
        Some(self.parameters_with(input?.panel()?))
    }

    fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64> {
        self.flops_with(input?.panel()?)
    }

    fn flops_formula(&self) -> &'static str {
        "6N"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_flops_are_those_of_the_layers_written_out() {
        let model = PanelLstm {
            seq_len: 30,
            symbol_width: 64,
            hidden: 256,
            num_layers: 3,
            dropout: 0.0,
        };
        let input = PanelShape {
            features: 6,
            symbols: 88,
        };
        let (first, other) = (4 * 256 * (70 + 256), 4 * 256 * 512);
        assert_eq!(
            model.parameters_with(input),
            88 * 64 + first + 2 * other + 3 * 2048 + 257
        );
        assert_eq!(
            model.flops_with(input),
            Some(6 * (30 * (first + 2 * other) + 256))
        );
    }
}
