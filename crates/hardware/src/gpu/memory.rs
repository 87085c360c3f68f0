//! Memory of the board: frame buffer, the window the processor sees of it (BAR1), and the part that
//! confidential computing protects.

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlMemory_v2_t};

use super::{Section, source::DeviceSource};
use crate::{Reading, nvml::calls};

/// Bytes of one kind of memory. `used` does not include reserved memory.
#[derive(Clone, Debug)]
pub struct MemoryUse {
    pub total_bytes: Reading<u64>,
    /// Held by driver and firmware; only the frame buffer has it.
    pub reserved_bytes: Reading<u64>,
    pub used_bytes: Reading<u64>,
    pub free_bytes: Reading<u64>,
}

#[derive(Clone, Debug)]
pub struct GpuMemory {
    pub frame_buffer: MemoryUse,
    pub bar1: MemoryUse,
    pub protected: MemoryUse,
}

impl Section for GpuMemory {
    fn read(source: &DeviceSource<'_>) -> Self {
        let protected = source.raw(calls::protected_memory);
        Self {
            frame_buffer: MemoryUse::frame_buffer(source.raw(calls::memory), || {
                source.raw(calls::memory_v1)
            }),
            bar1: MemoryUse::bar1(&source.tell(Device::bar1_memory_info)),
            protected: MemoryUse::of(&protected, |memory| {
                [memory.total, memory.used, memory.free]
            }),
        }
    }
}

impl MemoryUse {
    /// Drivers before 510 have only the older call, which counts what is reserved as used.
    pub(super) fn frame_buffer(
        newer: Reading<nvmlMemory_v2_t>,
        older: impl FnOnce() -> Reading<nvmlMemory_t>,
    ) -> Self {
        let without = Self::of(&newer, |memory| [memory.total, memory.used, memory.free]);
        let whole = Self {
            reserved_bytes: newer.as_ref().map(|memory| memory.reserved),
            ..without
        };
        if newer.is_offered() {
            return whole;
        }
        match older() {
            Reading::Absent(_) => whole,
            found => Self::of(&found, |memory| [memory.total, memory.used, memory.free]),
        }
    }

    pub(super) fn bar1(
        info: &Reading<nvml_wrapper::struct_wrappers::device::BAR1MemoryInfo>,
    ) -> Self {
        Self::of(info, |memory| [memory.total, memory.used, memory.free])
    }

    /// Total, used and free; reserved bytes are not reported.
    fn of<M>(info: &Reading<M>, parts: impl Fn(&M) -> [u64; 3]) -> Self {
        let part = |at: usize| info.as_ref().map(|info| parts(info)[at]);
        Self {
            total_bytes: part(0),
            reserved_bytes: Reading::absent(
                "this driver does not report reserved memory separately",
            ),
            used_bytes: part(1),
            free_bytes: part(2),
        }
    }
}
