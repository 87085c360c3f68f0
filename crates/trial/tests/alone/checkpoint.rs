//! Trials of every kind of model that are stopped and go on, and nobody can tell from the losses:
//! optimizers' moments, dropout's draws, the place in the data, a recurrent model's memory, the
//! schedule and the loss scale all come from the checkpoint.
//!
//! In one process, so that a case takes as long as its steps. `tests/checkpoint.rs` kills
//! processes.

use crate::common::attempts::{Case, LSTM, MLP, PANEL, goes_on_here};
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
