//! kiln's models against PyTorch's: the same weights and batches give the same losses and
//! gradients. The tables come from `tests/reference/reference.py`, which nothing here runs.

use std::fs;

use crate::common::{device_of, engines, in_repository, is_cuda};
use kiln_core::{
    kinds::{
        InputShape,
        data::{ImageShape, PairCounts, PairShape, PanelShape},
        random::SplitMix64,
    },
    plan::TrialFile,
    spec::{Engine, GradientNoise},
    statistics::GradientNorms,
};
use kiln_trial::{
    data::{
        BatchPixels, BatchSamples, HostBatch, ImageSamples, PairSamples, PanelSamples, TargetScale,
    },
    train::{Learner, NamedValues},
};

/// Steps in the tables.
const STEPS: u64 = 20;
/// Relative; f32 sums in different orders, twenty times over.
const TOLERANCE: f64 = 1e-4;
/// The same on a GPU, whose kernels sum in orders of their own. Not yet seen on one.
const TOLERANCE_ON_CUDA: f64 = 1e-3;
/// Tolerance of the narrow ResNet-50, where the order of sums decides which of two nearly equal
/// values gets through (see [`file`]).
const TOLERANCE_OF_RESNET50_ON_CUDA: f64 = 3e-2;

pub(crate) struct Reference {
    pub(crate) name: &'static str,
    model: &'static str,
    train: &'static str,
    data: &'static str,
    pub(crate) batch: fn(u64) -> HostBatch,
    pub(crate) input: InputShape,
}

const TEXT: &str = "kind: generated, sampling: contiguous";
const OF_TEXT: InputShape = InputShape::Text { vocabulary: 50 };
pub(crate) const IMAGES: ImageShape = ImageShape {
    channels: 3,
    height: 16,
    width: 16,
    classes: 10,
};
const PANEL: PanelShape = PanelShape {
    features: 6,
    symbols: 9,
};

const GPT: Reference = Reference {
    name: "gpt",
    model: "kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 16",
    train: "batch_size: 4, clip_norm: 1.0, optimizer: {kind: adamw, learning_rate: 1.0e-3, \
            weight_decay: 0.01}",
    data: TEXT,
    batch: tokens,
    input: OF_TEXT,
};

const LSTM: Reference = Reference {
    name: "lstm",
    model: "kind: lstm, d_model: 12, hidden: 20, num_layers: 2, seq_len: 16",
    train: "batch_size: 4, clip_norm: 0.25, optimizer: {kind: sgd, learning_rate: 1.0}",
    data: TEXT,
    batch: tokens,
    input: OF_TEXT,
};

const MLP: Reference = Reference {
    name: "mlp",
    model: "kind: mlp, d_model: 8, hidden: 32, context: 4, seq_len: 16",
    train: "batch_size: 4, optimizer: {kind: sgd, learning_rate: 0.1, momentum: 0.9}",
    data: TEXT,
    batch: tokens,
    input: OF_TEXT,
};

const RESNET18: Reference = Reference {
    name: "resnet18",
    model: "kind: resnet, depth: 18, width: 4, stem: small",
    train: "batch_size: 8, label_smoothing: 0.1, optimizer: {kind: sgd, learning_rate: 0.05, \
            momentum: 0.9, nesterov: true, weight_decay: 5.0e-4}",
    data: "kind: generated-images, image_size: 16",
    batch: images,
    input: InputShape::Images(IMAGES),
};

const RESNET50: Reference = Reference {
    name: "resnet50",
    model: "kind: resnet, depth: 50, width: 2",
    train: "batch_size: 8, optimizer: {kind: sgd, learning_rate: 1.0e-3}",
    data: "kind: generated-images, image_size: 64",
    batch: large_images,
    input: InputShape::Images(ImageShape {
        height: 64,
        width: 64,
        ..IMAGES
    }),
};

const PANEL_LSTM: Reference = Reference {
    name: "panel-lstm",
    model: "kind: panel-lstm, seq_len: 12, symbol_width: 5, hidden: 16, num_layers: 3",
    train: "batch_size: 8, optimizer: {kind: adamw, learning_rate: 1.0e-2, weight_decay: 0.01}",
    data: "kind: stocknet",
    batch: returns,
    input: InputShape::Panel(PANEL),
};

