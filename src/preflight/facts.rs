//! Collects the facts for the checks: driver, GPUs, environment, host, folder of the results, the
//! needs of an experiment and the findings of the child. It does not judge them; a missing fact is
//! a reason or `None`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::Model,
    plan::{Trial, expected_disk_bytes},
    units::listed,
};
use kiln_hardware::{
    Absence, Gpu, HostFacts, Nvml, NvmlAbsent, Patience, ProcessList, Reading, VISIBLE_DEVICES,
    host, silence_of,
};

use super::{gpu::GpuFacts, trial_program::ExamineAnswer};
use crate::readings::Privacy;

/// All facts for the checks.
#[derive(Clone, Debug)]
pub struct PreflightFacts {
    pub driver: Result<DriverVersions, NvmlAbsent>,
    pub system: SystemFacts,
    /// The part of the driver that hangs, and the time waited for it.
    pub silence: Option<String>,
    /// All GPUs, in nvidia-smi's order.
    pub gpus: Vec<GpuFacts>,
    /// UUIDs of the GPUs that a launch has leased; `None` without a launch.
    pub leased: Option<Vec<String>>,
    pub environment: Environment,
    pub host: HostFacts,
    pub place: RunsPlace,
    /// `None` without an experiment.
    pub demand: Option<TrialDemand>,
    /// `None` before a launch, which does not examine a child.
    pub answer: Option<ExamineAnswer>,
    /// Whether process ids and names of other users may be shown.
    pub privacy: Privacy,
}

/// Versions that NVML reports.
#[derive(Clone, Debug)]
pub struct DriverVersions {
    pub driver: Reading<String>,
    /// Version of the library, such as `13.590.48.01`.
    pub nvml: Reading<String>,
    /// The newest CUDA the driver can run.
    pub cuda: Reading<String>,
}

/// Facts about the driver that the system shows without a driver call.
#[derive(Clone, Debug, Default)]
pub struct SystemFacts {
    /// Version of the loaded kernel module.
    pub module_version: Option<String>,
    /// Version of the library's file, from the name that its link points to.
    pub library_version: Option<String>,
    /// Names under `/dev`: `nvidia0`, `nvidiactl`, `nvidia-uvm`.
    pub nodes: Vec<String>,
    pub is_wsl: bool,
}

/// Variables that decide which devices a program sees, as set for kiln itself.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub cuda_visible_devices: Option<String>,
    pub cuda_device_order: Option<String>,
    /// Read by container runtimes, not by CUDA.
    pub nvidia_visible_devices: Option<String>,
    /// The folders that the dynamic loader searches first.
    pub ld_library_path: Option<String>,
}

/// The folder of the runs, shared memory and swap.
#[derive(Clone, Debug)]
pub struct RunsPlace {
    pub results: PathBuf,
    /// Reason why the folder cannot be written.
    pub fault: Option<String>,
    pub free_bytes: Reading<u64>,
    pub shared_memory_bytes: Reading<u64>,
    /// `Some` if the machine uses swap.
    pub swap_used_bytes: Reading<u64>,
}

/// Needs of an experiment's trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialDemand {
    /// The largest number of loader workers of a trial.
    pub most_workers: u64,
    pub most_cpu_threads: u64,
    /// Bytes that they need together under `results/`, without hardware samples; trials of unknown size
    /// are not counted.
    pub disk_bytes: u64,
}

/// Sources of the facts.
#[derive(Clone, Copy, Debug)]
pub struct FactRoots<'a> {
    pub nvml: &'a Result<Nvml, NvmlAbsent>,
    /// Whether `nvml` is the system's library, so that the system's facts about its driver apply.
    pub is_system_nvml: bool,
    /// All GPUs, as read by `nvml`.
    pub gpus: &'a [Gpu],
    pub results: &'a Path,
    /// The trials that are to run.
    pub trials: Option<&'a [&'a Trial]>,
    pub privacy: Privacy,
    /// Longest wait for a driver that hangs.
    pub patience: &'a Patience,
}

impl PreflightFacts {
    /// Reads the rest of the machine. Makes a few driver calls per GPU.
    pub fn gather(
        sources: &FactRoots,
        leased: Option<Vec<String>>,
        answer: Option<ExamineAnswer>,
    ) -> Self {
        let (nvml, patience) = (sources.nvml.as_ref(), sources.patience);
        let host = host::read();
        let driver = nvml
            .map(|nvml| versions(*nvml, patience))
            .map_err(Clone::clone);
        let gpus = nvml
            .map(|nvml| gpus(*nvml, sources.gpus, patience))
            .unwrap_or_default();
        Self {
            silence: driver
                .as_ref()
                .ok()
                .and_then(|versions| silence(versions, &gpus, patience)),
            driver,
            system: if sources.is_system_nvml {
                system(Path::new("/"))
            } else {
                SystemFacts::default()
            },
            gpus,
            leased,
            environment: environment(),
            place: place(sources.results),
            demand: sources
                .trials
                .map(|trials| demand(trials, host.usable_cores)),
            host,
            answer,
            privacy: sources.privacy,
        }
    }
}

