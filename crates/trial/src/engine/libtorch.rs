//! The library itself: its versions, its switches, its allocator's figures, its warnings.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int},
};

use super::{AllocatorStats, shim::checked};
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_headers_version() -> *const c_char;
    fn kiln_libtorch_build() -> *const c_char;
    fn kiln_library_version(
        path: *const c_char,
        function: *const c_char,
        shape: c_int,
        number: *mut i64,
    ) -> c_int;
    fn kiln_allocator(device: c_int, figures: *mut i64) -> c_int;
    fn kiln_reset_allocator_peaks(device: c_int) -> c_int;
    fn kiln_flags(flags: *mut c_int) -> c_int;
    fn kiln_allow_tf32(is_allowed: c_int, in_recurrent: c_int) -> c_int;
    fn kiln_cudnn_benchmark(is_wanted: c_int) -> c_int;
    fn kiln_keep_host_memory();
    fn kiln_cuda_branches_forced() -> c_int;
    fn kiln_force_cuda_branches(is_forced: c_int);
    fn kiln_emulate_cuda_kernels(is_wanted: c_int);
    fn kiln_begin_pass() -> c_int;
    fn kiln_end_pass();
    fn kiln_warn_once();
    #[cfg(test)]
    fn kiln_warn(text: *const c_char);
    #[cfg(test)]
    fn kiln_warnings_told() -> c_int;
    #[cfg(test)]
    fn kiln_cudnn_attention_allowed() -> c_int;
    #[cfg(test)]
    fn kiln_recurrent_tf32() -> c_int;
    fn kiln_attention_kernels() -> c_int;
}

/// The libtorch that this program was compiled against.
pub(super) fn headers_version() -> &'static str {
    // SAFETY: a constant text of the shim.
    unsafe { CStr::from_ptr(kiln_headers_version()) }
        .to_str()
        .unwrap_or("unknown")
}

/// libtorch's own description of its build (`KEY=value` parts between commas and lines).
pub(super) fn build() -> String {
    // SAFETY: a constant text of the shim.
    unsafe { CStr::from_ptr(kiln_libtorch_build()) }
        .to_string_lossy()
        .into_owned()
}

/// The way to ask a library for its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionCall {
    /// `size_t f()`.
    Returned = 0,
    /// `int f(int *)`.
    Written = 1,
    /// `int f(int which, int *)` for major, minor and patch; packed as major × 10000 + minor × 100
    /// + patch.
    InParts = 2,
}

/// The number that the loaded library at `path` answers; `None` if it is not loaded or has no such
/// function.
pub(super) fn library_version(path: &str, function: &CStr, asking: VersionCall) -> Option<i64> {
    let path = CString::new(path).ok()?;
    let mut number = 0;
    // SAFETY: two NUL-terminated texts and a place; the function named is one of that shape (the
    // table in `facts.rs`).
    checked(unsafe {
        kiln_library_version(
            path.as_ptr(),
            function.as_ptr(),
            asking as c_int,
            &raw mut number,
        )
    })
    .ok()
    .map(|()| number)
}

/// Figures of the allocator of a CUDA device.
pub(super) fn allocator_stats(device: usize) -> Result<AllocatorStats, TrialError> {
    let mut figures = [0_i64; 6];
    // SAFETY: the shim writes six numbers.
    checked(unsafe { kiln_allocator(device as c_int, figures.as_mut_ptr()) })?;
    let [
        allocated,
        peak_allocated,
        reserved,
        peak_reserved,
        retries,
        out_of_memory,
    ] = figures.map(|figure| u64::try_from(figure).unwrap_or(0));
    Ok(AllocatorStats {
        allocated_bytes: allocated,
        peak_allocated_bytes: peak_allocated,
        reserved_bytes: reserved,
        peak_reserved_bytes: peak_reserved,
        retries,
        out_of_memory_count: out_of_memory,
    })
}

pub(super) fn reset_allocator_peaks(device: usize) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_reset_allocator_peaks(device as c_int) })
}

/// Switches by name.
pub(super) fn flags() -> Result<BTreeMap<String, String>, TrialError> {
    const NAMES: [&str; 5] = [
        "tf32_matmul",
        "tf32_cudnn",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "deterministic_algorithms",
    ];
    let mut flags: [c_int; 5] = [0; 5];
    // SAFETY: the shim writes five numbers.
    checked(unsafe { kiln_flags(flags.as_mut_ptr()) })?;
    Ok(NAMES
        .iter()
        .zip(flags)
        .map(|(name, flag)| ((*name).to_owned(), (flag != 0).to_string()))
        .collect())
}