const PAIRS: PairShape = PairShape {
    vocabulary: 50,
    train: PairCounts {
        rows: 0,
        prompt_tokens: 0,
        response_tokens: 0,
        prompt_squares: 0,
        response_squares: 0,
        prompt_response_products: 0,
        cut_prompts: 0,
        cut_responses: 0,
        unknown_tokens: 0,
    },
};

const SEQ2SEQ: Reference = Reference {
    name: "seq2seq",
    model: "kind: seq2seq, d_model: 32, d_kv: 8, d_ff: 64, encoder_layers: 2, decoder_layers: 3, \
            num_heads: 4, relative_buckets: 16, relative_max_distance: 30",
    train: "batch_size: 4, clip_norm: 1.0, optimizer: {kind: adamw, learning_rate: 1.0e-3, \
            weight_decay: 0.01}",
    data: "kind: chatlm",
    batch: pairs,
    input: InputShape::Pairs(PAIRS),
};

const SEQ2SEQ_ADAFACTOR: Reference = Reference {
    name: "seq2seq-adafactor",
    train: "batch_size: 4, clip_norm: 1.0, optimizer: {kind: adafactor, learning_rate: 1.0e-3}",
    ..SEQ2SEQ
};

const PANEL_DIRECTION: Reference = Reference {
    name: "panel-lstm-direction",
    batch: directions,
    ..PANEL_LSTM
};

/// One for each kind of model and each optimizer.
#[cfg(feature = "libtorch")]
pub(crate) fn all_references() -> [Reference; 8] {
    [
        GPT,
        LSTM,
        MLP,
        RESNET18,
        RESNET50,
        PANEL_LSTM,
        SEQ2SEQ,
        SEQ2SEQ_ADAFACTOR,
    ]
}

/// FNV-1a.
fn stream(name: &str) -> SplitMix64 {
    SplitMix64::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    }))
}

/// A parameter's path begins with the kind of model.
fn without_kind(path: &str) -> &str {
    path.split_once('.').map_or(path, |(_, rest)| rest)
}

/// `weights` of reference.py.
pub(crate) fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut stream = stream(name);
    let uniform = (0..shape.iter().product()).map(|_| stream.fraction() * 2.0 - 1.0);
    let is_bias = name
        .rsplit('.')
        .next()
        .is_some_and(|last| last.starts_with("bias"));
    let value = |value: f64| match shape {
        [_, inputs @ ..] if !inputs.is_empty() => {
            value * (3.0 / inputs.iter().product::<usize>() as f64).sqrt()
        }
        _ if is_bias => value * 0.1,
        _ => value * 0.1 + 1.0,
    };
    uniform.map(|number| value(number) as f32).collect()
}

/// 4 rows of 17 tokens out of 50.
fn tokens(step: u64) -> HostBatch {
    let mut stream = stream(&format!("tokens.{}", (step - 1) % 4));
    let rows: Vec<Vec<i64>> = (0..4)
        .map(|_| (0..17).map(|_| (stream.next_u64() % 50) as i64).collect())
        .collect();
    let both = |from: usize| {
        rows.iter()
            .flat_map(|row| row[from..from + 16].to_vec())
            .collect()
    };
    HostBatch::of_text(4, 16, both(0), both(1))
}

fn uniform(name: &str, count: usize) -> Vec<f32> {
    let mut stream = stream(name);
    (0..count)
        .map(|_| (stream.fraction() * 2.0 - 1.0) as f32)
        .collect()
}

fn below(name: &str, count: usize, bound: u64) -> Vec<i64> {
    let mut stream = stream(name);
    (0..count)
        .map(|_| (stream.next_u64() % bound) as i64)
        .collect()
}

