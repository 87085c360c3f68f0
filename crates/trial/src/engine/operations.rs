//! The operations that models are written in, with one meaning on two engines: on libtorch each is
//! one fused kernel with libtorch's own backward, on flex it is composed of burn's operations.

mod composed;
#[cfg(feature = "libtorch")]
mod fused;

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Int, Tensor};
use kiln_core::spec::{Engine, Precision};

use self::composed::ComposedOps;
#[cfg(feature = "libtorch")]
use self::fused::FusedOps;
use crate::error::TrialError;

/// A target with this value counts neither in the loss nor in the number of targets.
pub const IGNORED_TARGET: i64 = -100;

/// Added to a variance before its root. Source: PyTorch's defaults of `LayerNorm` and `BatchNorm2d`.
pub(crate) const LAYER_NORM_EPSILON: f64 = kiln_core::pretrained::LAYER_NORM_EPSILON;
pub(crate) const BATCH_NORM_EPSILON: f64 = 1e-5;
/// Added to a mean square before its root. Source: T5.
pub(crate) const RMS_NORM_EPSILON: f64 = kiln_core::pretrained::RMS_NORM_EPSILON;

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
    /// The sum of both in the dtype of products, not part of any graph: what libtorch adds. `None`
    /// on flex.
    #[cfg_attr(
        not(feature = "libtorch"),
        allow(dead_code, reason = "flex adds one after the other")
    )]
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
pub struct Ops(OfEngine);

#[derive(Clone, Copy, Debug, PartialEq)]
enum OfEngine {
    #[cfg(feature = "libtorch")]
    Fused(FusedOps),
    Composed(ComposedOps),
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
        #[cfg(feature = "libtorch")]
        if engine == Engine::Libtorch {
            return Ok(Self(OfEngine::Fused(FusedOps::new(precision))));
        }
        Ok(Self(OfEngine::Composed(ComposedOps::new())))
    }

    /// The same as it is done on CUDA: masks in eights.
    pub fn on_cuda(self, on_cuda: bool) -> Self {
        let _ = on_cuda;
        Self(match self.0 {
            #[cfg(feature = "libtorch")]
            OfEngine::Fused(fused) => OfEngine::Fused(fused.on_cuda(on_cuda)),
            composed => composed,
        })
    }

    /// The same without dropout.
    pub fn evaluating(self) -> Self {
        Self(match self.0 {
            #[cfg(feature = "libtorch")]
            OfEngine::Fused(fused) => OfEngine::Fused(fused.evaluating()),
            OfEngine::Composed(composed) => OfEngine::Composed(composed.evaluating()),
        })
    }
}

