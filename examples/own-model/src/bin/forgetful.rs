//! A model that leaks memory: half a mebibyte at each training step, like a list that only grows.
//! kiln's message about such a training is in `docs/own-model.md`, "When memory grows".

use std::{
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use kiln_trial::{
    Registry, TrialError,
    burn::{
        self,
        module::Module,
        tensor::{Tensor, activation::relu},
    },
    engine::Ops,
    model::{ImageShape, Init, Input, InputShape, Linear, OwnModel, Samples},
};
use serde::Deserialize;

/// Bytes that each step leaves behind.
const FORGOTTEN: usize = 512 << 10;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// No keys besides `kind`, `name` and `reads`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {}

#[derive(Module, Debug)]
struct Forgetful {
    hidden: Linear, // [64, pixels]
    head: Linear,   // [classes, 64]
}

fn build(_: Fields, samples: Samples, init: &Init) -> Result<Forgetful, TrialError> {
    let InputShape::Images(ImageShape {
        channels,
        height,
        width,
        classes,
    }) = samples.shape
    else {
        return Err(TrialError::Bad(
            "`model.name` forgetful needs images".to_owned(),
        ));
    };
    let pixels = (channels * height * width) as usize;
    Ok(Forgetful {
        hidden: Linear::uniform(init, "hidden", [pixels, 64]),
        head: Linear::uniform(init, "head", [64, classes as usize]),
    })
}

impl OwnModel for Forgetful {
    fn forward(&self, input: Input, ops: Ops) -> Tensor<2> {
        let Input::Images(images) = input else {
            unreachable!("`build` took images alone")
        };
        KEPT.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(vec![1; FORGOTTEN]);
        let [batch, channels, height, width] = images.dims();
        let pixels: Tensor<2> = images.reshape([batch, channels * height * width]);
        self.head
            .forward(relu(self.hidden.forward(pixels, ops)), ops) // [batch, classes]
    }
}

fn main() -> ExitCode {
    kiln_trial::main(Registry::new().with("forgetful", build))
}
