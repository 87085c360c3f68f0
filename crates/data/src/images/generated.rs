//! Generated images: small, the same bytes on every machine, with structure to learn.
//!
//! Each class is a wave with its own direction and frequency, and class-specific phase shifts
//! between channels. An image shows the wave with random phase, contrast and brightness, plus a
//! second wave and noise: the mean of a class is flat, so a single pixel says nothing, and small
//! filters are enough. All arithmetic is on integers, so that no machine rounds differently.

use kiln_core::kinds::{
    data::ImageShape,
    random::{GAMMA, SplitMix64, mix, scaled},
};
use sha2::{Digest, Sha256};

use super::Normalization;

/// An arbitrary seed; changing it changes the images and every result based on them.
const SEED: u64 = 0x6b69_6c6e;

/// The number of the first validation image: far beyond all training images, so that the two ranges
/// never overlap.
pub const FIRST_VALID: u64 = 1 << 40;

/// Steps of the additive sequence that spreads any number of points evenly over a square: the
/// inverses of the first and second power of the plastic number, times 2⁶⁴. Source: Roberts 2018,
/// "The unreasonable effectiveness of quasirandom sequences".
const SPREAD: [u64; 2] = [0xc13f_a9a9_02a6_328f, 0x91e1_0da5_c79e_7b1d];

/// Mean and deviation for normalizing pixels: measured over many images, and checked by a test.
pub const NORMALIZATION: Normalization = Normalization {
    mean: [0.5; 3],
    deviation: [0.18; 3],
};

/// The label of image `index` of either part: the classes alternate.
pub fn label(index: u64, classes: u64) -> u32 {
    (index % classes.max(1)) as u32
}

/// Identifies generated images by their shape and the version of the algorithm: SHA-256 over the
/// first two images, in hex.
pub fn sha256(shape: ImageShape) -> String {
    let mut hasher = Sha256::new();
    let mut pixels =
        vec![0; usize::try_from(shape.channels * shape.height * shape.width).unwrap_or_default()];
    for class in 0..2 {
        write(u64::from(class), class, shape, &mut pixels);
        hasher.update(&pixels);
    }
    for number in [shape.channels, shape.height, shape.width, shape.classes] {
        hasher.update(number.to_le_bytes());
    }
    hex::encode(hasher.finalize())
}

/// Writes image `number` of a class: `out` is [channels, height, width]; elements beyond that stay
/// unchanged. Training images are numbered from 0, validation images from [`FIRST_VALID`].
pub fn write(number: u64, class: u32, shape: ImageShape, out: &mut [u8]) {
    let mut random = SplitMix64::new(mix(SEED ^ number.wrapping_mul(GAMMA)));
    let class = Class::new(class, shape);
    let phase = random.next_u64() as u32;
    let contrast = between(&mut random, 40, 96);
    let brightness = 128 + between(&mut random, -24, 24);
    let across = Wave::anywhere(&mut random, shape);
    let mut noise = Noise {
        random,
        left: 0,
        bits: 0,
    };
    let (height, width) = (shape.height as u32, shape.width as u32);
    let mut pixels = out.iter_mut();
    for channel in 0..shape.channels {
        let phase = phase.wrapping_add(class.shift(channel));
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column)))
        {
            let Some(pixel) = pixels.next() else { return };
            let pattern =
                contrast * class.wave.at(phase, row, column) + 28 * across.at(0, row, column);
            *pixel = (brightness + (pattern >> 7) + noise.next()).clamp(0, 255) as u8;
        }
    }
}

/// The properties that all images of a class share.
struct Class {
    number: u64,
    wave: Wave,
}

impl Class {
    fn new(class: u32, shape: ImageShape) -> Self {
        let number = u64::from(class);
        let [across, down] = SPREAD.map(|step| step.wrapping_mul(number + 1));
        Self {
            number,
            wave: Wave::of(across, down, shape),
        }
    }

    /// Phase of a channel's wave relative to the first channel's, in parts of 2³² of a cycle.
    fn shift(&self, channel: u64) -> u32 {
        if channel == 0 {
            0
        } else {
            mix(self
                .number
                .wrapping_mul(4)
                .wrapping_add(channel)
                .wrapping_mul(GAMMA)) as u32
        }
    }
}

/// A triangular wave over the plane.
struct Wave {
    /// Phase steps from one pixel to the next in a row, and from one row to the next, in parts of
    /// 2³² of a cycle.
    across: u32,
    down: u32,
}

impl Wave {
    /// One to a few cycles down the image, and up to as many across, in either direction. `across`
    /// and `down` choose, as parts of 2⁶⁴.
    fn of(across: u64, down: u64, shape: ImageShape) -> Self {
        // At least four pixels per cycle, so that the wave is visible, and at most 8 cycles, so
        // that a small filter is enough.
        let most = (shape.width.min(shape.height) / 4).clamp(1, 8) << 16;
        let across = scaled(across, 2 * most) as i64 - most as i64;
        let down = (1 << 16) + scaled(down, (most - (1 << 16)).max(1)) as i64;
        // 2¹⁶ parts of a cycle per image become 2³² parts per pixel; a step back is a step forward
        // by the rest of a cycle.
        let step = |cycles: i64, pixels: u64| ((cycles << 16) / pixels.max(1) as i64) as u32;
        Self {
            across: step(across, shape.width),
            down: step(down, shape.height),
        }
    }

    fn anywhere(random: &mut SplitMix64, shape: ImageShape) -> Self {
        Self::of(random.next_u64(), random.next_u64(), shape)
    }

