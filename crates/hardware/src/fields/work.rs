//! Rows from the fan to the memory's encryption: what the GPU does, and how full it is.

use super::{
    Row,
    cell::{Kind, active, bytes, coded, count, enabled, hex, nanoseconds, no_call, percent, words},
    label, row, tidy,
};
use crate::{Gpu, gpu::Activity};

const COMPUTE_MODES: [&str; 4] = ["Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"];

/// A reason for low clocks: its line in the text, its property, and the older name of the property.
macro_rules! reason {
    ($label:literal, $name:literal, $bit:ident, $meaning:literal) => {
        row(concat!("Clocks Event Reasons > ", $label), "", concat!("clocks_event_reasons.", $name), |gpu| {
            active(&gpu.activity.event_reasons, Activity::$bit)
        })
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

pub(super) const TABLES: &[&[Row]] = &[ROWS];

const ROWS: &[Row] = &[
    row("Fan Speed", "activity.fan_speed", "fan.speed", |gpu| percent(&gpu.activity.fan_percent))
        .means("speed the first fan is told, of its loudest"),
    tidy("activity.fans", |gpu| count(&gpu.activity.fan_count)),
    tidy("activity.fan_rotations_per_minute", |gpu| count(&gpu.activity.fan_rotations_per_minute)),
    row("Performance State", "activity.performance_state", "pstate", |gpu| {
        words(&gpu.activity.performance_state.as_ref().map(|state| format!("P{state}")))
    })
    .means("P0 is fastest, P15 slowest"),
    row("", "activity.supported_throttle_reasons", "clocks_event_reasons.supported", |gpu| hex(&gpu.activity.supported_event_reasons, 16))
        .or(&["clocks_throttle_reasons.supported"])
        .means("which reasons for low clocks this GPU can tell, as bits"),
    row("", "", "clocks_event_reasons.active", |gpu| hex(&gpu.activity.event_reasons, 16))
        .or(&["clocks_throttle_reasons.active"])
        .means("which of them hold the clocks down now, as bits"),
    tidy("activity.throttle_reasons", |gpu| words(&gpu.activity.event_reasons.as_ref().map(|bits| crate::sampler::throttle_names(*bits).join(" ")))),
    label("Clocks Event Reasons", |gpu| active(&gpu.activity.event_reasons, 0)).when(|gpu| !has_reasons(gpu)),
    reason!("Idle", "gpu_idle", IDLE, "clocks are low because nothing runs"),
    reason!("Applications Clocks Setting", "applications_clocks_setting", APPLICATION_CLOCKS, "somebody has set the clocks"),
    reason!("SW Power Cap", "sw_power_cap", SW_POWER_CAP, "the power limit holds the clocks down"),
    reason!("HW Slowdown", "hw_slowdown", HW_SLOWDOWN, "the board halves the clocks or more: heat, power brake or a peak of power"),
    reason!("HW Slowdown > HW Thermal Slowdown", "hw_thermal_slowdown", HW_THERMAL_SLOWDOWN, "the same, for heat"),
    reason!("HW Slowdown > HW Power Brake Slowdown", "hw_power_brake_slowdown", HW_POWER_BRAKE, "the same, because the power supply asks for it"),
    reason!("Sync Boost", "sync_boost", SYNC_BOOST, "the clocks follow those of other GPUs"),
    reason!("SW Thermal Slowdown", "sw_thermal_slowdown", SW_THERMAL_SLOWDOWN, "the driver lowers the clocks for heat"),
    label("Clocks Event Reasons > Display Clock Setting", |gpu| active(&gpu.activity.event_reasons, Activity::DISPLAY_CLOCKS)).when(has_reasons),
    held!("SW Power Capping", "sw_power_cap", sw_power_cap, "time the power limit held the clocks down"),
    held!("Sync Boost", "sync_boost", sync_boost, "time the clocks followed other GPUs"),
    held!("SW Thermal Slowdown", "sw_thermal_slowdown", sw_thermal_slowdown, "time the driver lowered the clocks for heat"),
    held!("HW Thermal Slowdown", "hw_thermal_slowdown", hw_thermal_slowdown, "time the board slowed down for heat"),
    held!("HW Power Braking", "hw_power_brake_slowdown", hw_power_brake, "time the power supply asked for less"),
    label("Sparse Operation Mode", |_| no_call(Kind::Plain)),
    row("FB Memory Usage > Total", "memory.total", "memory.total", |gpu| bytes(&gpu.memory.frame_buffer.total_bytes)).means("memory of the GPU"),
    row("FB Memory Usage > Reserved", "memory.reserved", "memory.reserved", |gpu| bytes(&gpu.memory.frame_buffer.reserved_bytes))
        .means("memory that driver and firmware keep for themselves"),
    row("FB Memory Usage > Used", "memory.used", "memory.used", |gpu| bytes(&gpu.memory.frame_buffer.used_bytes)).means("memory that programs hold"),
    row("FB Memory Usage > Free", "memory.free", "memory.free", |gpu| bytes(&gpu.memory.frame_buffer.free_bytes)).means("memory that is free"),
    row("BAR1 Memory Usage > Total", "memory.bar1_total", "", |gpu| bytes(&gpu.memory.bar1.total_bytes)),
    row("BAR1 Memory Usage > Used", "memory.bar1_used", "", |gpu| bytes(&gpu.memory.bar1.used_bytes)),
    row("BAR1 Memory Usage > Free", "memory.bar1_free", "", |gpu| bytes(&gpu.memory.bar1.free_bytes)),
    row("Conf Compute Protected Memory Usage > Total", "memory.protected_total", "protected_memory.total", |gpu| {
        bytes(&gpu.memory.protected.total_bytes)
    })
    .means("memory that confidential computing protects"),
    row("Conf Compute Protected Memory Usage > Used", "memory.protected_used", "protected_memory.used", |gpu| {
        bytes(&gpu.memory.protected.used_bytes)
    })
    .means("protected memory that programs hold"),
    row("Conf Compute Protected Memory Usage > Free", "memory.protected_free", "protected_memory.free", |gpu| {
        bytes(&gpu.memory.protected.free_bytes)
    })
    .means("protected memory that is free"),
    row("Compute Mode", "modes.compute_mode", "compute_mode", |gpu| coded(&gpu.modes.compute, &COMPUTE_MODES))
        .means("how many programs may compute: Default any, Exclusive_Process one, Prohibited none"),
    row("Utilization > GPU", "activity.gpu_utilization", "utilization.gpu", |gpu| percent(&gpu.activity.gpu_percent))
        .means("share of the last 1/6 to 1 s in which any kernel ran; says nothing of how well"),
    row("Utilization > Memory", "activity.memory_utilization", "utilization.memory", |gpu| percent(&gpu.activity.memory_percent))
        .means("share of that time in which memory was read or written; not how full it is"),
    row("Utilization > Encoder", "activity.encoder_utilization", "utilization.encoder", |gpu| percent(&gpu.activity.encoder_percent))
        .means("share of that time in which the video encoder worked"),
    row("Utilization > Decoder", "activity.decoder_utilization", "utilization.decoder", |gpu| percent(&gpu.activity.decoder_percent))
        .means("share of that time in which the video decoder worked"),
    row("Utilization > JPEG", "activity.jpeg_utilization", "utilization.jpeg", |gpu| percent(&gpu.activity.jpeg_percent))
        .means("share of that time in which the JPEG engine worked"),
    row("Utilization > OFA", "activity.ofa_utilization", "utilization.ofa", |gpu| percent(&gpu.activity.ofa_percent))
        .means("share of that time in which the optical flow engine worked"),
    row("Encoder Stats > Active Sessions", "activity.encoder_sessions", "encoder.stats.sessionCount", |gpu| count(&gpu.activity.encoder.active))
        .means("streams being encoded"),
    row("Encoder Stats > Average FPS", "activity.encoder_frames_per_second", "encoder.stats.averageFps", |gpu| {
        count(&gpu.activity.encoder.average_frames_per_second)
    })
    .means("their mean frames per second"),
    row("Encoder Stats > Average Latency", "activity.encoder_latency_us", "encoder.stats.averageLatency", |gpu| {
        count(&gpu.activity.encoder.average_latency_microseconds)
    })
    .means("their mean delay in microseconds"),
    row("FBC Stats > Active Sessions", "activity.capture_sessions", "", |gpu| count(&gpu.activity.capture.active)),
    row("FBC Stats > Average FPS", "activity.capture_frames_per_second", "", |gpu| count(&gpu.activity.capture.average_frames_per_second)),
    row("FBC Stats > Average Latency", "activity.capture_latency_us", "", |gpu| count(&gpu.activity.capture.average_latency_microseconds)),
    row("DRAM Encryption Mode > Current", "modes.is_dram_encrypted", "dramEncryption.mode.current", |gpu| {
        enabled(&gpu.modes.dram_encryption.current)
    })
    .means("whether the memory is encrypted"),
    row("DRAM Encryption Mode > Pending", "modes.is_dram_encrypted_pending", "dramEncryption.mode.pending", |gpu| {
        enabled(&gpu.modes.dram_encryption.pending)
    })
    .means("the same, after the next restart"),
];

/// A board that tells no reasons, such as a guest's share of one, has one line for all of them.
fn has_reasons(gpu: &Gpu) -> bool {
    gpu.activity.event_reasons.is_offered()
}
