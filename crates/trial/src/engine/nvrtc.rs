//! NVRTC, the compiler that cuDNN and libtorch call for kernels that are made while a trial runs.
//! Input: the folder of libtorch. Output: loaded libraries or readable notes, and whether a kernel
//! compiles.
//!
//! `libnvrtc` opens its `libnvrtc-builtins` by bare name, and neither knows the folders of pip's
//! wheels. Python's torch therefore loads both by their paths when it is imported
//! (`_preload_cuda_deps`); without Python kiln must do it, or compiling fails with "failed to open
//! libnvrtc-builtins" wherever no CUDA toolkit is known to the system's loader.

use std::{
    ffi::{CString, c_char, c_int},
    fs,
    path::{Path, PathBuf},
};

use super::{loaded::library_files, shim::checked, version_numbers::cuda};
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_load_library(path: *const c_char) -> c_int;
    fn kiln_nvrtc(path: *const c_char, version: *mut i64, newest: *mut i64) -> c_int;
    fn kiln_nvrtc_compile(
        path: *const c_char,
        source: *const c_char,
        option: *const c_char,
        cubin_bytes: *mut i64,
    ) -> c_int;
}

/// The start of both files' names.
const COMPILER: &str = "libnvrtc";
const BUILTINS: &str = "libnvrtc-builtins";

/// Loads what [`files`] finds; a note for each that cannot be loaded. Missing files are not an
/// error: the system may have them.
pub(super) fn load(lib: &Path) -> Vec<String> {
    let loaded = |path: &PathBuf| load_one(path).err().map(|error| note(path, &error));
    files(lib).iter().filter_map(loaded).collect()
}

fn note(path: &Path, error: &TrialError) -> String {
    format!(
        "{} cannot be loaded ({error}); operations whose kernels are compiled while a trial runs, \
         cuDNN's attention among them, may fail",
        path.display()
    )
}

fn load_one(path: &Path) -> Result<(), TrialError> {
    let path = text(&path.as_os_str().to_string_lossy())?;
    // SAFETY: a NUL-terminated text that lives through the call.
    checked(unsafe { kiln_load_library(path.as_ptr()) })
}

/// NVRTC's libraries that came with the libtorch whose folder `lib` is, built-ins first: in that
/// folder (libtorch archives), then in `nvidia/*/lib` beside the torch package (`cu13` of the CUDA
/// 13 wheels, `cuda_nvrtc` of the CUDA 12 ones). Of files with the same name the first one found.
pub(super) fn files(lib: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(bool, String, PathBuf)> = Vec::new();
    for folder in folders(lib) {
        for path in listed(&folder) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let is_known = found.iter().any(|(_, known, _)| known == name);
            if is_nvrtc(name) && !is_known {
                found.push((!name.starts_with(BUILTINS), name.to_owned(), path));
            }
        }
    }
    // The sort is stable: folders stay in their order.
    found.sort_by_key(|(is_compiler, ..)| *is_compiler);
    found.into_iter().map(|(.., path)| path).collect()
}

fn folders(lib: &Path) -> Vec<PathBuf> {
    let packages = lib.parent().and_then(Path::parent);
    let wheels = packages
        .map(|packages| listed(&packages.join("nvidia")))
        .unwrap_or_default();
    std::iter::once(lib.to_owned())
        .chain(wheels.iter().map(|wheel| wheel.join("lib")))
        .collect()
}

