//! Data of labelled images: the keys of each kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Loader, tenth};

/// Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28 × 28 greys, 10 classes. Source: Xiao et al. 2017 (arXiv 1708.07747).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FashionMnist {
    /// Folder that holds the four idx files; else `$KILN_DATA/fashion-mnist`, else `data/fashion-mnist`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// CIFAR-10, binary version: 50,000 training and 10,000 test images, 32 × 32 colours, 10 classes. Source: Krizhevsky 2009.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cifar10 {
    /// Folder that holds the batch files, or their archive; else `$KILN_DATA/cifar-10`, else `data/cifar-10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// A folder of PNG and JPEG files of your own, one folder per class, in `train` and `valid` or together. See `docs/data.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFolder {
    /// The folder; a relative path is resolved against the directory kiln starts in.
    pub path: String,
    /// Height and width that images are brought to, in pixels.
    #[serde(default = "image_size")]
    #[schemars(range(min = 8, max = 4096))]
    pub image_size: u64,
    /// How an image of another size is brought to `image_size` in training; validation always takes the centre.
    #[serde(default)]
    pub crop: Crop,
    /// Whether each training image is mirrored, left to right, in half of its draws.
    #[serde(default)]
    pub flip: bool,
    /// Share of the images that is kept for validation, where the folder has no `valid`, `val` or `test` of its own.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    /// Whether files that are no images, by their name or their first bytes, are left out and counted; otherwise the first one is an error.
    #[serde(default)]
    pub skip_bad: bool,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Images that the program makes itself, the same on every machine: a pattern per class under noise. Nothing to download.
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
    /// 1 for greys, 3 for colours.
    #[serde(default = "channels")]
    #[schemars(range(min = 1, max = 3))]
    pub channels: u64,
    /// Different labels.
    #[serde(default = "classes")]
    #[schemars(range(min = 2, max = 100_000))]
    pub classes: u64,
    #[serde(flatten)]
    pub augmentation: Augmentation,
    #[serde(flatten)]
    pub loader: Loader,
}

/// What is done to training images at random; validation images stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Augmentation {
    /// Pixels of black around each training image, out of which a piece of its old size is cut at random; 0 leaves it whole.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub crop_padding: u64,
    /// Whether each training image is mirrored, left to right, in half of its draws.
    #[serde(default)]
    pub flip: bool,
}

/// How an image of any size becomes a square.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Crop {
    /// A piece of 8 to 100 % of the area, its sides 3 : 4 to 4 : 3, anew in each epoch. Source: Szegedy et al. 2015.
    #[default]
    RandomResized,
    /// The shorter side to 8 / 7 of `image_size`, then the middle.
    Center,
}

/// Channels and pixels of one image, and how many labels there are.
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
