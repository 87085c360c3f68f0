//! What the scheduler reads of the machine: which GPUs there are, who is on them, what a trial's process used. This file alone
//! knows where the readings come from (`hardware`) and where they are kept (`samples.csv`, `snapshots.csv`).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Request, preflight};
pub use crate::hardware::{GpuProcess, ProcessList};
use crate::{
    hardware::{
        self, HostFacts, Nvml, NvmlAbsent, Reading, Sampler, Snapshot, TrialReadings as Ticks, WindowSummary,
        snapshot::{device as read_device, host as host_snapshot},
        window::summarize,
    },
    plan::{Trial, TrialId},
    record::{
        Check, Moment, Privacy, RunFolder, SampleWriter, SnapshotWriter,
        peaks::{self, DeviceKey, peaks_path},
    },
    spec::Engine,
};

/// Share of the machine's cores that other processes may use before a trial counts as disturbed.
const DISTURBING_SHARE: f64 = 0.15;

/// One GPU, as nvidia-smi numbers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
}

impl From<hardware::DeviceFacts> for DeviceFacts {
    fn from(found: hardware::DeviceFacts) -> Self {
        let name = found.name.into_value().unwrap_or_else(|| "NVIDIA GPU".to_owned());
        Self { index: found.index, uuid: found.uuid, name, memory_total_bytes: found.memory_total_bytes.into_value() }
    }
}

/// What was read of the machine over one attempt; missing is `None`, with its reason in `notes` if a reader would ask.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReadings {
    pub peak_nvml_used_bytes: Option<u64>,
    pub peak_resident_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub mean_gpu_utilization: Option<f64>,
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

/// What a launch tells its instruments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sitting<'a> {
    pub(super) folder: &'a RunFolder,
    pub(super) launch: u64,
    pub(super) run_anchor_nanoseconds: i64,
    pub(super) sample_interval: Duration,
    pub(super) privacy: Privacy,
}

/// The machine's readings, open for one launch.
#[derive(Debug)]
pub struct Instruments {
    nvml: Result<Arc<Nvml>, NvmlAbsent>,
    /// Whether no other library was named.
    is_system_nvml: bool,
    host: HostFacts,
    peaks: Option<PathBuf>,
    keeping: Option<Keeping>,
    watched: Vec<Watch>,
    /// GPUs that a test pretends to have.
    #[cfg(test)]
    pretended: Vec<DeviceFacts>,
}

/// The sampler and the tables it fills, once the run's folder is there.
#[derive(Debug)]
struct Keeping {
    sampler: Sampler,
    samples: SampleWriter,
    snapshots: SnapshotWriter,
    privacy: Privacy,
}

impl Instruments {
    /// Opens what the machine offers; nothing here fails, it is only absent. `nvml_library` is `$KILN_NVML_LIB`.
    pub fn open(nvml_library: Option<&Path>) -> Self {
        Self {
            nvml: Nvml::open(nvml_library).map(Arc::new),
            is_system_nvml: nvml_library.is_none(),
            host: hardware::host::read(),
            peaks: peaks_path(),
            keeping: None,
            watched: Vec::new(),
            #[cfg(test)]
            pretended: Vec::new(),
        }
    }

    /// With GPUs that are not there.
    #[cfg(test)]
    pub(super) fn pretending(devices: Vec<DeviceFacts>) -> Self {
        Self { pretended: devices, ..Self::open(Some(Path::new("/nonexistent"))) }
    }

    /// Starts the sampler and writes the launch's snapshot.
    ///
    /// # Errors
    /// A table under the run's folder cannot be opened or written.
    pub(super) fn begin(&mut self, sitting: Sitting) -> io::Result<()> {
        let nvml = self.nvml.as_ref().ok().map(Arc::clone);
        let (samples, _) = SampleWriter::open(&sitting.folder.samples_table(), sitting.launch).map_err(io::Error::from)?;
        let (mut snapshots, _) = SnapshotWriter::open(&sitting.folder.snapshots_table(), sitting.launch, sitting.privacy).map_err(io::Error::from)?;
        for snapshot in self.snapshots(None) {
            snapshots.write_all(&snapshot).map_err(io::Error::from)?;
        }
        snapshots.sync().map_err(io::Error::from)?;
        let sampler = Sampler::start(nvml, sitting.sample_interval, sitting.run_anchor_nanoseconds);
        self.keeping = Some(Keeping { sampler, samples, snapshots, privacy: sitting.privacy });
        Ok(())
    }

