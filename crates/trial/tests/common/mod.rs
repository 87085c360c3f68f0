//! Small trials and batches for the tests of this package.
//!
//! Every training here and in the tests computes with one thread (`cpu_threads: 1`). Threads of
//! several trainings at once wait for each other, and libtorch's number of threads is one for the
//! whole process: a test that asks for more also slows its neighbors.
//!
//! `KILN_TEST_DEVICE=cuda` lets engine libtorch compute on a GPU (`scripts/check-gpu.sh`); what
//! only the CPU or engine flex can show is left out there by name. `KILN_TEST_FILES` and
//! `KILN_TEST_PROGRAMS` say where the repository's files and the programs lie when the tests have
//! travelled.
#![allow(dead_code, reason = "each test executable uses a part of these")]

pub(crate) mod attempts;
pub(crate) mod tensors;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

#[cfg(feature = "libtorch")]
use kiln_core::plan::ChildDevice;
use kiln_core::{kinds::InputShape, plan::TrialFile, spec::Engine};
#[cfg(feature = "libtorch")]
use kiln_trial::engine::EngineDevice;
use kiln_trial::train::{HostBatch, Learner};

use crate::form::by_form;

pub(crate) const VOCABULARY: u64 = 50;
pub(crate) const SEQ_LEN: usize = 16;

/// A trial file of a small model; `with` adds keys to the model, such as `dropout: 0.1`.
pub(crate) fn trial(engine: Engine, model: &str, with: &str) -> TrialFile {
    let shape = match model {
        "gpt" => "kind: gpt, d_model: 32, num_layers: 2, num_heads: 4",
        _ => "kind: mlp, d_model: 8, hidden: 32, context: 4",
    };
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, model: {{{shape}, seq_len: {SEQ_LEN}, {with}}}, data: {{kind: generated}},
          train: {{batch_size: 4, steps: 1, cpu_threads: 1, optimizer: {{kind: adamw, learning_rate: 1.0e-2}}}}, measure: {{}},
          engine: {}, device: {}, folder: {}, run_anchor_nanoseconds: 0}}",
        engine.name(),
        device_of(engine.name()),
        PathBuf::from("/nowhere").display()
    );
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Whether engine libtorch computes on a GPU here.
pub(crate) fn is_cuda() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| {
        let is_cuda = match env::var("KILN_TEST_DEVICE").as_deref() {
            Err(env::VarError::NotPresent) | Ok("" | "cpu") => false,
            Ok("cuda") => true,
            other => panic!("KILN_TEST_DEVICE is {other:?}; it must be cpu or cuda"),
        };
        // libtorch that was asked for the CPU before its CUDA half was loaded has no CUDA in this
        // process.
        #[cfg(feature = "libtorch")]
        if is_cuda {
            EngineDevice::open(Engine::Libtorch, ChildDevice::Cuda, 1).unwrap();
        }
        is_cuda
    });
    *FOUND
}

/// The device of an engine's trials; flex has the CPU alone. CUDA is loaded in any case: a trial on flex
/// asks libtorch for its versions, after which it would be too late for the next test.
pub(crate) fn device_of(engine: &str) -> &'static str {
    if is_cuda() && engine == "libtorch" {
        "cuda"
    } else {
        "cpu"
    }
}

/// Factor by which the tolerances of f32, set on the CPU, are wider on a GPU, whose kernels sum in
/// another order. Not yet seen on one.
pub(crate) fn slack() -> f64 {
    if is_cuda() { 10.0 } else { 1.0 }
}

/// Whether two numbers of the same training are the same: to the bit on the CPU. On a GPU gradients
/// are added with atomics, in another order each time, and a hundred updates magnify what that
/// changes in the last bits; state that is lost shows as a tenth and more.
pub(crate) fn is_same(found: f64, expected: f64) -> bool {
    is_same_within(0.02, found, expected)
}

/// As [`is_same`], with the share by which two trainings may differ on a GPU.
pub(crate) fn is_same_within(share: f64, found: f64, expected: f64) -> bool {
    found.to_bits() == expected.to_bits() || (is_cuda() && (found / expected - 1.0).abs() < share)
}

/// The same for lists.
pub(crate) fn are_same(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, expected)| is_same(*found, *expected))
}

/// A file of the repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    let root = env::var_os("KILN_TEST_FILES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        PathBuf::from,
    );
    root.join(path)
}

/// A program that was built with the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_kiln-trial")).with_file_name(name);
    env::var_os("KILN_TEST_PROGRAMS").map_or(beside, |folder| PathBuf::from(folder).join(name))
}

/// The engines that this build has; on a GPU the one that can use it.
pub(crate) fn engines() -> &'static [Engine] {
    match cfg!(feature = "libtorch") {
        true if is_cuda() => &[Engine::Libtorch],
        true => &[Engine::Libtorch, Engine::Flex],
        false => &[Engine::Flex],
    }
}

