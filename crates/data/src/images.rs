//! Labeled images: found, read and split into training and validation. Workers decode, augment and
//! normalize them.

mod cifar;
mod classes;
mod depth;
mod duplicates;
mod folder;
pub mod generated;
mod idx;
pub mod png_file;

use std::path::{Path, PathBuf};

use kiln_core::kinds::data::{Counts, Data, DataFacts, GeneratedImages, ImageShape};

use super::error::DataError;

pub use classes::{about_classes, class_counts};
pub use depth::about_depth;
pub use duplicates::seen_valid_images;
pub(super) use folder::valid_folder;

/// Endings of the names of image files, in any case.
pub const IMAGE_ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Training and validation images.
#[derive(Clone, Debug)]
pub struct LoadedImages {
    pub shape: ImageShape,
    pub train: Images,
    /// Empty if no images are used for validation.
    pub valid: Images,
    pub facts: DataFacts,
    /// Number of skipped files that are not images (`data.skip_bad`).
    pub skipped_files: u64,
}

/// A set of labeled images; `labels[i]`, below `shape.classes`, is the label of image `i`.
#[derive(Clone, Debug)]
pub struct Images {
    pub labels: Vec<u32>,
    pub pixels: ImagePixels,
}

/// The source of the pixels.
#[derive(Clone, Debug)]
pub enum ImagePixels {
    /// In memory: [images, channels, height, width], 0 is black, 255 the brightest.
    Memory(Vec<u8>),
    /// In one PNG or JPEG file each, of any size.
    Files(Vec<PathBuf>),
    /// Generated on request, from their number; see [`generated`].
    Generated,
}

/// Mean and deviation of each channel, as fractions of 255, for normalizing pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl Normalization {
    /// The normalized value for each of the 256 values of a pixel of this channel.
    pub fn table(&self, channel: usize) -> [f32; 256] {
        let (mean, deviation) = (self.mean[channel.min(2)], self.deviation[channel.min(2)]);
        std::array::from_fn(|value| (value as f32 / 255.0 - mean) / deviation)
    }
}

/// Reads, or lists, the images that `data` names. `data_folder` is `$KILN_DATA`, if set.
///
/// # Errors
/// The data does not exist or cannot be read; a file does not have the format of its kind; a folder
/// has no classes or no images.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedImages, DataError> {
    match data {
        Data::FashionMnist(_) => idx::load(data, data_folder),
        Data::Cifar10(_) => cifar::load(data, data_folder),
        Data::ImageFolder(folder) => folder::load(data, folder),
        Data::GeneratedImages(made) => Ok(generate(made)),
        _ => Err(DataError::OtherContent {
            kind: data.kind(),
            wanted: "images",
        }),
    }
}

/// Lists the images of a folder with a folder for each class, labelled by these names of classes.
/// The second value counts skipped files, as with [`load`].
///
/// # Errors
/// The folder cannot be read; a class is not among the names; there are no images.
pub fn of_classes(
    data: &Data,
    root: &Path,
    classes: &[String],
) -> Result<(Images, u64), DataError> {
    let skip_bad = matches!(data, Data::ImageFolder(own) if own.skip_bad);
    folder::of_classes(root, classes, skip_bad)
}

/// The shape of the images that `data` names, and what its classes are called; no image is read.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageDescription {
    pub shape: ImageShape,
    /// Names of the classes in the order of their labels; `None` if they have none.
    pub classes: Option<Vec<String>>,
}

/// Describes the images that `data` names. Only a folder of classes must exist.
///
/// # Errors
/// The data is not images, or the folder has no classes.
pub fn describe(data: &Data) -> Result<ImageDescription, DataError> {
    let named = |names: [&str; 10]| Some(names.map(str::to_owned).to_vec());
    match data {
        Data::FashionMnist(_) => Ok(ImageDescription {
            shape: idx::SHAPE,
            classes: named(idx::CLASSES),
        }),
        Data::Cifar10(_) => Ok(ImageDescription {
            shape: cifar::SHAPE,
            classes: named(cifar::CLASSES),
        }),
        Data::ImageFolder(folder) => {
            let classes = folder::class_names(folder)?;
            Ok(ImageDescription {
                shape: folder::shape(folder, classes.len() as u64),
                classes: Some(classes),
            })
        }
        Data::GeneratedImages(made) => Ok(ImageDescription {
            shape: generated_shape(made),
            classes: None,
        }),
        _ => Err(DataError::OtherContent {
            kind: data.kind(),
            wanted: "images",
        }),
    }
}

/// Returns the facts of the images that `data` names.
///
/// # Errors
/// As [`load`].
pub fn facts(data: &Data, data_folder: Option<&Path>) -> Result<DataFacts, DataError> {
    load(data, data_folder).map(|images| images.facts)
}

/// Normalization of this kind. A kind with one channel uses the first number of each.
pub fn normalization(data: &Data) -> Normalization {
    match data {
        Data::FashionMnist(_) => idx::NORMALIZATION,
        Data::Cifar10(_) => cifar::NORMALIZATION,
        Data::GeneratedImages(_) => generated::NORMALIZATION,
        _ => folder::NORMALIZATION,
    }
}

impl LoadedImages {
    /// Returns both parts with their facts. `sha256` is over the bytes that were read, in hex.
    fn of(shape: ImageShape, [train, valid]: [Images; 2], sha256: String) -> Self {
        let [train_images, valid_images] = [&train, &valid].map(|part| part.labels.len() as u64);
        let counts = Counts::Images {
            train_images,
            valid_images,
            shape,
        };
        Self {
            shape,
            train,
            valid,
            facts: DataFacts { counts, sha256 },
            skipped_files: 0,
        }
    }
}

fn generated_shape(made: &GeneratedImages) -> ImageShape {
    ImageShape {
        channels: made.channels,
        height: made.image_size,
        width: made.image_size,
        classes: made.classes,
    }
}

fn generate(made: &GeneratedImages) -> LoadedImages {
    let shape = generated_shape(made);
    let classes = shape.classes;
    let parts = [made.images, made.valid_images].map(|count| Images {
        labels: (0..count)
            .map(|index| generated::label(index, classes))
            .collect(),
        pixels: ImagePixels::Generated,
    });
    LoadedImages::of(shape, parts, generated::sha256(shape))
}

fn unfit<T>(path: &Path, found: String, expected: String) -> Result<T, DataError> {
    Err(DataError::Unfit {
        path: path.to_owned(),
        found,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_images_have_as_many_as_the_keys_say() {
        let data = serde_yaml::from_str(
            "{kind: generated-images, images: 5, valid_images: 2, classes: 3, image_size: 8, \
             channels: 1}",
        )
        .unwrap();
        let loaded = load(&data, None).unwrap();
        assert_eq!(
            (loaded.train.labels, loaded.valid.labels),
            (vec![0, 1, 2, 0, 1], vec![0, 1])
        );
        assert_eq!(
            loaded.shape,
            ImageShape {
                channels: 1,
                height: 8,
                width: 8,
                classes: 3
            }
        );
        assert_eq!(
            loaded.facts.counts,
            Counts::Images {
                train_images: 5,
                valid_images: 2,
                shape: loaded.shape
            }
        );
        let larger = serde_yaml::from_str("{kind: generated-images, image_size: 16}").unwrap();
        assert_ne!(facts(&larger, None).unwrap().sha256, loaded.facts.sha256);
    }

    #[test]
    fn a_text_is_no_images() {
        let data = serde_yaml::from_str("{kind: generated}").unwrap();
        assert_eq!(
            load(&data, None).unwrap_err().to_string(),
            "`data.kind` generated has no images"
        );
    }
}
