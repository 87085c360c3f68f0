//! Dropout draws at the rate that was asked for, keeps the mean, and its gradient has the mask of
//! its values. libtorch's kernels of attention drop values within: on a GPU each in its own way.
#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use burn::tensor::{FloatDType, Tensor};
use kiln_core::spec::{Engine, Precision};
use kiln_trial::engine::{EngineDevice, Ops};

use crate::common::{
    alone_with_the_generator_of, engines, is_cuda,
    tensors::{numbers, of_products, opened},
};

fn seeded(engine: Engine) -> EngineDevice {
    let device = opened(engine);
    device.seed(20_261_127).unwrap();
    device
}

#[test]
fn the_mean_of_dropped_values_stays_and_the_gradient_has_the_same_mask() {
    for &engine in engines() {
        let _alone = alone_with_the_generator_of(engine);
        let x = Tensor::<2>::ones([100, 100], &seeded(engine).with_gradients()).require_grad();
        let ops = Ops::new(engine, Precision::F32).unwrap().on_cuda(is_cuda());
        let dropped = ops.dropout(x.clone(), 0.25);
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

const BATCH: usize = 8;
const TIME: usize = 128;
const HEADS: usize = 4;
const WIDTH: usize = 16;

/// Attention of equal scores to values of 1: each output is the share of the TIME weights that were
/// kept, over the probability of keeping one. Its gradient for the values, summed over time, is
/// the sum of the outputs over time if both have the same mask.
fn attention(engine: Engine, precision: Precision, dropout: f64) {
    let _alone = alone_with_the_generator_of(engine);
    let device = seeded(engine);
    device.set_precision(precision).unwrap();
    let ops = Ops::new(engine, precision).unwrap().on_cuda(is_cuda());
    let inner = HEADS * WIDTH;
    let queries = Tensor::<3>::zeros([BATCH, TIME, inner], &device.with_gradients());
    let others = Tensor::cat(
        vec![
            Tensor::zeros([BATCH, TIME, inner], device.plain()),
            Tensor::<3>::ones([BATCH, TIME, inner], device.plain()),
        ],
        2,
    );
    let others = others.autodiff().require_grad();
    let added = ops.added_to_scores(None, None);
    let out = ops.attention_to(
        of_products(precision, queries),
        of_products(precision, others.clone()),
        &added,
        HEADS,
        dropout,
    );
    let gradient = others
        .grad(&out.clone().cast(FloatDType::F32).sum().backward())
        .unwrap();
    let what = format!("{engine:?} in {} at {dropout}", precision.name());
    let shares: Vec<f64> = numbers(out)
        .chunks(WIDTH)
        .map(|of_head| f64::from(of_head[0]))
        .collect();
    let count = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let expected = dropout / (1.0 - dropout) / TIME as f64;
    // Five standard deviations, and half a unit of bf16's last place.
    assert!(
        (mean - 1.0).abs() < 5.0 * (expected / count).sqrt() + 0.002,
        "{what}: mean {mean}"
    );
    // The variance of so many nearly normal values is known to 2.2 %; of 0.125 instead of 0.1 it
    // would be 29 % more.
    assert!(
        (variance / expected - 1.0).abs() < 0.14,
        "{what}: variance {variance}, expected {expected}"
    );
    let of_values = numbers(gradient);
    for (row, head) in (0..BATCH).flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
        let at = |time: usize| (row * TIME + time) * 2 * inner + inner + head * WIDTH;
        let backward: f64 = (0..TIME).map(|time| f64::from(of_values[at(time)])).sum();
        let forward: f64 = (0..TIME)
            .map(|time| shares[(row * TIME + time) * HEADS + head])
            .sum();
        // Another mask would differ by a standard deviation of sqrt(2 × 128 × expected) or more.
        let rounding = if precision == Precision::F32 {
            1e-3
        } else {
            0.08
        };
        assert!(
            (backward - forward).abs() < rounding,
            "{what}, row {row}, head {head}: {backward} backward, {forward} forward"
        );
    }
}

#[test]
fn attention_drops_at_the_rate_asked_for_and_its_gradient_has_the_same_mask() {
    for &engine in engines() {
        let precisions: &[Precision] = match engine {
            Engine::Libtorch => &[Precision::F32, Precision::AmpBf16, Precision::AmpF16],
            _ => &[Precision::F32],
        };
        for precision in precisions {
            for dropout in [0.1, 0.3] {
                attention(engine, *precision, dropout);
            }
        }
    }
}
