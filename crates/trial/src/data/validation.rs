//! A hash of the validation data as it is evaluated. Losses of trials on different training data are
//! compared only where it is the same.
//!
//! A panel has none: its targets are normalized by the training data.

use std::fs;

use kiln_core::kinds::Data;
use kiln_data::{
    images::{ImagePixels, LoadedImages},
    pairs::LoadedPairs,
    text::LoadedText,
};
use sha2::{Digest, Sha256};

/// Digits of a hash in the table: enough to tell apart all data that anyone compares.
const DIGITS: usize = 16;

/// The hash of a text's validation tokens, and of whether the model carries its memory through them;
/// `None` if there are none.
pub(super) fn of_text(found: &LoadedText, carries_memory: bool) -> Option<String> {
    let mut sum = Sum::default();
    sum.add(b"text");
    sum.add(found.vocabulary.sha256().as_bytes());
    sum.add(&(found.vocabulary.len() as u64).to_le_bytes());
    sum.add_ids(&found.valid);
    if carries_memory {
        sum.add(b"contiguous");
    }
    (!found.valid.is_empty()).then(|| sum.digits())
}

/// The hash of the ids of validation rows; `None` if there are none.
pub(super) fn of_pairs(found: &LoadedPairs) -> Option<String> {
    let mut sum = Sum::default();
    sum.add(b"pairs");
    sum.add(found.tokens.numbering_sha256().as_bytes());
    for pair in &found.valid {
        sum.add_ids(&pair.prompt);
        sum.add_ids(&pair.response);
    }
    (!found.valid.is_empty()).then(|| sum.digits())
}

/// The hash of the labels and pixels of validation images, of files their names and lengths in place
/// of pixels; `None` if there are none, or a file is not there.
pub(super) fn of_images(data: &Data, found: &LoadedImages) -> Option<String> {
    let mut sum = Sum::default();
    // The kind decides how pixels are normalized.
    sum.add(data.kind().as_bytes());
    let shape = found.shape;
    for size in [shape.channels, shape.height, shape.width, shape.classes] {
        sum.add(&size.to_le_bytes());
    }
    sum.add_ids(&found.valid.labels);
    match &found.valid.pixels {
        ImagePixels::Memory(pixels) => sum.add(pixels),
        ImagePixels::Files(paths) => {
            for path in paths {
                // The folder is the class.
                let class = path.parent().and_then(|folder| folder.file_name());
                for name in [class, path.file_name()] {
                    sum.add(name.unwrap_or_default().as_encoded_bytes());
                }
                sum.add(&fs::metadata(path).ok()?.len().to_le_bytes());
            }
        }
        ImagePixels::Generated => {}
    }
    (!found.valid.labels.is_empty()).then(|| sum.digits())
}

/// A SHA-256 over parts, each with its length.
#[derive(Default)]
struct Sum(Sha256);

impl Sum {
    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn add_ids(&mut self, ids: &[u32]) {
        self.0.update((ids.len() as u64).to_le_bytes());
        for id in ids {
            self.0.update(id.to_le_bytes());
        }
    }

    fn digits(self) -> String {
        let mut digits = hex::encode(self.0.finalize());
        digits.truncate(DIGITS);
        digits
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kiln_data::{images, pairs, text};

    use super::*;

    fn data(yaml: &str) -> Data {
        serde_yaml::from_str(yaml).unwrap()
    }

    /// A folder of images with these files of one byte each.
    fn images_of(folder: &Path, names: &[&str]) -> Option<String> {
        for name in names {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
        let data = data(&format!(
            "{{kind: image-folder, path: {}}}",
            folder.display()
        ));
        of_images(&data, &images::load(&data, None).unwrap())
    }

    #[test]
    fn more_training_images_leave_the_validation_images_what_they_are() {
        let folders: [tempfile::TempDir; 4] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let base = ["train/a/1.png", "train/b/2.png", "valid/a/3.png"];
        let sum = images_of(folders[0].path(), &base);
        assert!(sum.is_some());
        let with = |file| -> Vec<&str> { base.into_iter().chain([file]).collect() };
        let more = with("train/a/4.png");
        assert_eq!(images_of(folders[1].path(), &more), sum);
        let other_label = ["train/a/1.png", "train/b/2.png", "valid/b/3.png"];
        assert_ne!(images_of(folders[2].path(), &other_label), sum);
        let other_class = with("train/c/4.png");
        assert_ne!(images_of(folders[3].path(), &other_class), sum);
    }

    #[test]
    fn another_training_file_leaves_the_rows_of_a_validation_file_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let row = |prompt: &str| format!("{{\"prompt\": \"{prompt}\", \"response\": \"b\"}}\n");
        let tokenizer = write(
            "t.json",
            r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab":
            {"[PAD]": 0, "[UNK]": 1, "[EOS]": 2, "a": 3, "b": 4}, "unk_token": "[UNK]"}}"#,
        );
        let sum = |train: &str, valid: &str| {
            let (train, valid) = (write("train.jsonl", train), write("valid.jsonl", valid));
            let data = data(&format!(
                "{{kind: sft-jsonl, path: {train}, valid_path: {valid}, tokenizer: {tokenizer}}}"
            ));
            of_pairs(&pairs::load(&data, None).unwrap())
        };
        let base = sum(&row("a"), &row("a b"));
        assert!(base.is_some());
        assert_eq!(sum(&[row("a"), row("b")].concat(), &row("a b")), base);
        assert_ne!(sum(&row("a"), &row("b a")), base);
    }

    #[test]
    fn a_vocabulary_of_the_training_text_is_a_part_of_the_validation_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.txt");
        let sum = |text: &str, share: f64, tokenizer: &str| {
            fs::write(&path, text).unwrap();
            let data = data(&format!(
                "{{kind: text, path: {}, valid_fraction: {share}, tokenizer: {tokenizer}}}",
                path.display()
            ));
            of_text(&text::load(&data, None).unwrap(), false)
        };
        // The last four characters validate.
        let base = |tokenizer| sum("ababbaab", 0.5, tokenizer);
        let longer = |train: &str, tokenizer| sum(&format!("{train}baab"), 0.25, tokenizer);
        for tokenizer in ["byte", "character"] {
            assert!(base(tokenizer).is_some());
            assert_eq!(longer("bbaabababbaa", tokenizer), base(tokenizer));
        }
        assert_eq!(longer("abcabcabcabc", "byte"), base("byte"));
        assert_ne!(longer("abcabcabcabc", "character"), base("character"));
        assert_ne!(sum("ababbaaa", 0.5, "byte"), base("byte"));
        assert_eq!(sum("ababbaab", 0.0, "byte"), None);
    }

    #[test]
    fn a_memory_through_the_text_is_a_part_of_the_validation_data() {
        let data = data("{kind: generated}");
        let found = text::load(&data, None).unwrap();
        let [without, with] = [false, true].map(|carries| of_text(&found, carries));
        assert!(without.is_some() && with.is_some());
        assert_ne!(without, with);
    }
}
