//! Names and thresholds of `throttle_reasons`: why a GPU runs below its highest clock rate.

/// Clock limits for a smaller fraction of a window change no rate by 3 %.
pub const LEAST_THROTTLED_FRACTION: f64 = 0.05;
/// The driver's name of the power cap; a fully used device normally reaches it.
pub const POWER_CAP: &str = "sw_power_cap";
