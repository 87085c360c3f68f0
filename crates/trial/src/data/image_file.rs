//! Turns a PNG or JPEG file into the pixels of a square: decoded, cropped, resized.
//!
//! Shrinking averages over what a pixel covers (bilinear, its width stretched by the scale), as
//! torchvision and Pillow do. The orientation tag of an image (EXIF) is ignored, as they do.

use std::path::Path;

use fast_image_resize::{
    FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer,
    images::{Image, ImageRef},
};
use kiln_core::{input, kinds::data::Crop, limits::IMAGE_BYTES};

use super::{
    order::Stream,
    pixels::{self, RgbPixels},
};

/// Shares of the area that a random piece has. Source: Szegedy et al. 2015 (arXiv 1409.4842),
/// section 6.
const AREA: [f64; 2] = [0.08, 1.0];
/// Width over height of a random piece. Source: as [`AREA`].
const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
/// Tries to find a random piece that lies in the image. Source: torchvision's RandomResizedCrop.
const TRIES: u64 = 10;
/// Random numbers that each sample may draw.
const DRAWS: u64 = 4 * TRIES;
/// The part of the shorter side that the middle piece has: 224 of 256 pixels.
const CENTER: f64 = 7.0 / 8.0;

/// How the trial goes on once a file that could not be read is repaired.
const AGAIN: &str = "if the names and lengths of all files are then as before, `kiln run` with \
                     `--rerun failed` tries the trial again, from its newest checkpoint if it has \
                     one; otherwise the data are others, and a new run is needed";

/// A piece of an image, in pixels of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// Reads a file as [3, size, size]. Random: `crop` may draw the numbers of `sample` from `stream`.
/// The error is in words and names the file.
pub(super) fn read(
    path: &Path,
    size: u32,
    crop: Crop,
    stream: Stream,
    sample: u64,
) -> Result<Vec<u8>, String> {
    let failed = |reason: String| {
        let reason = reason.trim_end_matches('.');
        format!(
            "{} could not be read as an image: {reason}; repair or remove it",
            path.display()
        )
    };
    let bytes = input::read(path, &IMAGE_BYTES).map_err(|error| failed(error.to_string()))?;
    let image = pixels::decode(&bytes).map_err(failed)?;
    let piece = match crop {
        Crop::Center => return center(&image, size).map_err(failed),
        Crop::RandomResized => random(image.width, image.height, |number| {
            stream.draw(sample.wrapping_mul(DRAWS).wrapping_add(number))
        }),
    };
    let resized = resize(&image, piece, size).map_err(failed)?;
    Ok(planes(&resized))
}

/// Advice to a training that could not read a file: what else than a repair helps, and how the
/// trial goes on.
pub(super) fn training_advice(path: &Path) -> String {
    let skipping = match input::read(path, &IMAGE_BYTES) {
        Ok(bytes) if pixels::begins_as_image(&bytes) => {
            "`data.skip_bad` does not skip it, because it looks only at the first bytes of files; "
        }
        Ok(_) => {
            "or skip all files that do not begin as a PNG or JPEG with `data.skip_bad: true`; "
        }
        Err(_) => "",
    };
    format!("{skipping}{AGAIN}")
}

/// The middle piece of an image as [3, size, size]: what validation sees.
pub(crate) fn center(image: &RgbPixels, size: u32) -> Result<Vec<u8>, String> {
    let resized = resize(image, middle(image.width, image.height), size)?;
    Ok(planes(&resized))
}

/// [height, width, 3] as [3, height, width].
pub(crate) fn planes(rgb: &[u8]) -> Vec<u8> {
    (0..3)
        .flat_map(|channel| rgb.iter().skip(channel).step_by(3).copied())
        .collect()
}

/// [size, size, 3].
fn resize(image: &RgbPixels, piece: Piece, size: u32) -> Result<Vec<u8>, String> {
    let from = ImageRef::new(image.width, image.height, &image.rgb, PixelType::U8x3)
        .map_err(|error| error.to_string())?;
    let mut to = Image::new(size, size, PixelType::U8x3);
    let Piece {
        left,
        top,
        width,
        height,
    } = piece;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(left, top, width, height);
    Resizer::new()
        .resize(&from, &mut to, &options)
        .map_err(|error| error.to_string())?;
    Ok(to.into_vec())
}