    /// The host and all GPUs, or the host and one.
    fn snapshots(&self, device: Option<&str>) -> Vec<Snapshot> {
        let mut found = vec![host_snapshot(&self.host)];
        if let Ok(nvml) = &self.nvml {
            let uuids = device.map_or_else(|| nvml.devices().into_iter().map(|gpu| gpu.uuid).collect(), |uuid| vec![uuid.to_owned()]);
            found.extend(uuids.iter().map(|uuid| read_device(nvml, uuid)));
        }
        found
    }

    pub fn devices(&self) -> Vec<DeviceFacts> {
        #[cfg(test)]
        if !self.pretended.is_empty() {
            return self.pretended.clone();
        }
        self.nvml.as_ref().map(|nvml| nvml.devices().into_iter().map(DeviceFacts::from).collect()).unwrap_or_default()
    }

    /// Why [`Self::devices`] is empty: `no NVIDIA driver found`.
    pub fn absence(&self) -> Option<String> {
        self.nvml.as_ref().err().map(ToString::to_string)
    }

    pub fn driver(&self) -> Option<String> {
        self.nvml.as_ref().ok()?.driver_version().into_value()
    }

    /// The cheap checks of the machine before a launch that has leased these GPUs.
    pub(super) fn preflight(&self, request: &Request, privacy: Privacy, uuids: &[String]) -> Vec<Check> {
        let launch = preflight::Launch {
            is_system_nvml: self.is_system_nvml,
            results: request.results,
            trials: request.trials,
            uuids: uuids.to_vec(),
            privacy,
        };
        preflight::before_launch(&self.nvml.as_deref().copied().map_err(Clone::clone), &launch)
    }

    /// Host facts for `run.json`: section to field to value.
    pub fn machine(&self) -> Value {
        let mut sections = Map::new();
        for entry in host_snapshot(&self.host).entries.into_iter().filter(|entry| !entry.is_identifying) {
            let section = sections.entry(entry.section).or_insert_with(|| json!({}));
            section[entry.field] = match (entry.value, entry.unit) {
                (Reading::Value(value), "") => json!(value),
                (Reading::Value(value), unit) => json!(format!("{value} {unit}")),
                (Reading::Absent(_), _) => Value::Null,
            };
        }
        Value::Object(sections)
    }

    pub fn compute_processes(&self, uuid: &str) -> ProcessList {
        match &self.nvml {
            Ok(nvml) => nvml.compute_processes(uuid),
            Err(absent) => ProcessList::Unknown(absent.to_string()),
        }
    }

    /// GPU utilization over about a second, as a fraction of 1.
    pub fn utilization(&self, uuid: &str) -> Option<f64> {
        self.nvml.as_ref().ok()?.utilization(uuid).into_value()
    }

    pub fn temperature_celsius(&self, uuid: &str) -> Option<f64> {
        self.nvml.as_ref().ok()?.temperature_celsius(uuid).into_value()
    }

    /// Dense peak for this trial in FLOP/s and where it is from (`measured` or `table`); `None` if unknown.
    pub fn peak_flops(&self, device: Option<&DeviceFacts>, trial: &Trial) -> Option<(f64, String)> {
        if trial.engine == Engine::Flex {
            return None;
        }
        let key = match device {
            Some(gpu) => DeviceKey { device: gpu.uuid.clone(), name: gpu.name.clone(), driver: self.driver(), cpu_threads: None },
            None => {
                let model = self.host.cpu_model.value()?.clone();
                let cpu_threads = Some(trial.train.cpu_threads.resolve(self.host.usable_cores));
                DeviceKey { device: model.clone(), name: model, driver: None, cpu_threads }
            }
        };
        let peak = peaks::lookup(self.peaks.as_deref(), &key, None, trial.train.precision.name())?;
        Some((peak.flops, peak.source.to_owned()))
    }

