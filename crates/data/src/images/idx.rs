//! Fashion-MNIST: four idx files, big-endian. The train files are for training, the t10k files for
//! validation. Source: LeCun et al., "The MNIST database", file formats; Xiao et al. 2017 (arXiv
//! 1708.07747).

use std::path::Path;

use kiln_core::kinds::data::{Data, ImageShape};
use sha2::{Digest, Sha256};

use super::{ImagePixels, Images, LoadedImages, Normalization, unfit};
use crate::{error::DataError, files, source};

/// Over the 60,000 training images.
pub(super) const NORMALIZATION: Normalization = Normalization {
    mean: [0.2860; 3],
    deviation: [0.3530; 3],
};

pub(super) const SHAPE: ImageShape = ImageShape {
    channels: 1,
    height: 28,
    width: 28,
    classes: 10,
};
const PIXELS: usize = 28 * 28;
/// Source: the set's page, github.com/zalandoresearch/fashion-mnist, "Labels".
pub(super) const CLASSES: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];
/// First number of a file of unsigned bytes with three dimensions, and with one.
const IMAGES_MAGIC: u32 = 2051;
const LABELS_MAGIC: u32 = 2049;

pub(super) fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedImages, DataError> {
    let paths = source::locate(data, data_folder)?;
    // Each file begins with its own length, so that the hash depends on where one ends.
    let mut hasher = Sha256::new();
    let mut parts = Vec::new();
    for pair in paths.chunks_exact(2) {
        let mut read = |path: &Path| {
            let bytes = files::read(path, source::most_bytes(data))?;
            hasher.update(&bytes);
            Ok::<_, DataError>(bytes)
        };
        let (images, labels) = (read(&pair[0])?, read(&pair[1])?);
        parts.push(part(&pair[0], images, &pair[1], &labels)?);
    }
    let parts = <[Images; 2]>::try_from(parts).map_err(|_| DataError::OtherContent {
        kind: data.kind(),
        wanted: "idx files",
    })?;
    Ok(LoadedImages::of(
        SHAPE,
        parts,
        hex::encode(hasher.finalize()),
    ))
}

fn part(
    images_path: &Path,
    images: Vec<u8>,
    labels_path: &Path,
    labels: &[u8],
) -> Result<Images, DataError> {
    let pixels = pixels(images_path, images)?;
    let labels = parse_labels(labels_path, labels)?;
    let count = pixels.len() / PIXELS;
    if labels.len() != count {
        return unfit(
            labels_path,
            format!("has {} labels", labels.len()),
            format!(
                "one for each of the {count} images of {}",
                images_path.display()
            ),
        );
    }
    Ok(Images {
        labels,
        pixels: ImagePixels::Memory(pixels),
    })
}

/// Returns the data after the header: [images, 28, 28].
fn pixels(path: &Path, mut bytes: Vec<u8>) -> Result<Vec<u8>, DataError> {
    let [count, height, width] = header(path, &bytes, IMAGES_MAGIC, "idx images")?;
    if (u64::from(height), u64::from(width)) != (SHAPE.height, SHAPE.width) {
        return unfit(
            path,
            format!("has images of {height} × {width} pixels"),
            format!("{} × {}", SHAPE.height, SHAPE.width),
        );
    }
    bytes.drain(..16);
    held(path, bytes.len(), count, PIXELS, "images")?;
    Ok(bytes)
}

fn parse_labels(path: &Path, bytes: &[u8]) -> Result<Vec<u32>, DataError> {
    let [count] = header(path, bytes, LABELS_MAGIC, "idx labels")?;
    let labels = &bytes[8..];
    held(path, labels.len(), count, 1, "labels")?;
    if let Some(place) = labels
        .iter()
        .position(|label| u64::from(*label) >= SHAPE.classes)
    {
        return unfit(
            path,
            format!("has label {} at index {place}", labels[place]),
            "labels from 0 to 9".to_owned(),
        );
    }
    Ok(labels.iter().map(|label| u32::from(*label)).collect())
}

/// Reads the dimensions after the magic number.
fn header<const DIMENSIONS: usize>(
    path: &Path,
    bytes: &[u8],
    magic: u32,
    what: &str,
) -> Result<[u32; DIMENSIONS], DataError> {
    let mut numbers = bytes.chunks_exact(4).map(|chunk| {
        chunk
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    });
    if bytes.len() < 4 * (DIMENSIONS + 1) {
        return unfit(
            path,
            format!("ends after {} bytes", bytes.len()),
            format!(
                "{what}, whose header alone has {} bytes",
                4 * (DIMENSIONS + 1)
            ),
        );
    }
    match numbers.next() {
        Some(found) if found != magic => unfit(
            path,
            format!("starts with the number {found}"),
            format!("{magic}, the first number of {what}"),
        ),
        _ => Ok(std::array::from_fn(|_| numbers.next().unwrap_or_default())),
    }
}

