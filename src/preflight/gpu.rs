//! The facts of one GPU for the checks: the part of the typed model that decides whether its
//! results are reliable.

use kiln_hardware::{
    Absence, Gpu, ProcessList, Reading,
    gpu::{Activity, MigDevice},
    silence_of,
};

/// Names of a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigName {
    pub uuid: String,
    /// GPU instance and compute instance, as in the names of older drivers.
    pub place: Option<(u64, u64)>,
}

/// The checked facts of one GPU. Powers in milliwatts, temperatures in °C.
#[derive(Clone, Debug)]
pub struct GpuFacts {
    /// nvidia-smi's index.
    pub index: u64,
    pub uuid: Option<String>,
    pub name: Reading<String>,
    pub compute_capability: Reading<String>,
    pub memory_total_bytes: Reading<u64>,
    pub memory_used_bytes: Reading<u64>,
    pub utilization_percent: Reading<u64>,
    pub users: ProcessList,
    pub is_persistent: Reading<bool>,
    pub is_display_active: Reading<bool>,
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute_mode: Reading<u64>,
    pub is_mig: Reading<bool>,
    pub is_mig_pending: Reading<bool>,
    pub mig_instances: Vec<MigName>,
    pub is_ecc: Reading<bool>,
    pub is_ecc_pending: Reading<bool>,
    /// Uncorrected errors since the driver loaded.
    pub uncorrected_errors: Reading<u64>,
    pub are_rows_pending: Reading<bool>,
    pub has_remap_failed: Reading<bool>,
    /// Number of banks without a spare row.
    pub spent_banks: Reading<u64>,
    pub are_pages_pending: Reading<bool>,
    /// See the model's `recovery_action`.
    pub recovery_action: Reading<u64>,
    pub power_draw: Reading<u64>,
    pub power_limit: Reading<u64>,
    pub power_limit_default: Reading<u64>,
    /// Bits of [`Activity`].
    pub event_reasons: Reading<u64>,
    pub temperature: Reading<i64>,
    /// Temperature at which the clocks are slowed down.
    pub slowdown_temperature: Reading<i64>,
    /// Degrees below the limit of normal operation.
    pub temperature_margin: Reading<i64>,
    pub link_width: Reading<u64>,
    pub link_width_max: Reading<u64>,
    pub link_generation: Reading<u64>,
    pub link_generation_max: Reading<u64>,
    /// 0 is WDDM, under which process memory is hidden; only Windows and WSL have one.
    pub driver_model: Reading<u64>,
    /// Reason why the GPU cannot be read.
    pub lost: Option<Absence>,
}

impl GpuFacts {
    /// `place` is its position, used if the driver does not report the index.
    pub(super) fn of(gpu: &Gpu, place: u64, users: Option<ProcessList>) -> Self {
        Self {
            index: gpu.index.value().copied().unwrap_or(place),
            uuid: gpu.identity.uuid.value().cloned(),
            name: gpu.identity.name.clone(),
            compute_capability: gpu.identity.compute_capability.clone(),
            memory_total_bytes: gpu.memory.frame_buffer.total_bytes.clone(),
            memory_used_bytes: gpu.memory.frame_buffer.used_bytes.clone(),
            utilization_percent: gpu.activity.gpu_percent.clone(),
            users: users.unwrap_or_else(|| ProcessList::Unknown("the GPU has no UUID".to_owned())),
            is_persistent: gpu.modes.is_persistent.clone(),
            is_display_active: gpu.modes.is_display_active.clone(),
            compute_mode: gpu.modes.compute.clone(),
            is_mig: gpu.modes.mig.current.clone(),
            is_mig_pending: gpu.modes.mig.pending.clone(),
            mig_instances: gpu.mig_devices.iter().filter_map(mig_name).collect(),
            is_ecc: gpu.modes.ecc.current.clone(),
            is_ecc_pending: gpu.modes.ecc.pending.clone(),
            uncorrected_errors: gpu.ecc.uncorrected_volatile.total.clone(),
            are_rows_pending: gpu.remapped_rows.is_pending.clone(),
            has_remap_failed: gpu.remapped_rows.has_failed.clone(),
            spent_banks: gpu.remapped_rows.histogram.none.clone(),
            are_pages_pending: gpu.retired_pages.is_pending.clone(),
            recovery_action: gpu.modes.recovery_action.clone(),
            power_draw: gpu
                .power
                .draw
                .clone()
                .or_else(|| gpu.power.draw_instant.clone()),
            power_limit: gpu.power.limits.current.clone(),
            power_limit_default: gpu.power.limits.default.clone(),
            event_reasons: gpu.activity.event_reasons.clone(),
            temperature: gpu.temperature.gpu.clone(),
            slowdown_temperature: gpu.temperature.slowdown.clone(),
            temperature_margin: gpu.temperature.gpu_margin.clone(),
            link_width: gpu.pci.width_current_lanes.clone(),
            link_width_max: gpu.pci.width_max_lanes.clone(),
            link_generation: gpu.pci.generation_current.clone(),
            link_generation_max: gpu.pci.generation_max.clone(),
            driver_model: gpu.modes.driver_model.current.clone(),
            lost: lost(gpu),
        }
    }