/// 8 images out of four batches.
fn images_of(step: u64, shape: ImageShape) -> HostBatch {
    let number = (step - 1) % 4;
    let count = (8 * shape.channels * shape.height * shape.width) as usize;
    let pixels = uniform(&format!("pixels.{number}"), count);
    let samples = ImageSamples {
        pixels: BatchPixels::Numbers(pixels),
        labels: below(&format!("labels.{number}"), 8, shape.classes),
        shape,
    };
    HostBatch {
        rows: 8,
        samples: BatchSamples::Images(samples),
        step_targets: None,
    }
}

pub(crate) fn images(step: u64) -> HostBatch {
    images_of(step, IMAGES)
}

fn large_images(step: u64) -> HostBatch {
    images_of(
        step,
        ImageShape {
            height: 64,
            width: 64,
            ..IMAGES
        },
    )
}

/// 8 windows of 12 rows, out of four batches.
fn windows(step: u64, scale: TargetScale) -> HostBatch {
    let number = (step - 1) % 4;
    let numbers = uniform(&format!("targets.{number}"), 8);
    let targets = match scale {
        TargetScale::Returns { .. } => numbers,
        TargetScale::Directions => numbers
            .iter()
            .map(|value| f32::from(u8::from(*value > 0.0)))
            .collect(),
    };
    let features = uniform(&format!("features.{number}"), 8 * 12 * 6);
    let symbols = below(&format!("symbols.{number}"), 8, PANEL.symbols);
    HostBatch {
        rows: 8,
        samples: BatchSamples::Panel(PanelSamples {
            features,
            symbols,
            targets,
            seq_len: 12,
            shape: PANEL,
            scale,
        }),
        step_targets: None,
    }
}

fn returns(step: u64) -> HostBatch {
    windows(
        step,
        TargetScale::Returns {
            mean: 0.0,
            deviation: 1.0,
        },
    )
}

fn directions(step: u64) -> HostBatch {
    windows(step, TargetScale::Directions)
}

const PROMPT: usize = 40;
const RESPONSE: usize = 24;

/// `rows` prompts of 3 to 40 tokens: all their places, padded with 0, and their lengths.
fn prompts(name: &str, rows: usize) -> (Vec<i64>, Vec<i64>) {
    let lengths: Vec<i64> = below(&format!("prompt_lengths.{name}"), rows, PROMPT as u64 - 2)
        .into_iter()
        .map(|length| length + 3)
        .collect();
    let mut tokens: Vec<i64> = below(&format!("prompts.{name}"), rows * PROMPT, 48)
        .into_iter()
        .map(|token| token + 2)
        .collect();
    for (row, length) in tokens.chunks_mut(PROMPT).zip(&lengths) {
        row[*length as usize..].fill(0);
    }
    (tokens, lengths)
}

/// 4 rows out of four batches; responses of 2 to 24 tokens.
fn pairs(step: u64) -> HostBatch {
    let number = (step - 1) % 4;
    let (prompts, prompt_lengths) = prompts(&number.to_string(), 4);
    let lengths = below(
        &format!("response_lengths.{number}"),
        4,
        RESPONSE as u64 - 1,
    );
    let mut targets: Vec<i64> = below(&format!("responses.{number}"), 4 * RESPONSE, 49)
        .into_iter()
        .map(|token| token + 1)
        .collect();
    for (row, length) in targets.chunks_mut(RESPONSE).zip(lengths) {
        row[length as usize + 2..].fill(-100);
    }
    let shifted = targets.chunks(RESPONSE).flat_map(|row| {
        std::iter::once(0).chain(row[..RESPONSE - 1].iter().map(|token| (*token).max(0)))
    });
    let decoder_inputs = shifted.collect();
    let samples = PairSamples {
        prompts,
        prompt_lengths,
        decoder_inputs,
        targets,
        prompt_len: PROMPT,
        response_len: RESPONSE,
        pad: 0,
    };
    HostBatch {
        rows: 4,
        samples: BatchSamples::Pairs(samples),
        step_targets: None,
    }
}

