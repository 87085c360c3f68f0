//! Power: draw, limits and energy. In milliwatts and millijoules, as NVML gives them.

use nvml_wrapper::Device;

use super::{Pending, Section, source::DeviceSource};
use crate::{
    Reading,
    nvml::{calls, field_ids as id},
};

/// Limits of one power scope, in milliwatts.
#[derive(Clone, Debug)]
pub struct PowerLimits {
    /// Limit in effect: the lowest of several limits.
    pub current: Reading<u64>,
    /// Requested limit.
    pub requested: Reading<u64>,
    pub default: Reading<u64>,
    pub min: Reading<u64>,
    pub max: Reading<u64>,
}

/// In milliwatts, except the energy.
#[derive(Clone, Debug)]
pub struct Power {
    /// Result of `nvmlDeviceGetPowerUsage`: the mean of a second on Ampere (but for GA100) and
    /// later, the instant before.
    pub draw: Reading<u64>,
    pub draw_average: Reading<u64>,
    pub draw_instant: Reading<u64>,
    pub limits: PowerLimits,
    pub memory_draw_average: Reading<u64>,
    pub memory_draw_instant: Reading<u64>,
    /// Processor and GPU together, on superchips.
    pub module_draw_average: Reading<u64>,
    pub module_draw_instant: Reading<u64>,
    pub module_limits: PowerLimits,
    /// The guaranteed power of a GPU that shares its supply (driver 610).
    pub base: PowerLimits,
    /// Millijoules since the driver loaded.
    pub energy_millijoules: Reading<u64>,
    /// Percent of the design power that short peaks may reach.
    pub edpp_percent: Reading<f64>,
    pub smoothing: PowerSmoothing,
    /// Numbers of the workload power profiles that are requested and in effect.
    pub profiles: Pending<Vec<u32>>,
}

/// Settings that smooth steps of the power draw, from Blackwell on. Percentages as the driver gives
/// them.
#[derive(Clone, Debug)]
pub struct PowerSmoothing {
    pub is_enabled: Reading<bool>,
    pub privilege_level: Reading<u64>,
    pub is_immediate_ramp_down: Reading<bool>,
    pub ceiling: Reading<u64>,
    pub floor: Reading<u64>,
    pub max_floor_percent: Reading<u64>,
    pub min_floor_percent: Reading<u64>,
    pub lifetime_remaining_percent: Reading<u64>,
    pub profile_count: Reading<u64>,
    pub profile_floor_percent: Reading<u64>,
    /// Milliwatts per second.
    pub profile_ramp_up: Reading<u64>,
    pub profile_ramp_down: Reading<u64>,
    /// Milliseconds.
    pub profile_hysteresis: Reading<u64>,
    pub active_profile: Reading<u64>,
    pub override_floor_percent: Reading<u64>,
    pub override_ramp_up: Reading<u64>,
    pub override_ramp_down: Reading<u64>,
    pub override_hysteresis: Reading<u64>,
    pub delayed: DelayedSmoothing,
}

/// Smoothing that waits before it holds the power up, and then lets it fall in two steps (driver
/// 590). In milliwatts, as the rest.
#[derive(Clone, Debug)]
pub struct DelayedSmoothing {
    pub is_delay_supported: Reading<bool>,
    /// Whether the state of charge of the smoothing circuit is regarded (driver 610).
    pub is_charge_regarded: Reading<bool>,
    pub primary_floor: Reading<u64>,
    pub secondary_floor: Reading<u64>,
    pub min_activation_offset: Reading<u64>,
    pub min_activation_point: Reading<u64>,
    /// Milliseconds.
    pub window: Reading<u64>,
    pub profile_secondary_floor: Reading<u64>,
    /// In windows.
    pub profile_activation_windows: Reading<u64>,
    pub profile_target_windows: Reading<u64>,
    pub profile_activation_offset: Reading<u64>,
    pub override_secondary_floor: Reading<u64>,
    pub override_activation_windows: Reading<u64>,
    pub override_target_windows: Reading<u64>,
    pub override_activation_offset: Reading<u64>,
}

