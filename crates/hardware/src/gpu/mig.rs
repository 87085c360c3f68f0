//! MIG devices: the instances that a GPU is divided into.

use nvml_wrapper::Device;

use super::{DeviceSource, MemoryUse, Modes};
use crate::{
    Nvml, Reading,
    nvml::{calls, reading_of},
};

/// One instance, with its share of the GPU's parts.
#[derive(Clone, Debug)]
pub struct MigDevice {
    pub index: u64,
    /// Such as `MIG-…`.
    pub uuid: Reading<String>,
    pub name: Reading<String>,
    pub gpu_instance_id: Reading<u64>,
    pub compute_instance_id: Reading<u64>,
    pub multiprocessors: Reading<u64>,
    pub copy_engines: Reading<u64>,
    pub encoders: Reading<u64>,
    pub decoders: Reading<u64>,
    pub ofa_engines: Reading<u64>,
    pub jpeg_engines: Reading<u64>,
    pub sram_uncorrected_volatile: Reading<u64>,
    pub memory: MemoryUse,
    pub bar1: MemoryUse,
}

/// All instances. Indices may have gaps.
pub(super) fn read(source: &DeviceSource<'_>, modes: &Modes) -> Vec<MigDevice> {
    if modes.mig.current.value() != Some(&true) {
        return Vec::new();
    }
    let most = source
        .tell(Device::mig_device_count)
        .into_value()
        .unwrap_or(0);
    (0..most)
        .filter_map(|index| {
            let found = source.raw(|nvml, device| {
                reading_of(device.mig_device_by_index(index))
                    .map(|found| one(nvml, u64::from(index), &found))
            });
            found.into_value()
        })
        .collect()
}

fn one(nvml: &Nvml, index: u64, device: &Device<'_>) -> MigDevice {
    let attributes = reading_of(device.attributes());
    let share = |part: fn(&nvml_wrapper::struct_wrappers::device::DeviceAttributes) -> u32| {
        attributes.as_ref().map(|found| u64::from(part(found)))
    };
    MigDevice {
        index,
        uuid: reading_of(device.uuid()),
        name: reading_of(device.name()),
        gpu_instance_id: calls::gpu_instance_id(nvml, device).map(u64::from),
        compute_instance_id: calls::compute_instance_id(nvml, device).map(u64::from),
        multiprocessors: share(|found| found.multiprocessor_count),
        copy_engines: share(|found| found.shared_copy_engine_count),
        encoders: share(|found| found.shared_encoder_count),
        decoders: share(|found| found.shared_decoder_count),
        ofa_engines: share(|found| found.shared_ofa_count),
        jpeg_engines: share(|found| found.shared_jpeg_count),
        sram_uncorrected_volatile: calls::memory_errors(nvml, device, [1, 0, 7]),
        memory: MemoryUse::frame_buffer(calls::memory(nvml, device), || {
            calls::memory_v1(nvml, device)
        }),
        bar1: MemoryUse::bar1(&reading_of(device.bar1_memory_info())),
    }
}
