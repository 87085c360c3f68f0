//! Facts on which a result depends besides the trial file: libraries as loaded into this process,
//! switches, the CPU's name.

use std::{collections::BTreeMap, fs};

#[cfg(feature = "libtorch")]
use kiln_core::record::libraries::{build_id, with_build_id};

#[cfg(feature = "libtorch")]
use super::{
    libtorch::{VersionCall, library_version},
    loaded::library_files,
    version_numbers::{build_setting, cublas, cuda, cudnn, nccl},
};

/// Versions by name, of the libraries that are in this process now, by their own words: `libtorch`
/// and `libtorch_build` (CUDA version and commit it was built from), `cudnn`, `cublas`, `nccl`,
/// `cudart`, `nvrtc`; of libtorch's files (`libtorch_cpu`) the build ids. A library that tells none
/// has its file's name. Some are loaded with CUDA only, so they are there once the device is open.
pub fn libraries() -> BTreeMap<String, String> {
    let burn = ("burn".to_owned(), "0.22.1".to_owned());
    std::iter::once(burn).chain(beside_burn()).collect()
}

#[cfg(feature = "libtorch")]
fn beside_burn() -> BTreeMap<String, String> {
    let mut found = libtorch_versions(&super::libtorch::build());
    let files = library_files();
    found.extend(files.iter().map(|(name, path)| {
        let version = match name.starts_with("lib") {
            // libtorch's own files, whose version is `libtorch`.
            true => build_of(path),
            false => version_of(name, path),
        };
        (name.clone(), version)
    }));
    found
}

#[cfg(not(feature = "libtorch"))]
fn beside_burn() -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Versions in libtorch's description of its build. `libtorch` is without the flavor's suffix,
/// which `libtorch_build` has.
#[cfg(feature = "libtorch")]
fn libtorch_versions(build: &str) -> BTreeMap<String, String> {
    let value = |key: &str| build_setting(build, key);
    let cuda = value("CUDA_VERSION").map_or("without CUDA".to_owned(), |version| {
        format!("CUDA {version}")
    });
    let commit = value("COMMIT_SHA")
        .map(|commit| format!(", commit {}", commit.get(..10).unwrap_or(commit)));
    let mut found = BTreeMap::from([(
        "libtorch_build".to_owned(),
        format!("{cuda}{}", commit.unwrap_or_default()),
    )]);
    if let Some(version) = value("TORCH_VERSION") {
        found.insert("libtorch".to_owned(), version.to_owned());
    }
    found
}

/// A library's file with its build id, which tells two builds of one version apart.
#[cfg(feature = "libtorch")]
fn build_of(path: &str) -> String {
    let id = build_id(std::path::Path::new(path)).ok().flatten();
    with_build_id(path.rsplit('/').next().unwrap_or(path), id.as_deref())
}

/// The library's own answer, else its file's name.
#[cfg(feature = "libtorch")]
fn version_of(name: &str, path: &str) -> String {
    let answered = match name {
        "cudnn" => library_version(path, c"cudnnGetVersion", VersionCall::Returned).map(cudnn),
        "cublas" => library_version(path, c"cublasGetProperty", VersionCall::InParts).map(cublas),
        "nccl" => library_version(path, c"ncclGetVersion", VersionCall::Written).map(nccl),
        "cudart" => library_version(path, c"cudaRuntimeGetVersion", VersionCall::Written).map(cuda),
        "nvrtc" => super::nvrtc::version(std::path::Path::new(path))
            .ok()
            .map(|version| version.cuda),
        _ => None,
    };
    answered.unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path).to_owned())
}

/// Switches by name; empty without libtorch.
pub fn flags() -> BTreeMap<String, String> {
    #[cfg(feature = "libtorch")]
    if let Ok(flags) = super::libtorch::flags() {
        return flags;
    }
    BTreeMap::new()
}

/// The CPU as `/proc/cpuinfo` names it; `cpu` if it does not.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or("cpu".to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(all(test, feature = "libtorch"))]
mod tests {
    use super::*;

    #[test]
    fn libtorch_says_itself_which_version_it_is() {
        let build = "PyTorch built with:\n  - Build settings: BLAS_INFO=mkl, \
                     COMMIT_SHA=70d99e998b4955, CUDA_VERSION=13.0, TORCH_VERSION=2.11.0, \
                     USE_CUDA=ON, \n";
        let found = libtorch_versions(build);
        assert_eq!(
            (found["libtorch"].as_str(), found["libtorch_build"].as_str()),
            ("2.11.0", "CUDA 13.0, commit 70d99e998b")
        );
        assert_eq!(libtorch_versions("")["libtorch_build"], "without CUDA");
    }

    #[test]
    fn this_process_tells_its_libraries_versions() {
        let found = libraries();
        assert!(
            found["libtorch"].starts_with("2.") && !found["libtorch"].contains('+'),
            "{found:?}"
        );
        // Both flavors of the wheel load the CUDA runtime; a libtorch built without CUDA does not.
        if let Some(file) = library_files().get("cudart") {
            assert!(
                found["cudart"]
                    .split_once('.')
                    .is_some_and(|(major, _)| major.parse::<u32>().is_ok()),
                "{file}: {found:?}"
            );
        }
        let absent = library_version(
            "/nowhere/libcudnn.so",
            c"cudnnGetVersion",
            VersionCall::Returned,
        );
        assert_eq!(absent, None);
    }
}
