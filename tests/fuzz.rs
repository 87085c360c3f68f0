//! Experiment files, tables, records, messages and tokenizers are changed at random: cut, joined,
//! filled with bytes and words that do not belong there. The result is read, planned, reported and
//! compared. Nothing may panic or compute for long, and an experiment or a record that is read must
//! be the same after it was written and read again. `kiln-trial` does the same with tensors.
//!
//! Two seconds for each kind in the short form, twenty in the long one; `KILN_FUZZ_SECONDS=3600
//! cargo test --release --workspace fuzz` goes on for an hour, `KILN_FUZZ_INPUTS=1000000` for so
//! many inputs of each kind. The same inputs are made each time, and others with another
//! `KILN_FUZZ_SEED` (1): a check of one change does not fail for what another one left. Each kind prints
//! its inputs a second.
//! `tests/fuzz/` holds inputs that once broke something; all of them are tried first.

use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use crate::fuzzing::{MOST_BYTES, fire};
use kiln::report::{
    self, Album, PageStyle, RunDiff, Subject,
    compare::{ComparisonPage, Options, Treatment, compare},
};
use kiln_core::{
    kinds::{Data, data::DataFacts},
    plan::{self, TrialId},
    record::{
        AttemptFile, EpochRow, Message, RunFile, RunFolder, SampleRow, SnapshotRow, StepRow, Table,
        TrialResult, TrialTable, checkpoint::Header,
    },
    spec,
};
use kiln_data::pairs;
use serde::{Serialize, de::DeserializeOwned};

/// What experiment files are made of, and what their readers stumble over.
const YAML_WORDS: [&str; 68] = [
    "kiln: 1",
    "name: x",
    "model:",
    "data:",
    "train:",
    "sweep:",
    "run:",
    "measure:",
    "record:",
    "extends: base.yaml",
    "{",
    "}",
    "[",
    "]",
    ",",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "  ",
    "kind: gpt",
    "kind: generated",
    "grid:",
    "zip:",
    "include:",
    "exclude:",
    "derive:",
    "64 / train.batch_size",
    " * ",
    " - (",
    "sqrt(",
    "min(",
    "repeats: 3",
    "search:",
    "kind: workers",
    "train.batch_size",
    "data.num_workers",
    "model.kind",
    "train.optimizer",
    "null",
    "~",
    "true",
    "yes",
    "0",
    "-1",
    "1e400",
    "1e3",
    "0x10",
    "0o7",
    ".nan",
    ".inf",
    "18446744073709551616",
    "1.0e-4",
    "\"",
    "'",
    "|",
    ">",
    "&a",
    "*a",
    "<<: *a",
    "!!str",
    "%YAML 1.1",
    "---",
    "...",
    "\t",
    "\u{feff}",
    "\u{2028}",
    "30m",
];

/// The same for tables.
const CSV_WORDS: [&str; 40] = [
    ",",
    "\n",
    "\r\n",
    "\"",
    "\"\"",
    ";",
    "\t",
    "trials/5",
    "trials/1",
    "trials/99",
    "trials/x",
    "samples/2",
    "kiln_table",
    "train.batch_size",
    "a.b",
    ".",
    "0",
    "-1",
    "1e308",
    "-1e308",
    "1e-320",
    "NaN",
    "inf",
    "18446744073709551615",
    "99999999999999999999",
    "completed",
    "oom",
    "failed",
    "true",
    "\u{feff}",
    "\u{0}",
    "é",
    "🔥",
    "<script>",
    "; : ; ",
    "mfu: no peak",
    "GPU-1",
    "unknown",
    "none",
    "_",
];

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() && entry.file_name() != "trials" {
                folders.push(path);
            } else if kind.is_file() && path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn contents(paths: Vec<PathBuf>) -> Vec<Vec<u8>> {
    paths
        .into_iter()
        .map(|path| fs::read(path).unwrap())
        .filter(|bytes| bytes.len() < MOST_BYTES)
        .collect()
}

