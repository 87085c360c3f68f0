//! The readings of the machine for the scheduler: GPUs, their processes, and the resources of a
//! trial's process. Only this module knows their source (`hardware`) and their tables
//! (`samples.csv`, `snapshots.csv`).

mod peaks;
mod power;
mod silence;
mod snapshots;
mod watching;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Trial, TrialId},
    record::{Check, peaks::peaks_path},
};
use kiln_hardware::{
    self, Absence, Gpu, HostFacts, Nvml, NvmlAbsent, NvmlFault, Patience, Reading, list_devices,
    read_all_gpus, snapshot::host_items,
};
use serde_json::{Map, Value, json};

use super::RunRequest;
pub use super::gpus::{InstanceFacts, LeasedGpu};
use crate::{
    preflight::{self, ExamineAnswer},
    readings::Privacy,
};
pub use kiln_hardware::{GpuProcess, ProcessList};
use power::PowerBefore;
use silence::{Hearing, SilentGpus};
use snapshots::SnapshotReader;
use watching::Keeping;
pub(super) use watching::LaunchContext;
pub use watching::{AttemptReadings, AttemptWatch};

/// The use of one device.
#[derive(Clone, Debug)]
pub struct DeviceUse {
    pub processes: ProcessList,
    /// Over about a second, as a fraction of 1.
    pub utilization: Option<f64>,
    /// Memory in use, unless a display may account for it.
    pub held_memory_bytes: Option<u64>,
    /// Why nobody can use it: it was lost since the launch began.
    pub fault: Option<String>,
}

impl DeviceUse {
    fn unknown(reason: String) -> Self {
        Self {
            processes: ProcessList::Unknown(reason),
            utilization: None,
            held_memory_bytes: None,
            fault: None,
        }
    }
}

/// Answers for a driver in a test; takes the UUID.
#[cfg(test)]
type PretendedUse = fn(&str) -> Result<DeviceUse, String>;

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
    silent: Mutex<SilentGpus>,
    snapshots: SnapshotReader,
    /// Whether the system's NVML library is used.
    is_system_nvml: bool,
    host: HostFacts,
    /// All GPUs as the checks before the launch have read them, for its snapshot.
    checked_gpus: Option<Vec<Gpu>>,
    peaks: Option<PathBuf>,
    keeping: Option<Keeping>,
    watched: Vec<AttemptWatch>,
    /// Power of each GPU before its current trial.
    power_before: HashMap<String, PowerBefore>,
    /// Devices that a test simulates as lost.
    #[cfg(test)]
    pub(super) pretended_lost: Vec<String>,
    /// The answer of [`Self::uses_of`] about a device in a test.
    #[cfg(test)]
    pub(super) pretended_use: Option<PretendedUse>,
}

impl Instruments {
    /// Opens the instruments; it never fails, but readings may be absent. `nvml_library` is
    /// `$KILN_NVML_LIB`.
    pub fn open(nvml_library: Option<&Path>) -> Self {
        Self::open_telling(nvml_library, || ())
    }

    /// The same; calls `tell_slow` once if the driver is slow to start.
    pub fn open_telling(nvml_library: Option<&Path>, tell_slow: impl FnOnce()) -> Self {
        let nvml = Nvml::open_telling(nvml_library, tell_slow);
        Self::of(nvml, nvml_library.is_none())
    }