    /// Whether kernels run on it now; `None` if the driver does not report it.
    pub(super) fn work(&self) -> Option<bool> {
        let is_resting = self
            .event_reasons
            .value()
            .is_some_and(|reasons| reasons & Activity::IDLE != 0);
        self.utilization_percent
            .value()
            .map(|percent| *percent > 0 && !is_resting)
    }

    /// Whether kernels are known to run on it now.
    pub(super) fn is_working(&self) -> bool {
        self.work() == Some(true)
    }

    /// Its name in messages: `GPU 0 (NVIDIA H200)`.
    pub(super) fn words(&self) -> String {
        match self.name.value() {
            Some(name) => format!("GPU {} ({name})", self.index),
            None => format!("GPU {}", self.index),
        }
    }
}

fn mig_name(device: &MigDevice) -> Option<MigName> {
    let place = device
        .gpu_instance_id
        .value()
        .copied()
        .zip(device.compute_instance_id.value().copied());
    Some(MigName {
        uuid: device.uuid.value()?.clone(),
        place,
    })
}

/// A GPU without permission or lost from the bus gives one reason for every reading.
fn lost(gpu: &Gpu) -> Option<Absence> {
    if let Some(silence) = silence_of(gpu) {
        return Some(silence.clone());
    }
    let name = gpu.identity.name.absence()?;
    let memory = gpu.memory.frame_buffer.total_bytes.absence()?;
    (name == memory && *name != Absence::NotSupported).then(|| name.clone())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn known<T>(value: T) -> Reading<T> {
        Reading::Value(value)
    }

    /// A healthy, unused GPU.
    pub(in crate::preflight) fn healthy(index: u64) -> GpuFacts {
        GpuFacts {
            index,
            uuid: Some(format!("GPU-{index}aaaaaaa-0000-0000-0000-000000000000")),
            name: known("NVIDIA H200".to_owned()),
            compute_capability: known("9.0".to_owned()),
            memory_total_bytes: known(140 << 30),
            memory_used_bytes: known(0),
            utilization_percent: known(0),
            users: ProcessList::Known(Vec::new()),
            is_persistent: known(true),
            is_display_active: known(false),
            compute_mode: known(0),
            is_mig: known(false),
            is_mig_pending: known(false),
            mig_instances: Vec::new(),
            is_ecc: known(true),
            is_ecc_pending: known(true),
            uncorrected_errors: known(0),
            are_rows_pending: known(false),
            has_remap_failed: known(false),
            spent_banks: known(0),
            are_pages_pending: Reading::Absent(Absence::NotSupported),
            recovery_action: known(0),
            power_draw: known(70_000),
            power_limit: known(700_000),
            power_limit_default: known(700_000),
            event_reasons: known(0),
            temperature: known(35),
            slowdown_temperature: Reading::Absent(Absence::NotSupported),
            temperature_margin: known(50),
            link_width: known(16),
            link_width_max: known(16),
            link_generation: known(5),
            link_generation_max: known(5),
            driver_model: Reading::Absent(Absence::NotSupported),
            lost: None,
        }
    }
}
