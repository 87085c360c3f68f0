use std::{fs, path::PathBuf};

use super::*;
use crate::facts::facts;

/// Words are separated by white space; everything else is unknown.
const TOKENIZER: &str = r#"{
  "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}, "padding": null,
  "added_tokens": [
    {"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 9, "content": "[EOS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
  ],
  "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
  "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[UNK]": 1, "why": 2, "so": 3, "it": 4, "is": 5, "[EOS]": 9}, "unk_token": "[UNK]"}
}"#;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn with(rows: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), TOKENIZER).unwrap();
        let place = Self { folder };
        place.write("rows.jsonl", rows);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn data(&self, keys: &str) -> Data {
        let (rows, tokenizer) = (self.path("rows.jsonl"), self.path("tokenizer.json"));
        serde_yaml::from_str(&format!(
            "{{kind: sft-jsonl, path: {}, tokenizer: {}{keys}}}",
            rows.display(),
            tokenizer.display()
        ))
        .unwrap()
    }

    fn load(&self, keys: &str) -> Result<LoadedPairs, DataError> {
        load(&self.data(keys), None)
    }

    fn error(&self, keys: &str) -> String {
        let error = self.load(keys).unwrap_err().to_string();
        error.replace(&self.folder.path().display().to_string(), "HERE")
    }
}

fn row(prompt: &str, response: &str) -> String {
    serde_json::json!({"prompt": prompt, "response": response}).to_string() + "\n"
}

fn prompts(pairs: &[Pair]) -> Vec<&str> {
    pairs.iter().map(|pair| pair.prompt_text.as_str()).collect()
}

/// Ten rows, `0` to `9`.
fn ten() -> Place {
    Place::with(
        &(0..10)
            .map(|number| row(&number.to_string(), "so it is"))
            .collect::<String>(),
    )
}

#[test]
fn rows_become_ids_that_are_cut_and_end_and_are_counted() {
    let place = Place::with(&(row("why is it so", "so") + &row("why", "it is what it is")));
    let loaded = place
        .load(", valid_fraction: 0, max_prompt_tokens: 4, max_response_tokens: 5")
        .unwrap();
    let expected = [
        Pair {
            prompt: vec![2, 5, 4, 9],
            response: vec![3, 9],
            prompt_text: "why is it so".to_owned(),
            response_text: "so".to_owned(),
        },
        Pair {
            prompt: vec![2, 9],
            response: vec![4, 5, 1, 4, 9],
            prompt_text: "why".to_owned(),
            response_text: "it is what it is".to_owned(),
        },
    ];
    assert_eq!(
        loaded.train, expected,
        "the file's own truncation counts for nothing"
    );
    let train = PairCounts {
        rows: 2,
        prompt_tokens: 6,
        response_tokens: 7,
        prompt_squares: 20,
        response_squares: 29,
        prompt_response_products: 18,
        cut_prompts: 1,
        cut_responses: 1,
        unknown_tokens: 1,
    };
    // Ids go up to 9, with a gap.
    assert_eq!(
        loaded.facts.counts,
        Counts::Pairs {
            train,
            valid: PairCounts::default(),
            vocabulary: 10
        }
    );
    assert_eq!(loaded.facts.train_samples(&place.data(""), None), Some(2));
    assert_eq!(
        (
            loaded.tokens.end(),
            loaded.tokens.pad(),
            loaded.tokens.unknown()
        ),
        (9, 0, Some(1))
    );
    assert_eq!(loaded.tokens.encode("so what").unwrap(), [3, 1]);
    assert_eq!(loaded.tokens.decode(&[4, 5, 9, 0, 3, 77]), "it is so");
}

