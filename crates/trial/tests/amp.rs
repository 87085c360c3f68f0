//! Other precisions against f32: the same training stays together. Which tensors are narrow and
//! which f32 is asserted where they are made (`src/engine/operations/fused.rs`,
//! `src/train/optimizer/fused.rs`).
//!
//! In this process: no model here has dropout, so nothing draws from its generator.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use kiln_core::{
    kinds::random::SplitMix64,
    plan::{Outcome, TrialFile},
    record::StepRow,
};
use kiln_trial::{Registry, train};

use crate::{
    common::{device_of, is_cuda, rows},
    form::{by_form, is_long},
};

const GPT: &str = "kind: gpt, d_model: 64, num_layers: 2, num_heads: 4, seq_len: 32";
const LSTM: &str = "kind: lstm, d_model: 64, hidden: 64, num_layers: 2, seq_len: 32";
const RESNET: &str = "kind: resnet, depth: 18, width: 8, stem: small";
const PANEL_LSTM: &str = "kind: panel-lstm, seq_len: 12, symbol_width: 4, hidden: 32, num_layers: \
                          2";

/// Data for the model, as YAML. Labels are smoothed and returns are noisy, so that a loss has a
/// floor above 0 for the comparison.
fn data_of(model: &str, folder: &Path) -> (String, f64) {
    match model {
        RESNET => (
            "kind: generated-images, image_size: 16, classes: 4".to_owned(),
            0.2,
        ),
        PANEL_LSTM => {
            let prices = folder.join("prices");
            fs::create_dir(&prices).unwrap();
            waves(&prices);
            (
                format!("kind: panel-csv, path: {}, price: Close", prices.display()),
                0.0,
            )
        }
        _ => ("kind: generated".to_owned(), 0.0),
    }
}

/// Three symbols whose prices go up and down, with something that nobody can foresee on top.
fn waves(folder: &Path) {
    for (number, symbol) in ["A", "B", "C"].into_iter().enumerate() {
        let mut random = SplitMix64::new(number as u64);
        let mut noise = || (random.next_u64() >> 40) as f64 / (1 << 24) as f64 - 0.5;
        let price = |day: usize, noise: f64| {
            (4.0 + 0.3 * (day as f64 * (0.5 + number as f64 / 10.0)).sin() + 0.1 * noise).exp()
        };
        let row = |day: usize| {
            format!(
                "{}-{:02}-{:02},{}\n",
                2000 + day / 300,
                day % 300 / 25 + 1,
                day % 25 + 1,
                price(day, noise())
            )
        };
        let rows: String = (0..600).map(row).collect();
        fs::write(
            folder.join(format!("{symbol}.csv")),
            format!("Date,Close\n{rows}"),
        )
        .unwrap();
    }
}

/// A training in a precision, and how far its last losses may be from those in f32.
struct Comparison {
    model: &'static str,
    precision: &'static str,
    steps: usize,
    /// Tolerance of the mean of the last losses, relative to f32's.
    tolerance: f64,
}

/// Highest learning rate, and steps until it is reached: a short training learns enough only at a
/// high rate.
fn schedule() -> (f64, u64) {
    by_form((5e-3, 5), (2e-3, 20))
}

/// Last losses that are averaged. The batches are the same in both precisions, so the mean need not
/// be over many of them.
fn averaged() -> usize {
    by_form(20, 50)
}

/// The last losses are at most this share of the first one: something was learned.
fn learned() -> f64 {
    by_form(0.9, 0.7)
}

