//! One reading of a trial, its device and the host. Plain values; missing is `None`.

use std::collections::BTreeMap;

use crate::ProcessList;

/// The key of [`TrialReadings::absent`] for a reason why all of the device's fields are missing.
pub const EVERYTHING: &str = "everything";

/// The processes and devices to watch while a trial runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    pub trial: String,
    pub attempt: u64,
    /// The child's process.
    pub pid: u32,
    /// Whether only what the process started is the trial.
    pub without_root: bool,
    /// `None` for a trial on the CPU.
    pub device_uuid: Option<String>,
}

/// One reading of one trial, its device and the host. A missing value is `None`;
/// [`TrialReadings::absent`] has the reason.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// CLOCK_MONOTONIC when the reading began.
    pub monotonic_nanoseconds: u64,
    /// Duration of the reading.
    pub reading_seconds: f64,
    pub gpu: Option<GpuTick>,
    /// The reason why a trial on a GPU has no `gpu` in this tick.
    pub gpu_absence: Option<String>,
    pub child: Option<ChildTick>,
    /// Cores that kiln and all that it started kept busy since the tick before: the trial, trials
    /// beside it, and what they started.
    pub own_cpu_cores: Option<f64>,
    pub host: HostTick,
}

/// The device. Shares are fractions of 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuTick {
    /// Share of the driver's last sample period (1/6 to 1 s) in which any kernel ran.
    pub utilization: Option<f64>,
    pub memory_utilization: Option<f64>,
    /// By all processes, driver's reserve excluded.
    pub memory_used_bytes: Option<u64>,
    /// As `nvidia-smi` shows it: the mean of the last second on most boards, else of the moment.
    pub power_watts: Option<f64>,
    /// Power at this instant.
    pub power_instant_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub memory_temperature_celsius: Option<f64>,
    pub sm_clock_megahertz: Option<u64>,
    pub memory_clock_megahertz: Option<u64>,
    /// NVML's bits; see [`throttle_names`](super::throttle_names).
    pub throttle_bits: Option<u64>,
    /// Counted since the driver was loaded.
    pub energy_joules: Option<f64>,
    /// 0 is the fastest.
    pub performance_state: Option<u32>,
    pub encoder_utilization: Option<f64>,
    pub decoder_utilization: Option<f64>,
    /// Since the driver was loaded; in a sampler's ticks since the attempt was first looked at.
    pub ecc_corrected_errors: Option<u64>,
    pub ecc_uncorrected_errors: Option<u64>,
    /// To the device, since the reading before.
    pub pcie_receive_bytes_per_second: Option<f64>,
    /// From the device.
    pub pcie_transmit_bytes_per_second: Option<f64>,
    /// Memory held by the trial's own process; read at the window's ends and every so many ticks.
    pub process_memory_bytes: Option<u64>,
    /// Values of the chip's counters; Hopper and later.
    pub work: GpuWork,
}

/// GPM: how much of the chip worked, as a mean since the reading before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuWork {
    /// Share of the multiprocessors with a warp resident.
    pub sm_active: Option<f64>,
    /// Warps resident by the most there can be.
    pub sm_occupancy: Option<f64>,
    /// Share of the time that tensor cores of any kind worked.
    pub tensor_active: Option<f64>,
    /// Share of the device memory's bandwidth in use.
    pub dram_bandwidth_utilization: Option<f64>,
    pub nvlink_receive_bytes_per_second: Option<f64>,
    pub nvlink_transmit_bytes_per_second: Option<f64>,
}

/// The trial's process and all that it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildTick {
    /// Pages that several of its processes hold count once; `None` where that was not read at this
    /// tick.
    pub resident_bytes: Option<u64>,
    /// The most that one of its processes ever held, or all hold now.
    pub peak_resident_bytes: u64,
    /// Cores kept busy since the tick before; `None` at the first.
    pub cpu_cores: Option<f64>,
    /// Fetched from disks since it started; what the page cache held is not in it.
    pub disk_read_bytes: Option<u64>,
}

/// The host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTick {
    /// Share of all cores' time since the tick before, as a fraction of 1.
    pub cpu_fraction: Option<f64>,
    /// The same of the cores that kiln may run on ([`crate::host::allowed_cores`]).
    pub allowed_cpu_fraction: Option<f64>,
    pub memory_available_bytes: Option<u64>,
    pub load_1_minute: Option<f64>,
    /// Share of the time since the tick before that the busiest disk was busy.
    pub disk_busy_fraction: Option<f64>,
}

/// A tick with whom it belongs to: a row of `samples.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledTick {
    pub trial: String,
    pub attempt: u64,
    pub device_uuid: Option<String>,
    /// Seconds since the run's start mark.
    pub run_seconds: f64,
    pub tick: Tick,
}

/// Everything read while a trial was watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialReadings {
    /// In order of time.
    pub ticks: Vec<Tick>,
    /// Foreign processes seen on the device at any look; `None` on the CPU.
    pub foreign: Option<ProcessList>,
    /// Field of [`GpuTick`], or [`EVERYTHING`], to the reason why it could not be read.
    pub absent: BTreeMap<&'static str, String>,
    /// Field of [`GpuTick`] to what a reader of its value should know.
    pub remarks: BTreeMap<&'static str, &'static str>,
    /// NVML's error when the device was given up as lost.
    pub lost: Option<String>,
    /// The longest time in which the driver did not answer.
    pub silent_seconds: f64,
}
