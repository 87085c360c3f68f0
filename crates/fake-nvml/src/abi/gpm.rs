//! GPM: samples, and metrics between two of them. `nvmlGpmMetricsGet/2` of the device is metric 2,
//! as it is when asked.

use std::ffi::{c_uint, c_void};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpmMetric_t, nvmlGpmSupport_t};

use super::{ask, guard, playing, put, target_of};
use crate::{code, player::Target};

/// Content of a sample.
struct Sample {
    of: Option<Target>,
}

/// The beginning of `nvmlGpmMetricsGet_t`: its array is longer in newer headers under the same
/// version, so only the entries that the caller counts are touched.
#[repr(C)]
pub struct MetricsGet {
    version: c_uint,
    count: c_uint,
    first: *mut c_void,
    second: *mut c_void,
    metrics: [nvmlGpmMetric_t; 0],
}

/// Supported if the scenario names it: `nvmlGpmQueryDeviceSupport: 1`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    out: *mut nvmlGpmSupport_t,
) -> u32 {
    guard(|| {
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let out = unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        if out.version != 1 {
            return Err(code::VERSION_MISMATCH);
        }
        out.isSupportedDevice = match ask(device, "nvmlGpmQueryDeviceSupport") {
            Ok(value) => super::integer(&value)? as _,
            Err(code::NOT_SUPPORTED) => 0,
            Err(code) => return Err(code),
        };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(out: *mut *mut c_void) -> u32 {
    guard(|| put(out, Box::into_raw(Box::new(Sample { of: None })).cast()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: *mut c_void) -> u32 {
    guard(|| {
        if !sample.is_null() {
            // SAFETY: the caller gives back what `nvmlGpmSampleAlloc` made, once.
            drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
        }
        Ok(())
    })
}

fn sample<'a>(sample: *mut c_void) -> Result<&'a mut Sample, u32> {
    // SAFETY: the caller passes what `nvmlGpmSampleAlloc` made and has not given it back.
    unsafe { sample.cast::<Sample>().as_mut() }.ok_or(code::INVALID_ARGUMENT)
}

fn take(target: Target, into: *mut c_void) -> Result<(), u32> {
    let player = playing()?;
    player.ask(target, "nvmlGpmQueryDeviceSupport")?;
    player.open(target, "nvmlGpmSampleGet")?;
    sample(into)?.of = Some(target);
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleGet(device: nvmlDevice_t, into: *mut c_void) -> u32 {
    guard(|| take(target_of(device)?, into))
}

/// The MIG device with this GPU instance id.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    instance: c_uint,
    into: *mut c_void,
) -> u32 {
    guard(|| {
        let Target::Device(parent) = target_of(device)? else {
            return Err(code::INVALID_ARGUMENT);
        };
        let devices = &playing()?.scenario().devices;
        let is_it = |mig: &Option<crate::Device>| {
            let id = mig
                .as_ref()
                .and_then(|mig| mig.calls.get("nvmlDeviceGetGpuInstanceId")?.as_u64());
            id == Some(instance.into())
        };
        let index = devices
            .get(parent)
            .and_then(|device| device.mig.iter().position(is_it))
            .ok_or(code::NOT_FOUND)?;
        take(Target::Mig(parent, index), into)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMetricsGet(get: *mut MetricsGet) -> u32 {
    guard(|| {
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let head = unsafe { get.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        if head.version != 1 {
            return Err(code::VERSION_MISMATCH);
        }
        let target = match (sample(head.first)?.of, sample(head.second)?.of) {
            (Some(first), Some(second)) if first == second => second,
            _ => return Err(code::INVALID_ARGUMENT),
        };
        let player = playing()?;
        player.open(target, "nvmlGpmMetricsGet")?;
        let metrics = head.metrics.as_mut_ptr();
        for index in 0..head.count as usize {
            // SAFETY: the caller says that there are so many metrics behind the head.
            let metric = unsafe { &mut *metrics.add(index) };
            let said = player.ask(target, &format!("nvmlGpmMetricsGet/{}", metric.metricId));
            metric.nvmlReturn = match said.and_then(|value| value.as_f64().ok_or(code::UNKNOWN)) {
                Ok(value) => {
                    metric.value = value;
                    code::SUCCESS
                }
                Err(code) => code,
            };
        }
        Ok(())
    })
}