/// With two threads, as the tables were made. One thread sums in another order, and in the narrow
/// ResNet-50 that decides which of two nearly equal values a pool or a rectifier lets through:
/// gradients then differ by a hundredth in some steps, and after twenty by 7e-3 instead of 5e-7.
pub(crate) fn file(reference: &Reference, engine: Engine) -> TrialFile {
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, model: {{{}}}, data: {{{}}}, train: {{{}, steps: {STEPS}, cpu_threads: 2}},
          measure: {{}}, engine: {}, device: {}, folder: /nowhere, run_anchor_nanoseconds: 0}}",
        reference.model,
        reference.data,
        reference.train,
        engine.name(),
        device_of(engine.name()),
    );
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn tolerance(reference: &Reference) -> f64 {
    match reference.name {
        _ if !is_cuda() => TOLERANCE,
        "resnet50" => TOLERANCE_OF_RESNET50_ON_CUDA,
        _ => TOLERANCE_ON_CUDA,
    }
}

/// The rows of a table of the folder of references, without its head.
pub(crate) fn table(name: &str) -> Vec<Vec<String>> {
    let path = in_repository("tests/reference").join(name);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .skip(1)
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect()
}

fn norm<'a>(gradients: impl IntoIterator<Item = &'a NamedValues>) -> f64 {
    gradients
        .into_iter()
        .flat_map(|(_, values)| values)
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt()
}

fn agrees(reference: &Reference, engine: Engine) {
    let file = file(reference, engine);
    let mut learner = Learner::build_with(&file, Some(reference.input), &|path, shape| {
        weights(without_kind(path), shape)
    })
    .unwrap();
    let mut norms = Vec::new();
    for step in 1..=STEPS {
        let host = (reference.batch)(step);
        let batch = learner.to_device(&host).unwrap();
        learner
            .micro_step(batch, step, 0, host.counted_targets())
            .unwrap();
        let gradients: Vec<NamedValues> = learner
            .gradients()
            .unwrap()
            .into_iter()
            .map(|(path, values)| (without_kind(&path).to_owned(), values))
            .collect();
        if step == 1 {
            first_gradients_agree(reference, &gradients);
        }
        norms.push(norm(&gradients));
        learner
            .update(file.train.optimizer.learning_rate())
            .unwrap();
    }
    let losses = learner.take_losses().unwrap();
    let steps = table(&format!("{}-steps.csv", reference.name));
    assert_eq!(steps.len(), losses.len());
    for (row, (loss, norm)) in steps.iter().zip(losses.iter().zip(&norms)) {
        let wanted: Vec<f64> = row[1..].iter().map(|cell| cell.parse().unwrap()).collect();
        let off = (loss / wanted[0] - 1.0)
            .abs()
            .max((norm / wanted[1] - 1.0).abs());
        assert!(
            off < tolerance(reference),
            "{} on {engine:?}, step {}: {loss} {norm}, PyTorch {wanted:?}",
            reference.name,
            row[0]
        );
    }
}

/// Steps of so many micro-batches.
const MICRO: u64 = 4;

