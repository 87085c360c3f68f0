//! The readings of the machine for the scheduler: GPUs, their processes, and the resources of a
//! trial's process. Only this file knows their source (`hardware`) and their tables (`samples.csv`,
//! `snapshots.csv`).

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{
        Check, RunFolder, SnapshotMoment,
        disturbance::BUSY_HOST,
        peaks::{self, DeviceKey, peaks_path},
    },
    spec::Engine,
};
use kiln_hardware::{
    self, Gpu, HostFacts, Nvml, NvmlAbsent, NvmlFault, Patience, Sampler, Snapshot, Which,
    WindowSummary, list_devices, read_gpus,
    sampler::joined,
    silence_of,
    snapshot::{device as read_device, gpu as gpu_snapshot, host as host_snapshot, host_items},
    text::{Naming, host_text, text},
    window::{summarize, together},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{RunRequest, clock, preflight};
use crate::readings::{Privacy, SampleWriter, SnapshotWriter, identity::MASKED};
pub use kiln_hardware::{GpuProcess, ProcessList};

/// Share of the machine's cores that other processes may use before a trial counts as disturbed.
const DISTURBING_SHARE: f64 = 0.15;

/// One GPU, as nvidia-smi numbers it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LeasedGpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Limit that the driver enforced when the launch began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// The GPU of a MIG instance and the place in it; `None` for a whole GPU.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceFacts>,
    /// `enabled` or `disabled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_mode: Option<String>,
}

/// Place of a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstanceFacts {
    /// UUID of the whole GPU.
    pub board_uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

impl LeasedGpu {
    /// UUID of the GPU that has the power, the clocks and the temperature: that of the device
    /// itself, unless it is a MIG instance.
    pub fn board_uuid(&self) -> &str {
        self.instance
            .as_ref()
            .map_or(&self.uuid, |instance| &instance.board_uuid)
    }

    /// Whether a whole UUID names it: its own, that of its GPU (CUDA then takes the GPU's first
    /// instance), or the older `MIG-GPU-<uuid of the GPU>/<GPU instance>/<compute instance>`.
    pub fn is_named(&self, uuid: &str) -> bool {
        self.uuid == uuid
            || self.board_uuid() == uuid
            || self
                .instance
                .as_ref()
                .is_some_and(|instance| instance.older_name() == uuid)
    }
}

impl InstanceFacts {
    /// Its name with drivers before R470, which CUDA still accepts.
    pub fn older_name(&self) -> String {
        format!(
            "MIG-{}/{}/{}",
            self.board_uuid, self.gpu_instance, self.compute_instance
        )
    }
}

impl From<kiln_hardware::MigInstance> for InstanceFacts {
    fn from(found: kiln_hardware::MigInstance) -> Self {
        Self {
            board_uuid: found.board_uuid,
            gpu_instance: found.gpu_instance,
            compute_instance: found.compute_instance,
        }
    }
}

impl From<kiln_hardware::DeviceFacts> for LeasedGpu {
    fn from(found: kiln_hardware::DeviceFacts) -> Self {
        let mode = |is_enabled: bool| if is_enabled { "enabled" } else { "disabled" };
        Self {
            index: found.index,
            mig_profile: found.mig_profile().map(str::to_owned),
            instance: found.instance.map(InstanceFacts::from),
            uuid: found.uuid,
            name: found
                .name
                .into_value()
                .unwrap_or_else(|| "NVIDIA GPU".to_owned()),
            memory_total_bytes: found.memory_total_bytes.into_value(),
            power_limit_watts: found.power_limit_watts.into_value(),
            ecc_mode: found
                .is_ecc_enabled
                .into_value()
                .map(|is_enabled| mode(is_enabled).to_owned()),
        }
    }
}

/// Readings of the machine over one attempt; `None` if missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptReadings {
    /// Values, with the reasons for missing ones by column.
    pub window: WindowSummary,
    pub memory_limit_bytes: Option<u64>,
    pub foreign_processes: Option<String>,
    /// Before the child was started.
    pub idle_power_watts: Option<f64>,
    /// A device that NVML reported as lost during the attempt, with the message.
    pub lost: Option<(String, String)>,
}

