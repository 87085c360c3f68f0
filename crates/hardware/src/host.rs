//! The host: processor, memory, limits, kernel. Read once, cheaply; each field is a value or the
//! reason why there is none.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::thread::{CpuSet, sched_getaffinity};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

use super::{Reading, cgroup, process, processor};

/// Instruction sets that decide how fast a network runs on the CPU; the others are not listed.
const NOTABLE_FEATURES: [&str; 14] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
    "sve2",
    "bf16",
];

/// Facts about the host, and the part of it that this process may use.
#[derive(Clone, Debug)]
pub struct HostFacts {
    pub cpu_model: Reading<String>,
    /// Vendor, family, model, stepping, level and units; see [`processor::identity`].
    pub processor: Reading<String>,
    /// Those of [`NOTABLE_FEATURES`] it has, by spaces.
    pub cpu_features: Reading<String>,
    pub physical_cores: Reading<u64>,
    pub logical_cores: Reading<u64>,
    /// See [`usable_cores`].
    pub usable_cores: u64,
    /// Cores' worth of CPU time the control groups allow.
    pub cgroup_cpu_cores: Reading<f64>,
    pub cgroup_memory_bytes: Reading<u64>,
    pub cgroup_version: Reading<u64>,
    pub memory_bytes: Reading<u64>,
    pub memory_available_bytes: Reading<u64>,
    pub swap_bytes: Reading<u64>,
    pub kernel: Reading<String>,
    pub distribution: Reading<String>,
    pub architecture: String,
    /// `docker`, `podman`, `wsl`, `other`; a reason where none was seen.
    pub container: Reading<String>,
    pub virtual_machine: Reading<bool>,
    pub scaling_governor: Reading<String>,
    /// Mean number of runnable processes over the last minute.
    pub load_1_minute: Reading<f64>,
    pub boot_id: Reading<String>,
    /// The kernel's clock source: `tsc` is cheap and exact, `hpet` is neither.
    pub clock_source: Reading<String>,
    /// Size of the file system that holds `results/` in the current folder, or will.
    pub results_disk_total_bytes: Reading<u64>,
    /// Bytes that this user may still write there.
    pub results_disk_free_bytes: Reading<u64>,
}

/// Reads everything. Some milliseconds.
pub fn read() -> HostFacts {
    let limits = cgroup::limits(Path::new("/"));
    let cpu_info = text("/proc/cpuinfo");
    let memory = text("/proc/meminfo");
    let memory_bytes = |key: &str| match &memory {
        Reading::Value(text) => Reading::or_absent(
            process::kibibytes(text, key).map(|kib| kib * 1024),
            format!("no `{key}` in /proc/meminfo"),
        ),
        Reading::Absent(reason) => Reading::absent(reason),
    };
    HostFacts {
        cpu_model: cpu_model(),
        processor: match &cpu_info {
            Reading::Value(text) => {
                Reading::or_absent(processor::identity(text), "/proc/cpuinfo does not say")
            }
            Reading::Absent(reason) => Reading::absent(reason),
        },
        cpu_features: cpu_info.clone().map(|text| notable_features(&text)),
        physical_cores: Reading::from(System::physical_core_count()).map(|cores| cores as u64),
        logical_cores: cpu_info.clone().map(|text| {
            text.lines()
                .filter(|line| line.starts_with("processor"))
                .count() as u64
        }),
        usable_cores: usable_cores(),
        cgroup_cpu_cores: Reading::or_absent(limits.cpu_cores, "no limit"),
        cgroup_memory_bytes: Reading::or_absent(limits.memory_bytes, "no limit"),
        cgroup_version: Reading::or_absent(
            limits.version.map(u64::from),
            "no cgroup file system is mounted",
        ),
        memory_bytes: memory_bytes("MemTotal:"),
        memory_available_bytes: memory_bytes("MemAvailable:"),
        swap_bytes: memory_bytes("SwapTotal:"),
        kernel: Reading::from(System::kernel_version()),
        distribution: Reading::from(System::long_os_version()),
        architecture: std::env::consts::ARCH.to_owned(),
        container: container(),
        virtual_machine: cpu_info.map(|text| has_word(&text, "flags", "hypervisor")),
        scaling_governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1_minute: load(),
        boot_id: boot_id(),
        clock_source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        results_disk_total_bytes: Reading::from(disk(Path::new("results")))
            .map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
        results_disk_free_bytes: Reading::from(disk_free_bytes(Path::new("results"))),
    }
}

