//! Images as samples: pixels out of memory or files, augmented in training. The device normalizes
//! them.

use kiln_core::kinds::{
    Data,
    data::{Augmentation, Crop, ImageShape},
};
use kiln_data::images::{
    ImagePixels, Images, LoadedImages, Normalization,
    generated::{self, FIRST_VALID},
    normalization,
};

use super::{
    BatchPixels, Draw, HostBatch, OTHER_KIND, Source, batch::image_len, image_file, order::Stream,
};

/// The training or the validation images.
#[derive(Clone, Debug)]
pub struct ImageSource {
    images: Images,
    shape: ImageShape,
    normalization: Normalization,
    /// `None` for validation.
    augmentation: Option<Augmentation>,
    /// The way in which files become squares.
    crop: Crop,
    /// Number of the first image, for generated images.
    first: u64,
    seed: u64,
}

impl ImageSource {
    /// Training images and validation images. Random: `seed` decides what is done to training
    /// images.
    pub fn both(data: &Data, found: LoadedImages, seed: u64) -> [Self; 2] {
        let (shape, normalization) = (found.shape, normalization(data));
        let crop = if let Data::ImageFolder(folder) = data {
            folder.crop
        } else {
            Crop::Center
        };
        let train = Self {
            images: found.train,
            shape,
            normalization,
            augmentation: data.augmentation(),
            crop,
            first: 0,
            seed,
        };
        [train, Self::evaluated(data, found.valid, shape)]
    }

    /// Images of this shape to evaluate a model on that was trained on `data`.
    pub fn evaluated(data: &Data, images: Images, shape: ImageShape) -> Self {
        Self {
            images,
            shape,
            normalization: normalization(data),
            augmentation: None,
            crop: Crop::Center,
            first: FIRST_VALID,
            // Nothing is drawn.
            seed: 0,
        }
    }

    /// The augmentation of a training image in this epoch. Random: from the seed, the epoch and the
    /// sample.
    fn change(&self, draw: Draw) -> ImageShift {
        let Some(augmentation) = &self.augmentation else {
            return ImageShift::default();
        };
        let stream = Stream::new(self.seed ^ CHANGES, draw.epoch);
        let random = |number: u64, bound: u64| stream.below(draw.sample * 3 + number, bound);
        let padding = augmentation.crop_padding;
        let shift = |number: u64| random(number, 2 * padding + 1) as i64 - padding as i64;
        ImageShift {
            down: shift(0),
            right: shift(1),
            is_mirrored: augmentation.flip && random(2, 2) == 1,
        }
    }

    /// Writes one image.
    fn write_pixels(&self, pixels: &[u8], change: ImageShift, out: &mut [u8]) {
        let (height, width) = (self.shape.height as usize, self.shape.width as usize);
        for (plane, out) in pixels
            .chunks_exact(height * width)
            .zip(out.chunks_exact_mut(height * width))
        {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                match change.source(row, change.down, height) {
                    Some(row) => change.write_row(&plane[row * width..][..width], out),
                    None => out.fill(0),
                }
            }
        }
    }
}

/// So that augmentation draws other numbers than the order of samples.
const CHANGES: u64 = 0x6175_676d_656e_7421;
/// The same for pieces of files.
const CROPS: u64 = 0x6372_6f70_7069_6563;

/// A shift, with black coming in, and a mirroring after it.
#[derive(Clone, Copy, Debug, Default)]
struct ImageShift {
    down: i64,
    right: i64,
    is_mirrored: bool,
}

impl ImageShift {
    /// The index of the source pixel for `place`; `None` is black.
    fn source(self, place: usize, shift: i64, length: usize) -> Option<usize> {
        usize::try_from(place as i64 + shift)
            .ok()
            .filter(|from| *from < length)
    }

    fn write_row(self, row: &[u8], out: &mut [u8]) {
        let width = row.len();
        for (place, out) in out.iter_mut().enumerate() {
            let place = if self.is_mirrored {
                width - 1 - place
            } else {
                place
            };
            *out = self
                .source(place, self.right, width)
                .map_or(0, |from| row[from]);
        }
    }
}

