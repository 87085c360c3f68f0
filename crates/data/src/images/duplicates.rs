//! Validation images that are training images too.

use std::{
    collections::HashSet,
    io::{self, Read},
    path::{Path, PathBuf},
};

use kiln_core::{input, limits::IMAGE_BYTES};
use sha2::{Digest, Sha256};

use super::{ImagePixels, LoadedImages};
use crate::error::DataError;

/// Bytes at the start of a file. Files that differ there are not read any further.
const START_BYTES: u64 = 4096;

/// The length of a file, and SHA-256 of its first bytes.
type FileStart = (u64, [u8; 32]);

/// How many validation images are also training images: with equal pixels, or, of a folder, in a
/// file of equal bytes. `None` for generated images, which are never equal.
///
/// # Errors
/// A file cannot be read.
pub fn seen_valid_images(found: &LoadedImages) -> Result<Option<u64>, DataError> {
    match (&found.train.pixels, &found.valid.pixels) {
        (ImagePixels::Memory(train), ImagePixels::Memory(valid)) => {
            let shape = found.shape;
            let bytes = (shape.channels * shape.height * shape.width).max(1) as usize;
            let seen: HashSet<&[u8]> = train.chunks_exact(bytes).collect();
            let images = valid.chunks_exact(bytes);
            Ok(Some(
                images.filter(|image| seen.contains(image)).count() as u64
            ))
        }
        (ImagePixels::Files(train), ImagePixels::Files(valid)) => {
            seen_files(train, valid).map(Some)
        }
        _ => Ok(None),
    }
}

fn seen_files(train: &[PathBuf], valid: &[PathBuf]) -> Result<u64, DataError> {
    let (train_starts, valid_starts) = (starts(train)?, starts(valid)?);
    let of_train = sums_of_like(train, &train_starts, &valid_starts)?;
    let seen: HashSet<String> = of_train.into_iter().collect();
    let of_valid = sums_of_like(valid, &valid_starts, &train_starts)?;
    Ok(of_valid.iter().filter(|sum| seen.contains(*sum)).count() as u64)
}

fn starts(paths: &[PathBuf]) -> Result<Vec<FileStart>, DataError> {
    paths
        .iter()
        .map(|path| start(path).map_err(|error| DataError::unreadable(path, error)))
        .collect()
}

fn start(path: &Path) -> io::Result<FileStart> {
    let file = input::open_within(path, &IMAGE_BYTES)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(START_BYTES).read_to_end(&mut bytes)?;
    Ok((length, Sha256::digest(&bytes).into()))
}

/// SHA-256 of the files that start like a file of the other part.
fn sums_of_like(
    paths: &[PathBuf],
    starts: &[FileStart],
    of_others: &[FileStart],
) -> Result<Vec<String>, DataError> {
    let others: HashSet<&FileStart> = of_others.iter().collect();
    paths
        .iter()
        .zip(starts)
        .filter(|(_, start)| others.contains(start))
        .map(|(path, _)| {
            input::sha256(path, &IMAGE_BYTES).map_err(|error| DataError::unreadable(path, error))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::load;

    #[test]
    fn files_of_equal_bytes_in_both_parts_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let long = |end: u8| [vec![7; 5000], vec![end]].concat();
        for (name, bytes) in [
            ("train/a/1.png", long(1)),
            ("train/a/2.png", long(2)),
            ("train/b/1.png", vec![1, 2, 3]),
            ("valid/a/other-name.png", long(1)),
            ("valid/a/3.png", long(3)),
            ("valid/b/1.png", vec![1, 2, 3]),
            ("valid/b/2.png", vec![1, 2]),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let data = format!("{{kind: image-folder, path: {}}}", folder.path().display());
        let data = serde_yaml::from_str(&data).unwrap();
        let found = load(&data, None).unwrap();
        assert_eq!(seen_valid_images(&found).unwrap(), Some(2));
    }

    #[test]
    fn equal_pixels_in_memory_are_counted_and_generated_images_are_not() {
        let made = "{kind: generated-images, images: 2, valid_images: 2, classes: 2, image_size: 8, \
                    channels: 1}";
        let mut found = load(&serde_yaml::from_str(made).unwrap(), None).unwrap();
        assert_eq!(seen_valid_images(&found).unwrap(), None);
        found.train.pixels = ImagePixels::Memory([[1_u8; 64], [2; 64]].concat());
        found.valid.pixels = ImagePixels::Memory([[2_u8; 64], [3; 64]].concat());
        assert_eq!(seen_valid_images(&found).unwrap(), Some(1));
    }
}
