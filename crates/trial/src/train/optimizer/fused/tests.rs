use std::array;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Device, TensorData},
};
use kiln_core::{
    kinds::data::{ImageShape, InputShape, PanelShape},
    spec::{Engine, GradientNoise, Precision},
};

use super::*;
use crate::engine::updates::{Adafactor, AdamW, Sgd, adafactor, adamw, sgd};
use crate::{
    engine::Ops,
    model::{Init, Input, stored},
    train::objective::BatchTarget,
};

/// One parameter in this format, before its first update.
fn group(parameter: &[f32], kind: tch::Kind) -> ParameterGroup {
    let parameters = vec![tch::Tensor::from_slice(parameter).to_kind(kind)];
    ParameterGroup {
        gradients: vec![parameters[0].zeros_like()],
        first: vec![parameters[0].zeros_like()],
        second: vec![parameters[0].zeros_like()],
        steps: vec![tch::Tensor::zeros([], (tch::Kind::Float, tch::Device::Cpu))],
        parameters,
    }
}

fn values(tensor: &tch::Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

/// With the number that says whether the update is skipped.
fn skipping(found: &tch::Tensor) -> OnDevice<'_> {
    OnDevice {
        found: Some(found),
        divisor: None,
    }
}

/// Enough numbers for libtorch's loops over vectors, and some that are left over.
const MANY: usize = 150;

const KINDS: [tch::Kind; 2] = [tch::Kind::Float, tch::Kind::BFloat16];

/// Numbers that bf16 holds exactly.
fn beginnings() -> [f32; MANY] {
    array::from_fn(|at| (at % 13) as f32 / 4.0 - 1.5)
}

fn gradients_of(step: usize) -> [f32; MANY] {
    array::from_fn(|at| ((step * 7 + at * 3) % 11) as f32 / 8.0 - 0.5)
}

fn rounded(number: f64, kind: tch::Kind) -> f64 {
    tch::Tensor::from(number).to_kind(kind).double_value(&[])
}

/// Each number is within what rounding makes of it: the last place that bf16 has of numbers up to
/// 2, or 2e-6 in f32. Most are not where they began.
fn assert_moved_to(what: &str, found: &tch::Tensor, expected: [f64; MANY]) {
    let places = match found.kind() {
        tch::Kind::BFloat16 => 1.0 / 128.0,
        _ => 1e-6,
    };
    let found = values(&found.to_kind(tch::Kind::Float));
    let moved = found
        .iter()
        .zip(beginnings())
        .filter(|(found, begun)| **found != *begun);
    assert!(moved.count() > MANY * 9 / 10, "{what}: {found:?}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = (f64::from(*found) - expected).abs();
        assert!(
            distance <= places * expected.abs().max(2.0),
            "{what}, {at}: {found} {expected}"
        );
    }
}

#[test]
fn fused_adamw_equals_adamw_written_out_for_20_steps() {
    for kind in KINDS {
        let with = AdamW {
            learning_rate: LearningRate::Number(0.03),
            beta1: 0.9,
            beta2: 0.95,
            weight_decay: 0.1,
            epsilon: 1e-8,
        };
        let mut fused = group(&beginnings(), kind);
        let mut parameter = beginnings().map(f64::from);
        let (mut first, mut second) = ([0.0_f64; MANY], [0.0_f64; MANY]);
        for step in 1..=20 {
            let gradient = gradients_of(step);
            fused.gradients = vec![tch::Tensor::from_slice(&gradient).to_kind(kind)];
            adamw(&fused, with, OnDevice::default()).unwrap();
            for at in 0..MANY {
                let gradient = f64::from(gradient[at]);
                let mean = with.beta1 * first[at] + (1.0 - with.beta1) * gradient;
                let square = with.beta2 * second[at] + (1.0 - with.beta2) * gradient * gradient;
                (first[at], second[at]) = (rounded(mean, kind), rounded(square, kind));
                let (mean, square) = (
                    mean / (1.0 - with.beta1.powi(step as i32)),
                    square / (1.0 - with.beta2.powi(step as i32)),
                );
                let kept = parameter[at] * (1.0 - 0.03 * with.weight_decay);
                let moved = kept - 0.03 * mean / (square.sqrt() + with.epsilon);
                parameter[at] = rounded(moved, kind);
            }
        }
        assert_moved_to(&format!("{kind:?}"), &fused.parameters[0], parameter);
    }
}

