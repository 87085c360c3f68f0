//! A device of a trial: opening, waiting, seeding, and the allocator's figures.

#![allow(
    deprecated,
    reason = "burn-tch ends with burn 0.22, which this package pins"
)]

use std::{error::Error, io};

use burn::tensor::Device;
use kiln_core::{plan::ChildDevice, spec::Engine};
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

use super::{cpu_model, guard};
use crate::error::TrialError;

/// Memory figures of libtorch's caching allocator, in bytes and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorStats {
    pub allocated_bytes: u64,
    pub peak_allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// Failed allocations that succeeded after the cache was given back, since the last reset.
    pub retries: u64,
    pub out_of_memory_count: u64,
}

/// An engine and the device it computes on.
#[derive(Clone, Debug)]
pub struct EngineDevice {
    pub engine: Engine,
    pub kind: ChildDevice,
    /// Among the CUDA devices that this process sees; 0 on the CPU.
    ordinal: usize,
    /// burn's device, without autodiff.
    plain: Device,
}

impl EngineDevice {
    /// Opens the device and sets the engine's threads.
    ///
    /// Errors: flex has no CUDA; this build may be without libtorch; there may be no driver or no
    /// CUDA libtorch.
    pub fn open(engine: Engine, kind: ChildDevice, cpu_threads: u64) -> Result<Self, TrialError> {
        Self::open_replica(engine, kind, cpu_threads, 0)
    }

    /// The device of replica `replica`, from 0: each has its own CUDA device, and all of them share
    /// the CPU.
    ///
    /// Errors: also where this process sees too few CUDA devices.
    pub(crate) fn open_replica(
        engine: Engine,
        kind: ChildDevice,
        cpu_threads: u64,
        replica: usize,
    ) -> Result<Self, TrialError> {
        let ordinal = if kind == ChildDevice::Cuda {
            replica
        } else {
            0
        };
        let plain = match engine {
            Engine::Flex => open_flex(kind, cpu_threads)?,
            Engine::Libtorch => open_libtorch(kind, cpu_threads, ordinal)?,
            Engine::Own(name) => {
                return Err(TrialError::Bad(format!(
                    "engine `{}` is another program's; this one has {}",
                    name.as_str(),
                    Engine::BUILT_IN.join(" and ")
                )));
            }
        };
        Ok(Self {
            engine,
            kind,
            ordinal,
            plain,
        })
    }

    /// For tensors that need no gradient: tokens, evaluation.
    pub fn plain(&self) -> &Device {
        &self.plain
    }

    /// For parameters.
    pub fn with_gradients(&self) -> Device {
        self.plain.clone().autodiff()
    }

    /// Whether it is a GPU.
    pub fn is_cuda(&self) -> bool {
        self.kind == ChildDevice::Cuda
    }

    /// Whether operations take the ways that are meant for CUDA: it is a GPU, or they are forced.
    pub(crate) fn takes_cuda_branches(&self) -> bool {
        #[cfg(feature = "libtorch")]
        if self.engine == Engine::Libtorch && super::libtorch::cuda_branches_forced() {
            return true;
        }
        self.is_cuda()
    }

    /// Index of the CUDA device; `None` on the CPU.
    pub(super) fn cuda(&self) -> Option<usize> {
        self.is_cuda().then_some(self.ordinal)
    }

    /// From now on, this thread's work on a GPU runs on its own stream, which can be captured; no
    /// effect on the CPU.
    ///
    /// Errors: libtorch's words.
    #[cfg(feature = "libtorch")]
    pub(crate) fn use_side_stream(&self) -> Result<(), TrialError> {
        self.cuda().map_or(Ok(()), super::capture::use_side_stream)
    }

    /// Whether cuDNN tries its convolutions on the first of each shape. On the CPU the switch is
    /// there and does nothing.
    ///
    /// Errors: libtorch's words.
    pub fn set_cudnn_benchmark(&self, is_wanted: bool) -> Result<(), TrialError> {
        #[cfg(feature = "libtorch")]
        if self.engine == Engine::Libtorch {
            return super::libtorch::set_cudnn_benchmark(is_wanted);
        }
        let _ = is_wanted;
        Ok(())
    }

    /// Seeds the generator that dropout draws from.
    ///
    /// Errors: the device failed.
    pub fn seed(&self, seed: u64) -> Result<(), TrialError> {
        #[cfg(feature = "libtorch")]
        if self.is_cuda() {
            // burn's own way seeds every device's generator, also one that another replica draws
            // from at this moment.
            return super::cuda::seed(self.cuda(), seed);
        }
        self.plain.seed(seed);
        Ok(())
    }

    /// Waits until the device has finished all submitted work.
    pub fn wait(&self) -> Result<(), TrialError> {
        guard(|| self.plain.sync())?
            .map_err(|error| TrialError::Failed(format!("the device failed: {error:?}")))
    }

    /// The name by which a user knows the device. A GPU's name comes from its driver, which the
    /// parent queries.
    pub fn name(&self) -> String {
        if self.is_cuda() {
            "CUDA".to_owned()
        } else {
            cpu_model()
        }
    }

