//! What the scheduler reads of the machine: which GPUs there are, who is on them, what a trial's process used. This file alone
//! knows where the readings come from; without an NVIDIA driver they are the host's own, from `/proc`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::resident::peak_resident_bytes;
use crate::{plan::TrialId, record::RunFolder, spec::Precision};

/// One GPU, as nvidia-smi numbers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_total_bytes: u64,
}

/// One compute process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    pub user: Option<String>,
    pub used_memory_bytes: Option<u64>,
}

/// The compute processes of a GPU, or why they cannot be seen (containers, WDDM).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessList {
    Known(Vec<GpuProcess>),
    Unknown(String),
}

/// What was read of the machine over one attempt; missing is `None`, with its reason in `notes` if a reader would ask.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReadings {
    pub peak_nvml_used_bytes: Option<u64>,
    pub peak_resident_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub mean_gpu_utilization: Option<f64>,
    pub mean_sm_active: Option<f64>,
    pub mean_power_watts: Option<f64>,
    pub energy_counter_joules: Option<f64>,
    pub energy_integral_joules: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    pub throttled_fraction: Option<f64>,
    pub throttle_reasons: Option<String>,
    pub foreign_processes: Option<String>,
    /// Column to reason.
    pub notes: BTreeMap<String, String>,
}

/// Which process is watched for which attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    pub trial: TrialId,
    pub attempt: u64,
    pub pid: u32,
    /// `None` on the CPU.
    pub device_uuid: Option<String>,
}

/// The machine's readings, open for one launch.
#[derive(Debug, Default)]
pub struct Instruments {
    /// GPUs that a test pretends to have.
    #[cfg(test)]
    pretended: Vec<DeviceFacts>,
    watched: Vec<(Watch, TrialReadings)>,
}

impl Instruments {
    /// Opens what the machine offers; nothing here fails, it is only absent.
    pub fn open() -> Self {
        Self::default()
    }

    /// With GPUs that are not there.
    #[cfg(test)]
    pub(super) fn pretending(devices: Vec<DeviceFacts>) -> Self {
        Self { pretended: devices, ..Self::default() }
    }

    pub fn devices(&self) -> Vec<DeviceFacts> {
        #[cfg(test)]
        return self.pretended.clone();
        #[cfg(not(test))]
        Vec::new()
    }

    /// Why [`Self::devices`] is empty: `no NVIDIA driver found`.
    pub fn absence(&self) -> Option<String> {
        Some("no NVIDIA driver found".to_owned())
    }

    pub fn driver(&self) -> Option<String> {
        None
    }

    /// Host facts for `run.json`.
    pub fn machine(&self) -> Value {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let system = rustix::system::uname();
        json!({"cores": cores, "kernel": system.release().to_string_lossy(), "architecture": system.machine().to_string_lossy()})
    }

    pub fn compute_processes(&self, _uuid: &str) -> ProcessList {
        ProcessList::Unknown(self.absence().unwrap_or_default())
    }

    /// GPU utilization over about a second, as a fraction of 1.
    pub fn utilization(&self, _uuid: &str) -> Option<f64> {
        None
    }

    pub fn temperature_celsius(&self, _uuid: &str) -> Option<f64> {
        None
    }

    /// Dense peak at this precision in FLOP/s and where it is from (`measured` or `table`); `None` if unknown.
    pub fn peak_flops(&self, _device_uuid: Option<&str>, _precision: Precision) -> Option<(f64, String)> {
        None
    }

    pub fn watch(&mut self, watch: Watch) {
        let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
        self.watched.push((watch, TrialReadings { memory_limit_bytes: limit, ..TrialReadings::default() }));
    }

    /// Reads what has no timer of its own and writes what is due; called a few times a second, and when a trial says `finished`.
    ///
    /// # Errors
    /// A table under `run` could not be written.
    pub fn tick(&mut self, _run: &RunFolder) -> std::io::Result<()> {
        for (watch, readings) in &mut self.watched {
            readings.peak_resident_bytes = peak_resident_bytes(watch.pid).max(readings.peak_resident_bytes);
        }
        Ok(())
    }

    /// Ends the watch. `window` is the measured window on CLOCK_MONOTONIC, in nanoseconds, if the trial had one.
    pub fn unwatch(&mut self, trial: &TrialId, _window: Option<(u64, u64)>) -> TrialReadings {
        match self.watched.iter().position(|(watch, _)| watch.trial == *trial) {
            Some(at) => self.watched.swap_remove(at).1,
            None => TrialReadings::default(),
        }
    }
}
