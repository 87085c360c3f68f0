//! The operations on libtorch: each one fused kernel of the shim with its own backward.

use burn::tensor::{DType, Int, Tensor};
use kiln_core::spec::Precision;

use super::{
    AddedToScores, After, ConvGeometry, ConvNormWeights, LAYER_NORM_EPSILON, LstmState,
    LstmWeights, Operations, RMS_NORM_EPSILON, in_groups, plain,
};
use crate::engine::{
    island::{
        FloatInput, attention_island, conv_norm_island, island, largest, lstm_island, product,
        residual_norm_island,
    },
    kernels::{AttentionSettings, ConvSettings, NormSettings, Operation, Way},
    precision::ProductFormat,
};

/// Layers of an LSTM that run as one operation.
const LAYERS_AT_ONCE: usize = 4;

/// Settings of one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FusedOps {
    products: ProductFormat,
    training: bool,
    /// Whether it takes the ways that are meant for CUDA.
    on_cuda: bool,
}

impl FusedOps {
    pub(super) fn new(precision: Precision) -> Self {
        Self {
            products: ProductFormat::of(precision),
            training: true,
            on_cuda: false,
        }
    }

    pub(super) fn on_cuda(self, on_cuda: bool) -> Self {
        Self { on_cuda, ..self }
    }

    pub(super) fn evaluating(self) -> Self {
        Self {
            training: false,
            ..self
        }
    }

    fn summed(self, bias: Option<Tensor<3>>, mask: Option<Tensor<4>>) -> Option<Tensor<4>> {
        // A bias that was looked up has its heads innermost, and so would the sum.
        let of_bias = bias.map(|bias| in_order(plain(bias)).unsqueeze_dim::<4>(0));
        let sum = match (of_bias, mask) {
            (Some(bias), Some(mask)) => {
                let dtype = bias.dtype();
                bias + mask.cast(dtype)
            }
            (bias, mask) => bias.or(mask)?,
        };
        let sum = match self.products {
            ProductFormat::OfWeights => sum,
            ProductFormat::Bf16 => sum.cast(DType::BF16),
            ProductFormat::F16 => sum.cast(DType::F16),
        };
        Some(if self.on_cuda { in_eights(sum) } else { sum })
    }

    fn attention(self, heads: usize, dropout: f64) -> AttentionSettings {
        AttentionSettings {
            heads: heads as i64,
            dropout: if self.training { dropout } else { 0.0 },
            way: Way::Best,
        }
    }

    /// One where values are dropped between layers: cuDNN would do it with a state of its own, which
    /// libtorch rebuilds after each seed, and reads from the device.
    fn layers_at_once(self, dropout: f64) -> usize {
        if self.training && dropout > 0.0 {
            1
        } else {
            LAYERS_AT_ONCE
        }
    }

    fn lstm_group(
        self,
        x: Tensor<3>,
        layers: &[LstmWeights],
        states: [Tensor<3>; 2],
    ) -> (Tensor<3>, [Tensor<3>; 2]) {
        let four = |layer: &LstmWeights| -> [FloatInput; 4] {
            [
                layer.input.clone().into(),
                layer.state.clone().into(),
                layer.input_bias.clone().into(),
                layer.state_bias.clone().into(),
            ]
        };
        let mut inputs = std::iter::once(x.into()).chain(layers.iter().flat_map(four));
        let mut next = |_| inputs.next().expect("four weights for each layer");
        match layers.len() {
            1 => lstm_island::<5>(std::array::from_fn(&mut next), states, self.products),
            2 => lstm_island::<9>(std::array::from_fn(&mut next), states, self.products),
            3 => lstm_island::<13>(std::array::from_fn(&mut next), states, self.products),
            _ => lstm_island::<17>(std::array::from_fn(&mut next), states, self.products),
        }
    }
}

