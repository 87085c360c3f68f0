//! Data parallel in one trial: N devices with a batch of B train as one with N × B does, and so do
//! N accumulated batches.
//!
//! In this process: no model here has dropout, so nothing draws from its generator.

use std::{collections::BTreeMap, fs, path::Path, sync::atomic::AtomicBool};

use crate::{
    common::{device_of, rows, write_pairs},
    form::is_long,
};
use kiln_core::{
    plan::{Outcome, TrialFile},
    record::{EpochRow, LayerRow, StepRow, TrialResult},
};
use kiln_trial::{Registry, train::run};
use safetensors::SafeTensors;

const GPT: &str = "{kind: gpt, d_model: 16, num_layers: 2, num_heads: 2, seq_len: 12, dropout: \
                   0.0}";
const LSTM: &str = "{kind: lstm, d_model: 16, hidden: 16, seq_len: 8, dropout: 0.0}";
const PANEL_LSTM: &str = "{kind: panel-lstm, seq_len: 10, symbol_width: 4, hidden: 16, num_layers: \
                          2, dropout: 0.0}";
const RESNET: &str = "{kind: resnet, depth: 18, width: 4, stem: small}";
const SEQ2SEQ: &str = "{kind: seq2seq, d_model: 16, d_kv: 4, d_ff: 32, num_heads: 2, dropout: 0.0}";
const MLP: &str = "{kind: mlp, d_model: 8, hidden: 16, context: 4, seq_len: 8}";
const TEXT: &str = "{kind: generated, characters: 12000, num_workers: 1}";
const CONTIGUOUS: &str = "{kind: generated, characters: 12000, sampling: contiguous}";
const PANEL: &str = "{kind: panel-csv, path: PANEL, price: Close}";
/// The responses' lengths differ, so each device has its own number of targets.
const PAIRS: &str = "{kind: sft-jsonl, path: PAIRS/rows.jsonl, tokenizer: PAIRS/tokenizer.json, \
                     length_bucket: 4}";
const IMAGES: &str = "{kind: generated-images, images: 200, valid_images: 40, image_size: 16}";

/// A gradient may be nothing but rounding (such as that of an attention's key bias); AdamW with its
/// usual epsilon of 1e-8 moves by it.
const ADAMW: &str = "optimizer: {kind: adamw, learning_rate: 1.0e-3, epsilon: 1.0e-6}";
const ADAFACTOR: &str = "optimizer: {kind: adafactor, learning_rate: 1.0e-3}";
const SGD: &str = "optimizer: {kind: sgd, learning_rate: 0.1, momentum: 0.9}";

const CLIP_NORM: &str = "0.5";

const STEPS: u64 = 6;

fn engines() -> &'static [&'static str] {
    if cfg!(feature = "libtorch") {
        &["libtorch", "flex"]
    } else {
        &["flex"]
    }
}

/// A trial in words.
#[derive(Clone, Copy, Debug)]
struct Case {
    engine: &'static str,
    model: &'static str,
    data: &'static str,
    optimizer: &'static str,
    clip_norm: &'static str,
    accumulation: u64,
}

/// The files of a trial.
struct Trained {
    result: TrialResult,
    steps: Vec<StepRow>,
    layers: Vec<LayerRow>,
    losses: Vec<f64>,
    valid_losses: Vec<Option<f64>>,
    weights: BTreeMap<String, Vec<f32>>,
}

/// One device evaluates as many examples at once as all of them train on: where rows go on, their
/// number decides the loss.
fn train(case: Case, devices: u64, batch_size: u64) -> Trained {
    train_with(case, devices, batch_size, "")
}

