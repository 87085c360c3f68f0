//! A `libnvidia-ml.so.1` that plays scenarios, for machines without a GPU.
//!
//! Input: a scenario: NVML calls and the raw values or return codes they answer, with their change
//! over time (`scenario`, `answer`). Output: the C interface that a program finds in the driver's
//! library (`abi`), or, from `convert`, a scenario made from the output of `nvidia-smi` on a real
//! machine. The meaning and the format of the numbers are left to kiln.

#![allow(clippy::disallowed_methods, reason = "a program for tests alone")]

mod abi;
pub mod answer;
pub mod convert;
pub mod install;
mod player;
pub mod scenario;

pub use scenario::{Device, Lost, Scenario};

/// NVML's return codes (`nvmlReturn_t`) that the fake itself gives.
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const GPU_IS_LOST: u32 = 15;
    pub const VERSION_MISMATCH: u32 = 25;
    pub const DEPRECATED: u32 = 26;
    pub const UNKNOWN: u32 = 999;
}
