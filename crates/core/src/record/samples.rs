//! `samples.csv`: one row per running trial and tick.

use super::columns::table;

table! {
    /// One row per running trial and tick: its device, its process and the host, read every
    /// `measure.sample_interval` and at both ends of the measured window. Not committed.
    SAMPLES: SampleRow = "samples/2" in "samples.csv";
    since 1 {
        /// Number of this start of `kiln run` on the folder, from 1.
        launch: u64,
        /// Time since the run's start mark.
        run_seconds: f64 ["s"],
        /// The trial's id.
        trial: String,
        /// Number of this start of the trial's process, from 1.
        attempt: u64,
        /// UUID of the GPU, or `cpu`.
        device: String,
        /// Fraction of the driver's last sample period (1/6 to 1 s) in which any kernel ran; one
        /// thread on one core of the GPU gives 1.
        gpu_utilization: Option<f64> ["of 1"],
        /// Fraction of that period in which device memory was read or written.
        memory_utilization: Option<f64> ["of 1"],
        /// Device memory in use, by all processes.
        memory_used_bytes: Option<u64> ["B"],
        /// Power draw; on most boards the mean of the last second.
        power_watts: Option<f64> ["W"],
        /// Temperature of the GPU.
        temperature_celsius: Option<f64> ["°C"],
        /// Clock of the multiprocessors.
        sm_clock_megahertz: Option<u64> ["MHz"],
        /// Clock of the device memory.
        memory_clock_megahertz: Option<u64> ["MHz"],
        /// P-state, 0 is the fastest.
        performance_state: Option<u32>,
        /// Reasons why the clocks are not higher, separated by spaces; `idle` is one of them. Empty
        /// if nothing limits the clocks.
        throttle_reasons: Option<String>,
        /// The driver's energy counter; differences count, not the value.
        energy_counter_joules: Option<f64> ["J"],
        /// Memory of the trial's process and of all that it started; pages that several of them hold
        /// count once. With several processes it is read as often as 0.5 % of a core allows, and
        /// empty between.
        resident_bytes: Option<u64> ["B"],
        /// CPU cores that the trial's process and its children used since the previous tick.
        cpu_cores: Option<f64> ["cores"],
        /// Fraction of the time of all CPU cores that was busy since the previous tick.
        host_cpu_fraction: Option<f64> ["of 1"],
        /// Host memory available without swapping.
        host_memory_available_bytes: Option<u64> ["B"],
        /// Mean number of runnable processes over the last minute.
        host_load: Option<f64>,
        /// Duration of this tick's reading.
        reading_seconds: f64 ["s"],
    }
    since 2 {
        /// Fraction of the multiprocessors with work since the previous tick (GPM: Hopper and
        /// later, like the next three).
        sm_active: Option<f64> ["of 1"],
        /// Resident warps divided by the maximum.
        sm_occupancy: Option<f64> ["of 1"],
        /// Fraction of the time in which tensor cores of any kind were active.
        tensor_active: Option<f64> ["of 1"],
        /// Fraction of the device memory's bandwidth in use.
        dram_bandwidth_utilization: Option<f64> ["of 1"],
        /// PCIe traffic to the device since the previous tick: from GPM, else from the driver's
        /// byte counter, which may wrap unnoticed.
        pcie_receive_bytes_per_second: Option<f64> ["B/s"],
        /// The same, from the device.
        pcie_transmit_bytes_per_second: Option<f64> ["B/s"],
        /// NVLink traffic to the device since the previous tick (GPM).
        nvlink_receive_bytes_per_second: Option<f64> ["B/s"],
        /// The same, from the device.
        nvlink_transmit_bytes_per_second: Option<f64> ["B/s"],
        /// Instantaneous power draw.
        power_instant_watts: Option<f64> ["W"],
        /// Temperature of the device memory.
        memory_temperature_celsius: Option<f64> ["°C"],
        /// The reasons of `throttle_reasons` as NVML's bits; 0 if nothing limits the clocks.
        throttle_bits: Option<u64>,
        /// Fraction of the driver's sample period in which the video encoder was active.
        encoder_utilization: Option<f64> ["of 1"],
        /// The same for the video decoder.
        decoder_utilization: Option<f64> ["of 1"],
        /// Memory errors corrected since the attempt began.
        ecc_corrected_errors: Option<u64>,
        /// Memory errors that could not be corrected since the attempt began.
        ecc_uncorrected_errors: Option<u64>,
        /// Device memory of the trial's own process; read at both ends of the window and every
        /// tenth tick; unknown inside most containers.
        process_memory_bytes: Option<u64> ["B"],
        /// Bytes that the trial's process and its children have read from disks since they started,
        /// without page-cache hits.
        disk_read_bytes: Option<u64> ["B"],
        /// Fraction of the time since the previous tick in which the host's busiest disk was busy.
        disk_busy_fraction: Option<f64> ["of 1"],
        /// Why all cells of the device are empty: the driver does not respond, the GPU is lost.
        device_absence: Option<String>,
    }
}