/// An experiment that is read can be planned or is refused in words; written down as resolved it is
/// the same experiment.
fn try_experiment(folder: &Path, bytes: &[u8]) {
    let file = folder.join("x.yaml");
    fs::write(&file, bytes).unwrap();
    let load = |file: &Path| {
        spec::load(&spec::ExperimentRequest {
            file: file.to_owned(),
            ..Default::default()
        })
    };
    let loaded = match load(&file) {
        Ok(loaded) => loaded,
        Err(problems) => {
            let text = problems.to_string();
            assert!(
                !text.is_empty() && text.lines().all(|line| line.contains(':')),
                "{text}"
            );
            return;
        }
    };
    let trials = |loaded: &spec::Loaded| {
        plan::expand(&loaded.experiment, &|_| None).map(|plan| {
            plan.trials
                .into_iter()
                .map(|trial| trial.id)
                .collect::<Vec<TrialId>>()
        })
    };
    let resolved = folder.join("resolved.yaml");
    let text = spec::write_resolved(&loaded);
    fs::write(&resolved, &text).unwrap();
    let again = load(&resolved).unwrap_or_else(|problems| unreachable!("{problems}\n{text}"));
    // A plan of many thousands is slow, not wrong.
    if loaded.experiment.sweep.repeats > 20 {
        return;
    }
    match (trials(&loaded), trials(&again)) {
        (Ok(one), Ok(other)) => assert_eq!(one, other, "{text}"),
        (one, other) => assert_eq!(one.is_err(), other.is_err(), "{text}"),
    }
}

#[test]
fn experiment_files_under_fire() {
    let folder = tempfile::tempdir().unwrap();
    let seeds = contents(
        [
            files("experiments", ".yaml"),
            files("tests/experiments", ".yaml"),
            files("results", "experiment.yaml"),
        ]
        .concat(),
    );
    fire("yaml", seeds, &YAML_WORDS, |bytes| {
        try_experiment(folder.path(), bytes)
    });
}

/// Whatever a table holds can be told in every form, and compared with itself.
fn try_table(bytes: &[u8]) {
    let path = Path::new("results/x/trials.csv");
    let of = |version: &str| Table::read_from(&mut Cursor::new(bytes), path, version);
    let _ = of("samples/2").and_then(|table| table.rows::<SampleRow>());
    let _ = of("snapshots/2").and_then(|table| table.rows::<SnapshotRow>());
    let _ = of("steps/1").and_then(|table| table.rows::<StepRow>());
    let _ = of("epochs/3").and_then(|table| table.rows::<EpochRow>());
    let text = String::from_utf8_lossy(bytes);
    let run = RunFile::parse(&text, path).ok();
    let table = match TrialTable::read_from(&mut Cursor::new(bytes), path) {
        Ok(table) => table,
        Err(error) => {
            assert!(
                error.to_string().starts_with("results/x/trials.csv"),
                "{error}"
            );
            return;
        }
    };
    // A folder in which nothing lies: every series is looked for.
    let folder = RunFolder::at("/nonexistent");
    let subject = Subject {
        run: run.as_ref(),
        experiment: Some(&text),
        folder: Some(&folder),
        ..Subject::new(&table, "results/x/trials.csv")
    };
    for width in [None, Some(60)] {
        assert!(
            !report::text(
                subject,
                PageStyle {
                    width,
                    has_color: false
                }
            )
            .is_empty()
        );
    }
    assert!(!report::markdown(subject).is_empty());
    assert!(serde_json::from_str::<serde_json::Value>(&report::json(subject)).is_ok());
    let differences = RunDiff::of(subject, subject);
    assert!(differences.is_empty(), "{:?}", differences.differences);
    assert!(!differences.text("a", "b").is_empty());
    let subjects = [subject, subject];
    for subjects in [&subjects[..1], &subjects[..]] {
        let album = Album::of(subjects);
        assert_eq!(album.html().matches("<script>").count(), 1);
        assert!(
            album
                .pictures()
                .iter()
                .all(|(_, svg)| svg.matches("<svg").count() == 1
                    && svg.trim_end().ends_with("</svg>"))
        );
    }
    let keys = [vec![], table.axes.clone()];
    for by in keys {
        let Ok(found) = compare(
            &table,
            &table,
            &Options {
                by,
                treatment: Some(Treatment::between(subject, subject)),
                ..Options::default()
            },
        ) else {
            continue;
        };
        let page = ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &found,
        };
        assert!(
            !page
                .text(PageStyle {
                    width: Some(80),
                    has_color: true
                })
                .is_empty()
        );
        assert!(
            [page.markdown(), page.csv(), page.value().to_string()]
                .iter()
                .all(|told| !told.is_empty())
        );
    }
}

