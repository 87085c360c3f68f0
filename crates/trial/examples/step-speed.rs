//! Speed of one optimizer step of kiln's models, for `benches/against-pytorch.sh`: the counterpart
//! of `benches/pytorch_models.py`.
//!
//! `step-speed CASES MODEL PRECISION THREADS DEVICE`; MODEL names a case of the file CASES, such as
//! `benches/step-speed-models.json`. Prints, for each of five blocks of steps, its number, seconds
//! and CPU seconds of one step (CPU time is less shaken by a busy machine), the loss after it, the
//! most memory so far, and the model FLOPs of one step (empty where there is no formula).
//!
//! With `--graphs` at the end, `train.cuda_graph` is on and steps are replayed; on the CPU only if
//! `KILN_CUDA_BRANCHES=1` is set.
//!
//! With `--operators` at the end it prints instead which of libtorch's operators that compute one
//! step asks for, one a line; `step-speed --operators` alone picks them out of lines with depth and
//! name on standard input (`benches/operators.sh`).

#![allow(
    clippy::disallowed_methods,
    reason = "a program of its own, for a benchmark"
)]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    io::{self, Write},
    time::Instant,
};

use kiln_core::{
    kinds::{
        InputShape,
        data::{ImageShape, PairCounts, PairShape, PanelShape},
    },
    plan::TrialFile,
    record::note::ReplayedSteps,
    spec::CudaGraph,
};
use kiln_trial::{
    TrialError,
    data::{
        BatchPixels, BatchSamples, HostBatch, ImageSamples, PairSamples, PanelSamples, TargetScale,
    },
    engine::{
        IGNORED_TARGET,
        recorder::{RecordedOperator, operators_of, record_operators},
    },
    train::Learner,
};
use serde::Deserialize;
use serde_json::{Value, json};

const WARM_UP_STEPS: usize = 3;
const BLOCKS: usize = 5;
/// Further warm-up steps with `--graphs`: one that is recorded, and one that is replayed.
const RECORDED_STEPS: usize = 2;
const USAGE: &str = "usage: step-speed CASES MODEL PRECISION THREADS DEVICE [--graphs | \
                     --operators], or step-speed --operators";

/// One model with its batches and how it is trained; `model`, `data` and `train` as in a trial
/// file.
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

/// Lengths of the longest prompt and response, in tokens.
#[derive(Clone, Copy, Deserialize)]
struct Lengths {
    prompt_len: usize,
    response_len: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["--operators"] {
        return print_work(&operators_of(&io::read_to_string(io::stdin())?));
    }
    let ([cases, model, precision, threads, device], rest) =
        arguments.split_first_chunk().ok_or(USAGE)?;
    let (counts_operators, replays) = match rest {
        [] => (false, false),
        [option] if option == "--operators" => (true, false),
        [option] if option == "--graphs" => (false, true),
        _ => return Err(USAGE.into()),
    };
    let mut cases: BTreeMap<String, Case> = serde_json::from_str(
        &fs::read_to_string(cases).map_err(|error| format!("{cases}: {error}"))?,
    )?;
    let case = cases
        .remove(model)
        .ok_or_else(|| format!("no model `{model}`; there are {:?}", cases.keys()))?;
    let mut file = case.trial_file(precision, threads.parse()?, device)?;
    if replays {
        file.train.cuda_graph = CudaGraph::On;
    }
    let rate = case.train["optimizer"]["learning_rate"]
        .as_f64()
        .ok_or("a case without a learning rate")?;
    let flops = file
        .model
        .flops_per_sample(case.counted_shape())
        .map(|flops| flops * file.train.batch_size);
    let flops = flops.map(|flops| flops.to_string()).unwrap_or_default();
    let mut learner = Learner::build(&file, case.input_shape())?;
    let recorded_steps = if replays { RECORDED_STEPS } else { 0 };
    for step in 0..WARM_UP_STEPS + recorded_steps {
        let batch = case.batch(step % WARM_UP_STEPS);
        train(&mut learner, step, &batch, rate)?;
    }
    if replays {
        let note = learner.step_note().unwrap_or_default();
        let replayed =
            ReplayedSteps::of_graphs(&note).or_else(|| ReplayedSteps::of_closures(&note));
        if replayed.is_none_or(|replayed| replayed.steps != 1) {
            return Err(format!("no step was replayed: {note}").into());
        }
    }
    if counts_operators {
        let batch = case.batch(WARM_UP_STEPS);
        let ((), operators) =
            record_operators(|| train(&mut learner, WARM_UP_STEPS, &batch, rate))?;
        return print_work(&operators);
    }
    // The first losses are not measured, and the peak is that of the steps after them.
    learner.take_losses()?;
    learner.device().wait()?;
    learner.device().reset_allocator_peaks();
    for block in 0..BLOCKS {
        let first = WARM_UP_STEPS + block * case.block_steps;
        let batches: Vec<_> = (first..first + case.block_steps)
            .map(|step| (step, case.batch(step)))
            .collect();
        learner.device().wait()?;
        let (started, cpu_started) = (Instant::now(), cpu_seconds());
        for (step, batch) in &batches {
            train(&mut learner, *step, batch, rate)?;
        }
        learner.device().wait()?;
        let steps = case.block_steps as f64;
        let (seconds, cpu) = (
            started.elapsed().as_secs_f64() / steps,
            (cpu_seconds() - cpu_started) / steps,
        );
        let losses = learner.take_losses()?;
        let (loss, peak) = (losses[losses.len() - 1], peak_bytes(&learner)?);
        writeln!(
            io::stdout(),
            "{},{seconds:.6},{cpu:.6},{loss:.4},{peak},{flops}",
            block + 1
        )?;
    }
    Ok(())
}

