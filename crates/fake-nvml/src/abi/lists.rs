//! Calls that answer lists: processes, their utilization, accounting, retired pages, samples,
//! supported clocks.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_t, nvmlDevice_t, nvmlPciInfo_t, nvmlProcessDetail_v1_t,
    nvmlProcessDetailList_v1_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_v1_t, nvmlSample_t, nvmlValue_t,
};
use serde_json::Value;

use super::{ask, fill_text, guard, integer, member, put, put_list, text};
use crate::code;

/// Value that NVML writes if the driver does not report a process's memory.
const MEMORY_UNKNOWN: u64 = u64::MAX;
/// Value that NVML writes for a process outside any instance.
const NO_INSTANCE: u32 = u32::MAX;

fn items(answer: &Value) -> Result<&[Value], u32> {
    answer.as_array().map(Vec::as_slice).ok_or(code::UNKNOWN)
}

fn optional(object: &Value, name: &str, otherwise: i128) -> Result<i128, u32> {
    object.get(name).map_or(Ok(otherwise), integer)
}

fn process(found: &Value) -> Result<nvmlProcessInfo_t, u32> {
    Ok(nvmlProcessInfo_t {
        pid: member(found, "pid")? as _,
        usedGpuMemory: optional(found, "usedGpuMemory", MEMORY_UNKNOWN.into())? as _,
        gpuInstanceId: optional(found, "gpuInstanceId", NO_INSTANCE.into())? as _,
        computeInstanceId: optional(found, "computeInstanceId", NO_INSTANCE.into())? as _,
    })
}

macro_rules! processes {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, room: *mut nvmlProcessInfo_t) -> u32 {
            guard(|| {
                let found: Vec<_> = items(&ask(device, stringify!($name))?)?.iter().map(process).collect::<Result<_, _>>()?;
                put_list(count, room, &found)
            })
        }
    )* };
}

processes! {
    nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetMPSComputeRunningProcesses_v3
    nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetMPSComputeRunningProcesses_v2
}

macro_rules! old_processes {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, room: *mut nvmlProcessInfo_v1_t) -> u32 {
            guard(|| {
                let found: Vec<_> = items(&ask(device, stringify!($name))?)?.iter().map(process).collect::<Result<_, _>>()?;
                let found: Vec<_> = found.iter().map(|new| nvmlProcessInfo_v1_t { pid: new.pid, usedGpuMemory: new.usedGpuMemory }).collect();
                put_list(count, room, &found)
            })
        }
    )* };
}

old_processes! { nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses }

/// `nvmlDeviceGetRunningProcessDetailList/0` by mode; the list's own room is in the structure.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    out: *mut nvmlProcessDetailList_v1_t,
) -> u32 {
    guard(|| {
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let out = unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        if out.version != size_of::<nvmlProcessDetailList_v1_t>() as u32 | 1 << 24 {
            return Err(code::VERSION_MISMATCH);
        }
        let answer = ask(
            device,
            &format!("nvmlDeviceGetRunningProcessDetailList/{}", out.mode),
        )?;
        let detail = |found: &Value| {
            process(found).map(|process| nvmlProcessDetail_v1_t {
                pid: process.pid,
                usedGpuMemory: process.usedGpuMemory,
                gpuInstanceId: process.gpuInstanceId,
                computeInstanceId: process.computeInstanceId,
                usedGpuCcProtectedMemory: 0,
            })
        };
        let found: Vec<_> = items(&answer)?
            .iter()
            .map(detail)
            .collect::<Result<_, _>>()?;
        put_list(&raw mut out.numProcArrayEntries, out.procArray, &found)
    })
}

