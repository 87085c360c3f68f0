//! Checks of the host: processors and control group limits, memory, shared memory, disk, clock and
//! load. Converts facts to checks.

use kiln_core::{
    record::Check,
    units::{Bytes, counted},
};
use kiln_hardware::Reading;

use super::facts::{PreflightFacts, TrialDemand};

/// Below this a run's tables and checkpoints may not fit.
const LITTLE_DISK_BYTES: u64 = 2 << 30;

/// Below this libtorch alone hardly fits.
const LITTLE_MEMORY_BYTES: u64 = 2 << 30;

/// Fraction of all cores busy in the last minute above which timings are disturbed.
const BUSY_SHARE: f64 = 0.5;

/// All checks of the host.
pub(super) fn checks(facts: &PreflightFacts) -> Vec<Check> {
    let all = [
        Some(cpu(facts)),
        facts.demand.as_ref().map(|demand| workers(demand, facts)),
        facts
            .demand
            .as_ref()
            .and_then(|demand| threads(demand, facts)),
        load(facts),
        governor(facts),
        Some(memory(facts)),
        Some(swap(facts)),
        Some(shared_memory(facts)),
        Some(disk(facts)),
        Some(clock(facts)),
    ];
    all.into_iter().flatten().collect()
}

fn cores(count: f64) -> String {
    if count == 1.0 {
        "1 core".to_owned()
    } else {
        format!("{} cores", (count * 10.0).round() / 10.0)
    }
}

fn cpu(facts: &PreflightFacts) -> Check {
    let host = &facts.host;
    let machine = host.logical_cores.value().map(|cores| *cores as f64);
    match (host.cgroup_cpu_cores.value(), machine) {
        (Some(limit), Some(machine)) if *limit < 1.0 => Check::warning(
            "cpu",
            format!(
                "the control group allows {} of {machine} logical cores",
                cores(*limit)
            ),
            "give the container or job at least one core (`--cpus`): trainer and loader need one \
             each",
        ),
        (Some(limit), Some(machine)) if *limit < machine => Check::ok(
            "cpu",
            format!(
                "the control group allows {} of {machine} logical cores",
                cores(*limit)
            ),
        ),
        (_, Some(machine)) if (host.usable_cores as f64) < machine => Check::ok(
            "cpu",
            format!(
                "{} of {machine} logical cores are usable (CPU affinity)",
                host.usable_cores
            ),
        ),
        (_, Some(machine)) => Check::ok("cpu", format!("{}, no limit", cores(machine))),
        _ => Check::unknown("cpu", format!("{} usable", cores(host.usable_cores as f64))),
    }
}

/// More workers than cores do not run at the same time.
fn workers(demand: &TrialDemand, facts: &PreflightFacts) -> Check {
    let (asked, usable) = (demand.most_workers, facts.host.usable_cores);
    if asked <= usable {
        return Check::ok(
            "num-workers",
            format!(
                "at most {} on {}",
                counted(asked as usize, "loader worker"),
                cores(usable as f64)
            ),
        );
    }
    Check::warning(
        "num-workers",
        format!(
            "a trial uses {}, but only {} can be used",
            counted(asked as usize, "loader worker"),
            cores(usable as f64)
        ),
        "more workers than cores slow the trainer down; lower `data.num_workers`, or raise the CPU \
         limit",
    )
}

fn threads(demand: &TrialDemand, facts: &PreflightFacts) -> Option<Check> {
    let usable = facts.host.usable_cores;
    (demand.most_cpu_threads > usable).then(|| {
        Check::warning(
            "cpu-threads",
            format!(
                "`train.cpu_threads` is {}, but only {} can be used",
                demand.most_cpu_threads,
                cores(usable as f64)
            ),
            "more threads than cores are much slower than fewer threads; lower it or set it to \
             `auto`",
        )
    })
}

fn load(facts: &PreflightFacts) -> Option<Check> {
    let (load, cores) = (
        *facts.host.load_1_minute.value()?,
        *facts.host.logical_cores.value()?,
    );
    let evidence = format!("{load:.1} over the last minute, on {cores} logical cores");
    Some(if load > BUSY_SHARE * cores as f64 {
        Check::warning(
            "load",
            evidence,
            "wait until the cores are free, or measure later; times on the CPU and of the loader \
             will be unreliable",
        )
    } else {
        Check::ok("load", evidence)
    })
}

