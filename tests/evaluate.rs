//! `kiln evaluate` on runs that were really trained.

use std::{fs, path::Path, process::Command, sync::LazyLock};

use serde_json::Value;

use crate::{
    scripted_child::{Ended, Row, table},
    use_model::{kiln_in, png},
};

const EXPERIMENTS: [(&str, &str); 5] = [
    (
        "book",
        "model: {kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 12}\n\
         data: {kind: text, path: book.txt, tokenizer: character, valid_fraction: 0.25}\n\
         train: {steps: 9, batch_size: 3, cpu_threads: 1, evaluate: {every: 3, batch_multiple: 2}, \
         checkpoint: {every_steps: 3}}\n",
    ),
    (
        "flex",
        "model: {kind: lstm, d_model: 8, hidden: 8, seq_len: 8}\n\
         data: {kind: text, path: book.txt, tokenizer: character, valid_fraction: 0.25}\n\
         train: {steps: 4, batch_size: 2, cpu_threads: 1, checkpoint: {every_steps: 2}}\n\
         run: {engine: flex}\n",
    ),
    (
        "photos",
        "model: {kind: resnet, depth: 18, width: 4, stem: small}\n\
         data: {kind: image-folder, path: images, image_size: 16}\n\
         train: {steps: 6, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 50}}\n",
    ),
    (
        "panel",
        "model: {kind: panel-lstm, seq_len: 5, hidden: 6, num_layers: 1}\n\
         data: {kind: panel-csv, path: prices, date: Date, price: Close, valid_fraction: 0.25}\n\
         train: {steps: 3, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 50}}\n",
    ),
    (
        "pairs",
        "model: {kind: seq2seq, d_model: 8, d_kv: 4, d_ff: 16, encoder_layers: 1, \
         decoder_layers: 1, num_heads: 2}\n\
         data: {kind: sft-jsonl, path: rows.jsonl, valid_path: more.jsonl, tokenizer: \
         tokenizer.json}\n\
         train: {steps: 3, batch_size: 2, cpu_threads: 1, evaluate: {every: end, generate: \
         {rows: 3, max_tokens: 4}}, checkpoint: {every_steps: 50}}\n",
    ),
];

const TOKENIZER: &str = include_str!("tokenizer.json");

/// A folder with the data and one run of each experiment; trained once for all tests.
static TRAINED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let book = book();
    write("book.txt", &book);
    // The validation part, and another text.
    write("end.txt", &book[book.len() * 3 / 4..]);
    write("other.txt", &book.chars().rev().collect::<String>());
    for (part, count) in [("train", 6), ("valid", 3)] {
        for (class, color) in [("day", 230), ("night", 20)] {
            images(
                &folder.path().join("images").join(part).join(class),
                color,
                count,
            );
        }
    }
    for (symbol, first) in [("AAA", 10), ("BBB", 50)] {
        let day = |day: i32| {
            let (month, date) = (day / 28 + 1, day % 28 + 1);
            format!("2024-{month:02}-{date:02},{}\n", first + day * day % 7)
        };
        let rows: String = (0..40).map(day).collect();
        write(
            &format!("prices/{symbol}.csv"),
            &format!("Date,Close\n{rows}"),
        );
    }
    write("tokenizer.json", TOKENIZER);
    let row = |prompt: &str, response: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"response\": \"{response}\"}}\n")
    };
    write(
        "rows.jsonl",
        &[row("a b", "b a"), row("b", "a a a")].concat().repeat(4),
    );
    write(
        "more.jsonl",
        &[row("b a", "a"), row("a", "b b"), row("a a", "b a b")].concat(),
    );
    for (name, text) in EXPERIMENTS {
        let measure = "measure: {warmup_steps: 0, warmup_seconds: 0.0}\n";
        write(
            &format!("{name}.yaml"),
            &format!("kiln: 1\nname: {name}\n{text}{measure}"),
        );
        let ended = kiln_in(folder.path(), &["run", &format!("{name}.yaml")]);
        assert_eq!(
            ended.status,
            Some(0),
            "{name}: {}{}",
            ended.stdout,
            ended.stderr
        );
    }
    folder
});

fn book() -> String {
    let words = [
        "the ", "sea ", "was ", "cold ", "and ", "red ", "at ", "dawn\n",
    ];
    (0..500_usize)
        .map(|place| words[place * place % 13 % 8])
        .collect()
}

