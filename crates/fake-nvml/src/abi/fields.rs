//! `nvmlDeviceGetFieldValues`: every field has its own return code and value type.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlValue_t};
use serde_json::Value;

use super::{guard, integer, playing, target_of};
use crate::code;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> u32 {
    guard(|| {
        let count = usize::try_from(count).map_err(|_| code::INVALID_ARGUMENT)?;
        if values.is_null() || count == 0 {
            return Err(code::INVALID_ARGUMENT);
        }
        let target = target_of(device)?;
        let player = playing()?;
        player.open(target, "nvmlDeviceGetFieldValues")?;
        // SAFETY: the caller says that there are so many values.
        for field in unsafe { std::slice::from_raw_parts_mut(values, count) } {
            field.timestamp = 0;
            field.latencyUsec = 0;
            field.nvmlReturn = match player
                .ask_field(target, &format!("{}/{}", field.fieldId, field.scopeId))
                .and_then(|said| value(&said))
            {
                Ok((value_type, value)) => {
                    field.valueType = value_type;
                    field.value = value;
                    code::SUCCESS
                }
                Err(code) => code,
            };
        }
        Ok(())
    })
}

/// The type and the value. A bare number has the type that nearly all fields have: unsigned int, or
/// the long one if it must.
fn value(said: &Value) -> Result<(u32, nvmlValue_t), u32> {
    let number = said.get("value").unwrap_or(said);
    let whole = || integer(number);
    let is_long = whole().is_ok_and(|whole| whole > i128::from(u32::MAX));
    let value_type = said
        .get("type")
        .and_then(Value::as_u64)
        .unwrap_or(if is_long { 3 } else { 1 });
    let value = match value_type {
        0 => nvmlValue_t {
            dVal: number.as_f64().ok_or(code::UNKNOWN)?,
        },
        1 => nvmlValue_t {
            uiVal: whole()? as _,
        },
        2 => nvmlValue_t {
            ulVal: whole()? as _,
        },
        3 => nvmlValue_t {
            ullVal: whole()? as _,
        },
        4 => nvmlValue_t {
            sllVal: whole()? as _,
        },
        5 => nvmlValue_t {
            siVal: whole()? as _,
        },
        6 => nvmlValue_t {
            usVal: whole()? as _,
        },
        _ => return Err(code::UNKNOWN),
    };
    Ok((value_type as u32, value))
}
