//! One GPU as a typed model: all that `nvidia-smi -q` (R590) shows, and some more. A section is a
//! structure here; every field is a value in NVML's own unit, or the reason why there is none.
//!
//! Input: an open NVML and a device's UUID or index. Output: a [`Gpu`]. Printing and names are left
//! to `fields` and the views over it. Nothing here depends on the name of a product or an
//! architecture: a board that a future driver brings is read like any other, and values that its
//! driver does not report are absent.

mod activity;
mod clocks;
mod fabric;
mod faults;
mod identity;
mod license;
mod link;
mod memory;
mod mig;
mod modes;
mod power;
mod processes;
mod source;
mod temperature;

pub use activity::{Activity, EventReasonCounters, Sessions};
pub use clocks::{ClockSet, Clocks};
pub use fabric::{Fabric, FabricHealth, NvLink};
pub use faults::{Ecc, ErrorCounts, RemappedRows, RetiredPages, RowHistogram, SramErrors};
pub use identity::{BoardIdentity, Driver, Firmware, Platform};
pub use license::License;
pub use link::Pci;
pub use memory::{GpuMemory, MemoryUse};
pub use mig::MigDevice;
pub use modes::{Modes, Pending, VgpuCapabilities};
pub use power::{DelayedSmoothing, Power, PowerLimits, PowerSmoothing};
pub use processes::{AccountedProcess, Process, ProcessMemory};
pub use temperature::Temperature;

use super::{Absence, Nvml, Reading, nvml::reading_of};
use source::DeviceSource;

/// All readings of one GPU at one moment.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// nvidia-smi's index. Not CUDA's.
    pub index: Reading<u64>,
    pub driver: Driver,
    pub identity: BoardIdentity,
    pub platform: Platform,
    pub firmware: Firmware,
    pub modes: Modes,
    pub license: License,
    pub pci: Pci,
    pub activity: Activity,
    pub memory: GpuMemory,
    pub ecc: Ecc,
    pub retired_pages: RetiredPages,
    pub remapped_rows: RemappedRows,
    pub temperature: Temperature,
    pub power: Power,
    pub clocks: Clocks,
    pub fabric: Fabric,
    /// In the order of their indices; empty where MIG is off.
    pub mig_devices: Vec<MigDevice>,
    /// Compute and graphics processes, by process number. An empty list means none; absent if the
    /// driver does not report them.
    pub processes: Reading<Vec<Process>>,
    /// The driver's records of ended compute processes, if accounting is on.
    pub accounted_processes: Reading<Vec<AccountedProcess>>,
}

/// Reads its section of a [`Gpu`] from a device.
trait Section: Sized {
    fn read(source: &DeviceSource<'_>) -> Self;
}

impl Gpu {
    /// Reads a GPU by its UUID. Some 200 driver calls, 40 ms of which go to the PCIe throughput. A
    /// GPU that is lost is read too: its fields carry the reason.
    pub fn read(nvml: &Nvml, uuid: &str) -> Self {
        let mut gpu = Self::from_source(&DeviceSource::new(nvml, nvml.device(uuid)));
        if gpu.identity.uuid.value().is_none() {
            gpu.identity.uuid = Reading::Value(uuid.to_owned());
        }
        gpu
    }

    /// Reads all GPUs in nvidia-smi's order, those too that this user may not open.
    pub fn read_all(nvml: &Nvml) -> Vec<Self> {
        (0..nvml.device_count().unwrap_or(0))
            .map(|index| Self::read_index(nvml, index))
            .collect()
    }

    /// The GPU of this index, of which nothing can be read for this reason.
    pub fn unread_at(index: u32, absence: &Absence) -> Self {
        Self {
            index: Reading::Value(u64::from(index)),
            ..Self::unread(absence)
        }
    }

    /// Reads the GPU of this index.
    pub fn read_index(nvml: &Nvml, index: u32) -> Self {
        let mut gpu = Self::from_source(&DeviceSource::new(
            nvml,
            nvml.library().device_by_index(index),
        ));
        if gpu.index.value().is_none() {
            gpu.index = Reading::Value(u64::from(index));
        }
        gpu
    }

    /// A GPU of which nothing could be read, and why.
    pub fn unread(absence: &Absence) -> Self {
        Self::from_source(&DeviceSource::silent(absence.clone()))
    }

