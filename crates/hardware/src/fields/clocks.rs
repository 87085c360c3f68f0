//! Rows from the clocks to the end: clocks, fabric, capabilities, processes.

use super::{
    FieldRow, TextBlock, block,
    cell::{TypedReading, ValueKind, coded, count, enabled, megahertz, no_call, truth, words},
    health::tells_inactive_rows,
    label, row,
};
use crate::Reading;

const FABRIC_STATES: [&str; 4] = ["Not Supported", "Not Started", "In Progress", "Completed"];

const SUMMARIES: [&str; 4] = ["N/A", "Healthy", "Unhealthy", "Limited Capacity"];

const CONFIGURATIONS: [&str; 9] = [
    "N/A",
    "None",
    "Incorrect SysGuid",
    "Incorrect Chassis Serial Number",
    "No Partition",
    "Insufficient Nvlinks",
    "Incompatible GPU FW",
    "Invalid Location",
    "Invalid GPU State",
];

/// The two properties and the line of a fabric health field.
macro_rules! health {
    ($label:literal, $name:literal, $cell:expr, $meaning:literal) => {
        row(
            concat!("Fabric > Health > ", $label),
            concat!("fabric.", $name),
            concat!("fabric.health.", $name),
            $cell,
        )
        .bare()
        .means($meaning)
    };
}

pub(super) const TABLES: &[&[FieldRow]] = &[CLOCKS, FABRIC, END];

const CLOCKS: &[FieldRow] = &[
    row(
        "Clocks > Graphics",
        "clocks.graphics",
        "clocks.current.graphics",
        |gpu| megahertz(&gpu.clocks.current.graphics),
    )
    .or(&["clocks.gr"])
    .means("clock of the graphics part now"),
    row("Clocks > SM", "clocks.sm", "clocks.current.sm", |gpu| {
        megahertz(&gpu.clocks.current.sm)
    })
    .or(&["clocks.sm"])
    .means("clock of the multiprocessors now"),
    row(
        "Clocks > Memory",
        "clocks.memory",
        "clocks.current.memory",
        |gpu| megahertz(&gpu.clocks.current.memory),
    )
    .or(&["clocks.mem"])
    .means("clock of the memory now"),
    row(
        "Clocks > Video",
        "clocks.video",
        "clocks.current.video",
        |gpu| megahertz(&gpu.clocks.current.video),
    )
    .or(&["clocks.video"])
    .means("clock of the video engines now"),
    row(
        "Applications Clocks > Graphics",
        "clocks.graphics_applications",
        "clocks.applications.graphics",
        |gpu| megahertz(&gpu.clocks.applications.graphics),
    )
    .or(&["clocks.applications.gr"])
    .means("graphics clock that a user set; withdrawn from driver 590 on"),
    row(
        "Applications Clocks > Memory",
        "clocks.memory_applications",
        "clocks.applications.memory",
        |gpu| megahertz(&gpu.clocks.applications.memory),
    )
    .or(&["clocks.applications.mem"])
    .means("memory clock that a user set; withdrawn from driver 590 on"),
    row(
        "Default Applications Clocks > Graphics",
        "clocks.graphics_default",
        "clocks.default_applications.graphics",
        |gpu| megahertz(&gpu.clocks.default_applications.graphics),
    )
    .or(&["clocks.default_applications.gr"])
    .means("default graphics clock; withdrawn from driver 590 on"),
    row(
        "Default Applications Clocks > Memory",
        "clocks.memory_default",
        "clocks.default_applications.memory",
        |gpu| megahertz(&gpu.clocks.default_applications.memory),
    )
    .or(&["clocks.default_applications.mem"])
    .means("default memory clock; withdrawn from driver 590 on"),
    label("Deferred Clocks > Memory", |_| {
        no_call(ValueKind::Megahertz)
    }),
    row(
        "Max Clocks > Graphics",
        "clocks.graphics_max",
        "clocks.max.graphics",
        |gpu| megahertz(&gpu.clocks.max.graphics),
    )
    .or(&["clocks.max.gr"])
    .means("highest clock of the graphics part"),
    row("Max Clocks > SM", "clocks.sm_max", "clocks.max.sm", |gpu| {
        megahertz(&gpu.clocks.max.sm)
    })
    .means("highest clock of the multiprocessors"),
    row(
        "Max Clocks > Memory",
        "clocks.memory_max",
        "clocks.max.memory",
        |gpu| megahertz(&gpu.clocks.max.memory),
    )
    .or(&["clocks.max.mem"])
    .means("highest clock of the memory"),
    row("Max Clocks > Video", "clocks.video_max", "", |gpu| {
        megahertz(&gpu.clocks.max.video)
    }),
    row(
        "Max Customer Boost Clocks > Graphics",
        "clocks.max_customer_boost",
        "",
        |gpu| megahertz(&gpu.clocks.max_customer_boost),
    ),
    row(
        "Clock Policy > Auto Boost",
        "modes.is_auto_boosted",
        "",
        |gpu| on(&gpu.modes.is_auto_boosted),
    ),
    row(
        "Clock Policy > Auto Boost Default",
        "modes.is_auto_boosted_by_default",
        "",
        |gpu| on(&gpu.modes.is_auto_boosted_by_default),
    ),
];

