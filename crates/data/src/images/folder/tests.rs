use super::*;
use crate::images::load;
use kiln_core::kinds::data::Counts;

/// The first bytes of a PNG of 2 × 3 pixels.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0";

/// A folder with these files, each a PNG with only a header.
fn folder_of(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    names
        .iter()
        .for_each(|name| write(folder.path(), name, PNG));
    folder
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn read(folder: &Path, keys: &str) -> Result<LoadedImages, DataError> {
    load(
        &serde_yaml::from_str(&format!(
            "{{kind: image-folder, path: {}{keys}}}",
            folder.display()
        ))
        .unwrap(),
        None,
    )
}

/// `label name` of each file.
fn listed(folder: &Path, images: &Images) -> Vec<String> {
    let ImagePixels::Files(paths) = &images.pixels else {
        panic!("{:?}", images.pixels)
    };
    let name = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
    images
        .labels
        .iter()
        .zip(paths)
        .map(|(label, path)| format!("{label} {}", name(path)))
        .collect()
}

fn fault(folder: &Path, keys: &str) -> String {
    read(folder, keys)
        .unwrap_err()
        .to_string()
        .replace(&folder.display().to_string(), "own")
}

#[test]
fn a_validation_folder_that_would_not_be_used_is_named() {
    for name in ["valid/y.png", "Valid/a/y.png", "validation/a/y.png"] {
        let folder = folder_of(&["train/a/1.png", "train/a/2.png", "train/b/1.png", name]);
        let (unused, _) = name.split_once('/').unwrap();
        assert_eq!(
            fault(folder.path(), ""),
            format!(
                "own/{unused} would not be used for validation; expected `valid`, `val`, \
                 `test` with a folder per class, or another name; without one, a share of \
                 `train` is held out"
            )
        );
    }
    // Images to be labelled are not for validation.
    let folder = folder_of(&["train/a/1.png", "train/b/1.png", "test/y.png"]);
    assert!(read(folder.path(), ", valid_fraction: 0").is_ok());
}

#[test]
fn a_folder_that_cannot_be_listed_does_not_change_the_parts() {
    for name in ["train", "valid", "val", "test"] {
        let folder = folder_of(&["train/a/1.png", "train/b/1.png", "a/1.png", "b/1.png"]);
        let place = folder.path().join(name);
        if name == "train" {
            std::fs::remove_dir_all(&place).unwrap();
        }
        std::os::unix::fs::symlink(name, &place).unwrap();
        let error = read(folder.path(), ", valid_fraction: 0").unwrap_err();
        assert!(matches!(error, DataError::Read { .. }), "{name}: {error}");
    }
}

#[test]
fn classes_are_numbered_by_their_names_and_endings_have_any_case() {
    let folder = folder_of(&[
        "train/b/2.jpg",
        "train/b/10.JPEG",
        "train/B/x.Png",
        "val/b/y.png",
        "train/.cache/z.txt",
        "README.md",
        "test/c/w.png",
    ]);
    let loaded = read(folder.path(), ", image_size: 32").unwrap();
    assert_eq!(
        listed(folder.path(), &loaded.train),
        ["0 train/B/x.Png", "1 train/b/10.JPEG", "1 train/b/2.jpg"]
    );
    assert_eq!(
        listed(folder.path(), &loaded.valid),
        ["1 val/b/y.png"],
        "`val` comes before `test`"
    );
    let shape = ImageShape {
        channels: 3,
        height: 32,
        width: 32,
        classes: 2,
    };
    assert_eq!(
        loaded.facts.counts,
        Counts::Images {
            train_images: 3,
            valid_images: 1,
            shape
        }
    );
}

#[test]
fn a_share_of_each_class_is_held_out_by_name() {
    let names: Vec<String> = (0..30)
        .map(|number| format!("{}/{number}.png", ["cat", "dog", "dog"][number % 3]))
        .chain(["fox/1.png".to_owned()])
        .collect();
    let folder = folder_of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let held = |keys| listed(folder.path(), &read(folder.path(), keys).unwrap().valid);
    assert!(held(", valid_fraction: 0.0").is_empty());
    assert_eq!(
        fault(folder.path(), ", valid_fraction: 0.01"),
        "own: `data.valid_fraction` 0.01 of each class (31 images in all) leaves no image for \
         validation; expected at least one of one class, and one of each class for training; \
         raise it, or set it to 0 to train without validation"
    );
    let (few, many) = (held(", valid_fraction: 0.1"), held(", valid_fraction: 0.5"));
    assert_eq!(
        (few.len(), many.len()),
        (1 + 2, 5 + 10),
        "a class of one image keeps it for training"
    );
    assert!(few.iter().all(|file| many.contains(file)));
    assert_eq!(
        read(folder.path(), ", valid_fraction: 0.5")
            .unwrap()
            .train
            .labels
            .len(),
        31 - 15
    );
    // The same names elsewhere, below `train`, and one more class: the same selection.
    let moved: Vec<String> = names
        .iter()
        .map(|name| format!("train/{name}"))
        .chain(["train/ape/1.png".to_owned()])
        .collect();
    let moved = folder_of(&moved.iter().map(String::as_str).collect::<Vec<_>>());
    let again = listed(
        moved.path(),
        &read(moved.path(), ", valid_fraction: 0.1").unwrap().valid,
    );
    let name = |file: &String| file.rsplit_once(['/']).unwrap().1.to_owned();
    assert_eq!(
        again.iter().map(name).collect::<Vec<_>>(),
        few.iter().map(name).collect::<Vec<_>>()
    );
}

#[test]
fn the_hash_follows_names_and_lengths_wherever_the_folder_is() {
    let names = ["a/1.png", "b/2.png"];
    let (one, other) = (folder_of(&names), folder_of(&names));
    let read = |folder: &tempfile::TempDir| read(folder.path(), ", valid_fraction: 0");
    let sha256 = |folder: &tempfile::TempDir| read(folder).unwrap().facts.sha256;
    let before = sha256(&one);
    assert_eq!(before, sha256(&other));
    write(one.path(), "a/1.png", &PNG[1..]);
    assert_ne!(before, sha256(&one));
    std::fs::rename(other.path().join("a/1.png"), other.path().join("a/3.png")).unwrap();
    assert_ne!(before, sha256(&other));
}

#[test]
fn what_does_not_belong_is_named_with_what_does() {
    let empty = tempfile::tempdir().unwrap();
    let images = "files that end in .png, .jpg or .jpeg";
    let is_malformed = |keys: &str| read(empty.path(), keys).unwrap_err().is_malformed();
    assert!(!is_malformed(""));
    write(empty.path(), "notes.txt", b"");
    assert!(is_malformed("") && is_malformed(", skip_bad: true"));
    std::fs::remove_file(empty.path().join("notes.txt")).unwrap();
    assert_eq!(
        fault(empty.path(), ""),
        format!(
            "own contains no folders; expected one for each of two or more classes, with \
             {images} in it"
        )
    );
    write(empty.path(), "a/1.png", PNG);
    assert!(
        fault(empty.path(), "").starts_with("own contains only one folder; expected one for each")
    );
    std::fs::create_dir(empty.path().join("b")).unwrap();
    assert_eq!(
        fault(empty.path(), ""),
        format!("own/b has no images; expected {images}")
    );
    write(empty.path(), "b/1.gif", b"GIF89a");
    let remedy = "move it away, or skip such files with `data.skip_bad: true`";
    assert_eq!(
        fault(empty.path(), ""),
        format!("own/b/1.gif is not an image; expected {images}; {remedy}")
    );
    assert_eq!(
        fault(empty.path(), ", skip_bad: true"),
        format!("own/b has no images; expected {images}")
    );
    write(empty.path(), "b/1.png", PNG);
    std::fs::remove_file(empty.path().join("b/1.gif")).unwrap();
    write(empty.path(), "notes.txt", b"");
    assert_eq!(
        fault(empty.path(), ""),
        format!(
            "own/notes.txt is next to the class folders; expected only class folders there; \
             {remedy}"
        )
    );
    write(empty.path(), "a/b/1.png", PNG);
    assert_eq!(
        fault(empty.path(), ", skip_bad: true"),
        format!("own/a/b is a folder inside a class folder; expected {images}")
    );
    let absent = fault(&empty.path().join("nowhere"), "");
    assert!(
        absent.starts_with(
            "the data of `data.kind` image-folder was not found; looked for own; a relative"
        ),
        "{absent}"
    );
}

#[test]
fn validation_has_the_classes_of_training() {
    let folder = folder_of(&["train/a/1.png", "train/b/1.png", "valid/c/1.png"]);
    assert_eq!(
        fault(folder.path(), ""),
        "own/valid/c is a class without training images; expected the names of the training \
         classes"
    );
    let folder = folder_of(&["valid/a/1.png", "valid/b/1.png", "other/b/1.png"]);
    assert_eq!(
        fault(folder.path(), ""),
        "own has a folder `valid` but no folder `train`; expected both, or one folder per class"
    );
    let classes_of_that_name = folder_of(&["train/1.png", "test/1.png", "bus/1.png"]);
    assert_eq!(
        class_names(
            &serde_yaml::from_str(&format!(
                "{{path: {}}}",
                classes_of_that_name.path().display()
            ))
            .unwrap()
        )
        .unwrap(),
        ["bus", "test", "train"]
    );
}

#[test]
fn another_folder_has_the_labels_of_the_classes_that_are_known() {
    let folder = folder_of(&["cat/1.png", "owl/2.png", "owl/3.png"]);
    let known = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        of_classes(folder.path(), &names, false)
    };
    let (found, skipped) = known(&["ant", "cat", "dog", "owl"]).unwrap();
    assert_eq!(
        listed(folder.path(), &found),
        ["1 cat/1.png", "3 owl/2.png", "3 owl/3.png"]
    );
    assert_eq!(skipped, 0);
    let unknown = known(&["ant", "owl"]).unwrap_err().to_string();
    assert_eq!(
        unknown.replace(&folder.path().display().to_string(), "own"),
        "own/cat is a class that the model does not know; expected folders for its classes: \
         ant, owl"
    );
    write(folder.path(), "cat/list.txt", b"1.png");
    let stray = known(&["cat", "owl"]).unwrap_err().to_string();
    assert!(
        stray.contains("cat/list.txt is not an image") && stray.ends_with("; move it away"),
        "{stray}"
    );
    std::fs::remove_dir_all(folder.path().join("cat")).unwrap();
    std::fs::remove_dir_all(folder.path().join("owl")).unwrap();
    let empty = known(&["ant", "owl"]).unwrap_err().to_string();
    assert!(
        empty.contains("has no images in folders of classes"),
        "{empty}"
    );
}

