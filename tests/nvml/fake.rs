//! A small NVML library with one device, for machines without a GPU. `main.rs` compiles it with `rustc` and loads it as kiln
//! loads the driver's. What a real driver would not offer is left out or answers "not supported", on purpose.
//!
//! The device draws 500 W, and its energy counter follows the clock.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    sync::OnceLock,
    time::Instant,
};

type Return = c_uint;
type Device = *mut c_void;

const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const INSUFFICIENT_SIZE: Return = 7;
const ARGUMENT_VERSION_MISMATCH: Return = 25;
const MIB: u64 = 1 << 20;

static START: OnceLock<Instant> = OnceLock::new();

fn put(buffer: *mut c_char, length: c_uint, text: &CStr) -> Return {
    let bytes = text.to_bytes_with_nul();
    if buffer.is_null() {
        return INVALID_ARGUMENT;
    }
    if (length as usize) < bytes.len() {
        return INSUFFICIENT_SIZE;
    }
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len()) };
    SUCCESS
}

macro_rules! texts {
    ($($name:ident => $text:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_device: Device, buffer: *mut c_char, length: c_uint) -> Return { put(buffer, length, $text) }
    )* };
}

macro_rules! numbers {
    ($($name:ident => $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_device: Device, out: *mut c_uint) -> Return { unsafe { *out = $value }; SUCCESS }
    )* };
}

texts! {
    nvmlDeviceGetName => c"NVIDIA Fake";
    nvmlDeviceGetUUID => c"GPU-00000000-0000-0000-0000-000000000001";
    nvmlDeviceGetSerial => c"1650000000001";
    nvmlDeviceGetVbiosVersion => c"96.00.A5.00.03";
}

numbers! {
    nvmlDeviceGetIndex => 0;
    nvmlDeviceGetPowerUsage => 500_000;
    nvmlDeviceGetEnforcedPowerLimit => 700_000;
    nvmlDeviceGetPersistenceMode => 1;
    nvmlDeviceGetPerformanceState => 0;
    nvmlDeviceGetArchitecture => 9;
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Return {
    START.get_or_init(Instant::now);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(buffer: *mut c_char, length: c_uint) -> Return {
    put(buffer, length, c"590.48.01")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Return {
    unsafe { *version = 13010 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetProcessName(_pid: c_uint, buffer: *mut c_char, length: c_uint) -> Return {
    put(buffer, length, c"/home/ada/train")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    unsafe { *count = 1 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> Return {
    if index > 0 {
        return INVALID_ARGUMENT;
    }
    unsafe { *device = std::ptr::dangling_mut() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(_device: Device, _sensor: c_uint, out: *mut c_uint) -> Return {
    unsafe { *out = 52 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetClockInfo(_device: Device, clock: c_uint, out: *mut c_uint) -> Return {
    unsafe { *out = [1980, 1980, 3201, 1545][clock as usize & 3] };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEnergyConsumption(_device: Device, out: *mut c_ulonglong) -> Return {
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    unsafe { *out = (seconds * 500_000.0) as u64 };
    SUCCESS
}

/// Software power cap.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(_device: Device, out: *mut c_ulonglong) -> Return {
    unsafe { *out = 0x4 };
    SUCCESS
}

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(_device: Device, out: *mut Utilization) -> Return {
    unsafe { *out = Utilization { gpu: 75, memory: 7 } };
    SUCCESS
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(_device: Device, out: *mut Memory) -> Return {
    let version = unsafe { (*out).version };
    if version != (size_of::<Memory>() as u32 | 2 << 24) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    unsafe { *out = Memory { version, total: 143_771 * MIB, reserved: 614 * MIB, used: 32_362 * MIB, free: 110_795 * MIB } };
    SUCCESS
}

#[repr(C)]
pub struct Process {
    pid: c_uint,
    memory: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(_device: Device, count: *mut c_uint, out: *mut Process) -> Return {
    let room = unsafe { *count };
    unsafe { *count = 1 };
    if room < 1 || out.is_null() {
        return INSUFFICIENT_SIZE;
    }
    // Process 1 is there on every machine.
    unsafe { *out = Process { pid: 1, memory: 2048 * MIB, gpu_instance: u32::MAX, compute_instance: u32::MAX } };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode() -> Return {
    NOT_SUPPORTED
}
