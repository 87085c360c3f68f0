//! One batch in host memory: workers fill it, the trainer copies it to the device, and the loader
//! reuses it.

use kiln_core::kinds::data::{ImageShape, PairCounts, PanelShape};
use kiln_data::images::Normalization;

use crate::engine::IGNORED_TARGET;

/// Some samples. The buffers are used again, so their allocations last as long as the loader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostBatch {
    pub rows: usize,
    pub samples: BatchSamples,
    /// Targets that count in the loss of the whole step that the batch is of; `None` where every
    /// sample has as many.
    pub step_targets: Option<u64>,
}

/// The source of the samples of a batch, by kind of data.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchSamples {
    Text(TextSamples),
    Images(ImageSamples),
    Panel(PanelSamples),
    Pairs(PairSamples),
}

/// Token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextSamples {
    /// [rows, seq_len], row after row.
    pub inputs: Vec<i64>,
    /// [rows, seq_len]; [`IGNORED_TARGET`] counts in no loss.
    pub targets: Vec<i64>,
    pub seq_len: usize,
}

/// Labelled images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageSamples {
    pub pixels: BatchPixels,
    /// [rows].
    pub labels: Vec<i64>,
    pub shape: ImageShape,
}

/// The pixels of a batch, [rows, channels, height, width].
#[derive(Clone, Debug, PartialEq)]
pub enum BatchPixels {
    /// As files have them: a quarter of what their numbers would take on the way to the device,
    /// which normalizes them.
    Bytes {
        values: Vec<u8>,
        normalization: Normalization,
    },
    /// Normalized.
    Numbers(Vec<f32>),
}

/// Windows of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelSamples {
    /// [rows, seq_len, features].
    pub features: Vec<f32>,
    /// [rows].
    pub symbols: Vec<i64>,
    /// [rows].
    pub targets: Vec<f32>,
    pub seq_len: usize,
    pub shape: PanelShape,
    pub scale: TargetScale,
}

/// Prompts and the responses to them, filled up to one length each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairSamples {
    /// [rows, prompt_len]: tokens and the end token, then `pad`.
    pub prompts: Vec<i64>,
    /// [rows]: tokens of each prompt, the end token included.
    pub prompt_lengths: Vec<i64>,
    /// [rows, response_len]: `pad` as the start, then the response without its end token, then `pad`.
    pub decoder_inputs: Vec<i64>,
    /// [rows, response_len]: the response with its end token, then [`IGNORED_TARGET`].
    pub targets: Vec<i64>,
    pub prompt_len: usize,
    pub response_len: usize,
    pub pad: i64,
}

/// The kind of targets of a panel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetScale {
    /// Returns less `mean`, over `deviation`.
    Returns { mean: f64, deviation: f64 },
    /// 1 if the return is above 0, else 0.
    Directions,
}

impl Default for BatchSamples {
    fn default() -> Self {
        Self::Text(TextSamples::default())
    }
}

impl HostBatch {
    /// Text as it is: inputs and targets [rows, seq_len].
    pub fn of_text(rows: usize, seq_len: usize, inputs: Vec<i64>, targets: Vec<i64>) -> Self {
        Self {
            rows,
            samples: BatchSamples::Text(TextSamples {
                inputs,
                targets,
                seq_len,
            }),
            step_targets: None,
        }
    }

    /// Takes the shape of text: every token 0 and every target ignored.
    pub fn lay_out_text(&mut self, rows: usize, seq_len: usize) {
        self.rows = rows;
        let mut text = match std::mem::take(&mut self.samples) {
            BatchSamples::Text(text) => text,
            _ => TextSamples::default(),
        };
        text.seq_len = seq_len;
        refill(&mut text.inputs, rows * seq_len, 0);
        refill(&mut text.targets, rows * seq_len, IGNORED_TARGET);
        self.samples = BatchSamples::Text(text);
    }

    /// Takes the shape of images: every pixel black, every label 0.
    pub fn lay_out_images(&mut self, rows: usize, shape: ImageShape, normalization: Normalization) {
        self.rows = rows;
        let (mut values, mut labels) = match std::mem::take(&mut self.samples) {
            BatchSamples::Images(ImageSamples {
                pixels: BatchPixels::Bytes { values, .. },
                labels,
                ..
            }) => (values, labels),
            _ => Default::default(),
        };
        refill(&mut values, rows * image_len(shape), 0);
        refill(&mut labels, rows, 0);
        self.samples = BatchSamples::Images(ImageSamples {
            pixels: BatchPixels::Bytes {
                values,
                normalization,
            },
            labels,
            shape,
        });
    }

