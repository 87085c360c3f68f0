//! The device apart from its operations (`shim/device.cpp`): libtorch's CUDA half, batches on their
//! way to the device, moments on its stream. Input: host numbers and paths. Output: tensors,
//! seconds, or libtorch's messages as [`TrialError`]. All code that distinguishes CUDA from the CPU
//! for these tasks is here and in the shim.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt,
    io::{self, Write},
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    sync::Once,
};

use tch::Tensor;

use super::{
    cuda_kernels, error_from_text,
    loaded::library_files,
    nvrtc,
    shim::{Handle, checked},
};
use crate::error::TrialError;

#[repr(C)]
struct CEvent {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn kiln_load_cuda(path: *const c_char, is_real: *mut c_int) -> c_int;
    fn kiln_cuda_symbol(at: c_int, name: *mut *const c_char, file: *mut *const c_char) -> c_int;
    fn kiln_stage(
        values: *const c_void,
        count: i64,
        number: c_int,
        pinned: c_int,
        out: *mut Handle,
    ) -> c_int;
    fn kiln_send(host: Handle, device: c_int, out: *mut Handle) -> c_int;
    fn kiln_seed(device: c_int, seed: u64) -> c_int;
    fn kiln_record_moment(devices: c_int, moment: *mut *mut CEvent) -> c_int;
    fn kiln_seconds_between(from: *mut CEvent, to: *mut CEvent, seconds: *mut f64) -> c_int;
    fn kiln_is_reached(moment: *mut CEvent, is_reached: *mut c_int) -> c_int;
    fn kiln_forget_moment(moment: *mut CEvent);
}

/// The reason why this process has no CUDA part of libtorch; each text names the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoCuda {
    /// The flavor has none: the file does not exist, or it is an empty placeholder.
    CpuOnly(String),
    /// The file is there and cannot be loaded, most often because a library that it needs is
    /// missing.
    Broken(String),
}

impl From<NoCuda> for TrialError {
    fn from(absent: NoCuda) -> Self {
        let (NoCuda::CpuOnly(why) | NoCuda::Broken(why)) = absent;
        Self::NoDevice(format!(
            "{why}: this libtorch is CPU-only; use one with CUDA (`LD_LIBRARY_PATH` before the \
             start, or `KILN_LIBTORCH=cuda make libtorch`)"
        ))
    }
}

/// Loads the `libtorch_cuda.so` that lies beside the libtorch of this process, after the compiler
/// of kernels that came with it; without it libtorch computes on the CPU only. To be called before
/// libtorch is asked for anything: it remembers that there was no CUDA.
pub(crate) fn load() -> Result<(), NoCuda> {
    let folder = folder();
    load_compiler(&folder);
    load_from(&folder)?;
    cuda_kernels::prepare();
    Ok(())
}

/// As [`load`], but without the compiler of kernels, which then does not find its own parts: the
/// counter-proof of a check.
pub(crate) fn load_without_compiler() -> Result<(), NoCuda> {
    load_from(&folder())
}

/// The folder of this process's libtorch; empty where it is not known.
fn folder() -> PathBuf {
    let files = library_files();
    files
        .get("libtorch_cpu")
        .and_then(|path| Path::new(path).parent())
        .map(Path::to_owned)
        .unwrap_or_default()
}

/// Loads NVRTC, once in this process. A trial can run without it, so a failure is reported on
/// standard error, and the trial continues.
fn load_compiler(folder: &Path) {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        for note in nvrtc::load(folder) {
            // A closed standard error has no reader, so the error is ignored.
            let _ = writeln!(io::stderr(), "kiln-trial: {note}");
        }
    });
}

/// A function of libtorch's CUDA half that is looked up by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CudaSymbol {
    /// As the compiler writes it.
    pub(crate) name: String,
    /// The library that has it; `None` where none has.
    pub(crate) file: Option<String>,
}

/// All functions that this program looks up by name, each looked up now.
pub(crate) fn symbols() -> Vec<CudaSymbol> {
    let text = |text: *const c_char| {
        // SAFETY: the shim gives null, or a NUL-terminated text that lives as long as the program
        // or the library that it names.
        (!text.is_null()).then(|| {
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        })
    };
    let look_up = |at| {
        let (mut name, mut file) = (ptr::null(), ptr::null());
        // SAFETY: two places.
        (unsafe { kiln_cuda_symbol(at, &raw mut name, &raw mut file) } == 0).then(|| CudaSymbol {
            name: text(name).unwrap_or_default(),
            file: text(file),
        })
    };
    (0..).map_while(look_up).collect()
}