fn print_work(operators: &[RecordedOperator]) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    operators
        .iter()
        .filter(|operator| operator.is_work)
        .try_for_each(|operator| writeln!(out, "{}", operator.name))?;
    Ok(())
}

/// Peak memory in bytes: on a GPU what the allocator handed out since the warm-up, on the CPU the
/// resident memory of the whole process.
fn peak_bytes(learner: &Learner) -> Result<u64, Box<dyn Error>> {
    if let Some(peak) = learner.peak_allocated_bytes() {
        return Ok(peak);
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("/proc/self/status has no VmHWM")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024)
}

fn train(
    learner: &mut Learner,
    step: usize,
    batch: &HostBatch,
    rate: f64,
) -> Result<(), TrialError> {
    let device = learner.to_device(batch)?;
    learner.micro_step(device, step as u64, 0, batch.counted_targets())?;
    learner.update(rate)
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Case {
    fn trial_file(
        &self,
        precision: &str,
        threads: u64,
        device: &str,
    ) -> Result<TrialFile, serde_json::Error> {
        let (mut train, mut data) = (self.train.clone(), self.data.clone());
        // As PyTorch's side; no effect on the CPU.
        data["pin_memory"] = true.into();
        train["precision"] = precision.into();
        train["cpu_threads"] = threads.into();
        train["steps"] = 1.into();
        serde_json::from_value(json!({
            "kiln_trial": 1, "trial": "0123456789", "attempt": 1, "model": self.model, "data": data, "train": train, "measure": {},
            "engine": "libtorch", "device": device, "folder": "/", "run_anchor_nanoseconds": 0,
        }))
    }

    /// `None` for a language model: its vocabulary is a key of its own.
    fn input_shape(&self) -> Option<InputShape> {
        self.images
            .map(InputShape::Images)
            .or(self.panel.map(InputShape::Panel))
    }

    /// The same for the number of FLOPs, which, for prompts and responses, counts only what is not
    /// padding.
    fn counted_shape(&self) -> Option<InputShape> {
        let Some(Lengths {
            prompt_len,
            response_len,
        }) = self.pairs
        else {
            return self.input_shape();
        };
        let rows = number(&self.train, "batch_size");
        let lengths = |longest: usize| (0..rows).map(move |row| row_length(row, longest) as u64);
        let sum_of =
            |longest: usize, value: fn(u64) -> u64| lengths(longest).map(value).sum::<u64>();
        let products = lengths(prompt_len)
            .zip(lengths(response_len))
            .map(|(prompt, response)| prompt * response)
            .sum();
        let train = PairCounts {
            rows: rows as u64,
            prompt_tokens: sum_of(prompt_len, |length| length),
            response_tokens: sum_of(response_len, |length| length),
            prompt_squares: sum_of(prompt_len, |length| length * length),
            response_squares: sum_of(response_len, |length| length * length),
            prompt_response_products: products,
            cut_prompts: 0,
            cut_responses: 0,
            unknown_tokens: 0,
        };
        Some(InputShape::Pairs(PairShape {
            vocabulary: number(&self.model, "vocabulary") as u64,
            train,
        }))
    }

    /// Numbers without meaning, the same in the Python script.
    fn batch(&self, step: usize) -> HostBatch {
        let rows = number(&self.train, "batch_size");
        let whole = |values: usize, bound: u64| {
            counter(step, rows, values)
                .map(|count| (count % bound) as i64)
                .collect()
        };
        let real = |values: usize| {
            counter(step, rows, values)
                .map(|count| (count % 255) as f32 / 127.5 - 1.0)
                .collect()
        };
        let samples = if let Some(shape) = self.images {
            let pixels = real((shape.channels * shape.height * shape.width) as usize);
            BatchSamples::Images(ImageSamples {
                pixels: BatchPixels::Numbers(pixels),
                labels: whole(1, shape.classes),
                shape,
            })
        } else if let Some(shape) = self.panel {
            let (seq_len, scale) = (
                number(&self.model, "seq_len"),
                TargetScale::Returns {
                    mean: 0.0,
                    deviation: 1.0,
                },
            );
            let features = real(seq_len * shape.features as usize);
            BatchSamples::Panel(PanelSamples {
                features,
                symbols: whole(1, shape.symbols),
                targets: real(1),
                seq_len,
                shape,
                scale,
            })
        } else if let Some(lengths) = self.pairs {
            return self.pairs(step, rows, lengths);
        } else {
            return self.text(rows, whole);
        };
        HostBatch {
            rows,
            samples,
            step_targets: None,
        }
    }

    fn pairs(
        &self,
        step: usize,
        rows: usize,
        Lengths {
            prompt_len,
            response_len,
        }: Lengths,
    ) -> HostBatch {
        let bound = number(&self.model, "vocabulary") as u64 - 2;
        let (prompts, prompt_lengths) = padded(step, rows, prompt_len, bound, 0);
        let (targets, _) = padded(step, rows, response_len, bound, IGNORED_TARGET);
        let shifted = |row: &[i64]| {
            [0].into_iter()
                .chain(row[..response_len - 1].iter().map(|token| (*token).max(0)))
                .collect::<Vec<i64>>()
        };
        let decoder_inputs = targets.chunks(response_len).flat_map(shifted).collect();
        let samples = BatchSamples::Pairs(PairSamples {
            prompts,
            prompt_lengths,
            decoder_inputs,
            targets,
            prompt_len,
            response_len,
            pad: 0,
        });
        HostBatch {
            rows,
            samples,
            step_targets: None,
        }
    }

    fn text(&self, rows: usize, whole: impl Fn(usize, u64) -> Vec<i64>) -> HostBatch {
        let (seq_len, vocabulary) = (
            number(&self.model, "seq_len"),
            number(&self.model, "vocabulary"),
        );
        let tokens = whole(seq_len + 1, vocabulary as u64);
        let both = |from: usize| {
            tokens
                .chunks(seq_len + 1)
                .flat_map(|row| &row[from..from + seq_len])
                .copied()
                .collect()
        };
        HostBatch::of_text(rows, seq_len, both(0), both(1))
    }
}

/// An integer of a section; 0 if it has none of that name.
fn number(section: &Value, key: &str) -> usize {
    section[key].as_u64().unwrap_or_default() as usize
}

/// Tokens of each row and its length, `filler` behind them: each row of four is an eighth shorter
/// than the one before.
fn padded(
    step: usize,
    rows: usize,
    longest: usize,
    bound: u64,
    filler: i64,
) -> (Vec<i64>, Vec<i64>) {
    let lengths: Vec<usize> = (0..rows).map(|row| row_length(row, longest)).collect();
    let counts = counter(step, rows, longest).enumerate();
    let tokens = counts.map(|(at, count)| {
        if at % longest < lengths[at / longest] {
            2 + (count % bound) as i64
        } else {
            filler
        }
    });
    (
        tokens.collect(),
        lengths.iter().map(|length| *length as i64).collect(),
    )
}

fn row_length(row: usize, longest: usize) -> usize {
    longest - row % 4 * (longest / 8)
}

/// Row after row.
fn counter(step: usize, rows: usize, values: usize) -> impl Iterator<Item = u64> {
    (0..rows).flat_map(move |row| {
        (0..values).map(move |at| (step * 7919 + row * 104_729 + at * 31) as u64)
    })
}
