//! amp-bf16 against f32: the same training in both precisions stays together for 500 steps. Which tensors are bf16 and which f32 is
//! asserted where they are made (`src/engine/operations.rs`, `src/train/optimizer/fused.rs`).

#![cfg(feature = "libtorch")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, process::Command};

use kiln::record::StepRow;

const STEPS: usize = 500;

const GPT: &str = "kind: gpt, d_model: 64, num_layers: 2, num_heads: 4, seq_len: 32";
const LSTM: &str = "kind: lstm, d_model: 64, hidden: 64, num_layers: 2, seq_len: 32";

/// The loss of each step of a small model on generated text.
fn losses(model: &str, precision: &str) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{{model}}}, \
         data: {{kind: generated}}, train: {{batch_size: 8, steps: {STEPS}, precision: {precision}, cpu_threads: 1, clip_norm: 1.0, \
         optimizer: {{kind: adamw, learning_rate: 2.0e-3}}, learning_rate_schedule: {{kind: cosine, warmup_steps: 20}}}}, \
         measure: {{}}, engine: libtorch, device: cpu, folder: {}, run_anchor_nanoseconds: 0}}",
        folder.path().display()
    );
    let file = folder.path().join("trial.yaml");
    fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln-trial")).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut rows = csv::Reader::from_path(folder.path().join("steps.csv")).unwrap();
    rows.deserialize().map(|row: Result<StepRow, _>| row.unwrap().loss.unwrap()).collect()
}

#[test]
fn over_500_steps_the_mean_of_the_last_50_losses_is_within_1_percent_of_f32() {
    for model in [GPT, LSTM] {
        stays_together(model);
    }
}

fn stays_together(model: &str) {
    let [f32_losses, bf16_losses] = ["f32", "amp-bf16"].map(|precision| losses(model, precision));
    assert_eq!((f32_losses.len(), bf16_losses.len()), (STEPS, STEPS));
    // bf16 keeps 8 bits of each factor: the very first loss already differs, and by little.
    let first = bf16_losses[0] / f32_losses[0] - 1.0;
    assert!(first != 0.0 && first.abs() < 1e-3, "{first}");
    let last = |losses: &[f64]| losses[STEPS - 50..].iter().sum::<f64>() / 50.0;
    let (f32_loss, bf16_loss) = (last(&f32_losses), last(&bf16_losses));
    assert!(f32_loss < 0.7 * f32_losses[0], "something was learned: {} to {f32_loss}", f32_losses[0]);
    assert!((bf16_loss / f32_loss - 1.0).abs() < 0.01, "{model}: f32 {f32_loss}, amp-bf16 {bf16_loss}");
}