/// Checks the dtype of each parameter's gradient as burn's autodiff made it.
struct Dtypes(Gradients, DType, usize);

impl ModuleVisitor for Dtypes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param
            .val()
            .grad(&self.0)
            .expect("each parameter has a gradient");
        assert_eq!((param.val().dtype(), gradient.dtype()), (self.1, self.1));
        self.2 += 1;
    }
}

const GPT: &str = "kind: gpt, d_model: 16, num_layers: 2, num_heads: 2, seq_len: 4";
const MLP: &str = "kind: mlp, d_model: 8, hidden: 16, seq_len: 4, context: 2";
const LSTM: &str = "kind: lstm, d_model: 8, hidden: 8, num_layers: 2, seq_len: 4";

fn train(precision: Precision, optimizer: &str) -> Train {
    Train {
        precision,
        optimizer: serde_yaml::from_str(optimizer).unwrap(),
        clip_norm: Some(1.0),
        ..Train::default()
    }
}

const RESNET: &str = "kind: resnet, depth: 18, width: 4, stem: small";
const PANEL: &str = "kind: panel-lstm, hidden: 8, num_layers: 2";

fn network(shape: &str, precision: Precision) -> Network {
    let input = match shape {
        RESNET => InputShape::Images(ImageShape {
            channels: 1,
            height: 8,
            width: 8,
            classes: 10,
        }),
        PANEL => InputShape::Panel(PanelShape {
            features: 3,
            symbols: 5,
        }),
        _ => InputShape::Text { vocabulary: 20 },
    };
    let init = Init {
        seed: 1,
        device: Device::libtorch().autodiff(),
    };
    let network = Network::new(
        &serde_yaml::from_str(&format!("{{{shape}}}")).unwrap(),
        Some(input),
        &init,
    )
    .unwrap();
    stored(network, precision)
}

fn batch(network: &Network) -> (Input, BatchTarget) {
    let device = Device::libtorch();
    let classes = |labels: [i64; 4]| Tensor::from_data(labels, &device);
    match network {
        Network::Resnet(_) => {
            let pixels = (0..4 * 64)
                .map(|at| ((at * 37) % 64) as f32 / 32.0 - 1.0)
                .collect();
            (
                Input::Images(Tensor::from_data(
                    TensorData::new(pixels, [4, 1, 8, 8]),
                    &device,
                )),
                BatchTarget::Labels(classes([2, 3, 4, 5])),
            )
        }
        Network::PanelLstm(_) => {
            let features = Tensor::from_data(
                [
                    [[0.5, -1.0, 2.0], [0.1, 0.2, 0.3]],
                    [[1.0, 0.0, -0.5], [0.7, -0.7, 0.2]],
                ],
                &device,
            );
            let input = Input::Panel {
                features,
                symbols: Tensor::from_data([1, 3], &device),
            };
            (
                input,
                BatchTarget::Directions(Tensor::from_data([1.0, 0.0], &device)),
            )
        }
        _ => (
            Input::Text(Tensor::from_data([[1, 2, 3, 4]], &device)),
            BatchTarget::Classes(classes([2, 3, 4, 5])),
        ),
    }
}

/// Divided by many targets, as of a large batch, so that its gradients stay in the range of
/// f16.
fn loss(network: &Network, precision: Precision) -> Tensor<1> {
    let with = Ops::new(Engine::Libtorch, precision).unwrap();
    let (input, target) = batch(network);
    target.loss(network.forward(input, &mut None, with), 0.0, with) / 64.0
}

