//! NVIDIA devices through NVML, the driver's own library. It is loaded at run time: a machine
//! without a driver is not an error here but [`NvmlAbsent`], with the reason.
//!
//! Devices are named by UUID; indices are nvidia-smi's. Every reading is a value or a reason. The
//! library handle lives as long as the program: closing the last one would let the driver shut the
//! device down between readings, and a call that hangs must not hang the end of the program.

pub(super) mod calls;
mod error;
pub(super) mod field_ids;
pub(super) mod gpm;
pub(super) mod raw;
mod start;

use std::fmt;

use nvml_wrapper::{Device, enums::device::UsedGpuMemory, error::NvmlError};

use super::{Absence, Reading, process};
use calls::{gpu_celsius, total_and_used};
pub(super) use error::{absence, reading_of};
pub use start::{START_LIMITS, StartLimits};

/// The reason why there is no NVML on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlAbsent {
    pub reason: String,
    pub fault: NvmlFault,
}

/// The fault that kept NVML from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmlFault {
    /// The system has no such library.
    NotFound,
    /// The file that was named (`KILN_NVML_LIB`) is not there or is no library.
    Library,
    /// It answered with this code (`nvmlReturn_t`).
    Code(u32),
    /// It did not answer in time.
    Silent,
    /// The thread that loads it could not be started.
    Thread,
    /// Something that is not NVML's.
    Other,
}

impl NvmlAbsent {
    /// Whether there is a driver that did not answer in time.
    pub fn is_silent(&self) -> bool {
        self.fault == NvmlFault::Silent
    }
}

impl fmt::Display for NvmlAbsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for NvmlAbsent {}

/// The driver's library, loaded and started.
#[derive(Clone, Copy)]
pub struct Nvml {
    library: &'static nvml_wrapper::Nvml,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvml")
    }
}

/// Facts about a device that a lease, a row and a table of devices need.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// nvidia-smi's index.
    pub index: u32,
    /// Such as `GPU-4f1c…`; names the device everywhere.
    pub uuid: String,
    pub name: Reading<String>,
    pub memory_total_bytes: Reading<u64>,
    /// Such as `9.0`.
    pub compute_capability: Reading<String>,
    /// The limit now enforced.
    pub power_limit_watts: Reading<f64>,
    /// Whether the device is cut into MIG instances.
    pub is_mig: Reading<bool>,
    /// Whether its memory corrects errors now.
    pub is_ecc_enabled: Reading<bool>,
    /// `None` for a whole GPU.
    pub instance: Option<MigInstance>,
}

/// Identity of a MIG instance and its board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// UUID of the GPU that it is a part of.
    pub board_uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

impl DeviceFacts {
    /// Shape of a MIG instance, which is part of its name: `1g.10gb`; `None` for a whole GPU.
    pub fn mig_profile(&self) -> Option<&str> {
        self.name
            .value()?
            .split_once(" MIG ")
            .map(|(_, profile)| profile.trim())
    }
}

/// A process that computes on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    /// Owner, if the process can be seen from here.
    pub user: Option<String>,
    /// `None` if the driver does not report it (WDDM).
    pub used_memory_bytes: Option<u64>,
}

/// The processes that compute on a device, or why they cannot be known: unknown is not none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessList {
    Known(Vec<GpuProcess>),
    Unknown(String),
}

impl ProcessList {
    /// The list without `own` processes. Where NVML's process numbers are not ours (inside a
    /// container) and some of them may be our own, it is unknown.
    #[must_use]
    pub fn foreign_to(self, own: &[u32]) -> Self {
        self.without(own, process::pids_are_the_machines())
    }

    fn without(self, own: &[u32], pids_are_ours: bool) -> Self {
        match self {
            Self::Known(list) if pids_are_ours || own.is_empty() || list.is_empty() => Self::Known(
                list.into_iter()
                    .filter(|process| !own.contains(&process.pid))
                    .collect(),
            ),
            Self::Known(list) => Self::Unknown(format!(
                "{} processes compute here, but inside a container kiln cannot tell which of them \
                 are its own",
                list.len()
            )),
            unknown @ Self::Unknown(_) => unknown,
        }
    }
}

