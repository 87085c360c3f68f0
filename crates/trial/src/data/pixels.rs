//! Decodes a PNG or JPEG file into pixels of three color channels.
//!
//! Uses `png` and `zune-jpeg`, as the crate `image` does; that crate also brings color management
//! and metadata, which no training reads and which add a minute to the build.

use kiln_data::images::png_file::{self, PngSamples, check_size, to_8_bits};
use png::{BitDepth, ColorType};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

/// The first bytes of a JPEG file: start of image, then another marker. Source: ITU-T T.81,
/// B.1.1.3.
const JPEG_SIGNATURE: &[u8] = &[0xff, 0xd8, 0xff];

/// An image of 8-bit red, green and blue.
pub(crate) struct RgbPixels {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// [height, width, 3].
    pub(crate) rgb: Vec<u8>,
}

/// Whether a file begins with the signature of a PNG or a JPEG.
pub(crate) fn begins_as_image(bytes: &[u8]) -> bool {
    bytes.starts_with(png_file::SIGNATURE) || bytes.starts_with(JPEG_SIGNATURE)
}

/// Decodes a file. Gray becomes color, transparency is dropped. The first bytes decide the format,
/// not the file's name. The error says what is wrong with the bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<RgbPixels, String> {
    if bytes.starts_with(png_file::SIGNATURE) {
        png(bytes)
    } else if bytes.starts_with(JPEG_SIGNATURE) {
        jpeg(bytes)
    } else {
        Err("it is neither a PNG nor a JPEG file".to_owned())
    }
}

fn png(bytes: &[u8]) -> Result<RgbPixels, String> {
    let PngSamples {
        width,
        height,
        color,
        depth,
        mut samples,
    } = png_file::decode(bytes)?;
    if depth == BitDepth::Sixteen {
        let narrow = |pair: &[u8]| to_8_bits(u16::from_be_bytes([pair[0], pair[1]]));
        samples = samples.chunks_exact(2).map(narrow).collect();
    }
    let rgb = match color {
        ColorType::Rgb => samples,
        ColorType::Rgba => samples
            .chunks_exact(4)
            .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect(),
        ColorType::Grayscale => samples.into_iter().flat_map(|grey| [grey; 3]).collect(),
        ColorType::GrayscaleAlpha => samples
            .chunks_exact(2)
            .flat_map(|pixel| [pixel[0]; 3])
            .collect(),
        ColorType::Indexed => return Err("its palette could not be read".to_owned()),
    };
    Ok(RgbPixels { width, height, rgb })
}

fn jpeg(bytes: &[u8]) -> Result<RgbPixels, String> {
    if !has_end(bytes) {
        return Err("it is cut off: the marker of its end is missing".to_owned());
    }
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder
        .decode_headers()
        .map_err(|error| error.to_string())?;
    let is_grey = matches!(
        decoder.input_colorspace(),
        Some(ColorSpace::Luma | ColorSpace::LumaA)
    );
    decoder.set_options(options.jpeg_set_out_colorspace(if is_grey {
        ColorSpace::Luma
    } else {
        ColorSpace::RGB
    }));
    let (width, height) = decoder
        .info()
        .map(|info| (u32::from(info.width), u32::from(info.height)))
        .ok_or("it has no size")?;
    check_size(width, height, decoder.output_buffer_size())?;
    let samples = decoder.decode().map_err(|error| error.to_string())?;
    let rgb = if is_grey {
        samples.into_iter().flat_map(|grey| [grey; 3]).collect()
    } else {
        samples
    };
    Ok(RgbPixels { width, height, rgb })
}

/// Whether the marker of the end follows the first scan. The decoder fills what a cut file lacks with
/// one color, and an image within the header has markers of its own.
fn has_end(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    let mut at = 2;
    while let Some([0xff, marker]) = bytes.get(at..at + 2) {
        // Fill bytes before a marker, and markers without content.
        if *marker == 0xff {
            at += 1;
            continue;
        }
        if matches!(marker, 0x01 | 0xd0..=0xd7) {
            at += 2;
            continue;
        }
        if *marker == START_OF_SCAN {
            return bytes[at..].windows(2).any(|pair| pair == [0xff, 0xd9]);
        }
        let Some([high, low]) = bytes.get(at + 2..at + 4) else {
            return false;
        };
        at += 2 + usize::from(u16::from_be_bytes([*high, *low]));
    }
    // The decoder knows better what is wrong with it.
    bytes.len() > at
}