/// The same with further keys of `measure`.
fn train_with(case: Case, devices: u64, batch_size: u64, measure: &str) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    let Case {
        engine,
        model,
        data,
        optimizer,
        clip_norm,
        accumulation,
    } = case;
    match data {
        PANEL => write_panel(&place.join("panel")),
        PAIRS => write_pairs(&place.join("pairs")),
        _ => {}
    }
    let data = data
        .replace("PANEL", &place.join("panel").display().to_string())
        .replace("PAIRS", &place.join("pairs").display().to_string());
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {model}, data: {data}, train: \
         {{batch_size: {batch_size}, grad_accumulation: {accumulation}, steps: {STEPS}, clip_norm: \
         {clip_norm}, cpu_threads: 1, {optimizer}, evaluate: {{every: 3, batch_multiple: \
         {devices}}}, checkpoint: {{every_steps: 1000, after: last}}}}, measure: {{warmup_steps: \
         2, warmup_seconds: 0, log_every: 2{measure}}}, engine: {engine}, device: {}, devices_per_trial: \
         {devices}, folder: {}, checkpoint_folder: {}, run_anchor_nanoseconds: 0}}",
        device_of(engine),
        place.display(),
        place.join("checkpoint").display()
    );
    let file: TrialFile = serde_yaml::from_str(&text).unwrap();
    let result = run(
        &file,
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    assert_eq!(
        result.outcome,
        Outcome::Completed,
        "{case:?}: {:?}",
        result.reason
    );
    let steps: Vec<StepRow> = rows(&place.join("steps.csv"));
    let losses = steps.iter().map(|row| row.loss.unwrap()).collect();
    let valid_losses = rows::<EpochRow>(&place.join("epochs.csv"))
        .iter()
        .map(|row| row.valid_loss)
        .collect();
    let weights = fs::read(place.join(format!("checkpoint/{STEPS}/model.safetensors")))
        .map(|bytes| weights(&bytes))
        .unwrap_or_default();
    Trained {
        result,
        steps,
        layers: layer_rows(place),
        losses,
        valid_losses,
        weights,
    }
}

fn weights(bytes: &[u8]) -> BTreeMap<String, Vec<f32>> {
    let read = |bytes: &[u8]| {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|four| f32::from_le_bytes(*four))
            .collect()
    };
    SafeTensors::deserialize(bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, tensor)| (name, read(tensor.data())))
        .collect()
}

/// Prices of three symbols, up and down.
fn write_panel(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for symbol in 0..3_u64 {
        let price = |day: u64| 100.0 + ((day * (7 + symbol) + symbol) % 23) as f64;
        let line = |day: u64| {
            let (month, of_month) = (day / 28 + 1, day % 28 + 1);
            format!(
                "2020-{month:02}-{of_month:02},{},{},{}\n",
                price(day),
                price(day + 1),
                1000 + day * (symbol + 1) % 97
            )
        };
        let text: String = (0..240).map(line).collect();
        fs::write(
            folder.join(format!("S{symbol}.csv")),
            format!("Date,Open,Close,Volume\n{text}"),
        )
        .unwrap();
    }
}

fn largest_difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, f64::max)
}

/// Losses and weights to 1e-5: sums of f32 in another order.
fn assert_alike(what: &str, found: &Trained, expected: &Trained) {
    let of_losses = largest_difference(&found.losses, &expected.losses);
    assert!(
        of_losses <= 1e-5,
        "{what}: losses differ by {of_losses}: {:?} {:?}",
        found.losses,
        expected.losses
    );
    let valid = |trained: &Trained| -> Vec<f64> {
        trained.valid_losses.iter().flatten().copied().collect()
    };
    assert!(
        valid(expected).len() == 2 && largest_difference(&valid(found), &valid(expected)) <= 1e-5,
        "{what}"
    );
    assert!(!expected.weights.is_empty() && found.weights.keys().eq(expected.weights.keys()));
    for (name, expected) in &expected.weights {
        let f64s =
            |values: &[f32]| -> Vec<f64> { values.iter().map(|value| f64::from(*value)).collect() };
        let of_weights = largest_difference(&f64s(&found.weights[name]), &f64s(expected));
        assert!(
            of_weights <= 1e-5,
            "{what}: `{name}` differs by {of_weights}"
        );
    }
}

