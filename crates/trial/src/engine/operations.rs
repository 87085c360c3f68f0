//! The operations that models are written in, with one meaning on two engines.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{
    Bool, Device, Distribution, Int, Tensor, activation, module,
    ops::{ConvOptions, MaxPoolOptions},
};
use kiln_core::spec::{Engine, Precision};

use super::precision::Products;
#[cfg(feature = "libtorch")]
use super::{
    island::{FloatInput, attention_island, conv_norm_island, island, lstm_island},
    kernels::{AttentionSettings, ConvSettings, LstmSettings, Operation, Way},
};
use crate::error::TrialError;

/// A target with this value counts neither in the loss nor in the number of targets.
pub const IGNORED_TARGET: i64 = -100;

/// The weights of one LSTM layer, gates in PyTorch's order: input, forget, cell, output.
#[derive(Clone, Debug)]
pub struct LstmWeights {
    pub input: Tensor<2>,      // [4 × hidden, in]
    pub state: Tensor<2>,      // [4 × hidden, hidden]
    pub input_bias: Tensor<1>, // [4 × hidden]
    pub state_bias: Tensor<1>, // [4 × hidden]
}

/// The states of LSTM layers, not part of any graph.
#[derive(Clone, Debug)]
pub struct LstmState {
    pub hidden: Tensor<3>, // [layers, batch, hidden]
    pub cell: Tensor<3>,   // [layers, batch, hidden]
}

impl LstmState {
    fn layers(&self, first: usize, count: usize) -> [Tensor<3>; 2] {
        [&self.hidden, &self.cell].map(|state| state.clone().narrow(0, first, count))
    }

    /// The states of the first `rows` rows of the batch.
    pub fn of_rows(self, rows: usize) -> Self {
        let [hidden, cell] = [self.hidden, self.cell].map(|state| {
            if state.dims()[1] == rows {
                state
            } else {
                state.narrow(1, 0, rows)
            }
        });
        Self { hidden, cell }
    }
}

/// Terms that are added to the scores of attention before the softmax; made once for all layers
/// that share them.
#[derive(Clone, Debug)]
pub struct AddedToScores {
    /// Learned; gets a gradient.
    bias: Option<Tensor<3>>, // [heads, time, time']
    /// 0, or −∞ where nothing may be seen.
    mask: Option<Tensor<4>>, // [batch or 1, 1, time or 1, time']
    /// The sum of both in the dtype of products, not part of any graph: what libtorch adds.
    #[cfg(feature = "libtorch")]
    sum: Option<Tensor<4>>, // [batch or 1, heads or 1, time or 1, time']
}

/// The weights of a convolution and of the norm after it, with the norm's running statistics.
#[derive(Clone, Debug)]
pub struct ConvNormWeights {
    pub weight: Tensor<4>, // [out, in, kernel, kernel]
    pub gain: Tensor<1>,   // [out]
    pub shift: Tensor<1>,  // [out]
    pub stats: RunningStats,
}

/// Steps between pieces, and zeros around the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvGeometry {
    pub stride: usize,
    pub padding: usize,
}

/// The operation after a convolution's norm.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per operation, and it is moved once"
)]
pub enum After {
    Nothing,
    Relu,
    /// The sum with this, as large as the output, then the rectifier.
    SumRelu(Tensor<4>),
}

/// Mean and variance [channels] of a norm over the batches so far: no parameters, in f32, and of
/// one network whatever its copies.
#[derive(Clone, Debug)]
pub struct RunningStats(Arc<Mutex<[Tensor<1>; 2]>>);

/// Share of a batch's statistics in the running ones, and what is added to a variance. Source:
/// PyTorch's defaults.
const MOMENTUM: f64 = 0.1;
const NORM_EPSILON: f64 = 1e-5;

impl RunningStats {
    /// Mean 0 and variance 1 for so many channels; `device` takes no gradients.
    pub fn new(channels: usize, device: &Device) -> Self {
        Self(Arc::new(Mutex::new([
            Tensor::zeros([channels], device),
            Tensor::ones([channels], device),
        ])))
    }

    /// Mean and variance.
    pub fn get(&self) -> [Tensor<1>; 2] {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set(&self, stats: [Tensor<1>; 2]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// Settings of one pass: engine, precision, with or without dropout. Passed down a model's forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ops {
    engine: Engine,
    #[cfg_attr(
        not(feature = "libtorch"),
        allow(dead_code, reason = "flex computes in f32")
    )]
    products: Products,
    training: bool,
    /// Whether it takes the ways that are meant for CUDA.
    on_cuda: bool,
}

impl Ops {
    /// Errors: flex computes in f32 only.
    pub fn new(engine: Engine, precision: Precision) -> Result<Self, TrialError> {
        if engine == Engine::Flex && precision != Precision::F32 {
            let text = format!(
                "`train.precision` {} needs `run.engine` libtorch; flex computes in f32",
                precision.name()
            );
            return Err(TrialError::Bad(text));
        }
        Ok(Self {
            engine,
            products: Products::of(precision),
            training: true,
            on_cuda: false,
        })
    }

    /// The same as it is done on CUDA: one layer of an LSTM at a time where there is dropout
    /// between them, and masks in eights.
    pub fn on_cuda(self, on_cuda: bool) -> Self {
        Self { on_cuda, ..self }
    }

    /// The same without dropout.
    pub fn evaluating(self) -> Self {
        Self {
            training: false,
            ..self
        }
    }

    #[cfg(feature = "libtorch")]
    fn is_fused(self) -> bool {
        self.engine == Engine::Libtorch
    }