#[test]
fn the_end_of_the_file_or_a_file_of_its_own_validates() {
    let place = ten();
    let parts = |keys: &str| {
        let loaded = place.load(keys).unwrap();
        (
            prompts(&loaded.train).concat(),
            prompts(&loaded.valid).concat(),
        )
    };
    let expect = |train: &str, valid: &str| (train.to_owned(), valid.to_owned());
    assert_eq!(parts(""), expect("012345678", "9"));
    assert_eq!(parts(", valid_fraction: 0.25"), expect("0123456", "789"));
    assert_eq!(
        parts(", valid_fraction: 0.5, train_rows: 2, valid_rows: 3"),
        expect("01", "567")
    );
    place.write("own.jsonl", &(row("a", "so") + &row("b", "so")));
    let own = format!(", valid_path: {}", place.path("own.jsonl").display());
    assert_eq!(parts(&own), expect("0123456789", "ab"));
    assert_ne!(
        place.load(&own).unwrap().facts.sha256,
        place.load("").unwrap().facts.sha256
    );
    assert_eq!(
        place.error(", train_rows: 10"),
        "HERE/rows.jsonl has 9 rows, fewer than the 10 of `data.train_rows`; lower it, or remove \
         it to use all rows"
    );
    assert!(
        place
            .error(&format!("{own}, valid_rows: 3"))
            .starts_with("HERE/own.jsonl has 2 rows, fewer than the 3 of `data.valid_rows`")
    );
}

#[test]
fn every_bad_row_is_named_by_file_and_line() {
    let good = row("why", "so");
    for (bad, said) in [
        ("why so", "not valid JSON (expected value at column 1)"),
        (
            "{\"prompt\": \"why\"",
            "not valid JSON (EOF while parsing an object at column 16)",
        ),
        ("[1, 2]", "found a list of 2, expected a JSON object"),
        ("", "the line is empty, expected a JSON object"),
        (
            "{}",
            "the object is empty; it needs `prompt`, as `data.prompt_key` says",
        ),
        (
            "{\"prompt\": \"why\", \"answer\": \"so\"}",
            "no key `response`, which `data.response_key` names; the row has `prompt`, `answer`",
        ),
        (
            "{\"prompt\": 3, \"response\": \"so\"}",
            "`prompt` is the number 3, expected text",
        ),
        (
            "{\"prompt\": \"why\", \"response\": null}",
            "`response` is null, expected text",
        ),
        (
            "{\"prompt\": \" \\n\", \"response\": \"so\"}",
            "`prompt` is blank: \" \\n\"",
        ),
        (
            "{\"prompt\": \"why\", \"response\": \"\"}",
            "`response` is blank: \"\"",
        ),
    ] {
        let place = Place::with(&format!("{good}{bad}\n{good}"));
        assert_eq!(
            place.error(""),
            format!("HERE/rows.jsonl:2: {said}; correct the row or remove it")
        );
    }
    for (text, said) in [("", "has no row"), (" \n\n", "has no row")] {
        assert!(
            Place::with(text)
                .error("")
                .starts_with(&format!("HERE/rows.jsonl {said}"))
        );
    }
    let place = ten();
    fs::write(place.path("rows.jsonl"), b"{\"prompt\": \"\xff\"}").unwrap();
    assert!(place.error("").contains("is not UTF-8 text: byte 12"));
}

#[test]
fn a_mark_at_the_start_other_line_ends_and_empty_lines_at_the_end_do_no_harm() {
    let text = format!(
        "\u{feff}{}\r\n{}\r\n\n\n",
        row("a", "so").trim_end(),
        row("b", "so").trim_end()
    );
    assert_eq!(
        prompts(
            &Place::with(&text)
                .load(", valid_fraction: 0")
                .unwrap()
                .train
        ),
        ["a", "b"]
    );
    let keys = ", valid_fraction: 0, prompt_key: input, response_key: output";
    let loaded = Place::with("{\"output\": \"so\", \"input\": \"why\", \"more\": []}")
        .load(keys)
        .unwrap();
    assert_eq!(
        (
            loaded.train[0].prompt_text.as_str(),
            loaded.train[0].response_text.as_str()
        ),
        ("why", "so")
    );
}

