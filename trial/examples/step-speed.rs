//! Time of one optimizer step of a small GPT, for `benches/against-pytorch.sh`: the counterpart of `benches/pytorch_gpt.py`.
//!
//! `step-speed <precision> <vocabulary> <batch size> <steps> <threads> [engine] [tie_head]`; prints the median milliseconds per
//! step, the mean milliseconds of CPU time per step (less shaken by a busy machine), and the last loss.

use std::{
    env,
    error::Error,
    io::{self, Write},
    time::Instant,
};

use kiln_trial::train::{HostBatch, Learner};

const SEQ_LEN: usize = 128;
const WARMUP: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [precision, vocabulary, batch_size, steps, threads, rest @ ..] = &arguments[..] else {
        return Err("usage: step-speed <precision> <vocabulary> <batch size> <steps> <threads> [engine] [tie_head]".into());
    };
    let engine = rest.first().map_or("libtorch", String::as_str);
    let tied = rest.get(1).map_or("true", String::as_str);
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, data: {{kind: generated}}, measure: {{}}, engine: {engine}, device: cpu, folder: /, run_anchor_nanoseconds: 0,
          model: {{kind: gpt, d_model: 256, num_layers: 2, num_heads: 4, seq_len: {SEQ_LEN}, vocabulary: {vocabulary}, tie_head: {tied}}},
          train: {{batch_size: {batch_size}, steps: {steps}, precision: {precision}, cpu_threads: {threads}, clip_norm: 1.0}}}}"
    );
    let (vocabulary, rows, steps): (usize, usize, usize) = (vocabulary.parse()?, batch_size.parse()?, steps.parse()?);
    let mut learner = Learner::build(&serde_yaml::from_str(&text)?, None)?;
    let mut seconds = Vec::new();
    let mut cpu_started = cpu_seconds();
    for step in 0..WARMUP + steps {
        let host = batch(step, rows, vocabulary);
        if step == WARMUP {
            cpu_started = cpu_seconds();
        }
        let started = Instant::now();
        let targets = host.counted_targets();
        let device = learner.to_device(&host)?;
        learner.micro_step(device, step as u64, 0, targets)?;
        learner.update(3e-4)?;
        if step >= WARMUP {
            seconds.push(started.elapsed().as_secs_f64());
        }
    }
    let cpu = (cpu_seconds() - cpu_started) / steps as f64;
    seconds.sort_by(f64::total_cmp);
    let losses = learner.take_losses()?;
    writeln!(io::stdout(), "{:.3} {:.3} {:.4}", seconds[seconds.len() / 2] * 1e3, cpu * 1e3, losses[losses.len() - 1])?;
    Ok(())
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Tokens without meaning, the same in the Python script.
fn batch(step: usize, rows: usize, vocabulary: usize) -> HostBatch {
    let token = |row: usize, at: usize| ((step * 7919 + row * 104_729 + at * 31) % vocabulary) as i64;
    let both = |shift: usize| (0..rows).flat_map(|row| (0..SEQ_LEN).map(move |at| token(row, at + shift))).collect();
    HostBatch::of_text(rows, SEQ_LEN, both(0), both(1))
}
