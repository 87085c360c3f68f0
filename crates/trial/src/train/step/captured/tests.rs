use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use kiln_core::{
    kinds::InputShape,
    plan::ChildDevice,
    spec::{Engine, GradientNoise, Precision, Train},
};

use super::{
    parts::{Left, StepPart},
    *,
};
use crate::{
    engine::{EngineDevice, Ops, capture::Pool, recorded_work},
    model::{Init, Network},
    train::optimizer::{StepNorms, Updater},
};
use crate::{
    model::Input,
    train::{DeviceBatch, objective::BatchTarget},
};

const ROWS: i64 = 2;

fn state(optimizer: &str) -> StepState {
    let device = EngineDevice::open(Engine::Libtorch, ChildDevice::Cpu, 1).unwrap();
    let init = Init {
        seed: 1,
        device: device.with_gradients(),
    };
    let shape =
        serde_yaml::from_str("{kind: mlp, seq_len: 4, d_model: 4, hidden: 8, context: 2}").unwrap();
    let network = Network::new(&shape, Some(InputShape::Text { vocabulary: 20 }), &init).unwrap();
    let train = Train {
        optimizer: serde_yaml::from_str(optimizer).unwrap(),
        clip_norm: Some(0.5),
        ..Train::default()
    };
    let updater = Updater::new(&network, Engine::Libtorch, &train);
    StepState::new(
        device,
        network,
        updater,
        Ops::new(Engine::Libtorch, Precision::F32).unwrap(),
    )
}

/// A micro-batch of `rows` rows; different for each number.
fn micro(number: i64, micro: usize, rows: i64, total_targets: u64) -> MicroBatch {
    let tokens: Vec<i64> = (0..rows * 4).map(|at| (at * 7 + number * 5) % 20).collect();
    let tensor = tch::Tensor::from_slice(&tokens);
    let target = BatchTarget::Classes(Raw::over((&tensor + 1).fmod(20)));
    let batch = DeviceBatch {
        input: Input::Text(Raw::over(tensor.reshape([rows, 4]))),
        target,
        counted_targets: rows as u64 * 4,
        rows: rows as usize,
    };
    MicroBatch {
        batch,
        micro,
        seed: number as u64,
        total_targets,
    }
}

fn losses(state: &mut StepState) -> Vec<f64> {
    state
        .take_losses()
        .iter()
        .map(|loss| loss.raw().double_value(&[0]))
        .collect()
}

fn parameters(state: &mut StepState) -> Vec<tch::Tensor> {
    state.updater.fused().unwrap().values()
}

/// Steps of two micro-batches; learning rate, targets and now and then the shape change from
/// step to step.
fn train(state: &mut StepState, runner: &mut dyn StepRunner, steps: std::ops::RangeInclusive<i64>) {
    for step in steps {
        let targets = 16 + step as u64;
        runner
            .micro_step(state, micro(step, 0, ROWS, targets))
            .unwrap();
        runner
            .micro_step(
                state,
                micro(
                    step + 50,
                    1,
                    if step % 7 == 0 { ROWS + 1 } else { ROWS },
                    targets,
                ),
            )
            .unwrap();
        runner.update(state, 0.01 * step as f64).unwrap();
    }
}

fn are_equal(one: &mut StepState, other: &mut StepState, what: &str) {
    assert_eq!(losses(one), losses(other), "{what}");
    assert!(
        parameters(one)
            .iter()
            .zip(parameters(other))
            .all(|(one, other)| one.equal(&other)),
        "{what}"
    );
}

#[test]
fn a_replay_takes_batch_targets_and_rate_of_its_own_step_and_another_shape_goes_on_without() {
    for optimizer in [
        "{kind: adamw}",
        "{kind: sgd, momentum: 0.9, nesterov: true}",
        "{kind: adafactor, weight_decay: 0.1}",
    ] {
        let (mut eager, mut recorded) = (state(optimizer), state(optimizer));
        let mut captured = Captured::new(Recorder::Closure);
        train(&mut eager, &mut Eager::default(), 1..=20);
        train(&mut recorded, &mut captured, 1..=20);
        are_equal(&mut eager, &mut recorded, optimizer);
        // Of 20 steps, 3 run before recording and one is recorded; two have a further
        // micro-batch of another shape.
        assert_eq!(
            (captured.replayed_steps, captured.shapes.len()),
            (14, 1),
            "{optimizer}: {:?}",
            captured.note()
        );
    }
}