#[test]
fn tables_under_fire() {
    let seeds = contents(
        [
            files("results", ".csv"),
            files("tests/expected", ".csv"),
            files("results", "run.json"),
        ]
        .concat(),
    );
    // Whole tables are long: their heads with a few rows are spoiled where it matters.
    let heads = files("results", "trials.csv")
        .into_iter()
        .map(|path| fs::read(path).unwrap());
    let heads = heads.map(|bytes| {
        bytes
            .split_inclusive(|byte| *byte == b'\n')
            .take(5)
            .collect::<Vec<_>>()
            .concat()
    });
    fire(
        "csv",
        seeds.into_iter().chain(heads).collect(),
        &CSV_WORDS,
        try_table,
    );
}

/// Pieces of JSON files.
const JSON_WORDS: [&str; 36] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "false",
    "0",
    "-0",
    "-1",
    "0.1",
    "1e308",
    "1e400",
    "18446744073709551616",
    "9223372036854775808",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "\"kiln_run\":1",
    "\"event\":\"finished\"",
    "\"outcome\":\"completed\"",
    "\"trial\":",
    "\"step\":",
    "\"notes\":{}",
    "é",
    "\u{0}",
    "\u{feff}",
    "NaN",
    "\n",
];

/// What is read is the same after it was written and read again.
fn try_as<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    if let Ok(read) = serde_json::from_slice::<T>(bytes) {
        let written = serde_json::to_value(&read).unwrap();
        let again: T = serde_json::from_str(&written.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), written);
    }
}

#[test]
fn run_files_under_fire() {
    let path = Path::new("results/x/run.json");
    fire(
        "run",
        contents(files("results", "run.json")),
        &JSON_WORDS,
        |bytes| {
            let text = String::from_utf8_lossy(bytes);
            match RunFile::parse(&text, path) {
                Ok(_) => try_as::<RunFile>(bytes),
                Err(error) => assert!(error.starts_with("results/x/run.json: "), "{error}"),
            }
        },
    );
}

/// Files of an attempt, of a checkpoint and of the cache.
const RECORDS: [&str; 6] = [
    r#"{"kiln_trial_result": 1, "trial": "t000000000", "attempt": 1, "outcome": "completed", "reason": null, "train_loss": 2.25, "samples_per_second": 64.0, "window_started_nanoseconds": 5, "window_cuts_nanoseconds": [[1, 2], [3, 4]], "notes": {"mfu": "no peak"}, "libraries": {"libtorch": "2.9.1"}, "flags": {}, "left_out_of_data": {"rows of null": 3}, "device_name": "cpu"}"#,
    r#"{"kiln_trial_result": 1, "trial": "t000000000", "attempt": 18446744073709551615, "outcome": "failed", "reason": "out of \u0000 words", "window_pairs": {"rows": 1, "prompt_tokens": 2}}"#,
    r#"{"trial": "t000000000", "attempt": 1, "launch": 1, "started_utc": "2026-01-01T00:00:00Z", "device": "cpu"}"#,
    r#"{"kiln_checkpoint": 1, "trial": "t000000000", "step": 500, "valid_loss": 1.5, "files": {"model.safetensors": {"bytes": 10, "sha256": "00"}}, "training": {"loop": {"seconds": 1.0}, "optimizer": {"steps": 1}}}"#,
    r#"{"counts": {"text": {"train_tokens": 9, "valid_tokens": 1, "vocabulary": 3}}, "sha256": "00"}"#,
    r#"{"kiln_peaks": 1, "peaks": [{"device": "GPU-1", "name": "NVIDIA H200", "libtorch": "2.9", "precision": "f32", "flops": 6.7e13, "size": 8192}]}"#,
];

#[test]
fn records_of_attempts_under_fire() {
    let seeds = RECORDS.map(|text| text.as_bytes().to_vec()).to_vec();
    fire("records", seeds, &JSON_WORDS, |bytes| {
        try_as::<TrialResult>(bytes);
        try_as::<AttemptFile>(bytes);
        try_as::<Header>(bytes);
        try_as::<DataFacts>(bytes);
    });
}

const MESSAGES: [&str; 8] = [
    r#"{"event":"hello","protocol":1,"kiln_trial":"0.1.0","pid":1}"#,
    r#"{"event":"ready","parameters":5,"total_steps":9,"device_name":"cpu","libraries":{"a":"1"}}"#,
    r#"{"event":"progress","step":3,"total_steps":9,"loss":2.5,"samples_per_second":1e3}"#,
    r#"{"event":"window_started","step":1,"monotonic_nanoseconds":12}"#,
    r#"{"event":"evaluated","step":1,"valid_loss":2.0}"#,
    r#"{"event":"checkpointed","step":1,"seconds":0.5,"bytes":100}"#,
    r#"{"event":"finished","outcome":"completed","reason":null}"#,
    r#"{"event":"notice","text":"words"}"#,
];