fn versions(nvml: Nvml, patience: &Patience) -> DriverVersions {
    let answer = patience.wait(move || DriverVersions {
        driver: nvml.driver_version(),
        nvml: nvml.nvml_version(),
        cuda: nvml.cuda_version(),
    });
    answer.unwrap_or_else(|why| DriverVersions {
        driver: Reading::Absent(why.clone()),
        nvml: Reading::Absent(why.clone()),
        cuda: Reading::Absent(why),
    })
}

fn gpus(nvml: Nvml, read: &[Gpu], patience: &Patience) -> Vec<GpuFacts> {
    let well: Vec<String> = read
        .iter()
        .filter(|gpu| silence_of(gpu).is_none())
        .filter_map(|gpu| gpu.identity.uuid.value().cloned())
        .collect();
    let users = patience.each(well.clone(), move |uuid| nvml.compute_processes(&uuid));
    let unknown = |why: Absence| ProcessList::Unknown(why.to_string());
    let mut users: HashMap<String, ProcessList> = well
        .into_iter()
        .zip(users.into_iter().map(|list| list.unwrap_or_else(unknown)))
        .collect();
    let mut of = |gpu: &Gpu| {
        gpu.identity
            .uuid
            .value()
            .and_then(|uuid| users.remove(uuid))
    };
    read.iter()
        .enumerate()
        .map(|(place, gpu)| GpuFacts::of(gpu, place as u64, of(gpu)))
        .collect()
}

/// Returns a sentence that names what hangs.
fn silence(versions: &DriverVersions, gpus: &[GpuFacts], patience: &Patience) -> Option<String> {
    let silence = patience.silence();
    if versions.driver.absence() == Some(&silence) {
        return Some(silence.to_string());
    }
    let hanging: Vec<String> = gpus
        .iter()
        .filter(|gpu| gpu.lost.as_ref() == Some(&silence))
        .map(GpuFacts::words)
        .collect();
    (!hanging.is_empty()).then(|| format!("{silence} when asked about {}", listed(&hanging, ", ")))
}

/// `root` is `/` outside tests.
fn system(root: &Path) -> SystemFacts {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let kernel = read("proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .to_ascii_lowercase();
    SystemFacts {
        module_version: read("proc/driver/nvidia/version")
            .as_deref()
            .and_then(module_version),
        library_version: library_version(root),
        nodes: nodes(&root.join("dev")),
        is_wsl: kernel.contains("microsoft") || root.join("dev/dxg").exists(),
    }
}

/// The first word of `NVRM version: … Kernel Module  590.48.01  Release Build …` that is a version.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    line.split_whitespace().find(is_version).map(str::to_owned)
}

/// `libnvidia-ml.so.1` is a link to `libnvidia-ml.so.<version>` wherever a driver was installed.
fn library_version(root: &Path) -> Option<String> {
    const FOLDERS: [&str; 7] = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "usr/lib",
        "usr/local/nvidia/lib64",
        "lib/x86_64-linux-gnu",
        "usr/lib/wsl/lib",
    ];
    FOLDERS.iter().find_map(|folder| {
        let target = fs::read_link(root.join(folder).join("libnvidia-ml.so.1")).ok()?;
        Some(
            target
                .file_name()?
                .to_str()?
                .strip_prefix("libnvidia-ml.so.")?
                .to_owned(),
        )
    })
}

fn nodes(dev: &Path) -> Vec<String> {
    let entries = fs::read_dir(dev).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("nvidia"))
        .collect();
    names.sort();
    names
}

fn environment() -> Environment {
    let variable =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Environment {
        cuda_visible_devices: variable(VISIBLE_DEVICES),
        cuda_device_order: variable("CUDA_DEVICE_ORDER"),
        nvidia_visible_devices: variable("NVIDIA_VISIBLE_DEVICES"),
        ld_library_path: variable("LD_LIBRARY_PATH").filter(|path| !path.is_empty()),
    }
}

