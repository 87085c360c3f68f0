//! Calls that fill one structure: a table of members for each. Structures with a version are
//! checked: another size or number is a version mismatch, as the driver does it. The scenario has
//! an object with the C members' names.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlBridgeChipHierarchy_t, nvmlC2cModeInfo_v1_t, nvmlDevice_t,
    nvmlDeviceAddressingMode_v1_t, nvmlDeviceAttributes_t, nvmlDeviceCapabilities_v1_t,
    nvmlDramEncryptionInfo_v1_t, nvmlEccSramErrorStatus_v1_t, nvmlFBCStats_t,
    nvmlFanSpeedInfo_v1_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlGridLicensableFeatures_t, nvmlMarginTemperature_v1_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlPciInfoExt_v1_t, nvmlPdi_v1_t, nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t,
    nvmlRepairStatus_v1_t, nvmlRowRemapperHistogramValues_t, nvmlTemperature_v1_t,
    nvmlUtilization_t, nvmlVgpuHeterogeneousMode_v1_t, nvmlViolationTime_t,
    nvmlWorkloadPowerProfileCurrentProfiles_v1_t,
};
use serde_json::Value;

use super::{ask, fill_text, guard, integer, member, text};
use crate::code;

/// A place that C gave, if it is one.
fn place<'a, T>(out: *mut T) -> Result<&'a mut T, u32> {
    // SAFETY: the caller passes a structure it owns for the length of the call.
    unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)
}

/// The number of the structure's version, if its size is that version's.
fn version_number<T>(version: c_uint) -> Result<u32, u32> {
    if version & 0xff_ffff == size_of::<T>() as u32 {
        Ok(version >> 24)
    } else {
        Err(code::VERSION_MISMATCH)
    }
}

fn check_version<T>(version: c_uint, number: u32) -> Result<(), u32> {
    if version_number::<T>(version)? == number {
        Ok(())
    } else {
        Err(code::VERSION_MISMATCH)
    }
}

macro_rules! structures {
    ($($name:ident($type:ty) { $($member:ident)* })*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> u32 {
            guard(|| {
                let out = place(out)?;
                let answer = ask(device, stringify!($name))?;
                $( out.$member = member(&answer, stringify!($member))? as _; )*
                Ok(())
            })
        }
    )* };
}

macro_rules! versioned {
    ($($name:ident($type:ty, $number:literal) { $($member:ident)* })*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, out: *mut $type) -> u32 {
            guard(|| {
                let out = place(out)?;
                check_version::<$type>(out.version, $number)?;
                let answer = ask(device, stringify!($name))?;
                $( out.$member = member(&answer, stringify!($member))? as _; )*
                Ok(())
            })
        }
    )* };
}

structures! {
    nvmlDeviceGetMemoryInfo(nvmlMemory_t) { total free used }
    nvmlDeviceGetBAR1MemoryInfo(nvmlBAR1Memory_t) { bar1Total bar1Free bar1Used }
    nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlMemory_t) { total free used }
    nvmlDeviceGetUtilizationRates(nvmlUtilization_t) { gpu memory }
    nvmlDeviceGetFBCStats(nvmlFBCStats_t) { sessionsCount averageFPS averageLatency }
    nvmlDeviceGetC2cModeInfoV(nvmlC2cModeInfo_v1_t) { isC2cEnabled }
    nvmlDeviceGetRowRemapperHistogram(nvmlRowRemapperHistogramValues_t) { max high partial low none }
    nvmlDeviceGetAttributes_v2(nvmlDeviceAttributes_t) {
        multiprocessorCount sharedCopyEngineCount sharedDecoderCount sharedEncoderCount sharedJpegCount sharedOfaCount
        gpuInstanceSliceCount computeInstanceSliceCount memorySizeMB
    }
    nvmlDeviceGetUnrepairableMemoryFlag_v1(UnrepairableMemory) { bUnrepairableMemory }
    nvmlDeviceGetBBXTimeData_v1(BbxTime) { timeRun }
    nvmlDeviceGetRemappedRows_v2(RemappedRows) {
        corrActiveRemaps corrInactiveRemaps uncActiveRemaps uncInactiveRemaps bPending bFailureOccurred
    }
}