#[test]
fn a_tokenizer_that_cannot_be_used_is_refused() {
    let place = ten();
    assert_eq!(
        place.error(", end_token: </s>"),
        "HERE/tokenizer.json has no token `</s>`, which `data.end_token` names; its special tokens \
         are `[PAD]`, `[EOS]`"
    );
    for (key, token) in [("pad_token", "<pad>"), ("unknown_token", "<unk>")] {
        let error = place.error(&format!(", {key}: {token}"));
        assert!(
            error.contains(&format!("has no token `{token}`, which `data.{key}` names")),
            "{error}"
        );
    }
    assert_eq!(
        place
            .load(", unknown_token: is")
            .unwrap()
            .facts
            .input_shape()
            .pairs()
            .unwrap()
            .train
            .unknown_tokens,
        9
    );
    place.write("tokenizer.json", "{}");
    assert!(
        place
            .error("")
            .starts_with("HERE/tokenizer.json is not a tokenizer: ")
    );
    place.write(
        "tokenizer.json",
        &TOKENIZER.replace(", \"unk_token\": \"[UNK]\"", ""),
    );
    assert!(
        place
            .error("")
            .starts_with("HERE/tokenizer.json is not a tokenizer: ")
            || place.error("").contains("cannot tokenize a text")
    );
    let merges = r#"{"type": "BPE", "dropout": 0.1, "unk_token": "[UNK]", "fuse_unk": false, "byte_fallback": false, "vocab": {"[UNK]": 1}, "merges": []}"#;
    let (before, _) = TOKENIZER.split_once("\"model\": ").unwrap();
    place.write("tokenizer.json", &format!("{before}\"model\": {merges}}}"));
    assert!(
        place
            .error("")
            .contains("drops merges at random (`dropout` 0.1)"),
        "{}",
        place.error("")
    );
    fs::remove_file(place.path("tokenizer.json")).unwrap();
    let absent = "`data.tokenizer` names HERE/tokenizer.json, and there is no such file (nor one \
                  that also ends in .gz or .xz)";
    assert!(place.error("").starts_with(absent), "{}", place.error(""));
    std::os::unix::fs::symlink("/dev/zero", place.path("tokenizer.json")).unwrap();
    assert_eq!(
        place.error(""),
        "`data.tokenizer` names HERE/tokenizer.json, which is no ordinary file; copy what it gives \
         into one"
    );
    fs::remove_file(place.path("tokenizer.json")).unwrap();
    fs::create_dir(place.path("tokenizer.json")).unwrap();
    assert_eq!(
        place.error(""),
        "`data.tokenizer` names HERE/tokenizer.json, which is a folder; name a file in it"
    );
    assert!(
        place
            .error(", valid_path: nowhere.jsonl")
            .starts_with("`data.valid_path` names nowhere.jsonl, and there is no such file")
    );
}

#[test]
fn an_unknown_token_of_the_other_usual_name_is_counted() {
    let place = ten();
    let counted = |keys: &str| {
        let loaded = place.load(keys).unwrap();
        let shape = loaded.facts.input_shape().pairs().unwrap();
        (loaded.tokens.unknown(), shape.train.unknown_tokens)
    };
    let by_default = counted("");
    assert_eq!(by_default, (Some(1), 9));
    place.write("tokenizer.json", &TOKENIZER.replace("[UNK]", "<unk>"));
    assert_eq!(counted(""), by_default);
    // Every row ends with it, so it says nothing.
    assert_eq!(counted(", end_token: <unk>"), (None, 0));
}

