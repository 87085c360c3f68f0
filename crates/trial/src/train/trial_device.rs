//! The device of a trial's file, set up as its `train` section asks.

use kiln_core::{plan::TrialFile, spec::CpuThreads};

use super::{
    measurement::{AllocatorPeaks, DeviceWork},
    step_clock::{StepClock, WallClock},
};
use crate::{engine::EngineDevice, error::TrialError};

/// Opens device `index` of the trial, with its threads, precision and cuDNN's benchmarks.
///
/// Errors: no such device, a precision the engine lacks.
pub(super) fn open(file: &TrialFile, index: u64) -> Result<EngineDevice, TrialError> {
    let train = &file.train;
    let CpuThreads::Count(threads) = train.cpu_threads else {
        return Err(TrialError::Bad(
            "`train.cpu_threads` must be a number in a trial file".to_owned(),
        ));
    };
    let device = EngineDevice::open_replica(file.engine, file.device, threads, index as usize)?;
    device.set_precision(train.precision)?;
    device.set_cudnn_benchmark(train.cudnn_benchmark)?;
    Ok(device)
}

/// The clock of the device's steps, started at `now` (CLOCK_MONOTONIC in nanoseconds).
pub(super) fn step_clock(device: &EngineDevice, now: u64) -> Box<dyn StepClock> {
    #[cfg(feature = "libtorch")]
    if device.is_cuda() {
        use super::step_clock::EventClock;
        use crate::engine::cuda::DeviceMoment;
        return Box::new(EventClock::<DeviceMoment>::new());
    }
    let _ = device;
    Box::new(WallClock::new(now))
}

impl DeviceWork for EngineDevice {
    fn wait(&mut self) -> Result<(), TrialError> {
        Self::wait(self)
    }

    fn allocator_peaks(&self) -> Option<AllocatorPeaks> {
        let stats = self.allocator()?;
        Some(AllocatorPeaks {
            allocated_bytes: stats.peak_allocated_bytes,
            reserved_bytes: stats.peak_reserved_bytes,
            retries: stats.retries,
        })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.allocator()?.allocated_bytes)
    }

    fn reset_allocator_peaks(&mut self) {
        Self::reset_allocator_peaks(self);
    }
}