#[test]
fn parameters_gradients_and_moments_are_f32_but_under_bf16_and_the_loss_always_is() {
    let untied = format!("{GPT}, tie_head: false");
    for precision in [
        Precision::F32,
        Precision::AmpBf16,
        Precision::AmpF16,
        Precision::Bf16,
    ] {
        [GPT, &untied, MLP, LSTM, RESNET, PANEL]
            .into_iter()
            .for_each(|shape| has_dtypes(shape, precision));
    }
}

fn has_dtypes(shape: &str, precision: Precision) {
    let (dtype, kind) = if precision == Precision::Bf16 {
        (DType::BF16, tch::Kind::BFloat16)
    } else {
        (DType::F32, tch::Kind::Float)
    };
    let network = network(shape, precision);
    assert_eq!(loss(&network, precision).dtype(), DType::F32);
    let mut fused = Fused::new(&network, &train(precision, "{kind: adamw}"));
    let backward = |fused: &Fused| fused.scaled(loss(&network, precision)).backward();
    let mut dtypes = Dtypes(backward(&fused), dtype, 0);
    network.visit(&mut dtypes);
    assert_eq!(dtypes.2, fused.paths.len());
    for _ in 0..2 {
        let gradients = backward(&fused);
        fused.accumulate(&network, gradients).unwrap();
    }
    assert!(
        fused
            .gradients
            .iter()
            .all(|gradient| gradient.kind() == kind)
    );
    fused.update(1e-3).unwrap();
    for group in &fused.groups {
        let all = [&group.parameters, &group.first, &group.second];
        assert!(
            all.into_iter()
                .flatten()
                .all(|tensor| tensor.kind() == kind),
            "{shape} {precision:?}"
        );
        assert!(
            group
                .steps
                .iter()
                .all(|tensor| tensor.kind() == tch::Kind::Float),
            "libtorch counts steps in f32"
        );
    }
}

/// Parameters, moments and step counters, in their own memory.
fn state(fused: &Fused) -> Vec<tch::Tensor> {
    let lists = fused
        .groups
        .iter()
        .flat_map(|group| [&group.parameters, &group.first, &group.second, &group.steps]);
    lists.flatten().map(tch::Tensor::copy).collect()
}

fn same(before: &[tch::Tensor], after: &[tch::Tensor]) -> bool {
    before.len() == after.len()
        && before
            .iter()
            .zip(after)
            .all(|(before, after)| before.equal(after))
}

#[test]
fn a_step_with_an_infinite_gradient_leaves_everything_as_it_was_and_is_counted() {
    for optimizer in [
        "{kind: adamw}",
        "{kind: sgd, momentum: 0.9}",
        "{kind: sgd}",
        "{kind: adafactor}",
    ] {
        let network = network(GPT, Precision::AmpF16);
        let mut fused = Fused::new(&network, &train(Precision::AmpF16, optimizer));
        let step = |fused: &mut Fused, planted: Option<f64>| {
            let gradients = fused.scaled(loss(&network, Precision::AmpF16)).backward();
            fused.accumulate(&network, gradients).unwrap();
            if let Some(value) = planted {
                let _ = fused.gradients[1].get(0).fill_(value);
            }
            fused.update(1e-2).unwrap();
        };
        let scale = |fused: &Fused| fused.scaler.as_ref().unwrap().scale().unwrap();
        // The first step too: a momentum that is not started yet must not start from it.
        for planted in [f64::INFINITY, f64::NAN] {
            let (before, factor) = (state(&fused), scale(&fused));
            step(&mut fused, Some(planted));
            assert!(same(&before, &state(&fused)), "{optimizer} {planted}");
            assert_eq!(scale(&fused), factor / 2.0);
        }
        assert_eq!(fused.skipped_steps().unwrap(), Some(2));
        for _ in 0..2 {
            let before = state(&fused);
            step(&mut fused, None);
            assert!(!same(&before, &state(&fused)), "{optimizer}");
            assert!(
                state(&fused)
                    .iter()
                    .all(|tensor| tensor.isfinite().all().int64_value(&[]) == 1)
            );
        }
        assert_eq!(
            (fused.skipped_steps().unwrap(), scale(&fused)),
            (Some(2), 16384.0)
        );
        assert!(
            fused
                .groups
                .iter()
                .flat_map(|group| &group.steps)
                .all(|steps| steps.double_value(&[]) == 2.0),
            "skipped steps do not count"
        );
    }
}

