//! Field ids of `nvmlDeviceGetFieldValues`, as the driver in use numbers them (nvml.h 13.3,
//! `NVML_FI_…`).

/// Nanoseconds that each reason held the clocks down.
pub(crate) const SW_POWER_CAP: u32 = 74;
pub(crate) const SYNC_BOOST: u32 = 76;
pub(crate) const MEMORY_TEMPERATURE: u32 = 82;
pub(crate) const NVLINK_COUNT: u32 = 91;
pub(crate) const PCIE_REPLAY_ROLLOVERS: u32 = 95;
pub(crate) const POWER_AVERAGE: u32 = 185;
pub(crate) const POWER_INSTANT: u32 = 186;
pub(crate) const POWER_LIMIT_MIN: u32 = 187;
pub(crate) const POWER_LIMIT_MAX: u32 = 188;
pub(crate) const POWER_LIMIT_DEFAULT: u32 = 189;
pub(crate) const POWER_LIMIT_CURRENT: u32 = 190;
pub(crate) const POWER_LIMIT_REQUESTED: u32 = 192;
pub(crate) const SHUTDOWN_MARGIN: u32 = 193;
pub(crate) const SLOWDOWN_MARGIN: u32 = 194;
pub(crate) const MEMORY_MAX_MARGIN: u32 = 195;
pub(crate) const GPU_MAX_MARGIN: u32 = 196;
pub(crate) const ATOMICS_OUTBOUND: u32 = 228;
pub(crate) const ATOMICS_INBOUND: u32 = 229;
pub(crate) const RECOVERY_ACTION: u32 = 230;
pub(crate) const EDPP_MULTIPLIER: u32 = 274;
/// The first of the fourteen ids of delayed power smoothing,
/// `NVML_FI_PWR_SMOOTHING_PRIMARY_POWER_FLOOR` and on (NVML 13.615).
pub(crate) const DELAYED_SMOOTHING: u32 = 275;
/// `NVML_FI_PWR_SMOOTHING_SOC_POWER_SMOOTHING_ENABLED` (NVML 13.615).
pub(crate) const CHARGE_SMOOTHING: u32 = 300;

/// Scope of a power field (`NVML_POWER_SCOPE_…`). 0 is also the scope of fields without one.
pub(crate) const SCOPE_GPU: u32 = 0;
pub(crate) const SCOPE_MODULE: u32 = 1;
pub(crate) const SCOPE_MEMORY: u32 = 2;
pub(crate) const SCOPE_GPU_BASE: u32 = 3;

/// Ids 251 to 273, which drivers from 580.82 on number differently (NVML 13.0 update 1, known
/// issues).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedIds {
    pub(crate) sw_thermal_slowdown: u32,
    pub(crate) hw_thermal_slowdown: u32,
    pub(crate) hw_power_brake: u32,
    /// The first of the eighteen power smoothing ids, in the order of nvml.h.
    pub(crate) power_smoothing: u32,
}

/// The ids of the driver of this version, such as `580.105.08`. An unknown version counts as a new
/// one.
pub(crate) fn moved_ids(driver_version: Option<&str>) -> MovedIds {
    let mut parts = driver_version
        .unwrap_or_default()
        .split('.')
        .map(|part| part.parse::<u32>().ok());
    let version = (
        parts.next().flatten().unwrap_or(u32::MAX),
        parts.next().flatten().unwrap_or(0),
    );
    if version < (580, 82) {
        return MovedIds {
            sw_thermal_slowdown: 251,
            hw_thermal_slowdown: 252,
            hw_power_brake: 253,
            power_smoothing: 256,
        };
    }
    MovedIds {
        sw_thermal_slowdown: 269,
        hw_thermal_slowdown: 270,
        hw_power_brake: 271,
        power_smoothing: 251,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_move_at_580_82() {
        for old in ["535.183.01", "570.124.06", "580.65.06"] {
            assert_eq!(moved_ids(Some(old)).sw_thermal_slowdown, 251, "{old}");
        }
        for new in [
            Some("580.82.07"),
            Some("580.105.08"),
            Some("590.48.01"),
            Some("610.62"),
            None,
            Some("?"),
        ] {
            assert_eq!(moved_ids(new).hw_power_brake, 271, "{new:?}");
        }
    }
}