    /// Number of CPU threads that the engine reports.
    pub fn cpu_threads(&self) -> u64 {
        match self.engine {
            #[cfg(feature = "libtorch")]
            Engine::Libtorch => u64::try_from(tch::get_num_threads()).unwrap_or(0),
            _ => rayon::current_num_threads() as u64,
        }
    }

    /// `None` on the CPU, whose allocator keeps no figures, and where libtorch cannot tell them.
    pub fn allocator(&self) -> Option<AllocatorStats> {
        #[cfg(feature = "libtorch")]
        if self.is_cuda() {
            // The figures describe training and are no part of it: without them cells are empty. A
            // device that has failed is told by the next wait.
            return super::libtorch::allocator_stats(self.ordinal).ok();
        }
        None
    }

    /// Resets the allocator's peaks and counts; no effect on the CPU.
    pub fn reset_allocator_peaks(&self) {
        #[cfg(feature = "libtorch")]
        if self.is_cuda() {
            // A failure leaves older peaks; the figures then are upper bounds.
            let _ = super::libtorch::reset_allocator_peaks(self.ordinal);
        }
    }
}

/// To be called once by each thread that computes beside the one that opened the device.
pub(crate) fn begin_thread() {
    #[cfg(feature = "libtorch")]
    super::libtorch::warn_once();
}

fn open_flex(kind: ChildDevice, cpu_threads: u64) -> Result<Device, TrialError> {
    if kind == ChildDevice::Cuda {
        return Err(TrialError::Bad(
            "`run.engine` flex computes on the CPU only; set `run.devices` to cpu, or `run.engine` \
             to libtorch"
                .to_owned(),
        ));
    }
    let built = ThreadPoolBuilder::new()
        .num_threads(cpu_threads as usize)
        .build_global();
    check_pool(built, cpu_threads)?;
    Ok(Device::flex())
}

/// Errors: the pool's threads could not be started. A pool that is there already is none.
fn check_pool(built: Result<(), ThreadPoolBuildError>, cpu_threads: u64) -> Result<(), TrialError> {
    let fault = built.err();
    let of_system = fault.as_ref().and_then(Error::source);
    match of_system.and_then(|error| error.downcast_ref::<io::Error>()) {
        None => Ok(()),
        Some(error) => Err(TrialError::of_starting(
            &format!("flex needs {cpu_threads} threads, as `train.cpu_threads` says"),
            error,
        )),
    }
}

#[cfg(feature = "libtorch")]
fn open_libtorch(
    kind: ChildDevice,
    cpu_threads: u64,
    ordinal: usize,
) -> Result<Device, TrialError> {
    if kind == ChildDevice::Cuda {
        super::cuda::load()?;
        refuse_too_few(ordinal)?;
    }
    super::libtorch::warn_once();
    super::threads::check(cpu_threads)?;
    tch::set_num_threads(i32::try_from(cpu_threads).unwrap_or(i32::MAX));
    super::libtorch::allow_tf32(false, false)?;
    match kind {
        ChildDevice::Cpu => {
            super::libtorch::keep_host_memory();
            Ok(Device::libtorch())
        }
        ChildDevice::Cuda => open_cuda(ordinal),
    }
}

/// Errors: fewer devices than needed. The first device is not checked: opening it fails with
/// libtorch's own message.
#[cfg(feature = "libtorch")]
fn refuse_too_few(ordinal: usize) -> Result<(), TrialError> {
    if ordinal == 0 {
        return Ok(());
    }
    let visible = guard(tch::Cuda::device_count)?;
    if (ordinal as i64) < visible {
        return Ok(());
    }
    Err(TrialError::NoDevice(format!(
        "the trial needs at least {} GPUs (`run.devices_per_trial`), and libtorch sees {visible}; \
         does `CUDA_VISIBLE_DEVICES` hide one?",
        ordinal + 1
    )))
}

/// A CUDA device as burn sees it, once a tensor is on it.
///
/// Errors: burn-tch was built without CUDA, there is no such device, or it has no memory left.
#[cfg(feature = "libtorch")]
pub(crate) fn open_cuda(index: usize) -> Result<Device, TrialError> {
    guard(|| {
        let device = Device::libtorch_cuda(index);
        burn::tensor::Tensor::<1>::zeros([1], &device);
        device
    })
}

#[cfg(not(feature = "libtorch"))]
fn open_libtorch(_: ChildDevice, _: u64, _: usize) -> Result<Device, TrialError> {
    Err(TrialError::Bad(
        "this `kiln-trial` was built without libtorch; set `run.engine` to flex, or build it with \
         the feature `libtorch`"
            .to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_threads_is_a_fault_of_the_machine() {
        // No machine has room for such a stack; the system then says the same as at a limit of threads.
        let failed = ThreadPoolBuilder::new().num_threads(2).stack_size(1 << 60);
        let fault = check_pool(failed.build().map(drop), 2).unwrap_err();
        assert!(
            matches!(&fault, TrialError::NoDevice(text) if text.contains("`ulimit -u`")),
            "{fault:?}"
        );
    }
}
