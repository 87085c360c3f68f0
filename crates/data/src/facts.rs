//! Size of the data, and the values that a model needs from it: constants for published texts and
//! rows, counted once for others, read each time for images and panels.
//!
//! The bytes of texts and rows are always hashed, which is fast; they are tokenized only if their
//! counts are unknown, and the counts are stored in a cache folder under the hash. An unusable
//! cache costs time, but is never an error.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kiln_core::{
    input,
    kinds::data::{Content, Data, DataFacts},
    limits::STATE_BYTES,
};
use sha2::{Digest, Sha256};

use super::{dataset, error::DataError, images, pairs, panel, text};

/// Changes when counting changes, so that old counts are ignored.
const CACHE_VERSION: &str = "facts-4";

/// Returns the facts of `data`; `Ok(None)` for `kind: none`.
/// `data_folder` is `$KILN_DATA`, `cache` the folder for counts ([`cache_folder`]).
///
/// # Errors
/// The text does not exist, cannot be read or cannot be tokenized.
pub fn facts(
    data: &Data,
    data_folder: Option<&Path>,
    cache: Option<&Path>,
) -> Result<Option<DataFacts>, DataError> {
    match data.content() {
        Content::Nothing => Ok(None),
        Content::Text => text_facts(data, data_folder, cache).map(Some),
        Content::Images => images::facts(data, data_folder).map(Some),
        Content::Panel => panel::facts(data, data_folder).map(Some),
        Content::Pairs => pair_facts(data, data_folder, cache).map(Some),
    }
}

fn text_facts(
    data: &Data,
    data_folder: Option<&Path>,
    cache: Option<&Path>,
) -> Result<DataFacts, DataError> {
    let text = text::read(data, data_folder)?;
    let sha256 = text.sha256.clone();
    known_or_counted(data, &sha256, cache, || {
        Ok(text::tokenize(data, text)?.facts)
    })
}

fn pair_facts(
    data: &Data,
    data_folder: Option<&Path>,
    cache: Option<&Path>,
) -> Result<DataFacts, DataError> {
    let read = pairs::read(data, data_folder)?;
    let sha256 = read.sha256.clone();
    known_or_counted(data, &sha256, cache, || {
        Ok(pairs::tokenize(data, read)?.facts)
    })
}

fn known_or_counted(
    data: &Data,
    sha256: &str,
    cache: Option<&Path>,
    count: impl FnOnce() -> Result<DataFacts, DataError>,
) -> Result<DataFacts, DataError> {
    if let Some(known) = dataset::known_facts(data, sha256) {
        return Ok(known);
    }
    let entry = cache.map(|folder| folder.join(format!("{}.json", cache_key(data, sha256))));
    if let Some(kept) = entry
        .as_deref()
        .and_then(read_entry)
        .filter(|kept| kept.sha256 == sha256)
    {
        return Ok(kept);
    }
    let facts = count()?;
    if let Some(entry) = entry {
        // A failure here only costs time.
        let _ = write_entry(&entry, &facts);
    }
    Ok(facts)
}

/// `$XDG_CACHE_HOME/kiln`, else `$HOME/.cache/kiln`; `None` without either.
pub fn cache_folder(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let base = xdg_cache_home
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| home.join(".cache")))?;
    Some(base.join("kiln"))
}

/// Everything that the counts depend on besides the bytes: the tokenizer and the split of the text;
/// for prompts and responses every key except paths.
fn cache_key(data: &Data, sha256: &str) -> String {
    let share = data.valid_fraction().unwrap_or_default();
    let mut key = format!(
        "{CACHE_VERSION} {} {:?} {share} {sha256}",
        data.kind(),
        data.tokenizer()
    );
    if data.content() == Content::Pairs {
        let mut data = data.clone();
        data.paths_mut().into_iter().for_each(String::clear);
        key = format!("{key} {}", data.source_key());
    }
    format!(
        "{CACHE_VERSION}-{}",
        hex::encode(&Sha256::digest(key.as_bytes())[..16])
    )
}

fn read_entry(path: &Path) -> Option<DataFacts> {
    serde_json::from_slice(&input::read(path, &STATE_BYTES).ok()?).ok()
}

/// Writes a temporary file and renames it, so that two commands at the same time never leave a
/// partial entry.
fn write_entry(path: &Path, facts: &DataFacts) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&unfinished, serde_json::to_vec(facts)?)?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_core::kinds::data::Counts;

    fn own_text(folder: &Path, text: &str, keys: &str) -> Data {
        let path = folder.join("own.txt");
        fs::write(&path, text).unwrap();
        serde_yaml::from_str(&format!("{{kind: text, path: {}{keys}}}", path.display())).unwrap()
    }

    #[test]
    fn counts_are_kept_and_found_by_content() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let data = own_text(folder.path(), "abcabcabca", ", valid_fraction: 0.2");
        let counted = facts(&data, None, Some(&cache)).unwrap().unwrap();
        assert_eq!(
            counted.counts,
            Counts::Text {
                train_tokens: 8,
                valid_tokens: 2,
                vocabulary: 3
            }
        );
        let entry = fs::read_dir(&cache)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let planted = DataFacts {
            counts: Counts::Text {
                train_tokens: 8,
                valid_tokens: 2,
                vocabulary: 99,
            },
            ..counted.clone()
        };
        fs::write(&entry, serde_json::to_vec(&planted).unwrap()).unwrap();
        assert_eq!(
            facts(&data, None, Some(&cache)).unwrap().unwrap(),
            planted,
            "the second time nothing is counted"
        );
        fs::write(&entry, "half an ent").unwrap();
        assert_eq!(
            facts(&data, None, Some(&cache)).unwrap().unwrap(),
            counted,
            "a spoilt entry is counted again"
        );
    }

    #[test]
    fn another_tokenizer_or_split_or_text_is_counted_for_itself() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let valid_tokens = |text: &str, keys: &str| {
            let found = facts(&own_text(folder.path(), text, keys), None, Some(&cache))
                .unwrap()
                .unwrap();
            let Counts::Text { valid_tokens, .. } = found.counts else {
                panic!("{found:?}")
            };
            valid_tokens
        };
        assert_eq!(valid_tokens("a b\na b\na b", ", valid_fraction: 0.2"), 3);
        assert_eq!(valid_tokens("a b\na b\na b", ", valid_fraction: 0.5"), 6);
        assert_eq!(
            valid_tokens("a b\na b\na b", ", valid_fraction: 0.5, tokenizer: word"),
            3
        );
        assert_eq!(
            valid_tokens("a b\na b\na b\na b\n", ", valid_fraction: 0.2"),
            4
        );
    }

    #[test]
    fn without_text_there_is_nothing_or_a_reason() {
        let none: Data = serde_yaml::from_str("{kind: none}").unwrap();
        assert_eq!(facts(&none, None, None).unwrap(), None);
        let absent: Data = serde_yaml::from_str("{kind: text, path: /nowhere/at/all}").unwrap();
        assert!(
            facts(&absent, None, None)
                .unwrap_err()
                .to_string()
                .contains("/nowhere/at/all")
        );
    }

    #[test]
    fn the_cache_follows_the_usual_variables() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache_folder(path("/x"), path("/home/me")), path("/x/kiln"));
        assert_eq!(
            cache_folder(path("relative"), path("/home/me")),
            path("/home/me/.cache/kiln")
        );
        assert_eq!(cache_folder(None, None), None);
    }
}
