//! The columns of numbers that are means over the runs of a point: speed and resources.

use kiln_core::{
    record::TrialRow,
    units::{Bytes, Fraction, Seconds, decimals},
};

use super::cells::{HtmlCell, mean, of_runs, sorted};
use crate::report::{heads, points::Point};

/// A column of numbers: means over the runs of a point.
pub(super) struct NumberColumn {
    pub(super) head: &'static str,
    pub(super) meaning: &'static str,
    of: fn(&TrialRow) -> Option<f64>,
    print: fn(f64) -> String,
    /// Whether a point has the maximum of its trials, in place of their mean.
    is_peak: bool,
}

/// Columns before those of the metrics.
pub(super) const SPEED: [NumberColumn; 4] = [
    NumberColumn {
        head: heads::STEP.text,
        meaning: "median time of a step",
        of: |row| row.of_whole_work(row.median_step_seconds),
        print: |value| Seconds(value).to_string(),
        is_peak: false,
    },
    NumberColumn {
        head: heads::DATA_WAIT.text,
        meaning: "share of the window that the trainer was blocked in the loader, on a GPU with nothing left to do",
        of: |row| row.data_wait_fraction,
        print: |value| Fraction(value).to_string(),
        is_peak: false,
    },
    NumberColumn {
        head: "GPU util",
        meaning: "mean GPU utilization over the window: share of the time with any kernel running",
        of: |row| row.mean_gpu_utilization,
        print: |value| Fraction(value).to_string(),
        is_peak: false,
    },
    NumberColumn {
        head: "MFU",
        meaning: "model FLOP/s over the device's peak",
        of: |row| row.mfu,
        print: |value| Fraction(value).to_string(),
        is_peak: false,
    },
];

const MEMORY: NumberColumn = NumberColumn {
    head: heads::MEMORY.text,
    meaning: "peak memory of the process, of its fullest trial; on the CPU",
    of: |row| {
        let bytes = row.peak_resident_bytes.filter(|_| !row.is_on_gpu());
        bytes.map(|bytes| bytes as f64)
    },
    print: |value| Bytes(value as u64).to_string(),
    is_peak: true,
};

/// Columns after those of the metrics.
pub(super) const RESOURCES: [NumberColumn; 4] = [
    MEMORY,
    NumberColumn {
        head: "GPU memory",
        meaning: "peak memory in use on the GPU, by all processes and libraries, of the fullest trial",
        of: |row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64),
        ..MEMORY
    },
    NumberColumn {
        head: "tensors",
        meaning: "the part of it that the trial's tensors had, of the fullest trial",
        of: |row| row.peak_allocated_bytes.map(|bytes| bytes as f64),
        ..MEMORY
    },
    NumberColumn {
        head: "power",
        meaning: "mean power over the window",
        of: |row| row.mean_power_watts,
        print: |value| format!("{} W", decimals(value, 0)),
        is_peak: false,
    },
];

/// Columns after that of the energy.
pub(super) const COURSE: [NumberColumn; 2] = [
    NumberColumn {
        head: "throttled",
        meaning: "share of the window in which something limited the clocks",
        of: |row| row.throttled_fraction,
        print: |value| Fraction(value).to_string(),
        is_peak: false,
    },
    NumberColumn {
        head: "time",
        meaning: "duration of the whole trial",
        of: TrialRow::whole_seconds,
        print: |value| Seconds(value).to_string(),
        is_peak: false,
    },
];

impl NumberColumn {
    pub(super) fn cell(&self, point: &Point<'_>) -> Option<HtmlCell> {
        let value = mean(point, self.of)?;
        let most = point
            .completed()
            .filter_map(self.of)
            .fold(value.mean, f64::max);
        let shown = if self.is_peak { most } else { value.mean };
        Some(sorted(of_runs(point, &value, (self.print)(shown)), shown))
    }
}
