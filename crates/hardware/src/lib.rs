//! Readings of the machine: the host and its NVIDIA devices, all at once (a snapshot) or on a timer
//! (samples).
//!
//! `host` and `nvml` read once, `snapshot` turns everything they know into tidy entries, `sampler`
//! reads some of it on a timer while trials run, `window` summarizes those ticks over a trial's
//! measured window. Every reading is a value or a reason why there is none; one failure disables
//! one field. The `readings` of package `kiln` write them to files.

mod cgroup;
mod deadline;
mod disk;
pub mod fields;
mod file_system;
pub mod gpu;
mod gpu_reader;
pub mod host;
pub mod host_id;
pub mod limits;
pub mod nvml;
mod oom_kills;
pub mod patient;
mod process;
pub mod processor;
pub mod query;
mod reading;
pub mod sampler;
pub mod snapshot;
pub mod text;
mod tree;
pub mod window;
pub mod words;

pub use file_system::{FileSystem, Sight, file_system};
pub use gpu::Gpu;
pub use gpu_reader::{
    EVERYTHING, GpuReading, GpuTick, GpuWork,
    cost::{GroupCost, costs},
    desk::GpuWatchdog,
    gone, held_memory_bytes, lost, power_limit_watts, power_now_watts,
};
pub use host::HostFacts;
pub use nvml::{DeviceFacts, GpuProcess, MigInstance, Nvml, NvmlAbsent, NvmlFault, ProcessList};
pub use oom_kills::OomKillWatch;
pub use patient::{
    Patience, Which, check_setting, list_devices, read_all_gpus, read_gpus, silence_of,
};
pub use reading::{Absence, Reading};
pub use sampler::{Sampler, Tick, TrialReadings, Watch};
pub use snapshot::{Entry, Snapshot};
pub use tree::{
    children, cpu_seconds_below, maps, peak_resident_bytes, peak_resident_bytes_below,
    peak_resident_bytes_of,
};
pub use window::WindowSummary;

/// The variable by which CUDA shows a process only some GPUs, in this order: indices or UUIDs.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