/// Checks the number of bytes after the header against the number of items in the header.
fn held(path: &Path, bytes: usize, count: u32, each: usize, what: &str) -> Result<(), DataError> {
    let expected = u64::from(count) * each as u64;
    if count == 0 {
        return unfit(path, format!("has no {what}"), "at least one".to_owned());
    }
    if bytes as u64 != expected {
        let word = if (bytes as u64) < expected {
            "only "
        } else {
            ""
        };
        return unfit(
            path,
            format!("has {word}{bytes} bytes after its header"),
            format!("{expected} for the {count} {what} that the header declares"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::images::{facts, load};
    use kiln_core::kinds::data::{Counts, DataFacts};

    fn idx(magic: u32, dimensions: &[u32], values: &[u8]) -> Vec<u8> {
        let header = [&[magic], dimensions].concat();
        header
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .chain(values.iter().copied())
            .collect()
    }

    /// Two training images and one test image, in the four files; image `i` is all `i`.
    fn set(folder: &Path) -> Data {
        let images = |numbers: &[u8]| {
            idx(
                2051,
                &[numbers.len() as u32, 28, 28],
                &numbers
                    .iter()
                    .flat_map(|number| [*number; 784])
                    .collect::<Vec<_>>(),
            )
        };
        let files = [
            ("train-images-idx3-ubyte", images(&[0, 1])),
            ("train-labels-idx1-ubyte", idx(2049, &[2], &[9, 0])),
            ("t10k-images-idx3-ubyte", images(&[2])),
            ("t10k-labels-idx1-ubyte", idx(2049, &[1], &[5])),
        ];
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
        serde_yaml::from_str(&format!(
            "{{kind: fashion-mnist, path: {}}}",
            folder.display()
        ))
        .unwrap()
    }

    #[test]
    fn the_train_files_train_and_the_test_files_validate() {
        let folder = tempfile::tempdir().unwrap();
        let loaded = load(&set(folder.path()), None).unwrap();
        assert_eq!(
            (loaded.train.labels, loaded.valid.labels),
            (vec![9, 0], vec![5])
        );
        let ImagePixels::Memory(pixels) = loaded.train.pixels else {
            panic!("{:?}", loaded.train.pixels)
        };
        assert_eq!(pixels, [[0; 784], [1; 784]].concat());
        assert_eq!(
            loaded.facts.counts,
            Counts::Images {
                train_images: 2,
                valid_images: 1,
                shape: SHAPE
            }
        );
    }

    /// The error message for a set in which `name` has these bytes instead.
    fn fault(name: &str, bytes: Vec<u8>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let data = set(folder.path());
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let error = load(&data, None).unwrap_err().to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    }

    #[test]
    fn every_fault_is_named_with_its_file() {
        let images = |bytes| fault("train-images-idx3-ubyte", bytes);
        assert_eq!(
            images(vec![0; 3]),
            "train-images-idx3-ubyte ends after 3 bytes; expected idx images, whose header alone \
             has 16 bytes"
        );
        assert_eq!(
            images(idx(2049, &[2, 28, 28], &[0; 1568])),
            "train-images-idx3-ubyte starts with the number 2049; expected 2051, the first number \
             of idx images"
        );
        assert_eq!(
            images(idx(2051, &[2, 32, 28], &[0; 1792])),
            "train-images-idx3-ubyte has images of 32 × 28 pixels; expected 28 × 28"
        );
        assert_eq!(
            images(idx(2051, &[2, 28, 28], &[0; 1567])),
            "train-images-idx3-ubyte has only 1567 bytes after its header; expected 1568 for the 2 \
             images that the header declares"
        );
        assert_eq!(
            images(idx(2051, &[0, 28, 28], &[])),
            "train-images-idx3-ubyte has no images; expected at least one"
        );
        let labels = |bytes| fault("t10k-labels-idx1-ubyte", bytes);
        assert_eq!(
            labels(idx(2049, &[1], &[10])),
            "t10k-labels-idx1-ubyte has label 10 at index 0; expected labels from 0 to 9"
        );
        assert_eq!(
            labels(idx(2049, &[2], &[1, 2])),
            "t10k-labels-idx1-ubyte has 2 labels; expected one for each of the 1 images of \
             t10k-images-idx3-ubyte"
        );
        assert_eq!(
            labels(idx(2049, &[u32::MAX], &[1])),
            "t10k-labels-idx1-ubyte has only 1 bytes after its header; expected 4294967295 for the \
             4294967295 labels that the header declares"
        );
    }

    #[test]
    fn the_published_files_have_their_published_counts() {
        let Some(folder) = crate::published::folder() else {
            return;
        };
        let data = serde_yaml::from_str("{kind: fashion-mnist}").unwrap();
        let counts = Counts::Images {
            train_images: 60_000,
            valid_images: 10_000,
            shape: SHAPE,
        };
        let sha256 = "14410854cf7a289477dcfc7df3f8ec24741e281cdcc425ede0d9a748ca630214".to_owned();
        assert_eq!(
            facts(&data, Some(&folder)).unwrap(),
            DataFacts { counts, sha256 }
        );
        let loaded = load(&data, Some(&folder)).unwrap();
        let ImagePixels::Memory(pixels) = loaded.train.pixels else {
            panic!("{:?}", loaded.train.pixels)
        };
        let mean =
            pixels.iter().map(|pixel| f64::from(*pixel)).sum::<f64>() / 255.0 / pixels.len() as f64;
        assert!(
            (mean - f64::from(NORMALIZATION.mean[0])).abs() < 1e-4,
            "{mean}"
        );
        let square = pixels
            .iter()
            .map(|pixel| (f64::from(*pixel) / 255.0 - mean).powi(2))
            .sum::<f64>()
            / pixels.len() as f64;
        assert!(
            (square.sqrt() - f64::from(NORMALIZATION.deviation[0])).abs() < 1e-4,
            "{}",
            square.sqrt()
        );
        assert!((0..10).all(|class| {
            loaded
                .train
                .labels
                .iter()
                .filter(|label| **label == class)
                .count()
                == 6_000
        }));
    }
}