    /// x wᵀ + b: x [.., in], weight [out, in], bias [out]; out [.., out], in the narrow format
    /// under mixed precision.
    pub fn linear<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::Linear {
                products: self.products,
            };
            return match bias {
                Some(bias) => island(operation, [x.into(), weight.into(), bias.into()], None),
                None => island(operation, [x.into(), weight.into()], None),
            };
        }
        let [out_features, in_features] = weight.dims();
        let mut dims = x.dims();
        let rows = dims.iter().product::<usize>() / in_features;
        dims[D - 1] = out_features;
        let product = x.reshape([rows, in_features]).matmul(weight.transpose()); // [rows, out]
        let product = match bias {
            Some(bias) => product + bias.unsqueeze::<2>(),
            None => product,
        };
        product.reshape(dims)
    }

    /// Rows of `table` [rows, width] named by `indices` [batch, time]; out [batch, time, width].
    pub fn embedding(self, table: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let ([batch, time], [_, width]) = (indices.dims(), table.dims());
            let rows: Tensor<2> = island(
                Operation::Embedding,
                [table.into()],
                Some(indices.flatten(0, 1)),
            );
            return rows.reshape([batch, time, width]);
        }
        module::embedding(table, indices)
    }

    /// Layer norm over the last axis of x, with gain `weight` and shift `bias`, both [width];
    /// epsilon 1e-5 as in PyTorch.
    pub fn layer_norm<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        const EPSILON: f64 = 1e-5;
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::LayerNorm { epsilon: EPSILON };
            return match bias {
                Some(bias) => island(operation, [x.into(), weight.into(), bias.into()], None),
                None => island(operation, [x.into(), weight.into()], None),
            };
        }
        let (variance, mean) = x.clone().var_mean_bias(D - 1);
        let normed = (x - mean) / (variance + EPSILON).sqrt() * weight.unsqueeze::<D>();
        match bias {
            Some(bias) => normed + bias.unsqueeze::<D>(),
            None => normed,
        }
    }

    /// Causal attention of `heads` heads. qkv [batch, time, 3 × width]: queries, keys, values side
    /// by side; out [batch, time, width]. Random: drops attention weights in training.
    pub fn causal_attention(self, qkv: Tensor<3>, heads: usize, dropout: f64) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::CausalAttention {
                heads: heads as i64,
                dropout: if self.training { dropout } else { 0.0 },
            };
            return island(operation, [qkv.into()], None);
        }
        let [batch, time, width] = qkv.dims();
        let (width, head_dim) = (width / 3, width / 3 / heads);
        let mut parts = qkv
            .chunk(3, 2)
            .into_iter()
            .map(|part| part.reshape([batch, time, heads, head_dim]).swap_dims(1, 2));
        let mut next = || parts.next().expect("three parts were asked for"); // [batch, heads, time, head_dim]
        let (queries, keys, values) = (next(), next(), next());
        let scores = queries.matmul(keys.transpose()) / (head_dim as f64).sqrt(); // [batch, heads, time, time]
        let later =
            Tensor::<2, Bool>::tril_mask([time, time], 0, &scores.device()).unsqueeze::<4>();
        let weights = self.dropout(
            activation::softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3),
            dropout,
        );
        weights
            .matmul(values)
            .swap_dims(1, 2)
            .reshape([batch, time, width])
    }

    /// x wᵀ for two or three weights [out, in], side by side: x [batch, time, in]; out [batch,
    /// time, out of all], as [`Ops::linear`] has it.
    pub fn linears(self, x: Tensor<3>, weights: &[Tensor<2>]) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::Linears {
                products: self.products,
            };
            return match weights {
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
            };
        }
        Tensor::cat(
            weights
                .iter()
                .map(|weight| self.linear(x.clone(), weight.clone(), None))
                .collect(),
            2,
        )
    }

    /// x over the root of its mean square along the last axis, times `weight` [width]. Source:
    /// Zhang & Sennrich 2019 (arXiv 1910.07467); T5 has epsilon 1e-6.
    pub fn rms_norm(self, x: Tensor<3>, weight: Tensor<1>) -> Tensor<3> {
        const EPSILON: f64 = 1e-6;
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(
                Operation::RmsNorm { epsilon: EPSILON },
                [x.into(), weight.into()],
                None,
            );
        }
        let root = (x.clone().square().mean_dim(2) + EPSILON).sqrt(); // [batch, time, 1]
        x / root * weight.unsqueeze::<3>()
    }

    /// Makes the terms that several layers add to their attention scores: a learned bias [heads,
    /// time, time'], and a mask of 0 and −∞ that spreads to [batch, heads, time, time'].
    pub fn added_to_scores(
        self,
        bias: Option<Tensor<3>>,
        mask: Option<Tensor<4>>,
    ) -> AddedToScores {
        #[cfg(feature = "libtorch")]
        let sum = if self.is_fused() {
            self.summed(bias.clone(), mask.clone())
        } else {
            None
        };
        AddedToScores {
            bias,
            mask,
            #[cfg(feature = "libtorch")]
            sum,
        }
    }

    #[cfg(feature = "libtorch")]
    fn summed(self, bias: Option<Tensor<3>>, mask: Option<Tensor<4>>) -> Option<Tensor<4>> {
        let of_bias = bias.map(|bias| plain(bias).unsqueeze_dim::<4>(0));
        let sum = match (of_bias, mask) {
            (Some(bias), Some(mask)) => {
                let dtype = bias.dtype();
                bias + mask.cast(dtype)
            }
            (bias, mask) => bias.or(mask)?,
        };
        let sum = match self.products {
            Products::OfWeights => sum,
            Products::Bf16 => sum.cast(burn::tensor::DType::BF16),
            Products::F16 => sum.cast(burn::tensor::DType::F16),
        };
        Some(if self.on_cuda { in_eights(sum) } else { sum })
    }

    /// Attention of a sequence to itself, scores not scaled. qkv [batch, time, 3 × inner]: queries,
    /// keys and values side by side; out [batch, time, inner]. Random: drops attention weights in
    /// training.
    pub fn self_attention(
        self,
        qkv: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let with = self.attention(heads, dropout);
            return match added.bias.clone() {
                Some(bias) => {
                    attention_island([qkv.into(), bias.into()], added.sum.clone(), true, with)
                }
                None => attention_island([qkv.into()], added.sum.clone(), false, with),
            };
        }
        let [_, _, width] = qkv.dims();
        let inner = width / 3;
        let rest = qkv.clone().narrow(2, inner, 2 * inner);
        self.composed_attention(qkv.narrow(2, 0, inner), rest, added, heads, dropout)
    }

    /// Attention to another sequence, or to the cached own keys and values: queries [batch, time,
    /// inner], keys and values side by side [batch, time', 2 × inner]; out [batch, time, inner].
    /// Random: as above.
    pub fn attention_to(
        self,
        queries: Tensor<3>,
        keys_values: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let with = self.attention(heads, dropout);
            return match added.bias.clone() {
                Some(bias) => attention_island(
                    [queries.into(), keys_values.into(), bias.into()],
                    added.sum.clone(),
                    true,
                    with,
                ),
                None => attention_island(
                    [queries.into(), keys_values.into()],
                    added.sum.clone(),
                    false,
                    with,
                ),
            };
        }
        self.composed_attention(queries, keys_values, added, heads, dropout)
    }

    #[cfg(feature = "libtorch")]
    fn attention(self, heads: usize, dropout: f64) -> AttentionSettings {
        AttentionSettings {
            heads: heads as i64,
            dropout: if self.training { dropout } else { 0.0 },
            way: Way::Best,
        }
    }

    fn composed_attention(
        self,
        queries: Tensor<3>,
        keys_values: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        let [batch, time, inner] = queries.dims();
        let by_head = |part: Tensor<3>| {
            let [batch, time, _] = part.dims();
            part.reshape([batch, time, heads, inner / heads])
                .swap_dims(1, 2) // [batch, heads, time, head_dim]
        };
        let (keys, values) = (
            keys_values.clone().narrow(2, 0, inner),
            keys_values.narrow(2, inner, inner),
        );
        let mut scores = by_head(queries).matmul(by_head(keys).transpose()); // [batch, heads, time, time']
        if let Some(bias) = added.bias.clone() {
            scores = scores + bias.unsqueeze_dim::<4>(0);
        }
        if let Some(mask) = added.mask.clone() {
            scores = if scores.is_autodiff() {
                scores + mask.autodiff()
            } else {
                scores + mask
            };
        }
        let weights = self.dropout(activation::softmax(scores, 3), dropout);
        weights
            .matmul(by_head(values))
            .swap_dims(1, 2)
            .reshape([batch, time, inner])
    }

    /// The larger of each value and 0.
    pub fn relu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Relu, [x.into()], None);
        }
        activation::relu(x)
    }

    /// The `count` largest values of each row of x [rows, columns], the largest first, and their
    /// columns; both [rows, count]. Not part of any graph.
    pub fn largest(self, x: Tensor<2>, count: usize) -> (Tensor<2>, Tensor<2, Int>) {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return super::island::largest(x, count);
        }
        x.topk_with_indices(count, 1)
    }

    /// Gaussian error linear unit, by the error function.
    pub fn gelu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Gelu, [x.into()], None);
        }
        activation::gelu(x)
    }

    /// In training zeroes each value with `probability` and scales the others by 1 / (1 −
    /// probability). Random.
    pub fn dropout<const D: usize>(self, x: Tensor<D>, probability: f64) -> Tensor<D> {
        if !self.training || probability == 0.0 {
            return x;
        }
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Dropout { probability }, [x.into()], None);
        }
        let keep = 1.0 - probability;
        let mask = Tensor::<D>::random(x.dims(), Distribution::Bernoulli(keep), &x.device());
        x * mask / keep
    }

    /// stream + branch, both [batch, time, width]; the stream stays f32 when the branch is
    /// narrower.
    pub fn residual(self, stream: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Residual, [stream.into(), branch.into()], None);
        }
        stream + branch
    }

    /// LSTM layers, one on top of the other, from `state` or from zeros; dropout between them in
    /// training. x [batch, time, in]; out: the last layer's outputs [batch, time, hidden] and the
    /// states after the last time. Random: dropout.
    pub fn lstm(
        self,
        x: Tensor<3>,
        layers: &[LstmWeights],
        state: Option<LstmState>,
        dropout: f64,
    ) -> (Tensor<3>, LstmState) {
        let state = state.unwrap_or_else(|| zero_state(&x, layers));
        let mut x = x;
        let (mut hidden, mut cell) = (Vec::new(), Vec::new());
        let at_once = self.layers_at_once(dropout);
        for (at, group) in layers.chunks(at_once).enumerate() {
            let first = at * at_once;
            if first > 0 {
                x = self.dropout(x, dropout);
            }
            let (out, [h, c]) =
                self.lstm_group(x, group, state.layers(first, group.len()), dropout);
            x = out;
            hidden.push(h);
            cell.push(c);
        }
        (
            x,
            LstmState {
                hidden: one_after_the_other(hidden),
                cell: one_after_the_other(cell),
            },
        )
    }

    /// One where cuDNN would drop values between layers: it keeps its own state for that, which
    /// libtorch rebuilds after each seed, and reads from the device.
    fn layers_at_once(self, dropout: f64) -> usize {
        #[cfg(feature = "libtorch")]
        if self.is_fused() && !(self.on_cuda && self.training && dropout > 0.0) {
            return 4;
        }
        let _ = dropout;
        1
    }

    fn lstm_group(
        self,
        x: Tensor<3>,
        layers: &[LstmWeights],
        states: [Tensor<3>; 2],
        dropout: f64,
    ) -> (Tensor<3>, [Tensor<3>; 2]) {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            // Behind the last layer of a group it is dropped outside.
            let between = if self.training && layers.len() > 1 {
                dropout
            } else {
                0.0
            };
            let with = LstmSettings {
                dropout: between,
                products: self.products,
            };
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
            return match layers.len() {
                1 => lstm_island::<5>(std::array::from_fn(&mut next), states, with),
                2 => lstm_island::<9>(std::array::from_fn(&mut next), states, with),
                3 => lstm_island::<13>(std::array::from_fn(&mut next), states, with),
                _ => lstm_island::<17>(std::array::from_fn(&mut next), states, with),
            };
        }
        let _ = dropout;
        self.composed_lstm(x, &layers[0], states)
    }

    /// One layer, time by time.
    fn composed_lstm(
        self,
        x: Tensor<3>,
        weights: &LstmWeights,
        states: [Tensor<3>; 2],
    ) -> (Tensor<3>, [Tensor<3>; 2]) {
        let is_tracked = x.is_autodiff();
        let [mut hidden, mut cell] = states.map(|state| {
            let state = state.squeeze_dim::<2>(0); // [batch, hidden]
            if is_tracked { state.autodiff() } else { state }
        });
        let [_, time, _] = x.dims();
        let from_input = self.linear(x, weights.input.clone(), Some(weights.input_bias.clone())); // [batch, time, 4 × hidden]
        let mut outputs = Vec::with_capacity(time);
        for at in 0..time {
            let from_state = self.linear(
                hidden,
                weights.state.clone(),
                Some(weights.state_bias.clone()),
            ); // [batch, 4 × hidden]
            let gates = from_input.clone().narrow(1, at, 1).squeeze_dim::<2>(1) + from_state;
            let mut gates = gates.chunk(4, 1).into_iter();
            let mut next = || gates.next().expect("four gates were asked for"); // [batch, hidden]
            let (input, forget, candidate, output) = (
                activation::sigmoid(next()),
                activation::sigmoid(next()),
                activation::tanh(next()),
                activation::sigmoid(next()),
            );
            cell = forget * cell + input * candidate;
            hidden = output * activation::tanh(cell.clone());
            outputs.push(hidden.clone());
        }
        let last = [hidden, cell].map(|state| plain(state).unsqueeze_dim::<3>(0));
        (Tensor::stack(outputs, 1), last)
    }

    /// A convolution without bias, batch norm, and what follows. x [batch, in, height, width]; out
    /// [batch, out, …]. In training the norm is the batch's own and moves the running statistics,
    /// which serve in evaluation.
    pub fn conv_norm(
        self,
        x: Tensor<4>,
        weights: ConvNormWeights,
        geometry: ConvGeometry,
        after: After,
    ) -> Tensor<4> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let with = ConvSettings {
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
            return match after {
                After::SumRelu(residual) => conv_norm_island(
                    [
                        x.into(),
                        weight.into(),
                        gain.into(),
                        shift.into(),
                        residual.into(),
                    ],
                    &stats,
                    with,
                ),
                _ => conv_norm_island(
                    [x.into(), weight.into(), gain.into(), shift.into()],
                    &stats,
                    with,
                ),
            };
        }
        let options = ConvOptions::new([geometry.stride; 2], [geometry.padding; 2], [1; 2], 1);
        let made = module::conv2d(x, weights.weight, None, options);
        let normed = self.batch_norm(made, weights.gain, weights.shift, &weights.stats);
        match after {
            After::Nothing => normed,
            After::Relu => activation::relu(normed),
            After::SumRelu(residual) => activation::relu(normed + residual),
        }
    }

    fn batch_norm(
        self,
        x: Tensor<4>,
        gain: Tensor<1>,
        shift: Tensor<1>,
        stats: &RunningStats,
    ) -> Tensor<4> {
        let [batch, channels, height, width] = x.dims();
        let per_channel = |values: Tensor<1>| values.reshape([1, channels, 1, 1]);
        let [mean, variance] = if self.training {
            let flat = x
                .clone()
                .swap_dims(0, 1)
                .reshape([channels, batch * height * width]);
            let (variance, mean) = flat.var_mean_bias(1); // [channels, 1]
            let [mean, variance] = [mean, variance].map(|values| values.reshape([channels]));
            let count = (batch * height * width) as f64;
            let unbiased = plain(variance.clone()) * (count / (count - 1.0).max(1.0));
            let [old_mean, old_variance] = stats.get();
            let moved = |old: Tensor<1>, new: Tensor<1>| old * (1.0 - MOMENTUM) + new * MOMENTUM;
            stats.set([
                moved(old_mean, plain(mean.clone())),
                moved(old_variance, unbiased),
            ]);
            [mean, variance]
        } else {
            stats.get()
        };
        (x - per_channel(mean)) / (per_channel(variance) + NORM_EPSILON).sqrt() * per_channel(gain)
            + per_channel(shift)
    }

    /// The largest of each 3 × 3 piece, every second one: [batch, channels, height, width] to half
    /// its height and width.
    pub fn max_pool(self, x: Tensor<4>) -> Tensor<4> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::MaxPool, [x.into()], None);
        }
        module::max_pool2d(
            x,
            MaxPoolOptions::new([3; 2])
                .with_stride([2; 2])
                .with_padding([1; 2]),
        )
    }

    /// Sum of the cross entropies, in nats and f32, of logits [rows, classes] and targets [rows];
    /// targets of [`IGNORED_TARGET`] are ignored. `smoothing` of each target is shared by all
    /// classes. Out [1].
    pub fn cross_entropy(
        self,
        logits: Tensor<2>,
        targets: Tensor<1, Int>,
        smoothing: f64,
    ) -> Tensor<1> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(
                Operation::CrossEntropy {
                    reuse: false,
                    smoothing,
                },
                [logits.into()],
                Some(targets),
            );
        }
        let counted = targets
            .clone()
            .not_equal_elem(IGNORED_TARGET)
            .float()
            .unsqueeze_dim::<2>(1); // [rows, 1]
        let named = targets.clamp_min(0).unsqueeze_dim::<2>(1);
        let all = activation::log_softmax(logits, 1);
        let chosen = all.clone().gather(1, named); // [rows, 1]
        let shared = chosen * (1.0 - smoothing) + all.mean_dim(1) * smoothing;
        (shared * counted).sum().neg()
    }
}

