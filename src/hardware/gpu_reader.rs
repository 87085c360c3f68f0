//! What the sampler asks a device at each tick. A field that a device does not offer is asked once, not at every tick.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{Clock, TemperatureSensor},
    error::NvmlError,
};

use super::{
    Absence, Nvml, ProcessList,
    nvml::absence,
    sampler::{EVERYTHING, GpuTick},
};

/// A device that cannot be opened is tried again this much later.
const RETRY: Duration = Duration::from_secs(10);

/// Reads devices; the sampler's only way to a driver.
pub(super) trait GpuReader: Send {
    /// One tick's readings. `absent` gets a reason for every field left empty.
    fn read(&mut self, uuid: &str, absent: &mut BTreeMap<&'static str, String>) -> GpuTick;

    /// What computes on the device now.
    fn processes(&mut self, uuid: &str) -> ProcessList;
}

/// The reader of real devices.
pub(super) struct NvmlReader {
    nvml: Arc<Nvml>,
    devices: HashMap<String, Open>,
}

struct Open {
    handle: Result<Device<'static>, (String, Instant)>,
    /// Fields whose answer will not change.
    lasting: BTreeMap<&'static str, String>,
}

impl NvmlReader {
    pub(super) fn new(nvml: Arc<Nvml>) -> Self {
        Self { nvml, devices: HashMap::new() }
    }

    fn open(&self, uuid: &str) -> Open {
        let handle = self.nvml.device(uuid).map_err(|error| (absence(&error).to_string(), Instant::now()));
        Open { handle, lasting: BTreeMap::new() }
    }
}

impl GpuReader for NvmlReader {
    fn read(&mut self, uuid: &str, absent: &mut BTreeMap<&'static str, String>) -> GpuTick {
        let is_known = self.devices.get(uuid).is_some_and(|open| !matches!(&open.handle, Err((_, since)) if since.elapsed() > RETRY));
        if !is_known {
            let open = self.open(uuid);
            self.devices.insert(uuid.to_owned(), open);
        }
        let Some(open) = self.devices.get_mut(uuid) else { return GpuTick::default() };
        match &open.handle {
            Ok(device) => {
                let mut fields = Fields { lasting: &mut open.lasting, absent, is_lost: false };
                let tick = tick(device, &mut fields);
                if fields.is_lost {
                    open.handle = Err((Absence::Lost.to_string(), Instant::now()));
                }
                tick
            }
            Err((reason, _)) => {
                absent.insert(EVERYTHING, reason.clone());
                GpuTick::default()
            }
        }
    }

    fn processes(&mut self, uuid: &str) -> ProcessList {
        self.nvml.compute_processes(uuid)
    }
}

/// Reads fields one by one, so that a failure costs one field.
struct Fields<'a> {
    lasting: &'a mut BTreeMap<&'static str, String>,
    absent: &'a mut BTreeMap<&'static str, String>,
    is_lost: bool,
}

impl Fields<'_> {
    fn read<T>(&mut self, name: &'static str, ask: impl FnOnce() -> Result<T, NvmlError>) -> Option<T> {
        if let Some(reason) = self.lasting.get(name) {
            self.absent.insert(name, reason.clone());
            return None;
        }
        match ask() {
            Ok(value) => Some(value),
            Err(error) => {
                let absence = absence(&error);
                let reason = absence.to_string();
                if absence.is_lasting() {
                    self.lasting.insert(name, reason.clone());
                }
                self.is_lost |= matches!(error, NvmlError::GpuLost | NvmlError::Uninitialized);
                self.absent.insert(name, reason);
                None
            }
        }
    }
}

/// Nine driver calls; those that block for long (PCIe throughput, 20 ms each) are left out.
fn tick(device: &Device<'_>, fields: &mut Fields<'_>) -> GpuTick {
    let rates = fields.read("utilization", || device.utilization_rates());
    GpuTick {
        utilization: rates.as_ref().map(|rates| f64::from(rates.gpu) / 100.0),
        memory_utilization: rates.map(|rates| f64::from(rates.memory) / 100.0),
        memory_used_bytes: fields.read("memory_used_bytes", || device.memory_info()).map(|memory| memory.used),
        power_watts: fields.read("power_watts", || device.power_usage()).map(|milliwatts| f64::from(milliwatts) / 1e3),
        temperature_celsius: fields.read("temperature_celsius", || device.temperature(TemperatureSensor::Gpu)).map(f64::from),
        sm_clock_megahertz: fields.read("sm_clock_megahertz", || device.clock_info(Clock::SM)).map(u64::from),
        memory_clock_megahertz: fields.read("memory_clock_megahertz", || device.clock_info(Clock::Memory)).map(u64::from),
        throttle_bits: fields.read("throttle_bits", || device.current_throttle_reasons()).map(|reasons| reasons.bits()),
        energy_joules: fields.read("energy_joules", || device.total_energy_consumption()).map(|millijoules| millijoules as f64 / 1e3),
        performance_state: fields.read("performance_state", || device.performance_state()).map(|state| state.as_c()),
    }
}
