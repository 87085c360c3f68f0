//! What limits a GPU's clocks, and from when on that matters.

/// Clock limits for a smaller fraction of a window change no rate by 3 %.
pub const LEAST_THROTTLED_FRACTION: f64 = 0.05;
/// The driver's name of the power cap; a fully used device normally reaches it.
pub const POWER_CAP: &str = "sw_power_cap";
