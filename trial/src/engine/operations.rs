//! The operations that models are written in: one meaning, two engines.

use burn::tensor::{Bool, Distribution, Int, Tensor, activation, module};
use kiln::spec::{Engine, Precision};

#[cfg(feature = "libtorch")]
use super::{island::island, libtorch::Operation};
use crate::error::TrialError;

/// A target with this value counts neither in the loss nor in the number of targets.
pub const IGNORED_TARGET: i64 = -100;

/// How one pass computes: on which engine, in which precision, with or without dropout. Passed down a model's forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    engine: Engine,
    /// Whether matrix products are made in bf16; everything that holds a parameter, and the loss, stays f32.
    bf16: bool,
    training: bool,
}

impl Arithmetic {
    /// Errors: flex computes in f32 only.
    pub fn new(engine: Engine, precision: Precision) -> Result<Self, TrialError> {
        if engine == Engine::Flex && precision != Precision::F32 {
            let text = format!("`train.precision` {} needs `run.engine` libtorch; flex computes in f32", precision.name());
            return Err(TrialError::Bad(text));
        }
        Ok(Self { engine, bf16: precision == Precision::AmpBf16, training: true })
    }

    /// The same without dropout.
    pub fn evaluating(self) -> Self {
        Self { training: false, ..self }
    }

    #[cfg(feature = "libtorch")]
    fn is_fused(self) -> bool {
        self.engine == Engine::Libtorch
    }

    /// x wᵀ + b: x [.., in], weight [out, in], bias [out]; out [.., out], in bf16 under amp-bf16.
    pub fn linear<const D: usize>(self, x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::Linear { bf16: self.bf16 };
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
            let rows: Tensor<2> = island(Operation::Embedding, [table.into()], Some(indices.flatten(0, 1)));
            return rows.reshape([batch, time, width]);
        }
        module::embedding(table, indices)
    }

    /// Layer norm over the last axis of x, with gain `weight` and shift `bias`, both [width]; epsilon 1e-5 as in PyTorch.
    pub fn layer_norm<const D: usize>(self, x: Tensor<D>, weight: Tensor<1>, bias: Option<Tensor<1>>) -> Tensor<D> {
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

    /// Causal attention of `heads` heads. qkv [batch, time, 3 × width]: queries, keys, values side by side; out [batch, time,
    /// width]. Random: drops attention weights in training.
    pub fn causal_attention(self, qkv: Tensor<3>, heads: usize, dropout: f64) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            let operation = Operation::CausalAttention { heads: heads as i64, dropout: if self.training { dropout } else { 0.0 } };
            return island(operation, [qkv.into()], None);
        }
        let [batch, time, width] = qkv.dims();
        let (width, head_dim) = (width / 3, width / 3 / heads);
        let mut parts = qkv.chunk(3, 2).into_iter().map(|part| part.reshape([batch, time, heads, head_dim]).swap_dims(1, 2));
        let mut next = || parts.next().expect("three parts were asked for"); // [batch, heads, time, head_dim]
        let (queries, keys, values) = (next(), next(), next());
        let scores = queries.matmul(keys.transpose()) / (head_dim as f64).sqrt(); // [batch, heads, time, time]
        let later = Tensor::<2, Bool>::tril_mask([time, time], 0, &scores.device()).unsqueeze::<4>();
        let weights = self.dropout(activation::softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3), dropout);
        weights.matmul(values).swap_dims(1, 2).reshape([batch, time, width])
    }

    /// Gaussian error linear unit, by the error function.
    pub fn gelu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Gelu, [x.into()], None);
        }
        activation::gelu(x)
    }

    /// In training zeroes each value with `probability` and scales the others by 1 / (1 − probability). Random.
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

    /// stream + branch, both [batch, time, width]; the stream stays f32 when the branch is bf16.
    pub fn residual(self, stream: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::Residual, [stream.into(), branch.into()], None);
        }
        stream + branch
    }

    /// Sum of the cross entropies, in nats and f32, of logits [rows, classes] and targets [rows]; targets of
    /// [`IGNORED_TARGET`] are left out. Out [1].
    pub fn cross_entropy(self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        #[cfg(feature = "libtorch")]
        if self.is_fused() {
            return island(Operation::CrossEntropy { reuse: false }, [logits.into()], Some(targets));
        }
        let counted = targets.clone().not_equal_elem(IGNORED_TARGET).float().unsqueeze_dim::<2>(1); // [rows, 1]
        let named = targets.clamp_min(0).unsqueeze_dim::<2>(1);
        let chosen = activation::log_softmax(logits, 1).gather(1, named); // [rows, 1]
        (chosen * counted).sum().neg()
    }
}