    /// The same for trials without a GPU: it does not wait for a driver that is slow to start.
    pub fn open_for_the_cpu(nvml_library: Option<&Path>) -> Self {
        let (patience, library) = (Patience::default(), nvml_library.map(Path::to_owned));
        let unanswered = |why: Absence| NvmlAbsent {
            reason: why.to_string(),
            fault: match why {
                Absence::Silent(_) => NvmlFault::Silent,
                Absence::NoThread(_) => NvmlFault::Thread,
                _ => NvmlFault::Other,
            },
        };
        let nvml = patience
            .wait(move || Nvml::open(library.as_deref()))
            .unwrap_or_else(|why| Err(unanswered(why)));
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
        // How many GPUs there are is unknown; there is one at least.
        if let Some(silent) = nvml.as_ref().err().filter(|absent| absent.is_silent()) {
            unusable.push((0, silent.to_string()));
        }
        let driver = nvml.as_ref().ok().copied().and_then(|nvml| {
            patience
                .wait(move || nvml.driver_version())
                .ok()?
                .into_value()
        });
        Self {
            nvml: nvml.map(Arc::new),
            devices,
            unusable,
            driver,
            patience,
            silent: Mutex::default(),
            snapshots: SnapshotReader::default(),
            is_system_nvml,
            host: kiln_hardware::host::read(),
            checked_gpus: None,
            peaks: peaks_path(),
            keeping: None,
            watched: Vec::new(),
            power_before: HashMap::new(),
            #[cfg(test)]
            pretended_lost: Vec::new(),
            #[cfg(test)]
            pretended_use: None,
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

    /// The time waited for the driver since the last call.
    pub(super) fn take_waited(&self) -> Duration {
        self.patience.take_waited()
    }

    /// With GPUs that are not there.
    #[cfg(test)]
    pub(super) fn pretending(devices: Vec<LeasedGpu>) -> Self {
        Self {
            devices,
            ..Self::open(Some(Path::new("/nonexistent")))
        }
    }

    /// Asks the driver about one device for the scheduler, which has running trials to watch: a GPU
    /// that did not answer a moment ago is not waited for.
    ///
    /// # Errors
    /// There is no driver, it does not answer in time, or it could not be asked.
    fn ask_running<T: Send + 'static>(
        &self,
        uuid: &str,
        question: impl FnOnce(&Nvml, &str) -> T + Send + 'static,
    ) -> Result<T, Absence> {
        let note = |silent: &mut SilentGpus, board: &str, now: Instant| {
            silent.note(board, false, now);
        };
        self.ask(uuid, self.patience.clone(), note, question)
    }

    /// Asks the driver about one device at the end of an attempt, after which others may wait to start:
    /// it waits a moment only, and a GPU that does not answer by then is not asked for a while.
    fn ask_ended<T: Send + 'static>(
        &self,
        uuid: &str,
        question: impl FnOnce(&Nvml, &str) -> T + Send + 'static,
    ) -> Option<T> {
        let answer = self.ask(uuid, self.patience.short(), SilentGpus::avoid, question);
        answer.ok()
    }