/// Writes a PNG file of [height, width, 3].
#[cfg(test)]
pub(super) fn write_png(path: &std::path::Path, width: u32, height: u32, rgb: &[u8]) {
    let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), width, height);
    encoder.set_color(ColorType::Rgb);
    encoder
        .write_header()
        .unwrap()
        .write_image_data(rgb)
        .unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(color: ColorType, depth: BitDepth, width: u32, samples: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, 1);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette(vec![9, 8, 7, 200, 100, 50]);
        }
        encoder
            .write_header()
            .unwrap()
            .write_image_data(samples)
            .unwrap();
        file
    }

    #[test]
    fn every_form_of_png_becomes_three_colours() {
        let rgb = |color, depth, width, samples: &[u8]| {
            decode(&encoded(color, depth, width, samples)).unwrap().rgb
        };
        assert_eq!(
            rgb(ColorType::Rgb, BitDepth::Eight, 2, &[1, 2, 3, 4, 5, 6]),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(
            rgb(ColorType::Rgba, BitDepth::Eight, 1, &[1, 2, 3, 0]),
            [1, 2, 3]
        );
        assert_eq!(
            rgb(ColorType::Grayscale, BitDepth::Eight, 2, &[77, 5]),
            [77, 77, 77, 5, 5, 5]
        );
        assert_eq!(
            rgb(ColorType::GrayscaleAlpha, BitDepth::Eight, 1, &[77, 5]),
            [77; 3]
        );
        assert_eq!(
            rgb(ColorType::Grayscale, BitDepth::One, 2, &[0b0100_0000]),
            [0, 0, 0, 255, 255, 255]
        );
        assert_eq!(
            rgb(ColorType::Indexed, BitDepth::One, 2, &[0b0100_0000]),
            [9, 8, 7, 200, 100, 50]
        );
        // 128 and 129 of 65,535 are just below and just above half a step of 257.
        assert_eq!(
            rgb(
                ColorType::Rgb,
                BitDepth::Sixteen,
                1,
                &[0, 128, 0, 129, 255, 255]
            ),
            [0, 1, 255]
        );
    }

    #[test]
    fn a_jpeg_that_is_cut_off_is_refused_wherever_it_ends() {
        let noise: Vec<u8> = (0..64 * 64 * 3u32)
            .map(|at| ((at * 7919) >> 3) as u8)
            .collect();
        let mut file = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut file, 95);
        let rgb = jpeg_encoder::ColorType::Rgb;
        encoder.encode(&noise, 64, 64, rgb).unwrap();
        assert!(decode(&file).is_ok());
        for kept in [file.len() - 1, file.len() - 200, file.len() / 2, 700] {
            let refused = decode(&file[..kept]).err().unwrap();
            assert!(refused.contains("it is cut off"), "{kept}: {refused}");
        }
        // A picture within the header has an end of its own.
        let app1 = [0xff, 0xe1, 0, 6, 0xff, 0xda, 0xff, 0xd9];
        let mut with_picture = [&file[..2], &app1, &file[2..]].concat();
        assert!(decode(&with_picture).is_ok());
        with_picture.truncate(with_picture.len() - 200);
        assert!(decode(&with_picture).is_err());
    }

    #[test]
    fn greys_and_colours_of_jpeg_are_read() {
        for (color, pixel) in [
            (jpeg_encoder::ColorType::Rgb, &[200, 100, 50][..]),
            (jpeg_encoder::ColorType::Luma, &[90]),
        ] {
            let mut file = Vec::new();
            jpeg_encoder::Encoder::new(&mut file, 95)
                .encode(&pixel.repeat(16 * 8), 16, 8, color)
                .unwrap();
            let image = decode(&file).unwrap();
            assert_eq!(
                (image.width, image.height, image.rgb.len()),
                (16, 8, 3 * 16 * 8)
            );
            let near =
                |channel: usize| image.rgb[channel].abs_diff(pixel[channel % pixel.len()]) <= 4;
            assert!((0..3).all(near), "{:?}", &image.rgb[..3]);
        }
    }

    #[test]
    fn a_size_that_no_memory_holds_is_refused() {
        let mut file = encoded(ColorType::Rgb, BitDepth::Eight, 2, &[0; 6]);
        // Width and height of the header chunk, whose checksum is made anew.
        file[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let mut sum = flate2::Crc::new();
        sum.update(&file[12..29]);
        file[29..33].copy_from_slice(&sum.sum().to_be_bytes());
        let error = decode(&file).err().unwrap();
        assert_eq!(
            error,
            "it has 65536 × 65536 pixels: it has 4294967296 pixels, more than the 178956970 \
             pixels allowed for an image; set KILN_LIMIT_IMAGE_PIXELS=4294967296 to allow more"
        );
    }
}
