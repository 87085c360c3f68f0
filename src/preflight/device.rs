//! Health checks of one GPU: settings that a restart would change, memory errors, power,
//! temperature, the PCIe link and other processes. A field that the board does not have gets no
//! check; a field that the driver hides is unknown.

use kiln_core::{
    record::Check,
    units::{Bytes, MORE_THREADS, counted},
};
use kiln_hardware::{
    Absence, ProcessList,
    gpu::Activity,
    limits::{HOT_MARGIN_CELSIUS, LIMITING_POWER},
};

use super::gpu::GpuFacts;
use crate::readings::Privacy;

/// Memory that driver and display use on an idle GPU; more without a visible process belongs to
/// another program.
pub(crate) const IDLE_MEMORY_BYTES: u64 = 1 << 30;

/// All checks of one GPU, in the order of a page.
pub(super) fn checks(gpu: &GpuFacts, privacy: Privacy) -> Vec<Check> {
    if let Some(absence) = &gpu.lost {
        return vec![lost(gpu, absence).of_gpu(gpu.index)];
    }
    let all = [
        Some(identity(gpu)),
        recovery(gpu),
        Some(processes(gpu, privacy)),
        held_memory(gpu),
        persistence(gpu),
        compute_mode(gpu),
        mig(gpu),
        ecc(gpu),
        uncorrected(gpu),
        rows(gpu),
        pages(gpu),
        power_limit(gpu),
        throttling(gpu),
        temperature(gpu),
        link(gpu),
    ];
    all.into_iter()
        .flatten()
        .map(|check| check.of_gpu(gpu.index))
        .collect()
}

fn lost(gpu: &GpuFacts, absence: &Absence) -> Check {
    let remedy = match absence {
        Absence::NoPermission => {
            "look at `ls -l /dev/nvidia*`; join the group that owns them (often `video`)"
        }
        Absence::NoThread(_) => MORE_THREADS,
        Absence::Panicked => "report it as a defect of kiln, with the message of the panic",
        _ => {
            "reset it (`sudo nvidia-smi -r`) or restart the machine, and look for `Xid` in `sudo \
             dmesg`; `--device` names another"
        }
    };
    Check::problem(
        "health",
        format!("{} cannot be read: {absence}", gpu.words()),
        remedy,
    )
}

fn identity(gpu: &GpuFacts) -> Check {
    let name = gpu.name.value().map_or("an NVIDIA GPU", String::as_str);
    let memory = gpu
        .memory_total_bytes
        .value()
        .map(|bytes| format!(", {}", Bytes(*bytes)))
        .unwrap_or_default();
    let capability = gpu
        .compute_capability
        .value()
        .map(|version| format!(", compute capability {version}"))
        .unwrap_or_default();
    let model = if gpu.driver_model.value() == Some(&0) {
        "; driver model WDDM: the memory of processes is hidden"
    } else {
        ""
    };
    Check::ok("device", format!("{name}{memory}{capability}{model}"))
}

/// `nvmlDeviceGpuRecoveryAction_t`.
fn recovery(gpu: &GpuFacts) -> Option<Check> {
    let action = *gpu.recovery_action.value()?;
    let advice = match action {
        0 => return None,
        1 => "a reset of the GPU (`sudo nvidia-smi -r`)",
        2 => "a restart of the machine",
        3 | 4 => "its jobs to be drained, then a reset",
        5 => "a recovery of the IMEX domain",
        6 => "a reset of its bus",
        7 => "a restart of the whole system",
        _ => "a recovery action that this kiln does not know",
    };
    Some(Check::problem(
        "recovery",
        format!("the driver requests {advice}"),
        "do this before the next run; results until then are unreliable",
    ))
}

/// Checks for processes of others. kiln never ends them.
fn processes(gpu: &GpuFacts, privacy: Privacy) -> Check {
    const NAME: &str = "processes";
    match &gpu.users {
        ProcessList::Unknown(reason) => return Check::unknown(NAME, reason.clone()),
        ProcessList::Known(list) if list.is_empty() => {
            return Check::ok(NAME, "no other process uses it");
        }
        ProcessList::Known(_) => {}
    }
    let who = privacy.foreign_processes(&gpu.users);
    let wait = "wait (`run.wait`), or name another GPU with `--device`";
    match (gpu.work(), gpu.utilization_percent.value()) {
        (Some(true), Some(percent)) => Check::warning(
            NAME,
            format!("other processes are running kernels ({percent} %): {who}"),
            wait,
        ),
        (Some(false), _) => Check::warning(
            NAME,
            format!("other processes hold memory without using the GPU: {who}"),
            "this may be a crashed program or an idle notebook; its owner can end it (`kill PID`), \
             kiln never does",
        ),
        _ => Check::warning(
            NAME,
            format!(
                "other processes use it, and the driver does not report whether they run kernels: \
                 {who}"
            ),
            wait,
        ),
    }
}

