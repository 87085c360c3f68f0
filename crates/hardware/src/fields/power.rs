//! Rows of the power: draw, limits, profiles, smoothing.

use super::{
    FieldRow,
    cell::{
        TypedReading, count, enabled, fine_percent, joules, milliseconds, percent, watts,
        watts_per_second, words, yes,
    },
    row,
};
use crate::Reading;

/// Power limits of one scope: label, tidy name, property and its other names.
macro_rules! limit {
    ($label:literal, $tidy:literal, $property:literal, $others:expr, $($field:ident).+, $meaning:literal) => {
        row($label, $tidy, $property, |gpu| watts(&gpu.power.$($field).+)).or(&$others).means($meaning)
    };
}

/// A property of power smoothing that NVML has under a known number.
macro_rules! smoothing {
    ($name:literal, $cell:ident, $field:ident, $meaning:literal) => {
        row(
            "",
            concat!("power_smoothing.", $name),
            concat!("power_smoothing.", $name),
            |gpu| $cell(&gpu.power.smoothing.$field),
        )
        .means($meaning)
    };
}

/// A property of delayed power smoothing, which has no line and no column.
macro_rules! delayed {
    ($name:literal, $cell:ident, $field:ident, $meaning:literal) => {
        row("", "", concat!("power_smoothing.", $name), |gpu| {
            $cell(&gpu.power.smoothing.delayed.$field)
        })
        .means($meaning)
    };
}

pub(super) const TABLES: &[&[FieldRow]] = &[POWER, SMOOTHING];

const POWER: &[FieldRow] = &[
    row("", "", "power.management", |gpu| {
        enabled(&gpu.modes.is_power_managed)
    })
    .means("whether the driver manages the power; withdrawn in drivers from 590 on"),
    row("", "power.draw", "power.draw", |gpu| watts(&gpu.power.draw)).means(
        "power of the board: mean of 1 s on Ampere (but A100) and later, the instant before",
    ),
    row(
        "GPU Power Readings > Average Power Draw",
        "power.draw_average",
        "power.draw.average",
        |gpu| watts(&gpu.power.draw_average),
    )
    .or(&["gpu.power.draw.average"])
    .means("power of the board, mean of 1 s"),
    row(
        "GPU Power Readings > Instantaneous Power Draw",
        "power.draw_instant",
        "power.draw.instant",
        |gpu| watts(&gpu.power.draw_instant),
    )
    .or(&["gpu.power.draw.instant"])
    .means("power of the board at this instant"),
    limit!(
        "GPU Power Readings > Current Power Limit",
        "power.limit_enforced",
        "enforced.power.limit",
        ["gpu.power.current_limit"],
        limits.current,
        "power limit in effect, the lowest of several"
    ),
    limit!(
        "GPU Power Readings > Requested Power Limit",
        "power.limit_requested",
        "power.limit",
        ["gpu.power.requested_limit"],
        limits.requested,
        "requested power limit"
    ),
    limit!(
        "GPU Power Readings > Default Power Limit",
        "power.limit_default",
        "power.default_limit",
        ["gpu.power.default_limit"],
        limits.default,
        "default power limit"
    ),
    limit!(
        "GPU Power Readings > Min Power Limit",
        "power.limit_min",
        "power.min_limit",
        ["gpu.power.min_limit"],
        limits.min,
        "lowest power limit that can be set"
    ),
    limit!(
        "GPU Power Readings > Max Power Limit",
        "power.limit_max",
        "power.max_limit",
        ["gpu.power.max_limit"],
        limits.max,
        "highest power limit that can be set"
    ),
    super::tidy("power.energy_since_load", |gpu| {
        joules(&gpu.power.energy_millijoules)
    }),
    row(
        "GPU Memory Power Readings  > Average Power Draw",
        "power.memory_draw_average",
        "",
        |gpu| watts(&gpu.power.memory_draw_average),
    ),
    row(
        "GPU Memory Power Readings  > Instantaneous Power Draw",
        "power.memory_draw_instant",
        "",
        |gpu| watts(&gpu.power.memory_draw_instant),
    ),
    row(
        "Module Power Readings > Average Power Draw",
        "power.module_draw_average",
        "module.power.draw.average",
        |gpu| watts(&gpu.power.module_draw_average),
    )
    .means("power of the module (processor and GPU of a superchip), mean"),
    row(
        "Module Power Readings > Instantaneous Power Draw",
        "power.module_draw_instant",
        "module.power.draw.instant",
        |gpu| watts(&gpu.power.module_draw_instant),
    )
    .means("power of the module at this instant"),
    limit!(
        "Module Power Readings > Current Power Limit",
        "power.module_limit_enforced",
        "module.enforced.power.limit",
        ["module.power.current_limit"],
        module_limits.current,
        "power limit of the module in effect"
    ),
    limit!(
        "Module Power Readings > Requested Power Limit",
        "power.module_limit_requested",
        "module.power.limit",
        ["module.power.requested_limit"],
        module_limits.requested,
        "requested power limit of the module"
    ),
    limit!(
        "Module Power Readings > Default Power Limit",
        "power.module_limit_default",
        "module.power.default_limit",
        [],
        module_limits.default,
        "default power limit of the module"
    ),
    limit!(
        "Module Power Readings > Min Power Limit",
        "power.module_limit_min",
        "module.power.min_limit",
        [],
        module_limits.min,
        "lowest power limit of the module"
    ),
    limit!(
        "Module Power Readings > Max Power Limit",
        "power.module_limit_max",
        "module.power.max_limit",
        [],
        module_limits.max,
        "highest power limit of the module"
    ),
    limit!(
        "",
        "power.base_current",
        "gpu.base.current",
        [],
        base.current,
        "guaranteed power in effect"
    ),
    limit!(
        "",
        "power.base_requested",
        "gpu.base.requested",
        [],
        base.requested,
        "requested guaranteed power"
    ),
    limit!(
        "",
        "power.base_default",
        "gpu.base.default",
        [],
        base.default,
        "default guaranteed power"
    ),
    limit!(
        "",
        "power.base_min",
        "gpu.base.min",
        [],
        base.min,
        "lowest guaranteed power"
    ),
    limit!(
        "",
        "power.base_max",
        "gpu.base.max",
        [],
        base.max,
        "highest guaranteed power"
    ),
];

