//! Facts on which a result depends besides the trial file: libraries as loaded into this process,
//! switches, the CPU's name.

use std::{collections::BTreeMap, fs};

#[cfg(feature = "libtorch")]
use super::libtorch::{VersionCall, library_version};

/// Libraries whose version decides numbers or speed: their name here and the start of their file's
/// name.
const WATCHED: [(&str, &str); 12] = [
    ("libtorch_cpu", "libtorch_cpu."),
    ("libtorch_cuda", "libtorch_cuda."),
    ("libc10", "libc10."),
    ("cudnn", "libcudnn."),
    ("cublas", "libcublas."),
    ("cublas_lt", "libcublasLt."),
    ("nccl", "libnccl."),
    ("cudart", "libcudart"),
    ("nvrtc_builtins", "libnvrtc-builtins"),
    ("nvrtc", "libnvrtc"),
    ("openmp", "libgomp"),
    ("mkl", "libmkl_core."),
];

/// Versions by name, of the libraries that are in this process now, by their own words: `libtorch`
/// and `libtorch_build` (CUDA version and commit it was built from), `cudnn`, `cublas`, `nccl`,
/// `cudart`, `nvrtc`. A library that tells none has its file's name. Some are loaded with CUDA
/// only, so they are there once the device is open.
pub fn libraries() -> BTreeMap<String, String> {
    let burn = ("burn".to_owned(), "0.22.1".to_owned());
    std::iter::once(burn).chain(beside_burn()).collect()
}

#[cfg(feature = "libtorch")]
fn beside_burn() -> BTreeMap<String, String> {
    let mut found = libtorch_versions(&super::libtorch::build());
    let files = library_files();
    let own = files.iter().filter(|(name, _)| !name.starts_with("lib"));
    found.extend(own.map(|(name, path)| (name.clone(), version_of(name, path))));
    found
}

#[cfg(not(feature = "libtorch"))]
fn beside_burn() -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Files by name, of the watched libraries in `/proc/self/maps`.
pub fn library_files() -> BTreeMap<String, String> {
    mapped(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

fn mapped(maps: &str) -> BTreeMap<String, String> {
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let named = paths.filter_map(|path| {
        let file = path.rsplit('/').next()?;
        let (name, _) = WATCHED.iter().find(|(_, start)| file.starts_with(start))?;
        Some(((*name).to_owned(), path.to_owned()))
    });
    named.collect()
}

/// The value of `KEY=value` in libtorch's words on its build.
#[cfg(feature = "libtorch")]
pub(super) fn build_setting<'a>(build: &'a str, key: &str) -> Option<&'a str> {
    let parts = build.split([',', '\n']).map(str::trim);
    let mut values = parts.filter_map(|part| {
        part.rsplit_once('=')
            .filter(|(name, _)| name.rsplit(' ').next() == Some(key))
    });
    values.find_map(|(_, value)| Some(value.trim()).filter(|value| !value.is_empty()))
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

/// The library's own answer, else its file's name.
#[cfg(feature = "libtorch")]
fn version_of(name: &str, path: &str) -> String {
    let answered = match name {
        "cudnn" => library_version(path, c"cudnnGetVersion", VersionCall::Returned).map(cudnn),
        "cublas" => library_version(path, c"cublasGetProperty", VersionCall::InParts)
            .map(|number| parts(number, 10_000, 100)),
        "nccl" => library_version(path, c"ncclGetVersion", VersionCall::Written).map(nccl),
        "cudart" => library_version(path, c"cudaRuntimeGetVersion", VersionCall::Written).map(cuda),
        "nvrtc" => super::nvrtc::version(std::path::Path::new(path))
            .ok()
            .map(|version| version.cuda),
        _ => None,
    };
    answered.unwrap_or_else(|| path.rsplit('/').next().unwrap_or(path).to_owned())
}

/// major × `major` + minor × `minor` + patch.
#[cfg(feature = "libtorch")]
fn parts(number: i64, major: i64, minor: i64) -> String {
    format!(
        "{}.{}.{}",
        number / major,
        number % major / minor,
        number % minor
    )
}

/// 13000 is `13.0`.
#[cfg(feature = "libtorch")]
pub(super) fn cuda(number: i64) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// cuDNN counts the major version in ten thousands from 9 on, in thousands before.
#[cfg(feature = "libtorch")]
pub(super) fn cudnn(number: i64) -> String {
    if number >= 90_000 {
        parts(number, 10_000, 100)
    } else {
        parts(number, 1000, 100)
    }
}

/// NCCL counts the major version in ten thousands from 2.9 on, in thousands before.
#[cfg(feature = "libtorch")]
fn nccl(number: i64) -> String {
    if number >= 10_000 {
        parts(number, 10_000, 100)
    } else {
        parts(number, 1000, 100)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_libraries_are_found_in_the_maps_by_their_file_names() {
        let maps = "7f00-7f01 r-xp 00000000 00:1b 12 /opt/torch/lib/libtorch_cpu.so\n\
                    7f02-7f03 r-xp 00000000 00:1b 13 /opt/nvidia/lib/libcudnn.so.9\n\
                    7f04-7f05 rw-p 00000000 00:00 0 \n\
                    7f06-7f07 r-xp 00000000 00:1b 14 /usr/lib/libm.so.6\n\
                    7f08-7f09 r-xp 00000000 00:1b 15 /opt/nvidia/lib/libcudnn_graph.so.9\n\
                    7f0a-7f0b r-xp 00000000 00:1b 16 /opt/nvidia/lib/libnvrtc.so.13\n\
                    7f0c-7f0d r-xp 00000000 00:1b 17 /opt/nvidia/lib/libnvrtc-builtins.so.13.0\n";
        let found = mapped(maps);
        assert_eq!(found.len(), 4);
        assert_eq!(found["nvrtc"], "/opt/nvidia/lib/libnvrtc.so.13");
        assert_eq!(
            found["nvrtc_builtins"],
            "/opt/nvidia/lib/libnvrtc-builtins.so.13.0"
        );
        assert_eq!(found["libtorch_cpu"], "/opt/torch/lib/libtorch_cpu.so");
        assert_eq!(found["cudnn"], "/opt/nvidia/lib/libcudnn.so.9");
    }

    #[test]
    #[cfg(feature = "libtorch")]
    fn numbers_of_versions_read_as_their_makers_write_them() {
        assert_eq!([cuda(13_000), cuda(12_080)], ["13.0", "12.8"]);
        assert_eq!([cudnn(91_501), cudnn(8907)], ["9.15.1", "8.9.7"]);
        assert_eq!([nccl(22_809), nccl(2804)], ["2.28.9", "2.8.4"]);
        assert_eq!(parts(130_102, 10_000, 100), "13.1.2");
    }

    #[test]
    #[cfg(feature = "libtorch")]
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
    #[cfg(feature = "libtorch")]
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