/// Declares each operation once: the trait that both engines implement, and the methods of [`Ops`]
/// that call the engine's.
macro_rules! operations {
    ($(
        $(#[doc = $doc:literal])+
        fn $name:ident $([const $rank:ident: usize])? ($($argument:ident: $type:ty),*) -> $out:ty;
    )+) => {
        /// An engine's way of each operation; [`Ops`] says what they mean.
        trait Operations: Copy {
            $(fn $name $(<const $rank: usize>)? (self, $($argument: $type),*) -> $out;)+
        }

        impl Ops {
            $(
                $(#[doc = $doc])+
                pub fn $name $(<const $rank: usize>)? (self, $($argument: $type),*) -> $out {
                    match self.0 {
                        #[cfg(feature = "libtorch")]
                        OfEngine::Fused(engine) => engine.$name($($argument),*),
                        OfEngine::Composed(engine) => engine.$name($($argument),*),
                    }
                }
            )+
        }
    };
}

operations! {
    /// x wᵀ + b: x [.., in], weight [out, in], bias [out]; out [.., out], in the narrow format
    /// under mixed precision.
    fn linear [const D: usize](x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D>;

    /// left right: [n, k] and [k, m] to [n, m], in their own format. Not part of any graph.
    fn product(left: Tensor<2>, right: Tensor<2>) -> Tensor<2>;

    /// x wᵀ for two or three weights [out, in], side by side: x [batch, time, in]; out [batch,
    /// time, out of all], as [`Ops::linear`] has it.
    fn linears(x: Tensor<3>, weights: &[Tensor<2>]) -> Tensor<3>;

    /// Rows of `table` [rows, width] named by `indices` [batch, time]; out [batch, time, width].
    fn embedding(table: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3>;

    /// Layer norm over the last axis of x, with gain `weight` and shift `bias`, both [width];
    /// epsilon 1e-5 as in PyTorch.
    fn layer_norm [const D: usize](x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>) -> Tensor<D>;

    /// As [`Ops::layer_norm`], for products alone to read: it may be in the format of products.
    fn layer_norm_for_products [const D: usize](x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>) -> Tensor<D>;

    /// x over the root of its mean square along the last axis, times `weight` [width]. Source:
    /// Zhang & Sennrich 2019 (arXiv 1910.07467); T5 has epsilon 1e-6.
    fn rms_norm(x: Tensor<3>, weight: Tensor<1>) -> Tensor<3>;

    /// Causal attention of `heads` heads. qkv [batch, time, 3 × width]: queries, keys, values side
    /// by side; out [batch, time, width]. Random: drops attention weights in training.
    fn causal_attention(qkv: Tensor<3>, heads: usize, dropout: f64) -> Tensor<3>;

    /// Makes the terms that several layers add to their attention scores: a learned bias [heads,
    /// time, time'], and a mask of 0 and −∞ that spreads to [batch, heads, time, time'].
    fn added_to_scores(bias: Option<Tensor<3>>, mask: Option<Tensor<4>>) -> AddedToScores;

    /// Attention of a sequence to itself, scores not scaled. qkv [batch, time, 3 × inner]: queries,
    /// keys and values side by side; out [batch, time, inner]. Random: drops attention weights in
    /// training.
    fn self_attention(qkv: Tensor<3>, added: &AddedToScores, heads: usize, dropout: f64) -> Tensor<3>;

    /// Attention to another sequence, or to the cached own keys and values: queries [batch, time,
    /// inner], keys and values side by side [batch, time', 2 × inner]; out [batch, time, inner].
    /// Random: as above.
    fn attention_to(queries: Tensor<3>, keys_values: Tensor<3>, added: &AddedToScores, heads: usize, dropout: f64) -> Tensor<3>;

    /// The larger of each value and 0.
    fn relu [const D: usize](x: Tensor<D>) -> Tensor<D>;

    /// Gaussian error linear unit, by the error function.
    fn gelu [const D: usize](x: Tensor<D>) -> Tensor<D>;

    /// The `count` largest values of each row of x [rows, columns], the largest first, and their
    /// columns; both [rows, count]. Not part of any graph.
    fn largest(x: Tensor<2>, count: usize) -> (Tensor<2>, Tensor<2, Int>);

    /// In training zeroes each value with `probability` and scales the others by 1 / (1 −
    /// probability). Random.
    fn dropout [const D: usize](x: Tensor<D>, probability: f64) -> Tensor<D>;

    /// stream + branch, both [batch, time, width]; the stream stays f32 when the branch is
    /// narrower.
    fn residual(stream: Tensor<3>, branch: Tensor<3>) -> Tensor<3>;

    /// [`Ops::residual`], and [`Ops::layer_norm_for_products`] of it.
    fn residual_norm(stream: Tensor<3>, branch: Tensor<3>, weight: Tensor<1>, bias: Option<Tensor<1>>) -> (Tensor<3>, Tensor<3>);

    /// LSTM layers, one on top of the other, from `state` or from zeros; dropout between them in
    /// training. x [batch, time, in]; out: the last layer's outputs [batch, time, hidden] and the
    /// states after the last time. Random: dropout.
    fn lstm(x: Tensor<3>, layers: &[LstmWeights], state: Option<LstmState>, dropout: f64) -> (Tensor<3>, LstmState);

    /// A convolution without bias, batch norm, and what follows. x [batch, in, height, width]; out
    /// [batch, out, …]. In training the norm is the batch's own and moves the running statistics,
    /// which serve in evaluation.
    fn conv_norm(x: Tensor<4>, weights: ConvNormWeights, geometry: ConvGeometry, after: After) -> Tensor<4>;

    /// The largest of each 3 × 3 piece, every second one: [batch, channels, height, width] to half
    /// its height and width.
    fn max_pool(x: Tensor<4>) -> Tensor<4>;

    /// Sum of the cross entropies, in nats and f32, of logits [rows, classes] and targets [rows];
    /// targets of [`IGNORED_TARGET`] are ignored. `smoothing` of each target is shared by all
    /// classes. Out [1].
    fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>, smoothing: f64) -> Tensor<1>;

    /// Sum of the squared differences of outputs [rows, 1] and targets [rows], f32, in f32. Out [1].
    fn squared_error(outputs: Tensor<2>, targets: Tensor<1>) -> Tensor<1>;
}

/// Runs LSTM layers in groups of at most `at_once`, one on top of the other. `run` computes one
/// group; `between` is applied to what goes from one group to the next.
fn in_groups(
    mut x: Tensor<3>,
    layers: &[LstmWeights],
    state: Option<LstmState>,
    at_once: usize,
    between: impl Fn(Tensor<3>) -> Tensor<3>,
    run: impl Fn(Tensor<3>, &[LstmWeights], [Tensor<3>; 2]) -> (Tensor<3>, [Tensor<3>; 2]),
) -> (Tensor<3>, LstmState) {
    let state = state.unwrap_or_else(|| zero_state(&x, layers));
    let (mut hidden, mut cell) = (Vec::new(), Vec::new());
    for (at, group) in layers.chunks(at_once).enumerate() {
        let first = at * at_once;
        if first > 0 {
            x = between(x);
        }
        let (out, [h, c]) = run(x, group, state.layers(first, group.len()));
        x = out;
        hidden.push(h);
        cell.push(c);
    }
    let [hidden, cell] = [hidden, cell].map(one_after_the_other);
    (x, LstmState { hidden, cell })
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

/// The second tensor, as it can be computed with beside the first one: part of a graph, without a
/// gradient, if that is.
pub(crate) fn beside<const D: usize, const E: usize>(
    other: &Tensor<D>,
    tensor: Tensor<E>,
) -> Tensor<E> {
    if other.is_autodiff() && !tensor.is_autodiff() {
        tensor.autodiff()
    } else {
        tensor
    }
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
mod tests;
