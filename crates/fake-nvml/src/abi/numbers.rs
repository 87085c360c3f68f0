//! Calls that answer one number, two numbers, or a text: a table of names for each shape.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{ask, element, guard, integer, put, put_text, text};

/// `(device, buffer, length)`: a text.
macro_rules! texts {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, buffer: *mut c_char, length: c_uint) -> u32 {
            guard(|| put_text(buffer, length, text(&ask(device, stringify!($name))?)?))
        }
    )* };
}

/// `(device, &number)`.
macro_rules! numbers {
    ($type:ty: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> u32 {
            guard(|| put(out, integer(&ask(device, stringify!($name))?)? as $type))
        }
    )* };
}

/// `(device, &first, &second)`: the scenario has a list of two.
macro_rules! pairs {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, first: *mut c_uint, second: *mut c_uint) -> u32 {
            guard(|| {
                let answer = ask(device, stringify!($name))?;
                put(first, element(&answer, 0)? as c_uint)?;
                put(second, element(&answer, 1)? as c_uint)
            })
        }
    )* };
}

/// `(device, argument, &number)`: the scenario has the argument after a slash.
macro_rules! numbers_of {
    ($type:ty: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, argument: c_uint, out: *mut $type) -> u32 {
            guard(|| put(out, integer(&ask(device, &format!(concat!(stringify!($name), "/{}"), argument))?)? as $type))
        }
    )* };
}

/// `(device, argument, argument, &number)`.
macro_rules! numbers_of_two {
    ($type:ty: $($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, one: c_uint, two: c_uint, out: *mut $type) -> u32 {
            guard(|| put(out, integer(&ask(device, &format!(concat!(stringify!($name), "/{}/{}"), one, two))?)? as $type))
        }
    )* };
}

texts! {
    nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetSerial nvmlDeviceGetVbiosVersion nvmlDeviceGetBoardPartNumber
    nvmlDeviceGetInforomImageVersion
}

numbers! { c_uint:
    nvmlDeviceGetIndex nvmlDeviceGetMinorNumber nvmlDeviceGetBrand nvmlDeviceGetArchitecture nvmlDeviceGetBoardId
    nvmlDeviceGetMultiGpuBoard nvmlDeviceGetModuleId nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive
    nvmlDeviceGetPersistenceMode nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingBufferSize nvmlDeviceGetComputeMode
    nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState nvmlDeviceGetPowerUsage nvmlDeviceGetEnforcedPowerLimit
    nvmlDeviceGetPowerManagementLimit nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetCurrPcieLinkGeneration
    nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieSpeed
    nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetFanSpeed nvmlDeviceGetNumFans nvmlDeviceGetNumGpuCores
    nvmlDeviceGetMemoryBusWidth nvmlDeviceGetIrqNum nvmlDeviceGetNumaNodeId nvmlDeviceGetPowerSource nvmlDeviceGetBusType
    nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetVirtualizationMode nvmlDeviceGetHostVgpuMode nvmlDeviceGetDefaultEccMode
    nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetGpuInstanceId
    nvmlDeviceGetComputeInstanceId nvmlGpmQueryIfStreamingEnabled nvmlDeviceGetInforomConfigurationChecksum
}

numbers! { c_ulonglong:
    nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetSupportedClocksEventReasons
    nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetSupportedClocksThrottleReasons nvmlDeviceGetSupportedEventTypes
}

pairs! {
    nvmlDeviceGetMigMode nvmlDeviceGetEccMode nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetEncoderUtilization
    nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2 nvmlDeviceGetGpuOperationMode nvmlDeviceGetPowerManagementLimitConstraints
    nvmlDeviceGetGspFirmwareMode nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetCudaComputeCapability
}

numbers_of! { c_uint:
    nvmlDeviceGetTemperature nvmlDeviceGetTemperatureThreshold nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo
    nvmlDeviceGetApplicationsClock nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetMaxCustomerBoostClock
    nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetTargetFanSpeed nvmlDeviceGetPcieThroughput nvmlDeviceGetNvLinkState
    nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetVgpuCapabilities
}

