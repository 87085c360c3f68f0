//! Converts text to token ids and back. The ids of a vocabulary depend on the text only, not on the
//! machine:
//!
//! - words: numbered by first occurrence in the training text; each line is its words separated by
//!   white space, and `<eos>`;
//! - characters: in code-point order of the training text's characters;
//! - bytes: the value of the byte, always 256 of them;
//! - those of a tokenizer's file: as the file numbers them.
//!
//! Tokens that occur only in the validation text become `<unk>`, an entry that is appended only if
//! it is needed and absent.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use kiln_core::kinds::data::Tokenizer;
use sha2::{Digest, Sha256};

use super::pairs::TokenFile;

/// Ends each line of word tokens.
pub const END_OF_LINE: &str = "<eos>";
/// Replaces tokens that the training text does not contain.
pub const UNKNOWN: &str = "<unk>";

/// The tokens of one text for one tokenizer.
#[derive(Clone, Debug)]
pub struct Vocabulary(Entries);

#[derive(Clone, Debug)]
enum Entries {
    Words {
        words: Vec<Box<str>>,
        ids: HashMap<Box<str>, u32>,
        unknown: Option<u32>,
    },
    Characters {
        characters: Vec<char>,
        ids: Vec<u32>,
        unknown: Option<u32>,
    },
    Bytes,
    File(Arc<TokenFile>),
}

/// Marks characters without an id in a character table.
const ABSENT: u32 = u32::MAX;

impl Vocabulary {
    /// Builds the vocabulary of `train`, with `<unk>` if `valid` needs it.
    pub fn build(tokenizer: Tokenizer, train: &str, valid: &str) -> Self {
        Self(match tokenizer {
            Tokenizer::Word => words(train, valid),
            Tokenizer::Character => characters(train, valid),
            Tokenizer::Byte => Entries::Bytes,
        })
    }

    /// The vocabulary of a tokenizer's file, whatever the text is.
    pub fn of_file(tokens: TokenFile) -> Self {
        Self(Entries::File(Arc::new(tokens)))
    }

    /// The tokenizer's file, if the tokens are those of one.
    pub fn file(&self) -> Option<&TokenFile> {
        match &self.0 {
            Entries::File(tokens) => Some(tokens),
            _ => None,
        }
    }

    /// Number of tokens, including `<unk>` if there is one.
    pub fn len(&self) -> usize {
        match &self.0 {
            Entries::Words { words, .. } => words.len(),
            Entries::Characters {
                characters,
                unknown,
                ..
            } => characters.len() + usize::from(unknown.is_some()),
            Entries::Bytes => 256,
            Entries::File(tokens) => tokens.len(),
        }
    }

