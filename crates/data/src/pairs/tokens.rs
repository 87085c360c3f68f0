//! Encodes and decodes text with a tokenizer file.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    path::{Path, PathBuf},
    sync::Once,
};

use kiln_core::kinds::data::UNKNOWN_TOKEN;
use sha2::{Digest, Sha256};
use tokenizers::{ModelWrapper, Tokenizer, pre_tokenizers::PreTokenizerWrapper};

use super::charsmap;
use crate::error::PairsError;

/// Usual names of the token for text that a tokenizer cannot encode.
const UNKNOWN_NAMES: [&str; 2] = [UNKNOWN_TOKEN, "<unk>"];
/// Least length of the pieces of a long text, and how many are tokenized at once: the library needs
/// 150 bytes for each byte of a text.
const PIECE_BYTES: usize = 1 << 16;
const PIECES_AT_ONCE: usize = 16;

/// A tokenizer.json of Hugging Face's `tokenizers`, and its three special tokens.
#[derive(Clone, Debug)]
pub struct TokenFile {
    file: PathBuf,
    tokenizer: Tokenizer,
    len: usize,
    end: u32,
    pad: u32,
    unknown: Option<u32>,
    sha256: String,
}

impl TokenFile {
    /// `special` holds the key and the name of the end, the padding and the unknown token.
    ///
    /// # Errors
    /// The bytes are not a tokenizer, or the tokenizer is random; it lacks a named token. The default
    /// name of the unknown token may be absent: then it has its other usual name, or the tokenizer can
    /// encode everything.
    pub(super) fn read(
        file: &Path,
        bytes: &[u8],
        special: [(&'static str, &str); 3],
    ) -> Result<Self, PairsError> {
        let mut found = Self::plain(file, bytes)?;
        let id = |(key, token): (&'static str, &str)| {
            let known = found.tokenizer.token_to_id(token);
            known.ok_or_else(|| PairsError::NoToken {
                file: file.to_owned(),
                key,
                token: token.to_owned(),
                there: special_tokens(&found.tokenizer),
            })
        };
        let (end, pad) = (id(special[0])?, id(special[1])?);
        let unknown = match id(special[2]) {
            Err(_) if special[2].1 == UNKNOWN_TOKEN => found.unknown.filter(|it| *it != end),
            known => Some(known?),
        };
        (found.end, found.pad, found.unknown) = (end, pad, unknown);
        Ok(found)
    }

    /// The tokenizer of a text, of which neither the end nor the padding counts.
    ///
    /// # Errors
    /// The bytes are not a tokenizer, or the tokenizer is random.
    pub(crate) fn plain(file: &Path, bytes: &[u8]) -> Result<Self, PairsError> {
        let unreadable = |reason: String| PairsError::NoTokenizer {
            file: file.to_owned(),
            reason,
        };
        charsmap::check_all(bytes).map_err(unreadable)?;
        let mut tokenizer = guarded(|| Tokenizer::from_bytes(bytes)).map_err(unreadable)?;
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            return Err(PairsError::Dropout {
                file: file.to_owned(),
                dropout,
            });
        }
        // The experiment decides cutting and padding, not the file.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| unreadable(error.to_string()))?;
        let unknown = UNKNOWN_NAMES
            .iter()
            .find_map(|name| tokenizer.token_to_id(name));
        // Ids may have gaps; a model needs a row for the highest.
        let len = tokenizer
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |highest| highest as usize + 1);
        Ok(Self {
            file: file.to_owned(),
            tokenizer,
            len,
            end: 0,
            pad: 0,
            unknown,
            sha256: hex::encode(Sha256::digest(bytes)),
        })
    }

    /// SHA-256 of its file, uncompressed.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// SHA-256 over the tokens with their ids: equal where every id is the same token, however the file
    /// is written.
    pub fn numbering_sha256(&self) -> String {
        let mut tokens: Vec<(u32, String)> = self
            .tokenizer
            .get_vocab(true)
            .into_iter()
            .map(|(token, id)| (id, token))
            .collect();
        tokens.sort_unstable();
        let mut hasher = Sha256::new();
        for (id, token) in tokens {
            hasher.update(id.to_le_bytes());
            hasher.update((token.len() as u64).to_le_bytes());
            hasher.update(token);
        }
        hex::encode(hasher.finalize())
    }