#[test]
fn gradients_are_clipped_and_read_without_the_scale() {
    let moved = |precision: Precision| {
        let network = network(GPT, precision);
        let mut fused = Fused::new(
            &network,
            &Train {
                clip_norm: Some(1e-3),
                ..train(precision, "{kind: sgd, weight_decay: 0.0}")
            },
        );
        let before = state(&fused);
        let gradients = fused.scaled(loss(&network, precision)).backward();
        fused.accumulate(&network, gradients).unwrap();
        let norm = fused
            .gradients()
            .unwrap()
            .iter()
            .flat_map(|(_, values)| values.clone())
            .map(|value| f64::from(value).powi(2))
            .sum::<f64>();
        fused.update(1.0).unwrap();
        let distance = before
            .iter()
            .zip(state(&fused))
            .map(|(before, after)| (before - after).square().sum(None).double_value(&[]))
            .sum::<f64>();
        (norm.sqrt(), distance.sqrt())
    };
    let (plain, scaled) = (moved(Precision::F32), moved(Precision::AmpF16));
    // f16 keeps 11 bits of each factor.
    assert!(
        (scaled.0 / plain.0 - 1.0).abs() < 0.01,
        "norms {plain:?} {scaled:?}"
    );
    assert!(
        (scaled.1 / 1e-3 - 1.0).abs() < 0.01,
        "a step of the learning rate 1 is as long as the clip norm: {scaled:?}"
    );
}

#[test]
fn only_f16_products_are_scaled_and_counted() {
    for precision in [Precision::F32, Precision::Bf16, Precision::AmpBf16] {
        let fused = Fused::new(&network(MLP, precision), &train(precision, "{kind: adamw}"));
        assert!(fused.scaler.is_none() && fused.skipped_steps().unwrap().is_none());
    }
}

#[test]
fn fused_sgd_equals_sgd_written_out() {
    for kind in KINDS {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let mut fused = group(&beginnings(), kind);
            let (mut parameter, mut moving) = (beginnings().map(f64::from), [0.0_f64; MANY]);
            for step in 0..5 {
                let gradient = gradients_of(step);
                fused.gradients = vec![tch::Tensor::from_slice(&gradient).to_kind(kind)];
                let with = Sgd {
                    learning_rate: LearningRate::Number(0.1),
                    momentum,
                    nesterov,
                    weight_decay: 0.01,
                    first_step: step == 0,
                };
                sgd(&fused, with, OnDevice::default()).unwrap();
                for at in 0..MANY {
                    let by = f64::from(gradient[at]) + 0.01 * parameter[at];
                    let moved = momentum * moving[at] + by;
                    moving[at] = rounded(moved, kind);
                    let by = if nesterov {
                        by + momentum * moved
                    } else {
                        moved
                    };
                    parameter[at] = rounded(parameter[at] - 0.1 * by, kind);
                }
            }
            let what = format!("{kind:?}, momentum {momentum}, Nesterov's: {nesterov}");
            assert_moved_to(&what, &fused.parameters[0], parameter);
        }
    }
}