fn images(folder: &Path, color: u8, count: u8) {
    fs::create_dir_all(folder).unwrap();
    for number in 0..count {
        let pixels: Vec<u8> = (0..20 * 18 * 3_usize)
            .map(|place| color.wrapping_add((place * (usize::from(number) + 3) % 11) as u8))
            .collect();
        png(&folder.join(format!("{number}.png")), 20, 18, &pixels);
    }
}

fn kiln(arguments: &[&str]) -> Ended {
    kiln_in(TRAINED.path(), &[&["evaluate"], arguments].concat())
}

/// The printed object, and standard error.
fn evaluated(arguments: &[&str]) -> (Value, String) {
    let ended = kiln(&[arguments, &["--format", "json"]].concat());
    assert_eq!(ended.status, Some(0), "{arguments:?}: {}", ended.stderr);
    (serde_json::from_str(&ended.stdout).unwrap(), ended.stderr)
}

fn loss(arguments: &[&str]) -> f64 {
    evaluated(arguments).0["scores"]["loss"].as_f64().unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let ended = kiln(arguments);
    assert_eq!(ended.status, Some(2), "{arguments:?}: {ended:?}");
    ended.stderr
}

/// The row of `epochs.csv` for the step that was evaluated.
fn recorded(name: &str, page: &Value) -> Row {
    let trial = page["model"]["trial"].as_str().unwrap();
    let path = format!("results/{name}/latest/trials/{trial}/1/epochs.csv");
    let step = page["model"]["step"].to_string();
    let rows = table(&TRAINED.path().join(path));
    rows.into_iter().find(|row| row["step"] == step).unwrap()
}

#[test]
fn a_prompt_with_unknown_tokens_is_answered_with_a_notice() {
    let sampled = |prompt: &str| {
        let arguments = ["sample", "pairs", "--tokens", "3", "--prompt", prompt];
        let ended = kiln_in(TRAINED.path(), &arguments);
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let notice = "`--prompt` has 2 tokens that the vocabulary does not have";
    let said = sampled("a zebra b yak");
    assert!(said.contains(notice), "{said}");
    let said = sampled("a b");
    assert!(!said.contains("`--prompt`"), "{said}");
}

#[test]
fn the_numbers_are_those_of_the_training_to_the_bit() {
    let of_one = [
        ("book", "perplexity"),
        ("flex", "perplexity"),
        ("photos", "top1"),
        ("panel", "hit_rate"),
        ("pairs", "chrf"),
    ];
    for (name, own) in of_one {
        let (page, said) = evaluated(&[name]);
        let row = recorded(name, &page);
        for score in [
            "loss",
            "perplexity",
            "top1",
            "top5",
            "mean_absolute_error",
            "hit_rate",
            "bleu4",
            "chrf",
        ] {
            let cell = row[&format!("valid_{score}")].parse::<f64>().ok();
            assert_eq!(page["scores"][score].as_f64(), cell, "{name}: {score}");
        }
        assert!(page["scores"][own].is_f64(), "{name}: {page}");
        assert_eq!(page["recorded_loss"], page["scores"]["loss"], "{name}");
        assert!(!said.contains("recorded a validation loss"), "{said}");
    }
    // The forecasts without a model are those of the trial's row.
    let (page, _) = evaluated(&["panel"]);
    let trials = table(&TRAINED.path().join("results/panel/latest/trials.csv"));
    for score in [
        "persistence_mean_absolute_error",
        "persistence_hit_rate",
        "majority_hit_rate",
    ] {
        let cell = trials[0][score].parse::<f64>().ok();
        assert_eq!(page["scores"][score].as_f64(), cell, "{score}");
    }
}

#[test]
fn a_copy_of_the_validation_data_has_its_loss_and_other_data_another() {
    let copied = Command::new("cp")
        .args(["-r", "images/valid", "test-images"])
        .current_dir(TRAINED.path())
        .status();
    assert!(copied.unwrap().success());
    fs::copy(
        TRAINED.path().join("more.jsonl"),
        TRAINED.path().join("test.jsonl"),
    )
    .unwrap();
    for (name, copy) in [
        ("book", "end.txt"),
        ("flex", "end.txt"),
        ("photos", "test-images"),
        ("pairs", "test.jsonl"),
    ] {
        let (page, _) = evaluated(&[name, "--data", copy]);
        let (own, _) = evaluated(&[name]);
        assert_eq!(page["scores"], own["scores"], "{name}");
        assert!(
            page["recorded_loss"].is_null() && page["data"][0] == copy,
            "{page}"
        );
    }
    let own = loss(&["book"]);
    assert_ne!(loss(&["book", "--data", "other.txt"]), own);
    assert_ne!(
        loss(&["photos", "--data", "images/train"]),
        loss(&["photos"])
    );
    // All returns of the named files: 39 each, of which five are before the first target.
    let (one, _) = evaluated(&["panel", "--data", "prices/BBB.csv"]);
    let (both, _) = evaluated(&["panel", "--data", "prices/AAA.csv", "prices/BBB.csv"]);
    assert_eq!(
        (&one["scores"]["samples"], &both["scores"]["samples"]),
        (&34.into(), &68.into())
    );
    assert!(both["scores"]["majority_hit_rate"].is_f64(), "{both}");
}

#[test]
fn all_rows_of_other_data_are_answered_and_their_number_is_given() {
    let rows = |arguments: &[&str]| {
        let scores = evaluated(arguments).0["scores"].take();
        [scores["samples"].as_u64(), scores["response_rows"].as_u64()]
    };
    // `generate.rows` is 3.
    assert_eq!(rows(&["pairs"]), [Some(3), Some(3)]);
    assert_eq!(rows(&["pairs", "--data", "rows.jsonl"]), [Some(8), Some(8)]);
    assert_eq!(rows(&["book"])[1], None);
    let text = kiln(&["pairs"]).stdout;
    assert!(text.contains("response_rows"), "{text}");
    let table = kiln(&["pairs", "--data", "rows.jsonl", "--format", "csv"]).stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].ends_with(",response_rows,precision") && lines[1].ends_with(",8,f32"),
        "{table}"
    );
}