    fn from_source(source: &DeviceSource<'_>) -> Self {
        let modes = Modes::read(source);
        Self {
            index: source.tell(nvml_wrapper::Device::index).map(u64::from),
            driver: Driver::read(source),
            identity: BoardIdentity::read(source),
            platform: Platform::read(source),
            firmware: Firmware::read(source),
            pci: Pci::read(source),
            activity: Activity::read(source),
            memory: GpuMemory::read(source),
            ecc: Ecc::read(source),
            retired_pages: RetiredPages::read(source),
            remapped_rows: RemappedRows::read(source),
            temperature: Temperature::read(source),
            power: Power::read(source),
            clocks: Clocks::read(source),
            fabric: Fabric::read(source),
            mig_devices: mig::read(source, &modes),
            processes: processes::read(source),
            accounted_processes: processes::accounted(source, &modes),
            license: license::read(source, &modes),
            modes,
        }
    }
}

/// A name that fits no GPU here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchGpu(pub String);

/// Indices of the GPUs named by index, UUID or PCI address (short forms too, such as `83:00.0`),
/// each once, in the order named.
///
/// # Errors
/// On the first name that fits none.
pub fn select(nvml: &Nvml, names: &[String]) -> Result<Vec<u32>, NoSuchGpu> {
    let known: Vec<Names> = (0..nvml.device_count().unwrap_or(0))
        .map(|index| Names::read(nvml, index))
        .collect();
    let mut found = Vec::new();
    for name in names {
        let fitting = known
            .iter()
            .find(|gpu| gpu.fits(name))
            .ok_or_else(|| NoSuchGpu(name.clone()))?;
        if !found.contains(&fitting.index) {
            found.push(fitting.index);
        }
    }
    Ok(found)
}

/// The names by which a user may refer to a GPU.
struct Names {
    index: u32,
    uuid: Option<String>,
    bus_id: Option<String>,
}

impl Names {
    fn read(nvml: &Nvml, index: u32) -> Self {
        let device = reading_of(nvml.library().device_by_index(index));
        let uuid = device
            .as_ref()
            .and_then(|device| reading_of(device.uuid()))
            .into_value();
        let bus_id = device
            .and_then(|device| reading_of(device.pci_info()))
            .map(|info| info.bus_id)
            .into_value();
        Self {
            index,
            uuid,
            bus_id,
        }
    }

    fn fits(&self, name: &str) -> bool {
        name.parse() == Ok(self.index)
            || self.uuid.as_deref() == Some(name)
            || self.bus_id.as_ref().is_some_and(|id| is_address(id, name))
    }
}

/// Whether a name is this PCI address, perhaps without its domain, or without zeros before that.
fn is_address(bus_id: &str, name: &str) -> bool {
    let (bus_id, name) = (bus_id.to_lowercase(), name.to_lowercase());
    let without_zeros = |text: &str| text.trim_start_matches('0').to_owned();
    match name.matches(':').count() {
        _ if name.starts_with(':') => false,
        1 => bus_id.ends_with(&format!(":{name}")),
        2 => without_zeros(&bus_id) == without_zeros(&name),
        _ => false,
    }
}

impl Nvml {
    /// Number of GPUs, those that this user may not open included.
    ///
    /// # Errors
    /// The driver does not say it.
    pub fn device_count(&self) -> Result<u32, Absence> {
        match reading_of(self.library().device_count()) {
            Reading::Value(count) => Ok(count),
            Reading::Absent(why) => Err(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_answers_to_its_index_its_uuid_and_its_address() {
        let gpu = Names {
            index: 1,
            uuid: Some("GPU-7".into()),
            bus_id: Some("00000000:8F:00.0".into()),
        };
        for name in ["1", "GPU-7", "00000000:8f:00.0", "0000:8f:00.0", "8F:00.0"] {
            assert!(gpu.fits(name), "{name}");
        }
        for name in [
            "0",
            "GPU-8",
            "9F:00.0",
            "0",
            "",
            "F:00.0",
            ":00.0",
            ":8F:00.0",
            "1:8F:00.0",
        ] {
            assert!(!gpu.fits(name), "{name}");
        }
    }

    #[test]
    fn a_gpu_that_is_lost_has_a_reason_in_every_field() {
        let gpu = Gpu::unread(&Absence::Lost);
        assert_eq!(
            gpu.memory.frame_buffer.used_bytes,
            Reading::Absent(Absence::Lost)
        );
        assert!(gpu.mig_devices.is_empty() && gpu.processes.reason().is_some());
    }
}
