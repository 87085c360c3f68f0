//! A snapshot as short labeled lines for beginners: activity, memory, limits, clocks, processes,
//! and faults. Each line names the readings behind it; a value that was not read is unknown.

use kiln_units::{Bytes, listed, without_controls};

use super::{
    Gpu, HostFacts, Reading,
    gpu::{Activity, Process},
    limits::{HOT_MARGIN_CELSIUS, LIMITING_POWER, NEAR_POWER},
};

/// A few sentences per GPU, one a line.
pub fn words(gpus: &[Gpu]) -> String {
    let about = |gpu: &Gpu| -> String {
        let name = gpu
            .identity
            .name
            .value()
            .map_or("a GPU whose name cannot be read", String::as_str);
        let index = gpu
            .index
            .value()
            .map_or_else(String::new, |index| format!(" {index}"));
        let sentences = [
            working(gpu),
            memory(gpu),
            power(gpu),
            heat(gpu),
            clocks(gpu),
            processes(gpu),
            health(gpu),
        ];
        format!("GPU{index}, {}:\n", without_controls(name))
            + &sentences
                .into_iter()
                .flatten()
                .map(|sentence| format!("  {}\n", without_controls(&sentence)))
                .collect::<String>()
    };
    gpus.iter().map(about).collect()
}

/// The host in one or two sentences.
pub fn host_words(host: &HostFacts) -> String {
    let cpu = host.cpu_model.value().map_or_else(
        || "an unknown processor".to_owned(),
        |cpu| without_controls(cpu),
    );
    let memory = match (
        host.memory_available_bytes.value(),
        host.memory_bytes.value(),
    ) {
        (Some(free), Some(all)) => format!("{} of {} memory available", Bytes(*free), Bytes(*all)),
        _ => "its memory is unknown".to_owned(),
    };
    let load = host.load_1_minute.value().map_or_else(String::new, |load| {
        format!("; load average of the last minute {load}")
    });
    let cores = host.usable_cores;
    let disk = host
        .results_disk_free_bytes
        .value()
        .map_or_else(String::new, |free| {
            format!("; {} free for results/", Bytes(*free))
        });
    format!(
        "Host: {cpu}, {cores} {} usable here{load}; {memory}{disk}.\n",
        if cores == 1 { "core" } else { "cores" }
    )
}

fn working(gpu: &Gpu) -> Option<String> {
    let state = gpu
        .activity
        .performance_state
        .value()
        .map_or_else(String::new, |state| format!(", pstate P{state}"));
    Some(match &gpu.activity.gpu_percent {
        Reading::Value(0) => {
            format!("activity: idle, nothing ran in the last second (utilization.gpu 0 %{state})")
        }
        Reading::Value(percent) => {
            format!(
                "activity: busy for {percent} % of the last second; this does not tell how \
                 efficiently (utilization.gpu {percent} %{state})"
            )
        }
        Reading::Absent(_) if !gpu.mig_devices.is_empty() => {
            format!(
                "activity: unknown; the GPU is divided into MIG devices ({}), and the driver does \
                 not report how busy they are (mig.mode.current Enabled)",
                gpu.mig_devices.len()
            )
        }
        Reading::Absent(absence) => format!("activity: unknown, {absence} (utilization.gpu)"),
    })
}

fn memory(gpu: &Gpu) -> Option<String> {
    let memory = &gpu.memory.frame_buffer;
    let (used, free, total) = match (&memory.used_bytes, &memory.free_bytes, &memory.total_bytes) {
        (Reading::Value(used), Reading::Value(free), Reading::Value(total)) => {
            (*used, *free, *total)
        }
        (Reading::Absent(absence), _, _) => {
            return Some(format!("memory: unknown, {absence} (memory.used)"));
        }
        _ => return None,
    };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Some(format!(
        "memory: {} of {} used, {} free (memory.used {} MiB, memory.free {} MiB)",
        Bytes(used),
        Bytes(total),
        Bytes(free),
        mib(used),
        mib(free)
    ))
}

