//! A snapshot: everything that is known of the host or of one device at one moment, as tidy entries.
//!
//! An entry is (section, field, value, unit), or the reason why there is no value. Names are snake case; a section groups what
//! `nvidia-smi -q` groups. What changes with every reading is in it too: a reader compares snapshots field by field.

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold},
    error::NvmlError,
};

use super::{
    HostFacts, Nvml, Reading,
    nvml::{absence, told},
};

/// The name of the host where a device's UUID would stand.
pub const HOST: &str = "host";

/// All readings of one device (or the host) at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// UUID, or [`HOST`].
    pub device: String,
    pub entries: Vec<Entry>,
}

/// One field of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub section: &'static str,
    pub field: String,
    /// As text; numbers as short as they can be.
    pub value: Reading<String>,
    /// Empty for words and plain counts.
    pub unit: &'static str,
    /// Names one particular board or other people's work: masked in tables unless the experiment says otherwise.
    pub is_identifying: bool,
}

/// Collects the entries of one snapshot, section by section.
struct Collector {
    section: &'static str,
    entries: Vec<Entry>,
}

impl Collector {
    fn new() -> Self {
        Self { section: "", entries: Vec::new() }
    }

    fn section(&mut self, section: &'static str) -> &mut Self {
        self.section = section;
        self
    }

    fn add<T: ToString>(&mut self, field: &str, value: Reading<T>, unit: &'static str) -> &mut Self {
        let value = value.map(|value| value.to_string());
        self.entries.push(Entry { section: self.section, field: field.to_owned(), value, unit, is_identifying: false });
        self
    }

    fn add_told<T: ToString>(&mut self, field: &str, value: Result<T, NvmlError>, unit: &'static str) -> &mut Self {
        self.add(field, told(value), unit)
    }

    fn identifying(&mut self) -> &mut Self {
        if let Some(entry) = self.entries.last_mut() {
            entry.is_identifying = true;
        }
        self
    }
}

/// The host's facts as a snapshot.
pub fn host(facts: &HostFacts) -> Snapshot {
    let mut to = Collector::new();
    to.section("cpu")
        .add("model", facts.cpu_model.clone(), "")
        .add("features", facts.cpu_features.clone(), "")
        .add("physical_cores", facts.physical_cores.clone(), "")
        .add("logical_cores", facts.logical_cores.clone(), "")
        .add("usable_cores", Reading::Value(facts.usable_cores), "")
        .add("scaling_governor", facts.scaling_governor.clone(), "")
        .add("load_1_minute", facts.load_1_minute.clone(), "");
    to.section("memory").add("total", facts.memory_bytes.clone(), "B").add("available", facts.memory_available_bytes.clone(), "B").add(
        "swap_total",
        facts.swap_bytes.clone(),
        "B",
    );
    to.section("limits").add("cgroup_version", facts.cgroup_version.clone(), "").add("cgroup_cpu", facts.cgroup_cpu_cores.clone(), "cores").add(
        "cgroup_memory",
        facts.cgroup_memory_bytes.clone(),
        "B",
    );
    to.section("system")
        .add("kernel", facts.kernel.clone(), "")
        .add("distribution", facts.distribution.clone(), "")
        .add("architecture", Reading::Value(facts.architecture.clone()), "")
        .add("container", facts.container.clone(), "")
        .add("virtual_machine", facts.virtual_machine.clone(), "")
        .add("boot_id", facts.boot_id.clone(), "")
        .add("clock_source", facts.clock_source.clone(), "");
    Snapshot { device: HOST.to_owned(), entries: to.entries }
}

/// Everything nvml-wrapper offers of one device. Some 60 driver calls; a lost device still gives its entries, with reasons.
pub fn device(nvml: &Nvml, uuid: &str) -> Snapshot {
    let mut to = Collector::new();
    to.section("driver").add("driver", nvml.driver_version(), "").add("cuda", nvml.cuda_version(), "").add("nvml", nvml.nvml_version(), "");
    match nvml.device(uuid) {
        Ok(device) => {
            identity(&mut to, &device);
            modes(&mut to, &device);
            pci(&mut to, &device);
            activity(&mut to, &device);
            memory(&mut to, &device);
            errors(&mut to, &device);
            temperature(&mut to, &device);
            power(&mut to, &device);
            clocks(&mut to, &device);
            processes(&mut to, nvml, &device);
        }
        Err(error) => {
            to.section("identity").add::<String>("name", Reading::Absent(absence(&error)), "");
        }
    }
    Snapshot { device: uuid.to_owned(), entries: to.entries }
}

