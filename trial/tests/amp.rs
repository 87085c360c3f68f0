//! Other precisions against f32: the same training stays together for hundreds of steps. Which tensors are narrow and which f32 is
//! asserted where they are made (`src/engine/operations.rs`, `src/train/optimizer/fused.rs`).

#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use kiln::{
    catalog::random::SplitMix64,
    record::{StepRow, TrialResult},
};

const GPT: &str = "kind: gpt, d_model: 64, num_layers: 2, num_heads: 4, seq_len: 32";
const LSTM: &str = "kind: lstm, d_model: 64, hidden: 64, num_layers: 2, seq_len: 32";
const RESNET: &str = "kind: resnet, depth: 18, width: 8, stem: small";
const PANEL_LSTM: &str = "kind: panel-lstm, seq_len: 12, symbol_width: 4, hidden: 32, num_layers: 2";

/// What the model reads. Labels are smoothed and returns are noisy, so that a loss has a floor above 0 to be compared at.
fn data_of(model: &str, folder: &Path) -> (String, f64) {
    match model {
        RESNET => ("kind: generated-images, image_size: 16, classes: 4".to_owned(), 0.2),
        PANEL_LSTM => {
            let prices = folder.join("prices");
            fs::create_dir(&prices).unwrap();
            waves(&prices);
            (format!("kind: panel-csv, path: {}, price: Close", prices.display()), 0.0)
        }
        _ => ("kind: generated".to_owned(), 0.0),
    }
}

/// Three symbols whose prices go up and down, with something that nobody can foresee on top.
fn waves(folder: &Path) {
    for (number, symbol) in ["A", "B", "C"].into_iter().enumerate() {
        let mut random = SplitMix64::new(number as u64);
        let mut noise = || (random.next_u64() >> 40) as f64 / (1 << 24) as f64 - 0.5;
        let price = |day: usize, noise: f64| (4.0 + 0.3 * (day as f64 * (0.5 + number as f64 / 10.0)).sin() + 0.1 * noise).exp();
        let row = |day: usize| format!("{}-{:02}-{:02},{}\n", 2000 + day / 300, day % 300 / 25 + 1, day % 25 + 1, price(day, noise()));
        let rows: String = (0..600).map(row).collect();
        fs::write(folder.join(format!("{symbol}.csv")), format!("Date,Close\n{rows}")).unwrap();
    }
}

/// The loss of each step of a small model, and the skipped steps of its result.
fn losses(model: &str, precision: &str, steps: usize) -> (Vec<f64>, Option<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let (data, label_smoothing) = data_of(model, folder.path());
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{{model}}}, \
         data: {{{data}}}, train: {{batch_size: 8, steps: {steps}, precision: {precision}, cpu_threads: 1, clip_norm: 1.0, \
         label_smoothing: {label_smoothing}, \
         optimizer: {{kind: adamw, learning_rate: 2.0e-3}}, learning_rate_schedule: {{kind: cosine, warmup_steps: 20}}}}, \
         measure: {{}}, engine: libtorch, device: cpu, folder: {}, run_anchor_nanoseconds: 0}}",
        folder.path().display()
    );
    let file = folder.path().join("trial.yaml");
    fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln-trial")).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut rows = csv::Reader::from_path(folder.path().join("steps.csv")).unwrap();
    let losses = rows.deserialize().map(|row: Result<StepRow, _>| row.unwrap().loss.unwrap()).collect();
    let result: TrialResult = serde_json::from_str(&fs::read_to_string(folder.path().join("trial.json")).unwrap()).unwrap();
    (losses, result.skipped_steps)
}

/// How far the mean of the last 50 losses in `precision` is from that in f32, relative to it; and the skipped steps.
fn distance(model: &str, precision: &str, steps: usize) -> (f64, Option<u64>) {
    let ((f32_losses, none), (losses, skipped)) = (losses(model, "f32", steps), losses(model, precision, steps));
    assert_eq!((f32_losses.len(), losses.len(), none), (steps, steps, None));
    // 8 bits of each factor, or 11: the very first loss already differs, and by little.
    let first = losses[0] / f32_losses[0] - 1.0;
    assert!(first != 0.0 && first.abs() < 1e-2, "{first}");
    let last = |losses: &[f64]| losses[steps - 50..].iter().sum::<f64>() / 50.0;
    let (f32_loss, loss) = (last(&f32_losses), last(&losses));
    assert!(f32_loss < 0.7 * f32_losses[0] && loss < 0.7 * losses[0], "something was learned: {} to {f32_loss}, {loss}", f32_losses[0]);
    (loss / f32_loss - 1.0, skipped)
}

#[test]
fn over_500_steps_amp_bf16_stays_within_1_percent_of_f32() {
    for model in [GPT, LSTM, RESNET, PANEL_LSTM] {
        let (distance, skipped) = distance(model, "amp-bf16", 500);
        assert!(distance.abs() < 0.01 && skipped.is_none(), "{model}: {distance}");
    }
}

/// Fewer steps: f16 is slow on a CPU without f16 arithmetic of its own.
#[test]
fn over_200_steps_amp_f16_stays_within_1_percent_of_f32_and_tells_its_skipped_steps() {
    let (distance, skipped) = distance(GPT, "amp-f16", 200);
    assert!(distance.abs() < 0.01, "{distance}");
    assert!(skipped.is_some_and(|skipped| skipped < 10), "{skipped:?}");
}

/// Parameters in bf16 lose updates that are smaller than a 256th of them: 16 % of the loss in this training.
#[test]
fn over_500_steps_bf16_learns_almost_as_well_as_f32() {
    let (distance, skipped) = distance(GPT, "bf16", 500);
    assert!(distance.abs() < 0.3 && skipped.is_none(), "{distance}");
}