fn governor(facts: &PreflightFacts) -> Option<Check> {
    let governor = facts.host.scaling_governor.value()?;
    Some(match governor.as_str() {
        "powersave" | "conservative" => Check::warning(
            "cpu-governor",
            format!("`{governor}`: the clocks increase late or not at all"),
            "`sudo cpupower frequency-set -g performance` while you measure (with intel_pstate, \
             `powersave` is milder than it sounds)",
        ),
        _ => Check::ok("cpu-governor", format!("`{governor}`")),
    })
}

fn memory(facts: &PreflightFacts) -> Check {
    let host = &facts.host;
    let Some(total) = host.memory_bytes.value() else {
        return Check::unknown("memory", host.memory_bytes.reason().unwrap_or_default());
    };
    let limit = host
        .cgroup_memory_bytes
        .value()
        .filter(|limit| *limit < total);
    let available = host
        .memory_available_bytes
        .value()
        .copied()
        .unwrap_or(*total);
    let room = limit.map_or(available, |limit| available.min(*limit));
    let limited = limit
        .map(|limit| format!(", of which the control group allows {}", Bytes(*limit)))
        .unwrap_or_default();
    let evidence = format!(
        "{} available of {}{limited}",
        Bytes(available),
        Bytes(*total)
    );
    if room < LITTLE_MEMORY_BYTES {
        Check::warning(
            "memory",
            evidence,
            "libtorch and a small model need about 1 GiB; end other programs, or raise the limit \
             (`--memory`)",
        )
    } else {
        Check::ok("memory", evidence)
    }
}

fn swap(facts: &PreflightFacts) -> Check {
    match (&facts.place.swap_used_bytes, facts.host.swap_bytes.value()) {
        (_, Some(0)) => Check::ok("swap", "none"),
        (Reading::Value(used), total) if *used > total.copied().unwrap_or(0) / 2 => Check::warning(
            "swap",
            format!("{} in use", Bytes(*used)),
            "stop programs that use much memory; times of a swapped trial are unreliable",
        ),
        (Reading::Value(used), _) => Check::ok("swap", format!("{} in use", Bytes(*used))),
        (Reading::Absent(absence), _) => Check::unknown("swap", absence.to_string()),
    }
}

/// kiln's workers are threads; only libraries that start processes need shared memory.
fn shared_memory(facts: &PreflightFacts) -> Check {
    const NAME: &str = "shared-memory";
    const LITTLE: u64 = 16 << 20;
    match &facts.place.shared_memory_bytes {
        Reading::Value(bytes) if *bytes < LITTLE => Check::warning(
            NAME,
            format!("/dev/shm has {}", Bytes(*bytes)),
            "kiln's loader workers are threads and need none, but CUDA and NCCL use it between \
             processes: `--shm-size 1g`",
        ),
        Reading::Value(bytes) => Check::ok(
            NAME,
            format!(
                "/dev/shm has {} (kiln's loader workers are threads and need none)",
                Bytes(*bytes)
            ),
        ),
        Reading::Absent(absence) => Check::unknown(NAME, absence.to_string()),
    }
}

fn disk(facts: &PreflightFacts) -> Check {
    let folder = facts.place.results.display();
    if let Some(fault) = &facts.place.fault {
        return Check::problem(
            "disk",
            fault.clone(),
            "make this folder writable, or name another with `--results`",
        );
    }
    let needed = facts.demand.as_ref().map_or(0, |demand| demand.disk_bytes);
    match &facts.place.free_bytes {
        Reading::Value(free) if *free < needed => Check::warning(
            "disk",
            format!(
                "{} free for {folder}, and the trials may need {}",
                Bytes(*free),
                Bytes(needed)
            ),
            "free some space, name another folder with `--results`, or keep fewer checkpoints \
             (`train.checkpoint.keep`); trials go on without those that do not fit, and leave no weights",
        ),
        Reading::Value(free) if *free < LITTLE_DISK_BYTES => Check::warning(
            "disk",
            format!("{} free for {folder}", Bytes(*free)),
            "`kiln plan` shows how much an experiment may need; free some space, or name another \
             folder with `--results`",
        ),
        Reading::Value(free) => Check::ok("disk", format!("{} free for {folder}", Bytes(*free))),
        Reading::Absent(absence) => Check::unknown("disk", absence.to_string()),
    }
}

