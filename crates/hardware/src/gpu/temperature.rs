//! Temperatures of the GPU and its memory, and the limits at which it slows down or shuts down.

use nvml_wrapper::{
    Device,
    enum_wrappers::device::{TemperatureSensor, TemperatureThreshold},
};

use super::{Section, source::DeviceSource};
use crate::{
    Absence, Reading,
    nvml::{calls, field_ids as id},
};

/// In °C. Boards tell their limits as temperatures, or as margins: how far beyond the limit of
/// ordinary work (`T.Limit` of nvidia-smi) they lie, below zero for beyond.
#[derive(Clone, Debug)]
pub struct Temperature {
    pub gpu: Reading<i64>,
    /// Degrees by which the GPU is below its limit.
    pub gpu_margin: Reading<i64>,
    pub shutdown_margin: Reading<i64>,
    pub slowdown_margin: Reading<i64>,
    pub gpu_max_margin: Reading<i64>,
    pub memory_max_margin: Reading<i64>,
    pub shutdown: Reading<i64>,
    pub slowdown: Reading<i64>,
    pub gpu_max: Reading<i64>,
    pub memory_max: Reading<i64>,
    /// Target temperature of the fan.
    pub gpu_target: Reading<i64>,
    pub memory: Reading<i64>,
}

impl Section for Temperature {
    fn read(source: &DeviceSource<'_>) -> Self {
        let limit = |threshold: TemperatureThreshold| {
            source
                .tell(|device| device.temperature_threshold(threshold))
                .map(i64::from)
        };
        let newer = source
            .raw(calls::temperature)
            .map(|found| i64::from(found.temperature));
        Self {
            gpu: newer.or_else(|| {
                source
                    .tell(|device: &Device<'_>| device.temperature(TemperatureSensor::Gpu))
                    .map(i64::from)
            }),
            gpu_margin: source
                .raw(calls::margin_temperature)
                .map(|found| i64::from(found.marginTemperature)),
            shutdown_margin: source.signed(id::SHUTDOWN_MARGIN),
            slowdown_margin: source.signed(id::SLOWDOWN_MARGIN),
            gpu_max_margin: source.signed(id::GPU_MAX_MARGIN),
            memory_max_margin: source.signed(id::MEMORY_MAX_MARGIN),
            shutdown: limit(TemperatureThreshold::Shutdown),
            slowdown: limit(TemperatureThreshold::Slowdown),
            gpu_max: limit(TemperatureThreshold::GpuMax),
            memory_max: limit(TemperatureThreshold::MemoryMax),
            gpu_target: limit(TemperatureThreshold::AcousticCurr),
            memory: source.signed(id::MEMORY_TEMPERATURE).and_then(memory),
        }
    }
}

/// Boards without a sensor at their memory may answer 0.
fn memory(celsius: i64) -> Reading<i64> {
    if celsius == 0 {
        Reading::Absent(Absence::NotSupported)
    } else {
        Reading::Value(celsius)
    }
}

impl Temperature {
    /// Whether this board reports its limits as margins.
    pub fn has_margins(&self) -> bool {
        [
            &self.shutdown_margin,
            &self.slowdown_margin,
            &self.gpu_max_margin,
        ]
        .into_iter()
        .any(Reading::is_offered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_at_zero_degrees_has_no_sensor() {
        assert_eq!(
            (memory(0), memory(41)),
            (Reading::Absent(Absence::NotSupported), Reading::Value(41))
        );
    }
}
