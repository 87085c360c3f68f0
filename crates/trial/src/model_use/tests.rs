//! Each kind of model exported with weights that are made of their names, on both engines.
//! PyTorch's outputs for the same files are in `tests/reference/exports.csv`, which
//! `tests/reference/exports.py` makes; the sum of each file of weights shows that they are the
//! same.

use std::{collections::BTreeMap, fs, path::Path};

use kiln_core::{
    kinds::random::SplitMix64,
    record::model_use::ExportTask,
    spec::{Engine, InitialWeights},
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::train::{pretrained::Pretrained, trainable::Trainable};

/// Name, `model` and `data` sections.
const MODELS: [(&str, &str, &str); 10] = [
    (
        "gpt",
        "kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 16",
        TEXT,
    ),
    (
        "gpt-plain",
        "kind: gpt, d_model: 24, num_layers: 3, num_heads: 2, seq_len: 12, bias: false, tie_head: \
         false, dropout: 0.1",
        TEXT,
    ),
    (
        "lstm",
        "kind: lstm, d_model: 12, hidden: 20, num_layers: 2, seq_len: 16",
        TEXT,
    ),
    (
        "lstm-tied",
        "kind: lstm, d_model: 16, hidden: 16, num_layers: 1, seq_len: 8, tie_head: true",
        TEXT,
    ),
    (
        "mlp",
        "kind: mlp, d_model: 8, hidden: 32, context: 4, seq_len: 16",
        TEXT,
    ),
    (
        "resnet18",
        "kind: resnet, depth: 18, width: 4, stem: small",
        "kind: generated-images, image_size: 16, classes: 10",
    ),
    (
        "resnet50",
        "kind: resnet, depth: 50, width: 2",
        "kind: generated-images, image_size: 64, classes: 7, channels: 1",
    ),
    (
        "panel-lstm",
        "kind: panel-lstm, seq_len: 12, symbol_width: 5, hidden: 16, num_layers: 3",
        "kind: stocknet",
    ),
    (
        "seq2seq",
        "kind: seq2seq, d_model: 32, d_kv: 8, d_ff: 64, encoder_layers: 2, decoder_layers: 3, \
         num_heads: 4, relative_buckets: 16, relative_max_distance: 30",
        "kind: chatlm",
    ),
    (
        "seq2seq-wide",
        "kind: seq2seq, d_model: 24, d_kv: 16, d_ff: 40, encoder_layers: 1, decoder_layers: 2, \
         num_heads: 3",
        "kind: chatlm",
    ),
];
const TEXT: &str = "kind: generated, tokenizer: character, characters: 3000";

/// f32 sums in other orders.
const TOLERANCE: f64 = 1e-5;

fn trial(model: &str, data: &str, engine: Engine, folder: &Path) -> TrialFile {
    let engine = serde_json::to_value(engine).unwrap();
    let engine = engine.as_str().unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{{model}}}, data: {{{data}}}, \
         train: {{steps: 1, cpu_threads: 1}}, measure: {{}}, engine: {engine}, device: cpu, \
         folder: {}, run_anchor_nanoseconds: 0}}",
        folder.display()
    );
    serde_yaml::from_str(&text).unwrap()
}

fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::Flex];
    if cfg!(feature = "libtorch") {
        engines.push(Engine::Libtorch);
    }
    engines
}

/// The facts of the data that the model needs.
fn input(model: &Model) -> InputShape {
    match model {
        Model::Resnet(resnet) => InputShape::Images(match resnet.depth {
            18 => ImageShape {
                channels: 3,
                height: 16,
                width: 16,
                classes: 10,
            },
            _ => ImageShape {
                channels: 1,
                height: 64,
                width: 64,
                classes: 7,
            },
        }),
        Model::PanelLstm(_) => InputShape::Panel(PanelShape {
            features: 6,
            symbols: 9,
        }),
        Model::Seq2seq(_) => InputShape::Pairs(PairShape {
            vocabulary: 50,
            train: PairCounts::default(),
        }),
        _ => InputShape::Text { vocabulary: 50 },
    }
}