fn trains_as_one_large_batch(case: Case, numbers_of_devices: &[u64]) {
    let one = train(case, 1, 8);
    assert_eq!(
        (
            one.losses.len() as u64,
            one.result.figures.communication_fraction
        ),
        (STEPS, None)
    );
    for &devices in numbers_of_devices {
        let several = train(case, devices, 8 / devices);
        assert_alike(&format!("{case:?} on {devices}"), &several, &one);
        let share = several.result.figures.communication_fraction.unwrap();
        assert!(share > 0.0 && share < 1.0, "{share}");
        assert_eq!(
            (several.result.train_samples, several.result.steps()),
            (one.result.train_samples, one.result.steps())
        );
        let rate = several.result.figures.samples_per_second.unwrap()
            * several.result.figures.window_seconds.unwrap();
        assert!(
            (rate - (8 * case.accumulation * (STEPS - 2)) as f64).abs() < 1e-6,
            "{rate} samples in the window"
        );
    }
}

/// The long form has all combinations of engine, optimizer, accumulation and number of devices. The
/// short form has each of them once, and `turn` changes which of them meet: over turns 0 to 3 any
/// two do.
fn trains_with_all(
    turn: usize,
    model: &'static str,
    data: &'static str,
    optimizers: [&'static str; 2],
) {
    let case = |engine, optimizer, accumulation| Case {
        engine,
        model,
        data,
        optimizer,
        clip_norm: CLIP_NORM,
        accumulation,
    };
    if is_long() {
        for &engine in engines() {
            for (optimizer, accumulation) in optimizers
                .into_iter()
                .flat_map(|optimizer| [(optimizer, 1), (optimizer, 2)])
            {
                trains_as_one_large_batch(case(engine, optimizer, accumulation), &[2, 4]);
            }
        }
        return;
    }
    let engine = |at: usize| engines()[(turn + at) % engines().len()];
    let accumulation = if (turn / 2).is_multiple_of(2) { 1 } else { 2 };
    let devices = if (turn + turn / 2).is_multiple_of(2) {
        2
    } else {
        4
    };
    trains_as_one_large_batch(case(engine(0), optimizers[0], accumulation), &[devices]);
    trains_as_one_large_batch(
        case(engine(1), optimizers[1], 3 - accumulation),
        &[6 - devices],
    );
}

#[test]
fn a_gpt_on_two_and_four_devices_trains_as_on_one() {
    trains_with_all(0, GPT, TEXT, [ADAMW, SGD]);
}

#[test]
fn so_does_an_lstm_with_its_memory_and_without() {
    trains_with_all(1, LSTM, TEXT, [ADAMW, SGD]);
    trains_with_all(2, LSTM, CONTIGUOUS, [ADAMW, SGD]);
}

#[test]
fn so_does_a_panel_lstm() {
    trains_with_all(3, PANEL_LSTM, PANEL, [ADAMW, SGD]);
}

#[test]
fn so_do_an_mlp_and_a_seq2seq_whose_devices_have_targets_of_their_own_number() {
    trains_with_all(2, MLP, TEXT, [ADAMW, SGD]);
    trains_with_all(1, SEQ2SEQ, PAIRS, [ADAMW, ADAFACTOR]);
}

/// Neither a clipped norm nor AdamW shows a gradient that is too large by a factor. SGD does: one
/// that is not divided by the targets of all accumulated batches moves the parameters four times as
/// far.
#[test]
fn accumulated_batches_train_as_one_large_batch() {
    let optimizer = "optimizer: {kind: sgd, learning_rate: 0.01, momentum: 0.9}";
    for &engine in engines() {
        for (model, data) in [(MLP, TEXT), (SEQ2SEQ, PAIRS)] {
            let case = |accumulation| Case {
                engine,
                model,
                data,
                optimizer,
                clip_norm: "1.0e+9",
                accumulation,
            };
            assert_alike(
                &format!("{engine} {model}"),
                &train(case(4), 1, 2),
                &train(case(1), 1, 8),
            );
        }
    }
}

/// A batch norm's statistics are each device's own, so its losses are others; the parameters stay
/// equal, or the trial would fail.
#[test]
fn a_resnet_trains_with_each_devices_own_statistics() {
    let case = Case {
        engine: engines()[0],
        model: RESNET,
        data: IMAGES,
        optimizer: SGD,
        clip_norm: CLIP_NORM,
        accumulation: 1,
    };
    let (one, several) = (train(case, 1, 8), train(case, 2, 4));
    assert!(largest_difference(&several.losses, &one.losses) > 1e-5);
    assert!(several.losses.iter().all(|loss| loss.is_finite()));
}

#[test]
fn matmul_makes_its_products_on_each_device() {
    let text = "{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {kind: matmul, size: 64}, \
                data: {kind: none}, train: {batch_size: 3, steps: 20, cpu_threads: 1}, measure: \
                {warmup_steps: 0, warmup_seconds: 0}, engine: ENGINE, device: cpu, \
                devices_per_trial: 2, folder: FOLDER, run_anchor_nanoseconds: 0}";
    let folder = tempfile::tempdir().unwrap();
    let text = text
        .replace("ENGINE", engines()[0])
        .replace("FOLDER", &folder.path().display().to_string());
    let result = run(
        &serde_yaml::from_str(&text).unwrap(),
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    assert_eq!(result.outcome, Outcome::Completed, "{:?}", result.reason);
    let products =
        result.figures.samples_per_second.unwrap() * result.figures.window_seconds.unwrap();
    assert!((products - 120.0).abs() < 1e-6, "{products}");
    assert_eq!(result.figures.communication_fraction, None);
}

#[test]
fn fewer_samples_than_the_devices_take_are_refused_with_the_sum() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {GPT}, data: {{kind: generated, \
         characters: 1000}}, train: {{batch_size: 16, grad_accumulation: 2, steps: 1, cpu_threads: \
         1}}, measure: {{}}, engine: flex, device: cpu, devices_per_trial: 4, folder: {}, \
         run_anchor_nanoseconds: 0}}",
        folder.path().display()
    );
    let result = run(
        &serde_yaml::from_str(&text).unwrap(),
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    let reason = result.reason.unwrap();
    assert!(
        reason.contains(
            "fewer than the 128 of one step (`batch_size` 16 × `grad_accumulation` 2 × 4 devices)"
        ),
        "{reason}"
    );
}