fn power(gpu: &Gpu) -> Option<String> {
    let draw = gpu.power.draw.value().or(gpu.power.draw_instant.value())?;
    let limit = gpu
        .power
        .limits
        .current
        .value()
        .filter(|limit| **limit > 0)?;
    let share = *draw as f64 / *limit as f64;
    let near = if share >= NEAR_POWER {
        "at the limit"
    } else {
        "below the limit"
    };
    let (draw, limit) = (*draw as f64 / 1e3, *limit as f64 / 1e3);
    Some(format!(
        "power: {near}, {:.0} % of it (power.draw {draw:.2} W, enforced.power.limit {limit:.2} W)",
        share * 100.0
    ))
}

fn heat(gpu: &Gpu) -> Option<String> {
    let found = &gpu.temperature;
    let now = *found.gpu.value()?;
    let (left, source) = match (found.gpu_margin.value(), found.slowdown.value()) {
        (Some(margin), _) => (*margin, format!("temperature.gpu.tlimit {margin}")),
        (None, Some(slowdown)) => (slowdown - now, format!("slowdown at {slowdown} C")),
        (None, None) => {
            return Some(format!(
                "temperature: {now} °C (limit unknown; temperature.gpu {now})"
            ));
        }
    };
    let is_slowed = gpu
        .activity
        .event_reasons
        .value()
        .is_some_and(|reasons| reasons & Activity::HEAT != 0);
    if is_slowed {
        return Some(format!(
            "temperature: {now} °C, too hot: the clocks are lowered (temperature.gpu {now})"
        ));
    }
    let near = if left <= HOT_MARGIN_CELSIUS {
        "hot"
    } else {
        "normal"
    };
    let side = if left < 0 { "above" } else { "below" };
    Some(format!(
        "temperature: {now} °C, {near}, {} °C {side} the limit (temperature.gpu {now}, {source})",
        left.abs()
    ))
}

fn clocks(gpu: &Gpu) -> Option<String> {
    let mut reasons = *gpu.activity.event_reasons.value()? & !Activity::IDLE;
    if !is_power_limited(gpu) {
        reasons &= !Activity::SW_POWER_CAP;
    }
    if reasons == 0 {
        return None;
    }
    let names = super::sampler::throttle_names(reasons).join(", ");
    Some(format!(
        "clock limit: {names} (clocks_event_reasons.active 0x{reasons:016X})"
    ))
}

/// Some boards name the power limit while they rest; it counts only where it can hold something
/// down.
fn is_power_limited(gpu: &Gpu) -> bool {
    let draw = gpu.power.draw.value().or(gpu.power.draw_instant.value());
    let share = draw
        .zip(gpu.power.limits.current.value())
        .map(|(draw, limit)| *draw as f64 / (*limit).max(1) as f64);
    gpu.activity.gpu_percent.value() != Some(&0)
        && share.is_none_or(|share| share >= LIMITING_POWER)
}

fn processes(gpu: &Gpu) -> Option<String> {
    let list = match &gpu.processes {
        Reading::Value(list) => list,
        Reading::Absent(absence) => return Some(format!("compute processes: unknown, {absence}")),
    };
    let computing: Vec<&Process> = list
        .iter()
        .filter(|process| process.has_compute || process.has_mps)
        .collect();
    let names = computing.iter().map(|process| match process.name.value() {
        Some(name) => format!("{} {name}", process.pid),
        None => process.pid.to_string(),
    });
    match computing.len() {
        0 => Some("compute processes: none visible from here".to_owned()),
        1 => Some(format!(
            "compute processes: 1 ({})",
            names.collect::<String>()
        )),
        several => Some(format!(
            "compute processes: {several} ({})",
            listed(&names.collect::<Vec<_>>(), ", ")
        )),
    }
}