    /// Asks the driver about one device. `patience` is for a GPU that has answered so far;
    /// `note_silence` notes one that does not answer now.
    ///
    /// # Errors
    /// As [`Self::ask_running`].
    fn ask<T: Send + 'static>(
        &self,
        uuid: &str,
        patience: Patience,
        note_silence: fn(&mut SilentGpus, &str, Instant),
        question: impl FnOnce(&Nvml, &str) -> T + Send + 'static,
    ) -> Result<T, Absence> {
        let nvml = self.nvml.as_ref();
        let nvml = Arc::clone(nvml.map_err(|absent| Absence::Other(absent.to_string()))?);
        let (board, uuid) = (self.board(uuid), uuid.to_owned());
        let hearing = self.silent().hearing(&board, Instant::now());
        let patience = match hearing {
            Hearing::Silent => return Err(self.patience.silence()),
            Hearing::Retry => self.patience.short(),
            Hearing::Answers => patience,
        };
        let answer = patience.wait(move || question(&nvml, &uuid));
        match &answer {
            Ok(_) => self.silent().note(&board, true, Instant::now()),
            Err(Absence::Silent(_)) => note_silence(&mut self.silent(), &board, Instant::now()),
            // It was not asked, which says nothing about it.
            Err(_) => {}
        }
        answer
    }

    fn silent(&self) -> MutexGuard<'_, SilentGpus> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sampler waits for this device already: it is not asked for a while.
    fn avoid(&self, uuid: &str) {
        self.silent().avoid(&self.board(uuid), Instant::now());
    }

    /// Whether the GPU did not answer a moment ago.
    fn is_silent(&self, board: &str) -> bool {
        self.silent().hearing(board, Instant::now()) == Hearing::Silent
    }

    /// Notices about GPUs whose driver does not answer; each GPU once.
    pub(super) fn take_silences(&self) -> Vec<String> {
        let overdue = self.snapshots.silent_for(self.patience.limit());
        let mut silent = self.silent();
        overdue.iter().for_each(|uuid| silent.tell(uuid));
        let untold = silent.take_untold();
        drop(silent);
        let silence = self.patience.silence();
        let notice = |uuid: &String| {
            let gpu = self.devices.iter().find(|gpu| gpu.board_uuid() == uuid)?;
            Some(format!(
                "GPU {} ({}): {silence}; its trials go on, and readings at their start and end may \
                 be missing",
                gpu.index, gpu.name
            ))
        };
        untold.iter().filter_map(notice).collect()
    }

    /// All GPUs, including those that cannot be used.
    fn read_gpus(&self) -> Vec<Gpu> {
        self.nvml
            .as_ref()
            .map(|nvml| read_all_gpus(**nvml, &self.patience))
            .unwrap_or_default()
    }

    /// The GPUs of these devices or MIG instances; each once.
    fn boards(&self, uuids: &[String]) -> Vec<String> {
        let mut boards: Vec<String> = uuids.iter().map(|uuid| self.board(uuid)).collect();
        boards.sort();
        boards.dedup();
        boards
    }

    /// The GPU of a device or MIG instance.
    fn board(&self, uuid: &str) -> String {
        self.devices
            .iter()
            .find(|device| device.uuid == uuid)
            .map_or(uuid, LeasedGpu::board_uuid)
            .to_owned()
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

    pub fn driver(&self) -> Option<String> {
        self.driver.clone()
    }

    /// The cheap checks of the machine before a launch that has leased these GPUs. The readings of
    /// the GPUs are kept for the launch's snapshot: with a slow driver they take seconds.
    pub(super) fn preflight(
        &mut self,
        request: &RunRequest,
        trials: &[&Trial],
        uuids: &[String],
        answer: Option<ExamineAnswer>,
    ) -> Vec<Check> {
        let gpus = self.read_gpus();
        let launch = preflight::PlannedLaunch {
            is_system_nvml: self.is_system_nvml,
            gpus: &gpus,
            results: request.results,
            trials,
            uuids: self.boards(uuids),
            privacy: Privacy::of(request.experiment),
            patience: &self.patience,
        };
        let checks = preflight::before_launch(
            &self.nvml.as_deref().copied().map_err(Clone::clone),
            &launch,
            answer,
        );
        self.checked_gpus = Some(gpus);
        checks
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

    /// Who uses each of these devices, which are read at the same time; an error if the driver does
    /// not answer, with the time waited.
    pub(super) fn uses_of(&self, uuids: Vec<String>) -> Vec<Result<DeviceUse, String>> {
        #[cfg(test)]
        if let Some(pretended) = self.pretended_use {
            return uuids.iter().map(|uuid| pretended(uuid)).collect();
        }
        let nvml = match &self.nvml {
            Ok(nvml) => Arc::clone(nvml),
            Err(absent) => {
                let unknown = |_| Ok(DeviceUse::unknown(absent.to_string()));
                return uuids.into_iter().map(unknown).collect();
            }
        };
        let read = move |uuid: String| {
            let utilization = nvml.utilization(&uuid).into_value();
            let fault = match utilization {
                Some(_) => None,
                None => kiln_hardware::gone(&nvml, &uuid),
            };
            DeviceUse {
                processes: nvml.compute_processes(&uuid),
                utilization,
                held_memory_bytes: kiln_hardware::held_memory_bytes(&nvml, &uuid),
                fault: fault.map(|why| why.to_string()),
            }
        };
        let found = self.patience.each(uuids, read);
        let answer = |found: Result<DeviceUse, Absence>| found.map_err(|why| why.to_string());
        found.into_iter().map(answer).collect()
    }

    /// Temperature of the GPU, also where the device is a MIG instance of it.
    pub fn temperature_celsius(&self, uuid: &str) -> Reading<f64> {
        match &self.nvml {
            Ok(_) => self
                .ask_running(uuid, Nvml::temperature_celsius)
                .unwrap_or_else(Reading::Absent),
            Err(absent) => Reading::absent(absent),
        }
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
        self.ask_ended(uuid, kiln_hardware::lost).flatten()
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_did_not_start_in_time_is_not_a_machine_without_a_gpu() {
        let of = |fault| {
            let absent = NvmlAbsent {
                reason: "no answer".to_owned(),
                fault,
            };
            Instruments::of(Err(absent), false).unusable().to_vec()
        };
        assert_eq!(of(NvmlFault::Silent), [(0, "no answer".to_owned())]);
        assert!(of(NvmlFault::NotFound).is_empty());
    }

    #[test]
    fn a_gpu_that_hangs_at_the_end_of_a_trial_is_waited_for_a_moment_and_not_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = Path::new("tests/scenarios/h200.yaml");
        let scenario = fake_nvml::Scenario::read(scenario).unwrap();
        let library = fake_nvml::install::install(folder.path(), &scenario).unwrap();
        let limit = Duration::from_secs(10);
        let instruments = Instruments {
            patience: Patience::of(limit),
            ..Instruments::open(Some(&library))
        };
        let (_release, hang) = std::sync::mpsc::channel::<()>();
        let hangs = move |_: &Nvml, _: &str| hang.recv().is_ok();
        assert_eq!(instruments.ask_ended("GPU-1", hangs), None);
        let waited = instruments.take_waited();
        assert!(waited < limit / 2, "{waited:?}");
        assert_eq!(instruments.ask_ended("GPU-1", |_, _| 7), None);
        assert_eq!(instruments.ask_ended("GPU-2", |_, _| 7), Some(7));
        assert!(instruments.take_silences().is_empty());
    }
}