/// Whether CUDA may make f32 products and convolutions from TF32 factors. Precision f32 means f32:
/// it may not. `in_recurrent`: whether recurrent layers may use tensor cores; libtorch asks its
/// switch for TF32 of those also where they are in bf16.
pub(crate) fn allow_tf32(is_allowed: bool, in_recurrent: bool) -> Result<(), TrialError> {
    let (is_allowed, in_recurrent) = (c_int::from(is_allowed), c_int::from(in_recurrent));
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_allow_tf32(is_allowed, in_recurrent) })
}

/// Whether cuDNN tries its convolutions on the first of each shape.
pub(super) fn set_cudnn_benchmark(is_wanted: bool) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_cudnn_benchmark(c_int::from(is_wanted)) })
}

/// Whether this thread takes the ways that are meant for CUDA on the CPU too, as far as the CPU has
/// them: `KILN_CUDA_BRANCHES=1` in the environment, or [`force_cuda_branches`].
pub(crate) fn cuda_branches_forced() -> bool {
    // SAFETY: a call without pointers.
    unsafe { kiln_cuda_branches_forced() != 0 }
}

/// Makes this thread take them, or no longer: for tests of what a machine without a GPU can show of
/// them. What is built while they are forced still takes them.
pub fn force_cuda_branches(is_forced: bool) {
    // SAFETY: a call without pointers.
    unsafe { kiln_force_cuda_branches(c_int::from(is_forced)) }
}

/// Makes this thread compute by kiln's own kernels for CUDA on the CPU, where it takes the ways meant
/// for CUDA, or no longer: for tests. They are slow there.
pub fn emulate_cuda_kernels(is_wanted: bool) {
    // SAFETY: a call without pointers.
    unsafe { kiln_emulate_cuda_kernels(c_int::from(is_wanted)) }
}

/// A forward and backward pass of this thread, in which weights do not change: those in other
/// formats than products read are converted all at once.
#[derive(Debug)]
pub(crate) struct Pass(());

impl Pass {
    /// Errors: too little memory.
    pub(crate) fn begin() -> Result<Self, TrialError> {
        // SAFETY: a call without pointers.
        checked(unsafe { kiln_begin_pass() }).map(|()| Self(()))
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // SAFETY: a call without pointers.
        unsafe { kiln_end_pass() };
    }
}

/// From now on, this thread prints each of libtorch's warnings once in this process: some would
/// appear at every step.
pub(super) fn warn_once() {
    // SAFETY: a call without pointers.
    unsafe { kiln_warn_once() }
}

/// The kernels of attention that have run in this process, by libtorch's names for them.
pub(crate) fn attention_kernels() -> Vec<&'static str> {
    const NAMES: [&str; 4] = ["math", "flash", "efficient", "cudnn"];
    // SAFETY: a call without pointers.
    let ran = unsafe { kiln_attention_kernels() };
    NAMES
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| ran >> bit & 1 == 1)
        .map(|(_, name)| name)
        .collect()
}

/// From now on the process keeps freed host memory for later tensors.
pub(super) fn keep_host_memory() {
    // SAFETY: a call without pointers; it sets two numbers of the C library's allocator.
    unsafe { kiln_keep_host_memory() }
}

/// Whether libtorch may choose cuDNN's attention the next time.
#[cfg(test)]
pub(super) fn cudnn_attention_allowed() -> bool {
    // SAFETY: a call without pointers.
    unsafe { kiln_cudnn_attention_allowed() != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_comes_with_every_step_is_told_once() {
        std::thread::spawn(|| {
            warn_once();
            // SAFETY: NUL-terminated texts that live through the call, and a call without pointers.
            let told = |text: &CStr| unsafe {
                kiln_warn(text.as_ptr());
                kiln_warnings_told()
            };
            let first = told(c"weights are not part of a single piece of memory (a test)");
            assert_eq!(
                told(c"weights are not part of a single piece of memory (a test)"),
                first
            );
            assert_eq!(told(c"another one (a test)"), first + 1);
        })
        .join()
        .unwrap();
    }

    /// On the CPU the switch is there and does nothing.
    #[test]
    fn the_switch_for_tf32_shows_in_the_flags() {
        for is_allowed in [true, false] {
            for in_recurrent in [true, false] {
                allow_tf32(is_allowed, in_recurrent).unwrap();
                let flags = flags().unwrap();
                assert_eq!(
                    [&flags["tf32_matmul"], &flags["tf32_cudnn"]],
                    [&is_allowed.to_string(); 2]
                );
                // SAFETY: a call without pointers.
                assert_eq!(unsafe { kiln_recurrent_tf32() } != 0, in_recurrent);
            }
        }
    }
}