numbers_of_two! { c_uint: nvmlDeviceGetClock nvmlDeviceGetNvLinkCapability }

numbers_of_two! { c_ulonglong: nvmlDeviceGetTotalEccErrors nvmlDeviceGetNvLinkErrorCounter }

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetInforomVersion(
    device: nvmlDevice_t,
    object: c_uint,
    buffer: *mut c_char,
    length: c_uint,
) -> u32 {
    guard(|| {
        put_text(
            buffer,
            length,
            text(&ask(
                device,
                &format!("nvmlDeviceGetInforomVersion/{object}"),
            )?)?,
        )
    })
}

/// The one text without a length: the caller has 80 bytes (`NVML_GSP_FIRMWARE_VERSION_BUF_SIZE`).
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGspFirmwareVersion(
    device: nvmlDevice_t,
    buffer: *mut c_char,
) -> u32 {
    guard(|| {
        put_text(
            buffer,
            80,
            text(&ask(device, "nvmlDeviceGetGspFirmwareVersion")?)?,
        )
    })
}

/// The scenario answers a code where the inforom is not valid, and anything else where it is.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceValidateInforom(device: nvmlDevice_t) -> u32 {
    guard(|| ask(device, "nvmlDeviceValidateInforom").map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    error: c_uint,
    counter: c_uint,
    location: c_uint,
    out: *mut c_ulonglong,
) -> u32 {
    let key = format!("nvmlDeviceGetMemoryErrorCounter/{error}/{counter}/{location}");
    guard(|| put(out, integer(&ask(device, &key)?)? as c_ulonglong))
}

/// `[sessions, frames per second, microseconds]`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEncoderStats(
    device: nvmlDevice_t,
    sessions: *mut c_uint,
    frames: *mut c_uint,
    latency: *mut c_uint,
) -> u32 {
    guard(|| {
        let answer = ask(device, "nvmlDeviceGetEncoderStats")?;
        for (index, out) in [sessions, frames, latency].into_iter().enumerate() {
            put(out, element(&answer, index)? as c_uint)?;
        }
        Ok(())
    })
}

/// `[microseconds since 1970, duration in microseconds]`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetLastBBXFlushTime(
    device: nvmlDevice_t,
    at: *mut c_ulonglong,
    duration: *mut c_ulong,
) -> u32 {
    guard(|| {
        let answer = ask(device, "nvmlDeviceGetLastBBXFlushTime")?;
        put(at, element(&answer, 0)? as c_ulonglong)?;
        put(duration, element(&answer, 1)? as c_ulong)
    })
}

/// `[corrected, uncorrected, pending, failed]`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> u32 {
    guard(|| {
        let answer = ask(device, "nvmlDeviceGetRemappedRows")?;
        for (index, out) in [corrected, uncorrected, pending, failed]
            .into_iter()
            .enumerate()
        {
            put(out, element(&answer, index)? as c_uint)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMinMaxClockOfPState(
    device: nvmlDevice_t,
    clock: c_uint,
    state: c_uint,
    lowest: *mut c_uint,
    highest: *mut c_uint,
) -> u32 {
    guard(|| {
        let answer = ask(
            device,
            &format!("nvmlDeviceGetMinMaxClockOfPState/{clock}/{state}"),
        )?;
        put(lowest, element(&answer, 0)? as c_uint)?;
        put(highest, element(&answer, 1)? as c_uint)
    })
}

/// A relation of two devices: the scenario has the other's index after the slash.
macro_rules! between {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, other: nvmlDevice_t, out: *mut c_int) -> u32 {
            guard(|| {
                let index = (other as usize).wrapping_sub(1);
                put(out, integer(&ask(device, &format!(concat!(stringify!($name), "/{}"), index))?)? as c_int)
            })
        }
    )* };
}

between! { nvmlDeviceGetTopologyCommonAncestor nvmlDeviceOnSameBoard }