/// Empty if they were not measured.
fn layer_rows(place: &Path) -> Vec<LayerRow> {
    let table = place.join("layers.csv");
    if table.is_file() {
        rows(&table)
    } else {
        Vec::new()
    }
}

#[test]
fn engine_flex_measures_no_gradient_and_says_so() {
    let case = Case {
        engine: "flex",
        model: MLP,
        data: TEXT,
        optimizer: ADAMW,
        clip_norm: CLIP_NORM,
        accumulation: 4,
    };
    let measured = train_with(
        case,
        1,
        2,
        ", gradient_noise: {every: 2, layer_groups: true}",
    );
    assert!(measured.layers.is_empty());
    let is_empty = |row: &StepRow| row.gradient_norm_squared.is_none();
    assert!(measured.steps.iter().all(is_empty));
    let note = &measured.result.notes["gradient_noise_scale"];
    assert!(note.contains("no measured step gave one"), "{note}");
    assert_eq!(measured.losses, train(case, 1, 2).losses);
}

/// The columns of `steps.csv` that one measured step fills by itself.
#[cfg(feature = "libtorch")]
fn cells(row: &StepRow) -> [Option<f64>; 4] {
    [
        row.gradient_norm_squared,
        row.micro_gradient_norm_squared,
        row.gradient_signal,
        row.gradient_noise,
    ]
}

