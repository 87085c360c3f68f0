//! Batches on the device.

use burn::tensor::{Int, Tensor};

use super::objective::BatchTarget;
use crate::{
    TrialError,
    data::{
        BatchPixels, BatchSamples, HostBatch, ImageSamples, PairSamples, PanelSamples, TargetScale,
        TextSamples,
    },
    engine::MarkedCopy,
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
    pub(super) fn new(batch: &HostBatch, copy: &mut MarkedCopy<'_>) -> Result<Self, TrialError> {
        let rows = batch.rows;
        let (input, target) = match &batch.samples {
            BatchSamples::Text(text) => copy_text(text, rows, copy),
            BatchSamples::Images(images) => copy_images(images, rows, copy),
            BatchSamples::Panel(panel) => copy_panel(panel, rows, copy),
            BatchSamples::Pairs(pairs) => copy_pairs(pairs, rows, copy),
        }?;
        Ok(Self {
            input,
            target,
            counted_targets: batch.counted_targets(),
            rows,
        })
    }
}

type Copied = Result<(Input, BatchTarget), TrialError>;

fn copy_text(text: &TextSamples, rows: usize, copy: &mut MarkedCopy<'_>) -> Copied {
    let tokens: Tensor<2, Int> = copy.whole_numbers(&text.inputs, [rows, text.seq_len])?;
    let targets = copy.whole_numbers(&text.targets, [rows * text.seq_len])?;
    Ok((Input::Text(tokens), BatchTarget::Classes(targets)))
}

fn copy_images(images: &ImageSamples, rows: usize, copy: &mut MarkedCopy<'_>) -> Copied {
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
    let labels = copy.whole_numbers(&images.labels, [rows])?;
    Ok((Input::Images(pixels), BatchTarget::Labels(labels)))
}

fn copy_panel(panel: &PanelSamples, rows: usize, copy: &mut MarkedCopy<'_>) -> Copied {
    let sides = [rows, panel.seq_len, panel.shape.features as usize];
    let features = copy.numbers(&panel.features, sides)?;
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
    Ok((Input::Panel { features, symbols }, target))
}

fn copy_pairs(pairs: &PairSamples, rows: usize, copy: &mut MarkedCopy<'_>) -> Copied {
    let input = Pairs {
        prompts: copy.whole_numbers(&pairs.prompts, [rows, pairs.prompt_len])?,
        prompt_lengths: copy.whole_numbers(&pairs.prompt_lengths, [rows])?,
        decoder_inputs: copy.whole_numbers(&pairs.decoder_inputs, [rows, pairs.response_len])?,
    };
    let targets = copy.whole_numbers(&pairs.targets, [rows * pairs.response_len])?;
    Ok((Input::Pairs(input), BatchTarget::Classes(targets)))
}