/// The entries of a folder, sorted by path; empty if the folder cannot be read.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// `libnvrtc.so.13`, `libnvrtc-builtins.so.13.0`; in libtorch archives `libnvrtc-b51b459d.so.12`.
/// Not the `.alt` ones, which nothing asks for unless it is told to.
fn is_nvrtc(name: &str) -> bool {
    let Some(rest) = name
        .strip_prefix(BUILTINS)
        .or_else(|| name.strip_prefix(COMPILER))
    else {
        return false;
    };
    let Some((hash, version)) = rest.split_once(".so.") else {
        return false;
    };
    let is_hash = hash.is_empty()
        || hash
            .strip_prefix('-')
            .is_some_and(|hash| !hash.is_empty() && hash.chars().all(|c| c.is_ascii_hexdigit()));
    is_hash
        && version.ends_with(|c: char| c.is_ascii_digit())
        && version.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// The libnvrtc of this process; where none is loaded, the one that came with libtorch.
pub(crate) fn library() -> Option<PathBuf> {
    let loaded = library_files();
    let beside = || {
        let lib = Path::new(loaded.get("libtorch_cpu")?).parent()?;
        files(lib).into_iter().find(|path| !is_builtins(path))
    };
    loaded.get("nvrtc").map(PathBuf::from).or_else(beside)
}

fn is_builtins(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(BUILTINS))
}

/// Version and newest supported architecture, as a libnvrtc reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvrtcVersion {
    /// CUDA's, such as `13.0`.
    pub(crate) cuda: String,
    /// The newest GPU that it compiles for; 121 is sm_121.
    pub(crate) newest: u32,
}

/// Version of the libnvrtc at `path`.
///
/// Errors: the file is not a libnvrtc, or cannot be loaded.
pub(crate) fn version(path: &Path) -> Result<NvrtcVersion, TrialError> {
    let path = text(&path.as_os_str().to_string_lossy())?;
    let (mut version, mut newest) = (0, 0);
    // SAFETY: a NUL-terminated text that lives through the call, and two places.
    checked(unsafe { kiln_nvrtc(path.as_ptr(), &raw mut version, &raw mut newest) })?;
    Ok(NvrtcVersion {
        cuda: cuda(version),
        newest: u32::try_from(newest).unwrap_or(0),
    })
}

/// A kernel with what most have: shared memory, a barrier, arithmetic of the built-in library.
const KERNEL: &str = r#"
extern "C" __global__ void row_norm(const float *rows, float *norms, int width) {
  __shared__ float parts[256];
  float sum = 0.0f;
  for (int at = threadIdx.x; at < width; at += blockDim.x) sum += rows[blockIdx.x * width + at] * rows[blockIdx.x * width + at];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrtf(parts[0]);
}
"#;

