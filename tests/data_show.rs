//! `kiln data show`, driven as a program, on small data of each kind.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::{pages::root, use_model::png};

const PETS: &str = "kiln: 1\nname: pets\nmodel: {kind: resnet, depth: 18, width: 4, stem: \
                    small}\ndata: {kind: image-folder, path: photos, image_size: 32, skip_bad: \
                    true}\ntrain: {steps: 2, batch_size: 2}\n";

/// `kiln` in this folder, with no data but those of the folder and a cache of its own.
fn kiln(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .current_dir(folder)
        .args(arguments)
        .env_remove("KILN_DATA")
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What `kiln data show x.yaml` prints, with more arguments.
fn shown(folder: &Path, more: &[&str]) -> String {
    let output = kiln(folder, &[&["data", "show", "x.yaml"], more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn folder_with(yaml: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.yaml"), yaml).unwrap();
    folder
}

/// Eight training images of cats and two of dogs; two validation images of cats, of which one is a
/// copy of a training image.
fn write_photos(folder: &Path) {
    let image = |name: &str, gray: u8| {
        let path = folder.join("photos").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        png(&path, 16, 16, &[gray; 16 * 16 * 3]);
    };
    for number in 0..8 {
        image(&format!("train/cat/{number}.png"), number);
    }
    image("train/dog/0.png", 100);
    image("train/dog/1.png", 101);
    image("valid/cat/copy.png", 3);
    image("valid/cat/new.png", 50);
    fs::write(folder.join("photos/train/cat/notes.txt"), "by the window").unwrap();
}

#[test]
fn images_are_shown_by_class_with_duplicates_and_skipped_files() {
    let folder = folder_with(PETS);
    write_photos(folder.path());
    let page = shown(folder.path(), &[]);
    assert_eq!(
        page,
        "data of pets: image-folder
read from: photos
validation: the folder photos/valid
left out: 1 file that is no image
in both parts: 1 of 2 (50.0 %) validation images are also training images
images: 3 × 32 × 32 (channels, height, width), 2 classes
largest class: cat, 80.0 % of training, 100.0 % of validation
no validation image of: dog
notice: images: 2 classes, 2 to 10 images each; the largest class, cat, is 83.3 % (top-1 of always naming it: 100.0 % of validation); no validation image of class dog: top-1 says nothing about it

 class  train   share  valid    share
 cat        8  80.0 %      2  100.0 %
 dog        2  20.0 %      0    0.0 %
 (all)     10              2
"
    );
    let documented = fs::read_to_string(root().join("docs/data.md")).unwrap();
    assert!(documented.contains(&page), "docs/data.md has another page");
}

#[test]
fn a_panel_is_shown_by_part_and_column() {
    let folder = folder_with(
        "kiln: 1\nname: prices\nmodel: {kind: panel-lstm, seq_len: 4, hidden: 6, num_layers: \
         1}\ndata: {kind: panel-csv, path: prices, price: Close, columns: [Close, Volume], \
         valid_fraction: 0.25, skip_bad: true}\ntrain: {steps: 2, batch_size: 2}\n",
    );
    let row = |day: u32, close: &str, volume: &str| format!("2020-01-{day:02},{close},{volume}\n");
    let a = (1..=20).map(|day| match day {
        5 => row(day, "null", "50"),
        _ => row(day, &(100 + day).to_string(), &(10 * day).to_string()),
    });
    let b = (1..=10).map(|day| row(day, "60", if day == 3 { "x" } else { "5" }));
    fs::create_dir(folder.path().join("prices")).unwrap();
    for (name, rows) in [("A", a.collect::<String>()), ("B", b.collect())] {
        let file = folder.path().join(format!("prices/{name}.csv"));
        fs::write(file, format!("Date,Close,Volume\n{rows}")).unwrap();
    }
    assert_eq!(
        shown(folder.path(), &[]),
        "data of prices: panel-csv
read from: prices
validation: the last 25.0 % of the dates (`data.valid_fraction`)
left out: 1 row with a `null`; 1 row with a cell that is not a number (in B.csv)
symbols: 2 (A, B)
dates: without a time zone, as written

                           train       valid
 rows                         23           5
 first date           2020-01-01  2020-01-16
 last date            2020-01-15  2020-01-20
 samples (seq_len 4)          13           5

 column  used as          mean   min  max
 Close   feature, target  94.5  60.0  120
 Volume  feature          74.8  5.00  200
"
    );
}

#[test]
fn prompts_and_responses_are_shown_with_lengths_and_cuts() {
    let folder = folder_with(
        "kiln: 1\nname: answers\nmodel: {kind: seq2seq, d_model: 64, d_ff: 256, d_kv: 16}\ndata: \
         {kind: sft-jsonl, path: rows.jsonl, valid_path: valid.jsonl, tokenizer: t.json, \
         max_response_tokens: 3}\ntrain: {steps: 2, batch_size: 1}\n",
    );
    let words = include_str!("tokenizer.json");
    let rows = |rows: &[(&str, &str)]| -> String {
        let row = |row: &(&str, &str)| format!("{}\n", json!({"prompt": row.0, "response": row.1}));
        rows.iter().map(row).collect()
    };
    for (name, text) in [
        ("t.json", words.to_owned()),
        ("rows.jsonl", rows(&[("a", "b"), ("a a", "b b b b")])),
        ("valid.jsonl", rows(&[("a", "b"), ("b", "z")])),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(
        shown(folder.path(), &[]),
        "data of answers: sft-jsonl
read from: rows.jsonl, valid.jsonl, t.json
validation: the file valid.jsonl
left out: 1 end of a response longer than `max_response_tokens` 3
in both parts: 1 of 2 (50.0 %) validation rows are also training rows
tokens: vocabulary 5
notice: 12.5 % of the tokens of the validation rows are unknown to the tokenizer; is `data.tokenizer` the one for this text?; 1 of 2 validation rows are also training rows: their loss says nothing about new rows; take them out of one of the two parts

                                               train           valid
 rows                                              2               2
 prompt tokens (min, median, max)          2, 2.5, 3         2, 2, 2
 response tokens (min, median, max)        2, 2.5, 3         2, 2, 2
 prompts cut at 256                   0 of 2 (0.0 %)  0 of 2 (0.0 %)
 responses cut at 3                  1 of 2 (50.0 %)  0 of 2 (0.0 %)
 unknown tokens                                0.0 %          12.5 %
"
    );
}

#[test]
fn a_sweep_over_the_data_shows_its_first_point_and_names_the_axes() {
    let folder = folder_with(
        "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: text, path: own.txt}\ntrain: \
         {batch_size: 1, epochs: 1}\nsweep: {grid: {data.tokenizer: [character, word], \
         data.num_workers: [0, 1]}}\n",
    );
    let text = "to be or not to be\n".repeat(100);
    fs::write(folder.path().join("own.txt"), text).unwrap();
    let page = shown(folder.path(), &[]);
    assert_eq!(
        page.lines().nth(1).unwrap(),
        "first point of the sweep: data.tokenizer = character; other points have other values of \
         this key"
    );
    let found: Value = serde_json::from_str(&shown(folder.path(), &["--format", "json"])).unwrap();
    assert_eq!(found["axes"], json!({"data.tokenizer": "character"}));
    assert_eq!(found["content"], "text");
    assert_eq!(
        found["train"],
        json!({"bytes": 1710, "characters": 1710, "tokens": 1710, "samples": 26})
    );
    assert_eq!(found["valid"]["tokens"], 190);
    let planned = kiln(folder.path(), &["plan", "x.yaml", "--json"]);
    let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let first = &planned["trials"][0];
    assert_eq!(first["samples_per_epoch"], found["train"]["samples"]);
    let set = shown(folder.path(), &["--set", "data.tokenizer=word"]);
    assert!(
        set.contains("tokens: word, vocabulary 5\n") && !set.contains("sweep"),
        "{set}"
    );
}

#[test]
fn axes_of_the_model_are_named_where_they_change_the_samples() {
    let axes = |sweep: &str| {
        let folder = folder_with(&format!(
            "kiln: 1\nname: x\nmodel: {{kind: mlp}}\ndata: {{kind: generated}}\ntrain: \
             {{batch_size: 1, steps: 1}}\nsweep: {{{sweep}}}\n"
        ));
        let found = shown(folder.path(), &["--format", "json"]);
        serde_json::from_str::<Value>(&found).unwrap()["axes"].clone()
    };
    for (sweep, expected) in [
        (
            "grid: {model.kind: [mlp, lstm], train.batch_size: [1, 2]}",
            json!({"model.kind": "mlp"}),
        ),
        (
            "zip: {model.seq_len: [8, 9], train.batch_size: [1, 2]}",
            json!({"model.seq_len": 8}),
        ),
        ("grid: {model.hidden: [8, 16]}", json!({})),
    ] {
        assert_eq!(axes(sweep), expected, "{sweep}");
    }
}

#[test]
fn data_that_cannot_be_read_are_refused_as_by_the_plan() {
    let folder = folder_with(
        "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: text, path: own.txt}\ntrain: {steps: \
         1, batch_size: 1}\n",
    );
    let show = || kiln(folder.path(), &["data", "show", "x.yaml"]);
    assert_eq!(show().status.code(), Some(3), "{:?}", show());
    assert!(stderr(&show()).contains("there is no such file"));
    fs::write(folder.path().join("own.txt"), b"abc\xff").unwrap();
    let planned = kiln(folder.path(), &["plan", "x.yaml"]);
    assert_eq!(planned.status.code(), Some(2));
    let refused = show();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(stderr(&refused), stderr(&planned));
    assert!(refused.stdout.is_empty());
}

#[test]
fn without_data_there_is_nothing_to_show() {
    let folder = folder_with("{kiln: 1, name: x, model: {kind: matmul}, train: {steps: 5}}");
    let output = kiln(folder.path(), &["data", "show", "x.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "x.yaml has no data to show: `data.kind` is none\n"
    );
}