fn zero_state(x: &Tensor<3>, layers: &[LstmWeights]) -> LstmState {
    let ([batch, _, _], [_, hidden]) = (x.dims(), layers[0].state.dims());
    let zeros = || Tensor::zeros([layers.len(), batch, hidden], &plain(x.clone()).device());
    LstmState {
        hidden: zeros(),
        cell: zeros(),
    }
}

/// The states of groups of layers [layers, batch, hidden] as those of all layers; of one group they
/// are that already.
fn one_after_the_other(mut states: Vec<Tensor<3>>) -> Tensor<3> {
    if states.len() == 1 {
        states.remove(0)
    } else {
        Tensor::cat(states, 0)
    }
}

/// The same values in rows that begin at every eighth place, which is how libtorch's fused
/// attention reads a mask: otherwise each layer would make such a copy for itself, and keep it for
/// its backward pass.
#[cfg(feature = "libtorch")]
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

/// The tensor outside any graph.
fn plain<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.is_autodiff() {
        tensor.detach().inner()
    } else {
        tensor
    }
}

#[cfg(test)]
#[cfg(feature = "libtorch")]
#[allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]
mod tests {
    use burn::tensor::{DType, Device, Gradients, TensorData};

    use super::*;
    use crate::engine::{
        libtorch::force_cuda_branches,
        recorder::{RecordedOperator, record_operators},
    };

