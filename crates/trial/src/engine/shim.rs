//! The shim (`shim/*.cpp`) is C++ behind C functions: each file of this folder declares those that
//! it calls. What these calls share: handles of tensors, and libtorch's messages as
//! [`TrialError`].

use std::ffi::{CStr, c_char, c_int};

use tch::Tensor;
use torch_sys::C_tensor;

use super::error_from_text;
use crate::error::TrialError;

pub(super) type Handle = *mut C_tensor;

unsafe extern "C" {
    fn kiln_error() -> *const c_char;
}

/// The shim's word on its last call of this thread.
pub(super) fn checked(code: c_int) -> Result<(), TrialError> {
    if code == 0 {
        return Ok(());
    }
    Err(error_from_text(&last_text()))
}

/// The text that the shim's last call in this thread left: an error message, except after a call that
/// documents another text.
pub(super) fn last_text() -> String {
    // SAFETY: the shim returns a NUL-terminated text that lives until the thread's next failing
    // call.
    let text = unsafe { CStr::from_ptr(kiln_error()) };
    text.to_string_lossy().into_owned()
}

/// The shim writes to no tensor through a handle unless its function says so; tch's own wrappers
/// make the same cast.
pub(super) fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast_mut()
}

pub(super) fn handles(tensors: &[Tensor]) -> Vec<Handle> {
    tensors.iter().map(handle).collect()
}

pub(super) fn count(tensors: &[Tensor]) -> c_int {
    tensors.len() as c_int
}
