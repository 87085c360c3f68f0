//! One reading of a device. Plain values; missing is `None`.

/// The key of [`GpuReading::absent`](super::GpuReading::absent) for a reason why all of the
/// device's fields are missing.
pub const EVERYTHING: &str = "everything";

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
    /// NVML's bits; see [`throttle_names`](crate::sampler::throttle_names).
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
