//! Calls that find devices: by index, UUID, bus id, serial number; MIG devices within devices.

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::{guard, handle_of, integer, playing, put, target_of};
use crate::{code, player::Target};

fn count() -> Result<u32, u32> {
    let player = playing()?;
    match player.ask(Target::System, "nvmlDeviceGetCount_v2") {
        Ok(value) => Ok(integer(&value)? as u32),
        // Not named in the scenario: as many as it has.
        Err(code::NOT_SUPPORTED) => Ok(player.scenario().devices.len() as u32),
        Err(code) => Err(code),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> u32 {
    guard(|| put(out, count()?))
}

/// Like the driver, reports a lost device as lost here already.
fn open(target: Target, key: &str, out: *mut nvmlDevice_t) -> Result<(), u32> {
    let player = playing()?;
    player.open(target, key)?;
    let calls = player.device(target).map(|device| &device.calls);
    if calls.is_some_and(|calls| calls.contains_key(key)) {
        player.ask(target, key)?;
    }
    put(out, handle_of(target))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut nvmlDevice_t) -> u32 {
    guard(|| {
        let target = Target::Device(index as usize);
        playing()?.device(target).ok_or(code::INVALID_ARGUMENT)?;
        open(target, "nvmlDeviceGetHandleByIndex_v2", out)
    })
}

/// The device, or MIG device, whose call `of` answers this text.
fn find(of: &str, wanted: *const c_char) -> Result<Target, u32> {
    if wanted.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and C's texts end with a zero.
    let wanted = unsafe { CStr::from_ptr(wanted) }
        .to_str()
        .map_err(|_| code::INVALID_ARGUMENT)?;
    let devices = &playing()?.scenario().devices;
    let is_it = |device: &crate::Device| {
        device
            .calls
            .get(of)
            .is_some_and(|value| value.as_str() == Some(wanted))
    };
    for (index, device) in devices.iter().enumerate() {
        if is_it(device) {
            return Ok(Target::Device(index));
        }
        if let Some(mig) = device
            .mig
            .iter()
            .position(|mig| mig.as_ref().is_some_and(is_it))
        {
            return Ok(Target::Mig(index, mig));
        }
    }
    Err(code::NOT_FOUND)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut nvmlDevice_t) -> u32 {
    guard(|| {
        open(
            find("nvmlDeviceGetUUID", uuid)?,
            "nvmlDeviceGetHandleByUUID",
            out,
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleBySerial(
    serial: *const c_char,
    out: *mut nvmlDevice_t,
) -> u32 {
    guard(|| {
        open(
            find("nvmlDeviceGetSerial", serial)?,
            "nvmlDeviceGetHandleBySerial",
            out,
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    out: *mut nvmlDevice_t,
) -> u32 {
    guard(|| {
        if bus_id.is_null() {
            return Err(code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and C's texts end with a zero.
        let wanted = unsafe { CStr::from_ptr(bus_id) }
            .to_string_lossy()
            .to_ascii_uppercase();
        let devices = &playing()?.scenario().devices;
        let bus_id = |device: &crate::Device| {
            Some(
                device
                    .calls
                    .get("nvmlDeviceGetPciInfo_v3")?
                    .get("busId")?
                    .as_str()?
                    .to_ascii_uppercase(),
            )
        };
        // A domain of four digits is accepted for one of eight.
        let found = devices.iter().position(|device| {
            bus_id(device).is_some_and(|id| id == wanted || id.get(4..) == Some(wanted.as_str()))
        });
        open(
            Target::Device(found.ok_or(code::NOT_FOUND)?),
            "nvmlDeviceGetHandleByPciBusId_v2",
            out,
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    out: *mut nvmlDevice_t,
) -> u32 {
    guard(|| {
        let Target::Device(parent) = target_of(device)? else {
            return Err(code::INVALID_ARGUMENT);
        };
        let player = playing()?;
        player.open(
            Target::Device(parent),
            "nvmlDeviceGetMigDeviceHandleByIndex",
        )?;
        let target = Target::Mig(parent, index as usize);
        player.device(target).ok_or(code::NOT_FOUND)?;
        put(out, handle_of(target))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig: nvmlDevice_t,
    out: *mut nvmlDevice_t,
) -> u32 {
    guard(|| {
        let Target::Mig(parent, _) = target_of(mig)? else {
            return Err(code::INVALID_ARGUMENT);
        };
        put(out, handle_of(Target::Device(parent)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, out: *mut c_uint) -> u32 {
    guard(|| {
        put(
            out,
            u32::from(matches!(target_of(device)?, Target::Mig(..))),
        )
    })
}
