//! What `run` and `tune` share: their options, the voice, the words of a stop.

use std::path::PathBuf;

use super::{Status, Stop, machine::nvml_library};
use crate::{
    schedule::{self, Instruments, Style},
    spec::{DeviceName, Devices, Engine},
};

/// Options of commands that run trials.
#[derive(clap::Args)]
pub(super) struct Launching {
    /// Start a new run even if one could be gone on with.
    #[arg(long)]
    pub(super) fresh: bool,
    /// Say what would run, and run nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Set a key of the experiment: `train.batch_size=8`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The same as `--set run.devices=…`: auto, cpu, all, an index or a UUID.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The same as `--set run.engine=…`.
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Say nothing but the result; with `--progress json`, nothing but the events.
    #[arg(long)]
    pub(super) quiet: bool,
    /// How to tell the progress.
    #[arg(long, value_enum, default_value_t = Telling::Auto)]
    progress: Telling,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(super) results: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Telling {
    /// Bars on a terminal, else lines.
    Auto,
    /// Timed lines on standard error.
    Plain,
    /// JSON events on standard output, documented in docs/running.md.
    Json,
}

impl Launching {
    /// `--set` with the keys that have a flag of their own.
    pub(super) fn settings(&self) -> Vec<String> {
        let device = self.device.iter().map(|device| match device.as_str() {
            "auto" | "cpu" | "all" => format!("run.devices={device}"),
            list if list.starts_with('[') => format!("run.devices={list}"),
            one => format!("run.devices=[{one}]"),
        });
        let engine = self.engine.iter().map(|engine| format!("run.engine={engine}"));
        self.set.iter().cloned().chain(device).chain(engine).collect()
    }

    pub(super) fn style(&self) -> Style {
        match (self.progress, self.quiet) {
            (Telling::Json, _) => Style::Json,
            (_, true) => Style::Quiet,
            (Telling::Auto, false) => Style::for_terminal(),
            (Telling::Plain, false) => Style::Plain,
        }
    }
}

/// As typed.
pub(super) fn command_line() -> Vec<String> {
    std::iter::once("kiln".to_owned()).chain(std::env::args().skip(1)).collect()
}

/// Whether trials of this kind take a GPU if there is one.
pub(super) fn needs_gpu(engine: Engine, devices: &Devices) -> bool {
    engine != Engine::Flex && *devices != Devices::Named(DeviceName::Cpu)
}

/// Trials on the CPU do not wait for a driver that hangs.
pub(super) fn instruments(needs_gpu: bool) -> Instruments {
    let library = nvml_library();
    match needs_gpu {
        true => Instruments::open(library.as_deref()),
        false => Instruments::open_for_the_cpu(library.as_deref()),
    }
}

pub(super) fn stopped(stop: schedule::Stop) -> Stop {
    let status = match stop {
        schedule::Stop::Refused(_) => Status::BadInput,
        schedule::Stop::CannotRun(_) => Status::CannotRun,
        schedule::Stop::Interrupted(_) => Status::Interrupted,
    };
    Stop::new(status, stop)
}