impl Section for Power {
    fn read(source: &DeviceSource<'_>) -> Self {
        let draw = |field: u32, scope: u32| source.unsigned(field, scope);
        let instant = draw(id::POWER_INSTANT, id::SCOPE_GPU);
        let usage = source.tell(Device::power_usage).map(u64::from);
        let average = draw(id::POWER_AVERAGE, id::SCOPE_GPU);
        Self {
            // A driver older than the two fields has only the one reading.
            draw_instant: if instant.is_offered() || average.is_offered() {
                instant
            } else {
                usage.clone()
            },
            draw: usage,
            draw_average: average,
            limits: board_limits(source),
            memory_draw_average: draw(id::POWER_AVERAGE, id::SCOPE_MEMORY),
            memory_draw_instant: draw(id::POWER_INSTANT, id::SCOPE_MEMORY),
            module_draw_average: draw(id::POWER_AVERAGE, id::SCOPE_MODULE),
            module_draw_instant: draw(id::POWER_INSTANT, id::SCOPE_MODULE),
            module_limits: scope_limits(source, id::SCOPE_MODULE),
            base: scope_limits(source, id::SCOPE_GPU_BASE),
            energy_millijoules: source.tell(Device::total_energy_consumption),
            edpp_percent: source.float(id::EDPP_MULTIPLIER),
            smoothing: PowerSmoothing::read(source),
            profiles: profiles(source),
        }
    }
}

/// The board's own limits, by the calls that every driver has.
fn board_limits(source: &DeviceSource<'_>) -> PowerLimits {
    let constraints = source.tell(Device::power_management_limit_constraints);
    PowerLimits {
        current: source.tell(Device::enforced_power_limit).map(u64::from),
        requested: source.tell(Device::power_management_limit).map(u64::from),
        default: source
            .tell(Device::power_management_limit_default)
            .map(u64::from),
        min: constraints
            .as_ref()
            .map(|limits| u64::from(limits.min_limit)),
        max: constraints.map(|limits| u64::from(limits.max_limit)),
    }
}

fn scope_limits(source: &DeviceSource<'_>, scope: u32) -> PowerLimits {
    PowerLimits {
        current: source.unsigned(id::POWER_LIMIT_CURRENT, scope),
        requested: source.unsigned(id::POWER_LIMIT_REQUESTED, scope),
        default: source.unsigned(id::POWER_LIMIT_DEFAULT, scope),
        min: source.unsigned(id::POWER_LIMIT_MIN, scope),
        max: source.unsigned(id::POWER_LIMIT_MAX, scope),
    }
}

fn profiles(source: &DeviceSource<'_>) -> Pending<Vec<u32>> {
    let found = source.raw(calls::power_profiles);
    Pending {
        current: found
            .as_ref()
            .map(|found| bits(&found.enforcedProfilesMask.mask)),
        pending: found.map(|found| bits(&found.requestedProfilesMask.mask)),
    }
}

/// Positions of the set bits of a mask of 255.
fn bits(mask: &[u32]) -> Vec<u32> {
    let words = mask.iter().zip(0_u32..);
    words
        .flat_map(|(word, at)| {
            (0..32)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at * 32 + bit)
        })
        .collect()
}

impl Section for PowerSmoothing {
    fn read(source: &DeviceSource<'_>) -> Self {
        let at = |offset: u32| source.unsigned(source.moved.power_smoothing + offset, 0);
        Self {
            is_enabled: at(0).map(|enabled| enabled != 0),
            privilege_level: at(1),
            is_immediate_ramp_down: at(2).map(|enabled| enabled != 0),
            ceiling: at(3),
            floor: at(4),
            max_floor_percent: at(5),
            min_floor_percent: at(6),
            lifetime_remaining_percent: at(7),
            profile_count: at(8),
            profile_floor_percent: at(9),
            profile_ramp_up: at(10),
            profile_ramp_down: at(11),
            profile_hysteresis: at(12),
            active_profile: at(13),
            override_floor_percent: at(14),
            override_ramp_up: at(15),
            override_ramp_down: at(16),
            override_hysteresis: at(17),
            delayed: DelayedSmoothing::read(source),
        }
    }
}

impl Section for DelayedSmoothing {
    fn read(source: &DeviceSource<'_>) -> Self {
        let at = |offset: u32| source.unsigned(id::DELAYED_SMOOTHING + offset, 0);
        // Watts, unlike the fields of plain smoothing.
        let watts = |offset: u32| at(offset).map(|watts| watts.saturating_mul(1000));
        Self {
            primary_floor: watts(0),
            secondary_floor: watts(1),
            min_activation_offset: watts(2),
            min_activation_point: watts(3),
            window: at(4),
            is_delay_supported: at(5).map(|supported| supported != 0),
            profile_secondary_floor: watts(6),
            profile_activation_windows: at(7),
            profile_target_windows: at(8),
            profile_activation_offset: watts(9),
            override_secondary_floor: watts(10),
            override_activation_windows: at(11),
            override_target_windows: at(12),
            override_activation_offset: watts(13),
            is_charge_regarded: source
                .unsigned(id::CHARGE_SMOOTHING, 0)
                .map(|enabled| enabled != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_a_set_bit() {
        assert_eq!(bits(&[0b101, 0, 1]), [0, 2, 64]);
    }
}
