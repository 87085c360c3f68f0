//! Steps that are recorded once and replayed (`train.cuda_graph`). What a GPU does with CUDA graphs
//! a CPU does with closures that are run again on the same memory: nothing of the host may be left
//! in them. Losses are those of steps made operator by operator, to the bit: schedules, clipping,
//! accumulation, dropout, the loss scale, every optimizer, memories of recurrent models, batches of
//! several shapes, resuming.

use kiln_core::record::{StepRow, note::ReplayedSteps};

use crate::common::{
    attempts::{Case, GPT, LSTM, MLP, PANEL, RESNET, SEQ2SEQ, Trial, rows, trains_alike_recorded},
    is_cuda,
    tensors::Forced,
};

/// The counts of replayed steps in a note: replays of CUDA graphs on a GPU, of closures on a CPU.
fn replayed(note: &str) -> Option<ReplayedSteps> {
    if is_cuda() {
        ReplayedSteps::of_graphs(note)
    } else {
        ReplayedSteps::of_closures(note)
    }
}

#[test]
fn recorded_steps_of_every_model_have_the_losses_of_steps_made_operator_by_operator() {
    let _forced = Forced::begin();
    let scaled = "precision: amp-f16, batch_size: 4, grad_accumulation: 3, steps: 60, clip_norm: \
                  1.0, evaluate: {every: 30}, learning_rate_schedule: {kind: linear, warmup_steps: \
                  10}";
    let bf16 = "precision: bf16, batch_size: 4, steps: 40, optimizer: {kind: adamw, weight_decay: \
                0.1, weight_decay_on: matrices}";
    // What a GPU trains in.
    let mixed = "precision: amp-bf16, batch_size: 4, steps: 40, clip_norm: 1.0";
    let decayed = "batch_size: 4, grad_accumulation: 2, steps: 60, optimizer: {kind: adafactor, \
                   learning_rate: 3.0e-3, weight_decay: 0.1}";
    let cases = [
        MLP,
        GPT,
        LSTM,
        RESNET,
        PANEL,
        SEQ2SEQ,
        Case {
            train: scaled,
            ..GPT
        },
        Case {
            train: scaled,
            ..LSTM
        },
        Case { train: bf16, ..GPT },
        Case {
            train: mixed,
            ..GPT
        },
        Case {
            train: mixed,
            ..LSTM
        },
        Case {
            train: mixed,
            ..RESNET
        },
        Case {
            train: decayed,
            ..SEQ2SEQ
        },
    ];
    for case in cases {
        let train: &'static str =
            Box::leak(format!("{}, cuda_graph: on", case.train).into_boxed_str());
        let notes = trains_alike_recorded(case, Case { train, ..case });
        let [first, second] = notes.each_ref().map(|note| {
            replayed(note).unwrap_or_else(|| panic!("{}: nothing replayed: {note}", case.name))
        });
        let (first, second, shapes) = (first.steps, second.steps, second.shapes);
        if case.name == SEQ2SEQ.name {
            // Lengths differ from batch to batch.
            assert!(second > 0 && shapes > 1, "{}: {notes:?}", case.name);
            continue;
        }
        // 3 made operator by operator and 1 that is recorded; at the start of an epoch a memory's
        // size is not known yet.
        assert!(
            (14..=16).contains(&first) && second >= first && shapes == 1,
            "{}: {notes:?}",
            case.name
        );
    }
}

/// The gradients of some steps are measured in a trial whose other steps are replayed.
#[test]
fn gradients_are_measured_between_replayed_steps_as_without_them() {
    let _forced = Forced::begin();
    let trained = |train: &'static str| {
        let mut trial = Trial::new(Case { train, ..MLP }, "every_steps: 1000");
        trial.measure = ", gradient_noise: {every: 5}";
        let ended = trial.complete_here(1);
        let note = ended.note("cuda_graph").unwrap_or_default().to_owned();
        let steps: Vec<StepRow> = rows(&trial.path(1).join("steps.csv"));
        let steps = steps.iter();
        let gradients = steps.map(|row| (row.step, row.gradient_norm_squared, row.gradient_noise));
        (gradients.collect::<Vec<_>>(), ended.steps, note)
    };
    let eager = trained("batch_size: 4, grad_accumulation: 2, steps: 40");
    let graphs = trained("batch_size: 4, grad_accumulation: 2, steps: 40, cuda_graph: on");
    let measured = eager.0.iter().filter(|(_, norm, _)| norm.is_some());
    assert_eq!(measured.count(), 8);
    // Eight steps are measured, three run before the recording, and one is recorded.
    let replayed = replayed(&graphs.2).unwrap_or_else(|| panic!("nothing replayed: {}", graphs.2));
    assert_eq!((replayed.steps, replayed.shapes), (28, 1));
    if !is_cuda() {
        assert_eq!((eager.0, eager.1), (graphs.0, graphs.1));
    }
}
