//! Event sets: they can be made and waited for; the answer is the scenario's `nvmlEventSetWait_v2`.

use std::{
    ffi::{c_uint, c_ulonglong, c_void},
    thread,
    time::Duration,
};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t};

use super::{ask, guard, handle_of, member, playing, put};
use crate::{code, player::Target};

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(out: *mut *mut c_void) -> u32 {
    guard(|| put(out, std::ptr::without_provenance_mut(1)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> u32 {
    code::SUCCESS
}

/// Registered if the device says which events it has.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    _events: c_ulonglong,
    _set: *mut c_void,
) -> u32 {
    guard(|| ask(device, "nvmlDeviceGetSupportedEventTypes").map(|_| ()))
}

/// `{device: 0, eventType: 8, eventData: 79}` in the system's calls; else nothing happens within
/// the time.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(
    _set: *mut c_void,
    out: *mut nvmlEventData_t,
    milliseconds: c_uint,
) -> u32 {
    guard(
        || match playing()?.ask(Target::System, "nvmlEventSetWait_v2") {
            Ok(event) => put(
                out,
                nvmlEventData_t {
                    device: handle_of(Target::Device(member(&event, "device")? as usize)),
                    eventType: member(&event, "eventType")? as _,
                    eventData: member(&event, "eventData")? as _,
                    gpuInstanceId: u32::MAX,
                    computeInstanceId: u32::MAX,
                },
            ),
            Err(code::NOT_SUPPORTED) => {
                thread::sleep(Duration::from_millis(milliseconds.into()));
                Err(code::TIMEOUT)
            }
            Err(code) => Err(code),
        },
    )
}