versioned! {
    nvmlDeviceGetMemoryInfo_v2(nvmlMemory_v2_t, 2) { total reserved free used }
    nvmlDeviceGetPdi(nvmlPdi_v1_t, 1) { value }
    nvmlDeviceGetMarginTemperature(nvmlMarginTemperature_v1_t, 1) { marginTemperature }
    nvmlDeviceGetAddressingMode(nvmlDeviceAddressingMode_v1_t, 1) { value }
    nvmlDeviceGetRepairStatus(nvmlRepairStatus_v1_t, 1) { bChannelRepairPending bTpcRepairPending }
    nvmlDeviceGetCapabilities(nvmlDeviceCapabilities_v1_t, 1) { capMask }
    nvmlDeviceGetVgpuHeterogeneousMode(nvmlVgpuHeterogeneousMode_v1_t, 1) { mode }
    nvmlDeviceGetSramEccErrorStatus(nvmlEccSramErrorStatus_v1_t, 1) {
        aggregateUncParity aggregateUncSecDed aggregateCor volatileUncParity volatileUncSecDed volatileCor aggregateUncBucketL2
        aggregateUncBucketSm aggregateUncBucketPcie aggregateUncBucketMcu aggregateUncBucketOther bThresholdExceeded
    }
}

/// `nvmlUnrepairableMemoryStatus_v1_t` of driver 590; nvml-wrapper-sys 0.10 has it not.
#[repr(C)]
pub struct UnrepairableMemory {
    bUnrepairableMemory: c_uint,
}

/// `nvmlBBXTimeData_v1_t` of driver 595.
#[repr(C)]
pub struct BbxTime {
    timeRun: c_uint,
}

/// `nvmlRemappedRowsInfo_v2_t` of driver 580.
#[repr(C)]
pub struct RemappedRows {
    corrActiveRemaps: c_uint,
    corrInactiveRemaps: c_uint,
    uncActiveRemaps: c_uint,
    uncInactiveRemaps: c_uint,
    bPending: c_uint,
    bFailureOccurred: c_uint,
}

/// `nvmlHostname_v1_t` of driver 580.
#[repr(C)]
pub struct Hostname {
    value: [std::ffi::c_char; 64],
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHostname_v1(device: nvmlDevice_t, out: *mut Hostname) -> u32 {
    guard(|| {
        let out = place(out)?;
        fill_text(
            &mut out.value,
            text(&ask(device, "nvmlDeviceGetHostname_v1")?)?,
        );
        Ok(())
    })
}

/// One feature: `{productName, featureState, expiry}`, the last a list of year to second, if there
/// is one.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGridLicensableFeatures_v4(
    device: nvmlDevice_t,
    out: *mut nvmlGridLicensableFeatures_t,
) -> u32 {
    const EXPIRY_VALID: u8 = 2;
    const NOT_APPLICABLE: u8 = 3;
    guard(|| {
        let out = place(out)?;
        let answer = ask(device, "nvmlDeviceGetGridLicensableFeatures_v4")?;
        out.isGridLicenseSupported = 1;
        out.licensableFeaturesCount = 1;
        let [feature, ..] = &mut out.gridLicensableFeatures;
        fill_text(
            &mut feature.productName,
            text(answer.get("productName").ok_or(code::UNKNOWN)?)?,
        );
        feature.featureState = member(&answer, "featureState")? as _;
        feature.featureEnabled = 1;
        feature.licenseExpiry.status = NOT_APPLICABLE;
        if let Some(at) = answer.get("expiry") {
            let number = |index: usize| super::element(at, index);
            let expiry = &mut feature.licenseExpiry;
            (expiry.year, expiry.month, expiry.day) =
                (number(0)? as _, number(1)? as _, number(2)? as _);
            (expiry.hour, expiry.min, expiry.sec) =
                (number(3)? as _, number(4)? as _, number(5)? as _);
            expiry.status = EXPIRY_VALID;
        }
        Ok(())
    })
}

/// The sensor is the caller's argument: `nvmlDeviceGetTemperatureV/0`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperatureV(
    device: nvmlDevice_t,
    out: *mut nvmlTemperature_v1_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        check_version::<nvmlTemperature_v1_t>(out.version, 1)?;
        out.temperature = integer(&ask(
            device,
            &format!("nvmlDeviceGetTemperatureV/{}", out.sensorType),
        )?)? as _;
        Ok(())
    })
}

