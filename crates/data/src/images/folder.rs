//! A folder of PNG and JPEG files, one folder per class: listed, labeled and split, not decoded.
//!
//! `path/train/<class>/` is for training and `path/valid/<class>/` (or `val`, or `test`) for
//! validation; `path/<class>/` holds both, as does `path/train/<class>/` alone. Classes are
//! numbered in the byte order of their names. Names that start with a dot are ignored.

mod known_classes;
mod listing;

use std::path::{Path, PathBuf};

use kiln_core::{
    kinds::data::{Data, ImageFolder, ImageShape},
    units::counted,
};
use sha2::{Digest, Sha256};

pub(super) use self::known_classes::of_classes;
use self::listing::{ListedClass, Lister};
use super::{ImagePixels, Images, LoadedImages, Normalization, unfit};
use crate::{error::DataError, source};

/// Statistics of ImageNet, as used with torchvision's models.
pub(super) const NORMALIZATION: Normalization = Normalization {
    mean: [0.485, 0.456, 0.406],
    deviation: [0.229, 0.224, 0.225],
};

/// Names of validation folders, by priority.
const VALID_FOLDERS: [&str; 3] = ["valid", "val", "test"];

/// One file, and the label of its class.
type Labelled = (u32, listing::ImageFile);

pub(super) fn load(data: &Data, folder: &ImageFolder) -> Result<LoadedImages, DataError> {
    source::locate(data, None)?;
    let root = Path::new(&folder.path);
    let mut lister = Lister::new(folder.skip_bad);
    let (classes, [train, valid]) = parts(root, folder.valid_fraction, &mut lister)?;
    let sha256 = sha256(root, train.iter().chain(&valid));
    let shape = shape(folder, classes);
    let skipped_files = lister.skipped_files;
    Ok(LoadedImages {
        skipped_files,
        ..LoadedImages::of(shape, [train, valid].map(images), sha256)
    })
}

/// The shape of a folder's images once they are cropped and resized.
pub(super) fn shape(folder: &ImageFolder, classes: u64) -> ImageShape {
    ImageShape {
        channels: 3,
        height: folder.image_size,
        width: folder.image_size,
        classes,
    }
}

/// The names of the training classes, in the order of their labels.
pub(super) fn class_names(folder: &ImageFolder) -> Result<Vec<String>, DataError> {
    source::locate(&Data::ImageFolder(folder.clone()), None)?;
    let root = Path::new(&folder.path);
    let train = train_folder(root)?;
    let classes =
        Lister::new(folder.skip_bad).training_classes(train.as_deref().unwrap_or(root))?;
    Ok(classes
        .iter()
        .map(|class| class.name.to_string_lossy().into_owned())
        .collect())
}

/// Returns the number of classes, then the training and the validation files.
fn parts(
    root: &Path,
    valid_fraction: f64,
    lister: &mut Lister,
) -> Result<(u64, [Vec<Labelled>; 2]), DataError> {
    match (train_folder(root)?, valid_folder(root)?) {
        (Some(train), Some(valid)) => {
            let classes = lister.training_classes(&train)?;
            let held = lister.classes(&valid)?;
            let parts = [all(&classes), labelled_as(&valid, held, &classes)?];
            Ok((classes.len() as u64, parts))
        }
        (None, Some(valid)) => unfit(
            root,
            format!("has a folder `{}` but no folder `train`", name_of(&valid)),
            "both, or one folder per class".to_owned(),
        ),
        (Some(_), None) if let Some(unused) = unused_valid(root)? => unfit(
            &root.join(&unused),
            "would not be used for validation".to_owned(),
            format!(
                "`{}` with a folder per class, or another name; without one, a share of `train` \
                 is held out",
                VALID_FOLDERS.join("`, `")
            ),
        ),
        (train, None) => {
            let classes = lister.training_classes(train.as_deref().unwrap_or(root))?;
            let parts = split(&classes, valid_fraction);
            if valid_fraction > 0.0 && parts[1].is_empty() {
                return Err(DataError::NoValidation {
                    path: root.to_owned(),
                    valid_fraction,
                    whole: format!("each class ({} in all)", counted(parts[0].len(), "image")),
                    left: "no image".to_owned(),
                    expected: "at least one of one class, and one of each class for training",
                });
            }
            Ok((classes.len() as u64, parts))
        }
    }
}