/// The loss of each step of a small model, and the skipped steps of its result.
fn losses(model: &str, precision: &str, steps: usize) -> (Vec<f64>, Option<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let (data, label_smoothing) = data_of(model, folder.path());
    let (learning_rate, warmup_steps) = schedule();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{{model}}}, data: {{{data}}}, \
         train: {{batch_size: 8, steps: {steps}, precision: {precision}, cpu_threads: 1, \
         clip_norm: 1.0, label_smoothing: {label_smoothing}, optimizer: {{kind: adamw, \
         learning_rate: {learning_rate:?}}}, learning_rate_schedule: {{kind: cosine, warmup_steps: \
         {warmup_steps}}}}}, measure: {{}}, engine: libtorch, device: {}, folder: {}, \
         run_anchor_nanoseconds: 0}}",
        device_of("libtorch"),
        folder.path().display()
    );
    let file: TrialFile = serde_yaml::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}\n\
             {text}"
        )
    });
    let result = train::run(
        &file,
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    assert_eq!(
        result.outcome,
        Outcome::Completed,
        "{model} {precision}: {:?}",
        result.reason
    );
    let losses = rows::<StepRow>(&folder.path().join("steps.csv"))
        .iter()
        .map(|row| row.loss.unwrap())
        .collect();
    (losses, result.figures.skipped_steps)
}

impl Comparison {
    /// Holds the last losses in the precision against those in f32; the skipped steps.
    #[allow(
        clippy::print_stdout,
        reason = "the distance that was measured, for whoever sets a tolerance"
    )]
    fn check(&self) -> Option<u64> {
        let Self {
            model,
            precision,
            steps,
            tolerance,
        } = *self;
        let ((f32_losses, none), (losses, skipped)) =
            (losses(model, "f32", steps), losses(model, precision, steps));
        assert_eq!((f32_losses.len(), losses.len(), none), (steps, steps, None));
        // 8 bits of each factor, or 11: the very first loss already differs, and by little.
        let first = losses[0] / f32_losses[0] - 1.0;
        assert!(
            first != 0.0 && first.abs() < 1e-2,
            "{model} {precision}: {first}"
        );
        let last =
            |losses: &[f64]| losses[steps - averaged()..].iter().sum::<f64>() / averaged() as f64;
        let (f32_loss, loss) = (last(&f32_losses), last(&losses));
        let enough = learned() * f32_losses[0];
        assert!(
            f32_loss < enough && loss < enough,
            "something was learned: {} to {f32_loss}, {loss}",
            f32_losses[0]
        );
        let distance = loss / f32_loss - 1.0;
        println!(
            "{model}, {precision}: {distance:.5} from f32's {f32_loss:.4} after {steps} steps, \
             from {:.4}",
            f32_losses[0]
        );
        assert!(
            distance.abs() < tolerance,
            "{model}, {precision}: {distance} after {steps} steps"
        );
        skipped
    }
}

/// A ResNet's losses still fall steeply after 80 steps, and norms over batches of 8 images magnify
/// small differences, so there the same lag behind f32 is a larger share of the loss.
#[test]
fn amp_bf16_stays_close_to_f32() {
    let short = [
        (GPT, 80, 0.01),
        (RESNET, 80, if is_cuda() { 0.06 } else { 0.03 }),
    ];
    let long = [GPT, LSTM, RESNET, PANEL_LSTM].map(|model| (model, 500, 0.01));
    let cases: &[(&'static str, usize, f64)] = if is_long() { &long } else { &short };
    for &(model, steps, tolerance) in cases {
        assert_eq!(
            Comparison {
                model,
                precision: "amp-bf16",
                steps,
                tolerance
            }
            .check(),
            None
        );
    }
}

/// Fewer steps: f16 is slow on a CPU without f16 arithmetic of its own.
#[test]
fn amp_f16_stays_close_to_f32_and_tells_its_skipped_steps() {
    let skipped = Comparison {
        model: GPT,
        precision: "amp-f16",
        steps: by_form(40, 200),
        tolerance: 0.01,
    }
    .check();
    assert!(skipped.is_some_and(|skipped| skipped < 10), "{skipped:?}");
}

/// Parameters in bf16 lose updates that are smaller than a 256th of them: 16 % of the loss after
/// 500 steps, and less while the learning rate is high and updates are large.
#[test]
fn bf16_learns_almost_as_well_as_f32() {
    let (steps, tolerance) = by_form((80, 0.1), (500, 0.3));
    assert_eq!(
        Comparison {
            model: GPT,
            precision: "bf16",
            steps,
            tolerance
        }
        .check(),
        None
    );
}
