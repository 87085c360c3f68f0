//! The engines: devices, precision, fused operations, allocator figures, and every unsafe line of
//! this package.
//!
//! Input: an engine's name and a device. Output: burn's `Device` and the operations that models are
//! written in. An operation has one meaning on both engines: on libtorch it is one fused kernel
//! with libtorch's own backward, on flex it is composed of burn's operations.

pub(crate) mod device;
mod facts;
mod guard;
mod host_copy;
mod loaded;
mod operations;
mod precision;
pub(crate) mod recorded_work;

#[cfg(feature = "libtorch")]
pub(crate) mod capture;
#[cfg(feature = "libtorch")]
pub(crate) mod cuda;
#[cfg(feature = "libtorch")]
pub(crate) mod cuda_kernels;
#[cfg(feature = "libtorch")]
pub(crate) mod fixed;
#[cfg(feature = "libtorch")]
mod island;
#[cfg(feature = "libtorch")]
mod kernels;
#[cfg(feature = "libtorch")]
pub mod libtorch;
#[cfg(feature = "libtorch")]
pub(crate) mod nvrtc;
#[cfg(feature = "libtorch")]
pub(crate) mod probe;
#[cfg(feature = "libtorch")]
pub mod recorder;
#[cfg(feature = "libtorch")]
pub(crate) mod replicas;
#[cfg(feature = "libtorch")]
pub(crate) mod scaler;
#[cfg(feature = "libtorch")]
mod shim;
#[cfg(feature = "libtorch")]
mod threads;
#[cfg(feature = "libtorch")]
pub(crate) mod updates;
#[cfg(feature = "libtorch")]
mod version_numbers;

pub(crate) use device::begin_thread;
pub use device::{AllocatorStats, EngineDevice};
pub use facts::{cpu_model, flags, libraries};
pub use guard::{error_from_text, guard, guard_result};
pub(crate) use host_copy::{CopyMarks, HostCopy, MarkedCopy, on_host};
pub use loaded::library_files;
pub use operations::{
    AddedToScores, After, ConvGeometry, ConvNormWeights, IGNORED_TARGET, LstmState, LstmWeights,
    Ops, RunningStats,
};
pub(crate) use operations::{BATCH_NORM_EPSILON, LAYER_NORM_EPSILON, RMS_NORM_EPSILON, beside};