/// Samples newer than the caller has seen; none is "not found", as the driver says it.
fn newer(answer: &Value, seen: u64) -> Result<Vec<&Value>, u32> {
    let found: Vec<&Value> = items(answer)?
        .iter()
        .filter(|sample| member(sample, "timeStamp").is_ok_and(|at| at > i128::from(seen)))
        .collect();
    if found.is_empty() {
        Err(code::NOT_FOUND)
    } else {
        Ok(found)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    room: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    seen: c_ulonglong,
) -> u32 {
    guard(|| {
        let answer = ask(device, "nvmlDeviceGetProcessUtilization")?;
        let sample = |found: &Value| {
            Ok(nvmlProcessUtilizationSample_t {
                pid: member(found, "pid")? as _,
                timeStamp: member(found, "timeStamp")? as _,
                smUtil: member(found, "smUtil")? as _,
                memUtil: member(found, "memUtil")? as _,
                encUtil: member(found, "encUtil")? as _,
                decUtil: member(found, "decUtil")? as _,
            })
        };
        let found: Vec<_> = newer(&answer, seen)?
            .into_iter()
            .map(sample)
            .collect::<Result<_, u32>>()?;
        put_list(count, room, &found)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetProcessesUtilizationInfo(
    device: nvmlDevice_t,
    out: *mut nvmlProcessesUtilizationInfo_v1_t,
) -> u32 {
    guard(|| {
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let out = unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        if out.version != size_of::<nvmlProcessesUtilizationInfo_v1_t>() as u32 | 1 << 24 {
            return Err(code::VERSION_MISMATCH);
        }
        let answer = ask(device, "nvmlDeviceGetProcessUtilization")?;
        let sample = |found: &Value| {
            Ok(nvmlProcessUtilizationInfo_v1_t {
                timeStamp: member(found, "timeStamp")? as _,
                pid: member(found, "pid")? as _,
                smUtil: member(found, "smUtil")? as _,
                memUtil: member(found, "memUtil")? as _,
                encUtil: member(found, "encUtil")? as _,
                decUtil: member(found, "decUtil")? as _,
                jpgUtil: optional(found, "jpgUtil", 0)? as _,
                ofaUtil: optional(found, "ofaUtil", 0)? as _,
            })
        };
        let found: Vec<_> = newer(&answer, out.lastSeenTimeStamp)?
            .into_iter()
            .map(sample)
            .collect::<Result<_, u32>>()?;
        put_list(&raw mut out.processSamplesCount, out.procUtilArray, &found)
    })
}

/// `nvmlDeviceGetSamples/0`: a list of `{timeStamp, value}`, unsigned numbers.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: c_uint,
    seen: c_ulonglong,
    value_type: *mut c_uint,
    count: *mut c_uint,
    room: *mut nvmlSample_t,
) -> u32 {
    guard(|| {
        let answer = ask(device, &format!("nvmlDeviceGetSamples/{kind}"))?;
        let sample = |found: &Value| {
            let sampleValue = nvmlValue_t {
                ullVal: member(found, "value")? as _,
            };
            Ok(nvmlSample_t {
                timeStamp: member(found, "timeStamp")? as _,
                sampleValue,
            })
        };
        let found: Vec<_> = newer(&answer, seen)?
            .into_iter()
            .map(sample)
            .collect::<Result<_, u32>>()?;
        put(value_type, 1)?;
        if room.is_null() {
            return put(count, found.len() as c_uint);
        }
        put_list(count, room, &found)
    })
}

fn numbers(answer: &Value) -> Result<Vec<i128>, u32> {
    items(answer)?.iter().map(integer).collect()
}

/// `nvmlDeviceGetRetiredPages_v2/0`: addresses. A call without room for them returns the number.
fn retired(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> Result<usize, u32> {
    let found: Vec<u64> = numbers(&ask(
        device,
        &format!("nvmlDeviceGetRetiredPages_v2/{cause}"),
    )?)?
    .iter()
    .map(|address| *address as u64)
    .collect();
    if addresses.is_null() {
        put(count, found.len() as c_uint)?;
    } else {
        put_list(count, addresses, &found)?;
    }
    Ok(found.len())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
) -> u32 {
    guard(|| retired(device, cause, count, addresses).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    cause: c_uint,
    count: *mut c_uint,
    addresses: *mut c_ulonglong,
    times: *mut c_ulonglong,
) -> u32 {
    guard(|| {
        let found = retired(device, cause, count, addresses)?;
        if !addresses.is_null() && !times.is_null() {
            // SAFETY: the caller has as much room for times as for addresses, and that was enough.
            unsafe { std::ptr::write_bytes(times, 0, found) };
        }
        Ok(())
    })
}

macro_rules! number_lists {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t, count: *mut c_uint, room: *mut c_uint) -> u32 {
            guard(|| {
                let found: Vec<c_uint> = numbers(&ask(device, stringify!($name))?)?.iter().map(|number| *number as c_uint).collect();
                put_list(count, room, &found)
            })
        }
    )* };
}

number_lists! { nvmlDeviceGetAccountingPids nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedPerformanceStates }

/// `nvmlDeviceGetSupportedGraphicsClocks/3201`, by memory clock.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory: c_uint,
    count: *mut c_uint,
    room: *mut c_uint,
) -> u32 {
    guard(|| {
        let answer = ask(
            device,
            &format!("nvmlDeviceGetSupportedGraphicsClocks/{memory}"),
        )?;
        let found: Vec<c_uint> = numbers(&answer)?
            .iter()
            .map(|number| *number as c_uint)
            .collect();
        put_list(count, room, &found)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetAccountingStats(
    device: nvmlDevice_t,
    pid: c_uint,
    out: *mut nvmlAccountingStats_t,
) -> u32 {
    guard(|| {
        let answer =
            ask(device, &format!("nvmlDeviceGetAccountingStats/{pid}")).map_err(|code| {
                if code == code::NOT_SUPPORTED {
                    code::NOT_FOUND
                } else {
                    code
                }
            })?;
        let stats = nvmlAccountingStats_t {
            gpuUtilization: member(&answer, "gpuUtilization")? as _,
            memoryUtilization: member(&answer, "memoryUtilization")? as _,
            maxMemoryUsage: member(&answer, "maxMemoryUsage")? as _,
            time: member(&answer, "time")? as _,
            startTime: member(&answer, "startTime")? as _,
            isRunning: member(&answer, "isRunning")? as _,
            reserved: [0; 5],
        };
        put(out, stats)
    })
}

/// `nvmlDeviceGetNvLinkRemotePciInfo_v2/0`: the bus id of the other end.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: c_uint,
    out: *mut nvmlPciInfo_t,
) -> u32 {
    guard(|| {
        let answer = ask(
            device,
            &format!("nvmlDeviceGetNvLinkRemotePciInfo_v2/{link}"),
        )?;
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let out = unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        fill_text(&mut out.busId, text(&answer)?);
        fill_text(
            &mut out.busIdLegacy,
            text(&answer)?.get(4..).unwrap_or_default(),
        );
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    kind: c_uint,
    out: *mut c_int,
) -> u32 {
    let index = (other as usize).wrapping_sub(1);
    guard(|| {
        put(
            out,
            integer(&ask(
                device,
                &format!("nvmlDeviceGetP2PStatus/{index}/{kind}"),
            )?)? as c_int,
        )
    })
}