/// The process and the attempt to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptWatch {
    pub trial: TrialId,
    pub attempt: u64,
    pub pid: u32,
    /// Empty on the CPU.
    pub device_uuids: Vec<String>,
}

/// Facts of a launch for its instruments.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchContext<'a> {
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
    devices: Vec<LeasedGpu>,
    /// GPUs that cannot be used, by index, and why.
    unusable: Vec<(u32, String)>,
    driver: Option<String>,
    /// Longest wait for a driver that hangs.
    patience: Patience,
    /// Whether the system's NVML library is used.
    is_system_nvml: bool,
    host: HostFacts,
    peaks: Option<PathBuf>,
    keeping: Option<Keeping>,
    watched: Vec<AttemptWatch>,
    /// Idle power of each device before its current trial, in watts.
    idle_power: HashMap<String, f64>,
    /// Devices that a test simulates as lost.
    #[cfg(test)]
    pub(super) pretended_lost: Vec<String>,
}

/// The sampler and its tables, once the run's folder exists.
#[derive(Debug)]
struct Keeping {
    sampler: Sampler,
    samples: SampleWriter,
    snapshots: SnapshotWriter,
    privacy: Privacy,
    run_anchor_nanoseconds: i64,
}

impl Instruments {
    /// Opens the instruments; it never fails, but readings may be absent. `nvml_library` is
    /// `$KILN_NVML_LIB`.
    pub fn open(nvml_library: Option<&Path>) -> Self {
        Self::of(Nvml::open(nvml_library), nvml_library.is_none())
    }

    /// The same for trials without a GPU: it does not wait for a driver that is slow to start.
    pub fn open_for_the_cpu(nvml_library: Option<&Path>) -> Self {
        let (patience, library) = (Patience::default(), nvml_library.map(Path::to_owned));
        let silent = || NvmlAbsent {
            reason: patience.silence().to_string(),
            fault: NvmlFault::Silent,
        };
        let nvml = patience
            .wait(move || Nvml::open(library.as_deref()))
            .unwrap_or_else(|| Err(silent()));
        Self::of(nvml, nvml_library.is_none())
    }

    fn of(nvml: Result<Nvml, NvmlAbsent>, is_system_nvml: bool) -> Self {
        let patience = Patience::default();
        let (mut devices, mut unusable) = (Vec::new(), Vec::new());
        for (index, found) in nvml
            .as_ref()
            .map(|nvml| list_devices(*nvml, &patience))
            .unwrap_or_default()
        {
            match found {
                Ok(facts) => devices.push(facts.into()),
                Err(absence) => unusable.push((index, absence.to_string())),
            }
        }
        let driver = nvml
            .as_ref()
            .ok()
            .copied()
            .and_then(|nvml| patience.wait(move || nvml.driver_version())?.into_value());
        Self {
            nvml: nvml.map(Arc::new),
            devices,
            unusable,
            driver,
            patience,
            is_system_nvml,
            host: kiln_hardware::host::read(),
            peaks: peaks_path(),
            keeping: None,
            watched: Vec::new(),
            idle_power: HashMap::new(),
            #[cfg(test)]
            pretended_lost: Vec::new(),
        }
    }

    /// From now on stops waiting for answers once `is_asked_to_stop` is set.
    pub(super) fn stop_when(&mut self, is_asked_to_stop: Arc<AtomicBool>) {
        self.patience = Patience::until(is_asked_to_stop);
    }

    /// Waits for answers again, so that the end of a trial is read after a signal too.
    pub(super) fn heed_no_more(&mut self) {
        self.patience = Patience::default();
    }

    /// With GPUs that are not there.
    #[cfg(test)]
    pub(super) fn pretending(devices: Vec<LeasedGpu>) -> Self {
        Self {
            devices,
            ..Self::open(Some(Path::new("/nonexistent")))
        }
    }