    /// Reads the gradient of one leaf.
    type Leaf<'a> = &'a dyn Fn(&Gradients) -> Vec<f32>;

    fn device(engine: Engine) -> Device {
        match engine {
            Engine::Libtorch => Device::libtorch().autodiff(),
            Engine::Flex => Device::flex().autodiff(),
        }
    }

    /// Values without pattern, the same on each engine.
    fn values<const D: usize>(shape: [usize; D], salt: usize, engine: Engine) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count)
            .map(|at| ((at * 37 + salt * 101) % 64) as f32 / 32.0 - 1.0)
            .collect();
        Tensor::from_data(TensorData::new(numbers, shape), &device(engine)).require_grad()
    }

    fn arithmetic(engine: Engine) -> Ops {
        Ops::new(engine, Precision::F32).unwrap()
    }

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    /// The output of an operation on leaves, and the leaves' gradients of its weighted sum.
    fn both_ways<const D: usize>(output: Tensor<D>, leaves: &[Leaf<'_>]) -> Vec<Vec<f32>> {
        let count: usize = output.dims().iter().product();
        let weights: Vec<f32> = (0..count)
            .map(|at| ((at * 11) % 7) as f32 / 7.0 - 0.4)
            .collect();
        let weights = Tensor::from_data(TensorData::new(weights, output.dims()), &output.device());
        let gradients = (output.clone() * weights).sum().backward();
        let mut found = vec![numbers(output)];
        found.extend(leaves.iter().map(|leaf| leaf(&gradients)));
        found
    }

    fn leaf<const D: usize>(tensor: &Tensor<D>) -> impl Fn(&Gradients) -> Vec<f32> {
        let tensor = tensor.clone();
        move |gradients| numbers(tensor.grad(gradients).expect("the leaf has a gradient"))
    }

    /// f32 sums of up to some hundred terms, in different orders.
    fn agree(operation: &str, on: impl Fn(Engine) -> Vec<Vec<f32>>) {
        agree_to(1e-5, operation, on);
    }

    fn agree_to(share: f32, operation: &str, on: impl Fn(Engine) -> Vec<Vec<f32>>) {
        let (fused, composed) = (on(Engine::Libtorch), on(Engine::Flex));
        for (part, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
            assert_eq!(fused.len(), composed.len(), "{operation}, part {part}");
            for (a, b) in fused.iter().zip(composed) {
                assert!(
                    (a - b).abs() <= share * a.abs().max(1.0),
                    "{operation}, part {part}: {a} {b}"
                );
            }
        }
    }

    /// Strides and few channels side by side are where libtorch's own kernels on the CPU go wrong.
    #[test]
    fn strided_convolutions_of_any_number_of_channels_equal_composed_ones() {
        for (channels, kernel, padding) in [
            (1, 1, 0),
            (3, 1, 0),
            (4, 1, 0),
            (7, 1, 0),
            (8, 1, 0),
            (12, 1, 0),
            (16, 1, 0),
            (20, 1, 0),
            (3, 3, 1),
            (4, 3, 1),
        ] {
            // A norm leaves little of a gradient where channels are few.
            agree_to(
                1e-4,
                &format!("a {kernel} × {kernel} convolution of {channels} channels"),
                |engine| {
                    let (x, weight) = (
                        values([2, channels, 7, 8], 1, engine),
                        values([6, channels, kernel, kernel], 2, engine),
                    );
                    let (gain, shift) = (values([6], 3, engine), values([6], 4, engine));
                    let stats = RunningStats::new(6, &device(engine).inner());
                    let weights = ConvNormWeights {
                        weight: weight.clone(),
                        gain: gain.clone(),
                        shift: shift.clone(),
                        stats,
                    };
                    let made = arithmetic(engine).conv_norm(
                        x.clone(),
                        weights,
                        ConvGeometry { stride: 2, padding },
                        After::Nothing,
                    );
                    both_ways(
                        made,
                        &[&leaf(&x), &leaf(&weight), &leaf(&gain), &leaf(&shift)],
                    )
                },
            );
        }
    }

    /// Hides the last two of six in the first row, the last in the second.
    fn hidden(shape: [usize; 4], engine: Engine) -> Tensor<4> {
        let none = f32::NEG_INFINITY;
        let values = vec![
            0.0, 0.0, 0.0, 0.0, none, none, 0.0, 0.0, 0.0, 0.0, 0.0, none,
        ];
        Tensor::from_data(TensorData::new(values, shape), &device(engine).inner())
    }

    #[test]
    fn fused_operations_equal_composed_ones_forward_and_backward() {
        agree("linear", |engine| {
            let (x, w, b) = (
                values([2, 3, 8], 1, engine),
                values([5, 8], 2, engine),
                values([5], 3, engine),
            );
            both_ways(
                arithmetic(engine).linear(x.clone(), w.clone(), Some(b.clone())),
                &[&leaf(&x), &leaf(&w), &leaf(&b)],
            )
        });
        agree("linear without bias", |engine| {
            let (x, w) = (values([6, 8], 1, engine), values([5, 8], 2, engine));
            both_ways(
                arithmetic(engine).linear(x.clone(), w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        });
        agree("layer norm", |engine| {
            let (x, w, b) = (
                values([2, 3, 8], 1, engine),
                values([8], 2, engine),
                values([8], 3, engine),
            );
            both_ways(
                arithmetic(engine).layer_norm(x.clone(), w.clone(), Some(b.clone())),
                &[&leaf(&x), &leaf(&w), &leaf(&b)],
            )
        });
        agree("layer norm without bias", |engine| {
            let (x, w) = (values([2, 3, 8], 1, engine), values([8], 2, engine));
            both_ways(
                arithmetic(engine).layer_norm(x.clone(), w.clone(), None),
                &[&leaf(&x), &leaf(&w)],
            )
        });
        agree("gelu", |engine| {
            let x = values([4, 16], 1, engine);
            both_ways(arithmetic(engine).gelu(x.clone()), &[&leaf(&x)])
        });
        agree("causal attention", |engine| {
            let qkv = values([2, 6, 24], 1, engine);
            both_ways(
                arithmetic(engine).causal_attention(qkv.clone(), 2, 0.0),
                &[&leaf(&qkv)],
            )
        });
        agree("linear layers side by side", |engine| {
            let (x, v, w) = (
                values([2, 3, 8], 1, engine),
                values([5, 8], 2, engine),
                values([4, 8], 3, engine),
            );
            both_ways(
                arithmetic(engine).linears(x.clone(), &[v.clone(), w.clone()]),
                &[&leaf(&x), &leaf(&v), &leaf(&w)],
            )
        });
        agree("three linear layers side by side", |engine| {
            let (x, v, w) = (
                values([2, 3, 8], 1, engine),
                values([5, 8], 2, engine),
                values([4, 8], 3, engine),
            );
            both_ways(
                arithmetic(engine).linears(x.clone(), &[w.clone(), v.clone(), w.clone()]),
                &[&leaf(&x), &leaf(&v), &leaf(&w)],
            )
        });
        agree("rms norm", |engine| {
            let (x, w) = (values([2, 3, 8], 1, engine), values([8], 2, engine));
            both_ways(
                arithmetic(engine).rms_norm(x.clone(), w.clone()),
                &[&leaf(&x), &leaf(&w)],
            )
        });
        agree("attention with a bias and a mask", |engine| {
            let (qkv, bias) = (values([2, 6, 24], 1, engine), values([2, 6, 6], 2, engine));
            let added = arithmetic(engine)
                .added_to_scores(Some(bias.clone()), Some(hidden([2, 1, 1, 6], engine)));
            both_ways(
                arithmetic(engine).self_attention(qkv.clone(), &added, 2, 0.0),
                &[&leaf(&qkv), &leaf(&bias)],
            )
        });
        agree("attention with a bias alone", |engine| {
            let (qkv, bias) = (values([2, 6, 24], 1, engine), values([2, 6, 6], 2, engine));
            let added = arithmetic(engine).added_to_scores(Some(bias.clone()), None);
            both_ways(
                arithmetic(engine).self_attention(qkv.clone(), &added, 2, 0.0),
                &[&leaf(&qkv), &leaf(&bias)],
            )
        });
        agree("attention to others with a mask", |engine| {
            let (q, kv) = (values([2, 3, 8], 1, engine), values([2, 6, 16], 2, engine));
            let added =
                arithmetic(engine).added_to_scores(None, Some(hidden([2, 1, 1, 6], engine)));
            both_ways(
                arithmetic(engine).attention_to(q.clone(), kv.clone(), &added, 2, 0.0),
                &[&leaf(&q), &leaf(&kv)],
            )
        });
        agree("attention to others with a bias", |engine| {
            let (q, kv, bias) = (
                values([2, 3, 8], 1, engine),
                values([2, 6, 16], 2, engine),
                values([2, 3, 6], 3, engine),
            );
            let added = arithmetic(engine).added_to_scores(Some(bias.clone()), None);
            both_ways(
                arithmetic(engine).attention_to(q.clone(), kv.clone(), &added, 2, 0.0),
                &[&leaf(&q), &leaf(&kv), &leaf(&bias)],
            )
        });
        agree("lstm", |engine| {
            let device = device(engine).inner();
            let state = |salt: usize| plain(values([2, 2, 3], salt, engine)).to_device(&device);
            let x = values([2, 5, 4], 1, engine);
            let [first, second] = [4, 3].map(|inputs| LstmWeights {
                input: values([12, inputs], 2, engine),
                state: values([12, 3], 3, engine),
                input_bias: values([12], 4, engine),
                state_bias: values([12], 5, engine),
            });
            let before = LstmState {
                hidden: state(6),
                cell: state(7),
            };
            let (out, after) = arithmetic(engine).lstm(
                x.clone(),
                &[first.clone(), second.clone()],
                Some(before),
                0.0,
            );
            let leaves: [Leaf<'_>; 4] = [
                &leaf(&x),
                &leaf(&first.input),
                &leaf(&second.state),
                &leaf(&second.state_bias),
            ];
            let mut found = both_ways(out, &leaves);
            found.extend([numbers(after.hidden), numbers(after.cell)]);
            found
        });
        agree("residual", |engine| {
            let (x, y) = (values([2, 3, 8], 1, engine), values([2, 3, 8], 2, engine));
            both_ways(
                arithmetic(engine).residual(x.clone(), y.clone()),
                &[&leaf(&x), &leaf(&y)],
            )
        });
        agree("embedding", |engine| {
            let table = values([7, 4], 1, engine);
            let indices =
                Tensor::<2, Int>::from_data([[0, 3, 3], [6, 0, 1]], &device(engine).inner());
            both_ways(
                arithmetic(engine).embedding(table.clone(), indices),
                &[&leaf(&table)],
            )
        });
        agree("cross entropy", |engine| {
            let logits = values([4, 9], 1, engine);
            let targets =
                Tensor::<1, Int>::from_data([2, IGNORED_TARGET, 8, 0], &device(engine).inner());
            both_ways(
                arithmetic(engine).cross_entropy(logits.clone(), targets, 0.0),
                &[&leaf(&logits)],
            )
        });
    }

    #[test]
    fn the_loss_does_not_write_over_logits_that_others_hold() {
        let logits = values([4, 9], 1, Engine::Libtorch) * 2.0;
        let before = numbers(logits.clone());
        let targets = Tensor::<1, Int>::from_data([2, 1, 8, 0], &Device::libtorch());
        let loss = arithmetic(Engine::Libtorch).cross_entropy(logits.clone(), targets, 0.0);
        drop(loss.backward());
        assert_eq!(numbers(logits), before);
    }

    #[test]
    fn the_mean_of_dropped_values_stays_and_the_gradient_has_the_same_mask() {
        for engine in [Engine::Libtorch, Engine::Flex] {
            let x = Tensor::<2>::ones([100, 100], &device(engine)).require_grad();
            let dropped = arithmetic(engine).dropout(x.clone(), 0.25);
            let gradient = x.grad(&dropped.clone().sum().backward()).unwrap();
            let values = numbers(dropped);
            assert_eq!(values, numbers(gradient), "{engine:?}");
            let kept = values
                .iter()
                .filter(|value| (**value - 1.0 / 0.75).abs() < 1e-6)
                .count();
            assert_eq!(
                kept + values.iter().filter(|value| **value == 0.0).count(),
                10_000,
                "{engine:?}"
            );
            // Five standard deviations of 10,000 draws.
            assert!(
                (kept as f64 - 7500.0).abs() < 5.0 * (10_000.0_f64 * 0.25 * 0.75).sqrt(),
                "{engine:?}: {kept}"
            );
        }
    }

    #[test]
    fn under_mixed_precision_products_are_narrow_and_gradients_and_losses_f32() {
        for (precision, narrow) in [
            (Precision::AmpBf16, DType::BF16),
            (Precision::AmpF16, DType::F16),
        ] {
            mixed(precision, narrow);
        }
    }

    fn mixed(precision: Precision, narrow: DType) {
        let with = Ops::new(Engine::Libtorch, precision).unwrap();
        let (x, w, b) = (
            values([2, 3, 8], 1, Engine::Libtorch),
            values([24, 8], 2, Engine::Libtorch),
            values([24], 3, Engine::Libtorch),
        );
        let (gain, shift) = (
            values([8], 4, Engine::Libtorch),
            values([8], 5, Engine::Libtorch),
        );
        let normed = with.layer_norm(x.clone(), gain.clone(), Some(shift.clone()));
        assert_eq!(normed.dtype(), DType::F32);
        let qkv = with.linear(normed, w.clone(), Some(b.clone()));
        assert_eq!(qkv.dtype(), narrow);
        let branch = with.gelu(with.dropout(with.causal_attention(qkv, 2, 0.0), 0.1));
        assert_eq!(branch.dtype(), narrow);
        let stream = with.residual(x.clone(), branch);
        assert_eq!(stream.dtype(), DType::F32);
        let head = values([9, 8], 6, Engine::Libtorch);
        let logits = with.linear(stream, head.clone(), None).reshape([6, 9]);
        assert_eq!(logits.dtype(), narrow);
        let loss = with.cross_entropy(
            logits,
            Tensor::<1, Int>::from_data([1, 2, 3, 4, 5, 6], &Device::libtorch()),
            0.0,
        );
        assert_eq!(loss.dtype(), DType::F32);
        let gradients = loss.backward();
        assert_eq!(x.grad(&gradients).unwrap().dtype(), DType::F32);
        for matrix in [w, head] {
            assert_eq!(matrix.grad(&gradients).unwrap().dtype(), DType::F32);
        }
        for vector in [b, gain, shift] {
            assert_eq!(vector.grad(&gradients).unwrap().dtype(), DType::F32);
        }
    }

    #[test]
    fn the_largest_values_of_a_row_come_first_with_their_columns() {
        for engine in [Engine::Libtorch, Engine::Flex] {
            let x = Tensor::<2>::from_data(
                [[0.5, 3.0, -1.0, 2.0], [7.0, 0.0, 8.0, -2.0]],
                &device(engine).inner(),
            );
            let (values, columns) = arithmetic(engine).largest(x, 3);
            assert_eq!(
                numbers(values),
                [3.0, 2.0, 0.5, 8.0, 7.0, 0.0],
                "{engine:?}"
            );
            assert_eq!(
                columns.into_data().iter::<i64>().collect::<Vec<_>>(),
                [1, 3, 0, 2, 0, 1],
                "{engine:?}"
            );
        }
    }

    /// Operators by name of a pass over two layers of an LSTM with states of more rows than the
    /// batch has.
    fn lstm_operators(with: Ops, dropout: f64) -> Vec<RecordedOperator> {
        let state = |salt: usize| plain(values([2, 3, 3], salt, Engine::Libtorch));
        let before = LstmState {
            hidden: state(6),
            cell: state(7),
        }
        .of_rows(2);
        let layers = [4, 3].map(|inputs| LstmWeights {
            input: values([12, inputs], 2, Engine::Libtorch),
            state: values([12, 3], 3, Engine::Libtorch),
            input_bias: values([12], 4, Engine::Libtorch),
            state_bias: values([12], 5, Engine::Libtorch),
        });
        let x = values([2, 5, 4], 1, Engine::Libtorch);
        record_operators(|| Ok(with.lstm(x, &layers, Some(before), dropout)))
            .unwrap()
            .1
    }

    fn count(operators: &[RecordedOperator], name: &str) -> usize {
        operators
            .iter()
            .filter(|operator| operator.name == name)
            .count()
    }

    /// cuDNN refuses states that lie scattered ("rnn: hx is not contiguous").
    #[test]
    fn the_states_of_some_rows_reach_libtorch_in_one_piece() {
        let operators = lstm_operators(arithmetic(Engine::Libtorch), 0.0);
        let lstm = operators
            .iter()
            .find(|operator| operator.name == "aten::lstm")
            .unwrap();
        assert_eq!(
            lstm.inputs[1..3]
                .iter()
                .map(|state| (state.shape.as_slice(), state.is_contiguous))
                .collect::<Vec<_>>(),
            [(&[2_i64, 2, 3][..], true); 2]
        );
    }

    #[test]
    fn on_cuda_no_dropout_is_left_to_cudnn() {
        let cpu = arithmetic(Engine::Libtorch);
        let dropped = |operators: &[RecordedOperator]| {
            count(operators, "aten::bernoulli_") + count(operators, "aten::native_dropout")
        };
        let found = |with: Ops, dropout: f64| {
            let operators = lstm_operators(with, dropout);
            (
                count(&operators, "aten::lstm"),
                count(&operators, "aten::dropout"),
                dropped(&operators),
            )
        };
        assert_eq!(
            found(cpu, 0.5),
            (1, 1, 1),
            "in one operator, which drops between its layers"
        );
        assert_eq!(
            found(cpu.on_cuda(true), 0.5),
            (2, 0, 1),
            "layer by layer, dropped between them"
        );
        assert_eq!(found(cpu.on_cuda(true), 0.0), (1, 0, 0));
        assert_eq!(found(cpu.on_cuda(true).evaluating(), 0.5), (1, 0, 0));
    }

    #[test]
    fn a_mask_is_laid_out_once_for_all_layers_and_copied_in_none() {
        let with = arithmetic(Engine::Libtorch).on_cuda(true);
        let mask = Tensor::<4>::zeros([2, 1, 1, 13], &Device::libtorch());
        let (q, kv) = (
            values([2, 3, 8], 1, Engine::Libtorch),
            values([2, 13, 16], 2, Engine::Libtorch),
        );
        let with_layer = |added: &AddedToScores| {
            force_cuda_branches(true);
            let recorded =
                record_operators(|| Ok(with.attention_to(q.clone(), kv.clone(), added, 2, 0.0)));
            force_cuda_branches(false);
            recorded.unwrap().1
        };
        let of_mask = |operators: &[RecordedOperator]| -> Vec<String> {
            let widths = [vec![2, 1, 1, 13], vec![2, 2, 3, 13], vec![2, 2, 1, 13]];
            let takes_it = |operator: &&RecordedOperator| {
                operator
                    .inputs
                    .iter()
                    .any(|input| widths.contains(&input.shape))
            };
            let copies = operators.iter().filter(|operator| {
                ["aten::copy_", "aten::clone", "aten::constant_pad_nd"]
                    .contains(&operator.name.as_str())
            });
            copies
                .filter(takes_it)
                .map(|operator| operator.name.clone())
                .collect()
        };
        let added = with.added_to_scores(None, Some(mask.clone()));
        assert_eq!(of_mask(&with_layer(&added)), Vec::<String>::new());
        // As it would be without the layout.
        let scattered = AddedToScores {
            bias: None,
            mask: None,
            sum: Some(mask),
        };
        assert!(of_mask(&with_layer(&scattered)).contains(&"aten::constant_pad_nd".to_owned()));
        let (laid_out, plain) = (
            with_layer_result(with, &q, &kv, &added),
            with_layer_result(with, &q, &kv, &scattered),
        );
        assert_eq!(laid_out, plain);
    }

    fn with_layer_result(
        with: Ops,
        q: &Tensor<3>,
        kv: &Tensor<3>,
        added: &AddedToScores,
    ) -> Vec<f32> {
        force_cuda_branches(true);
        let out = with.attention_to(q.clone(), kv.clone(), added, 2, 0.0);
        force_cuda_branches(false);
        numbers(out)
    }

    /// cuDNN drops in sixteenths and plans each shape anew.
    #[test]
    fn cudnn_may_compute_attention_only_where_it_drops_what_is_asked_and_shapes_stay() {
        let qkv = values([2, 6, 24], 1, Engine::Libtorch);
        // The switch is the process's, and other tests turn it too.
        let allowed = |with: Ops, qkv: Tensor<3>, dropout: f64, expected: bool| {
            (0..1000).any(|_| {
                drop(with.causal_attention(qkv.clone(), 2, dropout));
                crate::engine::libtorch::cudnn_attention_allowed() == expected
            })
        };
        let with = arithmetic(Engine::Libtorch);
        for (dropout, expected) in [(0.0, true), (0.125, true), (0.1, false)] {
            assert!(
                allowed(with, qkv.clone(), dropout, expected),
                "dropout {dropout}"
            );
        }
        assert!(
            allowed(with.evaluating(), plain(qkv), 0.0, false),
            "generation and evaluation meet new lengths"
        );
    }

    #[test]
    fn lstm_layers_compute_in_the_format_of_products_and_remember_in_f32() {
        let of = |precision, dtype: DType| {
            let float = burn::tensor::FloatDType::from(dtype);
            let with = Ops::new(Engine::Libtorch, precision).unwrap();
            let matrix =
                |inputs: usize, salt| values([12, inputs], salt, Engine::Libtorch).cast(float);
            let bias = || values([12], 4, Engine::Libtorch).cast(float);
            let layer = LstmWeights {
                input: matrix(4, 2),
                state: matrix(3, 3),
                input_bias: bias(),
                state_bias: bias(),
            };
            let x = values([2, 5, 4], 1, Engine::Libtorch).cast(float);
            let (out, after) = with.lstm(x.clone(), std::slice::from_ref(&layer), None, 0.0);
            assert_eq!(
                (after.hidden.dtype(), after.cell.dtype()),
                (DType::F32, DType::F32),
                "{precision:?}"
            );
            out.dtype()
        };
        assert_eq!(of(Precision::F32, DType::F32), DType::F32);
        assert_eq!(of(Precision::AmpBf16, DType::F32), DType::BF16);
        assert_eq!(of(Precision::AmpF16, DType::F32), DType::F16);
        assert_eq!(of(Precision::Bf16, DType::BF16), DType::BF16);
    }

    #[test]
    fn f32_and_tf32_multiply_f32_factors_as_they_are() {
        for precision in [Precision::F32, Precision::Tf32] {
            let with = Ops::new(Engine::Libtorch, precision).unwrap();
            let product = with.linear(
                values([6, 8], 1, Engine::Libtorch),
                values([5, 8], 2, Engine::Libtorch),
                None,
            );
            assert_eq!(product.dtype(), DType::F32, "{precision:?}");
        }
    }
}