#[test]
fn a_tokenizer_of_bytes_needs_no_unknown_token() {
    let place = ten();
    let bytes = r#"{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 1, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false, "vocab": {"ALL"}, "merges": []}}"#;
    let letters: Vec<String> = ('!'..='~')
        .chain(['Ġ', 'Ċ'])
        .filter(|letter| !['"', '\\'].contains(letter))
        .map(String::from)
        .collect();
    let vocabulary = letters
        .iter()
        .enumerate()
        .map(|(id, letter)| format!("\"{letter}\": {}", id + 2))
        .collect::<Vec<String>>()
        .join(", ");
    place.write("tokenizer.json", &bytes.replace("\"ALL\"", &vocabulary));
    let loaded = place
        .load(", end_token: <|end|>, pad_token: <|end|>")
        .unwrap();
    assert_eq!(
        (
            loaded.tokens.unknown(),
            loaded
                .facts
                .input_shape()
                .pairs()
                .unwrap()
                .train
                .unknown_tokens
        ),
        (None, 0)
    );
}

#[test]
fn counts_are_kept_by_what_they_depend_on() {
    let place = ten();
    let cache = place.path("cache");
    let rows = |keys: &str| {
        let facts = facts(&place.data(keys), None, Some(&cache))
            .unwrap()
            .unwrap();
        assert_eq!(facts, place.load(keys).unwrap().facts);
        facts.input_shape().pairs().unwrap().train.tokens()
    };
    // Nine rows of `0` and the end, `so it is` and the end.
    assert_eq!(rows(""), 9 * 6);
    assert_eq!(
        rows(", length_bucket: 1, sort_by_length: false, num_workers: 3"),
        9 * 6
    );
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
    assert_eq!(rows(", max_response_tokens: 2"), 9 * 4);
    assert_eq!(rows(", train_rows: 2"), 2 * 6);
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 3);
}

#[test]
fn chatlm_has_its_known_counts_and_tokens() {
    let Some(folder) = crate::published::folder() else {
        return;
    };
    let data: Data = serde_yaml::from_str("{kind: chatlm}").unwrap();
    let loaded = load(&data, Some(&folder)).unwrap();
    assert_eq!(
        super::super::dataset::known_facts(&data, &loaded.facts.sha256),
        Some(loaded.facts.clone())
    );
    assert_eq!(
        facts(&data, Some(&folder), None).unwrap(),
        Some(loaded.facts.clone())
    );
    let tokens = &loaded.tokens;
    assert_eq!(
        (tokens.len(), tokens.pad(), tokens.end(), tokens.unknown()),
        (29_298, 0, 1, Some(6))
    );
    // Expected values from the reference implementation in Python, version 0.23.
    let ids = tokens.encode("如何评价Apple这家公司？").unwrap();
    assert_eq!(ids, [1164, 8216, 872, 9469, 9469, 7333, 6344, 1675, 89]);
    assert_eq!(tokens.decode(&ids), "如何 评价 A p p le 这家 公司 ？");
    assert_eq!(
        (
            loaded.train[0].prompt_text.as_str(),
            loaded.train[0].prompt.last()
        ),
        ("哪种牌子的鱼油纯度高？", Some(&1))
    );
}

#[test]
fn chatlm_cut_shorter_has_the_counts_of_the_reference() {
    let Some(folder) = crate::published::folder() else {
        return;
    };
    let data: Data =
        serde_yaml::from_str("{kind: chatlm, max_prompt_tokens: 64, max_response_tokens: 64}")
            .unwrap();
    let facts = load(&data, Some(&folder)).unwrap().facts;
    let train = PairCounts {
        rows: 3000,
        prompt_tokens: 73_614,
        response_tokens: 162_226,
        prompt_squares: 2_719_958,
        response_squares: 9_668_800,
        prompt_response_products: 3_931_482,
        cut_prompts: 238,
        cut_responses: 2051,
        unknown_tokens: 239,
    };
    let valid = PairCounts {
        rows: 1000,
        prompt_tokens: 24_288,
        response_tokens: 54_407,
        prompt_squares: 890_980,
        response_squares: 3_257_337,
        prompt_response_products: 1_289_822,
        cut_prompts: 81,
        cut_responses: 699,
        unknown_tokens: 64,
    };
    assert_eq!(
        facts.counts,
        Counts::Pairs {
            train,
            valid,
            vocabulary: 29_298
        }
    );
    assert_eq!(
        super::super::dataset::known_facts(&data, &facts.sha256),
        None
    );
}

