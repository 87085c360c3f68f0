//! NVML calls that nvml-wrapper has no method for, or whose method goes through a symbol that CUDA
//! 14 removes, or through an enum that a new value would break: here they return plain numbers and
//! structures, each as a [`Reading`].

use std::mem;

use nvml_wrapper::{
    Device, enum_wrappers::device::TemperatureSensor, struct_wrappers::device::ProcessInfo,
};
use nvml_wrapper_sys::bindings as sys;

use super::{
    Nvml,
    raw::{ask, version_of},
    reading_of,
};
use crate::{Absence, Reading};

/// Getters of one number: `fn(device, *mut number)`.
macro_rules! numbers {
    ($($name:ident: $number:ty = $symbol:ident;)*) => { $(
        pub(in crate) fn $name(nvml: &Nvml, device: &Device<'_>) -> Reading<$number> {
            ask(device, nvml.library().lib().$symbol.as_ref(), 0, |function, handle, place| {
                // SAFETY: the place holds one number of the type the library declares.
                unsafe { function(handle, place) }
            })
        }
    )* };
}

/// Getters of one versioned structure, of version 1 or as told.
macro_rules! structures {
    ($($name:ident: $structure:ident $number:literal = $symbol:ident;)*) => { $(
        pub(in crate) fn $name(nvml: &Nvml, device: &Device<'_>) -> Reading<sys::$structure> {
            // SAFETY: the structure is plain numbers and text, for which zero is a value.
            let mut place: sys::$structure = unsafe { mem::zeroed() };
            place.version = version_of::<sys::$structure>($number);
            ask(device, nvml.library().lib().$symbol.as_ref(), place, |function, handle, place| {
                // SAFETY: the structure carries its own version, by which the driver knows its
                // size.
                unsafe { function(handle, std::ptr::from_mut(place).cast()) }
            })
        }
    )* };
}

/// Getters of two numbers at once, such as current and pending.
macro_rules! pairs {
    ($($name:ident: $number:ty = $symbol:ident;)*) => { $(
        pub(in crate) fn $name(nvml: &Nvml, device: &Device<'_>) -> Reading<($number, $number)> {
            ask(device, nvml.library().lib().$symbol.as_ref(), (0, 0), |function, handle, (one, other)| {
                // SAFETY: both places hold one number of the type the library declares.
                unsafe { function(handle, one, other) }
            })
        }
    )* };
}

numbers! {
    brand: u32 = nvmlDeviceGetBrand;
    architecture: u32 = nvmlDeviceGetArchitecture;
    compute_mode: u32 = nvmlDeviceGetComputeMode;
    performance_state: u32 = nvmlDeviceGetPerformanceState;
    virtualization_mode: u32 = nvmlDeviceGetVirtualizationMode;
    host_vgpu_mode: u32 = nvmlDeviceGetHostVgpuMode;
    power_management_mode: u32 = nvmlDeviceGetPowerManagementMode;
    module_id: u32 = nvmlDeviceGetModuleId;
    gpu_max_pcie_generation: u32 = nvmlDeviceGetGpuMaxPcieLinkGeneration;
    gpu_instance_id: u32 = nvmlDeviceGetGpuInstanceId;
    compute_instance_id: u32 = nvmlDeviceGetComputeInstanceId;
    clocks_event_reasons: u64 = nvmlDeviceGetCurrentClocksEventReasons;
    supported_clocks_event_reasons: u64 = nvmlDeviceGetSupportedClocksEventReasons;
    clocks_throttle_reasons: u64 = nvmlDeviceGetCurrentClocksThrottleReasons;
    supported_clocks_throttle_reasons: u64 = nvmlDeviceGetSupportedClocksThrottleReasons;
}

