//! A tokenizer for prompts and responses that came without one: each character is a token.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::Path,
};

use kiln_core::{
    input,
    limits::{DATA_BYTES, TOKENIZER_BYTES},
};
use kiln_data::files;
use serde_json::{Map, Value, json};

/// Tokens that `data.pad_token`, `data.end_token` and `data.unknown_token` name by default.
const SPECIAL: [&str; 3] = ["[PAD]", "[EOS]", "[UNK]"];

/// Splits a text into its characters.
const EACH_CHARACTER: &str = "(?s).";

/// Returns a `tokenizer.json` with the characters of these keys of a JSONL file, plain or compressed.
pub(super) fn of_rows(path: &Path, keys: [&str; 2]) -> Result<String, String> {
    serde_json::to_string_pretty(&tokenizer(&characters(path, keys)?))
        .map(|text| text + "\n")
        .map_err(|error| error.to_string())
}

/// Whether a tokenizer file is one of characters, of other rows than these: it lacks some of theirs.
pub(super) fn is_of_other_rows(file: &Path, path: &Path, keys: [&str; 2]) -> Result<bool, String> {
    let bytes = input::read(file, &TOKENIZER_BYTES).unwrap_or_default();
    let found: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if found["pre_tokenizer"]["pattern"]["Regex"] != EACH_CHARACTER {
        return Ok(false);
    }
    let known = &found["model"]["vocab"];
    let lacks = |character: &char| known.get(character.to_string()).is_none();
    Ok(characters(path, keys)?.iter().any(lacks))
}

/// The characters of these keys. Lines that are not JSON are passed over: a run names them.
fn characters(path: &Path, keys: [&str; 2]) -> Result<BTreeSet<char>, String> {
    let file = files::open(path, path, &DATA_BYTES).map_err(|error| error.to_string())?;
    let mut characters = BTreeSet::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let row: Map<String, Value> =
            serde_json::from_str(line.trim_start_matches('\u{feff}')).unwrap_or_default();
        let texts = keys.iter().filter_map(|key| row.get(*key)?.as_str());
        characters.extend(texts.flat_map(str::chars));
    }
    Ok(characters)
}

fn tokenizer(characters: &BTreeSet<char>) -> Value {
    let special = SPECIAL.iter().map(|&token| token.to_owned());
    let tokens = special.chain(characters.iter().map(char::to_string));
    let vocabulary: Map<String, Value> = tokens
        .zip(0_u64..)
        .map(|(token, id)| (token, id.into()))
        .collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .zip(0_u64..)
        .map(|(token, id)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": EACH_CHARACTER}, "behavior": "Isolated", "invert": false,
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}
