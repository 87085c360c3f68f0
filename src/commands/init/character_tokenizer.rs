//! A tokenizer for prompts and responses that came without one: each character is a token.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::Path,
};

use kiln_core::limits::DATA_BYTES;
use kiln_data::files;
use serde_json::{Map, Value, json};

/// Tokens that `data.pad_token`, `data.end_token` and `data.unknown_token` name by default.
const SPECIAL: [&str; 3] = ["[PAD]", "[EOS]", "[UNK]"];

/// Returns a `tokenizer.json` with the characters of these keys of a JSONL file, plain or compressed. Lines that are not
/// JSON are passed over: a run names them.
pub(super) fn of_rows(path: &Path, keys: [&str; 2]) -> Result<String, String> {
    let file = files::open(path, path, &DATA_BYTES).map_err(|error| error.to_string())?;
    let mut characters = BTreeSet::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let row: Map<String, Value> =
            serde_json::from_str(line.trim_start_matches('\u{feff}')).unwrap_or_default();
        let texts = keys.iter().filter_map(|key| row.get(*key)?.as_str());
        characters.extend(texts.flat_map(str::chars));
    }
    serde_json::to_string_pretty(&tokenizer(&characters))
        .map(|text| text + "\n")
        .map_err(|error| error.to_string())
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
            "type": "Split", "pattern": {"Regex": "(?s)."}, "behavior": "Isolated", "invert": false,
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}
