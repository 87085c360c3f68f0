//! Small prompts and responses with their tokenizer, for runs that read them.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Words that the tokenizer knows; `seed` chooses which of them stand in a row.
const WORDS: [&str; 12] = [
    "why", "is", "the", "kiln", "hot", "so", "it", "was", "fired", "well", "and", "long",
];

/// `rows.jsonl`, the same as `train.jsonl`, `valid.jsonl`, and a tokenizer under the name of
/// `chatlm`'s and as `tokenizer.json`.
pub(crate) fn write(folder: &Path, seed: usize) {
    let rows = |first: usize, count: usize| {
        (first..first + count)
            .map(|number| row(number, seed))
            .collect::<String>()
    };
    for (name, text) in [
        ("rows.jsonl", rows(0, 80)),
        ("train.jsonl", rows(0, 80)),
        ("valid.jsonl", rows(80, 10)),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    for name in ["tokenizer.json", "tokenizer-20231214.json"] {
        fs::write(folder.join(name), tokenizer(seed).to_string()).unwrap();
    }
}

/// Every second prompt has words that are unknown to the tokenizer; other keys hold other texts.
fn row(number: usize, seed: usize) -> String {
    let text = |salt: usize, count: usize| {
        let word = |at: usize| WORDS[(number * salt + at * seed + at * at) % WORDS.len()];
        (0..count).map(word).collect::<Vec<&str>>().join(" ")
    };
    let prompt = if number.is_multiple_of(2) {
        format!("{} porcelain celadon majolica stoneware", text(5, 2))
    } else {
        text(5, 2 + number * 7 % 15)
    };
    let (response, question, answer) = (text(7, 1 + number * 11 % 19), text(3, 4), text(11, 5));
    json!({"prompt": prompt, "response": response, "question": question, "answer": answer})
        .to_string()
        + "\n"
}

fn tokenizer(seed: usize) -> Value {
    let special = ["[PAD]", "[EOS]", "[UNK]", "<pad>", "</s>", "<unk>"];
    // One more for every letter of the seed, so that two seeds have two vocabularies.
    let more: Vec<String> = (0..seed).map(|number| format!("more{number}")).collect();
    let all = special
        .into_iter()
        .chain(WORDS)
        .chain(more.iter().map(String::as_str));
    let vocabulary: serde_json::Map<String, Value> = all
        .enumerate()
        .map(|(id, word)| (word.to_owned(), id.into()))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}
