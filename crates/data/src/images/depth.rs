//! Says that image files have 16 bits per channel: training sees 8 of them.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use kiln_core::{input, limits::IMAGE_BYTES, units::counted};

use super::{
    ImagePixels, Images,
    png_file::{self, STEP},
};

/// Files whose first bytes are looked at, spread over all of them.
const LOOKED_AT: usize = 64;
/// Below this value fewer than half of the 256 levels are left.
const DARK: u16 = u16::MAX / 2;

/// A line on images of 16 bits per channel, with one of them; `None` if there are none among those
/// that are looked at.
pub fn about_depth(images: &Images) -> Option<String> {
    let ImagePixels::Files(paths) = &images.pixels else {
        return None;
    };
    let every = paths.len().div_ceil(LOOKED_AT).max(1);
    let looked_at: Vec<&PathBuf> = paths.iter().step_by(every).collect();
    let deep: Vec<&PathBuf> = looked_at
        .iter()
        .copied()
        .filter(|path| is_deep(path))
        .collect();
    let first = deep.first()?;
    let bytes = input::read(first, &IMAGE_BYTES).ok()?;
    let largest = png_file::largest_of_16_bits(&bytes)?;
    let remedy = match largest {
        0..DARK => format!(
            ", so {} of 256 are used; stretch the values of all images to the whole range first",
            counted(levels(largest), "level")
        ),
        _ => String::new(),
    };
    Some(format!(
        "{} of {} that were looked at have 16 bits per channel, which are divided by {STEP} to 8 \
         bits (the first: {}, its largest value is {largest} of {}{remedy})",
        deep.len(),
        counted(looked_at.len(), "image"),
        first.display(),
        u16::MAX
    ))
}

/// Number of values of 8 bits from black to that of `largest`.
fn levels(largest: u16) -> usize {
    usize::from(png_file::to_8_bits(largest)) + 1
}

fn is_deep(path: &Path) -> bool {
    let mut head = [0; png_file::DEPTH + 1];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && png_file::begins_as_deep(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, depth: png::BitDepth, samples: &[u8]) {
        let mut encoder = png::Encoder::new(File::create(path).unwrap(), 2, 1);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(depth);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(samples).unwrap();
    }

    #[test]
    fn images_of_16_bits_are_told_with_their_largest_value() {
        let folder = tempfile::tempdir().unwrap();
        let [flat, deep] = ["flat.png", "deep.png"].map(|name| folder.path().join(name));
        let of = |paths: &[&PathBuf]| {
            about_depth(&Images {
                labels: vec![0; paths.len()],
                pixels: ImagePixels::Files(paths.iter().copied().cloned().collect()),
            })
        };
        write(&flat, png::BitDepth::Eight, &[3, 232]);
        write(&deep, png::BitDepth::Sixteen, &[3, 232, 0, 1]);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[&flat]), None);
        assert_eq!(of(&[&folder.path().join("gone.png")]), None);
        let told = of(&[&flat, &deep]).unwrap();
        assert!(
            told.starts_with("1 of 2 images that were looked at have 16 bits per channel")
                && told
                    .contains("deep.png, its largest value is 1000 of 65535, so 5 levels of 256"),
            "{told}"
        );
        write(&deep, png::BitDepth::Sixteen, &[255, 255, 0, 1]);
        let told = of(&[&deep]).unwrap();
        assert!(
            told.ends_with("its largest value is 65535 of 65535)"),
            "{told}"
        );
    }
}