/// Cores that threads of this process can keep busy: the machine's, cut by its CPU affinity and its
/// control groups' quota (rounded down, at least 1).
pub fn usable_cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// The name of this node in its network; `None` if it has none.
pub fn node_name() -> Option<String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    (!name.is_empty()).then_some(name)
}

/// Identifies this boot; CLOCK_MONOTONIC of two launches compares only within one.
pub fn boot_id() -> Reading<String> {
    text("/proc/sys/kernel/random/boot_id")
}

/// Time since the boot, which also passes while the machine is suspended (CLOCK_BOOTTIME).
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Both parts are never negative on this clock.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Bytes that this user may still write at `folder`, which may not exist yet: the nearest existing
/// folder above it is used.
///
/// # Errors
/// No folder above it can be queried.
pub fn disk_free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = disk(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Files that can still be created in a folder's file system; `None` if it sets no limit (btrfs says
/// 0 of 0) or does not say.
pub fn disk_free_files(folder: &Path) -> Option<u64> {
    let disk = disk(folder).ok()?;
    (disk.f_files > 0).then_some(disk.f_favail)
}

fn disk(folder: &Path) -> io::Result<rustix::fs::StatVfs> {
    Ok(rustix::fs::statvfs(&existing(folder)?)?)
}

/// A folder, or the nearest one above it that exists.
pub(super) fn existing(folder: &Path) -> io::Result<PathBuf> {
    let absolute: PathBuf = std::path::absolute(folder)?;
    let there = absolute.ancestors().find(|part| part.exists());
    Ok(there.unwrap_or(Path::new("/")).to_owned())
}

/// `/proc/loadavg`, first number.
pub(super) fn load() -> Reading<f64> {
    match text("/proc/loadavg") {
        Reading::Value(text) => {
            let first = text.split(' ').next().and_then(|word| word.parse().ok());
            Reading::or_absent(first, "/proc/loadavg is not a list of numbers")
        }
        Reading::Absent(reason) => Reading::Absent(reason),
    }
}

/// Number of cores that threads of this process may run on: the machine's, cut by its CPU affinity, as
/// a job of Slurm may have it. `None` if the kernel does not say.
pub fn allowed_cores() -> Option<u64> {
    Some(u64::from(sched_getaffinity(None).ok()?.count()))
}

/// Busy and total time of cores since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTicks {
    busy: u64,
    total: u64,
}

/// The time of all cores, and of those that this process may run on ([`allowed_cores`]); `None` if it
/// cannot be read.
pub(super) fn cpu_ticks() -> [Option<CpuTicks>; 2] {
    let Ok(stat) = fs::read_to_string("/proc/stat") else {
        return [None; 2];
    };
    let allowed = sched_getaffinity(None).ok();
    let allowed = allowed.and_then(|allowed| ticks_of(&stat, &|core| allowed.is_set(core)));
    [ticks_in(stat.lines().next()), allowed]
}

/// The sum of the cores in `/proc/stat` that are chosen by their number.
fn ticks_of(stat: &str, is_chosen: &dyn Fn(usize) -> bool) -> Option<CpuTicks> {
    let cores = stat.lines().filter(|line| {
        let number = line
            .strip_prefix("cpu")
            .and_then(|line| line.split_once(' '));
        let number = number.and_then(|(number, _)| number.parse().ok());
        number.is_some_and(|number| number < CpuSet::MAX_CPU && is_chosen(number))
    });
    let each = cores.map(|line| ticks_in(Some(line)));
    each.reduce(|sum, core| {
        let (sum, core) = (sum?, core?);
        Some(CpuTicks {
            busy: sum.busy + core.busy,
            total: sum.total + core.total,
        })
    })?
}

/// A line of `/proc/stat`: its name, then user nice system idle iowait irq softirq steal; guest time is
/// already in user.
fn ticks_in(line: Option<&str>) -> Option<CpuTicks> {
    let words = line?.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    Some(CpuTicks {
        busy: total - ticks.get(3)? - ticks.get(4)?,
        total,
    })
}

/// Share of the cores' time that was busy between two counts of them; `None` if one is missing or no
/// time passed.
pub(super) fn busy_fraction(before: Option<CpuTicks>, after: Option<CpuTicks>) -> Option<f64> {
    let (before, after) = before.zip(after)?;
    (after.total > before.total).then(|| {
        after.busy.saturating_sub(before.busy) as f64 / (after.total - before.total) as f64
    })
}

