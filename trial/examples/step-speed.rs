//! Speed of one optimizer step of kiln's models on the CPU, for `benches/against-pytorch.sh`: the counterpart of
//! `benches/pytorch_models.py`.
//!
//! `step-speed MODEL PRECISION THREADS`; MODEL names a case of `benches/step-speed-models.json`. Prints, for each of five blocks of
//! steps, its number, seconds and CPU seconds of one step (CPU time is less shaken by a busy machine), and the loss after it.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io::{self, Write},
    time::Instant,
};

use kiln::{
    catalog::{
        InputShape,
        data::{ImageShape, PanelShape},
    },
    plan::TrialFile,
};
use kiln_trial::{
    TrialError,
    data::{HostBatch, ImageSamples, PairSamples, PanelSamples, Samples, TargetScale},
    engine::IGNORED_TARGET,
    train::Learner,
};
use serde::Deserialize;
use serde_json::{Value, json};

const WARM_UP_STEPS: usize = 3;
const BLOCKS: usize = 5;

/// One model with its batches and how it is trained; `model`, `data` and `train` as in a trial file.
#[derive(Deserialize)]
struct Case {
    model: Value,
    data: Value,
    train: Value,
    images: Option<ImageShape>,
    panel: Option<PanelShape>,
    pairs: Option<Lengths>,
    block_steps: usize,
}

/// Of the longest prompt and response, in tokens.
#[derive(Clone, Copy, Deserialize)]
struct Lengths {
    prompt_len: usize,
    response_len: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [model, precision, threads] = &arguments[..] else {
        return Err("usage: step-speed MODEL PRECISION THREADS".into());
    };
    let mut cases: BTreeMap<String, Case> = serde_json::from_str(include_str!("../../benches/step-speed-models.json"))?;
    let case = cases.remove(model).ok_or_else(|| format!("no model `{model}`; there are {:?}", cases.keys()))?;
    let file = case.trial_file(precision, threads.parse()?)?;
    let rate = case.train["optimizer"]["learning_rate"].as_f64().ok_or("a case without a learning rate")?;
    let mut learner = Learner::build(&file, case.input_shape())?;
    for step in 0..WARM_UP_STEPS {
        train(&mut learner, step, &case.batch(step), rate)?;
    }
    for block in 0..BLOCKS {
        let first = WARM_UP_STEPS + block * case.block_steps;
        let batches: Vec<_> = (first..first + case.block_steps).map(|step| (step, case.batch(step))).collect();
        let (started, cpu_started) = (Instant::now(), cpu_seconds());
        for (step, batch) in &batches {
            train(&mut learner, *step, batch, rate)?;
        }
        let steps = case.block_steps as f64;
        let (seconds, cpu) = (started.elapsed().as_secs_f64() / steps, (cpu_seconds() - cpu_started) / steps);
        let losses = learner.take_losses()?;
        writeln!(io::stdout(), "{},{seconds:.6},{cpu:.6},{:.4}", block + 1, losses[losses.len() - 1])?;
    }
    Ok(())
}

fn train(learner: &mut Learner, step: usize, batch: &HostBatch, rate: f64) -> Result<(), TrialError> {
    let device = learner.to_device(batch)?;
    learner.micro_step(device, step as u64, 0, batch.counted_targets())?;
    learner.update(rate)
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Case {
    fn trial_file(&self, precision: &str, threads: u64) -> Result<TrialFile, serde_json::Error> {
        let mut train = self.train.clone();
        train["precision"] = precision.into();
        train["cpu_threads"] = threads.into();
        train["steps"] = 1.into();
        serde_json::from_value(json!({
            "kiln_trial": 1, "trial": "0123456789", "attempt": 1, "model": self.model, "data": self.data, "train": train, "measure": {},
            "engine": "libtorch", "device": "cpu", "folder": "/", "run_anchor_nanoseconds": 0,
        }))
    }

    /// `None` for a language model: its vocabulary is a key of its own.
    fn input_shape(&self) -> Option<InputShape> {
        self.images.map(InputShape::Images).or(self.panel.map(InputShape::Panel))
    }

    /// Numbers without meaning, the same in the Python script.
    fn batch(&self, step: usize) -> HostBatch {
        let rows = number(&self.train, "batch_size");
        let whole = |values: usize, bound: u64| counter(step, rows, values).map(|count| (count % bound) as i64).collect();
        let real = |values: usize| counter(step, rows, values).map(|count| (count % 255) as f32 / 127.5 - 1.0).collect();
        let samples = if let Some(shape) = self.images {
            let pixels = real((shape.channels * shape.height * shape.width) as usize);
            Samples::Images(ImageSamples { pixels, labels: whole(1, shape.classes), shape })
        } else if let Some(shape) = self.panel {
            let (seq_len, scale) = (number(&self.model, "seq_len"), TargetScale::Returns { mean: 0.0, deviation: 1.0 });
            let features = real(seq_len * shape.features as usize);
            Samples::Panel(PanelSamples { features, symbols: whole(1, shape.symbols), targets: real(1), seq_len, shape, scale })
        } else if let Some(lengths) = self.pairs {
            return self.pairs(step, rows, lengths);
        } else {
            return self.text(rows, whole);
        };
        HostBatch { rows, samples, step_targets: None }
    }

    fn pairs(&self, step: usize, rows: usize, Lengths { prompt_len, response_len }: Lengths) -> HostBatch {
        let bound = number(&self.model, "vocabulary") as u64 - 2;
        let (prompts, prompt_lengths) = padded(step, rows, prompt_len, bound, 0);
        let (targets, _) = padded(step, rows, response_len, bound, IGNORED_TARGET);
        let shifted = |row: &[i64]| [0].into_iter().chain(row[..response_len - 1].iter().map(|token| (*token).max(0))).collect::<Vec<i64>>();
        let decoder_inputs = targets.chunks(response_len).flat_map(shifted).collect();
        let samples = Samples::Pairs(PairSamples { prompts, prompt_lengths, decoder_inputs, targets, prompt_len, response_len, pad: 0 });
        HostBatch { rows, samples, step_targets: None }
    }

    fn text(&self, rows: usize, whole: impl Fn(usize, u64) -> Vec<i64>) -> HostBatch {
        let (seq_len, vocabulary) = (number(&self.model, "seq_len"), number(&self.model, "vocabulary"));
        let tokens = whole(seq_len + 1, vocabulary as u64);
        let both = |from: usize| tokens.chunks(seq_len + 1).flat_map(|row| &row[from..from + seq_len]).copied().collect();
        HostBatch::of_text(rows, seq_len, both(0), both(1))
    }
}

/// A whole number of a section; 0 if it has none of that name.
fn number(section: &Value, key: &str) -> usize {
    section[key].as_u64().unwrap_or_default() as usize
}

/// Tokens of each row and its length, `filler` behind them: each row of four is an eighth shorter than the one before.
fn padded(step: usize, rows: usize, longest: usize, bound: u64, filler: i64) -> (Vec<i64>, Vec<i64>) {
    let lengths: Vec<usize> = (0..rows).map(|row| longest - row % 4 * (longest / 8)).collect();
    let counts = counter(step, rows, longest).enumerate();
    let tokens = counts.map(|(at, count)| if at % longest < lengths[at / longest] { 2 + (count % bound) as i64 } else { filler });
    (tokens.collect(), lengths.iter().map(|length| *length as i64).collect())
}

/// Row after row.
fn counter(step: usize, rows: usize, values: usize) -> impl Iterator<Item = u64> {
    (0..rows).flat_map(move |row| (0..values).map(move |at| (step * 7919 + row * 104_729 + at * 31) as u64))
}
