//! The tensors of a batch, for recorded steps: in which order they are copied, and copies of them.

use crate::{
    engine::fixed::Raw,
    model::{Input, Pairs},
    train::{DeviceBatch, objective::BatchTarget},
};

/// The shapes of a batch's tensors, in a fixed order.
pub(super) fn shape_of(batch: &DeviceBatch) -> Vec<Vec<i64>> {
    tensors(batch).iter().map(tch::Tensor::size).collect()
}

/// A batch's tensors in a fixed order, in the same memory.
pub(super) fn tensors(batch: &DeviceBatch) -> Vec<tch::Tensor> {
    let mut tensors = match &batch.input {
        Input::Text(tokens) => vec![tokens.raw()],
        Input::Images(pixels) => vec![pixels.raw()],
        Input::Panel { features, symbols } => vec![features.raw(), symbols.raw()],
        Input::Pairs(Pairs {
            prompts,
            prompt_lengths,
            decoder_inputs,
        }) => vec![prompts.raw(), prompt_lengths.raw(), decoder_inputs.raw()],
    };
    tensors.push(match &batch.target {
        BatchTarget::Classes(classes) | BatchTarget::Labels(classes) => classes.raw(),
        BatchTarget::Returns {
            normalized: numbers,
            ..
        }
        | BatchTarget::Directions(numbers) => numbers.raw(),
    });
    tensors
}

/// A copy of the batch in its own memory.
pub(super) fn duplicate(batch: &DeviceBatch) -> DeviceBatch {
    let input = match &batch.input {
        Input::Text(tokens) => Input::Text(tokens.duplicate()),
        Input::Images(pixels) => Input::Images(pixels.duplicate()),
        Input::Panel { features, symbols } => Input::Panel {
            features: features.duplicate(),
            symbols: symbols.duplicate(),
        },
        Input::Pairs(Pairs {
            prompts,
            prompt_lengths,
            decoder_inputs,
        }) => Input::Pairs(Pairs {
            prompts: prompts.duplicate(),
            prompt_lengths: prompt_lengths.duplicate(),
            decoder_inputs: decoder_inputs.duplicate(),
        }),
    };
    let target = match &batch.target {
        BatchTarget::Classes(classes) => BatchTarget::Classes(classes.duplicate()),
        BatchTarget::Labels(labels) => BatchTarget::Labels(labels.duplicate()),
        BatchTarget::Returns {
            normalized,
            mean,
            deviation,
        } => BatchTarget::Returns {
            normalized: normalized.duplicate(),
            mean: *mean,
            deviation: *deviation,
        },
        BatchTarget::Directions(directions) => BatchTarget::Directions(directions.duplicate()),
    };
    DeviceBatch {
        input,
        target,
        ..*batch
    }
}
