//! Kernels of kiln's own on CUDA (`shim/kernels.cu`), which read and write large buffers once where
//! libtorch's read them several times. They are compiled when an operation first asks for them;
//! where they cannot be, libtorch's kernels train the trial, and its row says why.

use std::{
    ffi::{CString, c_char, c_int},
    path::Path,
};

use super::{nvrtc, shim::checked};
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_use_cuda_kernels(compiler: *const c_char, source: *const c_char);
    fn kiln_cuda_kernels_fault() -> c_int;
    fn kiln_compile_cuda_kernels(
        compiler: *const c_char,
        source: *const c_char,
        architecture: c_int,
        kind: c_int,
        cubin_bytes: *mut i64,
    ) -> c_int;
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

/// The dtypes of which there are kernels, in the order of their numbers in the shim.
pub(crate) const DTYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// Compiles those of each dtype for one architecture (90 is sm_90) with the libnvrtc at `compiler`,
/// as a trial does; bytes of machine code. Needs no driver.
///
/// Errors: NVRTC's own words.
pub(crate) fn compile(compiler: &Path, architecture: u32) -> Result<[u64; 3], TrialError> {
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|error| TrialError::Failed(format!("{compiler:?}: {error}")))
    };
    let path = text(compiler.as_os_str().as_encoded_bytes())?;
    let source = text(SOURCE.as_bytes())?;
    let mut bytes = [0; 3];
    for (kind, bytes) in (0..).zip(&mut bytes) {
        let (path, source) = (path.as_ptr(), source.as_ptr());
        let mut size = 0;
        // SAFETY: two NUL-terminated texts that live through the call, and a place.
        checked(unsafe {
            kiln_compile_cuda_kernels(path, source, architecture as c_int, kind, &raw mut size)
        })?;
        *bytes = u64::try_from(size).unwrap_or(0);
    }
    Ok(bytes)
}

/// Why some could not be compiled or loaded; `None` where that did not happen.
pub(crate) fn fault() -> Option<String> {
    // SAFETY: a call without pointers.
    let found = checked(unsafe { kiln_cuda_kernels_fault() });
    found.err().map(|fault| fault.to_string())
}
