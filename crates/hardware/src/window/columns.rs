//! The columns that the readings of a device fill. Each is declared here once: how its readings and the
//! values of several devices become one, and which readings it needs.

use std::iter::Sum;

use super::WindowSummary;
use crate::gpu_reader::GpuTick;

/// One column with numbers of the type `T`.
pub(super) struct WindowColumn<T: 'static> {
    pub(super) name: &'static str,
    pub(super) place: fn(&mut WindowSummary) -> &mut Option<T>,
    /// Makes one value of those of the devices that share a trial. There is at least one.
    pub(super) join: fn(&[T]) -> Option<T>,
    /// The reading whose mean over the window's ticks it is; `None` if it is computed in another way.
    pub(super) mean_of: Option<fn(&GpuTick) -> Option<T>>,
    /// The names of the readings that explain an empty cell and remark on a filled one. None where those of
    /// another column, beside which it is empty, say enough.
    pub(super) readings: &'static [&'static str],
    /// True if the column stays empty when a trial has no measured window.
    pub(super) needs_window: bool,
}

impl<T> WindowColumn<T> {
    /// Its name, the readings that explain it, and whether it is empty.
    pub(super) fn explained_by(
        &self,
        summary: &mut WindowSummary,
    ) -> (&'static str, &'static [&'static str], bool) {
        (self.name, self.readings, (self.place)(summary).is_none())
    }
}

/// The mean of the devices' shares, or of their clock rates.
fn mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    Some((sum / values.len() as f64 * 1e6).round() / 1e6)
}

fn sum<T: Copy + Sum>(values: &[T]) -> Option<T> {
    Some(values.iter().copied().sum())
}

/// The device that is worst off speaks for all: the step waits for it.
fn highest<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let values = values.iter().copied();
    values.reduce(|one, other| if other > one { other } else { one })
}

macro_rules! column {
    ($name:ident, $join:ident, $readings:expr, $needs_window:expr, $mean_of:expr) => {
        WindowColumn {
            name: stringify!($name),
            place: |of| &mut of.$name,
            join: $join,
            mean_of: $mean_of,
            readings: &$readings,
            needs_window: $needs_window,
        }
    };
    ($name:ident, $join:ident, $readings:expr, mean of $reading:expr) => {
        column!($name, $join, $readings, true, Some($reading))
    };
    ($name:ident, $join:ident, $readings:expr, in the window) => {
        column!($name, $join, $readings, true, None)
    };
    ($name:ident, $join:ident, $readings:expr, at any time) => {
        column!($name, $join, $readings, false, None)
    };
}

#[rustfmt::skip]
pub(super) const NUMBERS: [WindowColumn<f64>; 15] = [
    column!(mean_gpu_utilization, mean, ["utilization"], mean of |gpu| gpu.utilization),
    // GPM gives the other shares too, so they are empty with this one.
    column!(mean_sm_active, mean, ["sm_active", "gpm"], mean of |gpu| gpu.work.sm_active),
    column!(mean_sm_occupancy, mean, [], mean of |gpu| gpu.work.sm_occupancy),
    column!(mean_tensor_active, mean, [], mean of |gpu| gpu.work.tensor_active),
    column!(mean_dram_bandwidth_utilization, mean, [], mean of |gpu| gpu.work.dram_bandwidth_utilization),
    column!(mean_pcie_receive_bytes_per_second, sum, [], mean of |gpu| gpu.pcie_receive_bytes_per_second),
    column!(mean_pcie_transmit_bytes_per_second, sum, [], mean of |gpu| gpu.pcie_transmit_bytes_per_second),
    column!(mean_nvlink_receive_bytes_per_second, sum, [], mean of |gpu| gpu.work.nvlink_receive_bytes_per_second),
    column!(mean_nvlink_transmit_bytes_per_second, sum, [], mean of |gpu| gpu.work.nvlink_transmit_bytes_per_second),
    column!(mean_sm_clock_megahertz, mean, [], mean of |gpu| Some(gpu.sm_clock_megahertz? as f64)),
    column!(mean_power_watts, sum, ["power_watts"], in the window),
    column!(energy_counter_joules, sum, ["energy_joules"], in the window),
    column!(energy_integral_joules, sum, ["power_watts"], in the window),
    column!(throttled_fraction, highest, ["throttle_bits"], in the window),
    column!(max_temperature_celsius, highest, ["temperature_celsius"], at any time),
];

#[rustfmt::skip]
pub(super) const COUNTS: [WindowColumn<u64>; 4] = [
    column!(peak_nvml_used_bytes, highest, ["memory_used_bytes"], at any time),
    column!(peak_nvml_process_bytes, highest, [], at any time),
    column!(ecc_corrected_errors, sum, [], at any time),
    column!(ecc_uncorrected_errors, sum, ["ecc_uncorrected_errors"], at any time),
];