#[test]
fn rows_and_files_of_a_panel_that_are_not_evaluated_are_told() {
    let write = |name: &str, rows: &[String]| {
        let path = TRAINED.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("Date,Close\n{}\n", rows.join("\n"))).unwrap();
    };
    let mut rows: Vec<String> = (1..=10)
        .map(|day| format!("2025-01-{day:02},{}", 9 + day * day % 7))
        .collect();
    write("short/BBB.csv", &rows[..4]);
    rows[5] = "2025-01-06,null".to_owned();
    write("newer/AAA.csv", &rows);
    let (page, said) = evaluated(&["panel", "--data", "newer/AAA.csv", "short/BBB.csv"]);
    // Nine rows are eight returns, of which five are before the first target.
    assert_eq!(page["scores"]["samples"], 3);
    for words in [
        "1 row with a `null` dropped",
        "short/BBB.csv has 4 rows and no sample; 7 are needed",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let (_, said) = evaluated(&["panel", "--data", "prices/AAA.csv"]);
    assert!(
        !said.contains("dropped") && !said.contains("no sample"),
        "{said}"
    );
}

#[test]
fn a_damaged_image_is_named_without_advice_to_a_training() {
    images(&TRAINED.path().join("damaged/day"), 200, 2);
    let path = TRAINED.path().join("damaged/day/1.png");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let said = refused(&["photos", "--data", "damaged"]);
    assert!(
        said.contains("damaged/day/1.png could not be read as an image: ")
            && said.trim_end().ends_with("; repair or remove it"),
        "{said}"
    );
    assert!(
        !said.contains("--rerun") && !said.contains("could not be made"),
        "{said}"
    );
}