    /// Size of the vocabulary: the highest token id plus 1.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vocabulary is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The id at the end of a prompt or a response.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The id for padding and for the first token of a decoder.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The id for text that the tokenizer cannot encode; `None` if it can encode everything.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// Returns the ids of a text, without an end token.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text and has no unknown token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PairsError> {
        guarded(|| self.tokenizer.encode_fast(text, false))
            .map(|found| found.get_ids().to_vec())
            .map_err(|reason| self.cannot_encode(reason))
    }

    /// Same as [`TokenFile::encode`], for a long text: in pieces, where that changes no token.
    pub(crate) fn encode_long(&self, text: &str) -> Result<Vec<u32>, PairsError> {
        if !self.ends_tokens_at_spaces() {
            return self.encode(text);
        }
        let mut ids = Vec::new();
        for some in pieces(text).chunks(PIECES_AT_ONCE) {
            ids.extend(self.encode_many(some.to_vec())?.into_iter().flatten());
        }
        Ok(ids)
    }

    /// Whether no token reaches from a letter into the space behind it: GPT-2's split of texts.
    fn ends_tokens_at_spaces(&self) -> bool {
        let is_gpt2 = matches!(
            self.tokenizer.get_pre_tokenizer(),
            Some(PreTokenizerWrapper::ByteLevel(level)) if level.use_regex && !level.add_prefix_space
        );
        let added = self.tokenizer.get_added_tokens_decoder();
        is_gpt2
            && self.tokenizer.get_normalizer().is_none()
            && added
                .values()
                .all(|token| !token.lstrip && !token.rstrip && !token.content.contains(' '))
    }

    /// Same as [`TokenFile::encode`], for many texts at once, on all cores.
    pub(super) fn encode_many(&self, texts: Vec<&str>) -> Result<Vec<Vec<u32>>, PairsError> {
        let found = guarded(|| self.tokenizer.encode_batch_fast(texts, false))
            .map_err(|reason| self.cannot_encode(reason))?;
        Ok(found
            .iter()
            .map(|encoding| encoding.get_ids().to_vec())
            .collect())
    }

    /// Returns the text of ids, without special tokens; unknown ids are ignored.
    ///
    /// A file without a decoder joins its tokens with spaces.
    pub fn decode(&self, ids: &[u32]) -> String {
        // Only a decoder in the file can fail; then the tokens are still returned.
        guarded(|| self.tokenizer.decode(ids, true)).unwrap_or_else(|_| {
            let tokens: Vec<String> = ids
                .iter()
                .filter_map(|id| self.tokenizer.id_to_token(*id))
                .collect();
            tokens.join(" ")
        })
    }

    fn cannot_encode(&self, reason: String) -> PairsError {
        PairsError::Encode {
            file: self.file.clone(),
            reason,
        }
    }
}

/// A text cut before single spaces between letters.
fn pieces(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_between = |at: &usize| {
        bytes[*at] == b' '
            && bytes[at - 1].is_ascii_alphanumeric()
            && bytes[at + 1].is_ascii_alphanumeric()
    };
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(cut) = (from + PIECE_BYTES..bytes.len().saturating_sub(1)).find(is_between) {
        pieces.push(&text[from..cut]);
        from = cut;
    }
    pieces.push(&text[from..]);
    pieces
}

/// Calls the library of tokenizers. It trusts the file in places, such as indices in tables, and
/// panics where a damaged one misleads it; here, at its only boundary, that becomes an error.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    IN_LIBRARY.set(true);
    stay_silent_in_library();
    let ended = catch_unwind(AssertUnwindSafe(call));
    IN_LIBRARY.set(false);
    match ended {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(panicked) => Err(format!(
            "the file misleads its reader ({})",
            panic_text(panicked.as_ref())
        )),
    }
}

thread_local! {
    /// Whether this thread is inside the library.
    static IN_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the report of a panic off the terminal where [`guarded`] makes an error of it.
fn stay_silent_in_library() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panicked| {
            if !IN_LIBRARY.get() {
                report(panicked);
            }
        }));
    });
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_has_the_tokens_that_it_has_as_a_whole() {
        let file = |prefix: bool| {
            format!(
                r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
                "normalizer": null, "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": {prefix},
                "trim_offsets": true}}, "post_processor": null, "decoder": {{"type": "ByteLevel",
                "add_prefix_space": false, "trim_offsets": true}}, "model": {{"type": "BPE",
                "dropout": null, "unk_token": null, "vocab": {{"a": 0, "b": 1, "\u0120": 2, "\u010a": 3,
                "\u0120a": 4, "ab": 5}}, "merges": [["\u0120", "a"], ["a", "b"]]}}}}"#
            )
        };
        let read = |prefix| TokenFile::plain(Path::new("t"), file(prefix).as_bytes()).unwrap();
        let tokens = read(false);
        let text = "a b  ab\nb \na ab  \n\nab a".repeat(10_000);
        assert!(tokens.ends_tokens_at_spaces() && pieces(&text).len() > 2);
        assert_eq!(pieces(&text).concat(), text);
        let ids = tokens.encode_long(&text).unwrap();
        assert_eq!(ids, tokens.encode(&text).unwrap());
        assert_eq!(tokens.decode(&ids), text);
        assert!(
            !read(true).ends_tokens_at_spaces(),
            "each piece would begin with a space of its own"
        );
    }
}
