//! `kiln sample`, `predict` and `export` on runs that were really trained.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use rustix::process::{Pid, Signal, kill_process};

use kiln_data::files::sha256_of;
use serde_json::Value;

use crate::scripted_child::{Ended, Place, program::write_program, real_trial, wait_until};

const MEASURE: &str = "measure: {warmup_steps: 0, warmup_seconds: 0.0}\n";
const GPT: &str = "kiln: 1\nname: gpt\n\
    model: {kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 24}\n\
    data: {kind: generated, characters: 8000, tokenizer: character}\n\
    train: {steps: 20, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 50}, sample: {tokens: 40, prompt: the}}\n\
    sweep: {grid: {train.optimizer.learning_rate: [1.0e-9, 3.0e-3]}}\n";
const FLEX: &str = "kiln: 1\nname: flex\n\
    model: {kind: lstm, d_model: 8, hidden: 8, seq_len: 8}\n\
    data: {kind: generated, characters: 6000, tokenizer: word}\n\
    train: {steps: 4, batch_size: 2, cpu_threads: 1, checkpoint: {every_steps: 2}}\nrun: {engine: flex}\n";
const NONE: &str = "kiln: 1\nname: none\nmodel: {kind: mlp, seq_len: 8}\n\
    data: {kind: generated, characters: 3000}\ntrain: {steps: 2, batch_size: 2, cpu_threads: 1}\n";
const PICTURES: &str = "kiln: 1\nname: pictures\nmodel: {kind: resnet, depth: 18, width: 4, stem: small}\n\
    data: {kind: image-folder, path: images, image_size: 16, valid_fraction: 0.25}\n\
    train: {steps: 12, batch_size: 4, cpu_threads: 1, optimizer: {kind: adamw, learning_rate: 3.0e-3}, \
    checkpoint: {every_steps: 50}}\n";
const PANEL: &str = "kiln: 1\nname: panel\nmodel: {kind: panel-lstm, seq_len: 5, hidden: 6, num_layers: 1}\n\
    data: {kind: panel-csv, path: prices, date: Date, price: Close, valid_fraction: 0.25}\n\
    train: {steps: 3, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 50}}\n";

const TARGETS: &str = "kiln: 1\nname: targets\nmodel: {kind: panel-lstm, seq_len: 5, hidden: 6, num_layers: 1}\n\
    data: {kind: panel-csv, path: prices, date: Date, price: Close, valid_fraction: 0.25}\n\
    train: {steps: 1, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 50}}\n\
    sweep: {grid: {data.target: [return, direction]}}\n";

/// A folder with one run of each; trained once for all tests.
static TRAINED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (class, color) in [("night", 20_u8), ("day", 230)] {
        fs::create_dir_all(at("images").join(class)).unwrap();
        for number in 0..8 {
            let pixels: Vec<u8> = (0..20 * 18 * 3)
                .map(|place| color.wrapping_add((place * (number + 3) % 11) as u8))
                .collect();
            png(
                &at("images").join(class).join(format!("{number}.png")),
                20,
                18,
                &pixels,
            );
        }
    }
    fs::create_dir(at("prices")).unwrap();
    for (symbol, first) in [("AAA", 10.0), ("BBB", 50.0)] {
        let rows: String = (0..40)
            .map(|day| {
                let price = first + f64::from(day * day % 7);
                format!(
                    "2024-{:02}-{:02},{price},{}\n",
                    day / 28 + 1,
                    day % 28 + 1,
                    day + 5
                )
            })
            .collect();
        fs::write(
            at("prices").join(format!("{symbol}.csv")),
            format!("Date,Close,Volume\n{rows}"),
        )
        .unwrap();
    }
    for (name, text) in [
        ("gpt", GPT),
        ("flex", FLEX),
        ("none", NONE),
        ("pictures", PICTURES),
        ("panel", PANEL),
        ("targets", TARGETS),
    ] {
        fs::write(at(&format!("{name}.yaml")), format!("{text}{MEASURE}")).unwrap();
        let ended = kiln_in(folder.path(), &["run", &format!("{name}.yaml")]);
        assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert_eq!(
            ended.stdout.contains("Weights, for `kiln evaluate`"),
            name != "none",
            "{}",
            ended.stdout
        );
    }
    folder
});

