//! Batches on the device.

use burn::tensor::{Int, Tensor};

use super::objective::BatchTarget;
use crate::{
    TrialError,
    data::{BatchPixels, BatchSamples, HostBatch, TargetScale},
    engine::HostCopy,
    model::{Input, Pairs},
};

/// A batch on the device.
#[derive(Clone, Debug)]
pub struct DeviceBatch {
    pub(super) input: Input,
    pub(super) target: BatchTarget,
    /// Targets that count in the loss.
    pub counted_targets: u64,
    pub rows: usize,
}

impl DeviceBatch {
    /// Copies the batch.
    pub(super) fn new(batch: &HostBatch, copy: &mut HostCopy) -> Result<Self, TrialError> {
        let rows = batch.rows;
        let (input, target) = match &batch.samples {
            BatchSamples::Text(text) => {
                let tokens: Tensor<2, Int> =
                    copy.whole_numbers(&text.inputs, [rows, text.seq_len])?;
                (
                    Input::Text(tokens),
                    BatchTarget::Classes(copy.whole_numbers(&text.targets, [rows * text.seq_len])?),
                )
            }
            BatchSamples::Images(images) => {
                let shape = images.shape;
                let sides = [
                    rows,
                    shape.channels as usize,
                    shape.height as usize,
                    shape.width as usize,
                ];
                let pixels = match &images.pixels {
                    BatchPixels::Bytes {
                        values,
                        normalization,
                    } => copy.pixels(values, sides, *normalization)?,
                    BatchPixels::Numbers(numbers) => copy.numbers(numbers, sides)?,
                };
                (
                    Input::Images(pixels),
                    BatchTarget::Labels(copy.whole_numbers(&images.labels, [rows])?),
                )
            }
            BatchSamples::Panel(panel) => {
                let features = copy.numbers(
                    &panel.features,
                    [rows, panel.seq_len, panel.shape.features as usize],
                )?;
                let symbols = copy.whole_numbers(&panel.symbols, [rows])?;
                let targets = copy.numbers(&panel.targets, [rows])?;
                let target = match panel.scale {
                    TargetScale::Returns { mean, deviation } => BatchTarget::Returns {
                        normalized: targets,
                        mean,
                        deviation,
                    },
                    TargetScale::Directions => BatchTarget::Directions(targets),
                };
                (Input::Panel { features, symbols }, target)
            }
            BatchSamples::Pairs(pairs) => {
                let input = Pairs {
                    prompts: copy.whole_numbers(&pairs.prompts, [rows, pairs.prompt_len])?,
                    prompt_lengths: copy.whole_numbers(&pairs.prompt_lengths, [rows])?,
                    decoder_inputs: copy
                        .whole_numbers(&pairs.decoder_inputs, [rows, pairs.response_len])?,
                };
                (
                    Input::Pairs(input),
                    BatchTarget::Classes(
                        copy.whole_numbers(&pairs.targets, [rows * pairs.response_len])?,
                    ),
                )
            }
        };
        Ok(Self {
            input,
            target,
            counted_targets: batch.counted_targets(),
            rows,
        })
    }
}
