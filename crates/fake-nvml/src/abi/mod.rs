//! The C functions of the driver's library. Input: C arguments. Output: numbers, structures and a
//! return code.
//!
//! All their answers come from the scenario being played (`player`). No panic crosses into C.
//! Handles are numbers that are never dereferenced. Layouts are those of nvml-wrapper-sys (nvml.h
//! 13).

#![allow(non_snake_case, reason = "the names are the driver's")]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "C calls these; each pointer is checked for null"
)]
#![allow(unreachable_pub, reason = "exported to C, not to Rust")]

mod events;
mod fields;
mod gpm;
mod handles;
mod lists;
mod numbers;
mod structures;
mod system;

use std::{
    ffi::{c_char, c_uint},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use serde_json::Value;

use crate::{
    code,
    player::{Player, Target, player},
};

/// Runs a call and makes its return code. A panic is "unknown error".
fn guard(call: impl FnOnce() -> Result<(), u32>) -> u32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::UNKNOWN,
    }
}

fn playing() -> Result<&'static Player, u32> {
    player().ok_or(code::DRIVER_NOT_LOADED)
}

/// MIG devices' handles start here; each device has room for 256.
const MIG_HANDLES: usize = 1 << 20;

fn handle_of(target: Target) -> nvmlDevice_t {
    let number = match target {
        Target::System => 0,
        Target::Device(index) => index + 1,
        Target::Mig(parent, index) => MIG_HANDLES + parent * 256 + index,
    };
    ptr::without_provenance_mut(number)
}

/// Whom a handle means, if the scenario has it.
fn target_of(handle: nvmlDevice_t) -> Result<Target, u32> {
    let number = handle as usize;
    let target = match number.checked_sub(MIG_HANDLES) {
        Some(mig) => Target::Mig(mig / 256, mig % 256),
        None => Target::Device(number.checked_sub(1).ok_or(code::INVALID_ARGUMENT)?),
    };
    playing()?
        .device(target)
        .map(|_| target)
        .ok_or(code::INVALID_ARGUMENT)
}

/// The answer to a call to a device.
fn ask(handle: nvmlDevice_t, key: &str) -> Result<Value, u32> {
    playing()?.ask(target_of(handle)?, key)
}

/// An integer; a flag counts as 0 or 1. A scenario that has none here is wrong: "unknown error".
fn integer(value: &Value) -> Result<i128, u32> {
    match value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Number(number) => {
            let whole = number
                .as_u64()
                .map(i128::from)
                .or(number.as_i64().map(i128::from));
            whole
                .or(number.as_f64().map(|float| float as i128))
                .ok_or(code::UNKNOWN)
        }
        _ => Err(code::UNKNOWN),
    }
}

/// A member of an object that is a number.
fn member(object: &Value, name: &str) -> Result<i128, u32> {
    object.get(name).map_or(Err(code::UNKNOWN), integer)
}

/// One of two numbers written as a list.
fn element(list: &Value, index: usize) -> Result<i128, u32> {
    list.get(index).map_or(Err(code::UNKNOWN), integer)
}

fn text(value: &Value) -> Result<&str, u32> {
    value.as_str().ok_or(code::UNKNOWN)
}

/// Writes `value` where C wants it.
fn put<T>(out: *mut T, value: T) -> Result<(), u32> {
    if out.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller passes room for one value, as NVML's interface asks of it.
    unsafe { ptr::write(out, value) };
    Ok(())
}

/// Writes a text and its end.
fn put_text(buffer: *mut c_char, length: c_uint, text: &str) -> Result<(), u32> {
    if buffer.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    if (length as usize) < text.len() + 1 {
        return Err(code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller says that the buffer has `length` bytes.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        ptr::write(buffer.add(text.len()), 0);
    }
    Ok(())
}

/// Fills an array of a structure with a text and zeros behind it.
fn fill_text<const N: usize>(room: &mut [c_char; N], text: &str) {
    room.fill(0);
    for (place, byte) in room.iter_mut().zip(text.bytes().take(N - 1)) {
        *place = byte as c_char;
    }
}

/// The protocol of lists: too little room is answered with the number needed.
fn put_list<T>(count: *mut c_uint, room: *mut T, items: &[T]) -> Result<(), u32>
where
    T: Copy,
{
    if count.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: not null; the caller passes a number it can read and write.
    let available = unsafe { ptr::replace(count, items.len() as c_uint) } as usize;
    if items.is_empty() {
        return Ok(());
    }
    if available < items.len() || room.is_null() {
        return Err(code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller says that there is room for `available` items.
    unsafe { ptr::copy_nonoverlapping(items.as_ptr(), room, items.len()) };
    Ok(())
}