/// Writes a PNG file of [height, width, 3], stored without compression.
pub(crate) fn png(path: &Path, width: u32, height: u32, rgb: &[u8]) {
    use std::io::Write;
    let chunk = |kind: &[u8], body: &[u8]| {
        let mut sum = flate2::Crc::new();
        sum.update(kind);
        sum.update(body);
        let length = (body.len() as u32).to_be_bytes();
        [&length[..], kind, body, &sum.sum().to_be_bytes()].concat()
    };
    let mut rows = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    for row in rgb.chunks(width as usize * 3) {
        rows.write_all(&[0]).unwrap();
        rows.write_all(row).unwrap();
    }
    let head = [
        &width.to_be_bytes()[..],
        &height.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ]
    .concat();
    let file = [
        b"\x89PNG\r\n\x1a\n".to_vec(),
        chunk(b"IHDR", &head),
        chunk(b"IDAT", &rows.finish().unwrap()),
        chunk(b"IEND", &[]),
    ];
    fs::write(path, file.concat()).unwrap();
}

fn kiln_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .args(arguments)
        .current_dir(folder)
        .env("KILN_TRIAL", real_trial())
        .env("KILN_LOCKS", folder.join("locks"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("CUDA_VISIBLE_DEVICES", "");
    command
}

pub(crate) fn kiln_in(folder: &Path, arguments: &[&str]) -> Ended {
    Ended::of(kiln_command(folder, arguments).output().unwrap())
}

fn kiln(arguments: &[&str]) -> Ended {
    kiln_in(TRAINED.path(), arguments)
}

fn printed(arguments: &[&str]) -> String {
    let ended = kiln(arguments);
    assert_eq!(ended.status, Some(0), "{arguments:?}: {}", ended.stderr);
    ended.stdout
}

fn refused(arguments: &[&str]) -> String {
    let ended = kiln(arguments);
    assert_eq!(
        ended.status,
        Some(2),
        "{arguments:?}: {}{}",
        ended.stdout,
        ended.stderr
    );
    ended.stderr
}

/// The folder of each trial of a run.
fn trials(run: &str) -> Vec<PathBuf> {
    let folder = TRAINED.path().join(format!("results/{run}/latest/trials"));
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

#[test]
fn a_text_is_that_of_the_training_with_the_weights_of_the_best_trial() {
    let ended = kiln(&["sample", "gpt", "--prompt", "the", "--tokens", "40"]);
    assert!(
        ended.stderr.contains("has 2 trials; using t")
            && ended.stderr.contains("the lowest validation loss"),
        "{}",
        ended.stderr
    );
    let chosen = ended.stderr.split_once("using ").unwrap().1;
    let chosen = chosen.split_once(',').unwrap().0;
    let written = TRAINED
        .path()
        .join(format!("results/gpt/latest/trials/{chosen}/1/sample.txt"));
    assert_eq!(fs::read_to_string(written).unwrap(), ended.stdout);
    // Another name of the same trial, another format, and no cache write the same letters.
    let named = format!("results/gpt/latest:{}", &chosen[1..5]);
    for more in [&[][..], &["--no-cache"]] {
        let arguments = [
            &[
                "sample", &named, "--prompt", "the", "--tokens", "40", "--format", "json",
            ],
            more,
        ]
        .concat();
        let page: Value = serde_json::from_str(&printed(&arguments)).unwrap();
        assert_eq!(
            page["texts"][0]["text"],
            ended.stdout.trim_end_matches('\n')
        );
        assert_eq!(page["model"]["trial"], chosen);
    }
    let two = printed(&[
        "sample",
        "gpt",
        "--tokens",
        "9",
        "--count",
        "2",
        "--temperature",
        "0",
    ]);
    let (one, other) = two.split_once("---------------\n").unwrap();
    assert_eq!(one, other, "the most likely tokens");
    assert!(
        !printed(&["sample", "flex", "--tokens", "5"])
            .trim()
            .is_empty()
    );
}

#[test]
fn what_cannot_be_used_is_named_with_the_remedy() {
    for (arguments, words) in [
        (
            &["sample", "none"][..],
            "the experiment has no `train.checkpoint`; add",
        ),
        (&["sample", "nowhere"], "there is no such file or folder"),
        (
            &["sample", "gpt:ff00ff"],
            "no trial `ff00ff`; the trials are t",
        ),
        (&["sample", "gpt:t"], "no trial `t`"),
        (
            &["sample", "flex", "--step", "3"],
            "there is no checkpoint of step 3; the steps kept are: 4",
        ),
        (
            &["sample", "flex", "--prompt", "Ωmega x"],
            "`--prompt` contains \"Ωmega\"",
        ),
        (
            &["sample", "pictures"],
            "writes no text; use `kiln predict`",
        ),
        (
            &["predict", "flex", "flex.yaml"],
            "use `kiln sample` for text",
        ),
        (
            &["predict", "pictures", "flex.yaml"],
            "flex.yaml: it is neither a PNG nor a JPEG file",
        ),
        (&["predict", "panel", "flex.yaml"], "no symbol `flex`"),
        (
            &["predict", "targets", "prices/AAA.csv"],
            "none of its trials is the best, because `data.target` makes it a validation loss on \
             other data; name one, such as `results/targets/",
        ),
        (
            &["sample", "gpt", "--temperature=-1"],
            "expected a number from 0 to 100",
        ),
    ] {
        let said = refused(arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    // A copy of the run whose weights are damaged.
    let copy = TRAINED.path().join("copy");
    let status = Command::new("cp")
        .args(["-rL", "results/flex/latest", copy.to_str().unwrap()])
        .current_dir(TRAINED.path())
        .status();
    assert!(status.unwrap().success());
    let trial = fs::read_dir(copy.join("trials"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let weights = trial.join("checkpoint/4/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let said = refused(&["sample", "copy"]);
    assert!(
        said.contains("the checkpoint of step 4 cannot be used: model.safetensors has changed")
            && said.contains("run the trial again"),
        "{said}"
    );
    let header = trial.join("checkpoint/4/checkpoint.json");
    fs::remove_file(&header).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &header).unwrap();
    let id = trial.file_name().unwrap().to_str().unwrap();
    let unread = kiln(&["sample", &format!("copy:{id}"), "--step", "4"]);
    assert!(
        unread.status == Some(3)
            && unread.stderr.contains("could not be read now")
            && !unread.stderr.contains("run the trial again"),
        "{unread:?}"
    );
    fs::remove_file(&header).unwrap();
    fs::write(&header, "{").unwrap();
    let said = refused(&["sample", "copy"]);
    assert!(
        said.contains("no trial has weights that can be used")
            && said.contains("(the checkpoint of step 4: checkpoint.json")
            && !said.contains("no checkpoint was written yet"),
        "{said}"
    );
    fs::remove_dir_all(trial.join("checkpoint")).unwrap();
    let said = refused(&["sample", "copy"]);
    assert!(
        said.contains("no checkpoint was written yet") && said.contains("with `--rerun` if it has"),
        "{said}"
    );
    fs::remove_dir_all(copy.join("trials")).unwrap();
    assert!(refused(&["sample", "copy"]).contains("git does not keep the folder `trials`"));
}

#[test]
fn a_trial_file_with_another_model_than_was_trained_is_refused() {
    let copy = TRAINED.path().join("heads");
    let status = Command::new("cp")
        .args(["-rL", "results/gpt/latest", copy.to_str().unwrap()])
        .current_dir(TRAINED.path())
        .status();
    assert!(status.unwrap().success());
    printed(&["sample", "heads", "--tokens", "1"]);
    for trial in fs::read_dir(copy.join("trials")).unwrap() {
        let file = trial.unwrap().path().join("trial.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let changed = text.replace("num_heads: 4", "num_heads: 2");
        assert_ne!(changed, text);
        fs::write(&file, changed).unwrap();
    }
    for arguments in [&["sample", "heads"][..], &["export", "heads", "--to", "h"]] {
        let said = refused(arguments);
        assert!(
            said.contains("trial.yaml: it has another model than ")
                && said.contains("`model.num_heads` is 2 and not 4;"),
            "{said}"
        );
    }
}

#[test]
fn images_get_the_names_of_their_classes_and_series_a_forecast_in_their_units() {
    let table = printed(&[
        "predict",
        "pictures",
        "images/day/1.png",
        "images/night/2.png",
        "--format",
        "csv",
    ]);
    // The names are those of the training, whatever the folders are called now.
    let at = |name: &str| TRAINED.path().join("images").join(name);
    fs::rename(at("night"), at("a-night")).unwrap();
    fs::create_dir(at("b")).unwrap();
    let again = printed(&[
        "predict",
        "pictures",
        "images/day/1.png",
        "images/a-night/2.png",
        "--format",
        "csv",
    ]);
    fs::remove_dir(at("b")).unwrap();
    fs::rename(at("a-night"), at("night")).unwrap();
    assert_eq!(again.replace("a-night/", "night/"), table);
    let rows: Vec<&str> = table.lines().collect();
    assert!(
        rows[0] == "file,class,probability"
            && rows[1].starts_with("images/day/1.png,day,")
            && rows[2].starts_with("images/night/2.png,night,"),
        "{table}"
    );
    let top = printed(&[
        "predict",
        "pictures",
        "images/day/1.png",
        "--top",
        "--format",
        "json",
    ]);
    let top: Value = serde_json::from_str(&top).unwrap();
    let classes = top["predictions"][0]["classes"].as_array().unwrap();
    let sum: f64 = classes
        .iter()
        .map(|share| share["probability"].as_f64().unwrap())
        .sum();
    assert!(classes.len() == 2 && (sum - 1.0).abs() < 1e-9);
    let page = printed(&["predict", "panel", "prices/BBB.csv", "--format", "json"]);
    let page: Value = serde_json::from_str(&page).unwrap();
    let forecast = &page["predictions"][0];
    let number = |key: &str| forecast[key].as_f64().unwrap();
    assert_eq!(
        (
            forecast["symbol"].as_str(),
            forecast["after"].as_str(),
            number("last_price")
        ),
        (Some("BBB"), Some("2024-02-12"), 52.0)
    );
    let next = number("last_price") * number("log_return").exp();
    assert!((number("next_price") - next).abs() < 1e-9);
}

/// A training that changes nothing has the loss of the exported model, and other tokens are refused.
#[test]
fn an_export_can_be_trained_on() {
    printed(&["export", "gpt", "--to", "base"]);
    let base = TRAINED.path().join("base");
    let config: Value =
        serde_json::from_slice(&fs::read(base.join("config.json")).unwrap()).unwrap();
    let text = GPT.split("sweep: ").next().unwrap();
    let text = text.replace("steps: 20, ", "steps: 1, ");
    fs::write(TRAINED.path().join("on.yaml"), format!("{text}{MEASURE}")).unwrap();
    for (name, file) in [
        ("own", "base/model.safetensors"),
        ("theirs", "base/huggingface/model.safetensors"),
    ] {
        let path = TRAINED.path().join(file);
        let (sum, _) = sha256_of(&path, &path).unwrap();
        let begun = |tokenizer: &str| {
            let run = format!("{name}-{tokenizer}");
            let ended = kiln(&[
                "run",
                "on.yaml",
                "--set",
                &format!("name={run}"),
                "--set",
                &format!("data.tokenizer={tokenizer}"),
                "--set",
                "train.optimizer={kind: sgd, learning_rate: 1.0e-30}",
                "--set",
                &format!("train.initial_weights={{path: {file}, sha256: \"{sum}\"}}"),
            ]);
            let table = TRAINED
                .path()
                .join(format!("results/{run}/latest/trials.csv"));
            let mut table = csv::Reader::from_path(table).map_err(|_| ended.stderr)?;
            let row: Option<BTreeMap<String, String>> =
                table.deserialize().next().map(Result::unwrap);
            Ok::<_, String>(row.unwrap())
        };
        let same = begun("character").unwrap();
        assert_eq!(
            same["valid_loss"].parse::<f64>().ok(),
            config["origin"]["valid_loss"].as_f64(),
            "{file}: {same:?}"
        );
        // A vocabulary of another size is found before the first trial.
        let other = begun("byte").unwrap_err();
        assert!(
            other.contains("do not fit the model") && other.contains("`without: [embedding]`"),
            "{other}"
        );
    }
}

#[test]
fn an_export_is_whole_and_replaced_only_on_request() {
    let said = printed(&["export", "gpt", "--to", "out"]);
    let out = TRAINED.path().join("out");
    for name in [
        "model.safetensors",
        "config.json",
        "model.py",
        "check.safetensors",
        "vocabulary.json",
        "huggingface/config.json",
        "huggingface/model.safetensors",
    ] {
        assert!(
            out.join(name).is_file() && said.contains(&format!("out/{name}")),
            "{said}"
        );
    }
    let config: Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        (&config["kind"], &config["origin"]["step"]),
        (&"gpt".into(), &20.into())
    );
    assert!(refused(&["export", "gpt", "--to", "out"]).contains("replace it with `--force`"));
    fs::write(out.join("mine.py"), "precious").unwrap();
    let kept = refused(&["export", "gpt", "--to", "out", "--force"]);
    assert!(kept.contains("`mine.py` is not of an export"), "{kept}");
    fs::remove_file(out.join("mine.py")).unwrap();
    let card = out.join("huggingface/README.md");
    fs::write(&card, "precious").unwrap();
    let kept = refused(&["export", "gpt", "--to", "out", "--force"]);
    assert!(
        kept.contains("`huggingface/README.md` is not of an export"),
        "{kept}"
    );
    fs::remove_file(card).unwrap();
    printed(&["export", "flex", "--to", "out", "--force"]);
    assert!(
        !out.join("huggingface").exists(),
        "the earlier export is gone"
    );
    let foreign = refused(&["export", "gpt", "--to", "prices", "--force"]);
    assert!(foreign.contains("not an export of kiln"), "{foreign}");
    // A failed export leaves nothing, nor does one that a signal ends.
    refused(&["export", "none", "--to", "never"]);
    assert!(!TRAINED.path().join("never").exists());
    let slow = TRAINED.path().join("slow.sh");
    write_program(&slow, "#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.01; done\n");
    let mut exporting = kiln_command(TRAINED.path(), &["export", "gpt", "--to", "never"]);
    let exporting = exporting.env("KILN_TRIAL", &slow);
    let exporting = exporting.stderr(Stdio::piped()).spawn().unwrap();
    let has_draft = || {
        let mut names = fs::read_dir(TRAINED.path()).unwrap();
        names.any(|name| {
            name.unwrap()
                .file_name()
                .to_string_lossy()
                .contains("never")
        })
    };
    wait_until("it has a draft", has_draft);
    kill_process(Pid::from_child(&exporting), Signal::TERM).unwrap();
    fs::write(TRAINED.path().join("go"), "").unwrap();
    let ended = exporting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(!has_draft());
    assert_eq!(trials("gpt").len(), 2);
    // One that was killed leaves its draft, which the next one removes; process 1 lives, and no
    // process has a number above 4,194,304.
    let drafts = [".out.4194305.new", ".out.1.new"].map(|name| TRAINED.path().join(name));
    drafts
        .iter()
        .for_each(|draft| fs::create_dir(draft).unwrap());
    fs::write(drafts[0].join("model.safetensors"), "half").unwrap();
    printed(&["export", "flex", "--to", "out", "--force"]);
    assert_eq!(drafts.each_ref().map(|draft| draft.exists()), [false, true]);
    fs::remove_dir(&drafts[1]).unwrap();
    // What others put there meanwhile stays.
    let race = TRAINED.path().join("race");
    let late = TRAINED.path().join("late.sh");
    let own = "#!/bin/sh\n\"$REAL_TRIAL\" \"$@\" || exit\nmkdir race; echo 1 > race/thesis.txt\n";
    write_program(&late, own);
    let mut exporting = kiln_command(TRAINED.path(), &["export", "gpt", "--to", "race"]);
    exporting
        .env("KILN_TRIAL", &late)
        .env("REAL_TRIAL", real_trial());
    let ended = Ended::of(exporting.output().unwrap());
    assert!(
        ended.status == Some(2) && ended.stderr.contains("not an export of kiln"),
        "{ended:?}"
    );
    assert!(race.join("thesis.txt").is_file());
    // A link stays one, and weights may be read by whoever may read the rest.
    fs::create_dir(TRAINED.path().join("target")).unwrap();
    std::os::unix::fs::symlink("target", TRAINED.path().join("link")).unwrap();
    printed(&["export", "gpt", "--to", "link"]);
    let target = TRAINED.path().join("target");
    let mode = |name: &str| {
        fs::metadata(target.join(name))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode("model.safetensors"), mode("config.json"));
    assert!(TRAINED.path().join("link").is_symlink());
}

#[test]
fn a_model_that_trains_nothing_is_not_told_to_keep_checkpoints() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    for verb in ["sample", "evaluate"] {
        let refused = Ended::of(place.kiln(&[verb, "x"]).output().unwrap());
        assert_eq!(refused.status, Some(2), "{refused:?}");
        let why = "kept no weights, because a model of this kind trains nothing";
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}