/// Only what is wrong.
fn health(gpu: &Gpu) -> Option<String> {
    let mut wrong = Vec::new();
    if let Some(action) = gpu
        .modes
        .recovery_action
        .value()
        .filter(|action| **action != 0)
    {
        wrong.push(format!(
            "the driver recommends a recovery action (gpu_recovery_action {action})"
        ));
    }
    if let Some(errors) = gpu
        .ecc
        .uncorrected_volatile
        .total
        .value()
        .filter(|errors| **errors > 0)
    {
        wrong.push(format!(
            "{errors} memory errors could not be corrected (ecc.errors.uncorrected.volatile.total)"
        ));
    }
    let flags = [
        (
            &gpu.remapped_rows.has_failed,
            "a row of its memory could not be replaced (remapped_rows.failure Yes)",
        ),
        (
            &gpu.remapped_rows.is_pending,
            "rows of its memory are waiting for a reset (remapped_rows.pending Yes)",
        ),
        (
            &gpu.retired_pages.is_pending,
            "pages of its memory are waiting for a restart (retired_pages.pending Yes)",
        ),
    ];
    wrong.extend(
        flags
            .into_iter()
            .filter(|(flag, _)| flag.value() == Some(&true))
            .map(|(_, words)| words.to_owned()),
    );
    (!wrong.is_empty()).then(|| format!("needs attention: {}", wrong.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Absence;

    fn gpu() -> Gpu {
        let mut gpu = Gpu::unread(&Absence::NotSupported);
        gpu.index = Reading::Value(0);
        gpu.identity.name = Reading::Value("NVIDIA Test".into());
        gpu
    }

    #[test]
    fn what_was_not_read_is_unknown_and_nothing_is_made_up() {
        let said = words(&[gpu()]);
        assert_eq!(
            said,
            "GPU 0, NVIDIA Test:\n  activity: unknown, not supported by this device \
             (utilization.gpu)\n  memory: unknown, not supported by this device (memory.used)\n  \
             compute processes: unknown, not supported by this device\n"
        );
    }

    #[test]
    fn a_resting_gpu_is_not_held_by_its_power_limit_and_a_slowed_one_is_hot() {
        let mut gpu = gpu();
        gpu.activity.gpu_percent = Reading::Value(0);
        gpu.power.draw = Reading::Value(24_000);
        gpu.power.limits.current = Reading::Value(575_000);
        gpu.activity.event_reasons = Reading::Value(Activity::SW_POWER_CAP);
        assert!(!words(&[gpu.clone()]).contains("clock limit"));
        gpu.activity.event_reasons =
            Reading::Value(Activity::SW_POWER_CAP | Activity::HW_THERMAL_SLOWDOWN);
        gpu.temperature.gpu = Reading::Value(92);
        gpu.temperature.gpu_margin = Reading::Value(49);
        let said = words(&[gpu]);
        assert!(
            said.contains("temperature: 92 °C, too hot: the clocks are lowered")
                && !said.contains("below the limit (temp"),
            "{said}"
        );
        assert!(
            said.contains("clock limit: hw_thermal_slowdown ("),
            "{said}"
        );
    }

    #[test]
    fn a_gpu_at_its_limits_is_said_to_be() {
        let mut gpu = gpu();
        gpu.activity.gpu_percent = Reading::Value(100);
        gpu.power.draw = Reading::Value(690_000);
        gpu.power.limits.current = Reading::Value(700_000);
        gpu.temperature.gpu = Reading::Value(85);
        gpu.temperature.slowdown = Reading::Value(88);
        gpu.activity.event_reasons = Reading::Value(Activity::SW_POWER_CAP);
        gpu.remapped_rows.has_failed = Reading::Value(true);
        let said = words(std::slice::from_ref(&gpu));
        for sentence in [
            "activity: busy",
            "power: at the limit, 99 %",
            "85 °C, hot, 3 °C below",
            "clock limit: ",
            "needs attention: a row",
        ] {
            assert!(said.contains(sentence), "{sentence}\n{said}");
        }
        gpu.temperature.gpu = Reading::Value(90);
        let said = words(&[gpu]);
        assert!(said.contains("90 °C, hot, 2 °C above the limit"), "{said}");
    }
}
