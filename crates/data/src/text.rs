//! The text of a trial: found, decompressed, split into training and validation, and tokenized.
//!
//! Splits: WikiText-2 has its own split. Tiny Shakespeare trains on the first 90 % of its
//! characters (nanoGPT's split). `text` and `generated` use the last `valid_fraction` of their
//! characters for validation. With the word tokenizer the cut moves to the start of the next line,
//! so that no word is split.

use std::path::{Path, PathBuf};

use kiln_core::{
    kinds::data::{Counts, Data, DataFacts, Tokenizer},
    limits::TOKENIZER_BYTES,
    units::counted,
};
use sha2::{Digest, Sha256};

use super::{
    error::DataError, files, generated, pairs::TokenFile, source::most_bytes, split,
    tokenizer::Vocabulary,
};

pub use super::source::{absolute_path, locate};

/// A text as token ids.
#[derive(Clone, Debug)]
pub struct LoadedText {
    pub train: Vec<u32>,
    /// Token ids for validation; empty if `valid_fraction` is 0.
    pub valid: Vec<u32>,
    /// Number of validation tokens that do not occur in the training text.
    pub unknown_valid_tokens: u64,
    pub vocabulary: Vocabulary,
    pub facts: DataFacts,
}

/// Reads and tokenizes the text that `data` names. `data_folder` is `$KILN_DATA`, if set.
///
/// # Errors
/// The text does not exist, cannot be read or cannot be tokenized.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedText, DataError> {
    tokenize(data, read(data, data_folder)?)
}

/// The vocabulary of the text that `data` names, and the text's SHA-256 as in its facts; nothing is
/// tokenized.
///
/// # Errors
/// The text does not exist or cannot be read.
pub fn vocabulary(
    data: &Data,
    data_folder: Option<&Path>,
) -> Result<(Vocabulary, String), DataError> {
    let tokenizer = data.tokenizer().ok_or(DataError::NoText)?;
    let text = read(data, data_folder)?;
    Ok((text.vocabulary(tokenizer), text.sha256))
}

/// The bytes of the file of the tokenizer that `data` names.
///
/// # Errors
/// It names none, or the file cannot be read.
pub fn tokenizer_bytes(data: &Data, data_folder: Option<&Path>) -> Result<Vec<u8>, DataError> {
    let paths = locate(data, data_folder)?;
    let path = data.tokenizer_file().and(paths.last());
    files::read_within(path.ok_or(DataError::NoText)?, &TOKENIZER_BYTES)
}

/// Another text, in the tokens of the text that was trained on.
#[derive(Clone, Debug)]
pub struct OtherText {
    pub tokens: Vec<u32>,
    /// Number of tokens that the training text does not have.
    pub unknown_tokens: u64,
    /// SHA-256 of the text that was trained on, as in its facts.
    pub sha256: String,
}

/// Reads the text of a file, plain or compressed, with the tokens of the text that `data` names.
///
/// # Errors
/// One of the two texts cannot be read; the file has fewer than two tokens, or one that the
/// vocabulary lacks.
pub fn load_other(
    data: &Data,
    data_folder: Option<&Path>,
    path: &Path,
) -> Result<OtherText, DataError> {
    let (vocabulary, sha256) = vocabulary(data, data_folder)?;
    let text = utf8(path.to_owned(), files::read(path, None)?)?;
    let unfit = |found: String, expected: &str| DataError::Unfit {
        path: path.to_owned(),
        found,
        expected: expected.to_owned(),
    };
    let tokens = vocabulary.encode(&text).map_err(|token| {
        unfit(
            format!("contains {token:?}, which is not in the training text"),
            "only tokens of the training text (a model with `data.tokenizer: byte` reads every text)",
        )
    })?;
    if tokens.len() < 2 {
        return Err(unfit(
            format!("has {}", counted(tokens.len(), "token")),
            "at least 2",
        ));
    }
    Ok(OtherText {
        unknown_tokens: vocabulary.unknown_tokens(&text),
        tokens,
        sha256,
    })
}

/// A text in its two parts, before tokenization.
pub(super) struct SplitText {
    pub(super) train: String,
    pub(super) valid: String,
    /// The tokenizer, if it is that of a file.
    tokens: Option<TokenFile>,
    /// SHA-256 over the uncompressed bytes of every part that was read, and where training ends if
    /// there are two; last of the tokenizer.
    pub(super) sha256: String,
}

