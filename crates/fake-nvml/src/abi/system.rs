//! Calls without a device.

use std::ffi::{c_char, c_int, c_uint};

use super::{element, guard, integer, playing, put, put_text, text};
use crate::{
    code,
    player::{self, Target},
};

fn ask(key: &str) -> Result<serde_json::Value, u32> {
    playing()?.ask(Target::System, key)
}

/// Starts the scenario and its clock. The scenario may refuse with `nvmlInit_v2: {return: 9}`, or
/// hang.
fn start() -> Result<(), u32> {
    player::start();
    match ask("nvmlInit_v2") {
        // Not named: it starts.
        Ok(_) | Err(code::NOT_SUPPORTED) => Ok(()),
        Err(code) => Err(code),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    guard(start)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    guard(start)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_code: u32) -> *const c_char {
    c"an error of the fake NVML".as_ptr()
}

macro_rules! texts {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(buffer: *mut c_char, length: c_uint) -> u32 {
            guard(|| put_text(buffer, length, text(&ask(stringify!($name))?)?))
        }
    )* };
}

texts! { nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion }

/// Both calls answer from one entry: the older needs no `libcuda`, a difference a scenario makes by
/// `nvmlSystemGetCudaDriverVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) -> u32 {
    guard(|| {
        put(
            out,
            integer(&ask("nvmlSystemGetCudaDriverVersion_v2")?)? as c_int,
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) -> u32 {
    guard(|| {
        let answer = match ask("nvmlSystemGetCudaDriverVersion") {
            Err(code::NOT_SUPPORTED) => ask("nvmlSystemGetCudaDriverVersion_v2"),
            said => said,
        };
        put(out, integer(&answer?)? as c_int)
    })
}

/// `nvmlSystemGetProcessName/4242`; a process the scenario does not name is not found.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    buffer: *mut c_char,
    length: c_uint,
) -> u32 {
    guard(|| {
        let answer = ask(&format!("nvmlSystemGetProcessName/{pid}")).map_err(|code| {
            if code == code::NOT_SUPPORTED {
                code::NOT_FOUND
            } else {
                code
            }
        });
        // The driver cuts a long name.
        let name = answer?;
        let name = text(&name)?;
        let room = (length as usize).saturating_sub(1).min(name.len());
        let end = (0..=room)
            .rev()
            .find(|end| name.is_char_boundary(*end))
            .unwrap_or(0);
        put_text(buffer, length, name.get(..end).unwrap_or_default())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGetVgpuDriverCapabilities(capability: c_uint, out: *mut c_uint) -> u32 {
    guard(|| {
        put(
            out,
            integer(&ask(&format!(
                "nvmlGetVgpuDriverCapabilities/{capability}"
            ))?)? as c_uint,
        )
    })
}

#[repr(C)]
pub struct DriverBranch {
    version: c_uint,
    branch: [c_char; 80],
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverBranch(out: *mut DriverBranch, _length: c_uint) -> u32 {
    guard(|| {
        // SAFETY: the caller passes a structure it owns for the length of the call.
        let out = unsafe { out.as_mut() }.ok_or(code::INVALID_ARGUMENT)?;
        if out.version != size_of::<DriverBranch>() as u32 | 1 << 24 {
            return Err(code::VERSION_MISMATCH);
        }
        super::fill_text(&mut out.branch, text(&ask("nvmlSystemGetDriverBranch")?)?);
        Ok(())
    })
}

#[repr(C)]
pub struct ConfComputeState {
    environment: c_uint,
    feature: c_uint,
    development_tools: c_uint,
}

/// A list of three numbers.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetConfComputeState(out: *mut ConfComputeState) -> u32 {
    guard(|| {
        let answer = ask("nvmlSystemGetConfComputeState")?;
        let state = ConfComputeState {
            environment: element(&answer, 0)? as _,
            feature: element(&answer, 1)? as _,
            development_tools: element(&answer, 2)? as _,
        };
        put(out, state)
    })
}
