//! The operations composed of burn's own: engine `flex`, and the reference for the fused ones.

use burn::tensor::{
    Bool, Distribution, Int, Tensor, activation, module,
    ops::{ConvOptions, MaxPoolOptions},
};

use super::{
    AddedToScores, After, BATCH_NORM_EPSILON, ConvGeometry, ConvNormWeights, IGNORED_TARGET,
    LAYER_NORM_EPSILON, LstmState, LstmWeights, Operations, RMS_NORM_EPSILON, RunningStats, beside,
    in_groups, plain,
};

/// Share of a batch's statistics in the running ones. Source: PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// Settings of one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ComposedOps {
    training: bool,
}

impl ComposedOps {
    pub(super) fn new() -> Self {
        Self { training: true }
    }

    pub(super) fn evaluating(self) -> Self {
        Self { training: false }
    }

    /// Attention of queries to keys and values side by side, scores not scaled.
    fn attention(
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
        // [batch, heads, time, time']
        let mut scores = by_head(queries).matmul(by_head(keys).transpose());
        if let Some(bias) = added.bias.clone() {
            scores = scores + bias.unsqueeze_dim::<4>(0);
        }
        if let Some(mask) = added.mask.clone() {
            let mask = beside(&scores, mask);
            scores = scores + mask;
        }
        let weights = self.dropout(activation::softmax(scores, 3), dropout);
        weights
            .matmul(by_head(values))
            .swap_dims(1, 2)
            .reshape([batch, time, inner])
    }

    /// One layer, time by time.
    fn lstm_layer(
        self,
        x: Tensor<3>,
        weights: &LstmWeights,
        states: [Tensor<3>; 2],
    ) -> (Tensor<3>, [Tensor<3>; 2]) {
        // [batch, hidden]
        let [mut hidden, mut cell] = states.map(|state| beside(&x, state.squeeze_dim::<2>(0)));
        let [_, time, _] = x.dims();
        // [batch, time, 4 × hidden]
        let from_input = self.linear(x, weights.input.clone(), Some(weights.input_bias.clone()));
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
        (x - per_channel(mean)) / (per_channel(variance) + BATCH_NORM_EPSILON).sqrt()
            * per_channel(gain)
            + per_channel(shift)
    }
}

impl Operations for ComposedOps {
    fn linear<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
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

    fn linears(self, x: Tensor<3>, weights: &[Tensor<2>]) -> Tensor<3> {
        Tensor::cat(
            weights
                .iter()
                .map(|weight| self.linear(x.clone(), weight.clone(), None))
                .collect(),
            2,
        )
    }

    fn embedding(self, table: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
        module::embedding(table, indices)
    }

    fn layer_norm<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        let (variance, mean) = x.clone().var_mean_bias(D - 1);
        let normed = (x - mean) / (variance + LAYER_NORM_EPSILON).sqrt() * weight.unsqueeze::<D>();
        match bias {
            Some(bias) => normed + bias.unsqueeze::<D>(),
            None => normed,
        }
    }

    fn layer_norm_for_products<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<D> {
        self.layer_norm(x, weight, bias)
    }

    fn rms_norm(self, x: Tensor<3>, weight: Tensor<1>) -> Tensor<3> {
        let root = (x.clone().square().mean_dim(2) + RMS_NORM_EPSILON).sqrt(); // [batch, time, 1]
        x / root * weight.unsqueeze::<3>()
    }

    fn causal_attention(self, qkv: Tensor<3>, heads: usize, dropout: f64) -> Tensor<3> {
        let [batch, time, width] = qkv.dims();
        let (width, head_dim) = (width / 3, width / 3 / heads);
        let mut parts = qkv
            .chunk(3, 2)
            .into_iter()
            .map(|part| part.reshape([batch, time, heads, head_dim]).swap_dims(1, 2));
        // [batch, heads, time, head_dim]
        let mut next = || parts.next().expect("three parts were asked for");
        let (queries, keys, values) = (next(), next(), next());
        // [batch, heads, time, time]
        let scores = queries.matmul(keys.transpose()) / (head_dim as f64).sqrt();
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

    fn added_to_scores(self, bias: Option<Tensor<3>>, mask: Option<Tensor<4>>) -> AddedToScores {
        AddedToScores {
            bias,
            mask,
            sum: None,
        }
    }

    fn self_attention(
        self,
        qkv: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        let [_, _, width] = qkv.dims();
        let inner = width / 3;
        let rest = qkv.clone().narrow(2, inner, 2 * inner);
        self.attention(qkv.narrow(2, 0, inner), rest, added, heads, dropout)
    }

    fn attention_to(
        self,
        queries: Tensor<3>,
        keys_values: Tensor<3>,
        added: &AddedToScores,
        heads: usize,
        dropout: f64,
    ) -> Tensor<3> {
        self.attention(queries, keys_values, added, heads, dropout)
    }

    fn relu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        activation::relu(x)
    }

    fn gelu<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        activation::gelu(x)
    }

    fn product(self, left: Tensor<2>, right: Tensor<2>) -> Tensor<2> {
        left.matmul(right)
    }

    fn largest(self, x: Tensor<2>, count: usize) -> (Tensor<2>, Tensor<2, Int>) {
        x.topk_with_indices(count, 1)
    }

    fn dropout<const D: usize>(self, x: Tensor<D>, probability: f64) -> Tensor<D> {
        if !self.training || probability == 0.0 {
            return x;
        }
        let keep = 1.0 - probability;
        let mask = Tensor::<D>::random(x.dims(), Distribution::Bernoulli(keep), &x.device());
        x * mask / keep
    }

    fn residual(self, stream: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
        stream + branch
    }

    fn residual_norm(
        self,
        stream: Tensor<3>,
        branch: Tensor<3>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> (Tensor<3>, Tensor<3>) {
        let sum = stream + branch;
        (sum.clone(), self.layer_norm_for_products(sum, weight, bias))
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
            1,
            |x| self.dropout(x, dropout),
            |x, group, states| self.lstm_layer(x, &group[0], states),
        )
    }

    fn conv_norm(
        self,
        x: Tensor<4>,
        weights: ConvNormWeights,
        geometry: ConvGeometry,
        after: After,
    ) -> Tensor<4> {
        let options = ConvOptions::new([geometry.stride; 2], [geometry.padding; 2], [1; 2], 1);
        let made = module::conv2d(x, weights.weight, None, options);
        let normed = self.batch_norm(made, weights.gain, weights.shift, &weights.stats);
        match after {
            After::Nothing => normed,
            After::Relu => activation::relu(normed),
            After::SumRelu(residual) => activation::relu(normed + residual),
        }
    }

    fn max_pool(self, x: Tensor<4>) -> Tensor<4> {
        module::max_pool2d(
            x,
            MaxPoolOptions::new([3; 2])
                .with_stride([2; 2])
                .with_padding([1; 2]),
        )
    }

    fn cross_entropy(
        self,
        logits: Tensor<2>,
        targets: Tensor<1, Int>,
        smoothing: f64,
    ) -> Tensor<1> {
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

    fn squared_error(self, outputs: Tensor<2>, targets: Tensor<1>) -> Tensor<1> {
        let targets = beside(&outputs, targets);
        (outputs.squeeze_dim::<1>(1) - targets).square().sum()
    }
}