    /// Asks the driver about one device; `None` without a driver, or if it does not answer in time.
    fn ask_of<T: Send + 'static>(
        &self,
        uuid: &str,
        question: impl FnOnce(&Nvml, &str) -> T + Send + 'static,
    ) -> Option<T> {
        let nvml = Arc::clone(self.nvml.as_ref().ok()?);
        let uuid = uuid.to_owned();
        self.patience.wait(move || question(&nvml, &uuid))
    }

    /// Starts the sampler and writes the launch's snapshot.
    ///
    /// # Errors
    /// A table under the run's folder cannot be opened or written.
    pub(super) fn begin(&mut self, sitting: LaunchContext) -> io::Result<()> {
        let nvml = self.nvml.as_ref().ok().map(Arc::clone);
        let (samples, _) = SampleWriter::open(&sitting.folder.samples_table(), sitting.launch)
            .map_err(io::Error::from)?;
        let (mut snapshots, _) = SnapshotWriter::open(
            &sitting.folder.snapshots_table(),
            sitting.launch,
            sitting.privacy,
        )
        .map_err(io::Error::from)?;
        snapshots.at(clock::run_seconds(sitting.run_anchor_nanoseconds));
        let gpus = self.read_gpus();
        for snapshot in
            std::iter::once(host_snapshot(&self.host)).chain(gpus.iter().map(gpu_snapshot))
        {
            snapshots.write_all(&snapshot).map_err(io::Error::from)?;
        }
        snapshots.sync().map_err(io::Error::from)?;
        fs::write(
            sitting.folder.snapshot_page(sitting.launch),
            self.page(&gpus, sitting.privacy),
        )?;
        let sampler = Sampler::start(
            nvml,
            sitting.sample_interval,
            sitting.run_anchor_nanoseconds,
        );
        let LaunchContext {
            privacy,
            run_anchor_nanoseconds,
            ..
        } = sitting;
        self.keeping = Some(Keeping {
            sampler,
            samples,
            snapshots,
            privacy,
            run_anchor_nanoseconds,
        });
        Ok(())
    }

    /// All GPUs, including those that cannot be used.
    fn read_gpus(&self) -> Vec<Gpu> {
        self.nvml
            .as_ref()
            .map(|nvml| read_gpus(**nvml, Which::All, &self.patience))
            .unwrap_or_default()
    }

    /// Writes the launch's snapshot as text, for people to read and compare.
    fn page(&self, gpus: &[Gpu], privacy: Privacy) -> String {
        let naming = if privacy == Privacy::Full {
            Naming::Full
        } else {
            Naming::Masked(MASKED)
        };
        let host = host_text(&host_items(&self.host));
        match &self.nvml {
            Ok(_) => {
                let (silent, read): (Vec<Gpu>, Vec<Gpu>) = gpus
                    .iter()
                    .cloned()
                    .partition(|gpu| silence_of(gpu).is_some());
                let silences = silent.iter().filter_map(|gpu| {
                    Some(format!(
                        "\nGPU {} was not read: {}.\n",
                        gpu.index.value()?,
                        silence_of(gpu)?
                    ))
                });
                host + &text(&read, &jiff::Zoned::now(), naming) + &silences.collect::<String>()
            }
            Err(absent) => format!("{host}\nNo GPU can be read: {absent}.\n"),
        }
    }

    /// The GPUs of these devices or MIG instances; each once.
    fn boards(&self, uuids: &[String]) -> Vec<String> {
        let board = |uuid: &String| {
            self.devices
                .iter()
                .find(|device| device.uuid == *uuid)
                .map_or(uuid.clone(), |device| device.board_uuid().to_owned())
        };
        let mut boards: Vec<String> = uuids.iter().map(board).collect();
        boards.sort();
        boards.dedup();
        boards
    }

    /// The host, and these GPUs. A MIG instance is on its GPU's page.
    fn snapshots(&self, devices: &[String]) -> Vec<Snapshot> {
        let boards = self.boards(devices);
        let read = boards
            .iter()
            .filter_map(|device| self.ask_of(device, read_device));
        std::iter::once(host_snapshot(&self.host))
            .chain(read)
            .collect()
    }

    pub fn devices(&self) -> Vec<LeasedGpu> {
        self.devices.clone()
    }

    /// GPUs that exist and cannot be used: nvidia-smi's index, and the reason.
    pub fn unusable(&self) -> &[(u32, String)] {
        &self.unusable
    }

    /// Reason why [`Self::devices`] is empty: `no NVIDIA driver found`.
    pub fn absence(&self) -> Option<String> {
        self.nvml.as_ref().err().map(ToString::to_string)
    }

    /// The processor's model, as a trial on the CPU names its device.
    pub fn cpu_name(&self) -> Option<String> {
        self.host.cpu_model.value().cloned()
    }

    /// The processor in full: vendor, family, model, stepping, level and units.
    pub fn processor(&self) -> Option<String> {
        self.host.processor.value().cloned()
    }

    /// Id of the host; `None` if nothing distinguishes it from a copy.
    pub fn host_id(&self) -> Option<String> {
        kiln_hardware::host_id::host_id()
    }

    /// Key of the stored peak of this GPU, or of the CPU with this number of threads; `None` for a
    /// processor without a name.
    pub fn peak_key(&self, gpu: Option<&LeasedGpu>, cpu_threads: u64) -> Option<DeviceKey> {
        Some(match gpu {
            Some(gpu) => DeviceKey {
                device: gpu.uuid.clone(),
                name: gpu.name.clone(),
                driver: self.driver(),
                cpu_threads: None,
                processor: None,
                power_limit_watts: gpu.power_limit_watts.map(|watts| watts.round() as u64),
            },
            None => {
                let model = self.cpu_name()?;
                DeviceKey {
                    device: model.clone(),
                    name: model,
                    driver: None,
                    cpu_threads: Some(cpu_threads),
                    processor: self.processor(),
                    power_limit_watts: None,
                }
            }
        })
    }

    pub fn driver(&self) -> Option<String> {
        self.driver.clone()
    }

    /// The cheap checks of the machine before a launch that has leased these GPUs.
    pub(super) fn preflight(
        &self,
        request: &RunRequest,
        privacy: Privacy,
        uuids: &[String],
    ) -> Vec<Check> {
        let launch = preflight::PlannedLaunch {
            is_system_nvml: self.is_system_nvml,
            results: request.results,
            trials: request.trials,
            uuids: self.boards(uuids),
            privacy,
            patience: &self.patience,
        };
        preflight::before_launch(
            &self.nvml.as_deref().copied().map_err(Clone::clone),
            &launch,
        )
    }

    /// Host facts for `run.json`: section to field to value. With a unit, or without a value, it is
    /// `{"value", "unit"}` or `{"value": null, "reason"}`.
    pub fn machine(&self) -> Value {
        let mut sections = Map::new();
        for item in host_items(&self.host)
            .into_iter()
            .filter(|item| !item.is_identifying)
        {
            let section = sections.entry(item.section).or_insert_with(|| json!({}));
            section[item.field.as_str()] = match item.json() {
                Value::Object(mut told) if told.len() == 1 => {
                    told.remove("value").unwrap_or_default()
                }
                told => told,
            };
        }
        Value::Object(sections)
    }

    /// The processes on the device, and its utilization over about a second as a fraction of 1.
    ///
    /// # Errors
    /// If the driver does not answer; the text contains the time waited.
    pub fn use_of(&self, uuid: &str) -> Result<(ProcessList, Option<f64>), String> {
        if let Err(absent) = &self.nvml {
            return Ok((ProcessList::Unknown(absent.to_string()), None));
        }
        let asked = self.ask_of(uuid, |nvml, uuid| {
            (
                nvml.compute_processes(uuid),
                nvml.utilization(uuid).into_value(),
            )
        });
        asked.ok_or_else(|| self.patience.silence().to_string())
    }

    pub fn temperature_celsius(&self, uuid: &str) -> Option<f64> {
        self.ask_of(uuid, Nvml::temperature_celsius)?.into_value()
    }

    /// A trial is about to start on this device: its power now is that of an idle device.
    pub(super) fn note_idle_power(&mut self, device: &LeasedGpu) {
        let watts = self
            .ask_of(&device.uuid, kiln_hardware::power_now_watts)
            .flatten();
        self.idle_power
            .extend(watts.map(|watts| (device.uuid.clone(), watts)));
    }

    /// NVML's message about a lost device of the running trial.
    pub(super) fn lost(&self, trial: &TrialId) -> Option<String> {
        self.keeping.as_ref()?.sampler.lost(&trial.0)
    }

    /// Checks again whether the device of an ended attempt is lost: the child often dies before the
    /// sampler detects it.
    fn lost_now(&self, uuid: &str) -> Option<String> {
        #[cfg(test)]
        if self.pretended_lost.iter().any(|lost| lost == uuid) {
            return Some("pretended".to_owned());
        }
        self.ask_of(uuid, kiln_hardware::lost).flatten()
    }

    /// Dense peak for this trial in FLOP/s, of all its devices together, and where it is from
    /// (`measured` or `table`, of the first); `None` if one is unknown. `libtorch` is the version
    /// that the trial ran on, as its child says; a peak measured on another does not count.
    pub fn peak_flops(
        &self,
        devices: &[LeasedGpu],
        trial: &Trial,
        libtorch: Option<&str>,
    ) -> Option<(f64, String)> {
        if devices.is_empty() {
            return self.peak_of(None, trial, libtorch);
        }
        let peaks: Option<Vec<(f64, String)>> = devices
            .iter()
            .map(|gpu| self.peak_of(Some(gpu), trial, libtorch))
            .collect();
        peaks?
            .into_iter()
            .reduce(|(sum, source), (flops, _)| (sum + flops, source))
    }

    fn peak_of(
        &self,
        device: Option<&LeasedGpu>,
        trial: &Trial,
        libtorch: Option<&str>,
    ) -> Option<(f64, String)> {
        if trial.engine == Engine::Flex {
            return None;
        }
        let key = self.peak_key(
            device,
            trial.train.cpu_threads.resolve(self.host.usable_cores),
        )?;
        let peak = peaks::lookup(
            self.peaks.as_deref(),
            &key,
            libtorch,
            trial.train.precision.name(),
        )?;
        Some((peak.flops, peak.source.to_owned()))
    }

    /// Begins to watch an attempt; a snapshot of what changed since the last one goes into the
    /// table.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn watch(&mut self, watch: AttemptWatch) -> io::Result<()> {
        self.write_changes(SnapshotMoment::Start, &watch)?;
        if let Some(keeping) = &self.keeping {
            let on = |device_uuid| kiln_hardware::Watch {
                trial: watch.trial.0.clone(),
                attempt: watch.attempt,
                pid: watch.pid,
                device_uuid,
            };
            match watch.device_uuids.as_slice() {
                [] => keeping.sampler.watch(on(None)),
                uuids => uuids
                    .iter()
                    .for_each(|uuid| keeping.sampler.watch(on(Some(uuid.clone())))),
            }
        }
        self.watched.push(watch);
        Ok(())
    }

    /// Takes a reading because the trial's measured window begins or ends.
    pub fn mark(&self, trial: &TrialId) {
        if let Some(keeping) = &self.keeping {
            keeping.sampler.mark(&trial.0);
        }
    }

    /// Writes pending rows; called a few times a second.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn tick(&mut self) -> io::Result<()> {
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        match keeping.sampler.take_rows() {
            rows if rows.is_empty() => Ok(()),
            rows => keeping.samples.append(&rows).map_err(io::Error::from),
        }
    }

    /// Ends the watch. `window` is the measured window on CLOCK_MONOTONIC, in nanoseconds, if the
    /// trial had one; `cuts` are the stretches of it that do not count. `was_alone`: no other trial
    /// of this run ran beside it, so what else kept the cores busy was not ours.
    pub fn unwatch(
        &mut self,
        trial: &TrialId,
        window: Option<(u64, u64)>,
        cuts: &[(u64, u64)],
        was_alone: bool,
    ) -> AttemptReadings {
        let Some(at) = self.watched.iter().position(|watch| watch.trial == *trial) else {
            return AttemptReadings::default();
        };
        let watch = self.watched.swap_remove(at);
        let Some(keeping) = &self.keeping else {
            return AttemptReadings::default();
        };
        let of_devices = keeping.sampler.unwatch_all(&trial.0);
        let cores = self.host.logical_cores.value().copied();
        let mut found = together(
            of_devices
                .iter()
                .map(|readings| summarize(readings, window, cuts, cores))
                .collect(),
        );
        found
            .notes
            .extend(disturbance(found.other_cpu_cores, cores).filter(|_| was_alone));
        let foreign = of_devices
            .iter()
            .filter_map(|readings| readings.foreign.clone())
            .reduce(|before, seen| joined(Some(before), seen));
        let lost = |(uuid, readings): (&String, &kiln_hardware::TrialReadings)| {
            Some((
                uuid.clone(),
                readings.lost.clone().or_else(|| self.lost_now(uuid))?,
            ))
        };
        let idle_power: Option<Vec<f64>> = watch
            .device_uuids
            .iter()
            .map(|uuid| self.idle_power.get(uuid).copied())
            .collect();
        let readings = AttemptReadings {
            window: found,
            memory_limit_bytes: self.memory_limit_bytes(&watch.device_uuids),
            foreign_processes: foreign.map(|seen| keeping.privacy.foreign_processes(&seen)),
            lost: watch.device_uuids.iter().zip(&of_devices).find_map(lost),
            idle_power_watts: idle_power
                .filter(|watts| !watts.is_empty())
                .map(|watts| watts.iter().sum()),
        };
        self.idle_power
            .retain(|uuid, _| !watch.device_uuids.contains(uuid));
        // A table that cannot be written fails again at the next tick, which can stop the run.
        let _ = self.write_changes(SnapshotMoment::End, &watch);
        readings
    }

    /// The memory of the smallest of these GPUs, or the limit of the host and its control group for
    /// a process.
    pub(super) fn memory_limit_bytes(&self, device_uuids: &[String]) -> Option<u64> {
        let of_gpu = |uuid: &String| {
            self.devices
                .iter()
                .find(|gpu| gpu.uuid == *uuid)?
                .memory_total_bytes
        };
        match device_uuids {
            [_, ..] => device_uuids
                .iter()
                .map(of_gpu)
                .collect::<Option<Vec<u64>>>()?
                .into_iter()
                .min(),
            [] => [&self.host.cgroup_memory_bytes, &self.host.memory_bytes]
                .into_iter()
                .filter_map(|bytes| bytes.value().copied())
                .min(),
        }
    }

    fn write_changes(&mut self, moment: SnapshotMoment, watch: &AttemptWatch) -> io::Result<()> {
        if let Some(keeping) = &mut self.keeping {
            keeping
                .snapshots
                .at(clock::run_seconds(keeping.run_anchor_nanoseconds));
        }
        let snapshots = match watch.device_uuids.as_slice() {
            [] => vec![host_snapshot(&kiln_hardware::host::read())],
            uuids => self.snapshots(uuids),
        };
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        for snapshot in snapshots {
            keeping
                .snapshots
                .write_changes(&snapshot, moment, &watch.trial, watch.attempt)
                .map_err(io::Error::from)?;
        }
        Ok(())
    }
}

