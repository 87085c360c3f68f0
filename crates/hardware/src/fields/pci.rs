//! Rows of the PCI address and link.

use super::{
    FieldRow,
    cell::{TypedReading, ValueKind, count, hex, lanes, no_call, rate, words},
    row, tidy,
};
use crate::{Absence, Gpu, Reading};

pub(super) const TABLES: &[&[FieldRow]] = &[PCI];

const PCI: &[FieldRow] = &[
    row("PCI > Bus", "", "pci.bus", |gpu| hex(&gpu.pci.bus, 2)).means("PCI bus"),
    row("PCI > Device", "", "pci.device", |gpu| {
        hex(&gpu.pci.device, 2)
    })
    .means("PCI device"),
    row("PCI > Domain", "", "pci.domain", |gpu| {
        hex(&gpu.pci.domain, 4)
    })
    .means("PCI domain"),
    row(
        "PCI > Base Classcode",
        "pci.base_class",
        "pci.baseClass",
        |gpu| hex(&gpu.pci.base_class, 1),
    )
    .when(has_class)
    .means("PCI base class; 3 is display"),
    row(
        "PCI > Sub Classcode",
        "pci.sub_class",
        "pci.subClass",
        |gpu| hex(&gpu.pci.sub_class, 1),
    )
    .when(has_class)
    .means("PCI sub class; 2 has no screen"),
    row("PCI > Device Id", "pci.device_id", "pci.device_id", |gpu| {
        hex(&gpu.pci.device_id, 8)
    })
    .means("PCI device and vendor"),
    row("PCI > Bus Id", "pci.bus_id", "pci.bus_id", |gpu| {
        words(&gpu.pci.bus_id)
    })
    .or(&["gpu_bus_id"])
    .means("PCI address: domain, bus, device, function"),
    row(
        "PCI > Sub System Id",
        "pci.subsystem_id",
        "pci.sub_device_id",
        |gpu| hex(&gpu.pci.subsystem_id, 8),
    )
    .means("PCI number of the board's maker and type"),
    row(
        "PCI > GPU Link Info > PCIe Generation > Max",
        "pci.generation_max",
        "pcie.link.gen.max",
        |gpu| count(&gpu.pci.generation_max),
    )
    .means("newest PCIe generation that GPU and machine both support"),
    row(
        "PCI > GPU Link Info > PCIe Generation > Current",
        "pci.generation_current",
        "pcie.link.gen.current",
        |gpu| count(&gpu.pci.generation_current),
    )
    .means("PCIe generation now; falls while idle"),
    row(
        "PCI > GPU Link Info > PCIe Generation > Device Current",
        "",
        "pcie.link.gen.gpucurrent",
        |gpu| count(&gpu.pci.generation_current),
    )
    .means("PCIe generation of the GPU now"),
    row(
        "PCI > GPU Link Info > PCIe Generation > Device Max",
        "pci.generation_gpu_max",
        "pcie.link.gen.gpumax",
        |gpu| count(&gpu.pci.generation_gpu_max),
    )
    .means("newest PCIe generation of the GPU"),
    row(
        "PCI > GPU Link Info > PCIe Generation > Host Max",
        "",
        "pcie.link.gen.hostmax",
        |_| no_call(ValueKind::Plain),
    )
    .means("newest PCIe generation of the slot; NVML has no call for it"),
    row(
        "PCI > GPU Link Info > Link Width > Max",
        "pci.width_max",
        "pcie.link.width.max",
        |gpu| lanes(&gpu.pci.width_max_lanes),
    )
    .means("largest number of PCIe lanes that GPU and slot both have"),
    row(
        "PCI > GPU Link Info > Link Width > Current",
        "pci.width_current",
        "pcie.link.width.current",
        |gpu| lanes(&gpu.pci.width_current_lanes),
    )
    .means("PCIe lanes in use"),
    row("PCI > Bridge Chip > Type", "pci.bridge_type", "", |gpu| {
        words(&gpu.pci.bridge_type)
    }),
    row(
        "PCI > Bridge Chip > Firmware",
        "pci.bridge_firmware",
        "",
        |gpu| words(&gpu.pci.bridge_firmware),
    ),
    row("PCI > Replays Since Reset", "pci.replays", "", |gpu| {
        count(&gpu.pci.replays)
    }),
    row(
        "PCI > Replay Number Rollovers",
        "pci.replay_rollovers",
        "",
        |gpu| count(&gpu.pci.replay_rollovers),
    ),
    row("PCI > Tx Throughput", "pci.sent", "", |gpu| {
        rate(&gpu.pci.sent_kilobytes_per_second)
    }),
    row("PCI > Rx Throughput", "pci.received", "", |gpu| {
        rate(&gpu.pci.received_kilobytes_per_second)
    }),
    row(
        "PCI > Atomic Caps Outbound",
        "pci.atomics_outbound",
        "",
        |gpu| atomics(&gpu.pci.atomics_outbound),
    ),
    row(
        "PCI > Atomic Caps Inbound",
        "pci.atomics_inbound",
        "",
        |gpu| atomics(&gpu.pci.atomics_inbound),
    ),
    tidy("pci.numa_node", |gpu| count(&gpu.pci.numa_node)),
];

/// `nvmlPcieAtomicsCaps`, lowest bit first.
const ATOMICS: [&str; 7] = [
    "FETCHADD_32",
    "FETCHADD_64",
    "SWAP_32",
    "SWAP_64",
    "CAS_32",
    "CAS_64",
    "CAS_128",
];

/// WDDM has no PCI classes, and nvidia-smi no lines for them there.
fn has_class(gpu: &Gpu) -> bool {
    gpu.pci.base_class.value().is_some() || gpu.modes.driver_model.current.value().is_none()
}

/// nvidia-smi ends the list with a space, and has no list for no bits.
fn atomics(mask: &Reading<u64>) -> TypedReading {
    let names = mask.as_ref().and_then(|mask| {
        let names: String = ATOMICS
            .iter()
            .enumerate()
            .filter(|(bit, _)| mask >> bit & 1 == 1)
            .map(|(_, name)| format!("{name} "))
            .collect();
        if names.is_empty() {
            Reading::Absent(Absence::NotSupported)
        } else {
            Reading::Value(names)
        }
    });
    words(&names)
}