impl Source for ImageSource {
    fn sample_count(&self) -> u64 {
        self.images.labels.len() as u64
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_images(draws.len(), self.shape, self.normalization);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let samples = batch.images_mut().ok_or(OTHER_KIND)?;
        let (number, length) = (draw.sample as usize, image_len(self.shape));
        let label = *self
            .images
            .labels
            .get(number)
            .ok_or("it lies past the last image")?;
        samples.labels[row] = i64::from(label);
        let BatchPixels::Bytes { values, .. } = &mut samples.pixels else {
            return Err(OTHER_KIND.to_owned());
        };
        let out = &mut values[row * length..][..length];
        match &self.images.pixels {
            ImagePixels::Memory(pixels) => {
                self.write_pixels(&pixels[number * length..][..length], self.change(draw), out)
            }
            ImagePixels::Generated => {
                let mut pixels = vec![0; length];
                generated::write(self.first + draw.sample, label, self.shape, &mut pixels);
                self.write_pixels(&pixels, self.change(draw), out);
            }
            ImagePixels::Files(paths) => {
                let stream = Stream::new(self.seed ^ CROPS, draw.epoch);
                let pixels = image_file::read(
                    &paths[number],
                    self.shape.width as u32,
                    self.crop,
                    stream,
                    draw.sample,
                )?;
                self.write_pixels(&pixels, self.change(draw), out);
            }
        }
        Ok(())
    }

