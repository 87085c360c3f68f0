//! Lists a folder of images for a trained model, whose classes are known.

use std::path::Path;

use kiln_core::units::few;

use super::{
    Images, VALID_FOLDERS, images,
    listing::{Lister, expected_images, has_folders},
    unfit,
};
use crate::error::DataError;

/// Most classes that a message names.
const MOST_NAMED: usize = 12;

/// The images of a folder with a folder for each class, and how many files were skipped.
/// `classes` are the names of all classes in the order of their labels.
pub(crate) fn of_classes(
    root: &Path,
    classes: &[String],
    skip_bad: bool,
) -> Result<(Images, u64), DataError> {
    check_place(root, classes)?;
    let mut lister = Lister::of_use(skip_bad);
    let mut files = Vec::new();
    for class in lister.classes(root)? {
        let name = class.name.to_string_lossy();
        let Some(label) = classes.iter().position(|known| known.as_str() == &*name) else {
            return unfit(
                &root.join(&class.name),
                "is a class that the model does not know".to_owned(),
                format!("folders for its classes: {}", few(classes, MOST_NAMED)),
            );
        };
        files.extend(class.files.into_iter().map(|file| (label as u32, file)));
    }
    if files.is_empty() {
        return unfit(
            root,
            "has no images in folders of classes".to_owned(),
            format!(
                "class folders named {}, with {} in them",
                few(classes, MOST_NAMED),
                expected_images()
            ),
        );
    }
    Ok((images(files), lister.skipped_files))
}

/// Errors: the path is a file, a folder below the class folders' or one above it.
fn check_place(root: &Path, classes: &[String]) -> Result<(), DataError> {
    let is_class = |name: &str| classes.iter().any(|class| class == name);
    if root.is_file() {
        return unfit(
            root,
            "is a file".to_owned(),
            "a folder with a folder of images for each class; `kiln predict` takes single images"
                .to_owned(),
        );
    }
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    if let Some(above) = root.parent()
        && is_class(&name)
        && !has_folders(root)?
    {
        return unfit(
            root,
            format!("is the folder of class {name}"),
            format!(
                "the folder with all class folders, such as {}",
                above.display()
            ),
        );
    }
    for part in VALID_FOLDERS.into_iter().chain(["train"]) {
        if !is_class(part) && has_folders(&root.join(part))? {
            return unfit(
                root,
                format!("has a folder `{part}` with class folders"),
                format!(
                    "the folder with the class folders, such as {}",
                    root.join(part).display()
                ),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, which are not read.
    fn folder_of(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"not read").unwrap();
        }
        folder
    }

    #[test]
    fn a_path_of_the_wrong_type_is_told_the_right_one() {
        let folder = folder_of(&[
            "pics/train/day/0.png",
            "pics/valid/day/1.png",
            "pics/valid/night/2.png",
        ]);
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let fault = |path: &str, classes: [&str; 2]| {
            let found = of_classes(
                &folder.path().join(path),
                &classes.map(str::to_owned),
                false,
            );
            let error = found.unwrap_err().to_string();
            error.replace(&folder.path().display().to_string(), "own")
        };
        let known = ["day", "night"];
        assert_eq!(
            fault("pics/valid/day/1.png", known),
            "own/pics/valid/day/1.png is a file; expected a folder with a folder of images for \
             each class; `kiln predict` takes single images"
        );
        assert_eq!(
            fault("pics/valid/day", known),
            "own/pics/valid/day is the folder of class day; expected the folder with all class \
             folders, such as own/pics/valid"
        );
        assert_eq!(
            fault("pics", known),
            "own/pics has a folder `valid` with class folders; expected the folder with the class \
             folders, such as own/pics/valid"
        );
        assert_eq!(
            fault("empty", known),
            "own/empty has no images in folders of classes; expected class folders named day, \
             night, with files that end in .png, .jpg or .jpeg in them"
        );
        // Classes may have these names.
        let of_class = fault("pics", ["train", "valid"]);
        assert!(
            of_class.contains("is a folder inside a class folder"),
            "{of_class}"
        );
    }
}