/// Checks for memory without a visible process: of a crashed process, or of one in another
/// container.
fn held_memory(gpu: &GpuFacts) -> Option<Check> {
    let used = *gpu.memory_used_bytes.value()?;
    let ProcessList::Known(list) = &gpu.users else {
        return None;
    };
    let is_explained = !list.is_empty()
        || gpu.is_display_active.value() == Some(&true)
        || used < IDLE_MEMORY_BYTES;
    (!is_explained).then(|| {
        Check::warning(
            "held-memory",
            format!("{} are in use, but no process is visible", Bytes(used)),
            "a process in another container or a crashed one may hold it: `sudo fuser -v \
             /dev/nvidia*` lists processes",
        )
    })
}

fn persistence(gpu: &GpuFacts) -> Option<Check> {
    match (gpu.is_persistent.value()?, gpu.is_display_active.value()) {
        (true, _) => Some(Check::ok("persistence", "on")),
        (false, Some(true)) => Some(Check::ok(
            "persistence",
            "off, but a display keeps the driver loaded",
        )),
        (false, _) => Some(Check::warning(
            "persistence",
            "off: the driver unloads an unused GPU, each trial initializes it again, and power \
             limits and clocks are reset",
            "`sudo nvidia-smi -pm 1`, or the service nvidia-persistenced",
        )),
    }
}

fn compute_mode(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "compute-mode";
    Some(match gpu.compute_mode.value()? {
        0 => Check::ok(NAME, "default"),
        2 => Check::problem(
            NAME,
            "prohibited: no program may compute on it",
            "`sudo nvidia-smi -c DEFAULT`",
        ),
        _ => Check::warning(
            NAME,
            "exclusive: one process at a time; a trial fails while another holds it",
            "`sudo nvidia-smi -c DEFAULT` allows several",
        ),
    })
}

fn mig(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "mig";
    let is_on = *gpu.is_mig.value()?;
    if gpu
        .is_mig_pending
        .value()
        .is_some_and(|pending| *pending != is_on)
    {
        let (now, then) = if is_on { ("on", "off") } else { ("off", "on") };
        return Some(Check::warning(
            NAME,
            format!("{now} now, {then} after the next reset"),
            "reset the GPU (`sudo nvidia-smi -r`) before you measure",
        ));
    }
    Some(match (is_on, gpu.mig_instances.len()) {
        (false, _) => Check::ok(NAME, "off"),
        (true, 0) => Check::problem(
            NAME,
            "on, but there is no instance: CUDA sees no device",
            "create one (`sudo nvidia-smi mig -cgi 0 -C`) or turn it off (`sudo nvidia-smi -mig \
             0`)",
        ),
        (true, count) => Check::warning(
            NAME,
            format!(
                "on, with {}: a trial gets one instance, not the whole GPU, and the driver does \
                 not report utilization",
                counted(count, "instance")
            ),
            "turn it off (`sudo nvidia-smi -mig 0`) to measure the whole GPU",
        ),
    })
}

fn ecc(gpu: &GpuFacts) -> Option<Check> {
    let is_on = *gpu.is_ecc.value()?;
    let word = |on: bool| if on { "on" } else { "off" };
    match gpu.is_ecc_pending.value() {
        Some(pending) if *pending != is_on => Some(Check::warning(
            "ecc",
            format!(
                "{} now, {} after the next restart: memory size and speed will change",
                word(is_on),
                word(*pending)
            ),
            "restart before you measure, so that later runs are comparable",
        )),
        _ => Some(Check::ok("ecc", word(is_on))),
    }
}

fn uncorrected(gpu: &GpuFacts) -> Option<Check> {
    let count = *gpu.uncorrected_errors.value()?;
    (count > 0).then(|| {
        Check::problem(
            "memory-errors",
            format!(
                "{} since the driver was loaded",
                counted(count as usize, "uncorrected memory error")
            ),
            "reset the GPU (`sudo nvidia-smi -r`); if they recur, replace the board",
        )
    })
}

fn rows(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "row-remapping";
    let failed = gpu.has_remap_failed.value().copied()?;
    let pending = gpu.are_rows_pending.value().copied().unwrap_or(false);
    let spent = gpu.spent_banks.value().copied().unwrap_or(0);
    Some(if failed {
        Check::problem(
            NAME,
            "a faulty row of memory could not be replaced",
            "replace the board; do not trust its results",
        )
    } else if pending {
        Check::warning(
            NAME,
            "a faulty row of memory is waiting to be replaced",
            "reset the GPU (`sudo nvidia-smi -r`) or restart",
        )
    } else if spent > 0 {
        Check::warning(
            NAME,
            format!(
                "no spare rows are left in {} of memory",
                counted(spent as usize, "bank")
            ),
            "the next fault there cannot be repaired: plan a replacement of the board",
        )
    } else {
        Check::ok(NAME, "nothing pending, nothing failed")
    })
}

fn pages(gpu: &GpuFacts) -> Option<Check> {
    let pending = *gpu.are_pages_pending.value()?;
    pending.then(|| {
        Check::warning(
            "retired-pages",
            "faulty pages of memory are waiting to be retired",
            "restart the machine",
        )
    })
}