    fn training_advice(&self, sample: u64) -> Option<String> {
        let ImagePixels::Files(paths) = &self.images.pixels else {
            return None;
        };
        paths
            .get(sample as usize)
            .map(|path| image_file::training_advice(path))
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::kinds::data::Sampling;

    use super::*;
    use crate::data::{BatchLoader, BatchSchedule, LoaderOptions};

    /// One image of 2 × 3 greys, 10, 20, … 60, under this change.
    fn changed(change: ImageShift) -> Vec<u8> {
        let shape = ImageShape {
            channels: 1,
            height: 2,
            width: 3,
            classes: 2,
        };
        let images = Images {
            labels: vec![1],
            pixels: ImagePixels::Memory(vec![10, 20, 30, 40, 50, 60]),
        };
        let normalization = Normalization {
            mean: [0.5; 3],
            deviation: [0.25; 3],
        };
        let source = ImageSource {
            images,
            shape,
            normalization,
            augmentation: None,
            crop: Crop::Center,
            first: 0,
            seed: 1,
        };
        let mut out = vec![0; 6];
        source.write_pixels(&[10, 20, 30, 40, 50, 60], change, &mut out);
        out
    }

    #[test]
    fn a_shift_brings_black_in_and_a_mirroring_turns_rows() {
        assert_eq!(changed(ImageShift::default()), [10, 20, 30, 40, 50, 60]);
        assert_eq!(
            changed(ImageShift {
                is_mirrored: true,
                ..ImageShift::default()
            }),
            [30, 20, 10, 60, 50, 40]
        );
        assert_eq!(
            changed(ImageShift {
                down: 1,
                right: -1,
                is_mirrored: false
            }),
            [0, 40, 50, 0, 0, 0]
        );
        assert_eq!(
            changed(ImageShift {
                down: -1,
                right: 1,
                is_mirrored: true
            }),
            [0, 0, 0, 0, 30, 20]
        );
    }

    fn opened(yaml: &str, seed: u64) -> [ImageSource; 2] {
        let data: Data = serde_yaml::from_str(yaml).unwrap();
        let found = kiln_data::images::load(&data, None).unwrap();
        ImageSource::both(&data, found, seed)
    }

    /// A folder of two classes with six images each, and one for validation of each.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (part, class, count) in [
            ("train", "cat", 6_u8),
            ("train", "mouse", 6),
            ("val", "cat", 1),
            ("val", "mouse", 1),
        ] {
            let place = folder.path().join(part).join(class);
            std::fs::create_dir_all(&place).unwrap();
            for number in 0..count {
                let look = |at: u32| {
                    [
                        (at % 24) as u8 * 9,
                        (at / 24) as u8 * 7,
                        number * 40 + class.len() as u8,
                    ]
                };
                let rgb: Vec<u8> = (0..24 * 18).flat_map(look).collect();
                crate::data::pixels::write_png(&place.join(format!("{number}.png")), 24, 18, &rgb);
            }
        }
        folder
    }

    fn drawn(source: &ImageSource, epoch: u64, sample: u64) -> Vec<u8> {
        let mut batch = HostBatch::default();
        source.lay_out(&[Draw { epoch, sample }], &mut batch);
        source.write(Draw { epoch, sample }, 0, &mut batch).unwrap();
        let BatchPixels::Bytes {
            values,
            normalization,
        } = &batch.images_mut().unwrap().pixels
        else {
            panic!("bytes are laid out")
        };
        assert_eq!(*normalization, source.normalization);
        values.clone()
    }

    #[test]
    fn training_images_change_with_seed_and_epoch_and_validation_images_never() {
        let files = folder();
        let of_files = format!(
            "{{kind: image-folder, path: {}, image_size: 8, flip: true}}",
            files.path().display()
        );
        for yaml in [
            "{kind: generated-images, image_size: 8, crop_padding: 2, flip: true}",
            &of_files,
        ] {
            let [train, valid] = opened(yaml, 1);
            let [other_train, other_valid] = opened(yaml, 2);
            let all = |source: &ImageSource, epoch| {
                (0..2)
                    .map(|sample| drawn(source, epoch, sample))
                    .collect::<Vec<_>>()
            };
            assert_eq!(all(&train, 3), all(&train, 3), "{yaml}");
            assert_ne!(all(&train, 3), all(&train, 4), "{yaml}");
            assert_ne!(all(&train, 3), all(&other_train, 3), "{yaml}");
            assert_eq!(all(&valid, 0), all(&other_valid, 9), "{yaml}");
            assert_ne!(all(&valid, 0)[0], all(&valid, 0)[1], "{yaml}");
        }
    }

    #[test]
    fn half_of_the_draws_are_mirrored_and_every_crop_comes() {
        let [train, _] = opened(
            "{kind: generated-images, image_size: 8, crop_padding: 2, flip: true}",
            1,
        );
        let changes: Vec<ImageShift> = (0..2000)
            .map(|sample| train.change(Draw { epoch: 0, sample }))
            .collect();
        let mirrored = changes.iter().filter(|change| change.is_mirrored).count();
        // 1000 expected, standard deviation 22: 5 deviations.
        assert!(mirrored.abs_diff(1000) < 112, "{mirrored}");
        for shift in -2..=2 {
            assert!(
                changes.iter().any(|change| change.down == shift)
                    && changes.iter().any(|change| change.right == shift)
            );
        }
        assert!(
            changes
                .iter()
                .all(|change| change.down.abs() <= 2 && change.right.abs() <= 2)
        );
    }

    #[test]
    fn files_come_as_they_are_and_the_number_of_workers_changes_nothing() {
        let files = folder();
        let yaml = format!(
            "{{kind: image-folder, path: {}, image_size: 8, flip: true}}",
            files.path().display()
        );
        let batches = |num_workers| {
            let [train, _] = opened(&yaml, 1);
            let schedule = BatchSchedule {
                source_samples: 12,
                epoch_samples: 12,
                batch_size: 3,
                grad_accumulation: 1,
                total_steps: 12,
                sampling: Sampling::Shuffled,
                seed: 1,
                sort_keys: None,
            };
            let options = LoaderOptions {
                num_workers,
                prefetch: 2,
                persistent_workers: true,
                synthetic: false,
            };
            let mut loader = BatchLoader::new(std::sync::Arc::new(train), schedule, options);
            (0..12)
                .map(|_| (*loader.next_batch().unwrap()).clone())
                .collect::<Vec<HostBatch>>()
        };
        let alone = batches(0);
        assert_eq!(alone, batches(1));
        assert_eq!(alone, batches(3));
        assert_ne!(alone[0], alone[4], "the second epoch");
        let [_, valid] = opened(&yaml, 1);
        assert!(
            drawn(&valid, 0, 0)[128..].iter().all(|value| *value == 3),
            "blue in all of the first validation image"
        );
        assert_eq!(
            valid.normalization.table(2)[3],
            (3.0 / 255.0 - 0.406) / 0.225
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_fails_by_its_name() {
        let files = folder();
        std::fs::write(files.path().join("val/mouse/0.png"), b"no image").unwrap();
        let [_, valid] = opened(
            &format!(
                "{{kind: image-folder, path: {}, image_size: 8}}",
                files.path().display()
            ),
            1,
        );
        let mut batch = HostBatch::default();
        let draw = Draw {
            epoch: 0,
            sample: 1,
        };
        valid.lay_out(&[draw], &mut batch);
        let error = valid.write(draw, 0, &mut batch).unwrap_err();
        assert!(error.contains("val/mouse/0.png"), "{error}");
        let advice = valid.training_advice(1).unwrap();
        assert!(advice.contains("`--rerun failed`"), "{advice}");
    }
}
