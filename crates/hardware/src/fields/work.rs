//! Rows from the fan to the memory's encryption: activity and use of memory.

use super::{
    FieldRow,
    cell::{
        ValueKind, active, bytes, coded, count, enabled, hex, nanoseconds, no_call, percent, words,
    },
    label, row, tidy,
};
use crate::{Gpu, gpu::Activity};

const COMPUTE_MODES: [&str; 4] = [
    "Default",
    "Exclusive_Thread",
    "Prohibited",
    "Exclusive_Process",
];

/// A reason for low clocks: its line in the text, its property, and the older name of the property.
macro_rules! reason {
    ($label:literal, $name:literal, $bit:ident, $meaning:literal) => {
        row(
            concat!("Clocks Event Reasons > ", $label),
            "",
            concat!("clocks_event_reasons.", $name),
            |gpu| active(&gpu.activity.event_reasons, Activity::$bit),
        )
        .when(has_reasons)
        .or(&[concat!("clocks_throttle_reasons.", $name)])
        .means($meaning)
    };
}

/// The time a reason held the clocks down.
macro_rules! held {
    ($label:literal, $name:literal, $field:ident, $meaning:literal) => {
        row(
            concat!("Clocks Event Reasons Counters > ", $label),
            concat!("clocks.held_by_", $name),
            concat!("clocks_event_reasons_counters.", $name),
            |gpu| nanoseconds(&gpu.activity.event_reason_counters.$field),
        )
        .means($meaning)
    };
}

pub(super) const TABLES: &[&[FieldRow]] = &[ROWS];