fn middle(width: u32, height: u32) -> Piece {
    let side = CENTER * f64::from(width.min(height));
    Piece {
        left: (f64::from(width) - side) / 2.0,
        top: (f64::from(height) - side) / 2.0,
        width: side,
        height: side,
    }
}

/// A random piece; the largest middle one of an allowed ratio if no try lies in the image.
/// `draw(n)` gives any 64 bits.
fn random(width: u32, height: u32, draw: impl Fn(u64) -> u64) -> Piece {
    let (width, height) = (f64::from(width), f64::from(height));
    // 53 bits are what a float holds: from 0 to just below 1.
    let share = |number: u64| kiln_core::kinds::random::fraction(draw(number));
    for attempt in 0..TRIES {
        let share = |number: u64| share(4 * attempt + number);
        let area = width * height * between(share(0), AREA);
        let ratio = between(share(1), RATIO.map(f64::ln)).exp();
        let (across, down) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if (1.0..=width).contains(&across) && (1.0..=height).contains(&down) {
            let place = |share: f64, room: f64| (share * (room + 1.0)).floor();
            return Piece {
                left: place(share(2), width - across),
                top: place(share(3), height - down),
                width: across,
                height: down,
            };
        }
    }
    let (across, down) = (
        width.min((height * RATIO[1]).round()),
        height.min((width / RATIO[0]).round()),
    );
    Piece {
        left: ((width - across) / 2.0).floor(),
        top: ((height - down) / 2.0).floor(),
        width: across,
        height: down,
    }
}

