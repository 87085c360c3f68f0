//! NVML's own functions, for what nvml-wrapper has no method for. All `unsafe` of the hardware
//! readings is in this folder.
//!
//! Each call returns a [`Reading`]: NVML's return code is kept as it is, because the wrapper knows
//! only some of them.

use std::mem;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t};

use super::Nvml;
use crate::{Absence, Reading, deadline::count_answer};

/// A symbol as nvml-wrapper-sys keeps it: looked up when the library was loaded, missing in older
/// drivers.
type Symbol<F, E> = Result<F, E>;

/// Asks for one structure or number: `call` gets the device's handle and a place filled by `start`.
pub(crate) fn ask<F, E, T>(
    device: &Device<'_>,
    symbol: Symbol<&F, E>,
    start: T,
    call: impl FnOnce(&F, nvmlDevice_t, &mut T) -> nvmlReturn_t,
) -> Reading<T> {
    let Ok(function) = symbol else {
        return Reading::Absent(Absence::NoSymbol);
    };
    let mut place = start;
    // SAFETY: the handle stays valid for as long as the library is loaded, and kiln never unloads
    // it.
    let handle = unsafe { device.handle() };
    let code = call(function, handle, &mut place);
    count_answer();
    match code {
        0 => Reading::Value(place),
        code => Reading::Absent(Absence::of_code(code)),
    }
}

/// The `version` member of a structure: its size and its number (`NVML_STRUCT_VERSION` of nvml.h).
pub(crate) const fn version_of<T>(number: u32) -> u32 {
    // Every structure of NVML is smaller than 16 MiB.
    size_of::<T>() as u32 | (number << 24)
}

/// Text in a structure, up to its end.
pub(crate) fn text(letters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = letters
        .iter()
        .map(|letter| letter.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A value of `nvmlDeviceGetFieldValues`, of the type the driver gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FieldValue {
    Float(f64),
    Unsigned(u64),
    /// A 32-bit value: a counter that wraps around past 4.29e9.
    Unsigned32(u32),
    Signed(i64),
}

impl FieldValue {
    /// `None` for a negative number and for a fraction.
    pub(crate) fn unsigned(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Unsigned32(value) => Some(u64::from(value)),
            Self::Signed(value) => u64::try_from(value).ok(),
            Self::Float(value) => {
                (value >= 0.0 && value.fract() == 0.0 && value < 2e19).then_some(value as u64)
            }
        }
    }

    pub(crate) fn signed(self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(value).ok(),
            Self::Unsigned32(value) => Some(i64::from(value)),
            Self::Signed(value) => Some(value),
            Self::Float(value) => {
                (value.fract() == 0.0 && value.abs() < 9e18).then_some(value as i64)
            }
        }
    }

    pub(crate) fn float(self) -> f64 {
        match self {
            Self::Unsigned(value) => value as f64,
            Self::Unsigned32(value) => f64::from(value),
            Self::Signed(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// Reads fields by (id, scope) in one driver call; answers have the order of the requests. Ids are
/// the driver's own numbers.
pub(crate) fn field_values(
    nvml: &Nvml,
    device: &Device<'_>,
    wanted: &[(u32, u32)],
) -> Vec<Reading<FieldValue>> {
    let places: Vec<nvmlFieldValue_t> = wanted
        .iter()
        .map(|&(id, scope)| field_place(id, scope))
        .collect();
    let symbol = nvml.library().lib().nvmlDeviceGetFieldValues.as_ref();
    let answered = ask(device, symbol, places, |function, handle, places| {
        let count = i32::try_from(places.len()).unwrap_or(i32::MAX);
        // SAFETY: `places` holds `count` structures of the library's own layout.
        unsafe { function(handle, count, places.as_mut_ptr()) }
    });
    match answered {
        Reading::Value(places) => places.iter().map(field_value).collect(),
        Reading::Absent(absence) => vec![Reading::Absent(absence); wanted.len()],
    }
}

fn field_place(id: u32, scope: u32) -> nvmlFieldValue_t {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut place: nvmlFieldValue_t = unsafe { mem::zeroed() };
    place.fieldId = id;
    place.scopeId = scope;
    place
}

fn field_value(place: &nvmlFieldValue_t) -> Reading<FieldValue> {
    if place.nvmlReturn != 0 {
        return Reading::Absent(Absence::of_code(place.nvmlReturn));
    }
    // SAFETY: the driver says which member it has written (`nvmlValueType_t`).
    Reading::Value(unsafe {
        match place.valueType {
            0 => FieldValue::Float(place.value.dVal),
            1 => FieldValue::Unsigned32(place.value.uiVal),
            2 | 3 => FieldValue::Unsigned(place.value.ullVal),
            4 => FieldValue::Signed(place.value.sllVal),
            5 => FieldValue::Signed(i64::from(place.value.siVal)),
            6 => FieldValue::Unsigned(u64::from(place.value.usVal)),
            other => {
                return Reading::absent(format_args!(
                    "NVML returned a value of an unknown type ({other})"
                ));
            }
        }
    })
}