fn load_from(folder: &Path) -> Result<(), NoCuda> {
    let path = folder.join("libtorch_cuda.so");
    if !path.exists() {
        return Err(NoCuda::CpuOnly(format!(
            "{} does not exist",
            path.display()
        )));
    }
    let broken = |error: &dyn fmt::Display| {
        NoCuda::Broken(format!("{} cannot be loaded ({error})", path.display()))
    };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| broken(&error))?;
    let mut is_real = 0;
    // SAFETY: a NUL-terminated text that lives through the call, and a place.
    checked(unsafe { kiln_load_cuda(name.as_ptr(), &raw mut is_real) })
        .map_err(|error| broken(&error))?;
    if is_real == 0 {
        Err(NoCuda::CpuOnly(format!(
            "{} is an empty placeholder",
            path.display()
        )))
    } else {
        Ok(())
    }
}

/// A kind of number that batches are made of.
pub(super) trait BatchNumber {
    /// As the shim knows it.
    const KIND: c_int;
}

impl BatchNumber for i64 {
    const KIND: c_int = 0;
}

impl BatchNumber for f32 {
    const KIND: c_int = 1;
}

impl BatchNumber for u8 {
    const KIND: c_int = 2;
}

/// Why values are not in libtorch's memory.
#[derive(Debug)]
pub(super) enum StagingFault {
    /// There is no pinned memory for them on the host.
    NotPinned(TrialError),
    Failed(TrialError),
}

impl StagingFault {
    pub(super) fn error(self) -> TrialError {
        match self {
            Self::NotPinned(error) | Self::Failed(error) => error,
        }
    }
}

/// The values in libtorch's memory on the host, [count]; `pinned` says whether it is page-locked.
///
/// Errors: too little memory; no pinned memory without CUDA.
pub(super) fn stage<T: BatchNumber>(values: &[T], pinned: bool) -> Result<Tensor, StagingFault> {
    /// As `kiln_stage` says it.
    const NOT_PINNED: c_int = 2;
    let mut out = ptr::null_mut();
    // SAFETY: a list of the length and the kind of numbers given, read during the call; `out` is a
    // place.
    let code = unsafe {
        kiln_stage(
            values.as_ptr().cast(),
            values.len() as i64,
            T::KIND,
            c_int::from(pinned),
            &raw mut out,
        )
    };
    checked(code).map_err(|error| match code {
        NOT_PINNED => StagingFault::NotPinned(error),
        _ => StagingFault::Failed(error),
    })?;
    // SAFETY: on success `out` is a new handle.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Staged values on a CUDA device. Does not wait for the copy.
///
/// Errors: too little memory.
pub(super) fn send(staged: &Tensor, device: usize) -> Result<Tensor, TrialError> {
    let mut out = ptr::null_mut();
    // SAFETY: a tensor that lives through the call; `out` is a place.
    checked(unsafe { kiln_send(staged.as_ptr().cast_mut(), device as c_int, &raw mut out) })?;
    // SAFETY: on success `out` is a new handle.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Seeds the generator that this device's draws come from, and no other's; `None` is the CPU.
pub(super) fn seed(device: Option<usize>, seed: u64) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_seed(number(device), seed) })
}

/// A CUDA device as the shim counts them; negative is the CPU.
fn number(device: Option<usize>) -> c_int {
    device.map_or(-1, |device| device as c_int)
}

/// A moment on the device's stream: it is reached when all earlier work of the device is done.
pub(crate) struct DeviceMoment(NonNull<CEvent>);

impl DeviceMoment {
    /// Marks this moment on the first device; does not wait.
    ///
    /// Errors: this libtorch has no CUDA, or the device failed.
    pub(crate) fn record() -> Result<Self, TrialError> {
        Self::record_on_all(1)
    }

