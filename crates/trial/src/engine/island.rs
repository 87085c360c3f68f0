//! Islands: fused libtorch operations inside burn's autodiff. An island is one node of burn's
//! graph; its forward and its backward are the shim's. Input: burn tensors on libtorch. Output: one
//! burn tensor.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

mod input;
mod node;

use burn::{
    backend::LibTorch,
    tensor::{Int, Tensor},
};
use burn_tch::TchTensor;

pub(super) use self::input::FloatInput;
use self::{
    input::ON_LIBTORCH,
    node::{Ran, around, or_panic},
};
use super::kernels::{
    self, AttentionSettings, ConvSettings, NormSettings, Operation, SavedForward, biased_attention,
    conv_norm, forward, lstm, residual_norm,
};
use super::{error_from_text, precision::ProductFormat};

/// The handles that an operation's backward pass reads.
fn held(operation: Operation, inputs: &[TchTensor], output: &TchTensor) -> Vec<TchTensor> {
    match operation {
        // A product in another dtype than its input's keeps its own copy.
        Operation::Linear { products } | Operation::Linears { products }
            if products
                .kind()
                .is_some_and(|kind| kind != inputs[0].tensor.kind()) =>
        {
            Vec::new()
        }
        Operation::Linear { .. }
        | Operation::Linears { .. }
        | Operation::LayerNorm { .. }
        | Operation::RmsNorm { .. }
        | Operation::Gelu => {
            vec![inputs[0].clone()]
        }
        Operation::CausalAttention { .. } | Operation::MaxPool => {
            vec![inputs[0].clone(), output.clone()]
        }
        Operation::Relu => vec![output.clone()],
        // Those of many numbers are read again; where nobody else has them they are the shim's alone.
        Operation::CrossEntropy { .. } if !inputs[0].can_mut() => vec![inputs[0].clone()],
        Operation::SquaredError => inputs.to_vec(),
        Operation::Embedding
        | Operation::Dropout { .. }
        | Operation::Residual
        | Operation::CrossEntropy { .. } => Vec::new(),
    }
}

/// The operation on these inputs, part of burn's graph if any input is. `indices` are additional
/// integer inputs.
pub(super) fn island<const N: usize, const D: usize>(
    operation: Operation,
    inputs: [FloatInput; N],
    indices: Option<Tensor<1, Int>>,
) -> Tensor<D> {
    let indices =
        indices.map(|indices| indices.try_into_primitive::<LibTorch>().expect(ON_LIBTORCH));
    around(inputs, |inputs, save| {
        let (output, saved) = run(operation, inputs, indices.as_ref(), save);
        let held = if save {
            held(operation, inputs, &output)
        } else {
            Vec::new()
        };
        Ran {
            output,
            saved,
            held,
        }
    })
}

/// A sum and its layer norm: `inputs` are stream, branch, gain and shift. Out: stream + branch, and
/// the norm of it, which is an operation on that sum.
pub(super) fn residual_norm_island(
    [stream, branch, gain, shift]: [FloatInput; 4],
    settings: NormSettings,
) -> (Tensor<3>, Tensor<3>) {
    let is_tracked = [&stream, &branch, &gain, &shift].map(FloatInput::is_autodiff);
    let save = is_tracked.contains(&true);
    let [(sum, of_sum), (normed, of_norm)] = {
        let inputs = [&stream, &branch, &gain, &shift].map(|input| &input.plain().tensor);
        or_panic(residual_norm(inputs, settings, save))
    };
    let sum: Tensor<3> = around([stream, branch], |_, save| Ran {
        output: TchTensor::new(sum),
        saved: of_sum.filter(|_| save),
        held: Vec::new(),
    });
    let normed = around([sum.clone().into(), gain, shift], |inputs, save| Ran {
        output: TchTensor::new(normed),
        saved: of_norm.filter(|_| save),
        // The norm's backward pass reads the sum.
        held: if save {
            vec![inputs[0].clone()]
        } else {
            Vec::new()
        },
    });
    (sum, normed)
}

