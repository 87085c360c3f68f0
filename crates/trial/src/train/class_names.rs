//! The names of the classes of the images that a trial trains on.

use std::collections::BTreeMap;

use kiln_core::kinds::Data;
use kiln_data::images;

use crate::data::Labels;

/// The names of the classes, if a folder tells them; `notes` get one if it cannot be read.
pub(super) fn class_names(data: &Data, notes: &mut BTreeMap<String, String>) -> Vec<String> {
    let Data::ImageFolder(_) = data else {
        return Vec::new();
    };
    match images::describe(data) {
        Ok(found) => found.classes.unwrap_or_default(),
        Err(error) => {
            let note = format!("the classes have numbers, not names: {error}");
            notes.insert("class_names".to_owned(), note);
            Vec::new()
        }
    }
}

/// The names of the classes of images as labels, if they have names. `in_folder` are the
/// [`class_names`] of these data: a large folder takes long to list again.
pub(super) fn class_labels(data: &Data, in_folder: &[String]) -> Option<Labels> {
    let names = match data {
        Data::ImageFolder(_) => in_folder.to_vec(),
        published => images::describe(published).ok()?.classes?,
    };
    Some(Labels {
        key: "classes",
        part: "head",
        names,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_read_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for class in ["cat", "dog"] {
            let place = folder.path().join(class);
            std::fs::create_dir(&place).unwrap();
            std::fs::write(place.join("1.png"), "x").unwrap();
        }
        let yaml = format!("{{kind: image-folder, path: {}}}", folder.path().display());
        let data: Data = serde_yaml::from_str(&yaml).unwrap();
        let mut notes = BTreeMap::new();
        assert_eq!(class_names(&data, &mut notes), ["cat", "dog"]);
        assert!(notes.is_empty());
        std::os::unix::fs::symlink("train", folder.path().join("train")).unwrap();
        assert!(class_names(&data, &mut notes).is_empty());
        assert!(notes["class_names"].contains("train"), "{notes:?}");
    }
}