/// In one group with narrow ones, numbers in f32 are those that they are alone; and `found` skips
/// the update of all.
#[test]
fn a_group_of_two_formats_is_updated_whole_or_not_at_all() {
    let with = |rate| Sgd {
        learning_rate: rate,
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.01,
        first_step: false,
    };
    let [alone, narrow] = KINDS.map(|kind| {
        let mut group = group(&beginnings(), kind);
        group.gradients = vec![tch::Tensor::from_slice(&gradients_of(1)).to_kind(kind)];
        group
    });
    let both = |list: fn(&ParameterGroup) -> &[tch::Tensor]| -> Vec<tch::Tensor> {
        Vec::from([&alone, &narrow].map(|group| list(group)[0].copy()))
    };
    let mixed = ParameterGroup {
        parameters: both(|group| &group.parameters),
        gradients: both(|group| &group.gradients),
        first: both(|group| &group.first),
        second: vec![],
        steps: vec![],
    };
    let rate = tch::Tensor::from(0.1_f64);
    let found = tch::Tensor::from(1.0_f32);
    sgd(
        &mixed,
        with(LearningRate::OnDevice(&rate)),
        skipping(&found),
    )
    .unwrap();
    assert_eq!(mixed.parameters[0], alone.parameters[0], "skipped");
    assert_eq!(mixed.parameters[1], narrow.parameters[0], "skipped");
    for _ in 0..2 {
        let found = tch::Tensor::from(0.0_f32);
        sgd(
            &mixed,
            with(LearningRate::OnDevice(&rate)),
            skipping(&found),
        )
        .unwrap();
        for group in [&alone, &narrow] {
            sgd(group, with(LearningRate::Number(0.1)), OnDevice::default()).unwrap();
        }
    }
    let close =
        |found: &tch::Tensor, expected: &tch::Tensor| found.allclose(expected, 1e-6, 1e-6, false);
    assert!(close(&mixed.parameters[0], &alone.parameters[0]));
    assert_eq!(mixed.parameters[1], narrow.parameters[0]);
    assert_ne!(mixed.parameters[0], tch::Tensor::from_slice(&beginnings()));
    assert_eq!(mixed.gradients[0], alone.gradients[0], "gradients stay");
}

const ADAFACTOR: Adafactor<'_> = Adafactor {
    learning_rate: LearningRate::Number(0.05),
    decay_rate: 0.8,
    epsilon: 1e-30,
    clip_threshold: 0.7,
    weight_decay: 0.1,
};

/// A parameter that Adafactor updates by the rule of Shazeer & Stern 2018, algorithms 4 and 5
/// without the parameters' scale, in f64.
struct Written {
    values: Vec<f64>,
    /// Number of rows and of columns; a vector is a single row.
    shape: [usize; 2],
    /// Moving means of the squares in each row and column, or of each number of a vector.
    rows: Vec<f64>,
    columns: Vec<f64>,
}

impl Written {
    fn begin(values: &[f32], shape: [usize; 2]) -> Self {
        Self {
            values: values.iter().map(|value| f64::from(*value)).collect(),
            shape,
            rows: vec![0.0; shape[0]],
            columns: vec![0.0; shape[1]],
        }
    }

    fn step(&mut self, gradient: &[f32], step: i32) {
        let [height, width] = self.shape;
        let g: Vec<f64> = gradient.iter().map(|value| f64::from(*value)).collect();
        let moved = f64::from(step).powf(-ADAFACTOR.decay_rate);
        let move_to = |old: &mut f64, new: f64| *old = (1.0 - moved) * *old + moved * new;
        for (row, mean) in self.rows.iter_mut().enumerate() {
            let squares = (0..width).map(|column| g[row * width + column].powi(2));
            move_to(mean, squares.sum::<f64>() / width as f64);
        }
        for (column, mean) in self.columns.iter_mut().enumerate() {
            let squares = (0..height).map(|row| g[row * width + column].powi(2));
            move_to(mean, squares.sum::<f64>() / height as f64);
        }
        // A vector has one row, whose share is 1.
        let mean = self.rows.iter().sum::<f64>() / height as f64;
        let update: Vec<f64> = (0..g.len())
            .map(|at| g[at] / (self.rows[at / width] * self.columns[at % width] / mean).sqrt())
            .collect();
        let squares: f64 = update.iter().map(|value| value.powi(2)).sum();
        let size = (squares / update.len() as f64).sqrt();
        for (value, change) in self.values.iter_mut().zip(update) {
            *value = *value * (1.0 - 0.05 * ADAFACTOR.weight_decay)
                - 0.05 * change / (size / ADAFACTOR.clip_threshold).max(1.0);
        }
    }
}