/// As with `measure.gradient_noise`.
#[test]
fn measured_steps_are_run_operator_by_operator_between_recorded_ones() {
    let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
    let (mut by_operator, mut captured) = (Eager::default(), Captured::new(Recorder::Closure));
    let wanted = GradientNoise {
        every: 2,
        layer_groups: false,
    };
    let mut norms = [Vec::new(), Vec::new()];
    for step in 1..=12 {
        let runs: [(&mut StepState, &mut dyn StepRunner); 2] = [
            (&mut eager, &mut by_operator),
            (&mut recorded, &mut captured),
        ];
        for ((state, runner), norms) in runs.into_iter().zip(&mut norms) {
            if step % 2 == 0 {
                state.updater.watch_norms(wanted);
            }
            train(state, runner, step..=step);
            norms.extend(state.updater.take_norms());
        }
    }
    let [of_eager, of_recorded] = norms.map(|norms| {
        let read = StepNorms::read(norms).unwrap();
        read.iter().map(|step| step.of_all).collect::<Vec<_>>()
    });
    assert_eq!((of_eager.len(), of_recorded), (6, of_eager));
    are_equal(&mut eager, &mut recorded, "measured in between");
    // Six of the 12 steps are not measured: three run before the recording, one has a micro-batch of
    // another shape, one is recorded, and one is replayed.
    assert_eq!(captured.replayed_steps, 1, "{:?}", captured.note());
}

/// As on a GPU whose work cannot be captured, at any of the three parts.
#[test]
fn what_cannot_be_recorded_is_trained_operator_by_operator_and_told() {
    if tch::Cuda::is_available() {
        return;
    }
    for part in 0..3 {
        let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
        train(&mut eager, &mut Eager::default(), 1..=6);
        let mut captured = Captured::new(Recorder::Graph);
        train(&mut recorded, &mut captured, 1..=3);
        captured.recorder = if part == 0 {
            Recorder::Graph
        } else {
            Recorder::Closure
        };
        captured
            .micro_step(&mut recorded, micro(4, 0, ROWS, 20))
            .unwrap();
        captured.recorder = if part <= 1 {
            Recorder::Graph
        } else {
            Recorder::Closure
        };
        captured
            .micro_step(&mut recorded, micro(54, 1, ROWS, 20))
            .unwrap();
        captured.recorder = Recorder::Graph;
        captured.update(&mut recorded, 0.04).unwrap();
        train(&mut recorded, &mut captured, 5..=6);
        are_equal(&mut eager, &mut recorded, &format!("part {part}"));
        let note = captured.note().unwrap();
        assert!(
            note.starts_with("trained operator by operator")
                && note.contains("captures work on a GPU"),
            "{note}"
        );
    }
}

#[test]
fn caches_are_told_while_a_part_is_recorded_or_replayed_and_no_longer() {
    let mut state = state("{kind: adamw}");
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let part: StepPart = Box::new(move |_: &mut StepState| {
        counted.fetch_add(usize::from(recorded_work::is_on()), Ordering::Relaxed);
        Ok(Left::default())
    });
    let recorded = Recorded::record(Recorder::Closure, Pool::new(), part, &mut state).unwrap();
    recorded.replay(&mut state).unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let failing: StepPart =
        Box::new(|_: &mut StepState| -> Result<Left, TrialError> { panic!("not capturable") });
    let failed =
        guard_result(|| Recorded::record(Recorder::Closure, Pool::new(), failing, &mut state));
    assert!(failed.is_err() && !recorded_work::is_on());
}

#[test]
fn recorded_steps_give_their_memory_back_to_what_lacks_it_and_the_training_goes_on() {
    let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
    train(&mut eager, &mut Eager::default(), 1..=8);
    let mut captured = Captured::new(Recorder::Closure);
    let shortage = TrialError::OutOfMemory {
        text: "of 8 GiB".to_owned(),
    };
    assert!(!captured.give_back(&shortage), "nothing is recorded");
    train(&mut recorded, &mut captured, 1..=6);
    assert!(captured.give_back(&shortage));
    assert!(!captured.give_back(&shortage));
    train(&mut recorded, &mut captured, 7..=8);
    are_equal(&mut eager, &mut recorded, "given back");
    let note = captured.note().unwrap();
    assert!(
        note.starts_with(
            "trained operator by operator because beside 2 replayed steps there was too little \
             memory: "
        ) && note.contains("of 8 GiB"),
        "{note}"
    );
}

#[test]
fn no_more_shapes_are_recorded_than_there_is_room_for() {
    let (mut eager, mut recorded) = (state("{kind: adamw}"), state("{kind: adamw}"));
    let mut captured = Captured::new(Recorder::Closure);
    let runners: [(&mut StepState, &mut dyn StepRunner); 2] = [
        (&mut eager, &mut Eager::default()),
        (&mut recorded, &mut captured),
    ];
    for (state, runner) in runners {
        for step in 0..5 * (MOST_SHAPES as i64 + 2) {
            runner
                .micro_step(
                    state,
                    micro(step, 0, 1 + step % (MOST_SHAPES as i64 + 2), 30),
                )
                .unwrap();
            runner.update(state, 0.001).unwrap();
        }
    }
    are_equal(&mut eager, &mut recorded, "many shapes");
    assert_eq!(
        (captured.shapes.len(), captured.replayed_steps),
        (MOST_SHAPES, MOST_SHAPES as u64),
        "of 5 steps of a shape the last is replayed"
    );
}
