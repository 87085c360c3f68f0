//! Settings of a GPU: persistence, MIG, accounting, driver model, virtualization, compute mode and
//! the like.

use nvml_wrapper::Device;

use super::{Section, source::DeviceSource};
use crate::{
    Absence, Reading,
    nvml::{calls, field_ids::RECOVERY_ACTION},
};

/// A setting now, and after the next restart or reset.
#[derive(Clone, Debug)]
pub struct Pending<T> {
    pub current: Reading<T>,
    pub pending: Reading<T>,
}

impl<T: Clone> Pending<T> {
    pub(super) fn of<P>(pair: &Reading<P>, split: impl Fn(&P) -> (T, T)) -> Self {
        Self {
            current: pair.as_ref().map(|pair| split(pair).0),
            pending: pair.as_ref().map(|pair| split(pair).1),
        }
    }
}

/// Settings of one GPU.
#[derive(Clone, Debug)]
pub struct Modes {
    pub is_display_attached: Reading<bool>,
    pub is_display_active: Reading<bool>,
    pub is_persistent: Reading<bool>,
    /// 0 none, 1 HMM, 2 ATS.
    pub addressing: Reading<u64>,
    pub mig: Pending<bool>,
    pub is_accounting: Reading<bool>,
    /// Ended processes that accounting remembers.
    pub accounting_buffer_size: Reading<u64>,
    /// 0 WDDM, 1 TCC (WDM), 2 MCDM. Only Windows and WSL have one.
    pub driver_model: Pending<u64>,
    /// 0 all on, 1 compute, 2 low double precision.
    pub operation: Pending<u64>,
    pub is_c2c: Reading<bool>,
    /// 0 none, 1 pass-through, 2 vGPU, 3 host of vGPUs, 4 host of vSGAs.
    pub virtualization: Reading<u64>,
    /// 0 none of SR-IOV, 1 SR-IOV.
    pub host_vgpu: Reading<u64>,
    pub is_vgpu_heterogeneous: Reading<bool>,
    pub vgpu: VgpuCapabilities,
    /// Recovery action that the driver recommends: 0 nothing, 1 reset, 2 restart the machine, 3
    /// drain peers, 4 drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 restart the
    /// system.
    pub recovery_action: Reading<u64>,
    /// 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.
    pub compute: Reading<u64>,
    pub ecc: Pending<bool>,
    pub dram_encryption: Pending<bool>,
    pub is_power_managed: Reading<bool>,
    pub is_auto_boosted: Reading<bool>,
    pub is_auto_boosted_by_default: Reading<bool>,
    /// Extended GPU memory.
    pub is_egm: Reading<bool>,
}

/// The vGPU profiles that may be mixed. Absent on GPUs that do not host any.
#[derive(Clone, Debug)]
pub struct VgpuCapabilities {
    pub driver_heterogeneous_multi: Reading<bool>,
    pub fractional_multi: Reading<bool>,
    pub heterogeneous_profiles: Reading<bool>,
    pub heterogeneous_sizes: Reading<bool>,
    pub homogeneous_placements: Reading<bool>,
    pub mig_timeslicing: Reading<bool>,
    pub mig_timeslicing_enabled: Reading<bool>,
}

impl Section for Modes {
    fn read(source: &DeviceSource<'_>) -> Self {
        let mig = source.tell(Device::mig_mode);
        let ecc = source.tell(Device::is_ecc_enabled);
        let encryption = source.raw(calls::dram_encryption);
        let boost = source.tell(Device::auto_boosted_clocks_enabled);
        let numbers = |pair: &(u32, u32)| (u64::from(pair.0), u64::from(pair.1));
        Self {
            is_display_attached: source.tell(Device::is_display_connected),
            is_display_active: source.tell(Device::is_display_active),
            is_persistent: source.tell(Device::is_in_persistent_mode),
            addressing: source
                .raw(calls::addressing_mode)
                .map(|mode| u64::from(mode.value)),
            mig: Pending::of(&mig, |mode| (mode.current == 1, mode.pending == 1)),
            is_accounting: source.tell(Device::is_accounting_enabled),
            accounting_buffer_size: source.tell(Device::accounting_buffer_size).map(u64::from),
            driver_model: Pending::of(&source.raw(calls::driver_model), numbers),
            operation: Pending::of(&source.raw(calls::operation_mode), numbers),
            is_c2c: source.raw(calls::c2c_mode).map(|mode| mode != 0),
            virtualization: source.raw(calls::virtualization_mode).map(u64::from),
            host_vgpu: source.raw(calls::host_vgpu_mode).map(u64::from),
            is_vgpu_heterogeneous: source
                .raw(calls::vgpu_heterogeneous_mode)
                .map(|mode| mode.mode != 0),
            vgpu: VgpuCapabilities::read(source),
            recovery_action: source.unsigned(RECOVERY_ACTION, 0),
            compute: source.raw(calls::compute_mode).map(u64::from),
            ecc: Pending::of(&ecc, |mode| (mode.currently_enabled, mode.pending_enabled)),
            dram_encryption: Pending::of(&encryption, |mode| (mode.0 != 0, mode.1 != 0)),
            is_power_managed: source
                .raw(calls::power_management_mode)
                .map(|mode| mode != 0),
            is_auto_boosted: boost.as_ref().map(|boost| boost.is_enabled),
            is_auto_boosted_by_default: boost.map(|boost| boost.is_enabled_default),
            is_egm: source
                .raw(calls::capabilities)
                .map(|found| found.capMask & 1 != 0),
        }
    }
}

impl Section for VgpuCapabilities {
    fn read(source: &DeviceSource<'_>) -> Self {
        let device = |capability: u32| {
            source
                .raw(|nvml, device| calls::vgpu_capability(nvml, device, capability))
                .map(|found| found != 0)
        };
        let driver = source
            .raw(|nvml, _| calls::vgpu_driver_capability(nvml, 0))
            .map(|found| found != 0);
        let is_host = matches!(source.raw(calls::host_vgpu_mode), Reading::Value(_));
        Self {
            // The driver answers for itself; nvidia-smi shows the answer for GPUs that host vGPUs.
            driver_heterogeneous_multi: if is_host {
                driver
            } else {
                driver.and_then(|_| Reading::Absent(Absence::NotSupported))
            },
            fractional_multi: device(0),
            heterogeneous_profiles: device(1),
            heterogeneous_sizes: device(2),
            homogeneous_placements: device(9),
            mig_timeslicing: device(10),
            mig_timeslicing_enabled: device(11),
        }
    }
}