/// Small ones of one shape are updated side by side everywhere; of those of 10,000 numbers three at
/// a time on the CPU, and each of those of 40,000 alone.
const SHAPES: [[usize; 2]; 13] = [
    [2, 3],
    [1, 2],
    [100, 100],
    [200, 200],
    [2, 3],
    [100, 100],
    [3, 2],
    [100, 100],
    [2, 3],
    [1, 2],
    [200, 200],
    [100, 100],
    [1, 5],
];

fn numbers_of(shape: [usize; 2], seed: usize) -> Vec<f32> {
    (0..shape[0] * shape[1])
        .map(|at| ((seed * 7 + at * 3) % 11) as f32 / 5.0 - 1.1)
        .collect()
}

fn tensor_of(numbers: &[f32], [height, width]: [usize; 2]) -> tch::Tensor {
    let shape = [height as i64, width as i64];
    let is_vector = height == 1;
    tch::Tensor::from_slice(numbers).reshape(&shape[usize::from(is_vector)..])
}

#[test]
fn adafactor_equals_adafactor_written_out_for_20_steps_alone_and_side_by_side() {
    for as_on_cuda in [false, true] {
        let mut group = ParameterGroup::default();
        let mut expected = Vec::new();
        for (at, shape) in SHAPES.into_iter().enumerate() {
            let numbers = numbers_of(shape, at);
            let parameter = tensor_of(&numbers, shape);
            group.begin(
                &serde_yaml::from_str("{kind: adafactor}").unwrap(),
                &parameter,
            );
            group.parameters.push(parameter);
            expected.push(Written::begin(&numbers, shape));
        }
        for step in 1..=20 {
            let gradients: Vec<_> = (0..SHAPES.len())
                .map(|at| numbers_of(SHAPES[at], step * 5 + at * at))
                .collect();
            group.gradients = gradients
                .iter()
                .zip(SHAPES)
                .map(|(numbers, shape)| tensor_of(numbers, shape))
                .collect();
            crate::engine::libtorch::force_cuda_branches(as_on_cuda);
            let updated = adafactor(&group, ADAFACTOR, OnDevice::default());
            crate::engine::libtorch::force_cuda_branches(false);
            updated.unwrap();
            for (written, gradient) in expected.iter_mut().zip(&gradients) {
                written.step(gradient, step as i32);
            }
        }
        for (at, (parameter, written)) in group.parameters.iter().zip(&expected).enumerate() {
            let found = values(&parameter.flatten(0, -1));
            for (found, expected) in found.into_iter().zip(&written.values) {
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "parameter {at}, as on CUDA: {as_on_cuda}: {found} {expected}"
                );
            }
            let kept: [(&tch::Tensor, &[f64]); 2] = match SHAPES[at] {
                [1, _] => [
                    (&group.first[at], &written.columns),
                    (&group.second[at], &[]),
                ],
                _ => [
                    (&group.first[at], &written.rows),
                    (&group.second[at], &written.columns),
                ],
            };
            for (found, expected) in kept {
                assert_eq!(found.numel(), expected.len());
                for (found, expected) in values(found).into_iter().zip(expected) {
                    assert!((f64::from(found) - expected).abs() < 1e-5, "means of {at}");
                }
            }
        }
    }
}

