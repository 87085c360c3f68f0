//! Activity of the GPU: utilization, encoder and capture sessions, fan, performance state, and the
//! reasons that limit the clocks.

use nvml_wrapper::Device;

use super::{Section, source::DeviceSource};
use crate::{
    Absence, Reading,
    nvml::{
        calls,
        field_ids::{SW_POWER_CAP, SYNC_BOOST},
    },
};

/// Percentages are of the driver's last sample period, 1/6 s to 1 s.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Share of the time in which any kernel ran. 100 does not mean that the GPU is used well.
    pub gpu_percent: Reading<u64>,
    /// Share of the time in which memory was read or written.
    pub memory_percent: Reading<u64>,
    pub encoder_percent: Reading<u64>,
    pub decoder_percent: Reading<u64>,
    pub jpeg_percent: Reading<u64>,
    pub ofa_percent: Reading<u64>,
    pub encoder: Sessions,
    /// Frame-buffer capture.
    pub capture: Sessions,
    /// Target speed of the first fan, in percent.
    pub fan_percent: Reading<u64>,
    pub fan_count: Reading<u64>,
    pub fan_rotations_per_minute: Reading<u64>,
    /// 0 (fastest) to 15.
    pub performance_state: Reading<u64>,
    /// Bits of [`Activity::REASONS`] that hold the clocks down now.
    pub event_reasons: Reading<u64>,
    pub supported_event_reasons: Reading<u64>,
    pub event_reason_counters: EventReasonCounters,
}

impl Activity {
    pub const IDLE: u64 = 0x1;
    pub const APPLICATION_CLOCKS: u64 = 0x2;
    pub const SW_POWER_CAP: u64 = 0x4;
    pub const HW_SLOWDOWN: u64 = 0x8;
    pub const SYNC_BOOST: u64 = 0x10;
    pub const SW_THERMAL_SLOWDOWN: u64 = 0x20;
    pub const HW_THERMAL_SLOWDOWN: u64 = 0x40;
    pub const HW_POWER_BRAKE: u64 = 0x80;
    pub const DISPLAY_CLOCKS: u64 = 0x100;
    /// The clocks are lowered because of the temperature.
    pub const HEAT: u64 = Self::HW_THERMAL_SLOWDOWN | Self::SW_THERMAL_SLOWDOWN;
}

/// Sessions of the video encoder or of frame-buffer capture.
#[derive(Clone, Debug)]
pub struct Sessions {
    pub active: Reading<u64>,
    pub average_frames_per_second: Reading<u64>,
    pub average_latency_microseconds: Reading<u64>,
}

/// For how long each reason held the clocks down since the driver loaded, in nanoseconds.
#[derive(Clone, Debug)]
pub struct EventReasonCounters {
    pub sw_power_cap: Reading<u64>,
    pub sync_boost: Reading<u64>,
    pub sw_thermal_slowdown: Reading<u64>,
    pub hw_thermal_slowdown: Reading<u64>,
    pub hw_power_brake: Reading<u64>,
}

impl Section for Activity {
    fn read(source: &DeviceSource<'_>) -> Self {
        let rates = source.tell(Device::utilization_rates);
        let encoder = source.tell(Device::encoder_stats);
        let capture = source.tell(Device::fbc_stats);
        let fan_count = source.tell(Device::num_fans).map(u64::from);
        Self {
            gpu_percent: rates.as_ref().map(|rates| u64::from(rates.gpu)),
            memory_percent: rates.map(|rates| u64::from(rates.memory)),
            encoder_percent: source
                .tell(Device::encoder_utilization)
                .map(|info| u64::from(info.utilization)),
            decoder_percent: source
                .tell(Device::decoder_utilization)
                .map(|info| u64::from(info.utilization)),
            jpeg_percent: source
                .raw(calls::jpeg_utilization)
                .map(|(percent, _)| u64::from(percent)),
            ofa_percent: source
                .raw(calls::ofa_utilization)
                .map(|(percent, _)| u64::from(percent)),
            encoder: Sessions::of(&encoder, |stats| {
                [
                    stats.session_count,
                    stats.average_fps,
                    stats.average_latency,
                ]
            }),
            capture: Sessions::of(&capture, |stats| {
                [
                    stats.sessions_count,
                    stats.average_fps,
                    stats.average_latency,
                ]
            }),
            fan_percent: of_first_fan(&fan_count, source.tell(|device| device.fan_speed(0))),
            fan_rotations_per_minute: of_first_fan(
                &fan_count,
                source.tell(|device| device.fan_speed_rpm(0)),
            ),
            fan_count,
            performance_state: source
                .raw(calls::performance_state)
                .and_then(performance_state),
            event_reasons: source
                .raw(calls::clocks_event_reasons)
                .or_else(|| source.raw(calls::clocks_throttle_reasons)),
            supported_event_reasons: source
                .raw(calls::supported_clocks_event_reasons)
                .or_else(|| source.raw(calls::supported_clocks_throttle_reasons)),
            event_reason_counters: EventReasonCounters::read(source),
        }
    }
}

/// A board without fans refuses the number of the first one as an invalid argument. This is not an
/// error of the call.
fn of_first_fan(count: &Reading<u64>, answer: Reading<u32>) -> Reading<u64> {
    const INVALID_ARGUMENT: Absence = Absence::Code(2);
    if count.value() == Some(&0) && answer.absence() == Some(&INVALID_ARGUMENT) {
        Reading::Absent(Absence::NotSupported)
    } else {
        answer.map(u64::from)
    }
}

/// 32 is `NVML_PSTATE_UNKNOWN`.
fn performance_state(state: u32) -> Reading<u64> {
    if state < 32 {
        Reading::Value(u64::from(state))
    } else {
        Reading::absent("the driver does not know the performance state")
    }
}

impl Sessions {
    fn of<S>(stats: &Reading<S>, parts: impl Fn(&S) -> [u32; 3]) -> Self {
        let part = |at: usize| stats.as_ref().map(|stats| u64::from(parts(stats)[at]));
        Self {
            active: part(0),
            average_frames_per_second: part(1),
            average_latency_microseconds: part(2),
        }
    }
}

impl Section for EventReasonCounters {
    fn read(source: &DeviceSource<'_>) -> Self {
        Self {
            sw_power_cap: source.unsigned(SW_POWER_CAP, 0),
            sync_boost: source.unsigned(SYNC_BOOST, 0),
            sw_thermal_slowdown: source.unsigned(source.moved.sw_thermal_slowdown, 0),
            hw_thermal_slowdown: source.unsigned(source.moved.hw_thermal_slowdown, 0),
            hw_power_brake: source.unsigned(source.moved.hw_power_brake, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_without_fans_has_no_speed_and_no_error() {
        let refused = Reading::Absent(Absence::Code(2));
        let speed = |count: u64| of_first_fan(&Reading::Value(count), refused.clone());
        assert_eq!(speed(0), Reading::Absent(Absence::NotSupported));
        assert_eq!(speed(1), Reading::Absent(Absence::Code(2)));
        let untold = Reading::Absent(Absence::NotSupported);
        assert_eq!(
            of_first_fan(&untold, Reading::Value(38)),
            Reading::Value(38)
        );
    }

    #[test]
    fn a_state_that_the_driver_does_not_know_is_none() {
        assert_eq!(performance_state(8), Reading::Value(8));
        assert!(performance_state(32).value().is_none());
    }
}
