//! The device beside its operations (`shim/device.cpp`): libtorch's CUDA half, batches on their way to the device, moments on
//! its stream. In come host numbers and paths, out go tensors, seconds, or libtorch's words as [`TrialError`]. All that tells
//! CUDA from the CPU in these matters is here and in the shim.

use std::{
    ffi::{CString, c_char, c_int},
    fmt,
    path::Path,
    ptr::{self, NonNull},
};

use tch::Tensor;

use super::{
    error_from_text, facts,
    libtorch::{Handle, checked},
};
use crate::error::TrialError;

#[repr(C)]
struct CEvent {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn kiln_load_cuda(path: *const c_char) -> c_int;
    fn kiln_copy_batch(inputs: *const i64, targets: *const i64, count: i64, to_cuda: c_int, pinned: c_int, out: *mut Handle) -> c_int;
    fn kiln_record_moment(moment: *mut *mut CEvent) -> c_int;
    fn kiln_seconds_between(from: *mut CEvent, to: *mut CEvent, seconds: *mut f64) -> c_int;
    fn kiln_forget_moment(moment: *mut CEvent);
}

/// Loads the `libtorch_cuda.so` that lies beside the libtorch of this process; without it libtorch computes on the CPU only. To
/// be called before libtorch is asked for anything: it remembers that there was no CUDA.
///
/// Errors: there is none, it is an empty stand-in, or a library that it needs is missing; the text names the file.
pub(super) fn load() -> Result<(), TrialError> {
    let files = facts::library_files();
    let folder = files.get("libtorch_cpu").and_then(|path| Path::new(path).parent()).unwrap_or(Path::new(""));
    load_from(folder)
}

fn load_from(folder: &Path) -> Result<(), TrialError> {
    let path = folder.join("libtorch_cuda.so");
    let remedy =
        "this libtorch computes on the CPU only; name one with CUDA (`LD_LIBRARY_PATH` before the start, or `KILN_LIBTORCH=cuda make libtorch`)";
    if !path.exists() {
        return Err(TrialError::NoDevice(format!("{} is not there: {remedy}", path.display())));
    }
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| TrialError::Failed(error.to_string()))?;
    // SAFETY: a NUL-terminated text that lives through the call.
    checked(unsafe { kiln_load_cuda(name.as_ptr()) })
        .map_err(|error| TrialError::NoDevice(format!("{} cannot be used ({error}): {remedy}", path.display())))
}

/// Where a batch is copied to, and from what kind of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to_cuda: bool,
    pub(super) pinned: bool,
}

/// Inputs and targets side by side on the device, [2, count]. Does not wait for the copy.
///
/// Errors: too little memory; no pinned memory without CUDA.
pub(super) fn copy_batch(inputs: &[i64], targets: &[i64], route: Route) -> Result<Tensor, TrialError> {
    if inputs.len() != targets.len() {
        return Err(TrialError::Failed(format!("a batch has {} inputs and {} targets; this is a fault of kiln-trial", inputs.len(), targets.len())));
    }
    let mut out = ptr::null_mut();
    let (to_cuda, pinned) = (c_int::from(route.to_cuda), c_int::from(route.pinned));
    // SAFETY: two lists of the length given, read during the call; `out` is a place.
    checked(unsafe { kiln_copy_batch(inputs.as_ptr(), targets.as_ptr(), inputs.len() as i64, to_cuda, pinned, &raw mut out) })?;
    // SAFETY: on success `out` is a new handle.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// A moment on the device's stream: it has come when all that was asked of the device before is done.
pub(crate) struct Moment(NonNull<CEvent>);

impl Moment {
    /// Marks this moment; does not wait.
    ///
    /// Errors: this libtorch has no CUDA, or the device failed.
    pub(crate) fn record() -> Result<Self, TrialError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a place.
        checked(unsafe { kiln_record_moment(&raw mut event) })?;
        NonNull::new(event).map(Self).ok_or_else(|| error_from_text("libtorch made no event and gave no reason"))
    }

    /// Seconds until a later moment, by the device's clock (resolution about half a microsecond). Waits for the later one.
    pub(crate) fn seconds_until(&self, later: &Self) -> Result<f64, TrialError> {
        let mut seconds = 0.0;
        // SAFETY: both events live; `seconds` is a place.
        checked(unsafe { kiln_seconds_between(self.0.as_ptr(), later.0.as_ptr(), &raw mut seconds) })?;
        Ok(seconds)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim and is given back once.
        unsafe { kiln_forget_moment(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Moment")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with a GPU has other answers, which `scripts/check-gpu.sh` looks at.
    fn has_cuda() -> bool {
        tch::Cuda::is_available()
    }

    #[test]
    fn without_cuda_a_moment_is_a_readable_error() {
        if has_cuda() {
            return;
        }
        let error = Moment::record().unwrap_err().to_string();
        assert!(error.to_lowercase().contains("cuda") && !error.contains("frame #"), "{error}");
    }

    #[test]
    fn without_cuda_there_is_no_pinned_memory_and_the_words_say_so() {
        if has_cuda() {
            return;
        }
        let error = copy_batch(&[1], &[2], Route { to_cuda: false, pinned: true }).unwrap_err().to_string();
        assert!(error.contains("pin"), "{error}");
    }

    #[test]
    fn a_batch_arrives_as_inputs_over_targets() {
        let route = Route { to_cuda: false, pinned: false };
        let both = copy_batch(&[1, 2, 3], &[4, 5, 6], route).unwrap();
        assert_eq!((both.size(), Vec::<i64>::try_from(both.flatten(0, 1)).unwrap()), (vec![2, 3], vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(copy_batch(&[], &[], route).unwrap().size(), [2, 0]);
        assert!(copy_batch(&[1], &[], route).is_err());
    }

    #[test]
    fn a_missing_an_empty_and_a_broken_cuda_library_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || match load_from(folder.path()) {
            Err(TrialError::NoDevice(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(refused().contains("libtorch_cuda.so is not there"));
        std::fs::write(folder.path().join("libtorch_cuda.so"), "no library").unwrap();
        let text = refused();
        assert!(text.contains("cannot be used") && text.contains("too short"), "{text}");
    }
}
