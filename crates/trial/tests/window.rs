//! The window counts the data that was trained in it: batches that are sorted by length differ, and
//! none of them equals the mean over all rows.

use std::{fs, sync::atomic::AtomicBool};

use kiln_core::{
    plan::{Outcome, TrialFile},
    record::TrialResult,
};
use kiln_trial::{Registry, train::run};

use crate::common::write_pairs;

/// Tokens of a row, prompt and response with the token that ends each.
const SHORT: u64 = 3 + 2;
const LONG: u64 = 41 + 36;
/// Rows of each length.
const ROWS: usize = 16;

/// A training of three steps, of which the last alone is the window.
fn last_step(devices: u64, seed: u64) -> TrialResult {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    write_pairs(&place.join("pairs"));
    let words = |count: usize| vec!["w1"; count].join(" ");
    let row = |prompt: usize, response: usize| {
        serde_json::json!({"prompt": words(prompt), "response": words(response)}).to_string() + "\n"
    };
    fs::write(
        place.join("pairs/rows.jsonl"),
        (0..ROWS)
            .map(|_| row(2, 1) + &row(40, 35))
            .collect::<String>(),
    )
    .unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: tabcdef0123, attempt: 1, model: {{kind: seq2seq, d_model: 8, \
         d_kv: 4, d_ff: 8, num_heads: 2, dropout: 0.0}}, data: {{kind: sft-jsonl, path: \
         {0}/pairs/rows.jsonl, valid_path: {0}/pairs/rows.jsonl, tokenizer: \
         {0}/pairs/tokenizer.json}}, train: {{batch_size: 4, grad_accumulation: 2, steps: 3, \
         cpu_threads: 1, seed: {seed}}}, measure: {{warmup_steps: 2, warmup_seconds: 0}}, engine: \
         flex, device: cpu, devices_per_trial: {devices}, folder: {0}, run_anchor_nanoseconds: 0}}",
        place.display()
    );
    let file: TrialFile = serde_yaml::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}\n\
             {text}"
        )
    });
    let result = run(
        &file,
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    assert_eq!(result.outcome, Outcome::Completed, "{:?}", result.reason);
    result
}

#[test]
fn tokens_and_flops_are_those_of_the_batches_that_were_in_it() {
    for devices in [1, 2] {
        let samples = 8 * devices;
        let mut flops_of_a_row = [None; 2];
        for seed in 1..=12 {
            let result = last_step(devices, seed);
            assert_eq!(result.figures.window_samples, Some(samples));
            let tokens = result.figures.window_tokens.unwrap();
            let place = [SHORT, LONG]
                .iter()
                .position(|row| samples * row == tokens)
                .unwrap_or_else(|| panic!("{tokens} tokens in {samples} rows"));
            let seconds = result.figures.window_seconds.unwrap();
            assert!(
                (result.figures.tokens_per_second.unwrap() * seconds - tokens as f64).abs()
                    < 1e-6 * tokens as f64
            );
            let of_a_row = result.figures.window_flops.unwrap() / samples as f64;
            assert_eq!(*flops_of_a_row[place].get_or_insert(of_a_row), of_a_row);
            if let [Some(short), Some(long)] = flops_of_a_row {
                assert!(long > 10.0 * short, "{long} {short}");
                // Half of the rows are short.
                assert!(
                    ((short + long) / 2.0 - result.figures.flops_per_sample.unwrap() as f64).abs()
                        <= 1.0
                );
                break;
            }
        }
        assert!(
            flops_of_a_row.iter().all(Option::is_some),
            "steps of both lengths among {devices} devices' last steps"
        );
    }
}
