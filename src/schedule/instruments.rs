//! What the scheduler reads of the machine: which GPUs there are, who is on them, what a trial's process used. This file alone
//! knows where the readings come from (`hardware`) and where they are kept (`samples.csv`, `snapshots.csv`).

use std::{
    collections::HashMap,
    fs, io,
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
        self, Gpu, HostFacts, Nvml, NvmlAbsent, Reading, Sampler, Snapshot, WindowSummary,
        snapshot::{device as read_device, gpu as gpu_snapshot, host as host_snapshot, host_items},
        text::{Naming, host_text, text},
        window::summarize,
        within,
    },
    plan::{Trial, TrialId},
    record::{
        Check, Moment, Privacy, RunFolder, SampleWriter, SnapshotWriter,
        identity::MASKED,
        peaks::{self, DeviceKey, peaks_path},
    },
    spec::Engine,
};

/// How long a driver that hangs is waited for: at the launch, where devices may have to wake up, and between trials.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);

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

/// What was read of the machine over one attempt; missing is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReadings {
    /// With the reasons, by column, for what is missing.
    pub window: WindowSummary,
    pub memory_limit_bytes: Option<u64>,
    pub foreign_processes: Option<String>,
    /// Before the child was started.
    pub idle_power_watts: Option<f64>,
    /// What NVML said of the device, if it gave it up during the attempt.
    pub lost: Option<String>,
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
    devices: Vec<DeviceFacts>,
    driver: Option<String>,
    /// Whether no other library was named.
    is_system_nvml: bool,
    host: HostFacts,
    peaks: Option<PathBuf>,
    keeping: Option<Keeping>,
    watched: Vec<Watch>,
    /// Of each device, before the trial that now runs on it; W.
    idle_power: HashMap<String, f64>,
    /// Devices that a test pretends to lose.
    #[cfg(test)]
    pub(super) pretended_lost: Vec<String>,
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
        let nvml = Nvml::open(nvml_library).map(Arc::new);
        let asked = nvml.as_ref().ok().cloned().and_then(|nvml| {
            within(LAUNCH_PATIENCE, move || (nvml.devices().into_iter().map(DeviceFacts::from).collect(), nvml.driver_version().into_value()))
        });
        let (devices, driver) = asked.unwrap_or_default();
        Self {
            nvml,
            devices,
            driver,
            is_system_nvml: nvml_library.is_none(),
            host: hardware::host::read(),
            peaks: peaks_path(),
            keeping: None,
            watched: Vec::new(),
            idle_power: HashMap::new(),
            #[cfg(test)]
            pretended_lost: Vec::new(),
        }
    }

    /// With GPUs that are not there.
    #[cfg(test)]
    pub(super) fn pretending(devices: Vec<DeviceFacts>) -> Self {
        Self { devices, ..Self::open(Some(Path::new("/nonexistent"))) }
    }

    /// Asks the driver; `None` without one, or if it does not answer in time.
    fn ask<T: Send + 'static>(&self, patience: Duration, question: impl FnOnce(&Nvml) -> T + Send + 'static) -> Option<T> {
        let nvml = Arc::clone(self.nvml.as_ref().ok()?);
        within(patience, move || question(&nvml))
    }

    /// The same about one device.
    fn ask_of<T: Send + 'static>(&self, uuid: &str, question: impl FnOnce(&Nvml, &str) -> T + Send + 'static) -> Option<T> {
        let uuid = uuid.to_owned();
        self.ask(PATIENCE, move |nvml| question(nvml, &uuid))
    }

    /// Starts the sampler and writes the launch's snapshot.
    ///
    /// # Errors
    /// A table under the run's folder cannot be opened or written.
    pub(super) fn begin(&mut self, sitting: Sitting) -> io::Result<()> {
        let nvml = self.nvml.as_ref().ok().map(Arc::clone);
        let (samples, _) = SampleWriter::open(&sitting.folder.samples_table(), sitting.launch).map_err(io::Error::from)?;
        let (mut snapshots, _) = SnapshotWriter::open(&sitting.folder.snapshots_table(), sitting.launch, sitting.privacy).map_err(io::Error::from)?;
        let gpus = self.read_gpus();
        for snapshot in std::iter::once(host_snapshot(&self.host)).chain(gpus.iter().map(gpu_snapshot)) {
            snapshots.write_all(&snapshot).map_err(io::Error::from)?;
        }
        snapshots.sync().map_err(io::Error::from)?;
        fs::write(sitting.folder.snapshot_page(sitting.launch), self.page(&gpus, sitting.privacy))?;
        let sampler = Sampler::start(nvml, sitting.sample_interval, sitting.run_anchor_nanoseconds);
        self.keeping = Some(Keeping { sampler, samples, snapshots, privacy: sitting.privacy });
        Ok(())
    }

    /// All GPUs; none where the driver does not answer in time.
    fn read_gpus(&self) -> Vec<Gpu> {
        let uuids: Vec<String> = self.devices.iter().map(|gpu| gpu.uuid.clone()).collect();
        self.ask(LAUNCH_PATIENCE, move |nvml| uuids.iter().map(|uuid| Gpu::read(nvml, uuid)).collect::<Vec<_>>()).unwrap_or_default()
    }

    /// The launch's snapshot as a person reads it, and compares it with another launch's.
    fn page(&self, gpus: &[Gpu], privacy: Privacy) -> String {
        let naming = if privacy == Privacy::Full { Naming::Full } else { Naming::Masked(MASKED) };
        let host = host_text(&host_items(&self.host));
        match &self.nvml {
            Ok(_) if gpus.is_empty() && !self.devices.is_empty() => host + "\nThe NVIDIA driver did not answer in time.\n",
            Ok(_) => host + &text(gpus, &jiff::Zoned::now(), naming),
            Err(absent) => format!("{host}\nThere is no GPU to read: {absent}.\n"),
        }
    }

    /// The host, and one GPU.
    fn snapshots(&self, device: &str) -> Vec<Snapshot> {
        let read = self.ask_of(device, read_device);
        std::iter::once(host_snapshot(&self.host)).chain(read).collect()
    }

    pub fn devices(&self) -> Vec<DeviceFacts> {
        self.devices.clone()
    }

    /// Why [`Self::devices`] is empty: `no NVIDIA driver found`.
    pub fn absence(&self) -> Option<String> {
        self.nvml.as_ref().err().map(ToString::to_string)
    }

    /// The processor's model, as a trial on the CPU names its device.
    pub fn cpu_name(&self) -> Option<String> {
        self.host.cpu_model.value().cloned()
    }

    pub fn driver(&self) -> Option<String> {
        self.driver.clone()
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
        let silent = || ProcessList::Unknown("the driver does not answer".to_owned());
        match &self.nvml {
            Ok(_) => self.ask_of(uuid, Nvml::compute_processes).unwrap_or_else(silent),
            Err(absent) => ProcessList::Unknown(absent.to_string()),
        }
    }

    /// GPU utilization over about a second, as a fraction of 1.
    pub fn utilization(&self, uuid: &str) -> Option<f64> {
        self.ask_of(uuid, Nvml::utilization)?.into_value()
    }

    pub fn temperature_celsius(&self, uuid: &str) -> Option<f64> {
        self.ask_of(uuid, Nvml::temperature_celsius)?.into_value()
    }

    /// A trial is about to start on this device: its power now is that of an idle device.
    pub(super) fn note_idle_power(&mut self, device: &DeviceFacts) {
        let watts = self.ask_of(&device.uuid, hardware::power_now_watts).flatten();
        self.idle_power.extend(watts.map(|watts| (device.uuid.clone(), watts)));
    }

    /// What NVML said of the trial's device, if it has given it up while the trial runs.
    pub(super) fn lost(&self, trial: &TrialId) -> Option<String> {
        self.keeping.as_ref()?.sampler.lost(&trial.0)
    }

    /// Asks anew whether the device of an ended attempt is lost: the child often dies of it before the sampler sees it.
    fn lost_now(&self, uuid: &str) -> Option<String> {
        #[cfg(test)]
        if self.pretended_lost.iter().any(|lost| lost == uuid) {
            return Some("pretended".to_owned());
        }
        self.ask_of(uuid, hardware::lost).flatten()
    }

    /// Dense peak for this trial in FLOP/s and where it is from (`measured` or `table`); `None` if unknown. `libtorch` is the
    /// version that the trial ran on, as its child says; a peak measured on another does not count.
    pub fn peak_flops(&self, device: Option<&DeviceFacts>, trial: &Trial, libtorch: Option<&str>) -> Option<(f64, String)> {
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
        let peak = peaks::lookup(self.peaks.as_deref(), &key, libtorch, trial.train.precision.name())?;
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
        let device = watch.device_uuid.as_deref();
        let readings = TrialReadings {
            window: found,
            memory_limit_bytes: self.memory_limit_bytes(device),
            foreign_processes: ticks.foreign.as_ref().map(|seen| keeping.privacy.foreign_processes(seen)),
            lost: ticks.lost.or_else(|| self.lost_now(device?)),
            idle_power_watts: device.and_then(|uuid| self.idle_power.get(uuid).copied()),
        };
        device.map(|uuid| self.idle_power.remove(uuid));
        // A table that cannot be written shows at the next tick, which can stop the run.
        let _ = self.write_changes(Moment::End, &watch);
        readings
    }

    /// The GPU's memory, or what the host and its control group leave to a process.
    fn memory_limit_bytes(&self, device_uuid: Option<&str>) -> Option<u64> {
        match device_uuid {
            Some(uuid) => self.devices.iter().find(|gpu| gpu.uuid == uuid)?.memory_total_bytes,
            None => [&self.host.cgroup_memory_bytes, &self.host.memory_bytes].into_iter().filter_map(|bytes| bytes.value().copied()).min(),
        }
    }

    fn write_changes(&mut self, moment: Moment, watch: &Watch) -> io::Result<()> {
        let snapshots = match &watch.device_uuid {
            Some(uuid) => self.snapshots(uuid),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_leaves_a_page_that_says_why_there_is_no_gpu() {
        let run = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(run.path());
        let sample_interval = Duration::from_secs(60);
        let sitting = Sitting { folder: &folder, launch: 2, run_anchor_nanoseconds: 0, sample_interval, privacy: Privacy::Masked };
        Instruments::open(Some(Path::new("/nonexistent"))).begin(sitting).unwrap();
        let page = fs::read_to_string(run.path().join("snapshot-2.txt")).unwrap();
        assert!(page.starts_with("Host\n    cpu\n") && page.contains("There is no GPU to read: no NVML at /nonexistent"), "{page}");
    }

    #[test]
    fn a_trial_beside_others_is_marked_from_15_percent_of_the_cores() {
        assert_eq!(disturbance(Some(1.2), Some(8)), None);
        let (column, note) = disturbance(Some(1.25), Some(8)).unwrap();
        assert_eq!((column.as_str(), note.as_str()), ("samples_per_second", "other processes kept 1.2 of 8 cores busy in the window"));
        assert_eq!((disturbance(None, Some(8)), disturbance(Some(9.0), None)), (None, None));
    }
}