/// The layer groups of each measured step are all of its gradient.
#[cfg(feature = "libtorch")]
fn layers_add_up(trained: &Trained) {
    let measured = trained.steps.iter().filter(|row| cells(row)[0].is_some());
    let mut counted = 0;
    for step in measured {
        let mut sums = [0.0; 4];
        for row in trained.layers.iter().filter(|row| row.step == step.step) {
            let own = [
                row.gradient_norm_squared,
                row.micro_gradient_norm_squared,
                row.gradient_signal,
                row.gradient_noise,
            ];
            for (sum, own) in sums.iter_mut().zip(own) {
                *sum += own.unwrap();
            }
            counted += 1;
        }
        for (sum, whole) in sums.into_iter().zip(cells(step)) {
            let whole = whole.unwrap();
            assert!((sum - whole).abs() <= 1e-9 * whole.abs(), "{sum} {whole}");
        }
    }
    assert_eq!(counted, trained.layers.len());
    let mut groups: Vec<&str> = trained
        .layers
        .iter()
        .map(|row| row.layer_group.as_str())
        .collect();
    groups.sort_unstable();
    groups.dedup();
    assert!(
        groups.len() > 4 && counted == 3 * groups.len(),
        "{groups:?}"
    );
}

#[cfg(feature = "libtorch")]
#[test]
fn gradients_are_measured_alike_on_one_device_and_on_two_and_change_nothing() {
    // Equal micro-batches, and pairs with other numbers of targets in each.
    for (model, data) in [(GPT, TEXT), (SEQ2SEQ, PAIRS)] {
        let case = |accumulation| Case {
            engine: "libtorch",
            model,
            data,
            optimizer: ADAMW,
            clip_norm: CLIP_NORM,
            accumulation,
        };
        let noise = ", gradient_noise: {every: 2}";
        let plain = train(case(4), 1, 2);
        let one = train_with(case(4), 1, 2, noise);
        let two = train_with(case(2), 2, 2, noise);
        let layers = ", gradient_noise: {every: 2, layer_groups: true}";
        let one_by_layer = train_with(case(4), 1, 2, layers);
        let two_by_layer = train_with(case(2), 2, 2, layers);
        for measured in [&one, &one_by_layer] {
            assert_eq!(measured.losses, plain.losses);
            assert_eq!(measured.weights, plain.weights);
        }
        assert!(plain.layers.is_empty() && one.layers.is_empty());
        layers_add_up(&one_by_layer);
        layers_add_up(&two_by_layer);
        for (alone, beside) in one.steps.iter().zip(&one_by_layer.steps) {
            assert_eq!(cells(alone), cells(beside));
        }
        for (one, two) in one_by_layer.layers.iter().zip(&two_by_layer.layers) {
            assert_eq!((one.step, &one.layer_group), (two.step, &two.layer_group));
            let norm = |row: &LayerRow| row.micro_gradient_norm_squared.unwrap();
            assert!(
                (norm(one) - norm(two)).abs() < 1e-3 * norm(one).max(1e-6),
                "{one:?} {two:?}"
            );
        }
        let is_measured: Vec<bool> = one
            .steps
            .iter()
            .map(|row| row.gradient_norm_squared.is_some())
            .collect();
        assert_eq!(is_measured, [false, true, false, true, false, true]);
        assert!(
            plain
                .steps
                .iter()
                .all(|row| row.gradient_norm_squared.is_none())
        );
        for (one, two) in one.steps.iter().zip(&two.steps) {
            for (a, b) in cells(one).into_iter().zip(cells(two)) {
                assert_eq!(a.is_some(), b.is_some());
                let (a, b) = (a.unwrap_or(1.0), b.unwrap_or(1.0));
                assert!(
                    (a - b).abs() < 1e-3 * a.abs().max(1e-3),
                    "{model}: {one:?} {two:?}"
                );
            }
            // The gradient is not longer than the longest of its parts.
            if let [Some(whole), Some(micro), ..] = cells(one) {
                assert!(whole < 4.0 * micro && micro > 0.0);
            }
        }
        // Three measured steps are too few for an interval.
        let figures = &one.result.figures;
        assert_eq!(figures.gradient_noise_step, Some(6));
        assert!(figures.gradient_noise_loss.is_some() && figures.gradient_noise_scale.is_none());
        let note = &one.result.notes["gradient_noise_scale"];
        assert!(note.contains("measured in 3 steps"), "{note}");
    }
}