#[test]
fn the_noise_of_gradients_is_that_of_pytorch() {
    if !cfg!(feature = "libtorch") {
        return;
    }
    let reference = &GPT;
    let mut file = file(reference, Engine::Libtorch);
    file.train.grad_accumulation = MICRO;
    let mut learner = Learner::build_with(&file, Some(reference.input), &|path, shape| {
        weights(without_kind(path), shape)
    })
    .unwrap();
    for step in 1..=STEPS {
        let wanted = GradientNoise {
            every: 1,
            layer_groups: true,
        };
        learner.watch_gradient(step, file.train.batch_size, wanted);
        for micro in 0..MICRO {
            let host = (reference.batch)(MICRO * (step - 1) + micro + 1);
            let batch = learner.to_device(&host).unwrap();
            learner
                .micro_step(batch, step, micro, MICRO * host.counted_targets())
                .unwrap();
        }
        learner
            .update(file.train.optimizer.learning_rate())
            .unwrap();
    }
    let measured = learner.take_gradient_norms().unwrap();
    let wanted = table("gpt-noise.csv");
    assert_eq!(measured.len(), wanted.len());
    let mut wanted_of_groups = table("gpt-layers.csv").into_iter();
    // The estimates are differences: that of a group's |G|² may be almost 0, and is compared beside
    // the norms that it is made of.
    let is_equal = |step: u64, norms: &GradientNorms, wanted: &[String], least: f64| {
        let sums = norms.estimates().unwrap();
        let found = [
            norms.whole,
            norms.micro / norms.weights,
            sums.signal,
            sums.noise,
        ];
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            let wanted: f64 = wanted.parse().unwrap();
            let size = wanted.abs().max(least);
            assert!(
                (found - wanted).abs() < tolerance(reference) * size,
                "step {step}: {found}, PyTorch {wanted}"
            );
        }
    };
    for (measured, row) in measured.iter().zip(&wanted) {
        let step = measured.step;
        assert_eq!(row[0], step.to_string());
        is_equal(step, &measured.norms, &row[1..], 0.0);
        assert_eq!(measured.layer_groups.len(), measured.of_groups.len());
        for (group, norms) in measured.layer_groups.iter().zip(&measured.of_groups) {
            let row = wanted_of_groups.next().unwrap();
            let parameters = group.parameters.to_string();
            assert_eq!(row[..3], [step.to_string(), group.name.clone(), parameters]);
            is_equal(step, norms, &row[3..], norms.whole);
        }
    }
    assert!(wanted_of_groups.next().is_none());
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
        // Relative to its own norm, and never finer than f32 resolves the whole gradient.
        assert!(
            (found - wanted).abs() < tolerance(reference) * wanted.max(1e-2 * whole),
            "{}, `{}`: {found}, PyTorch {wanted}",
            reference.name,
            row[0]
        );
    }
}

fn all_agree(references: &[Reference]) {
    for reference in references {
        engines()
            .iter()
            .for_each(|engine| agrees(reference, *engine));
    }
}

#[test]
fn the_first_steps_of_language_models_are_those_of_pytorch() {
    all_agree(&[GPT, LSTM, MLP]);
}

#[test]
fn so_are_those_of_a_small_resnet() {
    all_agree(&[RESNET18]);
}

#[test]
fn so_are_those_of_a_deep_resnet() {
    all_agree(&[RESNET50]);
}

#[test]
fn so_are_those_of_panels() {
    all_agree(&[PANEL_LSTM, PANEL_DIRECTION]);
}

#[test]
fn so_are_those_of_a_seq2seq_with_both_optimizers() {
    all_agree(&[SEQ2SEQ, SEQ2SEQ_ADAFACTOR]);
}

/// As seq2seq_t5.py makes the blocks outweigh the token before.
fn sharper(path: &str, shape: &[usize]) -> Vec<f32> {
    let name = without_kind(path);
    let factor = match name {
        "token_table" => 2.0,
        _ if [
            "values",
            "output.weight",
            "projection.weight",
            "positions.table",
        ]
        .iter()
        .any(|ending| name.ends_with(ending)) =>
        {
            8.0
        }
        _ => 1.0,
    };
    weights(name, shape)
        .into_iter()
        .map(|value| value * factor)
        .collect()
}

#[test]
fn twenty_prompts_get_the_responses_that_t5_gives_them_token_for_token() {
    let (tokens, lengths) = prompts("asked", 20);
    let asked: Vec<Vec<u32>> = tokens
        .chunks(PROMPT)
        .zip(&lengths)
        .map(|(row, length)| {
            row[..*length as usize]
                .iter()
                .map(|token| *token as u32)
                .collect()
        })
        .collect();
    let asked: Vec<&[u32]> = asked.iter().map(Vec::as_slice).collect();
    for &engine in engines() {
        let mut learner =
            Learner::build_with(&file(&SEQ2SEQ, engine), Some(SEQ2SEQ.input), &sharper).unwrap();
        for beams in [1, 4] {
            let found = learner.responses(&asked, [0, 1], beams, RESPONSE).unwrap();
            let found: Vec<String> = found
                .iter()
                .map(|ids| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
                .collect();
            let rows = table("seq2seq-responses.csv");
            let wanted: Vec<&str> = rows
                .iter()
                .filter(|row| row[1] == beams.to_string())
                .map(|row| row[2].as_str())
                .collect();
            assert_eq!(wanted.len(), 20);
            assert_eq!(found, wanted, "{engine:?}, {beams} beams");
        }
    }
}
