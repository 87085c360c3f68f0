//! The files in `experiments/`: each is checked and planned, and is what its description says it
//! is; the quickstart is run. That they keep to the schema is in `tests/schema.rs`.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::scripted_child::real_trial;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The YAML files of a folder of the project, by name.
fn files(folder: &str) -> Vec<PathBuf> {
    let listing = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = listing
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    files
}

/// What can be run, and what it extends.
fn experiments_and_fragments() -> Vec<PathBuf> {
    let (mut all, fragments) = (files("experiments"), files("experiments/base"));
    assert!(all.len() >= 4 && !fragments.is_empty());
    all.extend(fragments);
    // What scripts/check-gpu.sh runs.
    let of_the_gpu_check = files("tests/experiments/gpu");
    assert!(of_the_gpu_check.len() >= 10);
    all.extend(of_the_gpu_check);
    all.push(root().join("tests/experiments/wikitext2-short.yaml"));
    all
}

/// What `kiln` with these arguments prints, in an empty folder where no text is but those of
/// `data`.
fn printed(arguments: &[&str], data: Option<&Path>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.args(arguments)
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", folder.path())
        .env_remove("KILN_DATA");
    let output = kiln
        .envs(data.map(|data| ("KILN_DATA", data)))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn plan(file: &Path, more: &[&str], data: Option<&Path>) -> Value {
    let arguments = [&["plan", file.to_str().unwrap(), "--json"], more].concat();
    serde_json::from_str(&printed(&arguments, data)).unwrap()
}

fn plan_of(name: &str, more: &[&str]) -> Value {
    plan(&root().join("experiments").join(name), more, None)
}

fn trials(plan: &Value) -> &[Value] {
    plan["trials"].as_array().unwrap()
}

/// The different values that the trials have at a dotted key's pointer.
fn values<'a>(plan: &'a Value, pointer: &str) -> Vec<&'a Value> {
    let mut found: Vec<&Value> = Vec::new();
    for value in trials(plan)
        .iter()
        .map(|trial| trial.pointer(pointer).unwrap())
    {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Texts in the places of the public sets, large enough for every experiment.
fn stand_ins(folder: &Path) {
    let text = "the kiln is hot and the clay is dry \n".repeat(4000);
    for file in [
        "wikitext-2/train.txt",
        "wikitext-2/valid.txt",
        "tinyshakespeare/input.txt",
    ] {
        fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
        fs::write(folder.join(file), &text).unwrap();
    }
    fashion(&folder.join("fashion-mnist"));
    stocks(&folder.join("stocknet-88"));
    questions(&folder.join("chatlm-mini-chinese"));
}

/// 100 questions and their answers, in words.
fn questions(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let rows = "{\"prompt\": \"is it hot\", \"response\": \"it is\"}\n".repeat(100);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[EOS]": 1, "[UNK]": 2, "is": 3, "it": 4, "hot": 5}, "unk_token": "[UNK]"},
    });
    for (name, text) in [
        ("train.jsonl", rows.clone()),
        ("valid.jsonl", rows),
        ("tokenizer-20231214.json", tokenizer.to_string()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// 5,000 black images and 10 to validate on, as idx files.
fn fashion(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (part, count) in [("train", 5000_u32), ("t10k", 10)] {
        let file = |header: &[u32], size: u32| -> Vec<u8> {
            let values = std::iter::repeat_n(0, (count * size) as usize);
            header
                .iter()
                .flat_map(|number| number.to_be_bytes())
                .chain(values)
                .collect()
        };
        fs::write(
            folder.join(format!("{part}-images-idx3-ubyte")),
            file(&[2051, count, 28, 28], 28 * 28),
        )
        .unwrap();
        fs::write(
            folder.join(format!("{part}-labels-idx1-ubyte")),
            file(&[2049, count], 1),
        )
        .unwrap();
    }
}

/// Two symbols of 900 days.
fn stocks(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let row = |day: usize| {
        format!(
            "{}-{:02}-{:02},1,2,1,{},{},0\n",
            2000 + day / 300,
            day % 300 / 25 + 1,
            day % 25 + 1,
            1 + day % 3,
            1 + day % 2
        )
    };
    let text: String = (0..900).map(row).collect();
    for symbol in ["A", "B"] {
        fs::write(
            folder.join(format!("{symbol}.csv")),
            format!("Date,Open,High,Low,Close,Adj Close,Volume\n{text}"),
        )
        .unwrap();
    }
}

#[test]
fn every_file_passes_the_check() {
    let files = experiments_and_fragments();
    let arguments: Vec<&str> = ["check"]
        .into_iter()
        .chain(files.iter().map(|file| file.to_str().unwrap()))
        .collect();
    let said = printed(&arguments, None);
    for (file, line) in files.iter().zip(said.lines()) {
        assert!(
            line.starts_with(&format!("{}: ok, ", file.display())),
            "{line}"
        );
    }
    assert_eq!(said.lines().count(), files.len(), "{said}");
}

/// What `make sweep` runs, shortened.
#[test]
fn the_quickstart_runs_and_its_workers_change_no_loss() {
    assert!(real_trial().exists());
    let folder = tempfile::tempdir().unwrap();
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.arg("run")
        .arg(root().join("experiments/quickstart.yaml"))
        .args(["--device", "cpu"])
        .current_dir(folder.path());
    for set in [
        "train.steps=4",
        "train.learning_rate_schedule.warmup_steps=1",
        "measure.warmup_steps=1",
        "measure.warmup_seconds=0.0",
        "data.characters=20000",
        "sweep.repeats=1",
    ] {
        kiln.args(["--set", set]);
    }
    kiln.env("KILN_LOCKS", folder.path().join("locks"))
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        .env("CUDA_VISIBLE_DEVICES", "");
    let output = kiln
        .env_remove("KILN_TRIAL")
        .env_remove("KILN_DATA")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let question = "What do the batch size and the loader's workers change for a tiny GPT?";
    assert!(
        [question, "4 trials: 4 completed", "Worth committing "]
            .iter()
            .all(|words| said.contains(words)),
        "{said}"
    );
    let table = folder.path().join("results/quickstart/latest/trials.csv");
    let rows: Vec<HashMap<String, String>> = csv::Reader::from_path(table)
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect();
    let points: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (&*row["train.batch_size"], &*row["data.num_workers"]))
        .collect();
    assert_eq!(points, [("8", "0"), ("8", "2"), ("32", "0"), ("32", "2")]);
    for pair in rows.chunks(2) {
        assert!(
            !pair[0]["valid_loss"].is_empty() && pair[0]["valid_loss"] == pair[1]["valid_loss"],
            "{pair:?}"
        );
    }
}

#[test]
fn every_experiment_is_planned_without_its_text_and_knows_its_steps_with_it() {
    let data = tempfile::tempdir().unwrap();
    stand_ins(data.path());
    let mut unknown_without = 0;
    for file in files("experiments") {
        // Of a search the file's own values.
        let own = ["--set", "sweep.search=null"];
        let (without, with) = (
            plan(&file, &own, None),
            plan(&file, &own, Some(data.path())),
        );
        assert!(!trials(&without).is_empty());
        assert_eq!(
            values(&without, "/id"),
            values(&with, "/id"),
            "{}: a text at hand changes no id",
            file.display()
        );
        assert_eq!(
            values(&with, "/id").len(),
            trials(&with).len(),
            "{}",
            file.display()
        );
        // Nobody knows these of a program of its own.
        let is_known = values(&with, "/model/kind") != ["command"];
        for key in ["steps", "parameters", "flops_per_sample"] {
            assert!(
                trials(&with)
                    .iter()
                    .all(|trial| trial[key].is_u64() == is_known),
                "{}: {key}",
                file.display()
            );
        }
        let public = [
            "wikitext2",
            "tinyshakespeare",
            "fashion-mnist",
            "stocknet",
            "chatlm",
        ];
        let is_public = |kind: &&Value| public.iter().any(|name| *kind == name);
        let reads_public = values(&without, "/data/kind").iter().any(is_public);
        // Programs that other commands prepare, such as a Python with PyTorch, are not here.
        let of_data = |planned: &Value| -> Vec<String> {
            let notes = planned["notes"].as_array().unwrap().iter();
            let notes = notes.map(|note| note.as_str().unwrap().to_owned());
            notes
                .filter(|note| !note.contains("the program does not exist"))
                .collect()
        };
        assert_eq!(
            of_data(&without).is_empty(),
            !reads_public,
            "{}: {}",
            file.display(),
            without["notes"]
        );
        assert_eq!(of_data(&with), [""; 0], "{}", file.display());
        unknown_without += usize::from(reads_public);
    }
    assert!(unknown_without >= 2);
}

#[test]
fn the_quickstart_is_2_batch_sizes_by_2_numbers_of_workers_and_needs_nothing() {
    let plan = plan_of("quickstart.yaml", &[]);
    assert_eq!(
        (&plan["points"], &plan["axes"]),
        (&json!(4), &json!(["train.batch_size", "data.num_workers"]))
    );
    let [batches, workers] =
        ["/train/batch_size", "/data/num_workers"].map(|pointer| values(&plan, pointer));
    assert_eq!(
        (batches.len(), workers.len()),
        (2, 2),
        "{batches:?} {workers:?}"
    );
    assert_eq!(
        values(&plan, "/axes").len(),
        4,
        "every batch size with every number of workers"
    );
    assert_eq!(values(&plan, "/data/kind"), ["generated"]);
}

#[test]
fn the_wikitext_sweep_is_the_case_of_28_million_parameters() {
    let plan = plan_of("wikitext2-gpt-batch.yaml", &[]);
    // Two tables of 50,257 × 256, 128 positions, two blocks of 12 d² + 13 d, the last norm.
    let (tables, positions, blocks, norm) = (
        2 * 50_257 * 256,
        128 * 256,
        2 * (12 * 256 * 256 + 13 * 256),
        2 * 256,
    );
    assert_eq!(
        values(&plan, "/parameters"),
        [&json!(tables + positions + blocks + norm)]
    );
    assert_eq!(tables + positions + blocks + norm, 27_344_384);
    assert_eq!(values(&plan, "/train/batch_size"), [4, 8, 16, 24, 32]);
    let trial = &trials(&plan)[0];
    let shape = json!({"kind": "gpt", "d_model": 256, "num_layers": 2, "num_heads": 4, "seq_len": 128, "dropout": 0.1, "vocabulary": 50_257,
        "tie_head": false, "bias": true});
    assert_eq!(trial["model"], shape);
    assert_eq!(
        (&trial["train"]["precision"], &trial["train"]["epochs"]),
        (&json!("amp-bf16"), &json!(5))
    );
}

#[test]
fn shakespeare_is_nanogpts_cpu_variant() {
    let trial = trials(&plan_of(
        "shakespeare-char.yaml",
        &["--set", "model.vocabulary=65"],
    ))[0]
        .clone();
    // nanoGPT prints 0.80M for these keys: it leaves the positions out. Four blocks of 12 d² + 2 d,
    // as nothing has a bias.
    let without_positions = trial["parameters"].as_u64().unwrap() - 64 * 128;
    assert_eq!(
        without_positions,
        65 * 128 + 4 * (12 * 128 * 128 + 2 * 128) + 128
    );
    assert_eq!(without_positions, 795_904);
    let shape = json!({"kind": "gpt", "d_model": 128, "num_layers": 4, "num_heads": 4, "seq_len": 64, "dropout": 0.0, "vocabulary": 65,
        "tie_head": true, "bias": false});
    assert_eq!(trial["model"], shape);
    assert_eq!(
        (
            &trial["data"]["kind"],
            &trial["data"]["tokenizer"],
            &trial["data"]["sampling"]
        ),
        (
            &json!("tinyshakespeare"),
            &json!("character"),
            &json!("random")
        )
    );
    // Its command line for a CPU over config/train_shakespeare_char.py: 1e-3 falls to 1e-4, decay
    // on matrices alone.
    let train = &trial["train"];
    for (key, value) in [
        ("batch_size", json!(12)),
        ("steps", json!(2000)),
        ("clip_norm", json!(1.0)),
        ("precision", json!("f32")),
    ] {
        assert_eq!(train[key], value, "{key}");
    }
    let optimizer = json!({"kind": "adamw", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1, "weight_decay_on": "matrices"});
    assert_eq!(train["optimizer"], optimizer);
    assert_eq!(
        train["learning_rate_schedule"],
        json!({"kind": "cosine", "warmup_steps": 100, "final_fraction": 0.1})
    );
}

#[test]
fn the_engines_train_the_same_gpt_in_turns() {
    let plan = plan_of("gpt-engines.yaml", &[]);
    for block in trials(&plan).chunks(3) {
        let engines: BTreeSet<&str> = block
            .iter()
            .map(|trial| trial["axes"]["run.engine"].as_str().unwrap())
            .collect();
        assert_eq!(
            engines,
            BTreeSet::from(["libtorch", "pytorch", "pytorch-compile"])
        );
        for key in ["model", "data", "train"] {
            assert!(block.iter().all(|trial| trial[key] == block[0][key]));
        }
    }
    assert_eq!(trials(&plan).len(), 30);
    assert_eq!(values(&plan, "/train/precision"), ["f32", "amp-bf16"]);
}

#[test]
fn the_commands_are_of_five_lines_and_of_somebody_elses_training() {
    let text = fs::read_to_string(root().join("experiments/hyperfine-like.yaml")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines, 5);
    let plan = plan_of("third-party-spacy.yaml", &[]);
    assert_eq!(trials(&plan).len(), 3 * 2 * 5);
    let value = |trial: &Value, name: &str| trial["model"]["values"][name].as_u64().unwrap();
    let points: BTreeSet<(u64, u64)> = trials(&plan)
        .iter()
        .map(|trial| (value(trial, "batch_size"), value(trial, "width")))
        .collect();
    assert_eq!(points.len(), 6);
}

#[test]
fn the_look_at_a_device_has_several_sizes_and_precisions() {
    let plan = plan_of("device-matmul.yaml", &[]);
    assert_eq!(values(&plan, "/model/kind"), ["matmul"]);
    let sizes: BTreeSet<u64> = values(&plan, "/model/size")
        .into_iter()
        .filter_map(Value::as_u64)
        .collect();
    let precisions = values(&plan, "/train/precision");
    assert!(
        sizes.len() >= 3 && sizes.last() >= Some(&(4 * sizes.first().unwrap())),
        "{sizes:?}"
    );
    assert_eq!(precisions, ["f32", "amp-bf16"]);
    assert_eq!(
        trials(&plan).len(),
        sizes.len() * precisions.len(),
        "every size at every precision"
    );
    for trial in trials(&plan) {
        assert_eq!(
            trial["flops_per_sample"].as_u64(),
            trial["model"]["size"].as_u64().map(|size| 2 * size.pow(3))
        );
    }
}

#[test]
fn the_word_language_model_is_the_published_one() {
    let plan = plan_of("wikitext2-lstm.yaml", &["--set", "model.vocabulary=33278"]);
    assert_eq!(values(&plan, "/parameters"), [7_332_078, 13_987_678]);
    let trial = &trials(&plan)[0];
    for (key, value) in [
        ("batch_size", json!(20)),
        ("epochs", json!(40)),
        ("clip_norm", json!(0.25)),
    ] {
        assert_eq!(trial["train"][key], value, "{key}");
    }
    let (optimizer, schedule) = (
        &trial["train"]["optimizer"],
        &trial["train"]["learning_rate_schedule"],
    );
    assert_eq!(
        (
            &optimizer["kind"],
            &optimizer["learning_rate"],
            &optimizer["momentum"]
        ),
        (&json!("sgd"), &json!(20.0), &json!(0.0))
    );
    assert_eq!(
        (
            &schedule["kind"],
            &schedule["factor"],
            &schedule["patience"]
        ),
        (&json!("plateau"), &json!(0.25), &json!(0))
    );
    assert_eq!(
        (
            &trial["model"]["seq_len"],
            &trial["model"]["dropout"],
            &trial["data"]["sampling"]
        ),
        (&json!(35), &json!(0.2), &json!("contiguous"))
    );
}

#[test]
fn gpt2_has_its_124_million_parameters_and_needs_no_data() {
    let plan = plan_of("gpt2-124m.yaml", &[]);
    assert_eq!(values(&plan, "/parameters"), [123_587_328 + 1024 * 768]);
    assert_eq!(
        values(&plan, "/flops_per_sample"),
        [&json!(854_654_976_u64 * 1024)]
    );
    assert_eq!(
        (
            values(&plan, "/data/kind"),
            values(&plan, "/data/synthetic")
        ),
        (vec![&json!("generated")], vec![&json!(true)])
    );
    assert_eq!(values(&plan, "/train/batch_size"), [4, 8, 12, 16]);
    let shape = json!({"kind": "gpt", "d_model": 768, "num_layers": 12, "num_heads": 12, "seq_len": 1024, "dropout": 0.0, "vocabulary": 50_304,
        "tie_head": true, "bias": false});
    assert_eq!(values(&plan, "/model"), [&shape]);
    // The ids of the same experiment when it wrote its numbers out.
    assert_eq!(
        values(&plan, "/id"),
        ["t0d06e7cf93", "t5426e085b8", "t8a18f33193", "tef2474c854"]
    );
}

#[test]
fn the_ladder_of_resnets_goes_up_in_batch_size_depth_after_depth() {
    let data = tempfile::tempdir().unwrap();
    stand_ins(data.path());
    let plan = plan(
        &root().join("experiments/fashion-resnet-depth.yaml"),
        &[],
        Some(data.path()),
    );
    let steps: Vec<(u64, u64)> = trials(&plan)
        .iter()
        .map(|trial| {
            (
                trial["model"]["depth"].as_u64().unwrap(),
                trial["train"]["batch_size"].as_u64().unwrap(),
            )
        })
        .collect();
    assert!(steps.is_sorted() && steps.len() == 18, "{steps:?}");
    assert_eq!(values(&plan, "/model/depth"), [18, 50, 152]);
    // ResNet-50 at 1,000 classes has 25,557,032; here 10 classes, one channel, and a stem of 3 × 3.
    let (head, stem) = (2049 * (1000 - 10), 64 * (3 * 49 - 9));
    assert_eq!(
        trials(&plan)[6]["parameters"],
        json!(25_557_032 - head - stem)
    );
}

#[test]
fn the_stock_lstm_is_the_case_that_waits_for_40_workers() {
    let plan = plan_of("stocknet-lstm-workers.yaml", &[]);
    assert_eq!(
        (
            values(&plan, "/train/batch_size"),
            values(&plan, "/data/num_workers")
        ),
        (
            vec![&json!(64), &json!(256), &json!(512)],
            vec![&json!(4), &json!(8), &json!(40)]
        )
    );
    let model = &trials(&plan)[0]["model"];
    assert_eq!(
        (
            &model["symbol_width"],
            &model["hidden"],
            &model["num_layers"]
        ),
        (&json!(64), &json!(256), &json!(3))
    );
    assert_eq!((&plan["repeats"], trials(&plan).len()), (&json!(3), 27));
}
