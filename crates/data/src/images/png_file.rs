//! Decodes a PNG file as it is: its channels and their bits are kept.

use std::io::Cursor;

use kiln_core::limits::IMAGE_PIXELS;
use png::{BitDepth, ColorType, Transformations};

/// The first bytes of a PNG file. Source: PNG specification, third edition, 5.2.
pub const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Place of the bits per channel in a PNG file. Source: the same, 11.2.1.
pub(super) const DEPTH: usize = 24;
/// A value of 16 bits is divided by this number to become one of 8: 65,535 is 255 × 257.
pub(super) const STEP: u32 = 257;
/// Bytes that a pixel may take while it is decoded, of those that [`IMAGE_PIXELS`] allows: a file of
/// some kilobytes can claim any size.
const PIXEL_BYTES: u64 = 3;

/// A decoded PNG file, its channels as they are.
pub struct PngSamples {
    pub width: u32,
    pub height: u32,
    pub color: ColorType,
    pub depth: BitDepth,
    /// [height, width, channel, byte]; of 16 bits the high byte comes first.
    pub samples: Vec<u8>,
}

/// Decodes a PNG file; a palette and fewer than 8 bits become 8 bits per channel.
///
/// # Errors
/// The bytes cannot be decoded, or the image is too large; in words.
pub fn decode(bytes: &[u8]) -> Result<PngSamples, String> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let (width, height) = reader.info().size();
    let size = check_size(width, height, reader.output_buffer_size())?;
    let (color, depth) = reader.output_color_type();
    let mut samples = vec![0; size];
    reader
        .next_frame(&mut samples)
        .map_err(|error| error.to_string())?;
    Ok(PngSamples {
        width,
        height,
        color,
        depth,
        samples,
    })
}

/// A value of 16 bits as one of 8, rounded to the nearest.
pub fn to_8_bits(value: u16) -> u8 {
    ((u32::from(value) + STEP / 2) / STEP) as u8
}

/// Whether a file begins as a PNG of 16 bits per channel.
pub(super) fn begins_as_deep(bytes: &[u8]) -> bool {
    bytes.starts_with(SIGNATURE) && bytes.get(DEPTH) == Some(&16)
}

/// The largest value of a PNG of 16 bits per channel, transparency aside; `None` for other files.
pub(super) fn largest_of_16_bits(bytes: &[u8]) -> Option<u16> {
    let found = Some(bytes).filter(|bytes| begins_as_deep(bytes));
    let found = decode(found?).ok()?;
    let channels = match found.color {
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgba => 4,
        // None of them is transparency.
        _ => usize::MAX,
    };
    let values = found.samples.chunks_exact(2).enumerate();
    let colors = values.filter(|(place, _)| place % channels != channels - 1);
    let values = colors.map(|(_, pair)| u16::from_be_bytes([pair[0], pair[1]]));
    values.max()
}

/// The bytes that the decoded image takes, if they are few enough.
///
/// # Errors
/// The image is too large; in words.
pub fn check_size(width: u32, height: u32, bytes: Option<usize>) -> Result<usize, String> {
    let pixels = u64::from(width) * u64::from(height);
    let bytes = bytes.unwrap_or(usize::MAX);
    // Deep and transparent images take more than three bytes for a pixel.
    let taken = (bytes as u64).div_ceil(PIXEL_BYTES).max(pixels);
    match IMAGE_PIXELS.check(taken) {
        Ok(()) => Ok(bytes),
        Err(exceeded) => Err(format!("it has {width} × {height} pixels: {exceeded}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_of_16_bits_is_one_of_a_color() {
        let largest = |color, depth, samples: &[u8]| {
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, 2, 1);
            encoder.set_color(color);
            encoder.set_depth(depth);
            let mut writer = encoder.write_header().unwrap();
            writer.write_image_data(samples).unwrap();
            writer.finish().unwrap();
            largest_of_16_bits(&file)
        };
        let (grey, alpha) = (ColorType::Grayscale, ColorType::GrayscaleAlpha);
        let deep = BitDepth::Sixteen;
        assert_eq!(largest(grey, deep, &[3, 232, 0, 255]), Some(1000));
        let transparent = [3, 232, 255, 255, 0, 255, 255, 255];
        assert_eq!(largest(alpha, deep, &transparent), Some(1000));
        assert_eq!(largest(grey, BitDepth::Eight, &[3, 232]), None);
        assert_eq!(largest_of_16_bits(b"no image"), None);
    }
}