const SMOOTHING: &[FieldRow] = &[
    row("Power Smoothing", "power_smoothing.is_enabled", "", |gpu| {
        enabled(&gpu.power.smoothing.is_enabled)
    }),
    row("", "", "power_smoothing.enabled", |gpu| {
        yes(&gpu.power.smoothing.is_enabled)
    })
    .means("whether steps of the power draw are smoothed"),
    smoothing!("tmp_floor", watts, floor, "lowest power while smoothing"),
    smoothing!("tmp_ceil", watts, ceiling, "highest power while smoothing"),
    smoothing!(
        "hw_lifetime_remaining_percent",
        percent,
        lifetime_remaining_percent,
        "life left of the smoothing circuit"
    ),
    smoothing!(
        "priv_level",
        count,
        privilege_level,
        "who may change the smoothing"
    ),
    smoothing!(
        "imm_ramp_down",
        enabled,
        is_immediate_ramp_down,
        "whether power may fall at once"
    ),
    smoothing!(
        "max_percent_tmp_floor",
        percent,
        max_floor_percent,
        "highest floor that can be set"
    ),
    smoothing!(
        "min_percent_tmp_floor",
        percent,
        min_floor_percent,
        "lowest floor that can be set"
    ),
    smoothing!(
        "num_preset_profiles",
        count,
        profile_count,
        "number of profiles"
    ),
    smoothing!("active_profile", count, active_profile, "active profile"),
    row(
        "",
        "power_smoothing.profile_floor",
        "power_smoothing.curr_profile.percent_tmp_floor",
        |gpu| percent(&gpu.power.smoothing.profile_floor_percent),
    )
    .means("floor of the active profile"),
    row(
        "",
        "power_smoothing.profile_ramp_up",
        "power_smoothing.curr_profile.ramp_up_rate",
        |gpu| watts_per_second(&gpu.power.smoothing.profile_ramp_up),
    )
    .means("how fast power may rise"),
    row(
        "",
        "power_smoothing.profile_ramp_down",
        "power_smoothing.curr_profile.ramp_down_rate",
        |gpu| watts_per_second(&gpu.power.smoothing.profile_ramp_down),
    )
    .means("how fast power may fall"),
    row(
        "",
        "power_smoothing.profile_hysteresis",
        "power_smoothing.curr_profile.ramp_down_hysteresis",
        |gpu| milliseconds(&gpu.power.smoothing.profile_hysteresis),
    )
    .means("how long power stays up before it falls"),
    row(
        "",
        "power_smoothing.override_floor",
        "power_smoothing.admin_override.percent_tmp_floor",
        |gpu| percent(&gpu.power.smoothing.override_floor_percent),
    )
    .means("floor that an administrator set"),
    row(
        "",
        "power_smoothing.override_ramp_up",
        "power_smoothing.admin_override.ramp_up_rate",
        |gpu| watts_per_second(&gpu.power.smoothing.override_ramp_up),
    )
    .means("rise that an administrator set"),
    row(
        "",
        "power_smoothing.override_ramp_down",
        "power_smoothing.admin_override.ramp_down_rate",
        |gpu| watts_per_second(&gpu.power.smoothing.override_ramp_down),
    )
    .means("fall that an administrator set"),
    row(
        "",
        "power_smoothing.override_hysteresis",
        "power_smoothing.admin_override.ramp_down_hysteresis",
        |gpu| milliseconds(&gpu.power.smoothing.override_hysteresis),
    )
    .means("delay that an administrator set"),
    delayed!(
        "soc_power_smoothing_enabled",
        enabled,
        is_charge_regarded,
        "whether the charge of the smoothing circuit is taken into account"
    ),
    delayed!(
        "delayed_power_smoothing_supported",
        yes,
        is_delay_supported,
        "whether the board can delay the smoothing"
    ),
    delayed!(
        "primary_power_floor",
        watts,
        primary_floor,
        "first floor of delayed smoothing"
    ),
    delayed!(
        "secondary_power_floor",
        watts,
        secondary_floor,
        "second floor of delayed smoothing"
    ),
    delayed!(
        "min_primary_floor_activation_offset",
        watts,
        min_activation_offset,
        "lowest offset at which the first floor starts"
    ),
    delayed!(
        "min_primary_floor_activation_point",
        watts,
        min_activation_point,
        "lowest power at which the first floor starts"
    ),
    delayed!(
        "window_multiplier",
        milliseconds,
        window,
        "duration of its window"
    ),
    delayed!(
        "curr_profile.secondary_power_floor",
        watts,
        profile_secondary_floor,
        "second floor of the active profile"
    ),
    delayed!(
        "curr_profile.primary_floor_act_window_multiplier",
        count,
        profile_activation_windows,
        "windows until the first floor starts, in the active profile"
    ),
    delayed!(
        "curr_profile.primary_floor_tar_window_multiplier",
        count,
        profile_target_windows,
        "windows until it is reached, in the active profile"
    ),
    delayed!(
        "curr_profile.primary_floor_act_offset",
        watts,
        profile_activation_offset,
        "offset at which it starts, in the active profile"
    ),
    delayed!(
        "admin_override.secondary_power_floor",
        watts,
        override_secondary_floor,
        "second floor that an administrator set"
    ),
    delayed!(
        "admin_override.primary_floor_act_window_multiplier",
        count,
        override_activation_windows,
        "windows until the first floor starts, as an administrator set"
    ),
    delayed!(
        "admin_override.primary_floor_tar_window_multiplier",
        count,
        override_target_windows,
        "windows until it is reached, as an administrator set"
    ),
    delayed!(
        "admin_override.primary_floor_act_offset",
        watts,
        override_activation_offset,
        "offset at which it starts, as an administrator set"
    ),
    row(
        "Workload Power Profiles > Requested Profiles",
        "power.profiles_requested",
        "",
        |gpu| numbers(&gpu.power.profiles.pending),
    ),
    row(
        "Workload Power Profiles > Enforced Profiles",
        "power.profiles_enforced",
        "",
        |gpu| numbers(&gpu.power.profiles.current),
    ),
    row(
        "EDPp Multiplier",
        "power.edpp_multiplier",
        "edpp_multiplier",
        |gpu| fine_percent(&gpu.power.edpp_percent),
    )
    .means("how high short power peaks may be, relative to the design power"),
];

fn numbers(list: &Reading<Vec<u32>>) -> TypedReading {
    words(&list.as_ref().map(|list| {
        match list.as_slice() {
            [] => "None".to_owned(),
            list => list
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        }
    }))
}
