//! Rows of the driver, the product, its modes and its place.

use super::{
    FieldRow, TextBlock, block,
    cell::{
        TypedReading, ValueKind, coded, count, enabled, lower_hex, microseconds, moment_of,
        no_call, nothing, seconds, wires, words, yes,
    },
    label, row, tidy,
};
use crate::{Absence, Gpu};

const ADDRESSING: [&str; 3] = ["None", "HMM", "ATS"];
const DRIVER_MODELS: [&str; 3] = ["WDDM", "TCC", "MCDM"];
const OPERATION_MODES: [&str; 3] = ["All On", "Compute", "Low Double Precision"];
const VIRTUALIZATION: [&str; 5] = ["None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"];
const HOST_VGPU: [&str; 2] = ["Non SR-IOV", "SR-IOV"];
const RECOVERY: [&str; 8] = [
    "None",
    "Reset",
    "Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX",
    "Bus Reset",
    "System Reboot",
];
const PEERS: [&str; 2] = ["Direct Connected", "Switch Connected"];

pub(super) const TABLES: &[&[FieldRow]] = &[ROWS];

const ROWS: &[FieldRow] = &[
    row("", "driver.driver", "driver_version", |gpu| {
        words(&gpu.driver.version)
    })
    .means("version of the driver"),
    row("", "", "kmd_version", |gpu| words(&gpu.driver.version))
        .means("version of the driver's kernel part, which is the driver's"),
    tidy("driver.cuda", |gpu| words(&gpu.driver.cuda)),
    tidy("driver.nvml", |gpu| words(&gpu.driver.nvml)),
    row("", "", "count", |gpu| count(&gpu.driver.gpu_count)).means("number of GPUs in the machine"),
    row("", "identity.index", "index", |gpu| count(&gpu.index))
        .means("nvidia-smi's index of the GPU; CUDA may number GPUs differently"),
    row("Product Name", "identity.name", "name", |gpu| {
        words(&gpu.identity.name)
    })
    .or(&["gpu_name"])
    .means("name of the product"),
    row("Product Brand", "identity.brand", "", |gpu| {
        words(&gpu.identity.brand)
    }),
    row("Product Architecture", "identity.architecture", "", |gpu| {
        words(&gpu.identity.architecture)
    }),
    tidy("identity.cores", |gpu| count(&gpu.identity.cuda_cores)),
    tidy("identity.memory_bus_width", |gpu| {
        wires(&gpu.identity.memory_bus_bits)
    }),
    row("Display Mode", "", "display_mode", |_| {
        nothing(Absence::Deprecated)
    })
    .means("withdrawn; query display_attached instead"),
    row(
        "Display Attached",
        "modes.is_display_connected",
        "display_attached",
        |gpu| yes(&gpu.modes.is_display_attached),
    )
    .means("whether a screen is plugged in"),
    row(
        "Display Active",
        "modes.is_display_active",
        "display_active",
        |gpu| enabled(&gpu.modes.is_display_active),
    )
    .means("whether the GPU drives a screen, plugged in or not"),
    row(
        "Persistence Mode",
        "modes.is_persistent",
        "persistence_mode",
        |gpu| enabled(&gpu.modes.is_persistent),
    )
    .means("whether the driver stays loaded while no program uses the GPU"),
    row(
        "Addressing Mode",
        "modes.addressing",
        "addressing_mode",
        |gpu| coded(&gpu.modes.addressing, &ADDRESSING),
    )
    .means("how the GPU accesses the processor's memory: None, HMM by software, ATS by hardware"),
    row(
        "MIG Mode > Current",
        "modes.is_mig",
        "mig.mode.current",
        |gpu| enabled(&gpu.modes.mig.current),
    )
    .means("whether the GPU can be divided into instances (MIG)"),
    row(
        "MIG Mode > Pending",
        "modes.is_mig_pending",
        "mig.mode.pending",
        |gpu| enabled(&gpu.modes.mig.pending),
    )
    .means("this setting after the next reset"),
    block(TextBlock::MigDevices),
    row(
        "Accounting Mode",
        "modes.is_accounting",
        "accounting.mode",
        |gpu| enabled(&gpu.modes.is_accounting),
    )
    .means("whether the driver keeps statistics of ended processes"),
    row(
        "Accounting Mode Buffer Size",
        "modes.accounting_buffer_size",
        "accounting.buffer_size",
        |gpu| count(&gpu.modes.accounting_buffer_size),
    )
    .means("how many ended processes the driver remembers"),
    row(
        "Driver Model > Current",
        "modes.driver_model",
        "driver_model.current",
        |gpu| coded(&gpu.modes.driver_model.current, &DRIVER_MODELS),
    )
    .means("driver model of Windows (WDDM, TCC, MCDM)"),
    row(
        "Driver Model > Pending",
        "modes.driver_model_pending",
        "driver_model.pending",
        |gpu| coded(&gpu.modes.driver_model.pending, &DRIVER_MODELS),
    )
    .means("this setting after the next restart"),
    row("Serial Number", "identity.serial_number", "serial", |gpu| {
        words(&gpu.identity.serial_number)
    })
    .or(&["gpu_serial"])
    .identifying()
    .means("serial number of the board"),
    row("GPU UUID", "", "uuid", |gpu| words(&gpu.identity.uuid))
        .or(&["gpu_uuid"])
        .means("unique identifier of this GPU"),
    row("GPU PDI", "identity.pdi", "", |gpu| {
        lower_hex(&gpu.identity.pdi, 16)
    })
    .identifying(),
    row("Minor Number", "identity.minor_number", "", |gpu| {
        count(&gpu.identity.minor_number)
    }),
    row(
        "VBIOS Version",
        "identity.vbios_version",
        "vbios_version",
        |gpu| words(&gpu.firmware.vbios),
    )
    .means("version of the board's BIOS"),
    row("MultiGPU Board", "identity.is_multi_gpu_board", "", |gpu| {
        yes(&gpu.identity.is_multi_gpu_board)
    }),
    row("Board ID", "identity.board_id", "", |gpu| {
        lower_hex(&gpu.identity.board_id, 1)
    }),
    row(
        "Board Part Number",
        "identity.board_part_number",
        "",
        |gpu| words(&gpu.identity.board_part_number),
    ),
    label("GPU Part Number", |_| no_call(ValueKind::Plain)),
    label("FRU Part Number", |_| no_call(ValueKind::Plain)),
    row("", "identity.compute_capability", "compute_cap", |gpu| {
        words(&gpu.identity.compute_capability)
    })
    .means("CUDA compute capability of the chip"),
    row("", "identity.hostname", "hostname", |gpu| {
        words(&gpu.identity.hostname)
    })
    .identifying()
    .means("host name that was given to the GPU"),
    label("Platform Info > Chassis Serial Number", |gpu| {
        place(gpu, words(&gpu.platform.chassis_serial_number))
    })
    .identifying(),
    label("Platform Info > Slot Number", |gpu| {
        place(gpu, count(&gpu.platform.slot_number))
    }),
    label("Platform Info > Tray Index", |gpu| {
        place(gpu, count(&gpu.platform.tray_index))
    }),
    label("Platform Info > Host ID", |gpu| {
        place(gpu, count(&gpu.platform.host_id))
    }),
    label("Platform Info > Peer Type", |gpu| {
        place(gpu, coded(&gpu.platform.peer_type, &PEERS))
    }),
    row(
        "Platform Info > Module Id",
        "platform.module_id",
        "platform.module_id",
        |gpu| count(&gpu.platform.module_id),
    )
    .means("number of the GPU within its node"),
    label("Platform Info > GPU Fabric GUID", |gpu| {
        place(gpu, lower_hex(&gpu.platform.fabric_guid, 16))
    }),
    row(
        "",
        "platform.chassis_serial_number",
        "platform.chassis_serial_number",
        |gpu| words(&gpu.platform.chassis_serial_number),
    )
    .identifying()
    .means("serial number of the rack"),
    row("", "platform.slot_number", "platform.slot_number", |gpu| {
        count(&gpu.platform.slot_number)
    })
    .means("slot in the rack, switches counted"),
    row("", "platform.tray_index", "platform.tray_index", |gpu| {
        count(&gpu.platform.tray_index)
    })
    .means("tray in the rack, switches not counted"),
    row("", "platform.host_id", "platform.host_id", |gpu| {
        count(&gpu.platform.host_id)
    })
    .means("number of the node within its slot"),
    row("", "platform.peer_type", "platform.peer_type", |gpu| {
        coded(&gpu.platform.peer_type, &PEERS)
    })
    .means("whether NVLink goes through a switch"),
    row(
        "",
        "platform.gpu_fabric_guid",
        "platform.gpu_fabric_guid",
        |gpu| lower_hex(&gpu.platform.fabric_guid, 16),
    )
    .means("number of the GPU in the fabric"),
    row(
        "Inforom Version > Image Version",
        "identity.inforom_image_version",
        "inforom.img",
        |gpu| words(&gpu.firmware.inforom_image),
    )
    .or(&["inforom.image"])
    .means("version of the board's store of settings (inforom) as a whole"),
    row(
        "Inforom Version > OEM Object",
        "identity.inforom_oem",
        "inforom.oem",
        |gpu| words(&gpu.firmware.inforom_oem),
    )
    .means("version of the maker's settings in the inforom"),
    row(
        "Inforom Version > ECC Object",
        "identity.inforom_ecc",
        "inforom.ecc",
        |gpu| words(&gpu.firmware.inforom_ecc),
    )
    .means("version of the error records in the inforom"),
    row(
        "Inforom Version > Power Management Object",
        "identity.inforom_power",
        "inforom.pwr",
        |gpu| words(&gpu.firmware.inforom_power),
    )
    .or(&["inforom.power"])
    .means("version of the power settings in the inforom"),
    row(
        "",
        "identity.is_inforom_valid",
        "inforom.checksum_validation",
        |gpu| TypedReading {
            kind: ValueKind::Flag("invalid", "valid"),
            ..yes(&gpu.firmware.is_inforom_valid)
        },
    )
    .means("whether the inforom's checksums are correct"),
    row(
        "Inforom BBX Object Flush > Latest Timestamp",
        "identity.bbx_flush_time",
        "",
        |gpu| moment_of(&gpu.firmware.bbx_flush_unix_microseconds),
    ),
    row(
        "Inforom BBX Object Flush > Latest Duration",
        "identity.bbx_flush_duration",
        "",
        |gpu| microseconds(&gpu.firmware.bbx_flush_microseconds),
    ),
    row("", "identity.bbx_time_run", "bbx.time_run", |gpu| {
        seconds(&gpu.firmware.bbx_seconds)
    })
    .means("seconds for which a driver was loaded during the board's life"),
    row(
        "GPU Operation Mode > Current",
        "modes.operation",
        "gom.current",
        |gpu| coded(&gpu.modes.operation.current, &OPERATION_MODES),
    )
    .or(&["gpu_operation_mode.current"])
    .means("which parts of the chip are switched on"),
    row(
        "GPU Operation Mode > Pending",
        "modes.operation_pending",
        "gom.pending",
        |gpu| coded(&gpu.modes.operation.pending, &OPERATION_MODES),
    )
    .or(&["gpu_operation_mode.pending"])
    .means("this setting after the next restart"),
    row("GPU C2C Mode", "modes.is_c2c", "c2c.mode", |gpu| {
        enabled(&gpu.modes.is_c2c)
    })
    .means("whether processor and GPU are joined by NVLink-C2C"),
    row(
        "GPU Virtualization Mode > Virtualization Mode",
        "modes.virtualization",
        "",
        |gpu| coded(&gpu.modes.virtualization, &VIRTUALIZATION),
    ),
    row(
        "GPU Virtualization Mode > Host VGPU Mode",
        "modes.host_vgpu",
        "",
        |gpu| coded(&gpu.modes.host_vgpu, &HOST_VGPU),
    ),
    row(
        "GPU Virtualization Mode > vGPU Heterogeneous Mode",
        "modes.is_vgpu_heterogeneous",
        "",
        |gpu| enabled(&gpu.modes.is_vgpu_heterogeneous),
    ),
    row(
        "vGPU Software Licensed Product > Product Name",
        "vgpu.licensed_product",
        "",
        |gpu| words(&gpu.license.product),
    )
    .when(has_license),
    row(
        "vGPU Software Licensed Product > License Status",
        "vgpu.license",
        "",
        |gpu| words(&gpu.license.status),
    )
    .when(has_license),
    row(
        "",
        "vgpu.driver_heterogeneous_multi",
        "vgpu_driver_capability.heterogenous_multivGPU",
        |gpu| yes(&gpu.modes.vgpu.driver_heterogeneous_multi),
    )
    .means("whether the driver can mix several kinds of vGPU in one guest"),
    row(
        "",
        "vgpu.fractional_multi",
        "vgpu_device_capability.fractional_multiVgpu",
        |gpu| yes(&gpu.modes.vgpu.fractional_multi),
    )
    .means("whether a guest may have several parts of this GPU"),
    row(
        "",
        "vgpu.heterogeneous_profiles",
        "vgpu_device_capability.heterogeneous_timeSlice_profile",
        |gpu| yes(&gpu.modes.vgpu.heterogeneous_profiles),
    )
    .means("whether vGPU profiles of several types can share the GPU"),
    row(
        "",
        "vgpu.heterogeneous_sizes",
        "vgpu_device_capability.heterogeneous_timeSlice_sizes",
        |gpu| yes(&gpu.modes.vgpu.heterogeneous_sizes),
    )
    .means("whether vGPU profiles of several memory sizes can share the GPU"),
    row(
        "",
        "vgpu.homogeneous_placements",
        "vgpu_device_capability.homogeneous_placements",
        |gpu| yes(&gpu.modes.vgpu.homogeneous_placements),
    )
    .means("whether the placement of equal vGPU profiles is reported"),
    row(
        "",
        "vgpu.mig_timeslicing",
        "vgpu_device_capability.mig_timeSlicing",
        |gpu| yes(&gpu.modes.vgpu.mig_timeslicing),
    )
    .means("whether vGPUs can share a MIG instance by time slicing"),
    row(
        "",
        "vgpu.is_mig_timeslicing",
        "vgpu_device_capability.mig_timeSlicing_mode",
        |gpu| enabled(&gpu.modes.vgpu.mig_timeslicing_enabled),
    )
    .means("whether vGPUs share a MIG instance by time slicing"),
    row(
        "GPU Recovery Action",
        "modes.recovery_action",
        "gpu_recovery_action",
        |gpu| coded(&gpu.modes.recovery_action, &RECOVERY),
    )
    .means("recovery action that the driver recommends; None means healthy"),
    row(
        "GSP Firmware Version",
        "identity.gsp_firmware_version",
        "",
        |gpu| words(&gpu.firmware.gsp_version),
    ),
    row("", "modes.is_gsp", "gsp.mode.current", |gpu| {
        enabled(&gpu.firmware.is_gsp_enabled)
    })
    .means("whether the GPU's own processor runs the driver (GSP)"),
    row("", "modes.is_gsp_default", "gsp.mode.default", |gpu| {
        enabled(&gpu.firmware.is_gsp_default)
    })
    .means("whether the GPU's own processor runs the driver by default"),
    label("IBMNPU > Relaxed Ordering Mode", |_| {
        no_call(ValueKind::Plain)
    }),
];

fn has_license(gpu: &Gpu) -> bool {
    gpu.modes.virtualization.value().is_some() && gpu.license.product.is_offered()
}

/// The page shows nothing of an empty structure; the properties show it as it is.
fn place(gpu: &Gpu, cell: TypedReading) -> TypedReading {
    if gpu.platform.is_known() {
        cell
    } else {
        nothing(Absence::NotSupported)
    }
}
