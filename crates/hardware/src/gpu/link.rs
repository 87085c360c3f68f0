//! The connection between processor and GPU: PCI numbers, link, errors and traffic.

use nvml_wrapper::{
    Device, enum_wrappers::device::PcieUtilCounter, enums::device::FirmwareVersion,
};

use super::{Section, source::DeviceSource};
use crate::{
    Reading,
    nvml::{
        calls,
        field_ids::{ATOMICS_INBOUND, ATOMICS_OUTBOUND, PCIE_REPLAY_ROLLOVERS},
    },
};

/// PCI numbers and the state of the link.
#[derive(Clone, Debug)]
pub struct Pci {
    pub domain: Reading<u64>,
    pub bus: Reading<u64>,
    pub device: Reading<u64>,
    /// Such as `00000000:83:00.0`.
    pub bus_id: Reading<String>,
    /// Device in the upper, vendor in the lower 16 bits.
    pub device_id: Reading<u64>,
    pub subsystem_id: Reading<u64>,
    pub base_class: Reading<u64>,
    pub sub_class: Reading<u64>,
    /// The best that GPU and machine can do together.
    pub generation_max: Reading<u64>,
    /// Falls while the GPU is idle.
    pub generation_current: Reading<u64>,
    /// The best that the GPU alone can do.
    pub generation_gpu_max: Reading<u64>,
    pub width_max_lanes: Reading<u64>,
    pub width_current_lanes: Reading<u64>,
    pub replays: Reading<u64>,
    pub replay_rollovers: Reading<u64>,
    /// From the GPU, over 20 ms, in KB/s.
    pub sent_kilobytes_per_second: Reading<u64>,
    pub received_kilobytes_per_second: Reading<u64>,
    /// `NVML_PCIE_ATOMICS_CAP_…` bits.
    pub atomics_outbound: Reading<u64>,
    pub atomics_inbound: Reading<u64>,
    pub bridge_type: Reading<String>,
    pub bridge_firmware: Reading<String>,
    pub numa_node: Reading<u64>,
}

impl Section for Pci {
    fn read(source: &DeviceSource<'_>) -> Self {
        let info = source.tell(Device::pci_info);
        let classes = source.raw(calls::pci_info);
        let traffic = |counter: PcieUtilCounter| {
            source
                .tell(|device| device.pcie_throughput(counter))
                .map(u64::from)
        };
        let current = source.tell(Device::current_pcie_link_gen).map(u64::from);
        Self {
            domain: info.as_ref().map(|info| u64::from(info.domain)),
            bus: info.as_ref().map(|info| u64::from(info.bus)),
            device: info.as_ref().map(|info| u64::from(info.device)),
            bus_id: info.as_ref().map(|info| info.bus_id.clone()),
            device_id: info.as_ref().map(|info| u64::from(info.pci_device_id)),
            subsystem_id: info.and_then(|info| {
                Reading::or_absent(
                    info.pci_sub_system_id.map(u64::from),
                    "the driver does not say",
                )
            }),
            base_class: classes.as_ref().map(|info| u64::from(info.baseClass)),
            sub_class: classes.map(|info| u64::from(info.subClass)),
            generation_max: source.tell(Device::max_pcie_link_gen).map(u64::from),
            generation_current: current,
            generation_gpu_max: source.raw(calls::gpu_max_pcie_generation).map(u64::from),
            width_max_lanes: source.tell(Device::max_pcie_link_width).map(u64::from),
            width_current_lanes: source.tell(Device::current_pcie_link_width).map(u64::from),
            replays: source.tell(Device::pcie_replay_counter).map(u64::from),
            replay_rollovers: source.unsigned(PCIE_REPLAY_ROLLOVERS, 0),
            sent_kilobytes_per_second: traffic(PcieUtilCounter::Send),
            received_kilobytes_per_second: traffic(PcieUtilCounter::Receive),
            atomics_outbound: source.unsigned(ATOMICS_OUTBOUND, 0),
            atomics_inbound: source.unsigned(ATOMICS_INBOUND, 0),
            bridge_type: bridge(source, |chip| format!("{:?}", chip.chip_type)),
            bridge_firmware: bridge(source, |chip| match chip.fw_version {
                FirmwareVersion::Version(version) => format!("{version:#X}").replace("0X", "0x"),
                FirmwareVersion::Unavailable => String::new(),
            }),
            numa_node: source.tell(Device::numa_node_id).map(u64::from),
        }
    }
}

/// A property of the board's first bridge chip.
fn bridge(
    source: &DeviceSource<'_>,
    say: fn(&nvml_wrapper::struct_wrappers::device::BridgeChipInfo) -> String,
) -> Reading<String> {
    source.tell(Device::bridge_chip_info).and_then(|found| {
        Reading::or_absent(found.chips_hierarchy.first().map(say), "the board has none")
    })
}