    /// Begins to watch an attempt; a snapshot of what changed since the last one goes into the table.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn watch(&mut self, watch: Watch) -> io::Result<()> {
        let Watch { trial, attempt, pid, device_uuid } = watch.clone();
        self.write_changes(Moment::Start, &watch)?;
        if let Some(keeping) = &self.keeping {
            keeping.sampler.watch(hardware::Watch { trial: trial.0, attempt, pid, device_uuid });
        }
        self.watched.push(watch);
        Ok(())
    }

    /// The trial's measured window begins or ends: read now.
    pub fn mark(&self, trial: &TrialId) {
        if let Some(keeping) = &self.keeping {
            keeping.sampler.mark(&trial.0);
        }
    }

    /// Writes what is due; called a few times a second.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn tick(&mut self) -> io::Result<()> {
        let Some(keeping) = &mut self.keeping else { return Ok(()) };
        match keeping.sampler.take_rows() {
            rows if rows.is_empty() => Ok(()),
            rows => keeping.samples.append(&rows).map_err(io::Error::from),
        }
    }

    /// Ends the watch. `window` is the measured window on CLOCK_MONOTONIC, in nanoseconds, if the trial had one; `cuts` are the
    /// stretches of it that do not count. `was_alone`: no other trial of this run ran beside it, so what else kept the cores
    /// busy was not ours.
    pub fn unwatch(&mut self, trial: &TrialId, window: Option<(u64, u64)>, cuts: &[(u64, u64)], was_alone: bool) -> TrialReadings {
        let Some(at) = self.watched.iter().position(|watch| watch.trial == *trial) else { return TrialReadings::default() };
        let watch = self.watched.swap_remove(at);
        let Some(keeping) = &self.keeping else { return TrialReadings::default() };
        let ticks = keeping.sampler.unwatch(&trial.0);
        let cores = self.host.logical_cores.value().copied();
        let mut found = summarize(&ticks, window, cuts, cores);
        found.notes.extend(disturbance(found.other_cpu_cores, cores).filter(|_| was_alone));
        let mut readings = summary(found, &ticks, keeping.privacy);
        readings.memory_limit_bytes = self.memory_limit_bytes(watch.device_uuid.as_deref());
        // A table that cannot be written shows at the next tick, which can stop the run.
        let _ = self.write_changes(Moment::End, &watch);
        readings
    }

    /// The GPU's memory, or what the host and its control group leave to a process.
    fn memory_limit_bytes(&self, device_uuid: Option<&str>) -> Option<u64> {
        match device_uuid {
            Some(uuid) => self.devices().into_iter().find(|gpu| gpu.uuid == uuid)?.memory_total_bytes,
            None => [&self.host.cgroup_memory_bytes, &self.host.memory_bytes].into_iter().filter_map(|bytes| bytes.value().copied()).min(),
        }
    }

    fn write_changes(&mut self, moment: Moment, watch: &Watch) -> io::Result<()> {
        let snapshots = match &watch.device_uuid {
            Some(uuid) => self.snapshots(Some(uuid)),
            None => vec![host_snapshot(&hardware::host::read())],
        };
        let Some(keeping) = &mut self.keeping else { return Ok(()) };
        for snapshot in snapshots {
            keeping.snapshots.write_changes(&snapshot, moment, &watch.trial, watch.attempt).map_err(io::Error::from)?;
        }
        Ok(())
    }
}

/// A note on the rate where other processes took so much of the CPU that it may be off.
fn disturbance(other_cpu_cores: Option<f64>, cores: Option<u64>) -> Option<(String, String)> {
    let (others, cores) = (other_cpu_cores?, cores?);
    let is_disturbed = others > DISTURBING_SHARE * cores as f64;
    is_disturbed.then(|| ("samples_per_second".to_owned(), format!("other processes kept {others:.1} of {cores} cores busy in the window")))
}

fn summary(summary: WindowSummary, ticks: &Ticks, privacy: Privacy) -> TrialReadings {
    TrialReadings {
        peak_nvml_used_bytes: summary.peak_nvml_used_bytes,
        peak_resident_bytes: summary.peak_resident_bytes,
        memory_limit_bytes: None,
        mean_gpu_utilization: summary.mean_gpu_utilization,
        mean_power_watts: summary.mean_power_watts,
        energy_counter_joules: summary.energy_counter_joules,
        energy_integral_joules: summary.energy_integral_joules,
        max_temperature_celsius: summary.max_temperature_celsius,
        throttled_fraction: summary.throttled_fraction,
        throttle_reasons: summary.throttle_reasons,
        foreign_processes: ticks.foreign.as_ref().map(|seen| privacy.foreign_processes(seen)),
        notes: summary.notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_beside_others_is_marked_from_15_percent_of_the_cores() {
        assert_eq!(disturbance(Some(1.2), Some(8)), None);
        let (column, note) = disturbance(Some(1.25), Some(8)).unwrap();
        assert_eq!((column.as_str(), note.as_str()), ("samples_per_second", "other processes kept 1.2 of 8 cores busy in the window"));
        assert_eq!((disturbance(None, Some(8)), disturbance(Some(9.0), None)), (None, None));
    }
}