fn watts(milliwatts: u64) -> String {
    format!("{:.0} W", milliwatts as f64 / 1e3)
}

fn power_limit(gpu: &GpuFacts) -> Option<Check> {
    let (limit, default) = (*gpu.power_limit.value()?, *gpu.power_limit_default.value()?);
    if limit >= default {
        return Some(Check::ok("power-limit", watts(limit)));
    }
    let index = gpu.index;
    Some(Check::warning(
        "power-limit",
        format!(
            "{}, below the board's default of {}: it runs slower than others of its kind",
            watts(limit),
            watts(default)
        ),
        format!(
            "`sudo nvidia-smi -i {index} -pl {:.0}`, if the limit is not intended",
            default as f64 / 1e3
        ),
    ))
}

fn throttling(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "throttling";
    const REASONS: [(u64, &str); 5] = [
        (Activity::HW_THERMAL_SLOWDOWN, "temperature (hardware)"),
        (Activity::SW_THERMAL_SLOWDOWN, "temperature (driver)"),
        (Activity::HW_POWER_BRAKE, "the power supply's brake"),
        (Activity::HW_SLOWDOWN, "the hardware's slow-down"),
        (Activity::SW_POWER_CAP, "the power limit"),
    ];
    let mut active = *gpu.event_reasons.value()?;
    if !is_power_limited(gpu) {
        active &= !Activity::SW_POWER_CAP;
    }
    let names: Vec<&str> = REASONS
        .iter()
        .filter(|(bit, _)| active & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    Some(match names.as_slice() {
        [] => Check::ok(NAME, "none now"),
        // A busy GPU reaches its power limit by design.
        ["the power limit"] if gpu.is_working() => {
            Check::ok(NAME, "by the power limit, under load")
        }
        _ => Check::warning(
            NAME,
            format!("the clocks are limited now by {}", names.join(", ")),
            "check cooling and power supply; measurements made now are too slow",
        ),
    })
}

/// Some idle boards report the power limit. It counts only if the power is near the limit.
fn is_power_limited(gpu: &GpuFacts) -> bool {
    let share = gpu
        .power_draw
        .value()
        .zip(gpu.power_limit.value())
        .map(|(draw, limit)| *draw as f64 / (*limit).max(1) as f64);
    gpu.work() != Some(false) && share.is_none_or(|share| share >= LIMITING_POWER)
}

fn temperature(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "temperature";
    let now = *gpu.temperature.value()?;
    let remedy = "let it cool (`run.cool_down`), check fans and air flow";
    if gpu
        .event_reasons
        .value()
        .is_some_and(|reasons| reasons & Activity::HEAT != 0)
    {
        return Some(Check::warning(
            NAME,
            format!("{now} °C, and it is slowed down by temperature now"),
            remedy,
        ));
    }
    let by_limit = gpu.slowdown_temperature.value().map(|limit| limit - now);
    let Some(margin) = gpu.temperature_margin.value().copied().or(by_limit) else {
        return Some(Check::ok(NAME, format!("{now} °C")));
    };
    Some(if margin <= HOT_MARGIN_CELSIUS {
        Check::warning(
            NAME,
            format!("{now} °C, {margin} degrees below where it slows down"),
            remedy,
        )
    } else {
        Check::ok(
            NAME,
            format!("{now} °C, {margin} degrees below where it slows down"),
        )
    })
}

/// The link width does not drop on an idle GPU; the generation does.
fn link(gpu: &GpuFacts) -> Option<Check> {
    const NAME: &str = "pcie-link";
    let (width, best) = (*gpu.link_width.value()?, *gpu.link_width_max.value()?);
    let generation = gpu
        .link_generation
        .value()
        .copied()
        .zip(gpu.link_generation_max.value().copied());
    let words = |width: u64, generation: Option<u64>| {
        generation.map_or(format!("x{width}"), |number| {
            format!("generation {number} x{width}")
        })
    };
    let is_slow = generation.is_some_and(|(now, best)| now < best);
    // A low generation on an idle GPU is not a fault of the slot.
    let trusted = generation.filter(|_| width == best || gpu.is_working());
    let (now, possible) = (
        words(width, trusted.map(|pair| pair.0)),
        words(best, trusted.map(|pair| pair.1)),
    );
    Some(if width < best {
        Check::warning(
            NAME,
            format!("{now} of {possible}: copies to the GPU are slower than possible"),
            "reseat the board, or use a slot with all lanes; a riser or a shared slot may be the \
             cause",
        )
    } else if is_slow && gpu.is_working() {
        Check::warning(
            NAME,
            format!("{now} of {possible} under load: copies are slower than possible"),
            "check the slot's generation in the firmware settings",
        )
    } else if is_slow {
        Check::ok(
            NAME,
            format!("{now} of {possible}; the link is idle because the GPU is"),
        )
    } else {
        Check::ok(NAME, now)
    })
}

#[cfg(test)]
mod tests;
