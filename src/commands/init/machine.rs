//! The machine for which a file is written: its devices, cores and memory.

use kiln_core::units::Bytes;
use kiln_hardware::host::{read, usable_cores};

use crate::commands::machine::{open_instruments, visible_here};

/// The device on which the experiment will run.
pub(super) struct Machine {
    /// The device, the cores and the memory, in words.
    pub(super) about: String,
    has_gpu: bool,
    pub(super) workers: u64,
    /// The first GPU, by nvidia-smi's index, and the reason why none can be used.
    pub(super) unusable: Option<(u32, String)>,
}

impl Machine {
    pub(super) fn here() -> Self {
        let instruments = open_instruments();
        let devices = instruments.devices();
        let unusable = instruments.unusable().first().cloned();
        let gpu = visible_here(&instruments).into_iter().next();
        let (cores, host) = (usable_cores(), read());
        let memory = host.memory_bytes.into_value();
        let memory = memory.map_or(String::new(), |bytes| {
            format!(", {} of memory", Bytes(bytes))
        });
        let host = format!("{cores} cores{memory}");
        Self {
            about: match &gpu {
                Some(gpu) => format!("{} beside {host}", gpu.name),
                None => format!("the CPU: {host}"),
            },
            has_gpu: gpu.is_some(),
            workers: (cores / 2).min(4),
            unusable: unusable.filter(|_| devices.is_empty()),
        }
    }

    /// One value for a GPU, a smaller one for a CPU.
    pub(super) fn sized<T>(&self, gpu: T, cpu: T) -> T {
        if self.has_gpu { gpu } else { cpu }
    }
}
