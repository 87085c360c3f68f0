//! On libtorch: number formats of the operations, what they write over, and which of libtorch's
//! operators they call. That fused operations equal composed ones is in `tests/operations.rs`.

use burn::tensor::{DType, Device, TensorData};

use super::*;
use crate::engine::{
    fixed::Raw,
    libtorch::{Pass, emulate_cuda_kernels, force_cuda_branches},
    recorder::{OperatorInput, RecordedOperator, record_operators},
};

/// Values without pattern.
fn values<const D: usize>(shape: [usize; D], salt: usize) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|at| ((at * 37 + salt * 101) % 64) as f32 / 32.0 - 1.0)
        .collect();
    let device = Device::libtorch().autodiff();
    Tensor::from_data(TensorData::new(numbers, shape), &device).require_grad()
}

/// The ways meant for CUDA on this thread, with its kernels, or no longer.
fn take_cuda_kernels(takes: bool) {
    force_cuda_branches(takes);
    emulate_cuda_kernels(takes);
}

fn in_f32() -> Ops {
    Ops::new(Engine::Libtorch, Precision::F32).unwrap()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// An optimizer changes weights where they are.
#[test]
fn weights_that_a_pass_converts_at_once_are_those_of_now() {
    let ops = Ops::new(Engine::Libtorch, Precision::AmpBf16)
        .unwrap()
        .on_cuda(true);
    let (x, bias) = (values([4, 24], 1), values([9], 3));
    let weights = [values([9, 24], 2), values([5, 24], 4)];
    let products = || {
        let one = ops.linear(x.clone(), weights[0].clone(), Some(bias.clone()));
        let several = ops.linears(x.clone().unsqueeze(), &weights);
        let gradients = (one.clone().cast(burn::tensor::FloatDType::F32).sum()
            + several.clone().cast(burn::tensor::FloatDType::F32).sum())
        .backward();
        let mut found = vec![
            numbers(one.cast(burn::tensor::FloatDType::F32)),
            numbers(several.cast(burn::tensor::FloatDType::F32)),
            numbers(x.grad(&gradients).unwrap()),
        ];
        found.extend(
            weights
                .iter()
                .map(|weight| numbers(weight.grad(&gradients).unwrap())),
        );
        found
    };
    force_cuda_branches(true);
    let mut copies = Vec::new();
    for step in 0..4 {
        let (in_a_pass, operators) = record_operators(|| {
            let _pass = Pass::begin()?;
            Ok(products())
        })
        .unwrap();
        assert_eq!(in_a_pass, products(), "step {step}");
        let is_copy = |one: &&RecordedOperator| one.name == "aten::_foreach_copy_";
        copies.push(operators.iter().filter(is_copy).count());
        for weight in &weights {
            let _ = weight.clone().inner().raw().g_add_scalar_(0.25);
        }
    }
    force_cuda_branches(false);
    // The first pass asks for them one by one.
    assert_eq!(copies, [0, 1, 1, 1]);
}

/// On some processors the shim computes such a product itself.
#[test]
fn the_product_of_one_row_without_gradients_is_that_of_the_row_among_others() {
    for inputs in [1, 15, 31, 32, 33, 64, 100, 257] {
        let plain = |tensor: Tensor<2>| tensor.inner();
        let ops = in_f32().evaluating();
        let x = plain(values([3, inputs], 1));
        let [first, second] =
            [(7, 2), (4, 3)].map(|(out, salt)| plain(values([out, inputs], salt)));
        let bias = values::<1>([7], 4).inner();
        let all = [
            ops.linear(x.clone(), first.clone(), Some(bias.clone())),
            ops.linear(x.clone(), first.clone(), None),
            ops.linears(x.clone().unsqueeze(), &[first.clone(), second.clone()])
                .squeeze_dim(0),
        ]
        .map(|product| numbers(product.narrow(0, 1, 1)));
        let row = x.narrow(0, 1, 1);
        let one = [
            ops.linear(row.clone(), first.clone(), Some(bias)),
            ops.linear(row.clone(), first.clone(), None),
            ops.linears(row.unsqueeze(), &[first, second])
                .squeeze_dim(0),
        ]
        .map(numbers);
        for (all, one) in all.iter().flatten().zip(one.iter().flatten()) {
            assert!((all - one).abs() < 1e-4, "{inputs}: {all} {one}");
        }
    }
}

/// MKL uses no AVX-512 on processors that are not Intel's.
#[test]
fn large_products_of_f32_go_to_one_dnn_where_mkl_is_slow_and_small_ones_do_not() {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let is_slow_in_mkl = information.contains(" avx512f") && !information.contains("GenuineIntel");
    let products = |ops: Ops, rows: usize, width: usize| {
        let (x, weight) = (values([rows, width], 1), values([256, width], 2));
        let (_, operators) = record_operators(|| {
            let sum = ops.linear(x, weight, None).sum();
            drop(sum.backward());
            Ok(())
        })
        .unwrap();
        ["mkldnn::_linear_pointwise", "aten::mm"].map(|name| count(&operators, name))
    };
    let ops = in_f32();
    let by_one_dnn = if is_slow_in_mkl { 3 } else { 0 };
    assert_eq!(products(ops, 128, 256), [by_one_dnn, 3 - by_one_dnn]);
    assert_eq!(products(ops, 32, 256), [0, 3], "few rows");
    assert_eq!(products(ops, 64, 32), [0, 3], "little work");
    let narrow = Ops::new(Engine::Libtorch, Precision::AmpBf16).unwrap();
    assert_eq!(products(narrow, 128, 256), [0, 3], "another format");
    force_cuda_branches(true);
    let as_on_cuda = products(ops, 128, 256);
    force_cuda_branches(false);
    assert_eq!(as_on_cuda, [0, 3]);
}

#[test]
fn the_loss_does_not_write_over_logits_that_others_hold() {
    let logits = values([4, 9], 1) * 2.0;
    let before = numbers(logits.clone());
    let targets = Tensor::<1, Int>::from_data([2, 1, 8, 0], &Device::libtorch());
    let loss = in_f32().cross_entropy(logits.clone(), targets, 0.0);
    drop(loss.backward());
    assert_eq!(numbers(logits), before);
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
    let ops = Ops::new(Engine::Libtorch, precision).unwrap();
    let (x, w, b) = (values([2, 3, 8], 1), values([24, 8], 2), values([24], 3));
    let (gain, shift) = (values([8], 4), values([8], 5));
    let normed = ops.layer_norm(x.clone(), gain.clone(), Some(shift.clone()));
    assert_eq!(normed.dtype(), DType::F32);
    let qkv = ops.linear(normed, w.clone(), Some(b.clone()));
    assert_eq!(qkv.dtype(), narrow);
    let branch = ops.gelu(ops.dropout(ops.causal_attention(qkv, 2, 0.0), 0.1));
    assert_eq!(branch.dtype(), narrow);
    let stream = ops.residual(x.clone(), branch);
    assert_eq!(stream.dtype(), DType::F32);
    let head = values([9, 8], 6);
    let logits = ops.linear(stream, head.clone(), None).reshape([6, 9]);
    assert_eq!(logits.dtype(), narrow);
    let loss = ops.cross_entropy(
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

/// Operators by name of a pass over two layers of an LSTM with states of more rows than the
/// batch has.
fn lstm_operators(ops: Ops, dropout: f64) -> Vec<RecordedOperator> {
    let state = |salt: usize| plain(values([2, 3, 3], salt));
    let before = LstmState {
        hidden: state(6),
        cell: state(7),
    }
    .of_rows(2);
    let layers = [4, 3].map(|inputs| LstmWeights {
        input: values([12, inputs], 2),
        state: values([12, 3], 3),
        input_bias: values([12], 4),
        state_bias: values([12], 5),
    });
    let x = values([2, 5, 4], 1);
    record_operators(|| Ok(ops.lstm(x, &layers, Some(before), dropout)))
        .unwrap()
        .1
}

fn count(operators: &[RecordedOperator], name: &str) -> usize {
    operators
        .iter()
        .filter(|operator| operator.name == name)
        .count()
}

/// Where layers go through libtorch's `lstm` on every processor.
fn in_f16() -> Ops {
    Ops::new(Engine::Libtorch, Precision::AmpF16).unwrap()
}

/// cuDNN refuses states that lie scattered ("rnn: hx is not contiguous"), oneDNN reads them wrong.
#[test]
fn the_states_of_some_rows_reach_libtorch_in_one_piece() {
    let states = |ops: Ops, name: &str, places: [usize; 2], shape: &[i64]| {
        let operators = lstm_operators(ops, 0.0);
        let lstm = operators
            .iter()
            .find(|operator| operator.name == name)
            .unwrap();
        for place in places {
            let state = &lstm.inputs[place];
            assert_eq!(
                (state.shape.as_slice(), state.is_contiguous),
                (shape, true),
                "{name}"
            );
        }
    };
    states(in_f32(), "aten::mkldnn_rnn_layer", [5, 6], &[2, 3]);
    states(in_f16(), "aten::lstm", [1, 2], &[2, 2, 3]);
}

#[test]
fn no_dropout_is_left_to_libtorchs_lstm() {
    let narrow = in_f16();
    let found = |ops: Ops, dropout: f64| {
        let operators = lstm_operators(ops, dropout);
        (
            count(&operators, "aten::lstm"),
            count(&operators, "aten::dropout"),
            count(&operators, "aten::bernoulli_"),
        )
    };
    assert_eq!(found(narrow, 0.5), (2, 0, 1), "dropped between two");
    assert_eq!(found(narrow, 0.0), (1, 0, 0));
    assert_eq!(found(narrow.evaluating(), 0.5), (1, 0, 0));
}

/// Where libtorch's autograd recorded it, another thread would run it on a GPU.
#[test]
fn the_backward_pass_of_an_lstm_in_f32_is_its_own_operator() {
    let layer = LstmWeights {
        input: values([12, 4], 2),
        state: values([12, 3], 3),
        input_bias: values([12], 4),
        state_bias: values([12], 5),
    };
    let layers = [layer.clone(), with_inputs_of(&layer)];
    let backward = |ops: Ops| {
        let (out, _) = ops.lstm(values([2, 5, 4], 1), &layers, None, 0.0);
        let (gradients, operators) = record_operators(|| Ok(out.sum().backward())).unwrap();
        assert_eq!(layer.state.grad(&gradients).unwrap().dims(), [12, 3]);
        let of_autograd = operators
            .iter()
            .filter(|operator| operator.name.starts_with("autograd::"));
        let own = count(&operators, "aten::mkldnn_rnn_layer_backward");
        (own, of_autograd.count() > 0)
    };
    assert_eq!(backward(in_f32()), (2, false));
    let narrow = Ops::new(Engine::Libtorch, Precision::AmpF16).unwrap();
    assert_eq!(backward(narrow), (0, true));
}

/// A layer on top of this one.
fn with_inputs_of(layer: &LstmWeights) -> LstmWeights {
    LstmWeights {
        input: values([12, 3], 6),
        ..layer.clone()
    }
}

#[test]
fn logits_that_others_hold_are_not_written_over_before_they_are_read_again() {
    let ops = in_f32().on_cuda(true);
    let gradient_of_first_row = |writes: bool| -> Vec<f32> {
        let leaf = values([12, 5_000], 1);
        let logits = leaf.clone().cast(burn::tensor::FloatDType::BF16);
        let targets = Tensor::<1, Int>::from_data([7; 12], &Device::libtorch());
        take_cuda_kernels(true);
        let loss = ops.cross_entropy(logits.clone(), targets, 0.0);
        let written = writes.then(|| logits.inner().mul_scalar(0.0));
        let gradients = loss.backward();
        take_cuda_kernels(false);
        drop(written);
        numbers(leaf.grad(&gradients).unwrap().narrow(0, 0, 1))
    };
    assert_eq!(gradient_of_first_row(true), gradient_of_first_row(false));
}

/// The largest buffer of a language model, its logits in f32, exists once.
#[test]
fn the_log_probabilities_of_bf16_logits_overwrite_their_copy_in_f32() {
    let ops = in_f32().on_cuda(true);
    let of = |dtype: DType| {
        let float = burn::tensor::FloatDType::from(dtype);
        let logits = values([6, 40], 1).cast(float);
        let targets = Tensor::<1, Int>::from_data([3, 1, 4, 1, 5, 9], &Device::libtorch());
        force_cuda_branches(true);
        let recorded = record_operators(|| Ok(ops.cross_entropy(logits, targets, 0.0)));
        force_cuda_branches(false);
        let (loss, operators) = recorded.unwrap();
        let softmax = operators
            .iter()
            .filter(|operator| operator.name == "aten::_log_softmax");
        let is_in_place: Vec<bool> = softmax
            .map(|operator| match operator.inputs.as_slice() {
                [from, to] => from.address == to.address && from.kind == "Float",
                _ => false,
            })
            .collect();
        (numbers(loss)[0], is_in_place)
    };
    let ((of_bf16, in_place), (of_f16, by_a_kernel)) = (of(DType::BF16), of(DType::F16));
    assert_eq!(in_place, [true]);
    // Of f16 one kernel on CUDA needs no copy.
    assert_eq!(by_a_kernel, [false]);
    assert!((of_bf16 - of_f16).abs() < 0.05, "{of_bf16} {of_f16}");
}

/// By kernels, of as many classes as a language model of real size has. Every third row is sure of its
/// target, every fifth does not count.
#[test]
fn the_loss_of_bf16_logits_is_that_of_f32_without_a_copy_of_them() {
    const ROWS: usize = 40;
    const CLASSES: usize = 50_000;
    let ops = in_f32().on_cuda(true);
    let targets: [i64; ROWS] = std::array::from_fn(|row| match row % 5 {
        4 => IGNORED_TARGET,
        _ => (row * 1_250) as i64,
    });
    // All of them are numbers of bf16.
    let mut given: Vec<f32> = (0..ROWS * CLASSES)
        .map(|at| ((at * 37 + at / CLASSES) % 64) as f32 / 32.0 - 1.0)
        .collect();
    for (row, target) in targets.iter().enumerate().step_by(3) {
        if let Ok(class) = usize::try_from(*target) {
            given[row * CLASSES + class] = 22.0;
        }
    }
    let device = Device::libtorch().autodiff();
    let leaf = Tensor::<2>::from_data(TensorData::new(given.clone(), [ROWS, CLASSES]), &device);
    let leaf = leaf.require_grad();
    let logits = leaf.clone().cast(burn::tensor::FloatDType::BF16);
    let on_device = Tensor::<1, Int>::from_data(targets, &Device::libtorch());
    take_cuda_kernels(true);
    let recorded = record_operators(|| {
        let loss = ops.cross_entropy(logits, on_device, 0.0);
        let gradients = (loss.clone() / 32.0).backward();
        Ok((loss, gradients))
    });
    take_cuda_kernels(false);
    let ((loss, gradients), operators) = recorded.unwrap();
    let of_leaf = numbers(leaf.grad(&gradients).unwrap());

    let mut expected_loss = 0.0;
    for (row, target) in targets.iter().enumerate() {
        let [of_row, found] =
            [&given, &of_leaf].map(|all| &all[row * CLASSES..(row + 1) * CLASSES]);
        let Ok(class) = usize::try_from(*target) else {
            assert!(found.iter().all(|gradient| *gradient == 0.0), "row {row}");
            continue;
        };
        let terms: f64 = of_row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let log_probability = f64::from(of_row[class]) - terms.ln();
        expected_loss -= log_probability;
        for (at, (logit, found)) in of_row.iter().zip(found).enumerate() {
            let expected = match at == class {
                true => log_probability.exp_m1() / 32.0,
                false => f64::from(*logit).exp() / terms / 32.0,
            };
            // Rounded to bf16 once.
            assert!(
                (f64::from(*found) - expected).abs()
                    < expected.abs() / 256.0 + 2e-6 / 32.0 * f64::from(u8::from(at == class)),
                "row {row}, class {at} of {class}: {found} {expected}"
            );
        }
    }
    let loss = f64::from(loss.into_scalar::<f32>());
    assert!(
        (loss / expected_loss - 1.0).abs() < 1e-6,
        "{loss} {expected_loss}"
    );

    // What the loss's gradient becomes for the leaf follows it.
    let of_f32 = |input: &&OperatorInput| {
        input.kind == "Float" && input.shape.iter().product::<i64>() >= (ROWS * CLASSES) as i64
    };
    let of_loss = operators
        .iter()
        .take_while(|operator| operator.name != "aten::_to_copy");
    for operator in of_loss {
        assert_eq!(operator.inputs.iter().find(of_f32), None, "{operator:?}");
    }
    assert!(
        operators
            .iter()
            .all(|operator| !operator.name.contains("softmax")),
        "{operators:?}"
    );
}

#[test]
fn a_mask_is_laid_out_once_for_all_layers_and_copied_in_none() {
    let ops = in_f32().on_cuda(true);
    let mask = Tensor::<4>::zeros([2, 1, 1, 13], &Device::libtorch());
    let (q, kv) = (values([2, 3, 8], 1), values([2, 13, 16], 2));
    let with_layer = |added: &AddedToScores| {
        force_cuda_branches(true);
        let recorded =
            record_operators(|| Ok(ops.attention_to(q.clone(), kv.clone(), added, 2, 0.0)));
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
    let added = ops.added_to_scores(None, Some(mask.clone()));
    assert_eq!(of_mask(&with_layer(&added)), Vec::<String>::new());
    // As it would be without the layout.
    let scattered = AddedToScores {
        bias: None,
        mask: None,
        sum: Some(mask),
    };
    assert!(of_mask(&with_layer(&scattered)).contains(&"aten::constant_pad_nd".to_owned()));
    let (laid_out, plain) = (
        with_layer_result(ops, &q, &kv, &added),
        with_layer_result(ops, &q, &kv, &scattered),
    );
    assert_eq!(laid_out, plain);
}

/// A bias that was looked up has its heads innermost. libtorch's padding would keep them there, and
/// its fused attention refuses rows with gaps.
#[test]
fn a_bias_that_was_looked_up_is_laid_out_in_rows_once_for_all_layers() {
    let ops = in_f32().on_cuda(true);
    for seen in [16, 13] {
        let (q, kv) = (values([2, 3, 8], 1), values([2, seen, 16], 2));
        let mask = Tensor::<4>::zeros([2, 1, 1, seen], &Device::libtorch());
        let bias = || values([3, seen, 2], 3).permute([2, 0, 1]);
        let added = ops.added_to_scores(Some(bias()), Some(mask.clone()));
        force_cuda_branches(true);
        let recorded =
            record_operators(|| Ok(ops.attention_to(q.clone(), kv.clone(), &added, 2, 0.0)));
        force_cuda_branches(false);
        let changes_the_layout = |operator: &&RecordedOperator| {
            ["aten::clone", "aten::constant_pad_nd"].contains(&operator.name.as_str())
                && operator.inputs[0].shape == [2, 2, 3, seen as i64]
        };
        let operators = recorded.unwrap().1;
        assert_eq!(operators.iter().find(changes_the_layout), None, "{seen}");
        // As it was: each layer has to change it, and the result is the same.
        let scattered = AddedToScores {
            bias: Some(bias()),
            mask: Some(mask.clone()),
            sum: Some(bias().inner().unsqueeze_dim::<4>(0) + mask),
        };
        assert_eq!(
            with_layer_result(ops, &q, &kv, &added),
            with_layer_result(ops, &q, &kv, &scattered)
        );
    }
}

fn with_layer_result(ops: Ops, q: &Tensor<3>, kv: &Tensor<3>, added: &AddedToScores) -> Vec<f32> {
    force_cuda_branches(true);
    let out = ops.attention_to(q.clone(), kv.clone(), added, 2, 0.0);
    force_cuda_branches(false);
    numbers(out)
}

/// cuDNN drops in sixteenths and plans each shape anew.
#[test]
fn cudnn_may_compute_attention_only_where_it_drops_what_is_asked_and_shapes_stay() {
    let qkv = values([2, 6, 24], 1);
    // The switch is the process's, and other tests turn it too.
    let allowed = |ops: Ops, qkv: Tensor<3>, dropout: f64, expected: bool| {
        (0..1000).any(|_| {
            drop(ops.causal_attention(qkv.clone(), 2, dropout));
            crate::engine::libtorch::cudnn_attention_allowed() == expected
        })
    };
    let ops = in_f32();
    for (dropout, expected) in [(0.0, true), (0.125, true), (0.1, false)] {
        assert!(
            allowed(ops, qkv.clone(), dropout, expected),
            "dropout {dropout}"
        );
    }
    assert!(
        allowed(ops.evaluating(), plain(qkv), 0.0, false),
        "generation and evaluation meet new lengths"
    );
}

#[test]
fn lstm_layers_compute_in_the_format_of_products_and_remember_in_f32() {
    let of = |precision, dtype: DType| {
        let float = burn::tensor::FloatDType::from(dtype);
        let ops = Ops::new(Engine::Libtorch, precision).unwrap();
        let matrix = |inputs: usize, salt| values([12, inputs], salt).cast(float);
        let bias = || values([12], 4).cast(float);
        let layer = LstmWeights {
            input: matrix(4, 2),
            state: matrix(3, 3),
            input_bias: bias(),
            state_bias: bias(),
        };
        let x = values([2, 5, 4], 1).cast(float);
        let (out, after) = ops.lstm(x.clone(), std::slice::from_ref(&layer), None, 0.0);
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
        let ops = Ops::new(Engine::Libtorch, precision).unwrap();
        let product = ops.linear(values([6, 8], 1), values([5, 8], 2), None);
        assert_eq!(product.dtype(), DType::F32, "{precision:?}");
    }
}
