//! Keys of the data kinds with labeled images.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Content, Loader,
    dataset::{Checksum, Dataset, DatasetFile, Origin},
    kind::{DataKind, has},
    tenth,
};

/// Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28 × 28 gray pixels, 10
/// classes. Source: Xiao et al. 2017 (arXiv 1708.07747).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FashionMnist {
    /// Folder with the four idx files; default `$KILN_DATA/fashion-mnist`, else
    /// `data/fashion-mnist`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// CIFAR-10, binary version: 50,000 training and 10,000 test images, 32 × 32 color pixels, 10
/// classes. Source: Krizhevsky 2009.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cifar10 {
    /// Folder with the batch files or their archive; default `$KILN_DATA/cifar-10`, else
    /// `data/cifar-10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// The user's own folder of PNG and JPEG files, one folder per class, in `train` and `valid` or
/// together. See `docs/data.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFolder {
    /// The folder; a relative path is relative to the directory where kiln was started.
    pub path: String,
    /// Height and width to which images are resized, in pixels.
    #[serde(default = "image_size")]
    #[schemars(range(min = 8, max = 4096))]
    pub image_size: u64,
    /// How an image of another size is resized to `image_size` in training; validation always crops
    /// the center.
    #[serde(default)]
    pub crop: Crop,
    /// Whether half of the draws of training images are mirrored, left to right.
    #[serde(default)]
    pub flip: bool,
    /// Fraction of the images used for validation, if the folder has no `valid`, `val` or `test`.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    /// Whether files that are not images, by their name or their first bytes, are skipped and
    /// counted; otherwise the first one is an error.
    #[serde(default)]
    pub skip_bad: bool,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Generated images, the same on every machine: one pattern per class, with noise. No download.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GeneratedImages {
    /// Training images.
    #[serde(default = "images")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub images: u64,
    /// Validation images.
    #[serde(default = "valid_images")]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub valid_images: u64,
    /// Height and width, in pixels.
    #[serde(default = "small_image")]
    #[schemars(range(min = 8, max = 4096))]
    pub image_size: u64,
    /// 1 for gray, 3 for color.
    #[serde(default = "channels")]
    #[schemars(range(min = 1, max = 3))]
    pub channels: u64,
    /// Number of classes.
    #[serde(default = "classes")]
    #[schemars(range(min = 2, max = 100_000))]
    pub classes: u64,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Random augmentation of training images; validation images stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Augmentation {
    /// Width of the black border around each training image, from which a crop of the original size
    /// is drawn at random; 0 disables cropping.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub crop_padding: u64,
    /// Whether half of the draws of training images are mirrored, left to right.
    #[serde(default)]
    pub flip: bool,
}

/// How an image of any size is cropped to a square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Crop {
    /// A crop of 8 to 100 % of the area, aspect ratio 3 : 4 to 4 : 3, drawn anew in each epoch.
    /// Source: Szegedy et al. 2015.
    #[default]
    RandomResized,
    /// Resizes the shorter side to 8 / 7 of `image_size`, then crops the center.
    Center,
}

/// Channels and pixels of one image, and the number of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageShape {
    pub channels: u64,
    pub height: u64,
    pub width: u64,
    pub classes: u64,
}

fn image_size() -> u64 {
    224
}
fn images() -> u64 {
    10_000
}
fn valid_images() -> u64 {
    1_000
}
fn small_image() -> u64 {
    32
}
fn channels() -> u64 {
    3
}
fn classes() -> u64 {
    10
}

/// Xiao et al. 2017 (arXiv 1708.07747).
static FASHION_MNIST: Dataset = Dataset {
    name: "fashion-mnist",
    folder: "fashion-mnist",
    about: "Fashion-MNIST, images of clothes",
    licence: "MIT",
    address: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    files: &[
        DatasetFile::gz(
            "train-images-idx3-ubyte",
            26_421_880,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        DatasetFile::gz(
            "train-labels-idx1-ubyte",
            29_515,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        DatasetFile::gz(
            "t10k-images-idx3-ubyte",
            4_422_102,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        DatasetFile::gz(
            "t10k-labels-idx1-ubyte",
            5_148,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ],
    // Training images and labels, then those of the test set.
    forms: &[&[
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]],
};

impl DataKind for FashionMnist {
    fn kind(&self) -> &'static str {
        "fashion-mnist"
    }

    fn content(&self) -> Content {
        Content::Images
    }

    has!(loader);
    has!(folder);
    has!(augmentation);

    fn dataset() -> Option<&'static Dataset> {
        Some(&FASHION_MNIST)
    }
}

impl Cifar10 {
    /// Its files of records, in reading order: five for training and one for validation.
    pub const BATCHES: [&str; 6] = [
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
        "test_batch.bin",
    ];
}

/// Krizhevsky 2009, binary version. The publisher states no license.
static CIFAR10: Dataset = Dataset {
    name: "cifar10",
    folder: "cifar-10",
    about: "CIFAR-10, small images of things and animals",
    licence: "none stated",
    address: "https://www.cs.toronto.edu/~kriz/",
    files: &[DatasetFile {
        name: "cifar-10-binary.tar",
        ending: ".gz",
        bytes: Some(170_052_171),
        checksum: Checksum::Md5(Cow::Borrowed("c32a1d4ab5d03f1284b67883e8d87530")),
        origin: Origin::Set,
    }],
    forms: &[
        &Cifar10::BATCHES,
        // The same files in the unpacked archive.
        &[
            "cifar-10-batches-bin/data_batch_1.bin",
            "cifar-10-batches-bin/data_batch_2.bin",
            "cifar-10-batches-bin/data_batch_3.bin",
            "cifar-10-batches-bin/data_batch_4.bin",
            "cifar-10-batches-bin/data_batch_5.bin",
            "cifar-10-batches-bin/test_batch.bin",
        ],
        &["cifar-10-binary.tar"],
    ],
};

impl DataKind for Cifar10 {
    fn kind(&self) -> &'static str {
        "cifar10"
    }

    fn content(&self) -> Content {
        Content::Images
    }

    has!(loader);
    has!(folder);
    has!(augmentation);

    fn dataset() -> Option<&'static Dataset> {
        Some(&CIFAR10)
    }
}

impl DataKind for ImageFolder {
    fn kind(&self) -> &'static str {
        "image-folder"
    }

    fn content(&self) -> Content {
        Content::Images
    }

    has!(loader);
    has!(path);

    fn valid_fraction(&self) -> Option<f64> {
        Some(self.valid_fraction)
    }

    fn augmentation(&self) -> Option<Augmentation> {
        Some(Augmentation {
            crop_padding: 0,
            flip: self.flip,
        })
    }
}

impl DataKind for GeneratedImages {
    fn kind(&self) -> &'static str {
        "generated-images"
    }

    fn content(&self) -> Content {
        Content::Images
    }

    has!(loader);
    has!(augmentation);

    fn without_validation(&self) -> Option<&'static str> {
        (self.valid_images == 0).then_some("data.valid_images")
    }
}