const ROWS: &[FieldRow] = &[
    row("Fan Speed", "activity.fan_speed", "fan.speed", |gpu| {
        percent(&gpu.activity.fan_percent)
    })
    .means("target speed of the first fan, relative to its maximum"),
    tidy("activity.fans", |gpu| count(&gpu.activity.fan_count)),
    tidy("activity.fan_rotations_per_minute", |gpu| {
        count(&gpu.activity.fan_rotations_per_minute)
    }),
    row(
        "Performance State",
        "activity.performance_state",
        "pstate",
        |gpu| {
            words(
                &gpu.activity
                    .performance_state
                    .as_ref()
                    .map(|state| format!("P{state}")),
            )
        },
    )
    .means("P0 is fastest, P15 slowest"),
    row(
        "",
        "activity.supported_throttle_reasons",
        "clocks_event_reasons.supported",
        |gpu| hex(&gpu.activity.supported_event_reasons, 16),
    )
    .or(&["clocks_throttle_reasons.supported"])
    .means("reasons for low clocks that this GPU can report, as bits"),
    row("", "", "clocks_event_reasons.active", |gpu| {
        hex(&gpu.activity.event_reasons, 16)
    })
    .or(&["clocks_throttle_reasons.active"])
    .means("reasons that limit the clocks now, as bits"),
    tidy("activity.throttle_reasons", |gpu| {
        words(
            &gpu.activity
                .event_reasons
                .as_ref()
                .map(|bits| crate::sampler::throttle_names(*bits).join(" ")),
        )
    }),
    label("Clocks Event Reasons", |gpu| {
        active(&gpu.activity.event_reasons, 0)
    })
    .when(|gpu| !has_reasons(gpu)),
    reason!(
        "Idle",
        "gpu_idle",
        IDLE,
        "the clocks are low because nothing runs"
    ),
    reason!(
        "Applications Clocks Setting",
        "applications_clocks_setting",
        APPLICATION_CLOCKS,
        "a user has set the clocks"
    ),
    reason!(
        "SW Power Cap",
        "sw_power_cap",
        SW_POWER_CAP,
        "the power limit lowers the clocks"
    ),
    reason!(
        "HW Slowdown",
        "hw_slowdown",
        HW_SLOWDOWN,
        "the board lowers the clocks to half or less: heat, power brake or a power peak"
    ),
    reason!(
        "HW Slowdown > HW Thermal Slowdown",
        "hw_thermal_slowdown",
        HW_THERMAL_SLOWDOWN,
        "the board lowers the clocks because of heat"
    ),
    reason!(
        "HW Slowdown > HW Power Brake Slowdown",
        "hw_power_brake_slowdown",
        HW_POWER_BRAKE,
        "the board lowers the clocks because the power supply requests it"
    ),
    reason!(
        "Sync Boost",
        "sync_boost",
        SYNC_BOOST,
        "the clocks follow those of other GPUs"
    ),
    reason!(
        "SW Thermal Slowdown",
        "sw_thermal_slowdown",
        SW_THERMAL_SLOWDOWN,
        "the driver lowers the clocks because of heat"
    ),
    label("Clocks Event Reasons > Display Clock Setting", |gpu| {
        active(&gpu.activity.event_reasons, Activity::DISPLAY_CLOCKS)
    })
    .when(has_reasons),
    held!(
        "SW Power Capping",
        "sw_power_cap",
        sw_power_cap,
        "time in which the power limit lowered the clocks"
    ),
    held!(
        "Sync Boost",
        "sync_boost",
        sync_boost,
        "time in which the clocks followed other GPUs"
    ),
    held!(
        "SW Thermal Slowdown",
        "sw_thermal_slowdown",
        sw_thermal_slowdown,
        "time in which the driver lowered the clocks because of heat"
    ),
    held!(
        "HW Thermal Slowdown",
        "hw_thermal_slowdown",
        hw_thermal_slowdown,
        "time in which the board lowered the clocks because of heat"
    ),
    held!(
        "HW Power Braking",
        "hw_power_brake_slowdown",
        hw_power_brake,
        "time in which the power supply requested lower clocks"
    ),
    label("Sparse Operation Mode", |_| no_call(ValueKind::Plain)),
    row(
        "FB Memory Usage > Total",
        "memory.total",
        "memory.total",
        |gpu| bytes(&gpu.memory.frame_buffer.total_bytes),
    )
    .means("memory of the GPU"),
    row(
        "FB Memory Usage > Reserved",
        "memory.reserved",
        "memory.reserved",
        |gpu| bytes(&gpu.memory.frame_buffer.reserved_bytes),
    )
    .means("memory reserved by driver and firmware"),
    row(
        "FB Memory Usage > Used",
        "memory.used",
        "memory.used",
        |gpu| bytes(&gpu.memory.frame_buffer.used_bytes),
    )
    .means("memory allocated by programs"),
    row(
        "FB Memory Usage > Free",
        "memory.free",
        "memory.free",
        |gpu| bytes(&gpu.memory.frame_buffer.free_bytes),
    )
    .means("memory that is free"),
    row(
        "BAR1 Memory Usage > Total",
        "memory.bar1_total",
        "",
        |gpu| bytes(&gpu.memory.bar1.total_bytes),
    ),
    row("BAR1 Memory Usage > Used", "memory.bar1_used", "", |gpu| {
        bytes(&gpu.memory.bar1.used_bytes)
    }),
    row("BAR1 Memory Usage > Free", "memory.bar1_free", "", |gpu| {
        bytes(&gpu.memory.bar1.free_bytes)
    }),
    row(
        "Conf Compute Protected Memory Usage > Total",
        "memory.protected_total",
        "protected_memory.total",
        |gpu| bytes(&gpu.memory.protected.total_bytes),
    )
    .means("memory that confidential computing protects"),
    row(
        "Conf Compute Protected Memory Usage > Used",
        "memory.protected_used",
        "protected_memory.used",
        |gpu| bytes(&gpu.memory.protected.used_bytes),
    )
    .means("protected memory allocated by programs"),
    row(
        "Conf Compute Protected Memory Usage > Free",
        "memory.protected_free",
        "protected_memory.free",
        |gpu| bytes(&gpu.memory.protected.free_bytes),
    )
    .means("protected memory that is free"),
    row(
        "Compute Mode",
        "modes.compute_mode",
        "compute_mode",
        |gpu| coded(&gpu.modes.compute, &COMPUTE_MODES),
    )
    .means("programs that may compute: Default any, Exclusive_Process one, Prohibited none"),
    row(
        "Utilization > GPU",
        "activity.gpu_utilization",
        "utilization.gpu",
        |gpu| percent(&gpu.activity.gpu_percent),
    )
    .means("share of the last 1/6 to 1 s in which any kernel ran; does not tell how efficiently"),
    row(
        "Utilization > Memory",
        "activity.memory_utilization",
        "utilization.memory",
        |gpu| percent(&gpu.activity.memory_percent),
    )
    .means("share of that time in which memory was read or written; not the amount of used memory"),
    row(
        "Utilization > Encoder",
        "activity.encoder_utilization",
        "utilization.encoder",
        |gpu| percent(&gpu.activity.encoder_percent),
    )
    .means("share of that time in which the video encoder worked"),
    row(
        "Utilization > Decoder",
        "activity.decoder_utilization",
        "utilization.decoder",
        |gpu| percent(&gpu.activity.decoder_percent),
    )
    .means("share of that time in which the video decoder worked"),
    row(
        "Utilization > JPEG",
        "activity.jpeg_utilization",
        "utilization.jpeg",
        |gpu| percent(&gpu.activity.jpeg_percent),
    )
    .means("share of that time in which the JPEG engine worked"),
    row(
        "Utilization > OFA",
        "activity.ofa_utilization",
        "utilization.ofa",
        |gpu| percent(&gpu.activity.ofa_percent),
    )
    .means("share of that time in which the optical flow engine worked"),
    row(
        "Encoder Stats > Active Sessions",
        "activity.encoder_sessions",
        "encoder.stats.sessionCount",
        |gpu| count(&gpu.activity.encoder.active),
    )
    .means("streams being encoded"),
    row(
        "Encoder Stats > Average FPS",
        "activity.encoder_frames_per_second",
        "encoder.stats.averageFps",
        |gpu| count(&gpu.activity.encoder.average_frames_per_second),
    )
    .means("mean frames per second of these streams"),
    row(
        "Encoder Stats > Average Latency",
        "activity.encoder_latency_us",
        "encoder.stats.averageLatency",
        |gpu| count(&gpu.activity.encoder.average_latency_microseconds),
    )
    .means("mean latency of these streams in microseconds"),
    row(
        "FBC Stats > Active Sessions",
        "activity.capture_sessions",
        "",
        |gpu| count(&gpu.activity.capture.active),
    ),
    row(
        "FBC Stats > Average FPS",
        "activity.capture_frames_per_second",
        "",
        |gpu| count(&gpu.activity.capture.average_frames_per_second),
    ),
    row(
        "FBC Stats > Average Latency",
        "activity.capture_latency_us",
        "",
        |gpu| count(&gpu.activity.capture.average_latency_microseconds),
    ),
    row(
        "DRAM Encryption Mode > Current",
        "modes.is_dram_encrypted",
        "dramEncryption.mode.current",
        |gpu| enabled(&gpu.modes.dram_encryption.current),
    )
    .means("whether the memory is encrypted"),
    row(
        "DRAM Encryption Mode > Pending",
        "modes.is_dram_encrypted_pending",
        "dramEncryption.mode.pending",
        |gpu| enabled(&gpu.modes.dram_encryption.pending),
    )
    .means("this setting after the next restart"),
];

/// A board that reports no reasons, such as a guest's share of one, has one line for all of them.
fn has_reasons(gpu: &Gpu) -> bool {
    gpu.activity.event_reasons.is_offered()
}