#[test]
fn a_damaged_charsmap_is_an_error_and_not_the_end_of_the_program() {
    let place = Place::with(&row("why it", "so is"));
    // An empty trie; one that leads out of itself; one that claims 4 GiB.
    for charsmap in ["AAAAAA==", "BAAAAAAAAEA=", "/////w==", "", "?"] {
        let normalizer = format!(
            r#""normalizer": {{"type": "Precompiled", "precompiled_charsmap": "{charsmap}"}}"#
        );
        place.write(
            "tokenizer.json",
            &TOKENIZER.replace(r#""normalizer": null"#, &normalizer),
        );
        let error = place.error(", valid_fraction: 0");
        assert!(
            error.starts_with(
                "HERE/tokenizer.json is not a tokenizer: its `precompiled_charsmap` is damaged: "
            ),
            "{charsmap}: {error}"
        );
    }
}

#[test]
fn a_long_line_is_named_before_the_rest_is_read() {
    let place = Place::with(&row("why it", "so is"));
    let long = "x".repeat(17 << 20);
    place.write("rows.jsonl", &format!("{}{long}", row("a", "b")));
    let error = place.error("");
    assert!(
        error.starts_with(
            "HERE/rows.jsonl could not be read: line 2: it has more than the 16.0 MiB allowed for \
             a line of a JSONL file; "
        ),
        "{error}"
    );
}

#[test]
fn a_row_moved_to_validation_changes_the_hash() {
    let rows = [row("1", "so"), row("2", "so"), row("3", "so")];
    let sha256 = |train: &[String], valid: &[String]| {
        let place = Place::with(&train.concat());
        place.write("valid.jsonl", &valid.concat());
        let valid = place.path("valid.jsonl");
        let keys = format!(", valid_path: {}", valid.display());
        place.load(&keys).unwrap().facts.sha256
    };
    assert_eq!(
        sha256(&rows[..2], &rows[2..]),
        sha256(&rows[..2], &rows[2..])
    );
    assert_ne!(
        sha256(&rows[..2], &rows[2..]),
        sha256(&rows[..1], &rows[1..])
    );
}

#[test]
fn validation_rows_that_are_training_rows_are_counted() {
    let place = Place::with(&(row("why", "so") + &row("is it", "so")));
    let seen = |rows: &str| {
        place.write("valid.jsonl", rows);
        let valid = place.path("valid.jsonl");
        let keys = format!(", valid_path: {}", valid.display());
        place.load(&keys).unwrap().seen_valid_rows
    };
    assert_eq!(seen(&(row("is it", "so") + &row("why", "so"))), 2);
    // One text alone does not make a row the same.
    assert_eq!(seen(&(row("why", "is it") + &row("is", "so"))), 0);
}

#[test]
fn other_rows_need_the_tokenizer_alone() {
    let place = ten();
    place.write("other.jsonl", &row("why", "so it is"));
    let data = place.data("");
    fs::remove_file(place.path("rows.jsonl")).unwrap();
    assert!(load(&data, None).is_err());
    let found = load_other(&data, None, &place.path("other.jsonl")).unwrap();
    assert_eq!(found.rows[0].prompt, [2, 9]);
    fs::remove_file(place.path("tokenizer.json")).unwrap();
    let absent = tokens(&data, None).unwrap_err().to_string();
    assert!(absent.starts_with("`data.tokenizer` names "), "{absent}");
    // A published set, of which the rows are not there.
    fs::create_dir(place.path("chatlm-mini-chinese")).unwrap();
    place.write("chatlm-mini-chinese/tokenizer-20231214.json", TOKENIZER);
    let published: Data = serde_yaml::from_str("{kind: chatlm}").unwrap();
    let (found, _) = tokens(&published, Some(place.folder.path())).unwrap();
    assert_eq!(found.len(), 10);
}
