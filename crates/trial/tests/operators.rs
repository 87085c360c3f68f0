//! The libtorch operators that a training step calls: the same in every step, nothing read back,
//! and the operators that the code for CUDA avoids. `docs/development.md` has the counts beside
//! PyTorch's.

use std::{collections::HashSet, path::Path};

use kiln_core::{
    kinds::{InputShape, Model},
    plan::TrialFile,
    spec::{Engine, Precision},
};
use kiln_trial::{
    data::HostBatch,
    engine::{
        libtorch::emulate_cuda_kernels,
        recorder::{RecordedOperator, record_operators, work_by_name},
    },
    train::Learner,
};

use crate::{
    common::{alone_with_the_generator_of, tensors::Forced},
    parity::{IMAGES, Reference, all_references, file, images},
    transposed,
};

/// Steps before the recorded ones: an optimizer's first step may differ.
const WARM_UP: u64 = 4;

fn trial(reference: &Reference, precision: Precision) -> TrialFile {
    let mut file = file(reference, Engine::Libtorch);
    file.train.precision = precision;
    file
}

fn learner(reference: &Reference, file: &TrialFile) -> Learner {
    Learner::build(file, Some(reference.input)).unwrap()
}

fn named(name: &str) -> Reference {
    all_references()
        .into_iter()
        .find(|reference| reference.name == name)
        .unwrap()
}

/// Sets the dropout of a model that has some; whether it has.
fn drops(model: &mut Model, probability: f64) -> bool {
    let dropout = match model {
        Model::Gpt(gpt) => &mut gpt.dropout,
        Model::Lstm(lstm) => &mut lstm.dropout,
        Model::PanelLstm(lstm) => &mut lstm.dropout,
        Model::Seq2seq(seq2seq) => &mut seq2seq.dropout,
        _ => return false,
    };
    *dropout = probability;
    true
}

/// The operators of two steps one after the other, batches of the same shape, and where the
/// parameters are.
fn two_steps(
    file: &TrialFile,
    mut learner: Learner,
    batch: fn(u64) -> HostBatch,
) -> ([Vec<RecordedOperator>; 2], HashSet<usize>) {
    let rate = file.train.optimizer.learning_rate();
    let batches = file.train.grad_accumulation;
    let mut step = |step: u64| {
        let host = batch(step);
        record_operators(|| {
            for micro in 0..batches {
                let batch = learner.to_device(&host)?;
                learner.micro_step(batch, step, micro, host.counted_targets() * batches)?;
            }
            learner.update(rate)
        })
        .unwrap()
        .1
    };
    (1..=WARM_UP).for_each(|at| drop(step(at)));
    let recorded = [step(WARM_UP + 1), step(WARM_UP + 2)];
    (
        recorded,
        learner.parameter_addresses().into_iter().collect(),
    )
}