    /// Marks the moment at which the first `devices` have all finished their earlier work; does not
    /// wait.
    ///
    /// Errors: as for [`DeviceMoment::record`].
    pub(crate) fn record_on_all(devices: usize) -> Result<Self, TrialError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a place.
        checked(unsafe { kiln_record_moment(devices as c_int, &raw mut event) })?;
        NonNull::new(event)
            .map(Self)
            .ok_or_else(|| error_from_text("libtorch returned neither an event nor an error"))
    }

    /// Seconds until a later moment, by the device's clock (resolution about half a microsecond).
    /// Waits for the later one.
    pub(crate) fn seconds_until(&self, later: &Self) -> Result<f64, TrialError> {
        let mut seconds = 0.0;
        // SAFETY: both events live; `seconds` is a place.
        checked(unsafe {
            kiln_seconds_between(self.0.as_ptr(), later.0.as_ptr(), &raw mut seconds)
        })?;
        Ok(seconds)
    }

    /// Whether the device has come this far; does not wait.
    pub(crate) fn is_reached(&self) -> Result<bool, TrialError> {
        let mut is_reached = 0;
        // SAFETY: the event lives; `is_reached` is a place.
        checked(unsafe { kiln_is_reached(self.0.as_ptr(), &raw mut is_reached) })?;
        Ok(is_reached != 0)
    }
}

impl Drop for DeviceMoment {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim and is given back once.
        unsafe { kiln_forget_moment(self.0.as_ptr()) };
    }
}

impl fmt::Debug for DeviceMoment {
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
        let error = DeviceMoment::record().unwrap_err().to_string();
        assert!(
            error.to_lowercase().contains("cuda") && !error.contains("frame #"),
            "{error}"
        );
    }

    #[test]
    fn a_seed_of_the_cpu_gives_the_draws_that_libtorchs_own_seeding_gives() {
        let draws = || {
            Vec::<f32>::try_from(Tensor::rand([4], (tch::Kind::Float, tch::Device::Cpu))).unwrap()
        };
        let seeds_alike = || {
            tch::manual_seed(7);
            let expected = draws();
            seed(None, 7).unwrap();
            draws() == expected && draws() != expected
        };
        // Other tests draw from and seed the same generator in between, now and then. A wrong seed
        // never gives the same draws.
        assert!((0..100).any(|_| seeds_alike()));
    }

    #[test]
    fn without_cuda_there_is_no_pinned_memory_and_the_words_say_so() {
        if has_cuda() {
            return;
        }
        let fault = stage(&[1_i64], true).unwrap_err();
        assert!(matches!(fault, StagingFault::NotPinned(_)), "{fault:?}");
        let error = fault.error().to_string();
        assert!(error.contains("pin"), "{error}");
    }

    #[test]
    fn functions_looked_up_by_name_are_libtorchs_and_a_cpu_flavour_has_none_of_them() {
        let symbols = symbols();
        let names: std::collections::BTreeSet<&str> =
            symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        assert_eq!(names.len(), symbols.len(), "{symbols:?}");
        for part in [
            "4nccl10all_reduce",
            "4cuda9warp_size",
            "9CUDAGraphC1Eb",
            "13capture_begin",
            "6replayEv",
        ] {
            assert!(
                names
                    .iter()
                    .any(|name| name.starts_with("_Z") && name.contains(part)),
                "{part}: {symbols:?}"
            );
        }
        // kiln's own stand-ins for two of burn-tch's functions are hidden, and must not be taken
        // for libtorch's.
        let has_none = symbols.iter().all(|symbol| symbol.file.is_none());
        assert!(
            has_none || library_files().contains_key("libtorch_cuda"),
            "{symbols:?}"
        );
    }

    #[test]
    fn a_missing_an_empty_and_a_broken_cuda_library_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let load = || load_from(folder.path()).unwrap_err();
        let library = folder.path().join("libtorch_cuda.so");
        assert_eq!(
            load(),
            NoCuda::CpuOnly(format!("{} does not exist", library.display()))
        );
        std::fs::write(&library, "no library").unwrap();
        let NoCuda::Broken(text) = load() else {
            panic!("a file of ten letters is no library")
        };
        assert!(
            text.contains("cannot be loaded") && text.contains("too short"),
            "{text}"
        );
        std::fs::remove_file(&library).unwrap();
        let other = library_files()["libtorch_cpu"].replace("libtorch_cpu.so", "libc10.so");
        std::os::unix::fs::symlink(other, &library).unwrap();
        assert_eq!(
            load(),
            NoCuda::CpuOnly(format!("{} is an empty placeholder", library.display()))
        );
        let words = TrialError::from(load()).to_string();
        assert!(
            words.contains("this libtorch is CPU-only") && words.contains("KILN_LIBTORCH=cuda"),
            "{words}"
        );
    }
}