/// `weights` of reference.py: uniform, of variance 1 / inputs for matrices; biases within 0.1,
/// others within 0.1 of 1. FNV-1a of the name seeds the stream.
fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let name = without_kind(name);
    let mut stream = SplitMix64::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    }));
    let is_bias = name
        .rsplit('.')
        .next()
        .is_some_and(|last| last.starts_with("bias"));
    (0..shape.iter().product())
        .map(|_| {
            let value = stream.fraction() * 2.0 - 1.0;
            (match shape {
                [_, inputs @ ..] if !inputs.is_empty() => {
                    value * (3.0 / inputs.iter().product::<usize>() as f64).sqrt()
                }
                _ if is_bias => value * 0.1,
                _ => value * 0.1 + 1.0,
            }) as f32
        })
        .collect()
}

/// Exports a model into `to`; the folder of its checkpoint is `checkpoint`.
fn exported(name: &str, engine: Engine, checkpoint: &Path, to: &Path) -> Vec<UseAnswer> {
    let (_, model, data) = MODELS.iter().find(|(known, ..)| *known == name).unwrap();
    let file = trial(model, data, engine, checkpoint);
    fs::create_dir_all(to).unwrap();
    let learner = Learner::build_with(&file, Some(input(&file.model)), &weights).unwrap();
    Trainable::save(&learner, checkpoint).unwrap();
    let task = UseTask::Export(ExportTask {
        to: to.to_owned(),
        origin: json!({"run": "a test", "step": 1}),
    });
    asked(file, checkpoint, task).1
}

/// The exit status, and the answers.
fn asked(trial: TrialFile, checkpoint: &Path, task: UseTask) -> (i32, Vec<UseAnswer>) {
    let request = UseRequest {
        kiln_use: MODEL_USE,
        trial,
        checkpoint: checkpoint.to_owned(),
        data_sha256: None,
        outputs: OutputNames::default(),
        task,
    };
    let text = serde_json::to_vec(&request).unwrap();
    let mut out = Vec::new();
    let status = answer(&Registry::new(), text.as_slice(), &mut out);
    let answers = out
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap());
    (status, answers.collect())
}

/// PyTorch's outputs and the sum of the weights, by model.
fn reference() -> BTreeMap<String, (String, Vec<f64>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/exports.csv");
    let mut found: BTreeMap<String, (String, Vec<f64>)> = BTreeMap::new();
    for row in csv::Reader::from_path(path).unwrap().records() {
        let row = row.unwrap();
        let (_, outputs) = found
            .entry(row[0].to_owned())
            .or_insert_with(|| (row[1].to_owned(), Vec::new()));
        outputs.push(row[2].parse().unwrap());
    }
    found
}

/// `KILN_EXPORTS=DIR` keeps the folders there, for `exports.py`.
#[test]
fn exported_models_compute_in_pytorch_what_they_compute_here() {
    let kept = std::env::var_os("KILN_EXPORTS").map(std::path::PathBuf::from);
    let expected = if kept.is_some() {
        BTreeMap::new()
    } else {
        reference()
    };
    for engine in engines() {
        for (name, ..) in MODELS {
            let folder = tempfile::tempdir().unwrap();
            let to = match &kept {
                Some(kept) => kept.join(name),
                None => folder.path().join("to"),
            };
            let answers = exported(name, engine, folder.path(), &to);
            assert_eq!(answers.last(), Some(&UseAnswer::Done), "{answers:?}");
            let config: Value =
                serde_json::from_slice(&fs::read(to.join("config.json")).unwrap()).unwrap();
            assert_eq!(config["origin"]["run"], "a test");
            if kept.is_some() {
                continue;
            }
            let (sum, outputs) = &expected[name];
            let weights = fs::read(to.join("model.safetensors")).unwrap();
            assert!(
                hex::encode(Sha256::digest(&weights)).starts_with(sum),
                "{name} has other weights"
            );
            let check = fs::read(to.join("check.safetensors")).unwrap();
            let check = SafeTensors::deserialize(&check).unwrap();
            let here = check.tensor("outputs").unwrap();
            let here: Vec<f64> = here
                .data()
                .as_chunks()
                .0
                .iter()
                .map(|four| f64::from(f32::from_le_bytes(*four)))
                .collect();
            assert_eq!(here.len(), outputs.len(), "{name}");
            let scale = outputs
                .iter()
                .fold(1.0, |most: f64, value| most.max(value.abs()));
            let apart = here
                .iter()
                .zip(outputs)
                .fold(0.0, |most: f64, (one, other)| most.max((one - other).abs()));
            assert!(apart <= TOLERANCE * scale, "{name} on {engine:?}: {apart}");
        }
    }
}

