//! `kiln calibrate`: starts the child that measures the matrix-product peak per precision, keeps the result for MFU, prints it.

use std::process::{Command, Stdio};

use comfy_table::{Table, presets};
use serde::Deserialize;

use super::{
    Status, Stop,
    machine::{nvml_library, trial_program},
    print,
};
use crate::{
    hardware::{DeviceFacts, Nvml, host::usable_cores},
    record::peaks::{DeviceKey, MeasuredPeak, keep, peaks_path},
    units::Count,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Device to measure: `auto` (the first GPU, else the CPU), `cpu`, or a GPU's index or UUID.
    #[arg(long, default_value = "auto")]
    device: String,
    /// libtorch's threads on the CPU; all cores if not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    cpu_threads: Option<u64>,
}

/// A device to start the child on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Cpu,
    Gpu { uuid: String, name: String, driver: Option<String> },
}

/// The child's answer.
#[derive(Debug, Deserialize)]
struct Calibration {
    libtorch: Option<String>,
    device_name: String,
    cpu_threads: u64,
    peaks: Vec<Measured>,
}

#[derive(Debug, Deserialize)]
struct Measured {
    precision: String,
    flops: f64,
    size: u64,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let target = chosen(&args.device, &gpus())?;
    let threads = args.cpu_threads.unwrap_or_else(usable_cores);
    let found = measure(&target, threads)?;
    let peaks = named(&target, found);
    let kept = match peaks_path() {
        Some(path) => {
            keep(&path, &peaks).map_err(|error| Stop::new(Status::Failed, format!("the peaks could not be kept in {}: {error}", path.display())))?;
            format!("kept in {}", path.display())
        }
        None => "not kept: neither `XDG_CACHE_HOME` nor `HOME` is set".to_owned(),
    };
    print(&format!("{}\n{kept}\n", printed(&peaks)))?;
    Ok(Status::Success)
}

/// The machine's GPUs in nvidia-smi's order; none without a driver.
fn gpus() -> Vec<Target> {
    let Ok(nvml) = Nvml::open(nvml_library().as_deref()) else { return Vec::new() };
    let driver = nvml.driver_version().into_value();
    let target = |gpu: DeviceFacts| Some(Target::Gpu { uuid: gpu.uuid, name: gpu.name.into_value()?, driver: driver.clone() });
    nvml.devices().into_iter().filter_map(target).collect()
}

fn chosen(asked: &str, gpus: &[Target]) -> Result<Target, Stop> {
    let by_uuid = |gpu: &&Target| matches!(gpu, Target::Gpu { uuid, .. } if uuid == asked);
    let found = match asked {
        "cpu" => Some(&Target::Cpu),
        "auto" => Some(gpus.first().unwrap_or(&Target::Cpu)),
        index if index.bytes().all(|byte| byte.is_ascii_digit()) => index.parse().ok().and_then(|index: usize| gpus.get(index)),
        _ => gpus.iter().find(by_uuid),
    };
    found.cloned().ok_or_else(|| {
        let text = format!("`--device {asked}` is not here: {} found; give `cpu`, `auto`, an index or a UUID", counted(gpus.len()));
        Stop::new(Status::CannotRun, text)
    })
}

fn counted(gpus: usize) -> String {
    match gpus {
        0 => "no NVIDIA GPU is".to_owned(),
        1 => "one NVIDIA GPU (index 0) is".to_owned(),
        many => format!("{many} NVIDIA GPUs (indices 0 to {}) are", many - 1),
    }
}

fn measure(target: &Target, threads: u64) -> Result<Calibration, Stop> {
    let program = trial_program()?;
    let mut child = Command::new(&program);
    child.arg("--calibrate").arg(if *target == Target::Cpu { "cpu" } else { "cuda" }).arg(threads.to_string());
    if let Target::Gpu { uuid, .. } = target {
        child.env("CUDA_VISIBLE_DEVICES", uuid);
    }
    let ended = child.stderr(Stdio::inherit()).output();
    let ended = ended.map_err(|error| {
        let text = format!("{} could not be started: {error}; build it with `cargo build --release`, or set `KILN_TRIAL`", program.display());
        Stop::new(Status::CannotRun, text)
    })?;
    if !ended.status.success() {
        return Err(Stop::new(Status::Failed, format!("{} ended with {}", program.display(), ended.status)));
    }
    serde_json::from_slice(&ended.stdout)
        .map_err(|error| Stop::new(Status::Failed, format!("{} answered something else than a calibration: {error}", program.display())))
}

/// The answer's peaks with what they belong to.
fn named(target: &Target, found: Calibration) -> Vec<MeasuredPeak> {
    let device = match target {
        Target::Cpu => DeviceKey { device: found.device_name.clone(), name: found.device_name, driver: None, cpu_threads: Some(found.cpu_threads) },
        Target::Gpu { uuid, name, driver } => DeviceKey { device: uuid.clone(), name: name.clone(), driver: driver.clone(), cpu_threads: None },
    };
    let libtorch = found.libtorch.unwrap_or_default();
    let named = |peak: Measured| MeasuredPeak {
        device: device.clone(),
        libtorch: libtorch.clone(),
        precision: peak.precision,
        flops: peak.flops,
        size: peak.size,
    };
    found.peaks.into_iter().map(named).collect()
}

fn printed(peaks: &[MeasuredPeak]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["device", "precision", "peak", "size", "libtorch"]);
    for peak in peaks {
        let flops = format!("{}FLOP/s", Count(peak.flops));
        table.add_row([peak.device.name.clone(), peak.precision.clone(), flops, peak.size.to_string(), peak.libtorch.clone()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str) -> Target {
        Target::Gpu { uuid: uuid.to_owned(), name: "NVIDIA H200".to_owned(), driver: None }
    }

    #[test]
    fn a_device_is_chosen_by_word_index_or_uuid() {
        let gpus = [gpu("GPU-a"), gpu("GPU-b")];
        assert_eq!(chosen("auto", &gpus).unwrap(), gpus[0]);
        assert_eq!(chosen("auto", &[]).unwrap(), Target::Cpu);
        assert_eq!(chosen("cpu", &gpus).unwrap(), Target::Cpu);
        assert_eq!(chosen("1", &gpus).unwrap(), gpus[1]);
        assert_eq!(chosen("GPU-b", &gpus).unwrap(), gpus[1]);
        let stop = chosen("2", &gpus).unwrap_err();
        assert_eq!((stop.status, stop.message.contains("indices 0 to 1")), (Status::CannotRun, true));
    }

    #[test]
    fn a_cpu_peak_belongs_to_its_model_and_threads() {
        let answer = r#"{"kiln_calibration":1,"libtorch":"2.11.0","device_name":"Xeon","cpu_threads":2,
                         "peaks":[{"precision":"f32","flops":1.0e11,"size":1024,"tried":[[512,9.0e10],[1024,1.0e11]]}]}"#;
        let peaks = named(&Target::Cpu, serde_json::from_str(answer).unwrap());
        assert_eq!((peaks[0].device.device.as_str(), peaks[0].device.cpu_threads), ("Xeon", Some(2)));
        assert!(printed(&peaks).contains("100.0 GFLOP/s"), "{}", printed(&peaks));
    }
}