fn between(share: f64, [least, most]: [f64; 2]) -> f64 {
    least + share * (most - least)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Saves what `pixel(column, row)` says, as JPEG where the name ends so, else as PNG.
    fn saved(
        name: &str,
        width: u32,
        height: u32,
        pixel: impl Fn(u32, u32) -> [u8; 3],
    ) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let rgb: Vec<u8> = (0..height)
            .flat_map(|row| {
                (0..width)
                    .flat_map(|column| pixel(column, row))
                    .collect::<Vec<u8>>()
            })
            .collect();
        if name.ends_with(".jpg") {
            let encoder = jpeg_encoder::Encoder::new_file(&path, 90).unwrap();
            encoder
                .encode(
                    &rgb,
                    width as u16,
                    height as u16,
                    jpeg_encoder::ColorType::Rgb,
                )
                .unwrap();
        } else {
            pixels::write_png(&path, width, height, &rgb);
        }
        (folder, path)
    }

    fn in_the_middle(path: &Path, size: u32) -> Result<Vec<u8>, String> {
        read(path, size, Crop::Center, Stream::new(1, 0), 0)
    }

    #[test]
    fn channels_come_apart_and_the_middle_is_kept() {
        // 16 × 32: the middle piece has 14 pixels a side, columns 1 to 14, rows 9 to 22.
        let (_folder, path) = saved("a.png", 16, 32, |column, row| {
            [column as u8 * 10, row as u8 * 5, 7]
        });
        let pixels = in_the_middle(&path, 14).unwrap();
        let (red, rest) = pixels.split_at(14 * 14);
        let (green, blue) = rest.split_at(14 * 14);
        assert_eq!(
            red[..14],
            (1..15).map(|column| column * 10).collect::<Vec<u8>>()
        );
        assert_eq!(
            (green[0], green[14], green[13 * 14]),
            (9 * 5, 10 * 5, 22 * 5)
        );
        assert!(blue.iter().all(|value| *value == 7));
    }

    #[test]
    fn shrinking_averages_and_loses_no_thin_line() {
        // Every eighth column is white: 32 on average, where picking single pixels would give 0 or
        // 255.
        let (_folder, path) = saved("a.png", 1024, 1024, |column, _| {
            if column % 8 == 0 { [255; 3] } else { [0; 3] }
        });
        let pixels = in_the_middle(&path, 16).unwrap();
        assert!(
            pixels.iter().all(|value| value.abs_diff(32) <= 4),
            "{pixels:?}"
        );
    }

    #[test]
    fn growing_goes_from_pixel_to_pixel() {
        let (_folder, path) = saved("a.png", 2, 2, |column, _| [column as u8 * 200; 3]);
        let row = &in_the_middle(&path, 8).unwrap()[..8];
        assert!(row.is_sorted() && row[0] < 20 && row[7] > 180, "{row:?}");
        assert!(row.windows(2).all(|pair| pair[1] - pair[0] < 80), "{row:?}");
    }

    #[test]
    fn the_bytes_decide_what_a_file_is() {
        let (_folder, jpeg) = saved("a.jpg", 16, 16, |_, _| [200, 100, 50]);
        let misnamed = jpeg.with_extension("png");
        fs::copy(&jpeg, &misnamed).unwrap();
        assert_eq!(
            in_the_middle(&jpeg, 8).unwrap(),
            in_the_middle(&misnamed, 8).unwrap()
        );
        // JPEG keeps one color within a few values.
        assert!(
            in_the_middle(&jpeg, 8).unwrap()[..64]
                .iter()
                .all(|red| red.abs_diff(200) <= 6)
        );
    }

    #[test]
    fn what_is_no_image_is_named() {
        let (_folder, path) = saved("cut.png", 64, 64, |column, row| [(column * row) as u8; 3]);
        let bytes = fs::read(&path).unwrap();
        for spoilt in [&bytes[..bytes.len() / 2], b"no image at all", b""] {
            fs::write(&path, spoilt).unwrap();
            let error = in_the_middle(&path, 8).unwrap_err();
            assert!(
                error.starts_with(&format!(
                    "{} could not be read as an image: ",
                    path.display()
                )),
                "{error}"
            );
            assert!(error.ends_with("; repair or remove it"), "{error}");
            // A file that begins well is not one that `skip_bad` skips.
            let advice = training_advice(&path);
            let is_advised = advice.contains("or skip all files");
            assert_eq!(is_advised, !spoilt.starts_with(b"\x89PNG"), "{advice}");
            assert!(advice.contains("`--rerun failed`"), "{advice}");
        }
        assert!(
            in_the_middle(&path.with_file_name("absent.png"), 8)
                .unwrap_err()
                .contains("absent.png could not be read")
        );
    }

    #[test]
    fn random_pieces_lie_in_the_image_and_have_the_stated_shares() {
        let stream = Stream::new(3, 0);
        let mut shares = Vec::new();
        for (sample, (width, height)) in (0..2000).zip(
            [(500, 375), (300, 400), (64, 64), (8, 9)]
                .into_iter()
                .cycle(),
        ) {
            let piece = random(width, height, |number| stream.draw(sample * DRAWS + number));
            assert!(
                piece.left >= 0.0 && piece.left + piece.width <= f64::from(width),
                "{piece:?}"
            );
            assert!(
                piece.top >= 0.0 && piece.top + piece.height <= f64::from(height),
                "{piece:?}"
            );
            if width > 100 {
                let (share, ratio) = (
                    piece.width * piece.height / f64::from(width * height),
                    piece.width / piece.height,
                );
                // A pixel more or less on a side of 75 or more.
                assert!(
                    (0.077..=1.0).contains(&share) && (0.73..=1.37).contains(&ratio),
                    "{share} {ratio}"
                );
                shares.push(share);
            }
        }
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        // Of sides 4 : 3 a piece of ratio r fits up to a share of 3 / 4 r, or of 3 / 4 / r of sides
        // 3 : 4; over all ratios the mean is 0.432. The deviation of the mean of 1000 is 0.007: 5
        // deviations.
        assert!((mean - 0.432).abs() < 0.035, "{mean}");
    }

    #[test]
    fn where_no_piece_fits_the_middle_is_taken() {
        assert_eq!(
            random(1000, 10, |_| u64::MAX),
            Piece {
                left: 493.0,
                top: 0.0,
                width: 13.0,
                height: 10.0
            }
        );
        assert_eq!(
            random(10, 1000, |_| u64::MAX),
            Piece {
                left: 0.0,
                top: 493.0,
                width: 10.0,
                height: 13.0
            }
        );
        assert_eq!(random(1, 1, |_| 0).width, 1.0);
    }
}