/// The same in the long form. In the short form one of them, by `turn`.
pub(crate) fn engines_in_turn(turn: usize) -> &'static [Engine] {
    by_form(&engines()[turn % engines().len()..][..1], engines())
}

/// Tests that draw from the generator of an engine, of which a process has one, take turns.
pub(crate) fn alone_with_the_generator_of(engine: Engine) -> MutexGuard<'static, ()> {
    static LIBTORCH: Mutex<()> = Mutex::new(());
    static FLEX: Mutex<()> = Mutex::new(());
    let generator = match engine {
        Engine::Libtorch => &LIBTORCH,
        Engine::Flex => &FLEX,
        Engine::Own(_) => panic!("a program of one's own has a generator of its own"),
    };
    generator.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for all engines. Always in this order, so that no two tests wait for each other.
pub(crate) fn alone_with_the_generator() -> [MutexGuard<'static, ()>; 2] {
    [Engine::Libtorch, Engine::Flex].map(alone_with_the_generator_of)
}

pub(crate) fn learner(file: &TrialFile) -> Learner {
    Learner::build(
        file,
        Some(InputShape::Text {
            vocabulary: VOCABULARY,
        }),
    )
    .unwrap()
}

/// Tokens that follow a pattern, so that there is something to learn; `number` tells batches apart.
pub(crate) fn batch(rows: usize, number: usize) -> HostBatch {
    let token = |row: usize, at: usize| {
        ((number * 13 + row * 7 + at * (row % 3 + 1)) % VOCABULARY as usize) as i64
    };
    let both = |shift: usize| {
        (0..rows)
            .flat_map(|row| (0..SEQ_LEN).map(move |at| token(row, at + shift)))
            .collect()
    };
    HostBatch::of_text(rows, SEQ_LEN, both(0), both(1))
}

/// The rows of all batches in one.
pub(crate) fn joined(parts: &[HostBatch]) -> HostBatch {
    let text = |part: &HostBatch| part.text().unwrap().clone();
    let inputs = parts.iter().flat_map(|part| text(part).inputs).collect();
    let targets = parts.iter().flat_map(|part| text(part).targets).collect();
    HostBatch::of_text(
        parts.iter().map(|part| part.rows).sum(),
        SEQ_LEN,
        inputs,
        targets,
    )
}

/// Trains `count` steps of `accumulation` batches each, taken in turn; the loss of each step.
pub(crate) fn steps(
    learner: &mut Learner,
    count: u64,
    accumulation: u64,
    batches: &[HostBatch],
) -> Vec<f64> {
    for step in 0..count {
        let of_step: Vec<&HostBatch> = (0..accumulation)
            .map(|micro| &batches[(step * accumulation + micro) as usize % batches.len()])
            .collect();
        let targets = of_step.iter().map(|batch| batch.counted_targets()).sum();
        for (micro, host) in of_step.into_iter().enumerate() {
            let device = learner.to_device(host).unwrap();
            learner
                .micro_step(device, step, micro as u64, targets)
                .unwrap();
        }
        learner.update(1e-2).unwrap();
    }
    learner.take_losses().unwrap()
}

/// Each value within `tolerance` of the largest value of its tensor.
pub(crate) fn assert_close(
    left: &[(String, Vec<f32>)],
    right: &[(String, Vec<f32>)],
    tolerance: f32,
) {
    assert_eq!(left.len(), right.len());
    for ((path, left), (other, right)) in left.iter().zip(right) {
        assert_eq!((path, left.len()), (other, right.len()));
        let scale = left
            .iter()
            .fold(1e-3_f32, |largest, value| largest.max(value.abs()));
        let worst = left
            .iter()
            .zip(right)
            .map(|(left, right)| (left - right).abs())
            .fold(0.0, f32::max);
        assert!(
            worst <= tolerance * scale.max(1.0),
            "{path}: {worst} of {scale}"
        );
        assert!(
            left.iter().any(|value| *value != 0.0) || path.ends_with("unused"),
            "{path}: all gradients are 0"
        );
    }
}

/// A table of a trial, row by row.
pub(crate) fn rows<R: serde::de::DeserializeOwned>(path: &Path) -> Vec<R> {
    csv::Reader::from_path(path)
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect()
}

/// 100 prompts and responses of up to 12 words as `rows.jsonl`, and the words as `tokenizer.json`.
pub(crate) fn write_pairs(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let words = |number: usize, salt: usize| {
        (0..1 + number * salt % 12)
            .map(|at| format!("w{}", (number + at * salt) % 20))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let row = |number: usize| {
        serde_json::json!({"prompt": words(number, 5), "response": words(number, 7)}).to_string()
            + "\n"
    };
    fs::write(
        folder.join("rows.jsonl"),
        (0..100).map(row).collect::<String>(),
    )
    .unwrap();
    let known = ["[PAD]", "[EOS]", "[UNK]"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..20).map(|number| format!("w{number}")));
    let vocabulary: serde_json::Map<String, serde_json::Value> = known
        .enumerate()
        .map(|(id, word)| (word, id.into()))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}
