//! Trials of every kind of model that are stopped and go on, and nobody can tell from the losses:
//! optimizers' moments, dropout's draws, the place in the data, a recurrent model's memory, the
//! schedule and the loss scale all come from the checkpoint.
//!
//! In one process, so that a case takes as long as its steps. `tests/checkpoint.rs` kills
//! processes.

use crate::common::attempts::{Case, LSTM, MLP, PANEL, continues_here, goes_on_here};
#[cfg(feature = "libtorch")]
use crate::common::attempts::{GPT, RESNET, SEQ2SEQ};

#[test]
fn stopped_trials_on_flex_go_on_as_if_nothing_had_been() {
    for case in [LSTM, PANEL, MLP] {
        goes_on_here(Case {
            engine: "flex",
            ..case
        });
    }
}

#[cfg(feature = "libtorch")]
#[test]
fn so_do_those_on_libtorch_on_several_devices_and_with_a_loss_scale() {
    let on_four = "precision: amp-f16, batch_size: 2, steps: 60";
    for case in [
        GPT,
        RESNET,
        SEQ2SEQ,
        Case { devices: 2, ..LSTM },
        Case {
            devices: 4,
            train: on_four,
            ..GPT
        },
    ] {
        goes_on_here(case);
    }
}

/// `kiln run --continue`: a longer training from the checkpoint of a finished shorter one.
#[test]
fn continued_trials_on_flex_go_on_as_a_longer_one_would() {
    let flex = |case: Case| Case {
        engine: "flex",
        ..case
    };
    // The shorter ones end between two regular evaluations, some with a loss that is not the lowest.
    let lasting = |steps: u64| {
        format!(
            "batch_size: 4, grad_accumulation: 2, steps: {steps}, clip_norm: 0.25, optimizer: \
             {{kind: sgd, learning_rate: 30.0}}, evaluate: {{every: 8}}, learning_rate_schedule: \
             {{kind: plateau, factor: 0.5, patience: 0}}"
        )
    };
    let of_lstm = |train: String| Case {
        train: train.leak(),
        ..flex(LSTM)
    };
    for steps in [21, 29, 43] {
        continues_here(of_lstm(lasting(steps)), of_lstm(lasting(64)));
    }
    let panel = Case {
        train: "batch_size: 8, steps: 25, evaluate: {every: 25}",
        ..flex(PANEL)
    };
    continues_here(panel, flex(PANEL));
}

#[cfg(feature = "libtorch")]
#[test]
fn so_do_those_on_libtorch_with_moments_dropout_augmentation_and_a_loss_scale() {
    let gpt = |steps| Case {
        train: steps,
        ..GPT
    };
    continues_here(
        gpt("precision: amp-f16, batch_size: 4, steps: 30, evaluate: {every: 15}"),
        gpt("precision: amp-f16, batch_size: 4, steps: 60, evaluate: {every: 15}"),
    );
    let resnet = "batch_size: 8, steps: 25, optimizer: {kind: sgd, learning_rate: 0.05, momentum: \
                  0.9, weight_decay: 5.0e-4}, evaluate: {every: epoch}";
    continues_here(
        Case {
            train: resnet,
            ..RESNET
        },
        RESNET,
    );
}