impl SplitText {
    fn vocabulary(&self, tokenizer: Tokenizer) -> Vocabulary {
        match &self.tokens {
            Some(tokens) => Vocabulary::of_file(tokens.clone()),
            None => Vocabulary::build(tokenizer, &self.train, &self.valid),
        }
    }
}

/// The ids of a text.
fn ids(vocabulary: &Vocabulary, text: &str) -> Result<Vec<u32>, DataError> {
    match vocabulary.file() {
        Some(tokens) => Ok(tokens.encode_long(text)?),
        None => vocabulary.encode(text).map_err(DataError::UnknownToken),
    }
}

pub(super) fn tokenize(data: &Data, text: SplitText) -> Result<LoadedText, DataError> {
    let tokenizer = data.tokenizer().ok_or(DataError::NoText)?;
    let vocabulary = text.vocabulary(tokenizer);
    let train = ids(&vocabulary, &text.train)?;
    let valid = ids(&vocabulary, &text.valid)?;
    check_validation(data, train.len(), valid.len())?;
    let counts = Counts::Text {
        train_tokens: train.len() as u64,
        valid_tokens: valid.len() as u64,
        vocabulary: vocabulary.len() as u64,
    };
    let facts = DataFacts {
        counts,
        sha256: text.sha256,
    };
    Ok(LoadedText {
        train,
        valid,
        unknown_valid_tokens: vocabulary.unknown_tokens(&text.valid),
        vocabulary,
        facts,
    })
}

/// Checks that a text that is to be evaluated leaves a token to be predicted.
fn check_validation(data: &Data, train: usize, valid: usize) -> Result<(), DataError> {
    match data.valid_fraction() {
        Some(valid_fraction) if valid_fraction > 0.0 && valid < 2 => Err(DataError::NoValidation {
            path: PathBuf::from(data.path().unwrap_or(data.kind())),
            valid_fraction,
            whole: counted(train + valid, "token"),
            left: counted(valid, "token"),
            expected: match data.tokenizer() {
                Some(Tokenizer::Word) => "at least 2 (`tokenizer: word` cuts at the end of a line)",
                _ => "at least 2",
            },
        }),
        _ => Ok(()),
    }
}

pub(super) fn read(data: &Data, data_folder: Option<&Path>) -> Result<SplitText, DataError> {
    let mut hasher = Sha256::new();
    let mut parts = Vec::new();
    let mut paths = locate(data, data_folder)?;
    let tokenizer = data.tokenizer_file().and_then(|_| paths.pop());
    for path in paths {
        let bytes = files::read(&path, most_bytes(data))?;
        hasher.update(&bytes);
        parts.push(utf8(path, bytes)?);
    }
    if let Data::Generated(made) = data {
        let text = generated::text(made.characters);
        hasher.update(text.as_bytes());
        parts.push(text);
    }
    if let [train, _] = parts.as_slice() {
        split::hash_train_end(&mut hasher, train.len(), split::published_train_bytes(data));
    }
    let tokens = match tokenizer {
        Some(path) => {
            let bytes = files::read_within(&path, &TOKENIZER_BYTES)?;
            hasher.update(&bytes);
            Some(TokenFile::plain(&path, &bytes)?)
        }
        None => None,
    };
    let sha256 = hex::encode(hasher.finalize());
    let mut parts = parts.into_iter();
    let train = parts.next().unwrap_or_default();
    let (train, valid) = match parts.next() {
        Some(valid) => (train, valid),
        None => cut(
            train,
            valid_fraction(data),
            data.tokenizer() == Some(Tokenizer::Word),
        ),
    };
    Ok(SplitText {
        train,
        valid,
        tokens,
        sha256,
    })
}

/// The text of a file, without the byte order mark that some editors start one with.
fn utf8(path: PathBuf, bytes: Vec<u8>) -> Result<String, DataError> {
    let mut text =
        String::from_utf8(bytes).map_err(|error| DataError::not_utf8(path.clone(), &error))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    if text.is_empty() {
        return Err(DataError::Empty { path });
    }
    Ok(text)
}

/// Tiny Shakespeare, which has no such key, is split as nanoGPT splits it.
fn valid_fraction(data: &Data) -> f64 {
    data.valid_fraction().unwrap_or(split::SHAKESPEARE_VALID)
}

