//! kiln's models against PyTorch's: the same weights and batches give the same losses and gradients. The tables come from
//! `tests/reference/reference.py`, which nothing here runs.

#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path};

use kiln::{catalog::random::SplitMix64, plan::TrialFile, spec::Engine};
use kiln_trial::train::{HostBatch, Learner, NamedValues};

const STEPS: u64 = 20;
/// Relative; f32 sums in different orders, twenty times over.
const TOLERANCE: f64 = 1e-4;

struct Reference {
    name: &'static str,
    model: &'static str,
    train: &'static str,
    batch: fn(u64) -> HostBatch,
    vocabulary: Option<u64>,
}

const GPT: Reference = Reference {
    name: "gpt",
    model: "kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 16",
    train: "batch_size: 4, clip_norm: 1.0, optimizer: {kind: adamw, learning_rate: 1.0e-3, weight_decay: 0.01}",
    batch: tokens,
    vocabulary: Some(50),
};

const LSTM: Reference = Reference {
    name: "lstm",
    model: "kind: lstm, d_model: 12, hidden: 20, num_layers: 2, seq_len: 16",
    train: "batch_size: 4, clip_norm: 0.25, optimizer: {kind: sgd, learning_rate: 1.0}",
    batch: tokens,
    vocabulary: Some(50),
};

const MLP: Reference = Reference {
    name: "mlp",
    model: "kind: mlp, d_model: 8, hidden: 32, context: 4, seq_len: 16",
    train: "batch_size: 4, optimizer: {kind: sgd, learning_rate: 0.1, momentum: 0.9}",
    batch: tokens,
    vocabulary: Some(50),
};

/// FNV-1a.
fn stream(name: &str) -> SplitMix64 {
    SplitMix64::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}

/// A parameter's path begins with the kind of model.
fn without_kind(path: &str) -> &str {
    path.split_once('.').map_or(path, |(_, rest)| rest)
}

/// `weights` of reference.py.
fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut stream = stream(name);
    let uniform = (0..shape.iter().product()).map(|_| (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * 2.0 - 1.0);
    let is_bias = name.rsplit('.').next().is_some_and(|last| last.starts_with("bias"));
    let value = |value: f64| match shape {
        [_, inputs @ ..] if !inputs.is_empty() => value * (3.0 / inputs.iter().product::<usize>() as f64).sqrt(),
        _ if is_bias => value * 0.1,
        _ => value * 0.1 + 1.0,
    };
    uniform.map(|number| value(number) as f32).collect()
}

/// 4 rows of 17 tokens out of 50.
fn tokens(step: u64) -> HostBatch {
    let mut stream = stream(&format!("tokens.{}", (step - 1) % 4));
    let rows: Vec<Vec<i64>> = (0..4).map(|_| (0..17).map(|_| (stream.next_u64() % 50) as i64).collect()).collect();
    let both = |from: usize| rows.iter().flat_map(|row| row[from..from + 16].to_vec()).collect();
    HostBatch { inputs: both(0), targets: both(1), rows: 4, seq_len: 16 }
}

fn file(reference: &Reference, engine: Engine) -> TrialFile {
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, model: {{{}}}, data: {{kind: generated, sampling: contiguous}}, train: {{{}, steps: {STEPS}, cpu_threads: 2}},
          measure: {{}}, engine: {}, device: cpu, folder: /nowhere, run_anchor_nanoseconds: 0}}",
        reference.model,
        reference.train,
        engine.name(),
    );
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The rows of a table of the folder of references, without its head.
fn table(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn norm<'a>(gradients: impl IntoIterator<Item = &'a NamedValues>) -> f64 {
    gradients.into_iter().flat_map(|(_, values)| values).map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

fn agrees(reference: &Reference, engine: Engine) {
    let file = file(reference, engine);
    let mut learner = Learner::build_with(&file, reference.vocabulary, &|path, shape| weights(without_kind(path), shape)).unwrap();
    let mut norms = Vec::new();
    for step in 1..=STEPS {
        let host = (reference.batch)(step);
        let batch = learner.to_device(&host).unwrap();
        learner.micro_step(batch, step, 0, host.counted_targets()).unwrap();
        let gradients: Vec<NamedValues> =
            learner.gradients().unwrap().into_iter().map(|(path, values)| (without_kind(&path).to_owned(), values)).collect();
        if step == 1 {
            first_gradients_agree(reference, &gradients);
        }
        norms.push(norm(&gradients));
        learner.update(file.train.optimizer.learning_rate()).unwrap();
    }
    let losses = learner.take_losses().unwrap();
    let steps = table(&format!("{}-steps.csv", reference.name));
    assert_eq!(steps.len(), losses.len());
    for (row, (loss, norm)) in steps.iter().zip(losses.iter().zip(&norms)) {
        let wanted: Vec<f64> = row[1..].iter().map(|cell| cell.parse().unwrap()).collect();
        let off = (loss / wanted[0] - 1.0).abs().max((norm / wanted[1] - 1.0).abs());
        assert!(off < TOLERANCE, "{} on {engine:?}, step {}: {loss} {norm}, PyTorch {wanted:?}", reference.name, row[0]);
    }
}

fn first_gradients_agree(reference: &Reference, gradients: &[NamedValues]) {
    let wanted = table(&format!("{}-gradients.csv", reference.name));
    let whole = norm(gradients);
    let mut paths: Vec<&str> = gradients.iter().map(|(path, _)| path.as_str()).collect();
    let mut wanted_paths: Vec<&str> = wanted.iter().map(|row| row[0].as_str()).collect();
    paths.sort_unstable();
    wanted_paths.sort_unstable();
    assert_eq!(paths, wanted_paths);
    for row in &wanted {
        let found = norm(gradients.iter().filter(|(path, _)| *path == row[0]));
        let wanted: f64 = row[1].parse().unwrap();
        // Of its own norm, and never finer than f32 resolves the whole gradient.
        assert!((found - wanted).abs() < TOLERANCE * wanted.max(1e-2 * whole), "{}, `{}`: {found}, PyTorch {wanted}", reference.name, row[0]);
    }
}

#[test]
fn the_first_twenty_steps_are_those_of_pytorch() {
    for reference in [GPT, LSTM, MLP] {
        for engine in [Engine::Libtorch, Engine::Flex] {
            agrees(&reference, engine);
        }
    }
}