/// Returns a note on the rate if other processes used so much of the CPU that it may be wrong.
fn disturbance(other_cpu_cores: Option<f64>, cores: Option<u64>) -> Option<(String, String)> {
    let (others, cores) = (other_cpu_cores?, cores?);
    let is_disturbed = others > DISTURBING_SHARE * cores as f64;
    is_disturbed.then(|| {
        (
            "samples_per_second".to_owned(),
            format!("{BUSY_HOST} {others:.1} of {cores} cores busy in the window"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_leaves_a_page_that_says_why_there_is_no_gpu() {
        let run = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(run.path());
        let sample_interval = Duration::from_secs(60);
        let sitting = LaunchContext {
            folder: &folder,
            launch: 2,
            run_anchor_nanoseconds: 0,
            sample_interval,
            privacy: Privacy::Masked,
        };
        Instruments::open(Some(Path::new("/nonexistent")))
            .begin(sitting)
            .unwrap();
        let page = fs::read_to_string(run.path().join("snapshot-2.txt")).unwrap();
        assert!(
            page.starts_with("Host\n    cpu\n")
                && page.contains("No GPU can be read: no NVML at /nonexistent"),
            "{page}"
        );
    }

    #[test]
    fn a_trial_beside_others_is_marked_from_15_percent_of_the_cores() {
        assert_eq!(disturbance(Some(1.2), Some(8)), None);
        let (column, note) = disturbance(Some(1.25), Some(8)).unwrap();
        assert_eq!(
            (column.as_str(), note.as_str()),
            (
                "samples_per_second",
                "other processes kept 1.2 of 8 cores busy in the window"
            )
        );
        assert_eq!(
            (disturbance(None, Some(8)), disturbance(Some(9.0), None)),
            (None, None)
        );
    }
}