/// The folder of the training images, if they have one of their own.
fn train_folder(root: &Path) -> Result<Option<PathBuf>, DataError> {
    let folder = root.join("train");
    Ok(listing::has_folders(&folder)?.then_some(folder))
}

/// The folder of the validation images, if they have one of their own.
///
/// # Errors
/// The folder cannot be searched for it.
pub(crate) fn valid_folder(root: &Path) -> Result<Option<PathBuf>, DataError> {
    for folder in VALID_FOLDERS.map(|name| root.join(name)) {
        if listing::has_folders(&folder)? {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

/// A folder whose name says that it is for validation, and that has no class folders or another
/// spelling. One named `test` may have images without labels.
fn unused_valid(root: &Path) -> Result<Option<String>, DataError> {
    let names = listing::folders_in(root)?.into_iter();
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    Ok(names.find(|name| ["valid", "val", "validation"].contains(&name.to_lowercase().as_str())))
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn all(classes: &[ListedClass]) -> Vec<Labelled> {
    (0..)
        .zip(classes)
        .flat_map(|(label, class)| class.files.iter().map(move |file| (label, file.clone())))
        .collect()
}

/// Returns validation files with the labels of the training classes.
fn labelled_as(
    folder: &Path,
    held: Vec<ListedClass>,
    classes: &[ListedClass],
) -> Result<Vec<Labelled>, DataError> {
    let mut files = Vec::new();
    for class in held {
        let Ok(label) = classes.binary_search_by(|known| known.name.cmp(&class.name)) else {
            return unfit(
                &folder.join(&class.name),
                "is a class without training images".to_owned(),
                "the names of the training classes".to_owned(),
            );
        };
        files.extend(class.files.into_iter().map(|file| (label as u32, file)));
    }
    if files.is_empty() {
        return unfit(
            folder,
            "has no images".to_owned(),
            listing::expected_images(),
        );
    }
    Ok(files)
}

/// Selects `valid_fraction` of each class for validation, rounded, but never all of it: the files
/// whose names have the smallest hashes, so that a copy or a few more files do not change the
/// selection.
fn split(classes: &[ListedClass], valid_fraction: f64) -> [Vec<Labelled>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for (label, class) in (0..).zip(classes) {
        let mut order: Vec<([u8; 32], usize)> = class
            .files
            .iter()
            .map(|file| Sha256::digest(file.name().as_encoded_bytes()).into())
            .zip(0..)
            .collect();
        order.sort_unstable();
        let held = (class.files.len() as f64 * valid_fraction).round() as usize;
        let mut is_held = vec![false; class.files.len()];
        order
            .iter()
            .take(held.min(class.files.len() - 1))
            .for_each(|(_, file)| is_held[*file] = true);
        for (file, is_held) in class.files.iter().zip(is_held) {
            parts[usize::from(is_held)].push((label, file.clone()));
        }
    }
    parts
}

/// Hash over the name within the folder and the length of each file, in order.
fn sha256<'a>(root: &Path, files: impl Iterator<Item = &'a Labelled>) -> String {
    let mut hasher = Sha256::new();
    for (_, file) in files {
        hasher.update(
            file.path
                .strip_prefix(root)
                .unwrap_or(&file.path)
                .as_os_str()
                .as_encoded_bytes(),
        );
        hasher.update(format!("\0{}\n", file.bytes));
    }
    hex::encode(hasher.finalize())
}

fn images(files: Vec<Labelled>) -> Images {
    let (labels, paths): (Vec<u32>, Vec<PathBuf>) = files
        .into_iter()
        .map(|(label, file)| (label, file.path))
        .unzip();
    Images {
        labels,
        pixels: ImagePixels::Files(paths),
    }
}

#[cfg(test)]
mod tests;