structures! {
    addressing_mode: nvmlDeviceAddressingMode_v1_t 1 = nvmlDeviceGetAddressingMode;
    pdi: nvmlPdi_v1_t 1 = nvmlDeviceGetPdi;
    pci_info: nvmlPciInfoExt_v1_t 1 = nvmlDeviceGetPciInfoExt;
    platform: nvmlPlatformInfo_v2_t 2 = nvmlDeviceGetPlatformInfo;
    platform_v1: nvmlPlatformInfo_v2_t 1 = nvmlDeviceGetPlatformInfo;
    margin_temperature: nvmlMarginTemperature_v1_t 1 = nvmlDeviceGetMarginTemperature;
    temperature: nvmlTemperature_v1_t 1 = nvmlDeviceGetTemperatureV;
    sram_errors: nvmlEccSramErrorStatus_v1_t 1 = nvmlDeviceGetSramEccErrorStatus;
    repair_status: nvmlRepairStatus_v1_t 1 = nvmlDeviceGetRepairStatus;
    fabric_v3: nvmlGpuFabricInfo_v3_t 3 = nvmlDeviceGetGpuFabricInfoV;
    fabric_v2: nvmlGpuFabricInfo_v2_t 2 = nvmlDeviceGetGpuFabricInfoV;
    capabilities: nvmlDeviceCapabilities_v1_t 1 = nvmlDeviceGetCapabilities;
    vgpu_heterogeneous_mode: nvmlVgpuHeterogeneousMode_v1_t 1 = nvmlDeviceGetVgpuHeterogeneousMode;
    power_profiles: nvmlWorkloadPowerProfileCurrentProfiles_v1_t 1 = nvmlDeviceWorkloadPowerProfileGetCurrentProfiles;
    memory: nvmlMemory_v2_t 2 = nvmlDeviceGetMemoryInfo_v2;
}

pairs! {
    jpeg_utilization: u32 = nvmlDeviceGetJpgUtilization;
    ofa_utilization: u32 = nvmlDeviceGetOfaUtilization;
    driver_model: u32 = nvmlDeviceGetDriverModel_v2;
    operation_mode: u32 = nvmlDeviceGetGpuOperationMode;
}

/// Time of the last flush of the board's black box in microseconds of Unix time, and how long it
/// took in microseconds.
pub(crate) fn bbx_flush(nvml: &Nvml, device: &Device<'_>) -> Reading<(u64, u64)> {
    let symbol = nvml.library().lib().nvmlDeviceGetLastBBXFlushTime.as_ref();
    ask(
        device,
        symbol,
        (0, 0),
        |function, handle, (time, duration)| {
            // SAFETY: both places hold one number of the type the library declares.
            unsafe { function(handle, time, duration) }
        },
    )
}

/// 1 where the link between processor and GPU is NVLink-C2C.
pub(crate) fn c2c_mode(nvml: &Nvml, device: &Device<'_>) -> Reading<u32> {
    let start = sys::nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 };
    let symbol = nvml.library().lib().nvmlDeviceGetC2cModeInfoV.as_ref();
    // SAFETY: the place is the structure the library declares; it has no version.
    ask(device, symbol, start, |function, handle, place| unsafe {
        function(handle, place)
    })
    .map(|mode| mode.isC2cEnabled)
}

/// Whether the memory is encrypted now, and from the next restart on.
pub(crate) fn dram_encryption(nvml: &Nvml, device: &Device<'_>) -> Reading<(u32, u32)> {
    let start = || sys::nvmlDramEncryptionInfo_v1_t {
        version: version_of::<sys::nvmlDramEncryptionInfo_v1_t>(1),
        encryptionState: 0,
    };
    let symbol = nvml
        .library()
        .lib()
        .nvmlDeviceGetDramEncryptionMode
        .as_ref();
    ask(
        device,
        symbol,
        (start(), start()),
        |function, handle, (current, pending)| {
            // SAFETY: both structures carry their own version.
            unsafe { function(handle, current, pending) }
        },
    )
    .map(|(current, pending)| (current.encryptionState, pending.encryptionState))
}