/// The shapes that the runner compares with the header of a file of weights.
#[test]
fn a_checkpoint_has_the_tensors_that_are_known_beforehand() {
    for (name, model, data) in MODELS {
        let folder = tempfile::tempdir().unwrap();
        exported(name, Engine::Flex, folder.path(), &folder.path().join("to"));
        let saved = TensorFile::read(&folder.path().join(MODEL_FILE)).unwrap();
        let model = trial(model, data, Engine::Flex, folder.path()).model;
        let sizes = |shape: Vec<Option<u64>>| -> Vec<u64> {
            shape.into_iter().map(Option::unwrap).collect()
        };
        let known: BTreeMap<String, Vec<u64>> =
            kiln_core::pretrained::tensors(&model, Some(input(&model)))
                .unwrap()
                .into_iter()
                .map(|(path, shape)| (path, sizes(shape)))
                .collect();
        assert_eq!(saved.header().shapes, known, "{name}");
    }
}

/// Both files of weights have each value of the checkpoint in its place, and no other.
#[test]
fn an_export_is_initial_weights() {
    for (name, model, data) in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        exported(name, Engine::Flex, folder.path(), &to);
        let saved = TensorFile::read(&folder.path().join(MODEL_FILE)).unwrap();
        let read = |file: &str, model: &str| {
            let path = to.join(file);
            let bytes = fs::read(&path).unwrap();
            let weights = InitialWeights {
                path: path.display().to_string(),
                sha256: hex::encode(Sha256::digest(&bytes)),
                without: Vec::new(),
            };
            let trial = trial(model, data, Engine::Flex, folder.path());
            Pretrained::read(&weights, &trial.model, None)
        };
        let mut files = vec!["model.safetensors"];
        if name.starts_with("gpt") || name.starts_with("seq2seq") {
            files.push("huggingface/model.safetensors");
        }
        for file in files {
            let found = read(file, model).unwrap();
            for path in saved.names() {
                let shape = saved.shape(&path).unwrap().to_vec();
                let values = saved.values(&path, shape.iter().product()).unwrap();
                assert_eq!(
                    found.values(&path, &shape).unwrap(),
                    values,
                    "{file} {path}"
                );
            }
            found.all_taken().unwrap();
            assert_eq!(found.into_notices(), Vec::<String>::new(), "{name}");
            if name == "gpt" {
                let refused = read(file, &model.replace("num_heads: 4", "num_heads: 8"));
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("set it to 4"), "{refused}");
            }
        }
    }
}

#[test]
fn a_damaged_request_or_weights_of_another_model_are_refused() {
    let mut out = Vec::new();
    assert_eq!(
        answer(&Registry::new(), "{\"kiln_use\": 1}".as_bytes(), &mut out),
        exit_status::BAD_FILE
    );
    assert!(String::from_utf8(out).unwrap().contains("is not a request"));
    let folder = tempfile::tempdir().unwrap();
    exported(
        "mlp",
        Engine::Flex,
        folder.path(),
        &folder.path().join("to"),
    );
    let file = trial(MODELS[0].1, TEXT, Engine::Flex, folder.path());
    let task = UseTask::Export(ExportTask {
        to: folder.path().join("other"),
        origin: Value::Null,
    });
    let (status, answers) = asked(file, folder.path(), task);
    assert_eq!(status, exit_status::FAILED);
    assert!(
        matches!(answers.last(), Some(UseAnswer::Failed { reason }) if reason.contains("is missing")),
        "{answers:?}"
    );
}
