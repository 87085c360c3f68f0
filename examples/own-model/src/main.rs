//! A user's own model: the program that `kiln run` starts instead of `kiln-trial`, with everything
//! `kiln-trial` can do and one model more. Its input is `trial.yaml`; kiln's library does the rest.
//!
//! ```text
//! cargo build --release -p own-model
//! KILN_TRIAL=target/release/own-model kiln run examples/own-model/patches.yaml
//! ```
//!
//! The model cuts an image into square patches, applies the same two layers to each, and classifies
//! the mean of their outputs. Its keys in the experiment file are those of [`Fields`];
//! `docs/own-model.md` has the rest.

use std::process::ExitCode;

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

/// The keys of `model` besides `kind`, `name` and `reads`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    /// Side of a patch, in pixels.
    patch: usize,
    /// Width of a patch's representation.
    width: usize,
}

#[derive(Module, Debug)]
struct Patches {
    embedding: Linear, // [width, channels × patch × patch]
    hidden: Linear,    // [width, width]
    head: Linear,      // [classes, width]
    patch: usize,
}

fn build(fields: Fields, samples: Samples, init: &Init) -> Result<Patches, TrialError> {
    let InputShape::Images(ImageShape {
        channels,
        height,
        width,
        classes,
    }) = samples.shape
    else {
        return Err(TrialError::Bad(
            "`model.name` patches needs images".to_owned(),
        ));
    };
    if fields.patch == 0
        || fields.width == 0
        || height % fields.patch as u64 != 0
        || width % fields.patch as u64 != 0
    {
        return Err(TrialError::Bad(format!(
            "`model.patch` {} does not divide images of {height} × {width}",
            fields.patch
        )));
    }
    Ok(Patches {
        embedding: Linear::uniform(
            init,
            "embedding",
            [
                channels as usize * fields.patch * fields.patch,
                fields.width,
            ],
        ),
        hidden: Linear::uniform(init, "hidden", [fields.width, fields.width]),
        head: Linear::uniform(init, "head", [fields.width, classes as usize]),
        patch: fields.patch,
    })
}

impl OwnModel for Patches {
    fn forward(&self, input: Input, ops: Ops) -> Tensor<2> {
        let Input::Images(images) = input else {
            unreachable!("`build` took images alone")
        };
        let ([batch, channels, height, width], side) = (images.dims(), self.patch);
        let (rows, columns) = (height / side, width / side);
        let grid: Tensor<6> = images
            .reshape([batch, channels, rows, side, columns, side])
            .permute([0, 2, 4, 1, 3, 5]);
        let patches: Tensor<3> = grid.reshape([batch, rows * columns, channels * side * side]);
        let x = relu(self.embedding.forward(patches, ops));
        let x = relu(self.hidden.forward(x, ops)); // [batch, patches, width]
        self.head.forward(x.mean_dim(1).squeeze_dim::<2>(1), ops) // [batch, classes]
    }
}

fn main() -> ExitCode {
    kiln_trial::main(Registry::new().with("patches", build))
}