    /// -128 … 127.
    fn at(&self, phase: u32, row: u32, column: u32) -> i32 {
        let place = phase
            .wrapping_add(self.across.wrapping_mul(column))
            .wrapping_add(self.down.wrapping_mul(row))
            >> 23;
        // 0 … 511: half a cycle rising, half a cycle falling.
        let place = place as i32;
        (if place < 256 { place } else { 511 - place }) - 128
    }
}

/// The sum of four uniform draws per pixel, -60 … 60: nearly Gaussian.
struct Noise {
    random: SplitMix64,
    bits: u64,
    /// Number of pixels that the remaining `bits` can supply.
    left: u32,
}

impl Noise {
    fn next(&mut self) -> i32 {
        if self.left == 0 {
            (self.bits, self.left) = (self.random.next_u64(), 4);
        }
        let drawn = self.bits & 0xffff;
        (self.bits, self.left) = (self.bits >> 16, self.left - 1);
        let sum: u64 = [0, 4, 8, 12]
            .iter()
            .map(|shift| (drawn >> shift) & 15)
            .sum();
        2 * sum as i32 - 60
    }
}

/// A number from `least` to `most`, inclusive.
fn between(random: &mut SplitMix64, least: i32, most: i32) -> i32 {
    least + random.below((most - least) as u64 + 1) as i32
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    const SMALL: ImageShape = ImageShape {
        channels: 3,
        height: 32,
        width: 32,
        classes: 10,
    };

    fn image(number: u64, class: u32, shape: ImageShape) -> Vec<u8> {
        let mut out = vec![0; (shape.channels * shape.height * shape.width) as usize];
        write(number, class, shape, &mut out);
        out
    }

    #[test]
    fn the_images_are_the_same_everywhere() {
        let mut hasher = Sha256::new();
        for number in [0, 1, 9_999_999, FIRST_VALID] {
            hasher.update(image(number, label(number, 10), SMALL));
        }
        assert_eq!(
            hex::encode(hasher.finalize()),
            "acda0cc801cfb71ca0bc75e25d4e0337fb4382ec12a9ff6e06e263858edc4513"
        );
    }

    #[test]
    fn numbers_and_classes_make_different_images() {
        assert_ne!(image(0, 0, SMALL), image(FIRST_VALID, 0, SMALL));
        assert_ne!(image(0, 0, SMALL), image(0, 1, SMALL));
        assert_eq!(
            (0..5).map(|index| label(index, 3)).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1]
        );
    }

    #[test]
    fn pixels_have_the_stated_mean_and_deviation() {
        for shape in [
            SMALL,
            ImageShape {
                channels: 1,
                height: 8,
                width: 8,
                classes: 4,
            },
            ImageShape {
                height: 64,
                width: 64,
                ..SMALL
            },
        ] {
            let pixels: Vec<f64> = (0..500)
                .flat_map(|number| image(number, label(number, shape.classes), shape))
                .map(|pixel| f64::from(pixel) / 255.0)
                .collect();
            let mean = pixels.iter().sum::<f64>() / pixels.len() as f64;
            let deviation = (pixels
                .iter()
                .map(|pixel| (pixel - mean).powi(2))
                .sum::<f64>()
                / pixels.len() as f64)
                .sqrt();
            assert!(
                (mean - f64::from(NORMALIZATION.mean[0])).abs() < 0.01,
                "{mean}"
            );
            assert!(
                (deviation - f64::from(NORMALIZATION.deviation[0])).abs() < 0.02,
                "{deviation}"
            );
        }
    }

    /// Strength of a class's wave in the first channel of an image, independent of its phase.
    fn strength(image: &[u8], class: u32, shape: ImageShape) -> f64 {
        let wave = Class::new(class, shape).wave;
        let [mut even, mut odd] = [0.0; 2];
        for row in 0..shape.height as u32 {
            for column in 0..shape.width as u32 {
                let place = wave
                    .across
                    .wrapping_mul(column)
                    .wrapping_add(wave.down.wrapping_mul(row));
                let angle = TAU * f64::from(place) / 2_f64.powi(32);
                let pixel = f64::from(image[(row * shape.width as u32 + column) as usize]) - 128.0;
                even += pixel * angle.cos();
                odd += pixel * angle.sin();
            }
        }
        even.hypot(odd)
    }

    #[test]
    fn filters_tell_the_classes_and_single_pixels_do_not() {
        let mut told = 0;
        let mut means = vec![0.0; 10];
        for number in 0..500 {
            let class = label(number, 10);
            let image = image(number, class, SMALL);
            let strengths: Vec<f64> = (0..10)
                .map(|class| strength(&image, class, SMALL))
                .collect();
            let strongest = (0..10)
                .max_by(|one, other| strengths[*one].total_cmp(&strengths[*other]))
                .unwrap();
            told += u32::from(strongest as u32 == class);
            means[class as usize] += f64::from(image[500]) / 50.0;
        }
        assert!((430..=500).contains(&told), "{told} of 500");
        // The mean of 50 pixels with a deviation of 46 has a deviation of 6.5; the limit is four
        // times that.
        assert!(
            means.iter().all(|mean| (mean - 128.0).abs() < 26.0),
            "{means:?}"
        );
    }

    #[test]
    fn any_shape_that_the_keys_allow_is_made() {
        for (size, channels, class) in [(8, 1, 0), (9, 3, 99_999), (500, 2, 1)] {
            let shape = ImageShape {
                channels,
                height: size,
                width: size,
                classes: 100_000,
            };
            let made = image(3, class, shape);
            assert!(made.iter().max().unwrap() - made.iter().min().unwrap() > 40);
        }
        write(0, 0, SMALL, &mut [0; 5]);
        write(
            0,
            0,
            ImageShape {
                channels: 0,
                height: 0,
                width: 0,
                classes: 0,
            },
            &mut [],
        );
    }
}