#[test]
fn data_that_the_model_cannot_be_evaluated_on_is_named() {
    images(&TRAINED.path().join("others/dusk"), 90, 1);
    fs::write(TRAINED.path().join("greek.txt"), "the sea was Ω").unwrap();
    fs::write(TRAINED.path().join("empty.txt"), "").unwrap();
    for (arguments, words) in [
        (
            &["photos", "--data", "others"][..],
            "others/dusk is a class that the model does not know; expected folders for its \
             classes: day, night",
        ),
        (
            &["book", "--data", "greek.txt"],
            "contains \"Ω\", which is not in the training text",
        ),
        (
            &["book", "--data", "empty.txt"],
            "empty.txt is empty; a text needs at least 2 tokens",
        ),
        (
            &["book", "--data", "end.txt", "other.txt"],
            "`--data` takes one text file for this model, and 2 paths are given",
        ),
        (
            &["panel", "--data", "end.txt"],
            "no symbol `end` in the training data",
        ),
        (&["pairs", "--data", "end.txt"], "end.txt"),
        (
            &["book", "--data", "nowhere.txt"],
            "nowhere.txt: there is no such file or folder",
        ),
        (
            &["panel", "--data", "prices"],
            "prices is a folder; name its files",
        ),
        (
            &["photos", "--data", "images/valid/day/0.png"],
            "0.png is a file; expected a folder with a folder of images for each class",
        ),
        (
            &["photos", "--data", "images/valid/day"],
            "day is the folder of class day; expected the folder with all class folders",
        ),
        (&["photos", "--data", "images"], "images/valid"),
        (
            &["book", "--step", "2"],
            "there is no checkpoint of step 2; the steps kept are: ",
        ),
    ] {
        let said = refused(arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}

/// A copy of a run whose trials have the other of two names for each file of data.
fn with_other_data(name: &str, copy: &str, names: &[(&str, &str)]) {
    let run = format!("results/{name}/latest");
    let copied = Command::new("cp")
        .args(["-rL", run.as_str(), copy])
        .current_dir(TRAINED.path())
        .status();
    assert!(copied.unwrap().success());
    for trial in fs::read_dir(TRAINED.path().join(copy).join("trials")).unwrap() {
        let file = trial.unwrap().path().join("trial.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let changed = names
            .iter()
            .fold(text.clone(), |text, (old, new)| text.replace(old, new));
        assert_ne!(changed, text);
        fs::write(&file, changed).unwrap();
    }
}

#[test]
fn missing_data_of_the_training_are_told_with_what_needs_them() {
    with_other_data("book", "gone-book", &[("book.txt", "gone.txt")]);
    let rows = [("rows.jsonl", "gone.jsonl"), ("more.jsonl", "lost.jsonl")];
    with_other_data("pairs", "gone-pairs", &rows);
    for (arguments, words) in [
        (
            &["gone-book", "--data", "end.txt"][..],
            "gone.txt: there is no such file or folder; the training's data number the tokens: put \
             them back at that path, or link them there",
        ),
        (
            &["gone-book"],
            "the training's data contain the validation data: put them back",
        ),
        (
            &["gone-pairs"],
            "gone.jsonl: there is no such file or folder",
        ),
    ] {
        let ended = kiln(arguments);
        assert_eq!(ended.status, Some(3), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {ended:?}");
    }
    let sampled = kiln_in(TRAINED.path(), &["sample", "gone-book"]);
    assert!(
        sampled.status == Some(3)
            && sampled
                .stderr
                .contains("the training's data number the tokens"),
        "{sampled:?}"
    );
    // The tokenizer is enough for other rows.
    assert_eq!(
        loss(&["gone-pairs", "--data", "more.jsonl"]),
        loss(&["pairs"])
    );
}

#[test]
fn validation_data_that_has_changed_is_refused() {
    with_other_data("book", "moved", &[("book.txt", "other.txt")]);
    let said = refused(&["moved"]);
    assert!(
        said.contains("the data has changed since the training"),
        "{said}"
    );
}

#[test]
fn a_person_reads_rounded_scores_and_a_program_a_row() {
    let text = kiln(&["book"]);
    for words in [
        "score",
        "step",
        "validation",
        "loss",
        "recorded_loss",
        "perplexity",
    ] {
        assert!(text.stdout.contains(words), "{}", text.stdout);
    }
    let row = kiln(&["book", "--format", "csv"]);
    let lines: Vec<&str> = row.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "step,data,samples,targets,loss,recorded_loss,perplexity,precision"
    );
    assert!(
        text.stdout.contains("precision") && lines[1].ends_with(",f32"),
        "{}{}",
        text.stdout,
        row.stdout
    );
    assert_eq!(evaluated(&["book"]).0["scores"]["precision"], "f32");
    let exact = loss(&["book"]).to_string();
    let targets = book().len() - book().len() * 3 / 4 - 1;
    let cells: Vec<&str> = lines[1].split(',').collect();
    assert_eq!(
        (cells[1], cells[3], cells[4], cells[5]),
        (
            "validation",
            targets.to_string().as_str(),
            exact.as_str(),
            exact.as_str()
        )
    );
}