const FABRIC: &[FieldRow] = &[
    row("Fabric > State", "fabric.state", "fabric.state", |gpu| {
        coded(&gpu.fabric.state, &FABRIC_STATES)
    })
    .bare()
    .means("progress of the GPU in joining the fabric of its machine"),
    row("Fabric > Status", "fabric.status", "fabric.status", |gpu| {
        words(&gpu.fabric.status.as_ref().map(status))
    })
    .bare()
    .means("result of joining the fabric"),
    row(
        "Fabric > CliqueId",
        "fabric.clique_id",
        "fabric.cliqueId",
        |gpu| count(&gpu.fabric.clique_id),
    )
    .bare()
    .means("group of GPUs that can access each other's memory"),
    row(
        "Fabric > ClusterUUID",
        "fabric.cluster_uuid",
        "fabric.clusterUuid",
        |gpu| words(&gpu.fabric.cluster_uuid),
    )
    .bare()
    .identifying()
    .means("name of the cluster"),
    health!(
        "Summary",
        "summary",
        |gpu| coded(&gpu.fabric.health.summary, &SUMMARIES),
        "health of the fabric"
    ),
    health!(
        "Bandwidth",
        "bandwidth",
        |gpu| TypedReading {
            kind: ValueKind::Flag("Full", "Degraded"),
            ..truth(&gpu.fabric.health.is_bandwidth_degraded)
        },
        "whether the fabric is slower than it should be"
    ),
    health!(
        "Route Recovery in progress",
        "route_recovery_in_progress",
        |gpu| truth(&gpu.fabric.health.is_route_recovering),
        "whether a route is being recovered"
    ),
    health!(
        "Route Unhealthy",
        "route_unhealthy",
        |gpu| truth(&gpu.fabric.health.is_route_unhealthy),
        "whether a route is broken"
    ),
    health!(
        "Access Timeout Recovery",
        "access_timeout_recovery",
        |gpu| truth(&gpu.fabric.health.is_access_timeout_recovering),
        "whether a timed-out access is being recovered"
    ),
    health!(
        "Incorrect Configuration",
        "incorrect_configuration",
        |gpu| coded(&gpu.fabric.health.incorrect_configuration, &CONFIGURATIONS),
        "incorrect settings of the fabric"
    ),
    health!(
        "Partition Assigned",
        "partition_assigned",
        |gpu| truth(&gpu.fabric.health.is_partition_assigned),
        "whether the GPU belongs to a partition"
    )
    .when(tells_inactive_rows),
];

const END: &[FieldRow] = &[
    block(TextBlock::Processes),
    row("Capabilities > EGM", "modes.is_egm", "", |gpu| {
        TypedReading {
            kind: ValueKind::Flag("disabled", "enabled"),
            ..enabled(&gpu.modes.is_egm)
        }
    }),
];

fn on(flag: &Reading<bool>) -> TypedReading {
    TypedReading {
        kind: ValueKind::Flag("Off", "On"),
        ..enabled(flag)
    }
}

/// NVML's words for a return code.
fn status(code: &u64) -> String {
    let known = match code {
        0 => "Success",
        1 => "Uninitialized",
        2 => "Invalid Argument",
        3 => "Not Supported",
        4 => "Insufficient Permissions",
        6 => "Not Found",
        7 => "Insufficient Size",
        10 => "Timeout",
        15 => "GPU is lost",
        23 => "Insufficient resources",
        27 => "Not Ready",
        29 => "Invalid State",
        _ => "Unknown Error",
    };
    known.to_owned()
}