fn identity(to: &mut Collector, device: &Device<'_>) {
    let capability = device.cuda_compute_capability().map(|capability| format!("{}.{}", capability.major, capability.minor));
    to.section("identity")
        .add_told("name", device.name(), "")
        .add_told("brand", device.brand().map(|brand| format!("{brand:?}")), "")
        .add_told("architecture", device.architecture(), "")
        .add_told("compute_capability", capability, "")
        .add_told("cores", device.num_cores(), "")
        .add_told("memory_bus_width", device.memory_bus_width(), "bit")
        .add_told("serial_number", device.serial(), "")
        .identifying()
        .add_told("minor_number", device.minor_number(), "")
        .add_told("vbios_version", device.vbios_version(), "")
        .add_told("board_id", device.board_id().map(|id| format!("{id:#x}")), "")
        .add_told("board_part_number", device.board_part_number(), "")
        .add_told("is_multi_gpu_board", device.is_multi_gpu_board(), "")
        .add_told("inforom_image_version", device.info_rom_image_version(), "")
        .add_told("gsp_firmware_version", device.gsp_firmware_version(), "");
}

fn modes(to: &mut Collector, device: &Device<'_>) {
    let mig = device.mig_mode();
    let ecc = device.is_ecc_enabled();
    to.section("modes")
        .add_told("is_display_connected", device.is_display_connected(), "")
        .add_told("is_display_active", device.is_display_active(), "")
        .add_told("is_persistent", device.is_in_persistent_mode(), "")
        .add("is_mig", told(mig).map(|mode| mode.current == 1), "")
        .add_told("is_mig_pending", device.mig_mode().map(|mode| mode.pending == 1), "")
        .add_told("compute_mode", device.compute_mode().map(|mode| format!("{mode:?}")), "")
        .add_told("is_accounting", device.is_accounting_enabled(), "")
        .add("is_ecc", told(ecc).map(|state| state.currently_enabled), "")
        .add_told("is_ecc_pending", device.is_ecc_enabled().map(|state| state.pending_enabled), "")
        .add_told("virtualization", device.virtualization_mode().map(|mode| format!("{mode:?}")), "")
        .add_told("is_auto_boosted", device.auto_boosted_clocks_enabled().map(|info| info.is_enabled), "");
}

fn pci(to: &mut Collector, device: &Device<'_>) {
    let info = told(device.pci_info());
    let part = |pick: fn(&nvml_wrapper::struct_wrappers::device::PciInfo) -> String| info.clone().map(|info| pick(&info));
    to.section("pci")
        .add("bus_id", part(|info| info.bus_id.clone()), "")
        .add("device_id", part(|info| format!("{:#010x}", info.pci_device_id)), "")
        .add("subsystem_id", part(|info| info.pci_sub_system_id.map_or_else(String::new, |id| format!("{id:#010x}"))), "")
        .add_told("generation_current", device.current_pcie_link_gen(), "")
        .add_told("generation_max", device.max_pcie_link_gen(), "")
        .add_told("width_current", device.current_pcie_link_width(), "lanes")
        .add_told("width_max", device.max_pcie_link_width(), "lanes")
        .add_told("replays", device.pcie_replay_counter(), "")
        .add_told("numa_node", device.numa_node_id(), "");
}

fn activity(to: &mut Collector, device: &Device<'_>) {
    let rates = told(device.utilization_rates());
    let throttle = device.current_throttle_reasons().map(|reasons| super::sampler::throttle_names(reasons.bits()).join(" "));
    to.section("activity")
        .add("gpu_utilization", rates.clone().map(|rates| rates.gpu), "%")
        .add("memory_utilization", rates.map(|rates| rates.memory), "%")
        .add_told("encoder_utilization", device.encoder_utilization().map(|info| info.utilization), "%")
        .add_told("decoder_utilization", device.decoder_utilization().map(|info| info.utilization), "%")
        .add_told("performance_state", device.performance_state().map(|state| state.as_c()), "P")
        .add_told("throttle_reasons", throttle, "")
        .add_told("fan_speed", device.fan_speed(0), "%");
}