#[test]
fn adafactor_rounds_a_bf16_parameter_once_after_decay_and_update() {
    // 1 - rate * decay is 1 in bf16.
    let by = Adafactor {
        learning_rate: LearningRate::Number(0.01),
        ..ADAFACTOR
    };
    let updated = |kind: tch::Kind, weight_decay: f64| {
        let shapes = [[100, 100], [1, 400], [100, 100]];
        let mut group = ParameterGroup::default();
        for (at, shape) in shapes.into_iter().enumerate() {
            let of = |seed| {
                let narrow =
                    tensor_of(&numbers_of(shape, seed), shape).to_kind(tch::Kind::BFloat16);
                narrow.to_kind(kind)
            };
            let parameter = of(at);
            group.begin(
                &serde_yaml::from_str("{kind: adafactor}").unwrap(),
                &parameter,
            );
            group.parameters.push(parameter);
            group.gradients.push(of(at + 20));
        }
        let by = Adafactor { weight_decay, ..by };
        adafactor(&group, by, OnDevice::default()).unwrap();
        let parameters = group.parameters.iter();
        parameters
            .flat_map(|one| values(&one.to_kind(tch::Kind::Float).flatten(0, -1)))
            .collect::<Vec<f32>>()
    };
    let [narrow, plain] = [0.1, 0.0].map(|decay| updated(tch::Kind::BFloat16, decay));
    let wide = updated(tch::Kind::Float, 0.1);
    for (narrow, wide) in narrow.iter().zip(&wide) {
        let half_a_digit = wide.abs() * 2_f32.powi(-8) * 1.01;
        assert!((narrow - wide).abs() <= half_a_digit, "{narrow} {wide}");
    }
    let moved = narrow
        .iter()
        .zip(&plain)
        .filter(|(one, other)| one != other);
    assert!(moved.count() * 20 > narrow.len(), "the decay is lost");
}

#[test]
fn the_clip_norm_is_the_global_norm() {
    let gradients = [
        tch::Tensor::from_slice(&[3.0_f32, 0.0]),
        tch::Tensor::from_slice(&[4.0_f32]),
    ];
    for (largest, divisor) in [(1.0, 5.0), (2.0, 2.5), (5.5, 1.0)] {
        let found = clip_divisor(&gradients, largest).unwrap();
        assert!((found.double_value(&[]) - divisor).abs() < 1e-5, "{found}");
        let narrow: Vec<tch::Tensor> = gradients
            .iter()
            .map(|gradient| gradient.to_kind(tch::Kind::BFloat16))
            .collect();
        let of_narrow = clip_divisor(&narrow, largest).unwrap();
        assert_eq!(of_narrow, found, "these numbers are whole in bf16");
    }
}

/// An update that divides the gradients is that of gradients divided before; none is made where it
/// is skipped.
#[test]
fn every_optimizer_divides_the_gradients_first() {
    type Update = fn(&ParameterGroup, OnDevice<'_>) -> Result<(), TrialError>;
    fn with_momentum(momentum: f64) -> Sgd<'static> {
        Sgd {
            learning_rate: LearningRate::Number(0.1),
            momentum,
            nesterov: momentum != 0.0,
            weight_decay: 0.01,
            first_step: false,
        }
    }
    let updates: [(&str, Update); 4] = [
        ("adamw", |group, known| {
            let settings = AdamW {
                learning_rate: LearningRate::Number(0.01),
                beta1: 0.9,
                beta2: 0.99,
                weight_decay: 0.1,
                epsilon: 1e-8,
            };
            adamw(group, settings, known)
        }),
        ("sgd", |group, known| sgd(group, with_momentum(0.0), known)),
        ("sgd with momentum", |group, known| {
            sgd(group, with_momentum(0.9), known)
        }),
        ("adafactor", |group, known| {
            adafactor(group, ADAFACTOR, known)
        }),
    ];
    let divisor = tch::Tensor::from(2.7_f32);
    for (name, update) in updates {
        for kind in KINDS {
            let of = |gradient: tch::Tensor| {
                let mut group = group(&beginnings(), kind);
                if name == "adafactor" {
                    group.first = vec![tch::Tensor::from_slice(&[0.5_f32; MANY])];
                    group.second = vec![tch::Tensor::from_slice::<f32>(&[])];
                }
                group.gradients = vec![gradient];
                group
            };
            let gradient = || tch::Tensor::from_slice(&gradients_of(1)).to_kind(kind);
            let [together, apart, skipped] = [
                of(gradient()),
                of(gradient() / &divisor.to_kind(kind)),
                of(gradient()),
            ];
            let known = OnDevice {
                divisor: Some(&divisor),
                found: None,
            };
            update(&together, known).unwrap();
            update(&apart, OnDevice::default()).unwrap();
            let [found, expected] =
                [&together, &apart].map(|group| group.parameters[0].to_kind(tch::Kind::Float));
            let (relative, absolute) = match kind {
                tch::Kind::Float => (0.0, 0.0),
                // Divided gradients are rounded in between, or not.
                _ => (1e-2, 1e-2),
            };
            assert!(
                found.allclose(&expected, relative, absolute, false),
                "{name} in {kind:?}: {found} {expected}"
            );
            assert_ne!(found, skipped.parameters[0].to_kind(tch::Kind::Float));

            let is_found = tch::Tensor::from(1.0_f32);
            let known = OnDevice {
                found: Some(&is_found),
                ..known
            };
            update(&skipped, known).unwrap();
            assert_eq!(
                skipped.parameters[0],
                of(gradient()).parameters[0],
                "{name}"
            );
        }
    }
}