/// Memory that confidential computing protects: total, free and used bytes.
pub(crate) fn protected_memory(nvml: &Nvml, device: &Device<'_>) -> Reading<sys::nvmlMemory_t> {
    let start = sys::nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    let symbol = nvml
        .library()
        .lib()
        .nvmlDeviceGetConfComputeProtectedMemoryUsage
        .as_ref();
    // SAFETY: the place is the structure the library declares; it has no version.
    ask(device, symbol, start, |function, handle, place| unsafe {
        function(handle, place)
    })
}

/// Memory by the call of drivers before 510.
pub(crate) fn memory_v1(nvml: &Nvml, device: &Device<'_>) -> Reading<sys::nvmlMemory_t> {
    let start = sys::nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    let symbol = nvml.library().lib().nvmlDeviceGetMemoryInfo.as_ref();
    // SAFETY: the place is the structure the library declares; it has no version.
    ask(device, symbol, start, |function, handle, place| unsafe {
        function(handle, place)
    })
}

/// Temperature of the GPU in °C. The newer call first: CUDA 14 takes the older one away.
pub(crate) fn gpu_celsius(nvml: &Nvml, device: &Device<'_>) -> Reading<f64> {
    match temperature(nvml, device) {
        Reading::Value(found) => Reading::Value(f64::from(found.temperature)),
        Reading::Absent(Absence::Lost) => Reading::Absent(Absence::Lost),
        Reading::Absent(_) => reading_of(device.temperature(TemperatureSensor::Gpu)).map(f64::from),
    }
}

/// Total and used bytes of the device, for readings that need no more.
pub(crate) fn total_and_used(nvml: &Nvml, device: &Device<'_>) -> Reading<[u64; 2]> {
    let newer = memory(nvml, device);
    if newer.is_offered() {
        return newer.map(|memory| [memory.total, memory.used]);
    }
    // Drivers before 510.
    memory_v1(nvml, device).map(|memory| [memory.total, memory.used])
}

/// A list of processes by the calls of drivers before 515: `name` with `_v2`, whose items are
/// today's, else without, whose items say nothing of instances.
pub(crate) fn processes_before_v3(
    nvml: &Nvml,
    device: &Device<'_>,
    name: &str,
) -> Reading<Vec<ProcessInfo>> {
    list::<sys::nvmlProcessInfo_t>(nvml, device, &format!("{name}_v2\0"))
        .or_else(|| {
            let old = list::<sys::nvmlProcessInfo_v1_t>(nvml, device, &format!("{name}\0"));
            let item = |old: sys::nvmlProcessInfo_v1_t| sys::nvmlProcessInfo_t {
                pid: old.pid,
                usedGpuMemory: old.usedGpuMemory,
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            };
            old.map(|items| items.into_iter().map(item).collect())
        })
        .map(|items| items.into_iter().map(ProcessInfo::from).collect())
}

/// A list by the name of its call, with room for some more than the driver counted a moment before.
fn list<T: Copy>(nvml: &Nvml, device: &Device<'_>, name: &str) -> Reading<Vec<T>> {
    type Call<T> = unsafe extern "C" fn(sys::nvmlDevice_t, *mut u32, *mut T) -> u32;
    const INSUFFICIENT_SIZE: u32 = 7;
    const HEADROOM: u32 = 5;
    // SAFETY: the callers' calls have this signature in nvml.h, with the items they name.
    let symbol = unsafe {
        nvml.library()
            .lib()
            .__library
            .get::<Call<T>>(name.as_bytes())
    }
    .map(|symbol| *symbol);
    // SAFETY: a count of 0 lets the driver only count; nothing is written through the null pointer.
    let counted = ask(
        device,
        symbol.as_ref(),
        0,
        |function, handle, count| match unsafe { function(handle, count, std::ptr::null_mut()) } {
            INSUFFICIENT_SIZE => 0,
            code => code,
        },
    );
    counted.and_then(|count| {
        let mut room: Vec<T> = Vec::with_capacity((count + HEADROOM) as usize);
        ask(
            device,
            symbol.as_ref(),
            count + HEADROOM,
            |function, handle, count| {
                // SAFETY: there is room for as many items as the count says.
                unsafe { function(handle, count, room.as_mut_ptr()) }
            },
        )
        .map(|found| {
            // SAFETY: the driver has written as many items as it says, which are no more than there
            // was room for.
            unsafe { room.set_len(found.min(count + HEADROOM) as usize) };
            room
        })
    })
}