/// Compiles a small kernel for `architecture` (`sm_90`) with the libnvrtc at `path`; bytes of
/// machine code. Needs no driver.
///
/// Errors: NVRTC's own words.
pub(crate) fn compile(path: &Path, architecture: &str) -> Result<u64, TrialError> {
    let (path, source) = (text(&path.as_os_str().to_string_lossy())?, text(KERNEL)?);
    let option = text(&format!("--gpu-architecture={architecture}"))?;
    let mut bytes = 0;
    // SAFETY: three NUL-terminated texts that live through the call, and a place.
    checked(unsafe {
        kiln_nvrtc_compile(
            path.as_ptr(),
            source.as_ptr(),
            option.as_ptr(),
            &raw mut bytes,
        )
    })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

fn text(text: &str) -> Result<CString, TrialError> {
    CString::new(text).map_err(|error| TrialError::Failed(format!("{text:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::unix::ffi::{OsStrExt, OsStringExt},
    };

    use super::*;
    use crate::engine::loaded::own_maps;

    /// The files that are found among `files`, relative to a folder of packages with `torch/lib`.
    fn found(files_there: &[&str]) -> Vec<String> {
        let packages = tempfile::tempdir().unwrap();
        let lib = packages.path().join("torch/lib");
        fs::create_dir_all(&lib).unwrap();
        for file in files_there {
            let path = packages.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        files(&lib)
            .iter()
            .map(|path| {
                path.strip_prefix(packages.path())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn wheels_of_cuda_13_and_12_and_libtorch_archives_are_searched_builtins_first() {
        let cuda_13 = [
            "nvidia/cu13/lib/libnvrtc.so.13",
            "nvidia/cu13/lib/libnvrtc.alt.so.13",
            "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
            "nvidia/cu13/lib/libnvrtc-builtins.alt.so.13.0",
            "nvidia/cu13/lib/libnvrtc_static.a",
            "nvidia/cudnn/lib/libcudnn.so.9",
        ];
        assert_eq!(
            found(&cuda_13),
            [
                "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
                "nvidia/cu13/lib/libnvrtc.so.13"
            ]
        );
        let cuda_12 = [
            "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
        ];
        assert_eq!(found(&cuda_12), [cuda_12[1], cuda_12[0]]);
        let archive = [
            "torch/lib/libnvrtc-b51b459d.so.12",
            "torch/lib/libnvrtc-builtins.so.12.8",
            "torch/lib/libtorch_cuda.so",
        ];
        assert_eq!(found(&archive), [archive[1], archive[0]]);
    }

    #[test]
    fn without_nvrtc_there_is_nothing_to_load_and_no_note() {
        assert_eq!(
            found(&["nvidia/cudnn/lib/libcudnn.so.9", "nvidia/README"]),
            Vec::<String>::new()
        );
        assert_eq!(load(Path::new("/nowhere/torch/lib")), Vec::<String>::new());
        assert_eq!(load(Path::new("")), Vec::<String>::new());
    }

    #[test]
    fn of_several_versions_each_is_found_and_of_a_name_the_one_that_lies_nearest() {
        let both = [
            "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
            "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
            "nvidia/cu13/lib/libnvrtc.so.13",
            "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        ];
        assert_eq!(found(&both), both);
        let twice = ["nvidia/cu13/lib/libnvrtc.so.13", "torch/lib/libnvrtc.so.13"];
        assert_eq!(found(&twice), ["torch/lib/libnvrtc.so.13"]);
    }

    #[test]
    fn names_that_only_resemble_are_left_alone() {
        for name in [
            "libnvrtc.so",
            "libnvrtc.so.13.alt",
            "libnvrtc-builtins-static.so.13",
            "libnvrtcx.so.13",
            "libnvrtc-.so.1",
            "xlibnvrtc.so.1",
        ] {
            assert!(!is_nvrtc(name), "{name}");
        }
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_a_note_that_names_it() {
        let packages = tempfile::tempdir().unwrap();
        let lib = packages.path().join("torch/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libnvrtc.so.13"), "no library").unwrap();
        let notes = load(&lib);
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].contains("libnvrtc.so.13 cannot be loaded") && notes[0].contains("too short"),
            "{notes:?}"
        );
        let error = compile(&lib.join("libnvrtc.so.13"), "sm_90")
            .unwrap_err()
            .to_string();
        assert!(error.contains("too short"), "{error}");
    }

    #[test]
    fn a_loaded_file_whose_name_is_not_utf_8_hides_no_library() {
        let maps = own_maps();
        let paths = maps
            .lines()
            .filter_map(|line| Some(&line[line.find('/')?..]));
        let known: Vec<&str> = paths.filter(|path| path.contains("/libm.so")).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut name = folder.path().join("lib").into_os_string().into_vec();
        name.extend(b"\xff.so");
        fs::copy(known[0], OsStr::from_bytes(&name)).unwrap();
        let name = CString::new(name).unwrap();
        // SAFETY: a NUL-terminated text that lives through the call.
        checked(unsafe { kiln_load_library(name.as_ptr()) }).unwrap();
        assert!(library_files().contains_key("libtorch_cpu"));
    }

    #[test]
    fn a_library_that_is_no_nvrtc_is_told_apart() {
        let other = library_files()["libtorch_cpu"].clone();
        let error = version(Path::new(&other)).unwrap_err().to_string();
        assert!(
            error.contains("this libnvrtc has no nvrtcVersion"),
            "{error}"
        );
    }
}