/// Two steps are the same operators on the same shapes, parameters stand where they stood, and
/// nothing is read back to the host.
fn is_steady(
    name: &str,
    forced: bool,
    file: &TrialFile,
    learner: Learner,
    batch: fn(u64) -> HostBatch,
) {
    let (steps, parameters) = two_steps(file, learner, batch);
    let [one, other] = &steps;
    let ways = if forced { ", ways of CUDA" } else { "" };
    let what = format!("{name} in {}{ways}", file.train.precision.name());
    assert!(one.len() > 20, "{what}: {} operators", one.len());
    assert_eq!(
        one.len(),
        other.len(),
        "{what}: a step of as many operators"
    );
    for (at, (one, other)) in one.iter().zip(other).enumerate() {
        let shapes = |operator: &RecordedOperator| {
            operator
                .inputs
                .iter()
                .map(|input| (input.kind.clone(), input.shape.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (&one.name, shapes(one)),
            (&other.name, shapes(other)),
            "{what}: operator {at}"
        );
        for (place, (before, after)) in one.inputs.iter().zip(&other.inputs).enumerate() {
            let is_parameter = |address| parameters.contains(&address);
            let is_moved = (is_parameter(before.address) || is_parameter(after.address))
                && before.address != after.address;
            assert!(
                !is_moved,
                "{what}: input {place} of {} (operator {at}) is a parameter in one step alone",
                one.name
            );
        }
    }
    let convolves = matches!(file.model, Model::Resnet(_));
    let copies = from_the_host(one, convolves);
    assert_eq!(
        copies, 0,
        "{what} copies tensors from the host, beside the batch"
    );
    let reads = reads(one);
    assert!(reads.is_empty(), "{what} reads from the device: {reads:?}");
    let seen: HashSet<usize> = one
        .iter()
        .flat_map(|operator| &operator.inputs)
        .map(|input| input.address)
        .collect();
    assert!(
        parameters.iter().all(|address| seen.contains(address)),
        "{what}: every parameter goes into some operator"
    );
}

/// Tensors that burn makes of numbers of the host, or the other way round: they are moved to a
/// device, which is here the one they are on. The batch comes another way. Convolutions lay images
/// and weights, of four axes, out by the same operator.
fn from_the_host(operators: &[RecordedOperator], convolves: bool) -> usize {
    let is_move = |operator: &RecordedOperator| {
        operator.depth == 0
            && operator.name == "aten::to"
            && operator.overload == "dtype_layout"
            && !(convolves && operator.inputs[0].shape.len() == 4)
    };
    // One that changes the kind of number calls another operator.
    let calls_none = |at: usize| operators.get(at + 1).is_none_or(|next| next.depth == 0);
    operators
        .iter()
        .enumerate()
        .filter(|(at, operator)| is_move(operator) && calls_none(*at))
        .count()
}

/// Operators that hand a value of the device to the host, each with those that it was called from
/// within. The CPU's fused AdamW reads its own counters, CUDA's does not.
fn reads(operators: &[RecordedOperator]) -> Vec<String> {
    let mut within: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for operator in operators {
        within.truncate(operator.depth);
        within.push(&operator.name);
        let is_counter = within.contains(&"aten::_fused_adamw_");
        if !is_counter
            && [
                "aten::_local_scalar_dense",
                "aten::nonzero",
                "aten::is_nonzero",
            ]
            .contains(&operator.name.as_str())
        {
            found.push(within.join(" > "));
        }
    }
    found
}

#[test]
fn every_step_of_every_model_asks_for_the_same_operators_and_reads_nothing_back() {
    for reference in all_references() {
        for forced in [false, true] {
            for precision in [
                Precision::F32,
                Precision::AmpBf16,
                Precision::AmpF16,
                Precision::Bf16,
            ] {
                steady(&reference, precision, forced, |_| true);
            }
        }
    }
}

#[test]
fn so_does_every_step_with_dropout() {
    let mut models = 0;
    for reference in all_references() {
        for forced in [false, true] {
            for precision in [Precision::F32, Precision::AmpBf16] {
                models += usize::from(steady(&reference, precision, forced, |file| {
                    drops(&mut file.model, 0.1)
                }));
            }
        }
    }
    assert_eq!(models, 5 * 4);
}

#[test]
fn so_does_every_step_of_several_batches() {
    for reference in all_references() {
        for precision in [Precision::F32, Precision::AmpBf16, Precision::AmpF16] {
            steady(&reference, precision, true, |file| {
                file.train.grad_accumulation = 3;
                true
            });
        }
    }
}

/// Checks the reference's model as `change` makes it; whether `change` has a use for that model.
fn steady(
    reference: &Reference,
    precision: Precision,
    forced: bool,
    change: impl Fn(&mut TrialFile) -> bool,
) -> bool {
    let _alone = alone_with_the_generator_of(Engine::Libtorch);
    let _forced = forced.then(Forced::begin);
    let mut file = trial(reference, precision);
    if !change(&mut file) {
        return false;
    }
    let learner = learner(reference, &file);
    is_steady(reference.name, forced, &file, learner, reference.batch);
    true
}

#[test]
fn so_does_every_step_of_a_users_own_model() {
    let _alone = alone_with_the_generator_of(Engine::Libtorch);
    for forced in [false, true] {
        let _forced = forced.then(Forced::begin);
        for precision in [Precision::F32, Precision::AmpBf16] {
            let mut file = transposed::trial_of(
                "libtorch",
                "transposed",
                "{kind: adamw, learning_rate: 1.0e-2}",
                Path::new("/nowhere"),
            );
            file.train.precision = precision;
            let shape = Some(InputShape::Images(IMAGES));
            let learner = Learner::build_own(&file, shape, &transposed::registry()).unwrap();
            is_steady("a user's own model", forced, &file, learner, images);
        }
    }
}

/// Operators of a step that compute, by the ways meant for CUDA, where each is at least one kernel:
/// in f32, and in amp-bf16. Those of convolutions, and of LSTMs in narrow formats, depend on the
/// processor. PyTorch's are in `docs/development.md`. A number that rises has to be worth it.
const OPERATORS: [(&str, usize, Option<usize>); 6] = [
    ("gpt", 172, Some(221)),
    ("lstm", 50, None),
    ("mlp", 34, Some(45)),
    ("panel-lstm", 68, None),
    ("seq2seq", 801, Some(959)),
    ("seq2seq-adafactor", 1058, Some(1216)),
];

#[test]
fn a_step_asks_for_as_many_operators_as_are_known() {
    let _alone = alone_with_the_generator_of(Engine::Libtorch);
    let _forced = Forced::begin();
    let count = |reference: &Reference, precision| {
        let file = trial(reference, precision);
        let ([one, _], _) = two_steps(&file, learner(reference, &file), reference.batch);
        work_by_name(&one).values().sum::<usize>()
    };
    let found = OPERATORS.map(|(name, _, in_bf16)| {
        let reference = named(name);
        let in_bf16 = in_bf16.map(|_| count(&reference, Precision::AmpBf16));
        (name, count(&reference, Precision::F32), in_bf16)
    });
    assert_eq!(found, OPERATORS);
}

/// By kernels of kiln's own, which are not libtorch's operators: a block's sums, their norms and
/// the gradients of both, and a layer's GELU with the gradient of its bias.
#[test]
fn a_step_by_kernels_asks_for_no_operator_that_they_replace() {
    let _alone = alone_with_the_generator_of(Engine::Libtorch);
    let _forced = Forced::begin();
    emulate_cuda_kernels(true);
    let reference = named("gpt");
    let file = trial(&reference, Precision::AmpBf16);
    let ([one, _], _) = two_steps(&file, learner(&reference, &file), reference.batch);
    emulate_cuda_kernels(false);
    let work = work_by_name(&one);
    for replaced in [
        "aten::gelu_backward",
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::threshold_backward",
    ] {
        assert!(!work.contains_key(replaced), "{work:#?}");
    }
    // The loss adds up its rows, and the gradient of positions its samples. By name, for on the CPU the
    // work of a sum counts as that of the operator that it calls.
    let sums = one.iter().filter(|operator| operator.name == "aten::sum");
    assert_eq!(sums.count(), 2, "{work:#?}");
    // Attention has none: the one is of the norms of gradients.
    assert_eq!(work["aten::cat"], 1, "{work:#?}");
    // The stream is f32; positions are added to it.
    const NUMBERS_OF_STREAM: i64 = 4 * 16 * 32;
    let reads_stream = |operator: &&RecordedOperator| {
        operator.inputs.iter().any(|input| {
            input.kind == "Float" && input.shape.iter().product::<i64>() == NUMBERS_OF_STREAM
        })
    };
    let of_stream: Vec<&str> = one
        .iter()
        .filter(reads_stream)
        .map(|operator| operator.name.as_str())
        .filter(|name| name.contains("add") || name.contains("copy"))
        .collect();
    assert_eq!(of_stream, ["aten::add_"], "{work:#?}");
}

/// Each copy from the host makes the GPU wait, and there would be two for each step and two for
/// each token that is written.
#[test]
fn buckets_of_positions_go_to_the_device_once() {
    let _alone = alone_with_the_generator_of(Engine::Libtorch);
    let reference = named("seq2seq");
    let mut learner = learner(&reference, &trial(&reference, Precision::F32));
    let mut copies = |rows: usize| {
        let prompt: Vec<u32> = (2..12).collect();
        let prompts = vec![prompt.as_slice(); rows];
        from_the_host(
            &record_operators(|| learner.responses(&prompts, [0, 49], 1, 8))
                .unwrap()
                .1,
            false,
        )
    };
    // Each of the 8 tokens is read; the first time the encoder's and the decoder's buckets are
    // written.
    assert_eq!([copies(2), copies(2), copies(3)], [8 + 2, 8, 8]);
}