/// LSTM layers: x [batch, time, in] and four weights per layer; `states`, hidden and cell [layers,
/// batch, hidden], are part of no graph. Out: the last layer's outputs [batch, time, hidden] and
/// the states after the last time.
pub(super) fn lstm_island<const N: usize>(
    inputs: [FloatInput; N],
    states: [Tensor<3>; 2],
    products: ProductFormat,
) -> (Tensor<3>, [Tensor<3>; 2]) {
    let before = states.map(|state| state.try_into_primitive::<LibTorch>().expect(ON_LIBTORCH));
    let mut last = None;
    let output = around(inputs, |inputs, save| {
        let tensors: Vec<&tch::Tensor> = inputs.iter().map(|input| &input.tensor).collect();
        let [hidden, cell] = &before;
        let (output, states, saved) = or_panic(lstm(
            &tensors,
            [&hidden.tensor, &cell.tensor],
            products,
            save,
        ));
        let (output, states) = (TchTensor::new(output), states.map(TchTensor::new));
        // Their backward pass reads all of these again.
        let held = if save {
            inputs
                .iter()
                .chain([&output])
                .chain(&before)
                .chain(&states)
                .cloned()
                .collect()
        } else {
            Vec::new()
        };
        last = Some(states);
        Ran {
            output,
            saved,
            held,
        }
    });
    let last = last.expect("the forward pass ran");
    (output, last.map(Tensor::from_primitive::<LibTorch>))
}

/// Attention without scaling, as [`biased_attention`] has it; `mask` is not part of any graph. Out
/// [batch, time, inner].
pub(super) fn attention_island<const N: usize>(
    inputs: [FloatInput; N],
    mask: Option<Tensor<4>>,
    has_bias: bool,
    settings: AttentionSettings,
) -> Tensor<3> {
    let mask = mask.map(|mask| {
        mask.try_into_primitive::<LibTorch>()
            .expect(ON_LIBTORCH)
            .tensor
    });
    around(inputs, |inputs, save| {
        let tensors: Vec<&tch::Tensor> = inputs.iter().map(|input| &input.tensor).collect();
        let (output, saved) = or_panic(biased_attention(
            &tensors,
            mask.as_ref(),
            has_bias,
            settings,
            save,
        ));
        let output = TchTensor::new(output);
        // Whichever way it goes, it may read its inputs and its output again.
        let held = if save {
            inputs.iter().chain([&output]).cloned().collect()
        } else {
            Vec::new()
        };
        Ran {
            output,
            saved,
            held,
        }
    })
}

/// Convolution, norm, and a sum and a rectifier after it: `inputs` are x, weight, gain, shift and,
/// if it has one, the residual. `stats`, running mean and variance [channels], are moved in
/// training. Out [batch, out, height, width].
pub(super) fn conv_norm_island<const N: usize>(
    inputs: [FloatInput; N],
    stats: &[Tensor<1>; 2],
    settings: ConvSettings,
) -> Tensor<4> {
    let stats = [0, 1].map(|at: usize| {
        stats[at]
            .clone()
            .try_into_primitive::<LibTorch>()
            .expect(ON_LIBTORCH)
            .tensor
    });
    let settings = ConvSettings {
        of_input: inputs[0].is_autodiff(),
        ..settings
    };
    around(inputs, |inputs, save| {
        let tensors: Vec<&tch::Tensor> = inputs.iter().map(|input| &input.tensor).collect();
        let (output, saved) = or_panic(conv_norm(&tensors, &stats, settings, save));
        let output = TchTensor::new(output);
        // The rectifier's backward pass reads its output, the convolution's its input.
        let mut held = Vec::new();
        if save {
            held.push(inputs[0].clone());
            held.extend(settings.relu.then(|| output.clone()));
        }
        Ran {
            output,
            saved,
            held,
        }
    })
}

/// left right: [n, k] and [k, m] to [n, m]. Not part of any graph.
pub(super) fn product(left: Tensor<2>, right: Tensor<2>) -> Tensor<2> {
    let [left, right] = [left, right].map(|factor| FloatInput::from(factor).into_plain().tensor);
    let found = or_panic(kernels::product(&left, &right));
    Tensor::from_primitive::<LibTorch>(TchTensor::new(found))
}

/// The `count` largest values of each row, the largest first, and their columns; both [rows,
/// count]. Not part of any graph.
pub(super) fn largest(x: Tensor<2>, count: usize) -> (Tensor<2>, Tensor<2, Int>) {
    let found = FloatInput::from(x)
        .into_plain()
        .tensor
        .f_topk(count as i64, -1, true, true);
    let (values, columns) = or_panic(found.map_err(|error| error_from_text(&error.to_string())));
    (
        Tensor::from_primitive::<LibTorch>(TchTensor::new(values)),
        Tensor::from_primitive::<LibTorch>(TchTensor::new(columns)),
    )
}

