//! The learner on both engines: equalities between ways of computing the same step.

use crate::common::{self, batch, engines, learner, slack, steps, trial};
use kiln_core::{
    kinds::InputShape,
    spec::{Engine, Precision},
};
use kiln_trial::train::{HostBatch, Learner, NamedValues};

/// For what the two engines must compute alike.
#[cfg(feature = "libtorch")]
const BOTH: [Engine; 2] = [Engine::Libtorch, Engine::Flex];

#[test]
fn the_loss_falls_on_a_batch_that_repeats() {
    for &engine in engines() {
        for model in ["mlp", "gpt"] {
            let file = trial(engine, model, "");
            let mut learner = learner(&file);
            let losses = steps(&mut learner, 30, 1, &[batch(4, 0)]);
            assert!(
                losses[29] < 0.7 * losses[0],
                "{engine:?} {model}: {losses:?}"
            );
        }
    }
}

#[cfg(feature = "libtorch")]
#[test]
fn flex_and_libtorch_agree_on_the_first_losses() {
    for model in ["mlp", "gpt"] {
        let [first, second] = BOTH.map(|engine| {
            steps(
                &mut learner(&trial(engine, model, "")),
                5,
                1,
                &[batch(4, 0), batch(4, 1)],
            )
        });
        for (at, (a, b)) in first.iter().zip(&second).enumerate() {
            // Same weights and batches in f32; the kernels sum in different orders.
            assert!((a - b).abs() < 1e-4 * slack(), "{model} step {at}: {a} {b}");
        }
    }
}

/// One step of the learner's optimizer over these batches, accumulated.
fn step_over(learner: &mut Learner, batches: &[HostBatch], learning_rate: f64) -> Vec<NamedValues> {
    let targets = batches.iter().map(HostBatch::counted_targets).sum();
    for (micro, host) in batches.iter().enumerate() {
        let device = learner.to_device(host).unwrap();
        learner
            .micro_step(device, 0, micro as u64, targets)
            .unwrap();
    }
    let gradients = learner.gradients().unwrap();
    learner.update(learning_rate).unwrap();
    gradients
}