/// The licenses that a guest's share of a GPU can have.
pub(crate) fn licensable_features(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Reading<sys::nvmlGridLicensableFeatures_t> {
    // SAFETY: the structure is plain numbers and text, for which zero is a value.
    let start: sys::nvmlGridLicensableFeatures_t = unsafe { mem::zeroed() };
    let symbol = nvml
        .library()
        .lib()
        .nvmlDeviceGetGridLicensableFeatures_v4
        .as_ref();
    // SAFETY: the place is the structure the library declares; it has no version.
    ask(device, symbol, start, |function, handle, place| unsafe {
        function(handle, place)
    })
}

/// Banks by how many spare rows they have left.
pub(crate) fn row_histogram(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Reading<sys::nvmlRowRemapperHistogramValues_t> {
    let start = sys::nvmlRowRemapperHistogramValues_t {
        max: 0,
        high: 0,
        partial: 0,
        low: 0,
        none: 0,
    };
    let symbol = nvml
        .library()
        .lib()
        .nvmlDeviceGetRowRemapperHistogram
        .as_ref();
    // SAFETY: the place is the structure the library declares; it has no version.
    ask(device, symbol, start, |function, handle, place| unsafe {
        function(handle, place)
    })
}

/// Rows remapped for corrected and for uncorrected errors, whether more wait for a reset, whether
/// one failed.
pub(crate) fn remapped_rows(nvml: &Nvml, device: &Device<'_>) -> Reading<[u32; 4]> {
    let symbol = nvml.library().lib().nvmlDeviceGetRemappedRows.as_ref();
    ask(
        device,
        symbol,
        [0; 4],
        |function, handle, [corrected, uncorrected, is_pending, has_failed]| {
            // SAFETY: each place holds one number of the type the library declares.
            unsafe { function(handle, corrected, uncorrected, is_pending, has_failed) }
        },
    )
}

/// Errors of one kind (0 corrected, 1 uncorrected), count (0 since the driver loaded, 1 ever) and
/// place (`nvmlMemoryLocation_t`).
pub(crate) fn memory_errors(
    nvml: &Nvml,
    device: &Device<'_>,
    [kind, counter, place]: [u32; 3],
) -> Reading<u64> {
    let symbol = nvml
        .library()
        .lib()
        .nvmlDeviceGetMemoryErrorCounter
        .as_ref();
    // SAFETY: the place holds one number of the type the library declares.
    ask(device, symbol, 0, |function, handle, count| unsafe {
        function(handle, kind, counter, place, count)
    })
}

/// Errors of one kind and count over the whole chip.
pub(crate) fn total_errors(
    nvml: &Nvml,
    device: &Device<'_>,
    [kind, counter]: [u32; 2],
) -> Reading<u64> {
    let symbol = nvml.library().lib().nvmlDeviceGetTotalEccErrors.as_ref();
    // SAFETY: the place holds one number of the type the library declares.
    ask(device, symbol, 0, |function, handle, count| unsafe {
        function(handle, kind, counter, count)
    })
}

/// Pages retired for a cause (0 many corrected errors, 1 one uncorrected error).
pub(crate) fn retired_pages(nvml: &Nvml, device: &Device<'_>, cause: u32) -> Reading<u64> {
    const INSUFFICIENT_SIZE: u32 = 7;
    let symbol = nvml.library().lib().nvmlDeviceGetRetiredPages_v2.as_ref();
    ask(device, symbol, 0, |function, handle, count| {
        // SAFETY: a count of 0 lets the driver only count; nothing is written through the null
        // pointers.
        match unsafe {
            function(
                handle,
                cause,
                count,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        } {
            INSUFFICIENT_SIZE => 0,
            code => code,
        }
    })
    .map(u64::from)
}

/// One capability of vGPU (`nvmlDeviceVgpuCapability_t`).
pub(crate) fn vgpu_capability(nvml: &Nvml, device: &Device<'_>, capability: u32) -> Reading<u32> {
    let symbol = nvml.library().lib().nvmlDeviceGetVgpuCapabilities.as_ref();
    // SAFETY: the place holds one number of the type the library declares.
    ask(device, symbol, 0, |function, handle, place| unsafe {
        function(handle, capability, place)
    })
}

/// One capability of the driver's vGPU part (`nvmlVgpuDriverCapability_t`).
pub(crate) fn vgpu_driver_capability(nvml: &Nvml, capability: u32) -> Reading<u32> {
    let Ok(function) = nvml.library().lib().nvmlGetVgpuDriverCapabilities.as_ref() else {
        return Reading::Absent(Absence::NoSymbol);
    };
    let mut place = 0;
    // SAFETY: the place holds one number of the type the library declares.
    match unsafe { function(capability, &raw mut place) } {
        0 => Reading::Value(place),
        code => Reading::Absent(Absence::of_code(code)),
    }
}

/// The CUDA version of the driver by the call that needs no libcuda, such as 13010.
pub(crate) fn cuda_version(nvml: &Nvml) -> Reading<i32> {
    let Ok(function) = nvml.library().lib().nvmlSystemGetCudaDriverVersion.as_ref() else {
        return Reading::Absent(Absence::NoSymbol);
    };
    let mut place = 0;
    // SAFETY: the place holds one number of the type the library declares.
    match unsafe { function(&raw mut place) } {
        0 => Reading::Value(place),
        code => Reading::Absent(Absence::of_code(code)),
    }
}

/// Calls newer than nvml-wrapper-sys 0.10, looked up by name: a device and one structure of `N`
/// numbers without a version.
fn newer<const N: usize>(nvml: &Nvml, device: &Device<'_>, name: &[u8]) -> Reading<[u32; N]> {
    type Call = unsafe extern "C" fn(sys::nvmlDevice_t, *mut u32) -> u32;
    // SAFETY: nvml.h 13.3 declares the functions named below with this signature.
    let symbol = unsafe { nvml.library().lib().__library.get::<Call>(name) }.map(|symbol| *symbol);
    // SAFETY: the structure is `N` numbers, as long as the place.
    ask(
        device,
        symbol.as_ref(),
        [0; N],
        |function, handle, place| unsafe { function(handle, place.as_mut_ptr()) },
    )
}

/// Whether there is memory that rows to spare cannot repair (driver 590).
pub(crate) fn unrepairable_memory(nvml: &Nvml, device: &Device<'_>) -> Reading<bool> {
    newer::<1>(nvml, device, b"nvmlDeviceGetUnrepairableMemoryFlag_v1\0").map(|[flag]| flag != 0)
}

/// Seconds that the driver was loaded over the board's life (driver 610).
pub(crate) fn bbx_seconds(nvml: &Nvml, device: &Device<'_>) -> Reading<u64> {
    newer::<1>(nvml, device, b"nvmlDeviceGetBBXTimeData_v1\0").map(|[seconds]| u64::from(seconds))
}

/// Remapped rows with the inactive ones apart: corrected active and inactive, uncorrected active
/// and inactive, pending, failed.
pub(crate) fn remapped_rows_v2(nvml: &Nvml, device: &Device<'_>) -> Reading<[u32; 6]> {
    newer::<6>(nvml, device, b"nvmlDeviceGetRemappedRows_v2\0")
}

/// The host's name that was given to the GPU (driver 590).
pub(crate) fn hostname(nvml: &Nvml, device: &Device<'_>) -> Reading<String> {
    // 64 bytes of text, which is all that the structure holds.
    newer::<16>(nvml, device, b"nvmlDeviceGetHostname_v1\0").map(|words| {
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