/// Cuts off the last `valid_fraction` of the characters; at whole lines if requested.
fn cut(mut text: String, valid_fraction: f64, at_lines: bool) -> (String, String) {
    let kept = split::train_count(text.chars().count(), valid_fraction);
    let mut cut = text
        .char_indices()
        .nth(kept)
        .map_or(text.len(), |(byte, _)| byte);
    if at_lines && cut > 0 && !text[..cut].ends_with('\n') {
        cut = text[cut..]
            .find('\n')
            .map_or(text.len(), |line_end| cut + line_end + 1);
    }
    let valid = text.split_off(cut);
    (text, valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(yaml: &str) -> Data {
        serde_yaml::from_str(yaml).unwrap()
    }

    fn text_file(bytes: &[u8], keys: &str) -> (tempfile::TempDir, Data) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, bytes).unwrap();
        let data = data(&format!("{{kind: text, path: {}{keys}}}", path.display()));
        (folder, data)
    }

    #[test]
    fn the_end_of_a_text_is_kept_for_validation() {
        let (_folder, data) = text_file("abcdefghé0".as_bytes(), ", valid_fraction: 0.2");
        let loaded = load(&data, None).unwrap();
        assert_eq!(loaded.vocabulary.decode(&loaded.train), "abcdefgh");
        let counts = Counts::Text {
            train_tokens: 8,
            valid_tokens: 2,
            vocabulary: 9,
        };
        assert_eq!(loaded.unknown_valid_tokens, 2);
        assert_eq!(
            loaded.facts.counts, counts,
            "eight characters and <unk> for the two that only validation has"
        );
        assert_eq!(
            loaded.facts.sha256,
            hex::encode(Sha256::digest("abcdefghé0".as_bytes()))
        );
    }

    #[test]
    fn a_text_has_the_tokens_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, tokenizer] = ["a.txt", "t.json"].map(|name| folder.path().join(name));
        let words = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab":
            {"[UNK]": 0, "a": 4, "b": 2}, "unk_token": "[UNK]"}}"#;
        std::fs::write(&path, "a b b a z a").unwrap();
        std::fs::write(&tokenizer, words).unwrap();
        let data = data(&format!(
            "{{kind: text, path: {}, tokenizer_file: {}, valid_fraction: 0.5}}",
            path.display(),
            tokenizer.display()
        ));
        let loaded = load(&data, None).unwrap();
        assert_eq!(
            (loaded.train, loaded.valid, loaded.unknown_valid_tokens),
            (vec![4, 2, 2], vec![4, 0, 4], 1)
        );
        let counts = Counts::Text {
            train_tokens: 3,
            valid_tokens: 3,
            vocabulary: 5,
        };
        assert_eq!(loaded.facts.counts, counts);
        let sum = hex::encode(Sha256::digest(format!("a b b a z a{words}")));
        assert_eq!(loaded.facts.sha256, sum, "another tokenizer is other data");
        let (vocabulary, _) = vocabulary(&data, None).unwrap();
        assert_eq!(vocabulary.encode_prompt("b a"), Ok(vec![2, 4]));
        assert_eq!(vocabulary.decode(&[4, 2]), "a b");
        assert_ne!(
            vocabulary.sha256(),
            Vocabulary::build(Tokenizer::Byte, "", "").sha256()
        );
        assert_eq!(tokenizer_bytes(&data, None).unwrap(), words.as_bytes());
        std::fs::remove_file(&tokenizer).unwrap();
        let absent = load(&data, None).unwrap_err().to_string();
        assert!(
            absent.starts_with("`data.tokenizer_file` names "),
            "{absent}"
        );
    }

    #[test]
    fn another_text_has_the_tokens_of_the_training_text() {
        let other = |of_training: &str, keys: &str, other: &str| {
            let (folder, data) = text_file(of_training.as_bytes(), keys);
            let path = folder.path().join("other.txt");
            std::fs::write(&path, other).unwrap();
            load_other(&data, None, &path)
                .map_err(|error| error.to_string().replace(&path.display().to_string(), "O"))
        };
        // Trained on `ba`: a is 0, b is 1, and all others are 2.
        let known = other("bac", ", valid_fraction: 0.3", "abba?").unwrap();
        assert_eq!(
            (known.tokens, known.unknown_tokens),
            (vec![0, 1, 1, 0, 2], 1)
        );
        assert_eq!(known.sha256, hex::encode(Sha256::digest("bac".as_bytes())));
        let unknown = other("ab", ", valid_fraction: 0", "ab?").unwrap_err();
        assert!(
            unknown.starts_with("O contains \"?\", which is not in the training text; expected "),
            "{unknown}"
        );
        let short = other("ab", ", valid_fraction: 0", "a").unwrap_err();
        assert_eq!(short, "O has 1 token; expected at least 2");
    }

    #[test]
    fn a_text_that_leaves_nothing_to_evaluate_is_refused() {
        let fault = |text: &str, keys: &str| {
            let (folder, data) = text_file(text.as_bytes(), keys);
            let fault = load(&data, None).unwrap_err().to_string();
            fault.replace(&folder.path().display().to_string(), "HERE")
        };
        assert_eq!(
            fault("a text of one line", ", tokenizer: word"),
            "HERE/text.txt: `data.valid_fraction` 0.1 of 6 tokens leaves 0 tokens for validation; \
             expected at least 2 (`tokenizer: word` cuts at the end of a line); raise it, or set \
             it to 0 to train without validation"
        );
        assert!(fault("abcdefghij", "").contains(" 0.1 of 10 tokens leaves 1 token for "));
        assert!(fault("abcdefghij", "").contains("expected at least 2; raise it"));
    }

    #[test]
    fn the_same_bytes_cut_elsewhere_have_another_hash() {
        let sha256 = |train: &str, valid: &str| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("train.txt"), train).unwrap();
            std::fs::write(folder.path().join("valid.txt"), valid).unwrap();
            let path = folder.path().display();
            let data = data(&format!("{{kind: wikitext2, path: {path}}}"));
            load(&data, None).unwrap().facts.sha256
        };
        assert_eq!(sha256("a b\nc d\n", "a b\n"), sha256("a b\nc d\n", "a b\n"));
        assert_ne!(sha256("a b\nc d\n", "a b\n"), sha256("a b\n", "c d\na b\n"));
    }

    #[test]
    fn no_share_for_validation_leaves_it_empty() {
        let (_folder, data) = text_file(b"abc", ", valid_fraction: 0");
        let counts = load(&data, None).unwrap().facts.counts;
        assert_eq!(
            counts,
            Counts::Text {
                train_tokens: 3,
                valid_tokens: 0,
                vocabulary: 3
            }
        );
    }

    #[test]
    fn words_are_split_at_a_line_end() {
        let (_folder, data) = text_file(
            b"one two\nthree four\nfive\n",
            ", tokenizer: word, valid_fraction: 0.5",
        );
        let loaded = load(&data, None).unwrap();
        assert_eq!(
            loaded.vocabulary.decode(&loaded.train),
            "one two\nthree four\n"
        );
        assert_eq!(loaded.valid.len(), 2);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text() {
        let (_folder, marked) = text_file("\u{feff}abcd".as_bytes(), ", valid_fraction: 0.5");
        let text = read(&marked, None).unwrap();
        assert_eq!((text.train.as_str(), text.valid.as_str()), ("ab", "cd"));
        let (_folder, empty) = text_file("\u{feff}".as_bytes(), "");
        assert!(matches!(read(&empty, None), Err(DataError::Empty { .. })));
    }

    #[test]
    fn bytes_that_are_no_text_are_named() {
        let (_folder, data) = text_file(b"abc\xff", "");
        assert!(
            load(&data, None)
                .unwrap_err()
                .to_string()
                .contains("byte 3")
        );
        let (_folder, data) = text_file(b"", "");
        assert!(
            load(&data, None)
                .unwrap_err()
                .to_string()
                .contains("is empty")
        );
    }

    #[test]
    fn published_texts_have_their_published_counts() {
        let Some(folder) = crate::published::folder() else {
            return;
        };
        for (yaml, train_tokens, valid_tokens, vocabulary) in [
            ("{kind: wikitext2}", 2_088_628, 217_646, 33_278),
            (
                "{kind: wikitext2, tokenizer: character}",
                10_780_437,
                1_120_192,
                283,
            ),
            (
                "{kind: wikitext2, tokenizer: byte}",
                10_797_148,
                1_121_681,
                256,
            ),
            ("{kind: tinyshakespeare}", 1_003_854, 111_540, 65),
            (
                "{kind: tinyshakespeare, tokenizer: byte}",
                1_003_854,
                111_540,
                256,
            ),
        ] {
            let data = data(yaml);
            let facts = load(&data, Some(&folder)).unwrap().facts;
            assert_eq!(
                facts.counts,
                Counts::Text {
                    train_tokens,
                    valid_tokens,
                    vocabulary
                },
                "{yaml}"
            );
            assert_eq!(
                crate::dataset::known_facts(&data, &facts.sha256),
                Some(facts),
                "{yaml}"
            );
        }
    }
}