    /// Takes the shape of windows of a panel: every value 0.
    pub fn lay_out_panel(
        &mut self,
        rows: usize,
        seq_len: usize,
        shape: PanelShape,
        scale: TargetScale,
    ) {
        self.rows = rows;
        let (mut features, mut symbols, mut targets) = match std::mem::take(&mut self.samples) {
            BatchSamples::Panel(panel) => (panel.features, panel.symbols, panel.targets),
            _ => Default::default(),
        };
        refill(&mut features, rows * seq_len * shape.features as usize, 0.0);
        refill(&mut symbols, rows, 0);
        refill(&mut targets, rows, 0.0);
        self.samples = BatchSamples::Panel(PanelSamples {
            features,
            symbols,
            targets,
            seq_len,
            shape,
            scale,
        });
    }

    /// Takes the shape of prompts and responses: nothing but `pad`, every prompt empty and every
    /// target ignored.
    pub fn lay_out_pairs(&mut self, rows: usize, prompt_len: usize, response_len: usize, pad: i64) {
        self.rows = rows;
        let mut pairs = match std::mem::take(&mut self.samples) {
            BatchSamples::Pairs(pairs) => pairs,
            _ => PairSamples::default(),
        };
        (pairs.prompt_len, pairs.response_len, pairs.pad) = (prompt_len, response_len, pad);
        refill(&mut pairs.prompts, rows * prompt_len, pad);
        refill(&mut pairs.prompt_lengths, rows, 0);
        refill(&mut pairs.decoder_inputs, rows * response_len, pad);
        refill(&mut pairs.targets, rows * response_len, IGNORED_TARGET);
        self.samples = BatchSamples::Pairs(pairs);
    }

    /// Targets that count in the loss.
    pub fn counted_targets(&self) -> u64 {
        match &self.samples {
            BatchSamples::Text(text) => counted(&text.targets),
            BatchSamples::Pairs(pairs) => counted(&pairs.targets),
            BatchSamples::Images(_) | BatchSamples::Panel(_) => self.rows as u64,
        }
    }

    /// Tokens that are read, without padding: inputs of text, prompts and responses together; 0 for
    /// data without tokens.
    pub fn tokens(&self) -> u64 {
        match &self.samples {
            BatchSamples::Text(text) => (self.rows * text.seq_len) as u64,
            BatchSamples::Pairs(_) => self.pair_counts().tokens(),
            BatchSamples::Images(_) | BatchSamples::Panel(_) => 0,
        }
    }

    /// The lengths of its prompts and responses as they are kept; no rows of what holds something
    /// else.
    pub fn pair_counts(&self) -> PairCounts {
        let mut counts = PairCounts::default();
        if let BatchSamples::Pairs(pairs) = &self.samples
            && pairs.response_len > 0
        {
            let responses = pairs.targets.chunks(pairs.response_len).map(counted);
            pairs
                .prompt_lengths
                .iter()
                .zip(responses)
                .for_each(|(prompt, response)| counts.add(prompt.unsigned_abs(), response));
        }
        counts
    }

    /// The text; `None` if it holds something else.
    pub fn text(&self) -> Option<&TextSamples> {
        if let BatchSamples::Text(text) = &self.samples {
            Some(text)
        } else {
            None
        }
    }

    /// As [`HostBatch::text`], to be filled.
    pub fn text_mut(&mut self) -> Option<&mut TextSamples> {
        if let BatchSamples::Text(text) = &mut self.samples {
            Some(text)
        } else {
            None
        }
    }

    /// The images; `None` if it holds something else.
    pub fn images_mut(&mut self) -> Option<&mut ImageSamples> {
        if let BatchSamples::Images(images) = &mut self.samples {
            Some(images)
        } else {
            None
        }
    }

    /// The panel; `None` if it holds something else.
    pub fn panel_mut(&mut self) -> Option<&mut PanelSamples> {
        if let BatchSamples::Panel(panel) = &mut self.samples {
            Some(panel)
        } else {
            None
        }
    }

    /// The prompts and responses; `None` if it holds something else.
    pub fn pairs(&self) -> Option<&PairSamples> {
        if let BatchSamples::Pairs(pairs) = &self.samples {
            Some(pairs)
        } else {
            None
        }
    }

    /// As [`HostBatch::pairs`], to be filled.
    pub fn pairs_mut(&mut self) -> Option<&mut PairSamples> {
        if let BatchSamples::Pairs(pairs) = &mut self.samples {
            Some(pairs)
        } else {
            None
        }
    }
}