    /// Whether the vocabulary is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ids of a text, in order.
    ///
    /// # Errors
    /// The first token without an id, if there is no `<unk>`; of a file its message.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match &self.0 {
            Entries::Words { ids, unknown, .. } => word_tokens(text)
                .map(|word| {
                    ids.get(word)
                        .copied()
                        .or(*unknown)
                        .ok_or_else(|| word.to_owned())
                })
                .collect(),
            Entries::Characters { ids, unknown, .. } => text
                .chars()
                .map(|character| {
                    known(ids, character)
                        .or(*unknown)
                        .ok_or_else(|| character.to_string())
                })
                .collect(),
            Entries::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Entries::File(tokens) => tokens.encode_long(text).map_err(|error| error.to_string()),
        }
    }

    /// How many tokens of a text have no id of their own, and become `<unk>`.
    pub fn unknown_tokens(&self, text: &str) -> u64 {
        let count = match &self.0 {
            Entries::Words { ids, .. } => word_tokens(text)
                .filter(|word| !ids.contains_key(*word))
                .count(),
            Entries::Characters { ids, .. } => text
                .chars()
                .filter(|character| known(ids, *character).is_none())
                .count(),
            Entries::Bytes => 0,
            Entries::File(tokens) => {
                let Some(unknown) = tokens.unknown() else {
                    return 0;
                };
                let ids = tokens.encode_long(text).unwrap_or_default();
                ids.into_iter().filter(|id| *id == unknown).count()
            }
        };
        count as u64
    }

    /// Returns the ids of a prompt, whose text continues: words without a final newline stay in
    /// their line.
    ///
    /// # Errors
    /// The fault, as text that follows the key's name: the first token that is not in the training
    /// text, even if there is `<unk>`; or the prompt is not a token.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, String> {
        let absent = |token: String| {
            format!(
                "contains {token:?}, which is not in the training text; use only tokens of the \
                 training text"
            )
        };
        let ids: Vec<u32> = match &self.0 {
            Entries::Words { ids, .. } => {
                let tokens: Vec<&str> = word_tokens(prompt).collect();
                let in_line = !prompt.ends_with('\n') && !tokens.is_empty();
                let tokens = &tokens[..tokens.len() - usize::from(in_line)];
                tokens
                    .iter()
                    .map(|word| {
                        ids.get(*word)
                            .copied()
                            .ok_or_else(|| absent((*word).to_owned()))
                    })
                    .collect::<Result<_, _>>()?
            }
            Entries::Characters { ids, .. } => prompt
                .chars()
                .map(|character| known(ids, character).ok_or_else(|| absent(character.to_string())))
                .collect::<Result<_, _>>()?,
            Entries::Bytes => prompt.bytes().map(u32::from).collect(),
            Entries::File(tokens) => tokens.encode(prompt).map_err(|error| error.to_string())?,
        };
        if ids.is_empty() {
            return Err(format!(
                "{prompt:?} has no token to begin with; give a word of the text, or a new line: \"\\n\" \
                 in YAML, $'\\n' in a shell"
            ));
        }
        Ok(ids)
    }

    /// The tokens in the order of their ids; `None` for bytes, whose ids are their values, and for
    /// those of a file.
    pub fn tokens(&self) -> Option<Vec<String>> {
        match &self.0 {
            Entries::Words { words, .. } => {
                Some(words.iter().map(|word| word.to_string()).collect())
            }
            Entries::Characters {
                characters,
                unknown,
                ..
            } => Some(
                characters
                    .iter()
                    .map(char::to_string)
                    .chain(unknown.map(|_| UNKNOWN.to_owned()))
                    .collect(),
            ),
            Entries::Bytes | Entries::File(_) => None,
        }
    }

    /// SHA-256 over the tokens in the order of their ids: equal where every id is the same token.
    pub fn sha256(&self) -> String {
        if let Some(tokens) = self.file() {
            return tokens.numbering_sha256();
        }
        let mut hasher = Sha256::new();
        for token in self.tokens().into_iter().flatten() {
            hasher.update((token.len() as u64).to_le_bytes());
            hasher.update(token);
        }
        hex::encode(hasher.finalize())
    }

    /// Returns the text of ids: words are joined by spaces, `<eos>` ends a line. Ids outside the
    /// vocabulary become unknown.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.0 {
            Entries::Words { words, .. } => join_words(
                ids.iter()
                    .map(|&id| words.get(id as usize).map_or(UNKNOWN, |word| &**word)),
            ),
            Entries::Characters { characters, .. } => ids
                .iter()
                .map(|&id| {
                    characters
                        .get(id as usize)
                        .copied()
                        .unwrap_or(char::REPLACEMENT_CHARACTER)
                })
                .collect(),
            Entries::Bytes => {
                let bytes: Vec<u8> = ids
                    .iter()
                    .map(|&id| u8::try_from(id).unwrap_or(b'?'))
                    .collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Entries::File(tokens) => tokens.decode(ids),
        }
    }
}

/// The words of each line, then `<eos>`.
fn word_tokens(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .flat_map(|line| line.split_whitespace().chain(std::iter::once(END_OF_LINE)))
}

fn words(train: &str, valid: &str) -> Entries {
    let mut words: Vec<Box<str>> = Vec::new();
    let mut ids: HashMap<Box<str>, u32> = HashMap::new();
    for word in word_tokens(train) {
        add_word(word, &mut words, &mut ids);
    }
    if !ids.contains_key(UNKNOWN) && word_tokens(valid).any(|word| !ids.contains_key(word)) {
        add_word(UNKNOWN, &mut words, &mut ids);
    }
    let unknown = ids.get(UNKNOWN).copied();
    Entries::Words {
        words,
        ids,
        unknown,
    }
}

fn add_word(word: &str, words: &mut Vec<Box<str>>, ids: &mut HashMap<Box<str>, u32>) {
    if !ids.contains_key(word) {
        ids.insert(word.into(), words.len() as u32);
        words.push(word.into());
    }
}

fn characters(train: &str, valid: &str) -> Entries {
    let seen: BTreeSet<char> = train.chars().collect();
    let characters: Vec<char> = seen.into_iter().collect();
    let mut ids = vec![ABSENT; characters.last().map_or(0, |&last| last as usize + 1)];
    for (id, &character) in characters.iter().enumerate() {
        ids[character as usize] = id as u32;
    }
    let unknown = valid
        .chars()
        .any(|character| known(&ids, character).is_none())
        .then_some(characters.len() as u32);
    Entries::Characters {
        characters,
        ids,
        unknown,
    }
}