/// The largest difference between the values of two lists.
fn worst(left: &[NamedValues], right: &[NamedValues]) -> f32 {
    assert!(
        left.iter()
            .map(|(path, values)| (path, values.len()))
            .eq(right.iter().map(|(path, values)| (path, values.len())))
    );
    let values = |list: &[NamedValues]| {
        list.iter()
            .flat_map(|(_, values)| values.clone())
            .collect::<Vec<f32>>()
    };
    values(left)
        .iter()
        .zip(values(right))
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

#[test]
fn four_accumulated_batches_of_8_give_the_step_of_one_batch_of_32() {
    // Adding up in another order differs by rounding; AdamW divides a gradient by its size, so it
    // magnifies that most.
    let optimizers = [
        ("{kind: sgd, learning_rate: 0.5, momentum: 0.9}", 0.5),
        (
            "{kind: adamw, learning_rate: 1.0e-3, weight_decay: 0.1}",
            1e-3,
        ),
    ];
    for (engine, (optimizer, rate)) in engines()
        .iter()
        .flat_map(|engine| optimizers.map(|optimizer| (*engine, optimizer)))
    {
        let mut file = trial(engine, "gpt", "");
        file.train.optimizer = serde_yaml::from_str(optimizer).unwrap();
        file.train.clip_norm = Some(1.0);
        let parts: Vec<_> = (0..4).map(|part| batch(8, part)).collect();
        let (mut whole, mut accumulated) = (learner(&file), learner(&file));
        let before = whole.parameter_values().unwrap();
        let of_one = step_over(&mut whole, &[common::joined(&parts)], rate);
        let of_four = step_over(&mut accumulated, &parts, rate);
        common::assert_close(&of_one, &of_four, 1e-5 * slack() as f32);
        let [one, four] = [&whole, &accumulated].map(|learner| learner.parameter_values().unwrap());
        let (moved, apart) = (worst(&before, &one), worst(&one, &four));
        println!(
            "{engine:?} {optimizer}: the step moves by up to {moved}, the parameters are {apart} \
             apart"
        );
        assert!(
            moved > 5e-4,
            "{engine:?} {optimizer}: the step moves the parameters: {moved}"
        );
        assert!(
            f64::from(apart) < 1e-5 * slack(),
            "{engine:?} {optimizer}: the parameters after the step differ by {apart}"
        );
        let [one, four] =
            [&mut whole, &mut accumulated].map(|learner| learner.take_losses().unwrap()[0]);
        assert!(
            (one - four).abs() < 1e-5 * slack(),
            "{engine:?} {optimizer}: {one} {four}"
        );
    }
}

#[cfg(feature = "libtorch")]
#[test]
fn the_fused_gradients_equal_those_of_burns_own_operations() {
    for (model, with) in [
        ("gpt", ""),
        ("gpt", "tie_head: false, bias: false"),
        ("mlp", ""),
    ] {
        let [fused, plain] = BOTH.map(|engine| {
            let mut learner = learner(&trial(engine, model, with));
            let host = batch(4, 0);
            let device = learner.to_device(&host).unwrap();
            learner
                .micro_step(device, 0, 0, host.counted_targets())
                .unwrap();
            learner.gradients().unwrap()
        });
        common::assert_close(&fused, &plain, 1e-5 * slack() as f32);
    }
}

#[test]
fn ignored_targets_count_neither_in_the_loss_nor_in_the_gradient() {
    for &engine in engines() {
        let file = trial(engine, "mlp", "");
        let whole = batch(2, 0);
        let mut padded = common::joined(&[batch(2, 0), batch(2, 1)]);
        let counted = whole.text().unwrap().targets.len();
        padded.text_mut().unwrap().targets[counted..].fill(-100);
        assert_eq!(padded.counted_targets(), whole.counted_targets());
        let [(first, of_whole), (second, of_padded)] = [whole, padded].map(|host| {
            let mut learner = learner(&file);
            let device = learner.to_device(&host).unwrap();
            learner
                .micro_step(device, 0, 0, host.counted_targets())
                .unwrap();
            let gradients = learner.gradients().unwrap();
            learner.update(1e-3).unwrap();
            (learner.take_losses().unwrap()[0], gradients)
        });
        assert!(
            (first - second).abs() < 1e-6 * slack(),
            "{engine:?}: {first} {second}"
        );
        common::assert_close(&of_whole, &of_padded, 1e-6 * slack() as f32);
    }
}

#[test]
fn evaluation_in_parts_equals_evaluation_at_once_and_the_training_loss() {
    for &engine in engines() {
        let mut learner = learner(&trial(engine, "gpt", ""));
        let parts = [batch(3, 0), batch(2, 1)];
        let whole = common::joined(&parts);
        let mut evaluate = |batches: &[HostBatch]| {
            for host in batches {
                let device = learner.to_device(host).unwrap();
                learner.evaluate(device).unwrap();
            }
            learner.finish_evaluation_loss().unwrap()
        };
        let (in_parts, at_once) = (evaluate(&parts), evaluate(std::slice::from_ref(&whole)));
        assert!(
            (in_parts - at_once).abs() < 1e-5 * slack(),
            "{engine:?}: {in_parts} {at_once}"
        );
        let trained = steps(&mut learner, 1, 1, &[whole])[0];
        assert!(
            (trained - at_once).abs() < 1e-5 * slack(),
            "{engine:?}: {trained} {at_once}"
        );
        assert!(
            learner.finish_evaluation_loss().is_err(),
            "an evaluation without targets has no loss"
        );
    }
}

#[test]
fn clipping_bounds_the_step_of_sgd() {
    for &engine in engines() {
        let mut file = trial(engine, "mlp", "");
        file.train.optimizer = serde_yaml::from_str("{kind: sgd, learning_rate: 1.0}").unwrap();
        file.train.clip_norm = Some(1e-12);
        let losses = steps(&mut learner(&file), 2, 1, &[batch(4, 0)]);
        assert!(
            (losses[0] - losses[1]).abs() < 1e-5,
            "{engine:?}: a step of length 1e-12 changes nothing: {losses:?}"
        );
        file.train.clip_norm = Some(1e6);
        let losses = steps(&mut learner(&file), 2, 1, &[batch(4, 0)]);
        assert!(losses[1] < losses[0] - 5e-4, "{engine:?}: {losses:?}");
    }
}

#[test]
fn what_an_engine_or_a_trial_cannot_do_is_refused_by_its_key() {
    let of_text = |vocabulary| Some(InputShape::Text { vocabulary });
    let refused = |file: &kiln_core::plan::TrialFile, vocabulary| {
        Learner::build(file, vocabulary)
            .err()
            .map(|error| error.to_string())
    };
    let mut file = trial(Engine::Flex, "gpt", "");
    file.train.precision = Precision::AmpBf16;
    assert_eq!(
        refused(&file, of_text(50)).unwrap(),
        "`train.precision` amp-bf16 needs `run.engine` libtorch; flex computes in f32"
    );
    file.train.precision = Precision::F32;
    assert!(refused(&file, None).unwrap().contains("`model.vocabulary`"));
    let small = trial(Engine::Flex, "gpt", "vocabulary: 10");
    assert!(
        refused(&small, of_text(50))
            .unwrap()
            .contains("`model.vocabulary` is 10, but the data has 50")
    );
    file.device = kiln_core::plan::ChildDevice::Cuda;
    assert!(
        refused(&file, of_text(50))
            .unwrap()
            .contains("`run.devices`")
    );
}

#[test]
fn matmul_has_nothing_that_could_learn() {
    for &engine in engines() {
        let mut file = trial(engine, "gpt", "");
        file.model = serde_yaml::from_str("{kind: matmul, size: 32}").unwrap();
        let error = Learner::build(&file, None)
            .err()
            .map(|error| error.to_string());
        assert!(error.unwrap().contains("matmul has no parameters"));
    }
}

/// A GPT on libtorch in a precision.
#[cfg(feature = "libtorch")]
fn in_precision(precision: Precision) -> kiln_core::plan::TrialFile {
    let mut file = trial(Engine::Libtorch, "gpt", "");
    file.train.precision = precision;
    file
}

#[cfg(feature = "libtorch")]
#[test]
fn a_step_of_amp_f16_whose_gradient_overflows_is_left_out_and_counted_and_its_loss_is_plain() {
    let mut learner = learner(&in_precision(Precision::AmpF16));
    let mut step = |number: u64| {
        let before = learner.parameter_values().unwrap();
        let on_device = learner.to_device(&batch(4, 0)).unwrap();
        // As if the batch had one target: sums of 64 gradients, times 65536, are too large for f16.
        learner.micro_step(on_device, number, 0, 1).unwrap();
        learner.update(1e-2).unwrap();
        let loss = learner.take_losses().unwrap()[0];
        let has_moved = worst(&before, &learner.parameter_values().unwrap()) > 0.0;
        (has_moved, loss, learner.skipped_steps().unwrap())
    };
    let first = step(1);
    let plain = 64.0 * f64::ln(50.0);
    assert!(
        (first.1 / plain - 1.0).abs() < 0.05,
        "the loss is that of 64 targets by guessing, without a scale: {first:?}"
    );
    assert_eq!((first.0, first.2), (false, 1));
    let mut skipped = 1;
    let moves = (2..=12).any(|number| {
        let (has_moved, _, count) = step(number);
        skipped += u64::from(!has_moved);
        assert_eq!(count, skipped, "step {number}");
        has_moved
    });
    assert!(moves, "the scale halves until a step fits");
    for precision in [Precision::F32, Precision::Bf16, Precision::AmpBf16] {
        let mut learner = Learner::build(
            &in_precision(precision),
            Some(InputShape::Text { vocabulary: 50 }),
        )
        .unwrap();
        drop(steps(&mut learner, 2, 1, &[batch(4, 0)]));
        assert_eq!(learner.skipped_steps(), None, "{precision:?}");
    }
}

#[cfg(feature = "libtorch")]
#[test]
fn the_gradient_of_amp_f16_is_read_without_its_scale() {
    let of = |precision| {
        step_over(
            &mut learner(&in_precision(precision)),
            &[batch(32, 0)],
            1e-3,
        )
    };
    let (plain, scaled) = (of(Precision::F32), of(Precision::AmpF16));
    let largest = plain
        .iter()
        .flat_map(|(_, values)| values)
        .fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // f16 keeps 11 bits of each factor, and a gradient comes out of a dozen products.
    assert!(
        worst(&plain, &scaled) < 0.01 * largest,
        "{} of {largest}",
        worst(&plain, &scaled)
    );
}

#[cfg(feature = "libtorch")]
#[test]
fn tf32_is_refused_on_the_cpu() {
    let error = Learner::build(
        &in_precision(Precision::Tf32),
        Some(InputShape::Text { vocabulary: 50 }),
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.starts_with("`train.precision` tf32 needs a GPU, and this trial runs on the CPU"),
        "{error}"
    );
}