fn run(
    operation: Operation,
    inputs: &[TchTensor],
    indices: Option<&TchTensor>,
    save: bool,
) -> (TchTensor, Option<SavedForward>) {
    let operation = match operation {
        Operation::CrossEntropy { smoothing, .. } => Operation::CrossEntropy {
            reuse: inputs[0].can_mut(),
            smoothing,
        },
        other => other,
    };
    let tensors: Vec<&tch::Tensor> = inputs.iter().map(|input| &input.tensor).collect();
    let (output, saved) = or_panic(forward(
        operation,
        &tensors,
        indices.map(|indices| &indices.tensor),
        save,
    ));
    (TchTensor::new(output), saved)
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::Way, node::State, *};

    fn numbers(shape: &[i64], salt: i64) -> tch::Tensor {
        let count: i64 = shape.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|at| ((at * 37 + salt * 101) % 64) as f32 / 32.0 - 1.0)
            .collect();
        tch::Tensor::from_slice(&values).reshape(shape)
    }

    #[test]
    fn attention_step_by_step_and_libtorchs_own_agree_forward_and_backward() {
        let (qkv, q, kv) = (
            numbers(&[2, 6, 24], 1),
            numbers(&[2, 4, 8], 2),
            numbers(&[2, 6, 16], 3),
        );
        let hidden = tch::Tensor::from_slice(&[0.0_f32, 0.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY])
            .reshape([1, 1, 1, 6]);
        let (own, other) = (numbers(&[2, 6, 6], 4), numbers(&[2, 4, 6], 5));
        let (own_mask, other_mask) = (
            own.unsqueeze(0) + &hidden.expand([2, 1, 1, 6], false),
            other.unsqueeze(0) + &hidden,
        );
        let cases: [(&str, Vec<&tch::Tensor>, Option<&tch::Tensor>, bool); 5] = [
            (
                "self, bias and mask of rows",
                vec![&qkv, &own],
                Some(&own_mask),
                true,
            ),
            ("self, mask", vec![&qkv], Some(&hidden), false),
            (
                "others, bias and mask",
                vec![&q, &kv, &other],
                Some(&other_mask),
                true,
            ),
            ("others, mask", vec![&q, &kv], Some(&hidden), false),
            ("others, nothing", vec![&q, &kv], None, false),
        ];
        for (what, inputs, mask, has_bias) in cases {
            let [plain, fused] = [Way::Plain, Way::Fused].map(|way| {
                let settings = AttentionSettings {
                    heads: 2,
                    dropout: 0.0,
                    way,
                };
                let (out, saved) =
                    biased_attention(&inputs, mask, has_bias, settings, true).unwrap();
                let gradient = numbers(&out.size(), 6);
                let mut all = vec![out];
                all.extend(
                    saved
                        .unwrap()
                        .backward(&gradient, None, inputs.len())
                        .unwrap()
                        .into_iter()
                        .map(Option::unwrap),
                );
                all
            });
            assert_eq!(
                (plain.len(), fused.len()),
                (inputs.len() + 1, inputs.len() + 1),
                "{what}"
            );
            for (part, (plain, fused)) in plain.iter().zip(&fused).enumerate() {
                assert_eq!(plain.size(), fused.size(), "{what}, part {part}");
                assert!(
                    (plain - fused).abs().max().double_value(&[]) < 1e-5,
                    "{what}, part {part}"
                );
            }
        }
    }

    #[test]
    fn a_second_backward_pass_over_one_forward_pass_is_an_error() {
        let logits = tch::Tensor::from_slice(&[1.0_f32, 2.0, 3.0]).reshape([1, 3]);
        let targets = tch::Tensor::from_slice(&[2_i64]);
        let (loss, saved) = forward(
            Operation::CrossEntropy {
                reuse: false,
                smoothing: 0.0,
            },
            &[&logits],
            Some(&targets),
            true,
        )
        .unwrap();
        let state = State::new(saved.unwrap(), Vec::new());
        let copy = state.clone();
        let first = state.backward(&loss.ones_like(), None, 1).unwrap();
        assert!(
            (first[0]
                .as_ref()
                .unwrap()
                .sum(tch::Kind::Float)
                .double_value(&[]))
            .abs()
                < 1e-6,
            "softmax less one-hot sums to 0"
        );
        for again in [&state, &copy] {
            let error = again
                .backward(&loss.ones_like(), None, 1)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("a second backward pass"), "{error}");
        }
    }
}
