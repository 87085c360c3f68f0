//! Rows of the temperature.

use super::{FieldRow, cell::celsius, row};
use crate::Gpu;

pub(super) const TABLES: &[&[FieldRow]] = &[TEMPERATURE];

const TEMPERATURE: &[FieldRow] = &[
    row(
        "Temperature > GPU Current Temp",
        "temperature.gpu",
        "temperature.gpu",
        |gpu| celsius(&gpu.temperature.gpu),
    )
    .means("temperature of the chip"),
    row(
        "Temperature > GPU T.Limit Temp",
        "temperature.gpu_margin",
        "temperature.gpu.tlimit",
        |gpu| celsius(&gpu.temperature.gpu_margin),
    )
    .means("degrees by which the chip is below its limit"),
    row(
        "Temperature > GPU Shutdown T.Limit Temp",
        "temperature.shutdown_margin",
        "",
        |gpu| celsius(&gpu.temperature.shutdown_margin),
    )
    .when(has_margins),
    row(
        "Temperature > GPU Slowdown T.Limit Temp",
        "temperature.slowdown_margin",
        "",
        |gpu| celsius(&gpu.temperature.slowdown_margin),
    )
    .when(has_margins),
    row(
        "Temperature > GPU Max Operating T.Limit Temp",
        "temperature.gpu_max_margin",
        "",
        |gpu| celsius(&gpu.temperature.gpu_max_margin),
    )
    .when(has_margins),
    row(
        "Temperature > GPU Shutdown Temp",
        "temperature.shutdown",
        "",
        |gpu| celsius(&gpu.temperature.shutdown),
    )
    .when(has_no_margins),
    row(
        "Temperature > GPU Slowdown Temp",
        "temperature.slowdown",
        "",
        |gpu| celsius(&gpu.temperature.slowdown),
    )
    .when(has_no_margins),
    row(
        "Temperature > GPU Max Operating Temp",
        "temperature.gpu_max",
        "",
        |gpu| celsius(&gpu.temperature.gpu_max),
    )
    .when(has_no_margins),
    row(
        "Temperature > GPU Target Temperature",
        "temperature.gpu_target",
        "",
        |gpu| celsius(&gpu.temperature.gpu_target),
    ),
    row(
        "Temperature > Memory Current Temp",
        "temperature.memory",
        "temperature.memory",
        |gpu| celsius(&gpu.temperature.memory),
    )
    .bare()
    .means("temperature of the memory, on boards with HBM"),
    row(
        "Temperature > Memory Max Operating T.Limit Temp",
        "temperature.memory_max_margin",
        "",
        |gpu| celsius(&gpu.temperature.memory_max_margin),
    )
    .when(has_margins),
    row(
        "Temperature > Memory Max Operating Temp",
        "temperature.memory_max",
        "",
        |gpu| celsius(&gpu.temperature.memory_max),
    )
    .when(has_no_margins),
];

/// Whether the board reports margins. A board that reports neither margins nor temperatures has the
/// names of temperatures.
fn has_margins(gpu: &Gpu) -> bool {
    gpu.temperature.has_margins()
}

fn has_no_margins(gpu: &Gpu) -> bool {
    !has_margins(gpu)
}