/// Share of the time of the cores that this process may run on ([`allowed_cores`]) that any process
/// keeps busy over a moment; `None` if it cannot be read. Sleeps meanwhile.
pub fn busy_fraction_over(moment: Duration) -> Option<f64> {
    let [_, before] = cpu_ticks();
    std::thread::sleep(moment);
    let [_, after] = cpu_ticks();
    busy_fraction(before, after)
}

/// Memory that new work could have without swapping.
pub(super) fn memory_available_bytes() -> Option<u64> {
    process::kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
        .map(|kib| kib * 1024)
}

fn text(path: &str) -> Reading<String> {
    match fs::read_to_string(path) {
        Ok(text) => Reading::Value(text.trim().to_owned()),
        Err(error) => Reading::absent(format_args!("{path}: {error}")),
    }
}

fn cpu_model() -> Reading<String> {
    let system = match System::new_with_specifics(
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()),
    ) {
        Ok(system) => system,
        Err(error) => return Reading::absent(error),
    };
    let brand = system
        .cpus()
        .first()
        .map(|cpu| cpu.brand().trim().to_owned())
        .filter(|brand| !brand.is_empty());
    Reading::or_absent(brand, "the kernel does not report a processor model")
}

fn notable_features(cpu_info: &str) -> String {
    let has =
        |name: &&str| has_word(cpu_info, "flags", name) || has_word(cpu_info, "Features", name);
    NOTABLE_FEATURES
        .into_iter()
        .filter(|name| has(name))
        .collect::<Vec<_>>()
        .join(" ")
}

fn has_word(cpu_info: &str, key: &str, word: &str) -> bool {
    cpu_info
        .lines()
        .find(|line| line.starts_with(key))
        .is_some_and(|line| line.split_whitespace().any(|found| found == word))
}

fn container() -> Reading<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let seen = if Path::new("/run/.containerenv").exists() {
        "podman"
    } else if Path::new("/.dockerenv").exists() {
        "docker"
    } else if kernel.to_ascii_lowercase().contains("microsoft") {
        "wsl"
    } else if !process::pids_are_the_machines() {
        "other"
    } else {
        return Reading::absent("none seen");
    };
    Reading::Value(seen.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_linux_host_has_these() {
        let host = read();
        assert!(host.usable_cores >= 1);
        assert!(
            host.logical_cores
                .value()
                .is_some_and(|cores| *cores >= host.usable_cores)
        );
        assert!(
            host.memory_bytes.value() >= host.memory_available_bytes.value()
                && host.memory_bytes.value().is_some()
        );
        assert!(
            host.kernel
                .value()
                .is_some_and(|kernel| kernel.contains('.'))
        );
        assert!(host.boot_id.value().is_some_and(|id| id.len() == 36));
    }

    #[test]
    fn free_disk_is_known_for_a_folder_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        assert!(disk_free_bytes(&folder.path().join("a/b/c")).unwrap() > 0);
    }

    #[test]
    fn ticks_add_up() {
        let [all, allowed] = cpu_ticks().map(Option::unwrap);
        assert!(all.busy > 0 && all.busy <= all.total);
        assert!(allowed.busy > 0 && allowed.busy <= all.busy);
    }

    #[test]
    fn the_cores_of_a_job_are_counted_without_the_others() {
        let stat = "cpu  100 0 20 1000 30 0 0 0 0 0\ncpu0 60 0 10 500 20 0 0 0 0 0\n\
                    cpu1 10 0 5 250 5 0 0 0 0 0\ncpu10 30 0 5 250 5 0 0 0 0 0\nintr 7\n";
        let of = |cores: &'static [usize]| ticks_of(stat, &|core| cores.contains(&core));
        let ticks = |busy, total| Some(CpuTicks { busy, total });
        assert_eq!(ticks_in(stat.lines().next()), ticks(120, 1150));
        assert_eq!(of(&[0, 1, 10]), ticks(120, 1150));
        assert_eq!(of(&[1]), ticks(15, 270));
        assert_eq!(of(&[0, 10]), ticks(105, 880));
        assert_eq!(of(&[2]), None);
        assert_eq!(ticks_of("cpu0 1 2\n", &|_| true), None);
        assert_eq!(
            busy_fraction(ticks(100, 800), of(&[0, 10])),
            Some(5.0 / 80.0)
        );
        assert!(allowed_cores().is_some_and(|cores| cores >= usable_cores()));
    }

    #[test]
    fn notable_features_are_whole_words() {
        assert_eq!(
            notable_features("flags\t\t: fpu avx2 avx512_bf16x fma"),
            "avx2 fma"
        );
        assert_eq!(notable_features("Features\t: fp asimd bf16"), "asimd bf16");
    }
}