impl Nvml {
    /// The wrapper's handle, for what has no method here.
    pub(super) fn library(&self) -> &'static nvml_wrapper::Nvml {
        self.library
    }

    pub fn driver_version(&self) -> Reading<String> {
        reading_of(self.library.sys_driver_version())
    }

    /// The newest CUDA the driver can run, such as `13.1`.
    pub fn cuda_version(&self) -> Reading<String> {
        // The newer call needs libcuda, which a container may lack.
        let version = reading_of(self.library.sys_cuda_driver_version())
            .or_else(|| calls::cuda_version(self));
        version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    pub fn nvml_version(&self) -> Reading<String> {
        reading_of(self.library.sys_nvml_version())
    }

    /// All devices this user may open, in nvidia-smi's order.
    pub fn devices(&self) -> Vec<DeviceFacts> {
        let count = self.device_count().unwrap_or(0);
        (0..count)
            .filter_map(|index| facts(self, index, &self.library.device_by_index(index).ok()?))
            .collect()
    }

    /// GPUs that are there and cannot be opened, such as one that fell off the bus, by index.
    pub fn unopened(&self) -> Vec<(u32, Absence)> {
        let count = match self.device_count() {
            Ok(count) => count,
            Err(absence) => return vec![(0, absence)],
        };
        // The driver may still list a GPU that is lost.
        let open = |index| {
            self.library
                .device_by_index(index)
                .and_then(|found| found.uuid())
        };
        let why = |index| Some((index, absence(&open(index).err()?)));
        (0..count).filter_map(why).collect()
    }

    /// Processes that compute on the device now, also through the multi-process service (MPS).
    /// Graphics processes do not count.
    pub fn compute_processes(&self, uuid: &str) -> ProcessList {
        let lists = self.device(uuid).and_then(|device| {
            Ok((
                device.running_compute_processes()?,
                device.mps_running_compute_processes(),
            ))
        });
        let (mut list, through_mps) = match lists {
            Ok(lists) => lists,
            Err(error) => return ProcessList::Unknown(absence(&error).to_string()),
        };
        // A driver without that list has no such clients.
        for client in through_mps.unwrap_or_default() {
            if list.iter().all(|known| known.pid != client.pid) {
                list.push(client);
            }
        }
        if list.is_empty() && !process::pids_are_the_machines() {
            return ProcessList::Unknown("the container hides other users' processes".to_owned());
        }
        ProcessList::Known(
            list.into_iter()
                .map(|found| gpu_process(found.pid, &found.used_gpu_memory))
                .collect(),
        )
    }

    /// Share of the last sample period (1/6 to 1 s) in which any kernel ran, as a fraction of 1.
    pub fn utilization(&self, uuid: &str) -> Reading<f64> {
        reading_of(
            self.device(uuid)
                .and_then(|device| device.utilization_rates()),
        )
        .map(|rates| f64::from(rates.gpu) / 100.0)
    }

    /// Temperature of the GPU, also where the device is a MIG instance of it.
    pub fn temperature_celsius(&self, uuid: &str) -> Reading<f64> {
        match self.device(uuid) {
            Ok(device) => gpu_celsius(self, &board_of(&device).unwrap_or(device)),
            Err(error) => Reading::Absent(absence(&error)),
        }
    }

    /// Name of a process, as the driver knows it.
    pub(super) fn process_name(&self, pid: u32) -> Reading<String> {
        reading_of(self.library.sys_process_name(pid, 256))
    }

    /// The handle of a device. A device is looked for by index where the library cannot look by
    /// UUID.
    pub(super) fn device(&self, uuid: &str) -> Result<Device<'static>, NvmlError> {
        let by_uuid = self.library.device_by_uuid(uuid);
        if by_uuid.is_ok() {
            return by_uuid;
        }
        let count = self.library.device_count()?;
        let is_it = |device: &Device<'static>| device.uuid().is_ok_and(|found| found == uuid);
        let instance = |board: &Device<'static>| {
            let most = board.mig_device_count().unwrap_or(0);
            (0..most)
                .filter_map(|index| board.mig_device_by_index(index).ok())
                .find(is_it)
        };
        (0..count)
            .filter_map(|index| self.library.device_by_index(index).ok())
            .find_map(|device| {
                if is_it(&device) {
                    Some(device)
                } else {
                    instance(&device)
                }
            })
            .ok_or(NvmlError::NotFound)
    }
}