/// The fan is the caller's argument: `nvmlDeviceGetFanSpeedRPM/0`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetFanSpeedRPM(
    device: nvmlDevice_t,
    out: *mut nvmlFanSpeedInfo_v1_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        check_version::<nvmlFanSpeedInfo_v1_t>(out.version, 1)?;
        out.speed = integer(&ask(
            device,
            &format!("nvmlDeviceGetFanSpeedRPM/{}", out.fan),
        )?)? as _;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetViolationStatus(
    device: nvmlDevice_t,
    policy: c_uint,
    out: *mut nvmlViolationTime_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        let answer = ask(device, &format!("nvmlDeviceGetViolationStatus/{policy}"))?;
        out.referenceTime = member(&answer, "referenceTime")? as _;
        out.violationTime = member(&answer, "violationTime")? as _;
        Ok(())
    })
}

/// Two structures; the scenario has a list of two numbers.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDramEncryptionMode(
    device: nvmlDevice_t,
    current: *mut nvmlDramEncryptionInfo_v1_t,
    pending: *mut nvmlDramEncryptionInfo_v1_t,
) -> u32 {
    guard(|| {
        let outs = [place(current)?, place(pending)?];
        for out in &outs {
            check_version::<nvmlDramEncryptionInfo_v1_t>(out.version, 1)?;
        }
        let answer = ask(device, "nvmlDeviceGetDramEncryptionMode")?;
        for (index, out) in outs.into_iter().enumerate() {
            out.encryptionState = super::element(&answer, index)? as _;
        }
        Ok(())
    })
}

/// `nvmlDeviceGetPciInfo_v3` of the scenario, in the shape of both calls.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, out: *mut nvmlPciInfo_t) -> u32 {
    guard(|| {
        let out = place(out)?;
        let answer = ask(device, "nvmlDeviceGetPciInfo_v3")?;
        out.domain = member(&answer, "domain")? as _;
        out.bus = member(&answer, "bus")? as _;
        out.device = member(&answer, "device")? as _;
        out.pciDeviceId = member(&answer, "pciDeviceId")? as _;
        out.pciSubSystemId = member(&answer, "pciSubSystemId")? as _;
        let bus_id = text(answer.get("busId").ok_or(code::UNKNOWN)?)?;
        fill_text(&mut out.busId, bus_id);
        fill_text(&mut out.busIdLegacy, bus_id.get(4..).unwrap_or(bus_id));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfoExt(
    device: nvmlDevice_t,
    out: *mut nvmlPciInfoExt_v1_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        check_version::<nvmlPciInfoExt_v1_t>(out.version, 1)?;
        let class = ask(device, "nvmlDeviceGetPciInfoExt")?;
        let pci = ask(device, "nvmlDeviceGetPciInfo_v3")?;
        out.domain = member(&pci, "domain")? as _;
        out.bus = member(&pci, "bus")? as _;
        out.device = member(&pci, "device")? as _;
        out.pciDeviceId = member(&pci, "pciDeviceId")? as _;
        out.pciSubSystemId = member(&pci, "pciSubSystemId")? as _;
        out.baseClass = member(&class, "baseClass")? as _;
        out.subClass = member(&class, "subClass")? as _;
        fill_text(
            &mut out.busId,
            text(pci.get("busId").ok_or(code::UNKNOWN)?)?,
        );
        Ok(())
    })
}

/// A list of `[type, firmware version]`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetBridgeChipInfo(
    device: nvmlDevice_t,
    out: *mut nvmlBridgeChipHierarchy_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        let answer = ask(device, "nvmlDeviceGetBridgeChipInfo")?;
        let chips = answer.as_array().ok_or(code::UNKNOWN)?;
        out.bridgeCount = u8::try_from(chips.len()).map_err(|_| code::UNKNOWN)?;
        for (chip, place) in chips.iter().zip(&mut out.bridgeChipInfo) {
            place.type_ = super::element(chip, 0)? as _;
            place.fwVersion = super::element(chip, 1)? as _;
        }
        Ok(())
    })
}

