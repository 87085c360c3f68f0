//! Facts about the build of the loaded libtorch and about the CUDA driver. No input. Output: facts
//! for `examine`; nothing here computes.

use std::ffi::{CStr, c_int};

use kiln_core::record::examination::{Cuda, CudaDevice, CudaDriver, Libtorch};

use super::{
    cuda::{self, NoCuda},
    libtorch::{build as config, headers_version},
    loaded::own_maps,
    shim::{checked, last_text},
    version_numbers::{build_setting, cuda as cuda_version, cudnn as cudnn_version},
};

unsafe extern "C" {
    fn kiln_cuda_build(versions: *mut i64) -> c_int;
    fn kiln_cuda_devices(count: *mut i64) -> c_int;
    fn kiln_driver(
        code: *mut i32,
        version: *mut i32,
        devices: *mut DriverDevice,
        room: i32,
        count: *mut i32,
    ) -> c_int;
}

/// `KilnDriverDevice` of the shim.
#[repr(C)]
#[derive(Clone, Copy)]
struct DriverDevice {
    name: [u8; 256],
    uuid: [u8; 16],
    major: i32,
    minor: i32,
}

/// Most devices of one machine; a DGX has 16.
const MOST_DEVICES: usize = 64;

/// Facts about the libtorch of this process that need no device. Its CUDA part is loaded for this,
/// as in a trial.
pub(crate) fn build() -> Libtorch {
    let cuda_fault = match cuda::load() {
        Err(NoCuda::Broken(why)) => Some(why),
        Ok(()) | Err(NoCuda::CpuOnly(_)) => None,
    };
    let config = config();
    let (cuda, cudnn) = cuda_build();
    Libtorch {
        compiled: headers_version().to_owned(),
        loaded: build_setting(&config, "TORCH_VERSION").map(str::to_owned),
        path: loaded_path(),
        cuda: (cuda > 0).then(|| cuda_version(cuda)),
        cudnn: (cudnn > 0).then(|| cudnn_version(cudnn)),
        cuda_fault,
        architectures: architectures(&config),
    }
}

/// Starts CUDA. After a fault here the process is not to be trusted with CUDA any more.
pub(crate) fn cuda() -> Cuda {
    let mut count = 0;
    // SAFETY: the shim writes one number.
    let started = checked(unsafe { kiln_cuda_devices(&raw mut count) });
    Cuda {
        driver: driver(),
        devices: u64::try_from(count).unwrap_or(0),
        fault: started.err().map(|error| error.to_string()),
    }
}

/// CUDA's and cuDNN's version numbers; 0 where the build has none.
fn cuda_build() -> (i64, i64) {
    let mut versions = [0; 2];
    // SAFETY: the shim writes two numbers.
    match checked(unsafe { kiln_cuda_build(versions.as_mut_ptr()) }) {
        Ok(()) => (versions[0], versions[1]),
        Err(_) => (0, 0),
    }
}

/// Compute capability of the first visible device, from the CUDA driver, such as `8.0`; `None`
/// without a driver.
pub(super) fn compute_capability() -> Option<String> {
    Some(driver()?.devices.into_iter().next()?.compute_capability)
}

fn driver() -> Option<CudaDriver> {
    let (mut code, mut version, mut count) = (0, 0, 0);
    let mut places = vec![
        DriverDevice {
            name: [0; 256],
            uuid: [0; 16],
            major: 0,
            minor: 0
        };
        MOST_DEVICES
    ];
    // SAFETY: the shim writes three numbers and at most as many devices as there is room for.
    let absent = unsafe {
        kiln_driver(
            &raw mut code,
            &raw mut version,
            places.as_mut_ptr(),
            MOST_DEVICES as i32,
            &raw mut count,
        )
    };
    if absent != 0 {
        return None;
    }
    let name = last_text();
    places.truncate(usize::try_from(count).unwrap_or(0));
    let version = (version > 0).then(|| cuda_version(i64::from(version)));
    Some(CudaDriver {
        code,
        name,
        version,
        devices: places.iter().map(device).collect(),
    })
}

fn device(found: &DriverDevice) -> CudaDevice {
    let name = CStr::from_bytes_until_nul(&found.name)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    CudaDevice {
        name,
        uuid: uuid(&found.uuid),
        compute_capability: format!("{}.{}", found.major, found.minor),
    }
}

/// As NVML writes it: `GPU-8-4-4-4-12` hex digits.
fn uuid(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        hex[..4].concat(),
        hex[4..6].concat(),
        hex[6..8].concat(),
        hex[8..10].concat(),
        hex[10..].concat()
    )
}

/// `sm_90` and `compute_120` of the build's `-gencode` flags, in their order.
fn architectures(config: &str) -> Vec<String> {
    let Some(line) = config
        .lines()
        .find(|line| line.contains("NVCC architecture flags"))
    else {
        return Vec::new();
    };
    let codes = line
        .split([';', ',', ' '])
        .filter_map(|word| word.strip_prefix("code="));
    codes
        .map(|code| code.trim_matches(['[', ']']).to_owned())
        .collect()
}

fn loaded_path() -> Option<String> {
    let maps = own_maps();
    let line = maps
        .lines()
        .find(|line| line.contains("/libtorch_cpu.so"))?;
    Some(line[line.find('/')?..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builds_description_names_its_gpu_code_and_version() {
        let config = "PyTorch built with:\n  - CUDA Runtime 13.0\n  - NVCC architecture flags: \
                      -gencode;arch=compute_75,code=sm_75;-gencode;arch=compute_120,code=compute_120\n  \
                      - Build settings: BLAS_INFO=mkl, TORCH_VERSION=2.11.0, USE_CUDA=1, \n";
        assert_eq!(architectures(config), ["sm_75", "compute_120"]);
        assert_eq!(build_setting(config, "TORCH_VERSION"), Some("2.11.0"));
        assert_eq!(
            (architectures(""), build_setting("", "TORCH_VERSION")),
            (Vec::new(), None)
        );
    }

    #[test]
    fn a_uuid_has_nvmls_form() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(uuid(&bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn the_loaded_libtorch_says_its_version_and_where_it_lies() {
        let build = build();
        assert_eq!(build.loaded.as_deref(), Some(build.compiled.as_str()));
        assert!(
            build
                .path
                .is_some_and(|path| path.ends_with("/libtorch_cpu.so"))
        );
        // PyTorch 2.11 with CUDA leaves the list empty; one without CUDA cannot have any.
        assert!(build.cuda.is_some() || build.architectures.is_empty());
    }
}
