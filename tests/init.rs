//! `kiln init`: each written file is checked, planned and run.

use std::{fs, io::Write, path::Path};

use fake_nvml::{Scenario, install::install};

use crate::scripted_child::{Ended, Place};

fn kiln(place: &Place, arguments: &[&str]) -> Ended {
    let mut command = place.kiln(arguments);
    command
        .env("SCRIPTED_CHILD", "completes")
        .env("XDG_CACHE_HOME", place.path("cache"));
    Ended::of(command.output().unwrap())
}

/// `kiln init` of a file for this data.
fn init_with(place: &Place, file: &str, data: &str) -> Ended {
    kiln(place, &["init", file, "--data", data])
}

fn text_of(place: &Place, file: &str) -> String {
    fs::read_to_string(place.path(file)).unwrap()
}

/// Everything that the plan of a file shows is known.
fn assert_known_plan(place: &Place, file: &str) {
    let plan = kiln(place, &["plan", file]);
    assert_eq!(plan.status, Some(0), "{plan:?}");
    assert!(!plan.stdout.contains("unknown (?)"), "{plan:?}");
}

/// A tokenizer of a few whole words.
const TOKENIZER: &str = include_str!("tokenizer.json");

/// A folder with data of every kind.
fn place() -> Place {
    let place = Place::with("train: {steps: 10}");
    let write = |name: &str, bytes: &[u8]| {
        let path = place.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    write(
        "corpus.txt",
        "To be, or not to be: that is the question.\n"
            .repeat(50)
            .as_bytes(),
    );
    write(
        "short.txt",
        "To be, or not to be: that is the question.\n"
            .repeat(5)
            .as_bytes(),
    );
    let mut picture = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut picture, 90);
    encoder
        .encode(&[128; 16 * 16 * 3], 16, 16, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    for class in ["cat", "dog"] {
        for number in 0..20 {
            write(&format!("photos/{class}/{number}.jpg"), &picture);
        }
    }
    for symbol in ["AAA", "BBB"] {
        let mut rows = "Date,Open,Close\n".to_owned();
        for day in 0..120 {
            let (month, day) = (1 + day / 28, 1 + day % 28);
            let price = 100.0 + f64::from(day) * 0.5;
            rows.push_str(&format!(
                "2020-{month:02}-{day:02},{price},{}\n",
                price + 0.25
            ));
        }
        write(&format!("prices/{symbol}.csv"), rows.as_bytes());
    }
    let row = "{\"question\": \"a b a\", \"answer\": \"b a\"}\n";
    write("chat/rows.jsonl", row.repeat(40).as_bytes());
    write("chat/tokenizer.json", TOKENIZER.as_bytes());
    place
}

#[test]
fn each_written_file_is_checked_and_runs() {
    let place = place();
    let cases: [(&[&str], &str); 11] = [
        (&[], "kind: gpt"),
        (&["--kind", "gpt"], "kind: generated"),
        (&["--kind", "lstm"], "kind: lstm"),
        (&["--kind", "resnet"], "kind: generated-images"),
        (&["--data", "corpus.txt"], "kind: text"),
        (&["--data", "short.txt"], "kind: text"),
        (&["--kind", "lstm", "--data", "corpus.txt"], "kind: lstm"),
        (&["--data", "photos"], "kind: image-folder"),
        (&["--data", "prices/"], "price: \"Close\""),
        (&["--data", "chat/rows.jsonl"], "prompt_key: \"question\""),
        (&["--kind", "seq2seq", "--data", "chat"], "kind: seq2seq"),
    ];
    for (number, (arguments, part)) in cases.iter().enumerate() {
        let file = format!("case {number}.yaml");
        let written = kiln(&place, &[&["init", &file], *arguments].concat());
        assert_eq!(written.status, Some(0), "{arguments:?}: {written:?}");
        let taken = if part.contains("question") || part.contains("seq2seq") {
            "takes chat/tokenizer.json, which was there: it must be the tokenizer of this data\n"
        } else {
            ""
        };
        assert_eq!(
            written.stdout,
            format!(
                "wrote {file}; its `name` is case-{number}\n{taken}next:\n  kiln plan '{file}'\n  \
                 kiln run '{file}'\n"
            )
        );
        let text = fs::read_to_string(place.path(&file)).unwrap();
        assert!(text.contains(part), "{arguments:?}:\n{text}");
        let checked = kiln(&place, &["check", &file]);
        assert_eq!(
            (checked.status, checked.stderr.as_str()),
            (Some(0), ""),
            "{arguments:?}: {checked:?}\n{text}"
        );
        let run = kiln(
            &place,
            &["run", &file, "--set", "train.steps=10", "--quiet"],
        );
        assert_eq!(run.status, Some(0), "{arguments:?}: {run:?}\n{text}");
    }
}

#[test]
fn a_file_for_the_cpu_says_that_the_gpus_cannot_be_used() {
    let place = Place::with("");
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/small.yaml");
    let mut scenario = Scenario::read(&small).unwrap();
    let written = |scenario: &Scenario, file: &str| {
        let folder = tempfile::tempdir().unwrap();
        let library = install(folder.path(), scenario).unwrap();
        let mut init = place.kiln(&["init", file]);
        init.env("KILN_NVML_LIB", library)
            .env_remove("CUDA_VISIBLE_DEVICES");
        let ended = Ended::of(init.output().unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let text = fs::read_to_string(place.path(file)).unwrap();
        (ended.stderr, text.contains("precision: f32"))
    };
    assert_eq!(written(&scenario, "gpu.yaml"), (String::new(), false));
    for device in &mut scenario.devices {
        device.every_call = Some(serde_json::json!({"return": 15}));
    }
    let (said, is_for_the_cpu) = written(&scenario, "cpu.yaml");
    assert!(is_for_the_cpu);
    let note = "note: the file is written for the CPU, because no GPU can be used (GPU 0: ";
    assert!(
        said.starts_with(note) && said.ends_with("`kiln doctor` says more\n"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn rows_may_be_longer_than_a_mebibyte() {
    let place = Place::with("");
    let row = format!(
        r#"{{"prompt": "a", "response": "{}"}}"#,
        "b".repeat(1 << 20)
    );
    fs::write(place.path("rows.jsonl"), format!("{row}\n").repeat(3)).unwrap();
    let written = kiln(&place, &["init", "pairs.yaml", "--data", "rows.jsonl"]);
    assert_eq!(written.status, Some(0), "{written:?}");
}

#[test]
fn a_prompt_is_no_response_too() {
    let place = Place::with("");
    let rows = [
        r#"{"prompt": {"q": "a"}, "response": "b"}"#,
        r#"{"prompt": 1, "response": "b"}"#,
        r#"{"response": "b"}"#,
    ];
    for row in rows {
        fs::write(place.path("rows.jsonl"), format!("{row}\n").repeat(40)).unwrap();
        let refused = init_with(&place, "pairs.yaml", "rows.jsonl");
        assert_eq!(refused.status, Some(2), "{row}: {refused:?}");
        assert!(
            refused
                .stderr
                .contains("no two texts, a prompt and a response"),
            "{row}: {refused:?}"
        );
        assert!(!place.path("pairs.yaml").exists(), "{row}");
    }
    let row = r#"{"n": 1, "response": "b", "note": "c d"}"#;
    fs::write(place.path("rows.jsonl"), format!("{row}\n").repeat(40)).unwrap();
    let written = init_with(&place, "pairs.yaml", "rows.jsonl");
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "pairs.yaml");
    assert!(
        text.contains("prompt_key: \"note\"") && text.contains("response_key: \"response\""),
        "{text}"
    );
}

#[test]
fn the_file_has_a_name_of_its_own_and_is_not_overwritten() {
    let place = Place::with("");
    let first = kiln(&place, &["init"]);
    assert_eq!(
        first.stdout,
        "wrote experiment.yaml\nnext:\n  kiln plan experiment.yaml\n  kiln run experiment.yaml\n"
    );
    let again = kiln(&place, &["init"]);
    assert_eq!(again.status, Some(2));
    assert!(
        again.stderr.contains("experiment.yaml: this file exists"),
        "{again:?}"
    );
    assert_eq!(kiln(&place, &["init", "--force"]).status, Some(0));
    assert_eq!(kiln(&place, &["init", "no/folder.yaml"]).status, Some(2));
}

#[test]
fn data_that_does_not_fit_is_refused_with_what_would() {
    let place = place();
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("tiny.txt"), "To be").unwrap();
    fs::write(place.path("binary"), [0, 159, 146, 150]).unwrap();
    for (arguments, words) in [
        (&["--kind", "seq2seq"][..], "`--data ROWS.jsonl`"),
        (
            &["--kind", "resnet", "--data", "corpus.txt"],
            "kind `resnet` does not read a text; use `--kind gpt`",
        ),
        (&["--data", "gone"], "there is no such file or folder"),
        (
            &["--data", "empty"],
            "one folder of PNG or JPEG files per class",
        ),
        (&["--data", "tiny.txt"], "at least 200"),
        (&["--data", "binary"], "this is a binary file"),
    ] {
        let refused = kiln(&place, &[&["init"], arguments].concat());
        assert_eq!(refused.status, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(words), "{arguments:?}: {refused:?}");
    }
    assert!(!place.path("experiment.yaml").exists());
}

#[test]
fn prompts_and_responses_without_a_tokenizer_get_one_of_their_characters() {
    let place = place();
    fs::remove_file(place.path("chat/tokenizer.json")).unwrap();
    let written = init_with(&place, "chat.yaml", "chat");
    assert_eq!(written.status, Some(0), "{written:?}");
    let words = "wrote chat/tokenizer.json: each character of the data is a token";
    assert!(written.stdout.contains(words), "{written:?}");
    assert_known_plan(&place, "chat.yaml");
    // One that is there is left alone.
    let tokenizer = fs::read(place.path("chat/tokenizer.json")).unwrap();
    let again = kiln(&place, &["init", "chat.yaml", "--data", "chat", "--force"]);
    let words =
        "takes chat/tokenizer.json, which was there: it must be the tokenizer of this data\n";
    assert!(again.stdout.contains(words), "{again:?}");
    assert_eq!(
        fs::read(place.path("chat/tokenizer.json")).unwrap(),
        tokenizer
    );
}

#[test]
fn a_tokenizer_of_data_elsewhere_is_written_beside_the_experiment_file() {
    let place = Place::with("");
    for folder in ["shared", "mine"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    let write = |text: &str| {
        let row = format!("{{\"prompt\": \"{text}\", \"response\": \"{text}\"}}\n");
        fs::write(place.path("shared/rows.jsonl"), row.repeat(40)).unwrap();
    };
    let init = || {
        let arguments = ["init", "mine/x.yaml", "--force", "--data", "shared"];
        kiln(&place, &arguments)
    };
    write("abc");
    for words in [
        "wrote mine/rows.tokenizer.json: ",
        "takes mine/rows.tokenizer.json, ",
    ] {
        let written = init();
        assert!(written.stdout.contains(words), "{written:?}");
        assert_eq!(fs::read_dir(place.path("shared")).unwrap().count(), 1);
        let text = text_of(&place, "mine/x.yaml");
        let key = "tokenizer: \"mine/rows.tokenizer.json\"";
        assert!(text.contains(key), "{text}");
    }
    assert_known_plan(&place, "mine/x.yaml");
    write("xyz");
    let changed = init();
    assert_eq!(changed.status, Some(2), "{changed:?}");
    let words =
        "mine/rows.tokenizer.json is a tokenizer of characters that lacks some of these rows";
    assert!(changed.stderr.contains(words), "{changed:?}");
    // One beside the rows is theirs.
    fs::write(place.path("shared/tokenizer.json"), TOKENIZER).unwrap();
    let beside = init();
    let words = "takes shared/tokenizer.json, ";
    assert!(beside.stdout.contains(words), "{beside:?}");
}

#[test]
fn a_tokenizer_of_other_characters_is_not_taken() {
    let place = Place::with("");
    let init = |name: &str, rows: &str| {
        let data = format!("{name}.jsonl");
        fs::write(place.path(&data), rows.repeat(40)).unwrap();
        let file = format!("{name}.yaml");
        kiln(&place, &["init", &file, "--force", "--data", &data])
    };
    let row = |text: &str| format!("{{\"prompt\": \"{text}\", \"response\": \"{text}\"}}\n");
    let first = init("one", &row("abc"));
    assert!(first.stdout.contains("wrote tokenizer.json: "), "{first:?}");
    let part = init("part", &row("ab"));
    assert!(part.stdout.contains("takes tokenizer.json, "), "{part:?}");
    for words in ["wrote two.tokenizer.json: ", "takes two.tokenizer.json, "] {
        let second = init("two", &row("xyz"));
        assert!(second.stdout.contains(words), "{second:?}");
        let text = text_of(&place, "two.yaml");
        assert!(text.contains("tokenizer: \"two.tokenizer.json\""), "{text}");
    }
    let changed = init("two", &row("123"));
    assert_eq!(changed.status, Some(2), "{changed:?}");
    let words = "tokenizer.json and two.tokenizer.json, lack characters of it";
    assert!(changed.stderr.contains(words), "{changed:?}");
}

#[test]
fn a_name_that_the_file_cannot_give_or_another_file_has_is_told() {
    let place = place();
    let init = |file: &str| kiln(&place, &["init", file]).stdout;
    assert!(init("plain.yaml").starts_with("wrote plain.yaml\n"));
    let first = init("\u{5b9e}\u{9a8c}.yaml");
    assert!(first.contains("; its `name` is experiment\n"), "{first}");
    let second = init("\u{6587}\u{672c}.yaml");
    assert!(second.contains(" is experiment-2\n"), "{second}");
    fs::copy(place.path("plain.yaml"), place.path("copy.yaml")).unwrap();
    let plan = kiln(&place, &["plan", "copy.yaml"]);
    assert_eq!(plan.status, Some(0), "{plan:?}");
    assert!(
        plan.stderr
            .contains("note: plain.yaml has the same `name`, plain,"),
        "{plan:?}"
    );
}

/// 60 rows of a CSV file; `{n}` is the number of the row.
fn table(header: &str, row: impl Fn(u32) -> String) -> String {
    let rows = (0..60).map(|number| {
        let (month, day) = (1 + number / 28, 1 + number % 28);
        format!("2023-{month:02}-{day:02},{}\n", row(number))
    });
    format!("{header}\n{}", rows.collect::<String>())
}

#[test]
fn a_bad_cell_in_the_price_is_told_and_no_other_column_is_taken() {
    let place = Place::with("");
    fs::create_dir(place.path("prices")).unwrap();
    for bad in ["inf", "\"1,234.5\"", "\"50,1\""] {
        let text = table("Date,Close,Volume", |number| match number {
            30 => format!("{bad},{}", 100 + number * number),
            _ => format!("{}.5,{}", 50 + number % 7, 100 + number * number),
        });
        fs::write(place.path("prices/a.csv"), text).unwrap();
        let refused = init_with(&place, "panel.yaml", "prices");
        assert_eq!(refused.status, Some(2), "{bad}: {refused:?}");
        let words = format!("prices/a.csv:32 has `{}`", bad.trim_matches('"'));
        assert!(refused.stderr.contains(&words), "{words}: {refused:?}");
    }
    let below = table("Date,Close,Volume", |number| {
        format!("{number},{}", 3 + number % 5)
    });
    fs::write(place.path("prices/a.csv"), below).unwrap();
    let refused = init_with(&place, "panel.yaml", "prices");
    assert!(refused.stderr.contains("it goes down to 0"), "{refused:?}");
}

#[test]
fn an_id_or_a_year_is_not_what_a_panel_predicts() {
    let place = Place::with("");
    fs::create_dir(place.path("sensor")).unwrap();
    let header = "time,station_id,row,year,temp,rain,wind";
    let text = table(header, |number| {
        let wind = if number == 9 { "calm" } else { "3" };
        format!(
            "100,{number},{},{}.5,-1,{wind}",
            2022 + number / 30,
            20 + number % 5
        )
    });
    fs::write(place.path("sensor/a.csv"), text).unwrap();
    let written = init_with(&place, "panel.yaml", "sensor");
    assert_eq!(written.status, Some(0), "{written:?}");
    assert!(written.stderr.contains("predicts \"temp\""), "{written:?}");
    let text = text_of(&place, "panel.yaml");
    for part in [
        "price: \"temp\"",
        "columns: [\"station_id\", \"row\", \"year\", \"temp\"]\n",
        "# left out of `columns`: \"rain\" (below 0), \"wind\" (sensor/a.csv:11 has `calm`)\n",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let plan = kiln(&place, &["plan", "panel.yaml"]);
    assert!(!plan.stdout.contains("unknown (?)"), "{plan:?}");
    let text = table("time,station_id,year", |_| "100,2023".to_owned());
    fs::write(place.path("sensor/a.csv"), text).unwrap();
    let refused = init_with(&place, "other.yaml", "sensor");
    assert!(
        refused.stderr.contains("\"station_id\" is constant"),
        "{refused:?}"
    );
}

#[test]
fn a_short_file_does_not_set_the_window_of_a_panel() {
    let place = place();
    let short = table("Date,Open,Close", |number| format!("1,{}", 2 + number));
    let short: Vec<&str> = short.lines().take(6).collect();
    fs::write(place.path("prices/CCC.csv"), short.join("\n")).unwrap();
    let written = init_with(&place, "panel.yaml", "prices");
    let words = "note: CCC.csv has 5 rows, too few for one window (`seq_len` 6 needs 8 rows); the \
                 model sees nothing of such a file\n";
    assert!(written.stderr.ends_with(words), "{written:?}");
    let text = text_of(&place, "panel.yaml");
    assert!(text.contains("seq_len: 6 "), "{text}");
    let plan = kiln(&place, &["plan", "panel.yaml"]);
    assert!(!plan.stdout.contains("unknown (?)"), "{plan:?}");
}

#[test]
fn a_folder_of_rows_trains_on_its_training_file() {
    let place = Place::with("");
    fs::create_dir(place.path("rows")).unwrap();
    let row = |text: &str| format!("{{\"prompt\": \"{text} a\", \"response\": \"b\"}}\n");
    for (name, text) in [("test", "x"), ("train", "y"), ("valid", "y")] {
        let path = place.path(&format!("rows/{name}.jsonl"));
        // Some editors start a file with a byte order mark.
        fs::write(path, "\u{feff}".to_owned() + &row(text).repeat(40)).unwrap();
    }
    let written = init_with(&place, "rows.yaml", "rows");
    assert_eq!(written.status, Some(0), "{written:?}");
    let words = "note: train.jsonl is for training; not used: test.jsonl\n";
    assert!(written.stderr.ends_with(words), "{written:?}");
    let text = text_of(&place, "rows.yaml");
    for part in [
        "path: \"rows/train.jsonl\"",
        "valid_path: \"rows/valid.jsonl\"",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let tokenizer = fs::read_to_string(place.path("rows/tokenizer.json")).unwrap();
    assert!(tokenizer.contains("\"y\"") && !tokenizer.contains("\"x\""));
    assert_known_plan(&place, "rows.yaml");
    for name in ["train", "valid"] {
        fs::remove_file(place.path(&format!("rows/{name}.jsonl"))).unwrap();
    }
    for name in ["a", "b"] {
        fs::write(place.path(&format!("rows/{name}.jsonl")), row("z")).unwrap();
    }
    let refused = init_with(&place, "other.yaml", "rows");
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let words = "a.jsonl, b.jsonl, test.jsonl; name one, such as `--data rows/a.jsonl`";
    assert!(refused.stderr.contains(words), "{refused:?}");
}

#[test]
fn a_folder_of_several_texts_is_not_one_text() {
    let place = place();
    fs::create_dir(place.path("texts")).unwrap();
    for name in ["a.txt", "b.txt"] {
        fs::copy(place.path("corpus.txt"), place.path("texts").join(name)).unwrap();
    }
    let refused = init_with(&place, "texts.yaml", "texts");
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("a.txt, b.txt; name one"),
        "{refused:?}"
    );
}

#[test]
fn keys_of_rows_are_taken_by_their_names_or_refused() {
    let place = Place::with("");
    let init = |rows: &str| {
        fs::write(place.path("rows.jsonl"), rows).unwrap();
        kiln(
            &place,
            &["init", "rows.yaml", "--force", "--data", "rows.jsonl"],
        )
    };
    let refused = init(r#"{"id": "1", "de": "a", "en": "b"}"#);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let words = "the texts `id`, `de`, `en`, and their names do not say";
    assert!(refused.stderr.contains(words), "{refused:?}");
    let refused = init(r#"{"id": "1", "en": "b"}"#);
    assert!(refused.stderr.contains("do not say"), "{refused:?}");
    let written = init(&"{\"en\": \"a b\", \"de\": \"c d\", \"score\": 3}\n".repeat(40));
    assert_eq!(written.status, Some(0), "{written:?}");
    let words = "`en`, the first key, is taken as the prompt and `de` as the response";
    assert!(written.stderr.contains(words), "{written:?}");
    let translated = text_of(&place, "rows.yaml");
    for line in [
        "  prompt_key: \"en\"",
        "  response_key: \"de\"",
        "  # the keys by their order in the file",
    ] {
        assert!(translated.contains(line), "{translated}");
    }
    let checked = kiln(&place, &["check", "rows.yaml"]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    for (row, words) in [
        (
            "{\"question\": \"a b\", \"context\": \"c d\"}\n",
            "`context` is taken as the response because it is the only other text",
        ),
        (
            "{\"context\": \"a b\", \"answer\": \"c d\"}\n",
            "`context` is taken as the prompt because it is the only other text",
        ),
    ] {
        let written = init(&row.repeat(40));
        assert_eq!(written.status, Some(0), "{written:?}");
        assert!(written.stderr.contains(words), "{written:?}");
        let text = text_of(&place, "rows.yaml");
        assert!(text.contains("is the only other text; its key"), "{text}");
    }
    let usual = init(&"{\"question\": \"a b\", \"answer\": \"c d\"}\n".repeat(40));
    assert!(!usual.stderr.contains("is taken as"), "{usual:?}");
    let blank = "{\"input\": \"\", \"instruction\": \"a\", \"output\": \"b\"}\n";
    let written = init(&blank.repeat(40));
    assert_eq!(written.status, Some(0), "{written:?}");
    assert!(!written.stderr.contains("`input`"), "{written:?}");
    let text = || text_of(&place, "rows.yaml");
    assert!(text().contains("prompt_key: \"instruction\""), "{}", text());
    let filled = blank.replace("\"\"", "\"c\"");
    let written = init(&(blank.to_owned() + &filled.repeat(40)));
    let words = "note: `input` is not read, the prompt is `instruction` alone";
    assert!(written.stderr.contains(words), "{written:?}");
    assert!(text().contains("  # not read: \"input\"\n"), "{}", text());
    assert_eq!(kiln(&place, &["plan", "rows.yaml"]).status, Some(0));
}

#[test]
fn packed_rows_are_rows_and_other_tables_are_told_what_to_do() {
    let place = place();
    let rows = fs::read(place.path("chat/rows.jsonl")).unwrap();
    let packed = fs::File::create(place.path("chat/rows.jsonl.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    packed.write_all(&rows).unwrap();
    packed.finish().unwrap();
    let data = ["--data", "chat/rows.jsonl.gz"];
    let written = kiln(&place, &[&["init", "packed.yaml"], &data[..]].concat());
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "packed.yaml");
    assert!(text.contains("path: \"chat/rows.jsonl.gz\""), "{text}");
    assert!(text.contains("prompt_key: \"question\""), "{text}");
    let list = "[{\"prompt\": \"a\", \"response\": \"b\"}]\n".repeat(40);
    for (name, words) in [
        ("list.json", "`jq -c '.[]' list.json > rows.jsonl`"),
        ("list.jsonl", "`jq -c '.[]' list.jsonl > rows.jsonl`"),
        ("pairs.tsv", "separated by tabs"),
    ] {
        fs::write(place.path(name), &list).unwrap();
        let refused = kiln(&place, &["init", "other.yaml", "--data", name]);
        assert_eq!(refused.status, Some(2), "{name}: {refused:?}");
        assert!(refused.stderr.contains(words), "{name}: {refused:?}");
    }
}

#[test]
fn a_table_beside_folders_of_images_does_not_hide_them() {
    let place = place();
    fs::write(place.path("photos/labels.csv"), "file,label\n0.jpg,cat\n").unwrap();
    let written = init_with(&place, "photos.yaml", "photos");
    assert_eq!(written.status, Some(0), "{written:?}");
    let words = "note: the folders are the classes of the images; not used: labels.csv\n";
    assert!(written.stderr.ends_with(words), "{written:?}");
    let text = text_of(&place, "photos.yaml");
    assert!(text.contains("kind: image-folder"), "{text}");
    assert!(text.contains("\n  skip_bad: true "), "{text}");
    let plan = kiln(&place, &["plan", "photos.yaml"]);
    assert_eq!(plan.status, Some(0), "{plan:?}");
    // A table that names images is no panel, even if its rows have dates and numbers.
    let dated = "file,taken,age\n0.jpg,2024-01-01,3.5\n1.jpg,2024-01-02,4.5\n";
    fs::write(place.path("photos/labels.csv"), dated).unwrap();
    let again = kiln(
        &place,
        &["init", "photos.yaml", "--force", "--data", "photos"],
    );
    assert!(again.stderr.ends_with(words), "{again:?}");
    // A folder of pictures beside a panel is none of its classes.
    fs::create_dir(place.path("prices/plots")).unwrap();
    fs::copy(
        place.path("photos/cat/0.jpg"),
        place.path("prices/plots/a.jpg"),
    )
    .unwrap();
    let written = init_with(&place, "prices.yaml", "prices");
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "prices.yaml");
    assert!(text.contains("kind: panel-csv"), "{text}");
}

#[test]
fn folders_of_images_are_listed_as_a_run_lists_them() {
    let place = place();
    fs::write(place.path("photos/cat/notes.txt"), "mine").unwrap();
    let written = init_with(&place, "photos.yaml", "photos");
    assert_eq!(written.status, Some(0), "{written:?}");
    let words = "note: 1 file in the folders cannot be read as images; `skip_bad: true` skips";
    assert!(written.stderr.contains(words), "{written:?}");
    assert_known_plan(&place, "photos.yaml");
    // A file that only its name makes an image is found too, also beside a table.
    fs::write(place.path("photos/dog/5.jpg"), "junk").unwrap();
    fs::remove_file(place.path("photos/cat/notes.txt")).unwrap();
    for table in [None, Some("labels.csv")] {
        if let Some(table) = table {
            fs::write(
                place.path(&format!("photos/{table}")),
                "file,label\n0.jpg,cat\n",
            )
            .unwrap();
        }
        let again = kiln(
            &place,
            &["init", "photos.yaml", "--force", "--data", "photos"],
        );
        assert!(again.stderr.contains(words), "{again:?}");
        let text = text_of(&place, "photos.yaml");
        assert!(text.contains("\n  skip_bad: true "), "{text}");
    }
    fs::remove_file(place.path("photos/labels.csv")).unwrap();
    fs::remove_dir_all(place.path("photos/dog")).unwrap();
    let refused = init_with(&place, "one.yaml", "photos");
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let words = "photos: contains only one folder; expected one for each of two or more classes";
    assert!(refused.stderr.contains(words), "{refused:?}");
    assert!(!place.path("one.yaml").exists());
}

#[test]
fn few_images_are_validated_on_one_of_each_class() {
    let place = place();
    let keep = |kept: u32| {
        for number in kept..20 {
            for class in ["cat", "dog"] {
                let _ = fs::remove_file(place.path(&format!("photos/{class}/{number}.jpg")));
            }
        }
        kiln(
            &place,
            &["init", "photos.yaml", "--force", "--data", "photos"],
        )
    };
    let written = keep(3);
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "photos.yaml");
    assert!(text.contains("\n  valid_fraction: 0.25 "), "{text}");
    assert_known_plan(&place, "photos.yaml");
    let refused = keep(1);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("photos: `data.valid_fraction`"),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains("photos: photos"), "{refused:?}");
}

#[test]
fn folders_of_plots_do_not_hide_a_panel() {
    let place = place();
    for plots in ["prices", "volumes"] {
        let folder = place.path("prices").join(plots);
        fs::create_dir(&folder).unwrap();
        fs::copy(place.path("photos/cat/0.jpg"), folder.join("a.jpg")).unwrap();
    }
    let written = init_with(&place, "panel.yaml", "prices");
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "panel.yaml");
    assert!(text.contains("kind: panel-csv"), "{text}");
    let plan = kiln(&place, &["plan", "panel.yaml"]);
    assert_eq!(plan.status, Some(0), "{plan:?}");
}

#[test]
fn a_price_that_a_file_lacks_or_that_is_a_word_is_passed_over() {
    let place = Place::with("");
    fs::create_dir(place.path("prices")).unwrap();
    let price = |number: u32| 50 + number % 7;
    let write = |name: &str, header: &str, row: &dyn Fn(u32) -> String| {
        fs::write(place.path(name), table(header, row)).unwrap();
    };
    let init = |file: &str| kiln(&place, &["init", file, "--data", "prices"]);
    let both = |number: u32| format!("{0}.5,{0}", price(number));
    write("prices/a.csv", "Date,Close,Adj Close", &both);
    let close = |number: u32| format!("{}.5", price(number));
    write("prices/b.csv", "Date,Close", &close);
    let written = init("panel.yaml");
    assert_eq!(written.status, Some(0), "{written:?}");
    let text = text_of(&place, "panel.yaml");
    for part in [
        "price: \"Close\"",
        "# left out of `columns`: \"Adj Close\" (b.csv has no such column of numbers)\n",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let load = |number: u32| format!("high,{}.5", price(number));
    for name in ["prices/a.csv", "prices/b.csv"] {
        write(name, "time,value,load", &load);
    }
    let written = init("load.yaml");
    assert!(written.stderr.contains("predicts \"load\""), "{written:?}");
    // Numbers in another spelling are meant.
    let other = |number: u32| format!("\"1,{0}\",{0}.5", price(number));
    write("prices/b.csv", "time,value,load", &other);
    write("prices/a.csv", "time,value,load", &other);
    let refused = init("other.yaml");
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("has `1,50`"), "{refused:?}");
}