#[test]
fn files_that_are_no_images_are_left_out_and_counted_if_asked() {
    let folder = folder_of(&["a/1.png", "a/2.png", "b/1.png"]);
    write(folder.path(), "a/empty.png", b"");
    write(
        folder.path(),
        "a/text.jpg",
        b"no image at all, however long it goes on",
    );
    write(folder.path(), "b/list.txt", b"1.png");
    write(folder.path(), "b/cut.png", &PNG[..12]);
    let loaded = read(folder.path(), ", valid_fraction: 0.5, skip_bad: true").unwrap();
    assert_eq!(
        (
            loaded.train.labels.len() + loaded.valid.labels.len(),
            loaded.skipped_files
        ),
        (3, 4)
    );
    std::fs::remove_file(folder.path().join("b/list.txt")).unwrap();
    let empty = read(folder.path(), "").unwrap_err().to_string();
    assert!(
        empty.contains("a/empty.png is empty") && empty.contains("skip_bad"),
        "{empty}"
    );
    std::fs::remove_file(folder.path().join("a/empty.png")).unwrap();
    let loaded = read(folder.path(), ", valid_fraction: 0.5").unwrap();
    assert_eq!(
        (
            loaded.train.labels.len() + loaded.valid.labels.len(),
            loaded.skipped_files
        ),
        (5, 0),
        "else only names are looked at"
    );
}
