//! `kiln-trial --calibrate`: the matrix-product peak of a device per precision. Input: a device and
//! a number of threads. Output: one JSON object on standard output; `kiln calibrate` starts this
//! and keeps the result.

use std::{io::Write, time::Instant};

use kiln_core::{
    kinds,
    plan::ChildDevice,
    spec::{Engine, Precision},
};
use serde::Serialize;

use crate::{
    engine::{EngineDevice, Ops, guard, libraries},
    error::TrialError,
    matmul::Factors,
    model::Init,
};

/// Runs per size; the median counts.
const RUNS: usize = 5;

/// Shortest run, so that the clock and the launch of the first product do not show.
const RUN_SECONDS: f64 = 0.2;

/// A size is skipped if one product of it would take longer than this at the rate of the size
/// before: f16 on a CPU gets slower with size, and would take minutes.
const LONGEST_PRODUCT_SECONDS: f64 = 1.0;

/// Measurements of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Format version.
    pub kiln_calibration: u32,
    pub libtorch: Option<String>,
    pub device_name: String,
    pub cpu_threads: u64,
    pub peaks: Vec<BestSize>,
}

/// The best size at one precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestSize {
    /// As `train.precision` names it.
    pub precision: String,
    /// FLOP/s: 2 N³ per product over the median run's seconds per product.
    pub flops: f64,
    /// Rows and columns of the factors.
    pub size: u64,
    /// Every size tried with its FLOP/s.
    pub tried: Vec<(u64, f64)>,
}

/// One precision for each number format that products are made in: `bf16` has the peak of
/// `amp-bf16`.
const PRECISIONS: [Precision; 4] = [
    Precision::F32,
    Precision::Tf32,
    Precision::AmpBf16,
    Precision::AmpF16,
];

/// Measures what the device has of `PRECISIONS`, on libtorch. Waits for the device around each run.
pub fn calibrate(device: ChildDevice, cpu_threads: u64) -> Result<Calibration, TrialError> {
    let device = EngineDevice::open(Engine::Libtorch, device, cpu_threads)?;
    let mut peaks = Vec::new();
    for precision in PRECISIONS {
        match device.set_precision(precision) {
            Ok(()) => peaks.push(peak(&device, precision)?),
            Err(TrialError::Bad(_)) => {} // It has no such format.
            Err(error) => return Err(error),
        }
    }
    Ok(Calibration {
        kiln_calibration: 1,
        libtorch: libraries().remove("libtorch"),
        device_name: device.name(),
        cpu_threads,
        peaks,
    })
}

fn peak(device: &EngineDevice, precision: Precision) -> Result<BestSize, TrialError> {
    let sizes: &[u64] = if device.is_cuda() {
        &[4096, 8192, 16384]
    } else {
        &[512, 1024, 2048]
    };
    let mut tried: Vec<(u64, f64)> = Vec::new();
    for size in sizes {
        if tried
            .last()
            .is_some_and(|(_, flops)| product_flops(*size) / flops > LONGEST_PRODUCT_SECONDS)
        {
            break;
        }
        tried.push((*size, rate(device, precision, *size)?));
    }
    let (size, flops) =
        tried.iter().copied().fold(
            (0, 0.0),
            |best, this| if this.1 > best.1 { this } else { best },
        );
    Ok(BestSize {
        precision: precision.name().to_owned(),
        flops,
        size,
        tried,
    })
}

fn product_flops(size: u64) -> f64 {
    2.0 * (size as f64).powi(3)
}

/// Median FLOP/s of products of this size.
fn rate(device: &EngineDevice, precision: Precision, size: u64) -> Result<f64, TrialError> {
    let init = Init {
        seed: 1,
        device: device.with_gradients(),
    };
    let shape = kinds::Matmul { size };
    let ops = Ops::new(Engine::Libtorch, precision)?;
    let factors = guard(|| Factors::new(&shape, precision, ops, &init))?;
    let run = |products: u64| -> Result<f64, TrialError> {
        device.wait()?;
        let started = Instant::now();
        guard(|| (0..products).for_each(|_| drop(factors.product())))?;
        device.wait()?;
        Ok(started.elapsed().as_secs_f64() / products as f64)
    };
    run(1)?; // the first product sets up libraries
    let products = (RUN_SECONDS / run(1)?.max(1e-9))
        .ceil()
        .clamp(1.0, 100_000.0) as u64;
    let mut seconds = (0..RUNS)
        .map(|_| run(products))
        .collect::<Result<Vec<_>, _>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(product_flops(size) / seconds[RUNS / 2])
}

/// Runs `--calibrate <cpu|cuda> <threads>` and writes the JSON to `out`.
pub fn answer(arguments: &[String], mut out: impl Write) -> Result<(), TrialError> {
    let device = match arguments.first().map(String::as_str) {
        Some("cpu") => ChildDevice::Cpu,
        Some("cuda") => ChildDevice::Cuda,
        other => {
            return Err(TrialError::Bad(format!(
                "`--calibrate` got the device {other:?}; it must be `cpu` or `cuda`"
            )));
        }
    };
    let threads = arguments
        .get(1)
        .and_then(|threads| threads.parse().ok())
        .filter(|threads| *threads > 0);
    let threads = threads.ok_or_else(|| {
        TrialError::Bad(
            "`--calibrate` needs a number of threads of at least 1 after the device".to_owned(),
        )
    })?;
    let text = serde_json::to_string(&calibrate(device, threads)?)
        .map_err(|error| TrialError::Failed(error.to_string()))?;
    writeln!(out, "{text}").map_err(|error| {
        TrialError::Failed(format!("standard output could not be written: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_line_is_refused_before_anything_is_measured() {
        let refused = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect();
            answer(&arguments, Vec::new()).unwrap_err().to_string()
        };
        assert!(refused(&["tpu", "2"]).contains("it must be `cpu` or `cuda`"));
        assert!(refused(&["cpu", "none"]).contains("at least 1"));
    }
}