/// Targets that are not [`IGNORED_TARGET`].
pub(super) fn counted(targets: &[i64]) -> u64 {
    targets
        .iter()
        .filter(|target| **target != IGNORED_TARGET)
        .count() as u64
}

/// Numbers of one image.
pub(super) fn image_len(shape: ImageShape) -> usize {
    (shape.channels * shape.height * shape.width) as usize
}

fn refill<T: Copy>(values: &mut Vec<T>, count: usize, value: T) {
    values.clear();
    values.resize(count, value);
}

impl TextSamples {
    /// Writes row `row` from tokens: each but the last is an input, each but the first the target
    /// of the one before it. Tokens past `seq_len + 1` are ignored; missing ones stay ignored.
    pub fn fill_row(&mut self, row: usize, tokens: &[u32]) {
        let start = row * self.seq_len;
        let pairs = tokens.iter().zip(tokens.iter().skip(1)).take(self.seq_len);
        for (offset, (input, target)) in pairs.enumerate() {
            self.inputs[start + offset] = i64::from(*input);
            self.targets[start + offset] = i64::from(*target);
        }
    }
}

impl PairSamples {
    /// Writes row `row` from ids that end with the end token. Ids past `prompt_len` or
    /// `response_len` are dropped.
    pub fn fill_row(&mut self, row: usize, prompt: &[u32], response: &[u32]) {
        let prompt = &prompt[..prompt.len().min(self.prompt_len)];
        let response = &response[..response.len().min(self.response_len)];
        copy(prompt, &mut self.prompts[row * self.prompt_len..]);
        self.prompt_lengths[row] = prompt.len() as i64;
        let start = row * self.response_len;
        copy(response, &mut self.targets[start..]);
        // The start token stands there already.
        if let Some((_, shifted)) = response.split_last() {
            copy(shifted, &mut self.decoder_inputs[start + 1..]);
        }
    }
}

fn copy(ids: &[u32], into: &mut [i64]) {
    into.iter_mut()
        .zip(ids)
        .for_each(|(place, id)| *place = i64::from(*id));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_row_is_padded_with_ignored_targets_and_a_used_buffer_keeps_nothing() {
        let mut batch = HostBatch::default();
        batch.lay_out_text(1, 3);
        let text = batch.text_mut().unwrap();
        text.fill_row(0, &[4, 5, 6, 7]);
        assert_eq!(
            (text.inputs.as_slice(), text.targets.as_slice()),
            ([4, 5, 6].as_slice(), [5, 6, 7].as_slice())
        );
        batch.lay_out_text(2, 3);
        let text = batch.text_mut().unwrap();
        text.fill_row(1, &[8, 9]);
        assert_eq!(text.inputs, [0, 0, 0, 8, 0, 0]);
        assert_eq!(
            text.targets,
            [
                IGNORED_TARGET,
                IGNORED_TARGET,
                IGNORED_TARGET,
                9,
                IGNORED_TARGET,
                IGNORED_TARGET
            ]
        );
        assert_eq!((batch.counted_targets(), batch.tokens()), (1, 6));
    }

    #[test]
    fn a_buffer_of_one_kind_becomes_one_of_another() {
        let mut batch = HostBatch::default();
        let shape = ImageShape {
            channels: 3,
            height: 4,
            width: 5,
            classes: 2,
        };
        let normalization = Normalization {
            mean: [0.5; 3],
            deviation: [0.25; 3],
        };
        let bytes = |batch: &mut HostBatch| match &mut batch.images_mut().unwrap().pixels {
            BatchPixels::Bytes { values, .. } => std::mem::take(values),
            BatchPixels::Numbers(_) => panic!("bytes are laid out"),
        };
        batch.lay_out_images(2, shape, normalization);
        assert_eq!(batch.counted_targets(), 2);
        let mut values = bytes(&mut batch);
        assert_eq!(values.len(), 120);
        values[7] = 1;
        let buffer = values.as_ptr();
        batch.images_mut().unwrap().pixels = BatchPixels::Bytes {
            values,
            normalization,
        };
        batch.lay_out_images(1, shape, normalization);
        let values = bytes(&mut batch);
        assert!(
            values.len() == 60
                && values.iter().all(|value| *value == 0)
                && values.as_ptr() == buffer,
            "the buffer is used again"
        );
        batch.lay_out_panel(
            3,
            4,
            PanelShape {
                features: 6,
                symbols: 9,
            },
            TargetScale::Directions,
        );
        assert_eq!(
            (
                batch.panel_mut().unwrap().features.len(),
                batch.counted_targets()
            ),
            (72, 3)
        );
        assert!(batch.text_mut().is_none() && batch.images_mut().is_none());
    }
}