/// Other clock sources take microseconds or drift between processors.
fn clock(facts: &PreflightFacts) -> Check {
    const NAME: &str = "clock-source";
    match &facts.host.clock_source {
        Reading::Value(source)
            if matches!(
                source.as_str(),
                "tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page"
            ) =>
        {
            Check::ok(NAME, format!("`{source}`, fast and exact"))
        }
        Reading::Value(source) => Check::warning(
            NAME,
            format!("`{source}`: reading the time is slow, or differs between processors"),
            "the kernel rejected `tsc` (`sudo dmesg | grep -i clocksource` shows why); times of \
             short steps are too long",
        ),
        Reading::Absent(absence) => Check::unknown(NAME, absence.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::tests::facts;
    use kiln_core::record::CheckState;

    fn found(name: &str, change: impl FnOnce(&mut PreflightFacts)) -> (CheckState, String) {
        let mut facts = facts();
        change(&mut facts);
        let check = checks(&facts)
            .into_iter()
            .find(|check| check.name == name)
            .unwrap();
        assert_eq!(
            check.remedy.is_some(),
            check.state >= CheckState::Warning,
            "{check:?}"
        );
        (check.state, check.evidence)
    }

    #[test]
    fn each_shortage_is_seen_with_its_evidence() {
        type Case = (&'static str, fn(&mut PreflightFacts), &'static str);
        let cases: [Case; 11] = [
            (
                "cpu",
                |facts| facts.host.cgroup_cpu_cores = Reading::Value(0.5),
                "allows 0.5 cores of 16 logical cores",
            ),
            (
                "num-workers",
                |facts| {
                    facts.demand = Some(TrialDemand {
                        most_workers: 40,
                        ..TrialDemand::default()
                    })
                },
                "uses 40 loader workers, but only 16 cores",
            ),
            (
                "cpu-threads",
                |facts| {
                    facts.demand = Some(TrialDemand {
                        most_cpu_threads: 64,
                        ..TrialDemand::default()
                    })
                },
                "`train.cpu_threads` is 64, but only 16",
            ),
            (
                "load",
                |facts| facts.host.load_1_minute = Reading::Value(9.0),
                "9.0 over the last minute, on 16",
            ),
            (
                "cpu-governor",
                |facts| facts.host.scaling_governor = Reading::Value("powersave".into()),
                "`powersave`",
            ),
            (
                "memory",
                |facts| facts.host.cgroup_memory_bytes = Reading::Value(1 << 30),
                "of which the control group allows 1.0 GiB",
            ),
            (
                "swap",
                |facts| {
                    facts.host.swap_bytes = Reading::Value(2 << 30);
                    facts.place.swap_used_bytes = Reading::Value(3 << 29);
                },
                "1.5 GiB in use",
            ),
            (
                "shared-memory",
                |facts| facts.place.shared_memory_bytes = Reading::Value(1 << 20),
                "/dev/shm has 1.0 MiB",
            ),
            (
                "disk",
                |facts| {
                    facts.place.free_bytes = Reading::Value(10 << 30);
                    facts.demand = Some(TrialDemand {
                        disk_bytes: 11 << 30,
                        ..TrialDemand::default()
                    });
                },
                "10.0 GiB free for results, and the trials may need 11.0 GiB",
            ),
            (
                "disk",
                |facts| facts.place.free_bytes = Reading::Value(1 << 20),
                "1.0 MiB free for results",
            ),
            (
                "clock-source",
                |facts| facts.host.clock_source = Reading::Value("hpet".into()),
                "`hpet`",
            ),
        ];
        for (name, change, words) in cases {
            let (state, evidence) = found(name, change);
            assert!(
                state == CheckState::Warning && evidence.contains(words),
                "{name}: {state} {evidence}"
            );
        }
    }

    #[test]
    fn a_roomy_host_is_ok_and_limits_are_told() {
        let mut facts = facts();
        facts.demand = Some(TrialDemand {
            most_workers: 8,
            most_cpu_threads: 16,
            disk_bytes: 100 << 30,
        });
        let checks = checks(&facts);
        assert!(
            checks.len() >= 8 && checks.iter().all(|check| check.state == CheckState::Ok),
            "{checks:?}"
        );
        assert_eq!(
            found("cpu", |facts| facts.host.cgroup_cpu_cores =
                Reading::Value(4.0)),
            (
                CheckState::Ok,
                "the control group allows 4 cores of 16 logical cores".into()
            )
        );
        assert_eq!(
            found("clock-source", |facts| facts.host.clock_source =
                Reading::absent("no such file"))
            .0,
            CheckState::Unknown
        );
    }
}