impl Operations for FusedOps {
    fn linear<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        let products = self.products;
        with_bias(Operation::Linear { products }, x, weight, bias)
    }

    fn linears(self, x: Tensor<3>, weights: &[Tensor<2>]) -> Tensor<3> {
        let operation = Operation::Linears {
            products: self.products,
        };
        match weights {
            [first, second] => island(
                operation,
                [x.into(), first.clone().into(), second.clone().into()],
                None,
            ),
            [first, second, third] => island(
                operation,
                [
                    x.into(),
                    first.clone().into(),
                    second.clone().into(),
                    third.clone().into(),
                ],
                None,
            ),
            _ => unreachable!("attention projects to two or three"),
        }
    }

    fn embedding(self, table: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
        let ([batch, time], [_, width]) = (indices.dims(), table.dims());
        let rows: Tensor<2> = island(
            Operation::Embedding,
            [table.into()],
            Some(indices.flatten(0, 1)),
        );
        rows.reshape([batch, time, width])
    }

    fn layer_norm<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        layer_norm_island(x, weight, bias, ProductFormat::OfWeights)
    }

    fn layer_norm_for_products<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        layer_norm_island(x, weight, bias, self.products)
    }

    fn rms_norm(self, x: Tensor<3>, weight: Tensor<1>) -> Tensor<3> {
        island(
            Operation::RmsNorm {
                epsilon: RMS_NORM_EPSILON,
            },
            [x.into(), weight.into()],
            None,
        )
    }

    fn causal_attention(self, qkv: Tensor<3>, heads: usize, dropout: f64) -> Tensor<3> {
        let operation = Operation::CausalAttention {
            heads: heads as i64,
            dropout: if self.training { dropout } else { 0.0 },
        };
        island(operation, [qkv.into()], None)
    }

    fn added_to_scores(self, bias: Option<Tensor<3>>, mask: Option<Tensor<4>>) -> AddedToScores {
        let sum = self.summed(bias.clone(), mask.clone());
        AddedToScores { bias, mask, sum }
    }

    fn self_attention(
        self,
        qkv: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        let settings = self.attention(heads, dropout);
        match added.bias.clone() {
            Some(bias) => {
                attention_island([qkv.into(), bias.into()], added.sum.clone(), true, settings)
            }
            None => attention_island([qkv.into()], added.sum.clone(), false, settings),
        }
    }

    fn attention_to(
        self,
        queries: Tensor<3>,
        keys_values: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        let settings = self.attention(heads, dropout);
        match added.bias.clone() {
            Some(bias) => attention_island(
                [queries.into(), keys_values.into(), bias.into()],
                added.sum.clone(),
                true,
                settings,
            ),
            None => attention_island(
                [queries.into(), keys_values.into()],
                added.sum.clone(),
                false,
                settings,
            ),
        }
    }

    fn relu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        island(Operation::Relu, [x.into()], None)
    }

    fn gelu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        island(Operation::Gelu, [x.into()], None)
    }

    fn product(self, left: Tensor<2>, right: Tensor<2>) -> Tensor<2> {
        product(left, right)
    }

    fn largest(self, x: Tensor<2>, count: usize) -> (Tensor<2>, Tensor<2, Int>) {
        largest(x, count)
    }

    fn dropout<const D: usize>(self, x: Tensor<D>, probability: f64) -> Tensor<D> {
        if !self.training || probability == 0.0 {
            return x;
        }
        island(Operation::Dropout { probability }, [x.into()], None)
    }

    fn residual(self, stream: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
        island(Operation::Residual, [stream.into(), branch.into()], None)
    }

    fn residual_norm(
        self,
        stream: Tensor<3>,
        branch: Tensor<3>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> (Tensor<3>, Tensor<3>) {
        let Some(bias) = bias else {
            let sum = self.residual(stream, branch);
            return (sum.clone(), self.layer_norm_for_products(sum, weight, None));
        };
        let settings = NormSettings {
            epsilon: LAYER_NORM_EPSILON,
            products: self.products,
        };
        residual_norm_island(
            [stream.into(), branch.into(), weight.into(), bias.into()],
            settings,
        )
    }

    fn lstm(
        self,
        x: Tensor<3>,
        layers: &[LstmWeights],
        state: Option<LstmState>,
        dropout: f64,
    ) -> (Tensor<3>, LstmState) {
        in_groups(
            x,
            layers,
            state,
            self.layers_at_once(dropout),
            |x| self.dropout(x, dropout),
            |x, group, states| self.lstm_group(x, group, states),
        )
    }

    fn conv_norm(
        self,
        x: Tensor<4>,
        weights: ConvNormWeights,
        geometry: ConvGeometry,
        after: After,
    ) -> Tensor<4> {
        let settings = ConvSettings {
            stride: geometry.stride as i64,
            padding: geometry.padding as i64,
            relu: !matches!(after, After::Nothing),
            training: self.training,
            products: self.products,
            of_input: true,
        };
        let ConvNormWeights {
            weight,
            gain,
            shift,
            stats,
        } = weights;
        // The tensors are the statistics' own: they are written in place.
        let stats = stats.get();
        match after {
            After::SumRelu(residual) => conv_norm_island(
                [
                    x.into(),
                    weight.into(),
                    gain.into(),
                    shift.into(),
                    residual.into(),
                ],
                &stats,
                settings,
            ),
            _ => conv_norm_island(
                [x.into(), weight.into(), gain.into(), shift.into()],
                &stats,
                settings,
            ),
        }
    }

    fn max_pool(self, x: Tensor<4>) -> Tensor<4> {
        island(Operation::MaxPool, [x.into()], None)
    }

    fn cross_entropy(
        self,
        logits: Tensor<2>,
        targets: Tensor<1, Int>,
        smoothing: f64,
    ) -> Tensor<1> {
        island(
            Operation::CrossEntropy {
                reuse: false,
                smoothing,
            },
            [logits.into()],
            Some(targets),
        )
    }

    fn squared_error(self, outputs: Tensor<2>, targets: Tensor<1>) -> Tensor<1> {
        island(
            Operation::SquaredError,
            [outputs.into(), targets.into()],
            None,
        )
    }
}

/// The same values in memory in the order of the axes.
fn in_order(bias: Tensor<3>) -> Tensor<3> {
    let dims = bias.dims();
    bias.flatten::<1>(0, 2).reshape(dims)
}

/// The same values in rows that begin at every eighth place, which is how libtorch's fused
/// attention reads a mask: otherwise each layer would make such a copy for itself, and keep it for
/// its backward pass.
fn in_eights(mask: Tensor<4>) -> Tensor<4> {
    let [batch, heads, time, seen] = mask.dims();
    if seen % 8 == 0 {
        return mask;
    }
    let whole = Tensor::zeros(
        [batch, heads, time, seen.next_multiple_of(8)],
        (&mask.device(), mask.dtype()),
    );
    whole
        .slice_assign([0..batch, 0..heads, 0..time, 0..seen], mask)
        .narrow(3, 0, seen)
}

fn layer_norm_island<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    products: ProductFormat,
) -> Tensor<D> {
    let operation = Operation::LayerNorm {
        epsilon: LAYER_NORM_EPSILON,
        products,
    };
    with_bias(operation, x, weight, bias)
}

fn with_bias<const D: usize, const E: usize>(
    operation: Operation,
    x: Tensor<D>,
    weight: Tensor<E>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    match bias {
        Some(bias) => island(operation, [x.into(), weight.into(), bias.into()], None),
        None => island(operation, [x.into(), weight.into()], None),
    }
}
