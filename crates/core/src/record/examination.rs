//! The output of `kiln-trial --examine` about its libraries: one JSON object per line on its
//! standard output.
//!
//! Each line is written before the next test starts, so that a child that crashes or hangs in the
//! driver has still reported all earlier findings. `kiln doctor` reads them; the checks of
//! `schedule` interpret them.

use serde::{Deserialize, Serialize};

/// Version of the lines, in [`Finding::Build`].
pub const EXAMINATION: u32 = 1;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// First line: the build, and the loaded libraries.
    Build(Build),
    /// State of the CUDA driver and of libtorch's CUDA part.
    Cuda(Cuda),
    /// Whether kernels can be compiled for the GPUs of one kind; absent without a GPU or without
    /// libtorch's NVRTC.
    Nvrtc(Nvrtc),
    /// One matrix product, compared with the same product in f64 on the CPU.
    Product(Product),
    /// Last line.
    Done,
    /// A finding from a newer child.
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
    /// Version of the protocol that its trials speak; `None` if it is too old to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Names as in `run.engine`.
    pub engines: Vec<String>,
    /// `None` in a build without libtorch.
    #[serde(default)]
    pub libtorch: Option<Libtorch>,
}

/// A loaded libtorch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Libtorch {
    /// Version of the headers that the program was compiled with.
    pub compiled: String,
    /// Version that the loaded library reports.
    #[serde(default)]
    pub loaded: Option<String>,
    /// Path of the loaded `libtorch_cpu.so`.
    #[serde(default)]
    pub path: Option<String>,
    /// CUDA runtime of the loaded build, such as `13.0`; `None` for a CPU-only one.
    #[serde(default)]
    pub cuda: Option<String>,
    /// Why the existing CUDA part of this libtorch cannot be loaded.
    #[serde(default)]
    pub cuda_fault: Option<String>,
    /// For example `9.10.2`.
    #[serde(default)]
    pub cudnn: Option<String>,
    /// Targets of the build's GPU code: `sm_90`, `compute_120`.
    #[serde(default)]
    pub architectures: Vec<String>,
}

/// CUDA as seen inside the child.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cuda {
    /// Answer of the driver's library (`libcuda.so.1`) to `cuInit`; `None` if the library is
    /// absent.
    #[serde(default)]
    pub driver: Option<CudaDriver>,
    /// Devices that libtorch can use; 0 in a CPU-only build.
    pub devices: u64,
    /// libtorch's message if it can use no device.
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
    /// Newest CUDA version that the driver supports.
    #[serde(default)]
    pub version: Option<String>,
    /// In CUDA's order.
    #[serde(default)]
    pub devices: Vec<CudaDevice>,
}

/// A device with its CUDA index.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CudaDevice {
    pub name: String,
    /// `GPU-…`, as in NVML.
    pub uuid: String,
    /// For example `9.0`.
    pub compute_capability: String,
}

/// NVRTC, which cuDNN and libtorch use to compile kernels while a trial runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nvrtc {
    /// For example `sm_90`.
    pub architecture: String,
    /// CUDA's version, for example `13.0`.
    #[serde(default)]
    pub version: Option<String>,
    /// NVRTC's message if a small kernel did not compile.
    #[serde(default)]
    pub fault: Option<String>,
}

/// A square product of random factors, with TF32 off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// `cpu`, or `cuda:0` in CUDA's order.
    pub device: String,
    /// `f32` or `bf16`.
    pub precision: String,
    /// Rows and columns of the factors.
    pub size: u64,
    /// Maximum difference from the f64 product, relative to its largest element; `None` if it is
    /// not finite, or on an error.
    #[serde(default)]
    pub max_relative_error: Option<f64>,
    /// Duration of one product, including the wait for the device.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// The engine's message if the product failed.
    #[serde(default)]
    pub fault: Option<String>,
}
