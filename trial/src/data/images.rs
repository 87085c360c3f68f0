//! Images as samples: pixels out of memory or files, augmented in training, normalized.

use kiln::catalog::{
    Data,
    data::{Augmentation, ImageShape},
    generated_images::{self, FIRST_VALID},
    images::{Images, LoadedImages, Normalization, Pixels, normalization},
};

use super::{Draw, HostBatch, OTHER_KIND, Source, batch::image_len, order::Stream};

/// The training or the validation images.
#[derive(Clone, Debug)]
pub struct ImageSource {
    images: Images,
    shape: ImageShape,
    normalization: Normalization,
    /// `None` for validation.
    augmentation: Option<Augmentation>,
    /// Of the first image, where images are made.
    first: u64,
    seed: u64,
}

impl ImageSource {
    /// Training images and validation images. Random: `seed` decides what is done to training images.
    pub fn both(data: &Data, found: LoadedImages, seed: u64) -> [Self; 2] {
        let source = |images, augmentation, first| Self { images, shape: found.shape, normalization: normalization(data), augmentation, first, seed };
        [source(found.train, data.augmentation(), 0), source(found.valid, None, FIRST_VALID)]
    }

    /// What is done to a training image in this epoch. Random: from the seed, the epoch and the sample.
    fn change(&self, draw: Draw) -> Change {
        let Some(augmentation) = &self.augmentation else { return Change::default() };
        let stream = Stream::new(self.seed ^ CHANGES, draw.epoch);
        let random = |number: u64, bound: u64| stream.below(draw.sample * 3 + number, bound);
        let padding = augmentation.crop_padding;
        let shift = |number: u64| random(number, 2 * padding + 1) as i64 - padding as i64;
        Change { down: shift(0), right: shift(1), is_mirrored: augmentation.flip && random(2, 2) == 1 }
    }

    /// Writes one image of 8-bit pixels as normalized numbers.
    fn write_pixels(&self, pixels: &[u8], change: Change, out: &mut [f32]) {
        let (height, width) = (self.shape.height as usize, self.shape.width as usize);
        for (channel, (plane, out)) in pixels.chunks_exact(height * width).zip(out.chunks_exact_mut(height * width)).enumerate() {
            let table = self.normalization.table(channel);
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                match change.source(row, change.down, height) {
                    Some(row) => change.write_row(&plane[row * width..][..width], &table, out),
                    None => out.fill(table[0]),
                }
            }
        }
    }
}

/// So that augmentation draws other numbers than the order of samples.
const CHANGES: u64 = 0x6175_676d_656e_7421;

/// A shift, with black coming in, and a mirroring after it.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    down: i64,
    right: i64,
    is_mirrored: bool,
}

impl Change {
    /// Where the pixel at `place` comes from; `None` is black.
    fn source(self, place: usize, shift: i64, length: usize) -> Option<usize> {
        usize::try_from(place as i64 + shift).ok().filter(|from| *from < length)
    }

    fn write_row(self, row: &[u8], table: &[f32; 256], out: &mut [f32]) {
        let width = row.len();
        for (place, out) in out.iter_mut().enumerate() {
            let place = if self.is_mirrored { width - 1 - place } else { place };
            *out = table[self.source(place, self.right, width).map_or(0, |from| row[from]) as usize];
        }
    }
}

impl Source for ImageSource {
    fn sample_count(&self) -> u64 {
        self.images.labels.len() as u64
    }

    fn lay_out(&self, rows: usize, batch: &mut HostBatch) {
        batch.lay_out_images(rows, self.shape);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let samples = batch.images_mut().ok_or(OTHER_KIND)?;
        let (number, length) = (draw.sample as usize, image_len(self.shape));
        let label = *self.images.labels.get(number).ok_or("it lies past the last image")?;
        samples.labels[row] = i64::from(label);
        let out = &mut samples.pixels[row * length..][..length];
        match &self.images.pixels {
            Pixels::Memory(pixels) => self.write_pixels(&pixels[number * length..][..length], self.change(draw), out),
            Pixels::Generated => {
                let mut pixels = vec![0; length];
                generated_images::write(self.first + draw.sample, label, self.shape, &mut pixels);
                self.write_pixels(&pixels, self.change(draw), out);
            }
            Pixels::Files(paths) => return Err(format!("{} cannot be read yet", paths[number].display())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One image of 2 × 3 greys, 10, 20, … 60, under this change, as it was before normalization.
    fn changed(change: Change) -> Vec<u8> {
        let shape = ImageShape { channels: 1, height: 2, width: 3, classes: 2 };
        let images = Images { labels: vec![1], pixels: Pixels::Memory(vec![10, 20, 30, 40, 50, 60]) };
        let normalization = Normalization { mean: [0.5; 3], deviation: [0.25; 3] };
        let source = ImageSource { images, shape, normalization, augmentation: None, first: 0, seed: 1 };
        let mut out = vec![0.0; 6];
        source.write_pixels(&[10, 20, 30, 40, 50, 60], change, &mut out);
        out.iter().map(|value| ((value * 0.25 + 0.5) * 255.0).round() as u8).collect()
    }

    #[test]
    fn a_shift_brings_black_in_and_a_mirroring_turns_rows() {
        assert_eq!(changed(Change::default()), [10, 20, 30, 40, 50, 60]);
        assert_eq!(changed(Change { is_mirrored: true, ..Change::default() }), [30, 20, 10, 60, 50, 40]);
        assert_eq!(changed(Change { down: 1, right: -1, is_mirrored: false }), [0, 40, 50, 0, 0, 0]);
        assert_eq!(changed(Change { down: -1, right: 1, is_mirrored: true }), [0, 0, 0, 0, 30, 20]);
    }
}