/// The GPU that a MIG instance is a part of; `None` for a whole GPU.
pub(super) fn board_of(device: &Device<'static>) -> Option<Device<'static>> {
    if is_instance(device) {
        device.mig_parent_device().ok()
    } else {
        None
    }
}

/// Whether a handle is that of a MIG instance.
pub(super) fn is_instance(device: &Device<'_>) -> bool {
    device.mig_is_mig_device_handle().unwrap_or(false)
}

/// The instances of a GPU that is cut into some, those that can be read; `None` where it is not, and
/// where this user may see none of them.
///
/// # Errors
/// It is, and none can be read for another reason: no process gets the whole GPU then.
pub(super) fn instances(
    nvml: &Nvml,
    board: &DeviceFacts,
    device: &Device<'static>,
) -> Result<Option<Vec<DeviceFacts>>, Absence> {
    if board.is_mig.value() != Some(&true) {
        return Ok(None);
    }
    let unread = |error: &NvmlError| match absence(error) {
        // In a container CUDA may know an instance all the same.
        Absence::NoPermission => Ok(None),
        why => Err(Absence::Other(format!(
            "MIG is on, and its instances cannot be read: {why}"
        ))),
    };
    let most = match device.mig_device_count() {
        Ok(most) => most,
        Err(error) => return unread(&error),
    };
    let (mut found, mut failed) = (Vec::new(), None);
    for index in 0..most {
        match device.mig_device_by_index(index) {
            Ok(instance) => found.extend(instance_facts(nvml, board, &instance)),
            // Indices have gaps.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if found.is_empty() => unread(&error),
        _ => Ok(Some(found)),
    }
}

/// Its own name and memory; what only the whole GPU has is that one's.
fn instance_facts(nvml: &Nvml, board: &DeviceFacts, device: &Device<'_>) -> Option<DeviceFacts> {
    let (gpu_instance, compute_instance) = (
        calls::gpu_instance_id(nvml, device).into_value()?,
        calls::compute_instance_id(nvml, device).into_value()?,
    );
    let instance = MigInstance {
        board_uuid: board.uuid.clone(),
        gpu_instance,
        compute_instance,
    };
    let own = facts(nvml, board.index, device)?;
    Some(DeviceFacts {
        uuid: own.uuid,
        name: own.name,
        memory_total_bytes: own.memory_total_bytes,
        instance: Some(instance),
        ..board.clone()
    })
}

/// `None` for a device that has no UUID: it could not be named.
pub(super) fn facts(nvml: &Nvml, index: u32, device: &Device<'_>) -> Option<DeviceFacts> {
    Some(DeviceFacts {
        index,
        uuid: device.uuid().ok()?,
        name: reading_of(device.name()),
        memory_total_bytes: total_and_used(nvml, device).map(|[total, _]| total),
        compute_capability: reading_of(device.cuda_compute_capability())
            .map(|capability| format!("{}.{}", capability.major, capability.minor)),
        power_limit_watts: reading_of(device.enforced_power_limit())
            .map(|milliwatts| f64::from(milliwatts) / 1e3),
        is_mig: reading_of(device.mig_mode()).map(|mode| mode.current == 1),
        is_ecc_enabled: reading_of(device.is_ecc_enabled()).map(|mode| mode.currently_enabled),
        instance: None,
    })
}

fn gpu_process(pid: u32, memory: &UsedGpuMemory) -> GpuProcess {
    let used_memory_bytes = match memory {
        UsedGpuMemory::Used(bytes) => Some(*bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let user = process::pids_are_the_machines()
        .then(|| process::owner(pid))
        .flatten();
    GpuProcess {
        pid,
        user,
        used_memory_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> GpuProcess {
        GpuProcess {
            pid,
            user: None,
            used_memory_bytes: None,
        }
    }

    #[test]
    fn unknown_is_not_none_and_own_processes_are_not_foreign() {
        let list = || ProcessList::Known(vec![process(7), process(8)]);
        assert_eq!(
            list().without(&[7], true),
            ProcessList::Known(vec![process(8)])
        );
        assert_eq!(list().without(&[], false), list());
        assert!(
            matches!(list().without(&[7], false), ProcessList::Unknown(reason) if reason.starts_with("2 processes"))
        );
        let unknown = ProcessList::Unknown("hidden".into());
        assert_eq!(unknown.clone().without(&[], true), unknown);
    }
}
