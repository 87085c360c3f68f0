//! A tokenizer file at work: text to ids and back.

use std::path::{Path, PathBuf};

use kiln_core::kinds::data::UNKNOWN_TOKEN;
use tokenizers::{ModelWrapper, Tokenizer};

use super::PairsError;

/// A tokenizer.json of Hugging Face's `tokenizers`, and three of its tokens.
#[derive(Clone, Debug)]
pub struct TokenFile {
    file: PathBuf,
    tokenizer: Tokenizer,
    len: usize,
    end: u32,
    pad: u32,
    unknown: Option<u32>,
}

impl TokenFile {
    /// `special` is, for the end, the padding and the unknown token, the key that names it and its name.
    ///
    /// # Errors
    /// The bytes are no tokenizer, or one whose work is random; it lacks a token that is named. A tokenizer that can spell everything
    /// has no unknown token: the default name for one may be lacking.
    pub(super) fn read(file: &Path, bytes: &[u8], special: [(&'static str, &str); 3]) -> Result<Self, PairsError> {
        let unreadable = |reason: String| PairsError::NoTokenizer { file: file.to_owned(), reason };
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| unreadable(error.to_string()))?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            return Err(PairsError::Dropout { file: file.to_owned(), dropout });
        }
        // Rows are cut and filled up as the experiment says, not as the file does.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| unreadable(error.to_string()))?;
        let id = |(key, token): (&'static str, &str)| {
            tokenizer.token_to_id(token).ok_or_else(|| PairsError::NoToken {
                file: file.to_owned(),
                key,
                token: token.to_owned(),
                there: special_tokens(&tokenizer),
            })
        };
        let (end, pad) = (id(special[0])?, id(special[1])?);
        let unknown = match id(special[2]) {
            Err(_) if special[2].1 == UNKNOWN_TOKEN => None,
            found => Some(found?),
        };
        // Ids may have gaps; a model needs room for the highest.
        let len = tokenizer.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
        Ok(Self { file: file.to_owned(), tokenizer, len, end, pad, unknown })
    }

    /// Different ids: the highest one that a token has, and 1.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The id that ends a prompt or a response.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The id that fills rows up, and that a decoder starts with.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The id of what the tokenizer cannot spell; `None` where it can spell everything.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// The ids of a text, without an end token.
    ///
    /// # Errors
    /// The tokenizer cannot spell it and has nothing that stands for what it cannot spell.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PairsError> {
        self.tokenizer.encode_fast(text, false).map(|found| found.get_ids().to_vec()).map_err(|error| self.cannot_encode(&error))
    }

    /// As [`TokenFile::encode`], for many texts at once, on all cores.
    pub(super) fn encode_many(&self, texts: Vec<&str>) -> Result<Vec<Vec<u32>>, PairsError> {
        let found = self.tokenizer.encode_batch_fast(texts, false).map_err(|error| self.cannot_encode(&error))?;
        Ok(found.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// The text of ids, special tokens left out; ids that no token has stand for nothing.
    ///
    /// A file without a decoder joins its tokens with spaces.
    pub fn decode(&self, ids: &[u32]) -> String {
        // Only a decoder that a file describes can fail, and what it cannot join still has its tokens.
        self.tokenizer.decode(ids, true).unwrap_or_else(|_| {
            let tokens: Vec<String> = ids.iter().filter_map(|id| self.tokenizer.id_to_token(*id)).collect();
            tokens.join(" ")
        })
    }

    fn cannot_encode(&self, error: &tokenizers::Error) -> PairsError {
        PairsError::Encode { file: self.file.clone(), reason: error.to_string() }
    }
}

fn special_tokens(tokenizer: &Tokenizer) -> Vec<String> {
    let mut tokens: Vec<(u32, String)> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .filter(|(_, token)| token.special)
        .map(|(id, token)| (id, format!("`{}`", token.content)))
        .collect();
    tokens.sort_unstable();
    tokens.into_iter().map(|(_, token)| token).collect()
}
