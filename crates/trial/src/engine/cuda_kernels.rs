//! Kernels of kiln's own on CUDA (`shim/kernels.cu`), which read and write large buffers once where
//! libtorch's read them several times. They are compiled when an operation first asks for them;
//! where they cannot be, libtorch's kernels train the trial, and its row says why.

use std::{
    ffi::{CString, c_char, c_int},
    path::Path,
};

use super::{nvrtc, shim::checked};

unsafe extern "C" {
    fn kiln_use_cuda_kernels(compiler: *const c_char, source: *const c_char);
    fn kiln_cuda_kernels_fault() -> c_int;
}

const SOURCE: &str = include_str!("shim/kernels.cu");

/// From now on operations on CUDA may ask for them. Nothing is compiled yet.
pub(super) fn prepare() {
    // Without one, the words of the loader are the reason that the row gives.
    let compiler = nvrtc::library();
    let compiler = compiler.as_deref().unwrap_or(Path::new("libnvrtc.so"));
    let compiler = CString::new(compiler.as_os_str().as_encoded_bytes());
    let (Ok(compiler), Ok(source)) = (compiler, CString::new(SOURCE)) else {
        return;
    };
    // SAFETY: two NUL-terminated texts that live through the call.
    unsafe { kiln_use_cuda_kernels(compiler.as_ptr(), source.as_ptr()) };
}

/// Why some could not be compiled or loaded; `None` where that did not happen.
pub(crate) fn fault() -> Option<String> {
    // SAFETY: a call without pointers.
    let found = checked(unsafe { kiln_cuda_kernels_fault() });
    found.err().map(|fault| fault.to_string())
}