fn memory(to: &mut Collector, device: &Device<'_>) {
    let memory = told(device.memory_info());
    let bar1 = told(device.bar1_memory_info());
    to.section("memory")
        .add("total", memory.clone().map(|memory| memory.total), "B")
        .add("reserved", memory.clone().map(|memory| memory.reserved), "B")
        .add("used", memory.clone().map(|memory| memory.used), "B")
        .add("free", memory.map(|memory| memory.free), "B")
        .add("bar1_total", bar1.clone().map(|memory| memory.total), "B")
        .add("bar1_used", bar1.map(|memory| memory.used), "B");
}

fn errors(to: &mut Collector, device: &Device<'_>) {
    let count = |error: MemoryError, counter: EccCounter| device.total_ecc_errors(error, counter);
    to.section("errors")
        .add_told("ecc_corrected_since_load", count(MemoryError::Corrected, EccCounter::Volatile), "")
        .add_told("ecc_uncorrected_since_load", count(MemoryError::Uncorrected, EccCounter::Volatile), "")
        .add_told("ecc_corrected_ever", count(MemoryError::Corrected, EccCounter::Aggregate), "")
        .add_told("ecc_uncorrected_ever", count(MemoryError::Uncorrected, EccCounter::Aggregate), "")
        .add_told("are_pages_pending_retired", device.are_pages_pending_retired(), "");
}

fn temperature(to: &mut Collector, device: &Device<'_>) {
    let limit = |threshold: TemperatureThreshold| device.temperature_threshold(threshold);
    to.section("temperature")
        .add_told("gpu", device.temperature(TemperatureSensor::Gpu), "C")
        .add_told("shutdown", limit(TemperatureThreshold::Shutdown), "C")
        .add_told("slowdown", limit(TemperatureThreshold::Slowdown), "C")
        .add_told("gpu_max", limit(TemperatureThreshold::GpuMax), "C")
        .add_told("memory_max", limit(TemperatureThreshold::MemoryMax), "C");
}

fn power(to: &mut Collector, device: &Device<'_>) {
    let watts = |milliwatts: Result<u32, NvmlError>| told(milliwatts).map(|milliwatts| f64::from(milliwatts) / 1e3);
    let constraints = told(device.power_management_limit_constraints());
    to.section("power")
        .add("draw", watts(device.power_usage()), "W")
        .add("limit_enforced", watts(device.enforced_power_limit()), "W")
        .add("limit_requested", watts(device.power_management_limit()), "W")
        .add("limit_default", watts(device.power_management_limit_default()), "W")
        .add("limit_min", constraints.clone().map(|limits| f64::from(limits.min_limit) / 1e3), "W")
        .add("limit_max", constraints.map(|limits| f64::from(limits.max_limit) / 1e3), "W")
        .add("energy_since_load", told(device.total_energy_consumption()).map(|millijoules| millijoules as f64 / 1e3), "J");
}

fn clocks(to: &mut Collector, device: &Device<'_>) {
    to.section("clocks");
    for (name, clock) in [("graphics", Clock::Graphics), ("sm", Clock::SM), ("memory", Clock::Memory), ("video", Clock::Video)] {
        to.add_told(name, device.clock_info(clock), "MHz").add_told(&format!("{name}_max"), device.max_clock_info(clock), "MHz");
    }
}

/// One entry per computing process: `process_<pid>` with its name and memory.
fn processes(to: &mut Collector, nvml: &Nvml, device: &Device<'_>) {
    use nvml_wrapper::enums::device::UsedGpuMemory;
    let list = told(device.running_compute_processes());
    to.section("processes").add("compute_processes", list.clone().map(|list| list.len()), "");
    for found in list.into_value().unwrap_or_default() {
        let memory = match found.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Reading::Value(bytes),
            UsedGpuMemory::Unavailable => Reading::absent("the driver does not say"),
        };
        to.add(&format!("process_{}_name", found.pid), nvml.process_name(found.pid), "").identifying();
        to.add(&format!("process_{}_memory", found.pid), memory, "B").identifying();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_snapshot_has_every_field_once_and_a_reason_for_each_gap() {
        let snapshot = host(&crate::hardware::host::read());
        let mut seen = std::collections::HashSet::new();
        for entry in &snapshot.entries {
            assert!(seen.insert((entry.section, entry.field.clone())), "{}.{} twice", entry.section, entry.field);
            assert!(!entry.value.reason().as_deref().is_some_and(str::is_empty), "{}.{} is absent without a reason", entry.section, entry.field);
        }
        assert!(seen.contains(&("cpu", "usable_cores".to_owned())));
    }
}
