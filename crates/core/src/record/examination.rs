//! What `kiln-trial --examine` says of the libraries it was started with: one JSON object per line on its standard output.
//!
//! Each line is written before the next thing is tried, so that a child that crashes or hangs in the driver has still told
//! what it knew until then. `kiln doctor` reads them; what they mean is for the checks of `schedule`.

use serde::{Deserialize, Serialize};

/// Version of the lines, said in [`Finding::Build`].
pub const EXAMINATION: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// First line: what was built, and which libraries were loaded.
    Build(Build),
    /// What the CUDA driver and libtorch's CUDA part say.
    Cuda(Cuda),
    /// Whether kernels can be compiled for the GPUs of one kind; none where there is no GPU or no NVRTC with libtorch.
    Nvrtc(Nvrtc),
    /// One matrix product that was compared with the same product in f64 on the CPU.
    Product(Product),
    /// Last line.
    Done,
    /// A finding of a newer child.
    #[serde(other)]
    Unknown,
}

/// The program and the libtorch it has loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Build {
    /// [`EXAMINATION`].
    pub kiln_examination: u32,
    /// Version of the program.
    pub kiln_trial: String,
    /// As `run.engine` names them.
    pub engines: Vec<String>,
    /// `None` in a build without libtorch.
    #[serde(default)]
    pub libtorch: Option<Libtorch>,
}

/// A libtorch as it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Libtorch {
    /// Version of the headers that the program was compiled with.
    pub compiled: String,
    /// What the loaded library says its version is.
    #[serde(default)]
    pub loaded: Option<String>,
    /// Path of the loaded `libtorch_cpu.so`.
    #[serde(default)]
    pub path: Option<String>,
    /// CUDA runtime of the loaded build, such as `13.0`; `None` for a CPU-only one.
    #[serde(default)]
    pub cuda: Option<String>,
    /// Why the CUDA half of this libtorch, which is there, cannot be loaded.
    #[serde(default)]
    pub cuda_fault: Option<String>,
    /// Such as `9.10.2`.
    #[serde(default)]
    pub cudnn: Option<String>,
    /// What the build's GPU code is for: `sm_90`, `compute_120`.
    #[serde(default)]
    pub architectures: Vec<String>,
}

/// CUDA as seen from inside the child.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cuda {
    /// What the driver's own library (`libcuda.so.1`) answered to `cuInit`; `None` where there is no such library.
    #[serde(default)]
    pub driver: Option<CudaDriver>,
    /// Devices that libtorch can use; 0 in a CPU-only build.
    pub devices: u64,
    /// libtorch's words where it can use none.
    #[serde(default)]
    pub fault: Option<String>,
}

/// The driver's CUDA library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CudaDriver {
    /// `CUresult` of `cuInit`; 0 is success.
    pub code: i32,
    /// Its name, such as `CUDA_ERROR_NO_DEVICE`.
    pub name: String,
    /// Newest CUDA that the driver can run.
    #[serde(default)]
    pub version: Option<String>,
    /// In CUDA's order.
    #[serde(default)]
    pub devices: Vec<CudaDevice>,
}

/// A device as CUDA numbers it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CudaDevice {
    pub name: String,
    /// `GPU-…`, as NVML writes it.
    pub uuid: String,
    /// Such as `9.0`.
    pub compute_capability: String,
}

/// NVRTC, by which cuDNN and libtorch compile kernels while a trial runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nvrtc {
    /// Such as `sm_90`.
    pub architecture: String,
    /// CUDA's version, such as `13.0`.
    #[serde(default)]
    pub version: Option<String>,
    /// NVRTC's words where a small kernel did not compile.
    #[serde(default)]
    pub fault: Option<String>,
}

/// A square product of random factors, TF32 off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// `cpu`, or `cuda:0` in CUDA's order.
    pub device: String,
    /// `f32` or `bf16`.
    pub precision: String,
    /// Rows and columns of the factors.
    pub size: u64,
    /// Largest difference from the f64 product, over the largest element of that; `None` if it is no number, or with a fault.
    #[serde(default)]
    pub max_relative_error: Option<f64>,
    /// Of one product, the device waited for.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The engine's words where there was no product.
    #[serde(default)]
    pub fault: Option<String>,
}