fn place(results: &Path) -> RunsPlace {
    let shared = Path::new("/dev/shm");
    let shared_memory_bytes = match rustix::fs::statvfs(shared) {
        Ok(disk) if shared.is_dir() => Reading::Value(disk.f_blocks.saturating_mul(disk.f_frsize)),
        Ok(_) => Reading::absent("there is no /dev/shm"),
        Err(error) => Reading::absent(format_args!("/dev/shm: {error}")),
    };
    RunsPlace {
        results: results.to_owned(),
        fault: write_fault(results),
        free_bytes: Reading::from(host::disk_free_bytes(results)),
        shared_memory_bytes,
        swap_used_bytes: swap_used(),
    }
}

/// Returns the reason why runs cannot be stored there; the folder itself may not exist yet.
fn write_fault(results: &Path) -> Option<String> {
    let results = std::path::absolute(results).ok()?;
    let there = results.ancestors().find(|folder| folder.exists())?;
    if !there.is_dir() {
        return Some(format!("{} is not a folder", there.display()));
    }
    let refused = rustix::fs::access(
        there,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .err()?;
    Some(format!("{} cannot be written: {refused}", there.display()))
}

fn swap_used() -> Reading<u64> {
    let text = match fs::read_to_string("/proc/meminfo") {
        Ok(text) => text,
        Err(error) => return Reading::absent(format_args!("/proc/meminfo: {error}")),
    };
    let kibibytes = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key))?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    };
    let used = kibibytes("SwapTotal:")
        .zip(kibibytes("SwapFree:"))
        .map(|(total, free)| total.saturating_sub(free) * 1024);
    Reading::or_absent(used, "/proc/meminfo does not say")
}

fn demand(trials: &[&Trial], cores: u64) -> TrialDemand {
    let workers = trials.iter().filter_map(|trial| match &*trial.model {
        Model::Command(command) => command.count("num_workers"),
        _ => Some(trial.data.loader()?.num_workers.resolve(cores)),
    });
    let threads = trials.iter().filter_map(|trial| match &*trial.model {
        Model::Command(command) => command.count("cpu_threads"),
        _ => Some(trial.train.cpu_threads.resolve(cores)),
    });
    let known = trials.iter().copied();
    let known = known.filter(|trial| trial.expected_disk_bytes().is_some());
    TrialDemand {
        most_workers: workers.max().unwrap_or(0),
        most_cpu_threads: threads.max().unwrap_or(0),
        disk_bytes: expected_disk_bytes(known).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, by path and text.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn versions_of_module_and_library_come_from_the_files_of_the_driver() {
        for line in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC \
             2023\nGCC version:  gcc 12.3.0\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.54.03  Release Build  \
             (root@host)\n",
        ] {
            let root = tree(&[
                ("proc/driver/nvidia/version", line),
                ("dev/nvidiactl", ""),
                ("dev/nvidia0", ""),
                ("dev/null", ""),
            ]);
            let folder = root.path().join("usr/lib64");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(
                "libnvidia-ml.so.550.90.07",
                folder.join("libnvidia-ml.so.1"),
            )
            .unwrap();
            let found = system(root.path());
            assert_eq!(
                (
                    found.module_version.as_deref(),
                    found.library_version.as_deref()
                ),
                (Some("535.54.03"), Some("550.90.07"))
            );
            assert_eq!(
                (found.nodes, found.is_wsl),
                (vec!["nvidia0".to_owned(), "nvidiactl".to_owned()], false)
            );
        }
    }

    #[test]
    fn a_machine_without_a_driver_shows_nothing_of_one() {
        let found = system(
            tree(&[(
                "proc/sys/kernel/osrelease",
                "6.6.0-microsoft-standard-WSL2\n",
            )])
            .path(),
        );
        assert_eq!(
            (
                found.module_version,
                found.library_version,
                found.nodes.len(),
                found.is_wsl
            ),
            (None, None, 0, true)
        );
    }

    #[test]
    fn this_machine_has_a_disk() {
        let found = place(Path::new("results"));
        assert!(found.free_bytes.value().is_some_and(|bytes| *bytes > 0));
        assert!(found.swap_used_bytes.value().is_some());
        assert_eq!(found.fault, None);
    }

    #[test]
    fn a_folder_that_is_a_file_cannot_keep_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results");
        fs::write(&file, "").unwrap();
        let words = format!("{} is not a folder", file.display());
        assert_eq!(
            (write_fault(&file), write_fault(&file.join("deeper"))),
            (Some(words.clone()), Some(words))
        );
        assert_eq!(write_fault(&folder.path().join("not/yet/there")), None);
        // The kernel's own files may not be written by anyone.
        assert!(
            write_fault(Path::new("/proc/1/fdinfo"))
                .is_none_or(|words| words.contains("cannot be written"))
        );
    }
}
