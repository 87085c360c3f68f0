//! One reading of a trial, its device and the host. Plain values; missing is `None`.

use std::collections::BTreeMap;

use crate::{ProcessList, gpu_reader::GpuTick};

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
    /// Whether one of its processes is stopped (SIGSTOP, Ctrl-Z).
    pub is_stopped: bool,
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
    /// When the trial's own program began, on CLOCK_MONOTONIC in nanoseconds: peaks and sums have no
    /// tick from before, but for what such a tick of a very long trial handed on when it was dropped. 0
    /// counts all.
    pub began: u64,
    /// Foreign processes seen on the device at any look; `None` on the CPU.
    pub foreign: Option<ProcessList>,
    /// Field of [`GpuTick`], or [`EVERYTHING`](crate::gpu_reader::EVERYTHING), to the reason why it
    /// could not be read.
    pub absent: BTreeMap<&'static str, String>,
    /// Field of [`GpuTick`] to what a reader of its value should know.
    pub remarks: BTreeMap<&'static str, &'static str>,
    /// NVML's error when the device was given up as lost.
    pub lost: Option<String>,
    /// The longest time in which the driver did not answer.
    pub silent_seconds: f64,
    /// Whether the driver did not answer at the last look.
    pub is_silent: bool,
}