#[test]
fn the_norms_of_a_measured_step_are_those_of_its_gradients_without_scale_and_before_clipping() {
    for precision in [Precision::F32, Precision::AmpBf16, Precision::AmpF16] {
        let network = network(GPT, precision);
        let settings = Train {
            clip_norm: Some(1e-3),
            ..train(precision, "{kind: adafactor}")
        };
        let mut fused = Fused::new(&network, &settings);
        let add = |fused: &mut Fused, share: f64| {
            let gradients = fused.scaled(loss(&network, precision) * share).backward();
            fused.accumulate(&network, gradients).unwrap();
        };
        let read = |fused: &Fused| -> Vec<f64> {
            let all = fused.gradients().unwrap();
            all.iter()
                .flat_map(|(_, values)| values.iter().map(|value| f64::from(*value)))
                .collect()
        };
        let squared = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
        // A step that is not measured keeps nothing.
        add(&mut fused, 1.0);
        fused.update(1e-3).unwrap();
        assert!(fused.take_norms().is_none());

        fused.watch_norms(GradientNoise {
            every: 1,
            layer_groups: true,
        });
        add(&mut fused, 0.75);
        let first = read(&fused);
        assert!(fused.take_norms().is_none(), "the step has not ended");
        add(&mut fused, 0.25);
        let both = read(&fused);
        let named = fused.gradients().unwrap();
        let paths: Vec<&str> = named
            .iter()
            .flat_map(|(path, values)| vec![path.as_str(); values.len()])
            .collect();
        let second: Vec<f64> = both
            .iter()
            .zip(&first)
            .map(|(both, one)| both - one)
            .collect();
        fused.update(1e-3).unwrap();
        let norms = fused.take_norms().unwrap();
        let close = |value: f64, expected: f64| {
            assert!(
                (value / expected - 1.0).abs() < 1e-4,
                "{precision:?}: {value} for {expected}"
            );
        };
        let read = read_norms([norms].into_iter()).unwrap().remove(0);
        let [micro, whole] = read.of_all;
        close(micro, squared(&first) + squared(&second));
        close(whole, squared(&both));
        let names: Vec<&str> = read
            .layer_groups
            .iter()
            .map(|group| group.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "token_table",
                "position_table",
                "blocks.0",
                "blocks.1",
                "final_norm"
            ]
        );
        assert_eq!(read.of_groups.len(), names.len());
        for (group, [micro, whole]) in read.layer_groups.iter().zip(&read.of_groups) {
            let part = |values: &[f64]| -> Vec<f64> {
                let all = paths.iter().zip(values);
                let own = all.filter(|(path, _)| path.contains(&format!(".{}", group.name)));
                own.map(|(_, value)| *value).collect()
            };
            assert_eq!(part(&both).len() as u64, group.parameters);
            close(*micro, squared(&part(&first)) + squared(&part(&second)));
            close(*whole, squared(&part(&both)));
        }
        // The next step is another one.
        add(&mut fused, 1.0);
        fused.update(1e-3).unwrap();
        assert!(fused.take_norms().is_none());
    }
}