/// 16 bytes from hexadecimal digits; anything between them is passed over.
fn sixteen_bytes(value: Option<&Value>) -> Result<[u8; 16], u32> {
    let digits: Vec<u32> = value
        .and_then(Value::as_str)
        .ok_or(code::UNKNOWN)?
        .chars()
        .filter_map(|letter| letter.to_digit(16))
        .collect();
    let mut bytes = [0; 16];
    for (place, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *place = pair.iter().fold(0, |byte, digit| byte * 16 + *digit as u8);
    }
    Ok(bytes)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuFabricInfo(
    device: nvmlDevice_t,
    out: *mut nvmlGpuFabricInfo_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        let answer = ask(device, "nvmlDeviceGetGpuFabricInfo")?;
        out.clusterUuid = sixteen_bytes(answer.get("clusterUuid"))?;
        out.status = member(&answer, "status")? as _;
        out.cliqueId = member(&answer, "cliqueId")? as _;
        out.state = member(&answer, "state")? as _;
        Ok(())
    })
}

/// Versions 2 and 3 begin with the same members; 3 adds the health's summary.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    out: *mut nvmlGpuFabricInfo_v3_t,
) -> u32 {
    guard(|| {
        if out.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: every version begins with its number, and version 2 is the beginning of version
        // 3.
        let version = unsafe { *out.cast::<c_uint>() };
        let has_summary = match (
            version_number::<nvmlGpuFabricInfo_v3_t>(version),
            version_number::<nvmlGpuFabricInfo_v2_t>(version),
        ) {
            (Ok(3), _) => true,
            (_, Ok(2)) => false,
            _ => return Err(code::VERSION_MISMATCH),
        };
        let answer = ask(device, "nvmlDeviceGetGpuFabricInfoV")?;
        let begin = place(out.cast::<nvmlGpuFabricInfo_v2_t>())?;
        begin.clusterUuid = sixteen_bytes(answer.get("clusterUuid"))?;
        begin.status = member(&answer, "status")? as _;
        begin.cliqueId = member(&answer, "cliqueId")? as _;
        begin.state = member(&answer, "state")? as _;
        begin.healthMask = member(&answer, "healthMask")? as _;
        if has_summary {
            place(out)?.healthSummary = member(&answer, "healthSummary")? as _;
        }
        Ok(())
    })
}

/// Versions 1 and 2 have one shape under two sets of names.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPlatformInfo(
    device: nvmlDevice_t,
    out: *mut nvmlPlatformInfo_v2_t,
) -> u32 {
    const { assert!(size_of::<nvmlPlatformInfo_v1_t>() == size_of::<nvmlPlatformInfo_v2_t>()) };
    guard(|| {
        let out = place(out)?;
        if !(1..=2).contains(&version_number::<nvmlPlatformInfo_v2_t>(out.version)?) {
            return Err(code::VERSION_MISMATCH);
        }
        let answer = ask(device, "nvmlDeviceGetPlatformInfo")?;
        out.ibGuid = sixteen_bytes(answer.get("ibGuid"))?;
        out.chassisSerialNumber = [0; 16];
        let serial = text(answer.get("chassisSerialNumber").ok_or(code::UNKNOWN)?)?;
        for (place, byte) in out.chassisSerialNumber.iter_mut().zip(serial.bytes()) {
            *place = byte;
        }
        out.slotNumber = member(&answer, "slotNumber")? as _;
        out.trayIndex = member(&answer, "trayIndex")? as _;
        out.hostId = member(&answer, "hostId")? as _;
        out.peerType = member(&answer, "peerType")? as _;
        out.moduleId = member(&answer, "moduleId")? as _;
        Ok(())
    })
}

/// Three masks of 256 bits; the scenario has lists of the bits that are set.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
    device: nvmlDevice_t,
    out: *mut nvmlWorkloadPowerProfileCurrentProfiles_v1_t,
) -> u32 {
    guard(|| {
        let out = place(out)?;
        check_version::<nvmlWorkloadPowerProfileCurrentProfiles_v1_t>(out.version, 1)?;
        let answer = ask(device, "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles")?;
        out.perfProfilesMask.mask = mask(answer.get("perfProfilesMask"))?;
        out.requestedProfilesMask.mask = mask(answer.get("requestedProfilesMask"))?;
        out.enforcedProfilesMask.mask = mask(answer.get("enforcedProfilesMask"))?;
        Ok(())
    })
}

fn mask(bits: Option<&Value>) -> Result<[c_uint; 8], u32> {
    let mut mask = [0; 8];
    for bit in bits.and_then(Value::as_array).ok_or(code::UNKNOWN)? {
        let bit = usize::try_from(integer(bit)?).map_err(|_| code::UNKNOWN)?;
        *mask.get_mut(bit / 32).ok_or(code::UNKNOWN)? |= 1 << (bit % 32);
    }
    Ok(mask)
}