fn known(ids: &[u32], character: char) -> Option<u32> {
    ids.get(character as usize)
        .copied()
        .filter(|&id| id != ABSENT)
}

fn join_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for word in words {
        if word == END_OF_LINE {
            text.push('\n');
        } else {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            text.push_str(word);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_vocabulary_is_that_of_its_numbering() {
        let sum = |tokenizer, train| Vocabulary::build(tokenizer, train, "").sha256();
        let characters = |train| sum(Tokenizer::Character, train);
        assert_eq!(characters("abc"), characters("cabb"));
        assert_ne!(characters("abc"), characters("abd"));
        let words = |train| sum(Tokenizer::Word, train);
        assert_ne!(words("a b"), words("b a"));
        assert_ne!(words("ab c"), words("a bc"));
        assert_eq!(sum(Tokenizer::Byte, "a"), sum(Tokenizer::Byte, "b"));
        assert_ne!(sum(Tokenizer::Byte, "a"), characters("a"));
    }

    #[test]
    fn words_are_numbered_as_seen_and_lines_end() {
        let vocabulary = Vocabulary::build(Tokenizer::Word, "b a\n\na  c\n", "a");
        assert_eq!(vocabulary.len(), 4);
        assert_eq!(
            vocabulary.encode("b a\n\na  c\n").unwrap(),
            [0, 1, 2, 2, 1, 3, 2]
        );
        assert_eq!(vocabulary.decode(&[0, 1, 2, 2, 1, 3, 2]), "b a\n\na c\n");
        assert_eq!(vocabulary.encode("a z"), Err("z".to_owned()));
    }

    #[test]
    fn unknown_is_added_only_when_the_validation_text_needs_it() {
        let vocabulary = Vocabulary::build(Tokenizer::Word, "a b\n", "a z\n");
        assert_eq!(vocabulary.len(), 4);
        assert_eq!(vocabulary.encode("z b").unwrap(), [3, 1, 2]);
        assert_eq!(
            Vocabulary::build(Tokenizer::Word, "a <unk>\n", "z\n")
                .encode("z")
                .unwrap(),
            [1, 2]
        );
        let characters = Vocabulary::build(Tokenizer::Character, "ba", "aé");
        assert_eq!(characters.len(), 3);
        assert_eq!(characters.encode("abé").unwrap(), [0, 1, 2]);
        assert_eq!(characters.unknown_tokens("aéбb"), 2);
        assert_eq!(vocabulary.unknown_tokens("z b z\n"), 2);
        assert_eq!(
            Vocabulary::build(Tokenizer::Byte, "", "").unknown_tokens("é"),
            0
        );
        assert_eq!(characters.decode(&[0, 1, 2]), "ab\u{fffd}");
    }

    #[test]
    fn a_prompt_stays_open_and_has_known_tokens_alone() {
        let words = Vocabulary::build(Tokenizer::Word, "the kiln is hot\n", "cold\n");
        assert_eq!(
            words.encode_prompt("the kiln\nis").unwrap(),
            words.encode("the kiln\nis\n").unwrap()[..4]
        );
        assert_eq!(
            words.encode_prompt("hot\n").unwrap(),
            words.encode("hot\n").unwrap()
        );
        assert_eq!(
            words.encode_prompt("\n").unwrap(),
            [4],
            "the end of an empty line"
        );
        assert!(
            words
                .encode_prompt(" ")
                .unwrap_err()
                .contains("has no token to begin with")
                && words.encode_prompt("").is_err()
        );
        let refused = words.encode_prompt("the cold kiln").unwrap_err();
        assert_eq!(
            refused,
            "contains \"cold\", which is not in the training text; use only tokens of the training \
             text",
            "not even where there is an `<unk>`"
        );
        let characters = Vocabulary::build(Tokenizer::Character, "ab", "é");
        assert_eq!(characters.encode_prompt("ba"), Ok(vec![1, 0]));
        assert!(
            characters
                .encode_prompt("bé")
                .unwrap_err()
                .starts_with("contains \"é\"")
        );
        assert_eq!(
            Vocabulary::build(Tokenizer::Byte, "", "")
                .encode_prompt("é")
                .unwrap(),
            [0xc3, 0xa9]
        );
    }

    #[test]
    fn characters_stand_in_code_point_order_and_bytes_are_themselves() {
        let text = "hé\nh";
        let characters = Vocabulary::build(Tokenizer::Character, text, "");
        assert_eq!(characters.encode(text).unwrap(), [1, 2, 0, 1]);
        let bytes = Vocabulary::build(Tokenizer::Byte, text, "");
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes.encode("é").unwrap(), [0xc3, 0xa9]);
        assert_eq!(bytes.decode(&bytes.encode(text).unwrap()), text);
    }
}