#[test]
fn messages_of_a_child_under_fire() {
    let seeds = MESSAGES.map(|text| text.as_bytes().to_vec()).to_vec();
    fire("messages", seeds, &JSON_WORDS, |bytes| {
        bytes
            .split(|byte| *byte == b'\n')
            .for_each(try_as::<Message>);
    });
}

/// Tokenizer files of every kind of model, each with other parts around it.
fn tokenizers() -> Vec<Vec<u8>> {
    let special = r#"[{"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}, {"id": 1, "content": "[EOS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]"#;
    let vocabulary =
        r###"{"[PAD]": 0, "[EOS]": 1, "[UNK]": 2, "a": 3, "b": 4, "ab": 5, "c": 6, "##c": 7}"###;
    // A map that replaces `a` by `b`, as SentencePiece packs it.
    let mut units = vec![0_u32; 1024];
    units[0] = 256 << 10;
    units[0x161] = 0x61 | 1 << 8 | (0x161 ^ 768) << 10;
    units[768] = 1 << 31;
    let mut charsmap = (4 * 1024_u32).to_le_bytes().to_vec();
    charsmap.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    charsmap.extend(b"b\0");
    let charsmap = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, charsmap);
    let file = |normalizer: &str, before: &str, decoder: &str, model: &str| {
        format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {special}, "normalizer": {normalizer}, "pre_tokenizer": {before}, "post_processor": null, "decoder": {decoder}, "model": {model}}}"#
        )
        .into_bytes()
    };
    let word = format!(r#"{{"type": "WordLevel", "vocab": {vocabulary}, "unk_token": "[UNK]"}}"#);
    let piece = format!(
        r###"{{"type": "WordPiece", "vocab": {vocabulary}, "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}}"###
    );
    let bpe = format!(
        r#"{{"type": "BPE", "dropout": null, "unk_token": "[UNK]", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": {vocabulary}, "merges": ["a b"]}}"#
    );
    let unigram = r#"{"type": "Unigram", "unk_id": 2, "vocab": [["[PAD]", 0.0], ["[EOS]", 0.0], ["[UNK]", 0.0], ["a", -1.5], ["b", -2.0], ["ab", -1.0]]}"#;
    let mapped = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{charsmap}"}}"#);
    let several = format!(
        r#"{{"type": "Sequence", "normalizers": [{{"type": "NFKC"}}, {{"type": "Lowercase"}}, {{"type": "Strip", "strip_left": true, "strip_right": true}}, {mapped}]}}"#
    );
    let metaspace =
        r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}"#;
    let bytes = r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#;
    let split = r#"{"type": "Split", "pattern": {"Regex": "[a-z]+|\\s"}, "behavior": "Isolated", "invert": false}"#;
    vec![
        file("null", r#"{"type": "WhitespaceSplit"}"#, "null", &word),
        file(
            r#"{"type": "NFC"}"#,
            r#"{"type": "BertPreTokenizer"}"#,
            r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###,
            &piece,
        ),
        file("null", bytes, bytes, &bpe),
        file(&mapped, metaspace, metaspace, unigram),
        file(&several, split, r#"{"type": "Fuse"}"#, &bpe),
        file(
            r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}"#,
            r#"{"type": "Punctuation", "behavior": "Isolated"}"#,
            r#"{"type": "Strip", "content": "a", "start": 1, "stop": 0}"#,
            &word,
        ),
    ]
}

#[test]
fn tokenizers_under_fire() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, file) = (
        folder.path().join("rows.jsonl"),
        folder.path().join("tokenizer.json"),
    );
    fs::write(
        &rows,
        "{\"prompt\": \"abc a\", \"response\": \"Ab é 🔥 c\"}\n",
    )
    .unwrap();
    let data: Data = serde_yaml::from_str(&format!(
        "{{kind: sft-jsonl, path: {}, tokenizer: {}, valid_fraction: 0}}",
        rows.display(),
        file.display()
    ))
    .unwrap();
    fire("tokenizer", tokenizers(), &JSON_WORDS, |bytes| {
        fs::write(&file, bytes).unwrap();
        match pairs::load(&data, None) {
            Ok(loaded) => {
                let pair = &loaded.train[0];
                let _ = loaded.tokens.decode(&pair.prompt);
                let _ = loaded.tokens.decode(&[0, 1, 2, 3, u32::MAX]);
            }
            Err(error) => assert!(error.to_string().contains("tokenizer.json"), "{error}"),
        }
    });
}
