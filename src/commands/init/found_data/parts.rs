//! Which of several files of a folder is for training, and which for validation, by their names.

use std::path::{Path, PathBuf};

use super::{few, name_of};

/// The files of a folder that are data of one kind.
pub(super) struct Parts {
    pub(super) train: PathBuf,
    pub(super) valid: Option<PathBuf>,
    pub(super) unused: Vec<PathBuf>,
}

/// # Errors
/// No file is the only one, the only one for training, or the only one besides those for validation
/// and tests.
pub(super) fn parts(folder: &Path, files: &[PathBuf]) -> Result<Parts, String> {
    let valid = with_word(files, &["valid", "validation", "val", "dev"]);
    let test = with_word(files, &["test", "testing"]);
    let is_other = |file: &&PathBuf| !valid.contains(file) && !test.contains(file);
    let mut train = with_word(files, &["train", "training"]);
    if train.is_empty() {
        train = files.iter().filter(is_other).collect();
    }
    if files.len() == 1 {
        train = files.iter().collect();
    }
    let [train] = train[..] else {
        let names: Vec<String> = files.iter().map(|file| name_of(file)).collect();
        let first = files.first().map_or(folder, |file| file.as_path());
        return Err(format!(
            "this folder has several files that could be the data: {}; name one, such as `--data {}`",
            few(&names),
            first.display()
        ));
    };
    let valid = match valid[..] {
        [one] if one != train => Some(one),
        _ => None,
    };
    let is_unused = |file: &&PathBuf| *file != train && Some(*file) != valid;
    Ok(Parts {
        train: train.clone(),
        valid: valid.cloned(),
        unused: files.iter().filter(is_unused).cloned().collect(),
    })
}

fn with_word<'a>(files: &'a [PathBuf], words: &[&str]) -> Vec<&'a PathBuf> {
    let files = files.iter();
    files.filter(|file| has_word(file, words)).collect()
}

fn has_word(file: &Path, words: &[&str]) -> bool {
    let name = name_of(file).to_lowercase();
    let mut parts = name.split(|letter: char| !letter.is_alphabetic());
    parts.any(|part| words.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_parts() {
        let told = |names: &[&str]| {
            let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            let parts = parts(Path::new("x"), &files)?;
            let unused: Vec<String> = parts.unused.iter().map(|file| name_of(file)).collect();
            let valid = parts.valid.map(|file| name_of(&file)).unwrap_or_default();
            Ok::<String, String>(format!(
                "{} {valid} {}",
                name_of(&parts.train),
                unused.join(" ")
            ))
        };
        let all = ["test.jsonl", "train.jsonl", "valid.jsonl"];
        assert_eq!(told(&all).unwrap(), "train.jsonl valid.jsonl test.jsonl");
        assert_eq!(told(&["test.jsonl"]).unwrap(), "test.jsonl  ");
        let shards = ["dev_1.jsonl", "my-train-0.jsonl", "other.jsonl"];
        assert_eq!(
            told(&shards).unwrap(),
            "my-train-0.jsonl dev_1.jsonl other.jsonl"
        );
        let rest = ["rows.txt", "test.txt"];
        assert_eq!(told(&rest).unwrap(), "rows.txt  test.txt");
        let refused = told(&["a.txt", "b.txt"]).unwrap_err();
        assert!(refused.contains("a.txt, b.txt; name one"), "{refused}");
        assert!(told(&["test.txt", "valid.txt"]).is_err());
    }
}
