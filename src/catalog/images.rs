//! Labelled images: found, read and split into training and validation. Decoding files, augmenting and normalizing is the workers' matter.

use std::path::{Path, PathBuf};

use super::{
    data::{Data, DataFacts, ImageShape},
    text::DataError,
};

/// Images in their two parts.
#[derive(Clone, Debug)]
pub struct LoadedImages {
    pub shape: ImageShape,
    pub train: Images,
    /// Empty where none is kept for validation.
    pub valid: Images,
    pub facts: DataFacts,
    /// Files that are no images, left out as `data.skip_bad` asks.
    pub skipped_files: u64,
}

/// Some labelled images; `labels[i]`, below `shape.classes`, is of image `i`.
#[derive(Clone, Debug)]
pub struct Images {
    pub labels: Vec<u32>,
    pub pixels: Pixels,
}

/// Where the pixels of images are.
#[derive(Clone, Debug)]
pub enum Pixels {
    /// In memory: [images, channels, height, width], 0 is black, 255 the brightest.
    Memory(Vec<u8>),
    /// In one PNG or JPEG file each, of any size.
    Files(Vec<PathBuf>),
    /// Made when they are asked for, from their number; see [`super::generated_images`].
    Generated,
}

/// Mean and deviation of each channel, as shares of 255, that pixels are normalized with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

/// Reads, or lists, the images that `data` names. `data_folder` is `$KILN_DATA`, if set.
///
/// # Errors
/// The data is not there or cannot be read; a file is no such file as its kind has; a folder has no classes or no images.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedImages, DataError> {
    let _ = (data, data_folder);
    Err(DataError::NoText)
}

/// The facts of the images that `data` names.
///
/// # Errors
/// As [`load`].
pub fn facts(data: &Data, data_folder: Option<&Path>) -> Result<DataFacts, DataError> {
    load(data, data_folder).map(|images| images.facts)
}

/// What the pixels of this kind are normalized with.
pub fn normalization(data: &Data) -> Normalization {
    let _ = data;
    Normalization { mean: [0.5; 3], deviation: [0.25; 3] }
}
