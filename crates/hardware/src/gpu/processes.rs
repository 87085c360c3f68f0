//! Processes on a GPU, and accounting records of ended ones.

use std::{collections::BTreeMap, fs};

use nvml_wrapper::{Device, enums::device::UsedGpuMemory, struct_wrappers::device::ProcessInfo};

use super::{DeviceSource, Modes};
use crate::{Absence, Reading, nvml::calls, process};

/// One process, by all the kinds of context it has on the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// As the machine counts processes, which inside a container is not as we count them.
    pub pid: u32,
    pub has_compute: bool,
    pub has_graphics: bool,
    /// Computes through the multi-process service.
    pub has_mps: bool,
    pub name: Reading<String>,
    pub memory: ProcessMemory,
    pub gpu_instance_id: Option<u64>,
    pub compute_instance_id: Option<u64>,
}

/// Memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessMemory {
    Bytes(u64),
    /// The operating system, not the driver, owns the memory (WDDM on Windows and in WSL).
    NotTold,
}

/// Accounting record of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountedProcess {
    pub pid: u32,
    pub gpu_percent: Reading<u64>,
    pub memory_percent: Reading<u64>,
    pub max_memory_bytes: Reading<u64>,
    /// 0 while the process runs.
    pub milliseconds: Reading<u64>,
}

impl Process {
    /// nvidia-smi's letters: `C` compute, `G` graphics, `M+C` compute through the multi-process
    /// service.
    pub fn kind(&self) -> &'static str {
        match (self.has_mps, self.has_compute, self.has_graphics) {
            (true, _, true) => "M+C+G",
            (true, _, false) => "M+C",
            (false, true, true) => "C+G",
            (false, false, true) => "G",
            (false, _, false) => "C",
        }
    }
}

#[derive(Clone, Copy)]
enum List {
    Compute,
    Graphics,
    Mps,
}

/// Processes by number. Absent where the driver hides compute processes; lists that it does not
/// have are skipped.
pub(super) fn read(source: &DeviceSource<'_>) -> Reading<Vec<Process>> {
    let older = |name: &'static str| {
        move || source.raw(|nvml, device| calls::processes_before_v3(nvml, device, name))
    };
    let compute = match source
        .tell(Device::running_compute_processes)
        .or_else(older("nvmlDeviceGetComputeRunningProcesses"))
    {
        Reading::Value(list) => list,
        Reading::Absent(absence) => return Reading::Absent(absence),
    };
    let graphics = source
        .tell(Device::running_graphics_processes)
        .or_else(older("nvmlDeviceGetGraphicsRunningProcesses"));
    let mps = source
        .tell(Device::mps_running_compute_processes)
        .or_else(older("nvmlDeviceGetMPSComputeRunningProcesses"));
    let mut found = BTreeMap::new();
    let lists = [
        (List::Compute, compute),
        (List::Graphics, graphics.into_value().unwrap_or_default()),
        (List::Mps, mps.into_value().unwrap_or_default()),
    ];
    for (kind, list) in lists {
        for info in list {
            merge(&mut found, kind, &info, source);
        }
    }
    Reading::Value(found.into_values().collect())
}

/// Instances of MIG keep the lists of one process apart.
type ProcessKey = (Option<u32>, Option<u32>, u32);

fn merge(
    found: &mut BTreeMap<ProcessKey, Process>,
    kind: List,
    info: &ProcessInfo,
    source: &DeviceSource<'_>,
) {
    let key = (info.gpu_instance_id, info.compute_instance_id, info.pid);
    let process = found.entry(key).or_insert_with(|| Process {
        pid: info.pid,
        has_compute: false,
        has_graphics: false,
        has_mps: false,
        name: name(source, info.pid),
        memory: ProcessMemory::NotTold,
        gpu_instance_id: info.gpu_instance_id.map(u64::from),
        compute_instance_id: info.compute_instance_id.map(u64::from),
    });
    match kind {
        List::Compute => process.has_compute = true,
        List::Graphics => process.has_graphics = true,
        List::Mps => process.has_mps = true,
    }
    if let UsedGpuMemory::Used(bytes) = info.used_gpu_memory {
        // The lists repeat the process's whole memory.
        let known = if let ProcessMemory::Bytes(known) = process.memory {
            known
        } else {
            0
        };
        process.memory = ProcessMemory::Bytes(known.max(bytes));
    }
}

/// As the driver knows it; as the kernel does where the driver cannot be asked. A driver that does
/// not find the process was asked of one that has ended, or that another machine's number would be
/// taken for.
fn name(source: &DeviceSource<'_>, pid: u32) -> Reading<String> {
    match source.library(|nvml| nvml.process_name(pid)) {
        Reading::Absent(absence @ Absence::NoSymbol) => match command(pid) {
            Some(name) => Reading::Value(name),
            None => Reading::Absent(absence),
        },
        told => told,
    }
}

/// The first word of its command line. Where process numbers are not the driver's, this would name
/// another process.
fn command(pid: u32) -> Option<String> {
    let line = process::pids_are_the_machines()
        .then(|| fs::read(format!("/proc/{pid}/cmdline")).ok())??;
    let first = line
        .split(|byte| *byte == 0)
        .next()
        .filter(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}

/// Absent where accounting is off.
pub(super) fn accounted(
    source: &DeviceSource<'_>,
    modes: &Modes,
) -> Reading<Vec<AccountedProcess>> {
    if modes.is_accounting.value() == Some(&false) {
        return Reading::absent("accounting is off");
    }
    source.tell(Device::accounting_pids).map(|pids| {
        pids.into_iter()
            .map(|pid| accounted_process(source, pid))
            .collect()
    })
}

fn accounted_process(source: &DeviceSource<'_>, pid: u32) -> AccountedProcess {
    let stats = source.tell(|device| device.accounting_stats_for(pid));
    let optional = |value: Option<u64>| Reading::or_absent(value, "the driver does not say");
    AccountedProcess {
        pid,
        gpu_percent: stats
            .as_ref()
            .and_then(|stats| optional(stats.gpu_utilization.map(u64::from))),
        memory_percent: stats
            .as_ref()
            .and_then(|stats| optional(stats.memory_utilization.map(u64::from))),
        max_memory_bytes: stats
            .as_ref()
            .and_then(|stats| optional(stats.max_memory_usage)),
        milliseconds: stats.map(|stats| stats.time),
    }
}
